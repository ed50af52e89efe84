"""What several plans cost together: prices that can be stored, and ways to add them up.

A price holds public numbers about one plan's loss: the curve of Rényi divergences, the ratio of the one Gaussian
release that all of its releases amount to (where they are Gaussian), the pure loss, and (epsilon, delta) as it was
stated. Each is a way to add prices up:

    pure      pure losses add;
    gaussian  squares of ratios add, and what they amount to is converted exactly;
    an order  divergences of that order add, and are converted;
    stated    the epsilons add, and the deltas.

**Plans whose prices were fixed in advance.** Every way gives a bound, so the least of them is one.

**Plans that were chosen after looking at earlier releases.** Fix a limit (E, D) and one way. A ledger that admits
plans as long as that way stays within the limit is (E, D)-private however the plans were chosen: for adding (Rogers,
Roth, Ullman and Vadhan, 2016), for one order (Feldman and Zrnic, 2021), for Gaussian releases (Smith and Thakurta,
2022), also where runs overlap in time (Haney et al., 2023). To take whichever way happens to fit is another matter:
way and order may then depend on what was released, and the loss may exceed D. So D is divided. Let way w have the
share D_w, with sum D, and let A_w be the outcomes at whose end way w fits (E, D_w), each outcome put under one such
way. The process that is stopped before way w would exceed (E, D_w) is (E, D_w)-private, and on A_w it is the true
process. Hence, for every set S of outcomes,

    P(S) = sum_w P(S and A_w) ≤ sum_w (e^E Q(S and A_w) + D_w) ≤ e^E Q(S) + D.

Pure losses need no share: an outcome under that way has a loss of at most E for certain. The stated losses, the
exact Gaussian and all orders together take a third of D each; among the orders, those that suit the limit take most.

One plan alone is fixed in advance, so it needs no division. If no divided way fits it, nothing is admitted after it,
whatever it released; if something may be admitted after it, a divided way fits it too, and it is among the A_w.

What a ledger states as spent at delta is the least E for which the limit (E, delta) would have admitted all of it.

**People with several records.** A curve is the loss of one record. A person with m of them loses at most (E, D) if
one record loses at most (E/m, d), d = D (e^(E/m) − 1)/(e^E − 1), which the limit fixes in advance. Stated losses are
of a person.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from coterie.errors import InputError
from coterie.privacy.accountants import Ledger, check_delta, divergences, epsilon, gaussian_delta, pure_epsilon
from coterie.values import whole_number

# few, because each takes a share of delta; between two of them a Gaussian's bound is at most 1.5 % above its least
ORDERS = 1 + np.exp2(np.arange(-2, 21) / 2)
# relative: prices that add up to the limit on paper must not fail in the last digit
_ROUNDING = 1e-9
# integers beyond it have no floating-point number
_LARGEST = 2**1000


@dataclasses.dataclass(frozen=True)
class Price:
    """What one plan costs: (epsilon, delta) as stated for a person, and of one of the person's `records` the
    divergences at `ORDERS` in both directions, the pure loss, and the ratio of sensitivity to noise if everything is
    one Gaussian release."""

    epsilon: float
    delta: float
    curve: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    gaussian: float | None = None
    pure: float = math.inf
    records: int = 1

    def __post_init__(self) -> None:
        if not (is_number(self.epsilon) and self.epsilon >= 0 and is_number(self.delta) and 0 <= self.delta <= 1):
            raise InputError(
                f"epsilon, delta: got {self.epsilon}, {self.delta}; epsilon >= 0 and delta in [0, 1] are needed"
            )
        rows: tuple[tuple[float, ...], ...] = () if self.curve is None else self.curve
        others = [value for row in rows for value in row] + [self.pure, 0.0 if self.gaussian is None else self.gaussian]
        if self.curve is not None and [len(row) for row in rows] != [len(ORDERS)] * 2:
            raise InputError(f"curve: two rows of {len(ORDERS)} divergences are needed")
        if not all(is_number(value) and value >= 0 for value in others):
            raise InputError("curve, gaussian, pure: numbers >= 0 are needed")
        object.__setattr__(self, "records", whole_number("records", self.records, at_least=1))

    @classmethod
    def of(cls, ledger: Ledger, delta: float, *, stated: float | None = None, records: int = 1) -> "Price":
        """Of what a plan charges a party; `stated` is the loss of a person, needed where one has several records."""
        if stated is None and records != 1:
            raise InputError(f"stated: got None with {records!r} records; the loss of a person is needed")
        check_delta(delta)
        curve = divergences(ledger, ORDERS)
        ratios = [(event.gaussian_ratio, count) for event, count in ledger]
        squares = [count * ratio**2 for ratio, count in ratios if ratio is not None]
        return cls(
            epsilon=epsilon(ledger, delta) if stated is None else float(stated),
            delta=float(delta),
            curve=(tuple(curve[0].tolist()), tuple(curve[1].tolist())),
            gaussian=math.sqrt(sum(squares)) if len(squares) == len(ratios) else None,
            pure=pure_epsilon(ledger),
            records=records,
        )

    @classmethod
    def unbounded(cls, delta: float = 0.0) -> "Price":
        """Of a release that no number bounds: seeded, VOID, or without noise."""
        return cls(epsilon=math.inf, delta=delta)

    def to_dict(self) -> dict[str, Any]:
        rows = None if self.curve is None else [[_shown(value) for value in row] for row in self.curve]
        return {
            "epsilon": _shown(self.epsilon),
            "delta": self.delta,
            "curve": rows,
            "gaussian": None if self.gaussian is None else _shown(self.gaussian),
            "pure": _shown(self.pure),
            "records": self.records,
        }

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "Price":
        names = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(content, dict) or set(content) != names:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError(f"price: {', '.join(sorted(names))} are needed")
        rows = content["curve"]
        return cls(
            epsilon=_read(content["epsilon"]),
            delta=_finite(content["delta"]),
            curve=None if rows is None else _two_rows(rows),
            gaussian=None if content["gaussian"] is None else _read(content["gaussian"]),
            pure=_read(content["pure"]),
            records=content["records"],
        )


def fits(prices: Sequence[Price], limit: tuple[float, float], *, in_advance: bool = False) -> bool:
    """Whether all prices together stay within (epsilon, delta).

    in_advance: whether the prices were fixed before anything was released; of one price that is always so.
    """
    most, delta = limit[0] * (1 + _ROUNDING), limit[1]
    if math.isinf(limit[0]) or not prices:
        return True
    records = max(price.records for price in prices)
    if records * sum(price.pure for price in prices) <= most:
        return True
    divided = len(prices) > 1 and not in_advance
    share = delta / 3 if divided else delta
    if sum(p.epsilon for p in prices) <= most and sum(p.delta for p in prices) <= share * (1 + _ROUNDING):
        return True
    record = most / records, _of_one_record(most, share, records)
    return _gaussian_fits(prices, record) or _order_fits(prices, record, divided)


def total(prices: Sequence[Price], delta: float, *, in_advance: bool = False) -> float:
    """The least epsilon for which the limit (epsilon, delta) admits all prices together."""
    check_delta(delta)
    if not prices:
        return 0.0

    def enough(most: float) -> bool:
        return fits(prices, (most, delta), in_advance=in_advance)

    added = sum(price.epsilon for price in prices)
    # to the last digit what a plan alone has stated
    best = added if enough(added) else math.inf
    low, high = 0.0, 2.0**-20
    while not enough(high):
        low, high = high, 2 * high
        if high > 2.0**40:
            return best
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    # never below what was proved
    return min(best, high * (1 + _ROUNDING))


# --- ways -------------------------------------------------------------------------------------------------------------


def _gaussian_fits(prices: Sequence[Price], limit: tuple[float, float]) -> bool:
    ratios = [price.gaussian for price in prices]
    if any(ratio is None for ratio in ratios):
        return False
    ratio = math.hypot(*[r for r in ratios if r is not None])
    return ratio == 0 or (math.isfinite(ratio) and gaussian_delta(limit[0], ratio) <= limit[1])


def _order_fits(prices: Sequence[Price], limit: tuple[float, float], divided: bool) -> bool:
    """Each direction by itself; conversion of Canonne, Kamath and Steinke (2020)."""
    curves = [price.curve for price in prices if price.curve is not None]
    if len(curves) < len(prices) or limit[1] == 0:
        return False
    together = np.sum(np.asarray(curves), axis=0)
    deltas = limit[1] * (order_shares(limit) if divided else np.ones(len(ORDERS)))
    needed = together + np.log1p(-1 / ORDERS) - np.log(deltas * ORDERS) / (ORDERS - 1)
    return bool(np.max(np.min(needed, axis=1)) <= limit[0])


def order_shares(limit: tuple[float, float]) -> np.ndarray:
    """How delta is divided among the orders, in advance: most of it goes to those that are best for Gaussian releases
    that use up the limit, half as much to each further one."""
    root = math.sqrt(-math.log(limit[1]))
    best = root / (math.sqrt(root**2 + limit[0]) - root)
    shares = np.exp2(-np.abs(2 * np.log2((ORDERS - 1) / best)))
    return shares / shares.sum()


def _of_one_record(most: float, delta: float, records: int) -> float:
    """The delta that one record may have so that a person with several has the given one."""
    if records == 1 or most == 0:
        return delta / records
    # (e^(E/m) - 1)/(e^E - 1), which is 1/m where E is 0, without overflow
    one = most / records
    return delta * math.exp(one - most) * math.expm1(-one) / math.expm1(-most)


# --- values -----------------------------------------------------------------------------------------------------------


def is_number(value: Any) -> bool:
    """Also of what a file holds, where integers may be beyond floating point."""
    if isinstance(value, float):
        return True
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < _LARGEST


def _shown(value: float) -> float | str:
    """JSON has no word for infinity."""
    return "infinite" if math.isinf(value) else float(value)


def _read(value: Any) -> float:
    return math.inf if value == "infinite" else _finite(value)


def _finite(value: Any) -> float:
    if not is_number(value) or not math.isfinite(value):
        raise InputError(f"price: got {value!r}; a finite number or 'infinite' is needed")
    return float(value)


def _two_rows(rows: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if not isinstance(rows, list) or len(rows) != 2:  # pyright: ignore[reportUnknownArgumentType]
        raise InputError("price: a curve has two rows")
    first, second = (tuple(_read(value) for value in row) for row in rows)  # pyright: ignore[reportUnknownVariableType]
    return first, second
