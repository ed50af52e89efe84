"""Numbers in [0, 1) from a seed and many keys at once: of each key those of NumPy's own seeding,

    Generator(PCG64(SeedSequence(seed, spawn_key=key))).random(count)

bit for bit. A stream for each key makes draws independent of who asks and in what order, and setting up thousands of
streams one by one takes longer than drawing from them; here the seed sequences of all keys are hashed together, and
one generator is set to the state of each. NumPy promises to keep both algorithms (O'Neill 2014, 2015) as they are.
`native.streams` does the same in machine code.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false

import math
from typing import Any

import numpy as np

from coterie import native

ENOUGH_KEYS = 2**16  # for which it pays to load Numba, if nobody has yet
_streams: Any = None  # `native.streams`, once it is loaded
_NUMBERS_AT_ONCE = 2**17  # bounds memory, and what is found stays in a core's cache until it is copied
_POOL = 4  # words
_HASH, _HASH_GROWTH = np.uint32(0x43B0D7E5), np.uint32(0x931E8875)
_OUT, _OUT_GROWTH = np.uint32(0x8B51F9DD), np.uint32(0x58F38DED)
_LEFT, _RIGHT = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)
_HALF_WORD = np.uint32(16)
_PCG_MULTIPLIER, _PCG_BITS = 0x2360ED051FC65DA44385DF649FCCF645, (1 << 128) - 1


def uniforms(seed: int, keys: np.ndarray, count: int) -> np.ndarray:
    """(n_keys, count); `keys` is (n_keys, words) of whole numbers below 2^32."""
    out = np.empty((len(keys), count))
    streams = machine_code(len(keys))
    if streams is not None:
        streams.fill(_seed_words(seed), keys.astype(np.uint32), out)
        return out
    stream = np.random.PCG64(0)
    draw = np.random.Generator(stream).random
    state = {"state": 0, "inc": 0}
    whole: Any = {"bit_generator": "PCG64", "state": state, "has_uint32": 0, "uinteger": 0}
    for row, (high, low, high_inc, low_inc) in zip(out, _seeds(seed, keys.astype(np.uint32)).tolist(), strict=True):
        state["inc"] = inc = ((high_inc << 64 | low_inc) << 1 | 1) & _PCG_BITS
        state["state"] = ((inc + (high << 64 | low)) * _PCG_MULTIPLIER + inc) & _PCG_BITS
        stream.state = whole
        draw(out=row)
    return out


def machine_code(n_keys: int) -> Any:
    """`native.streams`, where it pays for so many keys or is loaded already, else None. Threads can draw from it at the
    same time."""
    if _streams is None and n_keys >= ENOUGH_KEYS and native.available():
        return load_machine_code()
    return _streams


def load_machine_code() -> Any:
    global _streams
    from coterie.native import streams

    _streams = streams
    return streams


def places_below(seed: int, key: int, limit: float, n_rows: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Of n_rows x n numbers from the stream of a key of one word, those below the limit: their places in their rows,
    row after row, and where each row's end. Needs Numba."""
    streams = load_machine_code()
    stream = streams.stream(_seed_words(seed), np.array([key], np.uint32), n)
    most = math.ceil(limit * 2.0**53)  # k 2^-53 < limit  if and only if  k < most
    rows_at_once = streams.SIDE_BY_SIDE * max(1, _NUMBERS_AT_ONCE // (streams.SIDE_BY_SIDE * n))
    room, found = np.empty(rows_at_once * n, np.uint32), list[np.ndarray]()
    ends, before = np.empty(n_rows, int), 0
    for start in range(0, n_rows, rows_at_once):
        part = ends[start : start + rows_at_once]
        streams.below(stream, np.uint64(most), n, room, part)
        found.append(room[: part[-1]].copy())
        part += before
        before = int(part[-1])
    return np.concatenate(found), ends


def _seed_words(seed: int) -> np.ndarray:
    """In words of 32 bits, the lowest first; at least as many as a pool has."""
    words = [seed >> shift & 0xFFFFFFFF for shift in range(0, max(seed.bit_length(), 1), 32)]
    return np.array(words + [0] * (_POOL - len(words)), np.uint32)


def _seeds(seed: int, keys: np.ndarray) -> np.ndarray:
    """`SeedSequence(seed, spawn_key=key).generate_state(4, np.uint64)` of every key."""
    words = [np.full(len(keys), word, np.uint32) for word in _seed_words(seed)] + list(keys.T)
    factor = _HASH

    def hashed(word: np.ndarray) -> np.ndarray:
        nonlocal factor
        word = word ^ factor
        factor = factor * _HASH_GROWTH
        word = word * factor
        return word ^ word >> _HALF_WORD

    def mixed(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        word = _LEFT * one - _RIGHT * other
        return word ^ word >> _HALF_WORD

    with np.errstate(over="ignore"):  # everything is modulo 2^32
        pool = [hashed(word) for word in words[:_POOL]]
        for source in range(_POOL):
            for place in range(_POOL):
                if source != place:
                    pool[place] = mixed(pool[place], hashed(pool[source]))
        for word in words[_POOL:]:
            pool = [mixed(mine, hashed(word)) for mine in pool]
        out, factor = np.empty((len(keys), 2 * _POOL), np.uint32), _OUT
        for i in range(2 * _POOL):
            word = pool[i % _POOL] ^ factor
            factor = factor * _OUT_GROWTH
            word = word * factor
            out[:, i] = word ^ word >> _HALF_WORD
    return out.astype("<u4").view("<u8")
