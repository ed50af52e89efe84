"""The exact privacy loss of one objective-perturbed step, from its output density: computed, not sampled.

The step releases f = argmin sum_n w_n loss(x_n . f, y_n) + (Lambda/2) |f|^2 + (offset + b) . f with random b. Given the
records, f and b determine each other: b(f) = -(gradient of all the rest). With H the Hessian of the objective,

    density of f  =  density of b at b(f)  *  det H(f).

One coefficient: cells are halved until nothing changes much inside them. More: a uniform grid, whose error is measured.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from scipy.special import gammaln, logsumexp

from coterie.audit.finding import largest
from coterie.errors import CoterieError, InputError
from coterie.plan import Plan
from coterie.privacy.noise import Law
from coterie.problems import Loss, Records
from coterie.values import positive_number

Pair = tuple[Records, Records]
# relative, of every integral, unless the caller allows more
LARGEST_ERROR = 1e-6
_DENSITIES: tuple[Law, ...] = ("gaussian", "gamma-sphere")
# what lies beyond the grid is smaller than exp(-_TAIL)
_TAIL = 32.0
_POINTS_PER_AXIS = {2: 769, 3: 97}
# losses see arrays of this one length, so that JAX compiles each operation once
_BLOCK = 2**14


class QuadratureError(CoterieError, ArithmeticError):
    """The grid is too coarse for this instance: its numbers must not be used."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """One party's step: record n weighs `weight * records.weight[n]`; `noise_scale` is a deviation or 1/rate."""

    loss: Loss
    weight: float
    strong_convexity: float
    offset: tuple[float, ...]
    law: Law
    noise_scale: float

    def __post_init__(self) -> None:
        numbers = {name: getattr(self, name) for name in ("weight", "strong_convexity", "noise_scale")}
        for name, value in (numbers | {"loss: its largest slope": self.loss.lipschitz}).items():
            positive_number(name, value)
        if self.law not in _DENSITIES:
            raise InputError(f"law: got {self.law!r}; one of {', '.join(_DENSITIES)} is needed")
        if not 1 <= len(self.offset) <= 3:
            raise InputError(f"offset: got {len(self.offset)} coefficients; exact losses are computed for 1 to 3")

    @classmethod
    def of(cls, plan: Plan, t: int, offset: tuple[float, ...]) -> "Step":
        """The first party's in round t, with noise in the objective."""
        law = plan.algorithm.mechanism.law
        assert law is not None
        return cls(
            loss=plan.problem.loss,
            weight=plan.party_facts(0).record_weight,
            strong_convexity=convexity(plan, t),
            offset=offset,
            law=law,
            noise_scale=first_grant(plan, t).scales.noise_scale,
        )

    @property
    def centre(self) -> np.ndarray:
        """What would be released without records and without noise."""
        return -np.asarray(self.offset) / self.strong_convexity


def first_grant(plan: Plan, t: int = 0) -> Any:
    """The first party's in round t."""
    grants, index = plan.issued
    return grants[index[t % len(index), 0]]


def convexity(plan: Plan, t: int = 0) -> float:
    """Of the first party's step in round t, whatever its records are."""
    scales = first_grant(plan, t).scales
    return plan.problem.regulariser.l2 / plan.facts.n_parties + scales.curvature + scales.extra_l2


def log_density(step: Step, records: Records, points: np.ndarray) -> np.ndarray:
    """Log density of the released minimiser at `points`, (n_points, n_coefficients)."""
    noise, log_det, _ = _noise_at(step, records, points)
    return _log_noise(step, noise) + log_det


def pure_loss(step: Step, records: Records, other: Records) -> float:
    """sup |log ratio| of the two densities over the grid: at most the true pure loss, and close to it."""
    # slopes settle only where scores are large, however little noise there is
    longest_row = np.linalg.norm(np.concatenate([records.X, other.X]), axis=1).max()
    settled = (40 + np.abs([records.y, other.y]).max()) / max(longest_row, 1e-9) + np.abs(step.centre)
    points, _ = next(
        _grids(step, (records, other), np.maximum(_reach(step, records, other, 1.0), settled), np.empty((0, 2)))
    )
    return float(np.abs(log_density(step, records, points) - log_density(step, other, points)).max())


def renyi_divergence(
    step: Step, records: Records, other: Records, orders: np.ndarray, *, largest_error: float = LARGEST_ERROR
) -> np.ndarray:
    """Renyi divergences, (2, n_orders): row 0 is D(records || other), row 1 is D(other || records).

    QuadratureError unless both densities integrate to one, and a fine and a coarse grid agree, to `largest_error`.
    """
    powers = np.array([(1.0, 0.0), (0.0, 1.0), *((a, 1 - a) for a in orders), *((1 - a, a) for a in orders)])
    log_integrals = []
    for points, weights in _grids(step, (records, other), _reach(step, records, other, float(np.max(orders))), powers):
        p, q = log_density(step, records, points), log_density(step, other, points)
        log_integrals.append(np.array([logsumexp(a * p + b * q, b=weights) for a, b in powers]))
    exact, rough = log_integrals
    error = max(np.abs(exact[:2]).max(), np.abs(exact - rough).max())
    if not error <= largest_error:
        raise QuadratureError(f"an integral is off by {error:.1e}, and {largest_error:.1e} is allowed")
    return exact[2:].reshape(2, -1) / (np.asarray(orders) - 1)


def exact_epsilon(step: Step, records: Records, other: Records, delta: float) -> float:
    """The loss at `delta`, the larger of both directions: where the integral of (p - e^epsilon q)+ falls to delta."""
    powers = np.array([(1.0, 0.0), (0.0, 1.0)])
    points, weights = next(_grids(step, (records, other), _reach(step, records, other, 1.0), powers))
    p, q = log_density(step, records, points), log_density(step, other, points)

    def reached(own: np.ndarray, reference: np.ndarray) -> float:
        def above(epsilon: float) -> bool:
            return bool(weights @ np.maximum(np.exp(own) - np.exp(epsilon + reference), 0.0) > delta)

        return largest(above, 0.0, float(np.max(own - reference)))

    return max(reached(p, q), reached(q, p))


def _noise_at(step: Step, records: Records, points: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The noise b(f) that leads to each point f, log det H there, and all slopes (n_points, n_records, n_outputs)."""
    X, K = np.asarray(records.X, dtype=float), step.loss.n_outputs
    weight = step.weight * np.asarray(records.weight, dtype=float)
    if points.shape[1] != len(step.offset) or X.shape[1] * K != len(step.offset):
        raise InputError(f"offset: {len(step.offset)} coefficients given for {X.shape[1]} features and {K} outputs")
    scores = np.einsum("nd,mdk->mnk", X, points.reshape(len(points), -1, K))
    slopes, bends = _derivatives(step.loss, scores, np.asarray(records.y, dtype=float))
    gradient = np.einsum("mnk,nd->mdk", slopes, weight[:, None] * X).reshape(points.shape)
    outer = weight[:, None, None] * X[:, :, None] * X[:, None, :]
    hessian = np.einsum("mnkl,nde->mdkel", bends, outer).reshape(len(points), points.shape[1], points.shape[1])
    hessian = hessian + step.strong_convexity * np.eye(points.shape[1])
    noise = -(step.strong_convexity * points + np.asarray(step.offset) + gradient)
    return noise, np.linalg.slogdet(hessian)[1], slopes


def _log_noise(step: Step, noise: np.ndarray) -> np.ndarray:
    d, size = noise.shape[1], np.linalg.norm(noise, axis=1) / step.noise_scale
    if step.law == "gaussian":
        log_unit = -(size**2) / 2 - d / 2 * math.log(2 * math.pi)
    else:
        # of the unit sphere
        log_area = math.log(2) + d / 2 * math.log(math.pi) - gammaln(d / 2)
        log_unit = -size - gammaln(d) - log_area
    return log_unit - d * math.log(step.noise_scale)


def _derivatives(loss: Loss, scores: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    n_points, n_records, K = scores.shape
    n_scores, padding = n_points * n_records, -n_points * n_records % _BLOCK
    flat = np.concatenate([scores.reshape(n_scores, K), np.zeros((padding, K))])
    labels = np.concatenate([np.tile(y, n_points), np.zeros(padding)])
    slopes, bends = [], []
    with jax.enable_x64(True):
        for start in range(0, len(flat), _BLOCK):
            block, label = flat[start : start + _BLOCK], jax.numpy.asarray(labels[start : start + _BLOCK])
            score = jax.numpy.asarray(block[:, 0] if K == 1 else block)
            slopes.append(np.asarray(loss.slope(score, label)))
            bends.append(np.asarray(loss.curvature(score, label)))
    shape = (n_points, n_records, K)
    return np.concatenate(slopes)[:n_scores].reshape(shape), np.concatenate(bends)[:n_scores].reshape(*shape, K)


def _reach(step: Step, records: Records, other: Records, order: float) -> float:
    """How far from the centre p^a q^(1-a) matters, from bounds on slopes and curvatures.

    With D the difference of the gradients, |b| in excess of (a - 1) |D| pays by the noise's tail, which must make up
    for exp(a (a - 1) |D|^2 / 2) (Gaussian) and for the ratio of determinants.
    """
    if np.shape(records.X) != np.shape(other.X):
        raise InputError("records, other: different numbers of rows given; a record that is absent has weight 0")
    bound = gap = bends = 0.0
    changed = ~(np.all(records.X == other.X, axis=1) & (records.y == other.y) & (records.weight == other.weight))
    for data in (records, other):
        norms, weight = np.linalg.norm(data.X, axis=1), step.weight * np.asarray(data.weight)
        bound = max(bound, step.loss.lipschitz * float(weight @ norms))
        gap += step.loss.lipschitz * float((weight * norms)[changed].sum())
        bends = max(bends, step.loss.smoothness * float(weight @ norms**2) / step.strong_convexity)
    needed = _TAIL + 2 * order * len(step.offset) * math.log1p(bends)
    if step.law == "gaussian":
        needed = math.sqrt(2 * needed + order * (order - 1) * (gap / step.noise_scale) ** 2)
    return ((order - 1) * gap + step.noise_scale * needed + bound) / step.strong_convexity


def _grids(step: Step, data_sets: Pair, reach: Any, powers: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Points and quadrature weights on the box step.centre +- reach: a fine grid, then a coarse one to judge it by."""
    low, high, d = step.centre - reach, step.centre + reach, len(step.offset)
    if d == 1:
        edges = _cells(step, data_sets, low[0], high[0], powers)
        half, middle = np.diff(edges)[:, None] / 2, (edges[1:, None] + edges[:-1, None]) / 2
        for n_nodes in (5, 3):
            nodes, shares = np.polynomial.legendre.leggauss(n_nodes)
            yield (middle + half * nodes).reshape(-1, 1), (half * shares).ravel()
        return
    for count in (_POINTS_PER_AXIS[d], _POINTS_PER_AXIS[d] // 2):
        axes = np.linspace(low, high, count, axis=1)
        points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, d)
        yield points, np.full(len(points), np.prod(axes[:, 1] - axes[:, 0]))


def _cells(step: Step, data_sets: Pair, low: float, high: float, powers: np.ndarray) -> np.ndarray:
    """Edges of cells inside which a polynomial can follow p/q and p^a q^b for the powers (a, b)."""
    edges = np.linspace(low, high, 257)
    while True:
        points = np.insert(edges, np.arange(1, len(edges)), (edges[1:] + edges[:-1]) / 2)[:, None]
        rough, logs = np.zeros(len(edges) - 1, dtype=bool), []
        for records in data_sets:
            noise, log_det, slopes = _noise_at(step, records, points)
            rough |= np.abs(np.diff(slopes[::2], axis=0)).max(axis=(1, 2)) > 0.1 * step.loss.lipschitz
            rough |= np.abs(log_det[1::2] - (log_det[2::2] + log_det[:-1:2]) / 2) > 1e-5
            # its density has a cusp at zero
            if step.law == "gamma-sphere":
                rough |= np.diff(np.sign(noise[::2, 0])) != 0
            if len(powers):
                rough |= np.abs(np.diff(noise[::2, 0])) > 0.5 * step.noise_scale
            logs.append((_log_noise(step, noise) + log_det)[::2])
        for exponent in powers @ np.stack(logs):
            matters = np.maximum(exponent[1:], exponent[:-1]) > exponent.max() - _TAIL
            rough |= matters & (np.abs(np.diff(exponent)) > 0.5)
        rough &= np.diff(edges) > 1e-13 * (high - low)
        if not rough.any():
            return edges
        edges = np.sort(np.concatenate([edges, points[1::2, 0][rough]]))
