"""What the graph algorithms promise beyond any one of them: limits, prices, averages, imperfect networks."""

import dataclasses

import numpy as np
import pytest

from coterie.algorithms import (
    ConsensusADMM,
    DualPerturbedADMM,
    EdgewiseADMM,
    PenaltyPerturbedADMM,
    PrimalPerturbedADMM,
    RecycledADMM,
)
from coterie.data import Federation
from coterie.engines.in_process import run
from coterie.errors import InputError
from coterie.network.channels import Impairments
from coterie.network.topology import make_topology
from coterie.papers.dual_variable.tradeoff import AccuracyLoss, PrivacyUtility, best_alpha
from coterie.plan import Plan
from coterie.privacy.accountants import epsilon as composed
from coterie.privacy.noise import Seeded
from coterie.privacy.objective import (
    DualPerturbation,
    LinearPerturbation,
    NoNoise,
    OutputPerturbation,
    PenaltyPerturbation,
)
from coterie.problems import L2, Logistic, Problem
from coterie.transcript import Transcript
from coterie.values import Schedule

RING = make_topology("ring", 5)
PROBLEM = Problem(loss=Logistic(), regulariser=L2(1.0), record_weight=1.0)
UNEQUAL = (2.0, 3.0, 2.5, 4.0, 2.0)


@pytest.fixture(scope="module")
def federation():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 4))
    y = np.where(X @ [1, 2, -1, 0.5] + rng.normal(size=200) > 0, "yes", "no")
    return Federation.from_arrays(X, y, parties=np.arange(200) % 5, labels=("no", "yes"))


def weighted_optimum(federation, weights=(1.0,) * 5):
    """argmin sum_i weights_i O_i by plain Newton."""
    f = np.zeros(4)
    for _ in range(60):
        gradient, hessian = np.zeros(4), np.zeros((4, 4))
        for weight, shard in zip(weights, federation.shards, strict=True):
            sign = 2 * shard.y - 1
            p = 1 / (1 + np.exp(sign * (shard.X @ f)))
            gradient += weight * (f / 5 - (sign * p) @ shard.X)
            hessian += weight * (np.eye(4) / 5 + (shard.X * (p * (1 - p))[:, None]).T @ shard.X)
        f = f - np.linalg.solve(hessian, gradient)
    return f


def execute(algorithm, federation, rounds, **options):
    plan = Plan.make(algorithm, PROBLEM, RING, federation.facts, rounds=rounds, adjacency="replace-one")
    return run(plan, federation, noise=Seeded(0), **options)


def recycled(penalty, dual_step, **more):
    return RecycledADMM(mechanism=NoNoise(penalty=penalty), dual_step=dual_step, recycle_weight=30.0, **more)


QUIET = {"noise_multiplier": 1e-9}
NEARLY_NOISELESS = {
    "admm": ConsensusADMM.with_penalty(3.0),
    "dual, Gaussian": DualPerturbedADMM(mechanism=DualPerturbation(penalty=3.0, **QUIET), dual_step=3.0),
    "dual, gamma": DualPerturbedADMM(mechanism=DualPerturbation(penalty=3.0, step_epsilon=1e9), dual_step=3.0),
    "primal, Gaussian": PrimalPerturbedADMM(mechanism=OutputPerturbation(penalty=3.0, **QUIET), dual_step=3.0),
    "primal, gamma": PrimalPerturbedADMM(mechanism=OutputPerturbation(penalty=3.0, noise_rate=1e11), dual_step=3.0),
    "penalty, Gaussian": PenaltyPerturbedADMM(mechanism=PenaltyPerturbation(penalty=3.0, **QUIET), dual_step=3.0),
    "penalty, gamma": PenaltyPerturbedADMM(mechanism=PenaltyPerturbation(penalty=3.0, noise_rate=1e11), dual_step=3.0),
    "edge-wise": EdgewiseADMM.with_edges(RING, (2.0, 3.0, 4.0, 2.0, 3.0), dual_step=2.0, **QUIET),
    "recycled": recycled(3.0, 3.0),
    "recycled, growing penalty": recycled(Schedule(3.0, 1.002), 3.0),
    "recycled, gamma": RecycledADMM(
        mechanism=LinearPerturbation(penalty=3.0, noise_rate=1e11), dual_step=3.0, recycle_weight=30.0
    ),
    "recycled, output noise": RecycledADMM(
        mechanism=OutputPerturbation(penalty=3.0, **QUIET), dual_step=3.0, recycle_weight=30.0
    ),
}


@pytest.mark.parametrize("name", NEARLY_NOISELESS)
def test_with_noise_going_to_zero_every_party_reaches_the_pooled_optimum(federation, name):
    transcript = execute(NEARLY_NOISELESS[name], federation, 500)
    assert np.abs(transcript.party_models[0] - weighted_optimum(federation)).max() < 1e-8


def test_recycled_admm_with_penalties_per_party(federation):
    """Coupled, the limit is argmin sum_i O_i / eta_i, as printed in the paper; with a common dual step it is right."""
    coupled = execute(recycled(UNEQUAL, UNEQUAL, as_published=True), federation, 700).party_models[0]
    common = execute(recycled(UNEQUAL, 2.0), federation, 700).party_models[0]
    right, biased = weighted_optimum(federation), weighted_optimum(federation, 1 / np.asarray(UNEQUAL))
    assert np.abs(coupled - biased).max() < 1e-10
    assert np.abs(common - right).max() < 1e-10
    assert np.abs(biased - right).max() > 0.01
    with pytest.raises(InputError, match="dual_step: got"):
        recycled(UNEQUAL, UNEQUAL)


@pytest.mark.parametrize("noise", [{"noise_multiplier": 10.0}, {"noise_rate": 0.5}])
def test_recycling_is_free(federation, noise):
    """2K iterations of recycled ADMM cost exactly what K iterations of the same mechanism cost without it."""
    mechanism = LinearPerturbation(penalty=3.0, **noise)
    facts = federation.facts

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class NotRecycled(PenaltyPerturbedADMM):
        mechanism: LinearPerturbation

    with_recycling = Plan.make(
        RecycledADMM(mechanism=mechanism, dual_step=3.0, recycle_weight=1.0),
        PROBLEM,
        RING,
        facts,
        rounds=12,
        adjacency="replace-one",
    )
    without = Plan.make(
        NotRecycled(mechanism=mechanism, dual_step=3.0), PROBLEM, RING, facts, rounds=12, adjacency="replace-one"
    )
    assert with_recycling.epsilon(1e-6) == without.epsilon(1e-6)


def test_dual_perturbation_spends_its_step_epsilon_and_no_more(federation):
    """With the logistic refinement a little less; with the extra quadratic where the Jacobian would take it all."""
    for alpha in (2.0, 0.3, 0.01, 0.001):
        algorithm = DualPerturbedADMM(mechanism=DualPerturbation(penalty=0.5, step_epsilon=alpha), dual_step=0.5)
        plan = Plan.make(algorithm, PROBLEM, RING, federation.facts, rounds=1, adjacency="replace-one")
        assert 0.4 * alpha < plan.pure_epsilon() <= alpha * (1 + 1e-12)
        extra = plan.grant_scales().extra_l2
        assert np.all(extra > 0) if alpha <= 0.01 else np.all(extra == 0)
    run(plan, federation, noise=Seeded(0))


def test_dual_perturbation_as_published_costs_twice_its_promise(federation):
    mechanism = DualPerturbation(penalty=50.0, step_epsilon=1.0, as_published=True)
    algorithm = DualPerturbedADMM(mechanism=mechanism, dual_step=50.0)
    plan = Plan.make(algorithm, PROBLEM, RING, federation.facts, rounds=1, adjacency="replace-one")
    assert plan.pure_epsilon() == pytest.approx(2.0, rel=0.02)


def test_dual_perturbation_can_be_designed_from_runs(federation):
    """The accuracy curve is fitted to what runs at several alphas cost in loss, and the best alpha lies on it."""
    records = [PROBLEM.records(shard) for shard in federation.shards]
    optimum = float(PROBLEM.value(weighted_optimum(federation), records))
    alphas, excess = (0.1, 0.3, 1.0, 3.0), []
    for alpha in alphas:
        mechanism = DualPerturbation(penalty=3.0, step_epsilon=alpha)
        models = execute(DualPerturbedADMM(mechanism=mechanism, dual_step=3.0), federation, 5, repeats=200).models
        excess.append(float(np.mean([PROBLEM.value(f, records) for f in models])) / optimum - 1)
    # more privacy loss, less loss of accuracy
    assert excess == sorted(excess, reverse=True)
    curve = AccuracyLoss.fitted(alphas, excess)
    np.testing.assert_allclose(curve(np.array(alphas)), excess, atol=0.2 * excess[0])
    best, utility = best_alpha(PrivacyUtility(), curve, low=0.1, high=3.0), PrivacyUtility()
    assert 0.1 < best < 3.0
    assert all(utility(best) - curve(best) >= utility(alpha) - curve(alpha) for alpha in alphas)


@pytest.mark.parametrize(("averaging", "weights"), [("uniform", np.ones(7)), ("linear", np.arange(1, 8))])
def test_averages_over_rounds(federation, averaging, weights):
    mechanism = PenaltyPerturbation(penalty=3.0, noise_multiplier=5.0)
    algorithm = PenaltyPerturbedADMM(mechanism=mechanism, dual_step=3.0, averaging=averaging)
    transcript = execute(algorithm, federation, 7)
    expected = np.einsum("t,tpd->pd", weights / weights.sum(), transcript.releases[0])
    np.testing.assert_allclose(transcript.party_models[0], expected, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "impairments"),
    [
        ("admm", Impairments(lost=0.2)),
        ("edge-wise", Impairments(late=0.3)),
        ("recycled", Impairments(lost=0.1, late=0.1, skipped=0.2)),
    ],
)
def test_an_imperfect_network_keeps_the_limit(federation, name, impairments):
    """Both ends of an edge count what the other end has heard, so no message that is lost biases the duals."""
    transcript = execute(NEARLY_NOISELESS[name], federation, 800, impairments=impairments)
    assert np.abs(transcript.party_models[0] - weighted_optimum(federation)).max() < 1e-7


def test_impairments_and_the_charge(federation, tmp_path):
    """Lost and late messages were released all the same; a skipped round was not. The plan's own loss stays an upper
    bound, and a saved transcript knows its network."""
    algorithm = PenaltyPerturbedADMM(mechanism=PenaltyPerturbation(penalty=3.0, noise_multiplier=5.0), dual_step=3.0)
    lossy = execute(algorithm, federation, 40, impairments=Impairments(lost=0.3, late=0.2))
    assert [count for _, count in lossy.ledger(0)] == [40]
    # each repeat pays
    assert [count for _, count in execute(algorithm, federation, 3, repeats=4).ledger(0)] == [12]
    skipping = execute(algorithm, federation, 40, impairments=Impairments(skipped=0.3, seed=4))
    for party in range(5):
        spoke = np.any(np.diff(skipping.releases[0, :, party], axis=0, prepend=0.0) != 0, axis=1).sum()
        assert sum(count for _, count in skipping.ledger(party)) == spoke < 40
        assert composed(skipping.ledger(party), 1e-6) < skipping.plan.epsilon(1e-6)
    loaded = Transcript.load(skipping.save(tmp_path / "skipping.npz"))
    np.testing.assert_array_equal(loaded.models, skipping.models)
    assert loaded.ledger(2) == skipping.ledger(2)


@pytest.mark.parametrize("bad", [{"lost": -0.1}, {"late": 1.0}, {"skipped": 2.0}, {"lost": 0.6, "late": 0.6}])
def test_impossible_networks_are_refused(bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        Impairments(**bad)
