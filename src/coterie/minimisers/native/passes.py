"""Passes over one party's records with logistic loss, whichever way the records are kept.

    gradient   sum_n w_n (p_n - y_n) x_n,      p = 1 / (1 + exp(-x . f))
    curvature  sum_n b_n x_n x_n',             b = w p (1 - p)

A pass may take every `stride`-th row (or block of rows) only, and count it `stride` times. Sums over many rows are
added up in parts, and the parts in double precision.
"""

from typing import Any

from numba.extending import overload

from coterie.minimisers.native import dense, sparse


def add_gradient(rows: Any, stride: Any, f: Any, bends: Any, part: Any, out: Any) -> None:
    """Onto `out`, which is in double precision; leaves b_n in `bends`."""


def add_curvature(rows: Any, stride: Any, bends: Any, p: Any, part: Any, out: Any) -> None:
    """Times p, onto `out`."""


def add_curvature_matrix(rows: Any, stride: Any, bends: Any, pairs: Any, out: Any) -> None:
    """Onto the upper half of `out`, averaged over the problems; `pairs` is room that dense rows need."""


def curvature_trace(rows: Any, stride: Any, bends: Any) -> Any:
    """Averaged over the problems."""


def _is_sparse(rows: Any) -> bool:
    return rows.instance_class is sparse.SparseRows


@overload(add_gradient)
def _add_gradient(rows, stride, f, bends, part, out):
    add = sparse.add_gradient if _is_sparse(rows) else dense.add_gradient
    return lambda rows, stride, f, bends, part, out: add(rows, stride, f, bends, part, out)


@overload(add_curvature)
def _add_curvature(rows, stride, bends, p, part, out):
    add = sparse.add_curvature if _is_sparse(rows) else dense.add_curvature
    return lambda rows, stride, bends, p, part, out: add(rows, stride, bends, p, part, out)


@overload(add_curvature_matrix)
def _add_curvature_matrix(rows, stride, bends, pairs, out):
    if _is_sparse(rows):
        return lambda rows, stride, bends, pairs, out: sparse.add_curvature_matrix(rows, stride, bends, out)
    return lambda rows, stride, bends, pairs, out: dense.add_curvature_matrix(rows, stride, bends, pairs, out)


@overload(curvature_trace)
def _curvature_trace(rows, stride, bends):
    trace = sparse.curvature_trace if _is_sparse(rows) else dense.curvature_trace
    return lambda rows, stride, bends: trace(rows, stride, bends)
