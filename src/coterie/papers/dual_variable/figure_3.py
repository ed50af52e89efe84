"""Zhang & Zhu (2016), Figure 3: privacy against accuracy for dual variable perturbation."""

import numpy as np

from coterie.papers.dual_variable.figure_2 import CHOICES, EXACT, ROUNDING, VARIANTS, exact, measured, private_plan
from coterie.papers.dual_variable.tradeoff import AccuracyLoss, PrivacyUtility, best_alpha
from coterie.papers.figure import Claim, Claims, Curve, Curves, Figure, Part, Scale, chosen, printed
from coterie.papers.measures import ACCOUNTINGS, APPROXIMATE, PUBLISHED, PURE, certified_by_round, over_runs
from coterie.papers.panels import finish, grid, plot

FIRST = "t = 1"
ALPHAS = (0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)
EARLY = 2
# mean relative distance below which a formula counts as describing the losses
CLOSE = 0.2
UTILITY = PrivacyUtility()
LOOKS = {
    "as published": {"color": "tab:blue", "marker": "o", "ms": 4},
    "certified": {"color": "tab:red", "marker": "s", "ms": 4},
    "U_priv": {"color": "tab:green"},
    "L_acc, c4 = 0.2, c5 = 25": {"color": "0.4", "ls": ":"},
    "L_acc, c4 = 20, c5 = 20": {"color": "0.4", "ls": "--"},
    "L_acc, fitted here": {"color": "black"},
    EXACT: {"color": "black", "ls": ":"},
}


def _part(alpha: float, variant: str) -> Part:
    def compute(scale: Scale) -> list[Curve]:
        losses, errors = measured(alpha, variant, scale)
        pure, approximate = certified_by_round(private_plan(alpha, variant, scale.iterations))
        rounds, panel = np.arange(1, scale.iterations + 1), f"α = {alpha:g}"
        return [
            over_runs(panel, variant, losses),
            over_runs(f"{panel} error", variant, errors[:, None], np.array([scale.iterations])),
            Curve(f"{panel} {PURE}", variant, rounds, pure),
            Curve(f"{panel} {APPROXIMATE}", variant, rounds, approximate),
        ]

    return Part(compute=compute, cost=20.0)


def _exact(scale: Scale) -> list[Curve]:
    losses, error = exact(scale)
    ends = np.array([ALPHAS[0], ALPHAS[-1]])
    return [Curve("c", EXACT, ends, np.full(2, losses[-1])), Curve("d", EXACT, ends, np.full(2, error))]


def _derived(curves: Curves) -> list[Curve]:
    """The paper's panels, each against α_p and against what the iterations so far are certified to lose."""
    found = []
    last = len(curves(f"α = {ALPHAS[0]:g}", VARIANTS[0]).x)
    early = min(EARLY, last)
    for variant in VARIANTS:
        places = ((FIRST, "", 1), ("a", "", early), ("b", "", last), ("c", "", last), ("d", " error", None))
        for panel, kind, at in places:
            points = [curves(f"α = {alpha:g}{kind}", variant) for alpha in ALPHAS]
            place = -1 if at is None else at - 1
            y, low, high = (
                np.array([getattr(point, field)[place] for point in points]) for field in ("y", "low", "high")
            )
            found.append(Curve(panel, variant, np.array(ALPHAS), y, low, high))
            for accounting in (PURE, APPROXIMATE):
                lost = [
                    curves(f"α = {alpha:g} {accounting}", variant).y[last - 1 if at is None else at - 1]
                    for alpha in ALPHAS
                ]
                found.append(Curve(f"{panel} {accounting}", variant, np.array(lost), y, low, high))
            # Theorem 1 for every iteration
            summed = np.array(ALPHAS) * (last if at is None else at)
            found.append(Curve(f"{panel} {PUBLISHED}", variant, summed, y, low, high))
    fine = np.geomspace(ALPHAS[0], ALPHAS[-1], 61)
    by_name = {(curve.panel, curve.name): curve for curve in found}
    least = min(curves(f"α = {alpha:g}", "as published").y.min() for alpha in ALPHAS)
    tail = curves(f"α = {ALPHAS[-1]:g}", "as published").from_x(min(20, last)).mean()
    for panel in (FIRST, "a", "b"):
        measured_here = by_name[panel, "as published"]
        fitted = AccuracyLoss.fitted(measured_here.x, measured_here.y)
        models = {
            "L_acc, c4 = 0.2, c5 = 25": AccuracyLoss(0.2, 25, least),
            "L_acc, c4 = 20, c5 = 20": AccuracyLoss(20, 20, float(tail)),
            "L_acc, fitted here": fitted,
        }
        found.append(Curve(panel, "U_priv", fine, UTILITY(fine)))
        for name, model in models.items():
            found.append(Curve(panel, name, fine, model(fine)))
            found.append(Curve(f"{panel} at the measured α", name, np.array(ALPHAS), model(np.array(ALPHAS))))
            alpha = best_alpha(UTILITY, model, low=ALPHAS[0], high=ALPHAS[-1])
            found.append(Curve(f"{panel} best α", name, np.array([alpha]), np.array([UTILITY(alpha) - model(alpha)])))
    return found


def draw(curves: Curves):
    picture, axes = grid(2, 4, size=(3.6, 3.0))
    words = {
        "a": (f"t = {EARLY}", "utility and loss", "log"),
        "b": ("the last iteration", "utility and loss", "log"),
        "c": ("empirical risk", "empirical risk", "log"),
        "d": ("misclassification", "test error", "linear"),
    }
    for column, (panel, (title, ylabel, yscale)) in enumerate(words.items()):
        top, bottom = axes[0, column], axes[1, column]
        plot(top, curves.of(panel), LOOKS)
        if panel in "ab":
            best = curves.of(f"{panel} best α")[-1]
            top.axvline(best.x[0], color="0.7", lw=1, label="best α_p, L_acc fitted here")
        top.set_xscale("log")
        finish(
            top, f"({panel}) {title}", "α_p", ylabel, legend=panel in "bd", yscale="symlog" if panel in "ab" else yscale
        )
        for accounting, line in ((PURE, "-"), (APPROXIMATE, "--")):
            plot(bottom, curves.of(f"{panel} {accounting}"), LOOKS, more=f", {accounting}", ls=line)
        finish(
            bottom,
            f"({panel}') {title}",
            "certified ε so far",
            ylabel,
            legend=panel == "d",
            xscale="log",
            yscale=yscale,
        )
    return picture


def claims(curves: Curves, scale: Scale) -> list[Claim]:
    found = Claims(scale.runs)
    grown = np.linspace(ALPHAS[0], ALPHAS[-1], 200)
    utility = UTILITY(grown)
    found.add(
        "the utility of privacy falls with α_p (text below Assumption 6)",
        -np.max(np.diff(utility)),
        "least fall between neighbours on a grid",
        where="§5, Fig. 3(a)(b)",
    )
    found.add(
        "the utility of privacy grows with α_p (Assumption 6)",
        np.min(np.diff(utility)),
        "least growth between neighbours on a grid",
        where="§5, Assumption 6",
    )
    found.add(
        "the utility of privacy is convex", np.min(np.diff(utility, 2)), "least second difference on a grid", where="§5"
    )
    for panel, t, where in (
        (FIRST, FIRST, "§5"),
        ("a", f"t = {EARLY}", "§5, Fig. 3(a)"),
        ("b", "the last iteration", "§5, Fig. 3(b)"),
    ):
        seen = curves(panel, "as published").y
        models = {
            "L_acc, c4 = 0.2, c5 = 25": "'applicable at all iterations'",
            "L_acc, c4 = 20, c5 = 20": "for t > 1",
            "L_acc, fitted here": "the form c4 exp(−c5 α) + c6, constants fitted here",
        }
        if panel == FIRST:
            del models["L_acc, c4 = 20, c5 = 20"]
        for name, said in models.items():
            away = np.mean(np.abs(curves(f"{panel} at the measured α", name).y / seen - 1))
            found.add(
                f"{name} ({said}) describes the losses at {t}",
                CLOSE - away,
                f"{CLOSE:g} minus the mean relative distance over {len(ALPHAS)} values of α_p",
                where=where,
            )
        for name in list(models)[-2:]:
            inside = curves(f"{panel} best α", name).x[0]
            found.add(
                f"utility minus loss has its maximum strictly inside the range at {t} ({name})",
                min(inside / ALPHAS[0], ALPHAS[-1] / inside) - 1.001,
                "distance of the best α_p from the ends of the range, as a ratio less one",
                where="§5, design",
            )
    for variant in VARIANTS:
        for panel, what in (("c", "empirical risk"), ("d", "misclassification")):
            found.add(
                f"{what} falls as α_p grows ({variant})",
                -np.max(np.diff(curves(panel, variant).y)),
                "least fall from one α_p to the next",
                where=f"§5, §6, Fig. 3({panel})",
            )
        for accounting in ACCOUNTINGS:
            lost = curves(f"d {accounting}", variant).x
            own = " by Theorem 1, summed over iterations," if accounting == PUBLISHED else ""
            found.add(
                f"accuracy is paid for with privacy: the loss of the run grows with α_p ({variant})",
                np.min(np.diff(lost)),
                f"least growth of ε,{own} from one α_p to the next",
                where="§6, Fig. 3(c)(d)",
                accounting=accounting,
            )
            found.add(
                f"the final output loses α_p ({variant})",
                1 + ROUNDING - np.max(lost / np.array(ALPHAS)),
                f"1 minus the largest ratio of the loss of everything that was broadcast,{own} to α_p "
                "(1e-6 allowed for rounding)",
                where="§6",
                accounting=accounting,
            )
    return found


FIGURES = (
    Figure(
        name="dvp-3",
        citation="zhang-zhu-2016",
        title="DVP Fig. 3: privacy against accuracy",
        parts={
            "exact": Part(compute=_exact, cost=3.0),
            **{f"{alpha:g}-{i}": _part(alpha, variant) for alpha in ALPHAS for i, variant in enumerate(VARIANTS)},
        },
        draw=draw,
        claims=claims,
        choices=(
            *CHOICES,
            chosen("α_p", ALPHAS, "not printed; those of Fig. 2 and values between"),
            printed("ω", "(0.02, 6, 9, 1)"),
            printed("c4, c5, c6", "(0.2, 25, least C(t)); for t > 1 (20, 20, mean of C(t) from t = 20)"),
            chosen("c6 for t > 1", "mean of C(t) at the largest α_p", "not printed at which α_p"),
            printed("t", "2 and 100"),
            chosen("t = 1", "in the claims alone", "constants are printed for it, but no panel"),
            chosen("misclassification on", "held-out records", "not printed"),
        ),
        full=(10, 100),
        quick=(2, 6),
        derived=_derived,
    ),
)
