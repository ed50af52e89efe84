"""One door in every engine: with the doors shut, nothing comes out of any path.

Doors are the functions of `privacy.release` that make a release. Each path of the engine's table, the cluster engine,
sites, evaluations and the releases for intervals run with every door raising; the paths also with the doors open, which
shows which path ran.
"""

import dataclasses
import inspect
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import coterie.audit
from coterie import Privacy, evaluate, rules
from coterie.algorithms import LocallyNoisedADMM, NoisyGradientDescent, PrimalPerturbedADMM
from coterie.audit.instances import REGULARISER
from coterie.engines import argmin, moments, mpi, own_steps, people, rounds
from coterie.engines.in_process import run
from coterie.engines.rounds import set_up
from coterie.network.channels import Curator, PairwiseSum
from coterie.plan import Plan
from coterie.privacy import for_engines, mechanisms, proximal, release
from coterie.privacy.mechanisms import GaussianGradient
from coterie.privacy.noise import Seeded
from coterie.privacy.objective import OutputPerturbation
from coterie.privacy.pairs import PairStreams
from coterie.privacy.proximal import LocalNoise
from coterie.problems import Logistic, Problem

sys.path.insert(0, str(Path(__file__).parents[1] / "contract"))
from test_paths import CASES, NEED_NUMBA

DOORS = [
    name
    for name, function in inspect.getmembers(release, inspect.isfunction)
    if inspect.get_annotations(function).get("return") is release.Release
]
COMPILED = (
    rounds.compiled, people.compiled, argmin._halves, argmin._in_one_program, for_engines.check_kernel,
    own_steps._compiled,
)  # fmt: skip
JITTED = (moments._each_alone, moments._contributed)


class DoorIsShutError(Exception):
    pass


def fresh_programs():
    """What was compiled with one kind of door must not be used with another."""
    for kept in COMPILED:
        kept.cache_clear()
    for kept in JITTED:
        kept.clear_cache()


@pytest.fixture
def doors_shut(monkeypatch):
    def shut(*_):
        raise DoorIsShutError

    for door in DOORS:
        original = getattr(release, door)
        # wherever it was imported
        for module in [m for name, m in sys.modules.items() if name.startswith("coterie.")]:
            if getattr(module, door, None) is original:
                monkeypatch.setattr(module, door, shut)
    fresh_programs()
    yield
    fresh_programs()


def test_all_doors_are_known():
    assert DOORS == ["seal", "seal_kernel", "seal_masked", "seal_total"]


def path_of(case):
    path = CASES[case][0]
    if path in NEED_NUMBA:
        pytest.importorskip("numba")
    return path


@pytest.mark.parametrize("case", CASES)
def test_nothing_leaves_a_path_whose_doors_are_shut(case, doors_shut):
    path, plan, data, paths = CASES[case]
    path_of(case)
    taken = []
    with pytest.raises(DoorIsShutError):
        run(plan, data, noise=Seeded(5), repeats=3, paths=paths, explain=taken.append)
    assert [choice.path.name for choice in taken] == [path]


class Alone:
    """A cluster of one process."""

    rank, size = 0, 1

    def allreduce(self, value):
        return value

    bcast = allreduce

    def gather(self, value):
        return [value]

    allgather = gather

    def Reduce(self, part, total, root):  # noqa: N802 - mpi4py's name
        total[:] = part

    def Bcast(self, value, root):  # noqa: N802
        pass

    def Create_dist_graph_adjacent(self, sources, destinations):  # noqa: N802
        return self

    def Neighbor_alltoallv(self, sent, heard):  # noqa: N802
        pass


OWN_STEPS = [case for case, (path, *_) in CASES.items() if path in own_steps.PATHS and "a few" not in case]


def test_every_path_of_own_steps_has_a_case():
    assert {CASES[case][0] for case in OWN_STEPS} == {*own_steps.PATHS}


@pytest.mark.parametrize("case", [*OWN_STEPS, "everybody"])
def test_nothing_leaves_the_cluster_engine_either(case, doors_shut, monkeypatch):
    _, plan, data, paths = CASES[case]
    path, taken, choose = path_of(case), [], own_steps.choose
    monkeypatch.setattr(own_steps, "choose", lambda work: taken.append(choose(work)) or taken[-1])
    with pytest.raises(DoorIsShutError):
        mpi.run(plan, lambda party: data.shards[party], noise=Seeded(5), comm=Alone(), paths=paths)
    # people have no path of their own there
    assert [choice.path.name for choice in taken] == ["general" if path == "people" else path]


@pytest.mark.parametrize("case", OWN_STEPS)
def test_nothing_leaves_a_site_either(case, doors_shut):
    _, plan, data, paths = CASES[case]
    path = path_of(case)
    with set_up():
        party = own_steps.OneParty(plan, 1, data.shards[1], Seeded(5), paths=paths)
        assert party.steps.path == path
        with pytest.raises(DoorIsShutError):
            party.work()


def sum_plan(channel):
    _, whole, *_ = CASES["all repeats"]
    mechanism = GaussianGradient(noise_multiplier=1.0)
    algorithm = NoisyGradientDescent(mechanism=mechanism, regulariser=REGULARISER, step=0.1, channel=channel)
    problem = dataclasses.replace(whole.problem, regulariser=REGULARISER)
    return Plan.make(algorithm, problem, "complete", whole.facts, rounds=2, adjacency="replace-one")


CURATED, MASKED = sum_plan(Curator()), sum_plan(PairwiseSum(colluders=1))


def test_no_masked_message_leaves_a_site_either(doors_shut):
    data = CASES["all repeats"][2]
    pairs = PairStreams(0, {}, MASKED.algorithm.channel.pairs(MASKED.facts.n_parties))
    with set_up(), pytest.raises(DoorIsShutError):
        own_steps.OneParty(MASKED, 0, data.shards[0], Seeded(5), pairs).work()


def test_nothing_leaves_a_curator_between_sites_either(doors_shut):
    """What reaches it is sealed to it, and is a contribution."""
    with set_up(), pytest.raises(DoorIsShutError):
        own_steps.noised_sum(CURATED, 0, np.zeros((CURATED.facts.n_parties, CURATED.facts.n_features)), Seeded(5))


@pytest.mark.parametrize("trust", ["none", "curator", "secure-sum"])
def test_nothing_leaves_an_evaluation_either(trust, doors_shut):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    y = (X[:, 0] > 0).astype(int)
    model = LogisticRegression().fit(X, y)
    promise = {"epsilon": 1.0, "delta": 1e-6, "adjacency": "replace-one"}
    with pytest.raises(DoorIsShutError):
        evaluate(model, X, y, **promise, parties=np.repeat([0, 1], 20), trust=trust)


def plan_with_moments(trust):
    facts = CASES["all repeats"][2].facts
    promise = Privacy(epsilon=2.0, delta=1e-6, adjacency="replace-one", trust=trust)
    problem = Problem(loss=Logistic(), regulariser=REGULARISER, record_weight=1.0)
    return rules.make_plan(problem, facts, promise, rules.Settled(rounds=2), rules.Wanted(robust=True))


# made while the doors are open, for the check of the information flow goes through them
WITH_MOMENTS = {trust: plan_with_moments(trust) for trust in ("none", "curator", "secure-sum")}


@pytest.mark.parametrize("trust", WITH_MOMENTS)
def test_no_moments_for_intervals_leave_either(trust, doors_shut):
    plan, data = WITH_MOMENTS[trust], CASES["all repeats"][2]
    grants, at = plan.moment_grants(0), np.zeros(data.facts.n_features)
    assert len({granted.purpose for granted in grants}) > 1
    for number in range(len(grants)):
        with pytest.raises(DoorIsShutError):
            moments.release(plan, data, number, at, Seeded(5))
        if trust == "none":
            with pytest.raises(DoorIsShutError):
                moments.sent_by(plan, 0, data.shards[0], number, at, Seeded(5))


@pytest.mark.parametrize("case", CASES)
def test_what_a_path_releases_lies_on_its_grants_grid(case):
    """The same cases with the doors open: whole numbers of steps, whichever engine added the noise."""
    from coterie.audit.reachability import reached

    path, plan, data, paths = CASES[case]
    path_of(case)
    taken = []
    releases = run(plan, data, repeats=3, paths=paths, explain=taken.append).releases
    assert [choice.path.name for choice in taken] == [path]
    scales = plan.grant_scales()
    grid = np.asarray(getattr(scales, plan.issued[0][0].size_of_noise) / scales.steps)[:, : releases.shape[2], None]
    assert reached(releases, np.zeros_like(releases), grid[None]).all()


def without_rounding(value, noise_steps, grid):
    return release.Release(release._release_p.bind(value + noise_steps * grid), release._SEAL)


def total_without_rounding(subtotal, noise_steps, grid):
    high, low = subtotal.value
    # a noise whose steps are not the grid's
    third = grid / 3
    return release.Release(
        release._release_p.bind((high * release._LOW + low) * grid + noise_steps * third * 3.1), release._SEAL
    )


DESCENT = NoisyGradientDescent(
    mechanism=GaussianGradient(noise_multiplier=4.0), regulariser=REGULARISER, step=0.5, channel=Curator()
)
MOVES = LocallyNoisedADMM(
    mechanism=LocalNoise(prox_step=0.5, relaxation=0.5, noise_multiplier=4.0), regulariser=REGULARISER
)
MINIMISERS = PrimalPerturbedADMM(mechanism=OutputPerturbation(penalty=1.0, noise_multiplier=4.0), dual_step=1.0)


@pytest.mark.parametrize(
    ("algorithm", "module", "door", "mutant"),
    [
        (DESCENT, mechanisms, "seal_total", total_without_rounding),
        (MOVES, proximal, "seal", without_rounding),
        (MINIMISERS, mechanisms, "seal", without_rounding),
    ],
    ids=["sums", "moves", "minimisers"],
)
def test_a_door_that_does_not_round_is_found_by_reachability(algorithm, module, door, mutant, monkeypatch):
    settings = {"checks": ["reachability"], "adjacency": "replace-one", "unit": "record"}
    assert [finding.verdict for finding in coterie.audit.check(algorithm, **settings)] == ["pass"]
    monkeypatch.setattr(module, door, mutant)
    fresh_programs()
    (finding,) = coterie.audit.check(algorithm, **settings)
    fresh_programs()
    assert finding.verdict == "fail"
    assert "could not have come from the neighbour" in finding.detail
