"""Minimisers of noised objectives, and minimisers with noise on top: prices, and the mechanisms that grant them.

Derivations are in docs/guarantees.md.

A step minimises  data(f) + regulariser share + (curvature/2) |f - target|^2 + (extra_l2/2) |f|^2 + b . f :

    Lambda  strong convexity of what does not depend on the data: l2/N + curvature + extra_l2
    G       gradient sensitivity: 2 w L X (replace-one), w L X (zero-out); w is the largest weight of one record
    k       one record's Hessian over Lambda: w c1 X^2 / Lambda

Gamma noise b of rate s costs s G + r ln(1 + k); Gaussian noise is priced by `events.GaussianObjective`; noise on the
minimiser itself has sensitivity G / Lambda.
"""

import dataclasses
import math

from coterie.errors import InputError, PrivacyPreconditionError
from coterie.privacy.events import Both, Event, Gaussian, GaussianObjective, Pure, Unprotected, determinant_loss
from coterie.privacy.mechanisms import ROUNDED, ArgminGrant, Grant, Mechanism, PartyFacts, issue, output_event
from coterie.privacy.noise import GAMMA_ERROR, GAMMA_STEPS, NORMAL_ERROR, STEPS, Law, largest_gamma
from coterie.problems import Problem
from coterie.values import NOT_GIVEN, OptionalScheduleField, ScheduleField, as_schedule, serialisable

# the solver stops at this fraction of the largest gradient that can occur: far above rounding, far below any noise
TOLERANCE_SHARE = 5e-13
# without noise nothing has to be hidden, and the solver goes on almost to rounding
EXACT_SHARE = 1e-13
# what a double loses per unit of condition number
ROUNDING = 1e-14
# the output noise that hides the solver's error costs this fraction of the step's own loss; squares of Gaussian ratios
# add up, so there a larger fraction costs less
OUTPUT_SHARE = 1e-3
# putting a minimiser on its grid rounds it by 2^-52 of its size, which is below this share of tolerance/Lambda for
# minimisers of up to 30 (largest gradient + noise)/Lambda, and within `rounding` for those of up to LARGEST_POINT
ON_GRID = 2.0**-6
GAUSSIAN_OUTPUT_SHARE = 1e-2


@dataclasses.dataclass(frozen=True)
class ArgminBounds:
    """The numbers of one party's minimisation that every price depends on."""

    problem: Problem
    facts: PartyFacts
    curvature: float
    extra_l2: float = 0.0

    @property
    def convexity(self) -> float:
        """Lambda."""
        convexity = self.problem.regulariser.l2 / self.facts.n_parties + self.curvature + self.extra_l2
        if not (convexity > 0 and math.isfinite(convexity)):
            raise PrivacyPreconditionError(
                f"penalty: l2/N + 2*penalty*degree is {convexity}; it must be positive for the minimiser to exist"
            )
        return convexity

    @property
    def sensitivity(self) -> float:
        """G."""
        return self.facts.gradient_sensitivity(self.problem)

    @property
    def jacobian(self) -> float:
        """k."""
        return self.facts.record_weight * self.problem.loss.smoothness * self.facts.row_norm**2 / self.convexity

    def tolerance(self, noise_norm: float, share: float | None = None) -> float:
        """What the solver can reach: a share of the largest gradient, and rounding in a badly conditioned problem."""
        share = TOLERANCE_SHARE if share is None else share
        facts, loss = self.facts, self.problem.loss
        condition = 1 + facts.n_records * facts.record_weight * loss.smoothness * facts.row_norm**2 / self.convexity
        return (share + ROUNDING * condition) * (facts.largest_gradient(self.problem) + noise_norm)

    @property
    def rounding(self) -> float:
        """What the solver may miss of a gradient because it computes it in double precision."""
        slope = self.facts.record_slope(self.problem)
        return self.facts.gradient_rounding(self.problem, slope, self.convexity)

    def issue(
        self, event: Event, *, noise_scale: float, output_scale: float, tolerance: float, steps: float = STEPS
    ) -> Grant:
        """`steps` of the output noise's grid make one unit of it."""
        return issue(
            ArgminGrant,
            event,
            priced_for=self.facts.share(self.problem),
            curvature=self.curvature,
            extra_l2=self.extra_l2,
            noise_scale=noise_scale,
            output_scale=output_scale,
            steps=steps,
            tolerance=tolerance,
        )

    def output_spread(self, steps: float) -> float:
        """What putting the minimiser on the grid of its output noise costs, in units of that noise."""
        return math.sqrt(self.facts.n_coefficients) / steps

    def exact(self) -> Grant:
        tolerance = self.tolerance(self.convexity, EXACT_SHARE)
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
        output_ratio = GAUSSIAN_OUTPUT_SHARE / multiplier
        objective = GaussianObjective(
            ratio=1 / multiplier,
            jacobian=self.jacobian,
            rank=self.problem.loss.rank,
            effective_rank=self.problem.loss.effective_rank,
            adjacency=self.facts.adjacency,
            margin=self.problem.loss.margin,
        )
        # two solvers that each stop within (tolerance + off)/Lambda of the same point: noise and gradients are off
        off = self.rounding + NORMAL_ERROR * noise_std * math.sqrt(self.facts.n_coefficients)
        return self.issue(
            Both((objective, Gaussian(ratio=output_ratio + self.output_spread(STEPS)))),
            noise_scale=noise_std,
            output_scale=2 * (tolerance + off) * (1 + ON_GRID) / self.convexity / output_ratio,
            tolerance=tolerance,
        )

    def with_gamma_noise(self, rate: float) -> Grant:
        """b with density proportional to exp(-rate |b|)."""
        noise_loss = rate * self.sensitivity
        output_loss = OUTPUT_SHARE * noise_loss
        tolerance = self.tolerance(self.facts.n_coefficients / rate)
        drawn_off = GAMMA_ERROR * (largest_gamma(self.facts.n_coefficients) + self.facts.n_coefficients) / rate
        off = self.rounding + drawn_off
        return self.issue(
            Both((Pure(self.gamma_loss(rate)), Pure(output_loss + self.output_spread(GAMMA_STEPS)))),
            noise_scale=1 / rate,
            output_scale=2 * (tolerance + off) * (1 + ON_GRID) / self.convexity / output_loss,
            tolerance=tolerance,
            steps=GAMMA_STEPS,
        )

    def gamma_loss(self, rate: float) -> float:
        """s G + r ln(1 + k e/r), e the effective rank; less where slope and curvature of a record are never both large.

        A self-bounded loss with slope p has curvature p (1 - p), so the record whose Jacobian counts costs at most the
        maximum over p of s w X p + ln(1 + w X^2 p (1 - p) / Lambda), a concave function. Its stationary point solves
        s c p^2 - (s c - 2 X/Lambda) p - (s + X/Lambda) = 0 with c = w X^2 / Lambda, and p is at most 1.
        """
        loss = self.problem.loss
        if not loss.self_bounded:
            return rate * self.sensitivity + determinant_loss(self.jacobian, loss.rank, loss.effective_rank)
        x, w = self.facts.row_norm, self.facts.record_weight
        c, ratio = w * x * x / self.convexity, x / self.convexity
        half = (rate * c - 2 * ratio) / 2
        root = math.hypot(half, math.sqrt(rate * c) * math.sqrt(rate + ratio))
        # neither cancels
        p = (rate + ratio) / (root - half) if half < 0 else (half + root) / (rate * c)
        own = max(rate * w * x * q + math.log1p(c * q * (1 - q)) for q in (0.5, min(p, 1.0), 1.0))
        # what the other record adds has no Jacobian
        return rate * (self.sensitivity - w * x) + own

    def with_output_noise(self, *, multiplier: float | None = None, rate: float | None = None) -> Grant:
        """Noise on the minimiser, whose sensitivity is G/Lambda, and 2 (tolerance + rounding)/Lambda more for an
        inexact one."""
        tolerance = self.tolerance(0.0)
        sensitivity = (self.sensitivity + 2 * (tolerance + self.rounding)) / self.convexity
        if multiplier is not None:
            noise_std = multiplier * sensitivity
            event = output_event(sensitivity, noise_std, self.facts)
            return self.issue(event, noise_scale=0, output_scale=noise_std, tolerance=tolerance)
        assert rate is not None
        loss = (rate * sensitivity + self.output_spread(GAMMA_STEPS)) * (1 + ROUNDED)
        return self.issue(Pure(loss), noise_scale=0, output_scale=1 / rate, tolerance=tolerance, steps=GAMMA_STEPS)


# --- mechanisms -------------------------------------------------------------------------------------------------------


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

    # elsewhere a constant of the class; here it depends on which noise was given
    @property
    def law(self) -> Law:  # pyright: ignore[reportIncompatibleVariableOverride]
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
class PenaltyPerturbation(_GammaOrGaussian, _GraphMechanism):  # pyright: ignore[reportIncompatibleVariableOverride]
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
class LinearPerturbation(_GammaOrGaussian, _GraphMechanism):  # pyright: ignore[reportIncompatibleVariableOverride]
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
class OutputPerturbation(_GammaOrGaussian, _GraphMechanism):  # pyright: ignore[reportIncompatibleVariableOverride]
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
    def law(self) -> Law:  # pyright: ignore[reportIncompatibleVariableOverride]
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
            # the solver's error is paid for out of it
            alpha /= 1 + OUTPUT_SHARE
        rank, times = problem.loss.rank, 2 if self.as_published else 1
        effective_rank = rank if self.as_published else problem.loss.effective_rank
        left = alpha - times * determinant_loss(bounds.jacobian, rank, effective_rank)
        if left <= 0:
            left = alpha / 2
            # the k that costs the other half
            wanted = math.expm1(alpha / (2 * times * rank)) * rank / effective_rank
            bounds = dataclasses.replace(bounds, extra_l2=bounds.convexity * (bounds.jacobian / wanted - 1))
        # as published: zeta = alpha_hat for epsilon, that is B/C alpha_hat for (C/B) epsilon, whatever the adjacency
        return bounds.with_gamma_noise(left / (facts.record_weight if self.as_published else bounds.sensitivity))
