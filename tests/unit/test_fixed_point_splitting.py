"""Private splitting methods: the operator of Lions and Mercier, and consensus ADMM as the paper prints it."""

import re

import numpy as np
import pytest
from scipy.optimize import minimize

from coterie.errors import InputError
from coterie.fixed_point import consensus_admm, douglas_rachford, looks_nonexpansive
from coterie.fixed_point.splitting import prox_of_penalty
from coterie.network.selection import All, Cyclic, Poisson, Sample, Shuffled
from coterie.privacy.noise import Seeded
from coterie.problems import L2, Ball, Box, ElasticNet

N, P, GAMMA, LAMBDA = 5, 3, 0.7, 0.6
RNG = np.random.default_rng(3)
A = RNG.normal(size=(N, P))
B = A @ np.array([1.0, -0.5, 0.0]) + 0.3 * RNG.normal(size=N)
THRESHOLD = 0.4
NOISE = Seeded(2)
SELECTIONS = {
    "all": All(),
    "cyclic": Cyclic(),
    "shuffled": Shuffled(seed=1),
    "one": Sample(count=1, seed=1),
    "three": Sample(count=3, seed=1),
    "poisson": Poisson(probability=0.5, seed=1),
}


def prox_huber(a, b):
    """Of f(x) = huber(a . x - b): the residual shrinks until it meets its slope, clipped at the threshold."""

    def prox(v, step):
        slope = (a @ v - b) / (1 + step * a @ a)
        return v - step * np.clip(slope, -THRESHOLD, THRESHOLD) * a

    return prox


PROXES = [prox_huber(a, b) for a, b in zip(A, B, strict=True)]


def soft(v, threshold):
    return np.sign(v) * np.maximum(np.abs(v) - threshold, 0)


def admm(penalty, **changes):
    settings = {"n_coefficients": P, "prox_step": GAMMA, "selection": All(), "relaxation": LAMBDA, "noise_std": 0.0}
    return consensus_admm(PROXES, penalty, **{**settings, **changes})


@pytest.mark.parametrize("selection", SELECTIONS.values(), ids=SELECTIONS)
def test_consensus_admm_is_equations_8_to_10(selection):
    """The printed r is |z|_1 / 10, and sum_i f_i + penalty is N times the printed mean of f_i plus r."""
    it = admm(ElasticNet(0.0, N * 0.1), noise_std=0.3, selection=selection)
    start = np.linspace(-1, 2, N * P)
    points, table = it.run(start, 15, NOISE)
    u = start.reshape(N, P).copy()
    for k in range(15):
        z = soft(np.mean(u, axis=0), GAMMA * 0.1)  # (8)
        np.testing.assert_allclose(it.solution(points[k]), z, rtol=0, atol=1e-12)
        for i in np.flatnonzero(table[k]):
            x = PROXES[i](2 * z - u[i], GAMMA)  # (9)
            eta = 0.3 * NOISE.draw("gaussian", P, repeat=0, party=i, t=k)
            u[i] = u[i] + 2 * LAMBDA * (x - z + eta / 2)  # (10)
        np.testing.assert_allclose(points[k + 1].reshape(N, P), u, rtol=0, atol=1e-12)


def pooled_optimum(l2):
    """sum_i huber(a_i . z - b_i) + (l2/2) |z|^2 by scipy, then Newton steps to rounding."""

    def slopes(z):
        return np.clip(A @ z - B, -THRESHOLD, THRESHOLD)

    def value(z):
        residual = np.abs(A @ z - B)
        inside = np.minimum(residual, THRESHOLD)
        return np.sum(inside**2 / 2 + THRESHOLD * (residual - inside)) + l2 / 2 * z @ z

    z = minimize(value, np.zeros(P), jac=lambda z: A.T @ slopes(z) + l2 * z, tol=1e-12).x
    for _ in range(5):
        hessian = A.T @ (A * (np.abs(A @ z - B) < THRESHOLD)[:, None]) + l2 * np.eye(P)
        z = z - np.linalg.solve(hessian, A.T @ slopes(z) + l2 * z)
    return z


@pytest.mark.parametrize("selection", SELECTIONS.values(), ids=SELECTIONS)
def test_consensus_admm_without_noise_reaches_the_optimum(selection):
    it = admm(L2(0.8), selection=selection)
    points = it.run(np.zeros(N * P), 900).points
    np.testing.assert_allclose(it.solution(points[-1]), pooled_optimum(0.8), rtol=0, atol=1e-9)


def quadratic(matrix, vector):
    """prox of (1/2) x' M x - v' x."""
    return lambda v, step: np.linalg.solve(np.eye(len(v)) + step * matrix, v + step * vector)


M1, M2 = A.T @ A + 0.1 * np.eye(P), np.diag([0.5, 1.0, 2.0])
V1, V2 = np.array([1.0, 0.0, -1.0]), np.array([0.0, 2.0, 0.0])


def rachford(**changes):
    settings = {
        "prox_step": GAMMA,
        "blocks": [[0], [1], [2]],
        "selection": All(),
        "relaxation": LAMBDA,
        "noise_std": 0.0,
    }
    return douglas_rachford(quadratic(M1, V1), quadratic(M2, V2), **{**settings, **changes})


@pytest.mark.parametrize("selection", SELECTIONS.values(), ids=SELECTIONS)
def test_douglas_rachford_without_noise_reaches_the_optimum(selection):
    it = rachford(selection=selection)
    points = it.run(np.zeros(P), 600).points
    np.testing.assert_allclose(it.solution(points[-1]), np.linalg.solve(M1 + M2, V1 + V2), rtol=0, atol=1e-9)


def test_douglas_rachford_is_the_textbook_loop():
    """x = prox_g(y), y += 2 lambda (prox_f(2x - y) - x + noise / 2)."""
    points = rachford(noise_std=0.5, blocks=[slice(0, P)]).run(np.ones(P), 10, NOISE).points
    y = np.ones(P)
    for k in range(10):
        x = np.linalg.inv(np.eye(P) + GAMMA * M2) @ (y + GAMMA * V2)
        w = np.linalg.inv(np.eye(P) + GAMMA * M1) @ (2 * x - y + GAMMA * V1)
        y = y + 2 * LAMBDA * (w - x + 0.5 * NOISE.draw("gaussian", P, repeat=0, party=0, t=k) / 2)
        np.testing.assert_allclose(points[k + 1], y, rtol=0, atol=1e-12)


def test_operators_are_non_expansive_and_a_false_proximal_map_is_found_out():
    for penalty in (L2(0.0), ElasticNet(0.2, 0.5), Box(-0.3, 0.4), Ball(0.5)):
        assert looks_nonexpansive(admm(penalty).operator, N * P, seed=0, tries=40)
    assert looks_nonexpansive(rachford().operator, P, seed=0)
    false = douglas_rachford(
        lambda v, step: -v / 2,  # its reflection doubles
        quadratic(0 * M2, 0 * V2),
        prox_step=1.0,
        blocks=[slice(0, P)],
        selection=All(),
        relaxation=0.5,
        noise_std=1.0,
    )
    assert not looks_nonexpansive(false.operator, P, seed=0)


@pytest.mark.parametrize("penalty", [L2(0.7), ElasticNet(0.7, 0.4), Box(-0.5, 0.2, l2=0.7), Ball(0.6, l2=0.7)])
def test_the_whole_penalty_s_proximal_point_is_best_among_its_surroundings(penalty):
    v, step = np.array([1.0, -0.2, 0.1]), 0.5
    z = prox_of_penalty(penalty, v, step)

    def value(x):
        return float(penalty.value(x)) + np.sum((x - v) ** 2) / (2 * step)

    for direction in np.random.default_rng(0).normal(size=(200, P)):
        assert value(z + 0.01 * direction) > value(z)


def test_ledger_by_hand():
    """A user's image moves by 2 * gamma * change: 2 * 0.7 * 3 over the noise, only when this user works."""
    settings = {"noise_std": 6.0, "change_lipschitz": 3.0}
    ratio = 2 * GAMMA * 3 / 6

    def paid(it, rounds):
        return [(event.ratio, count) for event, count in it.ledger(rounds)]

    np.testing.assert_allclose(paid(admm(L2(1.0), **settings), 4), [(ratio, 4)])
    np.testing.assert_allclose(paid(admm(L2(1.0), selection=Cyclic(), **settings), 2 * N + 1), [(ratio, 3)])
    own = {"noise_std": 6.0, "change_lipschitz": [3.0, 1.0, 1.0, 1.0, 3.3]}
    np.testing.assert_allclose(paid(admm(L2(1.0), selection=Cyclic(), **own), N), [(1.1 * ratio, 1)])
    np.testing.assert_allclose(paid(rachford(selection=Cyclic(), **settings), 4), [(ratio, 4)])


def test_the_declared_sensitivity_is_attained_and_never_passed():
    """The clipped slope of a Huber loss turns round when its label does: a change of 2 * threshold * |a|."""
    change = 2 * THRESHOLD * np.linalg.norm(A[0])
    declared = admm(L2(1.0), change_lipschitz=change).sensitivity.bounds[0]
    u = np.random.default_rng(1).normal(size=N * P)
    moves = []
    for label in (-1000.0, -1.0, 0.0, 1.0, 1000.0):
        others = [prox_huber(A[0], label), *PROXES[1:]]
        settings = {"n_coefficients": P, "prox_step": GAMMA, "selection": All(), "relaxation": 0.5, "noise_std": 0.0}
        moves.append(consensus_admm(others, L2(1.0), **settings).operator(u))
    gaps = [np.linalg.norm(a - b) for a in moves for b in moves]
    assert max(gaps) <= declared * (1 + 1e-12)
    np.testing.assert_allclose(max(gaps), declared, rtol=1e-9)
    np.testing.assert_array_equal(moves[0][P:], moves[-1][P:])  # other users' blocks stay


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: admm(L2(1.0), prox_step=0), "prox_step: got 0; a positive finite number is needed"),
        (lambda: rachford(prox_step=-1.0), "prox_step: got -1.0; a positive finite number is needed"),
        (lambda: admm(L2(1.0), n_coefficients=0), "n_coefficients: got 0; a whole number of at least 1 is needed"),
        (lambda: admm(L2(1.0), change_lipschitz=-1.0), "change_lipschitz: got -1.0; a finite number >= 0 is needed"),
        (lambda: admm(L2(1.0), change_lipschitz=[1.0]), "change_lipschitz: 1 given for 5 users;"),
        (lambda: rachford(change_lipschitz="2"), "change_lipschitz: got '2'; a finite number >= 0 is needed"),
        (lambda: admm(L2(1.0), relaxation=1.1), "relaxation: got Schedule(start=1.1, ratio=1.0);"),
        (lambda: admm(L2(1.0), selection=Sample(count=6, seed=0)), "count: got 6;"),
        (
            lambda: consensus_admm(
                [], L2(1.0), n_coefficients=1, prox_step=1, selection=All(), relaxation=0.5, noise_std=0
            ),
            "prox_f: got no proximal map; one per user is needed",
        ),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(InputError, match="^" + re.escape(message)):
        call()
