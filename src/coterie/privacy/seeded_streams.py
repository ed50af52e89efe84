"""Numbers in [0, 1) from a seed and many keys at once: of each key those of NumPy's own seeding,

    Generator(PCG64(SeedSequence(seed, spawn_key=key))).random(count)

bit for bit. A stream for each key makes draws independent of who asks and in what order, and setting up thousands of
streams one by one takes longer than drawing from them; here the seed sequences of all keys are hashed together, and
one generator is set to the state of each. NumPy promises to keep both algorithms (O'Neill 2014, 2015) as they are.
"""

# pyright: reportMissingTypeStubs=false

from typing import Any

import numpy as np

_POOL = 4  # words
_HASH, _HASH_GROWTH = np.uint32(0x43B0D7E5), np.uint32(0x931E8875)
_OUT, _OUT_GROWTH = np.uint32(0x8B51F9DD), np.uint32(0x58F38DED)
_LEFT, _RIGHT = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)
_HALF_WORD = np.uint32(16)
_PCG_MULTIPLIER, _PCG_BITS = 0x2360ED051FC65DA44385DF649FCCF645, (1 << 128) - 1


def uniforms(seed: int, keys: np.ndarray, count: int) -> np.ndarray:
    """(n_keys, count); `keys` is (n_keys, words) of whole numbers below 2^32."""
    out = np.empty((len(keys), count))
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


def _seeds(seed: int, keys: np.ndarray) -> np.ndarray:
    """`SeedSequence(seed, spawn_key=key).generate_state(4, np.uint64)` of every key."""
    seed_words = [seed >> shift & 0xFFFFFFFF for shift in range(0, max(seed.bit_length(), 1), 32)]
    seed_words += [0] * (_POOL - len(seed_words))
    words = [np.full(len(keys), word, np.uint32) for word in seed_words] + list(keys.T)
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
