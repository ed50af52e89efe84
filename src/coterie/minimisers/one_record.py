"""The minimiser for a single record with one score: it lies on a line, so one number has to be found.

    argmin_f w loss(a . f, y) + (convexity/2) |f - centre|^2  =  centre - (w/convexity) loss'(s) a

where the score s = a . f solves  s + k loss'(s) = a . centre  with k = w |a|^2 / convexity. The left side grows at
least as fast as s and loss' grows too, so the root lies between a . centre and a . centre - k loss'(a . centre). A
Newton step is taken while it stays in that bracket and is at most half as long as the one before the last; else the
bracket is halved. For the squared loss the first step is exact and the only one: the Sherman-Morrison formula.

Many records at once begin with a few steps in single precision, each kept in the bracket: they cost little, and the
loop in double precision, which waits for the slowest record, then has almost nothing left to do.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from coterie.minimisers.base import Minimiser, Subproblem
from coterie.problems.losses import Loss
from coterie.problems.problem import Records

SINGLE_STEPS = 6
DOUBLE_STEPS = 2  # from a start that is right in single precision: the second is at rounding
ROUNDING = 8  # times the spacing of doubles
MOST_STEPS = 100  # steps at least halve every other time: a double is at its rounding by then


class _Search(NamedTuple):
    score: jax.Array
    low: jax.Array
    high: jax.Array
    move: jax.Array  # length of the last step
    earlier: jax.Array  # and of the one before
    steps: jax.Array
    done: jax.Array


class OneRecord(Minimiser):
    """One subproblem of a party with one record, under a smooth regulariser."""

    def minimise(self, prepared: Records, batch: Subproblem) -> tuple[jax.Array, jax.Array]:
        X, y, weight = prepared
        convexity = self.regulariser.l2 + batch.curvature
        centre = (batch.curvature * batch.target - batch.linear) / convexity
        slope, bound = slope_at_minimum(self.loss, X[0], y[0], weight[0], centre=centre, convexity=convexity)
        return centre - (weight[0] / convexity) * slope * X[0], bound


def lies_on_a_line(loss: Loss, records: Records) -> bool:
    """One record with one score: the minimiser is the centre plus a multiple of its row."""
    return len(records.y) == 1 and loss.n_outputs == 1


def slope_at_minimum(
    loss: Loss, a: Any, y: Any, weight: Any, *, centre: Any, convexity: Any
) -> tuple[jax.Array, jax.Array]:
    """loss'(s), so that the minimiser is centre - (weight/convexity) loss'(s) a, and the norm of the gradient there."""
    square = jnp.sum(a * a)  # a sum of products stays fast when it is mapped over many parties, a dot does not
    slope, off = slope_on_line(loss, y, start=jnp.sum(a * centre), stiffness=weight * square / convexity)
    return slope, weight * jnp.sqrt(square) * off


def slope_on_line(loss: Loss, y: Any, *, start: Any, stiffness: Any) -> tuple[jax.Array, jax.Array]:
    """loss'(s) at the root s of  s + stiffness loss'(s) = start,  and by how much it misses its own equation."""
    if loss.quadratic:
        slope = loss.slope(start, y) / (1 + stiffness * loss.curvature(start, y))
        return slope, _off(loss, y, start, stiffness, slope)
    end = start - stiffness * loss.slope(start, y)

    def newton(search: _Search) -> _Search:
        score, low, high, move, earlier, steps, _ = search
        pull = stiffness * loss.slope(score, y)
        gap = score + pull - start
        low, high = jnp.where(gap < 0, score, low), jnp.where(gap > 0, score, high)
        step = score - gap / (1 + stiffness * loss.curvature(score, y))
        rounding = 4 * jnp.finfo(score.dtype).eps * (jnp.abs(score) + jnp.abs(pull) + jnp.abs(start))
        done = (jnp.abs(gap) <= rounding) | (jnp.abs(step - score) <= jnp.finfo(score.dtype).eps * jnp.abs(score))
        good = done | ((step >= low) & (step <= high) & (jnp.abs(step - score) <= earlier / 2))
        after = jnp.where(good, step, (low + high) / 2)
        return _Search(after, low, high, jnp.abs(after - score), move, steps + 1, done)

    nothing, undone = jnp.zeros((), jnp.int32), jnp.asarray(False)
    low, high = jnp.minimum(start, end), jnp.maximum(start, end)
    guess = _guess(loss, y, start, stiffness, low, high)
    search = _Search(guess, low, high, 2 * (high - low), 2 * (high - low), nothing, undone)
    search = jax.lax.while_loop(lambda s: ~s.done & (s.steps < MOST_STEPS), newton, search)
    slope = loss.slope(search.score, y)
    return slope, _off(loss, y, start, stiffness, slope)


def slope_in_few_steps(loss: Loss, y: Any, *, start: Any, stiffness: Any) -> tuple[jax.Array, jax.Array]:
    """As `slope_on_line`, for arrays, in a fixed number of steps without a loop; NaN where they are too few."""
    end = start - stiffness * loss.slope(start, y)
    low, high = jnp.minimum(start, end), jnp.maximum(start, end)
    score = _guess(loss, y, start, stiffness, low, high)
    for _ in range(DOUBLE_STEPS):
        gap, bend = score + stiffness * loss.slope(score, y) - start, 1 + stiffness * loss.curvature(score, y)
        score = jnp.clip(score - gap / bend, low, high)
    slope = loss.slope(score, y)
    pull, bend = stiffness * slope, 1 + stiffness * loss.curvature(score, y)
    gap, rounding = jnp.abs(score + pull - start), ROUNDING * jnp.finfo(score.dtype).eps
    found = (gap <= rounding * bend * jnp.abs(score)) | (gap <= rounding * (jnp.abs(pull) + jnp.abs(start)))
    return jnp.where(found, slope, jnp.nan), _off(loss, y, start, stiffness, slope)


def _off(loss: Loss, y: Any, start: Any, stiffness: Any, slope: jax.Array) -> jax.Array:
    """By how much a slope misses the one at the score it leads to."""
    return jnp.abs(loss.slope(start - stiffness * slope, y) - slope)


def _guess(loss: Loss, y: Any, start: Any, stiffness: Any, low: Any, high: Any) -> jax.Array:
    """Near the root, in the bracket; wherever single precision fails it is `start`, which lies in the bracket too."""
    origin, stiff, least, most, label = (jnp.asarray(a, jnp.float32) for a in (start, stiffness, low, high, y))
    score = origin
    for _ in range(SINGLE_STEPS):
        gap = score + stiff * loss.slope(score, label) - origin
        score = jnp.clip(score - gap / (1 + stiff * loss.curvature(score, label)), least, most)
    guess = jnp.clip(jnp.asarray(score, start.dtype), low, high)
    return jnp.where(jnp.isfinite(guess), guess, start)
