"""The figures of recycled ADMM and of noisy fixed-point iterations, and the frontier, in the small."""

import json

import numpy as np
import pytest

from coterie.papers import runner
from coterie.papers.bounds import published_bound
from coterie.papers.figure import Curve, Curves, Scale, find
from coterie.papers.fixed_point import figure_1 as fixed_point
from coterie.papers.frontier import diffprivlib as frontier_diffprivlib
from coterie.papers.frontier import figure as frontier
from coterie.papers.frontier import methods as frontier_methods
from coterie.papers.measures import APPROXIMATE, PUBLISHED, PURE
from coterie.papers.panels import MOVES, SUM_OF_MOVES, SUM_OF_STATES
from coterie.papers.recycled import figure_1 as convergence
from coterie.papers.recycled import figure_5 as comparison
from coterie.papers.recycled import figures_3_and_4 as settings
from coterie.papers.recycled.experiment import (
    WITHOUT_NOISE,
    five_nodes,
    growing,
    iterates,
    privacy_by_iteration,
    recycled,
    with_published_total,
)
from coterie.papers.runner import reproduce
from coterie.values import Schedule

TINY = Scale(runs=2, iterations=2, quick=True)


def test_even_iterations_are_the_paper_s_step_in_released_values():
    nodes, gamma = five_nodes(), 0.5
    penalty = growing((1.0, 1.03, 1.02, 0.8, 1.01), (1.02, 1.01, 1.006, 1.03, 1.02))
    plan = nodes.plan(recycled(penalty, gamma=gamma, noise_rate=1.0), l2=0.22, rounds=3)
    odd = np.random.default_rng(0).normal(size=(2, 3, 5, plan.facts.n_features))
    found = iterates(plan, odd)
    adjacency = np.zeros((5, 5))
    for i, j in nodes.topology.edges:
        adjacency[i, j] = adjacency[j, i] = 1
    degree = adjacency.sum(axis=1)[:, None]
    last = np.zeros_like(odd[:, 0])
    for k in range(3):
        eta = np.array([penalty.at(k, i) for i in range(5)])[:, None]
        f = odd[:, k]
        apart = degree * f - adjacency @ f
        pulls = 2 * degree * f - degree * last - adjacency @ last
        last = f - (2 * eta * apart - eta * pulls) / (2 * eta * degree + gamma)
        np.testing.assert_array_equal(found[:, 2 * k], f)
        np.testing.assert_allclose(found[:, 2 * k + 1], last, atol=1e-12)


def test_the_printed_schedule():
    penalty = growing(1.0, 1.04)
    assert [penalty.at(k, 0) for k in range(3)] == pytest.approx([1.04, 1.04**2, 1.04**3])


def test_privacy_is_lost_at_odd_iterations_alone():
    plan = five_nodes().plan(recycled(Schedule(1.0), noise_rate=1.0), l2=0.22, rounds=3)
    curves = privacy_by_iteration("d", "R-ADMM", plan)
    assert all(curve.x.tolist() == [1, 3, 5] for curve in curves)
    published, pure, approximate = curves
    assert published.last == pytest.approx(published_bound(plan).total)
    assert pure.last == pytest.approx(plan.pure_epsilon())
    assert approximate.last <= pure.last <= published.last


@pytest.mark.parametrize("accounting", [PUBLISHED, PURE, APPROXIMATE])
def test_the_four_algorithms_are_matched_in_every_accounting(accounting):
    scale = Scale(runs=1, iterations=10)
    reference = comparison._recycled_plans(1.0, scale)["R-ADMM"]
    loss = {
        PUBLISHED: lambda plan: published_bound(plan).total,
        PURE: lambda plan: plan.pure_epsilon(),
        APPROXIMATE: lambda plan: plan.epsilon(1e-6),
    }[accounting]
    matched = comparison._matched(accounting, reference, scale)
    assert set(matched) == {"ADMM", "M-ADMM"}
    for plan in matched.values():
        assert loss(plan) == pytest.approx(loss(reference), rel=1e-6)


def test_a_bound_below_the_jacobian_s_share_cannot_be_had():
    assert with_published_total(lambda level: frontier_methods.published_plan("R-ADMM", 5, 50, level), 1e-3) is None


def test_a_figure_end_to_end(tmp_path):
    result = reproduce(find(["mr-3"]), tmp_path, scale=TINY)[0]
    names = ("figure.png", "curves.csv", "claims.json", "settings.json", "page.md")
    assert all((result.directory / name).stat().st_size for name in names)
    claims = json.loads((result.directory / "claims.json").read_text(encoding="utf-8"))
    assert {c["accounting"] for c in claims} == {"none", PUBLISHED, PURE, APPROXIMATE}
    # gamma costs nothing
    assert all(c["holds"] for c in claims if c["accounting"] != "none")


def test_odd_iterations_make_up_for_a_rise_only_where_there_was_one():
    def claims(losses):
        x = np.arange(1, len(losses) + 1)
        names = ("ADMM", "γ = 0", "γ = 1")
        curves = [Curve(f"a, N = 5{kind}", name, x, np.array(losses)) for kind in ("", " excess") for name in names]
        found = convergence._claims_a(Curves(curves), 5)
        return [claim.margin for claim in found if "make up for the rise" in claim.text]

    # 0.45 follows no rise
    assert claims([0.5, 0.6, 0.4, 0.39, 0.45, 0.4]) == pytest.approx([0.1])
    assert claims([0.5, 0.6, 0.55, 0.5]) == pytest.approx([-0.05])
    assert not claims([0.5, 0.4, 0.45, 0.4])


def test_a_penalty_that_grows_too_fast_does_not_refute_one_that_grows():
    x, curves = np.arange(1, 11), []
    growths, levels = (1.0, 1.01, 1.02, 1.03), np.array([0.5, 0.45, 0.4, 0.6])
    for panel, (privacy_panel, alpha) in settings.PANELS_4.items():
        for growth, level in zip(growths, levels, strict=True):
            name, same = f"q₁ = {growth:g}", np.full(10, level / alpha)
            curves.append(Curve(panel, name, x, same, same, same))
            curves += [Curve(f"{privacy_panel} {kind}", name, x, x) for kind in (PUBLISHED, PURE, APPROXIMATE)]
        curves.append(Curve("e", f"α = {alpha:g}", np.array(growths), levels[::-1] / alpha))
    claims = {claim.text: claim for claim in settings._claims_4(Curves(curves), TINY)}
    assert claims["an increasing penalty can lower the loss (q₁ = 1.02 against constant, α = 1)"].holds
    assert claims["within a range, the faster the penalty increases, the lower the loss (α = 1)"].margin == (
        pytest.approx(0.05)
    )
    assert claims["within a range, the faster the penalty increases, the lower the error rate (α = 2)"].holds


def test_comparison_reads_each_accounting_off_the_runs_matched_under_it():
    x, curves = np.arange(1, 5), []
    level = {"ADMM": 0.5, "M-ADMM": 0.45, "R-ADMM": 0.4, "MR-ADMM": 0.35, WITHOUT_NOISE: 0.3}
    for panel, (privacy_panel, alpha) in comparison.ALPHAS.items():
        for accounting in (PUBLISHED, PURE):
            for name, y in level.items():
                if accounting == PURE and name not in ("ADMM", "M-ADMM"):
                    continue
                # with equal certified loss the others win
                y = y if accounting == PUBLISHED else 0.2
                same = np.full(4, y)
                curves.append(Curve(f"{panel} {accounting}", name, x, same, same, same))
                one = same[:1]
                curves.append(Curve(f"g {accounting}", f"{name}, {panel}", np.array([alpha]), one, one, one))
                if accounting == PUBLISHED:
                    kinds = (PUBLISHED, PURE, APPROXIMATE)
                    curves += [Curve(f"{privacy_panel} {kind}", name, x, x * y) for kind in kinds]
    made = Curves(curves)
    claims = comparison.claims(made, TINY)
    assert {c.holds for c in claims if "lower loss than" in c.text and c.accounting == PUBLISHED} == {True}
    assert {c.holds for c in claims if "lower loss than" in c.text and c.accounting == PURE} == {False}
    assert not [c for c in claims if c.accounting == APPROXIMATE]
    comparison.draw(made)


# --- fixed point ------------------------------------------------------------------------------------------------------


def test_the_lasso_s_noise_costs_what_it_is_asked_to():
    setting = fixed_point.Setting(10, 1.0, 0.1)
    for method, accountant in ((MOVES, "best"), (SUM_OF_STATES, "best"), ("DP-SGD", "pld")):
        plan = fixed_point.plan_of(method, setting, fixed_point.certified_multiplier(method, 10, 1.0))
        assert 0.97 < plan.epsilon(fixed_point.DELTA, accountant=accountant) <= 1.0 + 1e-9


def test_theorem_3_asks_for_far_less_noise_than_is_certified():
    rounds, epsilon = 100, 1.0
    published = fixed_point.published_multiplier(rounds, epsilon)
    plan = fixed_point.plan_of(MOVES, fixed_point.Setting(rounds, 1.0, 0.1), published)
    assert plan.epsilon(fixed_point.DELTA) > 10 * epsilon


def test_the_lasso_runs_are_those_of_the_seed():
    setting = fixed_point.Setting(2, 1.0, 0.1)
    first, again, other = (
        fixed_point.models(SUM_OF_MOVES, setting, 1.0, data=3, noise=seed, repeats=2)["last"] for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert fixed_point.objective(first, 3).shape == (2,)


def test_claims_about_the_lasso_need_no_method_of_a_full_run():
    x = np.array([0.1, 1.0])

    def falling(panel, name, start):
        y = np.array([start, start * 0.99])
        return Curve(panel, name, x, y, y * 0.99, y * 1.01)

    admm, sgd = fixed_point.ADMM, fixed_point.SGD
    curves = [
        *(falling(panel, name, y) for panel in ("a", "a retuned") for name, y in ((admm, 0.01), (sgd, 0.02))),
        *(falling("b", name, y) for name, y in ((SUM_OF_MOVES, 0.03), (sgd, 0.02))),
        Curve("a certified", admm, 5 * x, 0.01 * x, x, x),
        falling("a certified", sgd, 0.02),
        *(
            Curve(fixed_point.PICKED, f"{name}, ε = {epsilon:g}", np.arange(4), np.array(picked))
            for name in (SUM_OF_MOVES, sgd)
            for epsilon, picked in ((0.1, (1.0, 0.1, 0.5, 3.0)), (1.0, (0.25 if name == sgd else 1.0, 0.1, 0.5, 30.0)))
        ),
        *(Curve("without noise", name, np.arange(1, 4), np.full(3, y)) for name, y in ((admm, 0.01), (sgd, 0.02))),
    ]
    claims = fixed_point.claims(Curves(curves), TINY)
    assert all(np.isfinite(c.margin) for c in claims)
    verdict = {(c.accounting, c.text.split(":")[0]): c.holds for c in claims}
    for name, smaller_steps in ((SUM_OF_MOVES, False), (sgd, True)):
        assert verdict[APPROXIMATE, f"low privacy asks for more training steps of {name}"]
        assert verdict[APPROXIMATE, f"low privacy asks for smaller step sizes of {name}"] == smaller_steps
    at_their_cost = [c for c in claims if "at the ε they cost" in c.text]
    assert [c.margin_means.split(", DP-SGD's ")[1].split()[0] for c in at_their_cost] == ["interpolated", "as"]
    assert [c.holds for c in at_their_cost] == [True, True]
    assert verdict[PUBLISHED, "private ADMM does especially well at high privacy"]
    assert not verdict[APPROXIMATE, f"{SUM_OF_MOVES} does especially well at high privacy"]
    assert not verdict[APPROXIMATE, "private ADMM's runs cost what Theorem 3 says"]


# --- frontier ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", frontier_methods.METHODS)
def test_every_method_of_the_frontier_costs_what_it_says(method):
    plan = frontier_methods.plan_at(method, 5, 1.0, most_rounds=20)
    assert 0.999 < plan.epsilon(1e-6) <= 1.0 + 1e-9


@pytest.mark.parametrize(("size", "method"), frontier_methods.ITERATIONS)
def test_published_runs_have_a_bound_whose_conditions_on_weights_hold(size, method):
    plan = frontier_methods.published_plan(method, size, 4, 1.0)
    bound = published_bound(plan)
    assert bound is not None
    assert bound.total > 0
    # C <= B_i
    assert all(plan.problem.weight_of_one_record(records) <= 1 for records in plan.facts.sizes)


def test_every_method_of_the_frontier_looks_different():
    for kind in ("color", "marker"):
        assert len({frontier.LOOKS[method][kind] for method in frontier_methods.METHODS}) == len(frontier.METHODS)


def test_where_a_curve_first_comes_near():
    curve = Curve("", "", np.array([1.0, 4.0]), np.array([0.2, 0.1]))
    inside = frontier.first_within(curve, 0.15)
    assert inside.exact
    assert inside.value == pytest.approx(2.0)
    assert frontier.first_within(curve, 0.3).text() == "≤ 1"
    assert frontier.first_within(curve, 0.05).text() == "> 4"
    coarse = Curve("", "", np.array([1.0, 8.0]), np.array([0.2, 0.1]))
    assert frontier.first_within(coarse, 0.15).text() == "1 to 8"


def _drawn_up(x, **by_method):
    """A frontier at N = 5, errors without noise 0.15; keys are methods, with `published_` before a paper's own runs."""
    curves = [
        Curve(frontier.WITHOUT_NOISE, frontier.WITHOUT_NOISE, x, np.full(2, 0.15)),
        *(Curve(f"N = {n}", frontier.ONE_NOISE_LINE, x, np.array([0.16, 0.155])) for n in (1, 5, 20, 100)),
        *(Curve(f"N = {n}", frontier.LINE, x, np.array([0.165, 0.159])) for n in (5, 100)),
    ]
    for name, y in by_method.items():
        own = name.startswith("published_")
        panel, at = ("N = 5, as published", np.array([16.0, 64.0])) if own else ("N = 5", x)
        curves.append(Curve(panel, name.removeprefix("published_"), at, np.array(y)))
    return Curves(curves)


def test_the_table_of_the_frontier():
    curves = _drawn_up(
        np.array([1.0, 4.0]),
        **{
            "PP": (0.17, 0.15), "published_PP": (0.17, 0.15), MOVES: (0.3, 0.2), "DVP": (0.17, 0.15),
            "published_DVP": (0.3, 0.2), "PVP": (0.155, 0.15), SUM_OF_STATES: (0.162, 0.161),
            "R-ADMM": (0.15, 0.15), "published_R-ADMM": (0.15, 0.15),
        },
    )  # fmt: skip
    cells = {row.method: row.cells()[2:] for row in frontier.rows(curves)}
    assert cells == {
        "PP": ["2", "32", "16"],
        MOVES: ["> 4", "", ""],
        "DVP": ["2", "> 64", "≥ 32"],
        "PVP": ["≤ 1", "", ""],
        SUM_OF_STATES: ["> 4", "", ""],
        "R-ADMM": ["≤ 1", "≤ 16", "?"],
    }
    text = frontier.as_markdown(curves)
    assert "| 5 | DVP | 2 | > 64 | ≥ 32 |" in text.splitlines()
    derived = {(c.panel, c.name): c for c in frontier.as_curves(curves)}
    times = derived["table: times less", "DVP"]
    assert (times.x, times.low, times.high) == ([5], [pytest.approx(32)], [np.inf])
    assert ("table: times less", "R-ADMM") not in derived
    section = runner.section(frontier.FIGURES[0], curves, frontier.claims(curves, TINY), TINY)
    assert text in section


def test_claims_of_the_frontier():
    curves = _drawn_up(
        np.array([1.0, 4.0]),
        **{
            "PP": (0.166, 0.15), "published_PP": (0.17, 0.15), "DVP": (0.3, 0.2), "published_DVP": (0.3, 0.2),
            SUM_OF_STATES: (0.164, 0.158), SUM_OF_MOVES: (0.27, 0.161),
        },
    )  # fmt: skip
    verdict = {c.text: c.holds for c in frontier.claims(curves, TINY)}
    below = "does so at a certified ε below its paper's own bound at that error"
    assert verdict[f"{below} (PP, N = 5)"]
    # neither comes near, so nothing is known
    assert f"{below} (DVP, N = 5)" not in verdict
    line = "is within half a point of the reference line for one noise at every ε"
    assert verdict[f"{SUM_OF_STATES}, N = 5, {line}"]
    assert not verdict[f"{SUM_OF_MOVES}, N = 5, {line}"]
    assert verdict["the best method at N = 5, ε = 1 is within half a point of the reference line for as many noises"]
    picture = frontier.draw(curves)
    titles = [axes.get_title() for axes in picture.axes]
    # what is above the axis is marked where there is such
    assert sum("▲" in title for title in titles) == 1


def test_diffprivlib_is_left_out_where_it_is_not_installed(monkeypatch, tmp_path):
    monkeypatch.setenv(frontier_diffprivlib.INTERPRETER_VARIABLE, str(tmp_path / "none"))
    nothing = np.zeros((1, 1))
    assert (
        frontier_diffprivlib.test_errors(nothing, nothing[0], nothing, nothing[0], epsilons=[1.0], runs=1, seed=0)
        is None
    )
