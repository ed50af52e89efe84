"""What a GPU would compute of all plans at once, computed here: what each plan releases by itself.

The program is the same on both; `tests/gpu` runs it where it belongs.
"""

import numpy as np
import pytest

from coterie.algorithms import (
    ConsensusADMM,
    DualPerturbedADMM,
    NoisyGradientDescent,
    PenaltyPerturbedADMM,
    RecycledADMM,
)
from coterie.data import Federation
from coterie.engines import at_once, rounds
from coterie.engines.in_process import run, run_many
from coterie.engines.inputs import Inputs
from coterie.errors import LocalSolveError
from coterie.network.channels import Curator
from coterie.network.impairments import Impairments
from coterie.plan import Plan
from coterie.privacy.mechanisms import GaussianGradient
from coterie.privacy.noise import Seeded, SystemEntropy
from coterie.privacy.objective import DualPerturbation, LinearPerturbation, OutputPerturbation, PenaltyPerturbation
from coterie.problems import L2, HuberisedHinge, Logistic, Problem, explicit
from coterie.schedules import Schedule

PROBLEM = Problem(loss=Logistic(), penalty=L2(2.0), record_weight=1.0, class_weight=(1.0, 2.0))
D = 6


def penalty_perturbed(multiplier):
    mechanism = PenaltyPerturbation(penalty=Schedule(2.0, 1.1), noise_multiplier=multiplier)
    return PenaltyPerturbedADMM(mechanism=mechanism, dual_step=1.0)


def recycled(rate):
    mechanism = LinearPerturbation(penalty=2.0, noise_rate=Schedule(rate, 1.05))
    return RecycledADMM(mechanism=mechanism, dual_step=1.0, recycle_weight=0.5)


ALGORITHMS = {
    "penalty": penalty_perturbed(1.0),
    "penalties": PenaltyPerturbedADMM(
        mechanism=PenaltyPerturbation(penalty=(2.0, 3.0, 4.0), noise_multiplier=1.0), dual_step=1.0, averaging="linear"
    ),
    "dual": DualPerturbedADMM(mechanism=DualPerturbation(penalty=2.0, step_epsilon=1.0), dual_step=1.0),
    "recycled": recycled(0.5),
    "output": RecycledADMM(
        mechanism=OutputPerturbation(penalty=2.0, noise_multiplier=1.0), dual_step=1.0, recycle_weight=0.5
    ),
    "exact": ConsensusADMM.with_penalty(2.0),
}


@pytest.fixture(scope="module")
def federation():
    """Parties of two buckets, with rows to fill up in one of them."""
    rng = np.random.default_rng(0)
    sizes = (33, 64, 70)
    X = rng.normal(size=(sum(sizes), D)) * 0.4
    y = X @ rng.normal(size=D) + 0.3 * rng.normal(size=len(X)) > 0
    parties = np.repeat(np.arange(len(sizes)), sizes)
    return Federation.from_arrays(X, y.astype(int), parties=parties, labels=(0, 1), row_norm=2.0)


def plan_of(algorithm, federation, rounds=7, problem=PROBLEM):
    return Plan.make(algorithm, problem, "complete", federation.facts, rounds=rounds, adjacency="replace-one")


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Switches it on whatever the work, and tells how many plans of how many programs were advanced together."""
    advanced = []

    def switch():
        compiled = at_once.compiled

        def told(programs):
            advance = compiled(programs)
            return lambda *a: advanced.append([program.plans for program in programs]) or advance(*a)

        monkeypatch.setattr(at_once, "compiled", told)
        monkeypatch.setattr(at_once, "BLOCK", 3)
        monkeypatch.setattr(at_once, "fits", lambda plan, *_: at_once.come_apart(plan, None))
        return advanced

    return switch


@pytest.fixture
def other_minimiser(monkeypatch):
    """Puts another one in the place of `explicit.minimise`, which programs that are kept would not see."""
    kept = at_once.compiled

    def put(function):
        monkeypatch.setattr(explicit, "minimise", function)
        kept.cache_clear()

    yield put
    kept.cache_clear()


@pytest.mark.parametrize("few_problems", [8, 0], ids=["pairs", "rows"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_transcripts_are_those_of_the_general_engine(name, few_problems, federation, as_on_a_gpu, monkeypatch):
    monkeypatch.setattr(explicit, "FEW_PROBLEMS", few_problems)
    plan = plan_of(ALGORITHMS[name], federation)
    right = run(plan, federation, noise=Seeded(5), repeats=3)
    advanced = as_on_a_gpu()
    transcript = run(plan, federation, noise=Seeded(5), repeats=3)
    assert advanced == [[1]] * 3
    np.testing.assert_allclose(transcript.releases, right.releases, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(transcript.models, right.models, rtol=1e-8, atol=1e-9)


def test_plans_of_several_algorithms_and_lengths(federation, as_on_a_gpu):
    gradient = NoisyGradientDescent(
        mechanism=GaussianGradient(noise_multiplier=2.0), step=0.1, channel=Curator(), penalty=PROBLEM.penalty
    )
    plans = [
        plan_of(gradient, federation, rounds=4),
        *(plan_of(penalty_perturbed(multiplier), federation, rounds=45) for multiplier in (1.0, 0.5)),
        *(plan_of(recycled(rate), federation, rounds=20) for rate in (0.5, 1.0, 2.0)),
        plan_of(ALGORITHMS["dual"], federation, rounds=1),
    ]
    right = [run(plan, federation, noise=Seeded(2), repeats=2) for plan in plans]
    advanced, told = as_on_a_gpu(), []
    found = run_many(plans, federation, noise=Seeded(2), repeats=2, progress=lambda now, of: told.append((now, of)))
    for transcript, expected in zip(found, right, strict=True):
        assert transcript.plan is expected.plan
        assert transcript.complete
        np.testing.assert_allclose(transcript.releases, expected.releases, rtol=1e-8, atol=1e-9)
    # three rounds a block, and a block ends where a plan does
    assert advanced == [[2, 3, 1]] + [[2, 3]] * 7 + [[2]] * 9
    assert told == sorted(told)
    assert told[-1] == (sum(plan.n_rounds for plan in plans),) * 2


@pytest.mark.parametrize(("source", "alike"), [(Seeded(4), True), (SystemEntropy(), False)], ids=["seed", "entropy"])
def test_from_a_seed_plans_are_noised_alike_and_else_no_two(source, alike, federation):
    plans = [plan_of(penalty_perturbed(multiplier), federation, rounds=2) for multiplier in (1.0, 2.0)]
    drawn = {}
    each = [Inputs([plan], source, 3, None, 2).block(0, 2, drawn).noise for plan in plans]
    first, second = (np.stack(noise) for noise in each)
    assert first.all()
    assert np.array_equal(first, second) == alike
    assert alike or not np.isin(first, second).any()
    apart = Inputs(plans[:1], source, 3, None, 2).block(1, 1, drawn).noise
    assert np.array_equal(apart[0][0], first[0, 1]) == alike


def test_a_block_that_missed_a_tolerance_is_computed_again(federation, as_on_a_gpu, other_minimiser, monkeypatch):
    plans = [plan_of(algorithm, federation, rounds=3) for algorithm in (penalty_perturbed(1.0), recycled(0.5))]
    right = [run(plan, federation, noise=Seeded(5)) for plan in plans]
    minimise, again, compiled = explicit.minimise, [], rounds.compiled

    def missed(loss, penalty, records, pulls):
        f, norms = minimise(loss, penalty, records, pulls)
        return f.at[0, -1].set(7.0), norms.at[0, -1].set(2 * pulls.tolerance[0, -1])  # one of the second program's

    other_minimiser(missed)
    monkeypatch.setattr(rounds, "compiled", lambda program: again.append(program.algorithm) or compiled(program))
    as_on_a_gpu()
    found = run_many(plans, federation, noise=Seeded(5))
    assert [type(algorithm) for algorithm in again] == [RecycledADMM]
    for transcript, expected in zip(found, right, strict=True):
        np.testing.assert_allclose(transcript.releases, expected.releases, rtol=1e-8, atol=1e-9)


def test_what_misses_its_tolerance_twice_is_not_released(federation, as_on_a_gpu, other_minimiser, monkeypatch):
    minimise = explicit.minimise

    def missed(*arguments):
        f, norms = minimise(*arguments)
        return f, norms.at[0, 0].set(1.0)

    def again(program):
        return lambda state, *_: (state, np.full((1, program.block, 3, D), np.nan))

    other_minimiser(missed)
    monkeypatch.setattr(rounds, "compiled", again)
    as_on_a_gpu()
    with pytest.raises(LocalSolveError, match="party '0' could not compute its step of round 0"):
        run(plan_of(penalty_perturbed(1.0), federation), federation, noise=Seeded(5))


def test_where_it_fits(federation, monkeypatch):
    plan = plan_of(penalty_perturbed(1.0), federation)
    monkeypatch.setattr(at_once.shared, "SMALLEST", 33 * D)
    assert not at_once.fits(plan, None, 1)  # no GPU
    monkeypatch.setattr(at_once.jax, "default_backend", lambda: "gpu")
    assert at_once.fits(plan, None, 1)
    assert not at_once.fits(plan, Impairments(lost=0.1), 1)
    assert not at_once.fits(plan, None, at_once.MOST_SCORES // 167 + 1)
    hinge = Problem(loss=HuberisedHinge(), penalty=L2(2.0), record_weight=1.0)
    assert at_once.fits(plan_of(penalty_perturbed(1.0), federation, problem=hinge), None, 1)
    monkeypatch.setattr(at_once.shared, "SMALLEST", 33 * D + 1)
    assert not at_once.fits(plan, None, 1)
