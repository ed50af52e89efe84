"""Minimisations of parties: sixteen of one party at a time, or one each of many parties.

`problems` is a `Subproblem` of arrays (problem, party, d) or (problem, party). Each minimises

    sum_n w_n loss(x_n . f, y_n) + (l2/2) |f|^2 + linear . f + (curvature/2) |f - target|^2
"""

from typing import Any, NamedTuple

import numpy as np

from coterie.minimisers.native.dense import DenseRows
from coterie.minimisers.native.newton import minimise
from coterie.minimisers.native.sparse import COMMON, SparseRows
from coterie.native.kernels import kernel
from coterie.native.vectors import LANES, aligned, load, single, store


class SparseParty(NamedTuple):
    rows: SparseRows  # in single precision
    exact: SparseRows
    order: np.ndarray  # of the features in the rows


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
