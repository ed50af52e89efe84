"""Losses of a linear score. One record's loss is `value(score, y)`; every constant a theorem needs is a field.

`lipschitz` bounds the gradient in the score, `smoothness` the Hessian in the score, `rank` the rank of one record's
Hessian. A record with |x| <= X then has gradient norm <= lipschitz * X and Hessian eigenvalues <= smoothness * X^2.
For the losses with two labels, y is 0 or 1 (the position in the public label set); for regression y is the number.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp

from coterie.errors import InputError
from coterie.facts import Facts
from coterie.serialise import serialisable


class Loss:
    lipschitz: float
    smoothness: float
    rank: int
    n_outputs: int = 1
    # a decreasing function of y * score with y = +-1
    margin: bool = False
    # one score, and phi'' = |phi'| (1 - |phi'|)
    self_bounded: bool = False
    # of one score, with the same curvature everywhere
    quadratic: bool = False

    def value(self, score: jax.Array, y: jax.Array) -> jax.Array:
        raise NotImplementedError

    def slope(self, score: jax.Array, y: jax.Array) -> jax.Array:
        raise NotImplementedError

    def curvature(self, score: jax.Array, y: jax.Array) -> jax.Array:
        raise NotImplementedError

    def check(self, facts: Facts) -> None:
        """Refuse facts whose labels do not fit this loss."""
        raise NotImplementedError


class _TwoLabels(Loss):
    """phi(y * score), written once for phi, phi' and phi''."""

    rank = 1
    lipschitz = 1.0
    margin = True

    def phi(self, m: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        raise NotImplementedError

    def value(self, score, y):
        return self.phi((2 * y - 1) * score)[0]

    def slope(self, score, y):
        sign = 2 * y - 1
        return sign * self.phi(sign * score)[1]

    def curvature(self, score, y):
        return self.phi((2 * y - 1) * score)[2]

    def check(self, facts):
        if facts.labels is None or len(facts.labels) != 2:
            raise InputError(f"labels: got {facts.labels}; {type(self).__name__} needs exactly two labels")


@serialisable
@dataclasses.dataclass(frozen=True)
class Logistic(_TwoLabels):
    """ln(1 + exp(-m))."""

    smoothness = 0.25
    self_bounded = True

    def phi(self, m):
        p = jax.nn.sigmoid(-m)
        return jax.nn.softplus(-m), -p, p * (1 - p)


@serialisable
@dataclasses.dataclass(frozen=True)
class HuberisedHinge(_TwoLabels):
    """max(0, 1 - m) with its corner replaced by a parabola on [1 - width, 1 + width]."""

    width: float = 0.5

    def __post_init__(self):
        _positive("width", self.width)

    @property
    def smoothness(self) -> float:
        return 1 / (2 * self.width)

    def phi(self, m):
        h = self.width
        # how far into the parabola
        gap = jnp.clip(1 + h - m, 0.0, 2 * h)
        value = gap**2 / (4 * h) + jnp.maximum(1 - h - m, 0.0)
        return value, -gap / (2 * h), jnp.where(jnp.abs(1 - m) <= h, 1 / (2 * h), 0.0)


class _Regression(Loss):
    rank = 1

    def check(self, facts):
        if facts.labels is not None:
            raise InputError(
                f"labels: got {facts.labels}; {type(self).__name__} is a regression loss and needs numbers as labels"
            )


@serialisable
@dataclasses.dataclass(frozen=True)
class Squared(_Regression):
    """(score - y)^2 / 2. Its slope is unbounded, so nothing but clipping can make it private."""

    lipschitz = math.inf
    smoothness = 1.0
    quadratic = True

    def value(self, score, y):
        return 0.5 * (score - y) ** 2

    def slope(self, score, y):
        return score - y

    def curvature(self, score, y):
        return jnp.ones_like(score)


@serialisable
@dataclasses.dataclass(frozen=True)
class Huber(_Regression):
    """Squared up to `threshold`, then linear."""

    threshold: float = 1.0
    smoothness = 1.0

    def __post_init__(self):
        _positive("threshold", self.threshold)

    @property
    def lipschitz(self) -> float:
        return self.threshold

    def value(self, score, y):
        residual = jnp.abs(score - y)
        inside = jnp.minimum(residual, self.threshold)
        return 0.5 * inside**2 + self.threshold * (residual - inside)

    def slope(self, score, y):
        return jnp.clip(score - y, -self.threshold, self.threshold)

    def curvature(self, score, y):
        return jnp.where(jnp.abs(score - y) <= self.threshold, 1.0, 0.0)


@serialisable
@dataclasses.dataclass(frozen=True)
class Multinomial(Loss):
    """-ln softmax(scores)[y] for K classes; coefficients are (n_features, K), flattened."""

    n_classes: int

    lipschitz = math.sqrt(2)
    smoothness = 0.5

    def __post_init__(self):
        if not isinstance(self.n_classes, int) or self.n_classes < 2:
            raise InputError(f"n_classes: got {self.n_classes}; an integer >= 2 is needed")

    @property
    def n_outputs(self) -> int:
        return self.n_classes

    @property
    def rank(self) -> int:
        return self.n_classes - 1

    def _one_hot(self, score, y):
        return jax.nn.one_hot(y.astype(int), self.n_classes, dtype=score.dtype)

    def value(self, score, y):
        return jax.nn.logsumexp(score, axis=-1) - jnp.sum(score * self._one_hot(score, y), axis=-1)

    def slope(self, score, y):
        return jax.nn.softmax(score, axis=-1) - self._one_hot(score, y)

    def curvature(self, score, y):
        p = jax.nn.softmax(score, axis=-1)
        return p[..., :, None] * jnp.eye(self.n_classes)[None] - p[..., :, None] * p[..., None, :]

    def check(self, facts):
        if facts.labels is None or len(facts.labels) != self.n_classes:
            raise InputError(f"labels: got {facts.labels}; Multinomial(n_classes={self.n_classes}) needs that many")


def _positive(name: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise InputError(f"{name}: got {value}; a positive finite number is needed")
