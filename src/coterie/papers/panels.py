"""Axes in the papers' layouts: one style for all reproduced figures. Needs the `report` extra."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.papers.figure import Curve

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

# ranges over runs are drawn at about so many places
BARS = 20
# along an axis of numbers as people write them
INCHES_PER_NUMBER = 0.42
# methods of the fixed-point family, in legends and claims
MOVES, SUM_OF_MOVES, SUM_OF_STATES = (
    "ADMM, each party's moves noised",
    "ADMM, sum of moves noised",
    "ADMM, sum of states noised",
)
# the label of an axis of shares, which is drawn in percent
ERROR = "test error"


def grid(rows: int, columns: int, *, size: tuple[float, float] = (5.6, 3.2)) -> tuple["Picture", np.ndarray]:
    """A picture and its axes, (rows, columns)."""
    from matplotlib.figure import Figure as Picture

    picture = Picture(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    return picture, picture.subplots(rows, columns, squeeze=False)


# by the curve's name
Styles = Mapping[str, Mapping[str, Any]]


def plot(axes: Any, curves: Iterable[Curve], styles: Styles, *, more: str = "", **style: Any) -> None:
    """Lines, with the range over runs as bars; `more` is added to the legend."""
    for curve in curves:
        look = {"lw": 1.4, "label": curve.name + more, **styles.get(curve.name, {}), **style}
        axes.plot(curve.x, curve.y, **look)
        if curve.low is not None and curve.high is not None and np.any(curve.high > curve.low):
            at = slice(None, None, max(1, len(curve.x) // BARS))
            axes.vlines(curve.x[at], curve.low[at], curve.high[at], color=look.get("color"), lw=0.7, alpha=0.6)


def finish(axes: Any, title: str, xlabel: str, ylabel: str, *, legend: bool = True, **settings: str) -> None:
    axes.set_title(title, fontsize=10)
    axes.set(xlabel=xlabel, ylabel=ylabel, **settings)
    axes.spines[["top", "right"]].set_visible(False)
    width = axes.figure.get_figwidth() * axes.get_position().width
    for axis, most in ((axes.xaxis, min(8, int(width / INCHES_PER_NUMBER))), (axes.yaxis, 8)):
        if axis.get_scale() == "log":
            _plain_ticks(axis, most)
    if ylabel == ERROR:
        from matplotlib.ticker import PercentFormatter

        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    if legend:
        # beside the axes: inside, there is always a curve that it hides
        axes.legend(fontsize=7.5, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.0)


def _plain_ticks(axis: Any, most: int) -> None:
    """Numbers as people write them, as many as there is room for: 0.1, 0.2, 0.5 and not 2 × 10^-1."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    low, high = axis.get_view_interval()
    decades = np.log10(high / low)
    if decades < 1:
        axis.set_major_locator(MaxNLocator(min(5, most)))
    else:
        fits = (subs for subs in ((1.0, 2.0, 5.0), (1.0, 3.0)) if len(subs) * decades <= most)
        axis.set_major_locator(LogLocator(subs=next(fits, (1.0,)), numticks=most))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def privacy_rows(axes: Sequence[Any], letter: str, curves: Any, styles: Styles, bound: str) -> None:
    """Two axes for panel `letter`: the paper's own bound, and the certified loss (solid pure, dashed (ε, 1e-6))."""
    plot(axes[0], curves.of(f"{letter} published"), styles)
    finish(axes[0], f"({letter}) {bound}", "iteration", "bound as published")
    plot(axes[1], curves.of(f"{letter} certified pure"), styles, more=", pure")
    plot(axes[1], curves.of(f"{letter} certified (ε, 1e-6)"), styles, more=", (ε, 1e-6)", ls="--")
    finish(axes[1], f"({letter}') certified loss", "iteration", "certified ε")
