"""The distinguishing game: which of two neighbouring data sets made this transcript?

A score is trained on some of the runs, and so is the threshold that looks best. On the others, Clopper-Pearson bounds
hold the two error rates of that one guess with a stated confidence, whatever the score is. If a run is
(epsilon, delta)-private, every event E has P(E) <= e^epsilon Q(E) + delta, so

    epsilon >= ln( (lower bound on P(E) - delta) / (upper bound on Q(E)) )

is violated by a private run with at most the stated chance. Only the power of the game depends on how good the score
is.
"""

import dataclasses
from typing import Any

import numpy as np
from scipy.stats import beta

from coterie.audit.finding import Measured
from coterie.audit.instances import DELTA
from coterie.audit.recording import Workbench

# share of the runs
TRAINING = 0.3
# thresholds that are looked at in training
_CANDIDATES = 200
# of the logistic score, per run
_RIDGE = 1e-3
_NEWTON_STEPS = 25
# two directions, two rates each: they share the chance of a false alarm
_BOUNDS = 4
# deviations below this share of the largest release are treated as this large
_SILENT = 1e-9
# deviations: beyond this nothing is left to learn
_FAR = 40.0


@dataclasses.dataclass(frozen=True)
class Score:
    """Logistic score of whitened transcripts: linear, which is best against Gaussian noise, and clipped between the two
    medians, which is best against noise with exponential tails. Larger speaks for the first data set."""

    centre: np.ndarray
    # undoes, in the order of time, what a release owes to those before it
    whitening: np.ndarray
    low: np.ndarray
    high: np.ndarray
    weights: np.ndarray

    def __call__(self, transcripts: np.ndarray) -> np.ndarray:
        return self._features(transcripts) @ self.weights

    def _features(self, transcripts: np.ndarray) -> np.ndarray:
        z = np.clip((transcripts - self.centre) @ self.whitening.T, -_FAR, _FAR)
        return np.concatenate([z, np.clip(z, self.low, self.high)], axis=1)


def train(first: np.ndarray, second: np.ndarray) -> Score:
    """From transcripts of both data sets, (n_runs, n_releases)."""
    centre = (first.mean(axis=0) + second.mean(axis=0)) / 2
    inner = np.concatenate([first - first.mean(axis=0), second - second.mean(axis=0)])
    sizes = inner.std(axis=0)
    largest = max(float(np.abs(first).max()), float(np.abs(second).max()), np.finfo(float).tiny)
    sizes = np.maximum(sizes, _SILENT * largest)
    covariance = (inner / sizes).T @ (inner / sizes) / len(inner)
    # in the order of time: the Cholesky factor is the regression of each release on all earlier ones
    factor = np.linalg.cholesky(covariance + _SILENT * np.eye(len(sizes)))
    whitening = np.linalg.inv(factor) / sizes
    medians = np.sort([np.median((side - centre) @ whitening.T, axis=0) for side in (first, second)], axis=0)
    blank = Score(centre, whitening, medians[0], medians[1], np.zeros(2 * len(sizes)))
    features = blank._features(np.concatenate([first, second]))
    labels = np.repeat([1.0, 0.0], [len(first), len(second)])
    return dataclasses.replace(blank, weights=_logistic(features, labels))


def _logistic(features: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Newton's method from zero; the centre makes an intercept superfluous."""
    ridge = _RIDGE * len(labels)
    weights = np.zeros(features.shape[1])
    for _ in range(_NEWTON_STEPS):
        p = 1 / (1 + np.exp(-np.clip(features @ weights, -30, 30)))
        gradient = features.T @ (p - labels) + ridge * weights
        hessian = (features * (p * (1 - p))[:, None]).T @ features + ridge * np.eye(len(weights))
        step = np.linalg.solve(hessian, gradient)
        weights = weights - step * min(1.0, 5 / max(float(np.linalg.norm(step)), 1e-300))
        if np.linalg.norm(step) < 1e-6:
            break
    return weights


def clopper_pearson(n_hits: Any, n_tries: int, false_alarm: float) -> tuple[Any, Any]:
    """One-sided bounds on a probability, each wrong with chance at most `false_alarm`."""
    # the beta quantiles are 0 and 1, their limits, where there are only misses or only hits
    low = np.where(n_hits == 0, 0.0, beta.ppf(false_alarm, np.maximum(n_hits, 1), n_tries - n_hits + 1))
    high = np.where(n_hits == n_tries, 1.0, beta.isf(false_alarm, n_hits + 1, np.maximum(n_tries - n_hits, 1)))
    return low, high


def guess_epsilon(n_right: Any, n_wrong: Any, n_runs: int, delta: float, false_alarm: float) -> Any:
    """A lower bound on the loss from a guess that is right in `n_right` runs on its own data set and wrong in `n_wrong`
    on the other one; each of the two rates may fail with chance `false_alarm`."""
    inside = clopper_pearson(n_right, n_runs, false_alarm)[0] - delta
    outside = clopper_pearson(n_wrong, n_runs, false_alarm)[1]
    return np.log(np.maximum(inside / outside, 1.0))


def epsilon_lower_bound(first: np.ndarray, second: np.ndarray, *, delta: float, false_alarm: float) -> float:
    """A loss that is exceeded with confidence 1 - `false_alarm`, from as many transcripts on each data set."""
    part = int(TRAINING * len(first))
    score = train(first[:part], second[:part])
    best = 0.0
    sides = (score(first), score(second)), (-score(second), -score(first))
    for own, other in sides:
        threshold = _promising(own[:part], other[:part], delta, false_alarm / _BOUNDS)
        right, wrong = ((side[part:] >= threshold).sum() for side in (own, other))
        best = max(best, float(guess_epsilon(right, wrong, len(own) - part, delta, false_alarm / _BOUNDS)))
    return best


def _promising(own: np.ndarray, other: np.ndarray, delta: float, false_alarm: float) -> float:
    """The threshold with the best bound in training."""
    candidates = np.unique(np.quantile(own, np.linspace(0, 1, _CANDIDATES, endpoint=False)))
    own, other = np.sort(own), np.sort(other)
    right, wrong = (len(own) - np.searchsorted(own, candidates), len(other) - np.searchsorted(other, candidates))
    return float(candidates[np.argmax(guess_epsilon(right, wrong, len(own), delta, false_alarm))])


def check(bench: Workbench) -> Measured:
    lower = epsilon_lower_bound(*bench.recording.random_runs, delta=DELTA, false_alarm=bench.false_alarm)
    return Measured(stated=bench.stated, lower=lower)
