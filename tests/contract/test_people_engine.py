"""People with one record each: the engine's short way gives what the general one gives."""

import dataclasses

import numpy as np
import pytest

from coterie.algorithms import fixed_point_admm
from coterie.data import Federation
from coterie.engines import people
from coterie.engines.in_process import Paths, Work, choose, run
from coterie.network.channels import Curator, SecureSum
from coterie.network.topology import Sample
from coterie.plan import Plan
from coterie.privacy.for_engines import few_enough
from coterie.privacy.noise import Seeded
from coterie.problems import L2, ElasticNet, Huber, HuberisedHinge, Logistic, Problem, Squared, make_buckets

N, D = 40, 5
GENERAL = Paths(only=("general",))
RNG = np.random.default_rng(3)
X, SCORE = RNG.normal(size=(N, D)), RNG.normal(size=N)


def federation(loss, X=X):
    two = isinstance(loss, (Logistic, HuberisedHinge))
    labels = {"labels": (0, 1)} if two else {"label_bound": 2.0}
    y = (SCORE > 0).astype(int) if two else SCORE
    weights = RNG.uniform(0.2, 1.0, size=N)
    return Federation.from_arrays(
        X, y, parties=np.arange(N), min_records=1, row_norm=1.5, sample_weight=weights, **labels
    )


def make_plan(loss, data, *, channel, regulariser, clip, rounds=6, relaxation=0.5, spread_l2=False, **more):
    algorithm = fixed_point_admm(
        channel=channel,
        regulariser=regulariser,
        prox_step=1.3,
        noise_multiplier=2.0,
        clip=clip,
        relaxation=relaxation,
        **more,
    )
    mechanism = dataclasses.replace(algorithm.mechanism, spread_l2=spread_l2)
    algorithm = dataclasses.replace(algorithm, mechanism=mechanism)
    problem = Problem(loss=loss, regulariser=regulariser, record_weight=1.0)
    return Plan.make(algorithm, problem, "unrestricted", data.facts, rounds=rounds, adjacency="replace-one")


CASES = [
    (Logistic(), {"channel": Curator(), "regulariser": L2(1.0), "clip": None}),
    (Logistic(), {"channel": SecureSum(), "regulariser": L2(0.0), "clip": 0.3}),
    (Logistic(), {"channel": Curator(), "regulariser": L2(2.0), "clip": None, "relaxation": 0.8, "spread_l2": True}),
    (HuberisedHinge(0.3), {"channel": Curator(), "regulariser": ElasticNet(0.5, 0.2), "clip": None}),
    (Huber(0.7), {"channel": Curator(), "regulariser": L2(1.0), "clip": None}),
    (Squared(), {"channel": Curator(), "regulariser": ElasticNet(0.0, 0.3), "clip": 0.5}),
]


@pytest.mark.parametrize(("loss", "settings"), CASES, ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("rows", [X, np.asarray(0.2 * X, np.float32).astype(float)], ids=["double", "single"])
def test_it_releases_what_the_general_way_releases(loss, settings, rows):
    data = federation(loss, rows)
    plan = make_plan(loss, data, **settings)
    assert people.states_fit(plan, None)
    short = run(plan, data, noise=Seeded(1), repeats=2).releases
    general = run(plan, data, noise=Seeded(1), repeats=2, paths=GENERAL).releases
    np.testing.assert_allclose(short, general, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("relaxation", [0.5, 0.8])
def test_so_many_people_that_their_sum_would_not_be_exact_take_the_general_way(relaxation):
    """Distances from what is common shrink by |1 - pull| and grow by pull times the radius, round after round."""
    plan = make_plan(
        Logistic(), federation(Logistic()), channel=Curator(), regulariser=L2(2.0), clip=None, relaxation=relaxation
    )
    grant = plan.issued[0][0]
    pull = 2 * relaxation * grant.scales.curvature / (grant.scales.curvature + grant.scales.l2)
    reached = 0.0
    for _ in range(1000):
        reached = abs(1 - pull) * reached + pull * grant.scales.radius
    most = 2.0**52 / (reached / grant.grid + 1)
    assert few_enough(grant, int(0.99 * most))
    assert not few_enough(grant, int(1.01 * most))


def test_rows_are_kept_in_single_precision_only_where_that_loses_nothing():
    exact = np.asarray(0.2 * X, np.float32).astype(float)
    kept = people.rows(make_buckets(PROBLEM, federation(Logistic(), exact).shards)[0])
    assert kept.X.dtype == np.float32
    assert np.array_equal(kept.X, exact)
    longer = people.rows(make_buckets(PROBLEM, federation(Logistic(), 0.2 * X).shards)[0])
    assert longer.X.dtype == np.float64


PROBLEM = Problem(loss=Logistic(), regulariser=L2(1.0), record_weight=1.0)


def path_of(plan, data):
    return choose(Work(plan, 1, 1, None, data.shards, Paths())).path.name


def test_a_sample_and_parties_with_several_records_go_the_general_way():
    data = federation(Logistic())
    sampled = make_plan(
        Logistic(), data, channel=Curator(), regulariser=L2(1.0), clip=None, selection=Sample(count=5, seed=0)
    )
    assert path_of(sampled, data) == "general"
    larger = Federation.from_arrays(X, (SCORE > 0).astype(int), parties=np.arange(N) // 2, labels=(0, 1))
    settings = {"channel": Curator(), "regulariser": L2(1.0), "clip": None}
    assert path_of(make_plan(Logistic(), larger, **settings), larger) == "general"
    assert path_of(make_plan(Logistic(), data, **settings), data) == "people"


def test_people_for_whom_a_few_steps_are_too_few_are_searched_for(monkeypatch):
    """A step of 300 bends so little that the first steps overshoot for some."""
    searched = []
    search = people.with_search
    monkeypatch.setattr(people, "with_search", lambda *given: searched.append(True) or search(*given))
    y = (SCORE > 0).astype(int)
    data = Federation.from_arrays(X, y, parties=np.arange(N), min_records=1, row_norm=8.0, labels=(0, 1))
    algorithm = fixed_point_admm(channel=Curator(), regulariser=L2(1.0), prox_step=300.0, noise_multiplier=2.0)
    plan = Plan.make(algorithm, PROBLEM, "unrestricted", data.facts, rounds=6, adjacency="replace-one")
    short = run(plan, data, noise=Seeded(1), repeats=2).releases
    assert searched
    general = run(plan, data, noise=Seeded(1), repeats=2, paths=GENERAL).releases
    np.testing.assert_allclose(short, general, rtol=1e-10, atol=1e-10)
