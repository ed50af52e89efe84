"""Every path of the engine's table, on small plans: it is the one that ran, it releases what the general one releases,
and nothing that missed its tolerance leaves it."""

import dataclasses

import jax
import numpy as np
import pytest

from coterie import machine
from coterie.algorithms import (
    DualPerturbedADMM,
    NoisyGradientDescent,
    PenaltyPerturbedADMM,
    RecycledADMM,
    SumNoisedADMM,
    WalkADMM,
    fixed_point_admm,
)
from coterie.data import Federation
from coterie.engines import argmin, own_steps, rounds
from coterie.engines.in_process import PATHS, Paths, Work, choose, run, run_many
from coterie.engines.rounds import Inputs, set_up
from coterie.errors import InputError, LocalSolveError
from coterie.minimisers import matrices
from coterie.minimisers.native.minimiser import Native
from coterie.network.channels import Curator, Impairments
from coterie.network.topology import Poisson, Walk
from coterie.plan import Plan
from coterie.privacy.mechanisms import GaussianGradient
from coterie.privacy.noise import Seeded, SystemEntropy
from coterie.privacy.objective import DualPerturbation, LinearPerturbation, PenaltyPerturbation
from coterie.privacy.proximal import LocalNoise, SumNoise
from coterie.problems import L1, L2, HuberisedHinge, Logistic, Problem, Squared
from coterie.values import Schedule

PROBLEM = Problem(loss=Logistic(), regulariser=L2(2.0), record_weight=1.0, class_weight=(1.0, 2.0))
GENERAL = Paths(only=("general",))
REPEATS = 3


def penalty_perturbed(multiplier=1.0):
    mechanism = PenaltyPerturbation(penalty=Schedule(2.0, 1.1), noise_multiplier=multiplier)
    return PenaltyPerturbedADMM(mechanism=mechanism, dual_step=1.0)


def recycled(rate=0.5):
    mechanism = LinearPerturbation(penalty=(2.0, 3.0, 4.0), noise_rate=Schedule(rate, 1.05))
    return RecycledADMM(mechanism=mechanism, dual_step=1.0, recycle_weight=0.5)


def federation_of(X, rng, sizes):
    y = X @ rng.normal(size=X.shape[1]) + 0.3 * rng.normal(size=len(X)) > 0
    parties = np.repeat(np.arange(len(sizes)), sizes)
    return Federation.from_arrays(X, y.astype(int), parties=parties, labels=(0, 1), row_norm=2.0)


def dense_federation(sizes=(33, 64, 70), d=6):
    """Parties of two buckets, with rows to fill up in one of them."""
    rng = np.random.default_rng(0)
    return federation_of(rng.normal(size=(sum(sizes), d)) * 0.4, rng, sizes)


def sparse_federation():
    rng = np.random.default_rng(1)
    sizes = (30, 41, 50)
    X = np.zeros((sum(sizes), 24))
    X[:, 0] = rng.normal(size=len(X)) * 0.5
    for group in np.array_split(np.arange(1, 24), 4):
        X[np.arange(len(X)), rng.choice(group, size=len(X))] = 0.3
    return federation_of(X, rng, sizes)


def plan_of(algorithm, federation, rounds=7, problem=PROBLEM):
    return Plan.make(algorithm, problem, "complete", federation.facts, rounds=rounds, adjacency="replace-one")


def graph(algorithm, federation):
    return plan_of(algorithm, federation), federation


def people(loss, algorithm_of, n=60, d=4, **settings):
    rng = np.random.default_rng(0)
    X = 0.4 * rng.normal(size=(n, d))
    labels = {"labels": (0, 1)} if isinstance(loss, Logistic) else {"label_bound": 3.0}
    score = X @ rng.normal(size=d)
    y = (score > 0).astype(int) if isinstance(loss, Logistic) else score
    crowd = Federation.from_arrays(X, y, parties=np.arange(n), min_records=1, **labels)
    algorithm, regulariser = algorithm_of(n)
    problem = Problem(loss=loss, regulariser=regulariser, record_weight=1 / n)
    return Plan.make(algorithm, problem, "unrestricted", crowd.facts, rounds=7, **settings), crowd


def sampled_people():
    def algorithm(n):
        mechanism = SumNoise(prox_step=float(n), relaxation=0.5, noise_multiplier=3.0, clip=0.1)
        selection = Poisson(probability=0.1, seed=None)
        return SumNoisedADMM(mechanism=mechanism, regulariser=L1(1e-3), channel=Curator(), selection=selection), L1(
            1e-3
        )

    return people(Squared(), algorithm, adjacency="zero-out", unit="party")


def everybody():
    def algorithm(n):
        return fixed_point_admm(channel=Curator(), regulariser=L2(1.0), prox_step=1.3, noise_multiplier=2.0), L2(1.0)

    return people(Logistic(), algorithm, adjacency="replace-one")


def walk():
    mechanism = LocalNoise(prox_step=0.5, relaxation=0.5, noise_multiplier=2.0)
    algorithm = WalkADMM(mechanism=mechanism, regulariser=L2(1.0), selection=Walk(seed=None, most_visits=5))
    data = dense_federation(sizes=(3,) * 20, d=4)
    problem = Problem(loss=Logistic(), regulariser=L2(1.0), record_weight=1.0)
    return Plan.make(algorithm, problem, "unrestricted", data.facts, rounds=7, adjacency="replace-one"), data


DENSE, SPARSE = dense_federation(), sparse_federation()
# a path, a plan that takes it when it may, and the numbers under which it may
CASES = {
    "matrices of pairs": (
        "argmin by matrices",
        *graph(recycled(), DENSE),
        Paths(matrices_on=("cpu",), together_from=0),
    ),
    "matrices of rows": (
        "argmin by matrices",
        *graph(penalty_perturbed(), SPARSE),
        Paths(matrices_on=("cpu",), together_from=0, matrices_block=3),
    ),
    "dense rows": ("argmin in machine code", *graph(recycled(), DENSE), Paths(native_work=0)),
    "sparse rows": ("argmin in machine code", *graph(penalty_perturbed(), SPARSE), Paths(native_work=0)),
    "sampled people": ("people in machine code", *sampled_people(), Paths(people_work=0)),
    "everybody": ("people", *everybody(), Paths()),
    "together": ("solved together", *graph(penalty_perturbed(), DENSE), Paths(together_from=0)),
    "a few repeats at a time": ("general", *sampled_people(), Paths(cached_bytes=60 * 4 * 8)),
    "a walk, a few repeats at a time": ("general", *walk(), Paths(cached_bytes=20 * 4 * 8)),
    "all repeats": ("general", *graph(penalty_perturbed(), DENSE), Paths()),
}
NEED_NUMBA = {"argmin in machine code", "people in machine code"}
MATRICES, MACHINE_CODE = CASES["matrices of pairs"][-1], CASES["dense rows"][-1]


def test_every_path_of_the_table_has_a_case():
    assert {path for path, *_ in CASES.values()} == {path.name for path in PATHS}
    assert set(own_steps.PATHS) <= {path.name for path in PATHS}


@pytest.mark.parametrize("case", CASES)
def test_it_runs_and_releases_what_the_general_path_releases(case, monkeypatch):
    path, plan, data, paths = CASES[case]
    if path in NEED_NUMBA:
        pytest.importorskip("numba")
    if case == "matrices of rows":
        monkeypatch.setattr(matrices, "FEW_PROBLEMS", 0)
    taken = []
    found = run(plan, data, noise=Seeded(5), repeats=REPEATS, paths=paths, explain=taken.append)
    assert [choice.path.name for choice in taken] == [path]
    right = run(plan, data, noise=Seeded(5), repeats=REPEATS, paths=dataclasses.replace(GENERAL, cached_bytes=2**40))
    np.testing.assert_allclose(found.releases, right.releases, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(found.models, right.models, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("case", ["all repeats", "together", "dense rows", "sparse rows"])
def test_one_party_by_itself_releases_the_same(case):
    path, plan, data, paths = CASES[case]
    if path in NEED_NUMBA:
        pytest.importorskip("numba")
    right = run(plan, data, noise=Seeded(5), paths=dataclasses.replace(GENERAL, cached_bytes=2**40)).releases[0]
    with set_up():
        party = own_steps.OneParty(plan, 1, data.shards[1], Seeded(5), paths=paths)
        assert party.steps.path == path
        for t in range(2):
            party.private, sent = party.work()
            np.testing.assert_allclose(sent, right[t, 1], rtol=1e-8, atol=1e-9)
            party.hear(right[t])


def work(plan, data, paths, repeats=REPEATS, impairments=None):
    return Work(plan, repeats, repeats, impairments, data.shards, paths)


def test_the_choice_says_why_no_earlier_path_is_taken(monkeypatch):
    plan, data = CASES["dense rows"][1:3]
    told = str(choose(work(plan, data, Paths())))
    assert told.startswith("general; not argmin by matrices: needs a GPU; ")
    assert "not argmin in machine code: needs enough work" in told
    hinge = plan_of(
        penalty_perturbed(), data, problem=Problem(loss=HuberisedHinge(), regulariser=L2(2.0), record_weight=1.0)
    )
    states = plan_of(
        fixed_point_admm(channel=Curator(), regulariser=PROBLEM.regulariser, prox_step=0.3, noise_multiplier=1.0), data
    )
    reasons = {
        work(plan, data, MACHINE_CODE, impairments=Impairments(lost=0.1)): "no impairments",
        work(states, data, MACHINE_CODE): "a graph algorithm",
        work(hinge, data, MACHINE_CODE): "the logistic loss",
        work(plan, data, MACHINE_CODE, repeats=5): "few problems a party",
    }
    by_name = {path.name: path for path in PATHS}
    for refused, words in reasons.items():
        assert words in by_name["argmin in machine code"].passed_over(refused)
    monkeypatch.setattr(machine, "has_numba", lambda: False)
    for name in NEED_NUMBA:
        assert by_name[name].passed_over(work(plan, data, Paths(native_work=0, people_work=0))) is not None

    by_matrices = by_name["argmin by matrices"]
    assert by_matrices.passed_over(work(hinge, data, MATRICES)) is None
    assert "impairments" in by_matrices.passed_over(work(plan, data, MATRICES, impairments=Impairments(lost=0.1)))
    smallest = dataclasses.replace(MATRICES, together_from=33 * 6 + 1)
    assert "many records" in by_matrices.passed_over(work(plan, data, smallest))
    assert "memory" in by_matrices.passed_over(work(plan, data, MATRICES, repeats=2**28 // 167 + 1))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert by_matrices.passed_over(work(plan, data, Paths(together_from=0))) is None


def test_paths_that_are_not_there_or_not_possible_are_refused():
    with pytest.raises(InputError, match="only: got 'the scenic one'"):
        Paths(only=("the scenic one",))
    plan, data = CASES["dense rows"][1:3]
    with pytest.raises(InputError, match="people needs people with one record"):
        run(plan, data, paths=Paths(only=("people",)))


# --- several plans --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_plans_of_several_algorithms_and_lengths_in_one_program(monkeypatch):
    data = DENSE
    gradient = NoisyGradientDescent(
        mechanism=GaussianGradient(noise_multiplier=2.0), step=0.1, channel=Curator(), regulariser=PROBLEM.regulariser
    )
    dual = DualPerturbedADMM(mechanism=DualPerturbation(penalty=2.0, step_epsilon=1.0), dual_step=1.0)
    plans = [
        plan_of(gradient, data, rounds=4),
        *(plan_of(penalty_perturbed(multiplier), data, rounds=45) for multiplier in (1.0, 0.5)),
        *(plan_of(recycled(rate), data, rounds=20) for rate in (0.5, 1.0, 2.0)),
        plan_of(dual, data, rounds=1),
    ]
    right = [run(plan, data, noise=Seeded(2), repeats=2) for plan in plans]
    advanced, told, advance = [], [], argmin.Argmins.advance

    def counted(self, programs, *given):
        advanced.append([program.plans for program in programs])
        return advance(self, programs, *given)

    monkeypatch.setattr(argmin.Argmins, "advance", counted)
    paths = dataclasses.replace(MATRICES, matrices_block=3)
    found = run_many(
        plans, data, noise=Seeded(2), repeats=2, paths=paths, progress=lambda now, of: told.append((now, of))
    )
    for transcript, expected in zip(found, right, strict=True):
        assert transcript.plan is expected.plan
        assert transcript.complete
        np.testing.assert_allclose(transcript.releases, expected.releases, rtol=1e-8, atol=1e-9)
    # three rounds a block, and a block ends where a plan does
    assert advanced == [[2, 3, 1]] + [[2, 3]] * 7 + [[2]] * 9
    assert told == sorted(told)
    assert told[-1] == (sum(plan.n_rounds for plan in plans),) * 2


def test_plans_side_by_side_and_more_problems_than_lanes():
    pytest.importorskip("numba")
    plans = [
        plan_of(
            RecycledADMM(
                mechanism=LinearPerturbation(penalty=Schedule(2.0, ratio), noise_rate=rate),
                dual_step=1.0,
                recycle_weight=0.5,
            ),
            SPARSE,
        )
        for rate in (0.3, 0.6)
        for ratio in (1.0, 1.2)
    ]
    right, taken = run_many(plans, SPARSE, noise=Seeded(2), repeats=9), []
    found = run_many(plans, SPARSE, noise=Seeded(2), repeats=9, paths=MACHINE_CODE, explain=taken.append)
    assert [choice.path.name for choice in taken] == ["argmin in machine code"]
    for transcript, expected in zip(found, right, strict=True):
        np.testing.assert_allclose(transcript.releases, expected.releases, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(("source", "alike"), [(Seeded(4), True), (SystemEntropy(), False)], ids=["seed", "entropy"])
def test_from_a_seed_plans_are_noised_alike_and_else_no_two(source, alike):
    plans = [plan_of(penalty_perturbed(multiplier), DENSE, rounds=2) for multiplier in (1.0, 2.0)]
    drawn = {}
    each = [Inputs([plan], source, 3, None, 2).block(0, 2, drawn).noise for plan in plans]
    first, second = (np.stack(noise) for noise in each)
    assert first.all()
    assert np.array_equal(first, second) == alike
    assert alike or not np.isin(first, second).any()
    apart = Inputs(plans[:1], source, 3, None, 2).block(1, 1, drawn).noise
    assert np.array_equal(apart[0][0], first[0, 1]) == alike


# --- minimisations that miss their tolerance ------------------------------------------------------------------------


@pytest.fixture
def spoiled(monkeypatch):
    """Every fast minimiser of several parties misses the tolerance of the last problem of the first party."""

    def spoil(cls, honest):
        minimise = cls.minimise

        def missed(self, prepared, batch):
            f, norms = map(jax.numpy.asarray, minimise(self, prepared, batch))
            f, bound = f.at[-1, 0].set(7.0), 2 * jax.numpy.asarray(batch.tolerance)[-1, 0]
            return f, norms.at[-1, 0].set(bound if honest else 0.0)

        monkeypatch.setattr(cls, "minimise", missed)
        argmin._in_one_program.cache_clear()

    yield spoil
    argmin._in_one_program.cache_clear()


FAST = {"dense rows": Native, "sparse rows": Native, "matrices of pairs": matrices.Matrices}


@pytest.mark.parametrize("case", FAST)
def test_a_block_that_missed_a_tolerance_is_computed_again(case, spoiled, monkeypatch):
    pytest.importorskip("numba")
    _, plan, data, paths = CASES[case]
    right = run(plan, data, noise=Seeded(5), repeats=2)
    again, advance = [], rounds.advance
    monkeypatch.setattr(rounds, "advance", lambda *given: again.append(1) or advance(*given))
    spoiled(FAST[case], honest=False)
    wrong = run(plan, data, noise=Seeded(5), repeats=2, paths=paths)
    assert not again
    # that it does miss
    assert np.abs(wrong.releases - right.releases).max() > 1
    monkeypatch.undo()
    monkeypatch.setattr(rounds, "advance", lambda *given: again.append(1) or advance(*given))
    spoiled(FAST[case], honest=True)
    found = run(plan, data, noise=Seeded(5), repeats=2, paths=paths)
    assert again
    np.testing.assert_allclose(found.releases, right.releases, rtol=1e-8, atol=1e-9)


@pytest.mark.slow
def test_only_the_program_that_missed_is_computed_again(spoiled, monkeypatch):
    """The last problem is one of the second program's."""
    plans = [plan_of(algorithm, DENSE, rounds=3) for algorithm in (penalty_perturbed(), recycled())]
    right = [run(plan, DENSE, noise=Seeded(5)) for plan in plans]
    again, advance = [], rounds.advance
    monkeypatch.setattr(
        rounds, "advance", lambda program, *given: again.append(type(program.algorithm)) or advance(program, *given)
    )
    spoiled(matrices.Matrices, honest=True)
    found = run_many(plans, DENSE, noise=Seeded(5), paths=MATRICES)
    assert again == [RecycledADMM]
    for transcript, expected in zip(found, right, strict=True):
        np.testing.assert_allclose(transcript.releases, expected.releases, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("case", FAST)
def test_what_misses_its_tolerance_twice_is_not_released(case, spoiled, monkeypatch):
    pytest.importorskip("numba")
    _, plan, data, paths = CASES[case]
    nothing = np.full((1, 10, 3, plan.facts.n_features), np.nan)
    spoiled(FAST[case], honest=True)
    monkeypatch.setattr(rounds, "advance", lambda program, state, *_: (state, nothing))
    with pytest.raises(LocalSolveError, match="party '0' could not compute its step of round 0"):
        run(plan, data, noise=Seeded(5), paths=paths)


def test_a_share_divides_the_repeats_and_is_all_of_them_where_states_are_small():
    one = 2**22 // 8
    assert rounds.at_a_time(70, 10, 5, 2**22) == 70
    assert rounds.at_a_time(70, one, 1, 2**22) == 1
    assert rounds.at_a_time(70, one // 8, 1, 2**22) == 7
    assert rounds.at_a_time(1, 10 * one, 1, 2**22) == 1
