"""Private ADMM as a noisy fixed-point iteration: Cyffers, Bellet & Basu (2023).

    u_i, x_i   state and own solution of party i              gamma   `mechanism.prox_step`
    z          the model, prox of the regulariser at z_hat    lambda  `mechanism.relaxation`

    z_hat = mean_i u_i,   z = prox_{(gamma/n) regulariser}(z_hat)                   eq. (8)
    x_i   = prox_{gamma f_i}(2 z - u_i)                                             eq. (9)
    u_i  += 2 lambda (x_i - z)                                                      eq. (10), noise apart

for  min sum_i f_i(x) + regulariser(x).  z_hat is an accumulator of its own: the paper's listings of the federated
and the decentralised algorithm restart it from z, which has the wrong limit wherever there is a regulariser. The
algorithms differ in where the noise enters (`privacy.proximal`) and in who works when (`selection`); nobody ever
returns an x_i.
"""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coterie.algorithms.algorithm import Algorithm, Averaging, Citation, GrantT, Heard, check_averaging, running_average
from coterie.errors import InputError
from coterie.network.channels import Broadcast, Channel, SumChannel, Token
from coterie.network.topology import EVERYBODY_WORKS, Selection, Walk
from coterie.privacy.proximal import (
    BroadcastNoise,
    LocalNoise,
    MoveGrant,
    ProximalMechanism,
    StateGrant,
    SumMoveGrant,
    SumNoise,
    WalkNoise,
)
from coterie.problems import Regulariser
from coterie.values import serialisable

CYFFERS_BELLET_BASU_2023 = Citation(
    key="cyffers-bellet-basu-2023",
    kind="inproceedings",
    authors=("Cyffers, Edwige", "Bellet, Aurélien", "Basu, Debabrota"),
    title="From Noisy Fixed-Point Iterations to Private ADMM for Centralized and Federated Learning",
    venue="International Conference on Machine Learning",
    year=2023,
)


class CentreState(NamedTuple):
    # (d,)
    z_hat: jax.Array
    # (d,) of z over rounds, or z itself
    average: jax.Array


class LocalState(NamedTuple):
    # (n_parties, d): sums of releases, so everybody may know them
    u: jax.Array
    centre: CentreState


class FixedPointADMM(Algorithm[GrantT]):
    mechanism: ProximalMechanism
    regulariser: Regulariser
    averaging: Averaging
    needs_graph: ClassVar[bool] = False
    bears_impairments: ClassVar[bool] = False
    citation: ClassVar[Citation] = CYFFERS_BELLET_BASU_2023

    def __post_init__(self) -> None:
        check_averaging(self.averaging)

    @property
    def coordinator_regulariser(self) -> Regulariser:
        """An l2 that the parties carry is no longer in it."""
        return dataclasses.replace(self.regulariser, l2=0.0) if self.mechanism.spread_l2 else self.regulariser

    def _centre(self, z_hat, n_parties):
        """z"""
        return self.coordinator_regulariser.whole_prox(z_hat, self.mechanism.prox_step / n_parties)

    def _start(self, topology, d) -> CentreState:
        zeros = jnp.zeros(d)
        return CentreState(zeros, self._centre(zeros, topology.n_parties))

    def _moved(self, t, centre: CentreState, z_hat, n_parties) -> CentreState:
        z = self._centre(z_hat, n_parties)
        return CentreState(z_hat, running_average(self.averaging, t, centre.average, z))


class _NoisyStates(FixedPointADMM[MoveGrant]):
    """M1: every party noises its own moves, so it may send them to anybody, and its state is what it has sent."""

    def init(self, topology, d) -> tuple[Any, Any]:
        return LocalState(jnp.zeros((topology.n_parties, d)), self._start(topology, d)), ()

    def inbox(self, t, public, topology):
        z = self._centre(public.centre.z_hat, topology.n_parties)
        return jnp.broadcast_to(z, public.u.shape), public.u

    def local(self, grant: MoveGrant, problem, records, private, inbox, noise):
        z, u = inbox
        return private, grant.noised_move(problem, records, noise, centre=z, state=u)

    def combine(self, t, public, received, topology):
        who, moves = received if isinstance(received, Heard) else (np.arange(topology.n_parties), received)
        moves = 2 * self.mechanism.relaxation * moves
        z_hat = public.centre.z_hat + moves.sum(axis=0) / topology.n_parties
        u = public.u.at[who].add(moves, mode="drop")
        return LocalState(u, self._moved(t, public.centre, z_hat, topology.n_parties))

    def models(self, public):
        return public.centre.average[None]


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class LocallyNoisedADMM(_NoisyStates):
    """M1 with everybody at work in every round (the paper's Algorithm 2) or a sample of the parties (Algorithm 3)."""

    mechanism: LocalNoise
    regulariser: Regulariser
    selection: Selection = EVERYBODY_WORKS
    averaging: Averaging = "last"
    channel: ClassVar[Broadcast] = Broadcast()


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class WalkADMM(_NoisyStates):
    """M1 with a token that carries z_hat and walks over the graph: the paper's Algorithm 4."""

    mechanism: LocalNoise
    regulariser: Regulariser
    # no default, unlike where everybody can work
    selection: Walk = dataclasses.field()
    averaging: Averaging = "last"
    channel: ClassVar[Token] = Token()


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class MemorylessWalk(FixedPointADMM[MoveGrant]):
    """A token that walks while nobody remembers anything: every visit starts from u = z, without a regulariser.

    It goes to a neighbourhood of the minimum of the sum of the parties' Moreau envelopes, not of their losses. In
    return a party that sees the token only when it holds it learns less than everybody would (`observer="peer"`).
    """

    mechanism: WalkNoise
    regulariser: Regulariser
    # no default, unlike where everybody can work
    selection: Walk = dataclasses.field()
    # an average that travels with the token would undo part of its noise
    averaging: ClassVar[Averaging] = "last"
    channel: ClassVar[Token] = Token()
    idle_adds_noise: ClassVar[bool] = True

    def check(self, topology, problem):
        super().check(topology, problem)
        if not self.regulariser.smooth or self.regulariser.l2 > 0:
            raise InputError(f"regulariser: got {self.regulariser}; a walk without memory takes none, L2(0)")
        if not topology.everybody_reachable:
            raise InputError("topology: a walk without memory is proved for 'unrestricted' or 'complete'")
        if not self.selection.secret:
            raise InputError(f"selection: got {self.selection}; a walk that everybody can repeat hides nothing")

    def init(self, topology, d) -> tuple[Any, Any]:
        return self._start(topology, d), ()

    def inbox(self, t, public, topology):
        return jnp.broadcast_to(public.z_hat, (topology.n_parties, *public.z_hat.shape))

    def local(self, grant: MoveGrant, problem, records, private, inbox, noise):
        return private, grant.noised_move(problem, records, noise, centre=inbox, state=inbox)

    def combine(self, t, public, received, topology):
        move = 2 * self.mechanism.relaxation * received.values[0]
        return self._moved(t, public, public.z_hat + move / topology.n_parties, topology.n_parties)

    def models(self, public):
        return public.average[None]


class _CleanStates(FixedPointADMM[GrantT]):
    """The states stay with the parties, without noise; a curator or a secure sum noises what leaves them."""

    def init(self, topology, d) -> tuple[Any, Any]:
        return self._start(topology, d), jnp.zeros((topology.n_parties, d))

    def inbox(self, t, public, topology):
        z = self._centre(public.z_hat, topology.n_parties)
        return jnp.broadcast_to(z, (topology.n_parties, *z.shape))

    def models(self, public):
        return public.average[None]


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class SumNoisedADMM(_CleanStates[SumMoveGrant]):
    """M2: the sum of the moves is noised and accumulated."""

    mechanism: SumNoise
    regulariser: Regulariser
    channel: SumChannel
    selection: Selection = EVERYBODY_WORKS
    averaging: Averaging = "last"

    def local(self, grant: SumMoveGrant, problem, records, private, inbox, noise):
        return grant.move(problem, records, centre=inbox, state=private)

    def combine(self, t, public, received, topology):
        return self._moved(t, public, public.z_hat + received / topology.n_parties, topology.n_parties)


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class BroadcastNoisedADMM(_CleanStates[StateGrant]):
    """M3: the mean of the states is noised before it becomes the next z. The best of the family where a curator or a
    secure sum can be had."""

    mechanism: BroadcastNoise
    regulariser: Regulariser
    channel: SumChannel
    selection: Selection = EVERYBODY_WORKS
    averaging: Averaging = "last"
    absent_stays: ClassVar[bool] = True

    def local(self, grant: StateGrant, problem, records, private, inbox, noise):
        return grant.advance(problem, records, centre=inbox, state=private)

    def combine(self, t, public, received, topology):
        return self._moved(t, public, received / topology.n_parties, topology.n_parties)


def fixed_point_admm(
    *,
    channel: Channel,
    regulariser: Regulariser,
    prox_step: float,
    noise_multiplier: float,
    relaxation: float = 0.5,
    clip: float | None = None,
    selection: Selection = EVERYBODY_WORKS,
) -> FixedPointADMM:
    """The mechanism that suits the channel: noise on the broadcast where there is a curator or a secure sum, on every
    party's own moves where messages are seen."""
    settings: Any = {
        "prox_step": prox_step,
        "relaxation": relaxation,
        "noise_multiplier": noise_multiplier,
        "clip": clip,
    }
    if isinstance(channel, SumChannel):
        mechanism = BroadcastNoise(**settings)
        return BroadcastNoisedADMM(mechanism=mechanism, regulariser=regulariser, channel=channel, selection=selection)
    if isinstance(selection, Walk):
        return WalkADMM(mechanism=LocalNoise(**settings), regulariser=regulariser, selection=selection)
    return LocallyNoisedADMM(mechanism=LocalNoise(**settings), regulariser=regulariser, selection=selection)
