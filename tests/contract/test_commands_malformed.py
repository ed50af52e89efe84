"""Two hundred ways to get a spec or a file wrong: each gives one clear sentence and exit code 2, and leaves nothing."""

import gzip
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coterie.cli.main import main

SPEC = """\
[data]
file = "patients.csv"
row_norm = 1.0

[schema]
file = "schema.toml"

[parties]
topology = "complete"

[problem]
loss = "logistic"
l2 = 1.0

[privacy]
epsilon = 2.0
delta = 1e-5
adjacency = "replace-one"

[algorithm]
name = "penalty-perturbed-admm"
rounds = 3
"""

SCHEMA = """\
party_column = "hospital"

[label]
name = "outcome"
values = ["no", "yes"]

[[columns]]
name = "age"
minimum = 0
maximum = 100

[[columns]]
name = "smoker"
categories = ["never", "ever"]
"""

ROWS = [(30 + i, ("never", "ever")[i % 2], ("north", "south")[i % 2], ("no", "yes")[i % 3 == 0]) for i in range(12)]
TABLE = "age,smoker,hospital,outcome\n" + "".join(",".join(map(str, row)) + "\n" for row in ROWS)

# what is changed in the spec: (old, new, words the sentence must have)
SPECS = {
    "empty spec": (SPEC, "", "[data]"),
    "cut off in a table": (SPEC, SPEC[:-3], "not TOML"),
    "cut off in a text": (SPEC, SPEC[:20], "not TOML"),
    "not TOML": (SPEC, "{not: toml}", "not TOML"),
    "JSON": (SPEC, '{"data": {}}', "not TOML"),
    "a key twice": ("l2 = 1.0", "l2 = 1.0\nl2 = 2.0", "not TOML"),
    "a table twice": ("[problem]", "[problem]\n[problem]", "not TOML"),
    "deep nesting": ("l2 = 1.0", "l2 = " + "[" * 5000 + "]" * 5000, "not TOML"),
    "no data": ('[data]\nfile = "patients.csv"\nrow_norm = 1.0', "", "[data]"),
    "no privacy": (SPEC[SPEC.index("[privacy]") : SPEC.index("[algorithm]")], "", "[privacy]"),
    "no schema": ('[schema]\nfile = "schema.toml"', "", "[schema]"),
    "unknown table": ("[privacy]", "[privcy]", "did you mean 'privacy'"),
    "table for a list": ("[problem]", "[[problem]]", "problem"),
    "a schema in the data's table": (
        '[schema]\nfile = "schema.toml"',
        'schema = "schema.toml"',
        "[schema] is a table of its own",
    ),
    "a schema above all tables": (
        SPEC,
        'schema = "schema.toml"\n' + SPEC.replace('[schema]\nfile = "schema.toml"', ""),
        "the line [schema]",
    ),
    "unknown key in data": ("row_norm", "row_nrom", "did you mean 'row_norm'"),
    "unknown key in schema": ('file = "schema.toml"', 'file = "schema.toml"\nfle = 1', "'fle'"),
    "unknown key in parties": ("topology", "topolgy", "did you mean 'topology'"),
    "unknown key in problem": ("l2 = 1.0", "L2 = 1.0", "'L2'"),
    "unknown key in privacy": ("epsilon", "epsilom", "did you mean 'epsilon'"),
    "unknown setting": ("rounds = 3", "rounds = 3\npenalti = 2", "did you mean 'penalty'"),
    "setting of another algorithm": ("rounds = 3", "rounds = 3\nrecycle_weight = 1", "recycle_weight"),
    "unknown key in engine": ("[algorithm]", "[engine]\nsed = 1\n[algorithm]", "did you mean 'seed'"),
    "unknown algorithm": ("penalty-perturbed-admm", "penalty-perturbed-adm", "did you mean 'penalty-perturbed-admm'"),
    "unknown topology": ('"complete"', '"complet"', "did you mean 'complete'"),
    "unknown loss": ('"logistic"', '"logistics"', "did you mean 'logistic'"),
    "unknown adjacency": ('"replace-one"', '"replace one"', "did you mean 'replace-one'"),
    "unknown engine": ("[algorithm]", '[engine]\nname = "in_process"\n[algorithm]', "did you mean 'in-process'"),
    "unknown data set": ('file = "patients.csv"', 'dataset = "hart"', "did you mean 'heart'"),
    "unknown observer": ("epsilon", 'observer = "nobody"\nepsilon', "'nobody'"),
    "unknown unit": ("epsilon", 'unit = "person"\nepsilon', "'person'"),
    "epsilon is a text": ("epsilon = 2.0", 'epsilon = "2"', "privacy.epsilon"),
    "epsilon is true": ("epsilon = 2.0", "epsilon = true", "privacy.epsilon"),
    "epsilon is zero": ("epsilon = 2.0", "epsilon = 0", "privacy.epsilon"),
    "epsilon is negative": ("epsilon = 2.0", "epsilon = -1", "privacy.epsilon"),
    "epsilon is NaN": ("epsilon = 2.0", "epsilon = nan", "privacy.epsilon"),
    "epsilon is infinite": ("epsilon = 2.0", "epsilon = inf", "privacy.epsilon"),
    "delta is one": ("delta = 1e-5", "delta = 1", "privacy.delta"),
    "delta is zero": ("delta = 1e-5", "delta = 0.0", "privacy.delta"),
    "delta is a date": ("delta = 1e-5", "delta = 2024-01-01", "privacy.delta"),
    "no delta": ("delta = 1e-5\n", "", "'delta' is missing"),
    "no adjacency": ('adjacency = "replace-one"\n', "", "'adjacency' is missing"),
    "rounds is zero": ("rounds = 3", "rounds = 0", "algorithm.rounds"),
    "rounds is a fraction": ("rounds = 3", "rounds = 2.5", "algorithm.rounds"),
    "rounds is huge": ("rounds = 3", "rounds = 1" + "0" * 40, "algorithm.rounds"),
    "l2 is negative": ("l2 = 1.0", "l2 = -1.0", "problem.l2"),
    "l2 is huge": ("l2 = 1.0", "l2 = 1e300", "problem.l2"),
    "l2 is a huge integer": ("l2 = 1.0", "l2 = 1" + "0" * 500, "problem.l2"),
    "l2 of thousands of digits": ("l2 = 1.0", "l2 = 1" + "0" * 5000, "not TOML"),
    "penalty is a text": ("rounds = 3", 'rounds = 3\npenalty = "big"', "algorithm.penalty"),
    "penalty is zero": ("rounds = 3", "rounds = 3\npenalty = 0", "algorithm.penalty"),
    "penalty is huge": ("rounds = 3", "rounds = 3\npenalty = 1e101", "algorithm.penalty"),
    "penalty is tiny": ("rounds = 3", "rounds = 3\npenalty = 1e-90", "raise the penalty"),
    "penalty for three parties": ("rounds = 3", "rounds = 3\npenalty = [1, 2, 3]", "2 parties"),
    "half a schedule": ("rounds = 3", "rounds = 3\npenalty = { start = 1 }", "'ratio' is missing"),
    "two noises": ("rounds = 3", "rounds = 3\nnoise_rate = 1\nnoise_multiplier = 1", "exactly one"),
    "unknown averaging": ("rounds = 3", 'rounds = 3\naveraging = "linar"', "did you mean 'linear'"),
    "no trust": ('"penalty-perturbed-admm"', '"sum-noised-admm"', "trust: got 'none' for sum-noised-admm"),
    "unknown trust": ('"replace-one"', '"replace-one"\ntrust = "curater"', "did you mean 'curator'"),
    "trust that is not needed": ('"replace-one"', '"replace-one"\ntrust = "curator"', "trust: got 'curator'"),
    "a channel beside trust": ("rounds = 3", 'rounds = 3\nchannel = "curator"', "unknown key 'channel'"),
    "hardened noise": ("rounds = 3", "rounds = 3\nhardened = true", "unknown key 'hardened'"),
    "no noise and no epsilon": ("epsilon = 2.0", "", "epsilon or one of noise_multiplier"),
    "selection without its number": (
        'name = "penalty-perturbed-admm"',
        'name = "locally-noised-admm"\nselection = "sample"',
        "'count' is missing",
    ),
    "a loss for other labels": ('"logistic"', '"huber"', "labels"),
    "two regularisers": ("l2 = 1.0", "l1 = 1.0\nradius = 2.0", "radius"),
    "half a box": ("l2 = 1.0", "low = 0.0", "both or neither"),
    "a width that the loss has not": ("l2 = 1.0", "width = 1.0", "problem.width"),
    "weights for three labels": ("l2 = 1.0", "class_weight = [1, 2, 3]", "class_weight"),
    "two weights": ("l2 = 1.0", "record_weight = 1\nparty_weight = 1", "exactly one"),
    "two sources": ("row_norm = 1.0", 'dataset = "heart"', "exactly one"),
    "no source": ('file = "patients.csv"', "", "exactly one"),
    "row_norm is zero": ("row_norm = 1.0", "row_norm = 0", "data.row_norm"),
    "row_norm is a word": ("row_norm = 1.0", 'row_norm = "from data"', "from-data"),
    "edges beyond the parties": ('"complete"', "[[0, 5]]", "edges"),
    "an edge of three": ('"complete"', "[[0, 1, 2]]", "parties.topology"),
    "a graph in pieces": ('"complete"', "[]", "components"),
    "no such file": ("patients.csv", "patient.csv", "No such file"),
    "a file without an ending": ("patients.csv", "patients", ".csv, .csv.gz or .parquet"),
    "a folder for a file": ('"patients.csv"', '"folder.csv"', "folder.csv"),
    "no such schema": ("schema.toml", "scheme.toml", "No such file"),
    "no such party column": ("[parties]", '[parties]\ncolumn = "hospitals"', "did you mean 'hospital'"),
    "the label as party column": ("[parties]", '[parties]\ncolumn = "outcome"', "parties.column"),
    "too many parties": ('topology = "complete"', 'count = 50\ntopology = "complete"', "50"),
    "a schema beside a data set": ('file = "patients.csv"', 'dataset = "heart"', "schema"),
    "one file for two parties": (
        'file = "patients.csv"',
        'files = { a = "patients.csv", b = "patients.csv" }',
        "share",
    ),
    "no such weight column": ("row_norm = 1.0", 'weight_column = "weight"', "'weight'"),
    "a feature as weight": ("row_norm = 1.0", 'weight_column = "age"', "data.weight_column"),
    "intercept is a number": ("l2 = 1.0", "intercept = 1", "problem.intercept"),
    "intercept is a word": ("l2 = 1.0", 'intercept = "yes"', "problem.intercept"),
    "public is a word": ("row_norm = 1.0", 'public = "yes"', "data.public"),
    "unknown delimiter": ("row_norm = 1.0", 'delimiter = "#"', "data.delimiter"),
    "delimiter is a number": ("row_norm = 1.0", "delimiter = 1", "data.delimiter"),
    "delimiter is empty": ("row_norm = 1.0", 'delimiter = ""', "data.delimiter"),
    "another delimiter than there is": ("row_norm = 1.0", 'delimiter = "|"', "'age'"),
    "unknown encoding": ("row_norm = 1.0", 'encoding = "utf-88"', "data.encoding"),
    "an encoding of bytes": ("row_norm = 1.0", 'encoding = "base64"', "data.encoding"),
    "encoding is a number": ("row_norm = 1.0", "encoding = 8", "data.encoding"),
    "another encoding than there is": ("row_norm = 1.0", 'encoding = "utf-16"', "utf-16"),
    "no such test file": ("row_norm = 1.0", 'test = "tset.csv"', "No such file"),
    "a test file of another kind": ("row_norm = 1.0", 'test = "spec.toml"', ".csv, .csv.gz or .parquet"),
    "a test folder": ("row_norm = 1.0", 'test = "folder.csv"', "folder.csv"),
    "test is a list": ("row_norm = 1.0", 'test = ["patients.csv"]', "data.test"),
    "test is empty": ("row_norm = 1.0", 'test = ""', "data.test"),
    "a file that is not packed": ("patients.csv", "plain.csv.gz", "cannot read"),
    "a file that is cut off and packed": ("patients.csv", "cut.csv.gz", "cannot read"),
    "row_norm is negative": ("row_norm = 1.0", "row_norm = -1", "data.row_norm"),
    "row_norm is infinite": ("row_norm = 1.0", "row_norm = inf", "data.row_norm"),
    "min_records is zero": ("row_norm = 1.0", "min_records = 0", "data.min_records"),
    "min_records beyond the parties": ("row_norm = 1.0", "min_records = 100", "min_records=100"),
    "weight_bound is zero": ("row_norm = 1.0", "weight_bound = 0", "data.weight_bound"),
    "a weight of texts": ("row_norm = 1.0", 'weight_column = "smoker"', "data.weight_column"),
    "loss is a list": ('loss = "logistic"', 'loss = ["logistic"]', "problem.loss"),
    "class_weight is a word": ("l2 = 1.0", 'class_weight = "balanced"', "problem.class_weight"),
    "class_weight is negative": ("l2 = 1.0", "class_weight = [1, -1]", "class_weight"),
    "radius is zero": ("l2 = 1.0", "radius = 0", "problem.radius"),
    "delta is negative": ("delta = 1e-5", "delta = -1e-5", "privacy.delta"),
    "delta is tiny beyond reason": ("delta = 1e-5", "delta = 1e-320", "privacy.delta"),
    "epsilon is a list": ("epsilon = 2.0", "epsilon = [2.0]", "privacy.epsilon"),
    "records_per_person is zero": ("epsilon", "records_per_person = 0\nepsilon", "privacy.records_per_person"),
    "people_span_parties is a word": ("epsilon", 'people_span_parties = "no"\nepsilon', "privacy.people_span"),
    "tuning is empty": ("epsilon", 'tuning = " "\nepsilon', "privacy.tuning"),
    "a limit without a ledger": ("epsilon", "ledger_limit = [1, 1e-5]\nepsilon", "privacy.ledger_limit"),
    "a ledger that is not there": ("epsilon", 'ledger = "none.json"\nepsilon', "none.json"),
    "a ledger that is a table": ("epsilon", 'ledger = "patients.csv"\nepsilon', "patients.csv"),
    "seed is negative": ("[algorithm]", "[engine]\nseed = -1\n[algorithm]", "engine.seed"),
    "seed is a fraction": ("[algorithm]", "[engine]\nseed = 1.5\n[algorithm]", "engine.seed"),
    "a checkpoint in one process": ("[algorithm]", '[engine]\ncheckpoint = "c"\n[algorithm]', "engine.checkpoint"),
    "count is zero": ('topology = "complete"', "count = 0", "parties.count"),
    "count is a word": ('topology = "complete"', 'count = "two"', "parties.count"),
}

# what is changed in the table
TABLES = {
    "empty file": (TABLE, "", "empty"),
    "column names only": (TABLE, TABLE[:28], "0 rows"),
    "cut off": (TABLE, TABLE[:-8], "line 13"),
    "an open quote": ("30,never", '30,"never', "CSV"),
    "cells with colons between": (TABLE, TABLE.replace(",", ":"), "'age'"),
    "semicolons in the names alone": ("age,smoker,hospital,outcome", "age;smoker;hospital;outcome", "line 2"),
    "no party column": ("hospital", "clinic", "'hospital'"),
    "no feature column": ("smoker", "smokes", "did you mean 'smokes'"),
    "no label column": ("outcome", "out", "'outcome'"),
    "a column twice": ("smoker,", "age,", "two columns"),
    "a word for a number": ("\n30,", "\nthirty,", "line 2 is no finite number"),
    "an empty number": ("\n30,", "\n,", "line 2"),
    "NaN": ("\n30,", "\nnan,", "line 2"),
    "a number beyond float64": ("\n30,", "\n1e999,", "line 2"),
    "an unknown category": ("never", "nevre", "line 2 is something else"),
    "an unknown label": (",yes\n", ",maybe\n", "line 2 is something else"),
    "a row too many cells": ("30,never", "30,never,never", "line 2"),
    "a party of one record": ("30,never,north", "30,never,east", "that of line 2"),
    "a party without a name": ("30,never,north", "30,never,", "party"),
    "parties that differ in case": ("30,never,north", "30,never,North", "differ in case"),
    "parties that differ in spaces": ("30,never,north", "30,never, north", "differ in case or spaces"),
    "a NUL": ("30,never", "30,nev\0er", "nev"),
    "blanks that nobody allowed": ("\n30,", "\nNA,", "line 2 is missing; a finite number, or missing = true"),
    "a question mark": ("\n30,", "\n?,", "line 2 is missing"),
    "a blank category": ("never", "", "line 2 is missing"),
    "a decimal comma beside commas": ("\n30,", '\n"30,5",', "line 2 is no finite number"),
    "an infinite number": ("\n30,", "\ninf,", "line 2 is no finite number"),
    "a misfit behind an empty line": ("\n30,", "\n\n\nthirty,", "line 4 is no finite number"),
    "a misfit behind a text of two lines": ("\n30,never", '\n30,"ne\nver"', "line 3 is something else"),
    "two misfits": ("\n30,never,north,yes\n31", "\nx,never,north,yes\nx", "(so are 1 more)"),
    "spaces around a category": ("never", " never", "line 2 is something else"),
    "an empty label": (",yes\n", ",\n", "line 2 is missing"),
    "an underscore in a number": ("\n30,", "\n3_0,", "line 2 is no finite number"),
    "a date": ("\n30,", "\n2024-01-31,", "line 2 is no finite number"),
    "a truth": ("\n30,", "\nTrue,", "line 2 is no finite number"),
    "a line of sums": (TABLE, TABLE + "Total,12,,\n", "line 14 is missing"),
    "two decimal points": (
        TABLE,
        TABLE.replace(",", ";").replace("\n30;", "\n30,5;").replace("\n31;", "\n31.5;"),
        "with a comma (line 2) and with a point (line 3)",
    ),
}

SCHEMAS = {
    "empty schema": (SCHEMA, "", "label"),
    "cut off": (SCHEMA, SCHEMA[:40], "TOML"),
    "unknown key": ("minimum", "minimun", "minimun"),
    "no range": ("minimum = 0\n", "", "minimum"),
    "a range upside down": ("maximum = 100", "maximum = -1", "minimum < maximum"),
    "an infinite range": ("maximum = 100", "maximum = inf", "finite"),
    "a range in words": ("maximum = 100", 'maximum = "100"', "finite"),
    "a column twice": ('name = "smoker"', 'name = "age"', "used twice"),
    "no categories": ('["never", "ever"]', "[]", "categories"),
    "one label": ('["no", "yes"]', '["no"]', "values"),
    "labels that are numbers": ('["no", "yes"]', "[0, 1]", "values"),
    "a text as number column": (
        'categories = ["never", "ever"]',
        "minimum = 0\nmaximum = 1",
        "line 2 is no finite number",
    ),
    "no columns": (SCHEMA[SCHEMA.index("[[columns]]") :], "", "columns"),
    "centre outside the range": ("maximum = 100", "maximum = 100\ncentre = 101", "centre 101"),
    "centre is a word": ("maximum = 100", 'maximum = 100\ncentre = "40"', "centre '40'"),
    "scale is zero": ("maximum = 100", "maximum = 100\nscale = 0", "scale 0"),
    "scale is negative": ("maximum = 100", "maximum = 100\nscale = -2", "scale -2"),
    "scale is infinite": ("maximum = 100", "maximum = 100\nscale = inf", "scale inf"),
    "scale is tiny": ("maximum = 100", "maximum = 100\nscale = 1e-99", "leave the range"),
    "log is a number": ("maximum = 100", "maximum = 100\nlog = 2", "log 2"),
    "bins that fall": ("maximum = 100", "maximum = 100\nbins = [65, 18]", "bins [65, 18]"),
    "bins outside the range": ("maximum = 100", "maximum = 100\nbins = [18, 200]", "bins [18, 200]"),
    "bins of texts": ("maximum = 100", 'maximum = 100\nbins = ["18"]', "bins ['18']"),
    "bins is a number": ("maximum = 100", "maximum = 100\nbins = 4", "bins 4"),
    "bins beside a logarithm": ("maximum = 100", "maximum = 100\nbins = [18]\nlog = true", "bins beside log"),
    "missing is a word": ("maximum = 100", 'maximum = 100\nmissing = "mean"', "missing 'mean'"),
    "missing outside the range": ("maximum = 100", "maximum = 100\nmissing = -1", "missing -1"),
    "missing is a number for categories": ('"ever"]', '"ever"]\nmissing = 0', "missing 0"),
    "other is a word": ('"ever"]', '"ever"]\nother = "rest"', "other 'rest'"),
    "other of a number": ("maximum = 100", "maximum = 100\nother = true", "'other'"),
    "centre of categories": ('"ever"]', '"ever"]\ncentre = 1', "'centre'"),
    "weight is zero": ("maximum = 100", "maximum = 100\nweight = 0", "weight 0"),
    "weight of categories is a word": ('"ever"]', '"ever"]\nweight = "2"', "weight '2'"),
    "longest_row is zero": ('party_column = "hospital"', 'party_column = "hospital"\nlongest_row = 0', "longest_row"),
    "longest_row is a word": (
        'party_column = "hospital"',
        'party_column = "hospital"\nlongest_row = "none"',
        "longest_row",
    ),
    "one category": ('["never", "ever"]', '["never"]', "at least 2"),
    "a category twice": ('["never", "ever"]', '["never", "never"]', "different ones"),
    "an empty category": ('["never", "ever"]', '["never", ""]', "non-empty"),
    "a range of true and false": (
        "minimum = 0\nmaximum = 100",
        "minimum = false\nmaximum = true",
        "range False to True",
    ),
    "a range wider than float64": ("minimum = 0\nmaximum = 100", "minimum = -1e308\nmaximum = 1e308", "narrower"),
    "bins of a label": ('values = ["no", "yes"]', "minimum = 0\nmaximum = 1\nbins = [0.5]", "'bins'"),
    "data_derived is a word": ('party_column = "hospital"', 'data_derived = "ranges"', "schema.data_derived"),
}

BYTES = {
    "UTF-16 without a mark": ("patients.csv", lambda content: content.decode().encode("utf-16-le"), "NUL bytes"),
    "nothing but NULs": ("patients.csv", lambda content: bytes(500), "NUL bytes"),
    "a workbook": ("patients.csv", lambda content: b"PK\x03\x04" + bytes(300), "is a workbook or an archive"),
    "a letter of Latin-1": (
        "patients.csv",
        lambda content: content.replace(b"31,e", b"31,\xe9"),
        "byte 0xe9 in line 3",
    ),
    "Latin-1 in the table": ("patients.csv", lambda b: b.replace(b"north", "nörth".encode("latin-1")), "UTF-8"),
    "Latin-1 at the end of the table": ("patients.csv", lambda b: b + "44,ever,süd,no\n".encode("latin-1"), "UTF-8"),
    "UTF-16 table": ("patients.csv", lambda b: b.decode().encode("utf-16"), "is UTF-16 text"),
    "Latin-1 in the spec": ("spec.toml", lambda b: b + "# für".encode("latin-1"), "UTF-8"),
    "UTF-16 spec": ("spec.toml", lambda b: b.decode().encode("utf-16"), "UTF-8"),
    "Latin-1 in the schema": ("schema.toml", lambda b: b + "# für".encode("latin-1"), "TOML"),
    "a Parquet file named CSV": ("patients.csv", lambda b: b"PAR1\x15\x04\x15\x80\x00\xff\xfePAR1", "UTF-8"),
}


def parquet(**columns):
    usual = {name: list(values) for name, values in zip(("age", "smoker", "hospital", "outcome"), zip(*ROWS))}  # noqa: B905
    return pa.table({**usual, **columns})


PARQUETS = {
    "missing numbers": (lambda: parquet(age=[None, *range(11)]), "row 0"),
    "infinite numbers": (lambda: parquet(age=[np.inf, *range(11)]), "row 0"),
    "texts for numbers": (lambda: parquet(age=["old"] * 12), "row 0 is no finite number"),
    "lists for numbers": (lambda: parquet(age=[[1.0]] * 12), "list"),
    "times for numbers": (lambda: parquet(age=pa.array([0] * 12, pa.timestamp("s"))), "timestamp"),
    "missing parties": (lambda: parquet(hospital=[None] * 2 + ["north"] * 10), "party"),
    "numbers for labels": (lambda: parquet(outcome=[0.0, 1.0] * 6), "row 0 is something else"),
    "no party column": (lambda: parquet().drop_columns(["hospital"]), "'hospital'"),
    "no rows": (lambda: parquet().slice(0, 0), "0 rows"),
}


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """Runs the spec in tmp_path and returns the one sentence it was refused with."""
    for name, text in (("spec.toml", SPEC), ("schema.toml", SCHEMA), ("patients.csv", TABLE)):
        (tmp_path / name).write_bytes(text.encode())
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "plain.csv.gz").write_bytes(TABLE.encode())
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(TABLE.encode())[:-20])

    def run():
        before = sorted(path.name for path in tmp_path.iterdir())
        monkeypatch.setattr(
            sys, "argv", ["coterie", "run", str(tmp_path / "spec.toml"), "--out", str(tmp_path / "out")]
        )
        with pytest.raises(SystemExit) as stopped:
            main()
        told = capsys.readouterr()
        assert stopped.value.code == 2, told.err
        assert told.out == ""
        assert told.err.startswith("coterie: ")
        assert told.err.count("\n") == 1
        assert told.err.endswith("\n")
        assert len(told.err) < 600
        assert sorted(path.name for path in tmp_path.iterdir()) == before
        return told.err

    return run


def change(path, old, new):
    text = path.read_bytes().decode()
    assert old in text
    path.write_bytes(text.replace(old, new, 1).encode())


@pytest.mark.parametrize(("old", "new", "words"), SPECS.values(), ids=SPECS.keys())
def test_specs(refused, tmp_path, old, new, words):
    change(tmp_path / "spec.toml", old, new)
    assert words in refused()


@pytest.mark.parametrize(("old", "new", "words"), TABLES.values(), ids=TABLES.keys())
def test_tables(refused, tmp_path, old, new, words):
    change(tmp_path / "patients.csv", old, new)
    assert words in refused()


@pytest.mark.parametrize(("old", "new", "words"), SCHEMAS.values(), ids=SCHEMAS.keys())
def test_schemas(refused, tmp_path, old, new, words):
    change(tmp_path / "schema.toml", old, new)
    assert words in refused()


@pytest.mark.parametrize(("name", "broken", "words"), BYTES.values(), ids=BYTES.keys())
def test_encodings(refused, tmp_path, name, broken, words):
    (tmp_path / name).write_bytes(broken((tmp_path / name).read_bytes()))
    assert words in refused()


@pytest.mark.parametrize(("table", "words"), PARQUETS.values(), ids=PARQUETS.keys())
def test_parquet(refused, tmp_path, table, words):
    pq.write_table(table(), tmp_path / "patients.parquet")
    change(tmp_path / "spec.toml", "patients.csv", "patients.parquet")
    assert words in refused()


@pytest.mark.parametrize("kept", [0, 4, 50, -4, -40], ids=lambda kept: f"{kept} bytes")
def test_truncated_parquet(refused, tmp_path, kept):
    pq.write_table(parquet(), tmp_path / "patients.parquet")
    whole = (tmp_path / "patients.parquet").read_bytes()
    (tmp_path / "patients.parquet").write_bytes(whole[:kept])
    change(tmp_path / "spec.toml", "patients.csv", "patients.parquet")
    assert "Parquet" in refused()


def test_a_missing_spec(refused, tmp_path):
    (tmp_path / "spec.toml").unlink()
    assert "No such file" in refused()


def test_a_taken_directory(refused, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("keep me")
    assert "exists already" in refused()
    assert (tmp_path / "out" / "mine.txt").read_text() == "keep me"


def test_there_are_two_hundred():
    assert sum(map(len, (SPECS, TABLES, SCHEMAS, BYTES, PARQUETS))) >= 200


def test_an_edgewise_algorithm_needs_edges(coterie, tmp_path):
    (tmp_path / "spec.toml").write_text(
        '[data]\ndataset = "heart"\n[parties]\ntopology = "unrestricted"\n[privacy]\nepsilon = 2.0\ndelta = 1e-5\n'
        'adjacency = "replace-one"\n[algorithm]\nname = "edgewise-admm"\n'
    )
    code, out, told = coterie("run", tmp_path / "spec.toml", "--plan")
    assert (code, out) == (2, "")
    assert "without edges" in told
