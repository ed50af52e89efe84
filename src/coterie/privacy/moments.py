"""Releases for inference: gradient, Hessian and second moment of the gradients of all records at a public model.

At a model f, and with w_n the weight of a record,

    gradient        g = sum_n w_n grad loss_n(f)
    curvature       H = sum_n w_n loss''_n x_n x_n'
    second moment   J = sum_n w_n^2 grad loss_n grad loss_n'

Gradient and curvature leave as one vector (g, k H), J by itself, under Gaussian noise. Symmetric matrices travel as
their upper triangle with off-diagonal entries times sqrt(2), so that the 2-norm of what is released is the Frobenius
norm of the matrix. Noise of standard deviation s on each released number is then a symmetric matrix with variance s^2
on the diagonal and s^2 / 2 beside it; H has that of s/k.

*Sensitivities.* A record's part A of H is positive semidefinite with Frobenius norm at most w c X^2, where c bounds the
Frobenius norm of the loss's curvature in the scores; its gradient has norm at most w L X. What one unit of privacy puts
in is its weight w times a point between 0 and the vectors of single records of weight 1, so that it moves the sum by at
most w times the largest norm of such a vector (zero-out), or of a difference of two (replace-one). With k = sqrt(x) L X
/ (c X^2) the largest curvature counts sqrt(x) times as much as the largest gradient. In units of L X, a record has a
gradient of norm t <= 1 and a curvature of norm sqrt(x) a, a <= 1, and with u the absolute cosine between two rows

    |difference|^2 <= t1^2 + t2^2 + 2 u t1 t2 + x (a1^2 + a2^2 - 2 u^2 a1 a2)                                        (1)

for a loss of one score; with several <A, B> >= 0 is all that is known, and u^2 stands for 0. (1) is convex in (a1, a2):
it is largest where each is 0 or as large as it can be.

    any loss        zero-out 1 + x; replace-one 4 + x for one score and x <= 1.7, for (1, 0) gives at most 4 + x, and
                    (1, 1) at most 2 (1 + u) + 2 x (1 - u^2), which is 4 or 2 + 2 x + 1/(2 x); 4 + 2 x for several
    logistic        1 for x <= 11/16; 4 for x <= 3/2. Curvature is a = 4 t (1 - t): where it is large the gradient is
                    not, and it costs nothing at all
    multinomial     1 for x <= 1/4; 4 for x <= 1/2, for the same reason

*Logistic.* With the row's length r <= X in units of X a record has t = r |p - y| and a = 4 r^2 |p - y| (1 - |p - y|) <=
4 t (1 - t). Zero-out: t^2 + 16 x t^2 (1 - t)^2 <= 1 if 16 x <= (1 + t) / (t^2 (1 - t)), whose least value is 11.09.
Replace-one, with z = 16 x = 24 and h(t) = t^2 (1 + z (1 - t)^2): where a2 = 0, (1) is at most (1 + t)^2 + z t^2
(1 - t)^2 <= 4, for (3 + t) / (t^2 (1 - t)) >= 24.68; so it is where u = 1 and a1 >= a2, for (a1 - a2)^2 <= a1^2. Else
a = 4 t (1 - t) for both, and the best u is 1, or 1 / (2 z (1 - t1) (1 - t2)) if that is less; (1) then is h(t1) + h(t2)
+ e, e = t1 t2 / (2 z (1 - t1) (1 - t2)) <= t1 t2. Now h <= 1.78 everywhere, h <= 1.32 from t = 0.78 on and h <= 1.01
from 0.9 on. Were the sum over 4, e > 0.44, so one of 1 - t1, 1 - t2 would be under 0.22; then e > 4 - 1.78 - 1.32, so
both t would exceed 0.9; then e > 1.9, and e <= 1.

*Multinomial.* With probabilities p and curvature C = diag p - p p', |p - e_y|^2 = 1 - 2 p_y + |p|^2 <= 2 - tr C and
|C| <= tr C, so t^2 <= 1 - |C| / 2, with |C| <= 1/2 and a = 2 |C|: t^2 <= 1 - a/4, which shorter rows keep. Zero-out:
1 - a/4 + x a^2 <= 1 for x <= 1/4. Replace-one: (t1 + t2)^2 <= 2 t1^2 + 2 t2^2 <= 4 - (a1 + a2)/2, and x (a1^2 + a2^2)
is no more than what is missing to 4 for x <= 1/2.

*Second moment.* Replacing a record moves J by A - B with |A - B|^2 = |A|^2 + |B|^2 - 2 <A, B> <= 2 (w L X)^4: sqrt(2),
not 2.

*Clipping.* With the gradient of each record clipped to a norm C, a record whose gradient is longer has a gradient that
does not change with f but for its direction x/|x| times a sign: its curvature is 0, and L X is C.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from coterie.errors import InputError
from coterie.privacy.events import Adjacency
from coterie.privacy.mechanisms import (
    Grant,
    Mechanism,
    PartyFacts,
    SumGrant,
    SumScales,
    check_clip,
    grid_event,
    issue,
    untouched,
)
from coterie.privacy.noise import Purpose
from coterie.privacy.release import Contribution, as_issued, contribute, needs_public
from coterie.problems import Huber, Logistic, Multinomial, Problem, Records, Squared
from coterie.values import Facts, serialisable

# curvature is seen where it exceeds this times s sqrt(p), s the noise of a p by p Hessian
TIMES_NOISE = 2.0
# x at which the sensitivity beside any loss is proved
MOST_CURVATURE = 1.7
LOSSES = (Logistic, Multinomial, Huber, Squared)


class Triangle(NamedTuple):
    """Where the numbers of a packed symmetric matrix stand, and what they are multiplied with."""

    rows: np.ndarray
    columns: np.ndarray
    factors: np.ndarray


@functools.cache
def triangle(p: int) -> Triangle:
    rows, columns = np.triu_indices(p)
    return Triangle(rows, columns, np.where(rows == columns, 1.0, math.sqrt(2)))


def packed_size(p: int) -> int:
    return p * (p + 1) // 2


def derivatives_size(p: int) -> int:
    return p + packed_size(p)


def unpacked(values: np.ndarray, p: int) -> np.ndarray:
    """Symmetric matrices, (..., p, p), from their packed triangles."""
    rows, columns, factors = triangle(p)
    matrix = np.zeros((*values.shape[:-1], p, p))
    matrix[..., rows, columns] = values / factors
    matrix[..., columns, rows] = values / factors
    return matrix


def _packed(matrix: jax.Array) -> jax.Array:
    """The places are worked out, for a party's step must not close over arrays."""
    p = matrix.shape[0]
    k = jax.lax.iota(int, packed_size(p))
    # row i starts at i p - i (i - 1) / 2; the root is off by less than one
    row = jnp.floor((2 * p + 1 - jnp.sqrt((2 * p + 1) ** 2 - 8.0 * k.astype(float))) / 2).astype(int)
    row = row - jnp.where(_start(row, p) > k, 1, 0)
    row = row + jnp.where(_start(row + 1, p) <= k, 1, 0)
    column = k - _start(row, p) + row
    return matrix[row, column] * jnp.where(row == column, 1.0, math.sqrt(2))


def _start(row: jax.Array, p: int) -> jax.Array:
    return row * p - row * (row - 1) // 2


class _AtModel(SumGrant):
    """Scales have `clip`."""

    def _parts(self, problem: Problem, records: Records, at: jax.Array) -> tuple[Records, Any, Any, jax.Array, Any]:
        """Records, the loss, their scores and slopes, and to which share of its length each gradient is clipped."""
        at, clip = needs_public(at), as_issued(self.scales.clip, "scale")
        records, loss = untouched(records), self.priced(problem).loss
        scores = records.X @ (at if loss.n_outputs == 1 else at.reshape(-1, loss.n_outputs))
        slopes = loss.slope(scores, records.y).reshape(len(records.y), -1)
        norms = cast(jax.Array, jnp.linalg.norm(records.X, axis=1) * jnp.linalg.norm(slopes, axis=1))
        return records, loss, scores, slopes, jnp.where(norms > clip, clip / norms, 1.0)


class DerivativesScales(NamedTuple):
    # of the noise on the sum over all parties
    noise_std: Any
    # of the grid in one standard deviation
    steps: Any
    # largest gradient of a record of weight 1; infinite: not clipped
    clip: Any
    # k
    curvature_factor: Any


class DerivativesGrant(_AtModel):
    Scales = DerivativesScales

    def derivatives(self, problem: Problem, records: Records, *, at: jax.Array) -> Contribution:
        """The gradient of a party's records, and after it their packed Hessian times k."""
        records, loss, scores, slopes, kept = self._parts(problem, records, at)
        gradient = (records.X.T @ ((records.weight * kept)[:, None] * slopes)).reshape(-1)
        weight = records.weight * jnp.where(kept < 1, 0.0, 1.0)
        curvature, k = loss.curvature(scores, records.y), loss.n_outputs
        if k == 1:
            hessian = records.X.T @ ((weight * curvature)[:, None] * records.X)
        else:
            blocks = [
                [records.X.T @ ((weight * curvature[:, i, j])[:, None] * records.X) for j in range(k)] for i in range(k)
            ]
            # coefficients are numbered feature by feature, and class by class within
            # (feature, class, feature, class)
            matrix = jnp.stack([jnp.stack(row, axis=-1) for row in blocks], axis=1)
            hessian = matrix.reshape(k * records.X.shape[1], -1)
        factor = as_issued(self.scales.curvature_factor, "scale")
        return contribute(jnp.concatenate([gradient, factor * _packed(hessian)]))


class SecondMomentGrant(_AtModel):
    Scales = SumScales

    def second_moment(self, problem: Problem, records: Records, *, at: jax.Array) -> Contribution:
        """The packed second moment of the gradients of a party's records."""
        records, _, _, slopes, kept = self._parts(problem, records, at)
        gradients = (records.X[:, :, None] * slopes[:, None, :]).reshape(len(records.y), -1)
        gradients = (records.weight * kept)[:, None] * gradients
        return contribute(_packed(gradients.T @ gradients))


def free_curvature(problem: Problem, clip: float | None, adjacency: Adjacency) -> float:
    """The largest x at which a curvature costs nothing beside the gradient; 0 where it always does."""
    if clip is None and problem.loss.self_bounded:
        return 3 / 2 if adjacency == "replace-one" else 11 / 16
    if clip is None and isinstance(problem.loss, Multinomial):
        return 1 / 2 if adjacency == "replace-one" else 1 / 4
    return 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class GaussianDerivatives(Mechanism):
    """`noise_multiplier`: standard deviation of the noise over the sensitivity of the largest unit of privacy.
    `curvature_weight`: x."""

    noise_multiplier: float
    curvature_weight: float
    clip: float | None = None
    law = "gaussian"

    def sensitivity(self, problem: Problem, facts: PartyFacts) -> float:
        """Of what a unit of weight 1 puts in."""
        x, changes = self.curvature_weight, facts.changes
        cost = x if problem.loss.n_outputs == 1 else changes * x
        if x <= free_curvature(problem, self.clip, facts.adjacency):
            cost = 0.0
        return math.sqrt(changes**2 + cost) * facts.record_slope(problem, self.clip)

    def curvature_factor(self, problem: Problem, facts: PartyFacts) -> float:
        largest = problem.loss.smoothness * facts.row_norm**2
        return math.sqrt(self.curvature_weight) * facts.record_slope(problem, self.clip) / largest

    def grant(self, t: int, party: int, problem: Problem, facts: PartyFacts) -> Grant:
        slope, p = facts.record_slope(problem, self.clip), facts.n_coefficients
        sensitivity = self.sensitivity(problem, facts)
        noise_std = self.noise_multiplier * sensitivity * max(other.unit_weight for other in facts.extreme_parties)
        error = math.sqrt(1 + self.curvature_weight) * facts.summation_error(slope)
        return issue(
            DerivativesGrant,
            grid_event(sensitivity * facts.unit_weight + 2 * error, noise_std, derivatives_size(p), facts.noise),
            priced_for=facts.share(problem),
            noise_std=noise_std,
            steps=facts.noise.steps,
            clip=math.inf if self.clip is None else self.clip,
            curvature_factor=self.curvature_factor(problem, facts),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class GaussianSecondMoment(Mechanism):
    """`noise_multiplier`: standard deviation of the noise over the sensitivity of the largest unit of privacy."""

    noise_multiplier: float
    clip: float | None = None
    law = "gaussian"

    def grant(self, t: int, party: int, problem: Problem, facts: PartyFacts) -> Grant:
        def largest(of: PartyFacts) -> float:
            """What a record of weight 1 can add, in the Frobenius norm, over that weight."""
            return of.record_weight * of.record_slope(problem, self.clip) ** 2

        def change(of: PartyFacts) -> float:
            return math.sqrt(of.changes) * of.unit_weight * largest(of)

        noise_std = self.noise_multiplier * max(map(change, facts.extreme_parties))
        moved = change(facts) + 2 * facts.summation_error(largest(facts))
        return issue(
            SecondMomentGrant,
            grid_event(moved, noise_std, packed_size(facts.n_coefficients), facts.noise),
            priced_for=facts.share(problem),
            noise_std=noise_std,
            steps=facts.noise.steps,
            clip=math.inf if self.clip is None else self.clip,
        )


def known_variance(problem: Problem, facts: Facts) -> bool:
    """Whether the variance of a record's gradient follows from its curvature, were the model right: a regression's
    errors have any variance, and records of different weights count in it by their squares."""
    alike = problem.class_weight is None and facts.weight_bound == 1
    alike = alike and (problem.party_weight is None or facts.smallest == facts.largest)
    return alike and isinstance(problem.loss, (Logistic, Multinomial))


class MomentGrant(NamedTuple):
    """The grant of one release: what it is, and at the model of which stage."""

    purpose: Purpose
    stage: int
    grant: Grant


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class Moments:
    """What a plan releases beyond its rounds: gradient and curvature at its model, again at the model that these give
    and so on, a stage each; then the second moment, where it has a multiplier. Multipliers are noise over sensitivity.
    `curvature_weight`: x, the square of what the largest curvature counts where the largest gradient counts 1. `clip`
    bounds the gradient of each record, which a loss with unbounded slopes needs.
    """

    multipliers: tuple[float, ...]
    curvature_weight: float
    second_moment_multiplier: float | None = None
    clip: float | None = None

    def __post_init__(self) -> None:
        check_clip(self.clip)
        if not self.multipliers:
            raise InputError("multipliers: got none; one is needed for every stage")
        if not 0 < self.curvature_weight <= MOST_CURVATURE:
            raise InputError(
                f"curvature_weight: got {self.curvature_weight}; a number in (0, {MOST_CURVATURE}] is needed"
            )
        for purpose, _, multiplier in self._multipliers():
            if not (multiplier > 0 and math.isfinite(multiplier)):
                raise InputError(f"{purpose} multiplier: got {multiplier}; a positive finite number is needed")

    def _multipliers(self) -> Iterator[tuple[Purpose, int, float]]:
        """In the order of release."""
        for stage, multiplier in enumerate(self.multipliers):
            yield "derivatives", stage, multiplier
        if self.second_moment_multiplier is not None:
            yield "second_moment", len(self.multipliers), self.second_moment_multiplier

    def check(self, problem: Problem, facts: Facts) -> None:
        if not isinstance(problem.loss, LOSSES):
            names = ", ".join(loss.__name__ for loss in LOSSES)
            raise InputError(f"inference: got the loss {type(problem.loss).__name__}; one of {names} is needed")
        if self.second_moment_multiplier is None and not known_variance(problem, facts):
            raise InputError("inference: the variance of gradients is not known; their second moment is needed")

    def grants(self, problem: Problem, facts: PartyFacts) -> tuple[MomentGrant, ...]:
        def mechanism(purpose: Purpose, multiplier: float) -> Mechanism:
            if purpose == "second_moment":
                return GaussianSecondMoment(noise_multiplier=multiplier, clip=self.clip)
            x = self.curvature_weight
            return GaussianDerivatives(noise_multiplier=multiplier, curvature_weight=x, clip=self.clip)

        return tuple(
            MomentGrant(purpose, stage, mechanism(purpose, multiplier).grant(0, 0, problem, facts))
            for purpose, stage, multiplier in self._multipliers()
        )

    def with_noise(self, factor: float) -> "Moments":
        second = self.second_moment_multiplier
        return dataclasses.replace(
            self,
            multipliers=tuple(factor * multiplier for multiplier in self.multipliers),
            second_moment_multiplier=None if second is None else factor * second,
        )
