"""From events to epsilon. Every accountant gives an upper bound that is proved, so the least of them may be stated.

A ledger is a list of (event, count): what one party's records have paid, rounds that cost the same counted together.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import numpy as np
from scipy.special import log_ndtr  # pyright: ignore[reportMissingTypeStubs]

from coterie.errors import InputError, MissingExtraError
from coterie.privacy.events import Event, Gaussian, PoissonGaussian

Ledger = Sequence[tuple[Event, int]]
Accountant = Literal["best", "pure", "rdp", "gaussian", "pld"]

ORDERS = 1 + np.geomspace(1e-2, 1e6, 600)


def check_delta(delta: float) -> float:
    if isinstance(delta, bool) or not isinstance(delta, (int, float)) or not 0 < delta < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"delta: got {delta!r}; a number strictly between 0 and 1 is needed")
    return float(delta)


def check_epsilon(epsilon: float) -> float:
    if isinstance(epsilon, bool) or not isinstance(epsilon, (int, float)) or not 0 < epsilon < math.inf:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"epsilon: got {epsilon!r}; a positive finite number is needed")
    return float(epsilon)


def epsilon(ledger: Ledger, delta: float, accountant: Accountant = "best") -> float:
    """The (epsilon, delta) loss of everything in the ledger together."""
    check_delta(delta)
    if accountant == "best":
        bounds = [pure_epsilon(ledger), rdp_epsilon(ledger, delta)]
        if all(event.gaussian_ratio is not None for event, _ in ledger):
            bounds.append(gaussian_epsilon(ledger, delta))
        return min(bounds)
    if accountant not in get_args(Accountant):
        raise InputError(f"accountant: got {accountant!r}; one of {', '.join(get_args(Accountant))} is needed")
    if accountant == "pure":
        return pure_epsilon(ledger)
    return {"rdp": rdp_epsilon, "gaussian": gaussian_epsilon, "pld": pld_epsilon}[accountant](ledger, delta)


def least_noise(loss: Callable[[float], float], epsilon: float) -> float:
    """The least factor of noise at which `loss(factor)`, which falls, is at most `epsilon`; infinite if it never is,
    and 0 if it is without any noise."""
    low, high = -1.0, 0.0
    while not loss(math.exp2(high)) <= epsilon:
        low, high = high, high + max(1.0, abs(high))
        if high > 64:
            return math.inf
    while loss(math.exp2(low)) <= epsilon:
        low, high = low - max(1.0, abs(low)), low
        if low < -64:
            return 0.0
    for _ in range(48):
        middle = (low + high) / 2
        low, high = (low, middle) if loss(math.exp2(middle)) <= epsilon else (middle, high)
    return math.exp2(high)  # the noisier end: never above the promise


def pure_epsilon(ledger: Ledger) -> float:
    return sum(event.pure * count for event, count in ledger)


def rdp_epsilon(ledger: Ledger, delta: float) -> float:
    """Renyi composition, each direction by itself until the end; conversion of Canonne, Kamath and Steinke (2020)."""
    curve = np.zeros((2, len(ORDERS)))
    with np.errstate(over="ignore", invalid="ignore"):
        for event, count in ledger:
            curve = curve + count * event.rdp(ORDERS)
    # an order at which a curve is unknown can prove nothing
    curve = np.where(np.isnan(curve), np.inf, curve)
    eps = curve + np.log1p(-1 / ORDERS) - np.log(delta * ORDERS) / (ORDERS - 1)
    return max(0.0, float(np.max(np.min(eps, axis=1))))


def gaussian_epsilon(ledger: Ledger, delta: float) -> float:
    """Exact for Gaussian releases: their composition is one Gaussian release (Balle and Wang, 2018)."""
    total = 0.0
    for event, count in ledger:
        if event.gaussian_ratio is None:
            raise InputError(f"accountant: 'gaussian' takes Gaussian releases only, and {event} is none; use 'rdp'")
        total += count * event.gaussian_ratio**2
    ratio = math.sqrt(total)
    if ratio == 0 or gaussian_delta(0.0, ratio) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while gaussian_delta(high, ratio) > delta:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(middle, ratio) > delta else (low, middle)
    return high  # the upper end: never below the truth


def gaussian_delta(eps: float, ratio: float) -> float:
    """The smallest delta of a Gaussian release with sensitivity/std = ratio."""
    first = log_ndtr(ratio / 2 - eps / ratio)
    second = eps + log_ndtr(-ratio / 2 - eps / ratio)
    return float(np.exp(first) * -np.expm1(min(0.0, second - first)))


@functools.lru_cache(maxsize=256)
def gaussian_multiplier(eps: float, delta: float) -> float:
    """The noise multiplier (standard deviation over sensitivity) that spends (eps, delta) in one Gaussian release."""
    low, high = 1e-6, 1e12
    for _ in range(100):
        middle = math.sqrt(low * high)
        too_little = gaussian_epsilon([(Gaussian(1 / middle), 1)], delta) > eps
        low, high = (middle, high) if too_little else (low, middle)
    return high


def pld_epsilon(ledger: Ledger, delta: float, grid: float = 1e-4) -> float:
    """Numerical composition of privacy loss distributions through dp-accounting (pessimistic rounding)."""
    try:
        # slow to import, so only here
        from dp_accounting.pld import privacy_loss_distribution as pld  # pyright: ignore[reportMissingTypeStubs]
    except ImportError:
        raise MissingExtraError("accountant 'pld' needs dp-accounting: pip install 'coterie[pld]'") from None
    total = pld.identity(grid)
    for event, count in ledger:
        if event.gaussian_ratio is not None:
            ratio = math.sqrt(count) * event.gaussian_ratio
            if ratio > 0:
                total = total.compose(pld.from_gaussian_mechanism(1 / ratio, value_discretization_interval=grid))
        elif isinstance(event, PoissonGaussian):
            one = pld.from_gaussian_mechanism(
                1 / event.ratio, value_discretization_interval=grid, sampling_prob=event.rate
            )
            total = total.compose(one.self_compose(count))
        elif math.isfinite(event.pure):
            pair = pld.from_privacy_parameters(_privacy_parameters(event.pure), value_discretization_interval=grid)
            total = total.compose(pair.self_compose(count))
        else:
            raise InputError(f"accountant: 'pld' knows no dominating pair for {type(event).__name__}; use 'rdp'")
    return float(total.get_epsilon_for_delta(delta))


def _privacy_parameters(eps: float) -> Any:
    from dp_accounting.pld.common import DifferentialPrivacyParameters  # pyright: ignore[reportMissingTypeStubs]

    return DifferentialPrivacyParameters(eps)


def group_epsilon(curve: Callable[[float], float], delta: float, size: int) -> float:
    """Loss for `size` records of one person, from the loss curve delta -> epsilon for one record.

    An (e, d)-DP mechanism is (m e, d (exp(m e) - 1) / (exp(e) - 1))-DP for m records; the best d is searched for,
    and the one returned satisfies the inequality.
    """
    if size == 1:
        return curve(delta)

    def log_group_delta(log_delta: float) -> tuple[float, float]:
        eps = curve(math.exp(log_delta))
        if eps == 0:
            return log_delta + math.log(size), eps
        return log_delta + _log_expm1(size * eps) - _log_expm1(eps), eps

    best = math.inf
    low, high = -700.0, math.log(delta / size)
    for _ in range(60):
        middle = (low + high) / 2
        total, eps = log_group_delta(middle)
        if total <= math.log(delta):
            best, low = min(best, size * eps), middle
        else:
            high = middle
    return best


def _log_expm1(x: float) -> float:
    return math.log(math.expm1(x)) if x < 30 else x
