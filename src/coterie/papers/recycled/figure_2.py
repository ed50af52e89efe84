"""Zhang, Khalili & Liu (2019), Figure 2: the test error against rho."""

import math

import numpy as np

from coterie.algorithms import ConsensusADMM
from coterie.papers.figure import Claim, Claims, Curve, Curves, Figure, Part, Scale, chosen, printed
from coterie.papers.panels import finish, grid, plot
from coterie.papers.recycled.experiment import CITATION, NETWORK_CHOICES, NODES_CHOICE, five_nodes
from coterie.papers.recycled.experiment import L2 as PAPERS_RHO

RHOS = tuple(np.geomspace(0.002, 20.0, 13).tolist())


def _part(scale: Scale) -> list[Curve]:
    nodes = five_nodes()
    rhos = (RHOS[0], PAPERS_RHO, RHOS[-1]) if scale.quick else sorted((*RHOS, PAPERS_RHO))
    error = []
    for rho in rhos:
        plan = nodes.plan(ConsensusADMM.with_penalty(1.0), l2=rho, rounds=scale.iterations)
        last = nodes.releases(plan, scale, runs=1)[:, -1].mean(axis=1)
        error.append(float(nodes.test_error(last)[0]))
    return [Curve("error", "ADMM", np.array(rhos), np.array(error))]


def draw(curves: Curves):
    picture, axes = grid(1, 1)
    plot(axes[0, 0], curves.of("error"), {}, marker="o", ms=3)
    axes[0, 0].axvline(PAPERS_RHO, color="grey", lw=0.8, ls=":")
    finish(axes[0, 0], "The effect of ρ, C = 1750", "ρ", "test error", xscale="log")
    return picture


def claims(curves: Curves, scale: Scale) -> list[Claim]:
    error = curves("error", "ADMM")
    at = int(np.argmin(error.y))
    own = error.y[np.isclose(error.x, PAPERS_RHO)][0]
    found = Claims(1, where="§VIII-B1, Fig. 2")
    found.add(
        "the test error is least at ρ ≈ 0.22",
        math.log(2) - abs(math.log(error.x[at] / PAPERS_RHO)),
        f"ln 2 minus |ln(ρ of the least error / 0.22)|; the least is at ρ = {error.x[at]:.3g}",
    )
    found.add(
        "no other ρ tried has a smaller test error than 0.22",
        np.min(np.delete(error.y, np.argmin(np.abs(error.x - PAPERS_RHO)))) - own,
        "least error at another ρ minus that at 0.22",
    )
    found.add(
        "both a much smaller and a much larger ρ do worse than 0.22: it controls overfitting",
        min(error.y[0], error.y[-1]) - own,
        "the lesser of the errors at both ends of the sweep minus that at 0.22",
    )
    return found


FIGURES = (
    Figure(
        name="mr-2",
        citation=CITATION,
        title="MR Fig. 2: the effect of ρ",
        parts={"error": Part(compute=_part, cost=20)},
        draw=draw,
        claims=claims,
        choices=(
            *NETWORK_CHOICES,
            printed("C", 1750),
            NODES_CHOICE,
            printed("iterations", 50),
            chosen("η", 1.0, "the fixed penalty of the paper's Fig. 5"),
            chosen("ρ", tuple(f"{rho:.3g}" for rho in RHOS), "evenly in ln ρ around 0.22, and 0.22"),
        ),
        full=(1, 50),
        quick=(1, 4),
    ),
)
