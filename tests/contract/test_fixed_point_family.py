"""The fixed-point family: with noise off it reaches the optimum, whoever works when; observers, units and refusals."""

import dataclasses
import functools

import cvxpy as cp
import jax
import numpy as np
import pytest
import scipy.optimize
import scipy.sparse
from sklearn.linear_model import Lasso

from coterie.algorithms import (
    BroadcastNoisedADMM,
    GeneralADMM,
    LocallyNoisedADMM,
    MemorylessWalk,
    NoisyGradientDescent,
    SumNoisedADMM,
    WalkADMM,
    fixed_point_admm,
)
from coterie.data import Federation
from coterie.engines.in_process import run
from coterie.errors import InputError, PrivacyPreconditionError
from coterie.network.channels import Broadcast, Curator, SecureSum, Token
from coterie.network.topology import All, Cyclic, Poisson, Sample, Shuffled, Walk
from coterie.plan import Plan
from coterie.privacy.image import ImageNoise
from coterie.privacy.mechanisms import GaussianGradient
from coterie.privacy.noise import Seeded
from coterie.privacy.proximal import BroadcastNoise, LocalNoise, SumNoise, WalkNoise
from coterie.problems import L1, L2, ElasticNet, Huber, Logistic, Multinomial, Problem, Squared

# noise multiplier
OFF = 1e-14
N, D = 24, 3


@functools.cache
def federation(kind, n_parties=N):
    """One record per person, or four hospitals of six."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, D))
    X /= np.maximum(1.0, np.linalg.norm(X, axis=1))[:, None]
    score = X @ np.array([2.0, -1.0, 0.0]) + 0.1 * rng.normal(size=N)
    parties = np.arange(N) % n_parties
    if kind == "regression":
        return Federation.from_arrays(X, score, parties=parties, label_bound=5.0, min_records=1)
    labels = tuple(range(kind))
    y = np.digitize(score, np.quantile(score, np.arange(1, kind) / kind))
    return Federation.from_arrays(X, y, parties=parties, labels=labels, min_records=1)


def settings(**changes):
    return {"prox_step": 3.0, "relaxation": 0.5, "noise_multiplier": OFF, **changes}


def solve(algorithm, loss, fed, rounds, topology="unrestricted", **changes):
    problem = Problem(loss=loss, regulariser=algorithm.regulariser, record_weight=1.0)
    arguments = {"rounds": rounds, "adjacency": "replace-one", **changes}
    plan = Plan.make(algorithm, problem, topology, fed.facts, **arguments)
    return run(plan, fed, noise=Seeded(0))


# --- limits ---------------------------------------------------------------------------------------------------------

LASSO = L1(0.5)
FREE = L2(0.0)
# far away from anything that occurs
CLIP = 100.0
WAYS = {
    "centralised, M1": lambda p, c: (LocallyNoisedADMM(mechanism=LocalNoise(**settings(clip=c)), regulariser=p), 150),
    "federated, M1, sample": lambda p, c: (
        LocallyNoisedADMM(mechanism=LocalNoise(**settings(clip=c)), regulariser=p, selection=Sample(count=3, seed=0)),
        1500,
    ),
    "federated, M1, poisson": lambda p, c: (
        LocallyNoisedADMM(
            mechanism=LocalNoise(**settings(clip=c)), regulariser=p, selection=Poisson(probability=0.3, seed=0)
        ),
        600,
    ),
    "cyclic": lambda p, c: (
        LocallyNoisedADMM(mechanism=LocalNoise(**settings(clip=c)), regulariser=p, selection=Cyclic()),
        4000,
    ),
    "shuffled": lambda p, c: (
        LocallyNoisedADMM(mechanism=LocalNoise(**settings(clip=c)), regulariser=p, selection=Shuffled(seed=2)),
        4000,
    ),
    "walk": lambda p, c: (
        WalkADMM(mechanism=LocalNoise(**settings(clip=c)), regulariser=p, selection=Walk(seed=0)),
        6000,
    ),
    "walk on a ring": lambda p, c: (
        WalkADMM(mechanism=LocalNoise(**settings(clip=c)), regulariser=p, selection=Walk(seed=0)),
        40000,
    ),
    "M2": lambda p, c: (SumNoisedADMM(mechanism=SumNoise(**settings(clip=c)), regulariser=p, channel=Curator()), 150),
    "M2, secret poisson": lambda p, c: (
        SumNoisedADMM(
            mechanism=SumNoise(**settings(clip=CLIP)),
            regulariser=p,
            channel=SecureSum(),
            selection=Poisson(probability=0.5, seed=None),
        ),
        400,
    ),
    "M3": lambda p, c: (
        BroadcastNoisedADMM(mechanism=BroadcastNoise(**settings(clip=c)), regulariser=p, channel=SecureSum()),
        150,
    ),
    "M3, sample": lambda p, c: (
        BroadcastNoisedADMM(
            mechanism=BroadcastNoise(**settings(clip=c)),
            regulariser=p,
            channel=Curator(),
            selection=Sample(count=3, seed=1),
        ),
        1500,
    ),
}


def solve_in(way, regulariser, loss, fed, clip=None):
    algorithm, rounds = WAYS[way](regulariser, clip)
    secret = {"adjacency": "zero-out", "unit": "party"} if algorithm.selection.secret else {}
    topology = "ring" if way == "walk on a ring" else "unrestricted"
    return solve(algorithm, loss, fed, rounds, topology, **secret).models[0]


@pytest.mark.parametrize("way", WAYS)
def test_the_lasso_of_people_is_scikit_learns(way):
    fed = federation("regression")
    X, y, _ = fed.pooled
    reference = Lasso(alpha=LASSO.l1 / N, fit_intercept=False, tol=1e-14, max_iter=100_000).fit(X, y).coef_

    def value(f):
        return 0.5 * np.sum((X @ f - y) ** 2) + LASSO.l1 * np.abs(f).sum()

    model = solve_in(way, LASSO, Squared(), fed, clip=CLIP)
    assert value(model) - value(reference) <= 1e-8


@pytest.mark.parametrize("way", WAYS)
def test_logistic_regression_of_hospitals_is_the_pooled_one(way):
    fed, regulariser = federation(2, 4), ElasticNet(0.5, 0.2)
    X, y, _ = fed.pooled
    f = cp.Variable(D)
    objective = cp.sum(cp.logistic(cp.multiply(1 - 2 * y, X @ f))) + 0.25 * cp.sum_squares(f) + 0.2 * cp.norm1(f)
    cp.Problem(cp.Minimize(objective)).solve(solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)

    def value(f):
        return np.logaddexp(0, (1 - 2 * y) * (X @ f)).sum() + 0.25 * f @ f + 0.2 * np.abs(f).sum()

    assert value(solve_in(way, regulariser, Logistic(), fed)) - value(f.value) <= 1e-8


@pytest.mark.parametrize("loss", [Huber(0.5), Multinomial(3)], ids=["huber", "multinomial"])
@pytest.mark.parametrize("n_parties", [N, 3], ids=["people", "groups"])
def test_other_losses_with_the_l2_spread_over_the_parties(loss, n_parties):
    fed = federation("regression" if isinstance(loss, Huber) else 3, n_parties)
    regulariser = L2(1.0)
    problem = Problem(loss=loss, regulariser=regulariser, record_weight=1.0)
    records = [problem.records(shard) for shard in fed.shards]
    start = np.zeros(problem.n_coefficients(fed.facts))
    with jax.enable_x64(True):
        value = jax.jit(lambda f: problem.value(f, records))
        best = scipy.optimize.minimize(lambda f: float(value(f)), start, method="BFGS", tol=1e-9).fun
    spread = BroadcastNoise(**settings(prox_step=1.0, spread_l2=True))
    together = BroadcastNoise(**settings(prox_step=1.0))
    for mechanism in (spread, together):
        algorithm = BroadcastNoisedADMM(mechanism=mechanism, regulariser=regulariser, channel=Curator())
        with jax.enable_x64(True):
            assert float(value(solve(algorithm, loss, fed, 200).models[0])) <= best + 1e-8


def test_a_walk_without_memory_minimises_moreau_envelopes():
    """Their common minimiser is not that of the losses; the last steps are still 1/n of the way to one party's own."""
    rng, step = np.random.default_rng(1), 5.0
    X = rng.normal(size=(N, D)) * rng.uniform(0.05, 0.6, size=(N, 1))
    fed = Federation.from_arrays(X, rng.normal(size=N), parties=np.arange(N), label_bound=5.0, min_records=1)
    X, y, _ = fed.pooled
    walk = Walk(seed=None, most_visits=10**6)
    algorithm = MemorylessWalk(
        mechanism=WalkNoise(**settings(prox_step=step, relaxation=0.05)), regulariser=FREE, selection=walk
    )
    model = solve(algorithm, Huber(20.0), fed, 60_000).models_by_round[0, 20_000:].mean(axis=0)

    def envelope(f):
        return np.sum((X @ f - y) ** 2 / (2 * (1 + step * np.sum(X * X, axis=1))))

    least = scipy.optimize.minimize(envelope, np.zeros(D), tol=1e-12).x
    erm = np.linalg.lstsq(X, y, rcond=None)[0]
    assert np.linalg.norm(erm - least) > 0.2 * np.linalg.norm(least)
    # five times closer than the losses' minimiser
    assert np.linalg.norm(model - least) < 0.04 * np.linalg.norm(least)


FUSED = scipy.sparse.csr_array(np.eye(D) - np.eye(D, k=-1))


@pytest.mark.parametrize(
    ("A", "B", "c"),
    [
        (FUSED, None, None),
        (np.vstack([np.eye(D), FUSED.toarray()]), None, None),
        (2 * np.eye(D), scipy.sparse.eye_array(D) * 0.5, (0.3, -0.2, 0.1)),
    ],
    ids=["sparse", "tall", "affine"],
)
def test_a_general_constraint_reaches_the_constrained_optimum(A, B, c):
    fed, regulariser = federation("regression", 1), ElasticNet(0.1, 0.5)
    mechanism = ImageNoise(A=A, prox_step=1.0, noise_multiplier=OFF)
    algorithm = GeneralADMM(mechanism=mechanism, regulariser=regulariser, relaxation=0.5, B=B, c=c)
    model = solve(algorithm, Huber(10.0), fed, 400).models[0]
    X, y, _ = fed.pooled
    A, B, c = mechanism.A.dense, algorithm.B.dense, np.asarray(algorithm.c)
    x, z = cp.Variable(D), cp.Variable(B.shape[1])
    objective = 0.5 * cp.sum_squares(X @ x - y) + 0.05 * cp.sum_squares(z) + 0.5 * cp.norm1(z)
    cp.Problem(cp.Minimize(objective), [A @ x + B @ z == c]).solve(
        solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12
    )
    np.testing.assert_allclose(model, z.value, atol=1e-7)


def test_a_loss_of_one_constraint_is_what_its_smallest_singular_value_says():
    """The paper's Theorem 7, corrected: 8 a K L^2 gamma^2 / (sigma^2 n^2 w^2), sigma being twice our noise on A x."""
    fed = federation(2, 1)
    mechanism = ImageNoise(A=0.5 * np.eye(D), prox_step=0.7, noise_multiplier=3.0)
    algorithm = GeneralADMM(mechanism=mechanism, regulariser=L2(1.0), relaxation=0.5)
    problem = Problem(loss=Logistic(), regulariser=L2(1.0), record_weight=1 / N)
    plan = Plan.make(algorithm, problem, "unrestricted", fed.facts, rounds=5, adjacency="replace-one")
    sigma = 2 * float(plan.grant_table().noise_std[0])
    stated = sum(count * event.rdp(np.array([2.0]))[0, 0] for event, count in plan.ledger(0))
    np.testing.assert_allclose(stated, 8 * 2.0 * 5 * 0.7**2 / (sigma**2 * N**2 * 0.5**2), rtol=1e-6)


def test_gradient_descent_with_a_secret_coin_is_dp_sgd():
    """Step for step the textbook's: clip every sampled record's gradient, add noise, divide by the expected batch."""
    fed = federation("regression")
    X, y, _ = fed.pooled
    mechanism, coin = GaussianGradient(noise_multiplier=1.3, clip=0.4), Poisson(probability=0.25, seed=None)
    algorithm = NoisyGradientDescent(
        mechanism=mechanism, regulariser=L1(0.01), step=0.05, channel=Curator(), selection=coin
    )
    transcript = solve(algorithm, Squared(), fed, 12, adjacency="zero-out")
    source, f = Seeded(0), np.zeros(D)
    batches = coin.table(12, transcript.plan.topology, source.coins(repeat=0))
    assert 0 < batches.mean() < 0.5
    for t, batch in enumerate(batches):
        gradients = ((X @ f - y)[:, None] * X)[batch]
        gradients /= np.maximum(1.0, np.linalg.norm(gradients, axis=1) / 0.4)[:, None]
        noise = 1.3 * 0.4 * source.draw("rounded-gaussian", D, repeat=0, party=0, t=t)
        f = f - 0.05 * (gradients.sum(axis=0) + noise) / 0.25
        f = np.sign(f) * np.maximum(np.abs(f) - 0.05 * 0.01, 0)
        # every party's part of a sum is rounded to a grid of 2^-26 deviations
        np.testing.assert_allclose(transcript.models_by_round[0, t], f, atol=1e-6)


# --- what may be stated, and what is refused ------------------------------------------------------------------------


def plan_of(algorithm, fed=None, topology="unrestricted", loss=None, **changes):
    fed = federation(2) if fed is None else fed
    loss = loss or (Logistic() if fed.facts.labels else Squared())
    problem = Problem(loss=loss, regulariser=algorithm.regulariser, record_weight=1.0)
    arguments = {"rounds": 10, "adjacency": "replace-one", **changes}
    return Plan.make(algorithm, problem, topology, fed.facts, **arguments)


PRIVATE = {"prox_step": 1.0, "relaxation": 0.5, "noise_multiplier": 20.0}
M1, M2, M3 = LocalNoise(**PRIVATE), SumNoise(**PRIVATE), BroadcastNoise(**PRIVATE)
CLIPPED = SumNoise(**PRIVATE, clip=0.1)


@pytest.mark.parametrize(
    ("channel", "selection", "expected"),
    [
        (Curator(), Sample(count=2, seed=0), BroadcastNoisedADMM),
        (SecureSum(), All(), BroadcastNoisedADMM),
        (Broadcast(), Sample(count=2, seed=0), LocallyNoisedADMM),
        (Token(), Walk(seed=0), WalkADMM),
    ],
)
def test_the_mechanism_follows_the_channel(channel, selection, expected):
    algorithm = fixed_point_admm(
        channel=channel, regulariser=FREE, prox_step=1.0, noise_multiplier=20.0, selection=selection, clip=0.5
    )
    assert type(algorithm) is expected
    assert algorithm.channel == channel
    assert plan_of(algorithm).epsilon(1e-6) > 0


def test_a_peer_learns_less_from_a_walk_without_memory():
    n = 1000
    facts = dataclasses.replace(federation(2).facts, parties=tuple(map(str, range(n))), sizes=(1,) * n)
    walk = MemorylessWalk(mechanism=WalkNoise(**PRIVATE), regulariser=FREE, selection=Walk(seed=None, most_visits=100))
    problem = Problem(loss=Logistic(), regulariser=FREE, record_weight=1.0)
    plan = Plan.make(walk, problem, "unrestricted", facts, rounds=100_000, adjacency="replace-one")
    assert plan.epsilon(1e-6) == plan.epsilon(1e-6, observer="everybody")
    assert 0 < plan.epsilon(1e-6, observer="peer") < 0.2 * plan.epsilon(1e-6)
    # half of the paper's 32 a K_i (L gamma)^2 ln(n/2) / (sigma^2 (n - 2)), sigma being twice our noise
    (event, visits), sigma = plan.ledger(0, observer="peer")[0], 2 * float(plan.grant_table().noise_std[0])
    assert visits == 100
    expected = 16 * 2 * np.log(n / 2) / (sigma**2 * (n - 2))
    # and a little more, for the mean of an exponential, the runs it is taken over, and rounding along the walk
    assert expected < event.rdp(np.array([2.0]))[0, 0] < expected * (1 + 5e-3)
    # among few parties the loss against everybody may be the better bound
    few = plan_of(walk)
    assert few.epsilon(1e-6, observer="peer") <= few.epsilon(1e-6)
    # a walk with memory has no such theorem: the loss against everybody stands
    plain = plan_of(WalkADMM(mechanism=M1, regulariser=FREE, selection=Walk(seed=0)))
    assert plain.epsilon(1e-6, observer="peer") == plain.epsilon(1e-6)


def test_whole_parties_can_be_protected():
    fed = federation(2, 4)
    for algorithm in (
        LocallyNoisedADMM(mechanism=M1, regulariser=FREE),
        BroadcastNoisedADMM(mechanism=M3, regulariser=FREE, channel=Curator()),
    ):
        record, party = (plan_of(algorithm, fed, unit=unit) for unit in ("record", "party"))
        # equal losses at noise in proportion: six records a hospital
        assert record.epsilon(1e-6) == pytest.approx(party.epsilon(1e-6))
        ratio = party.grant_table().noise_std[0] / record.grant_table().noise_std[0]
        assert ratio == pytest.approx(6.0) if isinstance(algorithm, LocallyNoisedADMM) else 1.0 < ratio < 6.0


def test_amplification_is_claimed_where_it_is_proved():
    def sampled(**changes):
        algorithm = SumNoisedADMM(
            mechanism=CLIPPED, regulariser=FREE, channel=Curator(), selection=Poisson(probability=0.1, seed=None)
        )
        return plan_of(dataclasses.replace(algorithm, **changes.pop("algorithm", {})), **changes)

    secret = sampled(adjacency="zero-out")
    always = sampled(adjacency="zero-out", algorithm={"selection": Poisson(probability=1.0, seed=0)})
    assert secret.epsilon(1e-6) < 0.4 * always.epsilon(1e-6)
    assert secret.epsilon(1e-6, accountant="pld") < secret.epsilon(1e-6)
    with pytest.raises(PrivacyPreconditionError, match="amplification is proved for zero-out"):
        sampled(adjacency="replace-one")
    with pytest.raises(PrivacyPreconditionError, match="amplification is proved for zero-out"):
        sampled(adjacency="zero-out", fed=federation(2, 4))
    assert sampled(adjacency="zero-out", fed=federation(2, 4), unit="party").epsilon(1e-6) > 0
    with pytest.raises(PrivacyPreconditionError, match="a clipped sum only"):
        sampled(adjacency="zero-out", algorithm={"mechanism": M2})


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: plan_of(LocallyNoisedADMM(mechanism=M1, regulariser=FREE), federation("regression")),
         PrivacyPreconditionError, "loss: Squared has unbounded slopes"),
        (lambda: plan_of(SumNoisedADMM(mechanism=SumNoise(**PRIVATE | {"relaxation": 0.7}), regulariser=FREE,
                                       channel=Curator())),
         PrivacyPreconditionError, "relaxation: got 0.7; at most 0.5 is needed without clip"),
        (lambda: plan_of(BroadcastNoisedADMM(mechanism=BroadcastNoise(**PRIVATE | {"relaxation": 1.0}),
                                             regulariser=FREE, channel=Curator())),
         PrivacyPreconditionError, "relaxation: got 1.0; less than 1.0"),
        (lambda: plan_of(BroadcastNoisedADMM(mechanism=M3, regulariser=FREE, channel=SecureSum(),
                                             selection=Sample(count=2, seed=0))),
         InputError, "selection: got Sample(count=2, seed=0); a secure-sum needs every party's share"),
        (lambda: plan_of(BroadcastNoisedADMM(mechanism=M3, regulariser=FREE, channel=Curator(),
                                             selection=Poisson(probability=0.5, seed=None))),
         PrivacyPreconditionError, "selection: secret, but states that are broadcast gain nothing"),
        (lambda: plan_of(LocallyNoisedADMM(mechanism=M1, regulariser=FREE,
                                           selection=Poisson(probability=0.5, seed=None))),
         InputError, "selection: got Poisson(probability=0.5, seed=None); on a broadcast channel everybody sees"),
        (lambda: plan_of(LocallyNoisedADMM(mechanism=M1, regulariser=FREE, selection=Walk(seed=0))),
         InputError, "a token channel needs a Walk, and a Walk a token channel"),
        (lambda: plan_of(WalkADMM(mechanism=M1, regulariser=FREE, selection=Walk(seed=None))),
         InputError, "a secret walk needs most_visits"),
        (lambda: plan_of(LocallyNoisedADMM(mechanism=M1, regulariser=FREE, selection=Sample(count=N + 1, seed=0))),
         InputError, "count: got 25; at most the 24 parties"),
        (lambda: plan_of(WalkADMM(mechanism=WalkNoise(**PRIVATE), regulariser=FREE, selection=Walk(seed=0))),
         InputError, "mechanism: got WalkNoise; WalkADMM is proved with LocalNoise"),
        (lambda: plan_of(SumNoisedADMM(mechanism=M3, regulariser=FREE, channel=Curator())),
         InputError, "mechanism: got BroadcastNoise; SumNoisedADMM is proved with SumNoise"),
        (lambda: WalkNoise(**PRIVATE | {"noise_multiplier": (20.0,) * N}),
         InputError, "noise_multiplier: got one per party; every visit of the token needs the same noise"),
        (lambda: plan_of(MemorylessWalk(mechanism=WalkNoise(**PRIVATE), regulariser=L2(1.0),
                                        selection=Walk(seed=None, most_visits=1))),
         InputError, "regulariser: got L2(l2=1.0); a walk without memory takes none"),
        (lambda: plan_of(MemorylessWalk(mechanism=WalkNoise(**PRIVATE), regulariser=FREE,
                                        selection=Walk(seed=None, most_visits=1)), topology="ring"),
         InputError, "topology: a walk without memory is proved for"),
        (lambda: plan_of(MemorylessWalk(mechanism=WalkNoise(**PRIVATE), regulariser=FREE, selection=Walk(seed=3))),
         InputError, "a walk that everybody can repeat hides nothing"),
        (lambda: plan_of(GeneralADMM(mechanism=ImageNoise(A=np.eye(D), prox_step=1.0, noise_multiplier=1.0),
                                     regulariser=FREE, relaxation=0.5)),
         InputError, "parties: got 24; one party must hold all records"),
        (lambda: ImageNoise(A=np.ones((3, 2)), prox_step=1.0, noise_multiplier=1.0),
         PrivacyPreconditionError, "A: its columns are linearly dependent"),
        (lambda: plan_of(BroadcastNoisedADMM(mechanism=M3, regulariser=FREE, channel=Curator()), unit="party",
                         records_per_person=2),
         InputError, "unit: got 'party'; records_per_person and people_span_parties"),
    ],
)  # fmt: skip
def test_what_is_not_proved_is_refused(make, error, message):
    with pytest.raises(error) as caught:
        make()
    assert message in str(caught.value)


def test_somebody_with_a_record_at_every_party_moves_the_sum_with_all_of_them():
    fed = federation(2, 4)
    algorithm = BroadcastNoisedADMM(mechanism=M3, regulariser=FREE, channel=Curator())
    one, everywhere = (plan_of(algorithm, fed, people_span_parties=span) for span in (False, True))
    [(single, rounds)], [(together, same)] = one.ledger(0), everywhere.person_ledger(0)
    assert rounds == same == 10
    assert together.ratio == pytest.approx(4 * single.ratio)


def test_every_visit_of_a_token_has_the_same_noise():
    """A visit hides under the noise of those that follow: a quiet party would uncover it."""
    facts = dataclasses.replace(federation(2).facts, parties=("a", "b", "c"), sizes=(1, 4, 9))
    walk = MemorylessWalk(mechanism=WalkNoise(**PRIVATE), regulariser=FREE, selection=Walk(seed=None, most_visits=2))
    for weights in ({"record_weight": 1.0}, {"party_weight": 1.0}):
        problem = Problem(loss=Logistic(), regulariser=FREE, **weights)
        for unit in ("record", "party"):
            plan = Plan.make(walk, problem, "unrestricted", facts, rounds=9, adjacency="replace-one", unit=unit)
            assert len(set(plan.grant_table().noise_std.tolist())) == 1
            assert max(event.ratio for event, _ in (plan.ledger(i)[0] for i in range(3))) == pytest.approx(1 / 20)


def test_nothing_hides_under_the_noise_of_parties_that_are_all_affected():
    walk = MemorylessWalk(mechanism=WalkNoise(**PRIVATE), regulariser=FREE, selection=Walk(seed=None, most_visits=1))
    plan = plan_of(walk, people_span_parties=True)
    assert plan.epsilon(1e-6, observer="peer") == plan.epsilon(1e-6)


@pytest.mark.parametrize("sizes", ["equal", "unequal"])
def test_a_holder_that_may_not_work_any_more_still_noises_the_token(sizes):
    """2000 rounds for 24 visits with data: the token keeps moving by noise alone, of the stated size (5 deviations)."""
    fed = federation(2)
    if sizes == "unequal":
        X, y, _ = fed.pooled
        fed = Federation.from_arrays(X, y, parties=np.minimum(np.arange(N), 20), labels=(0, 1), min_records=1)
    walk = MemorylessWalk(mechanism=WalkNoise(**PRIVATE), regulariser=FREE, selection=Walk(seed=None, most_visits=1))
    plan = plan_of(walk, fed, rounds=2000)
    late = run(plan, fed, noise=Seeded(0)).releases[0, 1000:, 0]
    std = float(plan.grant_table().noise_std[0])
    assert abs(np.mean(late**2) / std**2 - 1) < 5 * np.sqrt(2 / late.size)


def test_the_same_seed_gives_the_same_coins_again():
    fed, source = federation(2), Seeded(4)
    selection = Poisson(probability=0.5, seed=None)
    algorithm = SumNoisedADMM(mechanism=CLIPPED, regulariser=FREE, channel=Curator(), selection=selection)
    plan = plan_of(algorithm, fed, adjacency="zero-out")
    np.testing.assert_array_equal(*(run(plan, fed, noise=source).releases for _ in range(2)))


def test_settings_from_numpy_can_be_saved():
    selection = Sample(count=np.int64(2), seed=np.int64(0))
    mechanism = LocalNoise(prox_step=np.float32(0.5), relaxation=np.float64(0.5), noise_multiplier=np.float32(2.0))
    plan = plan_of(LocallyNoisedADMM(mechanism=mechanism, regulariser=FREE, selection=selection))
    assert Plan.from_json(plan.to_json()).digest == plan.digest


def test_what_a_stopped_run_has_cost():
    fed = federation(2)
    algorithm = LocallyNoisedADMM(mechanism=M1, regulariser=FREE, selection=Sample(count=2, seed=0))
    transcript = run(plan_of(algorithm, fed), fed, noise=Seeded(0), repeats=2)
    half = dataclasses.replace(transcript, releases=transcript.releases[:, :5])
    works = transcript.plan.participation
    for party in range(4):
        assert sum(count for _, count in transcript.ledger(party)) == 2 * works[:, party].sum()
        assert sum(count for _, count in half.ledger(party)) == 2 * works[:5, party].sum()


def test_transcripts_with_few_speakers_can_be_saved(tmp_path):
    fed = federation(2)
    algorithm = LocallyNoisedADMM(mechanism=M1, regulariser=FREE, selection=Poisson(probability=0.2, seed=0))
    transcript = run(plan_of(algorithm, fed), fed, noise=Seeded(0))
    again = type(transcript).load(transcript.save(tmp_path / "few.npz"))
    assert again.releases.shape[2] == transcript.plan.participation.sum(axis=1).max() < N
    np.testing.assert_array_equal(again.models, transcript.models)
