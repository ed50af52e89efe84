"""A grant is one party's permission for one round: a noise scale and the event that prices it, from one object.

Grants are made by mechanisms and cannot be altered, so noise and accounting cannot disagree. Inside a party's step a
grant carries only its scales (an array pytree); its event stays on the host with the plan.
"""

import math
from typing import Any, ClassVar, NamedTuple, cast

import jax
import jax.numpy as jnp

from coterie.errors import LeakError
from coterie.minimisers import Subproblem
from coterie.minimisers.one_party import minimise
from coterie.privacy.events import Event
from coterie.privacy.noise import Purpose, Use
from coterie.privacy.release import (
    Contribution,
    Release,
    Subtotal,
    UnitNoise,
    add_up,
    as_issued,
    contribute,
    needs_public,
    private_call,
    seal,
    seal_masked,
    seal_total,
)
from coterie.privacy.sampling import STEPS
from coterie.problems import Problem, Records

_SEAL = object()


class Grant:
    """Base: holds `scales` (public numbers for the device), `event` (None inside a party's step) and the `problem` that
    the event was priced for, as one party sees it."""

    __slots__ = ("event", "problem", "scales")
    scales: Any
    Scales: ClassVar[type]
    # the draws of a step, and where they go
    uses: ClassVar[dict[Purpose, Use]] = {"release": "value"}
    # on the value that is released, among the scales
    size_of_noise: ClassVar[str] = "noise_std"

    def __init__(self, scales: Any, event: Event | None, problem: Problem | None = None, seal: object = None) -> None:
        if seal is not _SEAL:
            raise TypeError(f"a {type(self).__name__} is made by a Mechanism, never by hand")
        object.__setattr__(self, "scales", scales)
        object.__setattr__(self, "event", event)
        object.__setattr__(self, "problem", problem)

    def __setattr__(self, name: str, value: Any) -> None:
        raise TypeError(f"a {type(self).__name__} cannot be changed: noise and price must agree")

    def __init_subclass__(cls) -> None:
        def flatten(grant: Grant) -> tuple[Any, Any]:
            return (grant.scales,), grant.problem

        jax.tree_util.register_pytree_node(  # pyright: ignore[reportUnknownMemberType]
            cls,
            flatten,
            lambda problem, children: cls(children[0], None, cast(Problem, problem), _SEAL),
        )

    @property
    def grid(self) -> Any:
        """On which the released value and its noise meet; 0 where there is no noise."""
        return getattr(self.scales, self.size_of_noise) / self.scales.steps

    def _issued(self) -> Any:
        """The scales, as they were issued."""
        return type(self.scales)(*[as_issued(scale, "scale") for scale in self.scales])

    def _issued_grid(self) -> jax.Array:
        scales = self._issued()
        return getattr(scales, self.size_of_noise) / scales.steps

    def priced(self, problem: Problem) -> Problem:
        """The problem, if it is the one that was priced."""
        if problem != cast(Problem, self.problem):
            raise LeakError(f"problem: a party's step solves {problem}, and its grant was priced for {self.problem}")
        return problem


def issue(cls: type[Any], event: Event, *, priced_for: Problem | None, **scales: float) -> Any:
    """For mechanisms only: a grant with concrete public numbers, for one party's share of a problem."""
    return cls(cls.Scales(**{name: float(value) for name, value in scales.items()}), event, priced_for, _SEAL)


def untouched(records: Records) -> Records:
    """For grants only: records as they were handed to the party's step, column by column."""
    return Records(*[as_issued(column, name) for name, column in zip(Records._fields, records, strict=True)])  # type: ignore[arg-type]


class SumNoises(NamedTuple):
    """What the noise of a sum is made of, in units of the deviation that hides what a single party puts in."""

    # independent draws
    rows: int
    # of each
    size: float

    @property
    def total(self) -> float:
        """Their deviation together, which the sum carries."""
        return self.size * math.sqrt(self.rows)

    @property
    def steps(self) -> float:
        """Steps of the grid in one unit: a draw has STEPS in its own deviation."""
        return STEPS / self.size


ONE_NOISE = SumNoises(1, 1.0)


def steps_of(unit: jax.Array, per_unit: Any = STEPS) -> jax.Array:
    """For grants only: unit noise as whole steps; those of a source that knows nothing of grids are rounded."""
    return jnp.rint(as_issued(unit, "noise") * per_unit)


class ArgminScales(NamedTuple):
    # weight of |f - target|^2 / 2; the one the theorem was checked with
    curvature: Any
    # weight of |f|^2 / 2 beyond the problem's own
    extra_l2: Any
    # of the linear term, in gradient units
    noise_scale: Any
    # of the noise that hides how far the solver is from the exact minimiser
    output_scale: Any
    # of the grid in one unit of that noise
    steps: Any
    # absolute bound on the gradient at which the solver must stop
    tolerance: Any


class ArgminGrant(Grant):
    """Objective perturbation: release the minimiser of a party's noised objective."""

    Scales = ArgminScales
    uses: ClassVar[dict[Purpose, Use]] = {"release": "objective", "output": "value"}
    size_of_noise = "output_scale"

    def argmin(
        self, problem: Problem, records: Records, noise: UnitNoise, *, linear: jax.Array, target: jax.Array
    ) -> Release:
        """argmin_f problem(f; records) + (linear + noise) . f + (curvature/2) |f - target|^2 + (extra_l2/2) |f|^2, plus
        output noise.

        A solve that misses the tolerance gives NaN, which engines and sites must not send.
        """
        release_noise, output_noise = noise.value
        records, problem = untouched(records), self.priced(problem)
        own = self._subproblem(as_issued(release_noise, "noise"), linear=linear, target=target)

        def solve(records: Records, own: Subproblem) -> Any:
            f, bound = minimise(problem.loss, problem.regulariser, records, **own._asdict())
            return jnp.where(bound <= own.tolerance, f, jnp.nan)

        return self._released(private_call(solve, records, own, like=own.target), output_noise)

    def _released(self, f: jax.Array, output_noise: jax.Array) -> Release:
        return seal(f, steps_of(output_noise, self._issued().steps), self._issued_grid())

    def _subproblem(self, release_noise: jax.Array, *, linear: jax.Array, target: jax.Array) -> Subproblem:
        """What the noised objective has besides the problem's own."""
        scales = self._issued()
        # both quadratics are one around a target nearer to zero
        total = scales.curvature + scales.extra_l2
        return Subproblem(
            linear=needs_public(linear) + scales.noise_scale * release_noise,
            target=needs_public(target) * (scales.curvature / jnp.where(total > 0, total, 1.0)),
            curvature=total,
            tolerance=scales.tolerance,
        )


class SumGrant(Grant):
    """Of what parties contribute to a sum, which is noised as one. Scales have `noise_std` and `steps`."""

    def subtotal(self, contributions: Contribution) -> Subtotal:
        """For channels and engines: the sum over the leading axis of stacked contributions."""
        return add_up(contributions.value, self._issued_grid())

    def noised_total(self, subtotal: Subtotal, units: jax.Array) -> Release:
        """For channels only: the sum with as many noises as there are rows of units."""
        return seal_total(subtotal, steps_of(units).sum(axis=0), self._issued_grid())

    def noised_alone(self, contribution: Contribution, noise: UnitNoise) -> Release:
        """What a party sends that trusts nobody: a sum of its contribution alone, with a noise of its own."""
        own, grid = as_issued(contribution.value, "contribution"), self._issued_grid()
        return seal_total(add_up(own[None], grid), steps_of(noise.value[0]), grid)

    def masked(self, contribution: Contribution, units: jax.Array, pairs: jax.Array) -> Release:
        """For channels only: one party's message in whole steps, with its own noise and what it shares with others."""
        return seal_masked(self.subtotal(contribution), steps_of(units), as_issued(pairs, "noise"))


class SumScales(NamedTuple):
    # of the noise on the sum over all parties
    noise_std: Any
    # of the grid in one standard deviation
    steps: Any
    # largest gradient of a record of weight 1; infinite: not clipped
    clip: Any


class GradientSumGrant(SumGrant):
    """Contribute a gradient; the channel adds the noise to the sum over all parties, or a party to its own."""

    Scales = SumScales

    def gradient(
        self, problem: Problem, records: Records, *, at: jax.Array, coordinates: jax.Array | None = None
    ) -> Contribution:
        """sum_n w_n grad loss(x_n . at, y_n), each record's gradient clipped; where `coordinates` are given, those of
        them that are positive, and 0 elsewhere: a part of a gradient is no longer than the whole."""
        at, clip = needs_public(at), as_issued(self.scales.clip, "scale")
        records, problem = untouched(records), self.priced(problem)
        n_outputs = problem.loss.n_outputs
        slopes = problem.loss.slope(records.X @ (at if n_outputs == 1 else at.reshape(-1, n_outputs)), records.y)
        slopes = slopes.reshape(len(records.y), -1)
        # a record's gradient is the outer product of its row and its slopes
        if coordinates is None:
            part = None
            norms = cast(jax.Array, jnp.linalg.norm(records.X, axis=1) * jnp.linalg.norm(slopes, axis=1))
        else:
            part = jnp.where(needs_public(coordinates) > 0, 1.0, 0.0)
            norms = jnp.sqrt(((records.X**2 @ part.reshape(-1, n_outputs)) * slopes**2).sum(axis=1))
        weight = records.weight * jnp.where(norms > clip, clip / norms, 1.0)
        gradient = (records.X.T @ (weight[:, None] * slopes)).reshape(at.shape)
        return contribute(gradient if part is None else gradient * part)
