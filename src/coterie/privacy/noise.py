"""Unit noise, drawn on the host: the same numbers whatever engine runs the plan.

Laws: "gaussian" is N(0, I); "gamma-sphere" has density proportional to exp(-|b|_2): a uniform direction and a norm
that is Gamma(d, 1). (A norm drawn from Exp(1) is right for d = 1 only.) Inside an objective they are used as doubles,
whose distance from exact draws is bounded and paid for. On a value that is released, "rounded-gaussian" and
"rounded-gamma-sphere" are used: whole numbers of steps, of which STEPS or GAMMA_STEPS make one unit, with exactly the
law of the rounded continuous draw. "discrete-gaussian" has probabilities proportional to those of the normal density at
whole numbers of steps. Sources differ in where their words of entropy come from.

From words of entropy to noise whose law is exact: rounded Gaussians, rounded gamma vectors, discrete Gaussians.

A word of 64 random bits is the beginning of a number U that is uniform on [0, 1) and has as many more bits as anybody
asks for. A draw is a function of such numbers. It is computed in double precision with a proved error; only where that
error, or bits that were not drawn yet, could change the result are more bits drawn and the same function is computed in
arbitrary precision. What comes out has therefore exactly the law of the function of continuous numbers:

    rounded Gaussian   round(S Z), Z = Phi^-1(U)                                                 S = STEPS
    rounded gamma      round(S' R V / |V|), R ~ Gamma(d, 1) a sum of exponentials, V ~ N(0, I)    S' = GAMMA_STEPS

*The error of Phi^-1.* `quantile` is Wichura's AS 241 (Applied Statistics 37, 1988), three ratios of polynomials with
positive coefficients and arguments. With u = 2^-53: the ratios are within 4u of Phi^-1, relatively (proved in ball
arithmetic by tests/golden/test_quantile.py); a Horner scheme of degree 7 with positive terms has a relative error of at
most 14u, so two of them, their quotient and the product with q have 30u; the argument (a difference whose terms are at
most 0.19, or the root of a logarithm, which NumPy gives within 4 units in the last place) adds at most 24u. What the
first 64 bits leave open of U moves Z by less than 2^-64 / phi(Z), which is below 23u |Z| while the smaller of U and
1 - U is at least 2^-20; numbers further out are completed in arbitrary precision. Together less than 96u, so

    |computed - Z| <= 2^-46 |Z| + 2^-62                                                    (QUANTILE_ERROR)

the absolute part for the halves of units that are lost where Z is near 0. It is written by hand because a bound that is
relied on must not change with a library's next release.
"""

import copy
import dataclasses
import functools
import hashlib
import math
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from statistics import NormalDist
from typing import Any, Literal, Protocol, cast

import numpy as np

from coterie.errors import InputError
from coterie.machine import numba_loaded, on_cores
from coterie.native import as241
from coterie.values import whole_number

# the grid of Gaussian noise, in steps per standard deviation: so fine that a price of sqrt(d)/STEPS is not noticed, so
# coarse that one draw in a million touches an edge
STEPS = 2.0**26
# of gamma noise, in steps per 1/rate: its coordinates come with the errors of all of them
GAMMA_STEPS = 2.0**22
QUANTILE_ERROR = 2.0**-46
_NEAR_ZERO = 2.0**-62
# |computed - exact| of one number of an unrounded Gaussian draw; those beyond 4.77 are completed
NORMAL_ERROR = 2.0**-43
# of an unrounded gamma vector, over its norm plus its number of coordinates
GAMMA_ERROR = 2.0**-44

# a gamma norm exceeds `largest_gamma` with a chance of at most this: up to it an unrounded vector's error is bounded
GAMMA_TAIL = 2.0**-80
_UNIT = 2.0**-53
# a U or 1 - U below this is completed
_SMALL = 2.0**-20
# and so is the size of its quantile, 4.763, with room for its error
_FAR = 4.76
# and so is a direction this short, over the root of its number of coordinates: _NEAR_ZERO would be too much of it
_SHORT = 2.0**-14
_SIGN = np.int64(-(2**63))
_MORE_BITS = 192
# how often a number may ask before the bits of the next one begin
_OTHERS = 2**20
# numbers worked on at a time: they stay in a core's cache
_AT_ONCE = 2**15

# (row, column, how often it was asked before) -> the next _MORE_BITS bits of the number that began there
More = Callable[[int, int, int], int]


def largest_gamma(d: int) -> float:
    """x with P[Gamma(d, 1) > x] <= GAMMA_TAIL = exp(-t): d + sqrt(2 d t) + t (Laurent & Massart, 2000)."""
    t = -math.log(GAMMA_TAIL)
    return d + math.sqrt(2 * d * t) + t


def quantile(words: np.ndarray) -> np.ndarray:
    """Phi^-1(1/2 + w 2^-64) of words w, int64; not for those that are too far out."""
    out = np.empty(words.shape)
    flat, result = words.reshape(-1), out.reshape(-1)
    for start in range(0, flat.size, _AT_ONCE):
        _quantile(flat[start : start + _AT_ONCE], result[start : start + _AT_ONCE])
    return out


def _quantile(words: np.ndarray, out: np.ndarray) -> None:
    q = words.astype(float)
    q += 0.5
    q *= 2.0**-64
    r = q * q
    np.subtract(as241.CENTRE_SHIFT, r, out=r)
    tails = np.flatnonzero(r < 0)
    r[tails] = 0.0
    _ratio(as241.CENTRE, r, out)
    out *= q
    if len(tails):
        r = np.sqrt(-np.log(_distance(words[tails]) * 2.0**-64))
        size = np.empty_like(r)
        _ratio(as241.MIDDLE, r - as241.MIDDLE_SHIFT, size)
        outer = np.flatnonzero(r > as241.MIDDLE_LIMIT)
        beyond = np.empty(len(outer))
        _ratio(as241.OUTER, r[outer] - as241.MIDDLE_LIMIT, beyond)
        size[outer] = beyond
        out[tails] = np.copysign(size, q[tails])


def _ratio(coefficients: Any, x: np.ndarray, out: np.ndarray) -> None:
    """The quotient of two polynomials, by Horner's scheme."""
    above, below = coefficients
    np.multiply(x, above[0], out=out)
    under = x * below[0]
    for a, b in zip(above[1:-1], below[1:-1], strict=True):
        out += a
        out *= x
        under += b
        under *= x
    out += above[-1]
    under += below[-1]
    out /= under


def _distance(words: np.ndarray) -> np.ndarray:
    """The smaller of U and 1 - U in units of 2^-64, to the middle of what the word leaves open."""
    # w, or -1 - w where it is not negative
    below_half = words ^ ~(words >> np.int64(63))
    return (below_half ^ _SIGN).astype(float) + 0.5


# --- laws -------------------------------------------------------------------------------------------------------------


def gaussian(words: np.ndarray, more: More) -> np.ndarray:
    """Standard normals within NORMAL_ERROR, from words (row, column)."""
    z = quantile(words)
    for row, column in np.argwhere(np.abs(z) > _FAR).tolist():
        z[row, column] = float(_normal(_Number(words, row, column, more), 2 * _MORE_BITS))
    return z


def rounded_gaussian(words: np.ndarray, more: More, steps: float = STEPS) -> np.ndarray:
    """round(steps Z), exactly."""
    out = np.empty(words.shape)
    flat, result = words.reshape(-1), out.reshape(-1)
    # the nearest edge of a bin is 1/2 - |x - round x| away
    edge = 0.5 - steps * _NEAR_ZERO - 2 * QUANTILE_ERROR
    doubtful = (_round_natively if numba_loaded() else _round)(flat, steps, edge, result)
    columns = words.shape[1]
    for place in doubtful:
        result[place] = _rounded_exactly(_Number(words, *divmod(place, columns), more), steps)
    return out


def _round_natively(words: np.ndarray, steps: float, edge: float, out: np.ndarray) -> list[int]:
    from coterie.native import draws

    doubtful = np.empty(words.size + 1, np.int64)
    n_doubtful = draws.round_gaussians(words, steps, QUANTILE_ERROR, edge, _FAR * steps, out, doubtful)
    return doubtful[:n_doubtful].tolist()


def _round(words: np.ndarray, steps: float, edge: float, out: np.ndarray) -> list[int]:
    """Rounds steps Z as computed; the places where an edge or the tail is too near to be sure."""
    doubtful = list[int]()
    for start in range(0, words.size, _AT_ONCE):
        some, found = words[start : start + _AT_ONCE], out[start : start + _AT_ONCE]
        _quantile(some, found)
        found *= steps
        x = found.copy()
        np.rint(x, out=found)
        x -= found
        np.abs(x, out=x)
        size = np.abs(found)
        # sizes far out are made to exceed the edge
        np.copyto(x, 1.0, where=size > _FAR * steps)
        size *= QUANTILE_ERROR
        x += size
        doubtful += (np.flatnonzero(x >= edge) + start).tolist()
    return doubtful


def discrete_gaussian(words: np.ndarray, more: More, steps: float = STEPS) -> np.ndarray:
    """Whole numbers n with probability proportional to exp(-n^2 / (2 steps^2)), exactly, from words (row, 2 columns).

    By rejection from the rounded Gaussian, whose probabilities are  exp(-n^2/2s^2) c(n)  with
    c(n) = integral over |t| < 1/2 of exp(-t^2/2s^2) cosh(n t/s^2):  n is kept with probability c(0)/c(n), which is
    above 1/cosh(n/2s^2) > 1 - n^2/(4 s^4) - 2^-52.
    """
    d = words.shape[1] // 2
    found = rounded_gaussian(words[:, :d], more, steps)
    coins = _unsigned(words[:, d:]) * 2.0**-64
    for row, column in np.argwhere(coins >= 1 - found**2 / (4 * steps**4) - 2.0**-51).tolist():
        number, coin = (_Number(words, row, place, more) for place in (column, d + column))
        found[row, column] = _kept_or_next(number, coin, steps)
    return found


def gamma_sphere(words: np.ndarray, more: More) -> np.ndarray:
    """Vectors with density proportional to exp(-|b|) within GAMMA_ERROR, from words (row, 2d)."""
    return _gamma(words, more)[0]


def rounded_gamma_sphere(words: np.ndarray, more: More, steps: float = GAMMA_STEPS) -> np.ndarray:
    """round(steps b) of such vectors, exactly but for one in 2^100."""
    vectors, error, near_zero = _gamma(words, more)
    x = vectors * steps
    found = np.rint(x)
    doubtful = np.abs(x - found) >= 0.5 - error * np.abs(x) - steps * near_zero - _UNIT
    for row in np.flatnonzero(doubtful.any(axis=1)).tolist():
        found[row] = _rounded_gamma_exactly(words, row, more, steps)
    return found


def _gamma(words: np.ndarray, more: More) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The vectors, and the errors of each one's coordinates. Relative: 2 QUANTILE_ERROR of direction and its norm, 32
    units of sums, 32 of what _NEAR_ZERO does to the norm, and what the sum of exponentials is off by; and _NEAR_ZERO of
    the direction, which is stretched from its length to the vector's."""
    d = words.shape[1] // 2
    direction = gaussian(words[:, :d], more)
    lengths = np.linalg.norm(direction, axis=1, keepdims=True)
    for row in np.flatnonzero(lengths < _SHORT * math.sqrt(d)).tolist():
        numbers = (_Number(words, row, column, more) for column in range(d))
        direction[row] = [float(_normal(number, 2 * _MORE_BITS)) for number in numbers]
        lengths[row] = np.linalg.norm(direction[row])
    uniform = (_unsigned(words[:, d:]) + 0.5) * 2.0**-64
    exponentials = -np.log(uniform)
    for row, column in np.argwhere(uniform < _SMALL).tolist():
        number = _Number(words, row, d + column, more)
        exponentials[row, column] = float(number.context.log(number.uniform(2 * _MORE_BITS)) * -1)
    norm = exponentials.sum(axis=1, keepdims=True)
    off = _UNIT * (36 * norm + 2 * d) + (2.0**-65 / np.maximum(uniform, _SMALL)).sum(axis=1, keepdims=True)
    stretched = norm / lengths
    return norm * direction / lengths, 2 * QUANTILE_ERROR + 64 * _UNIT + off / norm, stretched * _NEAR_ZERO


def _unsigned(words: np.ndarray) -> np.ndarray:
    """w + 2^63 as doubles."""
    return (words ^ _SIGN).view(np.uint64).astype(float)


# --- arbitrary precision ----------------------------------------------------------------------------------------------

# a precision of its own for each thread
_contexts = threading.local()


class _Number:
    """A U of which the first bits are known and more can be asked for."""

    def __init__(self, words: np.ndarray, row: int, column: int, more: More) -> None:
        self.ask = partial(more, row, column)
        self.bits, self.known, self.asked = 64, int(words[row, column]) + 2**63, 0

    def another(self) -> "_Number":
        """A fresh one, of bits that this one will never ask for."""
        fresh = copy.copy(self)
        fresh.bits, fresh.known, fresh.asked = 0, 0, (self.asked // _OTHERS + 1) * _OTHERS
        return fresh

    @property
    def context(self) -> Any:
        if not hasattr(_contexts, "mp"):
            import mpmath  # pyright: ignore[reportMissingTypeStubs]

            _contexts.mp = mpmath.MPContext()
        return _contexts.mp

    def extend(self) -> None:
        self.known = self.known << _MORE_BITS | self.ask(self.asked)
        self.bits += _MORE_BITS
        self.asked += 1

    def ends(self) -> tuple[Any, Any]:
        """Between which U lies, as numbers of 64 more bits than are known."""
        self.context.prec = self.bits + 64
        return tuple(self.context.ldexp(self.context.mpf(end), -self.bits) for end in (self.known, self.known + 1))

    def uniform(self, bits: int) -> Any:
        while self.bits < bits or self.known == 0:
            self.extend()
        return self.ends()[1]


def _normal(number: _Number, bits: int) -> Any:
    return _inverse(number.context, number.uniform(bits))


def _inverse(mp: Any, p: Any) -> Any:
    """Phi^-1(p) to the context's precision, by Halley's steps from a double."""
    if p > 0.5:
        return -_inverse(mp, 1 - p)
    x = mp.mpf(NormalDist().inv_cdf(float(p))) if p > 1e-300 else -mp.sqrt(-2 * mp.log(p))
    while True:
        off = (mp.erfc(-x / mp.sqrt(2)) / 2 - p) * mp.sqrt(2 * mp.pi) * mp.exp(x * x / 2)
        step = off / (1 + x * off / 2)
        x -= step
        # the next step would be about the cube of this one
        if abs(step) ** 3 < mp.ldexp(1, -mp.prec):
            return x


def _rounded_exactly(number: _Number, steps: float) -> float:
    """round(steps Z): more bits until both ends of what is known of U agree, which they do with room to spare."""
    mp = number.context
    while True:
        number.extend()
        low, high = number.ends()
        if low > 0 and high < 1:
            room = mp.ldexp(1, 40 - number.bits)
            below, above = (mp.mpf(steps) * _inverse(mp, end) + 0.5 for end in (low, high))
            if mp.floor(below - room) == mp.floor(above + room):
                return float(mp.floor(below))


def _kept_or_next(number: _Number, coin: _Number, steps: float) -> float:
    """The first proposal that is kept: of this number and coin, or of others after them."""
    while True:
        found = _rounded_exactly(number, steps)
        if _is_kept(coin, int(found), steps):
            return found
        number, coin = number.another(), coin.another()


def _is_kept(coin: _Number, n: int, steps: float) -> bool:
    mp = coin.context
    while True:
        coin.extend()
        low, high = coin.ends()

        def weight(n: int) -> Any:
            """c(n) but for a constant: the normal probability of the bin over the density in its middle."""
            edges = ((n - mp.mpf(0.5)) / steps, (n + mp.mpf(0.5)) / steps)
            below, above = (mp.erfc(edge / mp.sqrt(2)) for edge in edges)
            return (below - above) * mp.exp((mp.mpf(n) / steps) ** 2 / 2)

        chance, room = weight(0) / weight(abs(n)), mp.ldexp(1, 100 - coin.bits)
        if high < chance - room:
            return True
        if low > chance + room:
            return False


def _rounded_gamma_exactly(words: np.ndarray, row: int, more: More, steps: float) -> np.ndarray:
    d = words.shape[1] // 2
    numbers = [_Number(words, row, column, more) for column in range(2 * d)]
    mp = numbers[0].context
    direction = [_normal(number, 64 + _MORE_BITS) for number in numbers[:d]]
    norm = -mp.fsum(mp.log(number.uniform(64 + _MORE_BITS)) for number in numbers[d:])
    factor = mp.mpf(steps) * norm / mp.sqrt(mp.fsum(v * v for v in direction))
    return np.array([float(mp.nint(factor * v)) for v in direction])


# --- coins ------------------------------------------------------------------------------------------------------------


def heads(coins: np.ndarray, rate: float, uniform: Callable[[int], np.ndarray]) -> np.ndarray:
    """Places of the coins, bytes of eight random bits, that show heads with chance `rate` < 1, in order. Eight bits
    decide all but those that tie with the rate's own, for which `uniform` has the rest: 53 more bits, to which the rate
    is rounded down, for a loss grows with it."""
    rest, whole = math.modf(rate * 2**8)
    # all of what 53 bits leave open must be below the rest
    rest -= 2.0**-53
    # else the coins would be compared as doubles
    limit = np.uint8(whole)
    if not numba_loaded():
        places = np.flatnonzero(coins <= limit)
        ties = np.flatnonzero(coins[places] == limit)
        return np.delete(places, ties[uniform(len(ties)) > rest])
    from coterie.native import draws

    places = np.empty(coins.size + 1, np.uint32 if coins.size < 2**32 else np.int64)
    places = places[: draws.list_up_to(coins, limit, places)]
    # nobody's turn comes after the last tie
    kept = np.append(uniform(draws.count_ties(coins, limit, places)) <= rest, False)
    return places[: draws.drop_ties(coins, limit, places, kept)]


Law = Literal["gaussian", "gamma-sphere", "rounded-gaussian", "rounded-gamma-sphere", "discrete-gaussian"]
Purpose = Literal["release", "output", "derivatives", "second_moment", "answers", "scores"]
# where a draw goes: inside what is minimised, or onto what is released
Use = Literal["objective", "value"]
# repeat, party, round
Key = tuple[int, int, int]
# one a row
Keys = Sequence[Key] | np.ndarray

# whose draws are shared out to the cores
KEYS_AT_ONCE = 1024
# the block counter starts at 0 and ends after 2^32 blocks of 64 bytes
_BYTES_PER_KEY = 2**37
# draws of one purpose have one width: those of a round are numbered by it
_PURPOSE = {"release": 0, "output": 1, "coins": 2, "derivatives": 3, "second_moment": 5, "answers": 6, "scores": 7}
# of Philox
_WORDS_PER_BLOCK = 4
_MORE_BYTES = 24


def steps_per_unit(law: Law) -> float:
    """How many steps of a released value's grid make one unit of its noise."""
    return GAMMA_STEPS if "gamma" in law else STEPS


def law_for(law: Law, use: Use) -> Law:
    """The law with which noise that is priced as `law` is drawn."""
    return cast(Law, f"rounded-{law}") if use == "value" else law


class NoiseSource(Protocol):
    reproducible: bool

    def draw(self, law: Law, d: int, *, repeat: int, party: int, t: int, purpose: Purpose = "release") -> np.ndarray:
        """One unit draw in d dimensions, independent over all keys."""
        ...

    def coins(self, *, repeat: int) -> Callable[[int], np.ndarray]:
        """A stream of numbers in [0, 1), asked for by their number, that decides who works in a secret selection."""
        ...


class Coins:
    """A stream of random words, as numbers in [0, 1) or as flips."""

    def __init__(self, words: Callable[[int], np.ndarray]) -> None:
        self._words = words

    def __call__(self, size: int) -> np.ndarray:
        return (self._words(size).view(np.uint64) >> np.uint64(11)) * 2.0**-53

    def heads(self, rate: float, size: int) -> np.ndarray:
        """Which of so many coins show heads, each with chance `rate`: their places, in order."""
        if rate >= 1:
            return np.arange(size)
        places = heads(self._words(-(-size // 8)).view(np.uint8), rate, self)
        return places[: np.searchsorted(places, size)]


class _Source:
    """`draw` and `draw_block` from words: `_words(keys, purpose, count, rows)` is (key, count), and `_more` goes on."""

    def draw(
        self, law: Law, d: int, *, repeat: int, party: int, t: int, purpose: Purpose = "release", rows: int = 1
    ) -> np.ndarray:
        return self.draw_block(law, d, [(repeat, party, t)], purpose, rows)[0]

    def draw_block(self, law: Law, d: int, keys: Keys, purpose: Purpose, rows: int = 1) -> np.ndarray:
        """A draw for each key; `rows` is how many of them a round has, which only says how they are numbered."""
        table = np.asarray(keys, np.int64)
        words = self._words(table, purpose, words_per_draw(law, d), rows)
        return shaped(law, words, self._more(table, purpose))

    def whole_steps(self, d: int, keys: Keys, steps: float) -> np.ndarray:
        """Rounded Gaussians of so many steps a standard deviation, a row for each key, in whole steps."""
        table = np.asarray(keys, np.int64)
        return rounded_gaussian(self._words(table, "release", d, 1), self._more(table, "release"), steps)

    def _words(self, keys: np.ndarray, purpose: Purpose, count: int, rows: int) -> np.ndarray:
        raise NotImplementedError

    def _more(self, keys: np.ndarray, purpose: Purpose) -> More:
        raise NotImplementedError


def words_per_draw(law: Law, d: int) -> int:
    return d if law in ("gaussian", "rounded-gaussian") else 2 * d


def shaped(law: Law, words: np.ndarray, more: More) -> np.ndarray:
    """Rows of words as draws of the law, in units."""
    if law == "gaussian":
        return gaussian(words, more)
    if law == "gamma-sphere":
        return gamma_sphere(words, more)
    exact = {
        "rounded-gaussian": rounded_gaussian,
        "rounded-gamma-sphere": rounded_gamma_sphere,
        "discrete-gaussian": discrete_gaussian,
    }
    if law not in exact:
        raise InputError(f"law: got {law!r}; one of gaussian, gamma-sphere, {', '.join(exact)} is needed")
    steps = exact[law](words, more)
    steps *= 1 / steps_per_unit(law)
    return steps


@dataclasses.dataclass(frozen=True)
class Seeded(_Source):
    """Reproducible noise for research: whoever knows the seed can subtract it, so nothing it makes is private.

    seed: a whole number, 0 or more.

    Philox (Salmon et al., 2011) turns a key, from the seed, and a counter, from what a draw is for, into words.
    """

    seed: int
    reproducible = True

    def __post_init__(self) -> None:
        whole_number("seed", self.seed, at_least=0)

    @functools.cached_property
    def _key(self) -> bytes:
        seed = int(self.seed)
        return hashlib.blake2b(seed.to_bytes(seed.bit_length() // 8 + 1, "little"), digest_size=16).digest()

    def draw_block(self, law: Law, d: int, keys: Keys, purpose: Purpose, rows: int = 1) -> np.ndarray:
        table = np.asarray(keys, np.int64)
        if len(table) <= KEYS_AT_ONCE:
            return super().draw_block(law, d, table, purpose, rows)
        out = np.empty((len(table), d))

        def draw_part(start: int) -> None:
            here = slice(start, start + KEYS_AT_ONCE)
            out[here] = super(Seeded, self).draw_block(law, d, table[here], purpose, rows)

        on_cores(draw_part, range(0, len(table), KEYS_AT_ONCE))
        return out

    def _words(self, keys: np.ndarray, purpose: Purpose, count: int, rows: int) -> np.ndarray:
        """Draws of a repeat follow each other round by round, so most can be taken off one stream together."""
        repeat, party, t = keys.T
        place, beyond = t * rows + party % rows, party // rows
        follow = (place[1:] - place[:-1] == 1) & (repeat[1:] == repeat[:-1]) & (beyond[1:] == beyond[:-1])
        if len(keys) and follow.all():
            return self._stream_words(int(repeat[0]), int(beyond[0]), int(place[0]), len(keys), count, purpose)
        order = np.lexsort((place, repeat, beyond))
        out = np.empty((len(keys), count), np.int64)
        ordered = np.stack([place, repeat, beyond])[:, order]
        breaks = np.flatnonzero((np.diff(ordered[0]) != 1) | (np.diff(ordered[1:]) != 0).any(axis=0)) + 1
        for run in np.split(order, breaks):
            first = run[0]
            where = int(repeat[first]), int(beyond[first]), int(place[first])
            out[run] = self._stream_words(*where, len(run), count, purpose)
        return out

    def _stream_words(self, repeat: int, beyond: int, place: int, n: int, count: int, purpose: Purpose) -> np.ndarray:
        """Of n places that follow each other, (n, count)."""
        blocks = -(-count // _WORDS_PER_BLOCK)
        words = self._philox(repeat, purpose, place * blocks, beyond).random_raw(n * blocks * _WORDS_PER_BLOCK)
        return words.view(np.int64).reshape(n, -1)[:, :count]

    def _philox(self, repeat: int, purpose: str, block: int = 0, beyond: int = 0) -> np.random.Philox:
        counter = [block, repeat, beyond, _PURPOSE[purpose]]
        return np.random.Philox(key=int.from_bytes(self._key, "little"), counter=counter)

    def _more(self, keys: np.ndarray, purpose: Purpose) -> More:
        return _hashed_more(self._key, keys, purpose)

    def coins(self, *, repeat: int) -> Coins:
        return Coins(self._philox(repeat, "coins").random_raw)


class SystemEntropy(_Source):
    """Noise nobody can repeat: a ChaCha20 stream keyed once from the operating system's entropy."""

    reproducible = False

    def __init__(self) -> None:
        self._process, self._left = os.getpid(), _BYTES_PER_KEY
        self._stream = _chacha(os.urandom(32), bytes(16))

    def _words(self, keys: np.ndarray, purpose: Purpose, count: int, rows: int) -> np.ndarray:
        return self._next_words(len(keys) * count).reshape(len(keys), count)

    def _more(self, keys: np.ndarray, purpose: Purpose) -> More:
        # a number has one set of bits, also for who asks again to be sure of a rounding
        told: dict[tuple[int, int, int], int] = {}

        def more(row: int, column: int, k: int) -> int:
            place = row, column, k
            if place not in told:
                told[place] = int.from_bytes(os.urandom(_MORE_BYTES), "little")
            return told[place]

        return more

    def coins(self, *, repeat: int) -> Coins:
        return Coins(self._next_words)

    def _next_words(self, size: int) -> np.ndarray:
        if os.getpid() != self._process or self._left < 8 * size:
            # a forked child would otherwise draw the same numbers as its parent
            self.__init__()
        self._left -= 8 * size
        return np.frombuffer(self._stream.update(bytes(8 * size)), dtype=np.int64)


@dataclasses.dataclass(frozen=True)
class KeyedEntropy(_Source):
    """Noise that a run can draw again, and nobody else: a ChaCha20 stream for each draw, under one secret key.

    A run that was cut off and goes on from a checkpoint repeats the rounds since then. Fresh noise would make a second
    release of each, to be paid for again; the same noise makes the same release. Under it another plan, or the same one
    on other records, would release what can be subtracted: only a run with a checkpoint may have it (`drawn_once`).
    """

    key: bytes = dataclasses.field(default_factory=lambda: os.urandom(32), repr=False)
    reproducible = False

    def _words(self, keys: np.ndarray, purpose: Purpose, count: int, rows: int) -> np.ndarray:
        each = cast(list[Key], keys.tolist())
        streams = [self._stream(*key, _PURPOSE[purpose])(count) for key in each]
        return np.stack(streams) if streams else np.empty((0, count), np.int64)

    def _more(self, keys: np.ndarray, purpose: Purpose) -> More:
        return _hashed_more(self.key, keys, purpose)

    def coins(self, *, repeat: int) -> Coins:
        return Coins(self._stream(repeat, 0, 0, _PURPOSE["coins"]))

    def _stream(self, repeat: int, party: int, t: int, purpose: int) -> Callable[[int], np.ndarray]:
        nonce = b"".join(n.to_bytes(size, "little") for n, size in ((party, 4), (t, 4), (repeat, 3), (purpose, 1)))
        # the first four bytes are the block counter
        stream = _chacha(self.key, bytes(4) + nonce)
        return lambda size: np.frombuffer(stream.update(bytes(8 * size)), dtype=np.int64)


def _chacha(key: bytes, nonce: bytes) -> Any:
    # research with a seed does without it
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    return Cipher(algorithms.ChaCha20(key, nonce), mode=None).encryptor()


def _hashed_more(key: bytes, keys: np.ndarray, purpose: Purpose) -> More:
    """More bits of a number are a keyed hash of what it is for."""

    def more(row: int, column: int, k: int) -> int:
        place = f"{keys[row].tolist()} {purpose} {column} {k}".encode()
        return int.from_bytes(hashlib.blake2b(place, key=key, digest_size=_MORE_BYTES).digest(), "little")

    return more


def drawn_once(noise: NoiseSource | None) -> NoiseSource:
    """The source of what nobody releases again; the operating system's entropy where none is given."""
    if isinstance(noise, KeyedEntropy):
        raise InputError(
            "noise: got KeyedEntropy, which draws the same for other records too; it belongs to a run with a "
            "checkpoint, which makes its own: leave it out"
        )
    return SystemEntropy() if noise is None else noise


def draw_many(source: NoiseSource, law: Law, d: int, keys: Keys, purpose: Purpose, rows: int = 1) -> np.ndarray:
    """`source.draw` for each of the keys, one a row; in one go where the source can."""
    if isinstance(source, _Source):
        return source.draw_block(law, d, keys, purpose, rows)
    each = np.asarray(keys).tolist()
    return np.stack([source.draw(law, d, repeat=r, party=i, t=t, purpose=purpose) for r, i, t in each])
