"""Utility bounds of noisy fixed-point iterations: by hand, against simulation, and what they refuse to say.

Simulated errors are means over independent runs. A bound counts as broken where the mean exceeds it by more than
five standard errors: a false alarm less than once in 10^6 looks.
"""

import math

import numpy as np
import pytest

from coterie.errors import InputError
from coterie.papers.fixed_point.utility import (
    ErrorBound,
    admm_contraction,
    broadcast_noise_bound,
    fixed_point_bound,
    gradient_contraction,
    published_corollary_5_1,
    published_corollary_5_2,
    published_corollary_5_3,
    published_theorem_1,
)

N_RUNS, STANDARD_ERRORS = 2000, 5.0
BENDS, CENTRES = np.array([0.5, 1.0, 2.0, 4.0]), np.array([[3.0, -1.0], [0.0, 2.0], [1.0, 1.0], [-2.0, 0.5]])


def broken(squares, bound):
    """Whether the mean of simulated squared distances is certainly above the bound."""
    return squares.mean() - STANDARD_ERRORS * squares.std() / math.sqrt(len(squares)) > bound


# --- contraction ------------------------------------------------------------------------------------------------------


def test_contraction_by_hand():
    assert admm_contraction(1.0, 0.5, 4.0) == pytest.approx(max(3 / 5, 0.5 / 1.5))
    assert admm_contraction(0.1, 0.5, 4.0) == pytest.approx(0.95 / 1.05)
    # one proximal step solves it
    assert admm_contraction(1.0, 1.0, 1.0) == 0.0
    assert gradient_contraction(1.0, 3.0) == 0.5


def test_without_strong_convexity_or_smoothness_there_is_no_contraction():
    assert admm_contraction(2.0, 0.0, 4.0) == gradient_contraction(0.0, 4.0) == 1.0
    assert admm_contraction(2.0, 1.0, math.inf) == 1.0


def test_contraction_is_that_of_the_operator_on_quadratics():
    """The largest singular value of R for quadratics whose bends include both ends, r = 0: within the bound."""
    for prox_step in (0.2, 0.5, 2.0):
        n = len(BENDS)
        reflect_mean = 2 * np.ones((n, n)) / n - np.eye(n)
        reflect_losses = np.diag(2 / (1 + prox_step * BENDS) - 1)
        reached = np.linalg.norm(reflect_losses @ reflect_mean, 2)
        assert reached == pytest.approx(admm_contraction(prox_step, BENDS.min(), BENDS.max()))


# --- simulation -------------------------------------------------------------------------------------------------------


def distances(step, start, fixed_point, n_steps):
    """|u_k - u*|^2 of every run, for k = 1..n_steps."""
    u = np.broadcast_to(start, (N_RUNS, *start.shape)).copy()
    found = []
    for _ in range(n_steps):
        u = step(u)
        found.append(np.sum((u - fixed_point).reshape(N_RUNS, -1) ** 2, axis=1))
    return found


def consensus(u, noise, *, prox_step, relaxation, l2, broadcast_noise=0.0):
    """One round of consensus ADMM on (bend_i/2) |x - centre_i|^2 with r = (l2/2) |z|^2; all runs at once."""
    z = (u.mean(axis=-2, keepdims=True) + broadcast_noise) / (1 + prox_step * l2)
    bends = BENDS[:, None]
    x = (2 * z - u + prox_step * bends * CENTRES) / (1 + prox_step * bends)
    return u + 2 * relaxation * (x - z + noise / 2)


@pytest.mark.parametrize("block_probability", [1.0, 0.3])
@pytest.mark.parametrize("relaxation", [0.5, 1.0])
def test_consensus_with_stored_noise_stays_below_the_bound(relaxation, block_probability):
    rng, noise_std, setting = np.random.default_rng(0), 0.5, {"prox_step": 0.7, "relaxation": relaxation, "l2": 0.1}
    limit = np.zeros_like(CENTRES)
    for _ in range(2000):
        limit = consensus(limit, 0.0, **setting)

    def step(u):
        moved = consensus(u, noise_std * rng.normal(size=u.shape), **setting)
        return np.where(rng.random((N_RUNS, len(BENDS), 1)) < block_probability, moved, u)

    bound = fixed_point_bound(
        contraction=admm_contraction(0.7, BENDS.min(), BENDS.max()), relaxation=relaxation, noise_std=noise_std,
        dimension=CENTRES.size, block_probability=block_probability,
    )  # fmt: skip
    start = np.full_like(CENTRES, 4.0)
    for k, squares in enumerate(distances(step, start, limit, 40), start=1):
        assert not broken(squares, bound.mean_square(k, float(np.linalg.norm(start - limit))))


@pytest.mark.parametrize("relaxation", [0.25, 0.5, 1.0])
def test_consensus_with_broadcast_noise_stays_below_the_bound(relaxation):
    rng, noise_std, setting = np.random.default_rng(1), 0.5, {"prox_step": 0.7, "relaxation": relaxation, "l2": 0.1}
    limit = np.zeros_like(CENTRES)
    for _ in range(2000):
        limit = consensus(limit, 0.0, **setting)
    bound = broadcast_noise_bound(
        contraction=admm_contraction(0.7, BENDS.min(), BENDS.max()), relaxation=relaxation, noise_std=noise_std,
        n_parties=len(BENDS), n_features=2,
    )  # fmt: skip

    def step(u):
        return consensus(u, 0.0, broadcast_noise=noise_std * rng.normal(size=(N_RUNS, 1, 2)), **setting)

    start = np.full_like(CENTRES, 4.0)
    for k, squares in enumerate(distances(step, start, limit, 40), start=1):
        assert not broken(squares, bound.mean_square(k, float(np.linalg.norm(start - limit))))


@pytest.mark.parametrize(("block_probability", "contraction"), [(1.0, 0.8), (0.3, 0.9)])
def test_a_scaled_rotation_reaches_the_bound_and_would_break_half_of_it(block_probability, contraction):
    """Power: the same criterion rejects a bound that is 10 % too small, and so certainly one that is half as large."""
    rng, size, noise_std, n_steps = np.random.default_rng(2), 12, 0.3, 120
    rotation = contraction * np.linalg.qr(rng.normal(size=(size, size)))[0]

    def step(u):
        moved = u @ rotation.T + noise_std * rng.normal(size=u.shape)
        return np.where(rng.random(u.shape) < block_probability, moved, u)

    setting = {"relaxation": 1.0, "noise_std": noise_std, "dimension": size, "block_probability": block_probability}
    bound = fixed_point_bound(contraction=contraction, **setting)
    start = np.full(size, 1.0)
    last = distances(step, start, np.zeros(size), n_steps)[-1]
    stated = bound.mean_square(n_steps, float(np.linalg.norm(start)))
    assert not broken(last, stated)
    assert broken(last, 0.9 * stated)
    assert broken(last, 0.5 * stated)


# --- no rate ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bound",
    [
        fixed_point_bound(contraction=1.0, relaxation=0.5, noise_std=1.0, dimension=3),
        broadcast_noise_bound(contraction=1.0, relaxation=0.5, noise_std=1.0, n_parties=3, n_features=2),
    ],
)
def test_no_rate_is_said_and_no_number_given(bound):
    assert bound.rate is None
    assert bound.floor is None
    assert str(bound).startswith("no rate: ")
    with pytest.raises(InputError, match="no rate"):
        bound.mean_square(10, 1.0)


def test_bounds_in_words():
    assert str(ErrorBound(0.5, 2.0, power=2)) == "E|u_k - u*|^2 <= 0.5^k |u_0 - u*|^2 + 2"
    assert str(ErrorBound(0.5, 2.0, power=1)) == "sqrt(E|u_k - u*|^2) <= 0.5^k |u_0 - u*| + 2"


def test_bounds_by_hand():
    """lambda = 1/2, tau = 0.6: c = 0.8."""
    stored = fixed_point_bound(contraction=0.6, relaxation=0.5, noise_std=2.0, dimension=9, block_probability=0.5)
    assert (stored.rate, stored.floor) == pytest.approx((1 - 0.5 * 0.36, 0.25 * 9 * 4 / 0.36))
    assert stored.mean_square(2, 10.0) == pytest.approx(0.82**2 * 100 + 25)
    shown = broadcast_noise_bound(contraction=0.6, relaxation=0.5, noise_std=2.0, n_parties=3, n_features=3)
    assert (shown.rate, shown.floor) == pytest.approx((0.8, 2 * 0.5 * 2 * 3 / 0.2))
    assert shown.mean_square(2, 10.0) == pytest.approx((0.64 * 10 + 30) ** 2)


# --- as published -----------------------------------------------------------------------------------------------------


def test_theorem_1_by_hand():
    found = published_theorem_1(
        n_steps=3,
        start_distance=2.0,
        contraction=0.5,
        noise_std=1.0,
        dimension=4,
        block_probability=0.25,
        error_std=3.0,
    )
    assert found.mean_square == pytest.approx((1 - 0.5 / 128) ** 2 * 4 + 8 * (5 / 0.25 + 13 / 0.125**3))
    assert found.holds
    quiet = published_theorem_1(n_steps=3, start_distance=2.0, contraction=0.5, noise_std=0.1, dimension=4)
    assert not quiet.holds


def test_theorem_1_is_above_the_bound_with_relaxation_one():
    for contraction in (0.0, 0.5, 0.99):
        for q in (0.01, 0.3, 1.0):
            setting = {"contraction": contraction, "noise_std": 1.1, "dimension": 7, "block_probability": q}
            ours = fixed_point_bound(relaxation=1.0, **setting)
            for k in (1, 10, 1000):
                published = published_theorem_1(n_steps=k, start_distance=5.0, **setting)
                assert published.holds
                assert ours.mean_square(k, 5.0) <= published.mean_square


def test_the_relaxation_of_the_proof_is_none_that_is_allowed():
    """Lemma A.1 and the line after it: lambda = (1 - q/(2(1 + c)))/(1 - b) with b = sqrt(1 - q(1 - tau))."""
    tau, q, c = 0.9, 1.0, 1.0
    relaxation = (1 - q / (2 * (1 + c))) / (1 - math.sqrt(1 - q * (1 - tau)))
    assert relaxation == pytest.approx(14.615, abs=1e-3)
    # R = -tau I then blows up
    assert abs(1 - relaxation - relaxation * tau) > 26


def test_corollaries_by_hand():
    """sqrt(p alpha / epsilon) L gamma = 6, 1 - tau = 1/2."""
    move = {"lipschitz": 1.5, "prox_step": 2.0, "order": 2.0, "epsilon": 1.0, "n_features": 2}
    rest = {"n_parties": 100, "contraction": 0.5, "constant": 3.0}
    assert published_corollary_5_1(**move, **rest) == pytest.approx(3 * (0.06 * 2 + 0.0036 * 8))
    sampled = published_corollary_5_2(**move, **rest, sampling_fraction=0.1)
    assert sampled == pytest.approx(3 * (0.06 / math.sqrt(0.1) * 2 + 0.36 * 8))
    assert published_corollary_5_3(**move, **rest) == pytest.approx(3 * (0.6 * 2 + 0.36 * 8))


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: admm_contraction(1.0, 2.0, 1.0), "strong_convexity, smoothness: got 2.0, 1.0"),
        (lambda: admm_contraction(0.0, 1.0, 1.0), "prox_step"),
        (lambda: gradient_contraction(0.0, math.inf), "smoothness"),
        (lambda: fixed_point_bound(contraction=1.1, relaxation=1.0, noise_std=1.0, dimension=1), "contraction"),
        (lambda: fixed_point_bound(contraction=0.5, relaxation=14.6, noise_std=1.0, dimension=1), "relaxation"),
        (lambda: fixed_point_bound(contraction=0.5, relaxation=1.0, noise_std=1.0, dimension=0), "dimension"),
        (lambda: fixed_point_bound(contraction=0.5, relaxation=1.0, noise_std=-1.0, dimension=1), "noise_std"),
        (
            lambda: fixed_point_bound(
                contraction=0.5, relaxation=1.0, noise_std=1.0, dimension=1, block_probability=0.0
            ),
            "block_probability",
        ),
        (
            lambda: published_theorem_1(n_steps=1, start_distance=1.0, contraction=1.0, noise_std=1.0, dimension=1),
            "no rate",
        ),
        (
            lambda: published_theorem_1(n_steps=0, start_distance=1.0, contraction=0.5, noise_std=1.0, dimension=1),
            "n_steps",
        ),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_corollaries_ask_for_what_the_paper_leaves_open():
    move = {"lipschitz": 1.0, "prox_step": 1.0, "order": 2.0, "epsilon": 1.0, "n_features": 2, "n_parties": 100}
    with pytest.raises(InputError, match="constant"):
        published_corollary_5_1(**move, contraction=0.5, constant=0.0)
    with pytest.raises(InputError, match="no rate"):
        published_corollary_5_3(**move, contraction=1.0, constant=1.0)
    with pytest.raises(InputError, match="sampling_fraction"):
        published_corollary_5_2(**move, contraction=0.5, constant=1.0, sampling_fraction=0.5)
    with pytest.raises(InputError, match="order"):
        published_corollary_5_1(**(move | {"order": 1.0}), contraction=0.5, constant=1.0)
