"""Partitions: who gets which rows."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.data import partition
from coterie.errors import InputError


def test_evenly_is_the_seeded_permutation_cut_into_pieces():
    parties = partition.evenly(40_000, 7, seed=0)
    for party, rows in enumerate(np.array_split(np.random.default_rng(0).permutation(40_000), 7)):
        np.testing.assert_array_equal(np.flatnonzero(parties == party), np.sort(rows))


def test_a_generator_serves_as_seed():
    drawn = partition.evenly(50, 3, seed=np.random.default_rng(4))
    np.testing.assert_array_equal(drawn, partition.evenly(50, 3, seed=4))
    assert (drawn != partition.evenly(50, 3, seed=5)).any()


def test_unevenly_follows_the_shares():
    sizes = np.bincount(partition.unevenly(1000, [6, 3, 1], seed=1))
    np.testing.assert_array_equal(sizes, [600, 300, 100])


@given(
    shares=st.lists(st.floats(1e-12, 1e308), min_size=1, max_size=8),
    extra=st.integers(0, 40),
)
def test_unevenly_deals_every_record_and_leaves_no_party_empty(shares, extra):
    n_records = len(shares) + extra
    sizes = np.bincount(partition.unevenly(n_records, shares, seed=0), minlength=len(shares))
    assert sizes.sum() == n_records
    assert len(sizes) == len(shares)
    assert sizes.min() >= 1


@given(
    n_parties=st.integers(1, 9),
    min_records=st.integers(1, 4),
    extra=st.integers(0, 30),
    concentration=st.floats(1e-6, 1e6),
    seed=st.integers(0, 99),
)
def test_dirichlet_deals_enough_to_everyone_and_repeats(n_parties, min_records, extra, concentration, seed):
    y = np.arange(n_parties * min_records + extra) % 3
    settings = {"concentration": concentration, "seed": seed, "min_records": min_records}
    parties = partition.dirichlet(y, n_parties, **settings)
    sizes = np.bincount(parties, minlength=n_parties)
    assert (len(sizes), sizes.sum()) == (n_parties, len(y))
    assert sizes.min() >= min_records
    np.testing.assert_array_equal(parties, partition.dirichlet(y, n_parties, **settings))


def test_dirichlet_concentration_sets_the_label_skew():
    y = np.repeat(["no", "yes"], 5000)

    def spread(concentration):
        parties = partition.dirichlet(y, 5, concentration=concentration, seed=0)
        return np.ptp([np.mean(y[parties == party] == "yes") for party in range(5)])

    assert spread(1000.0) < 0.1
    assert spread(0.1) > 0.5


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: partition.evenly(3, 4, seed=0), "n_parties: got 4 for 3 records"),
        (lambda: partition.evenly(0, 1, seed=0), "n_records: got 0;"),
        (lambda: partition.evenly(9, 2.5, seed=0), "n_parties: got 2.5;"),
        (lambda: partition.evenly(9, 2, seed=-1), "seed: got -1;"),
        (lambda: partition.evenly(9, 2, seed=None), "seed: got None;"),
        (lambda: partition.unevenly(9, [1, 0], seed=0), "shares[1]: got 0;"),
        (lambda: partition.unevenly(9, [], seed=0), "shares: got [];"),
        (lambda: partition.unevenly(9, 3, seed=0), "shares: got 3;"),
        (lambda: partition.unevenly(1, [1, 1], seed=0), "n_parties: got 2 for 1 records"),
        (lambda: partition.dirichlet([0, 1], 1, concentration=0, seed=0), "concentration: got 0;"),
        (lambda: partition.dirichlet([0, 1], 1, concentration=1e9, seed=0), "concentration: got 1000000000.0;"),
        (lambda: partition.dirichlet([0, np.nan], 1, concentration=1, seed=0), "y: row 1 is nan"),
        (lambda: partition.dirichlet([0, 1, 1], 2, concentration=1, seed=0), "n_parties: got 2; 3 records cannot"),
        (lambda: partition.dirichlet([0, 1], 1, concentration=1, seed=0, min_records=0), "min_records: got 0;"),
    ],
)
def test_refusals_name_the_argument_and_the_value(call, sentence):
    with pytest.raises(InputError, match="^" + re.escape(sentence)):
        call()
