"""Regularisers on the coefficients: a smooth part (l2/2)|f|^2 and a part that is known through its proximal map.

`l2` is the strong convexity. `scaled(share)` is the part of the regulariser that one of the parties carries;
constraints are not divided, every party keeps them whole.
"""

import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from coterie.errors import InputError
from coterie.serialise import serialisable


class Regulariser:
    # every regulariser is a dataclass
    __dataclass_fields__: ClassVar[dict[str, Any]]
    l2: float
    # True: nothing beyond the l2 term
    smooth: ClassVar[bool] = False

    def rest(self, f: jax.Array) -> jax.Array:
        """Value of the part beyond the l2 term."""
        raise NotImplementedError

    def prox(self, v: jax.Array, step: jax.Array) -> jax.Array:
        """argmin_f rest(f) + |f - v|^2 / (2 step)."""
        raise NotImplementedError

    def least_subgradient(self, f: jax.Array, grad: jax.Array) -> jax.Array:
        """The shortest vector in grad + (subdifferential of the rest at f)."""
        raise NotImplementedError

    def scaled(self, share: float) -> "Regulariser":
        raise NotImplementedError

    def whole_prox(self, v: jax.Array, step: jax.Array) -> jax.Array:
        """argmin_f value(f) + |f - v|^2 / (2 step): the l2 term shrinks v and the step alike."""
        shrink = 1 / (1 + step * self.l2)
        return self.prox(shrink * v, shrink * step)

    def as_soft_threshold(self, step: float) -> tuple[float, float] | None:
        """(shrink, threshold) so that `whole_prox` of v is sign(v) max(shrink |v| - threshold, 0), where it is."""
        return None

    def value(self, f: jax.Array) -> jax.Array:
        return 0.5 * self.l2 * jnp.sum(f * f) + self.rest(f)


@serialisable
@dataclasses.dataclass(frozen=True)
class L2(Regulariser):
    """(l2/2) |f|^2; L2(0) is no regulariser at all."""

    l2: float
    smooth: ClassVar[bool] = True

    def __post_init__(self):
        _not_negative("l2", self.l2)

    def rest(self, f):
        return jnp.zeros(())

    def prox(self, v, step):
        return v

    def least_subgradient(self, f, grad):
        return grad

    def scaled(self, share):
        return L2(self.l2 * share)

    def as_soft_threshold(self, step):
        return 1 / (1 + step * self.l2), 0.0


@serialisable
@dataclasses.dataclass(frozen=True)
class ElasticNet(Regulariser):
    """(l2/2) |f|^2 + l1 |f|_1."""

    l2: float
    l1: float

    def __post_init__(self):
        _not_negative("l2", self.l2)
        _not_negative("l1", self.l1)

    def rest(self, f):
        return self.l1 * jnp.sum(jnp.abs(f))

    def prox(self, v, step):
        return jnp.sign(v) * jnp.maximum(jnp.abs(v) - step * self.l1, 0.0)

    def least_subgradient(self, f, grad):
        at_zero = jnp.sign(grad) * jnp.maximum(jnp.abs(grad) - self.l1, 0.0)
        return jnp.where(f == 0, at_zero, grad + self.l1 * jnp.sign(f))

    def scaled(self, share):
        return ElasticNet(self.l2 * share, self.l1 * share)

    def as_soft_threshold(self, step):
        shrink = 1 / (1 + step * self.l2)
        return shrink, shrink * step * self.l1


def L1(l1: float) -> ElasticNet:  # noqa: N802 - reads like its siblings
    """l1 |f|_1."""
    return ElasticNet(0.0, l1)


@serialisable
@dataclasses.dataclass(frozen=True)
class Box(Regulariser):
    """Every coefficient in [low, high], with an optional l2 term."""

    low: float
    high: float
    l2: float = 0.0

    def __post_init__(self):
        _not_negative("l2", self.l2)
        if not self.low < self.high:
            raise InputError(f"low, high: got {self.low}, {self.high}; low < high is needed")

    def rest(self, f):
        return jnp.where(jnp.all((f >= self.low) & (f <= self.high)), 0.0, jnp.inf)

    def prox(self, v, step):
        return jnp.clip(v, self.low, self.high)

    def least_subgradient(self, f, grad):
        # a bound takes up any push outwards
        inwards = jnp.where(f <= self.low, jnp.minimum(grad, 0.0), grad)
        return jnp.where(f >= self.high, jnp.maximum(inwards, 0.0), inwards)

    def scaled(self, share):
        return Box(self.low, self.high, self.l2 * share)


@serialisable
@dataclasses.dataclass(frozen=True)
class Ball(Regulariser):
    """|f|_2 <= radius, with an optional l2 term."""

    radius: float
    l2: float = 0.0

    def __post_init__(self):
        _not_negative("l2", self.l2)
        if not (self.radius > 0 and math.isfinite(self.radius)):
            raise InputError(f"radius: got {self.radius}; a positive finite number is needed")

    def rest(self, f):
        # a projection lands on the sphere only up to rounding
        return jnp.where(jnp.linalg.norm(f) <= self.radius * (1 + 1e-12), 0.0, jnp.inf)

    def prox(self, v, step):
        # the maximum sits under the root so that the derivative exists at v = 0 too
        return v * (self.radius / jnp.sqrt(jnp.maximum(jnp.sum(v * v), self.radius**2)))

    def least_subgradient(self, f, grad):
        square = jnp.sum(f * f)
        outwards = jnp.maximum(-jnp.dot(grad, f) / jnp.where(square > 0, square, 1.0), 0.0)
        # a projection lands on the sphere only up to rounding
        return jnp.where(square >= self.radius**2 * (1 - 1e-12), grad + outwards * f, grad)

    def scaled(self, share):
        return Ball(self.radius, self.l2 * share)


def _not_negative(name: str, value: float) -> None:
    if not (value >= 0 and math.isfinite(value)):
        raise InputError(f"{name}: got {value}; a finite number >= 0 is needed")
