"""The trade-off of Zhang & Zhu: the best alpha is the best there is, and fits find what the points came from."""

import numpy as np
import pytest

from coterie.errors import InputError
from coterie.papers.dual_variable.tradeoff import AccuracyLoss, PrivacyUtility, best_alpha, best_regulariser

# the paper's curves
EARLY, LATE = AccuracyLoss(0.2, 25.0, 0.3), AccuracyLoss(20.0, 20.0, 0.3)


def gain(alpha, utility, accuracy):
    return utility(alpha) - accuracy(alpha)


def random_curves(seed):
    rng = np.random.default_rng(seed)
    utility = PrivacyUtility(*(10 ** rng.uniform([-2, -1, -1, -2], [0, 1, 1, 1])))
    return utility, AccuracyLoss(*(10 ** rng.uniform([-1, 0, -1], [1.5, 1.5, 0])))


@pytest.mark.parametrize("seed", range(25))
def test_best_alpha_beats_a_dense_grid(seed):
    utility, accuracy = random_curves(seed)
    alpha = best_alpha(utility, accuracy)
    grid = np.geomspace(1e-4, 10.0, 200_001)
    best = gain(grid, utility, accuracy).max()
    assert gain(alpha, utility, accuracy) >= best - 1e-9 * abs(best)


def test_best_alpha_is_stationary_or_at_an_end():
    inside = 0
    for seed in range(40):
        utility, accuracy = random_curves(seed)
        alpha = best_alpha(utility, accuracy)
        privacy_slope = (
            -utility.w1 * (utility.w3 + 2 * utility.w4 * alpha) / (utility.w3 * alpha + utility.w4 * alpha**2)
        )
        accuracy_slope = -accuracy.c4 * accuracy.c5 * np.exp(-accuracy.c5 * alpha)
        if 1.001e-4 < alpha < 9.999:
            inside += 1
            assert privacy_slope == pytest.approx(accuracy_slope, rel=1e-4)
        else:
            # privacy wins all the way down, or accuracy all the way up
            assert (privacy_slope - accuracy_slope) * (1 if alpha > 1 else -1) >= 0
    assert 10 <= inside <= 39


def test_the_papers_constants_give_a_loss_per_step_below_one():
    early, late = best_alpha(PrivacyUtility(), EARLY), best_alpha(PrivacyUtility(), LATE)
    print(f"paper's constants: alpha* = {early:.4f} at first, {late:.4f} later")
    assert 0.1 < early < 0.2
    assert 0.4 < late < 0.6


def test_without_a_floor_no_privacy_loss_at_all_looks_best():
    """U_priv is unbounded at 0, so that far down the answer is whatever `low` says: the inner optimum needs a floor."""
    assert best_alpha(PrivacyUtility(), EARLY, low=1e-12) == pytest.approx(1e-12, rel=0.02)


def test_privacy_and_accuracy_both_fall_as_alpha_grows():
    alpha = np.geomspace(1e-3, 1, 100)
    for curve in (PrivacyUtility(), EARLY, LATE):
        assert (np.diff(curve(alpha)) < 0).all()
    assert PrivacyUtility()(1.0) == pytest.approx(0.02 * np.log(0.6))


# --- fits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("truth", [(0.2, 25.0, 0.3), (20.0, 20.0, 0.1), (1.0, 3.0, 0.0), (0.5, 0.8, 2.0)])
def test_a_fit_recovers_what_noisy_points_came_from(truth):
    rng = np.random.default_rng(0)
    c4, c5, _ = truth
    alphas = np.linspace(0.01, 4 / c5, 60)
    losses = AccuracyLoss(*truth)(alphas) + 0.002 * c4 * rng.normal(size=60)
    fit = AccuracyLoss.fitted(alphas, losses)
    assert (fit.c4, fit.c5) == pytest.approx((c4, c5), rel=0.03)
    assert fit.c6 == pytest.approx(truth[2], abs=0.01 * c4)
    # and a curve that is off by a tenth fits visibly worse
    squares = [np.sum((curve(alphas) - losses) ** 2) for curve in (fit, AccuracyLoss(c4, 1.1 * c5, truth[2]))]
    assert squares[1] > 10 * squares[0]


def test_a_fit_never_rises():
    """Losses that grow with alpha are not what the model is for; it answers with a flat line."""
    fit = AccuracyLoss.fitted([0.1, 0.2, 0.3, 0.4], [1.0, 2.0, 3.0, 4.0])
    assert fit.c4 >= 0
    assert fit.c5 >= 0


@pytest.mark.parametrize(
    ("alphas", "losses"),
    [([0.1, 0.2], [1.0, 0.5]), ([0.1, 0.2, 0.3], [1.0, 0.5]), ([0.1, 0.1, 0.2], [1.0, 0.9, 0.5]), ([], [])],
)
def test_too_few_points_are_refused(alphas, losses):
    with pytest.raises(InputError, match="three pairs"):
        AccuracyLoss.fitted(alphas, losses)


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-1.0, 1.0), (1.0, 1.0), (2.0, 1.0)])
def test_an_empty_range_is_refused(low, high):
    with pytest.raises(InputError, match="0 < low < high"):
        best_alpha(PrivacyUtility(), EARLY, low=low, high=high)


# --- regularisers ---------------------------------------------------------------------------------------------------


def test_the_regulariser_with_the_least_mean_error_wins_and_ties_go_to_the_larger():
    assert best_regulariser([0.1, 1.0, 10.0], [[0.3, 0.3], [0.0, 0.4], [0.5, 0.1]]) == 1.0
    assert best_regulariser([0.1, 1.0, 10.0], [[0.25, 0.25], [0.5, 0.0], [0.5, 0.5]]) == 1.0
    assert best_regulariser([10.0, 0.1], [[0.25, 0.25], [0.5, 0.0]]) == 10.0


@pytest.mark.parametrize("errors", [[0.1, 0.2], [[0.1], [0.2], [0.3]], [[[0.1]], [[0.2]]]])
def test_errors_must_have_one_row_per_regulariser(errors):
    with pytest.raises(InputError, match="one row each"):
        best_regulariser([0.1, 1.0], errors)
