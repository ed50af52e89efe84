"""Steps of grants in parts, or for many people at once: for engines that compute in between by code of their own.

The doors are those of `release`, the scales those of the grant, and nobody else is handed them. No algorithm may use
what is here.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coterie.errors import LeakError
from coterie.minimisers import Subproblem
from coterie.minimisers.one_party import slope_in_few_steps, slope_on_line
from coterie.privacy.events import Unprotected
from coterie.privacy.mechanisms import ArgminGrant, issue, steps_of
from coterie.privacy.noise import STEPS
from coterie.privacy.proximal import ProxScales, StateGrant, SumMoveGrant
from coterie.privacy.release import (
    Contribution,
    Release,
    Subtotal,
    UnitNoise,
    add_up_along,
    as_issued,
    contribute,
    keep,
    seal_kernel,
    seal_total,
)
from coterie.problems import L2, Loss, Problem, Records, Squared


# --- minimisations: what is asked of `ArgminGrant`, and its answer ----------------------------------------------------
def asked(
    grant: ArgminGrant, problem: Problem, noise: UnitNoise, *, linear: jax.Array, target: jax.Array
) -> Subproblem:
    """What is to be minimised together with the problem, if it is the one that was priced, over the party's records."""
    grant.priced(problem)
    release_noise, _ = noise.value
    release_noise = as_issued(release_noise, "noise")
    return grant._subproblem(release_noise, linear=linear, target=target)  # pyright: ignore[reportPrivateUsage]


def answered(grant: ArgminGrant, noise: UnitNoise, f: jax.Array, bound: jax.Array) -> Release:
    """The minimiser with its output noise; NaN, which engines must not send, where the norm of its gradient misses the
    tolerance."""
    _, output_noise = noise.value
    f = jnp.where(bound <= as_issued(grant.scales.tolerance, "scale"), f, jnp.nan)
    return grant._released(f, output_noise)  # pyright: ignore[reportPrivateUsage]


# --- `StateGrant`: people with one record, whose state is a number instead of a vector --------------------------------

# With u = common + multiple x and a step's gradient part p x,  u + 2 r ((2 centre - u - p x)/k - centre)  has that form
# again. What is left for each person is the score of a row, one number to find, and a multiple of the row in the sum.


class People(NamedTuple):
    """One record each of many people."""

    # (n_people, d), in double precision or in single
    X: Any
    y: Any
    weight: Any
    # |x|^2
    square: Any


class PeopleStates(NamedTuple):
    """Everybody's state is common + multiple * x: a step adds multiples of public vectors and of one's own row x."""

    # (d,)
    common: Any
    # (n_people,)
    multiple: Any


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
    score = jnp.sum(rows * point[None], axis=1) - states.multiple * people.square
    slope, off = solve(loss, people.y, score * (scales.curvature / total), people.weight * people.square / total)
    length = jnp.sqrt(people.square)
    part = (people.weight / scales.curvature) * slope
    part = part * jnp.where(jnp.abs(part) * length > scales.radius, scales.radius / (jnp.abs(part) * length), 1.0)
    sound = (people.weight * length * off <= scales.tolerance) | (scales.strict == 0)
    part = jnp.where(sound, part, jnp.nan)
    step = 2 * scales.relaxation
    after = PeopleStates(
        states.common + step * (point / shrink - centre), states.multiple - step * (states.multiple + part) / shrink
    )
    multiples = contribute(after.multiple).value
    subtotal = add_up_along(after.common, multiples, rows, grant._issued_grid())  # pyright: ignore[reportPrivateUsage]
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


# --- `SumMoveGrant`: people with one record and squared loss, in machine code -----------------------------------------

# For everybody at work, with centre z, state u, record (x, y) of weight w and k = curvature + l2,
#
#     start = x . (2z - u) curvature / k          slope = (start - y) / (1 + w |x|^2 / k)
#     move  = (2z - u - (w / curvature) slope x) / (1 + l2 / curvature) - z
#
# which is `proximal._clipped_move` with the minimiser in closed form (`minimisers`). The move is clipped to the
# grant's radius, is nothing where moves are clipped and the record says nothing, and is not a number where it misses a
# tolerance that the price relies on. State and sum grow by 2 relaxation times it, in the sum each on the grid of the
# noise; with whole steps of noise added, the sum is released.
#
# The kernel is `native.moves`. It is handed its scales here and nowhere else, what it computes leaves through a door of
# `release`, and `check_kernel` compares it with the general step before it is used.


def can_take(grants: Sequence[Any], problem: Problem, n_people: int) -> bool:
    """Whether these steps are the grants' own, and sums of clipped moves stay below 2^51 steps."""
    if not (type(problem.loss) is Squared and all(type(grant) is SumMoveGrant for grant in grants)):
        return False
    return all(n_people * (2 * g.scales.relaxation * g.scales.radius / g.grid + 1) < 2.0**51 for g in grants)


class PeopleMoves:
    """The steps of many people with one record each, under grants by round: `index`, (rounds,), says which."""

    def __init__(self, grants: Sequence[SumMoveGrant], index: np.ndarray, share: Problem, records: Records) -> None:
        """`records` are arrays (n_people, 1, ...)."""
        from coterie.native import moves

        for grant in grants:
            grant.priced(share)
        issued = [{**grant.scales._asdict(), "grid": grant.grid} for grant in grants]
        columns = {name: np.array([scales[name] for scales in issued])[index] for name in moves.Scales._fields}
        self.kernel, self.scales = moves, moves.Scales(**columns)
        X, y, weight = (np.asarray(column[:, 0], float) for column in records)
        # as in `_clipped_move`: their price counts one move, not two
        absent = (weight * np.abs(X).sum(axis=1) == 0) & np.isfinite(self.scales.radius).all()
        # nobody's record is at the end
        y, weight, square = (np.append(column, 0.0) for column in (y, weight, np.einsum("ij,ij->i", X, X)))
        self.people = moves.People(moves.in_lanes(X, extra_rows=1), y, weight, square, np.append(absent, True))
        self.room_rows = 5 * moves.chunks(X.shape[1])

    def states(self) -> np.ndarray:
        """All zero."""
        return self.kernel.aligned(len(self.people.rows), self.kernel.LANES)

    def advance(
        self,
        start: int,
        units: np.ndarray,
        *,
        centre: tuple[float, float, float],
        at_work: tuple[np.ndarray, np.ndarray, np.ndarray],
        states: np.ndarray,
        z_hat: np.ndarray,
    ) -> Release:
        """Rounds from `start` on, one for each row of unit noise, (rounds, d). `centre` is (shrink, threshold, n),
        `at_work` who works, and where each round's begin and end; `states` and `z_hat` change in place."""
        end, scales = start + len(units), self.scales
        if len(scales.radius) > 1:
            scales = type(scales)(*(column[start:end] for column in scales))
        who, begins, ends = at_work
        out = np.rint(units * STEPS)
        room = self.kernel.aligned(self.room_rows, self.kernel.LANES)
        centre_of = self.kernel.Centre(*centre)
        self.kernel.advance(
            self.people, scales, centre_of, who, begins[start:end], ends[start:end], states, z_hat, room, out
        )
        return seal_kernel(out)


@functools.cache
def check_kernel() -> None:
    """Refuse a kernel that does not release what the grant's own step releases, of made-up people in two rounds with
    everything that a step can meet: clipped moves, records that say nothing, an odd number at work."""
    rng = np.random.default_rng(0)
    n, d, grid = 7, 5, 2.0**-6
    rows = rng.normal(size=(n, 1, d))
    rows[3] = 0.0
    records = Records(rows, rng.normal(size=(n, 1)), np.full((n, 1), 0.5))
    problem = Problem(loss=Squared(), regulariser=L2(0.0), record_weight=1.0)
    scales = ProxScales(0.7, 0.1, 0.5, radius=0.4, noise_std=STEPS * grid, steps=STEPS, tolerance=1.0, strict=0.0)
    grant = issue(SumMoveGrant, Unprotected(), priced_for=problem, **scales._asdict())
    units = rng.integers(-5, 6, size=(2, d)) / STEPS
    steps = PeopleMoves([grant], np.zeros(1, int), problem, records)
    states, z_hat, everybody = steps.states(), np.zeros(d), np.arange(n, dtype=np.uint32)
    at_work = np.concatenate([everybody, everybody]), np.array([0, n]), np.array([n, 2 * n])
    found = steps.advance(0, units, centre=(1.0, 0.0, float(n)), at_work=at_work, states=states, z_hat=z_hat).value

    def of_one(record: Any, state: Any, centre: Any) -> Any:
        return grant.move(problem, Records(*record), centre=centre, state=state)

    expected: list[np.ndarray] = []
    own_states, z = np.zeros((n, d)), np.zeros(d)
    with jax.enable_x64(True):
        for unit in units:
            own_states, moves = jax.vmap(of_one, in_axes=(0, 0, None))(tuple(records), own_states, z)
            expected.append(np.asarray(_noised(grant, moves, unit)))
            z = z + expected[-1] / n
    if not np.allclose(found, np.stack(expected), rtol=0, atol=1.5 * grid):
        raise LeakError("people's moves in machine code are not those that their grant prices")


def _noised(grant: SumMoveGrant, moves: Contribution, unit: np.ndarray) -> Any:
    steps = steps_of(jnp.asarray(unit))  # pyright: ignore[reportUnknownMemberType]
    return seal_total(grant.subtotal(moves), steps, grant._issued_grid()).value  # pyright: ignore[reportPrivateUsage]
