"""Statements of Zhang, Khalili & Liu (2018): B1 on privacy, and B2, B3, B5, B6 on convergence, these on quadratics
O_i = (bend_i/2) (f - centre_i)^2."""

import dataclasses
import functools
from typing import Any

import networkx as nx
import numpy as np

from coterie.algorithms import ConsensusADMM, PenaltyPerturbedADMM
from coterie.data import Federation
from coterie.engines.in_process import run
from coterie.network.topology import Topology, make_topology
from coterie.papers.bounds import penalty_perturbation_theorem_4_1
from coterie.papers.errata import PP, Erratum, bound, limit
from coterie.papers.exact_loss import ADULT, ADULT_PROBLEM, plan_of, reached_loss, stated
from coterie.papers.penalty.convergence import laplacians
from coterie.plan import Plan
from coterie.privacy.objective import NoNoise, PenaltyPerturbation
from coterie.problems import L2, Problem, Squared
from coterie.values import Schedule

TRIANGLE = make_topology("complete", 3)


@dataclasses.dataclass(frozen=True)
class Quadratics:
    """M-ADMM in the matrix form of Zhang, Khalili & Liu (2018), eqs. (13)-(19), with the optimum at 0."""

    topology: Topology
    bends: np.ndarray
    # eta_i
    penalty: np.ndarray
    # theta
    dual_step: float

    @functools.cached_property
    def laplacian(self) -> np.ndarray:
        """D - A."""
        return laplacians(self.topology)[0]

    @functools.cached_property
    def signless(self) -> np.ndarray:
        """W (D + A)."""
        return self.penalty[:, None] * laplacians(self.topology)[1]

    @functools.cached_property
    def root(self) -> np.ndarray:
        """The symmetric square root of D - A."""
        values, vectors = np.linalg.eigh(self.laplacian)
        return (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T

    @functools.cached_property
    def weighting(self) -> np.ndarray:
        """J of Theorem 3.1, for Z = (Y, f)."""
        n = len(self.bends)
        nothing = np.zeros((n, n))
        return np.block([[np.eye(n) / self.dual_step, nothing], [nothing, self.signless]])

    def step(self, z: np.ndarray) -> np.ndarray:
        """Eqs. (13)-(16): Z(t) to Z(t+1)."""
        y, f = np.split(z, 2)
        f = (self.signless @ f - self.root @ y) / (self.bends + 2 * self.penalty * self.topology.degrees)
        return np.concatenate([y + self.dual_step * self.root @ f, f])

    def long_run_factor(self) -> float:
        """By what the distance to the optimum is multiplied in one iteration, after many: above 1 it diverges."""
        n = len(self.bends)
        matrix = np.stack([self.step(unit) for unit in np.eye(2 * n)], axis=1)
        # Y stays in the range of the root, where the constant vector is not
        basis = np.linalg.qr(np.column_stack([np.ones(n), np.eye(n)[:, 1:]]))[0][:, 1:]
        reachable = np.block([[basis, np.zeros((n, n))], [np.zeros((n, n - 1)), np.eye(n)]])
        return float(np.abs(np.linalg.eigvals(reachable.T @ matrix @ reachable)).max())

    def rate(self, *, with_smallest: bool) -> float:
        """The delta of eq. (23) at its best mu; the corrected one has no smallest singular value of (W - theta)(D - A),
        which is 0 along the consensus, where nothing else contracts."""
        theta_sigma = self.dual_step * np.linalg.eigvalsh(self.laplacian)[1]
        excess = np.linalg.svd((self.penalty - self.dual_step)[:, None] * self.laplacian, compute_uv=False)
        signless = np.linalg.svd(self.signless, compute_uv=False).max()
        smallest = excess[excess > 1e-9].min() if with_smallest else 0.0
        mu = np.linspace(1.02, 50.0, 3000)
        cost = (mu**2 * self.bends.max() ** 2 + mu * excess.max() ** 2) / (theta_sigma * (mu - 1)) + signless
        return float(np.minimum(theta_sigma / (mu**2 * signless), 2 * (self.bends.min() + smallest) / cost).max())


def penalty_perturbation_has_slack() -> Erratum:
    """B1. The theorem pays 1.4 c1 C/(eta V B) a step for a Jacobian that costs ln(1 + k), or nothing at all."""
    mechanism = PenaltyPerturbation(penalty=Schedule(1.0), noise_rate=Schedule(3.0))
    algorithm = PenaltyPerturbedADMM(mechanism=mechanism, dual_step=Schedule(1.0))
    plan = plan_of(algorithm, ADULT_PROBLEM, ADULT, 100)
    return bound(
        "B1",
        PP,
        "Theorem 4.1: the pure loss of 100 iterations at alpha = 3, eta = 1 (all hear all, the paper's constants, "
        "logistic loss, worst start and broadcasts).",
        claimed=stated(penalty_perturbation_theorem_4_1(plan)),
        exact=reached_loss(plan),
        certified=plan.pure_epsilon(),
    )


def descent_inequality_by_party() -> Erratum:
    """B2. The proof of (19) needs f . (W - theta I)(D - A) f >= 0, which penalties that differ destroy."""
    return bound(
        "B2",
        PP,
        "Theorem 3.1, eq. (19): <Z(1) - Z*, J (Z(1) - Z(0))>, claimed to be at most 0, for three parties with "
        "theta = 1 and eta = (1, 1, 11).",
        claimed=0.0,
        exact=descent_product((1.0, 1.0, 11.0)),
        certified=None,
    )


def descent_product(penalty: tuple[float, ...]) -> float:
    """The left side of (19) for the start that the first step takes to (3, 3, 1)."""
    parties = Quadratics(TRIANGLE, bends=np.full(3, 0.01), penalty=np.array(penalty), dual_step=1.0)
    wanted = np.array([3.0, 3.0, 1.0])
    start = np.linalg.solve(parties.signless, (parties.bends + 2 * parties.penalty * TRIANGLE.degrees) * wanted)
    before = np.concatenate([np.zeros(3), start])
    after = parties.step(before)
    return float(after @ parties.weighting @ (after - before))


def convergence_by_party() -> Erratum:
    """B3. Proved for a common bounded penalty; for different ones the proof fails (B2), but no instance does."""
    return bound(
        "B3",
        PP,
        "Theorem 3.1, penalties by party: the largest long-run factor of the distance to the optimum in 2000 "
        "random quadratics, above 1 if one diverges.",
        claimed=1.0,
        exact=largest_factor(smallest_penalty=1.0),
        certified=None,
    )


def largest_factor(smallest_penalty: float, tries: int = 2000) -> float:
    """Over random graphs, bends and penalties from `smallest_penalty` up, with theta = 1.

    Penalties are constant in time: bounded ones that grow have a limit, and the limit decides.
    """
    rng, largest = np.random.default_rng(0), 0.0
    for _ in range(tries):
        n = int(rng.integers(2, 8))
        graph = nx.gnp_random_graph(n, rng.uniform(0.3, 0.9), seed=int(rng.integers(2**31)))
        if not nx.is_connected(graph):
            graph = nx.path_graph(n)
        bends, stiff = 10 ** rng.uniform(-3, 3, n), rng.random(n) < 0.7
        penalty = smallest_penalty * 10 ** np.where(stiff, rng.uniform(0, 3, n), 0.0)
        parties = Quadratics(make_topology(graph, n), bends, penalty, dual_step=1.0)
        largest = max(largest, parties.long_run_factor())
    return largest


def rate_with_null_space() -> Erratum:
    """B5. The smallest nonzero singular value says nothing about the consensus direction, which (23) forgets."""
    parties = Quadratics(TRIANGLE, bends=np.full(3, 0.01), penalty=np.full(3, 2.0), dual_step=1.0)
    # all parties equally far from the optimum
    before = np.concatenate([np.zeros(3), np.ones(3)])
    after = parties.step(before)
    J = parties.weighting
    return bound(
        "B5",
        PP,
        "Theorem 3.2, eq. (23): the quotient |Z(1) - Z*|^2 / |Z(0) - Z*|^2, claimed to be at most 1/(1 + delta), "
        "for three equal parties with theta = 1 and eta = 2.",
        claimed=1 / (1 + parties.rate(with_smallest=True)),
        exact=float(after @ J @ after / (before @ J @ before)),
        certified=1 / (1 + parties.rate(with_smallest=False)),
    )


def dual_steps_by_party() -> Erratum:
    """B6. Dual steps theta_i keep sum_i lambda_i/theta_i at zero instead of sum_i lambda_i."""
    bends, centres, n_rounds = (1.0, 1.0), (0.0, 1.0), 400
    mechanism = NoNoise(penalty=Schedule(3.0))
    apart = ConsensusADMM(mechanism=mechanism, dual_step=Schedule((1.0, 3.0)), as_published=True)
    common = ConsensusADMM(mechanism=mechanism, dual_step=Schedule(1.0))
    return limit(
        "B6",
        PP,
        "Section 5.1, dual steps by party: the limit for two parties with theta = (1, 3), which is argmin sum_i "
        "O_i/theta_i and not the optimum.",
        claimed=weighted_optimum(bends, centres, (1.0, 1.0)),
        exact=limit_of(apart, bends, centres, n_rounds),
        certified=limit_of(common, bends, centres, n_rounds),
    )


def weighted_optimum(bends: tuple[float, ...], centres: tuple[float, ...], divisors: tuple[float, ...]) -> float:
    """argmin sum_i O_i / divisor_i."""
    return float(np.average(centres, weights=np.divide(bends, divisors)))


def limit_of(algorithm: Any, bends: tuple[float, ...], centres: tuple[float, ...], n_rounds: int) -> float:
    """Where the engine takes one record a party: feature 1, label `centre`, weight `bend`."""
    n = len(bends)
    federation = Federation.from_arrays(
        np.ones((n, 1)),
        np.array(centres),
        parties=np.arange(n),
        label_bound=max(np.abs(centres)),
        sample_weight=np.array(bends),
        weight_bound=max(bends),
        min_records=1,
    )
    problem = Problem(loss=Squared(), regulariser=L2(0.0), record_weight=1.0)
    plan = Plan.make(algorithm, problem, "complete", federation.facts, rounds=n_rounds, adjacency="replace-one")
    iterates = run(plan, federation).releases[0, :, :, 0]
    # over parties and rounds: it has converged
    assert np.ptp(iterates[-10:]) < 1e-10
    return float(iterates[-1].mean())


ERRATA = {
    "B1": penalty_perturbation_has_slack,
    "B2": descent_inequality_by_party,
    "B3": convergence_by_party,
    "B5": rate_with_null_space,
    "B6": dual_steps_by_party,
}
