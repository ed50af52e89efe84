"""The logistic loss on lanes: slope and bend of each score, with weights.

slope  w (p - y)        bend  w p (1 - p)        p = 1 / (1 + exp(-score))
"""

import math
from decimal import Decimal
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from coterie.native.kernels import jit
from coterie.native.vectors import everywhere, nearest_whole, negative, two_to_the, where_positive


def exponential(x: Any) -> Any:
    """exp of lanes, within two units in the last place; arguments beyond what a number can hold are cut.

    By hand, because LLVM makes sixteen calls of libm's.
    """


@overload(exponential)
def _exponential(x):
    exact = x.dtype == types.float64
    kind = np.float64 if exact else np.float32
    limit = kind(700 if exact else 60)  # beyond 60, p (1 - p) in single precision is as good as nothing, and slow
    log2_e, log_2 = kind(1 / math.log(2)), Decimal(2).ln()
    # ln 2 in two parts, the first so short that its products with whole numbers are exact
    steps = 2**40 if exact else 2**14
    high = kind(int(log_2 * steps) / steps)
    low = kind(log_2 - Decimal(float(high)))
    degree = 13 if exact else 7
    top, rest = kind(1 / math.factorial(degree)), tuple(kind(1 / math.factorial(k)) for k in range(degree - 1, -1, -1))

    def implementation(x):
        most = everywhere(limit, x)
        x = where_positive(x - most, most, x)
        x = where_positive(negative(x) - most, negative(most), x)
        k = nearest_whole(x * everywhere(log2_e, x))
        r = (x - k * everywhere(high, x)) - k * everywhere(low, x)
        series = everywhere(top, x)
        for term in rest:
            series = series * r + everywhere(term, x)
        return series * two_to_the(k)

    return implementation


@jit
def slope_and_bend(score, y, weight):
    one = everywhere(1, score)
    p = one / (one + exponential(negative(score)))
    return weight * (p - y), weight * p * (one - p)
