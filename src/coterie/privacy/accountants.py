"""From events to epsilon. Every accountant gives an upper bound that is proved, so the least of them may be stated.

A ledger is a list of (event, count): what one party's records have paid, rounds that cost the same counted together.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import numpy as np
from scipy.special import erfcx, log_ndtr  # pyright: ignore[reportMissingTypeStubs]

from coterie.errors import InputError, MissingExtraError
from coterie.privacy.events import Event, Gaussian, PoissonGaussian

Ledger = Sequence[tuple[Event, int]]
Accountant = Literal["best", "pure", "rdp", "gaussian", "mixed", "pld"]

ORDERS = 1 + np.geomspace(1e-2, 1e6, 600)
# of an order; beyond it logarithms of tails have too few digits
_MOST_MIXED = 1e3
# on a logarithm, for rounding
_SLACK = 1e-9


def check_delta(delta: float) -> float:
    if isinstance(delta, bool) or not isinstance(delta, (int, float)) or not 0 < delta < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"delta: got {delta!r}; a number strictly between 0 and 1 is needed")
    return float(delta)


def check_epsilon(epsilon: float) -> float:
    if isinstance(epsilon, bool) or not isinstance(epsilon, (int, float)) or not 0 < epsilon < math.inf:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"epsilon: got {epsilon!r}; a positive finite number is needed")
    return float(epsilon)


def epsilon(ledger: Ledger, delta: float, accountant: Accountant = "best", *, afterwards: Ledger = ()) -> float:
    """The (epsilon, delta) loss of everything in the ledger together, and of what was released `afterwards`, when all
    of the ledger had been."""
    check_delta(delta)
    whole = [*ledger, *afterwards]
    if accountant == "best":
        bounds = [pure_epsilon(whole), rdp_epsilon(whole, delta)]
        if all(event.gaussian_ratio is not None for event, _ in whole):
            bounds.append(gaussian_epsilon(whole, delta))
        elif afterwards and all(event.gaussian_ratio is not None for event, _ in afterwards):
            bounds.append(mixed_epsilon(ledger, delta, afterwards))
        return min(bounds)
    if accountant not in get_args(Accountant):
        raise InputError(f"accountant: got {accountant!r}; one of {', '.join(get_args(Accountant))} is needed")
    if accountant == "pure":
        return pure_epsilon(whole)
    if accountant == "mixed":
        return mixed_epsilon(ledger, delta, afterwards)
    return {"rdp": rdp_epsilon, "gaussian": gaussian_epsilon, "pld": pld_epsilon}[accountant](whole, delta)


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
    # the noisier end: never above the promise
    return math.exp2(high)


def pure_epsilon(ledger: Ledger) -> float:
    return sum(event.pure * count for event, count in ledger)


def divergences(ledger: Ledger, orders: np.ndarray) -> np.ndarray:
    """Of everything in the ledger, each direction by itself: (2, order)."""
    curve = np.zeros((2, len(orders)))
    with np.errstate(over="ignore", invalid="ignore"):
        for event, count in ledger:
            curve = curve + count * event.rdp(orders)
    # an order at which a curve is unknown can prove nothing
    return np.where(np.isnan(curve), np.inf, curve)


def rdp_epsilon(ledger: Ledger, delta: float) -> float:
    """Renyi composition, each direction by itself until the end."""
    return converted(divergences(ledger, ORDERS), delta)


def converted(curve: np.ndarray, delta: float) -> float:
    """The loss that divergences at `ORDERS`, (2, order), prove: Canonne, Kamath and Steinke (2020)."""
    eps = curve + np.log1p(-1 / ORDERS) - np.log(delta * ORDERS) / (ORDERS - 1)
    return max(0.0, float(np.max(np.min(eps, axis=1))))


def gaussian_epsilon(ledger: Ledger, delta: float) -> float:
    """Exact for Gaussian releases: their composition is one Gaussian release (Balle and Wang, 2018)."""
    ratio = _gaussian_ratio(ledger, "gaussian")
    if ratio == 0 or gaussian_delta(0.0, ratio) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while gaussian_delta(high, ratio) > delta:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(middle, ratio) > delta else (low, middle)
    # the upper end: never below the truth
    return high


def _gaussian_ratio(ledger: Ledger, accountant: Accountant) -> float:
    """Of the one Gaussian release that all of them amount to."""
    total = 0.0
    for event, count in ledger:
        if event.gaussian_ratio is None:
            raise InputError(f"accountant: {accountant!r} takes Gaussian releases only, and {event} is none; use 'rdp'")
        total += count * event.gaussian_ratio**2
    return math.sqrt(total)


def gaussian_delta(eps: float, ratio: float) -> float:
    """The smallest delta of a Gaussian release with sensitivity/std = ratio."""
    first, second = _log_tails(np.float64(eps), ratio)
    return float(np.exp(first) * -np.expm1(min(0.0, second - first)))


def _log_tails(eps: Any, ratio: float) -> tuple[Any, Any]:
    """Logarithms of the two terms whose difference is a Gaussian's delta."""
    return log_ndtr(ratio / 2 - eps / ratio), eps + log_ndtr(-ratio / 2 - eps / ratio)


def _log_quotient(eps: np.ndarray, ratio: float) -> Any:
    """Of the second of these terms over the first, to all digits where both are tiny and nearly equal: with
    t = ratio/2 - eps/ratio and u = ratio/2 + eps/ratio, exp(eps) is exp(u^2/2) over exp(t^2/2)."""
    t, u = ratio / 2 - eps / ratio, ratio / 2 + eps / ratio
    first, second = _log_tails(eps, ratio)
    in_tails = (t < 0) & (u > 0)
    quotient: Any = second - first
    # elsewhere erfcx overflows, and nothing cancels
    quotient[in_tails] = np.log(erfcx(u[in_tails] / math.sqrt(2)) / erfcx(-t[in_tails] / math.sqrt(2)))
    return quotient


def mixed_epsilon(ledger: Ledger, delta: float, afterwards: Ledger) -> float:
    """Renyi divergences of the ledger, with exact Gaussian releases after it.

    Let L be the privacy loss of the ledger's outcome, and d(x) the delta at epsilon = x of the one Gaussian release
    that those afterwards amount to. Given that outcome they have at most its delta, so that together, E under the law
    of the outcome,

        delta(eps) <= E d(eps - L).

    With K = max_x log d(x) + (a - 1) x for an order a, d(eps - L) <= exp(K - (a - 1)(eps - L)), and E exp((a - 1) L) is
    exp((a - 1) D), D the ledger's divergence of that order: eps = D + (K - log delta)/(a - 1) will do, for any a. log d
    is concave, for d(x) is the integral over u > 0 of exp(-u) P(loss > x + u), a convolution of two log-concave
    functions; so the maximum is where its slope is 1 - a, and with nothing in the ledger the least of these is exact.
    """
    ratio = _gaussian_ratio(afterwards, "mixed")
    if ratio == 0:
        raise InputError("accountant: 'mixed' takes Gaussian releases after all others, and there are none; use 'rdp'")
    orders = ORDERS[ORDERS <= _MOST_MIXED]
    eps = divergences(ledger, orders) + (_log_peaks(orders, ratio) - math.log(delta)) / (orders - 1)
    return max(0.0, float(np.max(np.min(eps, axis=1))))


def _log_peaks(orders: np.ndarray, ratio: float) -> np.ndarray:
    """K of every order, never below the truth."""
    wanted = orders - 1

    def slope(x: np.ndarray) -> np.ndarray:
        """-(log d)'(x), which grows from 0 to infinity."""
        return 1 / np.expm1(np.maximum(-_log_quotient(x, ratio), 1e-300))

    low, high = np.full(len(orders), -40.0), ratio**2 * orders + 1.0
    while (short := slope(high) < wanted).any():
        high = np.where(short, 2 * high, high)
    for _ in range(60):
        middle = (low + high) / 2
        beyond = slope(middle) >= wanted
        low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
    log_delta = _log_tails(low, ratio)[0] + np.log(-np.expm1(_log_quotient(low, ratio)))
    # a concave function lies under its tangent at the lower end of where its maximum is
    peak = log_delta + wanted * low + np.maximum(wanted - slope(low), 0.0) * (high - low)
    # of the largest of these terms a few last bits are rounded
    return peak + _SLACK * (1 + 1e-3 * wanted * np.abs(low))


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
