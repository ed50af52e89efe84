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
"""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from coterie.algorithms.algorithm import Algorithm, Averaging, GrantT, Heard, check_averaging, running_average
from coterie.errors import InputError
from coterie.network.channels import Broadcast, SumChannel
from coterie.network.selection import EVERYBODY_WORKS, Selection
from coterie.privacy.mechanisms import GaussianGradient, GradientSumGrant
from coterie.problems import Regulariser
from coterie.schedules import NOT_GIVEN, OptionalScheduleField, Schedule, ScheduleField, as_schedule
from coterie.serialise import serialisable


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


class Descent(Algorithm[GrantT]):
    """Steps along noised sums of gradients, whatever they are gradients of."""

    regulariser: Regulariser
    step: ScheduleField
    channel: SumChannel | Broadcast
    momentum: OptionalScheduleField
    averaging: Averaging

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
    regulariser: Regulariser
    step: ScheduleField
    channel: SumChannel | Broadcast
    momentum: OptionalScheduleField = NOT_GIVEN
    selection: Selection = EVERYBODY_WORKS
    averaging: Averaging = "last"
    needs_graph: ClassVar[bool] = False
    bears_impairments: ClassVar[bool] = False
    citation: ClassVar[str] = "bassily-smith-thakurta-2014"

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
