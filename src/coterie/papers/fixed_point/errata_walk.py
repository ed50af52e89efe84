"""The random walk of Cyffers, Bellet & Basu (2023), Algorithm 4, as one party sees it: D11."""

import dataclasses
import math

import numpy as np

from coterie.papers.errata_entry import FP, Erratum, bound
from coterie.papers.fixed_point.published import theorem_4

WATCHED, WATCHER = 0, 1  # party i and party j


@dataclasses.dataclass(frozen=True)
class Walk:
    """r = 0, updates x - z clipped at 1. Party i has x = +-target whatever z and u_i are, the others have flat losses.

    Then u_j stays within about sqrt(lambda / (4 - 4 lambda)) sigma of z, so that clipping at 1 never acts and all is
    linear.
    """

    n_parties: int = 1000
    n_steps: int = 40_000
    relaxation: float = 0.15
    noise_std: float = 0.7
    target: float = 0.9

    def paths(self, n_paths: int, seed: int) -> np.ndarray:
        """Who holds the token, by step and path."""
        return np.random.default_rng(seed).integers(self.n_parties, size=(self.n_steps, n_paths))

    def last_seen(self, paths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """z at the watcher's last visit, for each path: how far apart the two data sets' means are, and the variance.

        Backwards along the path, carrying the derivatives of that z by the present z and u.
        """
        n_steps, n_paths = paths.shape
        every = np.arange(n_paths)
        by_z, by_u = np.zeros(n_paths), np.zeros((self.n_parties, n_paths))
        shifts, variances, seen = np.zeros(n_paths), np.zeros(n_paths), np.zeros(n_paths, dtype=bool)
        for k in range(n_steps - 1, -1, -1):
            holder = paths[k]
            watched, last = holder == WATCHED, (holder == WATCHER) & ~seen
            by_update = by_z / self.n_parties + by_u[holder, every]  # u_holder += update, z += update / n
            shifts += np.where(watched, 2 * self.relaxation * 2 * self.target * by_update, 0.0)
            variances += (self.relaxation * self.noise_std * by_update) ** 2
            # update = 2 lambda (target - z) for the watched party, 2 lambda (z - u) for the others
            by_z += 2 * self.relaxation * np.where(watched, -1, 1) * by_update
            by_u[holder, every] -= 2 * self.relaxation * np.where(watched, 0, 1) * by_update
            by_z[last], seen = 1.0, seen | last  # the watcher sees z before updating it
        return shifts, variances


def network_loss_of_the_walk(n_paths: int = 400, seed: int = 0) -> Erratum:
    """D11. The proof looks at one visit and adds up; but u_i remembers all visits, and so do all that z has reached."""
    walk, order = Walk(), 1.1
    paths = walk.paths(n_paths, seed)
    visits = max(int(np.bincount(column, minlength=walk.n_parties).max()) for column in paths.T)
    # updates are at most 1 by clipping, which takes the place of L gamma
    claimed = theorem_4(
        lipschitz=1.0, prox_step=1.0, noise_std=walk.noise_std, n_parties=walk.n_parties, n_visits=visits, order=order
    )
    assert claimed.holds
    return bound(
        "D11",
        FP,
        "Theorem 4 with updates clipped at 1: a lower bound, six standard errors below its estimate, on the Rényi "
        "divergence of order 1.1 of what one party sees of another (1000 parties, 40000 steps of the walk).",
        claimed=claimed.rdp,
        exact=hidden_path_loss(*walk.last_seen(paths)),
        certified=visits * 8 * order / walk.noise_std**2,  # per visit u_i moves by 4 lambda C with noise lambda sigma
    )


def hidden_path_loss(shifts: np.ndarray, variances: np.ndarray, errors: float = 6.0) -> float:
    """A lower bound on the Kullback-Leibler divergence, and so on that of every order > 1, from a sample of paths.

    Given the path, what is seen is N(+-shift/2, variance); the watcher does not know the path. For every t
    (Donsker & Varadhan), KL >= t E_P[z] - ln E_Q[exp(t z)] = t E[shift]/2 - ln E[exp(-t shift/2 + t^2 variance/2)]. The
    first half of the paths chooses t, the second half estimates, and `errors` standard errors are taken off.
    """
    half = len(shifts) // 2

    def lower(t: float, part: slice) -> float:
        mean, log_moment = t * shifts[part] / 2, -t * shifts[part] / 2 + t**2 * variances[part] / 2
        moments = np.exp(log_moment - log_moment.max())
        estimate = mean.mean() - math.log(moments.mean()) - log_moment.max()
        spread = (mean - moments / moments.mean()).std()  # of the estimate's linear part
        return float(estimate - errors * spread / math.sqrt(len(mean)))

    scale = shifts.mean() / variances.mean()
    best = max(np.linspace(0.05, 1.5, 100) * scale, key=lambda t: lower(t, slice(None, half)))
    return lower(best, slice(half, None))
