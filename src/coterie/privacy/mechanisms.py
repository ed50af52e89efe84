"""Mechanisms turn public facts into grants; a theorem's hypotheses and formulas live here and in `objective`."""

import dataclasses
import math
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np

from coterie.errors import InputError, PrivacyPreconditionError
from coterie.facts import Facts
from coterie.privacy.events import Adjacency, Event, Gaussian, Observer, PoissonGaussian, Unit
from coterie.privacy.grants import ONE_NOISE, GradientSumGrant, Grant, SumGrant, SumNoises, issue, steps_of
from coterie.privacy.noise import Law
from coterie.privacy.release import Contribution, Release, UnitNoise, contribute, seal
from coterie.problems import Problem
from coterie.schedules import Schedule, ScheduleField, as_schedule
from coterie.serialise import serialisable

# relative: norms, slopes and quotients are some dozen roundings of 2^-53 off, and sums of d terms d of them
ROUNDED = 2.0**-32
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
        raise InputError(f"mechanism: {type(self).__name__} has no noise that could be calibrated")

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


def grid_event(change: float, noise_std: float, d: int, noise: SumNoises = ONE_NOISE) -> Gaussian:
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
    def of(cls, sensitivity: float, multiplier: float, size: int, noise: SumNoises = ONE_NOISE) -> "TableGrant":
        """For tables of `size` cells that move by at most `sensitivity`, in the 2-norm, between neighbours."""
        noise_std = multiplier * sensitivity
        event = grid_event(sensitivity, noise_std, size, noise)
        return issue(cls, event, priced_for=None, noise_std=noise_std, steps=noise.steps)

    def counted(self, tables: np.ndarray) -> Contribution:
        """Tables of several parties, (party, cell), for a sum."""
        return contribute(jnp.asarray(tables))  # pyright: ignore[reportUnknownMemberType]

    def noised(self, tables: np.ndarray, noise: UnitNoise) -> Release:
        """Each party's own, (party, cell)."""
        return seal(jnp.asarray(tables), steps_of(noise.value[0]), self._issued_grid())  # pyright: ignore[reportUnknownMemberType]
