"""Many minimisations over one party's records at once: repeats of a run differ in noise and centre, not in data.

Preconditioned conjugate gradients (Polak & Ribiere 1969, restarted where they would turn back) on all right-hand sides
together, so that a step is two matrix products for all of them. Scores are linear in the coefficients: with X p at hand
the curvature along p costs one pass over the scores and no product. One curvature, averaged over the right-hand sides
and taken from a part of the records, preconditions them all; it only has to be near.

They run in single precision: first on the objective itself, then on Newton corrections to what is left of the gradient
in double precision. That gradient is computed afresh at every point that may be returned, and is what counts.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from coterie.minimisers import Minimiser, Subproblem
from coterie.problems import Loss, Records, Squared

# of conjugate gradients; eight are usual
MOST_STEPS = 40
# one or two are usual
MOST_CORRECTIONS = 4
# of the first gradient: where single precision ends
FIRST_SHARE = 5e-7
CORRECTION_SHARE = 1e-6
# of the tolerance: a correction that aimed at the tolerance itself would often just miss it
STOP_SHARE = 0.25
# of single precision
SPACING = 1.2e-7
# of a matrix product in single precision, over the trace
ROUNDING = 1e-6
# for each feature, in the shared curvature
SAMPLE_ROWS = 10


class SharedCurvature(Minimiser):
    """Of one party; `batch` has a leading axis, and so have the minimisers and the norms of their gradients, which
    should be, and need not be, within the tolerances."""

    # a GPU would round single precision to ten bits
    @jax.default_matmul_precision("highest")
    def minimise(self, prepared: Records, batch: Subproblem) -> tuple[jax.Array, jax.Array]:
        loss, (X, y, weight) = self.loss, prepared
        convexity = (self.regulariser.l2 + batch.curvature)[:, None]
        # gradient: data + convexity f + linear
        linear = batch.linear - batch.curvature[:, None] * batch.target
        rows, stop = _single(X), STOP_SHARE * batch.tolerance
        inverses = _inverse_curvatures(loss, (rows, y, weight), _single(batch.target), convexity)
        single = rows, _single(convexity), jax.tree.map(_single, inverses)
        labelled = (loss, _single(y)[None], _single(weight)[None])
        start = _descend(labelled, *single, _single(linear), _single(batch.target), _single(stop), FIRST_SHARE)

        def verified(f, count):
            scores = f @ X.T
            gradient = (weight[None] * loss.slope(scores, y[None])) @ X + convexity * f + linear
            return f, scores, gradient, jnp.sqrt(_dot(gradient, gradient)), count

        def going_on(carry):
            return jnp.any(carry[3] > batch.tolerance) & (carry[4] < MOST_CORRECTIONS)

        def correct(carry):
            f, scores, gradient, _, count = carry
            bends = weight[None] * loss.curvature(scores, y[None])
            quadratic = (Squared(), jnp.zeros((1, 1), jnp.float32), _single(bends))
            step = _descend(
                quadratic, *single, _single(gradient), _single(jnp.zeros_like(f)), _single(stop), CORRECTION_SHARE
            )
            return verified(f + step.astype(f.dtype), count + 1)

        f, _, _, bound, _ = jax.lax.while_loop(going_on, correct, verified(start.astype(linear.dtype), 0))
        return f, bound


class _Inverses(NamedTuple):
    """Of the shared curvature with the least and the largest convexity; in between, a mixture that is right where the
    data bend much and where they do not bend at all."""

    least: jax.Array
    largest: jax.Array
    # of the first
    share: jax.Array

    def __call__(self, gradient: jax.Array) -> jax.Array:
        if len(gradient) == 1:
            return gradient @ self.largest
        return self.share * (gradient @ self.least) + (1 - self.share) * (gradient @ self.largest)


def _inverse_curvatures(loss: Loss, records: Any, points: jax.Array, convexity: jax.Array) -> _Inverses:
    """Of rows and points in single precision; inverted in double, so that no rounding makes them indefinite."""
    n, d = records[0].shape
    X, y, weight = jax.tree.map(lambda a: a[:: max(1, n // (SAMPLE_ROWS * d))], records)
    bends = _single(jnp.mean(loss.curvature(points @ X.T, _single(y)[None]), axis=0))
    data = (X * (_single(weight) * bends)[:, None]).T @ X
    data = data.astype(convexity.dtype) * ratio(jnp.sum(records[2]), jnp.sum(weight))

    def inverse(convexity):
        factor = jnp.linalg.cholesky(data + (convexity + ROUNDING * jnp.trace(data)) * jnp.eye(d))
        return jax.scipy.linalg.cho_solve((factor, True), jnp.eye(d))

    least, largest = jnp.min(convexity), jnp.max(convexity)
    share = ratio(1 / convexity - 1 / largest, 1 / least - 1 / largest)
    return _Inverses(inverse(least), inverse(largest), share)


class _State(NamedTuple):
    f: jax.Array
    scores: jax.Array
    # weighted curvatures of the loss there
    bends: jax.Array
    gradient: jax.Array
    direction: jax.Array
    # gradient . preconditioned gradient
    fall: jax.Array
    steps: jax.Array


def _descend(weighted_loss, X, convexity, inverses, linear, start, stop, share) -> jax.Array:
    """From `start` until every gradient of  sum_n w_n loss(x_n . f, y_n) + (convexity/2) |f|^2 + linear . f  is within
    `stop` or `share` of the first one."""
    loss, y, weight = weighted_loss

    def at(f, scores):
        gradient = (weight * loss.slope(scores, y)) @ X + convexity * f + linear
        return weight * loss.curvature(scores, y), gradient

    def going_on(state: _State):
        return jnp.any(_dot(state.gradient, state.gradient) > enough**2) & (state.steps < MOST_STEPS)

    def step(state: _State):
        ahead = state.direction @ X.T
        bend = jnp.sum(state.bends * ahead**2, axis=1, keepdims=True)
        bend += convexity * _dot(state.direction, state.direction)[:, None]
        length = ratio(-_dot(state.gradient, state.direction)[:, None], bend)
        f, scores = state.f + length * state.direction, state.scores + length * ahead
        bends, after = at(f, scores)
        ready = inverses(after)
        turn = jnp.maximum(ratio(_dot(ready, after - state.gradient), state.fall), 0.0)[:, None]
        return _State(f, scores, bends, after, turn * state.direction - ready, _dot(after, ready), state.steps + 1)

    scores = start @ X.T
    bends, first = at(start, scores)
    enough = jnp.maximum(stop, share * jnp.sqrt(_dot(first, first)))
    # a sum with this in it cannot be told from less
    enough = jnp.maximum(enough, SPACING * jnp.sqrt(_dot(linear, linear)))
    ready = inverses(first)
    state = _State(start, scores, bends, first, -ready, _dot(first, ready), jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(going_on, step, state).f


def _single(a):
    return a.astype(jnp.float32)


def _dot(a, b):
    return jnp.sum(a * b, axis=1)


def ratio(a, b):
    """a / b, and 0 where b is."""
    return jnp.where(b > 0, a / jnp.where(b > 0, b, 1.0), 0.0)
