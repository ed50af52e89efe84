"""Which blocks work in which round: everybody, one after the other, a random few, or whoever holds a token.

A selection with a `seed` is public: anybody can repeat it, so a loss counts the rounds in which a party really works.
With `seed=None` it is secret and drawn during the run; a loss can then be stated only where a theorem covers it.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np

from coterie.checks import whole_number
from coterie.errors import InputError
from coterie.network.topology import Topology
from coterie.serialise import serialisable

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
