"""The plain minimiser: one party's step to an absolute, public bound on the gradient.

The step minimises  J(f) = sum_n w_n loss(x_n . f, y_n) + regulariser(f) + linear . f + (curvature/2) |f - target|^2.
Split J = S + rest with S smooth and strongly convex, and let T(f) = prox(f - step * grad S(f)) with step < 1/Lip(S).
The minimiser is the fixed point of T, and the envelope

    E(f) = S(f) + grad S(f) . (T(f) - f) + |T(f) - f|^2 / (2 step) + rest(T(f))

has the same minimiser and falls by at least a multiple of |f - T(f)|^2 when f is replaced by T(f). The solver proposes
the semismooth Newton step on f - T(f) = 0 and moves between it and T(f) until the envelope has fallen enough (the line
search of Stella, Themelis, Sopasakis and Patrinos, 2017). Hence it cannot diverge from any start, whatever the Newton
steps do; an accelerated gradient method takes over should they ever run out. With no `rest` this is damped Newton.

The factorised Newton matrix is kept while it still halves the residual |f - T(f)|: a pass over the data costs d times
less than a new Hessian.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from coterie.minimisers.base import Minimiser, Subproblem
from coterie.problems.losses import Loss
from coterie.problems.problem import Records
from coterie.problems.regularisers import Regulariser

NEWTON_STEPS = 100
GRADIENT_STEPS = 200_000
KEEP_FACTOR_WHILE = 0.5
STEP_MARGIN = 0.95
SMALLEST_SHARE = 2.0**-12


class _State(NamedTuple):
    f: jax.Array
    smooth_grad: jax.Array
    image: jax.Array  # T(f)
    residual: jax.Array  # |f - T(f)|
    envelope: jax.Array  # E(f)
    point: jax.Array  # what would be returned
    bound: jax.Array  # norm of a subgradient of J at `point`
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
    share: jax.Array  # of the Newton point in the next candidate, the rest is T(f); 0 is always good enough
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
            halved = candidate.residual < KEEP_FACTOR_WHILE * state.residual  # never once it is zero
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
