"""Noisy proximal gradient descent on the pooled problem, with or without acceleration: the line that every other
algorithm is measured against.

    x(t)       the model                          m(t)   `momentum`, 0 where there is none
    ahead(t)   where gradients are taken          q      the share of parties at work in a round

    x(t+1)     = prox_{step * regulariser}( ahead(t) - step * ((sum_i grad_i(ahead(t)) + noise)/q + l2 ahead(t)) )
    ahead(t+1) = x(t+1) + m(t) (x(t+1) - x(t))

Bassily, Smith & Thakurta (2014), accelerated as Nesterov (1983) and Beck & Teboulle (2009) do. Each round is one
Gaussian release of the summed gradient, wherever it is taken, so momentum costs nothing. A curator, a secure sum or
pairs noise the sum; parties that trust nobody noise their own gradients, and the sum carries as many noises as there
are parties. With one record per party and a secret Poisson selection this is DP-SGD (Abadi et al., 2016), gradients of
single records clipped by the mechanism.

On standardised columns, whose centres and scales are released first, with noise:

    A, B     noised sums of columns and of their squares over n records, rows in units of their bound: rounds 0 and 1
    m, v     centre A/n and variance B/n - m^2 of a column; without a constant column m = 0
    s        noise of a column's mean square; a variance below s counts as s, and is not seen below 2 s

    u        = (x - m) / sqrt(v d'), d' the number of columns whose variance is seen; then clipped to the bound again
    rounds 2, 3, ...: as above, on u; the regulariser is on coefficients of u

Columns of different size then need no different steps. The model is handed back as coefficients of the columns as they
were, those of u times their scales, with centres in the coefficient of the constant column.
"""

import dataclasses
import math
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from coterie.algorithms.algorithm import Algorithm, Averaging, Citation, GrantT, Heard, check_averaging, running_average
from coterie.errors import InputError
from coterie.network.channels import Broadcast, SumChannel
from coterie.network.topology import EVERYBODY_WORKS, Selection
from coterie.privacy.mechanisms import GaussianGradient, GradientSumGrant
from coterie.privacy.standardising import COLUMN_ROUNDS, SQUARES, SUMS, StandardisedGradient, StandardisedGrant
from coterie.problems import Regulariser
from coterie.values import NOT_GIVEN, Facts, OptionalScheduleField, Schedule, ScheduleField, as_schedule, serialisable


class DescentState(NamedTuple):
    x: jax.Array
    ahead: jax.Array
    # over rounds, or x itself
    average: jax.Array


def as_momentum(value: Any) -> Schedule | None:
    """None where there is none; numbers below 1 that do not grow, or a run would not settle."""
    if value is None or (isinstance(value, (int, float)) and value == 0):
        return None
    momentum = as_schedule("momentum", value)
    settles = momentum.at(0, 0) < 1 and momentum.at(1, 0) <= momentum.at(0, 0)
    if momentum.per_party or not settles:
        raise InputError(
            f"momentum: got {value!r}; a number from 0 to below 1 is needed, or a Schedule that stays there"
        )
    return momentum


@dataclasses.dataclass(frozen=True, kw_only=True)
class Descent(Algorithm[GrantT]):
    """Steps along noised sums of gradients, whatever they are gradients of."""

    regulariser: Regulariser
    step: ScheduleField
    channel: SumChannel | Broadcast
    momentum: OptionalScheduleField = NOT_GIVEN
    averaging: Averaging = "last"
    needs_graph: ClassVar[bool] = False
    bears_impairments: ClassVar[bool] = False
    citation: ClassVar[Citation] = Citation(
        key="bassily-smith-thakurta-2014",
        kind="inproceedings",
        authors=("Bassily, Raef", "Smith, Adam", "Thakurta, Abhradeep"),
        title="Private Empirical Risk Minimization: Efficient Algorithms and Tight Error Bounds",
        venue="IEEE Symposium on Foundations of Computer Science",
        year=2014,
    )

    def __post_init__(self) -> None:
        check_averaging(self.averaging)
        object.__setattr__(self, "step", as_schedule("step", self.step))
        object.__setattr__(self, "momentum", as_momentum(self.momentum))
        if self.step.per_party:
            raise InputError(f"step: got {self.step.start}; one number is needed, for there is one model")

    def _start(self, d) -> DescentState:
        return DescentState(jnp.zeros(d), jnp.zeros(d), jnp.zeros(d))

    def _total(self, received):
        """What was released in a round, added up where every party has released its own."""
        if self.channel.aggregates:
            return received
        return (received.values if isinstance(received, Heard) else received).sum(axis=0)

    def _descended(self, t, state: DescentState, total, topology) -> DescentState:
        step, ahead = jnp.asarray(self.step(t)), state.ahead
        gradient = total / self.selection.rate(topology.n_parties) + self.regulariser.l2 * ahead
        x = self.regulariser.prox(ahead - step * gradient, step)
        ahead = x if self.momentum is None else x + self.momentum(t) * (x - state.x)
        return DescentState(x, ahead, running_average(self.averaging, t, state.average, x))


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class NoisyGradientDescent(Descent[GradientSumGrant]):
    mechanism: GaussianGradient
    selection: Selection = EVERYBODY_WORKS

    def init(self, topology, d):
        return self._start(d), ()

    def inbox(self, t, public, topology):
        return jnp.broadcast_to(public.ahead, (topology.n_parties, *public.ahead.shape))

    def local(self, grant: GradientSumGrant, problem, records, private, inbox, noise):
        gradient = grant.gradient(problem, records, at=inbox)
        return private, gradient if self.channel.aggregates else grant.noised_alone(gradient, noise)

    def combine(self, t, public, received, topology):
        return self._descended(t, public, self._total(received), topology)

    def models(self, public):
        return public.average[None]


# --- on standardised columns ------------------------------------------------------------------------------------------


class StandardisedState(NamedTuple):
    descent: DescentState
    # A, as it was released
    sums: jax.Array
    # (n_columns,)
    centre: jax.Array
    scale: jax.Array


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class StandardisedGradientDescent(Descent[StandardisedGrant]):
    """`n_records` of all parties, `n_columns`, and `n_scaled` of columns that are not constant are filled in by a plan
    from public facts."""

    mechanism: StandardisedGradient
    n_records: int = 0
    n_columns: int = 0
    n_scaled: int = 0
    first_rounds: ClassVar[tuple[str, ...]] = ("sums of columns", "sums of squares of columns")

    def for_facts(self, facts: Facts) -> "StandardisedGradientDescent":
        n_scaled = facts.n_features - (self.mechanism.constant_share > 0)
        known = {"n_records": sum(facts.sizes), "n_columns": facts.n_features, "n_scaled": n_scaled}
        for name, value in known.items():
            if getattr(self, name) not in (0, value):
                raise InputError(f"{name}: got {getattr(self, name)}; the data have {value}")
        return dataclasses.replace(self, **known)

    def init(self, topology, d):
        zeros = jnp.zeros(self.n_columns)
        return StandardisedState(self._start(d), jnp.zeros(d), zeros, zeros), ()

    def inbox(self, t, public, topology):
        def to_all(values):
            return jnp.broadcast_to(values, (topology.n_parties, *values.shape))

        return to_all(public.descent.ahead), to_all(public.centre), to_all(public.scale)

    def local(self, grant: StandardisedGrant, problem, records, private, inbox, noise):
        ahead, centre, scale = inbox
        given = grant.contribution(problem, records, at=ahead, centre=centre, scale=scale)
        return private, given if self.channel.aggregates else grant.noised_alone(given, noise)

    def combine(self, t, public, received, topology):
        t, total = jnp.asarray(t), self._total(received)
        found = self._scaling(public.sums, total, topology.n_parties)
        moved = self._descended(jnp.maximum(t - COLUMN_ROUNDS, 0.0), public.descent, total, topology)

        def chosen(when, new, old):
            return jax.tree.map(lambda a, b: jnp.where(when, a, b), new, old)

        return StandardisedState(
            chosen(t >= COLUMN_ROUNDS, moved, public.descent),
            chosen(t == SUMS, total, public.sums),
            *chosen(t == SQUARES, found, (public.centre, public.scale)),
        )

    def _scaling(self, sums, squares, n_parties):
        """Centre and scale of every column; those of the constant one are 0, and nobody reads them."""
        A, B = (released.reshape(self.n_columns, -1)[:, 0] for released in (sums, squares))
        n, centred = self.n_records, float(self.n_scaled < self.n_columns)
        noises = self.channel.noise(n_parties).total if self.channel.aggregates else math.sqrt(n_parties)
        s = self.mechanism.column_std * noises / n
        moving = jnp.where(jnp.arange(self.n_columns) < self.n_scaled, 1.0, 0.0)
        m = A / n * moving * centred
        v = B / n - m**2
        n_seen = jnp.where(v > 2 * s, moving, 0.0).sum()
        n_seen = jnp.where(n_seen > 0, n_seen, moving.sum())
        return m, moving / jnp.sqrt(jnp.maximum(v, s) * n_seen)

    def clipping(self, public):
        return public.centre[: self.n_scaled], public.scale[: self.n_scaled]

    def models(self, public):
        coefficients = public.descent.average.reshape(self.n_columns, -1)
        of_columns = coefficients * public.scale[:, None]
        if self.n_scaled < self.n_columns:
            shift = (public.centre[:, None] * of_columns).sum(axis=0) / self.mechanism.constant_share
            of_columns = of_columns.at[-1].set(coefficients[-1] - shift)
        return of_columns.reshape(1, -1)
