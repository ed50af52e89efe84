"""The figures of recycled ADMM and of noisy fixed-point iterations, and the frontier, in the small."""

import json

import numpy as np
import pytest

from coterie.reproduce import (
    fixed_point,
    fixed_point_lasso,
    frontier,
    frontier_diffprivlib,
    frontier_methods,
    frontier_table,
)
from coterie.reproduce import recycled_comparison as comparison
from coterie.reproduce.figure import Curve, Curves, Scale
from coterie.reproduce.measures import APPROXIMATE, PUBLISHED, PURE
from coterie.reproduce.recycled import (
    WITHOUT_NOISE,
    five_nodes,
    growing,
    iterates,
    privacy_by_iteration,
    recycled,
    with_published_total,
)
from coterie.reproduce.registry import find
from coterie.reproduce.runner import reproduce
from coterie.schedules import Schedule
from coterie.theory.published import published_bound

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
    assert with_published_total(lambda level: frontier_methods.published_plan("R-ADMM", 5, level), 1e-3) is None


def test_a_figure_end_to_end(tmp_path):
    result = reproduce(find(["mr-3"]), tmp_path, scale=TINY)[0]
    names = ("figure.png", "curves.csv", "claims.json", "settings.json", "page.md")
    assert all((result.directory / name).stat().st_size for name in names)
    claims = json.loads((result.directory / "claims.json").read_text(encoding="utf-8"))
    assert {c["accounting"] for c in claims} == {"none", PUBLISHED, PURE, APPROXIMATE}
    assert all(c["holds"] for c in claims if c["accounting"] != "none")  # gamma costs nothing


def test_comparison_reads_each_accounting_off_the_runs_matched_under_it():
    x, curves = np.arange(1, 5), []
    level = {"ADMM": 0.5, "M-ADMM": 0.45, "R-ADMM": 0.4, "MR-ADMM": 0.35, WITHOUT_NOISE: 0.3}
    for panel, (privacy_panel, alpha) in comparison.ALPHAS.items():
        for accounting in (PUBLISHED, PURE):
            for name, y in level.items():
                if accounting == PURE and name not in ("ADMM", "M-ADMM"):
                    continue
                y = y if accounting == PUBLISHED else 0.2  # with equal certified loss the others win
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
    for method, accountant in (("M1", "best"), ("M3", "best"), ("DP-SGD", "pld")):
        plan = fixed_point.plan_of(method, setting, fixed_point.certified_multiplier(method, 10, 1.0))
        assert 0.97 < plan.epsilon(fixed_point.DELTA, accountant=accountant) <= 1.0 + 1e-9


def test_theorem_3_asks_for_far_less_noise_than_is_certified():
    rounds, epsilon = 100, 1.0
    published = fixed_point.published_multiplier(rounds, epsilon)
    plan = fixed_point.plan_of("M1", fixed_point.Setting(rounds, 1.0, 0.1), published)
    assert plan.epsilon(fixed_point.DELTA) > 10 * epsilon


def test_the_lasso_runs_are_those_of_the_seed():
    setting = fixed_point.Setting(2, 1.0, 0.1)
    first, again, other = (
        fixed_point.models("M2", setting, 1.0, data=3, noise=seed, repeats=2)["last"] for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert fixed_point.objective(first, 3).shape == (2,)


def test_claims_about_the_lasso_need_no_method_of_a_full_run():
    x = np.array([0.1, 1.0])

    def falling(panel, name, start):
        y = np.array([start, start * 0.99])
        return Curve(panel, name, x, y, y * 0.99, y * 1.01)

    admm, sgd = fixed_point_lasso.ADMM, fixed_point_lasso.SGD
    curves = [
        *(falling(panel, name, y) for panel in ("a", "a retuned") for name, y in ((admm, 0.01), (sgd, 0.02))),
        *(falling("b", name, y) for name, y in (("M2", 0.03), (sgd, 0.02))),
        Curve("a certified", admm, 20 * x, x, x, x),
        *(Curve("without noise", name, np.arange(1, 4), np.full(3, y)) for name, y in ((admm, 0.01), (sgd, 0.02))),
    ]
    claims = fixed_point_lasso.claims(Curves(curves), TINY)
    verdict = {(c.accounting, c.text.split(":")[0]): c.holds for c in claims}
    assert verdict[PUBLISHED, "private ADMM does especially well at high privacy"]
    assert not verdict[APPROXIMATE, "M2 does especially well at high privacy"]
    assert not verdict[APPROXIMATE, "private ADMM's runs cost what Theorem 3 says"]


# --- frontier ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", frontier_methods.METHODS)
def test_every_method_of_the_frontier_costs_what_it_says(method):
    plan = frontier_methods.plan_at(method, 5, 1.0, most_rounds=20)
    assert 0.999 < plan.epsilon(1e-6) <= 1.0 + 1e-9


def test_where_a_curve_first_comes_near():
    curve = Curve("", "", np.array([1.0, 4.0]), np.array([0.2, 0.1]))
    assert frontier_table.first_within(curve, 0.15) == pytest.approx(2.0)
    assert frontier_table.first_within(curve, 0.3) == 1.0
    assert frontier_table.first_within(curve, 0.05) is None


def test_the_table_of_the_frontier():
    x = np.array([1.0, 4.0])
    curves = Curves(
        [
            Curve(frontier.WITHOUT_NOISE, frontier.WITHOUT_NOISE, x, np.full(2, 0.15)),
            Curve("N = 5", frontier.LINE, x, np.array([0.165, 0.159])),
            Curve("N = 1", frontier.LINE, x, np.array([0.165, 0.159])),
            Curve("N = 100", frontier.LINE, x, np.array([0.165, 0.159])),
            Curve("N = 5", "PP", x, np.array([0.17, 0.15])),
            Curve("N = 5", "M1", x, np.array([0.3, 0.2])),
            Curve("N = 5", "DVP", x, np.array([0.17, 0.15])),
            Curve("N = 5, as published", "PP", np.array([16.0, 64.0]), np.array([0.17, 0.15])),
            Curve("N = 5, as published", "DVP", np.array([16.0, 64.0]), np.array([0.3, 0.2])),
        ]
    )
    rows = {row.method: row for row in frontier_table.table(curves)}
    assert rows["PP"].times_less == pytest.approx(16.0)
    assert rows["M1"].cells() == ["5", "M1", "never", "", ""]
    assert rows["DVP"].cells()[-1] == "> 32"
    assert frontier.claims(curves, TINY)
    frontier.draw(curves)


def test_diffprivlib_is_left_out_where_it_is_not_installed(monkeypatch, tmp_path):
    monkeypatch.setenv(frontier_diffprivlib.INTERPRETER_VARIABLE, str(tmp_path / "none"))
    nothing = np.zeros((1, 1))
    assert (
        frontier_diffprivlib.test_errors(nothing, nothing[0], nothing, nothing[0], epsilons=[1.0], runs=1, seed=0)
        is None
    )
