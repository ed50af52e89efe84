"""What noised gradient descent is expected to achieve, from public numbers alone, and the settings that suit it best.

With Gaussian noise on sums of gradients everything that is promised (parties, trust, epsilon, delta, colluders, unit)
comes to one number: nu, the noise of a summed gradient that spends the whole budget, over the largest sum that n
records can make. The model of what follows is a quadratic in each direction of the rows' second moment:

    h       curvature of one record in a direction                       k   l2, for each record
    z       standard Gaussian noise, new in every round                  T   number of rounds

    after = ahead - step * (h (ahead - optimum) + k ahead + nu sqrt(T) z),   ahead = after + momentum * (after - x)

Both are linear, so the averaged model is exactly

    response(h) * optimum  +  nu * sqrt(variance(h)) * z

and `filters` computes response and variance for all settings and curvatures at once. What is unknown about the data is
their shape: how fast variances of directions fall, how much of the signal lies in large ones, how strong it is, how
frequent the classes are. `SHAPES` are such descriptions of public data sets; a forecast is made for each of them, and
the settings are those with the least mean regret over all of them. Nothing here ever sees private records.

    score of a record = response part, correlated with the best score  +  noise part, independent of it

gives error and AUC by quadrature over Gaussian scores with labels that follow the logistic model, R^2 in closed form,
and the error of several classes from a fixed table of draws.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import expit, ndtr

from coterie.errors import InputError

# settings among which is chosen: noise * length, l2 * length, (momentum, most rounds)
REACHES = tuple(2.0**k for k in range(-4, 5))
RIDGES = (0.0, 0.3, 1.0, 3.0)
PACES = ((0.0, 400), (0.9, 200), (0.96, 200))
LEAST_ROUNDS = 20
# rounds that are followed one by one; of more, so many
MOST_FOLLOWED = 2000
FOLLOWED_OF_MANY = 1000
# of the longest step that does not diverge
STEP_SHARE = 0.75
# of the budget, as in privacy.standardising
COLUMN_SHARE = 0.2
# of the squared row norm, in the constant column
CONSTANT_SHARE = 0.2
LOGISTIC_VARIANCE = math.pi**2 / 3
# standard deviation of numbers, over their bound
LABEL_SPREAD = 0.35

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(41)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
# over the largest that the loss can have
_CURVATURES = np.geomspace(1e-6, 1.0, 31)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """Public numbers, in units in which rows have norm 1 at most and so have slopes of the loss.

    n_records: their number, or the sum of weights over the largest.
    n_columns: of the design, the constant among them.
    n_classes: 0 where labels are numbers.
    noise: nu.
    column_noise: that of column sums and sums of squares that spend the whole budget, over n_records; infinite where
        columns cannot be standardised.
    smoothness: largest curvature of the loss.
    label_bound: of numbers, over the residual from which slopes grow no more.
    """

    n_records: float
    n_columns: int
    n_classes: int
    noise: float
    column_noise: float
    smoothness: float
    label_bound: float = 1.0

    @property
    def label_spread(self) -> float:
        """Standard deviation of numbers."""
        return LABEL_SPREAD * self.label_bound


class Setting(NamedTuple):
    """Step times n_records, l2 over n_records, rounds, momentum, whether columns are standardised. An infinite step is
    the minimiser itself, of an objective with noise in it."""

    step: float
    l2: float
    rounds: int
    momentum: float
    standardise: bool


class Shape(NamedTuple):
    """strength: standard deviation of the best score, in the units of the logistic model; share: of the second class;
    mean: squared norm of the mean row; then for rows as they are and for standardised columns: spread, the sum of
    variances of all directions; decay, their exponent; alignment, the exponent by which the signal follows them;
    column_decay: exponent of the columns' variances."""

    strength: float
    share: float
    mean: float
    spread: float
    decay: float
    alignment: float
    scaled_spread: float
    scaled_decay: float
    scaled_alignment: float
    column_decay: float


# fitted in the distance of benchmarks/planner.py --fit, whose search ends at others that are no closer on average; a
# forecast for one of these data sets leaves its own line out
SHAPES: dict[str, Shape] = {
    "BudgetFood": Shape(1.078, 0.26, 0.7, 0.279, 2.81, 0.225, 0.657, 0.552, -0.91, 1.518),
    "DoctorContacts": Shape(0.882, 0.68, 0.138, 0.8, 1.107, 0.401, 0.8, 0.6, 2.407, 0.67),
    "HI": Shape(2.117, 0.385, 0.69, 0.122, 1.761, 2.03, 0.8, 0.918, 2.018, 2.522),
    "InstEval": Shape(0.195, 0.435, 0.008, 0.8, 0.831, 0.303, 0.8, 0.379, 0.937, 0.975),
    "VietNamI": Shape(2.151, 0.25, 0.542, 0.367, 0.042, -0.273, 0.698, 3.04, 1.491, 0.026),
    "adult": Shape(2.384, 0.244, 0.491, 0.165, 1.719, 1.44, 0.174, 1.447, 2.132, 1.045),
    "breast_cancer": Shape(6.868, 0.67, 0.7, 0.473, 1.243, 2.047, 0.526, 3.093, 1.046, 1.074),
    "cps": Shape(1.71, 0.55, 0.232, 0.403, 0.564, 2.932, 0.8, 0.728, 1.601, 0.893),
    "credit_cards": Shape(0.568, 0.228, 0.371, 0.587, 1.782, -1.152, 0.8, 0.401, -1.295, 0.898),
    "diamonds": Shape(13.464, 0.61, 0.075, 0.588, 1.08, 0.708, 0.8, 0.947, 2.031, 0.345),
    "digits": Shape(8.19, 0.5, 0.261, 0.082, 1.118, 3.0, 0.207, 3.467, 1.444, 1.067),
    "heart": Shape(2.408, 0.52, 0.016, 0.471, 1.116, 3.0, 0.8, 1.168, 2.82, 0.943),
    "mortgages": Shape(1.165, 0.4, 0.028, 0.638, 2.126, 1.05, 0.768, 0.428, 2.994, 2.022),
}


# settings should suit data whose columns differ more in size than those of any of them: added to exponents
STEEPER = 2.0
# the data at hand may say less or more than any of those: beside every shape there is one with a weaker signal and
# balanced classes, and one with a stronger signal
WEAKER, STRONGER = 0.25, 2.5
# by which factor a signal differs at most from that of public data like them
SURE = 1.3
# of what the best fit gains: from there on half of it was kept, for forecasts err on the low side
USEFUL = 0.35


class Expected(NamedTuple):
    """By setting. error: of regressions 1 - R^2; auc: not a number where there are not two classes."""

    error: np.ndarray
    auc: np.ndarray


# --- settings ---------------------------------------------------------------------------------------------------------


def make_setting(
    task: Task,
    reach: float,
    ridge: float,
    pace: tuple[float, int],
    standardise: bool,
    *,
    l2: float | None = None,
    rounds: int | None = None,
) -> Setting:
    """`reach` is noise times total length of all steps, `ridge` is l2 times that length, where l2 is not settled."""
    momentum, most = pace
    length = reach / task.noise
    ridge_l2 = ridge / length if l2 is None else l2
    longest = STEP_SHARE * (2 + 2 * momentum) / (1 + 2 * momentum) / (task.smoothness + ridge_l2)
    wanted = max(length * (1 - momentum) / longest, LEAST_ROUNDS, 3 / (1 - momentum))
    n_rounds = math.ceil(min(wanted, most)) if rounds is None else rounds
    return Setting(min(length * (1 - momentum) / n_rounds, longest), ridge_l2, n_rounds, momentum, standardise)


def candidates(
    task: Task,
    *,
    l2: float | None = None,
    rounds: int | None = None,
    momentum: float | None = None,
    standardise: bool | None = None,
) -> list[Setting]:
    """All settings that are compared; what is given is settled."""
    ridges = RIDGES if l2 is None else RIDGES[:1]
    paces = PACES if momentum is None else ((momentum, PACES[0][1]),)
    kinds = (False, True) if math.isfinite(task.column_noise) else (False,)
    kinds = kinds if standardise is None else (standardise,)
    found = [
        make_setting(task, reach, ridge, pace, standardise, l2=l2, rounds=rounds)
        for standardise, reach, ridge, pace in itertools.product(kinds, REACHES, ridges, paces)
    ]
    return list(dict.fromkeys(found))


# --- response and variance --------------------------------------------------------------------------------------------


def filters(settings: Sequence[Setting], curvatures: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(settings, curvatures): share of the optimum that the averaged model reaches, and its variance for nu = 1.

    An impulse of noise moves later iterates by g(0) = 1, g(i) = a ((1 + m) g(i-1) - m g(i-2)), a = 1 - step (h + k);
    weights of the linear average are 2 (t + 1) / (T (T + 1)), so that noise of round t moves it by

        w(t) = 2 / (T (T + 1)) * ((t + 1) sum_{i < T-t} g(i) + sum_{i < T-t} i g(i))

    times the step. A constant pull h * optimum is an impulse in every round. A minimiser x has
    (h + k) x = h * optimum + nu z.
    """
    step, l2, rounds, momentum = (np.array(column)[:, None] for column in list(zip(*settings, strict=True))[:4])
    at_once = np.isinf(step)
    step = np.where(at_once, 0.0, step)
    pull, square = np.zeros((2, len(settings), len(curvatures)))
    # those of one length together
    for n_rounds in np.unique(rounds[~at_once]):
        here = (rounds == n_rounds)[:, 0]
        pull[here], square[here] = _impulses(1 - step[here] * (curvatures + l2[here]), momentum[here], int(n_rounds))
    scale = 2 / (rounds * (rounds + 1))
    response, variance = step * curvatures * scale * pull, (step * scale) ** 2 * square * rounds
    return (
        np.where(at_once, curvatures / (curvatures + l2), response),
        np.where(at_once, 1 / (curvatures + l2) ** 2, variance),
    )


def _impulses(a: np.ndarray, momentum: np.ndarray, n_rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Sums of w(t) and of its square, without their common factor."""
    if n_rounds > MOST_FOLLOWED:
        return _impulses_of_many(a, momentum, n_rounds)
    before, g = np.zeros_like(a), np.ones_like(a)
    total, first_moment, pull, square = (np.zeros_like(a) for _ in range(4))
    for i in range(n_rounds):
        if i:
            before, g = g, a * ((1 + momentum) * g - momentum * before)
        total += g
        first_moment += i * g
        weight = (n_rounds - i) * total + first_moment
        pull += weight
        square += weight**2
    return pull, square


def _impulses_of_many(a: np.ndarray, momentum: np.ndarray, n_rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """The same where there are so many rounds that momentum is a longer step, from sums of powers at a few of them."""
    rate = np.maximum((1 - a) / (1 - momentum), 1e-6 / n_rounds)
    a = np.maximum(1 - rate, 0.0)
    pull, square = np.zeros_like(a), np.zeros_like(a)
    rounds = np.linspace(0, n_rounds - 1, FOLLOWED_OF_MANY)
    for i in rounds:
        power = a**i
        total = (1 - a * power) / rate
        # the difference of nearly equal numbers where little has decayed
        first_moment = np.where(rate * i > 1e-3, a * (1 - power - rate * i * power) / rate**2, i * (i + 1) / 2)
        weight = ((n_rounds - i) * total + first_moment) / (1 - momentum)
        pull += weight
        square += weight**2
    each = n_rounds / FOLLOWED_OF_MANY
    return each * pull, each * square


# --- one shape --------------------------------------------------------------------------------------------------------


class _Directions(NamedTuple):
    """Second moment of the rows along each direction, and how the signal is shared among them; the squared norm of the
    mean row; noise of a summed gradient."""

    variance: np.ndarray
    signal: np.ndarray
    mean: float
    noise: float


def _directions(shape: Shape, task: Task, standardise: bool) -> _Directions:
    d = max(task.n_columns - 1, 1)
    if not standardise:
        return _Directions(*_falling(d, shape.spread, shape.decay, shape.alignment), shape.mean, task.noise)
    columns = np.arange(1, d + 1.0) ** -shape.column_decay
    columns *= shape.spread / (1 - CONSTANT_SHARE) / columns.sum()
    # a variance below its noise is floored there, and counts for the length of rows by chance only
    floor = task.column_noise / math.sqrt(COLUMN_SHARE)
    shown = ndtr(columns / floor - 2)
    n_shown = max(float(shown.sum()), 1.0)
    scaled = columns / np.maximum(columns, floor)
    offset = float((floor**2 / np.maximum(columns, floor)).sum()) / n_shown
    spread = min(float(scaled.sum()) / n_shown, shape.scaled_spread / (1 - CONSTANT_SHARE))
    # rows are held to norm 1 with what is wrong about their mean
    cut = (1 - CONSTANT_SHARE) / max(spread + offset, 1.0)
    seen = float((columns * shown).sum() / columns.sum())
    decay = shape.decay + seen * (shape.scaled_decay - shape.decay)
    alignment = shape.alignment + seen * (shape.scaled_alignment - shape.alignment)
    variance, signal = _falling(d, cut * spread, decay, alignment)
    return _Directions(variance, signal, cut * offset, task.noise / math.sqrt(1 - COLUMN_SHARE))


def _falling(d: int, spread: float, decay: float, alignment: float) -> tuple[np.ndarray, np.ndarray]:
    variance = np.arange(1, d + 1.0) ** -decay
    variance *= spread / variance.sum()
    signal = variance**alignment
    return variance, signal / signal.sum()


def expected(shapes: Sequence[Shape], task: Task, settings: Sequence[Setting]) -> list[Expected]:
    """Of test records, on average over the noise, by shape."""
    steps = [setting._replace(standardise=False) for setting in settings]
    different = {setting: place for place, setting in enumerate(dict.fromkeys(steps))}
    response, variance = filters(list(different), task.smoothness * _CURVATURES)
    places = np.array([different[setting] for setting in steps])
    scaled = np.array([setting.standardise for setting in settings])
    found = []
    for shape in shapes:
        error, auc = np.empty(len(settings)), np.empty(len(settings))
        for standardise in (False, True):
            chosen = scaled == standardise
            if chosen.any():
                at = places[chosen]
                error[chosen], auc[chosen] = _expected(shape, task, standardise, response[at], variance[at])
        found.append(Expected(error, auc))
    return found


def _expected(shape: Shape, task: Task, standardise: bool, response: np.ndarray, variance: np.ndarray) -> Expected:
    where, best = _directions(shape, task, standardise), _scores(shape, task)
    strength, centre = best.strength, best.centre
    at = best.curvature / task.smoothness * np.append(where.variance, CONSTANT_SHARE + where.mean)
    f, v = _interpolated(response, at), _interpolated(variance, at)
    reached, mean_reached = f[:, :-1], f[:, -1]
    # the estimate's own spread, which would be there without any noise
    own = (reached**2).sum(axis=1) * best.own_variance / task.n_records
    slope = (reached * where.signal).sum(axis=1)
    noise = where.noise**2 * (v[:, :-1] * where.variance).sum(axis=1) + own
    apart = strength**2 * ((reached**2 * where.signal).sum(axis=1) - slope**2) + noise
    constant = where.noise**2 * v[:, -1] * (CONSTANT_SHARE + where.mean)
    return _measured(task, strength, centre, slope, np.maximum(apart, 1e-12), mean_reached * centre, constant)


def _interpolated(values: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Linear in the logarithm of the curvature."""
    place = np.log(np.clip(at, _CURVATURES[0], _CURVATURES[-1]) / _CURVATURES[0]) / math.log(
        _CURVATURES[1] / _CURVATURES[0]
    )
    low = np.minimum(place.astype(int), len(_CURVATURES) - 2)
    return values[:, low] * (1 - (place - low)) + values[:, low + 1] * (place - low)


class _Scores(NamedTuple):
    """The best ones: their standard deviation and mean, the mean curvature of the loss there, and how much each
    direction of the data adds to the variance of scores of a fit to one record: variance of slopes over curvature
    squared, which is one over the curvature where the model is right."""

    strength: float
    centre: float
    curvature: float
    own_variance: float


def _scores(shape: Shape, task: Task) -> _Scores:
    if task.n_classes == 0:
        return _scores_of_numbers(shape, task)
    if task.n_classes > 2:
        curvature = 0.6 * (1 - 1 / task.n_classes) / task.n_classes
        return _Scores(shape.strength, 0.0, curvature, 1 / curvature)
    centre = _centre(shape.share, shape.strength)
    probability = expit(centre + shape.strength * _NODES)
    curvature = 4 * task.smoothness * float((probability * (1 - probability) * _WEIGHTS).sum())
    return _Scores(shape.strength, centre, curvature, 1 / curvature)


def _scores_of_numbers(shape: Shape, task: Task) -> _Scores:
    """Residuals are Gaussian; those beyond 1 have slopes of 1 and no curvature."""
    explained = shape.strength**2 / (shape.strength**2 + LOGISTIC_VARIANCE)
    residual = task.label_spread * math.sqrt(1 - explained)
    end = 1 / residual
    inside = float(2 * ndtr(end) - 1)
    density = math.exp(-(end**2) / 2) / math.sqrt(2 * math.pi)
    slopes = residual**2 * (inside - 2 * end * density) + 1 - inside
    return _Scores(
        strength=task.label_spread * math.sqrt(explained),
        centre=task.label_bound * (shape.share - 0.5),
        curvature=task.smoothness * inside,
        own_variance=slopes / (task.smoothness * inside) ** 2,
    )


@functools.cache
def _centre(share: float, strength: float) -> float:
    """The mean score at which a share of labels is the second class."""
    centres = np.linspace(-20, 20, 801)
    shares = (expit(centres[:, None] + strength * _NODES) * _WEIGHTS).sum(axis=1)
    return float(np.interp(share, shares, centres))


# --- error, AUC, R^2 --------------------------------------------------------------------------------------------------


def _measured(
    task: Task,
    strength: float,
    centre: float,
    slope: np.ndarray,
    apart: np.ndarray,
    constant: np.ndarray,
    constant_variance: np.ndarray,
) -> Expected:
    """Scores are slope * best score + noise of variance `apart`, around a constant."""
    if task.n_classes == 0:
        left = task.label_spread**2 - strength**2
        square = strength**2 * (1 - slope) ** 2 + apart + (constant - centre) ** 2 + constant_variance + left
        return Expected(square / task.label_spread**2, np.full_like(square, np.nan))
    if task.n_classes > 2:
        correlation = slope * strength / np.sqrt(slope**2 * strength**2 + apart + constant_variance)
        grid, errors = _class_errors(task.n_classes, strength)
        return Expected(np.interp(correlation, grid, errors), np.full_like(slope, np.nan))
    probability = expit(centre + strength * _NODES)
    mean = constant[:, None] + slope[:, None] * strength * _NODES
    above = ndtr(mean / np.sqrt(apart + constant_variance)[:, None])
    error = ((probability * (1 - above) + (1 - probability) * above) * _WEIGHTS).sum(axis=1)
    ratios, areas = _areas(centre, strength)
    return Expected(error, np.interp(np.log(np.maximum(slope, 1e-9) / np.sqrt(apart)), np.log(ratios), areas))


@functools.cache
def _areas(centre: float, strength: float) -> tuple[np.ndarray, np.ndarray]:
    """AUC by slope over noise of scores."""
    ratios = np.geomspace(1e-3, 1e3, 49)
    probability = expit(centre + strength * _NODES)
    pairs = np.outer(_WEIGHTS * probability, _WEIGHTS * (1 - probability))
    gap = strength * (_NODES[:, None] - _NODES) / math.sqrt(2)
    return ratios, np.array([(pairs * ndtr(gap * ratio)).sum() for ratio in ratios]) / pairs.sum()


@functools.cache
def _class_errors(n_classes: int, strength: float) -> tuple[np.ndarray, np.ndarray]:
    """Error by the correlation of scores with the best ones, from a fixed table of draws."""
    rng = np.random.default_rng(0)
    best, noise, chance = rng.standard_normal((3, 4000, n_classes))
    # Gumbel: labels follow the multinomial model
    chance = -np.log(-np.log(ndtr(chance)))
    labels = np.argmax(strength * best + chance, axis=1)
    grid = np.linspace(0, 1, 41)
    mixed = (np.argmax(r * best + math.sqrt(1 - r**2) * noise, axis=1) for r in grid)
    return grid, np.array([float(np.mean(found != labels)) for found in mixed])


# --- the choice -------------------------------------------------------------------------------------------------------

# of error and of AUC, that count alike
REGRETS = (0.003, 0.01)
# in that unit: of settings that are so close the one with the fewest rounds is taken
INDIFFERENT = 0.1


def regrets(found: Expected) -> np.ndarray:
    """By setting: how far from the best of them, in error and AUC together."""
    lost = (found.error - found.error.min()) / REGRETS[0]
    if not np.isnan(found.auc).any():
        lost = lost + (found.auc.max() - found.auc) / REGRETS[1]
    return lost


def choose(task: Task, settings: Sequence[Setting], shapes: Sequence[Shape]) -> tuple[int, list[Expected]]:
    """The place of the setting with the least mean regret over all shapes, and what to expect of every one by shape."""
    found = expected(shapes, task, settings)
    mean = np.mean([regrets(one) for one in found], axis=0)
    rounds = np.array([setting.rounds for setting in settings])
    close = np.flatnonzero(mean <= mean.min() + INDIFFERENT)
    return int(close[np.argmin(rounds[close])]), found


def with_steeper(shapes: Sequence[Shape], by: float = STEEPER) -> list[Shape]:
    """Beside every shape one whose variances fall faster, with the signal in the same directions."""
    return [
        *shapes,
        *(
            shape._replace(
                decay=shape.decay + by,
                alignment=shape.alignment * shape.decay / (shape.decay + by),
                column_decay=shape.column_decay + by,
            )
            for shape in shapes
        ),
    ]


@functools.lru_cache(maxsize=256)
def best_setting(
    task: Task,
    *,
    l2: float | None = None,
    rounds: int | None = None,
    momentum: float | None = None,
    standardise: bool | None = None,
) -> Setting:
    """With everything else settled as given."""
    settings = candidates(task, l2=l2, rounds=rounds, momentum=momentum, standardise=standardise)
    return settings[choose(task, settings, with_steeper(tuple(SHAPES.values())))[0]]


# --- what to expect of it ---------------------------------------------------------------------------------------------


class Outlook(NamedTuple):
    """What is expected of one way of learning, over shapes of every strength: (least, middle, largest)."""

    error: tuple[float, float, float]
    auc: tuple[float, float, float] | None
    # middle share of what the best pooled fit gains over the trivial model
    kept: float

    @property
    def useful(self) -> bool:
        """Whether half of what the best pooled fit gains is expected to be kept."""
        return self.kept >= USEFUL


def outlooks(task: Task, settings: Sequence[Setting], shapes: Sequence[Shape], *, sure: bool = False) -> list[Outlook]:
    """By setting. `sure`: the shape is that of data like those at hand, so signals are not much weaker or stronger."""
    many = _of_all_strengths(shapes, sure)
    found = expected(many, task, settings)
    best = [pooled(shape, task) for shape in many]
    error, auc = (np.array([one[i] for one in found]) for i in range(2))
    gained = np.array([_gain(task, one) for one in found])
    most = np.array([_gain(task, one)[0] for one in best])
    kept = np.median(np.clip(gained / np.maximum(most, 1e-9)[:, None], 0, 1), axis=0)
    own = slice(len(shapes))
    return [
        Outlook(_three(error[:, i], own), None if np.isnan(auc[:, i]).any() else _three(auc[:, i], own), float(kept[i]))
        for i in range(len(settings))
    ]


def without_noise(
    task: Task, shapes: Sequence[Shape], *, sure: bool = False
) -> tuple[tuple[float, float, float], tuple[float, float, float] | None]:
    """Error and AUC, (least, middle, largest), of the best fit to so many records in one place."""
    many = _of_all_strengths(shapes, sure)
    error, auc = (np.array([pooled(shape, task)[i][0] for shape in many]) for i in range(2))
    own = slice(len(shapes))
    return _three(error, own), None if np.isnan(auc).any() else _three(auc, own)


def _of_all_strengths(shapes: Sequence[Shape], sure: bool) -> list[Shape]:
    if sure:
        weaker = [shape._replace(strength=shape.strength / SURE) for shape in shapes]
    else:
        weaker = [shape._replace(strength=WEAKER * shape.strength, share=0.5) for shape in shapes]
    stronger = [shape._replace(strength=(SURE if sure else STRONGER) * shape.strength) for shape in shapes]
    return [*shapes, *weaker, *stronger]


def _three(values: np.ndarray, own: slice) -> tuple[float, float, float]:
    return float(values.min()), float(np.median(values[own])), float(values.max())


def _gain(task: Task, found: Expected) -> np.ndarray:
    """Over the trivial model: in AUC, in R^2, or in error of several classes."""
    if task.n_classes == 2:
        return found.auc - 0.5
    return (1.0 if task.n_classes == 0 else 1 - 1 / task.n_classes) - found.error


def pooled(shape: Shape, task: Task) -> Expected:
    """The best fit to `task.n_records` records in one place, without noise; or of a party alone, by its records."""
    strength, centre, _, own_variance = _scores(shape, task)
    d = max(task.n_columns - 1, 1) * max(task.n_classes - 1, 1)
    spread = strength**2 + d * own_variance / task.n_records
    # the ridge that suits it best shrinks all alike
    slope = strength**2 / spread
    apart = slope**2 * spread - slope**2 * strength**2
    numbers = (np.array([value]) for value in (slope, max(apart, 1e-12), centre, 0.0))
    return _measured(task, strength, centre, *numbers)


# --- the shape of a public data set -----------------------------------------------------------------------------------


def shape_of(X: np.ndarray, y: np.ndarray, n_classes: int) -> Shape:
    """`X`: rows of the design, the constant column last, norm 1 at most; `y`: positions of classes, or numbers in units
    of their bound."""
    rows = X[:, :-1]
    variance = rows.var(axis=0)
    seen = variance > 1e-9
    if not seen.any():
        raise InputError("surrogate: got columns that are all constant; at least one that varies is needed")
    spread, decay, alignment, strength = _described(rows, y, n_classes)
    scaled = (rows[:, seen] - rows[:, seen].mean(axis=0)) / np.sqrt(variance[seen] * seen.sum())
    scaled *= math.sqrt(1 - CONSTANT_SHARE) / np.maximum(np.linalg.norm(scaled, axis=1, keepdims=True), 1)
    scaled_spread, scaled_decay, scaled_alignment, _ = _described(scaled, y, n_classes)
    share = {0: float(np.mean(y)) + 0.5, 2: float(np.mean(y))}.get(n_classes, 0.5)
    return Shape(
        strength=strength,
        share=min(max(share, 0.01), 0.99),
        mean=float((rows.mean(axis=0) ** 2).sum()),
        spread=spread,
        decay=decay,
        alignment=alignment,
        scaled_spread=scaled_spread,
        scaled_decay=scaled_decay,
        scaled_alignment=scaled_alignment,
        column_decay=_exponent(np.sort(variance[seen])[::-1]),
    )


def _described(rows: np.ndarray, y: np.ndarray, n_classes: int) -> tuple[float, float, float, float]:
    """Spread, decay, alignment and strength."""
    centred = rows - rows.mean(axis=0)
    variance, axes = np.linalg.eigh(centred.T @ centred / len(rows))
    seen = variance > 1e-6 * variance.max()
    variance, parts = variance[seen][::-1], centred @ axes[:, seen][:, ::-1]
    if n_classes > 2:
        fits = [_logistic(parts, y == label) for label in range(n_classes)]
    elif n_classes == 2:
        fits = [_logistic(parts, y > 0.5)]
    else:
        fits = [parts.T @ (y - y.mean()) / (len(y) * variance)]
    signal = np.mean([variance * fit**2 for fit in fits], axis=0)
    strength = math.sqrt(float(signal.sum()))
    if n_classes == 0:
        explained = min(strength**2 / max(float(y.var()), 1e-12), 0.999)
        strength = math.sqrt(LOGISTIC_VARIANCE * explained / (1 - explained))
    shares = signal / max(float(signal.sum()), 1e-12) + 1e-4 / len(signal)
    alignment = _slope(np.log(variance), np.log(shares)) if len(variance) > 1 else 0.0
    return float(variance.sum()), _exponent(variance), float(np.clip(alignment, -2, 3)), max(strength, 0.05)


def _exponent(falling: np.ndarray) -> float:
    if len(falling) < 2:
        return 0.0
    return float(np.clip(-_slope(np.log(np.arange(1, len(falling) + 1.0)), np.log(falling)), 0, 4))


def _slope(x: np.ndarray, y: np.ndarray) -> float:
    centred = x - x.mean()
    return float((centred * y).sum() / max(float((centred**2).sum()), 1e-12))


def _logistic(parts: np.ndarray, y: np.ndarray, n_steps: int = 30) -> np.ndarray:
    """Newton's method on a weakly regularised fit with a constant; without the constant."""
    design = np.column_stack([parts, np.ones(len(parts))])
    ridge = 1e-5 * len(parts) * np.eye(design.shape[1])
    found = np.zeros(design.shape[1])
    for _ in range(n_steps):
        probability = expit(design @ found)
        gradient = design.T @ (probability - y) + ridge @ found
        hessian = (design * (probability * (1 - probability))[:, None]).T @ design + ridge
        step = np.linalg.solve(hessian, gradient)
        found -= step
        if np.abs(step).max() < 1e-6:
            break
    return found[:-1]
