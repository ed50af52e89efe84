"""Zhang, Khalili & Liu (2019), Figures 3 and 4: what gamma and the growth of the penalty do to private MR-ADMM."""

import numpy as np

from coterie.papers.figure import Claim, Claims, Curve, Curves, Figure, Part, Scale, chosen, printed
from coterie.papers.measures import ACCOUNTINGS
from coterie.papers.panels import finish, grid, plot, privacy_rows
from coterie.papers.recycled.experiment import (
    CITATION,
    GAMMA,
    L2,
    NOISE_CHOICES,
    WITHOUT_NOISE,
    errors,
    five_nodes,
    growing,
    late,
    loss_without_noise,
    measured,
    pairs,
    privacy_by_iteration,
    recycled,
    same_loss,
    shown,
    spread,
)  # fmt: skip

GAMMAS = (0.1, 0.5, 1.0, 2.0)
# of Fig. 3
GROWTH = 1.01
GROWTHS = (1.0, 1.01, 1.02, 1.03, 1.04, 1.05)
# by figure: panel of the loss -> (panel of privacy, alpha)
PANELS_3 = {"a": ("privacy, α = 1", 1.0), "b": ("privacy, α = 2", 2.0)}
PANELS_4 = {"a": ("c", 2.0), "b": ("d", 1.0)}


def _gamma_name(gamma: float) -> str:
    return f"γ = {gamma:g}"


def _growth_name(growth: float) -> str:
    return f"q₁ = {growth:g}"


LOOKS = {
    WITHOUT_NOISE: {"color": "tab:green"},
    **{_gamma_name(gamma): {"color": f"C{3 + i}"} for i, gamma in enumerate(GAMMAS)},
    **{_growth_name(growth): {"color": f"C{3 + i}"} for i, growth in enumerate(GROWTHS)},
    "α = 1": {"color": "black"},
    "α = 2": {"color": "tab:blue"},
}


def _swept(panel: str, privacy_panel: str, error_panel: str, alpha: float, settings, scale: Scale) -> list[Curve]:
    """One noise level over settings of (x, name, growth, gamma)."""
    nodes, found, wrong = five_nodes(), [], []
    for _, name, growth, gamma in settings:
        plan = nodes.plan(recycled(growing(1.0, growth), gamma=gamma, noise_rate=alpha), l2=L2, rounds=pairs(scale))
        curve, error = measured(plan, scale, panel=panel, name=name)
        found += [curve, *privacy_by_iteration(privacy_panel, name, plan)]
        wrong.append(error)
    found.append(errors(error_panel, f"α = {alpha:g}", [x for x, *_ in settings], wrong))
    return found


def _parts(panels, error_panel: str, settings, *, cost: float) -> dict[str, Part]:
    """Runs without noise, and a panel for each noise level over the settings that are shown."""

    def part(panel: str, privacy_panel: str, alpha: float) -> Part:
        def compute(scale: Scale) -> list[Curve]:
            return _swept(panel, privacy_panel, error_panel, alpha, shown(settings, scale), scale)

        return Part(compute=compute, cost=cost)

    return {
        "without noise": Part(compute=lambda scale: loss_without_noise(scale, tuple(panels)), cost=4),
        **{panel: part(panel, *rest) for panel, rest in panels.items()},
    }


def _drawn(curves: Curves, panels, error_panel: str, xlabel: str):
    """A column for each noise level: loss, the paper's bound, certified loss; the error rates stand beside them."""
    picture, axes = grid(3, 3)
    for column, (panel, (privacy_panel, alpha)) in enumerate(panels.items()):
        plot(axes[0, column], curves.of(panel), LOOKS)
        finish(axes[0, column], f"({panel}) α = {alpha:g}", "iteration", "average loss")
        privacy_rows(list(axes[1:, column]), privacy_panel, curves, LOOKS, f"bound of Theorem V.1, α = {alpha:g}")
    plot(axes[0, 2], curves.of(error_panel), LOOKS, marker="o", ms=3)
    finish(axes[0, 2], f"({error_panel}) error rate at the end", xlabel, "test error")
    for empty in axes[1:, 2]:
        empty.set_axis_off()
    return picture


# --- Fig. 3 -----------------------------------------------------------------------------------------------------------


def _claims_3(curves: Curves, scale: Scale) -> list[Claim]:
    found = Claims(scale.runs)
    where = "§VIII-B1, Fig. 3"
    for panel, (privacy_panel, alpha) in PANELS_3.items():
        several = [curve for curve in curves.of(panel) if curve.name != WITHOUT_NOISE]
        ends = [late(curve) for curve in several]
        usual = float(np.mean([spread(curve)[::2][-max(1, len(curve.x) // 10) :].mean() for curve in several]))
        found.add(
            f"γ, within a range, hardly matters for the loss (α = {alpha:g})",
            usual - (max(ends) - min(ends)),
            "range over runs at the end minus the largest difference of mean losses between γ",
            where=f"{where}({panel})",
        )
        error = curves("c", f"α = {alpha:g}")
        found.add(
            f"γ, within a range, hardly matters for the error rate (α = {alpha:g})",
            float(spread(error).mean() - (error.y.max() - error.y.min())),
            "mean range over runs minus the largest difference of mean error rates between γ",
            where=f"{where}(c)",
        )
        text = f"the loss of privacy does not depend on γ (α = {alpha:g})"
        found += same_loss(curves, privacy_panel, text, where, scale.runs)
    return found


# --- Fig. 4 -----------------------------------------------------------------------------------------------------------


def _claims_4(curves: Curves, scale: Scale) -> list[Claim]:
    found = Claims(scale.runs, where="§VIII-B1, Fig. 4")

    gains, gained_errors = {}, {}
    for panel, (privacy_panel, alpha) in PANELS_4.items():
        constant, *several = (curve for curve in curves.of(panel) if curve.name != WITHOUT_NOISE)
        error, given = curves("e", f"α = {alpha:g}"), f"α = {alpha:g}"
        fastest = several[-1]
        ranges = [float(spread(curve)[::2].mean()) for curve in (constant, *several)]
        found.add(
            f"an increasing penalty makes the runs more alike ({fastest.name} against a constant one, {given})",
            ranges[0] - ranges[-1],
            "difference of the mean range over runs at odd iterations",
            where=f"({panel})",
        )
        losses = np.array([late(curve) for curve in (constant, *several)])
        for what, means, at, values, best_gains in (
            ("loss", "mean loss in the last fifth of the odd iterations", f"({panel})", losses, gains),
            ("error rate", "mean test error", "(e)", error.y, gained_errors),
        ):
            best = 1 + int(np.argmin(values[1:]))
            best_gains[alpha] = float(values[0] - values[best])
            found.add(
                f"an increasing penalty can lower the {what} ({several[best - 1].name} against constant, {given})",
                best_gains[alpha],
                f"difference of the {means}; the best of {len(several)} q₁, picked by it",
                where=at,
            )
            found.add(
                f"within a range, the faster the penalty increases, the lower the {what} ({given})",
                float(min(-np.diff(values[: best + 1]))),
                f"least drop of the {means} from one q₁ to the next, from 1 up to the best, {several[best - 1].name}",
                where=at,
            )
        for accounting in ACCOUNTINGS:
            ends = [curve.last for curve in curves.of(f"{privacy_panel} {accounting}")]
            found.add(
                f"an increasing penalty keeps the privacy: no setting loses more than a slower one ({given})",
                float(min(-np.diff(ends)) + 1e-9 * ends[0]),
                "least drop of the loss of privacy at the end from one q₁ to the next, with a billionth for rounding",
                where=f"({privacy_panel})",
                accounting=accounting,
            )
    for what, measure, where, improved in (
        ("loss", "late mean loss", "(a, b)", gains),
        ("error rate", "mean test error", "(e)", gained_errors),
    ):
        found.add(
            f"the improvement is larger under more noise (α = 1 against α = 2), in the {what}",
            improved[1.0] - improved[2.0],
            f"difference of the two improvements of the {measure}, each at its best q₁",
            where=where,
        )
    return found


FIGURES = (
    Figure(
        name="mr-3",
        citation=CITATION,
        title="MR Fig. 3: the effect of γ on private MR-ADMM",
        parts=_parts(PANELS_3, "c", [(gamma, _gamma_name(gamma), GROWTH, gamma) for gamma in GAMMAS], cost=25),
        draw=lambda curves: _drawn(curves, PANELS_3, "c", "γ"),
        claims=_claims_3,
        choices=(
            *NOISE_CHOICES,
            printed("η(2k−1)", f"{GROWTH}^k"),
            printed("α", (1, 2)),
            chosen("γ", GAMMAS, "values around 0.5, the one the paper goes on with"),
        ),
        full=(10, 50),
        quick=(2, 4),
    ),
    Figure(
        name="mr-4",
        citation=CITATION,
        title="MR Fig. 4: the effect of the penalty's growth on private MR-ADMM",
        parts=_parts(PANELS_4, "e", [(growth, _growth_name(growth), growth, GAMMA) for growth in GROWTHS], cost=35),
        draw=lambda curves: _drawn(curves, PANELS_4, "e", "q₁"),
        claims=_claims_4,
        choices=(
            *NOISE_CHOICES,
            printed("γ", GAMMA),
            printed("α", (2, 1)),
            printed("q₁", GROWTHS[1:], "q₁ = 1 is added, the constant penalty that the text compares with"),
        ),
        full=(10, 50),
        quick=(2, 4),
    ),
)
