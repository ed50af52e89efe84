"""Minimisers of  data(f) + (convexity/2) |f|^2 + linear . f  to a bound on the gradient, by Newton's method.

Newton's systems are solved by conjugate gradients in single precision, scaled to the size of the gradient and
preconditioned by the curvature of a part of the records, averaged over the problems. The first turns look at a part of
the records only and the next in single precision; a result counts only if its gradient, in double precision and over
all records, is within the tolerance. A step that made a gradient larger is halved (along Newton's direction the norm of
the gradient falls at first).
"""

from typing import Any, NamedTuple

import numpy as np

from coterie.minimisers.native.passes import (
    COMMON,
    DenseRows,
    SparseRows,
    add_curvature,
    add_curvature_matrix,
    add_gradient,
    curvature_trace,
)
from coterie.native.kernels import jit, kernel
from coterie.native.vectors import (
    LANES,
    aligned,
    double,
    everywhere,
    largest,
    load,
    negative,
    root,
    single,
    store,
    where_positive,
)

# of Newton's method; of conjugate gradients in a turn
MOST_TURNS, MOST_STEPS = 30, 60
# two or three are usual; a tolerance below rounding is never met
MOST_EXACT_TURNS = 6
# the first turns take every eighth row, of
THIN = 8
# for each feature
MANY_ROWS = 40
# of the first gradient: about where the other rows are missed
THIN_ENDS = 0.03
# of the first gradient: where single precision does
SINGLE_ENDS = 1e-5
# what a turn may leave of a gradient
LOOSEST, TIGHTEST = 0.1, 1e-6
# of the tolerance: who aims at the tolerance itself often just misses it
STOP_SHARE = 0.25
# for each feature, in the preconditioner
SAMPLE_ROWS = 5
# of the preconditioner, over its trace
ROUNDING = 1e-6
# trace of the data's curvature over the convexity, up to which no preconditioner pays
WELL_CONDITIONED = 4


class Room(NamedTuple):
    """What one thread needs for problems with d coefficients; vectors are (d, 16), or (d,) for one problem."""

    f: Any
    linear: Any
    # one row, and so have
    convexity: Any
    tolerance: Any
    norm: Any
    bends: Any
    part_single: Any
    part_double: Any
    pairs: Any
    f_single: Any
    gradient: Any
    # of the system
    left: Any
    # that, preconditioned
    ready: Any
    direction: Any
    # curvature times the direction
    ahead: Any
    step: Any
    # (d, d) the curvature of a part of the records,
    matrix: Any
    # its factor in single precision
    lower: Any
    # and that, transposed
    upper: Any


def room(n_rows: int, d: int, *, sparse: bool) -> Room:
    vector, number = ((d, LANES), (1, LANES)) if sparse else ((d,), (1,))
    return Room(
        f=aligned(*vector),
        linear=aligned(*vector),
        convexity=aligned(*number),
        tolerance=aligned(*number),
        norm=aligned(*number),
        bends=aligned(n_rows if sparse else -(-n_rows // LANES), LANES, dtype=np.float32),
        part_single=aligned(d, LANES, dtype=np.float32),
        part_double=aligned(d, LANES),
        pairs=aligned(1 if sparse else d * (d + 1) // 2, LANES, dtype=np.float32),
        f_single=aligned(*vector, dtype=np.float32),
        gradient=aligned(*vector),
        left=aligned(*vector, dtype=np.float32),
        ready=aligned(*vector, dtype=np.float32),
        direction=aligned(*vector, dtype=np.float32),
        ahead=aligned(*vector, dtype=np.float32),
        step=aligned(*vector, dtype=np.float32),
        matrix=np.zeros((d, d)),
        lower=np.zeros((d, d), np.float32),
        upper=np.zeros((d, d), np.float32),
    )


@jit
def minimise(rows, exact_rows, room):
    """From `room.f` on, which becomes the minimiser; the norm of its gradient goes into `room.norm`, or infinity where
    it was not computed in double precision over all records. `rows` are in single precision."""
    f, d = room.f, room.f.shape[0]
    n_rows = rows.y.size
    thin, sample = n_rows >= MANY_ROWS * d, max(1, n_rows // (SAMPLE_ROWS * d))
    curvature, enough = load(room.convexity, 0), load(room.tolerance, 0)
    stride, exact, moved = (THIN if thin else 1), False, False
    first = norm = before = enough
    verified = everywhere(np.inf, enough)
    share, scale, factored, exact_turns = LOOSEST, norm, False, 0
    for turn in range(MOST_TURNS):
        _gradient(rows, exact_rows, stride, exact, curvature, room)
        norm = root(_dot(room.gradient, room.gradient))
        exact_turns += exact
        if exact and (largest(norm - enough) <= 0 or exact_turns == MOST_EXACT_TURNS):
            verified = norm
            break
        if moved and largest(norm - before) > 0:
            half = everywhere(0.5, norm)
            back = where_positive(norm - before, half, half - half)
            for j in range(d):
                step = double(load(room.step, j)) * scale
                store(f, j, load(f, j) - back * step)
                store(room.step, j, load(room.step, j) * single(everywhere(1, norm) - back))
            continue
        if turn == 0:
            first = _or_one(norm)
            factored = _find_preconditioner(rows, stride * max(1, sample // stride), curvature, room)
        if exact:
            share = TIGHTEST
        elif moved:
            fall = largest(norm / _or_one(before))
            share = max(min(LOOSEST, 0.9 * fall * fall), TIGHTEST)
        else:
            share = LOOSEST
        before, scale = norm, _or_one(norm)
        least = everywhere(STOP_SHARE, norm) * enough / scale
        aim = everywhere(share, norm)
        _solve(rows, stride, factored, curvature, scale, where_positive(aim - least, aim, least), room)
        for j in range(d):
            store(f, j, load(f, j) + double(load(room.step, j)) * scale)
        moved = True
        expected = share * largest(norm / first)
        if stride > 1:
            if expected < THIN_ENDS:
                # another function: its gradient may well be larger
                stride, moved = 1, False
        elif not exact and expected < SINGLE_ENDS:
            exact, moved = True, False
    store(room.norm, 0, verified)


@jit
def _or_one(norm):
    """To divide by: a problem may be solved before it begins."""
    return where_positive(norm, norm, everywhere(1, norm))


@jit
def _gradient(rows, exact_rows, stride, exact, curvature, room):
    f, d = room.f, room.f.shape[0]
    for j in range(d):
        store(room.gradient, j, curvature * load(f, j) + load(room.linear, j))
    if exact:
        add_gradient(exact_rows, stride, f, room.bends, room.part_double, room.gradient)
    else:
        for j in range(d):
            store(room.f_single, j, single(load(f, j)))
        add_gradient(rows, stride, room.f_single, room.bends, room.part_single, room.gradient)


@jit
def _find_preconditioner(rows, stride, curvature, room):
    """A factor of the curvature, where one is worth its while. By hand: compiling the way to LAPACK takes longer than
    everything else here."""
    trace, convexity = curvature_trace(rows, stride, room.bends), largest(curvature)
    if trace <= WELL_CONDITIONED * convexity:
        return False
    upper, d = room.matrix, room.matrix.shape[0]
    for a in range(d):
        for b in range(d):
            upper[a, b] = 0
    add_curvature_matrix(rows, stride, room.bends, room.pairs, upper)
    for a in range(d):
        upper[a, a] += convexity + ROUNDING * trace
    for a in range(d):
        pivot = np.sqrt(upper[a, a])
        for b in range(a, d):
            upper[a, b] /= pivot
            room.upper[a, b] = room.lower[b, a] = upper[a, b]
        for i in range(a + 1, d):
            factor = upper[a, i]
            for b in range(i, d):
                upper[i, b] -= factor * upper[a, b]
    return True


@jit
def _precondition(room, factored):
    d, out = room.left.shape[0], room.ready
    for j in range(d):
        store(out, j, load(room.left, j))
    if not factored:
        return
    for j in range(d):
        x = load(out, j) / everywhere(room.lower[j, j], load(out, j))
        store(out, j, x)
        for i in range(j + 1, d):
            store(out, i, load(out, i) - everywhere(room.upper[j, i], x) * x)
    for j in range(d - 1, -1, -1):
        x = load(out, j) / everywhere(room.lower[j, j], load(out, j))
        store(out, j, x)
        for i in range(j):
            store(out, i, load(out, i) - everywhere(room.lower[j, i], x) * x)


@jit
def _solve(rows, stride, factored, curvature, scale, aim, room):
    """curvature . step = -gradient/scale, until what is left has norm `aim`."""
    d = room.step.shape[0]
    convexity, enough = single(curvature), single(aim * aim)
    for j in range(d):
        store(room.left, j, single(negative(load(room.gradient, j) / scale)))
        store(room.step, j, everywhere(0, convexity))
    _precondition(room, factored)
    fall = _dot(room.left, room.ready)
    for j in range(d):
        store(room.direction, j, load(room.ready, j))
    for _ in range(MOST_STEPS):
        for j in range(d):
            store(room.ahead, j, convexity * load(room.direction, j))
        add_curvature(rows, stride, room.bends, room.direction, room.part_single, room.ahead)
        bend = _dot(room.direction, room.ahead)
        length = where_positive(bend, fall / bend, everywhere(0, bend))
        for j in range(d):
            store(room.step, j, load(room.step, j) + length * load(room.direction, j))
            store(room.left, j, load(room.left, j) - length * load(room.ahead, j))
        if not largest(_dot(room.left, room.left) - enough) > 0:
            break
        _precondition(room, factored)
        after = _dot(room.left, room.ready)
        turn = where_positive(fall, after / fall, everywhere(0, fall))
        fall = after
        for j in range(d):
            store(room.direction, j, load(room.ready, j) + turn * load(room.direction, j))


@jit
def _dot(a, b):
    product = load(a, 0) * load(b, 0)
    for j in range(1, a.shape[0]):
        product = product + load(a, j) * load(b, j)
    return product


# --- parties: sixteen problems of one at a time, or one problem each of many ------------------------------------------


class SparseParty(NamedTuple):
    # in single precision
    rows: SparseRows
    exact: SparseRows
    # of the features in the rows
    order: np.ndarray


def sparse_party(X: np.ndarray, y: np.ndarray, weight: np.ndarray) -> SparseParty:
    """Every row takes as many places as the fullest one."""
    order = np.argsort(-np.count_nonzero(X, axis=0), kind="stable")
    common, rest = X[:, order[:COMMON]], X[:, order[COMMON:]]
    width = int(np.count_nonzero(rest, axis=1).max())
    columns = np.argsort(rest == 0, axis=1, kind="stable")[:, :width]
    values = np.take_along_axis(rest, columns, axis=1)
    columns = (columns + COMMON).astype(np.uint32)

    def rows(dtype: Any) -> SparseRows:
        numbers = (np.ascontiguousarray(a, dtype) for a in (values, y, weight))
        return SparseRows(np.ascontiguousarray(common, dtype), columns, *numbers)

    return SparseParty(rows(np.float32), rows(np.float64), order)


def dense_rows(parties: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> tuple[DenseRows, np.ndarray]:
    """Of all parties one after another, and where each begins, in blocks."""
    d = parties[0][0].shape[1]
    starts = np.cumsum([0, *(-(-len(y) // LANES) for _, y, _ in parties)])
    values, labels, weights = aligned(starts[-1] * d, LANES), aligned(starts[-1], LANES), aligned(starts[-1], LANES)
    for start, end, (X, y, weight) in zip(starts, starts[1:], parties, strict=False):
        whole = (end - start) * LANES
        for column, out in ((y, labels), (weight, weights)):
            out[start:end].reshape(-1)[: len(column)] = column
        filled = np.zeros((whole, d))
        filled[: len(X)] = X
        values[start * d : end * d] = filled.reshape(-1, LANES, d).transpose(0, 2, 1).reshape(-1, LANES)
    return DenseRows(values, labels, weights), starts


def single_rows(n_rows: int, d: int) -> DenseRows:
    """Room for the records of one party."""
    n_blocks = -(-n_rows // LANES)
    return DenseRows(*(aligned(n, LANES, dtype=np.float32) for n in (n_blocks * d, n_blocks, n_blocks)))


@kernel
def minimise_sixteen(own, l2, party, chosen, problems, room, f, norms):
    """The problems `chosen`, sixteen of them or some of them twice, of one party."""
    d = f.shape[2]
    for lane in range(LANES):
        problem = chosen[lane]
        curvature = problems.curvature[problem, party]
        room.convexity[0, lane] = l2 + curvature
        room.tolerance[0, lane] = problems.tolerance[problem, party]
        for j in range(d):
            target = problems.target[problem, party, own.order[j]]
            room.f[j, lane] = target
            room.linear[j, lane] = problems.linear[problem, party, own.order[j]] - curvature * target
    minimise(own.rows, own.exact, room)
    for lane in range(LANES):
        norms[chosen[lane], party] = room.norm[0, lane]
        for j in range(d):
            f[chosen[lane], party, own.order[j]] = room.f[j, lane]


@kernel
def minimise_each(rows, starts, l2, parties, problems, near_room, room, f, norms):
    """All problems of some parties, one by one; `near_room` is for one party's rows in single precision."""
    d = f.shape[2]
    for party in parties:
        start, end = starts[party], starts[party + 1]
        exact = DenseRows(rows.values[start * d : end * d], rows.y[start:end], rows.weight[start:end])
        near = DenseRows(
            near_room.values[: exact.values.shape[0]], near_room.y[: end - start], near_room.weight[: end - start]
        )
        for to, column in ((near.values, exact.values), (near.y, exact.y), (near.weight, exact.weight)):
            for row in range(column.shape[0]):
                store(to, row, single(load(column, row)))
        for problem in range(f.shape[0]):
            curvature = problems.curvature[problem, party]
            room.convexity[0] = l2 + curvature
            room.tolerance[0] = problems.tolerance[problem, party]
            for j in range(d):
                room.f[j] = problems.target[problem, party, j]
                room.linear[j] = problems.linear[problem, party, j] - curvature * room.f[j]
            minimise(near, exact, room)
            norms[problem, party] = room.norm[0]
            for j in range(d):
                f[problem, party, j] = room.f[j]
