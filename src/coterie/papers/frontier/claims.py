"""What the frontier decides: who comes near the error without noise, at which epsilon, and how far from the lines."""

import math

from coterie.papers.figure import Accounting, Claim, Curve, Curves, Scale
from coterie.papers.frontier.methods import GRAPHS, METHODS, ONE_NOISE
from coterie.papers.frontier.table import DIFFPRIVLIB, NEAR, WITHOUT_NOISE, Row, panel_of, rows
from coterie.papers.measures import APPROXIMATE, PUBLISHED

LINE, ONE_NOISE_LINE = "reference line, N noises", "reference line, one noise"
HALF_A_POINT = 0.005


def claims(curves: Curves, scale: Scale) -> list[Claim]:
    found: list[Claim] = []

    def add(text: str, margin: float, means: str, accounting: Accounting = APPROXIMATE) -> None:
        found.append(
            Claim(
                text=text,
                where="beyond the papers",
                accounting=accounting,
                margin=float(margin),
                margin_means=means,
                runs=scale.runs,
            )
        )

    threshold = curves(WITHOUT_NOISE, WITHOUT_NOISE).last + NEAR
    for row in rows(curves):
        given, least = f"{row.method}, N = {row.size}", curves(panel_of(row.size), row.method).y.min()
        add(
            f"comes within one point of the error without noise ({given})",
            threshold - least,
            "error without noise plus a point minus the least mean error up to the largest ε; first at ε: "
            + row.epsilon.text(),
            PUBLISHED if row.method == DIFFPRIVLIB else APPROXIMATE,  # what its authors say, not re-derived here
        )
        margin = _of_times_less(row)
        if margin is not None and row.times_less is not None:
            add(
                f"does so at a certified ε below its paper's own bound at that error ({given})",
                margin,
                f"ln of how many times less ({row.times_less.text('≥ ')}), by tuning and accounting together; the "
                "paper's bound is pure",
            )
    for size in GRAPHS:
        lines = {curve.name: curve for curve in curves.of(panel_of(size))}
        methods = [curve for name, curve in lines.items() if name in METHODS]
        own = lines.get(ONE_NOISE_LINE if size == 1 else LINE)
        if own is not None:
            for epsilon, reference in zip(own.x.tolist(), own.y.tolist(), strict=True):
                reached = {c.name: y for c in methods if size == 1 or c.name not in ONE_NOISE for y in _at(c, epsilon)}
                if reached:
                    best = min(reached, key=lambda name: reached[name])
                    add(
                        f"the best method at N = {size}, ε = {epsilon:g} is within half a point of the reference line"
                        + (" for as many noises" if size > 1 else ""),
                        reference + HALF_A_POINT - reached[best],
                        f"reference plus half a point minus the least mean error ({best})",
                    )
        one = lines.get(ONE_NOISE_LINE)
        for curve in methods:
            if (
                one is None or curve.name not in ONE_NOISE or (curve.name == "DP-GD" and size > 1)
            ):  # the same at every N
                continue
            gaps = {e: y - r for e, r in zip(one.x.tolist(), one.y.tolist(), strict=True) for y in _at(curve, e)}
            if gaps:
                worst = max(gaps, key=lambda e: gaps[e])
                add(
                    f"{curve.name}, N = {size}, is within half a point of the reference line for one noise at every ε",
                    HALF_A_POINT - gaps[worst],
                    f"half a point minus the largest excess over the line (at ε = {worst:g}; of {len(gaps)} ε)",
                )
    return found


def _at(curve: Curve, x: float) -> list[float]:
    return curve.y[curve.x == x].tolist()


def _of_times_less(row: Row) -> float | None:
    """ln of the ratio, or of the end of it that decides on which side of 1 it is; None where neither does."""
    times = row.times_less
    if times is None:
        return None
    if times.low >= 1:
        return math.log(times.low)
    return math.log(times.high) if times.high < 1 else None
