"""Draws on a grid have exactly the law of the rounded continuous draw, to the last digit anybody asks for.

A sampler is a function of a number U with unlimited bits. What U leads to which whole number is found by bisection over
256 bits of it and compared with mpmath: those edges are the sampler's law.
"""

import hashlib
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats

from coterie.privacy import noise
from coterie.privacy.noise import GAMMA_STEPS, STEPS

BITS = 256
DIGITS = 60


def from_bits(law, u, steps, **settings):
    """The draw that the number u / 2^BITS leads to."""
    word = np.array([[(u >> (BITS - 64)) - 2**63]], np.int64)
    rest = u & (2 ** (BITS - 64) - 1)

    def more(row, column, k):
        assert (row, column) == (0, 0)
        return rest if k == 0 else 0

    return law(word, more, steps, **settings)[0, 0]


def edge_of(n, steps, low, high):
    """The least u between these that leads beyond n."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if from_bits(noise.rounded_gaussian, middle, steps) <= n else (low, middle)
    return high


@pytest.fixture(params=["NumPy", "machine code"])
def arithmetic(request, monkeypatch):
    monkeypatch.setattr(noise, "numba_loaded", lambda: request.param == "machine code")


@pytest.mark.usefixtures("arithmetic")
@pytest.mark.parametrize("steps", [STEPS, 3.7, 2.0**26 / math.sqrt(5)])
@pytest.mark.parametrize("where", [-9.7, -8.3, -4.763, -1.44, -0.3, 0.0, 1.0, 4.77, 9.2, 12.0])
def test_the_edges_of_its_bins_are_those_of_the_normal_law_to_forty_digits(where, steps):
    """Centre, branches of the quantile, and tails beyond what 64 bits reach."""
    n = math.floor(where * steps)
    with mpmath.workprec(BITS + 100):
        exact = mpmath.ncdf((mpmath.mpf(n) + 0.5) / steps)
        start = int(mpmath.floor(exact * mpmath.mpf(2) ** BITS))
        found = edge_of(n, steps, max(start - 2**20, 0), min(start + 2**20, 2**BITS - 1))
        # as a probability of what lies beyond, so that digits of small tails count
        tail = exact if where < 0 else 1 - exact
        ours = mpmath.mpf(found) / mpmath.mpf(2) ** BITS
        ours = ours if where < 0 else 1 - ours
        assert abs(ours / tail - 1) < mpmath.mpf(10) ** -40


def test_machine_code_draws_the_same_numbers_and_doubts_no_fewer(monkeypatch):
    """Both decide exactly, so they cannot differ; what either is unsure of it says."""
    words = np.random.default_rng(5).integers(-(2**63), 2**63 - 1, (500, 64), np.int64)
    drawn = {}
    for machine_code in (False, True):
        monkeypatch.setattr(noise, "numba_loaded", lambda chosen=machine_code: chosen)
        drawn[machine_code] = noise.rounded_gaussian(words, lambda *place: hash(place) % 2**192)
    np.testing.assert_array_equal(drawn[True], drawn[False])

    # a fifth of all numbers are that near to an edge
    out, edge = np.empty(words.size), 0.4
    found = [rounds(words.reshape(-1), STEPS, edge, out) for rounds in (noise._round, noise._round_natively)]
    assert found[0] == found[1]
    assert len(found[0]) == pytest.approx(0.2 * words.size, rel=0.1)


def test_nothing_stops_in_the_tails():
    """All bits zero lead to the end of what 256 bits can tell, beyond 18 standard deviations, on both sides."""
    for u, sign in ((1, -1), (2**BITS - 2, 1)):
        found = from_bits(noise.rounded_gaussian, u, STEPS)
        with mpmath.workprec(BITS + 100):
            exact = sign * -mpmath.sqrt(2) * mpmath.erfinv(2 * mpmath.mpf(2) ** (1 - BITS) - 1)
        assert abs(found / STEPS - float(exact)) < 0.1
        assert sign * found > 18 * STEPS


def words(rng, *shape):
    return rng.integers(-(2**63), 2**63 - 1, size=shape, dtype=np.int64, endpoint=True)


def hashed_more(rng):
    salt = int(rng.integers(2**62))
    return lambda row, column, k: hash_bits((salt, row, column, k))


def hash_bits(key):
    return int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=24).digest(), "little")


@pytest.mark.parametrize("law", ["rounded_gaussian", "rounded_gamma_sphere"])
def test_fast_draws_are_those_of_arbitrary_precision(law, monkeypatch):
    """Every draw of a thousand is decided again with all its bits."""
    rng = np.random.default_rng(3)
    many, more = words(rng, 250, 4), hashed_more(rng)
    fast = getattr(noise, law)(many, more)
    if law == "rounded_gaussian":
        exact = [[noise._rounded_exactly(noise._Number(many, i, j, more), STEPS) for j in range(4)] for i in range(250)]
    else:
        exact = [noise._rounded_gamma_exactly(many, row, more, GAMMA_STEPS) for row in range(250)]
    np.testing.assert_array_equal(fast, exact)


def test_doubtful_draws_are_noticed():
    """Words whose numbers lie on an edge, within what the word leaves open: the next bits decide."""
    for n in (0, 12345, -(2**25), 3 * 2**26):
        with mpmath.workprec(400):
            edge = mpmath.ncdf((mpmath.mpf(n) + 0.5) / STEPS)
            word = int(mpmath.floor(edge * 2**64))
        both = [from_bits(noise.rounded_gaussian, (word << 192) + rest, STEPS) for rest in (0, 2**192 - 1)]
        assert both == [n, n + 1]


def test_a_small_coordinate_of_a_long_gamma_vector_is_rounded_as_it_should_be():
    """A coordinate of a direction near 0 is off by what its word leaves open, which a long vector stretches: words in
    which an edge lies, and at both of their ends."""
    rng, d = np.random.default_rng(1), 400
    for trial in range(16):
        many, more = words(rng, 1, 2 * d), [lambda *place: 0, lambda *place: 2**192 - 1][trial % 2]
        numbers = [noise._Number(many, 0, column, more) for column in range(2 * d)]
        others = [noise._normal(number, 256) for number in numbers[1:d]]
        with mpmath.workprec(400):
            norm = -mpmath.fsum(mpmath.log(number.uniform(256)) for number in numbers[d:])
            length = mpmath.sqrt(mpmath.fsum(z * z for z in others))
            # but for the coordinate's own share of the length, which is far less than a word
            edge = (trial % 3 + 0.5) * length / (GAMMA_STEPS * norm)
            many[0, 0] = int(mpmath.floor(mpmath.ldexp(mpmath.ncdf(edge), 64))) - 2**63
        exact = noise._rounded_gamma_exactly(many, 0, more, GAMMA_STEPS)
        np.testing.assert_array_equal(noise.rounded_gamma_sphere(many, more)[0], exact)


def test_rounded_gaussians_follow_their_law():
    """400,000 seeded draws with 2 steps a deviation, cell by cell: chi-square at 1e-4; a deviation off by 1 % fails."""
    rng = np.random.default_rng(8)
    found = noise.rounded_gaussian(words(rng, 400, 1000), hashed_more(rng), 2.0).ravel()
    for factor, accepted in ((1.0, True), (0.99, False), (1.01, False)):
        edges = np.arange(-7.5, 8.5)
        inner = np.diff(stats.norm.cdf(edges / (2.0 * factor)))
        expected = np.array([1 - inner.sum(), *inner]) * found.size
        counts = np.histogram(found, edges)[0]
        observed = np.array([found.size - counts.sum(), *counts])
        assert (stats.chisquare(observed, expected).pvalue > 1e-4) == accepted


@pytest.mark.parametrize("steps", [1.0, 1.7, 4.0])
def test_discrete_gaussians_follow_their_law(steps):
    """Chi-square at 1e-4, of 10,000 seeded draws; the rounded Gaussian they are made from is refused at one step a
    deviation, where the two laws differ most."""
    rng = np.random.default_rng(11)
    found = noise.discrete_gaussian(words(rng, 100, 200), hashed_more(rng), steps).ravel()
    n = np.arange(-int(6 * steps), int(6 * steps) + 1)
    weights = np.exp(-(n**2) / (2 * steps**2))
    expected = weights / weights.sum() * found.size
    counts = np.array([(found == k).sum() for k in n])
    keep = expected > 5
    keep_counts = np.array([*counts[keep], found.size - counts[keep].sum()])
    keep_expected = np.array([*expected[keep], found.size - expected[keep].sum()])
    assert stats.chisquare(keep_counts, keep_expected).pvalue > 1e-4
    if steps == 1.0:
        rounded = noise.rounded_gaussian(words(rng, 100, 100), hashed_more(rng), steps).ravel()
        counts = np.array([(rounded == k).sum() for k in n])
        keep_counts = np.array([*counts[keep], rounded.size - counts[keep].sum()])
        assert stats.chisquare(keep_counts, keep_expected).pvalue < 1e-4


def test_the_chance_to_keep_a_proposal_is_what_makes_it_discrete():
    """c(0)/c(n) times the rounded Gaussian's probability is proportional to exp(-n^2/2s^2), to 40 digits."""
    steps = 3.0
    with mpmath.workprec(300):
        ratios = []
        for n in (0, 1, 5, 30):
            low, high = 0, 2**BITS
            # of coins that keep n
            while high - low > 1:
                middle = (low + high) // 2
                coin = noise._Number(np.array([[(middle >> 192) - 2**63]]), 0, 0, _rest(middle))
                low, high = (middle, high) if noise._is_kept(coin, n, steps) else (low, middle)
            kept = mpmath.mpf(high) / mpmath.mpf(2) ** BITS
            rounded = mpmath.ncdf((n + mpmath.mpf(0.5)) / steps) - mpmath.ncdf((n - mpmath.mpf(0.5)) / steps)
            ratios.append(kept * rounded / mpmath.exp(-(mpmath.mpf(n) ** 2) / (2 * mpmath.mpf(steps) ** 2)))
        assert all(abs(ratio / ratios[0] - 1) < mpmath.mpf(10) ** -40 for ratio in ratios)


def _rest(u):
    return lambda row, column, k: u & (2**192 - 1) if k == 0 else 0


def test_a_number_after_another_asks_for_bits_of_its_own():
    asked = []
    number = noise._Number(np.zeros((1, 1), np.int64), 0, 0, lambda row, column, k: asked.append(k) or 1)
    for _ in range(3):
        number.extend()
        number.extend()
        number = number.another()
        assert (number.bits, number.known) == (0, 0)
    assert asked == [0, 1, 2**20, 2**20 + 1, 2**21, 2**21 + 1]


def test_unrounded_draws_are_as_near_as_they_say():
    rng = np.random.default_rng(5)
    many, more = words(rng, 40, 12), hashed_more(rng)
    # far out: completed
    many[0, 0], many[0, 7], many[1, 7] = -(2**63) + 5, 2**63 - 3, -(2**63) + 5
    normal, gamma = noise.gaussian(many, more), noise.gamma_sphere(many, more)
    for row in range(40):
        exact = [float(noise._normal(noise._Number(many, row, j, more), 256)) for j in range(12)]
        assert np.abs(normal[row] - exact).max() <= noise.NORMAL_ERROR
        fine = noise._rounded_gamma_exactly(many, row, more, 2.0**60) / 2.0**60
        allowed = noise.GAMMA_ERROR * (np.linalg.norm(fine) + 6)
        assert np.linalg.norm(gamma[row] - fine) <= allowed
    assert abs(normal[0, 0]) > 8.8
    assert abs(normal[0, 7]) > 8.8


@pytest.mark.parametrize("largest", [2**48, 2**43, 2**39, 2**20, 4])
def test_a_gamma_vector_with_a_short_direction_is_as_near_as_it_says(largest):
    """Both normals near 0, where they are off by as much as farther out: once in 2^40 draws, not in 2^80."""
    rng = np.random.default_rng(6)
    many, more = words(rng, 20, 4), hashed_more(rng)
    many[:, :2] = rng.integers(-largest, largest, size=(20, 2))
    gamma = noise.gamma_sphere(many, more)
    for row in range(20):
        fine = noise._rounded_gamma_exactly(many, row, more, 2.0**60) / 2.0**60
        assert np.linalg.norm(gamma[row] - fine) <= noise.GAMMA_ERROR * (np.linalg.norm(fine) + 2)


@pytest.mark.parametrize("parties", [(0, 2), (0, 1, 5), tuple(range(20)), (3, 3, 4, 9, 10, 11)])
@pytest.mark.parametrize("purpose", ["release", "output"])
def test_draws_of_many_are_those_of_each_alone_and_no_two_alike(parties, purpose):
    source = noise.Seeded(7)
    keys = [(k % 2, party, 4 - k % 3) for k, party in enumerate(parties)]
    together = source.draw_block("gaussian", 3, keys, purpose)
    for key, row in zip(keys, together, strict=True):
        np.testing.assert_array_equal(source.draw_block("gaussian", 3, [key], purpose)[0], row)
    assert len(np.unique(together)) == together.size


def test_no_two_purposes_have_one_number():
    assert len(set(noise._PURPOSE.values())) == len(noise._PURPOSE)


# --- noise that a run can draw again --------------------------------------------------------------------------------

# repeat, party and round: every byte of each, and none that could be taken for another
PLACES = [
    (0, 0, 0),
    *[tuple(1 << 8 * k if i == j else 0 for j in range(3)) for i in range(3) for k in range(4 - (i < 1))],
]
PLACES += [(2**24 - 1, 2**32 - 1, 2**32 - 1), (1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2)]


def streams(key):
    """Words of every place and purpose, and of coins, as one table."""
    source, table = noise.KeyedEntropy(key), np.array(PLACES)
    drawn = [source._words(table, purpose, 40, 1) for purpose in noise._PURPOSE if purpose != "coins"]
    coins = [source._stream(repeat, 0, 0, noise._PURPOSE["coins"])(40) for repeat in (0, 1, 256, 65536)]
    return np.concatenate([*drawn, np.stack(coins)])


def test_under_a_key_every_draw_has_a_stream_of_its_own_and_again_the_same_one():
    """Two draws that shared a word would leave a difference without noise."""
    found, other = streams(bytes(32)), streams(bytes(31) + b"1")
    together = np.concatenate([found, other])
    assert len(np.unique(together)) == together.size
    np.testing.assert_array_equal(streams(bytes(32)), found)
    made = [noise.KeyedEntropy() for _ in range(2)]
    assert len({source.key for source in made}) == 2
    assert all(len(source.key) == 32 and source.key.hex() not in repr(source) for source in made)


@pytest.mark.parametrize("place", [(2**24, 0, 0), (0, 2**32, 0), (0, 0, 2**32), (-1, 0, 0)])
def test_a_place_without_a_stream_of_its_own_has_none(place):
    with pytest.raises(OverflowError):
        noise.KeyedEntropy().draw_block("gaussian", 3, [place], "release")


def test_what_a_number_asks_for_under_a_key_is_its_own():
    """Of 24 bytes each, whatever row of whatever table it is in."""
    sources = [noise.KeyedEntropy(bytes(32)), noise.KeyedEntropy(bytes(31) + b"1"), noise.Seeded(0), noise.Seeded(1)]
    asked = [
        source._more(np.array(PLACES), purpose)(row, column, k)
        for source in sources
        for purpose in ("release", "output")
        for row in range(len(PLACES))
        for column in (0, 1, 11)
        for k in (0, 1, 2**20)
    ]
    assert len(set(asked)) == len(asked)
    assert 2**184 < max(asked) < 2**192
    again = noise.KeyedEntropy(bytes(32))._more(np.array(PLACES[3:]), "release")
    assert again(0, 1, 2) == sources[0]._more(np.array(PLACES), "release")(3, 1, 2)


def test_the_systems_entropy_tells_more_of_a_number_once():
    """A gamma vector that is too near an edge is rounded again, from bits that were asked for before."""
    source = noise.SystemEntropy()
    more, other = (source._more(np.array(PLACES), "release") for _ in range(2))
    first = {place: more(*place) for place in [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)]}
    assert {place: more(*place) for place in first} == first
    assert len({*first.values(), *(other(*place) for place in first)}) == 2 * len(first)


def test_under_a_key_draws_are_normal_and_so_are_those_of_rows_that_are_alone():
    source, keys = noise.KeyedEntropy(bytes(32)), [(0, party, t) for party in range(20) for t in range(50)]
    found = source.draw_block("gaussian", 20, keys, "release")
    assert stats.kstest(found.ravel(), stats.norm.cdf).pvalue > 1e-4
    assert stats.kstest(1.1 * found.ravel(), stats.norm.cdf).pvalue < 1e-4
    np.testing.assert_array_equal(source.draw("gaussian", 20, repeat=0, party=3, t=7), found[keys.index((0, 3, 7))])
    assert source.draw_block("gaussian", 20, [], "release").shape == (0, 20)
    steps = source.whole_steps(20, keys, 3.7)
    assert (steps == np.rint(steps)).all()
    assert abs(np.std(steps) / math.sqrt(3.7**2 + 1 / 12) - 1) < 0.03


@pytest.mark.parametrize("d", [1, 7, 105])
def test_gamma_norms_beyond_the_stated_one_are_as_rare_as_stated(d):
    assert stats.gamma(d).sf(noise.largest_gamma(d)) <= noise.GAMMA_TAIL <= 2.0**-80


@pytest.mark.parametrize("rate", [1e-6, 0.1, 0.25, 0.5, 0.7, 255.5 / 256, 1 - 1e-9])
def test_coins_show_heads_alike_in_numpy_and_in_machine_code(rate, monkeypatch):
    coins = np.random.default_rng(3).integers(0, 256, size=20_003).astype(np.uint8)
    whole, rest = divmod(rate * 256, 1)
    later = np.random.default_rng(4).random(np.count_nonzero(coins == whole))
    found = {}
    for native in (False, True):
        monkeypatch.setattr(noise, "numba_loaded", lambda native=native: native)
        found[native] = noise.heads(coins, rate, lambda size: later[:size]).tolist()
    assert found[True] == found[False]
    # a coin and its later bits are the first digits of one number, to base 256
    number = coins.astype(float)
    number[coins == whole] += later
    assert found[True] == np.flatnonzero(number < rate * 256).tolist()
    assert len(later) > 10 or not rest


@pytest.mark.parametrize("rate", [0.3, 1 / 256, 0.999, 1e-3, 3e-15, 2.0**-60, 2.0**-61, 1e-18, 1e-25])
def test_coins_show_heads_no_more_often_than_their_rate_and_hardly_less(rate, arithmetic):
    """Exactly: how many bytes show heads at once, and how many of the 2^53 numbers of a byte that ties."""
    coins = np.arange(256, dtype=np.uint8)

    def shown(number):
        return len(noise.heads(coins, rate, lambda size: np.full(size, number * 2.0**-53)))

    whole, rest = divmod(Fraction(rate) * 256, 1)
    tied = math.floor(rest * 2**53)
    assert shown(2**53 - 1) == whole
    assert tied == 0 or shown(tied - 1) == whole + 1
    assert shown(tied) == whole
    assert 0 <= Fraction(rate) - (whole * 2**53 + tied) / Fraction(2**61) < Fraction(1, 2**61)
