"""Mechanisms that release the minimiser of a noised objective, or a minimiser with noise on top.

One step of one party minimises  data(f) + penalty share + (curvature/2) |f - target|^2 + (extra_l2/2) |f|^2 + b . f
(derivation of all prices in docs/guarantees.md):

    Lambda  strong convexity of what does not depend on the data: l2/N + curvature + extra_l2
    G       gradient sensitivity: 2 w L X (replace-one), w L X (zero-out); w is the largest weight of one record
    k       one record's Hessian over Lambda: w c1 X^2 / Lambda

Gamma noise b of rate s costs s G + r ln(1 + k); Gaussian noise is priced by `events.GaussianObjective`; noise on the
minimiser itself has sensitivity G / Lambda.
"""

# JAX is only partly typed:
# pyright: reportUnknownMemberType=false, reportUnknownLambdaType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportIncompatibleVariableOverride=false

import dataclasses
import math

from coterie.errors import InputError, PrivacyPreconditionError
from coterie.privacy.events import Both, Event, Gaussian, GaussianObjective, Pure, Unprotected
from coterie.privacy.grants import ArgminGrant, Grant, issue
from coterie.privacy.mechanisms import Mechanism, PartyFacts
from coterie.privacy.noise import Law
from coterie.problems.problem import Problem
from coterie.schedules import Schedule, as_schedule
from coterie.serialise import serialisable

# the solver stops at this fraction of the largest gradient that can occur: far above rounding, far below any noise
TOLERANCE_SHARE = 1e-11
# without noise nothing has to be hidden, and the solver goes on almost to rounding
EXACT_SHARE = 1e-13
# the output noise that hides the solver's error costs this fraction of the step's own noise ratio
OUTPUT_SHARE = 1e-3


@dataclasses.dataclass(frozen=True)
class Step:
    """The numbers of one party's minimisation that every price depends on."""

    problem: Problem
    facts: PartyFacts
    curvature: float
    extra_l2: float = 0.0

    @property
    def convexity(self) -> float:
        """Lambda."""
        convexity = self.problem.penalty.l2 / self.facts.n_parties + self.curvature + self.extra_l2
        if not (convexity > 0 and math.isfinite(convexity)):
            raise PrivacyPreconditionError(
                f"penalty: l2/N + 2*penalty*degree is {convexity}; it must be positive for the minimiser to exist"
            )
        return convexity

    @property
    def sensitivity(self) -> float:
        """G."""
        return self.facts.gradient_sensitivity(self.problem, self.facts.record_weight)

    @property
    def jacobian(self) -> float:
        """k."""
        return self.facts.record_weight * self.problem.loss.smoothness * self.facts.row_norm**2 / self.convexity

    def tolerance(self, noise_norm: float) -> float:
        return TOLERANCE_SHARE * (self.facts.largest_gradient(self.problem) + noise_norm)

    def issue(self, event: Event, *, noise_scale: float, output_scale: float, tolerance: float) -> Grant:
        return issue(
            ArgminGrant,
            event,
            curvature=self.curvature,
            extra_l2=self.extra_l2,
            noise_scale=noise_scale,
            output_scale=output_scale,
            tolerance=tolerance,
        )

    def exact(self) -> Grant:
        tolerance = EXACT_SHARE * (self.facts.largest_gradient(self.problem) + self.convexity)
        return self.issue(Unprotected(), noise_scale=0, output_scale=0, tolerance=tolerance)

    def with_linear_noise(self, multiplier: float | None, rate: float | None) -> Grant:
        if multiplier is not None:
            return self.with_gaussian_noise(multiplier)
        assert rate is not None
        return self.with_gamma_noise(rate)

    def with_gaussian_noise(self, multiplier: float) -> Grant:
        """b ~ N(0, std^2 I) with std = multiplier * G."""
        noise_std = multiplier * self.sensitivity
        tolerance = self.tolerance(noise_std * math.sqrt(self.facts.n_coefficients))
        output_ratio = OUTPUT_SHARE / multiplier
        objective = GaussianObjective(
            ratio=1 / multiplier,
            jacobian=self.jacobian,
            rank=self.problem.loss.rank,
            adjacency=self.facts.adjacency,
            margin=self.problem.loss.margin,
        )
        return self.issue(
            Both((objective, Gaussian(ratio=output_ratio))),
            noise_scale=noise_std,
            # two solvers that each stop within tolerance/Lambda of the same point
            output_scale=2 * tolerance / self.convexity / output_ratio,
            tolerance=tolerance,
        )

    def with_gamma_noise(self, rate: float) -> Grant:
        """b with density proportional to exp(-rate |b|)."""
        noise_loss = rate * self.sensitivity
        output_loss = OUTPUT_SHARE * noise_loss
        tolerance = self.tolerance(self.facts.n_coefficients / rate)
        return self.issue(
            Both((Pure(self.gamma_loss(rate)), Pure(output_loss))),
            noise_scale=1 / rate,
            output_scale=2 * tolerance / self.convexity / output_loss,
            tolerance=tolerance,
        )

    def gamma_loss(self, rate: float) -> float:
        """s G + r ln(1 + k); less where slope and curvature of one record cannot be large together.

        A self-bounded loss with slope p has curvature p (1 - p), so the record whose Jacobian counts costs at most the
        maximum over p of s w X p + ln(1 + w X^2 p (1 - p) / Lambda), a concave function. Its stationary point solves
        s c p^2 - (s c - 2 X/Lambda) p - (s + X/Lambda) = 0 with c = w X^2 / Lambda, and p is at most 1.
        """
        loss = self.problem.loss
        if not loss.self_bounded:
            return rate * self.sensitivity + loss.rank * math.log1p(self.jacobian)
        x, w = self.facts.row_norm, self.facts.record_weight
        c, ratio = w * x * x / self.convexity, x / self.convexity
        half = (rate * c - 2 * ratio) / 2
        root = math.sqrt(half * half + rate * c * (rate + ratio))
        p = (rate + ratio) / (root - half) if half < 0 else (half + root) / (rate * c)  # neither cancels
        own = max(rate * w * x * q + math.log1p(c * q * (1 - q)) for q in (0.5, min(p, 1.0), 1.0))
        return rate * (self.sensitivity - w * x) + own  # what the other record adds has no Jacobian

    def with_output_noise(self, *, multiplier: float | None = None, rate: float | None = None) -> Grant:
        """Noise on the minimiser, whose sensitivity is G/Lambda, and 2 tolerance/Lambda more for an inexact one."""
        tolerance = self.tolerance(0.0)
        sensitivity = (self.sensitivity + 2 * tolerance) / self.convexity
        if multiplier is not None:
            return self.issue(
                Gaussian(1 / multiplier), noise_scale=0, output_scale=multiplier * sensitivity, tolerance=tolerance
            )
        assert rate is not None
        return self.issue(Pure(rate * sensitivity), noise_scale=0, output_scale=1 / rate, tolerance=tolerance)


class _GraphMechanism(Mechanism):
    """Has a penalty eta_i(t), which gives a party with V_i neighbours the curvature 2 eta_i V_i."""

    penalty: Schedule

    def step(self, t: int, party: int, problem: Problem, facts: PartyFacts) -> Step:
        return Step(problem, facts, curvature=2 * self.penalty.at(t, party) * facts.degree)


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class NoNoise(_GraphMechanism):
    """The exact minimiser, released as it is: no privacy."""

    penalty: Schedule
    law = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "penalty", as_schedule("penalty", self.penalty))

    def grant(self, t: int, party: int, problem: Problem, facts: PartyFacts) -> Grant:
        return self.step(t, party, problem, facts).exact()


class _GammaOrGaussian(Mechanism):
    """Exactly one of `noise_multiplier` (Gaussian: standard deviation over sensitivity) and `noise_rate` (gamma)."""

    noise_multiplier: Schedule | None
    noise_rate: Schedule | None

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

    penalty: Schedule
    noise_multiplier: Schedule | None = None
    noise_rate: Schedule | None = None

    def grant(self, t: int, party: int, problem: Problem, facts: PartyFacts) -> Grant:
        step, (multiplier, rate) = self.step(t, party, problem, facts), self.levels(t, party)
        if multiplier is not None:
            return step.with_gaussian_noise(multiplier)
        assert rate is not None
        if facts.degree == 0:
            raise PrivacyPreconditionError(
                "noise_rate: gamma noise enters through the penalty, and a party without neighbours has none; "
                "use noise_multiplier"
            )
        return step.with_gamma_noise(rate / step.curvature)


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class LinearPerturbation(_GammaOrGaussian, _GraphMechanism):
    """A linear term noise . f in the objective; `noise_rate` is its rate in gradient units."""

    penalty: Schedule
    noise_multiplier: Schedule | None = None
    noise_rate: Schedule | None = None

    def grant(self, t: int, party: int, problem: Problem, facts: PartyFacts) -> Grant:
        return self.step(t, party, problem, facts).with_linear_noise(*self.levels(t, party))


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class SoloPerturbation(_GammaOrGaussian):
    """A linear noise term in a party's own problem, which no neighbour holds; `extra_l2` makes it strongly convex."""

    noise_multiplier: Schedule | None = None
    noise_rate: Schedule | None = None
    extra_l2: float = 0.0

    def grant(self, t: int, party: int, problem: Problem, facts: PartyFacts) -> Grant:
        step = Step(problem, facts, curvature=0.0, extra_l2=self.extra_l2)
        return step.with_linear_noise(*self.levels(t, party))


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputPerturbation(_GammaOrGaussian, _GraphMechanism):
    """Noise on the exact minimiser before it is broadcast; `noise_rate` is per unit of the coefficients."""

    penalty: Schedule
    noise_multiplier: Schedule | None = None
    noise_rate: Schedule | None = None

    def grant(self, t: int, party: int, problem: Problem, facts: PartyFacts) -> Grant:
        multiplier, rate = self.levels(t, party)
        return self.step(t, party, problem, facts).with_output_noise(multiplier=multiplier, rate=rate)


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

    penalty: Schedule
    step_epsilon: Schedule | None = None
    noise_multiplier: Schedule | None = None
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
        step = self.step(t, party, problem, facts)
        if self.noise_multiplier is not None:
            return step.with_gaussian_noise(self.noise_multiplier.at(t, party))
        assert self.step_epsilon is not None
        alpha = self.step_epsilon.at(t, party) / (1 + OUTPUT_SHARE)  # the solver's error is paid for out of it
        factors = (2 if self.as_published else 1) * problem.loss.rank
        left = alpha - factors * math.log1p(step.jacobian)
        if left <= 0:
            left = alpha / 2
            wanted = math.expm1(alpha / (2 * factors))  # the k that costs the other half
            step = dataclasses.replace(step, extra_l2=step.convexity * (step.jacobian / wanted - 1))
        # as published: zeta = alpha_hat for epsilon, that is B/C alpha_hat for (C/B) epsilon, whatever the adjacency
        return step.with_gamma_noise(left / (facts.record_weight if self.as_published else step.sensitivity))
