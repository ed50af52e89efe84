"""Releases for inference: gradient, Hessian and second moment of the gradients of all records at a public model.

At a model f, and with w_n the weight of a record,

    gradient        g = sum_n w_n grad loss_n(f)
    curvature       H = sum_n w_n loss''_n x_n x_n'
    second moment   J = sum_n w_n^2 grad loss_n grad loss_n'

each under Gaussian noise of its own. Symmetric matrices travel as their upper triangle with off-diagonal entries times
sqrt(2), so that the 2-norm of what is released is the Frobenius norm of the matrix. Noise of standard deviation s on
each released number is then a symmetric matrix with variance s^2 on the diagonal and s^2 / 2 beside it.

*Sensitivities.* A record's part A of H is positive semidefinite with Frobenius norm at most w c X^2, where c bounds the
Frobenius norm of the loss's curvature in the scores. Zeroing a record out moves H by |A| <= w c X^2. Replacing it moves
H by A - B with |A - B|^2 = |A|^2 + |B|^2 - 2 <A, B> <= 2 (w c X^2)^2, for <A, B> >= 0 when both are positive
semidefinite: sqrt(2) w c X^2, not 2. The same holds of J with (w L X)^2 for w c X^2, and of all that a party holds,
whose parts are sums of such matrices. A gradient moves by w L X and 2 w L X.

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
from coterie.facts import Facts
from coterie.privacy.grants import Grant, SumGrant, SumScales, issue, untouched
from coterie.privacy.mechanisms import GaussianGradient, Mechanism, PartyFacts, check_clip, grid_event
from coterie.privacy.noise import Purpose
from coterie.privacy.release import Contribution, as_issued, contribute, needs_public
from coterie.problems.losses import Huber, Logistic, Multinomial, Squared
from coterie.problems.problem import Problem, Records
from coterie.serialise import serialisable

TIMES_NOISE = 2.0  # curvature is seen where it exceeds this times s sqrt(p), s the noise of a p by p Hessian
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
    """Scales as those of a gradient."""

    Scales = SumScales

    def _parts(self, problem: Problem, records: Records, at: jax.Array) -> tuple[Records, Any, jax.Array, jax.Array]:
        """Records, the loss, their scores, and whether their gradients are clipped to which share of their length."""
        at, clip = needs_public(at), as_issued(self.scales.clip, "scale")
        records, loss = untouched(records), self.priced(problem).loss
        scores = records.X @ (at if loss.n_outputs == 1 else at.reshape(-1, loss.n_outputs))
        slopes = loss.slope(scores, records.y).reshape(len(records.y), -1)
        norms = cast(jax.Array, jnp.linalg.norm(records.X, axis=1) * jnp.linalg.norm(slopes, axis=1))
        return records, loss, scores, jnp.where(norms > clip, clip / norms, 1.0)


class CurvatureGrant(_AtModel):
    def curvature(self, problem: Problem, records: Records, *, at: jax.Array) -> Contribution:
        """The packed Hessian of a party's records."""
        records, loss, scores, kept = self._parts(problem, records, at)
        weight = records.weight * jnp.where(kept < 1, 0.0, 1.0)
        curvature, k = loss.curvature(scores, records.y), loss.n_outputs
        if k == 1:
            return contribute(_packed(records.X.T @ ((weight * curvature)[:, None] * records.X)))
        blocks = [
            [records.X.T @ ((weight * curvature[:, i, j])[:, None] * records.X) for j in range(k)] for i in range(k)
        ]
        # coefficients are numbered feature by feature, and class by class within
        matrix = jnp.stack([jnp.stack(row, axis=-1) for row in blocks], axis=1)  # (feature, class, feature, class)
        return contribute(_packed(matrix.reshape(k * records.X.shape[1], -1)))


class SecondMomentGrant(_AtModel):
    def second_moment(self, problem: Problem, records: Records, *, at: jax.Array) -> Contribution:
        """The packed second moment of the gradients of a party's records."""
        records, loss, scores, kept = self._parts(problem, records, at)
        slopes = loss.slope(scores, records.y).reshape(len(records.y), -1)
        gradients = (records.X[:, :, None] * slopes[:, None, :]).reshape(len(records.y), -1)
        gradients = (records.weight * kept)[:, None] * gradients
        return contribute(_packed(gradients.T @ gradients))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _OfMatrices(Mechanism):
    """`noise_multiplier`: standard deviation of the noise over the sensitivity of the largest unit of privacy."""

    noise_multiplier: float
    clip: float | None = None
    law = "gaussian"
    issues = _AtModel

    def largest_part(self, problem: Problem, facts: PartyFacts) -> float:
        """Frobenius norm of what a record of weight 1 can add, over that weight."""
        raise NotImplementedError

    def grant(self, t: int, party: int, problem: Problem, facts: PartyFacts) -> Grant:
        def change(of: PartyFacts) -> float:
            return math.sqrt(of.changes) * of.unit_weight * self.largest_part(problem, of)

        noise_std = self.noise_multiplier * max(map(change, facts.extreme_parties))
        moved = change(facts) + 2 * facts.summation_error(self.largest_part(problem, facts))
        return issue(
            self.issues,
            grid_event(moved, noise_std, packed_size(facts.n_coefficients), facts.noise),
            priced_for=facts.share(problem),
            noise_std=noise_std,
            steps=facts.noise.steps,
            clip=math.inf if self.clip is None else self.clip,
        )


class GaussianCurvature(_OfMatrices):
    issues = CurvatureGrant

    def largest_part(self, problem: Problem, facts: PartyFacts) -> float:
        return problem.loss.smoothness * facts.row_norm**2


class GaussianSecondMoment(_OfMatrices):
    issues = SecondMomentGrant

    def largest_part(self, problem: Problem, facts: PartyFacts) -> float:
        return facts.record_weight * facts.record_slope(problem, self.clip) ** 2


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
    `clip` bounds the gradient of each record, which a loss with unbounded slopes needs.
    """

    gradient_multipliers: tuple[float, ...]
    curvature_multipliers: tuple[float, ...]
    second_moment_multiplier: float | None = None
    clip: float | None = None

    def __post_init__(self) -> None:
        check_clip(self.clip)
        if not len(self.gradient_multipliers) == len(self.curvature_multipliers) > 0:
            raise InputError(
                f"gradient_multipliers, curvature_multipliers: got {len(self.gradient_multipliers)} and "
                f"{len(self.curvature_multipliers)}; one of each is needed for every stage"
            )
        for purpose, _, multiplier in self._multipliers():
            if not (multiplier > 0 and math.isfinite(multiplier)):
                raise InputError(f"{purpose} multiplier: got {multiplier}; a positive finite number is needed")

    def _multipliers(self) -> Iterator[tuple[Purpose, int, float]]:
        """In the order of release."""
        pairs = zip(self.gradient_multipliers, self.curvature_multipliers, strict=True)
        for stage, (gradient, curvature) in enumerate(pairs):
            yield "gradient", stage, gradient
            yield "curvature", stage, curvature
        if self.second_moment_multiplier is not None:
            yield "second_moment", len(self.gradient_multipliers), self.second_moment_multiplier

    def check(self, problem: Problem, facts: Facts) -> None:
        if not isinstance(problem.loss, LOSSES):
            names = ", ".join(loss.__name__ for loss in LOSSES)
            raise InputError(f"inference: got the loss {type(problem.loss).__name__}; one of {names} is needed")
        if self.second_moment_multiplier is None and not known_variance(problem, facts):
            raise InputError("inference: the variance of gradients is not known; their second moment is needed")

    def grants(self, problem: Problem, facts: PartyFacts) -> tuple[MomentGrant, ...]:
        kinds: dict[Purpose, Any] = {
            "gradient": GaussianGradient,
            "curvature": GaussianCurvature,
            "second_moment": GaussianSecondMoment,
        }
        return tuple(
            MomentGrant(
                purpose,
                stage,
                kinds[purpose](noise_multiplier=multiplier, clip=self.clip).grant(0, 0, problem, facts),
            )
            for purpose, stage, multiplier in self._multipliers()
        )

    def with_noise(self, factor: float) -> "Moments":
        second = self.second_moment_multiplier
        return dataclasses.replace(
            self,
            gradient_multipliers=tuple(factor * multiplier for multiplier in self.gradient_multipliers),
            curvature_multipliers=tuple(factor * multiplier for multiplier in self.curvature_multipliers),
            second_moment_multiplier=None if second is None else factor * second,
        )
