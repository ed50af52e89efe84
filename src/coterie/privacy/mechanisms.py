"""Mechanisms turn public facts into grants; a theorem's hypotheses and formulas live here and nowhere else.

Objective perturbation, one step of one party (derivation in docs/guarantees.md):
    strong convexity   Lambda = l2/N + curvature             of the part that does not depend on the data
    gradient bound     G = 2 w L X (replace-one), w L X (zero-out)       w: largest weight of one record
    Jacobian bound     k = w c1 X^2 / Lambda                 one record's Hessian over Lambda
Gamma noise of rate s costs s G + r ln(1 + k); Gaussian noise is priced by `events.GaussianObjective`.
"""

# JAX is only partly typed:
# pyright: reportUnknownMemberType=false, reportUnknownLambdaType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportIncompatibleVariableOverride=false

import dataclasses
import math
from typing import Literal

from coterie.errors import InputError, PrivacyPreconditionError
from coterie.facts import Facts
from coterie.privacy.events import Adjacency, Both, Event, Gaussian, GaussianObjective, Pure, Unprotected
from coterie.privacy.grants import ArgminGrant, GradientSumGrant, Grant, issue
from coterie.privacy.noise import Law
from coterie.problems.problem import Problem
from coterie.schedules import Schedule, as_schedule
from coterie.serialise import serialisable

Unit = Literal["record", "party"]

# the solver stops at this fraction of the largest gradient that can occur: far above rounding, far below any noise
TOLERANCE_SHARE = 1e-11
# the output noise that hides the solver's error costs this fraction of the step's own noise ratio
OUTPUT_SHARE = 1e-3


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
        raise NotImplementedError

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
class NoNoise(Mechanism):
    """The exact minimiser, released as it is: no privacy."""

    penalty: Schedule
    law = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "penalty", as_schedule("penalty", self.penalty))

    def grant(self, t: int, party: int, problem: Problem, facts: PartyFacts) -> Grant:
        curvature = 2 * self.penalty.at(t, party) * facts.degree
        _strong_convexity(problem, facts, curvature)
        tolerance = TOLERANCE_SHARE * facts.largest_gradient(problem)
        return issue(
            ArgminGrant, Unprotected(), curvature=curvature, noise_scale=0, output_scale=0, tolerance=tolerance
        )


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class PenaltyPerturbation(Mechanism):
    """Noise inside the penalty term eta_i |f + noise - midpoint|^2, that is, linear noise in the objective.

    Exactly one of `noise_multiplier` (Gaussian; standard deviation over gradient sensitivity) and `noise_rate`
    (gamma; the papers' alpha, density of the noise vector proportional to exp(-alpha |noise|)).
    """

    penalty: Schedule
    noise_multiplier: Schedule | None = None
    noise_rate: Schedule | None = None

    def __post_init__(self) -> None:
        if (self.noise_multiplier is None) == (self.noise_rate is None):
            raise InputError(
                f"noise_multiplier, noise_rate: got {self.noise_multiplier}, {self.noise_rate}; exactly one is needed"
            )
        for name in ("penalty", "noise_multiplier", "noise_rate"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, as_schedule(name, getattr(self, name)))

    @property
    def law(self) -> Law:
        return "gaussian" if self.noise_rate is None else "gamma-sphere"

    def with_noise(self, factor: float) -> "PenaltyPerturbation":
        if self.noise_multiplier is not None:
            return dataclasses.replace(self, noise_multiplier=self.noise_multiplier.times(factor))
        assert self.noise_rate is not None
        return dataclasses.replace(self, noise_rate=self.noise_rate.times(1 / factor))

    def grant(self, t: int, party: int, problem: Problem, facts: PartyFacts) -> Grant:
        curvature = 2 * self.penalty.at(t, party) * facts.degree  # 2 eta_i V_i
        if self.noise_multiplier is not None:
            return gaussian_argmin_grant(problem, facts, curvature, multiplier=self.noise_multiplier.at(t, party))
        assert self.noise_rate is not None
        if facts.degree == 0:
            raise PrivacyPreconditionError(
                "noise_rate: gamma noise enters through the penalty, and a party without neighbours has none; "
                "use noise_multiplier"
            )
        return gamma_argmin_grant(problem, facts, curvature, rate=self.noise_rate.at(t, party) / curvature)


def gaussian_argmin_grant(problem: Problem, facts: PartyFacts, curvature: float, *, multiplier: float) -> Grant:
    """Linear noise b ~ N(0, std^2 I) with std = multiplier * G."""
    convexity = _strong_convexity(problem, facts, curvature)
    sensitivity = facts.gradient_sensitivity(problem, facts.record_weight)
    noise_std = multiplier * sensitivity
    tolerance = _tolerance(problem, facts, noise_std * math.sqrt(facts.n_coefficients))
    output_ratio = OUTPUT_SHARE / multiplier
    return issue(
        ArgminGrant,
        Both(
            (
                GaussianObjective(
                    ratio=1 / multiplier,
                    jacobian=_jacobian(problem, facts, convexity),
                    rank=problem.loss.rank,
                    adjacency=facts.adjacency,
                    margin=problem.loss.margin,
                ),
                # two solvers that each stop within tolerance/Lambda of the same point
                Gaussian(ratio=output_ratio),
            )
        ),
        curvature=curvature,
        noise_scale=noise_std,
        output_scale=2 * tolerance / convexity / output_ratio,
        tolerance=tolerance,
    )


def gamma_argmin_grant(problem: Problem, facts: PartyFacts, curvature: float, *, rate: float) -> Grant:
    """Linear noise b with density proportional to exp(-rate |b|)."""
    convexity = _strong_convexity(problem, facts, curvature)
    noise_loss = rate * facts.gradient_sensitivity(problem, facts.record_weight)
    tolerance = _tolerance(problem, facts, facts.n_coefficients / rate)
    jacobian_loss = problem.loss.rank * math.log1p(_jacobian(problem, facts, convexity))
    if problem.loss.self_bounded and rate * convexity >= facts.row_norm:
        jacobian_loss = 0.0  # s p + ln(1 + w X^2 p (1 - p) / Lambda) is largest at p = 1
    output_loss = OUTPUT_SHARE * noise_loss
    event: Event = Both((Pure(noise_loss + jacobian_loss), Pure(output_loss)))
    return issue(
        ArgminGrant,
        event,
        curvature=curvature,
        noise_scale=1 / rate,
        output_scale=2 * tolerance / convexity / output_loss,
        tolerance=tolerance,
    )


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


def _strong_convexity(problem: Problem, facts: PartyFacts, curvature: float) -> float:
    convexity = problem.penalty.l2 / facts.n_parties + curvature
    if not (convexity > 0 and math.isfinite(convexity)):
        raise PrivacyPreconditionError(
            f"penalty: l2/N + 2*penalty*degree is {convexity}; it must be positive for the minimiser to exist"
        )
    return convexity


def _jacobian(problem: Problem, facts: PartyFacts, convexity: float) -> float:
    return facts.record_weight * problem.loss.smoothness * facts.row_norm**2 / convexity


def _tolerance(problem: Problem, facts: PartyFacts, noise_norm: float) -> float:
    return TOLERANCE_SHARE * (facts.largest_gradient(problem) + noise_norm)
