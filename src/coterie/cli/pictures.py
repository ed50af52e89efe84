"""Pictures of results. Needs the `report` extra."""

from pathlib import Path

import numpy as np

from coterie.cli.demo import DELTA, EPSILON, DemoResult
from coterie.errors import MissingExtraError

PRIVATE, EXACT, GREY = "#0b6e99", "#d9822b", "#7a7a7a"


def draw_demo(result: DemoResult, path: Path) -> None:
    """Left: test error by round, with and without privacy. Right: the privacy loss as it is spent."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("the figure needs matplotlib: pip install 'coterie[report]'") from None
    plan = result.transcript.plan
    rounds = np.arange(1, plan.n_rounds + 1)
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))

    left.plot(rounds, 100 * result.test_error_by_round, "o-", color=PRIVATE, label=f"private, ε = {EPSILON:g} in total")
    left.plot(rounds, 100 * result.exact_error_by_round, "s-", ms=4, color=EXACT, label="same algorithm, no noise")
    left.axhline(100 * result.nonprivate_error, color=EXACT, ls="--", lw=1, label="all records in one place, no noise")
    left.axhline(100 * result.majority_error, color=GREY, ls=":", lw=1.2, label="majority class")
    left.set(xlabel="round", ylabel="test error (%)", title=f"Adult, {plan.facts.n_parties} parties on a ring")
    left.legend(frameon=False, fontsize=9)

    right.plot(rounds, result.epsilon_by_round(), "o-", color=PRIVATE)
    right.axhline(EPSILON, color=GREY, ls=":", lw=1.2)
    right.annotate("budget", (1, EPSILON), xytext=(0, -12), textcoords="offset points", color=GREY, fontsize=9)
    right.set(
        xlabel="round", ylabel=f"ε spent (δ = {DELTA:g})", ylim=(0, 1.1 * EPSILON), title="Privacy loss of a record"
    )
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.get_major_locator().set_params(integer=True)
    figure.savefig(path, dpi=150)
