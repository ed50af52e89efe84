"""The normal quantile: its error is proved in ball arithmetic (Arb, through python-flint), not sampled.

On each branch the ratio of polynomials R approximates z = Phi^-1, in the branch's own variable. With
h = Phi(R) - Phi(z) known in terms of that variable, |R - z| <= |h| / phi beyond the smaller of the two. h is bounded on
small intervals by its Taylor polynomial around the middle and the enclosure of its next coefficient over all of the
interval: Lagrange's remainder, with every rounding accounted for.
"""

import itertools

import mpmath
import numpy as np
import pytest
from flint import arb, arb_series, ctx

from coterie.native import as241
from coterie.privacy import noise

UNIT = 2.0**-53
# relative, of the ratios themselves
CLAIMED = 4 * UNIT
ORDER = 14


@pytest.fixture(autouse=True)
def _precision():
    before = ctx.prec, ctx.cap
    ctx.prec, ctx.cap = 256, ORDER + 1
    yield
    ctx.prec, ctx.cap = before


def ratio(coefficients, x):
    above, below = (sum_of(part, x) for part in coefficients)
    return above / below


def sum_of(coefficients, x):
    """The doubles that the package uses, as exact numbers."""
    total = arb(coefficients[0])
    for c in coefficients[1:]:
        total = total * x + arb(c)
    return total


def cumulative(x):
    return (-x / arb(2).sqrt()).erfc() / 2


def enclosed(function, low, high):
    """An upper bound of |function| on [low, high]."""
    middle, half = (arb(low) + arb(high)) / 2, (arb(high) - arb(low)) / 2
    near = function(arb_series([middle, 1]))
    whole = function(arb_series([middle + arb(0, 1) * half, 1]))
    bound = sum((abs(near[k]) * half**k for k in range(ORDER)), arb(0)) + abs(whole[ORDER]) * half**ORDER
    return bound.abs_upper()


def density(x):
    return (-(x * x) / 2).exp() / (2 * arb.pi()).sqrt()


def test_the_centre():
    """z = q A(r)/B(r), r = 0.180625 - q^2, 0 <= q <= 0.425; h/q is what is small everywhere."""
    shift, edges = arb(as241.CENTRE_SHIFT), np.linspace(0, as241.CENTRE_LIMIT, 257)

    def z_over_q(q):
        return ratio(as241.CENTRE, shift - q * q)

    for low, high in itertools.pairwise(edges):
        error = enclosed(lambda q: cumulative(q * z_over_q(q)) - arb(0.5) - q, low, high)
        top = arb(high) * z_over_q(arb(high))
        # where q is 0 so is h: there the bound is on h' instead
        if low == 0:
            slope = enclosed(lambda q: (cumulative(q * z_over_q(q)) - arb(0.5) - q).derivative(), low, high)
            # z >= 2.5 q
            relative = slope / density(top) / arb(2.5)
        else:
            relative = error / density(top) / (arb(low) * z_over_q(arb(low)))
        assert relative < CLAIMED, (low, float(relative / UNIT))


@pytest.mark.parametrize(
    ("coefficients", "shift", "low", "high"),
    [
        (as241.MIDDLE, as241.MIDDLE_SHIFT, 1.6, as241.MIDDLE_LIMIT),
        # exp(-6.7^2) < 2^-64
        (as241.OUTER, as241.MIDDLE_LIMIT, as241.MIDDLE_LIMIT, 6.7),
    ],
    ids=["middle", "outer"],
)
def test_the_tails(coefficients, shift, low, high):
    """z = C(r - s)/D(r - s), r = sqrt(-ln p): Phi(-z)/p - 1 is bounded, and z is off by at most that times p/phi(z) <=
    1/z."""
    edges = np.linspace(low, high, 129)
    for a, b in itertools.pairwise(edges):
        error = enclosed(lambda r: cumulative(-ratio(coefficients, r - arb(shift))) * (r * r).exp() - 1, a, b)
        z = ratio(coefficients, arb(a) - arb(shift))
        relative = error * arb(1.0001) / z**2
        assert relative < CLAIMED, (a, float(relative / UNIT))


def test_computed_values_keep_the_whole_bound():
    """What the analysis leaves to arithmetic, tried: random words, and words on either side of every branch."""
    rng = np.random.default_rng(0)
    words = rng.integers(-(2**63), 2**63 - 1, size=4000, dtype=np.int64, endpoint=True)
    places = [0, 1, 2, 2**10, int(0.425 * 2**64), 2**63 - 2**44, 2**63 - 2**45, int(2**63 - np.exp(-25.0) * 2**64)]
    near = np.array([sign * p + k for p in places for sign in (-1, 1) for k in range(-2, 3)], dtype=object)
    words = np.concatenate([words, np.clip(near, -(2**63) + 2**44, 2**63 - 2**44 - 1).astype(np.int64)])
    found = noise.quantile(words[None])[0]
    ctx.prec = 200
    worst = 0.0
    for word, z in zip(words.tolist(), found.tolist(), strict=True):
        # both ends of what the word leaves open
        for end in (word, word + 1):
            exact = _exact(end)
            allowed = arb(noise.QUANTILE_ERROR) * abs(exact) + arb(2) ** -62
            assert abs(arb(z) - exact) < allowed, (word, z)
            worst = max(worst, float((abs(arb(z) - exact) / allowed).mid()))
    # and the bound is one: a tenth of it would not hold everywhere
    assert worst > 0.02


def _exact(end):
    """Phi^-1(1/2 + end 2^-64)."""
    return arb(2).sqrt() * (2 * arb(end) / arb(2) ** 64).erfinv()


@pytest.mark.parametrize("bits", [100, 150, 300, 1200])
@pytest.mark.parametrize("p", ["0.5", "0.3", "0.999", "1e-20", "1e-310", "1e-5000"])
def test_in_doubt_it_is_exact_to_as_many_bits_as_are_asked_for(p, bits):
    """A step that only doubled the digits would end too early, for the last one is taken to treble them."""
    mp = mpmath.MPContext()
    mp.prec = bits
    at = mp.mpf(p)
    found = noise._inverse(mp, at)
    # z from its own probability, to twice the bits: |z - found| <= |Phi(found) - p| / phi(found), but for its square
    mp.prec = 2 * bits + 40
    off = abs(mp.erfc(-found / mp.sqrt(2)) / 2 - at) / (mp.exp(-(found**2) / 2) / mp.sqrt(2 * mp.pi))
    assert off <= mp.ldexp(1 + abs(found), 8 - bits)
