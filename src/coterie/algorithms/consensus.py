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
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coterie.algorithms.algorithm import Algorithm, Averaging, Citation, check_averaging, running_average
from coterie.errors import InputError
from coterie.network.channels import Broadcast
from coterie.network.topology import Topology
from coterie.privacy.mechanisms import ArgminGrant, Mechanism
from coterie.privacy.objective import NoNoise
from coterie.values import ScheduleField, as_schedule, serialisable

ZHANG_ZHU_2016 = Citation(
    key="zhang-zhu-2016",
    kind="inproceedings",
    authors=("Zhang, Tao", "Zhu, Quanyan"),
    title="A Dual Perturbation Approach for Differential Private ADMM-Based Distributed Empirical Risk Minimization",
    venue="ACM Workshop on Artificial Intelligence and Security",
    year=2016,
)


class GraphState(NamedTuple):
    # (n_parties, d) last broadcasts f_i(t)
    f: jax.Array
    # (n_arcs, d) what party to[e] last heard from party source[e]
    heard: jax.Array
    # (n_parties, d) lambda_i(t)
    dual: jax.Array
    # (n_parties, d) average of the broadcasts over rounds
    average: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class GraphADMM(Algorithm[ArgminGrant]):
    """One noised or exact minimisation per party and round, then the dual step on what was heard.

    `averaging` chooses the model: the last broadcasts, or their average over rounds with weights 1 or t.
    `as_published` allows a dual step per party, as some papers print; the limit is then argmin sum_i O_i / theta_i.
    """

    mechanism: Mechanism
    dual_step: ScheduleField
    averaging: Averaging = "last"
    as_published: bool = False
    channel = Broadcast()

    def __post_init__(self) -> None:
        object.__setattr__(self, "dual_step", as_schedule("dual_step", self.dual_step))
        check_averaging(self.averaging)
        if self.dual_step.per_party and not self.as_published:
            raise InputError(
                f"dual_step: got {self.dual_step.start}; one number for all parties is needed "
                "(steps that differ between parties move the limit to argmin sum_i O_i / dual_step_i)"
            )

    def check(self, topology, problem):
        super().check(topology, problem)
        self.dual_step.check_parties("dual_step", topology.n_parties)

    def init(self, topology, d) -> tuple[Any, Any]:
        zeros = jnp.zeros((topology.n_parties, d))
        return GraphState(f=zeros, heard=jnp.zeros((len(topology.arcs[0]), d)), dual=zeros, average=zeros), ()

    def inbox(self, t, public, topology):
        """(2 lambda_i, m_i): the linear term and the mean midpoint."""
        # a lone party has no midpoints: any target
        degrees = np.maximum(topology.degrees, 1)[:, None].astype(float)
        return 2 * public.dual, (public.f + heard_sum(topology, public.heard) / degrees) / 2

    def local(self, grant: ArgminGrant, problem, records, private, inbox, noise):
        linear, midpoint = inbox
        return private, grant.argmin(problem, records, noise, linear=linear, target=midpoint)

    def combine(self, t, public, received, topology) -> Any:
        heard = topology.hear(public.heard, public.f, received)
        # eq. (11)
        dual = public.dual + self._dual_step(t) / 2 * gap(topology, heard)
        return GraphState(received, heard, dual, running_average(self.averaging, t, public.average, received))

    def models(self, public):
        return public.f if self.averaging == "last" else public.average

    def _dual_step(self, t):
        step = self.dual_step(t)
        return step[:, None] if self.dual_step.per_party else step


def heard_sum(topology: Topology, heard: jax.Array) -> jax.Array:
    """sum_j f_j over the neighbours j of each party, as it heard them."""
    return jnp.zeros((topology.n_parties, heard.shape[1]), heard.dtype).at[topology.arcs[1]].add(heard)


def gap(topology: Topology, heard: jax.Array) -> jax.Array:
    """sum_j (f_i - f_j) over the neighbours j of each party i.

    Where messages get lost or come late, both ends of an edge use what the other end has heard (messages are
    acknowledged), so what one end adds the other subtracts: the duals sum to zero whatever the network does, and the
    fixed point stays the optimum.
    """
    return heard_sum(topology, heard[topology.reverse_arc] - heard)


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class ConsensusADMM(GraphADMM):
    """Conventional consensus ADMM: exact minimisers are broadcast, nothing is private."""

    mechanism: NoNoise
    citation: ClassVar[Citation] = ZHANG_ZHU_2016

    @classmethod
    def with_penalty(cls, penalty: float) -> "ConsensusADMM":
        """The textbook form: one constant for penalty and dual step."""
        schedule = as_schedule("penalty", penalty)
        return cls(mechanism=NoNoise(penalty=schedule), dual_step=schedule)
