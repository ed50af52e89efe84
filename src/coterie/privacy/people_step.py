"""Steps of `proximal_grants.StateGrant` for many people with one record each: a number a person instead of a vector.

With u = common + share x and a step's gradient part p x,  u + 2 r ((2 centre - u - p x)/k - centre)  has that form
again. What is left for each person is the score of a row, one number to find, and a share of the row in the sum.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from coterie.minimisers.one_record import slope_in_few_steps, slope_on_line
from coterie.privacy.proximal_grants import StateGrant
from coterie.privacy.release import Subtotal, add_up_along, contribute, keep
from coterie.problems.losses import Loss
from coterie.problems.problem import Problem


class People(NamedTuple):
    """One record each of many people."""

    X: Any  # (n_people, d), in double precision or in single
    y: Any
    weight: Any
    square: Any  # |x|^2


class PeopleStates(NamedTuple):
    """Everybody's state is common + share * x: a step adds multiples of public vectors and of the person's own row."""

    common: Any  # (d,)
    share: Any  # (n_people,)


# (loss, y, start, stiffness) -> what `slope_on_line` gives, of all people
Solver = Callable[[Loss, jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array]]


def advance_people(
    grant: StateGrant, problem: Problem, people: People, *, centre: jax.Array, states: PeopleStates, solve: Solver
) -> tuple[PeopleStates, Subtotal]:
    """For engines: what `StateGrant.advance` does, for all people at once, and the sum of what they contribute, each on
    the grid of the noise."""
    loss, scales = grant.priced(problem).loss, grant._issued()  # pyright: ignore[reportPrivateUsage]
    total, shrink = scales.curvature + scales.l2, 1 + scales.l2 / scales.curvature
    point = 2 * centre - states.common
    # multiplied and summed, not a matrix product: rows of single precision are read once, and added up in double
    rows = people.X.astype(point.dtype)
    score = jnp.sum(rows * point[None], axis=1) - states.share * people.square
    slope, off = solve(loss, people.y, score * (scales.curvature / total), people.weight * people.square / total)
    length = jnp.sqrt(people.square)
    part = (people.weight / scales.curvature) * slope
    part = part * jnp.where(jnp.abs(part) * length > scales.radius, scales.radius / (jnp.abs(part) * length), 1.0)
    sound = (people.weight * length * off <= scales.tolerance) | (scales.strict == 0)
    part = jnp.where(sound, part, jnp.nan)
    step = 2 * scales.relaxation
    after = PeopleStates(
        states.common + step * (point / shrink - centre), states.share - step * (states.share + part) / shrink
    )
    shares = contribute(after.share).value
    subtotal = add_up_along(after.common, shares, rows, grant._issued_grid())  # pyright: ignore[reportPrivateUsage]
    return jax.tree.map(keep, after), subtotal


def few_enough(grant: StateGrant, n_people: int) -> bool:
    """Whether the sum of so many people's states stays exact. Their distances from what is common shrink by |1 - pull|
    and grow by at most pull times the grant's radius in every step."""
    scales = grant.scales
    pull = 2 * scales.relaxation / (1 + scales.l2 / scales.curvature)
    return n_people * (scales.radius * pull / (1 - abs(1 - pull)) / grant.grid + 1) < 2.0**52


def with_search(loss: Loss, y: jax.Array, start: jax.Array, stiffness: jax.Array) -> tuple[jax.Array, jax.Array]:
    """As many steps as the slowest person needs: a loop, in which everything is read and written in every step."""

    def of_one(y: jax.Array, start: jax.Array, stiffness: jax.Array) -> tuple[jax.Array, jax.Array]:
        return slope_on_line(loss, y, start=start, stiffness=stiffness)

    return jax.vmap(of_one)(y, start, stiffness)


def in_few_steps(loss: Loss, y: jax.Array, start: jax.Array, stiffness: jax.Array) -> tuple[jax.Array, jax.Array]:
    """No loop, and NaN for whoever needs more steps."""
    return slope_in_few_steps(loss, y, start=start, stiffness=stiffness)
