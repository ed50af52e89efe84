"""Estimates and intervals from noised moments, and what people see of them."""

import copy
import functools
import json
import math
import pickle

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import binom, norm

import coterie
from coterie import PrivateLinearSVC, PrivateLogisticRegression, PrivateRidge
from coterie.data.schema import CategoryColumn, Label, NumberColumn, Schema
from coterie.engines.in_process import run
from coterie.errors import InputError
from coterie.inference import Columns
from coterie.inference.estimate import Equations, LogisticRows, Quadratic, Stage, identified
from coterie.privacy.noise import Seeded
from coterie.problems import L2, Logistic, Multinomial, Problem
from coterie.rules import Settled, Wanted, make_plan

DELTA = 1e-6


def symmetric(rng, shape, p, std):
    upper = np.triu(rng.normal(0, std / math.sqrt(2), (*shape, p, p)), 1)
    return upper + np.swapaxes(upper, -1, -2) + np.eye(p) * rng.normal(0, std, (*shape, p))[..., None, :]


# --- the law of the estimate ------------------------------------------------------------------------------------------

REPEATS, PARTIES = 400, 4
THETA = np.array([2.0, -1.0, 0.0, 1.0])
# the last column is 1/2
CONSTANT = np.array([0.0, 0.0, 0.0, 2.0])


@functools.cache
def simulated():
    """400 data sets of 1,000 records: two stages of noised logistic moments, of four noises each."""
    rng = np.random.default_rng(7)
    X = rng.uniform(-0.5, 0.5, (REPEATS, 1000, 4))
    X[..., -1] = 0.5
    y = rng.random(X.shape[:2]) < expit(X @ THETA)
    model, stages = THETA + rng.normal(0, 0.6, (REPEATS, 4)), []
    for g_std, h_std in ((12.0, 1.2), (6.0, 0.5)):
        p = expit(np.einsum("rni,ri->rn", X, model))
        gradient = np.einsum("rni,rn->ri", X, p - y) + rng.normal(0, g_std, (REPEATS, PARTIES, 4)).sum(axis=1)
        hessian = np.einsum("rni,rn,rnj->rij", X, p * (1 - p), X)
        hessian = hessian + symmetric(rng, (PARTIES, REPEATS), 4, h_std).sum(axis=0)
        many = math.sqrt(PARTIES)
        stages.append(Stage(model, gradient, hessian, g_std * many, h_std * many))
        model = Equations(stages, constant=CONSTANT).next_model(1.0)
    return stages


def covered(equations: Equations) -> np.ndarray:
    """By coefficient, in how many repetitions the 95 % interval holds the truth."""
    deviations = equations.deviations(equations.solve(), np.eye(4), np.broadcast_to(THETA, (REPEATS, 4)))
    return (np.abs(deviations) < norm.ppf(0.975)).sum(axis=0)


def test_intervals_cover_as_often_as_they_say_and_mutants_do_not(monkeypatch):
    """Each count is Binomial(400, 0.95) but for second order; 1e-4 of false alarm each, 0.92 to 0.98 or so."""
    low, high = binom.ppf([1e-4, 1 - 1e-4], REPEATS, 0.95) + np.array([-3, 3])
    equations = Equations(simulated(), constant=CONSTANT)
    assert identified(equations, np.eye(4), equations.solve()).mean() > 0.99
    assert ((covered(equations) >= low) & (covered(equations) <= high)).all(), covered(equations)

    one_noise = [
        stage._replace(gradient_std=stage.gradient_std / 2, hessian_std=stage.hessian_std / 2) for stage in simulated()
    ]
    assert (covered(Equations(one_noise, constant=CONSTANT)) < low).all()

    honest = Equations.covariances
    monkeypatch.setattr(Equations, "covariances", lambda *args: (honest(*args)[0], 0 * honest(*args)[1]))
    assert (covered(Equations(simulated(), constant=CONSTANT)) < low).all()


def test_an_interval_holds_just_the_values_that_are_not_refused():
    stages = [
        stage._replace(**{part: getattr(stage, part)[:3] for part in ("model", "gradient", "hessian")})
        for stage in simulated()
    ]
    equations = Equations(stages, constant=CONSTANT)
    estimate = equations.solve()
    np.testing.assert_allclose(equations(estimate)[0], 0, atol=1e-6)
    low, high = equations.interval(estimate, np.eye(4), 1.5)
    assert (low < estimate).all()
    assert (estimate < high).all()
    np.testing.assert_allclose(equations.deviations(estimate, np.eye(4), low), 1.5, atol=1e-3)
    np.testing.assert_allclose(equations.deviations(estimate, np.eye(4), high), -1.5, atol=1e-3)
    np.testing.assert_allclose(equations.deviations(estimate, np.eye(4), estimate), 0, atol=1e-3)


def test_without_noise_and_curvature_that_stays_the_interval_is_wald_s():
    rng = np.random.default_rng(0)
    A = rng.normal(size=(50, 3))
    H = A.T @ A
    stage = Stage(np.zeros(3), H @ np.array([1.0, 2.0, 3.0]), H, 1e-9, 1e-12)
    equations = Equations([stage])
    estimate = equations.solve()
    np.testing.assert_allclose(estimate, [-1, -2, -3], atol=1e-9)
    low, high = equations.interval(estimate, np.eye(3), 1.96)
    np.testing.assert_allclose((high - low) / 2, 1.96 * np.sqrt(np.diag(np.linalg.inv(H))), rtol=1e-4)


def test_rows_that_are_normal_give_the_gradient_s_move_exactly():
    """Rows drawn with density proportional to a normal one over sigma' are normal under the curvature weights."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(0, 0.5, (400_000, 2)) @ np.array([[1, 0.3], [0, 1]]), np.ones(400_000)])
    f, v = np.array([0.8, -0.5, -1.5]), np.array([0.5, 0.4, -1.0])
    p, q = expit(X @ f), expit(X @ (f + v))
    weight = 1 / (p * (1 - p))
    gradient = (weight * (q - p)) @ X / len(X)
    hessian = X.T @ X / len(X)
    moved, derivative, reach = LogisticRows(f, hessian, np.array([0.0, 0.0, 1.0]))(v)
    np.testing.assert_allclose(moved, gradient, atol=0.01)
    exact = (X * (weight * q * (1 - q))[:, None]).T @ X / len(X)
    np.testing.assert_allclose(derivative, exact, atol=0.02)
    np.testing.assert_allclose(hessian @ reach, moved, atol=1e-12)
    # what a Hessian alone would say
    assert np.abs(Quadratic(hessian)(v)[0] - gradient).max() > 0.2


def test_noise_of_a_hessian_moves_the_gradient_by_the_reach_and_not_by_the_distance():
    """With outcomes that are rare at the truth: squared moves over 4,000 draws of noise, whose mean is known to 2 %."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.uniform(-0.5, 0.5, (5000, 3)), np.ones(5000)])
    f, v, constant = np.array([0.1, -0.2, 0.1, -0.3]), np.array([1.5, -1.0, 0.0, -2.9]), np.array([0.0, 0.0, 0.0, 1.0])
    p = expit(X @ f)
    hessian, std = X.T @ ((p * (1 - p))[:, None] * X), 2.0
    exact = LogisticRows(f, hessian, constant)(v)
    draws = symmetric(rng, (4000,), 4, std)
    moves = LogisticRows(f, hessian + draws, constant)(v).gradient - exact.gradient
    found = (moves**2).sum(-1).mean()

    def stated(u):
        return std**2 / 2 * (4 + 1) * (u**2).sum()

    assert 0.75 < stated(exact.reach) / found < 1.3
    assert stated(v) / found > 3


def test_a_model_with_saturated_scores_gives_no_interval_and_no_warning():
    constant, hessian = np.array([0.0, 0.0, 1.0]), np.diag([3.0, 2.0, 5.0])
    first = Stage(np.array([300.0, -200.0, -900.0]), np.ones(3), hessian, 9.0, 2.0)
    equations = Equations([first, first._replace(model=np.array([1.0, 0.0, -2.0]))], constant=constant)
    parts = equations.covariances(equations(np.array([2.0, 0.0, -3.0])))
    assert all(np.isfinite(part).all() for part in parts)
    assert not identified(equations, np.eye(3), np.array([2.0, 0.0, -3.0])).any()


def test_curvature_whose_own_noise_is_most_of_the_variance_is_not_called_seen():
    """The same eigenvalues, with a model near the estimate and one far from it."""
    H = np.diag([60.0, 50.0, 40.0])

    def found(distance):
        return Equations([Stage(np.zeros(3), -distance * H @ np.ones(3), H, 5.0, 5.0)])

    for distance, expected in ((0.1, True), (10.0, False)):
        equations = found(distance)
        assert identified(equations, np.eye(3), equations.solve()).tolist() == [expected] * 3


def test_curvature_that_drowns_is_told_and_an_interval_can_be_open():
    rng = np.random.default_rng(0)
    H = np.diag([500.0, 500.0, 1.0])
    noisy = H + symmetric(rng, (), 3, 5.0)
    equations = Equations([Stage(np.zeros(3), np.ones(3), noisy, 5.0, 5.0)])
    assert identified(equations, np.eye(3), equations.solve()).tolist() == [True, True, False]
    mixed = np.array([[1.0, 0.0, 1.0]])
    assert identified(equations, mixed, equations.solve()).tolist() == [False]
    weak = Equations([Stage(np.zeros(1), np.array([3.0]), np.array([[6.0]]), 5.0, 5.0)])
    low, high = weak.interval(weak.solve(), np.eye(1), 1.96)
    assert np.isinf(low).all() or np.isinf(high).all()


# --- through the estimators -------------------------------------------------------------------------------------------


def fitted(n=3000, parties=3, **settings):
    rng = np.random.default_rng(3)
    X = rng.uniform(-1, 1, (n, 3))
    y = rng.random(n) < expit(X @ np.array([1.5, 0.0, -1.0]) - 0.5)
    words = {"epsilon": 4.0, "delta": DELTA, "adjacency": "replace-one", "classes": [False, True], "bounds": 1.8}
    model = PrivateLogisticRegression(**{**words, "inference": True, "random_state": 0, "trust": "curator", **settings})
    return model.fit(X, y, parties=np.arange(n) % parties), X


@pytest.fixture(scope="module")
def model():
    return fitted()[0]


def test_intervals_are_in_the_units_of_x_with_the_intercept_last(model):
    found = model.inference_
    assert found.names == ("x0", "x1", "x2", "intercept")
    intervals = found.intervals(0.95)
    assert intervals.shape == (4, 2)
    truth = np.array([1.5, 0.0, -1.0, -0.5])
    assert (np.abs(found.estimate - truth) < 5 * found.standard_errors).all()
    wide = found.intervals(0.999)
    assert (wide[:, 0] < intervals[:, 0]).all()
    assert (wide[:, 1] > intervals[:, 1]).all()
    np.testing.assert_allclose(found.odds_ratios()[:, 0], np.exp(found.estimate))
    for j in range(4):
        assert (found.p_values[j] < 0.05) == (not intervals[j, 0] < 0 < intervals[j, 1])
    assert found.joint_test(["x0", "x2"]).p_value < 1e-6 < found.joint_test("x1").p_value


def test_the_model_that_predicts_is_the_corrected_one_and_says_so(model):
    np.testing.assert_array_equal(model.coefficients_, model.inference_.shrunk)
    assert not np.allclose(model.coefficients_, model.transcript_.models[0])
    assert model.certificate_.epsilon <= 4.0
    model.certificate_.verify()
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.inference_.intervals(), model.inference_.intervals())


def test_summary_json_and_csv_tell_the_same(model):
    found = model.inference_
    text = found.summary()
    assert "NOT PRIVATE: the noise came from a seed" in text
    assert "odds ratio" in text
    assert "sampling" in text
    assert "rows longer than 1.8" in " ".join(text.split())
    content = json.loads(found.to_json())
    assert [row["name"] for row in content["coefficients"]] == list(found.names)
    assert content["coefficients"][0]["estimate"] == pytest.approx(found.estimate[0])
    lines = found.to_csv().splitlines()
    assert len(lines) == 5
    assert lines[0].startswith("name,identified,estimate,standard_error")


def test_what_is_not_identified_has_no_numbers_and_says_what_it_would_take():
    found = fitted(n=60, epsilon=0.5)[0].inference_
    assert not found.identified.any()
    assert np.isinf(found.intervals()).all()
    assert np.isnan(found.estimate).all()
    assert np.isnan(found.p_values).all()
    assert "not identified at this epsilon: would need" in found.summary()
    assert math.isnan(found.joint_test("x0").p_value)
    lines = found.summary().splitlines()
    notes = lines[len(lines) - lines[::-1].index(lines[0]) :]
    assert len(notes) > 2
    assert max(map(len, notes)) <= len(lines[0])
    assert json.loads(found.to_json())["coefficients"][0]["estimate"] is None


def test_the_forest_plot_draws_what_the_table_says(model):
    plt = pytest.importorskip("matplotlib.pyplot")
    found = model.inference_
    figure, ax = plt.subplots()
    try:
        assert found.plot(ax, level=0.9) is ax
        *drawn, zero = ax.get_lines()
        # no effect, as an odds ratio
        assert list(zero.get_xdata()) == [1, 1]
        assert len(drawn) == 3 * len(found.names)
        for i, name in enumerate(found.names):
            whole, sampling, point = drawn[3 * i : 3 * i + 3]
            np.testing.assert_allclose(whole.get_xdata(), np.exp(found.intervals(0.9)[i]))
            inner = found.estimate[i] + np.array([-1, 1]) * norm.ppf(0.95) * found.sampling_errors[i]
            np.testing.assert_allclose(sampling.get_xdata(), np.exp(inner))
            np.testing.assert_allclose(point.get_xdata(), [np.exp(found.estimate[i])])
            assert ax.get_yticklabels()[i].get_text() == name
            assert {whole.get_ydata()[0], sampling.get_ydata()[0], point.get_ydata()[0]} == {ax.get_yticks()[i]}
        assert ax.get_xscale() == "log"
        assert "odds ratio, 90% interval" in ax.get_xlabel()
        assert not ax.texts
        figure.canvas.draw()
        shown = [tick.label1.get_text() for tick in ax.xaxis.get_major_ticks()]
        assert {"0.5", "1", "2"} <= set(shown)
        assert not any("$" in text for text in shown)
    finally:
        plt.close(figure)


def test_a_forest_plot_says_what_is_not_identified():
    plt = pytest.importorskip("matplotlib.pyplot")
    ax = fitted(n=60, epsilon=0.5)[0].inference_.plot()
    try:
        assert [text.get_text() for text in ax.texts] == ["not identified"] * 4
        assert len(ax.get_lines()) == 1
    finally:
        plt.close(ax.figure)


@pytest.mark.slow
def test_weights_bring_robust_errors_and_a_share_moves_the_noise():
    plain = fitted(inference=0.5)[0]
    full = fitted()[0]
    assert plain.transcript_.plan.moments.multipliers[1] > full.transcript_.plan.moments.multipliers[1]
    assert plain.transcript_.plan.epsilon(DELTA) == pytest.approx(full.transcript_.plan.epsilon(DELTA), rel=1e-6)
    assert fitted(class_weight={True: 2.0})[0].inference_.setting.robust
    assert fitted(robust=True)[0].inference_.setting.robust
    assert not full.inference_.setting.robust


def test_nonsense_is_refused_in_a_sentence(model):
    with pytest.raises(InputError, match="level: got 95"):
        model.inference_.intervals(95)
    with pytest.raises(InputError, match="columns: got 'age'"):
        model.inference_.joint_test("age")
    with pytest.raises(InputError, match="columns: got none; at least one name"):
        model.inference_.joint_test([])
    with pytest.raises(InputError, match="robust: got True without inference"):
        fitted(inference=False, robust=True)
    with pytest.raises(InputError, match="between 0 and 1"):
        fitted(inference=2.0)
    with pytest.raises(InputError, match="between 0 and 1"):
        fitted(inference="yes")
    svc = PrivateLinearSVC(epsilon=1.0, delta=DELTA, adjacency="replace-one", classes=[0, 1], inference=True)
    with pytest.raises(InputError, match="HuberisedHinge"):
        svc.fit(np.ones((10, 2)), np.arange(10) % 2)
    federation = coterie.Federation.from_arrays(np.eye(4), [0, 1, 0, 1], parties=None, labels=[0, 1])
    without = fitted(inference=False, n=60)[0].transcript_
    with pytest.raises(InputError, match="its plan has no moments"):
        coterie.infer(without, federation, delta=DELTA)


def test_moments_of_a_run_are_released_once(tmp_path):
    """They are paid for once; drawn from a seed again they are the same ones. A copy is the same run."""
    rng = np.random.default_rng(0)
    X, y = rng.uniform(-0.5, 0.5, (60, 2)), np.arange(60) % 2
    federation = coterie.Federation.from_arrays(X, y, parties=None, labels=[0, 1])
    privacy = coterie.Privacy(epsilon=100.0, delta=DELTA, adjacency="replace-one")
    plan = make_plan(
        Problem(loss=Logistic(), regulariser=L2(1.0), record_weight=1.0), federation.facts, privacy, Settled(), Wanted()
    )
    transcript = run(plan, federation)
    first, again = (coterie.infer(transcript, federation, delta=DELTA, noise=Seeded(3)) for _ in range(2))
    assert np.isfinite(first.estimate).all()
    assert np.array_equal(first.estimate, again.estimate)
    coterie.infer(transcript, federation, delta=DELTA)
    transcript.save(tmp_path / "transcript.npz")
    for same in (transcript, copy.copy(transcript), coterie.Transcript.load(tmp_path / "transcript.npz")):
        with pytest.raises(InputError, match="released before"):
            coterie.infer(same, federation, delta=DELTA)
    coterie.infer(run(plan, federation), federation, delta=DELTA)


@pytest.mark.slow
def test_a_regression_has_robust_intervals_in_units_of_y():
    rng = np.random.default_rng(1)
    X = rng.uniform(-1, 1, (4000, 2))
    y = X @ np.array([0.5, -0.25]) + 0.1 + rng.normal(0, 0.3, 4000)
    for settings in ({"loss": "huber"}, {"loss": "squared", "trust": "curator"}):
        words = {
            "epsilon": 4.0,
            "delta": DELTA,
            "adjacency": "replace-one",
            "bounds": 1.5,
            "label_bound": 2.0,
            "random_state": 0,
        }
        found = PrivateRidge(**words, inference=True, **settings).fit(X, y).inference_
        assert (np.abs(found.estimate - [0.5, -0.25, 0.1]) < 5 * found.standard_errors).all()
        assert (found.standard_errors < 0.05).all()
        assert not found.setting.odds
        assert found.setting.robust
        with pytest.raises(InputError, match="has no odds"):
            found.odds_ratios()


# --- which numbers are reported ---------------------------------------------------------------------------------------


def test_contrasts_of_a_schema_are_changes_of_its_own_columns():
    schema = Schema(
        (
            NumberColumn("age", 0, 100, centre=50, scale=10),
            NumberColumn("income", 0, 6000, log=True, missing=True),
            CategoryColumn("region", ("north", "south", "west"), other=True),
            NumberColumn("dose", 0, 4, bins=(1, 2)),
        ),
        Label("ill", ("no", "yes")),
    )
    columns = Columns.of_schema(schema, 1.0, intercept=True)
    assert columns.names[:4] == ("age", "log(1 + |income|/2)", "income is missing", "region=south (not region=north)")
    assert columns.names[-1] == "intercept"
    table = {"age": [40, 43], "income": [10, 10], "region": ["west", "west"], "dose": [0.5, 0.5]}
    rows = schema.encode(table)
    moved = (rows[1] - rows[0]) / math.sqrt(1.25)
    np.testing.assert_allclose(3 * columns.contrasts[0][:-1], moved, atol=1e-12)
    assert list(columns.groups) == ["region", "dose"]
    other = schema.encode({**table, "region": ["north", "elsewhere"], "age": [40, 40]})
    place = columns.names.index("region is other (not region=north)")
    np.testing.assert_allclose(columns.contrasts[place][:-1], (other[1] - other[0]) / math.sqrt(1.25), atol=1e-12)
    # nothing that is reported lies in what no data can tell
    np.testing.assert_allclose(columns.contrasts @ columns.null, 0, atol=1e-12)
    assert columns.basis().shape == (len(schema.feature_names) + 1, len(schema.feature_names) - 1)


def test_a_line_that_may_bend_has_a_slope_for_each_part_and_one_test_for_all():
    income = NumberColumn("income", 0, 6000, log=True, missing=True, bends=True)
    schema = Schema((NumberColumn("age", 0, 100), income), Label("ill", ("no", "yes")))
    columns = Columns.of_schema(schema, 1.0, intercept=True)
    assert columns.names == (
        "age",
        "log(1 + |income|/2), lower third (0 to 26.85)",
        "log(1 + |income|/2), middle third (26.85 to 414.1)",
        "log(1 + |income|/2), upper third (414.1 to 6000)",
        "income is missing",
        "intercept",
    )
    assert columns.groups == {"income": [1, 2, 3]}
    # from 4 to 10 in the lower third, from 500 to 5,000 in the upper one
    rows = schema.encode({"age": [0] * 4, "income": [4, 10, 500, 5000]}) / math.sqrt(1.25)
    np.testing.assert_allclose(columns.contrasts[1, :-1], (rows[1] - rows[0]) / math.log(6 / 3), atol=1e-12)
    np.testing.assert_allclose(columns.contrasts[3, :-1], (rows[3] - rows[2]) / math.log(2501 / 251), atol=1e-12)


def test_classes_are_reported_against_the_first():
    rng = np.random.default_rng(0)
    labels = ["a", "b", "c"]
    facts = coterie.Federation.from_arrays(rng.uniform(size=(9, 2)), labels * 3, parties=None, labels=labels).facts
    columns = Columns.of_features(["x", "z"], np.array([2.0, 3.0])).of_outputs(Multinomial(3), facts)
    assert columns.names == ("b: x", "b: z", "c: x", "c: z")
    theta = rng.normal(size=(2, 3))
    against = np.array([2.0, 3.0])[:, None] * (theta[:, 1:] - theta[:, :1])
    np.testing.assert_allclose(columns.contrasts @ theta.ravel(), against.T.ravel())
    assert columns.basis().shape == (6, 4)
