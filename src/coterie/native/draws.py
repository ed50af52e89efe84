"""Draws from words of entropy in machine code: what `privacy.noise` does in NumPy, and lists of who works.

Every loop does one thing to a few numbers, so that several at a time go through it.
"""

import math

import numba
import numpy as np

from coterie.native.as241 import CENTRE, CENTRE_SHIFT, MIDDLE, MIDDLE_LIMIT, MIDDLE_SHIFT, OUTER
from coterie.native.kernels import kernel

# numbers that stay in the nearest cache
_AT_ONCE = 512
# |w| from here on is checked for q^2 > CENTRE_SHIFT, which needs |q| > 0.425
_TAIL = int(0.4249 * 2.0**64)
_inlined = numba.njit(inline="always", error_model="numpy")


@kernel
def round_gaussians(words, steps, relative, edge, far, out, doubtful):
    """round(steps Z) of words; the places of those that may be wrong go to `doubtful`, and their number is returned.

    Operation by operation as `sampling.quantile`, but for the logarithm, which is within the same error. In doubt is
    what is beyond `far`, or whose distance from a whole number, with a `relative` error, reaches `edge`.
    """
    n_doubtful = 0
    tails, logarithms = np.empty(_AT_ONCE + 1, np.int64), np.empty(_AT_ONCE)
    for begin in range(0, words.size, _AT_ONCE):
        some, found = words[begin : begin + _AT_ONCE], out[begin : begin + _AT_ONCE]
        for i in range(some.size):
            q = _centred(some[i])
            r = CENTRE_SHIFT - q * q
            found[i] = _ratio(CENTRE, r if r > 0 else 0.0) * q
        n_tails = 0
        for i in range(some.size):
            tails[n_tails] = i
            n_tails += (some[i] > _TAIL) | (some[i] < -_TAIL)
        for k in range(n_tails):
            logarithms[k] = math.log(_distance(some[tails[k]]) * 2.0**-64)
        for k in range(n_tails):
            q, r = _centred(some[tails[k]]), math.sqrt(-logarithms[k])
            size = _ratio(OUTER, r - MIDDLE_LIMIT) if r > MIDDLE_LIMIT else _ratio(MIDDLE, r - MIDDLE_SHIFT)
            if CENTRE_SHIFT - q * q < 0:
                found[tails[k]] = math.copysign(size, q)
        unsure = 0
        for i in range(some.size):
            x = found[i] * steps
            unsure += _unsure(x, relative, edge, far)
        for i in range(some.size if unsure else 0):
            doubtful[n_doubtful] = begin + i
            n_doubtful += _unsure(found[i] * steps, relative, edge, far)
        for i in range(some.size):
            found[i] = np.rint(found[i] * steps)
    return n_doubtful


@_inlined
def _centred(word):
    return (word + 0.5) * 2.0**-64


@_inlined
def _unsure(x, relative, edge, far):
    whole = np.rint(x)
    return (abs(x - whole) + relative * abs(whole) >= edge) | (abs(whole) > far)


@_inlined
def _ratio(coefficients, x):
    """By Horner's scheme, written out: a loop over a tuple would not be taken apart."""
    above, below = coefficients
    over, under = (x * above[0] + above[1]) * x, (x * below[0] + below[1]) * x
    over, under = (over + above[2]) * x, (under + below[2]) * x
    over, under = (over + above[3]) * x, (under + below[3]) * x
    over, under = (over + above[4]) * x, (under + below[4]) * x
    over, under = (over + above[5]) * x, (under + below[5]) * x
    over, under = (over + above[6]) * x, (under + below[6]) * x
    return (over + above[7]) / (under + below[7])


@_inlined
def _distance(word):
    """The smaller of U and 1 - U in units of 2^-64, to the middle of what the word leaves open."""
    below_half = word ^ ~(word >> 63)
    return float(below_half ^ np.int64(-(2**63))) + 0.5


@kernel
def list_up_to(coins, limit, places):
    """Places of all coins <= limit, in order, and how many they are; `places` has room for one more."""
    count = 0
    for place in range(coins.size):
        places[count] = place
        count += coins[place] <= limit
    return count


@kernel
def count_ties(coins, value, places):
    """How many of these coins show the value."""
    count = 0
    for k in range(places.size):
        count += coins[places[k]] == value
    return count


@kernel
def drop_ties(coins, value, places, heads):
    """Leave out, in place, those that tie with `value` where their turn in `heads` is False; how many are left."""
    left = n_ties = 0
    for k in range(places.size):
        place = places[k]
        tie = coins[place] == value
        places[left] = place
        left += heads[n_ties] | (not tie)
        n_ties += tie
    return left


@kernel
def split_rows(places, n_columns, who, ends):
    """Columns of places in a table, row after row, and where each row's end."""
    row = begin = 0
    for k in range(places.size):
        while places[k] >= begin + n_columns:
            ends[row] = k
            row, begin = row + 1, begin + n_columns
        who[k] = places[k] - begin
    ends[row:] = places.size
