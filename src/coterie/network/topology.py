"""Who hears whom: connected undirected graphs from names, edge lists or networkx objects."""

import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import networkx as nx
import numpy as np

from coterie.checks import nearest
from coterie.errors import InputError
from coterie.serialise import serialisable

# parties of a complete graph whose messages are written out, in a gigabyte
MOST_IN_TOUCH = 10**4


@serialisable
@dataclasses.dataclass(frozen=True)
class AllPairs:
    """The edges of a complete graph, in order, without a list of them: thousands of parties have millions."""

    n_parties: int

    def __len__(self) -> int:
        return self.n_parties * (self.n_parties - 1) // 2

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return itertools.combinations(range(self.n_parties), 2)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.column_stack(np.triu_indices(self.n_parties, 1)).astype(dtype or np.int64, copy=False)


@serialisable
@dataclasses.dataclass(frozen=True)
class Topology:
    """Who hears whom.

    n_parties: parties are numbered 0..n_parties-1.
    edges: pairs of parties, kept with i < j, sorted, each once; where everybody has all others, `AllPairs`.
    unrestricted: no graph at all: anybody can be reached from anywhere, through a server or directly.
    """

    n_parties: int
    edges: tuple[tuple[int, int], ...] | AllPairs
    unrestricted: bool = False

    def __post_init__(self) -> None:
        if self.n_parties < 1:
            raise InputError(f"n_parties: got {self.n_parties}; at least 1 is needed")
        if isinstance(self.edges, AllPairs):
            if self.edges.n_parties != self.n_parties or self.n_parties < 2 or self.unrestricted:
                raise InputError(f"edges: got all pairs of {self.edges.n_parties} parties for {self.n_parties}")
            return
        edges = sorted({(min(i, j), max(i, j)) for i, j in self.edges})
        for i, j in edges:
            if i == j or not (i >= 0 and j < self.n_parties):
                raise InputError(f"edges: got ({i}, {j}); two different parties of 0..{self.n_parties - 1} are needed")
        if edges and len(edges) == len(AllPairs(self.n_parties)):
            object.__setattr__(self, "edges", AllPairs(self.n_parties))
            return
        object.__setattr__(self, "edges", tuple(edges))
        if self.unrestricted:
            if edges:
                raise InputError(f"edges: got {len(edges)}; an unrestricted topology has none")
            return
        components = [sorted(c) for c in nx.connected_components(self.graph)]
        if len(components) > 1:
            shown = "; ".join(_shorten(c) for c in components[:5])
            raise InputError(
                f"topology: the graph falls into {len(components)} components ({shown}); it must be connected"
            )

    @functools.cached_property
    def graph(self) -> nx.Graph:
        graph = nx.empty_graph(self.n_parties)
        graph.add_edges_from(self.edges)
        return graph

    @functools.cached_property
    def degrees(self) -> np.ndarray:
        if isinstance(self.edges, AllPairs):
            return np.full(self.n_parties, self.n_parties - 1)
        return np.bincount(np.asarray(self.edges, dtype=int).ravel(), minlength=self.n_parties)

    @property
    def everybody_reachable(self) -> bool:
        """Every party can hand something to every other."""
        return self.unrestricted or self.n_parties == 1 or isinstance(self.edges, AllPairs)

    @functools.cached_property
    def neighbours(self) -> list[list[int]]:
        return [sorted(self.graph.neighbors(party)) for party in range(self.n_parties)]

    @functools.cached_property
    def arcs(self) -> tuple[np.ndarray, np.ndarray]:
        """Every edge in both directions: party `to[e]` hears party `source[e]`; sorted by `to`."""
        if isinstance(self.edges, AllPairs):
            if self.n_parties > MOST_IN_TOUCH:
                raise InputError(
                    f"topology: got a complete graph of {self.n_parties:,} parties, who would send "
                    f"{2 * len(self.edges):,} messages a round; at most {MOST_IN_TOUCH:,} parties can do that"
                )
            everybody = np.arange(self.n_parties, dtype=np.int32)
            others = np.broadcast_to(everybody, (self.n_parties, self.n_parties))[~np.eye(self.n_parties, dtype=bool)]
            return others, np.repeat(everybody, self.n_parties - 1)
        edges = np.asarray(self.edges, dtype=np.int32).reshape(-1, 2)
        to, source = np.concatenate([edges, edges[:, ::-1]]).T
        order = np.lexsort((source, to))
        return source[order], to[order]

    @functools.cached_property
    def edge_of_arc(self) -> np.ndarray:
        """The position in `edges` of each arc's edge."""
        place = {edge: e for e, edge in enumerate(self.edges)}
        return np.array([place[min(i, j), max(i, j)] for i, j in zip(*self.arcs, strict=True)], dtype=int)

    @functools.cached_property
    def reverse_arc(self) -> np.ndarray:
        """The position of the arc that runs the other way."""
        place = {arc: e for e, arc in enumerate(zip(*(ends.tolist() for ends in self.arcs), strict=True))}
        return np.array([place[j, i] for i, j in place], dtype=int)

    def hear(self, heard: Any, last: Any, values: Any) -> Any:
        """What arrives along each arc when the parties broadcast `values`: here, on a perfect network, everything.

        `heard` is what each arc delivered before and `last` what the parties broadcast before.
        """
        return values[self.arcs[0]]


def make_topology(graph: Any, n_parties: int, *, seed: int = 0) -> Topology:
    """A topology from a name, edges, a networkx graph or a Topology; random graphs use the public `seed`."""
    if isinstance(graph, Topology):
        topology = graph
    elif isinstance(graph, str) and graph == UNRESTRICTED:
        topology = Topology(n_parties, (), unrestricted=True)
    elif isinstance(graph, str):
        if graph not in GRAPHS:
            names = (*GRAPHS, UNRESTRICTED)
            raise InputError(f"topology: got {graph!r}; one of {', '.join(names)} is needed{nearest(graph, names)}")
        topology = _named(graph, n_parties, seed)
    elif isinstance(graph, nx.Graph):
        topology = _from_networkx(graph)
    elif isinstance(graph, Iterable):
        topology = _from_edges(graph, n_parties)
    else:
        raise InputError(f"topology: got a {type(graph).__name__}; a name, an edge list or a networkx graph is needed")
    if topology.n_parties != n_parties:
        raise InputError(f"topology: the graph has {topology.n_parties} nodes for {n_parties} parties")
    return topology


def _named(name: str, n_parties: int, seed: int) -> Topology:
    if n_parties == 1:
        return Topology(1, ())
    if name == "complete":
        return Topology(n_parties, AllPairs(n_parties))
    return _from_networkx(GRAPHS[name](n_parties, seed))


def _from_networkx(graph: nx.Graph) -> Topology:
    if graph.is_directed() or graph.is_multigraph():
        raise InputError(f"topology: got a {type(graph).__name__}; an undirected simple graph is needed")
    position = {node: i for i, node in enumerate(graph.nodes)}
    return Topology(len(position), tuple((position[a], position[b]) for a, b in graph.edges))


def _from_edges(edges: Iterable[Any], n_parties: int) -> Topology:
    pairs = []
    for edge in edges:
        try:
            i, j = (operator.index(end) for end in edge)
        except (TypeError, ValueError):
            raise InputError(f"topology: got the edge {edge!r}; a pair of party numbers is needed") from None
        pairs.append((i, j))
    return Topology(n_parties, tuple(pairs))


def _grid(n: int, _seed: int) -> nx.Graph:
    rows = next(r for r in range(math.isqrt(n), 0, -1) if n % r == 0)
    return nx.grid_2d_graph(rows, n // rows)


def _first_connected(draw: Callable[[int], nx.Graph], seed: int) -> nx.Graph:
    for attempt in range(1000):
        graph = draw(seed * 1000 + attempt)
        if nx.is_connected(graph):
            return graph
    raise InputError("topology: no connected graph found in 1000 draws; give the edges instead")


def _erdos_renyi(n: int, seed: int) -> nx.Graph:
    likely_connected = min(1.0, 2 * math.log(n) / n) if n > 2 else 1.0
    return _first_connected(lambda s: nx.gnp_random_graph(n, likely_connected, seed=s), seed)


def _random_connected(n: int, seed: int) -> nx.Graph:
    """A random spanning tree plus as many random edges as parties."""
    rng = np.random.default_rng(seed)
    graph = nx.random_labeled_tree(n, seed=seed)
    for _ in range(n):
        i, j = rng.choice(n, size=2, replace=False)
        graph.add_edge(int(i), int(j))
    return graph


def _watts_strogatz(n: int, seed: int) -> nx.Graph:
    """Four neighbours each, rewired with probability 0.3; complete where that is everybody."""
    return nx.complete_graph(n) if n <= 5 else nx.connected_watts_strogatz_graph(n, 4, 0.3, tries=1000, seed=seed)


UNRESTRICTED = "unrestricted"

GRAPHS: dict[str, Callable[[int, int], nx.Graph]] = {
    "ring": lambda n, _: nx.cycle_graph(n) if n > 2 else nx.path_graph(n),
    "complete": lambda n, _: nx.complete_graph(n),
    "star": lambda n, _: nx.star_graph(n - 1),
    "path": lambda n, _: nx.path_graph(n),
    "grid": _grid,
    "random-connected": _random_connected,
    "watts-strogatz": _watts_strogatz,
    "erdos-renyi": _erdos_renyi,
}


def _shorten(component: list[int]) -> str:
    text = ", ".join(map(str, component[:6]))
    return f"{{{text}{', ...' if len(component) > 6 else ''}}}"
