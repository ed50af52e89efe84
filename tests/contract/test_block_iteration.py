"""The noisy block iteration of Cyffers, Bellet & Basu (2023), Algorithm 1, and the algorithms that are cases of it.

    u[b] += rho[k,b] lambda (R_b(u) + e[k,b] + eta[k+1,b] - u[b])

Each is run by its plan and again by this line with the same noise: what a run on the same seed releases beyond what its
records say. That this is the noise is checked with records that say nothing.
"""

import functools

import numpy as np
import pytest
from scipy.optimize import minimize

from coterie.algorithms import GeneralADMM, LocallyNoisedADMM, NoisyCoordinateDescent, NoisyGradientDescent
from coterie.data import Federation
from coterie.engines.in_process import run
from coterie.errors import InputError, LeakError
from coterie.network.channels import Curator, SecureSum
from coterie.network.topology import UNRESTRICTED, All, Cyclic, Poisson, Sample, Shuffled, make_topology
from coterie.plan import Plan
from coterie.privacy.image import ImageNoise
from coterie.privacy.mechanisms import GaussianGradient
from coterie.privacy.noise import Seeded
from coterie.privacy.proximal import LocalNoise
from coterie.problems import L1, L2, Ball, ElasticNet, Huber, Multinomial, Problem

N, D, ROUNDS = 12, 3, 15
THRESHOLD = 0.3
LOSS = Huber(THRESHOLD)
RNG = np.random.default_rng(4)
X = RNG.normal(size=(N, D))
X *= 0.95 / np.maximum(0.95, np.linalg.norm(X, axis=1, keepdims=True))
Y = X @ np.array([1.0, -0.5, 0.2]) + 0.3 * RNG.normal(size=N)
NOTHING = np.zeros_like(X)
NOISE = {"noise_multiplier": 1e-5}
# of the noise's standard deviation: noises that differ by less are the same
CLOSE = 1e-3


@functools.cache
def people(silent=False, n_parties=N):
    parties = np.arange(N) % n_parties
    rows = NOTHING if silent else X
    return Federation.from_arrays(rows, Y, parties=parties, label_bound=5.0, min_records=1)


def problem_of(algorithm, loss=LOSS):
    return Problem(loss=loss, regulariser=algorithm.regulariser, record_weight=1.0)


def plan_of(algorithm, loss=LOSS, rounds=ROUNDS, federation=None, **changes):
    facts = (federation or people()).facts
    arguments = {"rounds": rounds, "adjacency": "replace-one"} | changes
    return Plan.make(algorithm, problem_of(algorithm, loss), "unrestricted", facts, **arguments)


def released(plan, *, silent=False, n_parties=N):
    """(round, ...) what was released, and the model after each round."""
    transcript = run(plan, people(silent, n_parties), noise=Seeded(3))
    return transcript.releases[0], transcript.models_by_round[0]


def gradient_sum(x, rows=X, batch=slice(None)):
    """Of the data term, over the records of a batch."""
    return rows[batch].T @ np.clip(rows[batch] @ x - Y[batch], -THRESHOLD, THRESHOLD)


def block_iteration(u, operator, *, relaxation, noises, errors=None, at_work=None):
    """Algorithm 1: u_1, u_2, ..."""
    points = []
    for k, noise in enumerate(noises):
        error = 0.0 if errors is None else errors(k, u)
        worked = True if at_work is None else at_work[k]
        u = u + worked * relaxation * (operator(u) + error + noise - u)
        points.append(u)
    return np.array(points)


def soft(v, threshold):
    return np.sign(v) * np.maximum(np.abs(v) - threshold, 0)


# --- gradient methods: R = I - (2/beta) grad f, lambda = step beta / 2 ------------------------------------------------

L2_WEIGHT = 0.4
# smoothness of the summed Huber losses of rows of norm at most 1, and of the l2 term
BETA = N * 1.0 + L2_WEIGHT
STEP = 1.2 / BETA


def as_block_iteration(releases, models, *, at_work=None, batches=None, rate=1.0, silent_releases):
    """The points of Algorithm 1 with the noise of these releases, which must be the noise of the silent run."""
    before = np.vstack([np.zeros(D), models[:-1]])
    working = np.ones((ROUNDS, D)) if at_work is None else at_work
    batch_of = (lambda k: slice(None)) if batches is None else (lambda k: batches[k])
    seen = np.array([gradient_sum(x, batch=batch_of(k)) for k, x in enumerate(before)]) * working
    noise = releases - seen
    std = np.std(silent_releases)
    np.testing.assert_allclose(noise, silent_releases, rtol=0, atol=CLOSE * std)
    # far above the agreement that is asked for below
    assert std > 1e-7

    def gradient(u):
        return gradient_sum(u) + L2_WEIGHT * u

    def swapped(k, u):
        """e: the batch in place of all records."""
        return 2 / BETA * (gradient_sum(u) - gradient_sum(u, batch=batch_of(k)) / rate)

    return block_iteration(
        np.zeros(D),
        lambda u: u - 2 / BETA * gradient(u),
        relaxation=STEP * BETA / 2,
        noises=-2 / BETA * noise / rate,
        errors=swapped,
        at_work=at_work,
    )


@pytest.mark.parametrize("selection", [All(), Sample(count=1, seed=2), Sample(count=4, seed=2)], ids=repr)
def test_gradient_descent_with_all_or_some_records(selection):
    """Proposition 1: DP-GD; and DP-SGD, where e swaps the gradient of all records for that of the batch."""
    algorithm = NoisyGradientDescent(
        mechanism=GaussianGradient(**NOISE),
        regulariser=L2(L2_WEIGHT),
        step=STEP,
        channel=Curator(),
        selection=selection,
    )
    plan = plan_of(algorithm)
    releases, models = released(plan)
    silent, _ = released(plan, silent=True)
    batches = selection.table(ROUNDS, make_topology(UNRESTRICTED, N))
    found = as_block_iteration(
        releases[:, 0], models, batches=batches, rate=selection.rate(N), silent_releases=silent[:, 0]
    )
    np.testing.assert_allclose(found, models, rtol=0, atol=1e-12)


ORDERS = [Cyclic(), Shuffled(seed=1), Sample(count=1, seed=1), Sample(count=2, seed=1)]


def coordinate_descent(**changes):
    settings = {
        "mechanism": GaussianGradient(**NOISE),
        "regulariser": L2(L2_WEIGHT),
        "step": STEP,
        "channel": Curator(),
    }
    return NoisyCoordinateDescent(**settings | changes)


@pytest.mark.parametrize("order", ORDERS, ids=repr)
def test_coordinate_descent(order):
    """Proposition 2: the same operator by blocks."""
    plan = plan_of(coordinate_descent(coordinates=order))
    releases, models = released(plan)
    silent, _ = released(plan, silent=True)
    at_work = order.table(ROUNDS, make_topology(UNRESTRICTED, D))
    found = as_block_iteration(releases[:, 0], models, at_work=at_work, silent_releases=silent[:, 0])
    np.testing.assert_allclose(found, models, rtol=0, atol=1e-12)
    moved = np.diff(np.vstack([np.zeros(D), models]), axis=0) != 0
    np.testing.assert_array_equal(moved, at_work)


# --- splitting: R = (2 prox_{gamma f} - I)(2 prox_{gamma g} - I) ------------------------------------------------------

GAMMA, LAMBDA, KAPPA = 0.7, 0.6, 0.5


def prox_huber(rows, v, step):
    """Of huber(a . x - b), for every row a by itself: the residual shrinks until it meets its clipped slope."""
    slope = (np.sum(rows * v, axis=1) - Y) / (1 + step * np.sum(rows * rows, axis=1))
    return v - step * np.clip(slope, -THRESHOLD, THRESHOLD)[:, None] * rows


def lions_mercier(prox_f, prox_g):
    def operator(u):
        v = 2 * prox_g(u) - u
        return 2 * prox_f(v) - v

    return operator


@pytest.mark.parametrize("selection", [All(), Cyclic(), Shuffled(seed=1), Sample(count=4, seed=1)], ids=repr)
def test_consensus_admm_by_blocks_of_people(selection):
    """Section 3.2: block i is the state of person i, and g holds them all at one z with the regulariser."""
    mechanism = LocalNoise(prox_step=GAMMA, relaxation=LAMBDA, **NOISE)
    algorithm = LocallyNoisedADMM(mechanism=mechanism, regulariser=L1(KAPPA), selection=selection)
    plan = plan_of(algorithm)
    at_work = selection.table(ROUNDS, make_topology(UNRESTRICTED, N))

    def prox_g(u):
        return np.tile(soft(u.mean(axis=0), GAMMA / N * KAPPA), (N, 1))

    def noises(rows, *, silent):
        """Released beyond the moves x - z that these rows make, along the states that the releases add up to."""
        releases, models = released(plan, silent=silent)
        u, found = np.zeros((N, D)), np.zeros((ROUNDS, N, D))
        for k in range(ROUNDS):
            z = prox_g(u)
            who = np.flatnonzero(at_work[k])
            move = np.zeros((N, D))
            move[who] = releases[k, : len(who)]
            found[k] = np.where(at_work[k][:, None], move - (prox_huber(rows, 2 * z - u, GAMMA) - z), 0.0)
            u = u + 2 * LAMBDA * move
        return found, models

    noise, models = noises(X, silent=False)
    same, _ = noises(NOTHING, silent=True)
    std = same[at_work].std()
    np.testing.assert_allclose(noise, same, rtol=0, atol=CLOSE * std)
    assert std > 1e-7
    states = block_iteration(
        np.zeros((N, D)),
        lions_mercier(lambda v: prox_huber(X, v, GAMMA), prox_g),
        relaxation=LAMBDA,
        noises=2 * noise,
        at_work=at_work[:, :, None],
    )
    np.testing.assert_allclose([prox_g(u)[0] for u in states], models, rtol=0, atol=1e-12)


def test_douglas_rachford_at_one_party():
    """f of all records at a curator and a public g, with A = I: GeneralADMM."""
    mechanism = ImageNoise(A=np.eye(D).tolist(), prox_step=GAMMA, **NOISE)
    algorithm = GeneralADMM(mechanism=mechanism, regulariser=L1(KAPPA), relaxation=LAMBDA)
    plan = plan_of(algorithm, federation=people(n_parties=1))
    releases, models = released(plan, n_parties=1)

    def prox_f(v):
        """The minimiser of all records' losses and |x - v|^2 / (2 gamma), by Newton steps on a piecewise quadratic."""
        x = v.copy()
        for _ in range(50):
            inside = np.abs(X @ x - Y) < THRESHOLD
            gradient = gradient_sum(x) + (x - v) / GAMMA
            x = x - np.linalg.solve(X[inside].T @ X[inside] + np.eye(D) / GAMMA, gradient)
        assert np.linalg.norm(gradient_sum(x) + (x - v) / GAMMA) < 1e-13
        return x

    def prox_g(u):
        return soft(u, GAMMA * KAPPA)

    # from the coordinates of a release to A x
    image = np.asarray(mechanism.basis)
    u, noise = np.zeros(D), []
    for release in releases[:, 0]:
        z = prox_g(u)
        noise.append(image @ release - prox_f(2 * z - u))
        u = u + 2 * LAMBDA * (image @ release - z)
    std = float(plan.grant_table().noise_std[0])
    # of 45 numbers: either bound is passed with a chance below 1e-6
    assert 0.5 * std < np.std(noise) < 2 * std
    states = block_iteration(np.zeros(D), lions_mercier(prox_f, prox_g), relaxation=LAMBDA, noises=2 * np.array(noise))
    np.testing.assert_allclose([prox_g(u) for u in states], models, rtol=0, atol=1e-12)


# --- coordinate descent by itself -------------------------------------------------------------------------------------


def quiet(**changes):
    """Without noise to speak of."""
    usual = {"mechanism": GaussianGradient(noise_multiplier=1e-14), "regulariser": ElasticNet(0.4, 0.1)}
    return coordinate_descent(**usual | changes)


@pytest.mark.parametrize("order", ORDERS, ids=repr)
def test_without_noise_every_order_reaches_the_pooled_optimum(order):
    def smooth(z):
        """With x = z+ - z-, |x|_1 is smooth."""
        x = z[:D] - z[D:]
        r = np.abs(X @ x - Y)
        huber = np.where(r < THRESHOLD, r**2 / 2, THRESHOLD * (r - THRESHOLD / 2))
        gradient = gradient_sum(x) + 0.4 * x
        return huber.sum() + 0.2 * x @ x + 0.1 * z.sum(), np.concatenate([gradient, -gradient]) + 0.1

    options = {"ftol": 1e-15, "gtol": 1e-11, "maxiter": 10_000}
    found = minimize(smooth, np.zeros(2 * D), jac=True, bounds=[(0, None)] * 2 * D, method="L-BFGS-B", options=options)
    optimum = found.x[:D] - found.x[D:]
    model = released(plan_of(quiet(coordinates=order), rounds=600))[1][-1]
    np.testing.assert_allclose(model, optimum, atol=1e-6)
    assert np.abs(model).max() > 0.1


def test_what_is_clipped_is_the_part_at_work():
    """Of several scores too: a record's part of the gradient, over the coordinates at work, is clipped."""
    clip, y = 0.2, np.arange(N) % 3
    federation = Federation.from_arrays(X, y, parties=np.arange(N), labels=(0, 1, 2), min_records=1)
    algorithm = quiet(
        mechanism=GaussianGradient(noise_multiplier=1e-12, clip=clip),
        regulariser=L2(0.0),
        coordinates=Sample(count=4, seed=0),
    )
    plan = plan_of(algorithm, loss=Multinomial(3), rounds=6, federation=federation)
    transcript = run(plan, federation, noise=Seeded(0))
    at_work = Sample(count=4, seed=0).table(6, make_topology(UNRESTRICTED, 3 * D))
    x, clipped = np.zeros((D, 3)), 0
    for k in range(6):
        scores = X @ x
        chances = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        parts = X[:, :, None] * (chances - np.eye(3)[y])[:, None] * at_work[k].reshape(D, 3)
        norms = np.linalg.norm(parts, axis=(1, 2))
        clipped += int((norms > clip).sum())
        parts *= np.minimum(1, clip / np.maximum(norms, 1e-300))[:, None, None]
        x = x - STEP * parts.sum(axis=0)
        np.testing.assert_allclose(transcript.models_by_round[0, k].reshape(D, 3), x, atol=1e-10)
    assert 0 < clipped < 6 * N


def test_a_round_costs_one_gaussian_release_of_the_clipped_part():
    for adjacency, changes in (("replace-one", 2), ("zero-out", 1)):
        mechanism = GaussianGradient(noise_multiplier=3.0, clip=0.2)
        plan = plan_of(quiet(mechanism=mechanism), adjacency=adjacency)
        ((event, count),) = plan.ledger(0)
        assert count == ROUNDS
        # and no less: rounding to a grid may be paid for
        assert event.ratio == pytest.approx(1 / 3, rel=1e-2)
        assert event.ratio >= 1 / 3
        assert float(plan.grant_table().noise_std[0]) == pytest.approx(3.0 * changes * 0.2)


def test_coordinates_that_look_at_data_are_refused():
    class Peeking(NoisyCoordinateDescent):
        def local(self, grant, problem, records, private, inbox, noise):
            return private, grant.gradient(problem, records, at=inbox[0], coordinates=records.X[0])

    with pytest.raises(LeakError, match="takes as public"):
        plan_of(Peeking(mechanism=GaussianGradient(**NOISE), regulariser=L2(1.0), step=STEP, channel=Curator()))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"coordinates": Poisson(probability=0.5, seed=None)}, "coordinates: got Poisson.*Cyclic, Shuffled, Sample"),
        ({"coordinates": Sample(count=4, seed=0)}, "coordinates: got Sample.*there are 3 coefficients"),
        ({"regulariser": Ball(1.0)}, "regulariser: got Ball.*sum over coefficients"),
        ({"step": (0.1,) * N}, "step: got .*one number is needed"),
    ],
)
def test_what_does_not_fit_is_refused(changes, words):
    with pytest.raises(InputError, match=words):
        plan_of(quiet(**changes))


def test_a_secure_sum_does_the_same():
    """Without noise both channels release the same sums."""
    models = [released(plan_of(quiet(channel=channel), rounds=20))[1] for channel in (Curator(), SecureSum())]
    np.testing.assert_allclose(models[0], models[1], atol=1e-10)
