"""Mechanisms turn public facts into grants; a theorem's hypotheses and formulas live here and in `objective`."""

# JAX is only partly typed:
# pyright: reportUnknownMemberType=false, reportUnknownLambdaType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportIncompatibleVariableOverride=false

import dataclasses
import math
from typing import Any, Literal

from coterie.errors import InputError, PrivacyPreconditionError
from coterie.facts import Facts
from coterie.privacy.events import Adjacency, Gaussian
from coterie.privacy.grants import GradientSumGrant, Grant, issue
from coterie.privacy.noise import Law
from coterie.problems.problem import Problem
from coterie.schedules import Schedule, as_schedule
from coterie.serialise import serialisable

Unit = Literal["record", "party"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartyFacts:
    """The public constants that decide one party's grants; parties that agree in them share their grants."""

    n_records: int
    degree: int
    record_weight: float  # largest weight of one record of this party
    largest_weight: float  # the same, over all parties
    n_parties: int
    row_norm: float
    label_bound: float | None
    n_coefficients: int
    adjacency: Adjacency
    unit: Unit

    @classmethod
    def of(
        cls, party: int, problem: Problem, facts: Facts, degree: int, adjacency: Adjacency, unit: Unit
    ) -> "PartyFacts":
        return cls(
            n_records=facts.sizes[party],
            degree=degree,
            record_weight=problem.largest_record_weight(facts.sizes[party], facts),
            largest_weight=problem.largest_record_weight(min(facts.sizes), facts),
            n_parties=facts.n_parties,
            row_norm=facts.row_norm,
            label_bound=facts.label_bound,
            n_coefficients=problem.n_coefficients(facts),
            adjacency=adjacency,
            unit=unit,
        )

    def gradient_sensitivity(self, problem: Problem, weight: float) -> float:
        """G: how far the gradient of the data term can move when one record changes."""
        if self.unit != "record":
            raise PrivacyPreconditionError(f"unit: got {self.unit!r}; this mechanism is proved for 'record' only")
        if not math.isfinite(problem.loss.lipschitz):
            raise PrivacyPreconditionError(
                f"loss: {type(problem.loss).__name__} has unbounded slopes; use Huber or another Lipschitz loss"
            )
        changes = 2 if self.adjacency == "replace-one" else 1
        return changes * weight * problem.loss.lipschitz * self.row_norm

    def largest_gradient(self, problem: Problem) -> float:
        slope = problem.loss.lipschitz
        if not math.isfinite(slope):
            slope = self.label_bound or 1.0
        return self.n_records * self.record_weight * slope * self.row_norm


class Mechanism:
    """Issues the grants of one algorithm. Fields that are Schedules may vary by round and party."""

    law: Law | None  # None: no noise is drawn

    def grant(self, t: int, party: int, problem: Problem, facts: PartyFacts) -> Grant:
        raise NotImplementedError

    def with_noise(self, factor: float) -> "Mechanism":
        """The same mechanism with `factor` times as much noise."""
        raise InputError(f"mechanism: {type(self).__name__} has no noise that could be calibrated")

    def changed(self, **fields: Any) -> Any:
        return dataclasses.replace(self, **fields)  # type: ignore[type-var]

    def schedules(self) -> dict[str, Schedule]:
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # type: ignore[arg-type]
        return {name: value for name, value in fields.items() if isinstance(value, Schedule)}

    def values(self, t: int, party: int) -> tuple[float, ...]:
        """All that a grant depends on besides the party's facts."""
        return tuple(schedule.at(t, party) for schedule in self.schedules().values())

    @property
    def constant_in_time(self) -> bool:
        return all(schedule.constant_in_time for schedule in self.schedules().values())


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class GaussianGradient(Mechanism):
    """One Gaussian noise on the sum of all parties' gradients, for a curator or a secure sum."""

    noise_multiplier: Schedule
    law = "gaussian"

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise_multiplier", as_schedule("noise_multiplier", self.noise_multiplier))
        if self.noise_multiplier.per_party:
            raise InputError("noise_multiplier: got one per party; one noise is added to the sum of all")

    def with_noise(self, factor: float) -> "GaussianGradient":
        return dataclasses.replace(self, noise_multiplier=self.noise_multiplier.times(factor))

    def grant(self, t: int, party: int, problem: Problem, facts: PartyFacts) -> Grant:
        noise_std = self.noise_multiplier.at(t, party) * facts.gradient_sensitivity(problem, facts.largest_weight)
        own = facts.gradient_sensitivity(problem, facts.record_weight)
        return issue(GradientSumGrant, Gaussian(ratio=own / noise_std), noise_std=noise_std)
