"""Rounds of sum-noised ADMM among people with one record each and squared loss, one run at a time: the sums of moves.

The kernel of `privacy.for_engines`, which says what is computed and owns it. Two people are worked on side by side, so
that one's sums over features are waited for while the other's are computed; coefficients lie in rows of lanes, filled
up with zeros, which stay zero.
"""

import math
from typing import Any, NamedTuple

import numba
import numpy as np

from coterie.native.kernels import kernel
from coterie.native.vectors import LANES, aligned, everywhere, load, plus_bits, store, total

# by LLVM: as calls they would count references to arrays, once for each of their arguments
_inlined: Any = numba.njit(nogil=True, error_model="numpy", forceinline=True)
# what a move in steps is added to: the sum is a whole number, and two such sums differ as their bits do
_SHIFT = 1.5 * 2.0**52
_SHIFT_BITS = int(np.float64(_SHIFT).view(np.int64))


class People(NamedTuple):
    """The last person is nobody."""

    # ((n + 1) * chunks, LANES)
    rows: Any
    # (n + 1,)
    labels: Any
    weights: Any
    # |x|^2
    squares: Any
    # True for nobody, and for those who stay as they are even when it is their turn
    absent: Any


class Scales(NamedTuple):
    """As in `privacy.proximal.ProxScales`; each is (rounds,) or, where all rounds have the same, (1,)."""

    curvature: Any
    l2: Any
    relaxation: Any
    radius: Any
    grid: Any
    tolerance: Any
    strict: Any


class Centre(NamedTuple):
    """z = soft threshold of `shrink` z_hat, and z_hat grows by the n-th part of a sum."""

    shrink: Any
    threshold: Any
    n: Any


def in_lanes(matrix: np.ndarray, *, extra_rows: int = 0) -> np.ndarray:
    """Rows one after another, each filled up to whole rows of lanes."""
    n, d = matrix.shape
    out = aligned((n + extra_rows) * chunks(d), LANES)
    out.reshape(n + extra_rows, -1)[:n, :d] = matrix
    return out


def chunks(d: int) -> int:
    """How many rows of lanes hold d coefficients."""
    return -(-d // LANES)


@kernel
def advance(people, scales, centre, who, begins, ends, states, z_hat, room, out):
    """All rounds of one run: `who[begins[t]:ends[t]]` work in round t, and `out`, (rounds, d), holds whole steps of
    noise, in whose place the noised sums are put. `states` is laid out as `people.rows`; `room` is for five such rows,
    of which the third adds up moves in whole steps of the grid, modulo 2^64. A move that is no number makes its round's
    sums none."""
    n_chunks, d = room.shape[0] // 5, out.shape[1]
    flat = room.reshape(room.size)
    z, sums = flat[: n_chunks * LANES], flat[2 * n_chunks * LANES : 3 * n_chunks * LANES].view(np.int64)
    # in a loop, taking a field of a tuple costs as much as a person
    rows, labels, weights, squares, absent = people
    nobody = labels.shape[0] - 1
    for j in range(d):
        z[j] = _soft(centre.shrink * z_hat[j], centre.threshold)
    for t in range(out.shape[0]):
        now = _of_round(scales, t)
        keep, step = 1 / (1 + now.l2 / now.curvature), 2 * now.relaxation
        _prepare(room, n_chunks, 2 * keep - 1)
        n_moves, finite = 0, True
        for k in range(begins[t], ends[t], 2):
            one, two = np.uintp(who[k]), np.uintp(who[k + 1] if k + 1 < ends[t] else nobody)
            score, other_score = _scores(rows, states, room, n_chunks, one, two)
            gradient_part = 0.0 if absent[one] else _gradient_part(now, score, labels[one], weights[one], squares[one])
            other_gradient_part = (
                0.0 if absent[two] else _gradient_part(now, other_score, labels[two], weights[two], squares[two])
            )
            square, other_square = _squares(
                rows, states, room, n_chunks, one, two, keep, gradient_part, other_gradient_part
            )
            fraction = 0.0 if absent[one] else step * _within(square, now.radius)
            other_fraction = 0.0 if absent[two] else step * _within(other_square, now.radius)
            n_moves, finite = n_moves + 2, finite & (square + other_square < math.inf)
            _move(states, room, n_chunks, one, two, fraction, other_fraction, 1 / now.grid)
        for j in range(d):
            whole = float(sums[j] - n_moves * _SHIFT_BITS) if finite else math.nan
            noised = (whole + out[t, j]) * now.grid
            out[t, j] = noised
            z_hat[j] += noised / centre.n
            z[j] = _soft(centre.shrink * z_hat[j], centre.threshold)


@_inlined
def _of_round(scales, t):
    g = t % scales.radius.shape[0]
    return Scales(
        scales.curvature[g],
        scales.l2[g],
        scales.relaxation[g],
        scales.radius[g],
        scales.grid[g],
        scales.tolerance[g],
        scales.strict[g],
    )


@_inlined
def _soft(v, threshold):
    return math.copysign(max(abs(v) - threshold, 0.0), v)


@_inlined
def _prepare(room, n_chunks, still):
    """z is there; beside it goes the part of a move that is the same for everybody, and a sum of nothing."""
    for c in range(n_chunks):
        z = load(room, c)
        store(room, n_chunks + c, everywhere(still, z) * z)
        store(room, 2 * n_chunks + c, everywhere(0.0, z))


@_inlined
def _scores(rows, states, room, n_chunks, one, two):
    """x . (2 z - u) of both."""
    one, two = np.intp(one) * n_chunks, np.intp(two) * n_chunks
    first = second = everywhere(0.0, load(room, 0))
    for c in range(n_chunks):
        z = load(room, c)
        first = first + load(rows, one + c) * (z + z - load(states, one + c))
        second = second + load(rows, two + c) * (z + z - load(states, two + c))
    return total(first), total(second)


@_inlined
def _gradient_part(scales, score, label, weight, square):
    """p, so that the gradient part of the step is p x; NaN where it misses a tolerance that the price relies on."""
    convexity = scales.curvature + scales.l2
    start, stiffness = score * (scales.curvature / convexity), weight * square / convexity
    slope = (start - label) / (1 + stiffness)
    if scales.strict != 0:
        off = abs((start - stiffness * slope - label) - slope)
        if not weight * math.sqrt(square) * off <= scales.tolerance:
            return math.nan
    return weight / scales.curvature * slope


@_inlined
def _squares(rows, states, room, n_chunks, one, two, keep, gradient_part, other_gradient_part):
    """|move|^2 of both, before they are clipped; move = (2 z - u - p x) keep - z, which stays in the room."""
    one, two = np.intp(one) * n_chunks, np.intp(two) * n_chunks
    like = load(room, 0)
    first = second = everywhere(0.0, like)
    kept, p, q = everywhere(keep, like), everywhere(gradient_part, like), everywhere(other_gradient_part, like)
    for c in range(n_chunks):
        still = load(room, n_chunks + c)
        move = still - kept * (load(states, one + c) + p * load(rows, one + c))
        other_move = still - kept * (load(states, two + c) + q * load(rows, two + c))
        first, second = first + move * move, second + other_move * other_move
        store(room, 3 * n_chunks + c, move)
        store(room, 4 * n_chunks + c, other_move)
    return total(first), total(second)


@_inlined
def _within(square, radius):
    """What is left of a move of this squared length where it is cut at the radius."""
    length = math.sqrt(square)
    return radius / length if length > radius else 1.0


@_inlined
def _move(states, room, n_chunks, one, two, fraction, other_fraction, steps_per_unit):
    """Both states move, and the sum by both moves, each on the grid."""
    one, two, sums = np.intp(one) * n_chunks, np.intp(two) * n_chunks, 2 * n_chunks
    like = load(room, 0)
    part, other_part = everywhere(fraction, like), everywhere(other_fraction, like)
    steps, other_steps = (
        everywhere(fraction * steps_per_unit, like),
        everywhere(other_fraction * steps_per_unit, like),
    )
    shift = everywhere(_SHIFT, like)
    for c in range(n_chunks):
        move, other_move = load(room, 3 * n_chunks + c), load(room, 4 * n_chunks + c)
        store(states, one + c, load(states, one + c) + part * move)
        store(states, two + c, load(states, two + c) + other_part * other_move)
        count = plus_bits(load(room, sums + c), move * steps + shift)
        store(room, sums + c, plus_bits(count, other_move * other_steps + shift))
