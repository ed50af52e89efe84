"""Who works when: every selection's table, its rate, and what is refused."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from coterie.errors import InputError
from coterie.network.channels import Impairments
from coterie.network.topology import All, Cyclic, Poisson, Sample, Shuffled, Walk, make_topology, participants

N, ROUNDS = 6, 600
ANYBODY = make_topology("unrestricted", N)
RING = make_topology("ring", N)
EVERY = {
    "all": All(),
    "cyclic": Cyclic(),
    "shuffled": Shuffled(seed=4),
    "one": Sample(count=1, seed=4),
    "four": Sample(count=4, seed=4),
    "poisson": Poisson(probability=0.3, seed=4),
    "walk": Walk(seed=4),
}


@pytest.mark.parametrize("selection", EVERY.values(), ids=EVERY)
def test_tables_are_public_and_a_longer_one_begins_with_the_shorter(selection):
    table = selection.table(50, ANYBODY)
    assert table.shape == (50, N)
    assert table.dtype == bool
    assert not selection.secret
    np.testing.assert_array_equal(selection.table(50, ANYBODY), table)
    np.testing.assert_array_equal(selection.table(73, ANYBODY)[:50], table)


def test_everybody_and_turns_are_what_they_say():
    assert All().table(3, ANYBODY).all()
    assert np.nonzero(Cyclic().table(8, ANYBODY))[1].tolist() == [0, 1, 2, 3, 4, 5, 0, 1]
    assert Cyclic().table(8, ANYBODY).sum(axis=1).tolist() == [1] * 8


def test_shuffled_turns_visit_everybody_once_each_time_round_in_changing_order():
    table = Shuffled(seed=0).table(5 * N, ANYBODY)
    order = np.nonzero(table)[1].reshape(5, N)
    np.testing.assert_array_equal(np.sort(order, axis=1), np.tile(np.arange(N), (5, 1)))
    assert len({tuple(turn) for turn in order}) > 1


@given(st.integers(1, N), st.integers(0, 100))
def test_a_sample_has_that_many_different_parties_in_every_round(count, seed):
    assert (Sample(count=count, seed=seed).table(20, ANYBODY).sum(axis=1) == count).all()


@pytest.mark.parametrize("name", [name for name in EVERY if name not in ("all", "cyclic")])
def test_seeds_matter(name):
    selection = EVERY[name]
    settings = {**vars(selection), "seed": 5}
    assert (type(selection)(**settings).table(50, ANYBODY) != selection.table(50, ANYBODY)).any()


@pytest.mark.parametrize("name", ["one", "four", "poisson"])
def test_rates_are_the_stated_ones(name):
    """Rounds are independent here, so Hoeffding over 6 parties: a false alarm has probability <= 6 * 2e-6."""
    counts = EVERY[name].table(ROUNDS, ANYBODY).sum(axis=0)
    tolerance = np.sqrt(np.log(2 / 2e-6) / (2 * ROUNDS))
    np.testing.assert_allclose(counts / ROUNDS, EVERY[name].rate(N), atol=tolerance)


def test_the_rate_test_has_power():
    tolerance = np.sqrt(np.log(2 / 2e-6) / (2 * ROUNDS))
    for wrong in (0.3 - 2 * tolerance, 0.3 + 2 * tolerance):
        counts = Poisson(probability=wrong, seed=4).table(ROUNDS, ANYBODY).sum(axis=0)
        assert (np.abs(counts / ROUNDS - 0.3) > tolerance).any()


@pytest.mark.parametrize("name", ["all", "cyclic", "shuffled"])
def test_rates_without_chance_are_exact(name):
    counts = EVERY[name].table(ROUNDS, ANYBODY).sum(axis=0)
    np.testing.assert_allclose(counts / ROUNDS, EVERY[name].rate(N), rtol=1e-12)


def test_poisson_parties_are_independent():
    """Pairs work together at rate 0.09: exact binomial limits, 15 pairs, so a false alarm has chance <= 1.5e-5."""
    low, high = binom.ppf([5e-7, 1 - 5e-7], 2000, 0.09)

    def together(table):
        return (table.T.astype(int) @ table.astype(int))[np.triu_indices(N, 1)]

    table = Poisson(probability=0.3, seed=4).table(2000, ANYBODY)
    assert ((low <= together(table)) & (together(table) <= high)).all()
    # power: neighbours that share a coin
    half_the_coins = np.repeat(table[:, ::2], 2, axis=1)
    assert (together(half_the_coins) > high).any()


def test_a_certain_chance_is_everybody():
    assert Poisson(probability=1, seed=0).table(20, ANYBODY).all()


@given(st.integers(0, 50))
def test_a_walk_on_a_ring_moves_along_edges_only(seed):
    path = np.nonzero(Walk(seed=seed).table(40, RING))[1]
    assert len(path) == 40
    assert set(np.abs(np.diff(path)).tolist()) <= {1, N - 1}


def test_a_walk_on_a_ring_starts_anywhere_and_goes_both_ways_from_there():
    """300 walks miss one of the 12 first steps with probability <= 12 (11/12)^300 < 1e-10."""
    first_steps = {tuple(np.nonzero(Walk(seed=seed).table(2, RING))[1].tolist()) for seed in range(300)}
    assert first_steps == {(i, (i + way) % N) for i in range(N) for way in (1, -1)}


def test_where_everybody_can_be_reached_the_holder_may_keep_the_token():
    for topology in (ANYBODY, make_topology("complete", N)):
        path = np.nonzero(Walk(seed=1).table(200, topology))[1]
        # never: probability (5/6)^199 < 1e-15
        assert (np.diff(path) == 0).any()
    np.testing.assert_array_equal(Walk(seed=1).table(50, ANYBODY), Walk(seed=1).table(50, make_topology("complete", N)))


@pytest.mark.parametrize("topology", [ANYBODY, RING], ids=["anybody", "ring"])
def test_a_cap_silences_later_visits_and_changes_nothing_else(topology):
    free = Walk(seed=2).table(100, topology)
    capped = Walk(seed=2, most_visits=3).table(100, topology)
    assert capped.sum(axis=0).max() == 3
    for party in range(N):
        assert np.flatnonzero(capped[:, party]).tolist() == np.flatnonzero(free[:, party])[:3].tolist()


def test_one_party_always_works():
    alone = make_topology("unrestricted", 1)
    for selection in (All(), Cyclic(), Shuffled(seed=0), Sample(count=1, seed=0), Walk(seed=0)):
        assert selection.table(5, alone).all()


def test_a_secret_selection_is_drawn_from_the_given_numbers():
    secret = Poisson(probability=0.5, seed=None)
    assert secret.secret
    np.testing.assert_array_equal(
        secret.table(4, ANYBODY, np.random.default_rng(7).random), Poisson(probability=0.5, seed=7).table(4, ANYBODY)
    )
    assert Walk(seed=None).table(9, RING, np.random.default_rng(0).random).sum() == 9


@given(st.integers(1, 8), st.integers(1, 8), st.integers(0, 1000))
def test_participants_are_the_table_as_numbers(n_rounds, n, seed):
    table = np.random.default_rng(seed).random((n_rounds, n)) < 0.4
    numbers = participants(table)
    assert numbers.shape == (n_rounds, max(1, table.sum(axis=1).max()))
    for row, working in zip(numbers, table, strict=True):
        parties = np.flatnonzero(working).tolist()
        assert row.tolist() == parties + [n] * (len(row) - len(parties))


def test_without_rounds_there_are_no_participants():
    assert participants(np.zeros((0, 3), dtype=bool)).shape == (0, 1)


@pytest.mark.parametrize("kind", [Shuffled, Sample, Poisson, Walk])
def test_a_forgotten_seed_is_no_seed(kind):
    with pytest.raises(TypeError, match="seed"):
        kind()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Shuffled(seed=-1), "seed: got -1; an integer >= 0 is needed"),
        (lambda: Shuffled(seed=None), "seed: got None; an integer >= 0 is needed"),
        (lambda: Sample(count=1, seed=None), "seed: got None; an integer >= 0 is needed"),
        (lambda: Sample(count=1, seed=True), "seed: got True; an integer >= 0 is needed"),
        (lambda: Walk(seed=1.5), "seed: got 1.5; an integer >= 0, or None for a secret selection, is needed"),
        (lambda: Sample(count=0, seed=0), "count: got 0; an integer >= 1 is needed"),
        (lambda: Sample(count=2.0, seed=0), "count: got 2.0; an integer >= 1 is needed"),
        (lambda: Sample(count=7, seed=0).check(ANYBODY), "count: got 7; at most the 6 parties can be drawn"),
        (lambda: Sample(count=7, seed=0).table(3, ANYBODY), "count: got 7; at most the 6 parties can be drawn"),
        (lambda: Walk(seed=0, most_visits=0), "most_visits: got 0; an integer >= 1 is needed"),
        (lambda: Poisson(probability=0, seed=0), "probability: got 0; a number in (0, 1] is needed"),
        (lambda: Poisson(probability=1.1, seed=0), "probability: got 1.1; a number in (0, 1] is needed"),
        (lambda: Poisson(probability=float("nan"), seed=0), "probability: got nan; a number in (0, 1] is needed"),
        (
            lambda: Walk(seed=None).table(3, RING),
            "seed: got None; a secret selection exists only during a run",
        ),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(InputError, match="^" + re.escape(message)):
        call()


def test_messages_are_lost_late_or_there_as_often_as_was_said():
    """Each count is within 6 standard deviations, which chance exceeds about once in 10^8."""
    n_rounds, shares = 2000, {"lost": 0.2, "late": 0.1, "skipped": 0.3}
    delivery = Impairments(**shares, seed=3).deliveries(RING, n_rounds)
    lost = ~delivery.arrives & ~delivery.late
    for table, share in ((lost, 0.2), (delivery.late, 0.1), (delivery.arrives, 0.7), (delivery.speaks, 0.7)):
        assert abs(table.mean() - share) < 6 * (share * (1 - share) / table.size) ** 0.5
    assert not (delivery.arrives & delivery.late).any()
