"""Private ADMM on any graph as anybody would write it: one warm-started L-BFGS-B solve per party and round.

NumPy and SciPy only; sums over neighbours are one matrix product with the adjacency matrix.
"""

import numpy as np

from .sweep_lbfgs import solve


def run(shards, adjacency, *, weight, l2, penalty, dual_step, linear_noise, output_noise, extra_l2, tolerance):
    """Broadcasts, (round, party, d).

    `shards` are (X, sign) pairs, `adjacency` a sparse matrix of 0 and 1; the noises are scaled draws for every round
    and party; `extra_l2` and `tolerance` have one number per party.
    """
    n_rounds, n, d = linear_noise.shape
    degrees = np.asarray(adjacency.sum(axis=1)).ravel()
    f, dual, sent = np.zeros((n, d)), np.zeros((n, d)), np.empty((n_rounds, n, d))
    for t in range(n_rounds):
        midpoints = (f + adjacency @ f / degrees[:, None]) / 2
        for i, (X, sign) in enumerate(shards):
            linear = 2 * dual[i] + linear_noise[t, i]
            curvature = 2 * penalty * degrees[i]
            sent[t, i] = solve(X, sign, weight, l2 + extra_l2[i], curvature, midpoints[i], linear, f[i], tolerance[i])
        f = sent[t] = sent[t] + output_noise[t]
        dual += dual_step / 2 * (degrees[:, None] * f - adjacency @ f)
    return sent
