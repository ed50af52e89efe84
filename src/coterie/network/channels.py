"""What travels, and who could see it."""

import dataclasses
from typing import Any, ClassVar

from coterie.privacy.observers import AGGREGATES, EVERYBODY, PEER, Observer
from coterie.privacy.release import Contribution, Release, Subtotal, UnitNoise
from coterie.serialise import serialisable


class Channel:
    """`observers` lists those a loss can be stated against; the first is meant when none is named."""

    name: ClassVar[str]
    observers: ClassVar[tuple[Observer, ...]]
    aggregates: ClassVar[bool]

    def noise_rows(self, n_parties: int) -> int:
        """How many independent draws a round needs."""
        return n_parties


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
    """The noise is the sum of `noise_rows` draws: one, or one of each party."""

    observers = (AGGREGATES,)
    aggregates = True

    def aggregate(self, contributions: Contribution, grant: Any, noise: UnitNoise) -> Release:
        return self.noised(grant.subtotal(contributions), grant, noise)

    def noised(self, subtotal: Subtotal, grant: Any, noise: UnitNoise) -> Release:
        return grant.noised_total(subtotal, noise.value[0])


@serialisable
@dataclasses.dataclass(frozen=True)
class Curator(_Aggregating):
    """A trusted curator sees all contributions, adds one noise and publishes the noised sum."""

    name = "curator"

    def noise_rows(self, n_parties: int) -> int:
        return 1


@serialisable
@dataclasses.dataclass(frozen=True)
class SecureSum(_Aggregating):
    """Nobody sees a contribution: each party adds its share of the noise and only the sum is opened.

    All parties are needed in every round; a missing share would leave the sum with less noise than was priced. A party
    knows its own share and can take it off, so against insiders the noise is smaller by sqrt((N - 1)/N).
    """

    name = "secure-sum"
