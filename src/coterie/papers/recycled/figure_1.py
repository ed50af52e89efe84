"""Zhang, Khalili & Liu (2019), Figure 1: convergence of R-ADMM and MR-ADMM without noise."""

import functools
from typing import Any

import numpy as np

from coterie.algorithms import ConsensusADMM
from coterie.papers.census import network
from coterie.papers.figure import Claim, Claims, Curve, Curves, Figure, Part, Scale, chosen, printed
from coterie.papers.panels import finish, grid, plot
from coterie.papers.recycled.experiment import (
    CITATION,
    GAMMA,
    GRAPH,
    L2,
    NETWORK_CHOICES,
    WEIGHT_CHOICE,
    growing,
    iterates,
    pairs,
    recycled,
    shown,
)  # fmt: skip
from coterie.values import Schedule

SIZES = (5, 20)
ETA = 0.5
GAMMAS = (0.0, 0.5, 1.0, 2.0)
STARTS, RISES = (1.0, 1.03, 1.02, 0.8, 1.01), (0.01, 0.005, 0.003, 0.015, 0.01)
STEPS = (0, 1, 2, 3, 4, 5)
GROWTHS = (1.0, 1.01, 1.02, 1.03, 1.04, 1.05)
# of the loss: what solving to finite precision leaves
ROUNDING = 1e-9
# excess of the average loss over that of the optimum that counts as converged
SETTLED = 1e-3


def _followed(panel: str, name: str, size: int, algorithm, scale: Scale) -> list[Curve]:
    return network(size, GRAPH).convergence(panel, name, _models(size, algorithm, scale), l2=L2)


# panels share the constant penalty
@functools.cache
def _models(size: int, algorithm: Any, scale: Scale) -> np.ndarray:
    """By iteration, node and coefficient."""
    nodes = network(size, GRAPH)
    conventional = isinstance(algorithm, ConsensusADMM)
    plan = nodes.plan(algorithm, l2=L2, rounds=scale.iterations if conventional else pairs(scale))
    releases = nodes.releases(plan, scale, runs=1)
    return (releases if conventional else iterates(plan, releases))[0]


def _label(gamma: float) -> str:
    return f"γ = {gamma:g}"


def _part_a(size: int) -> Part:
    def compute(scale: Scale) -> list[Curve]:
        if scale.quick and size != SIZES[0]:
            return []
        panel = f"a, N = {size}"
        found = _followed(panel, "ADMM", size, ConsensusADMM.with_penalty(ETA), scale)
        for gamma in shown(GAMMAS, scale):
            found += _followed(panel, _label(gamma), size, recycled(Schedule(ETA), gamma=gamma), scale)
        return found

    return Part(compute=compute, cost=20)


def _b_name(step: int) -> str:
    return f"q₁ = 1 + {step} q₂" if step else "η = 1"


def _c_name(growth: float) -> str:
    return f"q₁ = {growth:g}" if growth > 1 else "η = 1"


def _part_b(scale: Scale) -> list[Curve]:
    found = []
    for step in shown(STEPS, scale):
        ratios = tuple(1 + step * rise for rise in RISES)
        penalty = growing(STARTS, ratios) if step else Schedule(1.0)
        found += _followed("b", _b_name(step), 5, recycled(penalty), scale)
    return found


def _part_c(scale: Scale) -> list[Curve]:
    found = []
    for growth in shown(GROWTHS, scale):
        found += _followed("c", _c_name(growth), 5, recycled(growing(1.0, growth)), scale)
    return found


def _draw_1(curves: Curves):
    picture, axes = grid(2, 3)
    for row, kind, ylabel in ((0, "", "average loss"), (1, " distance", "largest distance to the optimum (relative)")):
        scale = "log" if row else "linear"
        for size, style in zip(SIZES, ("--", "-"), strict=True):
            axes[row, 0].set_prop_cycle(None)
            plot(axes[row, 0], curves.of(f"a, N = {size}{kind}"), {}, more=f", N = {size}", ls=style)
        finish(axes[row, 0], "(a) R-ADMM, η = 0.5", "iteration", ylabel, yscale=scale)
        for column, panel, title in ((1, "b", "(b) MR-ADMM, η per node"), (2, "c", "(c) MR-ADMM, common η")):
            plot(axes[row, column], curves.of(panel + kind), {"η = 1": {"color": "black"}})
            finish(axes[row, column], title, "iteration", ylabel, yscale=scale)
    return picture


def _claims_1(curves: Curves, scale: Scale) -> list[Claim]:
    found = []
    for size in SIZES:
        if curves.of(f"a, N = {size}"):
            found += _claims_a(curves, size)
    for panel, where in (("b", "Fig. 1(b)"), ("c", "Fig. 1(c)")):
        found += _claims_growth(curves, panel, where)
    return found


def _claims_a(curves: Curves, size: int) -> list[Claim]:
    panel, network_name = f"a, N = {size}", f"N = {size}"
    conventional, *several = curves.of(panel)
    # L(2k) - L(2k-1)
    rises = [(curve.y[1::2] - curve.y[0::2]) for curve in several]
    # L(2k-1) - L(2k+1) for every k with a rise at 2k
    made_up = [
        (y[:-2:2] - y[2::2])[rise[:-1] > ROUNDING] for y, rise in zip((c.y for c in several), rises, strict=True)
    ]
    swings = [float(np.abs(rise).mean()) for rise in rises]
    odd_excess = [float(curve.y[::2].mean()) for curve in several]
    found = Claims(1, where="§VIII-A, Fig. 1(a)")
    found.add(
        f"the linear approximation of even iterations can raise the average loss ({network_name})",
        max(float(rise.max()) for rise in rises),
        "largest rise from an odd to the next even iteration, over γ",
    )
    found.add(
        f"a larger γ means less oscillation between even and odd iterations ({network_name})",
        float(min(-np.diff(swings))),
        "least drop of the mean |L(2k) − L(2k−1)| from one γ to the next",
    )
    found.add(
        f"a larger γ also means slower convergence ({network_name})",
        float(min(np.diff(odd_excess))),
        "least rise of the mean loss of odd iterations from one γ to the next",
    )
    if any(len(falls) for falls in made_up):
        found.add(
            f"odd iterations always make up for the rise ({network_name})",
            min(float(falls.min()) for falls in made_up if len(falls)),
            "least fall from one odd iteration to the next where the even one between them rose, over γ",
        )
    for curve in several:
        excess = curves(f"{panel} excess", curve.name)
        found.add(
            f"R-ADMM converges ({network_name}, {curve.name})",
            SETTLED - abs(float(excess.y[::2][-1])),
            f"{SETTLED:g} minus the last odd iteration's distance from the optimum's average loss",
        )
        ratio = _late_excess(excess) / _late_excess(curves(f"{panel} excess", conventional.name))
        found.add(
            f"seen at odd iterations alone R-ADMM is about as fast as ADMM ({network_name}, {curve.name})",
            2 - ratio,
            "2 minus the ratio of the mean distances from the optimum's loss, odd iterations of the last half",
        )
    return found


def _late_excess(excess: Curve) -> float:
    odd = np.abs(excess.y[::2])
    return float(odd[len(odd) // 2 :].mean()) + ROUNDING


def _claims_growth(curves: Curves, panel: str, where: str) -> list[Claim]:
    constant, *several = curves.of(panel)
    found = Claims(1, where=f"§VIII-A, {where}")
    for curve in several:
        found.add(
            f"increasing the penalty slows convergence: {curve.name} against η = 1",
            float((curve.y - constant.y)[::2].mean()),
            "mean over odd iterations of the difference in average loss",
        )
    for slow, fast in zip(several[1:], several, strict=False):
        found.add(
            f"a faster increase slows it more: {slow.name} against {fast.name}",
            float((slow.y - fast.y)[::2].mean()),
            "mean over odd iterations of the difference in average loss",
        )
    for curve in (constant, *several):
        excess, away = (curves(f"{panel} {kind}", curve.name).y[::2] for kind in ("excess", "distance"))
        found.add(
            f"convergence is attained ({curve.name})",
            SETTLED - abs(float(excess[-1])),
            f"{SETTLED:g} minus the last odd iteration's distance from the optimum's average loss",
        )
        found.add(
            f"the models go to the optimum of the whole problem, as Theorem IV.1 has it ({curve.name})",
            float(away[len(away) // 2] / 2 - away[-1]),
            "half the distance at mid-run minus the distance at the end (relative to the optimum)",
            where=", Theorem IV.1",
        )
    return found


FIGURES = (
    Figure(
        name="mr-1",
        citation=CITATION,
        title="MR Fig. 1: convergence of R-ADMM and MR-ADMM",
        parts={
            **{f"a-{size}": _part_a(size) for size in SIZES},
            "b": Part(compute=_part_b, cost=15),
            "c": Part(compute=_part_c, cost=15),
        },
        draw=_draw_1,
        claims=_claims_1,
        choices=(
            *NETWORK_CHOICES,
            WEIGHT_CHOICE,
            printed("nodes", "5 and 20 in (a), 5 in (b) and (c)"),
            chosen("ρ", L2, "the value of the paper's later figures"),
            printed("η in (a)", ETA),
            chosen("γ in (a)", GAMMAS, "from none to about the other term, 2ηV, of the even step's denominator"),
            printed("η̂_i and q₂ in (b)", (STARTS, RISES)),
            chosen("q₁ in (c)", GROWTHS[1:], "the values of Fig. 4"),
            chosen("γ in (b) and (c)", GAMMA, "the value of the paper's later figures"),
            chosen("iterations", 100, "not printed"),
        ),
        full=(1, 100),
        quick=(1, 4),
    ),
)
