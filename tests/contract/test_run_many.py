"""Plans side by side release what each would release alone, and share no draw."""

import numpy as np
import pytest

from coterie.algorithms import DualPerturbedADMM, NoisyGradientDescent, PenaltyPerturbedADMM, RecycledADMM
from coterie.data import Federation
from coterie.engines import in_process, rounds
from coterie.engines.in_process import Paths, run, run_many
from coterie.errors import InputError
from coterie.minimisers.shared import SharedCurvature
from coterie.network.channels import Curator
from coterie.plan import Plan
from coterie.privacy.mechanisms import GaussianGradient
from coterie.privacy.noise import Seeded
from coterie.privacy.objective import DualPerturbation, LinearPerturbation, PenaltyPerturbation
from coterie.problems import L2, Logistic, Problem
from coterie.values import Schedule

SMALLEST = Paths().together_from
PROBLEM = Problem(loss=Logistic(), regulariser=L2(2.0), record_weight=1.0)
D = 5


def make_federation(sizes, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(sum(sizes), D)) * 0.5
    y = X @ rng.normal(size=D) + 0.3 * rng.normal(size=len(X)) > 0
    return Federation.from_arrays(X, y.astype(int), parties=np.repeat(np.arange(len(sizes)), sizes), labels=(0, 1))


@pytest.fixture(scope="module")
def federation():
    return make_federation((20, 20, 35))


def plan_of(federation, algorithm, rounds=6):
    return Plan.make(algorithm, PROBLEM, "complete", federation.facts, rounds=rounds, adjacency="replace-one")


def penalty_perturbed(multiplier):
    return PenaltyPerturbedADMM(
        mechanism=PenaltyPerturbation(penalty=Schedule(2.0, 1.1), noise_multiplier=multiplier), dual_step=1.0
    )


def dual_perturbed(epsilon):
    return DualPerturbedADMM(mechanism=DualPerturbation(penalty=2.0, step_epsilon=epsilon), dual_step=1.0)


def recycled(rate):
    mechanism = LinearPerturbation(penalty=2.0, noise_rate=Schedule(rate, 1.05))
    return RecycledADMM(mechanism=mechanism, dual_step=1.0, recycle_weight=0.5)


def gradient_descent(multiplier):
    mechanism = GaussianGradient(noise_multiplier=multiplier)
    return NoisyGradientDescent(mechanism=mechanism, step=0.1, channel=Curator(), regulariser=PROBLEM.regulariser)


MIXED = (
    penalty_perturbed(1.0),
    dual_perturbed(1.0),
    penalty_perturbed(3.0),
    recycled(1.0),
    gradient_descent(2.0),
    dual_perturbed(0.5),
    recycled(2.0),
    gradient_descent(1.0),
    penalty_perturbed(0.5),
)


def test_each_plan_releases_what_it_releases_alone(federation):
    plans = [plan_of(federation, algorithm) for algorithm in MIXED]
    together = run_many(plans, federation, noise=Seeded(3), repeats=2)
    for plan, transcript in zip(plans, together, strict=True):
        alone = run(plan, federation, noise=Seeded(3), repeats=2)
        assert transcript.plan is plan
        assert transcript.releases.shape == alone.releases.shape
        assert np.allclose(transcript.releases, alone.releases, rtol=1e-9, atol=1e-9)


def test_minimisations_that_are_solved_together_end_where_each_alone_ends():
    """Parties large enough for the shared solver, levels of noise far apart."""
    large = make_federation((-(-SMALLEST // D), -(-SMALLEST // D)))
    plans = [plan_of(large, penalty_perturbed(multiplier), rounds=2) for multiplier in (0.1, 30.0)]
    for plan, transcript in zip(plans, run_many(plans, large, noise=Seeded(0), repeats=2), strict=True):
        alone = run(plan, large, noise=Seeded(0), repeats=2).releases
        assert np.abs(transcript.releases - alone).max() <= 1e-8 * np.abs(alone).max()


def test_a_block_in_which_one_missed_its_tolerance_is_computed_again(monkeypatch):
    """Solved together first; then by the plain minimiser, which is compiled only now."""
    large = make_federation((-(-SMALLEST // D), -(-SMALLEST // D)))
    plan = plan_of(large, penalty_perturbed(1.0), rounds=3)
    right = run(plan, large, noise=Seeded(0), repeats=2).releases
    minimise, tries = SharedCurvature.minimise, []

    def missed(*arguments):
        f, bound = minimise(*arguments)
        tries.append("together")
        return f.at[1].set(7.0), bound.at[1].set(1.0)

    monkeypatch.setattr(SharedCurvature, "minimise", missed)
    rounds.compiled.cache_clear()
    releases = run(plan, large, noise=Seeded(0), repeats=2).releases
    rounds.compiled.cache_clear()
    assert tries == ["together"]
    assert np.abs(releases - right).max() <= 1e-8 * np.abs(right).max()


def test_plans_that_differ_in_noise_alone_are_executed_at_once(federation, monkeypatch):
    executed = []
    execute = in_process._execute
    monkeypatch.setattr(
        in_process,
        "_execute",
        lambda groups, *rest: executed.append([*map(len, groups)]) or execute(groups, *rest),
    )
    run_many([plan_of(federation, algorithm) for algorithm in MIXED], federation, noise=Seeded(0))
    assert sorted(executed) == [[2], [2], [2], [3]]


def test_other_lengths_are_not_joined(federation):
    plans = [plan_of(federation, penalty_perturbed(1.0), rounds) for rounds in (3, 6)]
    short, long = run_many(plans, federation, noise=Seeded(0))
    assert short.complete
    assert long.complete
    assert np.allclose(short.releases, long.releases[:, :3], rtol=1e-9, atol=1e-9)


def test_without_a_seed_no_two_plans_share_a_draw(federation):
    plan = plan_of(federation, penalty_perturbed(1.0))
    one, two = run_many([plan, plan], federation)
    assert np.abs(one.releases[:, 0] - two.releases[:, 0]).min() > 0


def test_progress_counts_the_rounds_of_all(federation):
    seen = []
    plans = [plan_of(federation, algorithm) for algorithm in MIXED[:4]]
    run_many(plans, federation, noise=Seeded(0), progress=lambda done, total: seen.append((done, total)))
    done, totals = zip(*seen, strict=True)
    assert set(totals) == {24}
    assert list(done) == sorted(done)
    assert (done[0], done[-1]) == (0, 24)


def test_nothing_runs_when_one_plan_does_not_fit(federation, monkeypatch):
    monkeypatch.setattr(in_process, "_execute", lambda *_: pytest.fail("a plan was executed"))
    other = make_federation((20, 20, 20))
    with pytest.raises(InputError, match="federation: its public facts differ"):
        run_many([plan_of(federation, MIXED[0]), plan_of(other, MIXED[0])], federation)
    assert run_many([], federation) == []
