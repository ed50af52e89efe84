"""States kept without noise are changed by their grant only, and leave a party through a noised sum only."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from coterie.algorithms import BroadcastNoisedADMM, LocallyNoisedADMM, SumNoisedADMM
from coterie.errors import LeakError
from coterie.network.channels import Broadcast, Curator
from coterie.plan import Plan
from coterie.privacy.proximal import BroadcastNoise, LocalNoise, SumNoise
from coterie.problems import L2, HuberisedHinge, Logistic, Problem
from coterie.values import Facts

FACTS = Facts(parties=("a", "b", "c"), sizes=(4, 4, 4), n_features=3, row_norm=1.0, labels=("no", "yes"))
REGULARISER = L2(1.0)
SETTINGS = {"prox_step": 0.5, "relaxation": 0.5, "noise_multiplier": 5.0}


def make(algorithm):
    problem = Problem(loss=Logistic(), regulariser=REGULARISER, record_weight=1.0)
    return Plan.make(algorithm, problem, "unrestricted", FACTS, rounds=3, adjacency="replace-one")


def with_local(cls, mechanism, local, **fields):
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Changed(cls):
        pass

    Changed.local = local
    return Changed(mechanism=mechanism, regulariser=REGULARISER, **fields)


def broadcast(local):
    return with_local(BroadcastNoisedADMM, BroadcastNoise(**SETTINGS), local, channel=Curator())


def summed(local):
    return with_local(SumNoisedADMM, SumNoise(**SETTINGS), local, channel=Curator())


def honest_broadcast(self, grant, problem, records, private, inbox, noise):
    return grant.advance(problem, records, centre=inbox, state=private)


def honest_sum(self, grant, problem, records, private, inbox, noise):
    return grant.move(problem, records, centre=inbox, state=private)


def test_the_honest_steps_pass():
    make(broadcast(honest_broadcast))
    make(summed(honest_sum))


def data_in_the_state(self, grant, problem, records, private, inbox, noise):
    state, out = grant.advance(problem, records, centre=inbox, state=private)
    return state + records.X.sum(axis=0), out


def state_beside_the_grant(self, grant, problem, records, private, inbox, noise):
    _, out = grant.advance(problem, records, centre=inbox, state=private)
    return records.X.mean(axis=0), out


def twice_the_state(self, grant, problem, records, private, inbox, noise):
    return grant.advance(problem, records, centre=inbox, state=2 * private)


def records_as_state(self, grant, problem, records, private, inbox, noise):
    return grant.advance(problem, records, centre=inbox, state=records.X.sum(axis=0))


def state_as_centre(self, grant, problem, records, private, inbox, noise):
    return grant.advance(problem, records, centre=private, state=private)


def two_steps_for_one_price(self, grant, problem, records, private, inbox, noise):
    state, first = grant.advance(problem, records, centre=inbox, state=private)
    return state, jax.tree.map(lambda a, b: a + b, first, grant.advance(problem, records, centre=inbox, state=state)[1])


def the_state_itself(self, grant, problem, records, private, inbox, noise):
    state, out = grant.advance(problem, records, centre=inbox, state=private)
    return state, jax.tree.map(lambda _: private, out)


def a_larger_relaxation(self, grant, problem, records, private, inbox, noise):
    louder = jax.tree.map(lambda s: 2 * s, grant)
    return louder.advance(problem, records, centre=inbox, state=private)


def another_loss(self, grant, problem, records, private, inbox, noise):
    steeper = dataclasses.replace(problem, loss=HuberisedHinge(1e-6))
    return grant.advance(steeper, records, centre=inbox, state=private)


def another_shape(self, grant, problem, records, private, inbox, noise):
    state, out = grant.advance(problem, records, centre=inbox, state=private)
    return (state, records.X), out


@pytest.mark.parametrize(
    "leak",
    [
        data_in_the_state,
        state_beside_the_grant,
        twice_the_state,
        records_as_state,
        state_as_centre,
        two_steps_for_one_price,
        the_state_itself,
        a_larger_relaxation,
        another_loss,
        another_shape,
    ],
    ids=lambda f: f.__name__,
)
def test_a_leaking_step_gets_no_plan(leak):
    with pytest.raises(LeakError):
        make(broadcast(leak))


def test_clean_moves_are_no_messages():
    """What a noised sum may take must not be broadcast."""
    algorithm = with_local(SumNoisedADMM, SumNoise(**SETTINGS), honest_sum, channel=Curator())
    type(algorithm).channel = Broadcast()
    object.__setattr__(algorithm, "channel", Broadcast())
    with pytest.raises(LeakError, match="got Contribution"):
        make(algorithm)


def test_a_state_that_saw_no_noise_is_not_public():
    def hidden_state(self, grant, problem, records, private, inbox, noise):
        return private, grant.noised_move(problem, records, noise, centre=inbox[0], state=private)

    algorithm = with_local(LocallyNoisedADMM, LocalNoise(**SETTINGS), hidden_state)
    type(algorithm).init = lambda self, topology, d: (
        LocallyNoisedADMM.init(self, topology, d)[0],
        jnp.zeros((topology.n_parties, d)),
    )
    with pytest.raises(LeakError, match="takes as public"):
        make(algorithm)
