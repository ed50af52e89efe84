"""The exact loss of a whole run whose releases are an affine function of Gaussian noise.

What everybody sees is then one Gaussian vector on each data set, whatever was stored, recycled, summed or passed on in
between, and the Renyi divergence of two Gaussian vectors is known:

    D_a(P || Q) = a/2 d' S^-1 d - ln( |S| / (|S_P|^(1-a) |S_Q|^a) ) / (2 (a - 1)),   S = a S_Q + (1 - a) S_P
"""

import dataclasses
from collections.abc import Callable

import numpy as np
from scipy.special import log_ndtr

from coterie.audit.finding import Measured
from coterie.audit.instances import DELTA
from coterie.audit.recording import Affine, Workbench, with_probes
from coterie.plan import Plan

ORDERS = np.array([1.01, 1.1, 1.5, 2.0, 3.0, 5.0, 8.0, 16.0, 32.0, 64.0, 128.0])
# variances below this share of the largest are zero
_RANK = 1e-13
# in deviations
_THRESHOLDS = np.linspace(-12, 12, 4801)


@dataclasses.dataclass(frozen=True)
class GaussianPair:
    """Two Gaussian vectors: what is seen on a data set and on its neighbour."""

    means: tuple[np.ndarray, np.ndarray]
    # (n_seen, n_noises): seen = mean + factor @ unit noise
    factors: tuple[np.ndarray, np.ndarray]

    @classmethod
    def of(cls, one: Affine, two: Affine) -> "GaussianPair":
        return cls((one.mean, two.mean), (one.response, two.response))

    def rdp(self, orders: np.ndarray) -> np.ndarray:
        """Renyi divergences in both directions, (2, n_orders)."""
        return np.array([[self._divergence(a, side) for a in orders] for side in (0, 1)])

    def epsilon(self, delta: float) -> float:
        """A loss that is reached: of the best half space, which for equal covariances no other event exceeds."""
        shift, covariances = self._reduced()
        if shift is None:
            return float("inf")
        direction = np.linalg.solve(sum(covariances) / 2, shift)
        deviations = [float(np.sqrt(direction @ c @ direction)) for c in covariances]
        distance, best = float(direction @ shift), 0.0
        if distance == 0:
            return 0.0
        for own, other in (deviations, deviations[::-1]):
            inside = np.exp(log_ndtr((distance - other * _THRESHOLDS) / own)) - delta
            reached = inside > 0
            ratio = np.log(inside[reached]) - log_ndtr(-_THRESHOLDS[reached])
            best = max(best, float(ratio.max(initial=0.0)))
        return best

    def _divergence(self, order: float, side: int) -> float:
        shift, covariances = self._reduced()
        if shift is None:
            return float("inf")
        own, other = covariances[side], covariances[1 - side]
        mixed = order * other + (1 - order) * own
        if np.linalg.eigvalsh(mixed)[0] <= 0:
            return float("inf")
        logs = [np.linalg.slogdet(c)[1] for c in (mixed, own, other)]
        determinants = logs[0] - (1 - order) * logs[1] - order * logs[2]
        return float(order / 2 * shift @ np.linalg.solve(mixed, shift) - determinants / (2 * (order - 1)))

    def _reduced(self) -> tuple[np.ndarray | None, list[np.ndarray]]:
        """Shift and covariances in coordinates in which noise has about unit size; no shift (None) where the data sets
        differ in what no noise reaches."""
        shift = self.means[0] - self.means[1]
        sizes = np.sqrt(sum((f**2).sum(axis=1) for f in self.factors))
        silent = sizes <= _RANK * max(sizes.max(initial=0.0), np.finfo(float).tiny)
        scaled = [f / np.where(silent, 1.0, sizes)[:, None] for f in self.factors]
        shift = shift / np.where(silent, 1.0, sizes)
        values, vectors = np.linalg.eigh(sum(f @ f.T for f in scaled))
        kept = values > _RANK * values[-1]
        lost = shift - vectors[:, kept] @ (vectors[:, kept].T @ shift)
        if np.linalg.norm(lost) > 1e-6 * np.linalg.norm(shift):
            return None, []
        basis = vectors[:, kept] / np.sqrt(values[kept])
        return basis.T @ shift, [(basis.T @ f) @ (basis.T @ f).T for f in scaled]


def view_of(function: Callable[[np.ndarray], np.ndarray], n_noises: int) -> Affine:
    """What a function of unit noise shows; ValueError unless it is affine."""
    noise = with_probes(np.random.default_rng(0).standard_normal((1, n_noises)))
    view = Affine.of(noise, np.array([function(units) for units in noise], dtype=float))
    if not view.holds:
        raise ValueError("the view is no affine function of the noise")
    return view


def exact_pair(
    seen: Callable[[np.ndarray], np.ndarray], seen_on_neighbour: Callable[[np.ndarray], np.ndarray], n_noises: int
) -> GaussianPair:
    """From two functions, unit noise -> everything an observer sees."""
    return GaussianPair.of(view_of(seen, n_noises), view_of(seen_on_neighbour, n_noises))


def stated_curve(plan: Plan, orders: np.ndarray, observer: str | None = None) -> np.ndarray:
    """What the plan says the first party's records pay over the whole run, both directions."""
    return np.sum([count * event.rdp(orders) for event, count in plan.ledger(0, observer=observer)], axis=0)


def check(bench: Workbench) -> Measured:
    if bench.plan.algorithm.mechanism.law != "gaussian":
        return bench.not_applicable("the noise is not Gaussian")
    one, two = (bench.recording.affine(side) for side in (0, 1))
    if not (one.holds and two.holds):
        error = max(one.error, two.error)
        return bench.not_applicable(f"releases are not affine in the noise (off by {error:.1e} deviations)")
    return compared(bench, GaussianPair.of(one, two))


def compared(bench: Workbench, pair: GaussianPair) -> Measured:
    """The exact loss of what is seen against what the plan states."""
    over = exceeded(pair.rdp(ORDERS), stated_curve(bench.plan, ORDERS))
    return Measured(stated=bench.stated, lower=pair.epsilon(DELTA), sound=not over, detail=over)


def exceeded(exact: np.ndarray, stated: np.ndarray) -> str:
    """Where exact divergences at `ORDERS`, (2, order) or the same both ways, are above the stated ones, in words;
    nothing where they are nowhere."""
    # what is released is rounded to a grid, so the map read off the probes is off by 2^-26, times the order
    over = np.argwhere(exact > stated * (1 + 1e-6 + ORDERS * 2.0**-24))
    if len(over) == 0:
        return ""
    side, place = over[0]
    found = np.broadcast_to(exact, stated.shape)[side, place]
    return f"Renyi divergence of order {ORDERS[place]:g}: {found:.4g}, stated {stated[side, place]:.4g}"
