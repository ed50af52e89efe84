"""Where the iterations of Cyffers, Bellet & Basu (2023) go, on one-dimensional quadratics: D1, D12, D13."""

import dataclasses
import math

import numpy as np

from coterie.papers.errata_entry import FP, Erratum, bound, limit
from coterie.papers.fixed_point.utility import fixed_point_bound, published_theorem_1


def utility_of_noisy_iterations() -> Erratum:
    """D1. The proof of Theorem 1 takes a relaxation outside (0, 1]; with relaxation 1 its statement is true."""
    setting = {"contraction": 0.9, "noise_std": 0.5, "dimension": 12}
    n_steps, start = 20, np.full(12, 3.0)
    distance = float(np.linalg.norm(start))
    published = published_theorem_1(n_steps=n_steps, start_distance=distance, **setting)
    assert published.holds
    return bound(
        "D1",
        FP,
        "Theorem 1: E|u_20 - u*|^2 for R = 0.9 times a rotation in 12 dimensions (sigma = 0.5, all blocks).",
        claimed=published.mean_square,
        exact=rotation_error(start, n_steps, relaxation=1.0, contraction=0.9, noise_std=0.5),
        certified=fixed_point_bound(relaxation=1.0, **setting).mean_square(n_steps, distance),
    )


def rotation_error(
    start: np.ndarray, n_steps: int, *, relaxation: float, contraction: float, noise_std: float
) -> float:
    """E|u_k|^2 for R = contraction * (a rotation without fixed directions), from second moments."""
    size = len(start)
    quarter_turn = np.kron(np.eye(size // 2), np.array([[0.0, -1.0], [1.0, 0.0]]))
    step = (1 - relaxation) * np.eye(size) + relaxation * contraction * quarter_turn
    moments = np.outer(start, start)
    for _ in range(n_steps):
        moments = step @ moments @ step.T + (relaxation * noise_std) ** 2 * np.eye(size)
    return float(np.trace(moments))


@dataclasses.dataclass(frozen=True)
class Lasso:
    """min_x (1/n) sum_i (bend_i/2) (x - centre_i)^2 + l1 |x|, solved by consensus ADMM without noise."""

    bends: np.ndarray
    centres: np.ndarray
    l1: float

    def optimum(self) -> float:
        return _soft(float(np.mean(self.bends * self.centres)), self.l1) / float(np.mean(self.bends))

    def prox(self, step: float, point: np.ndarray) -> np.ndarray:
        return (point + step * self.bends * self.centres) / (1 + step * self.bends)

    def solve(
        self,
        *,
        prox_step: float,
        threshold: float,
        accumulate: bool = True,
        relaxation: float = 0.5,
        rounds: int = 4000,
    ) -> float:
        """Where z goes; z_hat is the mean of u if changes `accumulate`, else z plus the last change."""
        u, z_hat, z = np.zeros(len(self.bends)), 0.0, 0.0
        for _ in range(rounds):
            updates = 2 * relaxation * (self.prox(prox_step, 2 * z - u) - z)
            u, z_hat = u + updates, (z_hat if accumulate else z) + updates.mean()
            z = _soft(float(z_hat), threshold)
        return z


LASSO = Lasso(bends=np.array([0.5, 1.0, 1.5, 2.0]), centres=np.array([3.0, 1.0, 2.0, 1.0]), l1=0.1)


def model_in_place_of_accumulator() -> Erratum:
    """D12. If z_hat = z_k + ..., every round shrinks z once more, until only r counts."""
    return limit(
        "D12",
        FP,
        "Algorithm 3 line 7 and Algorithm 4 line 6, z_hat = z_k + ...: the limit on a one-dimensional lasso with four "
        "parties, all in every round, which is argmin r and not the optimum.",
        claimed=LASSO.optimum(),
        exact=LASSO.solve(prox_step=1.0, threshold=LASSO.l1, accumulate=False),
        certified=LASSO.solve(prox_step=1.0, threshold=LASSO.l1),
    )


def lasso_with_two_step_sizes() -> Erratum:
    """D13. The proximal step of f_i and the threshold over kappa have to be equal; they are gamma/(2n) and gamma.

    For (a a' + (s/gamma) I)^-1 (b a + (s/gamma) v) is the proximal step gamma/s of (a . x - b)^2 / 2, from v.
    """
    n_parties, prox_step = len(LASSO.bends), 4.0
    return limit(
        "D13",
        FP,
        "Algorithm 6, 2n/gamma beside S_(gamma kappa): the limit on a one-dimensional lasso with four parties, which "
        "is the optimum for 8 kappa.",
        claimed=LASSO.optimum(),
        exact=LASSO.solve(prox_step=prox_step / (2 * n_parties), threshold=prox_step * LASSO.l1),
        certified=LASSO.solve(prox_step=prox_step / n_parties, threshold=prox_step * LASSO.l1 / n_parties),
    )


def _soft(value: float, threshold: float) -> float:
    return math.copysign(max(abs(value) - threshold, 0.0), value)
