"""Settings that users of estimators and specs leave open: a few rules in public facts, good for census and heart data.

    m   Gaussian multiplier that would spend the whole (epsilon, delta) in one release, times records per person
    G   how far one unit of privacy can move the summed gradient        X   row-norm bound
    S   largest curvature all records together can have                 N   number of noises: of parties, or 1

*Length.* Every algorithm here moves about as far as gradient descent of total length `length` does. Noise of standard
deviation G m sqrt(N) a coordinate then moves each coefficient by length * G m sqrt(N), however many rounds share it.
That should be as much as a coefficient is expected to need: a score of `SCORE` (of the label bound in regression)
across a row of norm X. Hence length = SCORE / (X G m sqrt(N)).

*Rounds.* Few large parties that noise their own minimisers: sqrt(length * S), from 5 to 20. Gradient steps must not
exceed 2/S, so they come in length * S / 1.5 rounds, from 20 to 1000.

*Regulariser.* l2 = X^2 times the mean weight of a record: little against many records, enough for a unique optimum.

*Alone.* A single party releases one noised minimiser. Noise in its objective needs curvature: 1/length against the
noise, and 1.2 times a record's curvature times the highest Renyi order that counts, m sqrt(2 ln 1/delta), against the
Jacobian.

A planner may replace this module: `choose` is all that estimators and specs call.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

from coterie.algorithms import (
    Algorithm,
    BroadcastNoisedADMM,
    LocallyNoisedADMM,
    NoisyGradientDescent,
    OneReleaseAverage,
    PenaltyPerturbedADMM,
    RecycledADMM,
)
from coterie.errors import InputError
from coterie.facts import Facts
from coterie.network.channels import Curator, SecureSum
from coterie.network.topology import Topology
from coterie.privacy.accountants import gaussian_epsilon
from coterie.privacy.events import Gaussian
from coterie.privacy.mechanisms import GaussianGradient
from coterie.privacy.objective import LinearPerturbation, PenaltyPerturbation, SoloPerturbation
from coterie.privacy.proximal import BroadcastNoise, LocalNoise
from coterie.problems.problem import Problem

SCORE = 2.0
ROUNDS = (5, 20)
GRADIENT_ROUNDS = (20, 1000)
STEP_TIMES_CURVATURE = 1.5
JACOBIAN_MARGIN = 1.2
RECYCLE_WEIGHT = 0.5
LASSO_SHARE = 0.2
RELAXATION = 0.5

CHANNELS = {"curator": Curator(), "secure-sum": SecureSum()}
TRUST = ("none", *CHANNELS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Open:
    """What the user settled; None is open."""

    algorithm: str | None = None
    rounds: int | None = None
    averaging: str | None = None
    penalty: float | None = None
    step: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Situation:
    """Everything a rule may look at: public facts and the budget."""

    problem: Problem
    facts: Facts
    topology: Topology
    trust: str
    epsilon: float
    delta: float
    adjacency: str
    unit: str
    records_per_person: int
    clip: float | None  # of a record's gradient, where the loss has no bounded slope
    hardened: bool  # noise that is drawn and added on a grid, exactly

    @functools.cached_property
    def multiplier(self) -> float:
        """m."""
        return self.records_per_person * one_release_multiplier(self.epsilon, self.delta)

    @functools.cached_property
    def sensitivity(self) -> float:
        """G."""
        facts = self.facts
        slope = self.clip if self.clip is not None else self.problem.loss.lipschitz * facts.row_norm
        weights = [
            self.problem.largest_record_weight(size, facts) * (size if self.unit == "party" else 1)
            for size in (facts.smallest, facts.largest)
        ]
        return (2 if self.adjacency == "replace-one" else 1) * slope * max(weights)

    @functools.cached_property
    def curvature(self) -> float:
        """S."""
        facts = self.facts
        weights = sum(size * self.problem.largest_record_weight(size, facts) for size in facts.sizes)
        return weights * self.problem.loss.smoothness * facts.row_norm**2

    def length(self, n_noises: int) -> float:
        score = SCORE if self.facts.label_bound is None else self.facts.label_bound
        return score / (self.facts.row_norm * self.sensitivity * self.multiplier * math.sqrt(n_noises))

    def rounds(self, wanted: float, limits: tuple[int, int]) -> int:
        return int(min(max(math.ceil(wanted), limits[0]), limits[1]))


@functools.lru_cache(maxsize=256)
def one_release_multiplier(epsilon: float, delta: float) -> float:
    """Gaussian multiplier that spends (epsilon, delta) in one release."""
    low, high = 1e-6, 1e12
    for _ in range(100):
        middle = math.sqrt(low * high)
        too_little = gaussian_epsilon([(Gaussian(1 / middle), 1)], delta) > epsilon
        low, high = (middle, high) if too_little else (low, middle)
    return high


def regulariser(facts: Facts, weight_of_record: Callable[[int], float]) -> float:
    """l2, where it was left open."""
    mean_weight = sum(size * weight_of_record(size) for size in facts.sizes) / sum(facts.sizes)
    return facts.row_norm**2 * mean_weight


def lasso_regulariser(facts: Facts, slope: float, weight_of_record: Callable[[int], float]) -> float:
    """l1, where it was left open: a share of what the gradient of pure chance reaches in d even columns."""
    squares = sum(size * weight_of_record(size) ** 2 for size in facts.sizes)
    d = facts.n_features
    return LASSO_SHARE * slope * facts.row_norm * math.sqrt(squares * math.log(2 * d) / d)


# --- one function per algorithm: (algorithm with any noise, rounds) ---------------------------------------------------


def _alone(situation: Situation, settled: Open) -> tuple[Algorithm, int]:
    _unused("one-release-average", settled, "averaging", "penalty", "step")
    facts, problem = situation.facts, situation.problem
    highest_order = situation.multiplier * math.sqrt(2 * math.log(1 / situation.delta))
    weight = problem.largest_record_weight(facts.smallest, facts)
    one_record = weight * problem.loss.smoothness * facts.row_norm**2
    against_noise = 1 / (facts.n_parties * situation.length(facts.n_parties))
    extra_l2 = max(against_noise, JACOBIAN_MARGIN * one_record * highest_order)
    mechanism = SoloPerturbation(noise_multiplier=1.0, extra_l2=extra_l2)  # type: ignore[arg-type]
    return OneReleaseAverage(mechanism=mechanism), settled.rounds or 1


def _coupling(situation: Situation, n_rounds: int) -> float:
    """2 eta V: K rounds move the sum as far as steps of length K / (2 eta V N), and the Jacobian stays cheap."""
    facts, problem = situation.facts, situation.problem
    weight = problem.largest_record_weight(facts.smallest, facts)
    one_record = weight * problem.loss.smoothness * facts.row_norm**2
    against_jacobian = math.sqrt(8 * n_rounds) * one_record * situation.multiplier
    return max(n_rounds / (facts.n_parties * situation.length(facts.n_parties)), against_jacobian)


def _graph_settings(situation: Situation, settled: Open, name: str) -> tuple[int, tuple[float, ...], Any]:
    """(rounds, eta_i, averaging). Parties with few neighbours hold on to them harder, so that all pay the same."""
    _unused(name, settled, "step")
    if situation.facts.n_parties == 1:
        raise InputError(f"algorithm: got {name!r} for one party, which has no neighbours; leave it open")
    length = situation.length(situation.facts.n_parties)
    n_rounds = settled.rounds or situation.rounds(math.sqrt(length * situation.curvature), ROUNDS)
    degrees = situation.topology.degrees
    if settled.penalty is not None:
        penalties = tuple(float(settled.penalty) for _ in degrees)
    else:
        penalties = tuple((_coupling(situation, n_rounds) / (2 * degrees)).tolist())
    return n_rounds, penalties, settled.averaging or "linear"


def _penalty_perturbed(situation: Situation, settled: Open) -> tuple[Algorithm, int]:
    n_rounds, penalties, averaging = _graph_settings(situation, settled, "penalty-perturbed-admm")
    mechanism = PenaltyPerturbation(penalty=penalties, noise_multiplier=1.0)  # type: ignore[arg-type]
    return PenaltyPerturbedADMM(mechanism=mechanism, dual_step=min(penalties), averaging=averaging), n_rounds  # type: ignore[arg-type]


def _recycled(situation: Situation, settled: Open) -> tuple[Algorithm, int]:
    n_rounds, penalties, averaging = _graph_settings(situation, settled, "recycled-admm")
    mechanism = LinearPerturbation(penalty=penalties, noise_multiplier=1.0)  # type: ignore[arg-type]
    algorithm = RecycledADMM(
        mechanism=mechanism,
        dual_step=min(penalties),  # type: ignore[arg-type]
        recycle_weight=RECYCLE_WEIGHT,
        averaging=averaging,
    )
    return algorithm, n_rounds


def _locally_noised(situation: Situation, settled: Open) -> tuple[Algorithm, int]:
    _unused("locally-noised-admm", settled, "penalty")
    n_parties = situation.facts.n_parties
    length = situation.length(n_parties)
    n_rounds = settled.rounds or situation.rounds(math.sqrt(length * situation.curvature), ROUNDS)
    step = settled.step or n_parties * length / n_rounds / (2 * RELAXATION)
    mechanism = LocalNoise(step=step, relaxation=RELAXATION, noise_multiplier=1.0, spread_l2=True)  # type: ignore[arg-type]
    penalty = situation.problem.penalty
    return LocallyNoisedADMM(mechanism=mechanism, penalty=penalty, averaging=settled.averaging or "linear"), n_rounds  # type: ignore[arg-type]


def _gradient(situation: Situation, settled: Open) -> tuple[Algorithm, int]:
    _unused("noisy-gradient-descent", settled, "penalty")
    penalty, length = situation.problem.penalty, situation.length(1)
    curvature = situation.curvature + penalty.l2
    n_rounds = settled.rounds or situation.rounds(length * curvature / STEP_TIMES_CURVATURE, GRADIENT_ROUNDS)
    algorithm = NoisyGradientDescent(
        mechanism=GaussianGradient(noise_multiplier=1.0, clip=situation.clip),  # type: ignore[arg-type]
        penalty=penalty,
        step=settled.step or min(length / n_rounds, 2 / curvature),  # type: ignore[arg-type]
        channel=CHANNELS[situation.trust],
        averaging=settled.averaging or "linear",  # type: ignore[arg-type]
    )
    return algorithm, n_rounds


def _broadcast_noised(situation: Situation, settled: Open) -> tuple[Algorithm, int]:
    """A hidden state costs about (1 + step * curvature) times a gradient step, so steps stay at 1/curvature."""
    _unused("broadcast-noised-admm", settled, "penalty")
    facts, length = situation.facts, situation.length(1)
    n_rounds = settled.rounds or situation.rounds(length * situation.curvature, GRADIENT_ROUNDS)
    step = settled.step or facts.n_parties * min(length / n_rounds, 1 / situation.curvature)
    algorithm = BroadcastNoisedADMM(
        mechanism=BroadcastNoise(
            step=step,
            relaxation=RELAXATION,
            noise_multiplier=1.0,  # type: ignore[arg-type]
            clip=situation.clip,
        ),
        penalty=situation.problem.penalty,
        channel=CHANNELS[situation.trust],
        averaging=settled.averaging or "linear",  # type: ignore[arg-type]
    )
    return algorithm, n_rounds


Recipe = Callable[[Situation, Open], tuple[Algorithm, int]]

# by who is trusted; the first is what was found best where neither the unit nor the loss asks for another
RECIPES: dict[str, dict[str, Recipe]] = {
    "none": {
        "penalty-perturbed-admm": _penalty_perturbed,
        "one-release-average": _alone,
        "recycled-admm": _recycled,
        "locally-noised-admm": _locally_noised,
    },
    "curator": {"noisy-gradient-descent": _gradient, "broadcast-noised-admm": _broadcast_noised},
    "secure-sum": {"noisy-gradient-descent": _gradient, "broadcast-noised-admm": _broadcast_noised},
}


def choose(situation: Situation, settled: Open) -> tuple[Algorithm, int]:
    """The algorithm with any noise, to be calibrated, and its number of rounds."""
    recipes = RECIPES[situation.trust]
    if situation.clip is not None and situation.trust == "none":
        raise InputError(
            "loss: 'squared' has unbounded slopes and needs a sum in which they are clipped; use 'huber', or trust "
            "'curator' or 'secure-sum'"
        )
    if situation.hardened and situation.trust != "curator":
        raise InputError(
            f"hardened: got True with trust={situation.trust!r}; it takes one noise on one sum: use trust='curator'"
        )
    name = settled.algorithm
    if name is None:
        name = next(iter(recipes))
        if situation.trust == "none" and situation.unit == "party":
            name = "locally-noised-admm"
        elif situation.trust == "none" and situation.facts.n_parties == 1:
            name = "one-release-average"
    if name not in recipes:
        raise InputError(
            f"algorithm: got {name!r}; with trust={situation.trust!r} one of {', '.join(recipes)} is needed"
        )
    return recipes[name](situation, settled)


def _unused(algorithm: str, settled: Open, *names: str) -> None:
    for name in names:
        if getattr(settled, name) is not None:
            raise InputError(f"{name}: got {getattr(settled, name)!r}; {algorithm} has no such setting: leave it open")
