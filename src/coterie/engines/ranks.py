"""Parties on several processes: who is where, and the part of a graph that one of them needs."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from coterie.algorithms.algorithm import Algorithm
from coterie.network.topology import Topology
from coterie.schedules import Schedule


def split(sizes: Sequence[int], n_ranks: int) -> list[np.ndarray]:
    """Consecutive parties for each rank, about as many records each; nobody is left out as long as there are enough."""
    middles, total = np.cumsum(sizes) - np.asarray(sizes) / 2, sum(sizes)
    cuts = [int(np.searchsorted(middles, total * k / n_ranks)) for k in range(1, n_ranks)]
    for k in range(len(cuts)):
        least = cuts[k - 1] + 1 if k else min(1, len(sizes))
        cuts[k] = min(max(cuts[k], least), max(len(sizes) - (n_ranks - 1 - k), 0))
    return np.split(np.arange(len(sizes)), cuts)


@dataclasses.dataclass(frozen=True)
class Neighbourhood(Topology):
    """The parties of one rank, numbered first, then their neighbours elsewhere; only edges that touch the rank's own.

    What own parties hear, and so their rows of the public state, is right; the rows of the others mean nothing.
    """

    n_own: int = 0
    exchange: Callable[[np.ndarray], np.ndarray] = dataclasses.field(default=lambda own: own, compare=False)

    def __post_init__(self) -> None:
        pass  # the whole graph was checked; this part of it need not be connected

    def hear(self, heard: Any, last: Any, values: Any) -> Any:
        """Along each arc, what the source's rank has sent."""
        own = np.asarray(values)[: self.n_own]
        return np.concatenate([own, self.exchange(own)])[self.arcs[0]]


@dataclasses.dataclass(frozen=True)
class Layout:
    """How one rank sees a topology."""

    topology: Topology
    parts: tuple[np.ndarray, ...]  # the parties of each rank
    rank: int

    @functools.cached_property
    def own(self) -> np.ndarray:
        return self.parts[self.rank]

    @functools.cached_property
    def rank_of(self) -> np.ndarray:
        rank_of = np.empty(self.topology.n_parties, int)
        for rank, parties in enumerate(self.parts):
            rank_of[parties] = rank
        return rank_of

    @functools.cached_property
    def edges(self) -> np.ndarray:
        """Positions of the edges that touch the rank's own parties, in the order in which they are numbered here."""
        ends = self.rank_of[np.asarray(self.topology.edges, int).reshape(-1, 2)]
        return np.flatnonzero((ends == self.rank).any(axis=1))

    @functools.cached_property
    def ghosts(self) -> np.ndarray:
        """Neighbours of own parties that are elsewhere, by rank and number."""
        ends = np.asarray(self.topology.edges, int).reshape(-1, 2)[self.edges]
        others = np.setdiff1d(ends, self.own)
        return others[np.lexsort((others, self.rank_of[others]))]

    def wanted_by(self, rank: int) -> np.ndarray:
        """Which of the own parties, by position among them, have neighbours at another rank."""
        there = Layout(self.topology, self.parts, rank).ghosts
        return np.searchsorted(self.own, there[self.rank_of[there] == self.rank])

    def neighbourhood(self, exchange: Callable[[np.ndarray], np.ndarray]) -> Neighbourhood:
        nodes = np.concatenate([self.own, self.ghosts])
        place = np.empty(self.topology.n_parties, int)
        place[nodes] = np.arange(len(nodes))
        pairs = place[np.asarray(self.topology.edges, int).reshape(-1, 2)[self.edges]]
        edges = tuple(map(tuple, np.sort(pairs, axis=1).tolist()))
        return Neighbourhood(len(nodes), edges, False, len(self.own), exchange)

    def algorithm(self, algorithm: Any) -> Algorithm:
        """The same algorithm with the numbers of these parties and edges only."""
        nodes = np.concatenate([self.own, self.ghosts])

        def pick(schedule: Schedule) -> Schedule:
            values = (schedule.start, schedule.ratio)
            return Schedule(*(tuple(np.asarray(v)[nodes]) if isinstance(v, tuple) else v for v in values))

        schedules = {name: pick(schedule) for name, schedule in algorithm.mechanism.schedules().items()}
        changed: dict[str, Any] = {"mechanism": dataclasses.replace(algorithm.mechanism, **schedules)}
        if isinstance(getattr(algorithm, "dual_step", None), Schedule):
            changed["dual_step"] = pick(algorithm.dual_step)
        if hasattr(algorithm, "edge_penalty"):
            changed["edge_penalty"] = tuple(np.asarray(algorithm.edge_penalty)[self.edges].tolist())
        return dataclasses.replace(algorithm, **changed)
