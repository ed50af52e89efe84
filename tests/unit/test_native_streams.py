"""Streams in machine code are NumPy's own, bit for bit, and so is what is drawn from them."""

import subprocess
import sys

import numpy as np
import pytest

from coterie import native
from coterie.network.selection import Poisson
from coterie.network.topology import make_topology
from coterie.privacy import noise, seeded_streams
from coterie.privacy.noise import Seeded
from coterie.privacy.seeded_streams import machine_code, places_below, uniforms

pytest.importorskip("numba")

SEEDS = [0, 1, 2**32 - 1, 2**32, 2**64 + 5, 2**128 + 3, 2**200 + 7]


@pytest.fixture
def loaded(monkeypatch):
    monkeypatch.setattr(seeded_streams, "ENOUGH_KEYS", 1)


@pytest.fixture
def without(monkeypatch):
    monkeypatch.setattr(seeded_streams, "_streams", None)
    monkeypatch.setattr(native, "available", lambda: False)


def by_numpy(seed, key):
    sequence = np.random.SeedSequence(seed, spawn_key=tuple(int(word) for word in key))
    return np.random.Generator(np.random.PCG64(sequence))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("n_keys", "words", "count"), [(1, 1, 1), (5, 4, 7), (32, 3, 64), (67, 6, 3)])
def test_numbers_are_those_of_one_stream_for_each_key(loaded, seed, n_keys, words, count):
    keys = np.random.default_rng(0).integers(0, 2**32, size=(n_keys, words))
    keys[0] = 2**32 - 1
    assert machine_code(n_keys) is not None
    expected = np.stack([by_numpy(seed, key).random(count) for key in keys])
    assert np.array_equal(uniforms(seed, keys, count), expected)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("n_rows", "n"), [(1, 1), (5, 1000), (33, 40), (200, 7)])
@pytest.mark.parametrize("limit", [0.1, 0.5, 1.0, 2.0**-60])
def test_places_below_are_those_of_one_long_stream(seed, n_rows, n, limit, monkeypatch):
    monkeypatch.setattr(seeded_streams, "_NUMBERS_AT_ONCE", 64 * n)  # so that the stream is taken up again
    table = by_numpy(seed, [3]).random((n_rows, n)) < limit
    places, ends = places_below(seed, 3, limit, n_rows, n)
    assert np.array_equal(places, np.nonzero(table)[1])
    assert np.array_equal(ends, np.cumsum(table.sum(axis=1)))


def test_a_number_that_is_the_limit_is_not_below_it():
    limit = by_numpy(4, [0]).random(50)[20]
    assert 20 not in places_below(4, 0, limit, 1, 50)[0]
    assert 20 in places_below(4, 0, np.nextafter(limit, 1), 1, 50)[0]


def test_coins_below_are_who_a_poisson_selection_picks():
    selection, topology = Poisson(probability=0.3, seed=None), make_topology("unrestricted", 25)
    table = selection.table(70, topology, Seeded(6).coins(repeat=4))
    who, ends = Seeded(6).coins_below(0.3, 70, 25, repeat=4)
    assert np.array_equal(who, np.nonzero(table)[1])
    assert np.array_equal(ends, np.cumsum(table.sum(axis=1)))


@pytest.mark.parametrize("law", ["gaussian", "gamma-sphere", "discrete-gaussian"])
def test_draws_are_the_same_in_threads_and_without_numba(law, monkeypatch, request):
    keys = [(repeat, party, t) for repeat in range(3) for party in range(5) for t in range(4)]
    request.getfixturevalue("without")
    assert machine_code(10**9) is None
    plain = Seeded(5).draw_block(law, 6, keys, "output")
    monkeypatch.undo()
    monkeypatch.setattr(seeded_streams, "ENOUGH_KEYS", 1)
    monkeypatch.setattr(noise, "KEYS_AT_ONCE", 7)
    assert machine_code(1) is not None
    assert np.array_equal(Seeded(5).draw_block(law, 6, np.array(keys), "output"), plain)


def test_a_few_keys_do_not_load_numba(monkeypatch):
    monkeypatch.setattr(seeded_streams, "_streams", None)
    assert machine_code(seeded_streams.ENOUGH_KEYS - 1) is None
    assert machine_code(seeded_streams.ENOUGH_KEYS) is not None


def test_importing_the_engine_does_not_load_numba():
    program = "import sys, coterie.engines.in_process; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
