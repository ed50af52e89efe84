"""What can be got wrong after a run, and in Python: one sentence each, the right exit code, and nothing left behind."""

import json

import numpy as np
import pytest

import coterie as package
from coterie import Federation, PrivateLogisticRegression, PrivateRidge, Schema, SchemaEncoder, evaluate
from coterie.data import CategoryColumn, Label, NumberColumn
from coterie.errors import InputError

SCHEMA = Schema(
    (NumberColumn("age", 0, 100), CategoryColumn("smoker", ("never", "ever"))), Label("outcome", ("no", "yes")), "site"
)
MODEL = {
    "loss": "Logistic",
    "labels": ["no", "yes"],
    "row_norm": 1.0,
    "intercept": 0.5,
    "coefficients": dict(zip(SCHEMA.feature_names, (1.0, -0.5, 0.5), strict=True)),
    "schema": SCHEMA.to_dict(),
}
TABLE = "age,smoker,site,outcome\n30,never,n,no\n70,ever,s,yes\n50,ever,n,no\n"
PRIVATE = ("--epsilon", "1", "--delta", "1e-5", "--adjacency", "replace-one")

# (arguments, words of the sentence); files are named without their folder
COMMANDS = {
    "predict: no run": (("predict", "none", "data.csv"), "RUN: 'none' is no directory; that of a run is needed"),
    "predict: a file for a run": (("predict", "data.csv", "data.csv"), "cannot read"),
    "predict: a run that was stopped": (("predict", "stopped", "data.csv"), "was stopped"),
    "predict: a model that is no JSON": (("predict", "broken", "data.csv"), "not valid JSON"),
    "predict: a model of bytes": (("predict", "bytes", "data.csv"), "not UTF-8"),
    "predict: a model that is a list": (("predict", "list", "data.csv"), "no model of a run"),
    "predict: a model without a schema": (("predict", "bare", "data.csv"), "schema: got None; a table is needed"),
    "predict: coefficients of other features": (("predict", "renamed", "data.csv"), "no model of a run"),
    "predict: coefficients that are texts": (("predict", "texts", "data.csv"), "no model of a run"),
    "predict: a model without features": (("predict", "plain", "data.csv"), "not one number for each feature"),
    "predict: no such file": (("predict", "run", "none.csv"), "No such file"),
    "predict: a file of another kind": (("predict", "run", "data.txt"), ".csv, .csv.gz or .parquet"),
    "predict: no feature column": (("predict", "run", "columns.csv"), "no column 'smoker'"),
    "predict: no line of names": (("predict", "run", "headless.csv"), "its first line must be names of columns"),
    "predict: a new category": (("predict", "run", "category.csv"), "line 3 is something else"),
    "predict: a blank": (("predict", "run", "blank.csv"), "line 2 is missing"),
    "predict: no rows": (("predict", "run", "empty.csv"), "0 rows"),
    "predict: a taken file": (("predict", "run", "data.csv", "--out", "taken.csv"), "exists already"),
    "predict: no such folder": (("predict", "run", "data.csv", "--out", "none/new.csv"), "cannot write"),
    "predict: unknown encoding": (("predict", "run", "data.csv", "--encoding", "utf-88"), "--encoding"),
    "predict: unknown delimiter": (("predict", "run", "data.csv", "--delimiter", "#"), "--delimiter"),
    "evaluate: neither a price nor public": (
        ("evaluate", "run", "data.csv"),
        "--epsilon, --delta, --adjacency: missing",
    ),
    "evaluate: half a price": (("evaluate", "run", "data.csv", "--epsilon", "1"), "--delta, --adjacency: missing"),
    "evaluate: a price and public": (("evaluate", "run", "data.csv", "--public", *PRIVATE), "--public"),
    "evaluate: a ledger of public records": (("evaluate", "run", "data.csv", "--public", "--ledger", "l"), "--public"),
    "evaluate: epsilon zero": (("evaluate", "run", "data.csv", "--epsilon", "0", *PRIVATE[2:]), "epsilon"),
    "evaluate: epsilon NaN": (("evaluate", "run", "data.csv", "--epsilon", "nan", *PRIVATE[2:]), "epsilon"),
    "evaluate: epsilon infinite": (("evaluate", "run", "data.csv", "--epsilon", "inf", *PRIVATE[2:]), "epsilon"),
    "evaluate: delta one": (("evaluate", "run", "data.csv", *PRIVATE[:2], "--delta", "1", *PRIVATE[4:]), "delta"),
    "evaluate: unknown adjacency": (("evaluate", "run", "data.csv", *PRIVATE[:4], "--adjacency", "add"), "adjacency"),
    "evaluate: unknown trust": (("evaluate", "run", "data.csv", *PRIVATE, "--trust", "all"), "trust"),
    "evaluate: nobody's records": (
        ("evaluate", "run", "data.csv", *PRIVATE, "--records-per-person", "0"),
        "an integer >= 1",
    ),
    "evaluate: no such ledger": (("evaluate", "run", "data.csv", *PRIVATE, "--ledger", "none.json"), "none.json"),
    "evaluate: a table for a ledger": (("evaluate", "run", "data.csv", *PRIVATE, "--ledger", "data.csv"), "data.csv"),
    "evaluate: no label column": (("evaluate", "run", "unlabelled.csv", "--public"), "no column 'outcome'"),
    "evaluate: a new label": (("evaluate", "run", "label.csv", "--public"), "line 2 is something else"),
    "evaluate: no such party column": (("evaluate", "run", "data.csv", *PRIVATE, "--party-column", "stie"), "'site'"),
    "evaluate: the label as party": (("evaluate", "run", "data.csv", *PRIVATE, "--party-column", "outcome"), "--party"),
    "evaluate: no run": (("evaluate", "none", "data.csv", "--public"), "RUN: 'none' is no directory"),
    "evaluate: a number to predict, privately": (("evaluate", "number", "data.csv", *PRIVATE), "only classifiers"),
    "make: no such file": (("schema", "make", "none.csv", "--label", "outcome", "--out", "new.toml"), "No such file"),
    "make: no such label": (("schema", "make", "data.csv", "--label", "out", "--out", "new.toml"), "--label"),
    "make: no such party": (
        ("schema", "make", "data.csv", "--label", "outcome", "--party-column", "sites", "--out", "new.toml"),
        "did you mean 'site'",
    ),
    "make: a range of nothing": (
        ("schema", "make", "data.csv", "--label", "outcome", "--range", "ages=0..1", "--out", "new.toml"),
        "did you mean 'age'",
    ),
    "make: a range upside down": (
        ("schema", "make", "data.csv", "--label", "outcome", "--range", "age=9..1", "--out", "new.toml"),
        "NAME=LOW..HIGH",
    ),
    "make: a range without an end": (
        ("schema", "make", "data.csv", "--label", "outcome", "--range", "age=9", "--out", "new.toml"),
        "NAME=LOW..HIGH",
    ),
    "make: an infinite range": (
        ("schema", "make", "data.csv", "--label", "outcome", "--range", "age=0..inf", "--out", "new.toml"),
        "NAME=LOW..HIGH",
    ),
    "make: a range of texts": (
        ("schema", "make", "data.csv", "--label", "outcome", "--range", "smoker=0..1", "--out", "new.toml"),
        "holds texts",
    ),
    "make: two ranges of a column": (
        (
            "schema",
            "make",
            "data.csv",
            "--label",
            "outcome",
            "--range",
            "age=0..9",
            "--range",
            "age=0..8",
            "--out",
            "n",
        ),
        "--range: got two for 'age'",
    ),
    "make: a taken file": (
        ("schema", "make", "data.csv", "--label", "outcome", "--out", "taken.csv"),
        "exists already",
    ),
    "make: unknown encoding": (
        ("schema", "make", "data.csv", "--label", "outcome", "--encoding", "x", "--out", "new.toml"),
        "--encoding",
    ),
    "make: nothing to read off": (
        ("schema", "make", "hollow.csv", "--label", "outcome", "--from-data", "--out", "new.toml"),
        "no finite number",
    ),
    "check: no such schema": (("schema", "check", "none.toml", "data.csv"), "No such file"),
    "check: a table for a schema": (("schema", "check", "data.csv", "data.csv"), "TOML"),
    "check: no such file": (("schema", "check", "schema.toml", "none.csv"), "No such file"),
    "check: no such column": (("schema", "check", "schema.toml", "columns.csv"), "no column 'smoker'"),
    "check: misfits": (("schema", "check", "schema.toml", "category.csv"), "1 cell in 1 column does not fit"),
}


def put(folder, name, **change):
    (folder / name).mkdir()
    (folder / name / "model.json").write_text(json.dumps({**MODEL, **change}))


@pytest.fixture
def folder(tmp_path):
    put(tmp_path, "run")
    put(tmp_path, "plain", coefficients=[1.0, 2.0])
    put(tmp_path, "bare", schema=None)
    put(tmp_path, "renamed", coefficients={"aged": 1.0, "smoker=never": 0.0, "smoker=ever": 1.0})
    put(tmp_path, "texts", coefficients=dict.fromkeys(SCHEMA.feature_names, "one"))
    label = {"name": "outcome", "minimum": 0, "maximum": 1}
    put(tmp_path, "number", labels=None, loss="Huber", schema={**SCHEMA.to_dict(), "label": label})
    for name, content in (("broken", b"{"), ("bytes", b"\xff\xfe"), ("list", b"[]")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.json").write_bytes(content)
    (tmp_path / "stopped").mkdir()
    (tmp_path / "stopped" / "partial-transcript.npz").touch()
    SCHEMA.write(tmp_path / "schema.toml")
    for name, text in {
        "data.csv": TABLE,
        "data.txt": TABLE,
        "taken.csv": "mine",
        "columns.csv": TABLE.replace("smoker", "smokes"),
        "headless.csv": "30,never,n,secret,secret\n",
        "category.csv": TABLE.replace("70,ever", "70,vapes"),
        "blank.csv": TABLE.replace("30,", ","),
        "empty.csv": TABLE.splitlines()[0] + "\n",
        "unlabelled.csv": TABLE.replace("outcome", "out"),
        "label.csv": TABLE.replace("n,no", "n,maybe", 1),
        "hollow.csv": TABLE.replace("30", "").replace("70", "NA").replace("50", "?"),
    }.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(("arguments", "words"), COMMANDS.values(), ids=COMMANDS.keys())
def test_commands(coterie, folder, monkeypatch, arguments, words):
    monkeypatch.chdir(folder)
    before = {path: path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))}
    code, told, error = coterie(*arguments)
    assert code == 2, error
    assert told == "" or arguments[1] == "check"
    assert error.startswith("coterie: ")
    assert error.count("\n") == 1
    assert len(error) < 600
    assert words in error
    assert "secret" not in error
    assert {path: path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))} == before


X = np.linspace(0, 1, 24).reshape(12, 2) / 2
Y = np.array(["no", "yes"] * 6)
WORDS = {"epsilon": 1.0, "delta": 1e-5, "adjacency": "replace-one"}


def fit(X=X, Y=Y, *, parties=None, sample_weight=None, **more):
    given = {**WORDS, "classes": ("no", "yes"), **more}
    return PrivateLogisticRegression(**given).fit(X, Y, parties=parties, sample_weight=sample_weight)


def ridge(Y=X[:, 0], parties=None, **more):
    return PrivateRidge(**{**WORDS, "label_bound": 1.0, **more}).fit(X, Y, parties=parties)


def federation(X=X, Y=Y, **more):
    return Federation.from_arrays(X, Y, **{"parties": None, "labels": ("no", "yes"), **more})


def scored(**more):
    from coterie.rundir import FittedModel

    given = {"y": np.zeros(3, int), "X": np.zeros((3, 3)), **WORDS, **more}
    return evaluate(FittedModel.of(MODEL), given.pop("X"), given.pop("y"), **given)


def planner(sizes):
    return package.Planner.of_sizes(sizes, 3, package.Privacy(**WORDS))


def changed(value, at=(3, 1)):
    array = X.copy()
    array[at] = value
    return array


PYTHON = {
    "no epsilon": (lambda: fit(epsilon=None), "epsilon: missing"),
    "no delta": (lambda: fit(delta=None), "delta: missing"),
    "no adjacency": (lambda: fit(adjacency=None), "adjacency: missing"),
    "epsilon zero": (lambda: fit(epsilon=0), "epsilon"),
    "epsilon negative": (lambda: fit(epsilon=-1.0), "epsilon"),
    "epsilon NaN": (lambda: fit(epsilon=float("nan")), "epsilon"),
    "epsilon a text": (lambda: fit(epsilon="1"), "epsilon"),
    "delta zero": (lambda: fit(delta=0.0), "delta"),
    "delta one": (lambda: fit(delta=1.0), "delta"),
    "delta a text": (lambda: fit(delta="small"), "delta"),
    "adjacency unknown": (lambda: fit(adjacency="add-one"), "adjacency"),
    "trust unknown": (lambda: fit(trust="everybody"), "trust"),
    "privacy is a dict": (lambda: fit(**dict.fromkeys(WORDS), privacy=dict(WORDS)), "privacy: got a dict"),
    "said twice": (lambda: fit(privacy=package.Privacy(**WORDS)), "privacy: got one beside"),
    "bounds zero": (lambda: fit(bounds=0), "bounds"),
    "bounds infinite": (lambda: fit(bounds=float("inf")), "bounds"),
    "bounds a text": (lambda: fit(bounds="1"), "bounds"),
    "weight_bound negative": (lambda: fit(weight_bound=-1), "weight_bound"),
    "l2 negative": (lambda: fit(l2=-1.0), "l2"),
    "party_weight zero": (lambda: fit(party_weight=0), "party_weight"),
    "settings a list": (lambda: fit(settings=["averaging"]), "settings"),
    "settings unknown": (lambda: fit(settings={"averagin": "last"}), "has no 'averagin'"),
    "algorithm unknown": (lambda: fit(algorithm="recycled-adm"), "did you mean 'recycled-admm'"),
    "rounds zero": (lambda: fit(rounds=0, parties=["a", "b"] * 6), "rounds"),
    "rounds a fraction": (lambda: fit(rounds=1.5, parties=["a", "b"] * 6), "rounds"),
    "topology unknown": (lambda: fit(topology="rign", parties=["a", "b"] * 6), "rign"),
    "topology with a curator": (lambda: fit(topology="ring", trust="curator"), "topology"),
    "data_derived a text": (lambda: fit(data_derived="scaler"), "data_derived"),
    "classes one": (lambda: fit(classes=["no"]), "classes"),
    "classes twice": (lambda: fit(classes=["no", "no", "yes"]), "classes"),
    "a label beyond the classes": (lambda: fit(classes=["no", "never"]), "row 1"),
    "class_weight balanced": (lambda: fit(class_weight="balanced"), "class_weight"),
    "class_weight of nobody": (lambda: fit(class_weight={"maybe": 2.0}), "class_weight"),
    "parties too few": (lambda: fit(parties=["a"] * 5), "parties"),
    "parties missing": (lambda: fit(parties=[None] + ["a"] * 11), "parties"),
    "a party of one": (lambda: fit(parties=["b"] + ["a"] * 11), "the party of row 0"),
    "no label_bound": (lambda: ridge(label_bound=None), "label_bound: missing"),
    "label_bound zero": (lambda: ridge(label_bound=0), "label_bound"),
    "label_bound a text": (lambda: ridge(label_bound="1"), "label_bound"),
    "threshold negative": (lambda: ridge(threshold=-1), "threshold"),
    "loss unknown": (lambda: ridge(loss="absolute"), "loss"),
    "squared on a graph": (
        lambda: ridge(loss="squared", topology="complete", parties=np.arange(len(X)) % 3),
        "squared",
    ),
    "federation: NaN": (lambda: federation(changed(np.nan)), "row 3, column 1 is nan"),
    "federation: infinite": (lambda: federation(changed(np.inf)), "row 3, column 1 is inf"),
    "federation: texts": (lambda: federation(X.astype(str)), "numbers are needed"),
    "federation: one axis": (lambda: federation(X[:, 0]), "2-dimensional"),
    "federation: ragged": (lambda: federation([[1], [1, 2]]), "different lengths"),
    "federation: no rows": (lambda: federation(X[:0], Y[:0]), "at least one row"),
    "federation: too many labels": (lambda: federation(X, Y[:5]), "y: got 5 values"),
    "federation: a missing label": (lambda: federation(X, [None, *Y[1:]]), "row 0"),
    "federation: labels and a bound": (lambda: federation(label_bound=1.0), "label_bound"),
    "federation: neither": (lambda: federation(labels=None), "labels"),
    "federation: row_norm zero": (lambda: federation(row_norm=0), "row_norm"),
    "federation: row_norm beyond squares": (lambda: federation(row_norm=1e200), "row_norm"),
    "federation: a negative weight": (lambda: federation(sample_weight=[-1.0] + [1.0] * 11), "row 0 is negative"),
    "federation: min_records a fraction": (lambda: federation(min_records=1.5), "min_records"),
    "evaluate: no price": (lambda: scored(epsilon=None), "all three are needed"),
    "evaluate: public with a price": (lambda: scored(public=True), "public"),
    "evaluate: an unknown metric": (lambda: scored(metrics="f1"), "metrics"),
    "evaluate: no metric": (lambda: scored(metrics=()), "metrics"),
    "evaluate: one bin": (lambda: scored(bins=1), "bins"),
    "evaluate: an unknown label": (lambda: scored(y=np.array([0, 1, 7])), "row 2"),
    "evaluate: too few labels": (lambda: scored(y=np.array([0, 1])), "y: got 2"),
    "evaluate: unknown unit": (lambda: scored(unit="person"), "unit"),
    "evaluate: a party of people": (lambda: scored(unit="party", records_per_person=2), "unit"),
    "evaluate: people without parties": (lambda: scored(people_span_parties=True), "parties"),
    "planner: half a record": (lambda: planner([10.5]), "sizes: got 10.5; an integer >= 0"),
    "planner: nobody": (lambda: planner([]), "sizes: got none"),
    "encoder: an underscore in a number": (
        lambda: SchemaEncoder(SCHEMA).transform({"age": ["3_0"], "smoker": ["never"]}),
        "row 0 is no finite",
    ),
    "encoder: no schema": (lambda: SchemaEncoder(None).fit(), "schema: got a NoneType"),
    "encoder: no such file": (lambda: SchemaEncoder("none.toml").fit(), "cannot read 'none.toml'"),
    "encoder: a table without a column": (lambda: SchemaEncoder(SCHEMA).transform({"age": [1]}), "'smoker' is missing"),
    "encoder: an array of texts": (
        lambda: SchemaEncoder(SCHEMA).transform(np.array([["a", "b"]])),
        "row 0 is no finite",
    ),
    "encoder: an array too wide": (
        lambda: SchemaEncoder(SCHEMA).transform(np.zeros((2, 3))),
        "2 columns of the schema",
    ),
    "encoder: columns of two lengths": (
        lambda: SchemaEncoder(SCHEMA).transform({"age": [1, 2], "smoker": ["ever"]}),
        "got 1 values",
    ),
}


@pytest.mark.parametrize(("wrong", "words"), PYTHON.values(), ids=PYTHON.keys())
def test_python(wrong, words):
    with pytest.raises(InputError) as refused:
        wrong()
    sentence = str(refused.value)
    assert words in sentence
    assert "\n" not in sentence
    assert len(sentence) < 600
