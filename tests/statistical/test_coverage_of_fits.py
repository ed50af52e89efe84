"""Whether intervals of whole fits, noise drawn as in a run, hold the truth as often as they say."""

import numpy as np
import pytest
from scipy.special import expit, softmax
from scipy.stats import binom, norm

from coterie import PrivateLogisticRegression

REPEATS = 60
FALSE_ALARM = 1e-4


def repeated(draw, **settings):
    """Intervals and what noise left out would make of them, (repeat, coefficient, 2), and what was identified."""
    intervals, without, identified = [], [], []
    for seed in range(REPEATS):
        X, y = draw(np.random.default_rng(seed))
        model = PrivateLogisticRegression(
            delta=1e-6,
            adjacency="replace-one",
            bounds=1.5,
            classes=sorted(set(y.tolist())),
            inference=True,
            random_state=seed,
            **settings,
        )
        found = model.fit(X, y, parties=np.arange(len(y)) % 2).inference_
        intervals.append(found.intervals(0.95))
        without.append(found.estimate[:, None] + np.array([-1, 1]) * norm.ppf(0.975) * found.sampling_errors[:, None])
        identified.append(found.identified)
    return np.array(intervals), np.array(without), np.array(identified)


def hits(intervals, truth):
    return ((intervals[..., 0] < truth) & (truth < intervals[..., 1])).sum(axis=0)


@pytest.mark.slow
def test_intervals_of_fits_cover_the_truth_and_without_the_noise_they_would_not():
    """Each count is Binomial(60, 0.95): 49 to 60 but for a chance of 1e-4."""
    truth = np.array([1.5, 0.0, -0.5])

    def draw(rng):
        X = rng.uniform(-1, 1, (1500, 2))
        return X, rng.random(1500) < expit(X @ truth[:2] + truth[2])

    intervals, without, identified = repeated(draw, epsilon=1.0, trust="curator")
    assert identified.mean() > 0.95
    least = binom.ppf(FALSE_ALARM, REPEATS, 0.95)
    assert (hits(intervals, truth) >= least).all(), hits(intervals, truth)
    assert (hits(without, truth) < least).any(), hits(without, truth)
    # and are no wider than they need be: some miss
    assert hits(intervals, truth).sum() < 3 * REPEATS - 1


@pytest.mark.slow
def test_intervals_of_multinomial_fits_cover_the_truth():
    weights = np.array([[0.0, 1.5, -1.0], [0.0, -1.0, 1.0], [0.0, 0.3, -0.3]])
    truth = np.concatenate([weights[:, 1], weights[:, 2]])

    def draw(rng):
        X = rng.uniform(-1, 1, (3000, 2))
        p = softmax(X @ weights[:2] + weights[2], axis=1)
        return X, (rng.random(3000)[:, None] > np.cumsum(p, axis=1)).sum(axis=1)

    intervals, without, identified = repeated(draw, epsilon=2.0, trust="curator")
    assert identified.mean() > 0.95
    least = binom.ppf(FALSE_ALARM, REPEATS, 0.95)
    assert (hits(intervals, truth) >= least).all(), hits(intervals, truth)
    assert (hits(without, truth) < least).any(), hits(without, truth)
    assert hits(intervals, truth).sum() < 6 * REPEATS - 1
