"""Schema: encoding by public ranges and categories, and its TOML file."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.data import CategoryColumn, Label, NumberColumn, NumberLabel, Schema
from coterie.errors import InputError

SCHEMA = Schema(
    columns=(NumberColumn("age", 0, 90), CategoryColumn("colour", ("red", "blue")), NumberColumn("shift", -4, 2)),
    label=Label("ill", ("no", "yes")),
    party_column="hospital",
)
TABLE = {"age": ["45", 180], "colour": ["blue", "red"], "shift": [-8.0, 1.0], "ignored": [None, None]}


def test_encode_clips_scales_and_makes_one_hot_columns():
    assert SCHEMA.feature_names == ("age", "colour=red", "colour=blue", "shift")
    np.testing.assert_array_equal(SCHEMA.encode(TABLE), [[0.5, 0, 1, -1], [1, 1, 0, 0.25]])


def test_labels_are_validated_and_number_labels_clipped():
    np.testing.assert_array_equal(SCHEMA.encode_label(["yes", "no"]), np.array(["yes", "no"]))
    cost = NumberLabel("cost", 0, 10)
    np.testing.assert_array_equal(cost.encode([-1, 5, 11]), [0, 5, 10])
    assert cost.bound == 10
    assert Schema(SCHEMA.columns, Label("ill", ("0", "1"))).encode_label([1, 0]).tolist() == ["1", "0"]


UNSEEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")  # what no schema may hold
names = st.text(st.characters(codec="utf-8", exclude_categories=UNSEEN), min_size=1, max_size=8)
bounds = (
    st.tuples(st.floats(-1e300, 1e300), st.floats(-1e300, 1e300)).map(sorted).filter(lambda pair: pair[0] < pair[1])
)


@given(
    st.lists(names, min_size=4, max_size=4, unique=True),
    bounds,
    st.lists(names, min_size=2, unique=True),
    st.booleans(),
    st.booleans(),
)
def test_toml_round_trip_is_exact(tmp_path_factory, column_names, limits, texts, number_label, with_party):
    number, category, label, party = column_names
    schema = Schema(
        (NumberColumn(number, *limits), CategoryColumn(category, tuple(texts))),
        NumberLabel(label, *limits) if number_label else Label(label, tuple(texts)),
        party if with_party else None,
    )
    path = tmp_path_factory.mktemp("schema") / "schema.toml"
    schema.write(path)
    assert Schema.read(path) == schema
    assert Schema.from_dict(schema.to_dict()) == schema


def test_write_keeps_an_existing_file_unless_asked(tmp_path):
    path = tmp_path / "schema.toml"
    path.write_text("mine")
    with pytest.raises(InputError, match="exists already; overwrite=True"):
        SCHEMA.write(path)
    assert path.read_text() == "mine"
    SCHEMA.write(path, overwrite=True)
    assert Schema.read(path) == SCHEMA


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"colour": ["blue", "green"]},
            "column 'colour': row 1 is something else (--show-values quotes it); one of ('red', 'blue')",
        ),
        ({"age": [1, "old"]}, "column 'age': row 1 is no finite number (--show-values quotes it); a finite number"),
        ({"age": [None, 1]}, "column 'age': row 0 is missing; a finite number"),
        ({"age": [1, float("nan")]}, "column 'age': row 1 is missing; a finite number"),
        ({"age": [[1], [2]]}, "column 'age': row 0 is no finite number"),
        ({"age": 3}, "column 'age': got int; a list"),
        ({"colour": "red"}, "column 'colour': got str; a list"),
        ({"shift": [1.0]}, "column 'shift': got 1 values but column 'age' has 2"),
    ],
)
def test_bad_tables_are_refused(change, sentence):
    with pytest.raises(InputError, match="^" + re.escape(sentence)):
        SCHEMA.encode(TABLE | change)


def test_missing_column_and_unknown_label_are_refused():
    table = {"aeg": TABLE["age"], **{name: TABLE[name] for name in ("colour", "shift")}}
    with pytest.raises(InputError, match=re.escape("table: column 'age' is missing (did you mean 'aeg'?)")):
        SCHEMA.encode(table)
    with pytest.raises(
        InputError,
        match=re.escape("column 'ill': row 1 is something else (--show-values quotes it); one of ('no', 'yes')"),
    ):
        SCHEMA.encode_label(["no", "maybe"])


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: NumberColumn("age", 5, 5), "column 'age': got range 5 to 5"),
        (lambda: NumberColumn("age", 0, np.inf), "column 'age': got range 0 to inf"),
        (lambda: NumberColumn("age", "0", 1), "column 'age': got range '0' to 1"),
        (lambda: NumberColumn("", 0, 1), "column: got name ''"),
        (lambda: CategoryColumn("colour", "red"), "column 'colour': got categories 'red'"),
        (lambda: CategoryColumn("colour", ("red", "red")), "column 'colour': got categories ('red', 'red')"),
        (lambda: CategoryColumn("colour", (1, 2)), "column 'colour': got categories (1, 2)"),
        (lambda: Label("ill", ("yes",)), "column 'ill': got values ('yes',); at least 2"),
        (lambda: Schema((), SCHEMA.label), "columns: got none"),
        (lambda: Schema((NumberColumn("ill", 0, 1),), SCHEMA.label), "columns: the name 'ill' is used twice"),
        (lambda: Schema(SCHEMA.columns, SCHEMA.label, "age"), "columns: the name 'age' is used twice"),
    ],
)
def test_bad_schemas_are_refused(make, sentence):
    with pytest.raises(InputError, match="^" + re.escape(sentence)):
        make()


GOOD = '[label]\nname = "ill"\nvalues = ["no", "yes"]\n[[columns]]\nname = "age"\nminimum = 0\nmaximum = 90\n'


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("maximum", "maximun", "columns: unknown key 'maximun' (did you mean 'maximum'?)"),
        ("[label]", "party_colum = 'x'\n[label]", "schema: unknown key 'party_colum' (did you mean 'party_column'?)"),
        ("maximum = 90", "categories = ['a']", "columns 'age': unknown key 'minimum'"),
        ("maximum = 90", "", "columns 'age': key 'maximum' is missing"),
        ("[label]\nname", "[label]\nvaluse = 1\nname", "label: unknown key 'valuse' (did you mean 'values'?)"),
        ("[[columns]]", "[columns]", "columns: got {"),
        ("[label]", "[label", "path: "),
    ],
)
def test_bad_files_are_refused(tmp_path, old, new, sentence):
    path = tmp_path / "schema.toml"
    path.write_text(GOOD)
    assert Schema.read(path).feature_names == ("age",)
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(InputError, match="^" + re.escape(sentence)):
        Schema.read(path)


def test_missing_file_and_folder_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"path: cannot read .*none\.toml"):
        Schema.read(tmp_path / "none.toml")
    with pytest.raises(InputError, match=r"path: cannot write .*none/schema\.toml"):
        SCHEMA.write(tmp_path / "none" / "schema.toml")
