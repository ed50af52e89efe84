"""A report is a function of the files of a run: what it says is theirs, escaped, and it loads nothing."""

import html.parser
import json
import math
import re

import numpy as np
import pytest

from coterie.certificate import make_certificate
from coterie.charts import Bar, Bars, Lines, Network, Series, _fit, _ticks, _two_lines, alike, tiny
from coterie.cli.spec.execution import report_of, write_report
from coterie.data import Federation
from coterie.errors import InputError, PrivacyPreconditionError
from coterie.plan import Plan
from coterie.problems import L2, Logistic, Problem
from coterie.promise import Privacy
from coterie.report import Published, compare_page, report_page
from coterie.rules import Settled, make_plan
from coterie.rundir import RunFiles

HOSTILE = ["</title><script>alert(1)</script>", '"><img src=http://x.invalid onerror=a()>', "<!--", "A & B"]
UNCLOSED = ("meta", "br", "img")


class Reader(html.parser.HTMLParser):
    """Tags that were opened, attributes that were set, and whether every tag is closed in its order."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.open, self.words = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in UNCLOSED:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture(scope="module")
def plan():
    rng = np.random.default_rng(0)
    parties = np.repeat(HOSTILE, [10, 20, 30, 40])
    X, y = rng.normal(size=(100, 3)), rng.integers(0, 2, 100)
    federation = Federation.from_arrays(X, np.asarray(["<i>", "<b>"])[y], parties=parties, labels=("<i>", "<b>"))
    problem = Problem(loss=Logistic(), regulariser=L2(1.0), record_weight=1.0)
    return make_plan(problem, federation.facts, Privacy(epsilon=1.0, delta=1e-3, adjacency="replace-one"), Settled())


def files(plan, *, seeded=False, **more):
    certificate = make_certificate(plan, 1e-3, reproducible=seeded, past=more.pop("past", ()))
    test = {"records": 50, "error": 0.25, "majority_error": 0.4, "auc": 0.8}
    schema = {
        "label": {"name": HOSTILE[0], "values": ["<i>", "<b>"]},
        "columns": [
            {"name": HOSTILE[1], "minimum": -2.0, "maximum": 3.0, "missing": True},
            {"name": "sex", "categories": HOSTILE, "other": True},
        ],
    }
    model = {"labels": ["<i>", "<b>"], "intercept": -0.5, "coefficients": {HOSTILE[1]: 1.25, HOSTILE[2]: -3.5}}
    told = {
        "certificate": certificate,
        "summary": {"test": test, "nonprivate": {"error": 0.2, "auc": 0.9}, "n_records": 100},
        "spec": {"data": {"file": "/secret/place/<records>.csv", "purpose": HOSTILE[0]}},
        "model": {**model, "schema": schema},
        "intervals": None,
        "date": "2026-01-31",
    }
    return RunFiles(**{**told, **more})


def words(page):
    return " ".join(" ".join(Reader(page).words).split())


def test_it_says_what_the_files_say_and_loads_nothing(plan):
    page = report_page(files(plan))
    read = Reader(page)
    assert len(page.encode()) < 100_000
    assert read.tags.count("script") == 1
    assert not {"img", "link", "iframe", "object", "base", "form"} & set(read.tags)
    for name, value in read.attributes:
        assert not name.startswith("on")
        assert name not in ("src", "style")
        assert name != "href" or value.startswith("#")
    text = words(page)
    certificate = files(plan).certificate
    assert f"ε = {certificate.epsilon:.6g} at δ = 10⁻³" in text
    for told in (
        "25.00 %",
        "40.00 %",
        "20.00 %",
        "0.800",
        "2026-01-31",
        "file <records>.csv",
        "−2 to 3",
        "filled with the centre",
    ):
        assert told in text, told
    assert "/secret/place" not in page
    for name in HOSTILE:
        assert name in text


def test_a_line_for_every_model_and_the_smaller_coefficients_folded_away(plan):
    many = {f"feature {k}": float(50 - k) for k in range(50)}
    told = {"test": {"records": 50, "error": 0.25, "majority_error": 0.4, "auc": 0.8}, "n_records": 100}
    told |= {"nonprivate": {"error": 0.2, "auc": 0.9}, "alone": {"error": 0.3, "auc": 0.7}}
    page = report_page(files(plan, summary=told, model={"intercept": 0.0, "coefficients": many}))
    text = words(page)
    assert "this model, private 25.00 % 0.800 without privacy 20.00 % 0.900 a party alone 30.00 % 0.700" in text
    assert "majority class 40.00 % 0.500" in text
    folded = words(page.split("<summary>All 51 coefficients</summary>")[1].split("</details>")[0])
    assert "feature 49" in folded
    assert "feature 49" not in text.replace(folded, "")


def test_the_promise_is_rounded_up(plan):
    certificate = make_certificate(plan, 1e-3, reproducible=False)
    text = words(report_page(files(plan)))
    stated = float(text.split("a factor of e ε = ")[1].split(",")[0])
    assert math.exp(certificate.epsilon) <= stated * (1 + 1e-9) <= 1.01 * math.exp(certificate.epsilon)
    even = float(re.search(r"at most ([\d.]+) % likely afterwards", text).group(1))
    assert 100 / (1 + math.exp(-certificate.epsilon)) <= even + 1e-9


def test_a_seeded_run_promises_nothing(plan):
    text = words(report_page(files(plan, seeded=True)))
    assert "NOT PRIVATE" in text
    assert "none that holds" in text
    assert "Whatever somebody believed" not in text
    # nor is anything called private that is not
    assert "A model of" in text
    assert "this model 25.00 %" in text
    assert "this model, private" not in text


def test_a_stopped_run_has_no_model(plan):
    text = words(report_page(files(plan, model=None, summary={})))
    assert "there is no model" in text
    assert "Coefficients" not in text


def test_earlier_releases_signatures_intervals_and_published_bounds(plan):
    known = {"estimate": 1.5, "standard_error": 0.5, "sampling_error": 0.3, "noise_error": 0.4, "p_value": 3.1e-7}
    rows = [
        {"name": "age", "identified": True, **known, "low": 0.5, "high": 2.5, "odds_ratio": 4.48, "odds_low": 1.6,
         "odds_high": "infinite"},
        {"name": "sex", "identified": False, "low": "-infinite", "high": "infinite", "needed": "more records"},
        {"name": "height", "identified": False, "low": "-infinite", "high": "infinite", "needed": "more records"},
    ]  # fmt: skip
    intervals = {"method": "Logistic regression", "odds": True, "level": 0.9, "coefficients": rows, "notes": ["a note"]}
    run = files(plan, intervals=intervals, past=[("a <b>fit</b>", 2.0, 1e-4)])
    run.certificate.document["sites"] = {
        "signed": [{"statement": {"party": "A", "ledger_entry": "abc"}, "identity": "key<1>", "signature": "s"}]
    }
    text = words(report_page(run, Published("Theorem 9", 7.5, (("rows are short", True), ("loss is smooth", False)))))
    for told in (
        "a <b>fit</b>",
        "90 %",
        "∞",
        "sex, height: more records",
        "1.5 0.5 0.3 0.4 0.5 2.5 < 0.001 4.48",
        "a note",
        "Theorem 9",
        "7.5",
        "loss is smooth: NOT met",
    ):
        assert told in text, told
    assert "key<1>" in text
    assert "Nobody has signed" not in text


def test_runs_are_compared(plan):
    better = files(plan, summary={"test": {"records": 50, "error": 0.21, "majority_error": 0.4}})
    page = compare_page([("<one>", files(plan)), ("two", better), ("seeded", files(plan, seeded=True))])
    text = words(page)
    assert "21.00 % " in text
    assert "Not drawn" in text
    assert "seeded" in text.split("Not drawn")[1]
    assert "<one>" in text
    other = files(plan, summary={"test": {"records": 51, "error": 0.21, "majority_error": 0.3}})
    assert "different records" in words(compare_page([("a", files(plan)), ("b", other)]))


def test_losses_that_are_written_alike_are_drawn_in_one_place(plan):
    """Calibration ends a rounding error apart, which a logarithmic axis would spread over its whole width."""
    runs = [("a", files(plan)), ("b", files(plan)), ("c", files(plan))]
    for place, (_, run) in enumerate(runs):
        run.certificate.document["guarantee"]["epsilon"] = 2.0 - place * 1e-13
    ticks = re.findall(r"<text[^>]*>2</text>", compare_page(runs))
    assert len(ticks) == 1


def test_files_that_are_none_of_a_run(plan, tmp_path):
    with pytest.raises(InputError, match=r"holds no certificate\.json"):
        RunFiles.read(tmp_path)
    (tmp_path / "certificate.json").write_text(make_certificate(plan, 1e-3, reproducible=False).to_json())
    whole = report_of(tmp_path)
    assert "not stated" in whole
    assert write_report(tmp_path).read_text(encoding="utf-8") == whole
    write_report(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["certificate.json", "report.html"]
    for name, text in (("model.json", "[]"), ("summary.json", "{"), ("spec.toml", "= 1")):
        (tmp_path / name).write_text(text)
        with pytest.raises(InputError, match="RUN: "):
            report_of(tmp_path)
        (tmp_path / name).unlink()


def test_thousands_of_parties_stay_small(plan):
    n = 3000
    federation = Federation.from_arrays(
        np.zeros((n, 2)), np.tile(["a", "b"], n // 2), parties=[f"p{i:04}" for i in range(n)], labels=("a", "b"),
        min_records=1,
    )  # fmt: skip
    problem = Problem(loss=Logistic(), regulariser=L2(1.0), record_weight=1.0)
    privacy = Privacy(epsilon=1.0, delta=1e-5, adjacency="replace-one", trust="curator")
    many = make_plan(problem, federation.facts, privacy, Settled())
    page = report_page(files(many, model=None, summary={}))
    assert len(page.encode()) < 300_000
    assert "2,800 more in certificate.json" in words(page)


# --- charts -----------------------------------------------------------------------------------------------------------


def test_charts_are_drawn_twice_and_say_the_same(plan):
    import matplotlib as mpl

    mpl.use("agg")
    charts = [
        Lines(
            title="<t>", x_label="x", y_label="y", series=(Series("a<b>", (1.0, 10.0), (0.5, 0.25)),), log_x=True,
            levels=(("limit", 1.0),),
        ),
        Bars(title="t", x_label="x", bars=(Bar("<a>", -1.0), Bar("b", 2.0, (1.0, 3.0)))),
        Network(title="t", names=("<a>", "b", "c"), sizes=(1, 2, 3), edges=((0, 1), (1, 2))),
        Network(title="t", names=("a",), sizes=(1,), edges=(), centre="sum"),
    ]  # fmt: skip
    for chart in charts:
        read = Reader(chart.svg("name"))
        assert "<a>" not in chart.svg("name")
        assert {"title", "desc"} <= set(read.tags)
        heading, rows = chart.table()
        assert all(heading)
        assert all(len(row) == len(heading) for row in rows)
        axes = chart.plot()
        assert axes.get_title() == chart.title
        axes.figure.clear()
        mpl.pyplot.close(axes.figure)


def test_ticks_are_round_and_names_fit():
    assert _ticks(0, 4) == [0, 1, 2, 3, 4]
    assert _ticks(0, 0.2444, above=True)[-1] >= 0.2444
    assert _ticks(1, 9, whole=True)[0] >= 1
    assert _ticks(2, 2) == [2]
    assert _fit("short", 100) == "short"
    assert len(_fit("字" * 50, 100)) <= 8


def test_numbers_are_written_as_people_write_them(plan):
    shown = alike([4.345, -0.7392, 0.0652])
    assert [shown(value) for value in (4.345, -0.7392, 0.0652)] == ["4.34", "−0.74", "0.07"]
    assert alike([12345.6])(12345.6) == "12,346"
    assert alike([])(0.0) == "0.00"
    assert [tiny(value) for value in (1e-5, 2.5e-6, 1e-10)] == ["10⁻⁵", "2.5 · 10⁻⁶", "10⁻¹⁰"]
    amount = {"name": "income", "minimum": 0, "maximum": 1e6, "centre": 30000.0, "scale": 0.70710678, "log": True}
    schema = {"label": {"name": "ill", "values": ["no", "yes"]}, "columns": [amount]}
    model = {"labels": ["no", "yes"], "intercept": 0.0, "coefficients": {"income": 1.0}, "schema": schema}
    text = words(report_page(files(plan, model=model)))
    assert "income number 0 to 1,000,000 logarithm, centred at 30,000, divided by 0.7071 refused" in text


def test_a_name_that_is_too_long_stands_on_two_lines():
    assert _two_lines("North", 104) == ["North"]
    assert _two_lines("VA Long Beach", 104) == ["VA Long", "Beach"]
    assert _two_lines("Donaudampfschifffahrtsgesellschaft", 104) == [_fit("Donaudampfschifffahrtsgesellschaft", 104)]
    assert "Beach" in Network(title="t", names=("VA Long Beach", "b"), sizes=(1, 2), edges=((0, 1),)).svg("name")
    side = Network(title="t", names=("a", "b", "c", "VA Long Beach"), sizes=(1, 2, 3, 4), edges=((0, 1),)).svg("name")
    assert ">VA Long</text>" in side
    assert "VA Long Be…" not in side


def test_parties_whose_losses_look_the_same_are_one_line():
    sizes = (2512, 1488, 1000)
    facts = Federation.from_arrays(
        np.zeros((5000, 2)), np.tile(["no", "yes"], 2500), parties=np.repeat(["a", "b", "c"], sizes),
        labels=("no", "yes"),
    ).facts  # fmt: skip
    problem = Problem(loss=Logistic(), regulariser=L2(1.0), record_weight=1.0)
    privacy = Privacy(epsilon=2.0, delta=1e-5, adjacency="replace-one")
    chart = make_plan(problem, facts, privacy, Settled(standardise=True, intercept=True)).loss_chart(1e-5)
    assert [line.name for line in chart.series] == ["every party"]


def test_a_plan_draws_what_it_costs(plan):
    chart = plan.loss_chart(1e-3)
    assert chart is not None
    for line in chart.series:
        assert line.x[-1] == plan.n_rounds
        assert list(line.y) == sorted(line.y)
    assert max(line.y[-1] for line in chart.series) == pytest.approx(plan.epsilon(1e-3), rel=1e-8)
    network = plan.network_chart()
    assert network is not None
    assert network.sizes == plan.facts.sizes
    assert "<b>" not in plan._repr_html_()


def test_no_bound_no_line(plan):
    from coterie.algorithms import ConsensusADMM

    exact = Plan.make(
        ConsensusADMM.with_penalty(1.0), plan.problem, "complete", plan.facts, rounds=1, adjacency="replace-one"
    )
    assert exact.loss_chart(1e-3) is None
    with pytest.raises(PrivacyPreconditionError, match="nothing bounds"):
        exact.plot(1e-3)
    assert "NOT PRIVATE" in words(report_page(files(exact)))


def test_json_of_a_summary_stays_plain(plan):
    """A report reads numbers only where numbers are meant."""
    strange = {"test": {"error": "0.1", "auc": True, "records": 5, "rmse": float("nan")}, "nonprivate": [1]}
    run = files(plan, summary=json.loads(json.dumps(strange)))
    assert run.result == {"records": 5}
    assert run.nonprivate is None
    report_page(run)
