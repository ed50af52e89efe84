"""Federated private ADMM for the Lasso, everybody at work in one NumPy expression; arguments as in `lasso_loop`."""

import numpy as np


def run(A, b, *, works, noise, weight, step, relaxation, clip, noise_std, threshold):
    n, p = A.shape
    u, z_hat, models = np.zeros((n, p)), np.zeros(p), np.empty((len(noise), p))
    stiffness = weight * step
    gain = stiffness / (1 + stiffness * np.einsum("ij,ij->i", A, A))
    z = np.zeros(p)
    for t, (at_work, unit) in enumerate(zip(works, noise, strict=True)):
        who = np.flatnonzero(at_work)
        rows, state = A[who], u[who]
        v = 2 * z - state
        moves = v - (gain[who] * (np.einsum("ij,ij->i", rows, v) - b[who]))[:, None] * rows - z
        lengths = np.sqrt(np.einsum("ij,ij->i", moves, moves))
        moves *= (2 * relaxation * np.minimum(1.0, clip / np.maximum(lengths, 1e-300)))[:, None]
        u[who] = state + moves
        z_hat = z_hat + (moves.sum(axis=0) + noise_std * unit) / n
        models[t] = z = np.sign(z_hat) * np.maximum(np.abs(z_hat) - threshold, 0.0)
    return models
