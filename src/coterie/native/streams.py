"""NumPy's seeding and its PCG64, for many keys: the numbers of `privacy.seeded_streams`, where both are described.

A step of PCG64 waits for the one before, so many streams, or many places of one, are worked on side by side: loops over
them are what LLVM makes vectors of.
"""

from typing import Any

import numba
import numpy as np

from coterie.native.kernels import jit, kernel

SIDE_BY_SIDE = 32
_POOL = 4  # words
_HASH, _HASH_GROWTH = np.uint32(0x43B0D7E5), np.uint32(0x931E8875)
_OUT, _OUT_GROWTH = np.uint32(0x8B51F9DD), np.uint32(0x58F38DED)
_LEFT, _RIGHT = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)
_HALF_WORD = np.uint32(16)
_MULTIPLIER = np.uint64(0x2360ED051FC65DA4), np.uint64(0x4385DF649FCCF645)  # high, low

# by Numba, before LLVM sees it: as a function of its own, a step would be made of wider words, and vectors have none
_inlined: Any = numba.njit(inline="always")


@_inlined
def _stepped(high, low, factor, inc_high, inc_low):
    """state * factor + inc, modulo 2^128: of two low words the product has to be put together from those of halves."""
    half, bits = np.uint64(0xFFFFFFFF), np.uint64(32)
    a_low, a_high, b_low, b_high = low & half, low >> bits, factor[1] & half, factor[1] >> bits
    across = a_low * b_high
    middle = (a_low * b_low >> bits) + (across & half) + a_high * b_low
    carried = a_high * b_high + (across >> bits) + (middle >> bits)
    product = low * factor[1]
    after = product + inc_low
    return carried + high * factor[1] + low * factor[0] + inc_high + np.uint64(after < product), after


@_inlined
def _number(high, low):
    """The 53 bits that a state gives: a number in [0, 1), times 2^53."""
    folded, turn = high ^ low, high >> np.uint64(58)
    return (folded >> turn | folded << (np.uint64(64) - turn & np.uint64(63))) >> np.uint64(11)


@jit
def _hashed(word, factor):
    """A word, and the next factor."""
    grown = np.uint32(factor * _HASH_GROWTH)
    word = np.uint32(np.uint32(word ^ factor) * grown)
    return np.uint32(word ^ word >> _HALF_WORD), grown


@jit
def _mixed(one, other):
    word = np.uint32(np.uint32(_LEFT * one) - np.uint32(_RIGHT * other))
    return np.uint32(word ^ word >> _HALF_WORD)


@jit
def _mix_in(pool, word, factor):
    for place in range(_POOL):
        hashed, factor = _hashed(word, factor)
        pool[place] = _mixed(pool[place], hashed)
    return factor


@jit
def _seed_pool(seed_words):
    """What all keys of a seed have in common: the pool before their words are mixed in, and the next factor."""
    pool, factor = np.empty(_POOL, np.uint32), _HASH
    for place in range(_POOL):
        pool[place], factor = _hashed(seed_words[place], factor)
    for source in range(_POOL):
        for place in range(_POOL):
            if source != place:
                hashed, factor = _hashed(pool[source], factor)
                pool[place] = _mixed(pool[place], hashed)
    for word in seed_words[_POOL:]:
        factor = _mix_in(pool, word, factor)
    return pool, factor


@jit
def _start(seed_pool, factor, key, pool, words):
    """(high, low) of a key's state and of its increment; `pool` and `words` are room."""
    pool[:] = seed_pool
    for word in key:
        factor = _mix_in(pool, word, factor)
    factor = _OUT
    for i in range(2 * _POOL):
        word = np.uint32(pool[i % _POOL] ^ factor)
        factor = np.uint32(factor * _OUT_GROWTH)
        word = np.uint32(word * factor)
        words[i] = np.uint64(word ^ word >> _HALF_WORD)
    for i in range(_POOL):
        words[i] = words[2 * i + 1] << np.uint64(32) | words[2 * i]
    one = np.uint64(1)
    high_inc, low_inc = words[2] << one | words[3] >> np.uint64(63), words[3] << one | one
    low = low_inc + words[1]
    high = high_inc + words[0] + np.uint64(low < low_inc)
    high, low = _stepped(high, low, _MULTIPLIER, high_inc, low_inc)
    return high, low, high_inc, low_inc


@kernel
def fill(seed_words, keys, out):
    """Row by row, the numbers of each key."""
    n_keys, count = out.shape
    seed_pool, factor = _seed_pool(seed_words)
    pool, words = np.empty(_POOL, np.uint32), np.empty(2 * _POOL, np.uint64)
    high, low, high_inc, low_inc = np.zeros((4, SIDE_BY_SIDE), np.uint64)
    numbers = np.empty((count, SIDE_BY_SIDE))
    for first in range(0, n_keys, SIDE_BY_SIDE):
        here = min(SIDE_BY_SIDE, n_keys - first)
        for i in range(here):
            high[i], low[i], high_inc[i], low_inc[i] = _start(seed_pool, factor, keys[first + i], pool, words)
        for k in range(count):
            for i in range(SIDE_BY_SIDE):
                high[i], low[i] = _stepped(high[i], low[i], _MULTIPLIER, high_inc[i], low_inc[i])
                numbers[k, i] = _number(high[i], low[i]) * 2.0**-53
        for i in range(here):
            for k in range(count):
                out[first + i, k] = numbers[k, i]


@kernel
def _start_of(seed_words, key):
    seed_pool, factor = _seed_pool(seed_words)
    return np.array(_start(seed_pool, factor, key, np.empty(_POOL, np.uint32), np.empty(2 * _POOL, np.uint64)))


def stream(seed_words: np.ndarray, key: np.ndarray, n: int) -> np.ndarray:
    """Of one key, for `below`: state, increment, and factor and increment of n steps at once, as pairs (high, low)."""
    high, low, high_inc, low_inc = map(int, _start_of(seed_words, key))
    multiplier, inc = int(_MULTIPLIER[0]) << 64 | int(_MULTIPLIER[1]), high_inc << 64 | low_inc
    power = pow(multiplier, n, (multiplier - 1) << 128)
    jump_inc = (power - 1) // (multiplier - 1) * inc  # inc (1 + m + ... + m^(n-1))
    word = (1 << 64) - 1
    jump = [[value >> 64 & word, value & word] for value in (power, jump_inc)]
    return np.array([[high, low], [high_inc, low_inc], *jump], np.uint64)


@kernel
def below(stream, limit, n, out, ends):
    """For each of `ends`, take n numbers off the stream and list the places of those below `limit` / 2^53. The stream
    can be gone on with after whole multiples of `SIDE_BY_SIDE` of them."""
    n_rows, end = len(ends), np.uintp(0)
    high_inc, low_inc = stream[1]
    high, low = np.empty((2, SIDE_BY_SIDE), np.uint64)
    is_below, counts = np.empty(SIDE_BY_SIDE, np.uint8), np.empty(SIDE_BY_SIDE, np.uintp)
    found = np.empty((SIDE_BY_SIDE, n + 1), np.uint32)
    for first in range(0, n_rows, SIDE_BY_SIDE):
        counts[:] = 0
        for i in range(SIDE_BY_SIDE):
            high[i], low[i] = stream[0]
            stream[0] = _stepped(high[i], low[i], (stream[2, 0], stream[2, 1]), stream[3, 0], stream[3, 1])
        for place in range(n):
            for i in range(SIDE_BY_SIDE):
                high[i], low[i] = _stepped(high[i], low[i], _MULTIPLIER, high_inc, low_inc)
                is_below[i] = _number(high[i], low[i]) < limit
            for i in range(SIDE_BY_SIDE):
                found[i, counts[i]] = place  # stays if it is below, else it is written over: no branch to guess
                counts[i] += np.uintp(is_below[i])
        for i in range(min(SIDE_BY_SIDE, n_rows - first)):
            for k in range(counts[i]):
                out[end + np.uintp(k)] = found[i, k]
            end += counts[i]
            ends[first + i] = end
