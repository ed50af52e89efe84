"""The attack finds a record in broadcasts without noise and nothing at epsilon = 1, and says where it cannot work."""

import dataclasses

import numpy as np
import pytest
from scipy.stats import binom

from coterie.algorithms import (
    ConsensusADMM,
    DualPerturbedADMM,
    EdgewiseADMM,
    NoisyGradientDescent,
    PenaltyPerturbedADMM,
    PrimalPerturbedADMM,
    RecycledADMM,
)
from coterie.audit.attack import NotIdentifiableError, Recovered, recover_record
from coterie.data import Federation, Shard
from coterie.engines.in_process import run
from coterie.errors import InputError
from coterie.network.channels import Curator, Impairments
from coterie.network.topology import make_topology
from coterie.plan import Plan
from coterie.privacy.mechanisms import GaussianGradient
from coterie.privacy.noise import Seeded
from coterie.privacy.objective import (
    DualPerturbation,
    LinearPerturbation,
    NoNoise,
    OutputPerturbation,
    PenaltyPerturbation,
)
from coterie.problems import L1, L2, Huber, HuberisedHinge, Logistic, Multinomial, Problem, Squared
from coterie.transcript import Transcript
from coterie.values import Schedule

N_PARTIES, SIZE, D = 4, 12, 6
FOUND = 1e-6
ADMM = ConsensusADMM.with_penalty(1.0)


def make_federation(seed, *, regression=False, row_norm=1.0, sample_weight=False):
    rng = np.random.default_rng(seed)
    n = N_PARTIES * SIZE
    X = rng.normal(size=(n, D))
    X *= row_norm * rng.uniform(0.5, 1.0, (n, 1)) / np.linalg.norm(X, axis=1, keepdims=True)
    score = X @ rng.normal(size=D) + 0.3 * rng.normal(size=n)
    labels = {"label_bound": 3.0} if regression else {"labels": (0, 1)}
    weights = {"sample_weight": rng.uniform(0.5, 2.0, n), "weight_bound": 2.0} if sample_weight else {}
    y = score if regression else (score > 0).astype(int)
    return Federation.from_arrays(
        X, y, parties=np.repeat(range(N_PARTIES), SIZE), row_norm=row_norm, **labels, **weights
    )


def make_plan(algorithm, federation, *, loss=None, graph="ring", rounds=8, **problem):
    problem = {"record_weight": 1.0, "regulariser": L2(0.1)} | problem
    problem = Problem(loss=Logistic() if loss is None else loss, **problem)
    return Plan.make(algorithm, problem, graph, federation.facts, rounds=rounds, adjacency="replace-one")


def without(shard, row):
    return Shard(*(np.delete(column, row, axis=0) for column in (shard.X, shard.y, shard.weight)))


def attack(transcript, federation, party, row, **options):
    """Error and result of the attack on one record."""
    shard = federation.shards[party]
    found = recover_record(transcript, party, without(shard, row), **options)
    return found.distance(shard.X[row], shard.y[row]), found


def worst_error(transcript, federation, *, weighted=False):
    """Over several records of every party."""
    return max(
        attack(transcript, federation, party, row, **({"sample_weight": shard.weight[row]} if weighted else {}))[0]
        for party, shard in enumerate(federation.shards)
        for row in (0, 5, 11)
    )


# --- without noise ----------------------------------------------------------------------------------------------------

LOSSES = {"logistic": Logistic(), "hinge": HuberisedHinge(), "huber": Huber(1.5), "squared": Squared()}


@pytest.mark.parametrize(
    ("loss", "graph", "seed"),
    [
        ("logistic", "ring", 0),
        ("logistic", "star", 1),
        ("hinge", "complete", 2),
        ("huber", "path", 3),
        ("squared", "ring", 4),
    ],
)
def test_every_record_is_found_in_broadcasts_without_noise(loss, graph, seed):
    federation = make_federation(seed, regression=loss in ("huber", "squared"))
    transcript = run(make_plan(ADMM, federation, loss=LOSSES[loss], graph=graph), federation)
    assert worst_error(transcript, federation) <= FOUND


def test_recycled_rounds_and_changing_penalties_hide_nothing():
    federation = make_federation(5)
    mechanism = NoNoise(penalty=Schedule((1.0, 2.0, 1.5, 1.0), ratio=1.1))
    algorithm = RecycledADMM(mechanism=mechanism, dual_step=1.0, recycle_weight=1.0)
    assert worst_error(run(make_plan(algorithm, federation), federation), federation) <= FOUND


def test_weights_norms_and_a_bad_network_hide_nothing():
    """Class weights that differ also tell a record from its mirror image."""
    federation = make_federation(6, row_norm=3.0, sample_weight=True)
    plan = make_plan(ADMM, federation, record_weight=None, party_weight=5.0, class_weight=(1.0, 3.0), rounds=12)
    transcript = run(plan, federation, impairments=Impairments(lost=0.2, late=0.1, skipped=0.2))
    assert worst_error(transcript, federation, weighted=True) <= FOUND
    assert not attack(transcript, federation, 0, 0, sample_weight=federation.shards[0].weight[0])[1].has_mirror


# --- with noise -------------------------------------------------------------------------------------------------------

GAUSSIAN, GAMMA = {"noise_multiplier": 1.0}, {"noise_rate": 1.0}
PENALTY, RING = {"penalty": 5.0}, make_topology("ring", N_PARTIES)
PRIVATE = {
    "primal-gaussian": PrimalPerturbedADMM(mechanism=OutputPerturbation(**PENALTY, **GAUSSIAN), dual_step=5.0),
    "penalty-gaussian": PenaltyPerturbedADMM(mechanism=PenaltyPerturbation(**PENALTY, **GAUSSIAN), dual_step=5.0),
    "penalty-gamma": PenaltyPerturbedADMM(mechanism=PenaltyPerturbation(**PENALTY, **GAMMA), dual_step=5.0),
}


class Silence:
    """A broken noise source."""

    reproducible = True

    def draw(self, law, d, *, repeat, party, t, purpose="release"):
        return np.zeros(d)


SILENCED = {
    "dual": DualPerturbedADMM(mechanism=DualPerturbation(**PENALTY, step_epsilon=0.01), dual_step=5.0),
    "primal": PRIVATE["primal-gaussian"],
    "edgewise": EdgewiseADMM.with_edges(RING, (4.0, 5.0, 6.0, 7.0), dual_step=5.0, **GAUSSIAN),
    "recycled": RecycledADMM(mechanism=LinearPerturbation(**PENALTY, **GAMMA), dual_step=5.0, recycle_weight=1.0),
}


@pytest.mark.parametrize("name", SILENCED)
def test_without_its_noise_every_algorithm_gives_records_away(name):
    """It is the noise that protects, nothing else: the attack understands the optimality condition of each."""
    federation = make_federation(11)
    plan = make_plan(SILENCED[name], federation)
    assert (plan.issued[0][0].scales.extra_l2 > 0) == (name == "dual")
    transcript = run(plan, federation, noise=Silence())
    assert worst_error(transcript, federation) <= FOUND


N_ATTACKS = 60


def chance():
    """The median of |cos| between a fixed direction and a uniform one: chance is above it half of the time."""
    uniform = np.random.default_rng(0).normal(size=(200_000, D))
    return np.median(np.abs(uniform[:, 0]) / np.linalg.norm(uniform, axis=1))


# chance has more hits than this among N_ATTACKS once in a thousand times
MOST_HITS = int(binom.isf(1e-3, N_ATTACKS, 0.5))


def hits_and_errors(plan, federation, n_attacks):
    """How often the direction is closer than chance's median, over records and fresh noise."""
    transcript = run(plan, federation, noise=Seeded(7), repeats=n_attacks)
    cosines, errors = [], []
    for repeat in range(n_attacks):
        party, row = repeat % N_PARTIES, repeat % SIZE
        error, found = attack(transcript, federation, party, row, repeat=repeat)
        cosines.append(found.cosine(federation.shards[party].X[row]))
        errors.append(error)
    return int((np.array(cosines) > chance()).sum()), np.array(errors)


@pytest.mark.parametrize("name", PRIVATE)
def test_at_epsilon_one_the_direction_is_no_better_than_chance(name):
    federation = make_federation(8)
    plan = make_plan(PRIVATE[name], federation, rounds=5).calibrate(1.0, 1e-6)
    assert plan.epsilon(1e-6) <= 1
    hits, errors = hits_and_errors(plan, federation, N_ATTACKS)
    assert hits <= MOST_HITS
    # records have norms from 0.5 to 1
    assert np.median(errors) > 0.5
    assert errors.min() > 0.1


def test_with_too_little_noise_the_same_test_sees_the_attack_succeed():
    """Power: the threshold above is passed by far when the noise is a fiftieth of the sensitivity."""
    federation = make_federation(8)
    mechanism = PenaltyPerturbation(**PENALTY, noise_multiplier=0.02)
    plan = make_plan(PenaltyPerturbedADMM(mechanism=mechanism, dual_step=5.0), federation, rounds=5)
    hits, errors = hits_and_errors(plan, federation, N_ATTACKS)
    assert hits > MOST_HITS + 10
    assert np.median(errors) < 0.5


# --- what cannot work -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exact():
    federation = make_federation(9)
    return federation, run(make_plan(ADMM, federation), federation)


def test_records_of_another_party_are_refused(exact):
    federation, transcript = exact
    with pytest.raises(InputError, match="not its other records"):
        recover_record(transcript, 1, without(federation.shards[0], 0))


@pytest.mark.parametrize("rounds", [0, 1])
def test_too_few_rounds_are_refused(exact, rounds):
    federation, transcript = exact
    short = Transcript(transcript.plan, transcript.releases[:, :rounds], reproducible=False)
    with pytest.raises(InputError, match="at least 2 are needed"):
        recover_record(short, 0, without(federation.shards[0], 0))


def test_places_that_are_not_there_are_refused(exact):
    federation, transcript = exact
    known = without(federation.shards[0], 0)
    for party in (-1, N_PARTIES):
        with pytest.raises(InputError, match="party: got"):
            recover_record(transcript, party, known)
    with pytest.raises(InputError, match="repeat: got 1"):
        recover_record(transcript, 0, known, repeat=1)
    with pytest.raises(InputError, match="all records of party 0 but one"):
        recover_record(transcript, 0, federation.shards[0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"loss": Multinomial(2)}, "one score"), ({"regulariser": L1(0.1)}, "smooth regulariser")],
)
def test_problems_beyond_the_attack_are_refused(exact, changes, message):
    federation, transcript = exact
    plan = make_plan(ADMM, federation, **changes)
    with pytest.raises(InputError, match=message):
        recover_record(dataclasses.replace(transcript, plan=plan), 0, without(federation.shards[0], 0))


def test_algorithms_without_a_minimisation_are_refused(exact):
    federation, transcript = exact
    mechanism = GaussianGradient(noise_multiplier=1.0)
    algorithm = NoisyGradientDescent(mechanism=mechanism, regulariser=L2(0.1), step=0.1, channel=Curator())
    plan = make_plan(algorithm, federation)
    with pytest.raises(InputError, match="graph algorithm"):
        recover_record(dataclasses.replace(transcript, plan=plan), 0, without(federation.shards[0], 0))


def flat_regression():
    """Two parties, whose labels are far from every score: Huber's slope is at its bound in every round."""
    rng = np.random.default_rng(10)
    X = rng.normal(size=(8, 2))
    federation = Federation.from_arrays(X, np.full(8, 100.0), parties=[0] * 4 + [1] * 4, label_bound=100.0)
    return federation, make_plan(ADMM, federation, loss=Huber(0.1), graph="complete", rounds=4)


def zero_slope():
    """One record is so long that from the first round on the hinge has no slope there."""
    X = np.array([[0.1, 0.0]] * 40 + [[20.0, 0.0]])
    X, parties = np.concatenate([X, X]), np.repeat([0, 1], 41)
    federation = Federation.from_arrays(X, np.ones(82, int), parties=parties, labels=(0, 1), row_norm=20.0)
    return federation, make_plan(ADMM, federation, loss=HuberisedHinge(), graph="complete", rounds=4)


@pytest.mark.parametrize(("make", "row", "message"), [(flat_regression, 0, "flat part"), (zero_slope, 40, "no slope")])
def test_records_that_leave_no_trace_are_not_invented(make, row, message):
    federation, plan = make()
    transcript = run(plan, federation)
    with pytest.raises(NotIdentifiableError, match=message):
        recover_record(transcript, 0, without(federation.shards[0], row))


def test_distance_knows_the_mirror_image():
    x = np.array([0.6, -0.8])
    found = Recovered(x, 1.0, 0.0, two_labels=True, has_mirror=True)
    assert found.distance(-x, 0.0) == 0
    assert found.distance(x, 0.0) == pytest.approx(1.0)
    assert dataclasses.replace(found, has_mirror=False).distance(-x, 0.0) == pytest.approx(np.sqrt(5))
    number = Recovered(x, 2.5, 0.0, two_labels=False, has_mirror=True)
    assert number.distance(-x, -2.5) == 0
    assert found.cosine(-3 * x) == pytest.approx(1.0)
