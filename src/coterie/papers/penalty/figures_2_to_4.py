"""Zhang, Khalili & Liu (2018), Figures 2 to 4: private M-ADMM against dual variable perturbation.

With q1 = 1 penalty perturbation is dual variable perturbation, as the paper says below its eq. (26).
"""

import dataclasses

import numpy as np

from coterie.algorithms import PenaltyPerturbedADMM
from coterie.papers.census import Network, every_iteration, network
from coterie.papers.figure import Accounting, Claim, Claims, Curve, Curves, Figure, Part, Scale, chosen, printed
from coterie.papers.measures import ACCOUNTINGS, over_runs, privacy
from coterie.papers.panels import finish, grid, plot, privacy_rows
from coterie.papers.penalty.figure_1 import DATA_CHOICES, L2, NETWORK_CHOICES, RHO_CHOICE, SETTLED, THETA
from coterie.plan import Plan
from coterie.privacy.objective import PenaltyPerturbation
from coterie.values import Schedule, as_schedule

# iterations after which curves are compared
SETTLED_FROM = 20
# a growth of the average loss that counts as a significant loss of accuracy
DEGRADES = 0.05
# times one iteration's loss: a total that counts as significantly more
ACCUMULATES = 10
# colour of the paper -> (q1, q2)
GROWTHS = {"black": (1.0, 1.0), "magenta": (1.0, 0.99), "blue": (1.03, 1.02), "red": (1.05, 1.02)}
NAMES = {colour: f"{'DVP' if q1 == 1 else 'PP'}: q1 = {q1:g}, q2 = {q2:g}" for colour, (q1, q2) in GROWTHS.items()}
LOOKS = {NAMES[colour]: {"color": colour} for colour in GROWTHS}
# C may not exceed the records of any node: the smallest of the uneven 100 has 160
LARGE_WEIGHT = 160.0


@dataclasses.dataclass(frozen=True)
class Setting:
    """One column of panels: losses in `accuracy`, bounds in `privacy`."""

    accuracy: str
    privacy: str
    noise_rate: float
    n_nodes: int = 5
    # of the records, where the nodes' differ
    shares: tuple[float, ...] | None = None

    @property
    def nodes(self) -> Network:
        return network(self.n_nodes, "complete" if self.n_nodes == 5 else "watts-strogatz", shares=self.shares)

    def plan(self, colour: str, scale: Scale) -> Plan:
        q1, q2 = GROWTHS[colour]
        penalty = every_iteration(Schedule(THETA, q1), scale)
        algorithm = PenaltyPerturbedADMM(
            mechanism=PenaltyPerturbation(penalty=penalty, noise_rate=Schedule(self.noise_rate, q2)),
            dual_step=as_schedule("dual_step", THETA),
        )
        weight = {} if self.n_nodes == 5 else {"party_weight": LARGE_WEIGHT}
        return self.nodes.plan(algorithm, l2=L2, rounds=scale.iterations, **weight)


def _curves(setting: Setting, colour: str, scale: Scale) -> list[Curve]:
    # parties of every size are compiled by themselves
    if scale.quick and setting.shares is not None:
        setting = dataclasses.replace(setting, shares=(1.0, 0.25) * (setting.n_nodes // 2))
    name, plan = NAMES[colour], setting.plan(colour, scale)
    losses = setting.nodes.average_loss(setting.nodes.releases(plan, scale))
    spread = losses.max(axis=0) - losses.min(axis=0)
    rounds = np.arange(1, scale.iterations + 1)
    curves = [
        over_runs(setting.accuracy, name, losses),
        Curve(f"{setting.accuracy} range", name, rounds, spread),
        *privacy(setting.privacy, name, plan),
    ]
    if setting.shares is not None:
        even = dataclasses.replace(setting, shares=None).plan(colour, scale)
        curves += privacy(f"{setting.privacy} even nodes", name, even)
    return curves


def _parts(*settings: Setting) -> dict[str, Part]:
    def part(setting: Setting, colour: str) -> Part:
        return Part(compute=lambda scale: _curves(setting, colour, scale), cost=20.0 if setting.n_nodes == 5 else 30.0)

    return {f"{s.accuracy}-{colour}": part(s, colour) for s in settings for colour in GROWTHS}


# --- claims -----------------------------------------------------------------------------------------------------------


def _compared(curves: Curves, panel: str, lower: str, upper: str, start: float) -> float:
    """By how much `lower` stays below `upper` from `start` on, at the closest iteration."""
    return float(np.min(curves(panel, NAMES[upper]).from_x(start) - curves(panel, NAMES[lower]).from_x(start)))


def _runs_apart(lower: Curve, upper: Curve, start: float) -> float:
    """By how much the highest run of `lower` stays below the lowest run of `upper` from `start` on."""
    assert lower.high is not None
    assert upper.low is not None
    return float(np.min((upper.low - lower.high)[upper.x >= start]))


def _claims_of(setting: Setting, curves: Curves, scale: Scale, where: str) -> list[Claim]:
    start = min(SETTLED_FROM, scale.iterations / 2)
    at = f"α(1) = {setting.noise_rate:g}"
    seen = f"{where}({setting.accuracy})({setting.privacy})"

    found = Claims(scale.runs)

    def add(text: str, margin: float, means: str, *, accounting: Accounting = "none", where: str = seen) -> None:
        found.add(f"{at}: {text}", margin, means, accounting=accounting, where=where)

    def loss(lower: str, upper: str, text: str) -> None:
        margin = _compared(curves, setting.accuracy, lower, upper, start)
        add(text, margin, f"least gap of the mean losses from iteration {start:g} on")

    def loses_less(lower: str, upper: str, text: str, where: str = seen) -> None:
        means = f"least gap in ε from iteration {start:g} on"
        for accounting in ACCOUNTINGS:
            gap = _compared(curves, f"{setting.privacy} {accounting}", lower, upper, start)
            add(text, gap, means, accounting=accounting, where=where)

    for family, cautious, accurate in (("DVP", "magenta", "black"), ("PP", "red", "blue")):
        loss(accurate, cautious, f"{accurate} is more accurate than {cautious} ({family})")
        loses_less(cautious, accurate, f"that costs privacy: {accurate} loses more than {cautious}")
    for ours, theirs in (("red", "magenta"), ("blue", "black")):
        loss(ours, theirs, f"PP is more accurate than DVP: {ours} below {theirs}")
        add(
            f"PP is significantly more accurate than DVP: every run of {ours} below every run of {theirs}",
            _runs_apart(curves(setting.accuracy, NAMES[ours]), curves(setting.accuracy, NAMES[theirs]), start),
            f"lowest run of the one minus highest run of the other, least from iteration {start:g} on",
        )
        loses_less(ours, theirs, f"PP loses less privacy than DVP: {ours} below {theirs}", f"{seen}, §6.2")
        wide, narrow = (curves(f"{setting.accuracy} range", NAMES[c]).from_x(start) for c in (theirs, ours))
        add(
            f"a growing penalty is more stable: runs of {ours} differ less than runs of {theirs}",
            float(np.mean(wide - narrow)),
            "mean difference of the ranges over runs",
            where="§6.1",
        )
    red = curves(setting.accuracy, NAMES["red"]).from_x(start)
    add(
        "though the perturbation grows, accuracy does not degrade significantly (red)",
        red[0] + DEGRADES - red[-1],
        f"{DEGRADES:g} minus the growth of the mean loss from iteration {start:g} to the last",
        where="§6.3",
    )
    return found


def _accumulates(setting: Setting, curves: Curves, scale: Scale) -> list[Claim]:
    found = Claims(scale.runs, where="§2.4, §6.3")
    for accounting in ACCOUNTINGS:
        loss = curves(f"{setting.privacy} {accounting}", NAMES["black"])
        found.add(
            f"α(1) = {setting.noise_rate:g}: DVP's loss of privacy accumulates significantly (black)",
            loss.last / (loss.y[0] / loss.x[0]) - ACCUMULATES,
            f"loss of the whole run over that of one iteration, less {ACCUMULATES}",
            accounting=accounting,
        )
    return found


def _settles(setting: Setting, curves: Curves, scale: Scale, where: str) -> list[Claim]:
    found = Claims(scale.runs, where=where)
    for colour in ("blue", "red"):
        tail = curves(setting.accuracy, NAMES[colour]).from_x(0.9 * scale.iterations)
        found.add(
            f"convergence is attained with 100 nodes ({colour})",
            SETTLED - np.ptp(tail),
            f"{SETTLED:g} minus what the mean loss still moves in the last tenth of the iterations",
        )
    return found


def _loses_more_uneven(setting: Setting, curves: Curves, scale: Scale) -> list[Claim]:
    found = Claims(scale.runs, where="§5.2, Fig. 3 and 4")
    for accounting in ACCOUNTINGS:
        uneven, even = (
            np.array([curves(f"{panel} {accounting}", name).last for name in NAMES.values()])
            for panel in (setting.privacy, f"{setting.privacy} even nodes")
        )
        found.add(
            "the loss of privacy is higher in the network with uneven sizes",
            np.min(uneven - even),
            "least difference in ε to the network of even nodes, over the four settings",
            accounting=accounting,
        )
    return found


# --- the figures ------------------------------------------------------------------------------------------------------

LOW, HIGH = Setting("a", "c", 3.0), Setting("b", "d", 5.0)
EVEN = Setting("a", "b", 3.0, 100)
UNEVEN = dataclasses.replace(EVEN, shares=tuple(np.linspace(1.0, 0.25, 100).tolist()))


def _draw(*settings: Setting):
    def draw(curves: Curves):
        columns = len(settings)
        picture, axes = grid(3, columns) if columns > 1 else grid(1, 3)
        for column, setting in enumerate(settings):
            first, *others = axes[:, column] if columns > 1 else axes[0]
            plot(first, curves.of(setting.accuracy), LOOKS)
            title = f"({setting.accuracy}) accuracy: α(t) = {setting.noise_rate:g} q2^(t−1)"
            finish(first, title, "iteration", "average loss, mean and range", yscale="log")
            privacy_rows(others, setting.privacy, curves, LOOKS, "privacy: Theorem 4.1")
        return picture

    return draw


_SHARED_CHOICES = (
    printed("θ", THETA),
    printed("η(t)", "0.5 q1^(t−1)"),
    chosen(
        "(q1, q2)",
        "; ".join(f"{colour} {growth}" for colour, growth in GROWTHS.items()),
        "only in the paper's pictures; DVP has q1 = 1 as printed. Magenta is to lose less than black, which needs "
        "q2 < 1 where q1 = 1; that it is 0.99 has no further reason. The text claims that suitable q1, q2 exist, so "
        "PP's were picked after looking at trial runs: with q1 = q2 = 1.02, tried first for blue, it is more accurate "
        "than black and below it in the published bound, but its certified loss equals black's",
    ),
    chosen("iterations", 100, "not printed"),
    chosen("f(0)", 0, "the paper starts at random; what it starts from is independent of the data either way"),
    chosen("not run", "η_i(t) and α_i(t) that differ between nodes", "the text alone: 'similar results', no values"),
    chosen("not run", "tens of nodes", "the text alone; the paper's pictures have 5 and 100"),
)
_LARGE_CHOICES = (
    *DATA_CHOICES,
    chosen("C", LARGE_WEIGHT, "not printed; the paper needs C ≤ B_i, and the smallest of the uneven nodes has 160"),
    RHO_CHOICE,
    chosen("graph of 100 nodes", "Watts-Strogatz, 4 neighbours, rewired with probability 0.3", "not printed"),
    printed("α(t)", "3 q2^(t−1)"),
    *_SHARED_CHOICES,
    chosen("runs", 10, "as in Fig. 2"),
)


def _large(name: str, number: int, words: str, setting: Setting, *choices) -> Figure:
    where = f"§5.2, Fig. {number}"

    def claims(curves: Curves, scale: Scale) -> list[Claim]:
        found = [*_settles(setting, curves, scale, where), *_claims_of(setting, curves, scale, where)]
        return found + (_loses_more_uneven(setting, curves, scale) if setting.shares is not None else [])

    return Figure(
        name=name,
        citation="zhang-khalili-liu-2018",
        title=f"PP Fig. {number}: accuracy and privacy, 100 nodes, {words}",
        parts=_parts(setting),
        draw=_draw(setting),
        claims=claims,
        choices=(*_LARGE_CHOICES, *choices),
        full=(10, 100),
        quick=(2, 4),
    )


FIGURES = (
    Figure(
        name="pp-2",
        citation="zhang-khalili-liu-2018",
        title="PP Fig. 2: accuracy and privacy, 5 nodes",
        parts=_parts(LOW, HIGH),
        draw=_draw(LOW, HIGH),
        claims=lambda curves, scale: [
            claim
            for setting in (LOW, HIGH)
            for claim in (
                *_claims_of(setting, curves, scale, "§5.2, Fig. 2"),
                *_accumulates(setting, curves, scale),
            )
        ],
        choices=(*NETWORK_CHOICES, printed("α(1)", "3 and 5"), *_SHARED_CHOICES, printed("runs", 10)),
        full=(10, 100),
        quick=(2, 4),
    ),
    _large("pp-3", 3, "data spread evenly", EVEN),
    _large(
        "pp-4",
        4,
        "data spread unevenly",
        UNEVEN,
        chosen("sizes", "fall linearly from 640 to 160", "not printed; the smallest node has a quarter of the largest"),
    ),
)
