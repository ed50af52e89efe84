"""Private ADMM on a graph as anybody would write it: one warm-started L-BFGS-B solve per party and iteration.

NumPy and SciPy only. One matrix product for the scores, one for the gradient; no Python loop over records; the solver
starts from the party's own last broadcast and stops at the gradient that the caller names.
"""

import dataclasses

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit


@dataclasses.dataclass(frozen=True)
class Setting:
    """One cell of a sweep; arrays have one number per minimisation."""

    penalty: np.ndarray
    dual_step: np.ndarray
    noise_scale: np.ndarray
    output_scale: np.ndarray
    extra_l2: np.ndarray
    tolerance: np.ndarray
    # None: every iteration minimises
    recycle_weight: float | None


def solve(X, sign, weight, l2, curvature, target, linear, start, tolerance):
    """argmin weight sum log(1 + exp(-sign X f)) + (l2/2) |f|^2 + linear . f + (curvature/2) |f - target|^2."""

    def objective(f):
        margins = sign * (X @ f)
        away = f - target
        value = weight * np.logaddexp(0.0, -margins).sum() + linear @ f + l2 / 2 * f @ f + curvature / 2 * away @ away
        return value, -weight * (X.T @ (sign * expit(-margins))) + linear + l2 * f + curvature * away

    # ftol=0: stop at the gradient and nowhere else
    options = {"maxiter": 1000, "maxfun": 1000, "gtol": tolerance, "ftol": 0.0}
    return minimize(objective, start, jac=True, method="L-BFGS-B", options=options).x


def run(shards, weight, l2, setting: Setting, noise, n_iterations):
    """Broadcasts of the minimising iterations, (minimisation, party, d), on a complete graph.

    `shards` are (X, sign) pairs; `noise(party, t)` gives the unit draws for the linear term and for the output.
    """
    n, d = len(shards), shards[0][0].shape[1]
    f, dual, sent = np.zeros((n, d)), np.zeros((n, d)), []
    per_minimisation = 1 if setting.recycle_weight is None else 2
    for t in range(-(-n_iterations // per_minimisation)):
        eta, theta, degree = setting.penalty[t], setting.dual_step[t], n - 1
        midpoints = (f + (f.sum(axis=0) - f) / degree) / 2
        minimisers = np.empty((n, d))
        for i, (X, sign) in enumerate(shards):
            linear_noise, output_noise = noise(i, t)
            linear = 2 * dual[i] + setting.noise_scale[t] * linear_noise
            own_l2 = l2 + setting.extra_l2[t]
            minimisers[i] = solve(
                X, sign, weight, own_l2, 2 * eta * degree, midpoints[i], linear, f[i], setting.tolerance[t]
            )
            minimisers[i] += setting.output_scale[t] * output_noise
        sent.append(minimisers)
        gaps = n * minimisers - minimisers.sum(axis=0)
        dual = dual + theta / 2 * gaps
        if setting.recycle_weight is None:
            f = minimisers
            continue
        pulls = 2 * degree * minimisers - degree * f - (f.sum(axis=0) - f)
        f = minimisers - ((theta + eta) * gaps - eta * pulls) / (2 * eta * degree + setting.recycle_weight)
    return np.stack(sent)
