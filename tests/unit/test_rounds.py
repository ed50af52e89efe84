"""Parts of an engine's round that need no compiled program."""

import jax
import numpy as np
import pytest

from coterie.algorithms import NoisyGradientDescent
from coterie.data import Federation
from coterie.engines import in_process, rounds
from coterie.engines.rounds import Inputs, _lengthen, _where, at_a_time
from coterie.network.channels import Broadcast, Curator
from coterie.network.topology import EVERYBODY_WORKS, Poisson
from coterie.plan import Plan
from coterie.privacy.mechanisms import GaussianGradient
from coterie.privacy.noise import Seeded, SystemEntropy
from coterie.problems import L2, Logistic, Problem
from coterie.values import Facts


@pytest.mark.parametrize("shape", [(), (4,), (4, 5)])
def test_those_who_do_not_work_keep_their_states(shape):
    works = np.array([[True, False, True], [False, False, True]])
    new, old = np.random.default_rng(0).normal(size=(2, 2, 3, *shape))
    with jax.enable_x64(True):
        found = _where(works, {"state": new}, {"state": old})["state"]
    assert found.shape == new.shape
    for place in np.ndindex(2, 3):
        np.testing.assert_array_equal(found[place], (new if works[place] else old)[place])


def test_a_part_of_a_run_is_filled_up_with_zeros():
    found = _lengthen(np.arange(1, 7).reshape(2, 3), 5)
    np.testing.assert_array_equal(found, [[1, 2, 3], [4, 5, 6], [0, 0, 0], [0, 0, 0], [0, 0, 0]])


@pytest.mark.parametrize(("most_bytes", "repeats"), [(1, 1), (2000, 4), (2399, 4), (2400, 6), (10**6, 12)])
def test_as_many_repeats_run_at_a_time_as_fit(most_bytes, repeats, monkeypatch):
    """Of ten parties with five numbers of eight bytes; whatever divides all twelve."""
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    assert at_a_time(12, 10, 5, most_bytes) == repeats
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert at_a_time(12, 10, 5, most_bytes) == 12


def descent(channel, rounds, selection=EVERYBODY_WORKS):
    facts = Facts(parties=tuple("abcdef"), sizes=(5,) * 6, n_features=2, row_norm=1.0, labels=("no", "yes"))
    algorithm = NoisyGradientDescent(
        mechanism=GaussianGradient(noise_multiplier=1.0),
        regulariser=L2(1.0),
        step=0.1,
        channel=channel,
        selection=selection,
    )
    problem = Problem(loss=Logistic(), regulariser=L2(1.0), record_weight=1.0)
    return Plan.make(algorithm, problem, "complete", facts, rounds=rounds, adjacency="replace-one")


@pytest.mark.parametrize("channel", [Broadcast(), Curator()])
def test_a_transcript_has_room_for_the_round_in_which_most_parties_work(channel):
    plan = descent(channel, 20, Poisson(probability=0.5, seed=1))
    working = plan.participation.sum(axis=1)
    assert working.max() > working.min() + 1
    assert plan.release_width == (1 if isinstance(channel, Curator) else working.max())


@pytest.mark.parametrize("n_plans", [1, 2, 3])
@pytest.mark.parametrize("channel", [Broadcast(), Curator()])
def test_plans_side_by_side_draw_what_each_would_draw_alone_and_without_a_seed_no_two_alike(channel, n_plans):
    n_rounds, repeats, plan = 4, 2, descent(channel, 4)

    def drawn(n_plans, source):
        release, _ = Inputs([plan] * n_plans, source, repeats, None, n_rounds).block(0, n_rounds, {}).noise
        assert release.shape[:2] == (n_rounds, repeats * n_plans)
        return release

    alone = drawn(1, Seeded(3))
    for of_plan in np.split(drawn(n_plans, Seeded(3)), n_plans, axis=1):
        np.testing.assert_array_equal(of_plan, alone)
    unlike = drawn(n_plans, SystemEntropy())
    assert len(np.unique(unlike)) == unlike.size == alone.size * n_plans


@pytest.mark.parametrize("at_once", [1, 2, 4, 6])
def test_however_many_parties_are_worked_on_at_once_they_release_the_same(at_once, monkeypatch):
    rng, plan = np.random.default_rng(0), descent(Broadcast(), 2)
    X, y = rng.normal(size=(30, 2)) / 4, np.tile(["no", "yes"], 15)
    data = Federation.from_arrays(X, y, parties=np.repeat(list("abcdef"), 5), labels=("no", "yes"))
    right = in_process.run(plan, data, noise=Seeded(1)).releases
    assert rounds.BATCH_ELEMENTS > 6 * 10
    # of five rows with two numbers
    monkeypatch.setattr(rounds, "BATCH_ELEMENTS", at_once * 10 + 9)
    rounds.compiled.cache_clear()
    found = in_process.run(plan, data, noise=Seeded(1)).releases
    rounds.compiled.cache_clear()
    np.testing.assert_allclose(found, right, rtol=0, atol=1e-9)


# --- settings of XLA --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("own", ["--xla_backend_optimization_level=0", "--xla_cpu_use_fusion_emitters=true", None])
def test_whoever_has_one_of_these_settings_keeps_all_of_theirs(own, monkeypatch):
    monkeypatch.setattr(rounds, "version", lambda _: "0.10.2")
    monkeypatch.setattr(rounds.jax, "default_backend", lambda: "cpu")
    if own is None:
        monkeypatch.delenv("XLA_FLAGS", raising=False)
        assert set(rounds.simple_code()) == {"xla_backend_optimization_level", "xla_cpu_use_fusion_emitters"}
    else:
        monkeypatch.setenv("XLA_FLAGS", own)
        assert rounds.simple_code() is None


@pytest.mark.parametrize(("backend", "release"), [("cpu", "0.99.0"), ("gpu", "0.10.2")])
def test_where_they_were_not_tried_defaults_are_kept(backend, release, monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setattr(rounds, "version", lambda _: release)
    monkeypatch.setattr(rounds.jax, "default_backend", lambda: backend)
    assert rounds.simple_code() is None
