"""Consensus ADMM over a graph: the frame of all graph algorithms, and the conventional one without privacy.

Zhang, Khalili & Liu (2018), eqs. (8)-(9) with one penalty for all, (10)-(11) with penalties apart from the dual step.

    f_i, lambda_i   primal and dual variable of party i       eta_i(t)  `penalty`, may differ by party and round
    V_i             its neighbours, and their number          theta(t)  `dual_step`, one for all parties

    f_i(t+1)      = argmin O_i(f) + 2 lambda_i(t) . f + eta_i(t) sum_j |f - (f_i(t) + f_j(t))/2|^2
    lambda_i(t+1) = lambda_i(t) + (theta(t)/2) sum_j (f_i(t+1) - f_j(t+1))

The sum over j is V_i eta_i |f - m_i|^2 plus a constant, m_i being the mean of the midpoints: curvature 2 eta_i V_i
around target m_i, which is what a grant minimises. The duals are functions of broadcasts, so everybody can compute
them and nothing is hidden.
"""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coterie.algorithms.algorithm import Algorithm
from coterie.channels import Broadcast
from coterie.errors import InputError
from coterie.privacy.grants import ArgminGrant
from coterie.privacy.mechanisms import Mechanism, NoNoise
from coterie.schedules import Schedule, as_schedule
from coterie.serialise import serialisable
from coterie.topology import Topology


class GraphState(NamedTuple):
    f: jax.Array  # (n_parties, d) last broadcasts f_i(t)
    dual: jax.Array  # (n_parties, d) lambda_i(t)


class GraphADMM(Algorithm):
    """One noised or exact minimisation per party and round, then the dual step on what was broadcast."""

    mechanism: Mechanism
    dual_step: Schedule
    channel = Broadcast()

    def __post_init__(self) -> None:
        object.__setattr__(self, "dual_step", as_schedule("dual_step", self.dual_step))
        if self.dual_step.per_party:
            raise InputError(
                f"dual_step: got {self.dual_step.start}; one number for all parties is needed "
                "(steps that differ between parties move the limit to argmin sum_i O_i / dual_step_i)"
            )

    def init(self, n_parties, d):
        zeros = jnp.zeros((n_parties, d))
        return GraphState(f=zeros, dual=zeros), ()

    def inbox(self, t, public, topology):
        """(2 lambda_i, m_i): the linear term and the mean midpoint."""
        degrees = np.maximum(topology.degrees, 1)[:, None].astype(float)  # a lone party has no midpoints: any target
        neighbours = neighbour_sum(topology, public.f)
        return 2 * public.dual, (public.f + neighbours / degrees) / 2

    def local(self, grant: ArgminGrant, problem, records, private, inbox, noise):  # type: ignore[override]
        linear, midpoint = inbox
        return private, grant.argmin(problem, records, noise, linear=linear, target=midpoint)

    def combine(self, t, public, received, topology):
        return GraphState(f=received, dual=public.dual + self.dual_step(t) / 2 * neighbour_gap(topology, received))

    def models(self, public):
        return public.f


def neighbour_sum(topology: Topology, values: jax.Array) -> jax.Array:
    """sum_j values_j over the neighbours j of each party."""
    source, to = topology.arcs
    return jnp.zeros_like(values).at[to].add(values[source])


def neighbour_gap(topology: Topology, values: jax.Array) -> jax.Array:
    """sum_j (values_i - values_j) over the neighbours j of each party i."""
    return jnp.asarray(topology.degrees[:, None], values.dtype) * values - neighbour_sum(topology, values)


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class ConsensusADMM(GraphADMM):
    """Conventional consensus ADMM: exact minimisers are broadcast, nothing is private."""

    mechanism: NoNoise
    dual_step: Schedule
    citation: ClassVar[str] = "zhang-zhu-2016"

    @classmethod
    def with_penalty(cls, penalty: float) -> "ConsensusADMM":
        """The textbook form: one constant for penalty and dual step."""
        schedule = as_schedule("penalty", penalty)
        return cls(mechanism=NoNoise(penalty=schedule), dual_step=schedule)
