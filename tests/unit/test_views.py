"""Three views of one run, and the paper's numbers beside them."""

import math

import numpy as np
import pytest

from coterie.algorithms import (
    BroadcastNoisedADMM,
    GeneralADMM,
    LocallyNoisedADMM,
    MemorylessWalk,
    WalkADMM,
)
from coterie.network.channels import Curator
from coterie.network.topology import Sample, Walk
from coterie.papers.fixed_point.views import three_views
from coterie.plan import Plan
from coterie.privacy.image import ImageNoise
from coterie.privacy.proximal import BroadcastNoise, LocalNoise, WalkNoise
from coterie.problems import L2, Logistic, Problem
from coterie.values import Facts

N, STEP, MULTIPLIER, ROUNDS, DELTA = 100, 0.5, 30.0, 40, 1e-6
SETTINGS = {"prox_step": STEP, "relaxation": 0.5, "noise_multiplier": MULTIPLIER}
NONE = L2(0.0)
M1 = LocalNoise(**SETTINGS)


def plan_of(algorithm, sizes=(1,) * N):
    names = tuple(f"{i:03}" for i in range(len(sizes)))
    facts = Facts(parties=names, sizes=sizes, n_features=2, row_norm=1.0, labels=("n", "y"))
    problem = Problem(loss=Logistic(), regulariser=algorithm.regulariser, record_weight=1.0)
    return Plan.make(algorithm, problem, "unrestricted", facts, rounds=ROUNDS, adjacency="replace-one")


def by_rdp(slope):
    """The paper's conversion of a loss slope * order."""
    orders = 1 + np.geomspace(1e-3, 1e6, 4000)
    return np.min(slope * orders + math.log(1 / DELTA) / (orders - 1))


# L = 1, sigma twice the noise on a move, which is multiplier * 2 L gamma: L gamma / sigma = 1 / (4 multiplier)
ONE_VISIT = 8 / (4 * MULTIPLIER) ** 2


def test_centralised_with_local_noise():
    local, central, network = three_views(plan_of(LocallyNoisedADMM(mechanism=M1, regulariser=NONE)), DELTA)
    assert local.certified == central.certified == network.certified > 0
    assert [p.theorem for p in local.published] == ["FP Theorem 3 (local)"]
    assert local.published[0].epsilon == pytest.approx(by_rdp(ROUNDS * ONE_VISIT), rel=1e-3)
    assert [p.theorem for p in central.published] == ["FP Theorem 2", "FP Remark 4"]
    for stated in central.published:
        assert stated.epsilon == pytest.approx(by_rdp(ROUNDS * ONE_VISIT / N**2), rel=1e-3)
        assert stated.epsilon < central.certified
    assert network.published == ()


def test_federated_with_local_noise():
    algorithm = LocallyNoisedADMM(mechanism=M1, regulariser=NONE, selection=Sample(count=10, seed=0))
    plan = plan_of(algorithm)
    _, central, _ = three_views(plan, DELTA)
    assert [p.theorem for p in central.published] == ["FP Theorem 3 (central)", "FP Remark 4"]
    visits = plan.participation.sum(axis=0).max()
    assert central.published[1].epsilon == pytest.approx(by_rdp(visits * ONE_VISIT / 10**2), rel=1e-3)


@pytest.mark.parametrize("memory", [True, False])
def test_walks(memory):
    if memory:
        plan = plan_of(WalkADMM(mechanism=M1, regulariser=NONE, selection=Walk(seed=0)))
    else:
        walk = Walk(seed=None, most_visits=ROUNDS)
        plan = plan_of(MemorylessWalk(mechanism=WalkNoise(**SETTINGS), regulariser=NONE, selection=walk))
    local, central, network = three_views(plan, DELTA)
    assert [p.theorem for p in network.published] == ["FP Theorem 4"]
    # the orders at which its condition holds are few here, or else it would be far below
    assert 0 < network.published[0].epsilon < math.inf
    assert (network.certified < local.certified) == (not memory)
    assert central.certified == local.certified


def test_clean_states_have_no_local_view():
    algorithm = BroadcastNoisedADMM(mechanism=BroadcastNoise(**SETTINGS), regulariser=NONE, channel=Curator())
    local, central, network = three_views(plan_of(algorithm), DELTA)
    assert local.certified is None
    assert "un-noised" in local.why
    assert central.certified == network.certified > 0


def test_general_constraint():
    mechanism = ImageNoise(A=0.1 * np.eye(2), prox_step=STEP, noise_multiplier=MULTIPLIER)
    plan = plan_of(GeneralADMM(mechanism=mechanism, regulariser=NONE, relaxation=0.5), sizes=(50,))
    _, central, _ = three_views(plan, DELTA)
    assert [p.theorem for p in central.published] == ["FP Theorem 7"]
    # |A| < 1: the published one is too small
    assert central.published[0].epsilon < central.certified
