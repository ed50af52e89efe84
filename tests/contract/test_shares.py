"""Repeats that are run a few at a time release what all of them at once release."""

import numpy as np
import pytest

from coterie.algorithms import SumNoisedADMM, WalkADMM
from coterie.data import Federation
from coterie.engines import in_process, shares
from coterie.engines.in_process import run
from coterie.network.channels import Curator
from coterie.network.selection import Poisson, Walk
from coterie.plan import Plan
from coterie.privacy.noise import Seeded
from coterie.privacy.proximal import LocalNoise, SumNoise
from coterie.problems import L1, L2, Logistic, Problem, Squared

N, D, REPEATS = 60, 4, 6


def make_federation(loss, *, per_party):
    rng = np.random.default_rng(0)
    X = 0.4 * rng.normal(size=(N * per_party, D))
    labels = {"labels": (0, 1)} if isinstance(loss, Logistic) else {"label_bound": 3.0}
    score = X @ rng.normal(size=D)
    y = (score > 0).astype(int) if isinstance(loss, Logistic) else score
    parties = np.repeat(np.arange(N), per_party)
    return Federation.from_arrays(X, y, parties=parties, min_records=1, **labels)


def sampled_people():
    problem = Problem(loss=Squared(), penalty=L1(1e-3), record_weight=1 / N)
    mechanism = SumNoise(step=float(N), relaxation=0.5, noise_multiplier=3.0, clip=0.1)
    selection = Poisson(probability=0.1, seed=None)
    algorithm = SumNoisedADMM(mechanism=mechanism, penalty=problem.penalty, channel=Curator(), selection=selection)
    people = make_federation(problem.loss, per_party=1)
    settings = {"rounds": 7, "adjacency": "zero-out", "unit": "party"}
    return Plan.make(algorithm, problem, "unrestricted", people.facts, **settings), people


def walk():
    problem = Problem(loss=Logistic(), penalty=L2(1.0), record_weight=1.0)
    mechanism = LocalNoise(step=0.5, relaxation=0.5, noise_multiplier=2.0)
    selection = Walk(seed=None, most_visits=5)
    algorithm = WalkADMM(mechanism=mechanism, penalty=problem.penalty, selection=selection)
    parties = make_federation(problem.loss, per_party=3)
    settings = {"rounds": 7, "adjacency": "replace-one"}
    return Plan.make(algorithm, problem, "unrestricted", parties.facts, **settings), parties


@pytest.mark.parametrize("make", [sampled_people, walk])
@pytest.mark.parametrize("share", [1, 2, 3])
def test_they_release_the_same(make, share, monkeypatch):
    plan, data = make()
    monkeypatch.setattr(in_process, "share_of", lambda *_: REPEATS)
    whole = run(plan, data, noise=Seeded(2), repeats=REPEATS).releases
    monkeypatch.setattr(in_process, "share_of", lambda *_: share)
    in_parts = run(plan, data, noise=Seeded(2), repeats=REPEATS).releases
    np.testing.assert_allclose(in_parts, whole, rtol=1e-12, atol=1e-12)


def test_a_share_divides_the_repeats_and_is_all_of_them_where_states_are_small():
    assert shares.share_of(70, 10, 5) == 70
    one = shares.MOST_BYTES // 8
    assert shares.share_of(70, one, 1) == 1
    assert shares.share_of(70, one // 8, 1) == 7
    assert shares.share_of(1, 10 * one, 1) == 1
