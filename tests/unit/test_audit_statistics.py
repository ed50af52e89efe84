"""The numbers behind the audit: bounds that hold as often as they say, exact views that agree with other formulas."""

import math

import numpy as np
import pytest
from scipy import stats

from coterie.audit import canary, game
from coterie.audit.density_ratio import Step, exact_epsilon
from coterie.audit.gaussian_view import GaussianPair, exact_pair, view_of
from coterie.privacy.accountants import gaussian_epsilon
from coterie.privacy.events import Gaussian
from coterie.problems import HuberisedHinge, Records

DELTA = 0.01


# --- the game ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("hits", "tries"), [(0, 50), (3, 50), (25, 50), (50, 50)])
def test_clopper_pearson_inverts_the_binomial_tail(hits, tries):
    low, high = game.clopper_pearson(hits, tries, 0.01)
    if hits > 0:
        assert stats.binom.sf(hits - 1, tries, low) == pytest.approx(0.01)
    if hits < tries:
        assert stats.binom.cdf(hits, tries, high) == pytest.approx(0.01)
    assert low <= hits / tries <= high


def gaussian_runs(rng, shift, n=20_000):
    return rng.normal([shift, 0.0], size=(n, 2)), rng.normal(size=(n, 2))


def laplace_runs(rng, shift, n=20_000):
    return rng.laplace(size=(n, 2)) + shift / 2, rng.laplace(size=(n, 2))


@pytest.mark.parametrize(
    ("runs", "true"),
    [
        (gaussian_runs, lambda shift: gaussian_epsilon([(Gaussian(shift), 1)], DELTA)),
        (laplace_runs, lambda shift: shift),
    ],
    ids=["gaussian", "laplace"],
)
def test_the_game_comes_close_to_the_loss_and_does_not_exceed_it(runs, true):
    for seed in range(5):
        first, second = runs(np.random.default_rng(seed), 1.5)
        lower = game.epsilon_lower_bound(first, second, delta=DELTA, false_alarm=1e-4)
        assert 0.6 * true(1.5) < lower < true(1.5)


def test_the_game_finds_nothing_where_there_is_nothing():
    """At a level of 5 % on equal data, a bound above zero is an alarm; 200 repetitions, refused with chance 0.001."""
    rng = np.random.default_rng(0)
    alarms = 0
    for _ in range(200):
        first, second = rng.normal(size=(2, 400, 3))
        alarms += game.epsilon_lower_bound(first, second, delta=0.0, false_alarm=0.05) > 0
    assert alarms <= stats.binom.ppf(0.999, 200, 0.05)


def test_releases_without_noise_are_told_apart():
    first, second = np.full((4000, 2), 0.3), np.full((4000, 2), 0.300001)
    assert game.epsilon_lower_bound(first, second, delta=DELTA, false_alarm=1e-4) > 4


# --- one run ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("guesses", "right"), [(100, 90), (40, 40), (200, 130)])
def test_without_delta_the_canary_bound_inverts_the_binomial_tail(guesses, right):
    lower = canary.epsilon_lower_bound(500, guesses, right, delta=0.0, false_alarm=0.01)
    assert stats.binom.sf(right - 1, guesses, 1 / (1 + math.exp(-lower))) == pytest.approx(0.01)
    with_delta = canary.epsilon_lower_bound(500, guesses, right, delta=1e-6, false_alarm=0.01)
    assert 0 < with_delta <= lower


def test_coin_tossing_refutes_nothing():
    assert canary.epsilon_lower_bound(100, 100, 55, delta=1e-6, false_alarm=0.01) == 0


def test_randomised_response_is_audited_from_below():
    """Each of 2000 bits is told rightly with chance e/(1 + e): the loss is 1. False alarm 0.001 in 20 repetitions."""
    rng = np.random.default_rng(0)
    bounds = []
    for _ in range(20):
        right = rng.binomial(2000, math.e / (1 + math.e))
        bounds.append(canary.epsilon_lower_bound(2000, 2000, right, delta=0.0, false_alarm=5e-5))
    assert 0.7 < np.median(bounds) < max(bounds) < 1.0


# --- exact views ------------------------------------------------------------------------------------------------------


def test_the_view_of_a_gaussian_release_has_the_analytic_loss():
    pair = exact_pair(lambda b: np.array([2.0]) + 3 * b, lambda b: np.array([0.5]) + 3 * b, 1)
    assert pair.epsilon(DELTA) == pytest.approx(gaussian_epsilon([(Gaussian(0.5), 1)], DELTA), rel=1e-4)
    orders = np.array([1.5, 2.0, 10.0])
    np.testing.assert_allclose(pair.rdp(orders), np.tile(orders * 0.5**2 / 2, (2, 1)), rtol=1e-9)


def test_unequal_covariances_agree_with_quadrature():
    pair = GaussianPair((np.array([1.0]), np.array([0.0])), (np.array([[1.0]]), np.array([[1.3]])))
    x = np.linspace(-40, 40, 400_001)
    p, q = stats.norm(1, 1).logpdf(x), stats.norm(0, 1.3).logpdf(x)
    for side, (own, other) in enumerate(((p, q), (q, p))):
        for order in (1.5, 2.0):
            exact = math.log(np.exp(order * own + (1 - order) * other).sum() * (x[1] - x[0])) / (order - 1)
            assert pair.rdp(np.array([order]))[side, 0] == pytest.approx(exact, rel=1e-6)
    # N(0, 1.3^2) has too heavy tails for N(1, 1) at high orders
    assert pair.rdp(np.array([8.0]))[1, 0] == math.inf


def test_what_no_noise_reaches_is_no_secret():
    shown = exact_pair(lambda b: np.array([b[0], 1.0]), lambda b: np.array([b[0], 0.0]), 1)
    assert shown.epsilon(DELTA) == math.inf
    assert np.all(shown.rdp(np.array([2.0])) == math.inf)
    # two releases with the same noise: their difference is free of it
    twice = exact_pair(lambda b: np.array([1.0 + b[0], b[0]]), lambda b: np.array([b[0], b[0]]), 1)
    assert twice.epsilon(DELTA) == math.inf
    same = exact_pair(lambda b: np.array([b[0], 1.0]), lambda b: np.array([b[0], 1.0]), 1)
    assert same.epsilon(DELTA) == 0


def test_a_view_that_is_not_affine_is_refused():
    with pytest.raises(ValueError, match="no affine function"):
        view_of(lambda b: np.clip(b, -0.5, 0.5), 1)


def test_the_exact_loss_of_a_linear_step_is_that_of_its_noise():
    """Far from the hinge's bend the minimiser is the noise, shifted."""
    step = Step(
        loss=HuberisedHinge(width=0.5),
        weight=0.01,
        strong_convexity=1.0,
        offset=(0.0,),
        law="gaussian",
        noise_scale=0.02,
    )
    one, two = (Records(np.array([[1.0]]), np.array([label]), np.ones(1)) for label in (1.0, 0.0))
    assert exact_epsilon(step, one, two, DELTA) == pytest.approx(
        gaussian_epsilon([(Gaussian(1.0), 1)], DELTA), rel=1e-4
    )
