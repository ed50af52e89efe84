"""Problem = loss x regulariser x weighting: what all parties together minimise.

    sum_i w_i sum_n loss(x_n . f, y_n) + regulariser(f)

`record_weight=w` counts every record alike (the pooled problem). `party_weight=C` counts every party alike, so that a
record of a party with B records weighs C/B (the papers' convention). Each party carries 1/N of the regulariser.

**Losses** are of a linear score: one record's loss is `value(score, y)`, and every constant a theorem needs is a field.
`lipschitz` bounds the gradient in the score, `smoothness` the Hessian in the score, `rank` the rank of one record's
Hessian, and `effective_rank` times `smoothness` the sum of its eigenvalues. A record with |x| <= X then has gradient
norm <= lipschitz * X and Hessian eigenvalues <= smoothness * X^2. For the losses with two labels, y is 0 or 1 (the
position in the public label set); for regression y is the number.

**Regularisers** are of the coefficients: a smooth part (l2/2)|f|^2 and a part that is known through its proximal map.
`l2` is the strong convexity. `scaled(share)` is the part of the regulariser that one of the parties carries;
constraints are not divided, every party keeps them whole.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coterie.errors import InputError
from coterie.values import Facts, positive_number, serialisable, whole_number

# --- losses -----------------------------------------------------------------------------------------------------------


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

    @property
    def effective_rank(self) -> float:
        return self.rank

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
        positive_number("width", self.width)

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
        positive_number("threshold", self.threshold)

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
        object.__setattr__(self, "n_classes", whole_number("n_classes", self.n_classes, at_least=2))

    @property
    def n_outputs(self) -> int:
        return self.n_classes

    @property
    def rank(self) -> int:
        return self.n_classes - 1

    @property
    def effective_rank(self) -> float:
        """Eigenvalues are at most 1/2, and add up to 1 - sum p^2, at most 1 - 1/K."""
        return 2 - 2 / self.n_classes

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


# the one table of names
LOSSES: dict[str, type[Loss]] = {
    "logistic": Logistic,
    "huberised-hinge": HuberisedHinge,
    "multinomial": Multinomial,
    "huber": Huber,
    "squared": Squared,
}


# --- regularisers -----------------------------------------------------------------------------------------------------


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
        positive_number("radius", self.radius)

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


# --- the problem, and the records that it is over ---------------------------------------------------------------------


class Records(NamedTuple):
    """One party's records as arrays; padding rows have weight 0."""

    # (n_records, n_features)
    X: Any
    # (n_records,)
    y: Any
    # (n_records,)
    weight: Any


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    """Loss and regulariser of a linear model, and what a record weighs.

    loss, regulariser: of `coterie.problems`.
    record_weight: what every record weighs; or
    party_weight: what all records of a party weigh together, by equal parts. One of the two is needed.
    class_weight: factors by label, in the order of the public label set.
    """

    loss: Loss
    regulariser: Regulariser
    record_weight: float | None = None
    party_weight: float | None = None
    class_weight: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if (self.record_weight is None) == (self.party_weight is None):
            raise InputError(
                f"record_weight, party_weight: got {self.record_weight}, {self.party_weight}; exactly one is needed"
            )
        for name, value in (("record_weight", self.record_weight), ("party_weight", self.party_weight)):
            if value is not None:
                positive_number(name, value)
        if self.class_weight is not None and not all(w > 0 and math.isfinite(w) for w in self.class_weight):
            raise InputError(f"class_weight: got {self.class_weight}; positive finite numbers are needed")

    def check(self, facts: Facts) -> None:
        self.loss.check(facts)
        if self.class_weight is not None and (facts.labels is None or len(self.class_weight) != len(facts.labels)):
            n_labels = 0 if facts.labels is None else len(facts.labels)
            raise InputError(
                f"class_weight: {len(self.class_weight)} given for {n_labels} labels; one per label is needed"
            )

    def n_coefficients(self, facts: Facts) -> int:
        return facts.n_features * self.loss.n_outputs

    def weight_of_one_record(self, size: int) -> float:
        """w_i: what a record of sample and class weight 1 weighs at a party with `size` records."""
        if self.record_weight is not None:
            return self.record_weight
        # exactly one is given
        assert self.party_weight is not None
        return self.party_weight / size

    def largest_record_weight(self, size: int, facts: Facts) -> float:
        """Public bound on the weight of any record, with sample and class weights at their largest."""
        return self.weight_of_one_record(size) * facts.weight_bound * max(self.class_weight or (1.0,))

    def share(self, n_parties: int) -> "Problem":
        """The same problem with the part of the regulariser that one party carries."""
        return dataclasses.replace(self, regulariser=self.regulariser.scaled(1 / n_parties))

    def records(self, shard: Any, *, size: int | None = None) -> Records:
        """A party's shard with all weights folded into one column (NumPy); or several shards of one `size`, pooled."""
        weight = shard.weight * self.weight_of_one_record(len(shard.y) if size is None else size)
        if self.class_weight is not None:
            weight = weight * np.asarray(self.class_weight)[shard.y.astype(int)]
        return Records(shard.X, shard.y, weight)

    def value(self, f: Any, all_records: list[Records]) -> Any:
        """The whole objective at one coefficient vector, over all parties."""
        matrix = f if self.loss.n_outputs == 1 else jnp.reshape(f, (-1, self.loss.n_outputs))
        data = sum(jnp.dot(r.weight, self.loss.value(r.X @ matrix, r.y)) for r in all_records)
        return data + self.regulariser.value(f)


# --- unequal parties on one device: similar sizes are stacked, so nothing is padded to the largest --------------------

# the largest party of a bucket over its smallest
MOST_PADDING = 1.25


def group_by_size(sizes: Sequence[int]) -> list[np.ndarray]:
    """Parties of similar size, as ascending positions in the federation."""
    by_size = np.asarray(sizes)
    # a million people take no loop
    if by_size.max() <= MOST_PADDING * by_size.min():
        return [np.arange(len(by_size))]
    groups: list[list[int]] = []
    for party in np.argsort(by_size, kind="stable"):
        if not groups or by_size[party] > MOST_PADDING * by_size[groups[-1][0]]:
            groups.append([])
        groups[-1].append(int(party))
    return [np.sort(group) for group in groups]


def make_buckets(problem: Problem, shards: Any) -> list[Records]:
    """The records of each group, arrays with a leading party axis; padding rows are zeros of weight 0."""
    return [_stack(problem, [shards[i] for i in group]) for group in group_by_size([len(s.y) for s in shards])]


def padded(parties: Sequence[Records]) -> Records:
    """The records of one group, likewise."""
    n_rows = max(len(own.y) for own in parties)
    return Records(*(_pad(column, n_rows) for column in zip(*parties, strict=True)))


def _stack(problem: Problem, shards: Sequence[Any]) -> Records:
    size = len(shards[0].y)
    # no padding: a million people take no loop
    if all(len(shard.y) == size for shard in shards):
        pooled = Records(*(np.concatenate([getattr(s, name) for s in shards]) for name in ("X", "y", "weight")))
        columns = problem.records(pooled, size=size)
        return Records(*(column.reshape(len(shards), size, *column.shape[1:]) for column in columns))
    return padded([problem.records(shard) for shard in shards])


def _pad(arrays: tuple[np.ndarray, ...], n_rows: int) -> np.ndarray:
    out = np.zeros((len(arrays), n_rows, *arrays[0].shape[1:]))
    for i, array in enumerate(arrays):
        out[i, : len(array)] = array
    return out
