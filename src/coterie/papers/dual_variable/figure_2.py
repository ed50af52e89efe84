"""Zhang & Zhu (2016), Figure 2: convergence of dual variable perturbation.

Every run comes twice: `as published` draws the noise of the printed Algorithm 2, `certified` the noise that its proof
needs, so that a step loses at most α_p. The paper's ρ is one node's, a fifth of the whole problem's.
"""

import functools
import itertools

import numpy as np

from coterie.algorithms import ConsensusADMM, DualPerturbedADMM
from coterie.papers.census import Network, network
from coterie.papers.figure import Claim, Claims, Curve, Curves, Figure, Part, Scale, chosen, printed
from coterie.papers.measures import ACCOUNTINGS, APPROXIMATE, PUBLISHED, PURE, over_runs, privacy
from coterie.papers.panels import finish, grid, plot
from coterie.plan import Plan
from coterie.privacy.objective import DualPerturbation
from coterie.values import as_schedule

N_NODES = 5
ETA = 0.5
RHO, RHO_EXACT = 10**-2.5, 1e-10
ALPHAS = {"a": 0.01, "b": 0.1, "c": 0.5, "d": 1.0}
RHO_ALPHA = 0.3
RHOS = (1e-10, 1e-5, RHO, 1e-1, 1.0)
VARIANTS = ("as published", "certified")
EXACT = "no noise"
LOOKS = {"as published": {"color": "tab:blue"}, "certified": {"color": "tab:red"}, EXACT: {"color": "black", "ls": ":"}}
SETTLED_FROM = 20
# iterations in which a faster run is already lower
EARLY_UNTIL = 10
# of the loss without noise: how far a run may end above it and still count as well converged
GOOD = 0.1
ROUNDING = 1e-6

CHOICES = (
    printed("data", "Adult"),
    chosen(
        "records",
        "104 columns, 40,000 rows for training, the last 5,222 of the file held out",
        "no size is printed; prepared as in Zhang, Khalili & Liu (2018), divided as in Zhang, Khalili & Liu (2019)",
    ),
    printed("C", 1750),
    printed("ρ (per node)", "10^−2.5; 10^−10 without noise"),
    chosen("nodes", N_NODES, "not printed; Zhang, Khalili & Liu (2018) repeat the experiment with five"),
    chosen("graph", "complete", "not printed; every node then has the same number of neighbours"),
    chosen("η", ETA, "not printed; the value at which Zhang, Khalili & Liu (2018) run this algorithm"),
    chosen("C(t)", "without the factor C", "only then are the printed constants of L_acc of the size of the losses"),
    chosen(
        "published bound of a run",
        "Σ_t α_p(t)",
        "Theorem 1 bounds one iteration, and losses add up; the text has the whole run lose α_p",
    ),
    chosen("f(0)", 0, "the paper starts at random"),
    chosen("runs", 10, "not printed"),
)


def nodes() -> Network:
    return network(N_NODES, "complete")


@functools.cache
def private_plan(alpha: float, variant: str, iterations: int, rho: float = RHO) -> Plan:
    mechanism = DualPerturbation(
        penalty=as_schedule("penalty", ETA),
        step_epsilon=as_schedule("step_epsilon", alpha),
        as_published=variant == "as published",
    )
    algorithm = DualPerturbedADMM(mechanism=mechanism, dual_step=as_schedule("dual_step", ETA))
    return nodes().plan(algorithm, l2=N_NODES * rho, rounds=iterations)


# Figures 2 and 3 share runs
@functools.cache
def measured(alpha: float, variant: str, scale: Scale, rho: float = RHO) -> tuple[np.ndarray, np.ndarray]:
    """Average loss (run, iteration), and the nodes' mean test error after the last iteration (run,)."""
    releases = nodes().releases(private_plan(alpha, variant, scale.iterations, rho), scale)
    return nodes().average_loss(releases), nodes().test_error(releases[:, -1]).mean(axis=-1)


@functools.cache
def exact(scale: Scale, rho: float = RHO_EXACT) -> tuple[np.ndarray, float]:
    """Algorithm 1, without noise: average loss by iteration, and test error after the last."""
    plan = nodes().plan(ConsensusADMM.with_penalty(ETA), l2=N_NODES * rho, rounds=scale.iterations)
    releases = nodes().releases(plan, scale, runs=1)
    return nodes().average_loss(releases)[0], float(nodes().test_error(releases[0, -1]).mean())


def _panel(panel: str, variant: str) -> Part:
    def compute(scale: Scale) -> list[Curve]:
        losses, _ = measured(ALPHAS[panel], variant, scale)
        plan = private_plan(ALPHAS[panel], variant, scale.iterations)
        return [over_runs(panel, variant, losses), *privacy(panel, variant, plan)]

    return Part(compute=compute, cost=20.0)


def _exact(scale: Scale) -> list[Curve]:
    losses, _ = exact(scale)
    return [Curve(panel, EXACT, np.arange(1, len(losses) + 1), losses) for panel in ALPHAS]


def _rho(rho: float) -> Part:
    """The rule by which the paper picks ρ: the least empirical loss, at α = 0.3 and without noise."""

    def compute(scale: Scale) -> list[Curve]:
        if scale.quick:
            # every ρ is a program of its own to compile
            return []
        losses, _ = measured(RHO_ALPHA, "as published", scale, rho)
        last, at = losses[:, -1:], np.array([rho])
        return [
            over_runs(f"ρ = {rho:.3g}", "as published", last, at),
            Curve(f"ρ = {rho:.3g}", EXACT, at, exact(scale, rho)[0][-1:]),
        ]

    return Part(compute=compute, cost=25.0)


def _by_rho(curves: Curves) -> list[Curve]:
    panels = [f"ρ = {rho:.3g}" for rho in RHOS if curves.of(f"ρ = {rho:.3g}")]
    return (
        []
        if len(panels) < len(RHOS)
        else [
            Curve("choice of ρ", name, np.array(RHOS), np.array([curves(panel, name).last for panel in panels]))
            for name in ("as published", EXACT)
        ]
    )


def draw(curves: Curves):
    picture, axes = grid(2, 4, size=(3.6, 3.0))
    for column, (panel, alpha) in enumerate(ALPHAS.items()):
        plot(axes[0, column], curves.of(panel), LOOKS)
        finish(
            axes[0, column],
            f"({panel}) α_p = {alpha:g}",
            "iteration",
            "empirical loss",
            legend=panel == "d",
            yscale="log",
        )
        loss = axes[1, column]
        plot(loss, [curves(f"{panel} {PUBLISHED}", "as published")], {}, more=": Theorem 1, summed", color="0.5")
        for accounting, line in ((PURE, "-"), (APPROXIMATE, "--")):
            plot(loss, curves.of(f"{panel} {accounting}"), LOOKS, more=f", {accounting}", ls=line)
        loss.axhline(alpha, color="0.5", ls=":", lw=1, label="α_p, the paper's loss of the whole run")
        finish(loss, f"({panel}') loss of privacy", "iteration", "ε", legend=panel == "d", yscale="log")
    return picture


def claims(curves: Curves, scale: Scale) -> list[Claim]:
    start, until = min(SETTLED_FROM, scale.iterations / 2), min(EARLY_UNTIL, scale.iterations // 2)
    found = Claims(scale.runs)
    for variant in VARIANTS:
        means = [np.mean(curves(panel, variant).from_x(start)) for panel in ALPHAS]
        said = f"least fall of the loss, averaged from iteration {start:g} on, from one α_p to the next"
        found.add(f"a larger α_p converges better ({variant})", -np.max(np.diff(means)), said, where="§5, Fig. 2")
        early = [np.mean(curves(panel, variant).y[:until]) for panel in ALPHAS]
        said = f"least fall of the loss, averaged over the first {until} iterations, from one α_p to the next"
        found.add(f"a larger α_p converges faster ({variant})", -np.max(np.diff(early)), said, where="§5, Fig. 2")
        for panel, alpha in ALPHAS.items():
            losses = curves(panel, variant).y
            text = f"the loss falls over the iterations ({variant}, α_p = {alpha:g})"
            found.add(text, losses[0] - losses[-1], "first loss minus the last", where=f"§5, Fig. 2({panel})")
    for variant, accounting in itertools.product(VARIANTS, ACCOUNTINGS):
        losses = [curves(f"{panel} {accounting}", variant) for panel in ALPHAS]
        text = f"a larger α_p means poorer privacy ({variant})"
        said = "least growth of ε of the whole run from one α_p to the next"
        found.add(
            text, np.min(np.diff([loss.last for loss in losses])), said, where="§5, Fig. 2", accounting=accounting
        )
        own = ", by Theorem 1 itself" if accounting == PUBLISHED else ""
        steps = [loss.y[0] / loss.x[0] / alpha for loss, alpha in zip(losses, ALPHAS.values(), strict=True)]
        said = f"1 minus the largest ratio of a step's loss to α_p{own} (1e-6 allowed for rounding)"
        text = f"every iteration is α_p-differentially private ({variant} noise)"
        found.add(text, 1 + ROUNDING - max(steps), said, where="§5, Theorem 1", accounting=accounting)
        own = ", by Theorem 1, summed over iterations" if accounting == PUBLISHED else ""
        runs = [loss.last / alpha for loss, alpha in zip(losses, ALPHAS.values(), strict=True)]
        said = f"1 minus the largest ratio of the whole run's loss to α_p{own} (1e-6 allowed for rounding)"
        text = f"the loss does not depend on the number of iterations: the run and its output lose α_p ({variant})"
        found.add(text, 1 + ROUNDING - max(runs), said, where="§3.1, §6", accounting=accounting)
    for variant in VARIANTS:
        without = curves("d", EXACT).last
        said = f"{GOOD:g} minus the relative excess of the last loss over the run without noise, α_p = 1"
        text = f"convergence stays good ({variant}, at the largest α_p)"
        found.add(text, GOOD - (curves("d", variant).last / without - 1), said, where="§6")
    for name, best, text in (
        ("as published", RHO, f"of the values tried, ρ = 10^−2.5 has the least empirical loss at α_p = {RHO_ALPHA:g}"),
        (EXACT, RHO_EXACT, "of the values tried, ρ = 10^−10 has the least empirical loss without noise"),
    ):
        if not curves.of("choice of ρ"):
            break
        by_rho = curves("choice of ρ", name)
        place = RHOS.index(best)
        others = np.delete(by_rho.y, place)
        found.add(text, np.min(others) - by_rho.y[place], "least loss at another ρ minus that at this one", where="§5")
    return found


FIGURES = (
    Figure(
        name="dvp-2",
        citation="zhang-zhu-2016",
        title="DVP Fig. 2: convergence",
        parts={
            "exact": Part(compute=_exact, cost=3.0),
            **{f"{panel}-{i}": _panel(panel, variant) for panel in ALPHAS for i, variant in enumerate(VARIANTS)},
            **{f"rho-{i}": _rho(rho) for i, rho in enumerate(RHOS)},
        },
        draw=draw,
        claims=claims,
        choices=(
            *CHOICES,
            printed("α_p", tuple(ALPHAS.values())),
            printed("iterations", 100),
            chosen("values of ρ tried", "10^−10, 10^−5, 10^−2.5, 0.1, 1", "the paper says 'a few fixed values'"),
        ),
        full=(10, 100),
        quick=(2, 6),
        derived=_by_rho,
    ),
)
