"""Privacy events: public numbers about one release that know their own privacy curves. No data, no JAX.

Curves have two rows, one per direction of the divergence, because zero-out adjacency is not symmetric:
row 0 is D(with the record || without it), row 1 is D(without || with). For replace-one both rows are equal.

A loss is always a loss against somebody who sees certain things: the observer.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Literal, cast, get_args

import numpy as np
from scipy.special import gammaln, log_ndtr  # pyright: ignore[reportMissingTypeStubs]

from coterie.errors import InputError, PrivacyPreconditionError
from coterie.values import serialisable

Adjacency = Literal["replace-one", "zero-out"]
# what is protected: one record, or all of one party's
Unit = Literal["record", "party"]


def check_adjacency(adjacency: object) -> Adjacency:
    if adjacency not in get_args(Adjacency):
        raise InputError(f"adjacency: got {adjacency!r}; one of {', '.join(get_args(Adjacency))} is needed")
    return cast(Adjacency, adjacency)


@dataclasses.dataclass(frozen=True)
class Event:
    """Fields must be concrete numbers: a traced, hence possibly data-dependent, value raises on construction."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, (int, float, np.number)):
                if not 0 <= value < math.inf:
                    raise PrivacyPreconditionError(f"{field.name}: got {value}; a finite number >= 0 is needed")
            elif not isinstance(value, (str, bool, tuple)):
                raise PrivacyPreconditionError(
                    f"{field.name}: got a {type(value).__name__}; a privacy event takes public numbers only"
                )

    def rdp(self, orders: np.ndarray) -> np.ndarray:
        """Renyi divergence bounds, shape (2, len(orders)), natural logarithm."""
        raise NotImplementedError

    @property
    def pure(self) -> float:
        """Pure epsilon, infinite where there is none."""
        return math.inf

    @property
    def gaussian_ratio(self) -> float | None:
        """sensitivity / standard deviation if the event is exactly one Gaussian release."""
        return None


@serialisable
@dataclasses.dataclass(frozen=True)
class Gaussian(Event):
    """Gaussian noise on a value: `ratio` = sensitivity / noise_std."""

    ratio: float

    def rdp(self, orders: np.ndarray) -> np.ndarray:
        return np.tile(orders * self.ratio**2 / 2, (2, 1))

    @property
    def pure(self) -> float:
        return 0.0 if self.ratio == 0 else math.inf

    @property
    def gaussian_ratio(self) -> float | None:
        return self.ratio


@serialisable
@dataclasses.dataclass(frozen=True)
class PoissonGaussian(Event):
    """Gaussian noise on a sum that a party enters with chance `rate`, seen by nobody: zero-out adjacency.

    For whole orders, E_Q (P/Q)^a = sum_k C(a, k) (1 - q)^(a-k) q^k exp(k (k-1) ratio^2 / 2), exactly; the other
    direction is never larger (Mironov, Talwar and Zhang, 2019). (a - 1) D_a is convex in a and 0 at a = 1, so chords
    between whole orders bound what lies between; beyond the largest one the loss without sampling is used.
    """

    ratio: float
    rate: float

    LARGEST_ORDER = 512

    def rdp(self, orders: np.ndarray) -> np.ndarray:
        whole = np.arange(1, self.LARGEST_ORDER + 1, dtype=float)
        between = np.interp(orders, whole, self._log_moments(whole))
        plain = orders * self.ratio**2 / 2
        curve = np.where(orders <= self.LARGEST_ORDER, between / (orders - 1), np.inf)
        return np.tile(np.minimum(curve, plain), (2, 1))

    def _log_moments(self, orders: np.ndarray) -> np.ndarray:
        """ln E_Q (P/Q)^a."""
        if self.rate == 1.0:
            return orders * (orders - 1) * self.ratio**2 / 2
        a, k = orders[:, None], np.arange(self.LARGEST_ORDER + 1, dtype=float)[None]
        chosen = k <= a
        left = np.where(chosen, a - k, 0.0)
        log_choose = np.asarray(gammaln(a + 1) - gammaln(k + 1) - gammaln(left + 1), dtype=float)
        terms = log_choose + left * math.log1p(-self.rate) + k * math.log(self.rate) + k * (k - 1) * self.ratio**2 / 2
        largest = np.max(np.where(chosen, terms, -np.inf), axis=1)
        total = np.sum(np.where(chosen, np.exp(np.minimum(terms - largest[:, None], 0.0)), 0.0), axis=1)
        return np.maximum(largest + np.log(total), 0.0)

    @property
    def pure(self) -> float:
        return 0.0 if self.ratio == 0 else math.inf


# relative: rounding of a sum of some hundred terms
_SUMMED = 1e-12


@functools.lru_cache(maxsize=64)
def _hidden_by_steps(n_parties: int) -> tuple[np.ndarray, np.ndarray]:
    """x, and log E exp(x/m) at most, m the steps until a walk is at one of two of the parties. Each of the first 64 is
    taken by itself, later ones in runs that are 2 % long by the first of each; the last run has no end."""
    log_stay, longest = math.log1p(-2 / n_parties), 64 + 20 * n_parties
    later = np.geomspace(65, longest, 2 + math.ceil(math.log(longest / 65) / 0.02))
    first = np.unique(np.concatenate([np.arange(1.0, 65.0), np.floor(later)]))
    within = -np.expm1(np.append(np.diff(first), np.inf) * log_stay)
    chance = np.exp((first - 1) * log_stay) * within
    x = np.append(0.0, np.geomspace(1e-4, 1e5, 1000))
    # exp(x/m) = exp(x) exp(-x (1 - 1/m)), for it to stay finite
    scaled = np.exp(-x[:, None] * (1 - 1 / first)) @ chance
    small = np.log1p(np.expm1(np.minimum(x, 1.0)[:, None] / first) @ chance)
    return x, np.where(x <= 1, small, x + np.log(scaled)) * (1 + _SUMMED)


@serialisable
@dataclasses.dataclass(frozen=True)
class TokenWalk(Event):
    """One visit of a memoryless walk over `n_parties`, against another party that sees the token at its own visits.

    `ratio` = sensitivity / noise_std of the visit; `slack` the same of what rounding lets two tokens drift apart in a
    step. Given the walk, the m steps until it is next at the observer or back at the protected party hide the visit
    (amplification by iteration): (ratio + m slack)^2 a / (2m) is lost. m is geometric with a chance q = 2/n whatever
    happened before, so over all walks, by joint convexity of exp((a - 1) D), a visit costs

        log( E exp(c (ratio + m slack)^2 / m) ) / (a - 1),      c = a (a - 1) / 2,

    never more than the loss against everybody (docs/guarantees.md). As one of them falls and the other grows with m,
    E exp(c ratio^2 / m) times E exp(c slack^2 m) is at least the mean of the product; the logarithm of the first is
    convex in c ratio^2, so that chords are not below it.
    """

    ratio: float
    n_parties: int
    slack: float = 0.0

    def rdp(self, orders: np.ndarray) -> np.ndarray:
        n, everybody = self.n_parties, orders * self.ratio**2 / 2
        if n <= 2:
            return np.tile(everybody, (2, 1))
        c = orders * (orders - 1) / 2
        x, hidden = _hidden_by_steps(n)
        lost = c * self.ratio**2
        lost = np.where(lost <= x[-1], np.interp(lost, x, hidden), lost)
        # -log E exp(c slack^2 m), of the geometric series
        fall = np.expm1(-c * self.slack**2) * n / 2
        drift = np.where(fall > -1, -np.log1p(np.maximum(fall, -1 + 1e-15)), np.inf)
        most = (lost + 2 * c * self.ratio * self.slack + drift) / (orders - 1)
        return np.tile(np.minimum(most, everybody), (2, 1))

    @property
    def pure(self) -> float:
        return 0.0 if self.ratio == 0 else math.inf


@serialisable
@dataclasses.dataclass(frozen=True)
class Pure(Event):
    """Any epsilon-DP release; its worst case is the two-point pair of randomised response."""

    epsilon: float

    def rdp(self, orders: np.ndarray) -> np.ndarray:
        a, eps = orders, self.epsilon
        if math.isinf(eps):
            return np.full((2, len(orders)), np.inf)
        curve = (np.logaddexp(a * eps, (1 - a) * eps) - np.logaddexp(0.0, eps)) / (a - 1)
        return np.tile(np.maximum(curve, 0.0), (2, 1))

    @property
    def pure(self) -> float:
        return self.epsilon


@serialisable
@dataclasses.dataclass(frozen=True)
class GaussianObjective(Event):
    """Exact minimiser of an objective with a linear Gaussian term b . f, b ~ N(0, std^2 I).

    `ratio` = gradient sensitivity / std. `jacobian` k bounds one record's Hessian over the strong convexity of the
    part that all data sets share; `rank` is the rank of one record's Hessian, `effective_rank` the sum of its
    eigenvalues over the largest that one can be. With t = a - 1, the map b -> b - t (b' - b) is a bijection while
    t k < 1, which leaves exp(t a ratio^2 / 2) times a ratio of determinants that factorises over the eigenvalues of
    the two records' Hessians into J+ and J- (docs/guarantees.md).
    """

    ratio: float
    jacobian: float
    rank: int
    effective_rank: float
    adjacency: Adjacency
    margin: bool

    def rdp(self, orders: np.ndarray) -> np.ndarray:
        base, t = orders * self.ratio**2 / 2, orders - 1
        plus, minus = self._with(orders), self._without(orders)
        if self.adjacency == "replace-one":
            return np.tile(base + plus + minus, (2, 1))
        without_with = base + minus
        # the slope has one sign, which bounds this direction without the Jacobian
        if self.margin:
            without_with = np.minimum(without_with, base + (math.log(2) + log_ndtr(t * self.ratio)) / t)
        return np.stack([base + plus, without_with])

    def _at_most(self, curve: Callable[[float], np.ndarray]) -> np.ndarray:
        """The largest sum of a convex function of eigenvalues, 0 at 0: as many as fit are as large as one can be."""
        whole, part = divmod(self.effective_rank, 1.0)
        return whole * curve(self.jacobian) + curve(part * self.jacobian)

    def _with(self, a: np.ndarray) -> np.ndarray:
        """Sum of J+, which is convex up to k = 1/sqrt(a), where its slope is largest."""

        def plus(k: float) -> np.ndarray:
            return np.log1p(k) - np.log1p((a - 1) * (k / (1 + k))) / (a - 1)

        steepest = a / (1 + np.sqrt(a)) ** 2
        beyond = np.minimum(self.rank * plus(self.jacobian), self.effective_rank * self.jacobian * steepest)
        return np.where(self.jacobian * np.sqrt(a) <= 1, self._at_most(plus), beyond)

    def _without(self, a: np.ndarray) -> np.ndarray:
        """Sum of J-, which is convex."""
        t = a - 1

        def minus(k: float) -> np.ndarray:
            curve, fine = np.full_like(a, np.inf), t * k < 1
            curve[fine] = -np.log1p(k) - np.log1p(-t[fine] * k) / t[fine]
            return curve

        return self._at_most(minus)


def determinant_loss(jacobian: float, rank: int, effective_rank: float) -> float:
    """The largest logarithm of det(I + E) for eigenvalues of E up to `jacobian`: where all of them are alike."""
    return rank * math.log1p(jacobian * effective_rank / rank)


@serialisable
@dataclasses.dataclass(frozen=True)
class Both(Event):
    """One step that consists of several events, such as a noised minimiser and its output noise."""

    events: tuple[Event, ...]

    def rdp(self, orders: np.ndarray) -> np.ndarray:
        return np.sum([event.rdp(orders) for event in self.events], axis=0)

    @property
    def pure(self) -> float:
        return sum(event.pure for event in self.events)

    @property
    def gaussian_ratio(self) -> float | None:
        ratios = [event.gaussian_ratio for event in self.events]
        return None if any(r is None for r in ratios) else math.hypot(*[r for r in ratios if r is not None])


@serialisable
@dataclasses.dataclass(frozen=True)
class Unprotected(Event):
    """A release without noise: no privacy statement can be made."""

    def rdp(self, orders: np.ndarray) -> np.ndarray:
        return np.full((2, len(orders)), np.inf)


# --- who is watching --------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Observer:
    name: str
    sees: str


EVERYBODY = Observer("everybody", "every release of every party in every round, and all public facts")
AGGREGATES = Observer("aggregates", "the noised aggregate of every round, and all public facts")

PEER = Observer(
    "peer",
    "the token whenever it visits one party that is not the protected one, and all public facts; not the last token",
)


def coalition(colluders: int) -> Observer:
    """Everybody, and so many parties who put together what they know."""
    others = "any one party" if colluders == 1 else f"any {colluders} parties"
    known = f", and the noise and secrets of {others} but the protected one" if colluders else ""
    return Observer("coalition", f"every message of every party in every round{known}, and all public facts")


def check_observer(name: str, provided: tuple[Observer, ...], channel: str) -> Observer:
    """Refuse an observer the channel does not provide: a weaker one would understate, a stronger one has no bound."""
    for observer in provided:
        if observer.name == name:
            return observer
    allowed = ", ".join(o.name for o in provided)
    raise InputError(f"observer: got {name!r}; the {channel} channel provides {allowed}")
