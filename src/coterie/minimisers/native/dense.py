"""Passes over one party's dense records with one problem, sixteen records at a time (see `passes`)."""

from typing import Any, NamedTuple

import numpy as np

from coterie.minimisers.native.logistic import slope_and_bend
from coterie.native.kernels import jit
from coterie.native.vectors import clear, double, everywhere, load, single, store, total

BLOCKS_AT_ONCE = 512  # added up before they are added to the rest: bounds the rounding of single precision


class DenseRows(NamedTuple):
    """Records in blocks of sixteen; those that fill up the last one weigh nothing."""

    values: Any  # (blocks * d, 16), a block's first features first
    y: Any  # (blocks, 16)
    weight: Any  # (blocks, 16)


@jit
def _score(rows, block, f):
    d = f.shape[0]
    score = load(rows.values, block * d)
    score = score * everywhere(f[0], score)
    for j in range(1, d):
        score = score + load(rows.values, block * d + j) * everywhere(f[j], score)
    return score


@jit
def _spread(rows, block, amount, sums):
    d = sums.shape[0]
    for j in range(d):
        store(sums, j, load(sums, j) + load(rows.values, block * d + j) * amount)


@jit
def add_gradient(rows, stride, f, bends, part, out):
    n_blocks, d = rows.y.shape[0], out.shape[0]
    blocks_at_once = BLOCKS_AT_ONCE * stride
    for first in range(0, n_blocks, blocks_at_once):
        clear(part)
        for block in range(first, min(first + blocks_at_once, n_blocks), stride):
            score = _score(rows, block, f)
            slope, bend = slope_and_bend(score, load(rows.y, block), load(rows.weight, block))
            store(bends, block, single(bend))
            _spread(rows, block, slope, part)
        for j in range(d):
            out[j] += stride * total(double(load(part, j)))


@jit
def add_curvature(rows, stride, bends, p, part, out):
    clear(part)
    for block in range(0, rows.y.shape[0], stride):
        _spread(rows, block, _score(rows, block, p) * load(bends, block), part)
    for j in range(out.shape[0]):
        out[j] += np.float32(stride) * total(load(part, j))


@jit
def curvature_trace(rows, stride, bends):
    d, trace = rows.values.shape[0] // rows.y.shape[0], 0.0
    for block in range(0, rows.y.shape[0], stride):
        square = load(rows.values, block * d) * load(rows.values, block * d)
        for j in range(1, d):
            square = square + load(rows.values, block * d + j) * load(rows.values, block * d + j)
        trace += total(square * load(bends, block))
    return stride * trace


@jit
def add_curvature_matrix(rows, stride, bends, pairs, out):
    d = out.shape[0]
    clear(pairs)
    for block in range(0, rows.y.shape[0], stride):
        bend, place = load(bends, block), 0
        for a in range(d):
            share = bend * load(rows.values, block * d + a)
            for b in range(a, d):
                store(pairs, place, load(pairs, place) + share * load(rows.values, block * d + b))
                place += 1
    place = 0
    for a in range(d):
        for b in range(a, d):
            out[a, b] += stride * total(load(pairs, place))
            place += 1
