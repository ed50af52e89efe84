"""What travels, who could see it, and what is lost on the way."""

import dataclasses
import math
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np

from coterie.errors import InputError
from coterie.network.topology import AllPairs, Topology
from coterie.privacy.events import AGGREGATES, EVERYBODY, PEER, Observer, coalition
from coterie.privacy.mechanisms import ONE_NOISE, SumNoises
from coterie.privacy.pairs import PairNoise, solve
from coterie.privacy.release import Contribution, Release, Subtotal, UnitNoise
from coterie.values import serialisable, whole_number


class Channel:
    """`observers` lists those a loss can be stated against; the first is meant when none is named."""

    name: ClassVar[str]
    observers: ClassVar[tuple[Observer, ...]]
    aggregates: ClassVar[bool]

    def noise(self, n_parties: int) -> SumNoises:
        """Of one release."""
        return ONE_NOISE

    def check(self, n_parties: int) -> None:
        """Refuse so many parties."""

    def all_together(self, ratios: np.ndarray) -> float:
        """The ratio of a round's releases that all parties' people move at once, each by its own ratio."""
        raise NotImplementedError


@serialisable
@dataclasses.dataclass(frozen=True)
class Broadcast(Channel):
    """Every release is sent to all, so every release is noised by its own party."""

    name = "broadcast"
    observers = (EVERYBODY,)
    aggregates = False


@serialisable
@dataclasses.dataclass(frozen=True)
class Token(Channel):
    """One message at a time is handed from party to party; whoever holds it has noised it."""

    name = "token"
    observers = (EVERYBODY, PEER)
    aggregates = False


class _Aggregating(Channel):
    """What everybody sees is a noised sum; its noise is one draw, or one of each party."""

    observers = (AGGREGATES,)
    aggregates = True

    def aggregate(self, contributions: Contribution, grant: Any, noise: UnitNoise) -> Release:
        return self.noised(grant.subtotal(contributions), grant, noise)

    def noised(self, subtotal: Subtotal, grant: Any, noise: UnitNoise) -> Release:
        return grant.noised_total(subtotal, noise.value[0])

    def all_together(self, ratios: np.ndarray) -> float:
        """One noise hides the sum of what they move."""
        return float(ratios.sum())


@serialisable
@dataclasses.dataclass(frozen=True)
class Curator(_Aggregating):
    """A trusted curator sees all contributions, adds one noise and publishes the noised sum."""

    name = "curator"


@serialisable
@dataclasses.dataclass(frozen=True)
class SecureSum(_Aggregating):
    """Nobody sees a contribution: each party adds its share of the noise and only the sum is opened.

    All parties are needed in every round; a missing share would leave the sum with less noise than was priced. A party
    knows its own share and can take it off, so against insiders the noise is smaller by sqrt((N - 1)/N).
    """

    name = "secure-sum"

    def noise(self, n_parties: int) -> SumNoises:
        return SumNoises(n_parties, 1 / math.sqrt(n_parties))


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class PairwiseSum(_Aggregating):
    """Every party sends its contribution with noise of its own and noise that it shares with each partner, which
    cancels in the sum (`privacy.pairs`). Nobody is trusted, as long as at most `colluders` parties put together what
    they know.

    spread: the variance of a message in units of what hides a single party in it: the more, the less noise is left in
        the sum. A sum without one of the messages would carry up to as much, so runs wait for everybody.
    graph: who shares noise with whom; all pairs where it is None.
    """

    colluders: int
    spread: float = 256.0
    graph: Topology | None = None
    name = "pairwise-sum"

    def __post_init__(self) -> None:
        whole_number("colluders", self.colluders, at_least=0)
        if self.graph is not None and self.graph.unrestricted:
            raise InputError("graph: got 'unrestricted'; who shares noise with whom must be known")

    @property
    def observers(self) -> tuple[Observer, ...]:
        return (coalition(self.colluders),)

    def pairs(self, n_parties: int) -> PairNoise:
        return solve(self.partners(n_parties), self.colluders, self.spread)

    def partners(self, n_parties: int) -> Topology:
        return Topology(n_parties, AllPairs(n_parties)) if self.graph is None else self.graph

    def check(self, n_parties: int) -> None:
        if n_parties < 3:
            raise InputError(f"parties: got {n_parties}; noise that cancels between pairs needs at least 3")
        if self.graph is not None and self.graph.n_parties != n_parties:
            raise InputError(f"graph: got {self.graph.n_parties} parties; the data have {n_parties}")
        self.pairs(n_parties)

    def noise(self, n_parties: int) -> SumNoises:
        return SumNoises(n_parties, self.pairs(n_parties).own)

    def message(self, contribution: Contribution, grant: Any, noise: UnitNoise) -> Release:
        """What one party sends, stacked as one contribution: its own unit noise and its pairs' whole steps."""
        return grant.masked(contribution, *noise.value)

    def sum_of(self, messages: np.ndarray, grid: float) -> np.ndarray:
        """What is left of messages, (party, d), when they are added up modulo 2^64: the noised sum, (d,)."""
        with np.errstate(over="ignore"):
            return messages.sum(axis=0, dtype=np.int64).astype(float) * grid

    def all_together(self, ratios: np.ndarray) -> float:
        """Messages are seen one by one, and no pair's noise hides what moves them all alike."""
        return math.sqrt(float((ratios**2).sum())) / self.pairs(len(ratios)).own


SumChannel = Curator | SecureSum | PairwiseSum


def channel_of(trust: str, colluders: int | None) -> SumChannel | Broadcast:
    """What carries messages that are to be added up: a sum, or everybody's own, which all can add up."""
    return sum_channel(trust, colluders) or Broadcast()


def sum_channel(trust: str, colluders: int | None) -> SumChannel | None:
    """What carries a sum between parties who trust that far; None where nothing is added up."""
    if colluders is not None:
        return PairwiseSum(colluders=colluders)
    return {"none": None, "curator": Curator(), "secure-sum": SecureSum()}[trust]


class Delivery(NamedTuple):
    """What happened in one round (or, with a leading axis, in all)."""

    # (n_arcs,) this round's message is heard
    arrives: Any
    # (n_arcs,) last round's message is heard instead
    late: Any
    # (n_parties,) the party takes part
    speaks: Any


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class Impairments:
    """Probabilities per message (`lost`, `late`) and per party and round (`skipped`), drawn with a public seed.

    All of it is public, none of it data. A receiver that hears nothing keeps what it heard last; a late message is
    replaced by the one of the round before. A party that skips a round computes and releases nothing, so it pays
    nothing for it; its neighbours keep its last release. Lost and late messages change no charge: what was released was
    released. Messages are acknowledged, so a party knows what its neighbours have heard of it, and the dual steps of
    the graph algorithms use that (`consensus.gap`): convergence slows down, the limit stays.
    """

    lost: float = 0.0
    late: float = 0.0
    skipped: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("lost", "late", "skipped"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise InputError(f"{name}: got {value}; a probability in [0, 1) is needed")
        if self.lost + self.late >= 1:
            raise InputError(f"lost, late: got {self.lost}, {self.late}; together they must stay below 1")

    def deliveries(self, topology: Topology, n_rounds: int) -> Delivery:
        rng = np.random.default_rng(self.seed)
        fate = rng.random((n_rounds, len(topology.arcs[0])))
        speaks = rng.random((n_rounds, topology.n_parties)) >= self.skipped
        late = (fate >= self.lost) & (fate < self.lost + self.late)
        return Delivery(arrives=fate >= self.lost + self.late, late=late, speaks=speaks)


class ImpairedTopology:
    """A topology in one round of an imperfect network."""

    def __init__(self, topology: Topology, delivery: Delivery) -> None:
        self.n_parties, self.degrees, self.arcs = topology.n_parties, topology.degrees, topology.arcs
        self.reverse_arc, self.edge_of_arc = topology.reverse_arc, topology.edge_of_arc
        self._delivery = delivery

    def hear(self, heard: Any, last: Any, values: Any) -> Any:
        source = self.arcs[0]
        arrives, late = self._delivery.arrives[:, None], self._delivery.late[:, None]
        return jnp.where(arrives, values[source], jnp.where(late, last[source], heard))
