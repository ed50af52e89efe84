"""Mechanisms that release the minimiser of a noised objective, or a minimiser with noise on top."""

# `law` is a property where it depends on which noise was given:
# pyright: reportIncompatibleVariableOverride=false

import dataclasses
import math

from coterie.errors import InputError, PrivacyPreconditionError
from coterie.privacy.argmin_bounds import OUTPUT_SHARE, ArgminBounds
from coterie.privacy.grants import Grant
from coterie.privacy.mechanisms import Mechanism, PartyFacts
from coterie.privacy.noise import Law
from coterie.problems.problem import Problem
from coterie.schedules import NOT_GIVEN, OptionalScheduleField, ScheduleField, as_schedule
from coterie.serialise import serialisable


class _GraphMechanism(Mechanism):
    """Has a penalty eta_i(t), which gives a party with V_i neighbours the curvature 2 eta_i V_i."""

    penalty: ScheduleField

    def bounds(self, t: int, party: int, problem: Problem, facts: PartyFacts) -> ArgminBounds:
        return ArgminBounds(problem, facts, curvature=2 * self.penalty.at(t, party) * facts.degree)


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class NoNoise(_GraphMechanism):
    """The exact minimiser, released as it is: no privacy."""

    penalty: ScheduleField
    law = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "penalty", as_schedule("penalty", self.penalty))

    def grant(self, t: int, party: int, problem: Problem, facts: PartyFacts) -> Grant:
        return self.bounds(t, party, problem, facts).exact()


class _GammaOrGaussian(Mechanism):
    """Exactly one of `noise_multiplier` (Gaussian: standard deviation over sensitivity) and `noise_rate` (gamma)."""

    noise_multiplier: OptionalScheduleField
    noise_rate: OptionalScheduleField

    def __post_init__(self) -> None:
        if (self.noise_multiplier is None) == (self.noise_rate is None):
            raise InputError(
                f"noise_multiplier, noise_rate: got {self.noise_multiplier}, {self.noise_rate}; exactly one is needed"
            )
        for name in ("penalty", "noise_multiplier", "noise_rate"):
            if getattr(self, name, None) is not None:
                object.__setattr__(self, name, as_schedule(name, getattr(self, name)))

    @property
    def law(self) -> Law:
        return "gaussian" if self.noise_rate is None else "gamma-sphere"

    def with_noise(self, factor: float) -> Mechanism:
        if self.noise_multiplier is not None:
            return self.changed(noise_multiplier=self.noise_multiplier.times(factor))
        assert self.noise_rate is not None
        return self.changed(noise_rate=self.noise_rate.times(1 / factor))

    def levels(self, t: int, party: int) -> tuple[float | None, float | None]:
        """(multiplier, rate) of this round, one of them None."""
        multiplier = None if self.noise_multiplier is None else self.noise_multiplier.at(t, party)
        return multiplier, None if self.noise_rate is None else self.noise_rate.at(t, party)


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class PenaltyPerturbation(_GammaOrGaussian, _GraphMechanism):
    """Noise inside the penalty term eta_i |f + noise - midpoint|^2: linear noise 2 eta_i V_i noise . f.

    `noise_rate` is the paper's alpha: density of the noise vector proportional to exp(-alpha |noise|).
    """

    penalty: ScheduleField
    noise_multiplier: OptionalScheduleField = NOT_GIVEN
    noise_rate: OptionalScheduleField = NOT_GIVEN

    def grant(self, t: int, party: int, problem: Problem, facts: PartyFacts) -> Grant:
        bounds, (multiplier, rate) = self.bounds(t, party, problem, facts), self.levels(t, party)
        if multiplier is not None:
            return bounds.with_gaussian_noise(multiplier)
        assert rate is not None
        if facts.degree == 0:
            raise PrivacyPreconditionError(
                "noise_rate: gamma noise enters through the penalty, and a party without neighbours has none; "
                "use noise_multiplier"
            )
        return bounds.with_gamma_noise(rate / bounds.curvature)


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class LinearPerturbation(_GammaOrGaussian, _GraphMechanism):
    """A linear term noise . f in the objective; `noise_rate` is its rate in gradient units."""

    penalty: ScheduleField
    noise_multiplier: OptionalScheduleField = NOT_GIVEN
    noise_rate: OptionalScheduleField = NOT_GIVEN

    def grant(self, t: int, party: int, problem: Problem, facts: PartyFacts) -> Grant:
        return self.bounds(t, party, problem, facts).with_linear_noise(*self.levels(t, party))


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class SoloPerturbation(_GammaOrGaussian):
    """A linear noise term in a party's own problem, which no neighbour holds; `extra_l2` makes it strongly convex."""

    noise_multiplier: OptionalScheduleField = NOT_GIVEN
    noise_rate: OptionalScheduleField = NOT_GIVEN
    extra_l2: float = 0.0

    def grant(self, t: int, party: int, problem: Problem, facts: PartyFacts) -> Grant:
        bounds = ArgminBounds(problem, facts, curvature=0.0, extra_l2=self.extra_l2)
        return bounds.with_linear_noise(*self.levels(t, party))


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputPerturbation(_GammaOrGaussian, _GraphMechanism):
    """Noise on the exact minimiser before it is broadcast; `noise_rate` is per unit of the coefficients."""

    penalty: ScheduleField
    noise_multiplier: OptionalScheduleField = NOT_GIVEN
    noise_rate: OptionalScheduleField = NOT_GIVEN

    def grant(self, t: int, party: int, problem: Problem, facts: PartyFacts) -> Grant:
        multiplier, rate = self.levels(t, party)
        return self.bounds(t, party, problem, facts).with_output_noise(multiplier=multiplier, rate=rate)


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class DualPerturbation(_GraphMechanism):
    """Noise in the dual variable, 2 (lambda + (C/2B) epsilon) . f.

    Exactly one of `step_epsilon` (gamma noise: the paper's alpha_p(t), the loss one step may have) and
    `noise_multiplier` (Gaussian). With `step_epsilon`, the Jacobian takes r ln(1 + k) and the noise the rest; where
    nothing would be left, an extra (Phi/2) |f|^2 is added that brings the Jacobian to one half. The paper's
    Algorithm 2 (`as_published`) subtracts twice the Jacobian's loss and then draws noise of half the scale that its
    proof needs; the loss that is reported is that of the noise that is drawn.
    """

    penalty: ScheduleField
    step_epsilon: OptionalScheduleField = NOT_GIVEN
    noise_multiplier: OptionalScheduleField = NOT_GIVEN
    as_published: bool = False

    def __post_init__(self) -> None:
        if (self.step_epsilon is None) == (self.noise_multiplier is None):
            raise InputError(
                f"step_epsilon, noise_multiplier: got {self.step_epsilon}, {self.noise_multiplier}; give exactly one"
            )
        for name in ("penalty", "step_epsilon", "noise_multiplier"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, as_schedule(name, getattr(self, name)))

    @property
    def law(self) -> Law:
        return "gaussian" if self.step_epsilon is None else "gamma-sphere"

    def with_noise(self, factor: float) -> Mechanism:
        if self.noise_multiplier is not None:
            return self.changed(noise_multiplier=self.noise_multiplier.times(factor))
        assert self.step_epsilon is not None
        return self.changed(step_epsilon=self.step_epsilon.times(1 / factor))

    def grant(self, t: int, party: int, problem: Problem, facts: PartyFacts) -> Grant:
        bounds = self.bounds(t, party, problem, facts)
        if self.noise_multiplier is not None:
            return bounds.with_gaussian_noise(self.noise_multiplier.at(t, party))
        assert self.step_epsilon is not None
        alpha = self.step_epsilon.at(t, party)
        if not self.as_published:
            alpha /= 1 + OUTPUT_SHARE  # the solver's error is paid for out of it
        factors = (2 if self.as_published else 1) * problem.loss.rank
        left = alpha - factors * math.log1p(bounds.jacobian)
        if left <= 0:
            left = alpha / 2
            wanted = math.expm1(alpha / (2 * factors))  # the k that costs the other half
            bounds = dataclasses.replace(bounds, extra_l2=bounds.convexity * (bounds.jacobian / wanted - 1))
        # as published: zeta = alpha_hat for epsilon, that is B/C alpha_hat for (C/B) epsilon, whatever the adjacency
        return bounds.with_gamma_noise(left / (facts.record_weight if self.as_published else bounds.sensitivity))
