"""What the text of Cyffers, Bellet & Basu (2023) says about Figure 1, decided by the curves of `fixed_point_lasso`."""

import math

import numpy as np

from coterie.papers.figure import Claim, Curve, Curves, Scale
from coterie.papers.fixed_point.lasso import ADMM, PICKED, PUBLIC_DATA, SGD, TUNING_RUNS
from coterie.papers.measures import APPROXIMATE, PUBLISHED

HIGH_PRIVACY = 1.0  # up to this ε
EARLY = 10  # rounds that count as the beginning of training


def claims(curves: Curves, scale: Scale) -> list[Claim]:
    found: list[Claim] = []

    def add(text: str, accounting: str, margin: float, means: str, runs: int = scale.runs) -> None:
        found.append(
            Claim(
                text=text,
                where="Appendix E, Fig. 1",
                accounting=accounting,  # type: ignore[arg-type]
                margin=float(margin),
                margin_means=means,
                runs=runs,
            )
        )

    contests = [(PUBLISHED, ADMM, curves("a", ADMM), curves("a", SGD))]
    sgd = curves("b", SGD)
    contests += [(APPROXIMATE, c.name, c, sgd) for c in curves.of("b") if c.name.startswith("M")]
    for accounting, name, admm, other in contests:
        for k in np.flatnonzero(admm.x <= HIGH_PRIVACY):
            epsilon, lead = f"ε = {admm.x[k]:g}", other.y[k] - admm.y[k]
            add(
                f"{name} does especially well at high privacy: below DP-SGD at {epsilon}",
                accounting,
                lead,
                "difference of the mean test objectives",
            )
            add(
                f"the improvement of {name} over DP-SGD is significant at {epsilon}",
                accounting,
                lead - _std(admm)[k] - _std(other)[k],
                "difference of the mean test objectives minus both standard deviations",
            )
    for accounting, panel in ((PUBLISHED, "a"), (APPROXIMATE, "b")):
        for curve in curves.of(panel):
            add(
                f"{curve.name} goes flat for large ε",
                accounting,
                0.1 - abs(math.log(curve.y[-1] / curve.y[-2])),
                "0.1 minus |ln| of the ratio of the mean objectives at the two largest ε",
            )
    for name in (ADMM, SGD):
        flat, retuned = curves("a", name), curves("a retuned", name)
        add(
            f"tuning {name} for each budget would gain but little (at the largest ε)",
            PUBLISHED,
            0.1 - (1 - retuned.last / flat.last),
            "0.1 minus the relative gain in the mean objective from tuning at that ε",
        )
    for curve in curves.of("b"):
        if curve.name != SGD and not curve.name.startswith("M"):
            continue
        lowest, largest = (curves(PICKED, f"{curve.name}, ε = {epsilon:g}").y for epsilon in curve.x[[0, -1]])
        (first_step, *_, first_rounds), (last_step, *_, last_rounds) = lowest, largest
        tuned = TUNING_RUNS * len(PUBLIC_DATA)
        add(
            f"low privacy asks for more training steps of {curve.name}",
            APPROXIMATE,
            math.log(last_rounds / first_rounds),
            f"ln of the rounds picked at the largest ε over those at the smallest ({last_rounds:g}, {first_rounds:g})",
            tuned,
        )
        add(
            f"low privacy asks for smaller step sizes of {curve.name}",
            APPROXIMATE,
            math.log(first_step / last_step),
            f"ln of the step picked at the smallest ε over that at the largest ({first_step:g}, {last_step:g})",
            tuned,
        )
        flat = SGD if curve.name == SGD else ADMM
        add(
            f"with settings for low privacy {curve.name} gets below the flat end of {flat}",
            APPROXIMATE,
            curves("a", flat).last - curve.last,
            "mean objective at the largest ε: paper's protocol, ε as stated, minus settings for that ε, certified",
        )
    admm, other, without_noise = curves("a certified", ADMM), curves("a certified", SGD), curves("without noise", SGD)
    for k in np.flatnonzero(curves("a", ADMM).x <= HIGH_PRIVACY):
        within = admm.x[k] <= other.x[-1]
        rival = math.exp(np.interp(math.log(admm.x[k]), np.log(other.x), np.log(other.y)))
        add(
            f"private ADMM's runs at ε = {curves('a', ADMM).x[k]:g} as published are below DP-SGD at the ε they cost, "
            f"{admm.x[k]:.3g}",
            APPROXIMATE,
            (rival if within else min(rival, without_noise.last)) - admm.y[k],
            "difference of the mean test objectives, DP-SGD's "
            + ("interpolated" if within else f"as without noise, for it was run up to ε = {other.x[-1]:.3g} only"),
        )
    early = min(EARLY, len(curves("without noise", ADMM).y)) - 1
    add(
        f"ADMM converges fast at the beginning: below DP-SGD after {early + 1} rounds without noise",
        "none",
        curves("without noise", SGD).y[early] - curves("without noise", ADMM).y[early],
        "difference of the test objectives",
        1,
    )
    stated, certified = curves("a", ADMM).x, curves("a certified", ADMM).x
    add(
        "private ADMM's runs cost what Theorem 3 says",
        APPROXIMATE,
        math.log(1.001) - np.max(np.log(certified / stated)),
        "0.1 % minus ln of the largest ratio of certified to published ε "
        f"(ratios {np.min(certified / stated):.3g} to {np.max(certified / stated):.3g})",
    )
    return found


def _std(curve: Curve) -> np.ndarray:
    assert curve.high is not None
    return curve.high - curve.y
