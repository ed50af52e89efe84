"""Unit noise, drawn on the host: the same numbers whatever engine runs the plan.

Laws: "gaussian" is N(0, I); "gamma-sphere" has density proportional to exp(-|b|_2): a uniform direction and a norm
that is Gamma(d, 1). (A norm drawn from Exp(1) is right for d = 1 only.) "discrete-gaussian" is k / 2^30 with whole
numbers k from N_Z(0, (2^30)^2), drawn exactly from the system's entropy (`discrete`); from a seed it is the Gaussian
draw, rounded, which has nearly that law and is for research only.
"""

# pyright: reportMissingTypeStubs=false

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import numpy as np
from scipy.special import ndtri

from coterie.errors import InputError
from coterie.native.cores import on_cores
from coterie.privacy.discrete import STEPS_PER_STD, unit_steps
from coterie.privacy.seeded_streams import machine_code, places_below, uniforms

Law = Literal["gaussian", "gamma-sphere", "discrete-gaussian"]
Purpose = Literal["release", "output"]
LAWS: tuple[Law, ...] = ("gaussian", "gamma-sphere", "discrete-gaussian")
KEYS_AT_ONCE = 1024  # whose draws stay in a core's cache from one operation to the next
_BYTES_PER_KEY = 2**37  # the block counter starts at 0 and ends after 2^32 blocks of 64 bytes
_PURPOSE_KEY = {"release": 0, "output": 1}
Key = tuple[int, int, int]  # repeat, party, round
Keys = Sequence[Key] | np.ndarray  # one a row


class NoiseSource(Protocol):
    reproducible: bool

    def draw(self, law: Law, d: int, *, repeat: int, party: int, t: int, purpose: Purpose = "release") -> np.ndarray:
        """One unit draw in d dimensions, independent over all keys."""
        ...

    def coins(self, *, repeat: int) -> Callable[[int], np.ndarray]:
        """A stream of numbers in [0, 1), asked for by their number, that decides who works in a secret selection."""
        ...


@dataclasses.dataclass(frozen=True)
class Seeded:
    """Reproducible noise for research: whoever knows the seed can subtract it, so nothing it makes is private."""

    seed: int
    reproducible = True

    def __post_init__(self) -> None:
        if isinstance(self.seed, bool) or not isinstance(self.seed, (int, np.integer)) or self.seed < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError(f"seed: got {self.seed!r}; an integer >= 0 is needed")

    def draw(self, law: Law, d: int, *, repeat: int, party: int, t: int, purpose: Purpose = "release") -> np.ndarray:
        return self.draw_block(law, d, [(repeat, party, t)], purpose)[0]

    def draw_block(self, law: Law, d: int, keys: Keys, purpose: Purpose) -> np.ndarray:
        words = np.column_stack([np.asarray(keys, np.int64), np.full(len(keys), _PURPOSE_KEY[purpose])])
        if len(words) <= KEYS_AT_ONCE or machine_code(len(words)) is None:
            return self._drawn(law, d, words)
        out = np.empty((len(words), d))

        def draw_part(start: int) -> None:
            here = slice(start, start + KEYS_AT_ONCE)
            out[here] = self._drawn(law, d, words[here])

        on_cores(draw_part, range(0, len(words), KEYS_AT_ONCE))
        return out

    def _drawn(self, law: Law, d: int, words: np.ndarray) -> np.ndarray:
        uniform = uniforms(int(self.seed), words, _uniforms(law, d))
        if law == "discrete-gaussian":  # not the exact law: a seed keeps nothing secret anyway
            return np.rint(_shape("gaussian", d, uniform) * STEPS_PER_STD) / STEPS_PER_STD
        return _shape(law, d, uniform)

    def coins(self, *, repeat: int) -> Callable[[int], np.ndarray]:
        # no draw has so short a key
        return np.random.default_rng(np.random.SeedSequence(int(self.seed), spawn_key=(repeat,))).random

    def coins_below(self, limit: float, n_rounds: int, n: int, *, repeat: int) -> tuple[np.ndarray, np.ndarray]:
        """Of n `coins` in each round the places of those below the limit, and where each round's end. Needs Numba."""
        return places_below(int(self.seed), repeat, limit, n_rounds, n)


class SystemEntropy:
    """Noise nobody can repeat: a ChaCha20 stream keyed once from the operating system's entropy."""

    reproducible = False

    def __init__(self) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms  # research with a seed does without it

        self._process, self._left = os.getpid(), _BYTES_PER_KEY
        self._stream = Cipher(algorithms.ChaCha20(os.urandom(32), bytes(16)), mode=None).encryptor()

    def draw(self, law: Law, d: int, *, repeat: int, party: int, t: int, purpose: Purpose = "release") -> np.ndarray:
        return self.draw_block(law, d, [(repeat, party, t)], purpose)[0]

    def draw_block(self, law: Law, d: int, keys: Keys, purpose: Purpose) -> np.ndarray:
        if law == "discrete-gaussian":
            return unit_steps(len(keys) * d).reshape(len(keys), d) / STEPS_PER_STD
        return _shape(law, d, self._uniform(len(keys) * _uniforms(law, d)).reshape(len(keys), -1))

    def coins(self, *, repeat: int) -> Callable[[int], np.ndarray]:
        return self._uniform

    def _uniform(self, size: int) -> np.ndarray:
        if os.getpid() != self._process or self._left < 8 * size:
            self.__init__()  # a forked child would otherwise draw the same numbers as its parent
        self._left -= 8 * size
        words = np.frombuffer(self._stream.update(bytes(8 * size)), dtype="<u8")
        return (words >> np.uint64(11)) * 2.0**-53


def draw_many(source: NoiseSource, law: Law, d: int, keys: Keys, purpose: Purpose) -> np.ndarray:
    """`source.draw` for each of the keys, one a row; in one go where the source can."""
    if isinstance(source, (Seeded, SystemEntropy)):
        return source.draw_block(law, d, keys, purpose)
    each = np.asarray(keys).tolist()
    return np.stack([source.draw(law, d, repeat=r, party=i, t=t, purpose=purpose) for r, i, t in each])


def _uniforms(law: Law, d: int) -> int:
    """How many numbers in [0, 1) one draw takes."""
    return 2 * d if law == "gamma-sphere" else d


def _shape(law: Law, d: int, uniform: np.ndarray) -> np.ndarray:
    """Rows of independent numbers in [0, 1), which are written over, as draws of the law."""
    if law == "gaussian":
        return _normal(uniform)
    if law == "gamma-sphere":
        direction = _normal(uniform[:, :d])
        # Gamma(d, 1) is the sum of d unit exponentials
        norm = -np.log1p(-uniform[:, d:]).sum(axis=1, keepdims=True)
        return norm * direction / np.linalg.norm(direction, axis=1, keepdims=True)
    raise InputError(f"law: got {law!r}; one of {', '.join(LAWS)} is needed")


def _normal(uniform: np.ndarray) -> np.ndarray:
    # the half step keeps 0 out and the minimum 1; 53 bits reach |z| = 8.2, beyond any delta in use
    uniform += 2.0**-54
    np.minimum(uniform, 1 - 2.0**-53, out=uniform)
    return ndtri(uniform, out=uniform)
