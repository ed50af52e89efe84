"""The corrected estimate and its covariance, from a gradient and a Hessian that were noised. All of it is a function of
released values; leading axes are independent repetitions.

Let f be a released model, g~ = g + b the noised gradient of all records at f, b ~ N(0, s_g^2 I), and H~ = H + E their
noised Hessian, E symmetric with variance s_h^2 on the diagonal and s_h^2/2 beside it. With D(v) how far the summed
gradient moves from f to f + v, and D~ the same worked out from H~,

    U(theta) = g~ + D~(theta - f)

is, at the estimand theta0 and but for the error of D~, sum_n w_n grad loss_n(theta0) + b: sampling error, of covariance
J, plus noise of known law, whatever f was. D~(v) is H~u with a reach u that is v where the loss is quadratic, and H~
adds E u, v = theta0 - f, of covariance (s_h^2/2)(|u|^2 I + u u').

*Stages.* A first, cheap pair (g~, H~) at the model of the fit moves it to where a second pair is taken. Each stage k
gives a U_k; the estimate is the root of their mean, sum_k a_k U_k(theta) = 0 with a_k proportional to 1/s_gk^2, so no
gradient is bought in vain. With M = sum_k a_k D~_k' and 1/s_g^2 = sum_k 1/s_gk^2, to first order

    Cov = M^-1 ( J + s_g^2 I + sum_k a_k^2 (s_hk^2/2)(|u_k|^2 I + u_k u_k') ) M^-1.

That M is itself noised matters little: it stands on both sides of theta^ - theta0 = -M^-1 U, and U does not depend on
it but through E v. J is w M where the model is right (logistic, multinomial; w a record's weight), or is released.

*How the gradient moves.* For a quadratic loss D(v) = H v. Under noise f is drawn towards zero, and a logistic loss has
another Hessian at theta0 than at f: with 5 % of positives H v can be wrong by half. Where the design has a constant
direction k, x.k = 1 in every row, H~ holds more than curvature: with weights loss''_n, their sum W = k'H~k, the mean
row m = H~k/W and the covariance C = H~/W - m m' of rows. Scores s = x.f and t = x.v are then taken as jointly normal
under these weights. With r(s, t) = (sigma(s + t) - sigma(s))/sigma'(s), and Stein's identity for E[x r],

    D(v) = W (m E[r] + C f E[dr/ds] + C v E[dr/dt]).

For small v this is H~v; it is a model of rows between f and theta0 only, and the less of one the nearer f is. With
W m = H~k and W C = H~ - W m m' it is H~u,

    u = (E[r] - m.f E[dr/ds] - m.v E[dr/dt]) k + E[dr/ds] f + E[dr/dt] v,

shorter than v where curvature falls off on the way: with 5 % of positives the noise that E adds would else be counted
up to five times too large. How the expectations move with E is left out: theirs is a second, smaller part.

*Intervals.* Cov depends on theta, most of all where outcomes are rare: a theta^ that came out too near to zero has more
curvature, so that estimate +- 1.96 standard errors is too short just when it is off. Intervals hold those values of a
coefficient that a test does not refuse whose covariance is taken at that value, the other coefficients where they fit
best (Rao's score test; for one coefficient and a quadratic loss, Fieller's interval for a ratio).

*What cannot be seen.* Eigenvectors of the last H~ with eigenvalues under TIMES_NOISE s_h sqrt(p) are directions in
which curvature cannot be told from its noise, whose norm is about s_h sqrt(2 p). A coefficient that lies in them for
more than MOST_UNSEEN of its squared length is not identified, and gets no interval; where they are more than half of
all, no eigenvector means anything, and no coefficient does. Nor is one whose variance is due to E for more than
MOST_OF_HESSIAN: E then is what decided that its curvature is seen, so that E u is no more of mean 0. Intervals of
those that are identified may still be open at one end.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy.special import expit

from coterie.privacy.moments import TIMES_NOISE

MOST_UNSEEN = 0.02
# of the variance of a coefficient
MOST_OF_HESSIAN = 0.2
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(9)
WEIGHTS = WEIGHTS / WEIGHTS.sum()
MOST_STEPS = 50
PROFILE_STEPS = 4
# of intervals, each by half
WIDENINGS, HALVINGS = 6, 20
# across a row of the largest norm, that noise may move a model by
LARGEST_SCORE = 4.0
# of the curvature at a stage's model
FLATTEST = 1e-9
LONGEST_REACH = 1e100
# of the root mean square of scores, in one step of Newton's method
LONGEST_STEP = 1.5


class Moved(NamedTuple):
    """How far the summed gradient moves from the model to model + v, the derivative of that, and the reach u."""

    gradient: np.ndarray
    derivative: np.ndarray
    reach: np.ndarray


class Response(Protocol):
    def __call__(self, v: np.ndarray) -> Moved: ...


def apply(matrix: np.ndarray, vector: np.ndarray) -> np.ndarray:
    return np.einsum("...ij,...j->...i", matrix, vector)


def outer(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a[..., :, None] * b[..., None, :]


def floored(matrix: np.ndarray, least: float) -> np.ndarray:
    """With eigenvalues of at least `least`."""
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.maximum(values, least)[..., None, :]) @ np.swapaxes(vectors, -1, -2)


@dataclasses.dataclass(frozen=True, eq=False)
class Quadratic:
    """The same Hessian everywhere."""

    hessian: np.ndarray

    def __call__(self, v: np.ndarray) -> Moved:
        return Moved(apply(self.hessian, v), self.hessian, v)


class LogisticRows:
    """Of logistic losses, with rows that are normal under the curvature weights; `constant` is k."""

    def __init__(self, model: np.ndarray, hessian: np.ndarray, constant: np.ndarray) -> None:
        towards = apply(hessian, constant)
        self.model, self.constant = model, constant
        self.weight = np.einsum("...i,i->...", towards, constant)
        self.mean = towards / self.weight[..., None]
        self.covariance = hessian / self.weight[..., None, None] - outer(self.mean, self.mean)
        self.along_model = apply(self.covariance, model)
        self.score_mean = (self.mean * model).sum(-1)
        self.score_var = np.maximum((model * self.along_model).sum(-1), 0.0)

    def __call__(self, v: np.ndarray) -> Moved:
        along_v = apply(self.covariance, v)
        t_mean, t_var = (self.mean * v).sum(-1), np.maximum((v * along_v).sum(-1), 1e-300)
        # of scores on their changes
        slope = (self.model * along_v).sum(-1) / t_var
        rest_std = np.sqrt(np.maximum(self.score_var - slope**2 * t_var, 0.0))

        def wide(value: np.ndarray) -> np.ndarray:
            return value[..., None, None]

        change = wide(np.sqrt(t_var)) * NODES[:, None]
        before = wide(self.score_mean) + wide(slope) * change + wide(rest_std) * NODES
        p, q = expit(before), expit(before + wide(t_mean) + change)
        curved = np.maximum(p * (1 - p), 1e-300)
        # of curvature after to before: the derivative of r in t
        ratio = q * (1 - q) / curved

        def mean(value: np.ndarray) -> np.ndarray:
            return np.einsum("...ij,i,j->...", value, WEIGHTS, WEIGHTS)[..., None]

        moved = (q - p) / curved
        # noise alone can move all scores to where nothing is curved, which no equation could be solved with
        by_ratio = np.maximum(mean(ratio), FLATTEST)
        by_move, by_model = mean(moved), mean(ratio - 1 - moved * (1 - 2 * p))
        gradient = self.mean * by_move + along_v * by_ratio + self.along_model * by_model
        at_centre = by_move - by_ratio * t_mean[..., None] - by_model * self.score_mean[..., None]
        reach = at_centre * self.constant + by_ratio * v + by_model * self.model
        # from a model at which all scores are saturated it is so long that its square would be no number
        reach = np.clip(reach, -LONGEST_REACH, LONGEST_REACH)
        # E[x x' ratio], with ratio close to an exponential of (s, t)
        shift = along_v * mean(ratio * (1 - 2 * q)) + self.along_model * mean(2 * ratio * (p - q))
        tilted = self.mean + shift / by_ratio
        derivative = (outer(tilted, tilted) + self.covariance) * by_ratio[..., None]
        return Moved(self.weight[..., None] * gradient, self.weight[..., None, None] * derivative, reach)


class Stage(NamedTuple):
    """What was released at one model."""

    model: np.ndarray
    gradient: np.ndarray
    hessian: np.ndarray
    gradient_std: float
    hessian_std: float

    def response(self, constant: np.ndarray | None) -> Response:
        positive = floored(self.hessian, self.hessian_std * math.sqrt(self.model.shape[-1]))
        return Quadratic(positive) if constant is None else LogisticRows(self.model, positive, constant)


class Here(NamedTuple):
    """The equations at some theta: their left side, its derivative M, and the reach of every stage."""

    value: np.ndarray
    derivative: np.ndarray
    reaches: list[np.ndarray]


class Equations:
    """sum_k a_k U_k(theta) = 0, and the law of its left side.

    constant: k, given for logistic losses where there is one. record_weight: w, where `second_moment`, J, is not given.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        *,
        constant: np.ndarray | None = None,
        record_weight: float = 1.0,
        second_moment: np.ndarray | None = None,
    ) -> None:
        self.stages, self.constant, self.record_weight = tuple(stages), constant, record_weight
        self.second_moment = None if second_moment is None else floored(second_moment, 0.0)
        self.p = stages[0].model.shape[-1]
        precisions = np.array([1 / stage.gradient_std**2 for stage in stages])
        self.shares = precisions / precisions.sum()
        self.gradient_std = 1 / math.sqrt(precisions.sum())
        self.responses = [stage.response(constant) for stage in stages]

    def for_each(self) -> "Equations":
        """The same with one more axis, along which several values of theta are tried."""
        stages = [
            stage._replace(
                model=stage.model[..., None, :],
                gradient=stage.gradient[..., None, :],
                hessian=stage.hessian[..., None, :, :],
            )
            for stage in self.stages
        ]
        second = None if self.second_moment is None else self.second_moment[..., None, :, :]
        return Equations(stages, constant=self.constant, record_weight=self.record_weight, second_moment=second)

    def __call__(self, theta: np.ndarray) -> Here:
        value: Any = 0.0
        derivative: Any = 0.0
        reaches = []
        for share, stage, response in zip(self.shares, self.stages, self.responses, strict=True):
            moved = response(theta - stage.model)
            value = value + share * (stage.gradient + moved.gradient)
            derivative = derivative + share * moved.derivative
            reaches.append(moved.reach)
        return Here(value, derivative, reaches)

    def solve(self, *, ridge: float = 0.0, towards: Any = 0.0) -> np.ndarray:
        """theta at which the left side plus ridge * (theta - towards) is 0."""
        theta = np.array(self.stages[-1].model, dtype=float)
        for _ in range(MOST_STEPS):
            value, derivative, _ = self(theta)
            left = value + ridge * (theta - towards)
            step = np.linalg.solve(derivative + ridge * np.eye(self.p), left[..., None])[..., 0]
            step = _shortened(step, derivative)
            theta = theta - step
            if not np.abs(step).max(initial=0.0) > 1e-10 * (1 + np.abs(theta).max(initial=0.0)):
                break
        return theta

    def next_model(self, row_norm: float) -> np.ndarray:
        """Where the next pair is taken: the root so far, held to the last model as far as noise could carry it away."""
        ridge = self.gradient_std * row_norm / LARGEST_SCORE
        return self.solve(ridge=ridge, towards=self.stages[-1].model)

    def covariances(self, here: Here) -> tuple[np.ndarray, np.ndarray]:
        """Of the estimate, were this theta the truth: what sampling adds to it, and what noise does."""
        inverse = np.linalg.inv(here.derivative)
        spread = self.record_weight * here.derivative if self.second_moment is None else self.second_moment
        noise = self.gradient_std**2 * np.eye(self.p)
        for share, stage, u in zip(self.shares, self.stages, here.reaches, strict=True):
            length = (u**2).sum(-1)[..., None, None]
            noise = noise + (share * stage.hessian_std) ** 2 / 2 * (length * np.eye(self.p) + outer(u, u))
        return inverse @ spread @ inverse, inverse @ noise @ inverse

    def misfits(self, estimate: np.ndarray, contrasts: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """How far contrasts . theta = values is from what the data say, and the covariance of that were it true.

        contrasts: (test, row, p), values: (..., test, row); found are (..., test, row) and (..., test, row, row). Where
        the values are the truth the first is normal with mean 0: the other coefficients are moved to where they fit
        best, and one step of Newton's method from there is compared with its own law, which depends on theta.
        """
        each = self.for_each()
        theta = np.broadcast_to(estimate[..., None, :], (*values.shape[:-1], self.p))
        sampling, noise = self.covariances(self(estimate))
        covariance = (sampling + noise)[..., None, :, :]
        misfit, spread = np.zeros(values.shape), np.zeros((*values.shape, values.shape[-1]))
        for _ in range(PROFILE_STEPS):
            short = values - apply(contrasts, theta)
            along = covariance @ np.swapaxes(contrasts, -1, -2)
            theta = theta + apply(along, np.linalg.solve(contrasts @ along, short[..., None])[..., 0])
            here = each(theta)
            sampling, noise = each.covariances(here)
            covariance = sampling + noise
            step = -np.linalg.solve(here.derivative, here.value[..., None])[..., 0]
            misfit, spread = apply(contrasts, step), contrasts @ covariance @ np.swapaxes(contrasts, -1, -2)
            theta = theta + _shortened(step, here.derivative)
        return misfit, spread

    def deviations(self, estimate: np.ndarray, contrasts: np.ndarray, values: np.ndarray) -> np.ndarray:
        """How many standard deviations the data lie above contrast . theta = value, (..., contrast)."""
        misfit, spread = self.misfits(estimate, contrasts[:, None, :], values[..., None])
        return misfit[..., 0] / np.sqrt(spread[..., 0, 0])

    def interval(self, estimate: np.ndarray, contrasts: np.ndarray, deviation: float) -> tuple[np.ndarray, np.ndarray]:
        """The values that are at most so many standard deviations from the data; infinite where all are."""
        centre = np.einsum("...i,mi->...m", estimate, contrasts)
        sampling, noise = self.covariances(self(estimate))
        std = np.sqrt(np.einsum("mi,...ij,mj->...m", contrasts, sampling + noise, contrasts))
        ends = []
        for side in (-1.0, 1.0):

            def beyond(distance: np.ndarray, side: float = side) -> np.ndarray:
                return -side * self.deviations(estimate, contrasts, centre + side * distance * std) > deviation

            low, high = np.zeros_like(centre), np.full_like(centre, deviation)
            outside = beyond(high)
            for _ in range(WIDENINGS):
                if outside.all():
                    break
                low, high = np.where(outside, low, high), np.where(outside, high, 1.5 * high)
                outside = outside | beyond(high)
            for _ in range(HALVINGS):
                middle = (low + high) / 2
                out = beyond(middle)
                low, high = np.where(out, low, middle), np.where(out, middle, high)
            ends.append(np.where(outside, centre + side * high * std, side * np.inf))
        return ends[0], ends[1]


def _shortened(step: np.ndarray, derivative: np.ndarray) -> np.ndarray:
    """No step of Newton's method changes scores by more than LONGEST_STEP in the root mean square."""
    # where scores are saturated steps are so long that their squares leave the range of floating point
    longest = np.maximum(np.abs(step).max(axis=-1, keepdims=True), 1e-300)
    direction = step / longest
    squared = np.maximum((direction * apply(derivative, direction)).sum(-1), 0.0)
    size = longest[..., 0] * np.sqrt(squared / np.maximum(np.trace(derivative, axis1=-2, axis2=-1), 1e-300))
    return step / np.maximum(1.0, size / LONGEST_STEP)[..., None]


def visible(equations: Equations) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues of the last Hessian over the least that can be told from its noise, and its eigenvectors."""
    last = equations.stages[-1]
    values, vectors = np.linalg.eigh(last.hessian)
    return values / (TIMES_NOISE * last.hessian_std * math.sqrt(equations.p)), vectors


def identified(equations: Equations, contrasts: np.ndarray, estimate: np.ndarray) -> np.ndarray:
    """Which linear functions of the coefficients, rows of `contrasts`, lie in what can be seen."""
    values, vectors = visible(equations)
    unseen = values < 1
    lost = (np.einsum("ij,...jk->...ik", contrasts, vectors * unseen[..., None, :]) ** 2).sum(-1)
    seen = (lost < MOST_UNSEEN * (contrasts**2).sum(-1)) & (2 * unseen.sum(-1) <= equations.p)[..., None]
    return seen & (hessian_share(equations, contrasts, estimate) < MOST_OF_HESSIAN)


def hessian_share(equations: Equations, contrasts: np.ndarray, estimate: np.ndarray) -> np.ndarray:
    """How much of the variance of these linear functions is due to noise of Hessians."""
    here = equations(estimate)
    sampling, noise = equations.covariances(here)
    whole, without = (
        np.einsum("mi,...ij,mj->...m", contrasts, part, contrasts) for part in (sampling + noise, sampling)
    )
    loads = np.einsum("mi,...ij->...mj", contrasts, np.linalg.inv(here.derivative))
    return 1 - (without + equations.gradient_std**2 * (loads**2).sum(-1)) / whole
