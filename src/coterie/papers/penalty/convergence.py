"""When M-ADMM converges, and how fast: Zhang, Khalili & Liu (2018), Theorems 3.1-3.2, corrected where they are wrong.

    D, A     degree and adjacency matrix; D - A the Laplacian, D + A the signless Laplacian
    eta_i    `penalty`, W = diag(eta_i)           theta   `dual_step`, one for all parties
    m_i, M_i strong convexity and smoothness (Lipschitz constant of the gradient) of party i's part of the objective
    mu > 1   a free constant of the proof

All of this is about runs without noise, and nothing here has to do with privacy.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

import networkx as nx
import numpy as np

from coterie.errors import InputError
from coterie.network.topology import Topology
from coterie.problems import Problem
from coterie.values import Facts, Schedule, as_schedule

# one for all parties or one each
Numbers = float | Sequence[float]
Case = Literal["proved", "unproved", "fails"]


@dataclasses.dataclass(frozen=True)
class Spectrum:
    """Eigenvalues of D - A and D + A that every bound depends on."""

    laplacian_min_nonzero: float
    laplacian_max: float
    # zero on bipartite graphs, and on no others
    signless_min: float
    signless_max: float
    bipartite: bool

    @classmethod
    def of(cls, topology: Topology) -> "Spectrum":
        laplacian, signless = (np.linalg.eigvalsh(matrix).tolist() for matrix in laplacians(topology))
        bipartite = nx.is_bipartite(topology.graph)
        # a connected graph has one zero among the Laplacian's eigenvalues
        return cls(laplacian[1], laplacian[-1], 0.0 if bipartite else signless[0], signless[-1], bipartite)


def party_constants(problem: Problem, facts: Facts) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """m_i >= l2/N and M_i <= w_i c1 X^2 B_i + l2/N: bounds from public facts, so looking at them costs nothing."""
    if not problem.regulariser.smooth:
        raise InputError(
            f"regulariser: got {problem.regulariser}; its gradient is not Lipschitz, so there is no smoothness"
        )
    share = problem.regulariser.l2 / facts.n_parties
    one_record = problem.loss.smoothness * facts.row_norm**2
    smoothness = [b * problem.largest_record_weight(b, facts) * one_record + share for b in facts.sizes]
    return (share,) * facts.n_parties, tuple(smoothness)


@dataclasses.dataclass(frozen=True)
class ConvergenceReport:
    """`case` is "proved", "unproved" (no counter-example is known) or "fails" (a hypothesis does not hold).

    `growth` = max_i eta_i(last round) / eta_i(first round): the squared error in the norm J may have grown by it.
    """

    hypotheses: tuple[tuple[str, bool], ...]
    case: Case
    reason: str
    growth: float


# and what happens without
_HYPOTHESES = {
    "one dual_step for all parties": "the limit is argmin sum_i O_i / dual_step_i instead of the optimum",
    "dual_step fixed over rounds": "a dual step that changes geometrically vanishes or outgrows every bounded penalty",
    "penalty never decreases": "a penalty that decays falls below any dual step, and the iteration may diverge",
    "penalty at least dual_step": "with a penalty below the dual step the iteration may diverge",
    "penalty bounded over all rounds": "a penalty that grows without bound stalls: steps shrink faster than the error",
}


def theorem_3_1(
    topology: Topology, penalty: Schedule | Numbers, dual_step: Schedule | Numbers, *, n_rounds: int
) -> ConvergenceReport:
    """Whether M-ADMM is known to reach the optimum with these settings (PP Theorem 3.1).

    Its inequality (19) is false once penalties differ between parties, because W (D + A) is then not symmetric; what is
    left is a proof for one penalty eta(t) of all parties. "eta_i(t) < infinity for all t" has to be read as a bound on
    the supremum: the squared error in the norm J(t) is only known to stay below eta(t)/eta(1) times the first one.
    Every geometric growth is unbounded in the end; over few rounds `growth` tells how much that matters.

    Convexity and the existence of a minimiser are hypotheses on the problem, and are not looked at here.
    """
    penalty, dual_step = as_schedule("penalty", penalty), as_schedule("dual_step", dual_step)
    if n_rounds < 1:
        raise InputError(f"n_rounds: got {n_rounds}; at least 1 is needed")
    start, ratio = (positive("penalty", v, topology) for v in (penalty.start, penalty.ratio))
    theta, theta_ratio = (positive("dual_step", v, topology) for v in (dual_step.start, dual_step.ratio))
    met = (
        all_equal(theta) and all_equal(theta_ratio),
        bool(np.all(theta_ratio == 1)),
        bool(np.all(ratio >= 1)),
        bool(np.all(start >= theta)),
        bool(np.all(ratio <= 1)),
    )
    if not all(met):
        case, reason = "fails", "; ".join(why for why, ok in zip(_HYPOTHESES.values(), met, strict=True) if not ok)
    elif all_equal(start) and all_equal(ratio):
        case, reason = "proved", "one bounded penalty for all parties"
    else:
        case, reason = "unproved", "penalties differ between parties: the proof fails, no counter-example is known"
    named = tuple(zip(_HYPOTHESES, met, strict=True))
    return ConvergenceReport(named, case, reason, float(np.max(ratio ** (n_rounds - 1))))


@dataclasses.dataclass(frozen=True)
class RateBound:
    """(1 + delta) |Z(t) - Z*|_J^2 <= |Z(t-1) - Z*|_J^2 with J = diag(I/theta, eta (D + A)).

    `published` is false: its sigma-bar-min is the smallest singular value but for the zero of the consensus direction.
    """

    mu: float
    # the largest that satisfies (21) and (22), by eigenvalues
    delta: float
    # (23) without sigma-bar-min; never above delta
    corrected: float
    # (23) as printed
    published: float


def rate_bound(
    topology: Topology, *, penalty: Numbers, dual_step: Numbers, strong_convexity: Numbers, smoothness: Numbers,
    mu: float | None = 2.0,
) -> RateBound:  # fmt: skip
    """PP Theorem 3.2 for one penalty of all parties; `mu=None` takes the mu with the largest delta.

    For penalties that differ between parties the inequality is false more often than not, so they are refused. One
    that grows is covered round by round: give that round's value.
    """
    eta, theta = _common("penalty", penalty, topology), _common("dual_step", dual_step, topology)
    if eta < theta:
        raise InputError(f"penalty: got {eta}; at least dual_step={theta} is needed")
    m = positive("strong_convexity", strong_convexity, topology)
    M = positive("smoothness", smoothness, topology)
    if np.any(m > M):
        raise InputError(f"smoothness: got {smoothness}; it cannot be below strong_convexity={strong_convexity}")
    if mu is None:
        mu = _best_mu(lambda u: _bounds(topology, eta, theta, m, M, u).delta)
    elif not mu > 1:
        raise InputError(f"mu: got {mu}; a number > 1 is needed")
    return _bounds(topology, eta, theta, m, M, mu)


def _bounds(topology: Topology, eta: float, theta: float, m: np.ndarray, M: np.ndarray, mu: float) -> RateBound:
    laplacian, signless = laplacians(topology)
    spectrum = Spectrum.of(topology)
    # sigma-tilde-max
    sigma_tilde = eta * spectrum.signless_max
    # sigma-bar-max
    excess = (eta - theta) * spectrum.laplacian_max
    # sigma-bar-min
    gain = (eta - theta) * spectrum.laplacian_min_nonzero
    connection = theta * spectrum.laplacian_min_nonzero
    # (21)
    first = connection / (mu**2 * sigma_tilde)
    left = np.diag((mu * excess**2 + mu**2 * M**2) / (connection * (mu - 1))) + eta * signless
    right = 2 * (eta - theta) * laplacian + 2 * np.diag(m)
    root = np.linalg.inv(np.linalg.cholesky(left))
    # (22): delta * left <= right
    second = float(np.linalg.eigvalsh(root @ right @ root.T)[0])
    least = float(m.min())
    spread = (mu**2 * M.max() ** 2 + mu * excess**2) / (connection * (mu - 1)) + sigma_tilde
    return RateBound(mu, min(first, second), min(first, 2 * least / spread), min(first, 2 * (least + gain) / spread))


def _best_mu(delta) -> float:
    """1/delta is a maximum of functions convex in mu, so a golden section finds its least value."""
    golden = (math.sqrt(5) - 1) / 2
    # of mu - 1: monotone in mu, so unimodal as well
    low, high = math.log(1e-6), math.log(1e6)
    for _ in range(80):
        a, b = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, b) if delta(1 + math.exp(a)) >= delta(1 + math.exp(b)) else (a, high)
    return 1 + math.exp((low + high) / 2)


def laplacians(topology: Topology) -> tuple[np.ndarray, np.ndarray]:
    """D - A and D + A."""
    if topology.n_parties < 2:
        raise InputError("topology: got a single party; consensus needs at least two")
    adjacency, degree = np.zeros((topology.n_parties,) * 2), np.diag(topology.degrees.astype(float))
    adjacency[topology.arcs] = 1.0
    return degree - adjacency, degree + adjacency


def positive(name: str, value: Numbers, topology: Topology) -> np.ndarray:
    numbers = np.asarray(value, dtype=float)
    if numbers.shape not in ((), (topology.n_parties,)) or not np.all((numbers > 0) & np.isfinite(numbers)):
        raise InputError(f"{name}: got {value}; a positive finite number, or one for each party, is needed")
    return np.broadcast_to(numbers, topology.n_parties)


def _common(name: str, value: Numbers, topology: Topology) -> float:
    numbers = positive(name, value, topology)
    if not all_equal(numbers):
        raise InputError(f"{name}: got {value}; the rate is known for one number for all parties only")
    return float(numbers[0])


def all_equal(numbers: np.ndarray) -> bool:
    return bool(np.all(numbers == numbers[0]))
