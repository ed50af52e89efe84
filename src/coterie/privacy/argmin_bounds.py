"""One party's minimisation and the price of its noise (derivations in docs/guarantees.md).

A step minimises  data(f) + regulariser share + (curvature/2) |f - target|^2 + (extra_l2/2) |f|^2 + b . f :

    Lambda  strong convexity of what does not depend on the data: l2/N + curvature + extra_l2
    G       gradient sensitivity: 2 w L X (replace-one), w L X (zero-out); w is the largest weight of one record
    k       one record's Hessian over Lambda: w c1 X^2 / Lambda

Gamma noise b of rate s costs s G + r ln(1 + k); Gaussian noise is priced by `events.GaussianObjective`; noise on the
minimiser itself has sensitivity G / Lambda.
"""

import dataclasses
import math

from coterie.errors import PrivacyPreconditionError
from coterie.privacy.events import Both, Event, Gaussian, GaussianObjective, Pure, Unprotected
from coterie.privacy.grants import ArgminGrant, Grant, issue
from coterie.privacy.mechanisms import ROUNDED, PartyFacts, output_event
from coterie.privacy.sampling import GAMMA_ERROR, GAMMA_STEPS, NORMAL_ERROR, STEPS, largest_gamma
from coterie.problems.problem import Problem

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
# minimisers of up to 30 (largest gradient + noise)/Lambda
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
            adjacency=self.facts.adjacency,
            margin=self.problem.loss.margin,
        )
        # two solvers that each stop within tolerance/Lambda of the same point, with noise that is off by `off`
        off = NORMAL_ERROR * noise_std * math.sqrt(self.facts.n_coefficients)
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
        off = GAMMA_ERROR * (largest_gamma(self.facts.n_coefficients) + self.facts.n_coefficients) / rate
        return self.issue(
            Both((Pure(self.gamma_loss(rate)), Pure(output_loss + self.output_spread(GAMMA_STEPS)))),
            noise_scale=1 / rate,
            output_scale=2 * (tolerance + off) * (1 + ON_GRID) / self.convexity / output_loss,
            tolerance=tolerance,
            steps=GAMMA_STEPS,
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
        root = math.hypot(half, math.sqrt(rate * c) * math.sqrt(rate + ratio))
        p = (rate + ratio) / (root - half) if half < 0 else (half + root) / (rate * c)  # neither cancels
        own = max(rate * w * x * q + math.log1p(c * q * (1 - q)) for q in (0.5, min(p, 1.0), 1.0))
        return rate * (self.sensitivity - w * x) + own  # what the other record adds has no Jacobian

    def with_output_noise(self, *, multiplier: float | None = None, rate: float | None = None) -> Grant:
        """Noise on the minimiser, whose sensitivity is G/Lambda, and 2 tolerance/Lambda more for an inexact one."""
        tolerance = self.tolerance(0.0)
        sensitivity = (self.sensitivity + 2 * tolerance) / self.convexity
        if multiplier is not None:
            noise_std = multiplier * sensitivity
            event = output_event(sensitivity, noise_std, self.facts)
            return self.issue(event, noise_scale=0, output_scale=noise_std, tolerance=tolerance)
        assert rate is not None
        loss = (rate * sensitivity + self.output_spread(GAMMA_STEPS)) * (1 + ROUNDED)
        return self.issue(Pure(loss), noise_scale=0, output_scale=1 / rate, tolerance=tolerance, steps=GAMMA_STEPS)
