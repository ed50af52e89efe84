"""The law of the hardened noise. Its entropy cannot be seeded, so false alarms are kept at one in a million."""

import math

import numpy as np
import pytest
from scipy.stats import kstest

from coterie.errors import InputError
from coterie.privacy.accountants import epsilon, gaussian_epsilon
from coterie.privacy.discrete import LARGEST_STEP, DiscreteGaussian, GridNoise
from coterie.privacy.events import Gaussian

FALSE_ALARM = 1e-6
DRAWS = 20_000


def test_the_noise_has_the_declared_law_and_not_one_a_tenth_wider_or_narrower():
    noise = GridNoise(sensitivity=0.7, noise_multiplier=3.0, d=DRAWS)
    drawn = noise.release(np.zeros(DRAWS)) / noise.noise_std
    assert kstest(drawn, "norm").pvalue > FALSE_ALARM
    # power: the same test tells a tenth apart
    assert kstest(drawn * 0.9, "norm").pvalue < FALSE_ALARM
    assert kstest(drawn * 1.1, "norm").pvalue < FALSE_ALARM


def test_releases_lie_on_the_grid_exactly():
    noise = GridNoise(sensitivity=0.3, noise_multiplier=2.5, d=1000)
    released = noise.release(np.random.default_rng(0).normal(size=1000))
    steps = np.rint(released / noise.grid)
    np.testing.assert_array_equal(steps * noise.grid, released)
    assert np.abs(steps).max() < 2.0**53


def test_the_grid_and_rounding_are_paid_for():
    plain = 1 / 2.5
    noise = GridNoise(sensitivity=0.3, noise_multiplier=2.5, d=100)
    assert plain < noise.event.ratio < plain * (1 + 1e-6)
    off = GridNoise(sensitivity=0.3, noise_multiplier=2.5, d=100, rounding_error=0.03)
    assert off.event.ratio == pytest.approx(plain * 1.2)


def test_neighbours_are_no_further_apart_on_the_grid_than_was_priced():
    rng = np.random.default_rng(1)
    noise = GridNoise(sensitivity=1e-7, noise_multiplier=1e7, d=5)  # a grid that is coarse for so small a sensitivity
    priced = noise.event.ratio * noise.noise_std
    assert priced > 1.04 * noise.sensitivity
    for _ in range(2000):
        value = rng.normal(size=5)
        direction = rng.normal(size=5)
        other = value + direction / np.linalg.norm(direction) * noise.sensitivity * (1 - 1e-6)
        apart = np.linalg.norm(np.rint(value / noise.grid) - np.rint(other / noise.grid)) * noise.grid
        assert apart <= priced


def test_the_exact_gaussian_accountant_is_not_used():
    event = DiscreteGaussian(ratio=0.2)
    assert event.gaussian_ratio is None
    loss = epsilon([(event, 10)], 1e-6)
    assert loss == epsilon([(Gaussian(0.2), 10)], 1e-6, "rdp")
    assert loss > gaussian_epsilon([(Gaussian(0.2), 10)], 1e-6)
    assert event.pure == math.inf


def test_the_discrete_law_costs_no_more_than_is_stated():
    """On a coarse grid the loss can be summed exactly: D_a(N_Z(s, v) || N_Z(0, v)) over all integers."""
    for std, shift in ((0.5, 1), (1.0, 1), (2.0, 3)):
        k = np.arange(-400, 401)
        log_p = -((k - shift) ** 2) / (2 * std**2)
        log_q = -(k**2) / (2 * std**2)
        log_p, log_q = (v - np.logaddexp.reduce(v) for v in (log_p, log_q))
        for order in (1.5, 2.0, 4.0, 16.0):
            exact = np.logaddexp.reduce(order * log_p - (order - 1) * log_q) / (order - 1)
            stated = DiscreteGaussian(ratio=shift / std).rdp(np.array([order]))[0, 0]
            assert exact <= stated * (1 + 1e-12)
            if order.is_integer():
                assert exact == pytest.approx(stated, rel=1e-9)  # attained


def test_huge_values_are_cut_and_broken_ones_refused():
    noise = GridNoise(sensitivity=1.0, noise_multiplier=1.0, d=2)
    largest = LARGEST_STEP * noise.grid
    np.testing.assert_allclose(noise.release([1e300, -1e300]), [largest, -largest], rtol=1e-4)
    for value in ([1.0], [1.0, np.nan], [np.inf, 0.0]):
        with pytest.raises(InputError, match="value"):
            noise.release(value)


@pytest.mark.parametrize(
    "changes",
    [{"sensitivity": 0.0}, {"sensitivity": np.nan}, {"noise_multiplier": -1.0}, {"rounding_error": -1.0}, {"d": 0}],
)
def test_nonsense_is_refused(changes):
    with pytest.raises(InputError):
        GridNoise(**{"sensitivity": 1.0, "noise_multiplier": 1.0, "d": 1, **changes})
