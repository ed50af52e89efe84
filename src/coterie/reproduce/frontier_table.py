"""At which epsilon each method of the frontier first comes within one point of the error without noise."""

import dataclasses
import math

import numpy as np

from coterie.reproduce.figure import Curve, Curves
from coterie.reproduce.frontier_methods import GRAPHS

NEAR = 0.01  # one point of test error
WITHOUT_NOISE, LINE = "without noise", "reference line"


def panel_of(size: int) -> str:
    return f"N = {size}"


def first_within(curve: Curve, threshold: float) -> float | None:
    """The least x at which y comes to the threshold, ln x interpolated; None where it never does."""
    below = np.flatnonzero(curve.y <= threshold)
    if len(below) == 0:
        return None
    k = int(below[0])
    if k == 0:
        return float(curve.x[0])
    share = (curve.y[k - 1] - threshold) / (curve.y[k - 1] - curve.y[k])
    return float(math.exp(math.log(curve.x[k - 1]) + share * math.log(curve.x[k] / curve.x[k - 1])))


@dataclasses.dataclass(frozen=True)
class Row:
    """At which certified epsilon a method first comes within a point, and its paper's bound at that error: at least
    that much where the paper's own runs never come so near."""

    size: int
    method: str
    epsilon: float | None
    bound: float | None
    at_least: bool

    @property
    def times_less(self) -> float | None:
        return None if self.epsilon is None or self.bound is None else self.bound / self.epsilon

    def cells(self) -> list[str]:
        sign, times = "> " if self.at_least else "", self.times_less
        return [
            str(self.size),
            self.method,
            "never" if self.epsilon is None else f"{self.epsilon:.2g}",
            "" if self.bound is None else f"{sign}{self.bound:.3g}",
            "" if times is None else f"{sign}{times:.3g}",
        ]


def table(curves: Curves) -> list[Row]:
    threshold = curves(WITHOUT_NOISE, WITHOUT_NOISE).last + NEAR
    rows = []
    for size in GRAPHS:
        published = {curve.name: curve for curve in curves.of(f"{panel_of(size)}, as published")}
        for curve in curves.of(panel_of(size)):
            if curve.name == LINE:
                continue
            own = published.get(curve.name)
            bound = None if own is None else first_within(own, threshold)
            at_least = own is not None and bound is None
            if own is not None and at_least:
                bound = float(own.x[-1])
            rows.append(Row(size, curve.name, first_within(curve, threshold), bound, at_least))
    return rows
