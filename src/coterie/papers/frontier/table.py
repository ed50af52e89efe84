"""At which epsilon each method of the frontier first comes within one point of the error without noise."""

import dataclasses
import math

import numpy as np

from coterie.papers.figure import Curve, Curves
from coterie.papers.frontier.methods import GRAPHS, METHODS

NEAR = 0.01  # one point of test error
WIDEST = 4.0  # ratio of neighbours on a grid between which it makes sense to interpolate
WITHOUT_NOISE = "without noise"
DIFFPRIVLIB = "diffprivlib, pure ε"
HEADINGS = (
    "N",
    "method",
    "certified ε (δ = 1e-6)",
    "its paper's bound (pure; of DVP the sum of α_p over iterations, which the paper denies)",
    "times less (tuning and accounting together)",
)
COLUMNS = ("table: certified ε", "table: paper's bound", "table: times less")


def panel_of(size: int) -> str:
    return f"N = {size}"


@dataclasses.dataclass(frozen=True)
class Reading:
    """A number read off a grid: known (low = high), or only between two of its points, before the first or after the
    last."""

    low: float
    high: float

    @property
    def exact(self) -> bool:
        return self.low == self.high

    @property
    def known(self) -> bool:
        return self.low > 0 or math.isfinite(self.high)

    @property
    def value(self) -> float:
        """The number, or the end that is known."""
        return self.high if math.isfinite(self.high) else self.low

    def per(self, other: "Reading") -> "Reading":
        return Reading(self.low / other.high, math.inf if other.low == 0 else self.high / other.low)

    def text(self, above: str = "> ") -> str:
        if not self.known:
            return "?"
        if not self.exact and self.low > 0 and math.isfinite(self.high):
            return f"{self.low:.3g} to {self.high:.3g}"
        sign = "" if self.exact else "≤ " if self.low == 0 else above
        return f"{sign}{self.value:.3g}"


def first_within(curve: Curve, threshold: float) -> Reading:
    """The least x at which y comes to the threshold, ln x interpolated where the grid is fine enough."""
    below = np.flatnonzero(curve.y <= threshold)
    if len(below) == 0:
        return Reading(float(curve.x[-1]), math.inf)
    k = int(below[0])
    if k == 0:
        return Reading(0.0, float(curve.x[0]))
    if curve.x[k] > WIDEST * curve.x[k - 1]:
        return Reading(float(curve.x[k - 1]), float(curve.x[k]))
    share = (curve.y[k - 1] - threshold) / (curve.y[k - 1] - curve.y[k])
    at = math.exp(math.log(curve.x[k - 1]) + share * math.log(curve.x[k] / curve.x[k - 1]))
    return Reading(at, at)


@dataclasses.dataclass(frozen=True)
class Row:
    """At which certified epsilon a method first comes within a point, and its paper's bound at that error."""

    size: int
    method: str
    epsilon: Reading
    bound: Reading | None

    @property
    def times_less(self) -> Reading | None:
        return None if self.bound is None else self.bound.per(self.epsilon)

    def cells(self) -> list[str]:
        bound, times = self.bound, self.times_less
        return [
            str(self.size),
            self.method,
            self.epsilon.text(),
            "" if bound is None else bound.text(),
            "" if times is None else times.text("≥ "),
        ]


def rows(curves: Curves) -> list[Row]:
    threshold = curves(WITHOUT_NOISE, WITHOUT_NOISE).last + NEAR
    found = []
    for size in GRAPHS:
        published = {curve.name: curve for curve in curves.of(f"{panel_of(size)}, as published")}
        for curve in curves.of(panel_of(size)):
            if curve.name in (*METHODS, DIFFPRIVLIB):
                own = published.get(curve.name)
                bound = None if own is None else first_within(own, threshold)
                found.append(Row(size, curve.name, first_within(curve, threshold), bound))
    return found


def as_curves(curves: Curves) -> list[Curve]:
    """The table's numbers over N; low and high are what is known of a number that the grid does not hold."""
    found = []
    table = rows(curves)
    for method in dict.fromkeys(row.method for row in table):
        own = [row for row in table if row.method == method]
        for panel, column in zip(COLUMNS, ("epsilon", "bound", "times_less"), strict=True):
            read = [(row.size, getattr(row, column)) for row in own]
            read = [(size, reading) for size, reading in read if reading is not None and reading.known]
            if read:
                x, y, low, high = np.array([(size, r.value, r.low, r.high) for size, r in read], dtype=float).T
                found.append(Curve(panel, method, x, y, low, high))
    return found


def as_markdown(curves: Curves) -> str:
    without = curves(WITHOUT_NOISE, WITHOUT_NOISE).last
    lines = [
        f"Where the mean test error first comes within one point of the error without noise, {100 * without:.2f} %, "
        "interpolated in ln ε. “≤”: already at the smallest ε tried; “>”: not yet at the largest; “?”: neither end of "
        "the ratio is known.",
        "",
        f"| {' | '.join(HEADINGS)} |",
        "|" + "---|" * len(HEADINGS),
        *(f"| {' | '.join(row.cells())} |" for row in rows(curves)),
    ]
    return "\n".join(lines)
