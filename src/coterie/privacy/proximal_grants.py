"""Grants of the fixed-point family: one proximal step around a public centre, and where its noise goes.

With centre z, state u and v = 2z - u, every step computes x = prox_{step f}(v) for the party's own f and moves
u+ = u + 2 relaxation (x - z). The three grants differ in what is noised (mechanisms and prices in `proximal`):

    MoveGrant      the move x - z, so that the state is a function of releases and nothing is hidden
    SumMoveGrant   the sum of all parties' moves; states stay clean and private
    StateGrant     the sum of all parties' states; states stay clean and private
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from coterie.minimisers.one_party import lies_on_a_line, minimise, slope_at_minimum
from coterie.privacy.grants import SumGrant, steps_of, untouched
from coterie.privacy.release import (
    Contribution,
    Release,
    UnitNoise,
    as_issued,
    contribute,
    keep,
    needs_public,
    private_call,
    seal,
)
from coterie.problems.losses import Loss
from coterie.problems.problem import Problem, Records
from coterie.problems.regularisers import L2


class ProxScales(NamedTuple):
    curvature: Any  # 1/step
    l2: Any  # weight of |x|^2 / 2 that the party carries inside its f
    relaxation: Any
    radius: Any  # to which the move, or the gradient part, is clipped; infinite: not at all
    noise_std: Any  # of the noise on the release, or on the sum over all parties
    steps: Any  # of the grid on which value and noise meet in one standard deviation
    tolerance: Any  # absolute bound on the gradient at which the solver stops
    strict: Any  # 1 where the price relies on the tolerance, 0 where clipping makes it moot


class _ProxGrant(SumGrant):
    Scales = ProxScales


class MoveGrant(_ProxGrant):
    """Release the party's own noised move; the noise stays in its state."""

    def noised_move(
        self, problem: Problem, records: Records, noise: UnitNoise, *, centre: jax.Array, state: jax.Array
    ) -> Release:
        """clip(prox(2 centre - state) - centre) + noise; NaN, which engines must not send, if the solver failed."""
        scales, centre = self._issued(), needs_public(centre)
        unit, _ = noise.value
        move = private_call(
            partial(_clipped_move, self.priced(problem).loss), untouched(records), needs_public(state), centre, scales
        )
        return seal(move, steps_of(unit), self._issued_grid())


class SumMoveGrant(_ProxGrant):
    """Contribute the party's move to a noised sum; its state moves without noise."""

    def move(
        self, problem: Problem, records: Records, *, centre: jax.Array, state: jax.Array
    ) -> tuple[jax.Array, Contribution]:
        """The next state, and 2 relaxation clip(prox(2 centre - state) - centre)."""
        scales, centre, state = self._issued(), needs_public(centre), as_issued(state, "state")
        move = private_call(
            partial(_clipped_move, self.priced(problem).loss), untouched(records), state, centre, scales
        )
        move = 2 * scales.relaxation * move
        return keep(state + move), contribute(move)


class StateGrant(_ProxGrant):
    """Contribute the party's state to a noised sum."""

    def advance(
        self, problem: Problem, records: Records, *, centre: jax.Array, state: jax.Array
    ) -> tuple[jax.Array, Contribution]:
        """The next state, twice: kept, and contributed. What is clipped is step * gradient(x), so that two
        neighbouring states cannot drift apart (clipping x - centre would let them)."""
        scales, centre, state = self._issued(), needs_public(centre), as_issued(state, "state")
        after = private_call(partial(_advanced, self.priced(problem).loss), untouched(records), state, centre, scales)
        return keep(after), contribute(after)


def _gradient_part(loss: Loss, records: Records, point: Any, scales: ProxScales, radius: Any) -> Any:
    """step * gradient of f at x = argmin f(x) + (l2/2) |x|^2 + (curvature/2) |x - point|^2, clipped to the radius, so
    that x = (point - that) / (1 + l2/curvature). NaN where the solver missed a tolerance that the price relies on."""
    total = scales.curvature + scales.l2
    if lies_on_a_line(loss, records):  # nothing but numbers to find, and a length to clip
        a, y, weight = records.X[0], records.y[0], records.weight[0]
        centre = point * (scales.curvature / total)
        slope, bound = slope_at_minimum(loss, a, y, weight, centre=centre, convexity=total)
        part = (weight / scales.curvature) * slope
        length = jnp.abs(part) * jnp.sqrt(jnp.sum(a * a))
        part = part * jnp.where(length > radius, radius / length, 1.0) * a
    else:
        x, bound = minimise(
            loss,
            L2(0.0),
            records,
            linear=jnp.zeros_like(point),  # pyright: ignore[reportUnknownMemberType]
            target=point * (scales.curvature / total),
            curvature=total,
            tolerance=scales.tolerance,
        )
        part = _clip(point - (total / scales.curvature) * x, radius)
    return jnp.where((bound <= scales.tolerance) | (scales.strict == 0), part, jnp.nan)


def _clip(v: Any, radius: Any) -> Any:
    norm = jnp.sqrt(jnp.sum(v * v))
    return v * jnp.where(norm > radius, radius / norm, 1.0)


def _clipped_move(loss: Loss, records: Records, state: Any, centre: Any, scales: ProxScales) -> Any:
    point = 2 * centre - state
    part = _gradient_part(loss, records, point, scales, jnp.inf)
    move = (point - part) / (1 + scales.l2 / scales.curvature) - centre
    # a party whose records say nothing stays out where moves are clipped: its price counts one move, not two
    silent = jnp.sum(records.weight[:, None] * jnp.abs(records.X)) == 0
    absent = jnp.isfinite(scales.radius) & silent
    return jnp.where(absent, 0.0, _clip(move, scales.radius))


def _advanced(loss: Loss, records: Records, state: Any, centre: Any, scales: ProxScales) -> Any:
    point = 2 * centre - state
    part = _gradient_part(loss, records, point, scales, scales.radius)
    return state + 2 * scales.relaxation * ((point - part) / (1 + scales.l2 / scales.curvature) - centre)
