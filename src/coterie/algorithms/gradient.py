"""Noisy proximal gradient descent on the pooled problem: what a curator or a secure sum makes possible, and the line
that every algorithm without one is measured against.

    x(t+1) = prox_{step * regulariser}( x(t) - step * ((sum_i grad_i(x(t)) + noise)/q + l2 x(t)) )

Bassily, Smith & Thakurta (2014); each round is one Gaussian release of the summed gradient. The sum runs over those who
work in the round, a share q of all: with one record per party and a secret Poisson selection this is DP-SGD (Abadi et
al., 2016), gradients of single records clipped by the mechanism.
"""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from coterie.algorithms.algorithm import Algorithm, Averaging, check_averaging, running_average
from coterie.errors import InputError
from coterie.network.channels import SumChannel
from coterie.network.selection import EVERYBODY_WORKS, Selection
from coterie.privacy.grants import GradientSumGrant
from coterie.privacy.mechanisms import GaussianGradient
from coterie.problems.regularisers import Regulariser
from coterie.schedules import ScheduleField, as_schedule
from coterie.serialise import serialisable


class ModelState(NamedTuple):
    x: jax.Array
    average: jax.Array  # over rounds, or x itself


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class NoisyGradientDescent(Algorithm[GradientSumGrant]):
    mechanism: GaussianGradient
    regulariser: Regulariser
    step: ScheduleField
    channel: SumChannel
    selection: Selection = EVERYBODY_WORKS
    averaging: Averaging = "last"
    needs_graph: ClassVar[bool] = False
    bears_impairments: ClassVar[bool] = False
    citation: ClassVar[str] = "bassily-smith-thakurta-2014"

    def __post_init__(self) -> None:
        check_averaging(self.averaging)
        object.__setattr__(self, "step", as_schedule("step", self.step))
        if self.step.per_party:
            raise InputError(f"step: got {self.step.start}; one number is needed, for there is one model")

    def init(self, topology, d):
        return ModelState(jnp.zeros(d), jnp.zeros(d)), ()

    def inbox(self, t, public, topology):
        return jnp.broadcast_to(public.x, (topology.n_parties, *public.x.shape))

    def local(self, grant: GradientSumGrant, problem, records, private, inbox, noise):
        return private, grant.gradient(problem, records, at=inbox)

    def combine(self, t, public, received, topology):
        step = jnp.asarray(self.step(t))
        gradient = received / self.selection.rate(topology.n_parties)
        x = self.regulariser.prox(public.x - step * (gradient + self.regulariser.l2 * public.x), step)
        return ModelState(x, running_average(self.averaging, t, public.average, x))

    def models(self, public):
        return public.average[None]
