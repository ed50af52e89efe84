"""Mechanisms turn public facts into grants; a theorem's hypotheses and formulas live here and in `objective`.

A grant is one party's permission for one round: a noise scale and the event that prices it, from one object. It is made
by a mechanism and cannot be altered, so noise and accounting cannot disagree. Inside a party's step a grant carries
only its scales (an array pytree); its event stays on the host with the plan.
"""

import dataclasses
import math
from typing import Any, ClassVar, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from coterie.errors import InputError, LeakError, PrivacyPreconditionError
from coterie.minimisers import Subproblem
from coterie.minimisers.one_party import minimise
from coterie.privacy.events import Adjacency, Event, Gaussian, Observer, PoissonGaussian, Unit
from coterie.privacy.noise import STEPS, Law, Purpose, Use
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
from coterie.problems import Problem, Records
from coterie.values import Facts, Schedule, ScheduleField, as_schedule, serialisable

# --- grants -----------------------------------------------------------------------------------------------------------

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
    return Records(as_issued(records.X, "X"), as_issued(records.y, "y"), as_issued(records.weight, "weight"))


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


# --- mechanisms -------------------------------------------------------------------------------------------------------

# relative: norms, slopes and quotients are some dozen roundings of 2^-53 off, and sums of d terms d of them
ROUNDED = 2.0**-32
# size of coefficients, in units of 1/row norm, up to which rounding is allowed for
LARGEST_POINT = 1e3
# relative: of coefficients in a step, which are rounded no more than sixteen times
POINT_ROUNDED = 2.0**-49
# fields that algorithms have no use for, and neutral values
_UNIT = Schedule(1.0)
_IN_GRANTS_ONLY = {"noise_multiplier": _UNIT, "noise_rate": _UNIT, "step_epsilon": _UNIT, "clip": None}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartyFacts:
    """The public constants that decide one party's grants; parties that agree in them share their grants."""

    n_records: int
    degree: int
    # largest weight of one record of this party
    record_weight: float
    # (n_records, record_weight) of the smallest and the largest party
    extremes: tuple[tuple[int, float], ...]
    n_parties: int
    row_norm: float
    label_bound: float | None
    n_coefficients: int
    adjacency: Adjacency
    unit: Unit
    # chance of taking part in a round where nobody can see who does
    secret_rate: float = 1.0
    # of a sum, where the release is one
    noise: SumNoises = ONE_NOISE

    @classmethod
    def of(
        cls,
        party: int,
        problem: Problem,
        facts: Facts,
        degree: int,
        adjacency: Adjacency,
        unit: Unit,
        secret_rate: float = 1.0,
        noise: SumNoises = ONE_NOISE,
    ) -> "PartyFacts":
        def weight(size: int) -> float:
            return problem.largest_record_weight(size, facts)

        return cls(
            n_records=facts.sizes[party],
            degree=degree,
            record_weight=weight(facts.sizes[party]),
            extremes=tuple((size, weight(size)) for size in sorted({facts.smallest, facts.largest})),
            n_parties=facts.n_parties,
            row_norm=facts.row_norm,
            label_bound=facts.label_bound,
            n_coefficients=problem.n_coefficients(facts),
            adjacency=adjacency,
            unit=unit,
            secret_rate=secret_rate,
            noise=noise,
        )

    def share(self, problem: Problem) -> Problem:
        """The problem as one party sees it."""
        return problem.share(self.n_parties)

    @property
    def changes(self) -> int:
        """Replace-one takes something away and puts something in; zero-out only takes away."""
        return 2 if self.adjacency == "replace-one" else 1

    @property
    def unit_weight(self) -> float:
        """Largest weight of what is protected: one record, or all of the party's."""
        return self.record_weight * (self.n_records if self.unit == "party" else 1)

    @property
    def extreme_parties(self) -> list["PartyFacts"]:
        """The smallest and the largest party: every sensitivity here is monotone in the number of records."""
        return [dataclasses.replace(self, n_records=size, record_weight=weight) for size, weight in self.extremes]

    @property
    def unit_is_whole_party(self) -> bool:
        return self.unit == "party" or self.n_records == 1

    def record_slope(self, problem: Problem, clip: float | None = None) -> float:
        """The largest gradient of one record of weight 1."""
        if clip is not None:
            return clip
        if not math.isfinite(problem.loss.lipschitz):
            raise PrivacyPreconditionError(
                f"loss: {type(problem.loss).__name__} has unbounded slopes; use Huber or another Lipschitz loss"
            )
        return problem.loss.lipschitz * self.row_norm

    def gradient_sensitivity(self, problem: Problem) -> float:
        """G of one record: how far the gradient of the data term can move when it changes."""
        if self.unit != "record":
            raise PrivacyPreconditionError(f"unit: got {self.unit!r}; this mechanism is proved for 'record' only")
        return self.changes * self.record_weight * self.record_slope(problem)

    def summation_error(self, slope: float) -> float:
        """How far a sum of the party's gradients in double precision can be from the exact one, in whatever order."""
        return (self.n_records + self.n_coefficients) * 2.0**-53 * self.n_records * self.record_weight * slope

    def gradient_rounding(self, problem: Problem, slope: float, convexity: float) -> float:
        """How far the gradient that a solver computes, and stops by, can be from the true one where its result is
        used: the sum is rounded, the scores at which slopes are taken, and the coefficients themselves."""
        scores = self.n_coefficients * 2.0**-53 * LARGEST_POINT
        bends = self.n_records * self.record_weight * problem.loss.smoothness * self.row_norm
        return self.summation_error(slope) + bends * scores + convexity * self.point_rounding

    @property
    def point_rounding(self) -> float:
        """How far coefficients of a step are from those that real numbers would have."""
        return POINT_ROUNDED * LARGEST_POINT / self.row_norm

    def largest_gradient(self, problem: Problem) -> float:
        slope = problem.loss.lipschitz
        if not math.isfinite(slope):
            slope = self.label_bound or 1.0
        return self.n_records * self.record_weight * slope * self.row_norm


class Mechanism:
    """Issues the grants of one algorithm. Fields that are Schedules may vary by round and party."""

    # every mechanism is a dataclass
    __dataclass_fields__: ClassVar[dict[str, Any]]
    # None: no noise is drawn
    law: Law | None

    def grant(self, t: int, party: int, problem: Problem, facts: PartyFacts) -> Grant:
        raise NotImplementedError

    def with_noise(self, factor: float) -> "Mechanism":
        """The same mechanism with `factor` times as much noise."""
        raise InputError(
            f"mechanism: {type(self).__name__} has no noise that could be calibrated to epsilon; an algorithm with "
            "noise is needed"
        )

    def seen_by(self, observer: Observer, event: Event, problem: Problem, facts: PartyFacts) -> Event:
        """What a release costs against this observer; the loss against everybody bounds it for anybody."""
        return event

    def beyond_grants(self) -> "Mechanism":
        """The same but for levels of noise and clipping, which no step depends on except through its grants."""
        neutral = {name: value for name, value in _IN_GRANTS_ONLY.items() if getattr(self, name, None) is not None}
        return self.changed(**neutral) if neutral else self

    def changed(self, **fields: Any) -> Any:
        return dataclasses.replace(self, **fields)

    def schedules(self) -> dict[str, Schedule]:
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {name: value for name, value in fields.items() if isinstance(value, Schedule)}

    def values(self, t: int, party: int) -> tuple[float, ...]:
        """All that a grant depends on besides the party's facts."""
        return tuple(schedule.at(t, party) for schedule in self.schedules().values())

    @property
    def constant_in_time(self) -> bool:
        return all(schedule.constant_in_time for schedule in self.schedules().values())

    @property
    def changing_rounds(self) -> int | None:
        """How many rounds may have grants of their own, those of later ones being the last of these; None: all."""
        return 1 if self.constant_in_time else None


def output_event(change: float, noise_std: float, facts: PartyFacts) -> Gaussian:
    """`grid_event` for a value of as many numbers as a party has coefficients."""
    return grid_event(change, noise_std, facts.n_coefficients, facts.noise)


def grid_event(change: float, noise_std: float, d: float, noise: SumNoises = ONE_NOISE) -> Gaussian:
    """The event of Gaussian noise on a finished value of d numbers that can move by `change` if computed exactly.

    The value is put on the noise's grid g first, which moves each of d numbers by at most g/2; whole steps k plus a
    rounded Gaussian round(S Z) are round(k + S Z), a function of a Gaussian release whose sensitivity is change +
    g sqrt(d). So is the sum of several rounded Gaussians (docs/guarantees.md). ROUNDED covers the rounding of single
    operations.
    """
    spread = math.sqrt(d) / noise.steps
    return Gaussian(ratio=(change / noise_std + spread) * (1 + ROUNDED))


def sampled(event: Gaussian, facts: PartyFacts) -> Event:
    """The event of a release in which a party takes part by a secret coin.

    Zero-out of everything the party could put in: the release is then a mixture of a Gaussian and a shifted one,
    however the shift depends on the past (docs/guarantees.md). Replace-one has no such theorem here.
    """
    if facts.secret_rate == 1.0:
        return event
    if facts.adjacency != "zero-out" or not facts.unit_is_whole_party:
        raise PrivacyPreconditionError(
            f"selection: secret, with adjacency={facts.adjacency!r} and unit={facts.unit!r} for {facts.n_records} "
            "records a party; amplification is proved for zero-out of all that a party holds: give it a public seed"
        )
    return PoissonGaussian(ratio=event.ratio, rate=facts.secret_rate)


def check_clip(clip: float | None) -> None:
    if clip is not None and not (clip > 0 and math.isfinite(clip)):
        raise InputError(f"clip: got {clip}; a positive finite number or None is needed")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GradientNoise(Mechanism):
    """One Gaussian noise on a sum of gradients. `clip` bounds the gradient of each record (of weight 1), which a loss
    with unbounded slopes needs."""

    noise_multiplier: ScheduleField
    clip: float | None = None
    law = "gaussian"

    def __post_init__(self) -> None:
        check_clip(self.clip)
        object.__setattr__(self, "noise_multiplier", as_schedule("noise_multiplier", self.noise_multiplier))
        if self.noise_multiplier.per_party:
            raise InputError("noise_multiplier: got one per party; one noise is added to the sum of all")

    def with_noise(self, factor: float) -> Any:
        return dataclasses.replace(self, noise_multiplier=self.noise_multiplier.times(factor))

    def priced_gradient(self, t: int, party: int, problem: Problem, facts: PartyFacts) -> tuple[Event, float]:
        """The event of the noised sum, and the standard deviation of its noise."""
        slope = facts.changes * facts.record_slope(problem, self.clip)
        largest = max(other.unit_weight for other in facts.extreme_parties)
        noise_std = self.noise_multiplier.at(t, party) * slope * largest
        change = slope * facts.unit_weight + 2 * facts.summation_error(facts.record_slope(problem, self.clip))
        return sampled(output_event(change, noise_std, facts), facts), noise_std


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class GaussianGradient(GradientNoise):
    """One Gaussian noise on the sum of all parties' gradients, for a curator or a secure sum; or one on each party's,
    where nobody is trusted, sized for the largest."""

    def grant(self, t: int, party: int, problem: Problem, facts: PartyFacts) -> Grant:
        event, noise_std = self.priced_gradient(t, party, problem, facts)
        return issue(
            GradientSumGrant,
            event,
            priced_for=facts.share(problem),
            noise_std=noise_std,
            steps=facts.noise.steps,
            clip=math.inf if self.clip is None else self.clip,
        )


# --- noise on tables of counts: one for each party's table, or one for the sum of all --------------------------------


class TableScales(NamedTuple):
    noise_std: Any
    steps: Any


class TableGrant(SumGrant):
    Scales = TableScales

    @classmethod
    def of(
        cls, sensitivity: float, multiplier: float, size: int, noise: SumNoises = ONE_NOISE, tables: float = 1.0
    ) -> "TableGrant":
        """For tables of `size` cells that move by at most `sensitivity`, in the 2-norm, between neighbours. Where that
        is so many tables together, each is put on the grid by itself."""
        noise_std = multiplier * sensitivity
        event = grid_event(sensitivity, noise_std, size * tables**2, noise)
        return issue(cls, event, priced_for=None, noise_std=noise_std, steps=noise.steps)

    def counted(self, tables: np.ndarray) -> Contribution:
        """Tables of several parties, (party, cell), for a sum."""
        return contribute(jnp.asarray(tables))  # pyright: ignore[reportUnknownMemberType]

    def noised(self, tables: np.ndarray, noise: UnitNoise) -> Release:
        """Each party's own, (party, cell)."""
        return seal(jnp.asarray(tables), steps_of(noise.value[0]), self._issued_grid())  # pyright: ignore[reportUnknownMemberType]
