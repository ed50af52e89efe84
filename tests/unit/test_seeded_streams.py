"""Streams of many keys at once are NumPy's own, bit for bit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.privacy.noise import Seeded
from coterie.privacy.seeded_streams import uniforms

WORD = st.integers(0, 2**32 - 1)


def by_numpy(seed, key, count):
    sequence = np.random.SeedSequence(seed, spawn_key=tuple(int(word) for word in key))
    return np.random.Generator(np.random.PCG64(sequence)).random(count)


@given(
    seed=st.integers(0, 2**200),
    keys=st.lists(st.tuples(WORD, WORD, WORD, WORD), min_size=1, max_size=4),
    count=st.integers(1, 9),
)
def test_the_numbers_are_those_of_one_stream_for_each_key(seed, keys, count):
    expected = np.stack([by_numpy(seed, key, count) for key in keys])
    assert np.array_equal(uniforms(seed, np.array(keys), count), expected)


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1, 2**32, 2**64, 2**128 + 3])
def test_seeds_of_every_length(seed):
    assert np.array_equal(uniforms(seed, np.array([[7, 0, 1, 0]]), 5)[0], by_numpy(seed, (7, 0, 1, 0), 5))


def test_a_draw_does_not_depend_on_what_is_drawn_beside_it():
    keys = [(0, party, t) for party in range(3) for t in range(4)]
    together = Seeded(5).draw_block("gaussian", 6, keys, "release")
    for row, (repeat, party, t) in zip(together, keys, strict=True):
        assert np.array_equal(row, Seeded(5).draw("gaussian", 6, repeat=repeat, party=party, t=t))
