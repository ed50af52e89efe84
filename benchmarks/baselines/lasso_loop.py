"""Federated private ADMM for the Lasso, one person after another in Python."""

import numpy as np


def run(A, b, *, works, noise, weight, step, relaxation, clip, noise_std, threshold):
    """z after every round. `works` (rounds, n) says who works, `noise` (rounds, p) holds unit draws for the sums."""
    n, p = A.shape
    u, z_hat, models = [np.zeros(p) for _ in range(n)], np.zeros(p), []
    stiffness = weight * step
    for at_work, unit in zip(works, noise, strict=True):
        z = np.sign(z_hat) * np.maximum(np.abs(z_hat) - threshold, 0.0)
        total = np.zeros(p)
        for i in np.flatnonzero(at_work):
            v = 2 * z - u[i]
            # (a a' k + I)^-1 by Sherman and Morrison
            x = v - stiffness * (A[i] @ v - b[i]) / (1 + stiffness * (A[i] @ A[i])) * A[i]
            move = x - z
            move = 2 * relaxation * move * min(1.0, clip / max(np.linalg.norm(move), 1e-300))
            u[i] = u[i] + move
            total += move
        z_hat = z_hat + (total + noise_std * unit) / n
        models.append(np.sign(z_hat) * np.maximum(np.abs(z_hat) - threshold, 0.0))
    return np.stack(models)
