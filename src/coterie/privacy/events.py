"""Privacy events: public numbers about one release that know their own privacy curves. No data, no JAX.

Curves have two rows, one per direction of the divergence, because zero-out adjacency is not symmetric:
row 0 is D(with the record || without it), row 1 is D(without || with). For replace-one both rows are equal.

A loss is always a loss against somebody who sees certain things: the observer.
"""

import dataclasses
import math
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


@serialisable
@dataclasses.dataclass(frozen=True)
class TokenWalk(Event):
    """One visit of a memoryless walk over `n_parties`, against another party that sees the token at its own visits.

    `ratio` = sensitivity / noise_std of the visit. Amplification by iteration over the steps until the walk is next at
    the observer or back at the protected party gives 2 a ratio^2 ln(n/2) / (n - 2) while ratio sqrt(a (a - 1)) is at
    most sqrt(2) (docs/guarantees.md); beyond that, and where it is smaller, the loss against everybody.
    """

    ratio: float
    n_parties: int

    def rdp(self, orders: np.ndarray) -> np.ndarray:
        n, everybody = self.n_parties, orders * self.ratio**2 / 2
        if n <= 2:
            return np.tile(everybody, (2, 1))
        amplified = 2 * orders * self.ratio**2 * math.log(n / 2) / (n - 2)
        proved = self.ratio * np.sqrt(orders * (orders - 1)) <= math.sqrt(2)
        return np.tile(np.where(proved, np.minimum(amplified, everybody), everybody), (2, 1))

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
    part that all data sets share; `rank` is the rank of one record's Hessian. With t = a - 1, the map
    b -> b - t (b' - b) is a bijection while t k < 1, which leaves exp(t a ratio^2 / 2) times a ratio of determinants
    that factorises over the eigenvalues of the two records' Hessians into J+ and J- (docs/guarantees.md).
    """

    ratio: float
    jacobian: float
    rank: int
    adjacency: Adjacency
    margin: bool

    def rdp(self, orders: np.ndarray) -> np.ndarray:
        a, t, k = orders, orders - 1, self.jacobian
        base = a * self.ratio**2 / 2
        plus = np.log1p(k) - np.log1p(t * (k / (1 + k))) / t
        minus = np.full_like(a, np.inf)
        fine = t * k < 1
        minus[fine] = -np.log1p(k) - np.log1p(-t[fine] * k) / t[fine]
        if self.adjacency == "replace-one":
            return np.tile(base + self.rank * (plus + minus), (2, 1))
        without_with = base + self.rank * minus
        # the slope has one sign, which bounds this direction without the Jacobian
        if self.margin:
            without_with = np.minimum(without_with, base + (math.log(2) + log_ndtr(t * self.ratio)) / t)
        return np.stack([base + self.rank * plus, without_with])


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
