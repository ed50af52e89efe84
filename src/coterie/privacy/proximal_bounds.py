"""The public numbers of one party's proximal step, and how far neighbouring data can move it.

A party's f has gradients of at most L = (its weight) * (slope of a record), and G is how far the gradient can move at
one point when what is protected changes. With gamma = `prox_step`, one step is x = prox_{gamma f}(2z - u),
u+ = u + 2 relaxation (x - z). With l2 carried inside f, stretch = 1 + gamma l2 and pull = 2 relaxation/stretch
(derivations in docs/guarantees.md):

    one step    x moves by at most gamma G/stretch at a fixed (z, u)
    whole party u+ = (1 - pull) u + (public) - pull gamma g with |g| <= L, so two states that saw the same centres stay
                within changes gamma L pull/(1 - |1 - pull|), which is changes gamma L for pull <= 1
    one record  of many: u -> u+ shrinks distances by c = max |1 - 2 relaxation/(1 + gamma h)| over the curvatures h
                between l2 and l2 + smoothness, so the states stay within 2 relaxation (gamma G/stretch)/(1 - c)
"""

import dataclasses
import math

from coterie.errors import PrivacyPreconditionError
from coterie.privacy.mechanisms import PartyFacts
from coterie.privacy.objective import ROUNDING, TOLERANCE_SHARE
from coterie.problems.problem import Problem

LARGEST_POINT = (
    1e3  # sizes of public points, in units of 1/row norm and of the noise, up to which rounding is allowed for
)


@dataclasses.dataclass(frozen=True)
class ProximalBounds:
    """The public numbers of one party's proximal step."""

    problem: Problem
    facts: PartyFacts
    prox_step: float
    relaxation: float
    l2: float
    slope: float  # of one record of weight 1
    clipped: bool  # the slope holds for the party's gradient as a whole only

    @property
    def stretch(self) -> float:
        return 1 + self.prox_step * self.l2

    @property
    def change(self) -> float:
        """How far neighbouring data move x: prox_step G/stretch."""
        return self.prox_step / self.stretch * self.facts.changes * self.facts.unit_weight * self.slope

    @property
    def reach(self) -> float:
        """prox_step * L: the largest |prox_step * gradient| of the whole party."""
        return self.prox_step * self.facts.n_records * self.facts.record_weight * self.slope

    def tolerance(self, noise_std: float) -> float:
        """What the solver can reach: a share of the largest gradient, and rounding at points as large as the noise."""
        facts, curvature = self.facts, 1 / self.prox_step + self.l2
        condition = 1 + facts.n_records * facts.record_weight * self.problem.loss.smoothness * facts.row_norm**2 / (
            curvature
        )
        largest = self.reach / self.prox_step
        point = LARGEST_POINT * (1 / facts.row_norm + noise_std * math.sqrt(facts.n_coefficients))
        return TOLERANCE_SHARE * largest + ROUNDING * condition * (largest + curvature * point)

    def state_distance(self, tolerance: float) -> tuple[float, bool]:
        """How far two neighbouring states can be apart, and whether that relies on the solver's tolerance."""
        pull = 2 * self.relaxation / self.stretch
        if pull >= 2:
            raise PrivacyPreconditionError(
                f"relaxation: got {self.relaxation}; less than {self.stretch} = 1 + prox_step * l2 is needed"
            )
        # one record of many can turn the party's whole gradient round, also where it is only taken away
        swing = self.facts.changes if self.facts.unit_is_whole_party else 2
        whole = swing * self.reach * pull / (1 - abs(1 - pull))
        if self.facts.unit_is_whole_party or self.clipped:
            return whole, False
        facts = self.facts
        smoothness = facts.n_records * facts.record_weight * self.problem.loss.smoothness * facts.row_norm**2
        stiffest = 2 * self.relaxation / (self.stretch + self.prox_step * smoothness)
        shrink = max(abs(1 - stiffest), abs(1 - pull))
        # either state is off by 2 relaxation times the solver's error, and as much again through the clipping
        error = 4 * tolerance * self.prox_step / self.stretch
        one_of_many = 2 * self.relaxation * (self.change + error) / (1 - shrink) if shrink < 1 else math.inf
        return (one_of_many, True) if one_of_many < whole else (whole, False)
