"""Passes over one party's records with logistic loss, whichever way the records are kept.

    gradient   sum_n w_n (p_n - y_n) x_n,      p = 1 / (1 + exp(-x . f))
    curvature  sum_n b_n x_n x_n',             b = w p (1 - p)

A pass may take every `stride`-th row (or block of rows) only, and count it `stride` times. Sums over many rows are
added up in parts, and the parts in double precision.
"""

import math
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import overload

from coterie.native.kernels import jit
from coterie.native.vectors import (
    LANES,
    clear,
    double,
    everywhere,
    load,
    nearest_whole,
    negative,
    single,
    store,
    total,
    two_to_the,
    where_positive,
)

# --- the logistic loss on lanes ---------------------------------------------------------------------------------------


def exponential(x: Any) -> Any:
    """exp of lanes, within two units in the last place; arguments beyond what a number can hold are cut.

    By hand, because LLVM makes sixteen calls of libm's.
    """


@overload(exponential)
def _exponential(x):
    exact = x.dtype == types.float64
    kind = np.float64 if exact else np.float32
    # beyond 60, p (1 - p) in single precision is as good as nothing, and slow
    limit = kind(700 if exact else 60)
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


# --- dense records, one problem, sixteen records at a time ------------------------------------------------------------

# added up before they are added to the rest: bounds the rounding of single precision
BLOCKS_AT_ONCE = 512


class DenseRows(NamedTuple):
    """Records in blocks of sixteen; those that fill up the last one weigh nothing."""

    # (blocks * d, 16), a block's first features first
    values: Any
    # (blocks, 16)
    y: Any
    # (blocks, 16)
    weight: Any


@jit
def _dense_score(rows, block, f):
    d = f.shape[0]
    score = load(rows.values, block * d)
    score = score * everywhere(f[0], score)
    for j in range(1, d):
        score = score + load(rows.values, block * d + j) * everywhere(f[j], score)
    return score


@jit
def _spread_dense(rows, block, amount, sums):
    d = sums.shape[0]
    for j in range(d):
        store(sums, j, load(sums, j) + load(rows.values, block * d + j) * amount)


@jit
def _dense_add_gradient(rows, stride, f, bends, part, out):
    n_blocks, d = rows.y.shape[0], out.shape[0]
    blocks_at_once = BLOCKS_AT_ONCE * stride
    for first in range(0, n_blocks, blocks_at_once):
        clear(part)
        for block in range(first, min(first + blocks_at_once, n_blocks), stride):
            score = _dense_score(rows, block, f)
            slope, bend = slope_and_bend(score, load(rows.y, block), load(rows.weight, block))
            store(bends, block, single(bend))
            _spread_dense(rows, block, slope, part)
        for j in range(d):
            out[j] += stride * total(double(load(part, j)))


@jit
def _dense_add_curvature(rows, stride, bends, p, part, out):
    clear(part)
    for block in range(0, rows.y.shape[0], stride):
        _spread_dense(rows, block, _dense_score(rows, block, p) * load(bends, block), part)
    for j in range(out.shape[0]):
        out[j] += np.float32(stride) * total(load(part, j))


@jit
def _dense_curvature_trace(rows, stride, bends):
    d, trace = rows.values.shape[0] // rows.y.shape[0], 0.0
    for block in range(0, rows.y.shape[0], stride):
        square = load(rows.values, block * d) * load(rows.values, block * d)
        for j in range(1, d):
            square = square + load(rows.values, block * d + j) * load(rows.values, block * d + j)
        trace += total(square * load(bends, block))
    return stride * trace


@jit
def _dense_add_curvature_matrix(rows, stride, bends, pairs, out):
    d = out.shape[0]
    clear(pairs)
    for block in range(0, rows.y.shape[0], stride):
        bend, place = load(bends, block), 0
        for a in range(d):
            bent = bend * load(rows.values, block * d + a)
            for b in range(a, d):
                store(pairs, place, load(pairs, place) + bent * load(rows.values, block * d + b))
                place += 1
    place = 0
    for a in range(d):
        for b in range(a, d):
            out[a, b] += stride * total(load(pairs, place))
            place += 1


# --- sparse records, sixteen problems at a time, one a lane -----------------------------------------------------------

COMMON = 4
# added up before they are added to the rest: bounds the rounding of single precision
ROWS_AT_ONCE = 512


class SparseRows(NamedTuple):
    """The first four features are those that most records have: they stay in registers, in single precision."""

    # (n, 4) values of the first four features
    common: Any
    # (n, width) which other features; places that are not needed say any,
    columns: Any
    # (n, width) and zero here
    values: Any
    # (n,)
    y: Any
    # (n,)
    weight: Any


@jit
def _first_four(vector):
    return load(vector, 0), load(vector, 1), load(vector, 2), load(vector, 3)


@jit
def _sparse_score(rows, i, f, four):
    score = everywhere(rows.common[i, 0], four[0]) * four[0]
    score = score + everywhere(rows.common[i, 1], score) * four[1]
    score = score + everywhere(rows.common[i, 2], score) * four[2]
    score = score + everywhere(rows.common[i, 3], score) * four[3]
    for k in range(rows.columns.shape[1]):
        score = score + everywhere(rows.values[i, k], score) * load(f, rows.columns[i, k])
    return score


@jit
def _spread_sparse(rows, i, amount, sums, four):
    """Onto `sums`, and onto the sums of the first four features, which are returned."""
    for k in range(rows.columns.shape[1]):
        column = rows.columns[i, k]
        store(sums, column, load(sums, column) + everywhere(rows.values[i, k], amount) * amount)
    return (
        four[0] + everywhere(rows.common[i, 0], amount) * amount,
        four[1] + everywhere(rows.common[i, 1], amount) * amount,
        four[2] + everywhere(rows.common[i, 2], amount) * amount,
        four[3] + everywhere(rows.common[i, 3], amount) * amount,
    )


@jit
def _store_four(sums, four):
    for j, value in enumerate(four):
        store(sums, j, value)


@jit
def _sparse_add_gradient(rows, stride, f, bends, part, out):
    n, d, four = -(-len(rows.y) // stride), out.shape[0], _first_four(f)
    for first in range(0, n, ROWS_AT_ONCE):
        clear(part)
        sums = _first_four(part)
        for taken in range(first, min(first + ROWS_AT_ONCE, n)):
            # unsigned: Numba asks of signed places whether they count from the end
            i = np.uintp(taken * stride)
            score = _sparse_score(rows, i, f, four)
            y, weight = everywhere(rows.y[i], score), everywhere(rows.weight[i], score)
            slope, bend = slope_and_bend(score, y, weight)
            store(bends, i, single(bend))
            sums = _spread_sparse(rows, i, slope, part, sums)
        _store_four(part, sums)
        for j in range(d):
            grown = double(load(part, j))
            store(out, j, load(out, j) + everywhere(stride, grown) * grown)


@jit
def _sparse_add_curvature(rows, stride, bends, p, part, out):
    clear(part)
    four, sums = _first_four(p), _first_four(part)
    for taken in range(-(-len(rows.y) // stride)):
        i = np.uintp(taken * stride)
        sums = _spread_sparse(rows, i, _sparse_score(rows, i, p, four) * load(bends, i), part, sums)
    _store_four(part, sums)
    for j in range(out.shape[0]):
        store(out, j, load(out, j) + everywhere(stride, load(part, j)) * load(part, j))


@jit
def _sparse_curvature_trace(rows, stride, bends):
    trace = 0.0
    for i in range(0, len(rows.y), stride):
        square = 0.0
        for k in range(COMMON):
            square += rows.common[i, k] ** 2
        for k in range(rows.columns.shape[1]):
            square += rows.values[i, k] ** 2
        trace += square * total(load(bends, i))
    return stride / LANES * trace


@jit
def _sparse_add_curvature_matrix(rows, stride, bends, out):
    width = COMMON + rows.columns.shape[1]
    columns, values = np.empty(width, np.int64), np.empty(width)
    for i in range(0, len(rows.y), stride):
        for k in range(COMMON):
            columns[k], values[k] = k, rows.common[i, k]
        for k in range(COMMON, width):
            columns[k], values[k] = rows.columns[i, k - COMMON], rows.values[i, k - COMMON]
        # of the sixteen problems on average
        bend = stride / LANES * total(load(bends, i))
        for k in range(width):
            bent = bend * values[k]
            for other in range(k + 1):
                a, b = columns[k], columns[other]
                out[min(a, b), max(a, b)] += bent * values[other]


# --- whichever way the records are kept -------------------------------------------------------------------------------


def add_gradient(rows: Any, stride: Any, f: Any, bends: Any, part: Any, out: Any) -> None:
    """Onto `out`, which is in double precision; leaves b_n in `bends`."""


def add_curvature(rows: Any, stride: Any, bends: Any, p: Any, part: Any, out: Any) -> None:
    """Times p, onto `out`."""


def add_curvature_matrix(rows: Any, stride: Any, bends: Any, pairs: Any, out: Any) -> None:
    """Onto the upper half of `out`, averaged over the problems; `pairs` is room that dense rows need."""


def curvature_trace(rows: Any, stride: Any, bends: Any) -> Any:
    """Averaged over the problems."""


def _is_sparse(rows: Any) -> bool:
    return rows.instance_class is SparseRows


@overload(add_gradient)
def _add_gradient(rows, stride, f, bends, part, out):
    add = _sparse_add_gradient if _is_sparse(rows) else _dense_add_gradient
    return lambda rows, stride, f, bends, part, out: add(rows, stride, f, bends, part, out)


@overload(add_curvature)
def _add_curvature(rows, stride, bends, p, part, out):
    add = _sparse_add_curvature if _is_sparse(rows) else _dense_add_curvature
    return lambda rows, stride, bends, p, part, out: add(rows, stride, bends, p, part, out)


@overload(add_curvature_matrix)
def _add_curvature_matrix(rows, stride, bends, pairs, out):
    if _is_sparse(rows):
        return lambda rows, stride, bends, pairs, out: _sparse_add_curvature_matrix(rows, stride, bends, out)
    return lambda rows, stride, bends, pairs, out: _dense_add_curvature_matrix(rows, stride, bends, pairs, out)


@overload(curvature_trace)
def _curvature_trace(rows, stride, bends):
    trace = _sparse_curvature_trace if _is_sparse(rows) else _dense_curvature_trace
    return lambda rows, stride, bends: trace(rows, stride, bends)
