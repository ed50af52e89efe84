"""Noise that a run can draw again, and nobody else: every draw is decided by a secret key and by what it is for.

A run that was cut off and goes on from a checkpoint repeats the rounds since then. Fresh noise would make a second
release of each, to be paid for again; the same noise makes the same release.
"""

import dataclasses
import os
from collections.abc import Callable

import numpy as np

from coterie.errors import InputError
from coterie.privacy.noise import Law, Purpose, _shape, _uniforms  # pyright: ignore[reportPrivateUsage]

_PURPOSE = {"release": 0, "output": 1, "coins": 2}


@dataclasses.dataclass(frozen=True)
class KeyedEntropy:
    """A ChaCha20 stream for each draw, under one key from the operating system's entropy."""

    key: bytes = dataclasses.field(default_factory=lambda: os.urandom(32), repr=False)
    reproducible = False

    def draw(self, law: Law, d: int, *, repeat: int, party: int, t: int, purpose: Purpose = "release") -> np.ndarray:
        if law == "discrete-gaussian":
            raise InputError("hardened: got True; noise that is drawn exactly cannot be drawn again: use in-process")
        uniform = self._stream(repeat, party, t, _PURPOSE[purpose])(_uniforms(law, d))
        return _shape(law, d, uniform[None])[0]

    def coins(self, *, repeat: int) -> Callable[[int], np.ndarray]:
        return self._stream(repeat, 0, 0, _PURPOSE["coins"])

    def _stream(self, repeat: int, party: int, t: int, purpose: int) -> Callable[[int], np.ndarray]:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

        nonce = b"".join(n.to_bytes(size, "little") for n, size in ((party, 4), (t, 4), (repeat, 3), (purpose, 1)))
        # the first four bytes are the block counter
        stream = Cipher(algorithms.ChaCha20(self.key, bytes(4) + nonce), mode=None).encryptor()

        def uniform(size: int) -> np.ndarray:
            words = np.frombuffer(stream.update(bytes(8 * size)), dtype="<u8")
            return (words >> np.uint64(11)) * 2.0**-53

        return uniform
