"""Passes over one party's sparse records, with sixteen problems at a time, one a lane (see `passes`)."""

from typing import Any, NamedTuple

import numpy as np

from coterie.minimisers.native.logistic import slope_and_bend
from coterie.native.kernels import jit
from coterie.native.vectors import LANES, clear, double, everywhere, load, single, store, total

COMMON = 4
ROWS_AT_ONCE = 512  # added up before they are added to the rest: bounds the rounding of single precision


class SparseRows(NamedTuple):
    """The first four features are those that most records have: they stay in registers, in single precision."""

    common: Any  # (n, 4) values of the first four features
    columns: Any  # (n, width) which other features; places that are not needed say any,
    values: Any  # (n, width) and zero here
    y: Any  # (n,)
    weight: Any  # (n,)


@jit
def _first_four(vector):
    return load(vector, 0), load(vector, 1), load(vector, 2), load(vector, 3)


@jit
def _score(rows, i, f, four):
    score = everywhere(rows.common[i, 0], four[0]) * four[0]
    score = score + everywhere(rows.common[i, 1], score) * four[1]
    score = score + everywhere(rows.common[i, 2], score) * four[2]
    score = score + everywhere(rows.common[i, 3], score) * four[3]
    for k in range(rows.columns.shape[1]):
        score = score + everywhere(rows.values[i, k], score) * load(f, rows.columns[i, k])
    return score


@jit
def _spread(rows, i, amount, sums, four):
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
def add_gradient(rows, stride, f, bends, part, out):
    n, d, four = -(-len(rows.y) // stride), out.shape[0], _first_four(f)
    for first in range(0, n, ROWS_AT_ONCE):
        clear(part)
        sums = _first_four(part)
        for taken in range(first, min(first + ROWS_AT_ONCE, n)):
            i = np.uintp(taken * stride)  # unsigned: Numba asks of signed places whether they count from the end
            score = _score(rows, i, f, four)
            y, weight = everywhere(rows.y[i], score), everywhere(rows.weight[i], score)
            slope, bend = slope_and_bend(score, y, weight)
            store(bends, i, single(bend))
            sums = _spread(rows, i, slope, part, sums)
        _store_four(part, sums)
        for j in range(d):
            grown = double(load(part, j))
            store(out, j, load(out, j) + everywhere(stride, grown) * grown)


@jit
def add_curvature(rows, stride, bends, p, part, out):
    clear(part)
    four, sums = _first_four(p), _first_four(part)
    for taken in range(-(-len(rows.y) // stride)):
        i = np.uintp(taken * stride)
        sums = _spread(rows, i, _score(rows, i, p, four) * load(bends, i), part, sums)
    _store_four(part, sums)
    for j in range(out.shape[0]):
        store(out, j, load(out, j) + everywhere(stride, load(part, j)) * load(part, j))


@jit
def curvature_trace(rows, stride, bends):
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
def add_curvature_matrix(rows, stride, bends, out):
    width = COMMON + rows.columns.shape[1]
    columns, values = np.empty(width, np.int64), np.empty(width)
    for i in range(0, len(rows.y), stride):
        for k in range(COMMON):
            columns[k], values[k] = k, rows.common[i, k]
        for k in range(COMMON, width):
            columns[k], values[k] = rows.columns[i, k - COMMON], rows.values[i, k - COMMON]
        bend = stride / LANES * total(load(bends, i))  # of the sixteen problems on average
        for k in range(width):
            share = bend * values[k]
            for other in range(k + 1):
                a, b = columns[k], columns[other]
                out[min(a, b), max(a, b)] += share * values[other]
