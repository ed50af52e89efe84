"""One party's minimisation, by the minimiser that suits its records: what grants call (`minimise`).

A single record with one score is a search on a line, everything else is Newton's method. Minimisations that are mapped
(`jax.vmap`) over one party's records are solved together (`shared`) for engines that ask for it (`solved_together`) and
compute again what misses its tolerance that way.

**Newton's method**, the plain minimiser. A step minimises

    J(f) = sum_n w_n loss(x_n . f, y_n) + regulariser(f) + linear . f + (curvature/2) |f - target|^2

to an absolute, public bound on the gradient. Split J = S + rest with S smooth and strongly convex, and let
T(f) = prox(f - step * grad S(f)) with step < 1/Lip(S). The minimiser is the fixed point of T, and the envelope

    E(f) = S(f) + grad S(f) . (T(f) - f) + |T(f) - f|^2 / (2 step) + rest(T(f))

has the same minimiser and falls by at least a multiple of |f - T(f)|^2 when f is replaced by T(f). The solver proposes
the semismooth Newton step on f - T(f) = 0 and moves between it and T(f) until the envelope has fallen enough (the line
search of Stella, Themelis, Sopasakis and Patrinos, 2017). Hence it cannot diverge from any start, whatever the Newton
steps do; an accelerated gradient method takes over should they ever run out. With no `rest` this is damped Newton. The
factorised Newton matrix is kept while it still halves the residual |f - T(f)|: a pass over the data costs d times less
than a new Hessian.

**A single record** with one score: the minimiser lies on a line, so one number has to be found.

    argmin_f w loss(a . f, y) + (convexity/2) |f - centre|^2  =  centre - (w/convexity) loss'(s) a

where the score s = a . f solves  s + k loss'(s) = a . centre  with k = w |a|^2 / convexity. The left side grows at
least as fast as s and loss' grows too, so the root lies between a . centre and a . centre - k loss'(a . centre). A
Newton step is taken while it stays in that bracket and is at most half as long as the one before the last; else the
bracket is halved. For the squared loss the first step is exact and the only one: the Sherman-Morrison formula. Many
records at once begin with a few steps in single precision, each kept in the bracket: they cost little, and the loop in
double precision, which waits for the slowest record, then has almost nothing left to do.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from coterie.minimisers import Minimiser, Subproblem, shared
from coterie.problems import Loss, Records, Regulariser

# --- Newton's method: the plain minimiser -----------------------------------------------------------------------------

NEWTON_STEPS = 100
GRADIENT_STEPS = 200_000
KEEP_FACTOR_WHILE = 0.5
STEP_MARGIN = 0.95
SMALLEST_SHARE = 2.0**-12


class _State(NamedTuple):
    f: jax.Array
    smooth_grad: jax.Array
    # T(f)
    image: jax.Array
    # |f - T(f)|
    residual: jax.Array
    # E(f)
    envelope: jax.Array
    # what would be returned
    point: jax.Array
    # norm of a subgradient of J at `point`
    bound: jax.Array
    steps: jax.Array


class Newton(Minimiser):
    """One subproblem of one party, to its tolerance unless rounding forbids it."""

    def minimise(self, prepared: Records, batch: Subproblem) -> tuple[jax.Array, jax.Array]:
        objective = _Objective(self.loss, self.regulariser, prepared, batch)
        state = objective.state(batch.target, jnp.zeros((), jnp.int32))
        state = _newton(objective, state, batch.tolerance)
        state = _accelerated_gradient(objective, state, batch.tolerance)
        return state.point, state.bound


class _Objective:
    def __init__(self, loss: Loss, regulariser: Regulariser, records: Records, subproblem: Subproblem) -> None:
        self.loss, self.regulariser, self.records = loss, regulariser, records
        self.linear, self.target, self.curvature, _ = subproblem
        rows = jnp.sum(records.X**2, axis=1)
        # |Hessian| <= c1 * trace(X' W X) + l2 + curvature
        self.step = STEP_MARGIN / (loss.smoothness * jnp.dot(records.weight, rows) + regulariser.l2 + self.curvature)

    def scores(self, f):
        return self.records.X @ _matrix(f, self.loss.n_outputs)

    def smooth(self, f):
        """Value and gradient of S."""
        X, y, weight = self.records
        scores, away = self.scores(f), f - self.target
        slopes = self.loss.slope(scores, y)
        data_grad = (X.T @ (slopes * _column(weight, slopes))).reshape(f.shape)
        value = (
            jnp.dot(weight, self.loss.value(scores, y))
            + jnp.dot(self.linear, f)
            + 0.5 * (self.regulariser.l2 * jnp.dot(f, f) + self.curvature * jnp.dot(away, away))
        )
        return value, data_grad + self.regulariser.l2 * f + self.linear + self.curvature * away

    def hessian(self, f):
        X, weight = self.records.X, self.records.weight
        bends = self.loss.curvature(self.scores(f), self.records.y)
        if self.loss.n_outputs == 1:
            data = (X * (weight * bends)[:, None]).T @ X
        else:
            blocks = jnp.einsum("nd,nkl,ne->dkel", X, weight[:, None, None] * bends, X)
            data = blocks.reshape(f.size, f.size)
        return data + (self.regulariser.l2 + self.curvature) * jnp.eye(f.size)

    def state(self, f, steps):
        value, grad = self.smooth(f)
        image = self.regulariser.prox(f - self.step * grad, self.step)
        move = image - f
        envelope = value + jnp.dot(grad, move) + jnp.dot(move, move) / (2 * self.step) + self.regulariser.rest(image)
        point, point_grad = (f, grad) if self.regulariser.smooth else (image, self.smooth(image)[1])
        subgradient = self.regulariser.least_subgradient(point, point_grad)
        return _State(f, grad, image, _norm(move), envelope, point, _norm(subgradient), steps)

    def newton_solver(self, state: _State):
        """A function that solves the Newton system at `state` for any right-hand side."""
        hessian = self.hessian(state.f)
        if self.regulariser.smooth:
            factor = jnp.linalg.cholesky(hessian)
            return factor, lambda factor, s: -jax.scipy.linalg.cho_solve((factor, True), s.smooth_grad)
        eye = jnp.eye(state.f.size)
        slope = jax.jacfwd(self.regulariser.prox)(state.f - self.step * state.smooth_grad, self.step)
        factor = jax.scipy.linalg.lu_factor(eye - slope @ (eye - self.step * hessian))
        return factor, lambda factor, s: -jax.scipy.linalg.lu_solve(factor, s.f - s.image)


class _Search(NamedTuple):
    """Steps with one factorised Newton matrix: first a line search, then full steps while each halves the residual."""

    state: _State
    # of the Newton point in the next candidate, the rest is T(f); 0 is always good enough
    share: jax.Array
    searching: jax.Array
    stalled: jax.Array


def _newton(objective: _Objective, state: _State, tolerance) -> _State:
    def unfinished(state):
        return (state.bound > tolerance) & (state.steps < NEWTON_STEPS)

    def with_new_factor(state):
        factor, direction = objective.newton_solver(state)

        # the trial point is computed in one place only: every copy of it would be compiled again
        def trial(search):
            state = search.state
            newton_point = state.f + direction(factor, state)
            candidate = objective.state(search.share * newton_point + (1 - search.share) * state.image, state.steps)
            enough = state.envelope - 0.1 * (1 - STEP_MARGIN) / (2 * objective.step) * state.residual**2
            # never once it is zero
            halved = candidate.residual < KEEP_FACTOR_WHILE * state.residual
            # near the end the envelope drowns in rounding, and only a smaller residual tells progress
            good = halved | (search.searching & ((candidate.envelope <= enough) | (search.share == 0)))
            share = jnp.where(good, 1.0, jnp.where(search.share > SMALLEST_SHARE, search.share / 2, 0.0))
            return _Search(_choose(good, candidate, state), share, search.searching & ~good, ~search.searching & ~good)

        def going_on(search):
            return unfinished(search.state) & ~search.stalled

        state = state._replace(steps=state.steps + 1)
        start = _Search(state, jnp.ones(()), jnp.asarray(True), jnp.asarray(False))
        return jax.lax.while_loop(going_on, trial, start).state

    return jax.lax.while_loop(unfinished, with_new_factor, state)


def _accelerated_gradient(objective: _Objective, state: _State, tolerance) -> _State:
    """FISTA, restarted whenever the residual grows: where Newton stalls, this does not."""

    def unfinished(carry):
        state = carry[0]
        return (state.bound > tolerance) & (state.steps < GRADIENT_STEPS)

    def move(carry):
        state, previous, momentum = carry
        grown = (1 + jnp.sqrt(1 + 4 * momentum**2)) / 2
        ahead = state.image + (momentum - 1) / grown * (state.image - previous)
        after = objective.state(ahead, state.steps + 1)
        better = after.residual < state.residual
        # momentum 1 makes the next step a plain one, which always shrinks the residual
        kept = _choose(better | (momentum == 1.0), after, state._replace(steps=after.steps))
        return kept, state.image, jnp.where(better, grown, 1.0)

    return jax.lax.while_loop(unfinished, move, (state, state.image, jnp.ones(())))[0]


def _choose(flag, yes: Any, no: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(flag, a, b), yes, no)


def _norm(v):
    return jnp.sqrt(jnp.sum(v * v))


def _matrix(f, n_outputs):
    return f if n_outputs == 1 else f.reshape(-1, n_outputs)


def _column(weight, like):
    return weight if like.ndim == 1 else weight[:, None]


# --- a single record with one score -----------------------------------------------------------------------------------

SINGLE_STEPS = 6
# from a start that is right in single precision: the second is at rounding
DOUBLE_STEPS = 2
# times the spacing of doubles
ROUNDING = 8
# steps at least halve every other time: a double is at its rounding by then
MOST_STEPS = 100


class _LineSearch(NamedTuple):
    score: jax.Array
    low: jax.Array
    high: jax.Array
    # length of the last step
    move: jax.Array
    # and of the one before
    earlier: jax.Array
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
    # a sum of products stays fast when it is mapped over many parties, a dot does not
    square = jnp.sum(a * a)
    slope, off = slope_on_line(loss, y, start=jnp.sum(a * centre), stiffness=weight * square / convexity)
    return slope, weight * jnp.sqrt(square) * off


def slope_on_line(loss: Loss, y: Any, *, start: Any, stiffness: Any) -> tuple[jax.Array, jax.Array]:
    """loss'(s) at the root s of  s + stiffness loss'(s) = start,  and by how much it misses its own equation."""
    if loss.quadratic:
        slope = loss.slope(start, y) / (1 + stiffness * loss.curvature(start, y))
        return slope, _off(loss, y, start, stiffness, slope)
    end = start - stiffness * loss.slope(start, y)

    def newton(search: _LineSearch) -> _LineSearch:
        score, low, high, move, earlier, steps, _ = search
        moved = stiffness * loss.slope(score, y)
        gap = score + moved - start
        low, high = jnp.where(gap < 0, score, low), jnp.where(gap > 0, score, high)
        step = score - gap / (1 + stiffness * loss.curvature(score, y))
        rounding = 4 * jnp.finfo(score.dtype).eps * (jnp.abs(score) + jnp.abs(moved) + jnp.abs(start))
        done = (jnp.abs(gap) <= rounding) | (jnp.abs(step - score) <= jnp.finfo(score.dtype).eps * jnp.abs(score))
        good = done | ((step >= low) & (step <= high) & (jnp.abs(step - score) <= earlier / 2))
        after = jnp.where(good, step, (low + high) / 2)
        return _LineSearch(after, low, high, jnp.abs(after - score), move, steps + 1, done)

    nothing, undone = jnp.zeros((), jnp.int32), jnp.asarray(False)
    low, high = jnp.minimum(start, end), jnp.maximum(start, end)
    guess = _guess(loss, y, start, stiffness, low, high)
    search = _LineSearch(guess, low, high, 2 * (high - low), 2 * (high - low), nothing, undone)
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
    moved, bend = stiffness * slope, 1 + stiffness * loss.curvature(score, y)
    gap, rounding = jnp.abs(score + moved - start), ROUNDING * jnp.finfo(score.dtype).eps
    found = (gap <= rounding * bend * jnp.abs(score)) | (gap <= rounding * (jnp.abs(moved) + jnp.abs(start)))
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


# --- the minimiser that suits a party's records -----------------------------------------------------------------------

_together_from: contextvars.ContextVar[float | None] = contextvars.ContextVar("together_from", default=None)


@contextlib.contextmanager
def solved_together(smallest: float | None) -> Iterator[None]:
    """Programs that are traced inside solve mapped minimisations of parties with `smallest` records x features or more
    together, and do not try again what missed its tolerance: a second solver takes long to compile. None: each alone.
    """
    token = _together_from.set(smallest)
    try:
        yield
    finally:
        _together_from.reset(token)


def together(loss: Loss, regulariser: Regulariser, n_elements: int, smallest: float) -> bool:
    """Whether problems of a party with so many records x features can be, where it pays from `smallest` on."""
    return regulariser.smooth and loss.n_outputs == 1 and n_elements >= smallest


def minimise(
    loss: Loss,
    regulariser: Regulariser,
    records: Records,
    *,
    linear: jax.Array,
    target: jax.Array,
    curvature: jax.Array,
    tolerance: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """The minimiser and the norm of a subgradient there, which is <= tolerance unless rounding forbids it."""
    if lies_on_a_line(loss, records) and regulariser.smooth:
        return OneRecord(loss, regulariser).minimise(records, Subproblem(linear, target, curvature, tolerance))
    smallest = _together_from.get()
    if smallest is None or not together(loss, regulariser, records.X.size, smallest):
        return Newton(loss, regulariser).minimise(records, Subproblem(linear, target, curvature, tolerance))
    own = Subproblem(*map(jnp.asarray, (linear, target, curvature, tolerance)))
    return _batchable(loss, regulariser)(Records(*map(jnp.asarray, records)), own)


def _batchable(loss: Loss, regulariser: Regulariser) -> Callable[..., Any]:
    """Newton's method, with a rule of its own for many minimisations over the same records."""
    alone = Newton(loss, regulariser).minimise
    one = custom_vmap(alone)

    @one.def_vmap
    def _mapped(n, batched, records: Records, own: Subproblem):
        if any(batched[0]):
            axes = jax.tree.map(lambda has_axis: 0 if has_axis else None, tuple(batched))
            return jax.vmap(alone, in_axes=axes, axis_size=n)(records, own), (True, True)
        batch = jax.tree.map(lambda a, has_axis: a if has_axis else jnp.broadcast_to(a, (n, *a.shape)), own, batched[1])
        return shared.SharedCurvature(loss, regulariser).minimise(records, batch), (True, True)

    return one
