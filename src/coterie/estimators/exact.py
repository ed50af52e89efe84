"""The optimum without noise: all records in one place, for epsilon = infinity."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from coterie.data.federation import Federation
from coterie.errors import LocalSolveError
from coterie.minimisers.one_party import minimise
from coterie.problems import L2, ElasticNet, Loss, Problem, Records, Regulariser

# of the largest gradient that can occur
TOLERANCE_SHARE = 1e-12
LEAST_ROWS, LEAST_COLUMNS = 64, 8
# a lasso without l2 is solved by proximal point steps: each adds this share of the largest curvature
PROXIMAL_SHARE = 1e-4
PROXIMAL_STEPS = 2000


def minimiser(problem: Problem, federation: Federation) -> np.ndarray:
    """argmin of the pooled problem, as one coefficient vector."""
    X, y, weight = (np.concatenate(column) for column in zip(*map(problem.records, federation.shards), strict=True))
    loss, regulariser, scale, rest = problem.loss, problem.regulariser, 1.0, L2(0.0)
    # in units of l1, so that every l1 is one program
    if isinstance(regulariser, ElasticNet) and regulariser.l1 > 0:
        scale, rest = 1 / regulariser.l1, ElasticNet(0.0, 1.0)
    n_rows, n_columns = _padded(len(y), LEAST_ROWS), _padded(X.shape[1], LEAST_COLUMNS)
    records = Records(
        np.pad(X, ((0, n_rows - len(y)), (0, n_columns - X.shape[1]))),
        np.pad(y, (0, n_rows - len(y))),
        np.pad(weight * scale, (0, n_rows - len(y))),
    )
    facts, total = federation.facts, float(records.weight.sum())
    slope = loss.lipschitz if np.isfinite(loss.lipschitz) else facts.label_bound or 1.0
    l2, curvature = regulariser.l2 * scale, total * loss.smoothness * facts.row_norm**2
    tolerance = TOLERANCE_SHARE * max(total * slope * facts.row_norm, l2)
    if rest.smooth or l2 >= PROXIMAL_SHARE * curvature:
        extra, most_steps = 0.0, 1
    else:
        extra, most_steps = PROXIMAL_SHARE * curvature, PROXIMAL_STEPS
    solve, point, left = _solver(loss, rest), np.zeros(n_columns * loss.n_outputs), np.inf
    for _ in range(most_steps):
        # (l2/2)|f|^2 + (extra/2)|f - point|^2 is one square, around a shrunk point
        around = extra / (l2 + extra) * point if extra else np.zeros_like(point)
        with jax.enable_x64(True):
            after, bound = map(np.asarray, solve(records, around, l2 + extra, tolerance))
        # a subgradient of the problem itself
        left = float(bound) + extra * float(np.linalg.norm(after - point))
        point = after
        if left <= 2 * tolerance:
            break
    if not left <= 1e3 * tolerance:
        raise LocalSolveError(f"the optimum was reached up to a gradient of {left / scale:.3g} only; raise l2")
    return point.reshape(n_columns, loss.n_outputs)[: X.shape[1]].ravel()


@functools.lru_cache(maxsize=64)
def _solver(loss: Loss, regulariser: Regulariser) -> Any:
    """Compiled once per loss and padded shape; zero columns keep coefficient zero, padding rows have no weight."""

    def solve(records: Records, target: Any, curvature: Any, tolerance: Any) -> Any:
        nothing = jnp.zeros_like(target)
        return minimise(
            loss, regulariser, records, linear=nothing, target=target, curvature=curvature, tolerance=tolerance
        )

    return jax.jit(solve)


def _padded(n: int, least: int) -> int:
    """The next power of two: few shapes, few compilations."""
    return max(least, 1 << (n - 1).bit_length())
