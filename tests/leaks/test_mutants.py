"""Deliberate defects of the package's own mechanisms: each is refused when the plan is made, or caught by a named check
of the audit, and its twin without the defect passes the same check."""

import dataclasses
import functools
import math
from pathlib import Path
from typing import Any

import mutant_parts as parts
import pytest
from mutant_parts import mutated, priced, ratio_times, scaled, squared

import coterie.audit
from coterie.algorithms import (
    Algorithm,
    BroadcastNoisedADMM,
    DualPerturbedADMM,
    GeneralADMM,
    LocallyNoisedADMM,
    MemorylessWalk,
    NoisyGradientDescent,
    OneReleaseAverage,
    PenaltyPerturbedADMM,
    PrimalPerturbedADMM,
    RecycledADMM,
    StandardisedGradientDescent,
    SumNoisedADMM,
    WalkADMM,
)
from coterie.audit.instances import HEAVY, REGULARISER, enumerate_instances
from coterie.network.channels import Broadcast, Curator, SecureSum
from coterie.network.topology import Poisson, Walk
from coterie.privacy.image import ImageNoise
from coterie.privacy.mechanisms import GaussianGradient
from coterie.privacy.noise import Seeded
from coterie.privacy.objective import (
    DualPerturbation,
    LinearPerturbation,
    NoNoise,
    OutputPerturbation,
    PenaltyPerturbation,
    SoloPerturbation,
)
from coterie.privacy.proximal import BroadcastNoise, LocalNoise, SumNoise, WalkNoise
from coterie.privacy.standardising import StandardisedGradient
from coterie.problems import L2

# every mutant and twin is compiled anew
pytestmark = pytest.mark.slow

GAUSSIAN, GAMMA = {"noise_multiplier": 4.0}, {"noise_rate": 1.0}
STEP = {"prox_step": 0.5, "relaxation": 0.5, **GAUSSIAN}


# --- the table ----------------------------------------------------------------------------------------------------


def penalty(cls=PenaltyPerturbedADMM, change=None, **noise):
    mechanism = PenaltyPerturbation(penalty=1.0, **noise)
    return cls(mechanism=mechanism if change is None else mutated(mechanism, change), dual_step=1.0)


def dual(change=None, **noise):
    mechanism = DualPerturbation(penalty=1.0, **noise)
    return DualPerturbedADMM(mechanism=mechanism if change is None else mutated(mechanism, change), dual_step=1.0)


def primal(change=None, **noise):
    mechanism = OutputPerturbation(penalty=1.0, **noise)
    return PrimalPerturbedADMM(mechanism=mechanism if change is None else mutated(mechanism, change), dual_step=1.0)


def recycled(cls=RecycledADMM, change=None, **noise):
    mechanism = LinearPerturbation(penalty=1.0, **noise)
    mechanism = mechanism if change is None else mutated(mechanism, change)
    return cls(mechanism=mechanism, dual_step=1.0, recycle_weight=1.0)


def solo(change=None, **noise):
    mechanism = SoloPerturbation(extra_l2=4.0, **noise)
    return OneReleaseAverage(mechanism=mechanism if change is None else mutated(mechanism, change))


def gradient(channel, change=None, **more):
    mechanism = GaussianGradient(**GAUSSIAN)
    mechanism = mechanism if change is None else mutated(mechanism, change)
    return NoisyGradientDescent(mechanism=mechanism, regulariser=REGULARISER, step=0.5, channel=channel, **more)


def standardised(channel, change=None):
    mechanism = StandardisedGradient(**GAUSSIAN, column_std=8.0)
    mechanism = mechanism if change is None else mutated(mechanism, change)
    return StandardisedGradientDescent(mechanism=mechanism, regulariser=REGULARISER, step=0.5, channel=channel)


def fixed_point(cls, mechanism, change=None, *, regulariser=REGULARISER, **more):
    mechanism = mechanism if change is None else mutated(mechanism, change)
    return cls(mechanism=mechanism, regulariser=regulariser, **more)


def constrained(change=None):
    mechanism = ImageNoise(A=((0.5,),), prox_step=0.5, **GAUSSIAN)
    mechanism = mechanism if change is None else mutated(mechanism, change)
    return GeneralADMM(mechanism=mechanism, regulariser=REGULARISER, relaxation=0.5)


LOCAL, WALK = LocalNoise(**STEP), {"selection": Walk(seed=3)}
FAST_STATES = BroadcastNoise(**STEP | {"relaxation": 0.9})
CLIPPED_STATES = BroadcastNoise(**STEP, clip=0.002)
HIDDEN_WALK = {"selection": Walk(seed=None, most_visits=2), "regulariser": L2(0.0)}
COIN = {"selection": Poisson(probability=0.5, seed=None)}


REPLACE = (("adjacency", "replace-one"),)
RECORD, PARTY = (*REPLACE, ("unit", "record")), (*REPLACE, ("unit", "party"))
# what sampling is proved for
COIN_UNIT = (("adjacency", "zero-out"), ("unit", "party"))
NORM_12 = (*REPLACE, ("heavy", dataclasses.replace(HEAVY, row_norm=12.0)), ("calibrated", False))


@dataclasses.dataclass(frozen=True)
class Mutant:
    """`by` names the check that catches it, or "plan" where no plan is made."""

    twin: Algorithm
    mutant: Algorithm
    by: str
    options: tuple[tuple[str, Any], ...] = REPLACE


MUTANTS = {
    "noise halved in the objective": Mutant(
        penalty(**GAUSSIAN), penalty(change=scaled(noise_scale=0.5), **GAUSSIAN), "gaussian-view"
    ),
    "gamma noise halved": Mutant(recycled(**GAMMA), recycled(change=scaled(noise_scale=0.5), **GAMMA), "game"),
    "noise halved by the party": Mutant(penalty(**GAUSSIAN), penalty(parts.HalvesItsNoise, **GAUSSIAN), "plan"),
    "zeta = alpha-hat": Mutant(
        dual(step_epsilon=1.0), dual(change=scaled(noise_scale=0.5), step_epsilon=1.0), "density"
    ),
    "missing dual noise": Mutant(dual(**GAUSSIAN), dual(change=scaled(noise_scale=1e-6), **GAUSSIAN), "game"),
    "noise on the minimiser sized for twice the curvature": Mutant(
        primal(**GAUSSIAN), primal(change=scaled(output_scale=0.5), **GAUSSIAN), "gaussian-view"
    ),
    "gamma noise on the minimiser too small": Mutant(
        primal(**GAMMA), primal(change=scaled(output_scale=0.6), **GAMMA), "density"
    ),
    "norm bound not squared in the Jacobian": Mutant(
        penalty(**GAMMA), penalty(change=priced(parts.norm_not_squared), **GAMMA), "density", NORM_12
    ),
    "Jacobian forgotten, gamma noise": Mutant(
        solo(**GAMMA), solo(change=priced(parts.jacobian_forgotten), **GAMMA), "density"
    ),
    "Jacobian forgotten, Gaussian noise": Mutant(
        recycled(**GAUSSIAN), recycled(change=priced(parts.jacobian_forgotten_gaussian), **GAUSSIAN), "density"
    ),
    "curvature of a record halved": Mutant(
        solo(**GAUSSIAN), solo(change=priced(parts.curvature_halved), **GAUSSIAN), "sensitivity"
    ),
    "replace-one for the price of zero-out": Mutant(
        penalty(**GAUSSIAN), penalty(change=priced(parts.without), **GAUSSIAN), "sensitivity"
    ),
    "rounds for the price of one": Mutant(
        gradient(Curator()), gradient(Curator(), ratio_times(math.sqrt(0.5))), "gaussian-view", RECORD
    ),
    "variance used as a standard deviation": Mutant(
        gradient(Curator()), gradient(Curator(), squared("noise_std")), "gaussian-view", RECORD
    ),
    "own gradients noised for half of what they can change": Mutant(
        gradient(Broadcast(), momentum=0.9),
        gradient(Broadcast(), scaled(noise_std=0.5), momentum=0.9),
        "gaussian-view",
        RECORD,
    ),
    "sums of columns noised for half of what they can change": Mutant(
        standardised(Curator()), standardised(Curator(), scaled(noise_std=0.5)), "sensitivity", RECORD
    ),
    "squares of columns for half the price": Mutant(
        standardised(Broadcast()), standardised(Broadcast(), priced(parts.squares_for_half)), "sensitivity", RECORD
    ),
    "one party's noise dropped from a secure sum": Mutant(
        gradient(SecureSum()), gradient(parts.ShareDropped()), "plan", RECORD
    ),
    "shares of a secure sum too small": Mutant(
        fixed_point(SumNoisedADMM, SumNoise(**STEP, clip=0.002), channel=SecureSum()),
        fixed_point(SumNoisedADMM, SumNoise(**STEP, clip=0.002), channel=parts.SharesTooSmall()),
        "plan",
        PARTY,
    ),
    "sum priced by one part of its sensitivity": Mutant(
        fixed_point(SumNoisedADMM, SumNoise(**STEP), channel=Curator()),
        fixed_point(SumNoisedADMM, SumNoise(**STEP), ratio_times(0.2), channel=Curator()),
        "gaussian-view",
        RECORD,
    ),
    "moves noised for half of what they can change": Mutant(
        fixed_point(LocallyNoisedADMM, LOCAL),
        fixed_point(LocallyNoisedADMM, LOCAL, scaled(noise_std=0.5)),
        "gaussian-view",
        PARTY,
    ),
    "solutions under constraints noised for half of what they can change": Mutant(
        constrained(), constrained(scaled(noise_std=0.5)), "gaussian-view", RECORD
    ),
    "clean states that overshoot": Mutant(
        fixed_point(BroadcastNoisedADMM, FAST_STATES, channel=Curator()),
        fixed_point(BroadcastNoisedADMM, FAST_STATES, priced(parts.price_of_slow_states), channel=Curator()),
        "sensitivity",
        PARTY,
    ),
    "clipped party gradient priced as a record": Mutant(
        fixed_point(BroadcastNoisedADMM, CLIPPED_STATES, channel=Curator()),
        fixed_point(
            BroadcastNoisedADMM, CLIPPED_STATES, priced(parts.party_for_the_price_of_its_records), channel=Curator()
        ),
        "sensitivity",
        RECORD,
    ),
    "a public walk counted as a secret one": Mutant(
        fixed_point(WalkADMM, LOCAL, **WALK),
        fixed_point(WalkADMM, LOCAL, ratio_times(1 / math.sqrt(3)), **WALK),
        "gaussian-view",
        RECORD,
    ),
    "a walk whose moves are noised too little": Mutant(
        fixed_point(MemorylessWalk, WalkNoise(**STEP), **HIDDEN_WALK),
        fixed_point(MemorylessWalk, WalkNoise(**STEP), ratio_times(0.5), **HIDDEN_WALK),
        "sensitivity",
        RECORD,
    ),
    "hiding among the others claimed on average": Mutant(
        fixed_point(MemorylessWalk, WalkNoise(**STEP), **HIDDEN_WALK),
        fixed_point(MemorylessWalk, parts.HiddenOnAverage(**STEP), **HIDDEN_WALK),
        "peer-view",
        RECORD,
    ),
    "sampling counted twice": Mutant(
        gradient(Curator(), **COIN), gradient(Curator(), priced(parts.coin_counted_twice), **COIN), "density", COIN_UNIT
    ),
    "secret sampling that everybody sees": Mutant(
        fixed_point(LocallyNoisedADMM, LOCAL), fixed_point(LocallyNoisedADMM, LOCAL, **COIN), "plan"
    ),
    "states that overshoot in an unclipped sum": Mutant(
        fixed_point(SumNoisedADMM, SumNoise(**STEP), channel=Curator()),
        fixed_point(SumNoisedADMM, SumNoise(**STEP | {"relaxation": 0.9}), channel=Curator()),
        "plan",
    ),
    "state carried un-noised": Mutant(penalty(**GAUSSIAN), penalty(parts.StateCarriedUnNoised, **GAUSSIAN), "plan"),
    "early stopping on a private residual": Mutant(
        penalty(**GAUSSIAN), penalty(parts.StopsEarlyOnPrivateResidual, **GAUSSIAN), "plan"
    ),
    "even step from the stored gradient": Mutant(
        recycled(**GAUSSIAN), recycled(parts.EvenStepFromStoredGradient, **GAUSSIAN), "plan"
    ),
    "two releases for one price": Mutant(
        penalty(**GAUSSIAN), penalty(parts.NoisesTwiceAndKeepsOne, **GAUSSIAN), "plan"
    ),
}

SOURCES = {
    "gamma norm drawn from Exp": (parts.ExponentialNorm, recycled(**GAMMA)),
    "seed re-used between rounds": (parts.SameEveryRound, penalty(**GAUSSIAN)),
    "seed re-used between parties": (parts.SameForAllParties, penalty(**GAUSSIAN)),
    "seed re-used between runs": (parts.SameEveryRun, gradient(SecureSum())),
}


@functools.cache
def findings(algorithm, by, options, noise=None):
    """Only the check that is named; the plan is always looked at."""
    checks = () if by == "plan" else (by,)
    n_runs = 6000 if by == "game" else 20
    return tuple(coterie.audit.check(algorithm, checks=checks, n_runs=n_runs, noise=noise, **dict(options)))


def verdicts(found):
    return {(finding.check, finding.verdict) for finding in found}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught_and_its_twin_passes(name):
    case = MUTANTS[name]
    right, wrong = (findings(algorithm, case.by, case.options) for algorithm in (case.twin, case.mutant))
    if case.by == "plan":
        assert right == ()
        assert verdicts(wrong) == {("plan", "refused")}
    else:
        assert verdicts(right) == {(case.by, "pass")}, right
        assert verdicts(wrong) == {(case.by, "fail")}, wrong


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_that_repeats_or_shrinks_its_noise_is_caught(name):
    source, algorithm = SOURCES[name]
    assert verdicts(findings(algorithm, "noise-law", RECORD, Seeded(0))) == {("noise-law", "pass")}
    assert verdicts(findings(algorithm, "noise-law", RECORD, source(0))) == {("noise-law", "fail")}


def test_every_mechanism_of_the_package_has_a_mutant():
    instances = [i for i in enumerate_instances() if not isinstance(i, tuple)]
    mechanisms = {type(i.algorithm.mechanism) for i in instances} - {NoNoise}
    assert mechanisms <= {base for case in MUTANTS.values() for base in type(case.mutant.mechanism).__mro__}
    assert len(MUTANTS) + len(SOURCES) >= 25


def test_the_page_says_what_catches_each_mutant():
    page = (Path(__file__).parents[2] / "docs" / "audit.md").read_text()
    for name, case in MUTANTS.items():
        caught = "refused" if case.by == "plan" else f"`{case.by}`"
        assert f"| {name} | `{type(case.twin.mechanism).__name__}` | {caught} |" in page
    for name in SOURCES:
        assert f"| {name} | noise source | `noise-law` |" in page
