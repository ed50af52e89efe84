"""From somebody's own CSV file to a model that is used: what stands in the way of a new user, each of it once."""

import csv
import gzip
import io
import json
import re
import signal
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from coterie.data.tables import read_columns
from coterie.rundir import FittedModel
from coterie.spending import Spending

SCHEMA = """\
party_column = "hospital"
[label]
name = "outcome"
values = ["no", "yes"]
[[columns]]
name = "age"
minimum = 0
maximum = 110
missing = true
[[columns]]
name = "income"
minimum = 0
maximum = 1000000
log = true
[[columns]]
name = "smoker"
categories = ["never", "ever"]
other = true
missing = true
"""
SPEC = """\
[data]
file = "patients.csv"
test = "test.csv"
[schema]
file = "schema.toml"
[privacy]
epsilon = 4.0
delta = 1e-5
adjacency = "replace-one"
[algorithm]
rounds = 5
[engine]
seed = 1
"""
HEADER = ["age", "income", "smoker", "hospital", "outcome"]


def rows(n, *, seed=0, positives=0.87):
    """Blanks, a category nobody listed, skewed amounts; outcomes that follow age, and mostly yes."""
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 95, n)
    score = 0.06 * (age - 55) + np.log(positives / (1 - positives)) + 0.2
    return [
        [
            "" if rng.random() < 0.05 else str(a),
            f"{np.exp(rng.normal(10, 1)):.2f}",
            str(rng.choice(["never", "ever", "NA", "vapes"], p=[0.6, 0.3, 0.05, 0.05])),
            str(rng.choice(["north", "south"])),
            "yes" if rng.random() < 1 / (1 + np.exp(-s)) else "no",
        ]
        for a, s in zip(age, score, strict=True)
    ]


def text(cells, delimiter=","):
    out = io.StringIO()
    csv.writer(out, delimiter=delimiter, lineterminator="\n").writerows([HEADER, *cells])
    return out.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("own")
    cells = rows(1500)
    (path / "patients.csv").write_text(text(cells[:1000]))
    (path / "test.csv").write_text(text(cells[1000:]))
    (path / "schema.toml").write_text(SCHEMA)
    (path / "spec.toml").write_text(SPEC)
    return path


@pytest.fixture
def finished(folder, coterie):
    if not (folder / "run").exists():
        code, told, error = coterie("run", folder / "spec.toml", "--out", folder / "run", "--json")
        assert code == 0, error
        (folder / "told.json").write_text(told)
    return folder / "run", json.loads((folder / "told.json").read_text())


def test_most_records_positive_is_no_reason_to_be_worse_than_the_majority(finished):
    """Without an intercept, 87 % positives gave 45 % error."""
    _, told = finished
    assert told["test"]["majority_error"] < 0.2
    assert told["test"]["error"] < told["test"]["majority_error"] + 0.02
    assert told["test"]["auc"] > 0.65
    assert told["test"]["records"] == 500
    assert told["test_error"] == told["test"]["error"]
    # the training records are nobody's to show
    assert "nonprivate" not in told


def test_a_run_on_own_records_can_be_verified(finished, coterie):
    code, told, error = coterie("certificate", "verify", finished[0])
    assert code == 0, error
    assert "data.test is what the run told" in told
    assert "a public schema encoded every column" in coterie("certificate", "show", finished[0])[1]


def test_predictions_are_those_of_the_coefficients(finished, folder, coterie, tmp_path):
    run, _ = finished
    code, told, _ = coterie("predict", run, folder / "test.csv")
    assert code == 0
    lines = list(csv.DictReader(io.StringIO(told)))
    assert [int(line["line"]) for line in lines] == list(range(2, 502))
    model = json.loads((run / "model.json").read_text())
    fitted = FittedModel.of(model)
    table = read_columns(folder / "test.csv", ["age", "income", "smoker"], numbers=["age", "income"])
    X = fitted.schema.encode(table)
    norms = np.linalg.norm(X, axis=1)
    assert (norms > 1).any()
    X = X / np.maximum(norms, 1)[:, None]
    # columns were standardised
    centre, scale = (np.array(model["clipping"][name]) for name in ("centre", "scale"))
    lengths = np.linalg.norm((X - centre) * scale, axis=1)
    X = centre + (X - centre) / np.maximum(lengths, 1)[:, None]
    by_hand = X @ list(model["coefficients"].values()) + model["intercept"]
    chances = [float(line["probability of yes"]) for line in lines]
    np.testing.assert_allclose(chances, 1 / (1 + np.exp(-by_hand)), atol=1e-6)
    assert [line["prediction"] for line in lines] == ["yes" if score > 0 else "no" for score in by_hand]
    # without label and party
    bare = tmp_path / "bare.csv"
    bare.write_text("smoker,age,income\nnever,50,1000\n")
    assert json.loads(coterie("predict", run, bare, "--json")[1])[0]["line"] == 2
    assert coterie("predict", run, bare, "--out", tmp_path / "new.csv")[0] == 0
    assert (tmp_path / "new.csv").read_text().startswith("line,prediction,probability of no,probability of yes\n2,")
    assert coterie("predict", run, bare, "--out", tmp_path / "new.csv")[0] == 2


def test_a_run_tells_what_its_ledger_holds_and_errors_as_an_evaluation_does(folder, coterie, tmp_path):
    for name in ("patients.csv", "test.csv", "schema.toml"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    paid = 'adjacency = "replace-one"\nledger = "patients.ledger"\nledger_limit = [10.0, 1e-4]'
    # a seeded run counts as if it lost everything
    unseeded = SPEC.replace("[engine]\nseed = 1\n", "")
    (tmp_path / "spec.toml").write_text(unseeded.replace('adjacency = "replace-one"', paid))
    assert coterie("run", tmp_path / "spec.toml", "--new-ledger", "--out", tmp_path / "first")[0] == 0
    code, told, _ = coterie("run", tmp_path / "spec.toml", "--out", tmp_path / "second")
    assert code == 0
    lines = " ".join(told.split())
    assert "ledger ε = 8 at δ = 2e-05 in all, of at most ε = 10 at δ = 0.0001 (patients.ledger)" in lines
    evaluated = coterie("evaluate", tmp_path / "second", tmp_path / "test.csv", "--public")[1]
    error = next(line for line in evaluated.splitlines() if line.startswith("error")).split()
    assert " ".join(error) in lines


def test_evaluation_prints_a_table_and_is_paid_for(finished, folder, coterie, tmp_path):
    run, stated = finished
    code, told, _ = coterie("evaluate", run, folder / "test.csv", "--public")
    assert code == 0
    assert told.startswith("NOT PRIVATE: exact metrics of records that were declared public\n")
    assert f"{100 * stated['test']['error']:.2f} %" in told
    assert "error where yes" in told
    Spending.create(tmp_path / "ledger.json", limit=(1.5, 1e-4))
    paid = ("evaluate", run, folder / "test.csv", "--epsilon", 1, "--delta", 1e-6, "--adjacency", "replace-one")
    code, told, _ = coterie(*paid, "--ledger", tmp_path / "ledger.json", "--json")
    assert code == 0
    told = json.loads(told)
    assert 0.99 < told["epsilon"] <= 1
    gap = abs(1 - told["metrics"]["accuracy"]["value"] - stated["test"]["error"])
    # false alarms: 2e-9
    assert 0 < gap < 6 * told["metrics"]["accuracy"]["noise"]
    code, _, error = coterie(*paid, "--ledger", tmp_path / "ledger.json")
    assert code == 1
    assert "beyond the limit" in error
    assert len(Spending(path=tmp_path / "ledger.json").charges) == 1
    code, told, _ = coterie(*paid)
    assert "ε = 1 at δ = 1e-06, replace-one" in told


def test_an_evaluation_that_was_paid_for_is_told_or_kept(finished, folder, coterie, tmp_path, monkeypatch):
    run, _ = finished
    Spending.create(tmp_path / "ledger.json")
    price = ("--epsilon", 1, "--delta", 1e-6, "--adjacency", "replace-one", "--ledger", tmp_path / "ledger.json")
    paid = ("evaluate", run, folder / "test.csv", *price, "--json")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with open("/dev/full", "w") as full, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", full)
        code, _, error = coterie(*paid)
    assert code == 1
    assert "No space left on device" in error
    kept = Path(error.strip().rsplit(" is in ", 1)[1])
    assert "accuracy" in json.loads(kept.read_text())["metrics"]
    assert len(Spending(path=tmp_path / "ledger.json").charges) == 1
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", None)
        code, _, error = coterie(*paid)
    assert code == 2
    assert "told to nobody" in error
    assert len(Spending(path=tmp_path / "ledger.json").charges) == 1

    charge = Spending.charge

    def interrupted(*given, **named):
        past = charge(*given, **named)
        signal.raise_signal(signal.SIGINT)
        return past

    monkeypatch.setattr(Spending, "charge", interrupted)
    code, told, _ = coterie(*paid)
    assert code == 130
    assert "accuracy" in json.loads(told)["metrics"]


def test_public_data_sets_have_a_line_without_privacy(coterie, tmp_path):
    (tmp_path / "spec.toml").write_text(
        '[data]\ndataset = "heart"\n[privacy]\nepsilon = 2.0\ndelta = 1e-5\nadjacency = "replace-one"\n'
        "[algorithm]\nrounds = 2\n"
    )
    code, told, _ = coterie("run", tmp_path / "spec.toml", "--out", tmp_path / "run")
    assert code == 0
    assert "without privacy" in told
    assert "majority class" in told


def same_records(folder, tmp_path, name, content, **more):
    """The encoded rows of another file, and of patients.csv."""
    (tmp_path / name).write_bytes(content)
    schema = FittedModel.read(folder / "run").schema
    names = ["age", "income", "smoker"]
    one = read_columns(folder / "patients.csv", names, numbers=["age", "income"])
    other = read_columns(tmp_path / name, names, numbers=["age", "income"], **more)
    return schema.encode(one), schema.encode(other)


def test_public_records_of_one_class_have_no_auc(folder, coterie, tmp_path):
    """They had one of 0.000."""
    rows = (folder / "test.csv").read_text().splitlines()
    label = rows[0].split(",").index("outcome")
    (tmp_path / "test.csv").write_text("\n".join([rows[0], *(row for row in rows if row.split(",")[label] == "yes")]))
    spec = (folder / "spec.toml").read_text().replace('test = "test.csv"', f'test = "{tmp_path}/test.csv"')
    (folder / "one-class.toml").write_text(spec)
    code, told, error = coterie("run", folder / "one-class.toml", "--out", tmp_path / "run")
    assert code == 0, error
    assert "AUC" not in told
    assert coterie("certificate", "verify", tmp_path / "run")[0] == 0
    code, told, error = coterie("evaluate", tmp_path / "run", tmp_path / "test.csv", "--public", "--json")
    assert code == 0, error
    metrics = json.loads(told, parse_constant=pytest.fail)["metrics"]
    assert metrics["auc"]["value"] is None
    assert metrics["class-error"]["value"][0] is None


def test_what_to_expect_is_told_before_anything_is_spent(folder, coterie, tmp_path):
    code, told, error = coterie("plan", folder / "spec.toml", "--json")
    assert code == 0, error
    blind = json.loads(told)
    assert blind["useful"]
    assert {"a curator", "a party alone, no privacy"} <= {row["name"] for row in blind["rows"]}
    sharp = json.loads(coterie("plan", folder / "spec.toml", "--surrogate", folder / "test.csv", "--json")[1])
    assert np.ptp(sharp["planned"]["auc"]) < np.ptp(blind["planned"]["auc"])
    code, told, _ = coterie("plan", folder / "spec.toml")
    assert code == 0
    assert "a party alone" in told
    # whose classes are more uneven would take the errors for large
    assert "the rarer class has 23% to 50% of the records" in " ".join(told.split())
    told = coterie("plan", folder / "spec.toml", "--surrogate", folder / "test.csv")[1]
    assert re.search(r"the rarer class has \d+% of the records", " ".join(told.split()))
    (tmp_path / "wrong.toml").write_text("parties = 3")
    for wrong in ("wrong.toml", "nothing.toml"):
        code, _, error = coterie("plan", tmp_path / wrong)
        assert code == 2
        assert error.count("\n") == 1


def test_semicolons_decimal_commas_and_compressed_files(finished, folder, tmp_path):
    cells = rows(1500)[:1000]
    german = [[age, income.replace(".", ","), *rest] for age, income, *rest in cells]
    for name, content in (
        ("semicolons.csv", text(german, ";").encode()),
        ("tabs.csv", text(cells, "\t").encode()),
        ("bars.csv", text(cells, "|").encode()),
        ("packed.csv.gz", gzip.compress(text(cells).encode())),
        ("marked.csv", b"\xef\xbb\xbf" + text(cells).encode()),
    ):
        np.testing.assert_array_equal(*same_records(folder, tmp_path, name, content))


def test_other_encodings_are_read_when_they_are_named(coterie, folder, tmp_path):
    (tmp_path / "schema.toml").write_text(SCHEMA.replace('"never"', '"früher"'))
    (tmp_path / "patients.csv").write_bytes(text(rows(50)).replace("never", "früher").encode("latin-1"))
    check = ("schema", "check", tmp_path / "schema.toml", tmp_path / "patients.csv")
    code, _, error = coterie(*check)
    assert code == 2
    assert "name its encoding" in error
    code, told, error = coterie(*check, "--encoding", "latin-1", "--json")
    assert code == 0, error
    assert json.loads(told)["fits"]


def test_misfits_are_shown_by_column_count_and_line(coterie, folder, tmp_path):
    (tmp_path / "schema.toml").write_text(SCHEMA.replace("missing = true\n", "").replace("other = true\n", ""))
    cells = rows(200)
    # an income in other units is clipped, and said
    cells[3][1] = "2000000"
    # an empty line is a line
    (tmp_path / "patients.csv").write_text(text(cells).replace("\n", "\n\n", 1))
    code, told, _ = coterie("schema", "check", tmp_path / "schema.toml", tmp_path / "patients.csv", "--json")
    assert code == 2
    found = {(row["column"], row["what"]): row for row in json.loads(told)["misfits"]}
    blank = [place for place, row in enumerate(cells) if row[0] == ""]
    assert found["age", "missing"]["count"] == len(blank)
    assert found["age", "missing"]["first"] == f"line {blank[0] + 3}"
    assert found["smoker", "something else"]["count"] == sum(row[2] == "vapes" for row in cells)
    assert found["income", "outside the range"] == {
        "column": "income",
        "what": "outside the range",
        "count": 1,
        "first": "line 6",
        "needed": "0 to 1,000,000",
        "refused": False,
    }
    assert "vapes" not in told
    code, _, error = coterie("schema", "check", tmp_path / "schema.toml", tmp_path / "patients.csv")
    assert "do not fit" in error


def test_ranges_are_given_proposed_or_left_open_and_never_read_off_in_silence(coterie, folder, tmp_path):
    made = ("schema", "make", folder / "patients.csv", "--label", "outcome", "--party-column", "hospital", "--json")
    code, told, _ = coterie(*made, "--out", tmp_path / "open.toml")
    assert code == 0
    assert json.loads(told)["sources"] == {
        "outcome": "to be filled in",
        "age": "proposed: ages of people in years",
        "income": "to be filled in; log and bends proposed",
        "smoker": "to be filled in",
    }
    code, told, _ = coterie(*made, "--range", "income=0..5e5", "--out", tmp_path / "given.toml")
    assert json.loads(told)["sources"]["income"] == "given; log and bends proposed"
    assert "maximum = 500000.0" in (tmp_path / "given.toml").read_text()
    code, told, _ = coterie(*made, "--from-data", "--out", tmp_path / "read.toml")
    assert json.loads(told)["sources"]["age"] == "read off the data: VOID"
    code, told, _ = coterie("schema", "check", tmp_path / "read.toml", folder / "patients.csv")
    assert code == 0
    assert "VOID as a guarantee" in told


def test_what_is_usual_and_what_is_skewed_is_proposed_by_names_and_ranges(coterie, tmp_path):
    (tmp_path / "t.csv").write_text("bmi,visits,year,n_children,cost,y\n22,3,1999,0,4,no\n31,9,2004,2,900,yes\n")
    ranges = ("--range", "visits=0..2000", "--range", "year=1900..2100", "--range", "n_children=0..20")
    code, _, _ = coterie("schema", "make", tmp_path / "t.csv", "--label", "y", *ranges, "--out", tmp_path / "made.toml")
    assert code == 0
    parts = (tmp_path / "made.toml").read_text().split("[[columns]]\n")[1:]
    made = {name: part for name, part in zip(("bmi", "visits", "year", "n_children", "cost"), parts, strict=True)}
    assert "centre = 27" in made["bmi"]
    assert "scale = 5" in made["bmi"]
    for key in ("log = true", "bends = true"):
        assert [key in made[name] for name in made] == [False, True, False, False, True]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("delta = 1e-5", "delta = 0.002", "delta = 0.002 is at least 1/n for the 1,000 records"),
        ("epsilon = 4.0", "epsilon = 11.0", "epsilon = 11 is more than 10"),
        ("epsilon = 4.0", "epsilon = 0.01", "no better than the majority class"),
        ('file = "patients.csv"', 'file = "patients.csv"\nrow_norm = 0.3', "most rows will be clipped"),
    ],
)
def test_what_people_should_know_is_said_with_the_plan(coterie, folder, tmp_path, old, new, words):
    for name in ("patients.csv", "test.csv", "schema.toml"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "spec.toml").write_text(SPEC)
    quiet = json.loads(coterie("run", tmp_path / "spec.toml", "--plan", "--json")[1])
    assert quiet["warnings"] == []
    (tmp_path / "spec.toml").write_text(SPEC.replace(old, new))
    code, told, _ = coterie("run", tmp_path / "spec.toml", "--plan", "--json")
    assert code == 0
    assert len(json.loads(told)["warnings"]) == 1
    assert words in json.loads(told)["warnings"][0]
    assert "WARNING" in coterie("run", tmp_path / "spec.toml", "--plan")[1]


def test_a_stopped_run_says_what_there_is_and_what_it_cost(coterie, folder, tmp_path):
    """Ctrl-C at a round of the run's own choosing: the words, in the one place that has them."""
    from coterie.cli.run import _what_stopped
    from coterie.cli.spec import execute, prepare, read_spec

    def stop(done, total):
        if done >= 3:
            raise KeyboardInterrupt

    (tmp_path / "spec.toml").write_text(SPEC.replace("rounds = 5", "rounds = 40"))
    for name in ("patients.csv", "test.csv", "schema.toml"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    outcome = execute(prepare(read_spec(tmp_path / "spec.toml")), progress=stop)
    done = outcome.transcript.n_rounds
    assert 3 <= done < 40
    sentence = _what_stopped(outcome, tmp_path / "run")
    assert sentence.startswith(f"stopped after round {done} of 40: there is no model, and the loss of the whole plan")
    outcome.write(tmp_path / "run")
    code, _, told = coterie("predict", tmp_path / "run", tmp_path / "test.csv")
    assert code == 2
    assert "the run was stopped, so there is none" in told
