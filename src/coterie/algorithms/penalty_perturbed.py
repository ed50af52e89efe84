"""M-ADMM with penalty perturbation: Zhang, Khalili & Liu, "Improving the privacy and accuracy of ADMM-based distributed
algorithms", ICML 2018, Algorithm 1.

    eta_i(t)   `penalty`: private to the node in the paper; here it may differ by party, and is public
    theta      `dual_step`: fixed and common, apart from the penalty (Section 3)
    alpha_i(t) `noise_rate`: density of epsilon_i(t) proportional to exp(-alpha_i(t) |epsilon|)

    f_i(t+1) = argmin O_i(f) + 2 lambda_i . f + eta_i sum_j |f + epsilon_i - (f_i + f_j)/2|^2       eq. (25)

The noise enters as 2 eta_i V_i epsilon_i . f. Besides the paper's gamma noise there is Gaussian noise, which composes
over rounds at a fraction of the price.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from coterie.algorithms.algorithm import Citation
from coterie.algorithms.consensus import GraphADMM, heard_sum
from coterie.errors import InputError
from coterie.network.topology import Topology
from coterie.privacy.objective import PenaltyPerturbation
from coterie.values import Schedule, as_schedule, serialisable


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class PenaltyPerturbedADMM(GraphADMM):
    mechanism: PenaltyPerturbation
    citation: ClassVar[Citation] = Citation(
        key="zhang-khalili-liu-2018",
        kind="inproceedings",
        authors=("Zhang, Xueru", "Khalili, Mohammad Mahdi", "Liu, Mingyan"),
        title="Improving the Privacy and Accuracy of ADMM-Based Distributed Algorithms",
        venue="International Conference on Machine Learning",
        year=2018,
    )


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class EdgewiseADMM(PenaltyPerturbedADMM):
    """The form of Section 3.1 with a penalty per edge, (eta_ij + eta_ji)/2 |f - (f_i + f_j)/2|^2.

    `edge_penalty` has one number per edge of the topology, in its order, times the mechanism's schedule: the penalty of
    party i must be the mean over its edges, which `with_edges` works out.
    """

    edge_penalty: tuple[float, ...]

    @classmethod
    def with_edges(
        cls, topology: Topology, edge_penalty: Sequence[float], *, dual_step: float, ratio: float = 1.0, **noise: Any
    ) -> "EdgewiseADMM":
        edge_penalty = tuple(float(eta) for eta in edge_penalty)
        _check_one_per_edge(topology, edge_penalty)
        mechanism = PenaltyPerturbation(penalty=Schedule(_mean_over_edges(topology, edge_penalty), ratio), **noise)
        return cls(mechanism=mechanism, dual_step=as_schedule("dual_step", dual_step), edge_penalty=edge_penalty)

    def check(self, topology, problem):
        super().check(topology, problem)
        _check_one_per_edge(topology, self.edge_penalty)
        means = _mean_over_edges(topology, self.edge_penalty)
        if not np.allclose(self.mechanism.penalty.start, means, rtol=1e-12):
            raise InputError(f"penalty: got {self.mechanism.penalty.start}; the mean over a party's edges is {means}")

    def inbox(self, t, public, topology):
        weights = np.asarray(self.edge_penalty)[topology.edge_of_arc][:, None]
        total = np.zeros((topology.n_parties, 1))
        np.add.at(total, topology.arcs[1], weights)
        return 2 * public.dual, (public.f + heard_sum(topology, weights * public.heard) / total) / 2


def _check_one_per_edge(topology: Topology, edge_penalty: tuple[float, ...]) -> None:
    if len(edge_penalty) != len(topology.edges):
        raise InputError(
            f"edge_penalty: {len(edge_penalty)} given for {len(topology.edges)} edges; one per edge is needed"
        )


def _mean_over_edges(topology: Topology, edge_penalty: tuple[float, ...]) -> tuple[float, ...]:
    total = np.zeros(topology.n_parties)
    np.add.at(total, topology.arcs[1], np.asarray(edge_penalty)[topology.edge_of_arc])
    return tuple((total / topology.degrees).tolist())
