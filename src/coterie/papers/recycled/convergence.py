"""When recycled ADMM converges: Zhang, Khalili & Liu (2019), Theorem IV.1. Letters as in `penalty.convergence`.

    gamma    `recycle_weight`                     mu > 1, L > 0   free constants of the proof

All of this is about runs without noise, and nothing here has to do with privacy.
"""

import dataclasses
import math

import networkx as nx
import numpy as np

from coterie.errors import InputError
from coterie.network.topology import Topology
from coterie.papers.penalty.convergence import Case, Numbers, all_equal, laplacians, positive


@dataclasses.dataclass(frozen=True)
class RecycledConditions:
    """MR Theorem IV.1 for one pair of rounds: by how much (i) and (ii) hold, as least eigenvalues.

    The matrices are not symmetric. "X > Y" is read as the proof uses it: v.(X - Y)v > 0 for every v other than zero,
    which is a statement about the symmetric part. For one constant penalty and L = mu = 2, (i) is (iii) and (ii) is
    (iv). The conditions say nothing where penalties differ between parties: the limit is then not the optimum.
    """

    # (i), (iii)
    first: float
    # (ii), (iv)
    second: float
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
        laplacian, signless = laplacians(topology)
        now = positive("penalty", penalty, topology)
        following = now if next_penalty is None else positive("next_penalty", next_penalty, topology)
        if np.any(following < now):
            raise InputError(f"next_penalty: got {next_penalty}; the penalty must not decrease")
        self.common = all_equal(now) and all_equal(following)
        # D-tilde without gamma
        self.base = 2 * now * topology.degrees
        self.signless = following[:, None] * signless
        self.inner = now[:, None] * laplacian + 2 / L * self.signless
        # D_M
        self.bends = np.diag(positive("smoothness", smoothness, topology) ** 2)
        self.inverse = np.linalg.pinv(following[:, None] * laplacian, rcond=1e-10)
        self.first_part, self.second_part = L * mu / 2, L * mu / (2 * (mu - 1))

    def conditions(self, gamma: float) -> RecycledConditions:
        tilde, least = self.base + gamma, self.base.min() + gamma
        # W(t+1) (D + A) D-tilde^-1
        recycled = self.signless / tilde
        first = np.eye(len(tilde)) + recycled - self.first_part / least * self.inverse @ self.bends
        second = self.signless - recycled @ self.inner - self.second_part / least * self.bends
        return RecycledConditions(_least_eigenvalue(first), _least_eigenvalue(second), self.common)

    def enough(self) -> float:
        """A gamma above which every weight satisfies both conditions, from norms."""
        room = _least_eigenvalue(self.signless)
        if room <= 1e-12 * np.linalg.norm(self.signless, 2):
            raise InputError("penalty: the parties' penalties differ so much that (ii) fails for all large weights")
        signless, bends = np.linalg.norm(self.signless, 2), self.bends.max()
        first = signless + self.first_part * np.linalg.norm(self.inverse, 2) * bends
        second = (signless * np.linalg.norm(self.inner, 2) + self.second_part * bends) / room
        return 1.01 * float(max(first, second))


def _least_eigenvalue(matrix: np.ndarray) -> float:
    """Of the symmetric part."""
    return float(np.linalg.eigvalsh((matrix + matrix.T) / 2)[0])
