"""Minimisations in machine code release what XLA's do."""

import numpy as np
import pytest

from coterie import native
from coterie.algorithms import ConsensusADMM, DualPerturbedADMM, PenaltyPerturbedADMM, RecycledADMM, fixed_point_admm
from coterie.data import Federation
from coterie.engines import argmins
from coterie.engines.in_process import run, run_many
from coterie.errors import LocalSolveError
from coterie.network.channels import Curator
from coterie.network.impairments import Impairments
from coterie.plan import Plan
from coterie.privacy.noise import Seeded
from coterie.privacy.objective import DualPerturbation, LinearPerturbation, OutputPerturbation, PenaltyPerturbation
from coterie.problems import L2, HuberisedHinge, Logistic, Problem
from coterie.schedules import Schedule

PROBLEM = Problem(loss=Logistic(), penalty=L2(2.0), record_weight=1.0, class_weight=(1.0, 2.0))
ALGORITHMS = {
    "penalty": PenaltyPerturbedADMM(
        mechanism=PenaltyPerturbation(penalty=Schedule(2.0, 1.1), noise_multiplier=1.0), dual_step=1.0
    ),
    "penalties": PenaltyPerturbedADMM(
        mechanism=PenaltyPerturbation(penalty=(2.0, 3.0, 4.0), noise_multiplier=1.0), dual_step=1.0, averaging="linear"
    ),
    "dual": DualPerturbedADMM(mechanism=DualPerturbation(penalty=2.0, step_epsilon=1.0), dual_step=1.0),
    "recycled": RecycledADMM(
        mechanism=LinearPerturbation(penalty=2.0, noise_rate=Schedule(0.5, 1.05)), dual_step=1.0, recycle_weight=0.5
    ),
    "output": RecycledADMM(
        mechanism=OutputPerturbation(penalty=2.0, noise_multiplier=1.0), dual_step=1.0, recycle_weight=0.5
    ),
    "exact": ConsensusADMM.with_penalty(2.0),
}


def dense_federation():
    rng = np.random.default_rng(0)
    sizes = (20, 33, 64)
    X = rng.normal(size=(sum(sizes), 5)) * 0.4
    return _federation(X, rng, sizes)


def sparse_federation():
    rng = np.random.default_rng(1)
    sizes = (30, 41, 50)
    X = np.zeros((sum(sizes), 24))
    X[:, 0] = rng.normal(size=len(X)) * 0.5
    for group in np.array_split(np.arange(1, 24), 4):
        X[np.arange(len(X)), rng.choice(group, size=len(X))] = 0.3
    return _federation(X, rng, sizes)


def _federation(X, rng, sizes):
    y = X @ rng.normal(size=X.shape[1]) + 0.3 * rng.normal(size=len(X)) > 0
    parties = np.repeat(np.arange(len(sizes)), sizes)
    return Federation.from_arrays(X, y.astype(int), parties=parties, labels=(0, 1), row_norm=2.0)


FEDERATIONS = {"dense": dense_federation(), "sparse": sparse_federation()}


def plan_of(algorithm, federation, rounds=7, problem=PROBLEM):
    return Plan.make(algorithm, problem, "complete", federation.facts, rounds=rounds, adjacency="replace-one")


@pytest.fixture
def by_machine_code(monkeypatch):
    """Switches it on whatever the work, and counts what it solved."""
    solved = []
    minimise = argmins.Parties.minimise

    def counted(self, pulls):
        f, norms = minimise(self, pulls)
        solved.append((type(self).__name__, norms.size))
        return f, norms

    def switch(on=True):
        monkeypatch.setattr(argmins, "ENOUGH_WORK", 0 if on else 10**30)
        monkeypatch.setattr(argmins.Parties, "minimise", counted)
        return solved

    return switch


@pytest.mark.parametrize("kind", FEDERATIONS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_transcripts_are_those_of_the_general_engine(name, kind, by_machine_code):
    federation = FEDERATIONS[kind]
    plan = plan_of(ALGORITHMS[name], federation)
    right = run(plan, federation, noise=Seeded(5), repeats=3)
    solved = by_machine_code()
    transcript = run(plan, federation, noise=Seeded(5), repeats=3)
    assert solved == [(f"{kind.capitalize()}Parties", 9)] * 7
    np.testing.assert_allclose(transcript.releases, right.releases, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(transcript.models, right.models, rtol=1e-8, atol=1e-9)


def test_plans_side_by_side_and_more_problems_than_lanes(by_machine_code):
    federation = FEDERATIONS["sparse"]
    plans = [
        plan_of(
            RecycledADMM(
                mechanism=LinearPerturbation(penalty=Schedule(2.0, ratio), noise_rate=rate),
                dual_step=1.0,
                recycle_weight=0.5,
            ),
            federation,
        )
        for rate in (0.3, 0.6)
        for ratio in (1.0, 1.2)
    ]
    right = run_many(plans, federation, noise=Seeded(2), repeats=9)
    solved = by_machine_code()
    transcripts = run_many(plans, federation, noise=Seeded(2), repeats=9)
    assert solved == [("SparseParties", 4 * 9 * 3)] * 7
    for transcript, expected in zip(transcripts, right, strict=True):
        np.testing.assert_allclose(transcript.releases, expected.releases, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("kind", FEDERATIONS)
def test_what_misses_its_tolerance_is_minimised_again(kind, by_machine_code, monkeypatch):
    from coterie.native import parties

    federation = FEDERATIONS[kind]
    plan = plan_of(ALGORITHMS["penalty"], federation)
    right = run(plan, federation, noise=Seeded(5), repeats=2)
    by_machine_code()
    name = "minimise_sixteen" if kind == "sparse" else "minimise_each"
    kernel, spoiled = getattr(parties, name), []

    def spoil(*arguments):
        kernel(*arguments)
        f, norms = arguments[-2:]
        f[1, 2], norms[1, 2] = 7.0, np.nan
        spoiled.append(name)

    monkeypatch.setattr(parties, name, spoil)
    transcript = run(plan, federation, noise=Seeded(5), repeats=2)
    assert spoiled
    np.testing.assert_allclose(transcript.releases, right.releases, rtol=1e-8, atol=1e-9)


def test_what_misses_its_tolerance_twice_is_not_released(by_machine_code, monkeypatch):
    federation = FEDERATIONS["sparse"]
    by_machine_code()
    minimise = argmins.Parties.minimise

    def missed(self, pulls):
        f, norms = minimise(self, pulls)
        norms[0, 1] = 2 * np.asarray(pulls.tolerance)[0, 1]
        return f, norms

    monkeypatch.setattr(argmins.Parties, "minimise", missed)
    with pytest.raises(LocalSolveError, match="party '1' could not compute its step of round 0"):
        run(plan_of(ALGORITHMS["penalty"], federation), federation, noise=Seeded(5))


def test_only_plans_that_fit_are_taken(by_machine_code, monkeypatch):
    federation = FEDERATIONS["dense"]
    plan = plan_of(ALGORITHMS["penalty"], federation)
    assert not argmins.fits(plan, None, 1)  # little work
    by_machine_code()
    assert argmins.fits(plan, None, 1)
    assert not argmins.fits(plan, Impairments(lost=0.1), 1)
    hinge = Problem(loss=HuberisedHinge(), penalty=L2(2.0), record_weight=1.0)
    assert not argmins.fits(plan_of(ALGORITHMS["penalty"], federation, problem=hinge), None, 1)
    states = fixed_point_admm(channel=Curator(), penalty=PROBLEM.penalty, step=0.3, noise_multiplier=1.0)
    assert not argmins.fits(plan_of(states, federation), None, 1)
    monkeypatch.setattr(native, "available", lambda: False)
    assert not argmins.fits(plan, None, 1)


def test_many_repeats_of_dense_records_stay_with_matrix_products(by_machine_code):
    federation = FEDERATIONS["dense"]
    solved = by_machine_code()
    run(plan_of(ALGORITHMS["penalty"], federation, rounds=1), federation, noise=Seeded(0), repeats=5)
    assert solved == []
