"""Unit noise, drawn on the host: the same numbers whatever engine runs the plan.

Laws: "gaussian" is N(0, I); "gamma-sphere" has density proportional to exp(-|b|_2): a uniform direction and a norm
that is Gamma(d, 1). (A norm drawn from Exp(1) is right for d = 1 only.) Inside an objective they are used as doubles,
whose distance from exact draws is bounded and paid for. On a value that is released, "rounded-gaussian" and
"rounded-gamma-sphere" are used: whole numbers of steps, of which STEPS or GAMMA_STEPS make one unit, with exactly the
law of the rounded continuous draw. "discrete-gaussian" has probabilities proportional to those of the normal density at
whole numbers of steps. `sampling` has the laws; sources differ in where their words come from.
"""

import dataclasses
import functools
import hashlib
import os
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, cast

import numpy as np

from coterie.checks import whole_number
from coterie.errors import InputError
from coterie.machine import on_cores
from coterie.privacy import sampling
from coterie.privacy.sampling import GAMMA_STEPS, STEPS, More

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
        places = sampling.heads(self._words(-(-size // 8)).view(np.uint8), rate, self)
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
        return sampling.rounded_gaussian(self._words(table, "release", d, 1), self._more(table, "release"), steps)

    def _words(self, keys: np.ndarray, purpose: Purpose, count: int, rows: int) -> np.ndarray:
        raise NotImplementedError

    def _more(self, keys: np.ndarray, purpose: Purpose) -> More:
        raise NotImplementedError


def words_per_draw(law: Law, d: int) -> int:
    return d if law in ("gaussian", "rounded-gaussian") else 2 * d


def shaped(law: Law, words: np.ndarray, more: More) -> np.ndarray:
    """Rows of words as draws of the law, in units."""
    if law == "gaussian":
        return sampling.gaussian(words, more)
    if law == "gamma-sphere":
        return sampling.gamma_sphere(words, more)
    exact = {
        "rounded-gaussian": sampling.rounded_gaussian,
        "rounded-gamma-sphere": sampling.rounded_gamma_sphere,
        "discrete-gaussian": sampling.discrete_gaussian,
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
        return lambda row, column, k: int.from_bytes(os.urandom(_MORE_BYTES), "little")

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
