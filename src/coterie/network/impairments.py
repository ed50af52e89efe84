"""Imperfect networks: messages that are lost or late, parties that skip rounds. All of it public, none of it data.

A receiver that hears nothing keeps what it heard last; a late message is replaced by the one of the round before. A
party that skips a round computes and releases nothing, so it pays nothing for it; its neighbours keep its last
release. Lost and late messages change no charge: what was released was released. Messages are acknowledged, so a party
knows what its neighbours have heard of it, and the dual steps of the graph algorithms use that (`consensus.gap`):
convergence slows down, the limit stays.
"""

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from coterie.errors import InputError
from coterie.network.topology import Topology
from coterie.serialise import serialisable


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
    """Probabilities per message (`lost`, `late`) and per party and round (`skipped`), drawn with a public seed."""

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
