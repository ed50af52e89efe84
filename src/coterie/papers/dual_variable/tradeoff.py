"""Choosing a loss per step by trading privacy against accuracy: Zhang & Zhu (2016), Section 5.

utility of privacy   U_priv(alpha) = w1 ln( w2 / (w3 alpha + w4 alpha^2) )        falls as alpha grows
loss of accuracy     L_acc(alpha)  = c4 exp(-c5 alpha) + c6                       falls as alpha grows
design               alpha* = argmax U_priv(alpha) - L_acc(alpha)
"""

import dataclasses
from typing import Any

import numpy as np
from scipy.optimize import curve_fit, minimize_scalar

from coterie.errors import InputError


@dataclasses.dataclass(frozen=True)
class PrivacyUtility:
    """U_priv; the defaults are the paper's."""

    w1: float = 0.02
    w2: float = 6.0
    w3: float = 9.0
    w4: float = 1.0

    def __call__(self, alpha):
        return self.w1 * np.log(self.w2 / (self.w3 * alpha + self.w4 * alpha**2))


@dataclasses.dataclass(frozen=True)
class AccuracyLoss:
    """L_acc; the paper has (c4, c5) = (0.2, 25) at the first iterations and (20, 20) later."""

    c4: float
    c5: float
    c6: float

    def __call__(self, alpha):
        return self.c4 * np.exp(-self.c5 * alpha) + self.c6

    @classmethod
    def fitted(cls, alphas, losses) -> "AccuracyLoss":
        """Least squares through losses measured at several alphas."""
        alphas, losses = np.asarray(alphas, float), np.asarray(losses, float)
        if alphas.shape != losses.shape or len(np.unique(alphas)) < 3:
            raise InputError(f"alphas: got {len(alphas)} with {len(losses)} losses; at least three pairs are needed")
        spread = max(float(losses.max() - losses.min()), 1e-12)
        first_guess = (spread, 1 / max(float(np.median(alphas)), 1e-12), float(losses.min()))
        bounds = ([0.0, 0.0, -np.inf], np.inf)
        (c4, c5, c6), _ = curve_fit(cls._value, alphas, losses, p0=first_guess, bounds=bounds, maxfev=20_000)
        return cls(float(c4), float(c5), float(c6))

    @staticmethod
    def _value(alpha, c4, c5, c6):
        return c4 * np.exp(-c5 * alpha) + c6


def best_alpha(utility: PrivacyUtility, accuracy: AccuracyLoss, *, low: float = 1e-4, high: float = 10.0) -> float:
    """The alpha in [low, high] with the largest U_priv - L_acc, found on a grid and then refined."""
    if not 0 < low < high:
        raise InputError(f"low, high: got {low}, {high}; 0 < low < high is needed")
    grid = np.geomspace(low, high, 2001)
    best = int(np.argmax(utility(grid) - accuracy(grid)))
    around = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
    refined: Any = minimize_scalar(lambda a: accuracy(a) - utility(a), bounds=around, method="bounded")
    candidates = [float(grid[best]), float(refined.x)]
    return max(candidates, key=lambda a: float(utility(a) - accuracy(a)))


def best_regulariser(regularisers, errors) -> float:
    """The rho with the least mean error over runs, (n_regularisers, n_runs); ties go to the larger one.

    Errors must come from public data, or their use must be paid for.
    """
    errors = np.asarray(errors, float)
    if errors.ndim != 2 or len(errors) != len(regularisers):
        raise InputError(
            f"errors: got shape {errors.shape} for {len(regularisers)} regularisers; one row each is needed"
        )
    means = errors.mean(axis=1)
    return float(max(rho for rho, mean in zip(regularisers, means, strict=True) if mean <= means.min()))
