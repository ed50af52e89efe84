"""Gradients of standardised rows: first noised sums of columns and of their squares, then gradients of rows that are
centred and scaled by them.

    x   a row without its constant column, in units of r, the bound on its norm       z   another one
    A   = sum_n x_n                 B   = sum_n x_n o x_n, both over records with a weight, o by coefficient

*Sensitivities.* Zero-out: |x| <= 1 and |x o x| <= |x|^2 <= 1, both reached by a row along one axis. Replace-one: A
moves by |x - z| <= 2, reached by z = -x; B by |x o x - z o z| <= sqrt(2), because vectors without negative entries have
a product of at least 0, reached by rows along two axes. All records of a party move them as many times as far as there
are: sums of vectors without negative entries have none either. Under noise of standard deviation s both together are
two Gaussian releases of squared ratio 6/s^2 (replace-one) or 2/s^2 (zero-out).

*Centre and scale* are functions of these two releases and public numbers. A record's standardised row is a function of
that record and of them alone, clipped to the bound that was there before; so neighbouring data sets have neighbouring
standardised rows, and each gradient costs what it costs without standardising.
"""

import dataclasses
import math
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp

from coterie.errors import InputError
from coterie.privacy.mechanisms import GradientNoise, Grant, PartyFacts, SumGrant, grid_event, issue, untouched
from coterie.privacy.release import Contribution, contribute, needs_public
from coterie.problems import Problem, Records
from coterie.values import serialisable

# what a grant is for, in this order
SUMS, SQUARES, GRADIENT = 0, 1, 2
COLUMN_ROUNDS = 2
# of the budget, in squares of sensitivity over noise, for sums of columns and of squares
COLUMN_SHARE = 0.2
PAYS_BELOW = 1.0


def standardising_pays(noise_std: float, n_columns: int, n_records: int) -> bool:
    """Whether standardising is expected to help: `noise_std` of the sum of gradients of rows of norm 1 that spends the
    whole budget. Noise that is as large as what a column can say scales columns by chance."""
    return noise_std * n_columns / n_records < PAYS_BELOW


def joint_change(replaced: bool) -> float:
    """Of sums of columns and of squares together, for a record: the root of the sum of squares of both."""
    return math.sqrt(sum(_changes(replaced)[stage] ** 2 for stage in (SUMS, SQUARES)))


def _changes(replaced: bool) -> tuple[float, float]:
    return (2.0, math.sqrt(2)) if replaced else (1.0, 1.0)


class StandardisedScales(NamedTuple):
    # of the noise on the sum over all parties, in units of r where columns are summed up
    noise_std: Any
    # of the grid in one standard deviation
    steps: Any
    # largest gradient of a record of weight 1; infinite: not clipped
    clip: Any
    stage: Any
    row_norm: Any
    # r
    feature_norm: Any
    # 1 where the last column is the constant one, else 0
    constant: Any


class StandardisedGrant(SumGrant):
    """Contribute what the round is for: sums of columns, of their squares, or a gradient of standardised rows."""

    Scales = StandardisedScales

    def contribution(
        self, problem: Problem, records: Records, *, at: jax.Array, centre: jax.Array, scale: jax.Array
    ) -> Contribution:
        """`at` are coefficients of standardised columns; sums of columns stand at the first of a column's outputs."""
        scales, loss = self._issued(), self.priced(problem).loss
        at, centre, scale = needs_public(at), needs_public(centre), needs_public(scale)
        records = untouched(records)
        n_columns, r, of_gradients = records.X.shape[1], scales.feature_norm, scales.stage == GRADIENT
        is_constant = (jax.lax.iota(records.X.dtype, n_columns) >= n_columns - scales.constant)[None]
        constant = records.X[:, -1] * scales.constant
        moved = jnp.where(of_gradients, (records.X - r * centre[None]) * scale[None], records.X)
        moved = jnp.where(is_constant, 0.0, moved)
        bound = jnp.where(of_gradients, jnp.sqrt(jnp.maximum(scales.row_norm**2 - constant**2, 0.0)), r)
        norms = cast(jax.Array, jnp.linalg.norm(moved, axis=1))
        short = moved * jnp.where(norms > bound, bound / norms, 1.0)[:, None]
        standardised = jnp.where(is_constant, constant[:, None], short)

        matrix = at.reshape(n_columns, -1)
        scores = (standardised @ matrix)[:, 0] if loss.n_outputs == 1 else standardised @ matrix
        slopes = loss.slope(scores, records.y).reshape(len(records.y), -1)
        row_norms = jnp.sqrt(jnp.minimum(norms, bound) ** 2 + constant**2)
        lengths = cast(jax.Array, row_norms * jnp.linalg.norm(slopes, axis=1))
        weight = records.weight * jnp.where(lengths > scales.clip, scales.clip / lengths, 1.0)
        first = jnp.where(jax.lax.iota(records.X.dtype, matrix.shape[1]) < 1, 1.0, 0.0)[None]
        counted = jnp.where(records.weight > 0, 1.0, 0.0)[:, None] * first

        of_columns = jnp.where(scales.stage == SQUARES, short / r, 1.0) * short / r
        rows = jnp.where(of_gradients, standardised, of_columns)
        factors = jnp.where(of_gradients, weight[:, None] * slopes, counted)
        return contribute((rows.T @ factors).reshape(at.shape))


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class StandardisedGradient(GradientNoise):
    """Two rounds of sums of columns, then one Gaussian noise on the sum of gradients in each round.

    column_std: of the noise on each of these sums, in units of r; of every party's own where nobody is trusted.
    constant_share: value of the last column, which is constant, over the bound r on the rest of a row; 0: there is no
        such column, and rows are scaled without being centred.
    """

    column_std: float
    constant_share: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.column_std > 0 and math.isfinite(self.column_std)):
            raise InputError(f"column_std: got {self.column_std}; a positive finite number is needed")
        if not (self.constant_share >= 0 and math.isfinite(self.constant_share)):
            raise InputError(f"constant_share: got {self.constant_share}; a finite number >= 0 is needed")

    @property
    def constant_in_time(self) -> bool:
        return False

    @property
    def changing_rounds(self) -> int | None:
        return COLUMN_ROUNDS + 1 if super().constant_in_time else None

    def values(self, t: int, party: int) -> tuple[float, ...]:
        return (*super().values(max(t - COLUMN_ROUNDS, 0), party), min(t, GRADIENT))

    def with_noise(self, factor: float) -> "StandardisedGradient":
        return dataclasses.replace(
            self, noise_multiplier=self.noise_multiplier.times(factor), column_std=factor * self.column_std
        )

    def grant(self, t: int, party: int, problem: Problem, facts: PartyFacts) -> Grant:
        if t < COLUMN_ROUNDS:
            event, noise_std = self._of_columns(t, facts), self.column_std
        else:
            event, noise_std = self.priced_gradient(t - COLUMN_ROUNDS, party, problem, facts)
        return issue(
            StandardisedGrant,
            event,
            priced_for=facts.share(problem),
            noise_std=noise_std,
            steps=facts.noise.steps,
            clip=math.inf if self.clip is None else self.clip,
            stage=min(t, GRADIENT),
            row_norm=facts.row_norm,
            feature_norm=facts.row_norm / math.hypot(1, self.constant_share),
            constant=float(self.constant_share > 0),
        )

    def _of_columns(self, stage: int, facts: PartyFacts) -> Any:
        # every record counts once, whatever its weight
        counted = dataclasses.replace(facts, record_weight=1.0)
        change = _changes(facts.adjacency == "replace-one")[stage] * counted.unit_weight
        moved = change + 2 * counted.summation_error(1.0)
        return grid_event(moved, self.column_std, facts.n_coefficients, facts.noise)
