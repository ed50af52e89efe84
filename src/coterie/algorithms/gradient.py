"""Noisy proximal gradient descent on the pooled problem: what a curator or a secure sum makes possible, and the line
that every algorithm without one is measured against.

    x(t+1) = prox_{step * penalty}( x(t) - step * (sum_i grad_i(x(t)) + noise + l2 x(t)) )

Bassily, Smith & Thakurta (2014); each round is one Gaussian release of the summed gradient.
"""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp

from coterie.algorithms.algorithm import Algorithm
from coterie.channels import Curator, SecureSum
from coterie.errors import InputError
from coterie.privacy.grants import GradientSumGrant
from coterie.privacy.mechanisms import GaussianGradient
from coterie.problems.penalties import Penalty
from coterie.schedules import Schedule, as_schedule
from coterie.serialise import serialisable


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class NoisyGradientDescent(Algorithm):
    mechanism: GaussianGradient
    penalty: Penalty
    step: Schedule
    channel: Curator | SecureSum
    citation: ClassVar[str] = "bassily-smith-thakurta-2014"

    def __post_init__(self) -> None:
        object.__setattr__(self, "step", as_schedule("step", self.step))
        if self.step.per_party:
            raise InputError(f"step: got {self.step.start}; one number is needed, for there is one model")

    def init(self, topology, d):
        return jnp.zeros(d), ()

    def inbox(self, t, public, topology):
        return jnp.broadcast_to(public, (topology.n_parties, *public.shape))

    def local(self, grant: GradientSumGrant, problem, records, private, inbox, noise):  # type: ignore[override]
        return private, grant.gradient(problem, records, at=inbox)

    def combine(self, t, public, received, topology):
        step = jnp.asarray(self.step(t))
        return self.penalty.prox(public - step * (received + self.penalty.l2 * public), step)

    def models(self, public):
        return public[None]
