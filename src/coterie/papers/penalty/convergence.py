"""When the graph algorithms converge, and how fast: what the papers prove, corrected where they are wrong.

PP is Zhang, Khalili & Liu (2018), Theorems 3.1-3.2; MR is Zhang, Khalili & Liu (2019), Theorem IV.1.
    D, A     degree and adjacency matrix; D - A the Laplacian, D + A the signless Laplacian
    eta_i    `penalty`, W = diag(eta_i)           theta   `dual_step`, one for all parties
    m_i, M_i strong convexity and smoothness (Lipschitz constant of the gradient) of party i's part of the objective
    gamma    `recycle_weight`                     mu > 1, L > 0   free constants of the proofs

All of this is about runs without noise, and nothing here has to do with privacy.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

import networkx as nx
import numpy as np

from coterie.errors import InputError
from coterie.facts import Facts
from coterie.network.topology import Topology
from coterie.problems.problem import Problem
from coterie.schedules import Schedule, as_schedule

Numbers = float | Sequence[float]  # one for all parties or one each
Case = Literal["proved", "unproved", "fails"]


@dataclasses.dataclass(frozen=True)
class Spectrum:
    """Eigenvalues of D - A and D + A that every bound depends on."""

    laplacian_min_nonzero: float
    laplacian_max: float
    signless_min: float  # zero on bipartite graphs, and on no others
    signless_max: float
    bipartite: bool

    @classmethod
    def of(cls, topology: Topology) -> "Spectrum":
        laplacian, signless = (np.linalg.eigvalsh(matrix).tolist() for matrix in _matrices(topology))
        bipartite = nx.is_bipartite(topology.graph)
        # a connected graph has one zero among the Laplacian's eigenvalues
        return cls(laplacian[1], laplacian[-1], 0.0 if bipartite else signless[0], signless[-1], bipartite)


def party_constants(problem: Problem, facts: Facts) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """m_i >= l2/N and M_i <= w_i c1 X^2 B_i + l2/N: bounds from public facts, so looking at them costs nothing."""
    if not problem.penalty.smooth:
        raise InputError(f"penalty: got {problem.penalty}; its gradient is not Lipschitz, so there is no smoothness")
    share = problem.penalty.l2 / facts.n_parties
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


_HYPOTHESES = {  # and what happens without
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
    start, ratio = (_positive("penalty", v, topology) for v in (penalty.start, penalty.ratio))
    theta, theta_ratio = (_positive("dual_step", v, topology) for v in (dual_step.start, dual_step.ratio))
    met = (
        _all_equal(theta) and _all_equal(theta_ratio),
        bool(np.all(theta_ratio == 1)),
        bool(np.all(ratio >= 1)),
        bool(np.all(start >= theta)),
        bool(np.all(ratio <= 1)),
    )
    if not all(met):
        case, reason = "fails", "; ".join(why for why, ok in zip(_HYPOTHESES.values(), met, strict=True) if not ok)
    elif _all_equal(start) and _all_equal(ratio):
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
    delta: float  # the largest that satisfies (21) and (22), by eigenvalues
    corrected: float  # (23) without sigma-bar-min; never above delta
    published: float  # (23) as printed


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
    m = _positive("strong_convexity", strong_convexity, topology)
    M = _positive("smoothness", smoothness, topology)
    if np.any(m > M):
        raise InputError(f"smoothness: got {smoothness}; it cannot be below strong_convexity={strong_convexity}")
    if mu is None:
        mu = _best_mu(lambda u: _bounds(topology, eta, theta, m, M, u).delta)
    elif not mu > 1:
        raise InputError(f"mu: got {mu}; a number > 1 is needed")
    return _bounds(topology, eta, theta, m, M, mu)


def _bounds(topology: Topology, eta: float, theta: float, m: np.ndarray, M: np.ndarray, mu: float) -> RateBound:
    laplacian, signless = _matrices(topology)
    spectrum = Spectrum.of(topology)
    pull = eta * spectrum.signless_max  # sigma-tilde-max
    excess = (eta - theta) * spectrum.laplacian_max  # sigma-bar-max
    gain = (eta - theta) * spectrum.laplacian_min_nonzero  # sigma-bar-min
    connection = theta * spectrum.laplacian_min_nonzero
    first = connection / (mu**2 * pull)  # (21)
    left = np.diag((mu * excess**2 + mu**2 * M**2) / (connection * (mu - 1))) + eta * signless
    right = 2 * (eta - theta) * laplacian + 2 * np.diag(m)
    root = np.linalg.inv(np.linalg.cholesky(left))
    second = float(np.linalg.eigvalsh(root @ right @ root.T)[0])  # (22): delta * left <= right
    least = float(m.min())
    spread = (mu**2 * M.max() ** 2 + mu * excess**2) / (connection * (mu - 1)) + pull
    return RateBound(mu, min(first, second), min(first, 2 * least / spread), min(first, 2 * (least + gain) / spread))


def _best_mu(delta) -> float:
    """1/delta is a maximum of functions convex in mu, so a golden section finds its least value."""
    golden = (math.sqrt(5) - 1) / 2
    low, high = math.log(1e-6), math.log(1e6)  # of mu - 1: monotone in mu, so unimodal as well
    for _ in range(80):
        a, b = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, b) if delta(1 + math.exp(a)) >= delta(1 + math.exp(b)) else (a, high)
    return 1 + math.exp((low + high) / 2)


@dataclasses.dataclass(frozen=True)
class RecycledConditions:
    """MR Theorem IV.1 for one pair of rounds: by how much (i) and (ii) hold, as least eigenvalues.

    The matrices are not symmetric. "X > Y" is read as the proof uses it: v.(X - Y)v > 0 for every v other than zero,
    which is a statement about the symmetric part. For one constant penalty and L = mu = 2, (i) is (iii) and (ii) is
    (iv). The conditions say nothing where penalties differ between parties: the limit is then not the optimum.
    """

    first: float  # (i), (iii)
    second: float  # (ii), (iv)
    common_penalty: bool

    @property
    def met(self) -> bool:
        return self.first > 0 and self.second > 0

    @property
    def case(self) -> Case:
        """At best "unproved": (37) in the proof takes (D + A) grad O for monotone, which it need not be."""
        return "unproved" if self.met and self.common_penalty else "fails"


def recycled_conditions(
    topology: Topology, *, penalty: Numbers, next_penalty: Numbers | None = None, recycle_weight: float,
    smoothness: Numbers, L: float = 2.0, mu: float = 2.0,
) -> RecycledConditions:  # fmt: skip
    """Conditions (i) and (ii) with W(t) = diag(penalty) and W(t+1) = diag(next_penalty), by default the same."""
    if not (recycle_weight >= 0 and math.isfinite(recycle_weight)):
        raise InputError(f"recycle_weight: got {recycle_weight}; a finite number >= 0 is needed")
    return _Recycled(topology, penalty, next_penalty, smoothness, L, mu).conditions(recycle_weight)


def smallest_recycle_weight(
    topology: Topology, *, penalty: Numbers, next_penalty: Numbers | None = None, smoothness: Numbers,
    L: float = 2.0, mu: float = 2.0,
) -> float:  # fmt: skip
    """The gamma from which on (i) and (ii) hold; 0 where every gamma does, which takes L > 2.

    Refused where no gamma helps: on bipartite graphs D + A has a null vector s, and v = W(t+1)^-1 s makes every term of
    (ii) vanish but the last, which is negative; penalties that differ much make W (D + A) indefinite.
    """
    recycled = _Recycled(topology, penalty, next_penalty, smoothness, L, mu)
    if nx.is_bipartite(topology.graph):
        raise InputError("topology: the graph is bipartite, so D + A is singular and (ii) cannot hold for any weight")
    high = recycled.enough()
    # on a grid from above, the first weight that fails (nobody says they fail below it); then bisection
    grid = np.concatenate([[0.0], np.geomspace(high * 1e-9, high, 400)])
    failing = next((k for k in range(len(grid) - 1, -1, -1) if not recycled.conditions(grid[k]).met), None)
    if failing is None:
        return 0.0
    low, high = float(grid[failing]), float(grid[failing + 1])
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if recycled.conditions(middle).met else (middle, high)
    return high


class _Recycled:
    """The matrices of MR Theorem IV.1, without gamma."""

    def __init__(self, topology, penalty, next_penalty, smoothness, L, mu) -> None:
        if not (L > 0 and mu > 1):
            raise InputError(f"L, mu: got {L}, {mu}; L > 0 and mu > 1 are needed")
        laplacian, signless = _matrices(topology)
        now = _positive("penalty", penalty, topology)
        following = now if next_penalty is None else _positive("next_penalty", next_penalty, topology)
        if np.any(following < now):
            raise InputError(f"next_penalty: got {next_penalty}; the penalty must not decrease")
        self.common = _all_equal(now) and _all_equal(following)
        self.base = 2 * now * topology.degrees  # D-tilde without gamma
        self.signless = following[:, None] * signless
        self.inner = now[:, None] * laplacian + 2 / L * self.signless
        self.bends = np.diag(_positive("smoothness", smoothness, topology) ** 2)  # D_M
        self.inverse = np.linalg.pinv(following[:, None] * laplacian, rcond=1e-10)
        self.first_share, self.second_share = L * mu / 2, L * mu / (2 * (mu - 1))

    def conditions(self, gamma: float) -> RecycledConditions:
        tilde, least = self.base + gamma, self.base.min() + gamma
        recycled = self.signless / tilde  # W(t+1) (D + A) D-tilde^-1
        first = np.eye(len(tilde)) + recycled - self.first_share / least * self.inverse @ self.bends
        second = self.signless - recycled @ self.inner - self.second_share / least * self.bends
        return RecycledConditions(_least_eigenvalue(first), _least_eigenvalue(second), self.common)

    def enough(self) -> float:
        """A gamma above which every weight satisfies both conditions, from norms."""
        room = _least_eigenvalue(self.signless)
        if room <= 1e-12 * np.linalg.norm(self.signless, 2):
            raise InputError("penalty: the parties' penalties differ so much that (ii) fails for all large weights")
        pull, bends = np.linalg.norm(self.signless, 2), self.bends.max()
        first = pull + self.first_share * np.linalg.norm(self.inverse, 2) * bends
        second = (pull * np.linalg.norm(self.inner, 2) + self.second_share * bends) / room
        return 1.01 * float(max(first, second))


def _least_eigenvalue(matrix: np.ndarray) -> float:
    """Of the symmetric part."""
    return float(np.linalg.eigvalsh((matrix + matrix.T) / 2)[0])


def _matrices(topology: Topology) -> tuple[np.ndarray, np.ndarray]:
    """D - A and D + A."""
    if topology.n_parties < 2:
        raise InputError("topology: got a single party; consensus needs at least two")
    adjacency, degree = np.zeros((topology.n_parties,) * 2), np.diag(topology.degrees.astype(float))
    adjacency[topology.arcs] = 1.0
    return degree - adjacency, degree + adjacency


def _positive(name: str, value: Numbers, topology: Topology) -> np.ndarray:
    numbers = np.asarray(value, dtype=float)
    if numbers.shape not in ((), (topology.n_parties,)) or not np.all((numbers > 0) & np.isfinite(numbers)):
        raise InputError(f"{name}: got {value}; a positive finite number, or one for each party, is needed")
    return np.broadcast_to(numbers, topology.n_parties)


def _common(name: str, value: Numbers, topology: Topology) -> float:
    numbers = _positive(name, value, topology)
    if not _all_equal(numbers):
        raise InputError(f"{name}: got {value}; the rate is known for one number for all parties only")
    return float(numbers[0])


def _all_equal(numbers: np.ndarray) -> bool:
    return bool(np.all(numbers == numbers[0]))
