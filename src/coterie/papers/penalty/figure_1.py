"""Zhang, Khalili & Liu (2018), Figure 1: convergence of M-ADMM without noise."""

import numpy as np

from coterie.algorithms import ConsensusADMM
from coterie.papers.census import Network, every_iteration, network
from coterie.papers.figure import Claim, Claims, Curve, Curves, Figure, Part, Scale, chosen, printed
from coterie.papers.panels import finish, grid, plot
from coterie.privacy.objective import NoNoise
from coterie.values import Schedule, as_schedule

L2 = 0.22
THETA = 0.5
STARTS, RATIOS = (0.55, 0.65, 0.6, 0.55, 0.6), (1.01, 1.03, 1.1, 1.2, 1.02)
GROWTHS = (1.0, 1.01, 1.05, 1.1)
DUAL_STEPS = {
    "fixed θ": Schedule(THETA),
    "varying θ": Schedule(THETA, 1.01),
    "θ per node": Schedule(STARTS),
}
LOOKS = {"fixed θ": {"color": "tab:blue"}, "varying θ": {"color": "black"}, "θ per node": {"color": "tab:red"}}
# of average loss: movements and distances below it cannot be seen in the figure
SETTLED = 1e-3

DATA_CHOICES = (
    printed(
        "data", "Adult", "complete rows, maxima and row norms as printed; 45,222 rows and 104 columns (45,223, 105)"
    ),
    chosen("training set", "the first 40,000 rows", "no size is printed; the size that the same authors print in 2019"),
)
RHO_CHOICE = chosen("ρ", L2, "the value the same authors pick in 2019 on the same data")
NETWORK_CHOICES = (
    *DATA_CHOICES,
    chosen("C", 1750, "the value of Zhang & Zhu (2016), whose experiment the paper repeats"),
    RHO_CHOICE,
    chosen("graph of 5 nodes", "complete", "not printed; every node then has the same number of neighbours"),
)


def five_nodes() -> Network:
    return network(5, "complete")


def _run(panel: str, name: str, penalty: Schedule, dual_step: Schedule, scale: Scale) -> list[Curve]:
    nodes = five_nodes()
    algorithm = ConsensusADMM(mechanism=NoNoise(penalty=penalty), dual_step=dual_step, as_published=dual_step.per_party)
    releases = nodes.releases(nodes.plan(algorithm, l2=L2, rounds=scale.iterations), scale, runs=1)
    return nodes.convergence(panel, name, releases[0], l2=L2)


def _part_a(name: str, dual_step: Schedule) -> Part:
    return Part(compute=lambda scale: _run("a", name, Schedule(STARTS, RATIOS), dual_step, scale))


def _part_b(growth: float) -> Part:
    def compute(scale: Scale) -> list[Curve]:
        penalty = every_iteration(Schedule(THETA, growth), scale)
        return _run("b", f"q = {growth:g}", penalty, as_schedule("dual_step", THETA), scale)

    return Part(compute=compute)


def draw(curves: Curves):
    picture, axes = grid(2, 2)
    for row, kind, ylabel in ((0, "", "average loss"), (1, " distance", "largest distance to the optimum (relative)")):
        for column, panel, title in ((0, "a", "(a) a penalty per node"), (1, "b", "(b) η(t) = 0.5 q^(t−1)")):
            plot(axes[row, column], curves.of(panel + kind), LOOKS)
            finish(axes[row, column], title, "iteration", ylabel, yscale="log" if row else "linear")
    return picture


def claims(curves: Curves, scale: Scale) -> list[Claim]:
    found = Claims(1)
    for name, words in (
        ("fixed θ", "one fixed dual step"),
        ("varying θ", "a dual step that varies over iterations"),
        ("θ per node", "a dual step of each node's own"),
    ):
        tail = curves("a", name).from_x(0.9 * scale.iterations)
        found.add(
            f"with a penalty per node and {words}, the average loss settles",
            SETTLED - float(np.ptp(tail)),
            f"{SETTLED:g} minus what the average loss still moves in the last tenth of the iterations",
            where="§5.1, Fig. 1(a)",
        )
        found.add(
            f"with a penalty per node and {words}, it settles at the optimum, as Theorem 3.1 would have it",
            SETTLED - abs(curves("a excess", name).last),
            f"{SETTLED:g} minus the last average loss's distance from the optimum's",
            where="§5.1, Fig. 1(a), Theorem 3.1",
        )
    for growth in GROWTHS:
        second_half = curves("b distance", f"q = {growth:g}").from_x(scale.iterations / 2)
        found.add(
            f"slower or not, it still goes to the optimum: q = {growth:g}",
            float(second_half[0] / 2 - second_half[-1]),
            "half the distance to the optimum at mid-run minus that at the end (relative)",
            where="§5.1, Fig. 1(b), Theorem 3.1",
        )
    for slow, fast in zip(GROWTHS[1:], GROWTHS, strict=False):
        behind, ahead = (curves("b excess", f"q = {q:g}").from_x(2) for q in (slow, fast))
        found.add(
            f"increasing the penalty slows convergence: q = {slow:g} lags behind q = {fast:g}",
            float(np.mean(behind - ahead)),
            "mean over iterations of the difference in average loss",
            where="§5.1, Fig. 1(b), Theorem 3.2",
        )
    return found


FIGURES = (
    Figure(
        name="pp-1",
        citation="zhang-khalili-liu-2018",
        title="PP Fig. 1: convergence of M-ADMM",
        parts={
            **{f"a-{i}": _part_a(name, step) for i, (name, step) in enumerate(DUAL_STEPS.items())},
            **{f"b-{i}": _part_b(growth) for i, growth in enumerate(GROWTHS)},
        },
        draw=draw,
        claims=claims,
        choices=(
            *NETWORK_CHOICES,
            printed("η_i(1)", STARTS),
            printed("q_i", RATIOS),
            printed("θ, fixed", THETA),
            chosen("θ(t), varying", "0.5 · 1.01^(t−1)", "no faster than any η_i(t), so η_i(t) ≥ θ(t)"),
            chosen("θ_i, per node", STARTS, "the starts of the nodes' own penalties, the natural private choice"),
            printed("η(t) in (b)", "0.5 q^(t−1)"),
            chosen("q in (b)", GROWTHS, "from the conventional algorithm to the third of the nodes' growths in (a)"),
            chosen("iterations", 100, "not printed"),
        ),
        full=(1, 100),
        quick=(1, 4),
    ),
)
