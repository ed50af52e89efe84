"""Who hears whom, and who works when.

Graphs are connected and undirected: from names, edge lists or networkx objects.

A selection with a `seed` is public: anybody can repeat it, so a loss counts the rounds in which a party really works.
With `seed=None` it is secret and drawn during the run; a loss can then be stated only where a theorem covers it.
"""

import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

import networkx as nx
import numpy as np

from coterie.errors import InputError
from coterie.values import nearest, serialisable, whole_number

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


# that many independent numbers in [0, 1)
Uniform = Callable[[int], np.ndarray]
# bounds memory
_NUMBERS_AT_ONCE = 2**20


class Selection:
    """`table` is (n_rounds, n_parties), True where the party works."""

    seed: int | None

    def table(self, n_rounds: int, topology: Topology, uniform: Uniform | None = None) -> np.ndarray:
        """The public table, or with `uniform` a fresh secret one."""
        self.check(topology)
        if uniform is None:
            if self.seed is None:
                raise InputError("seed: got None; a secret selection exists only during a run")
            uniform = np.random.default_rng(self.seed).random
        return self.draw(n_rounds, topology, uniform)

    def draw(self, n_rounds: int, topology: Topology, uniform: Uniform) -> np.ndarray:
        raise NotImplementedError

    def rate(self, n_parties: int) -> float:
        """The share of all parties that works in a round, on average."""
        raise NotImplementedError

    def check(self, topology: Topology) -> None:
        """Refuse settings that do not fit the number of parties."""

    @property
    def secret(self) -> bool:
        return self.seed is None


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class All(Selection):
    """Everybody in every round."""

    # nothing is drawn
    seed: ClassVar[int] = 0

    def draw(self, n_rounds, topology, uniform):
        return np.ones((n_rounds, topology.n_parties), dtype=bool)

    def rate(self, n_parties):
        return 1.0


EVERYBODY_WORKS = All()


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class Cyclic(Selection):
    """One after the other, in order."""

    # nothing is drawn
    seed: ClassVar[int] = 0

    def draw(self, n_rounds, topology, uniform):
        return _one_hot(np.arange(n_rounds) % topology.n_parties, topology.n_parties)

    def rate(self, n_parties):
        return 1 / n_parties


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class Shuffled(Selection):
    """One after the other, in a new random order each time round."""

    seed: int

    def __post_init__(self) -> None:
        _check_seed(self.seed)

    def draw(self, n_rounds, topology, uniform):
        n = topology.n_parties
        orders = [np.argsort(uniform(n), kind="stable") for _ in range(-(-n_rounds // n))]
        return _one_hot(np.concatenate(orders)[:n_rounds], n)

    def rate(self, n_parties):
        return 1 / n_parties


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample(Selection):
    """`count` different parties, drawn anew in each round."""

    count: int
    seed: int

    def __post_init__(self) -> None:
        _check_seed(self.seed)
        whole_number("count", self.count, at_least=1)

    def check(self, topology):
        if self.count > topology.n_parties:
            raise InputError(f"count: got {self.count}; at most the {topology.n_parties} parties can be drawn")

    def draw(self, n_rounds, topology, uniform):
        table = np.zeros((n_rounds, topology.n_parties), dtype=bool)
        for row in table:
            row[np.argpartition(uniform(len(row)), self.count - 1)[: self.count]] = True
        return table

    def rate(self, n_parties):
        return self.count / n_parties


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class Poisson(Selection):
    """Every party by itself, with chance `probability` in each round."""

    probability: float
    seed: int | None

    def __post_init__(self) -> None:
        _check_seed(self.seed, may_be_secret=True)
        number = isinstance(self.probability, (int, float)) and not isinstance(self.probability, bool)
        if not number or not 0 < self.probability <= 1:
            raise InputError(f"probability: got {self.probability!r}; a number in (0, 1] is needed")

    def draw(self, n_rounds, topology, uniform):
        parts = []
        for rounds, places in self.at_work(n_rounds, topology, uniform):
            parts.append(np.zeros((rounds, topology.n_parties), dtype=bool))
            parts[-1].reshape(-1)[places] = True
        return np.concatenate(parts)

    def at_work(self, n_rounds: int, topology: Topology, uniform: Uniform) -> Iterator[tuple[int, np.ndarray]]:
        """A few rounds at a time: how many, and the places of those who work in the table of these."""
        n, most = topology.n_parties, max(1, _NUMBERS_AT_ONCE // topology.n_parties)
        # noise sources flip coins at a fraction of the price of numbers
        heads = getattr(uniform, "heads", lambda rate, size: np.flatnonzero(uniform(size) < rate))
        for start in range(0, n_rounds, most):
            rounds = min(most, n_rounds - start)
            yield rounds, heads(self.probability, rounds * n)

    def rate(self, n_parties):
        return self.probability


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class Walk(Selection):
    """A token goes from party to party and its holder works; the first holder is uniform.

    Where everybody can reach everybody, the next holder is uniform over all parties, the present one included;
    otherwise it is a uniform neighbour. With `most_visits`, a holder that has worked that often only passes the token
    on: without it, nothing bounds how often a secret walk visits.
    """

    seed: int | None
    most_visits: int | None = None

    def __post_init__(self) -> None:
        _check_seed(self.seed, may_be_secret=True)
        if self.most_visits is not None:
            whole_number("most_visits", self.most_visits, at_least=1)

    def draw(self, n_rounds, topology, uniform):
        return self.works(self.path(n_rounds, topology, uniform), topology)

    def path(self, n_rounds: int, topology: Topology, uniform: Uniform) -> np.ndarray:
        """Who holds the token in each round."""
        n, steps = topology.n_parties, uniform(n_rounds)
        if topology.everybody_reachable:
            return (steps * n).astype(int)
        path, holder = np.empty(n_rounds, dtype=int), int(steps[0] * n)
        for k in range(n_rounds):
            if k > 0:
                near = topology.neighbours[holder]
                holder = near[int(steps[k] * len(near))]
            path[k] = holder
        return path

    def works(self, path: np.ndarray, topology: Topology) -> np.ndarray:
        """The table of a path: holders work until they have done so `most_visits` times."""
        table = _one_hot(path, topology.n_parties)
        if self.most_visits is not None:
            table &= np.cumsum(table, axis=0) <= self.most_visits
        return table


def participants(table: np.ndarray) -> np.ndarray:
    """The same as numbers: (n_rounds, widest round), filled up with n_parties, which is nobody."""
    rounds, parties = np.nonzero(table)
    counts = np.bincount(rounds, minlength=len(table))
    found = np.full((len(table), max(1, int(counts.max(initial=0)))), table.shape[1])
    found[rounds, np.arange(len(rounds)) - np.repeat(np.cumsum(counts) - counts, counts)] = parties
    return found


def _one_hot(path: np.ndarray, n: int) -> np.ndarray:
    return path[:, None] == np.arange(n)


def _check_seed(seed: Any, *, may_be_secret: bool = False) -> None:
    if may_be_secret and seed is None:
        return
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        wanted = "an integer >= 0, or None for a secret selection," if may_be_secret else "an integer >= 0"
        raise InputError(f"seed: got {seed!r}; {wanted} is needed")
