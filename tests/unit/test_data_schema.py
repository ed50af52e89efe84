"""Schema: encoding by public ranges and categories, and its TOML file."""

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.data import CategoryColumn, Label, NumberColumn, NumberLabel, Schema
from coterie.errors import InputError
from coterie.values import values_shown

SCHEMA = Schema(
    columns=(NumberColumn("age", 0, 90), CategoryColumn("colour", ("red", "blue")), NumberColumn("shift", -4, 2)),
    label=Label("ill", ("no", "yes")),
    party_column="hospital",
)
TABLE = {"age": ["45", 180], "colour": ["blue", "red"], "shift": [-8.0, 1.0], "ignored": [None, None]}


def whole(*columns, **more):
    """A schema whose features are left as they are."""
    return Schema(columns, Label("ill", ("no", "yes")), longest_row=1.0, **more)


def test_encode_clips_centres_and_scales_by_public_constants():
    assert SCHEMA.feature_names == ("age", "colour=red", "colour=blue", "shift")
    root = np.sqrt(3)
    features = [[0, -0.5, 0.5, -root], [root, 0.5, -0.5, 2 / 3 * root]]
    np.testing.assert_allclose(whole(*SCHEMA.columns).encode(TABLE), features)
    divided = SCHEMA.encode(TABLE)
    np.testing.assert_allclose(divided / divided[1, 0] * root, features)


def test_constants_that_are_said_take_the_place_of_those_of_the_range():
    usual = NumberColumn("age", 0, 100, centre=40, scale=20)
    np.testing.assert_allclose(usual.encode([20, 40, 200]), [[-1], [0], [3]])
    plain = CategoryColumn("colour", ("red", "blue"), centred=False, weight=2.0)
    np.testing.assert_array_equal(plain.encode(["blue", "red"]), [[0, 2], [2, 0]])
    amounts = NumberColumn("cost", -3000, 3000, log=True, centre=0, scale=1)
    np.testing.assert_allclose(amounts.encode([0, 9, -99])[:, 0], [0, np.log(10), -np.log(100)])


@given(st.floats(1e-6, 1e6), st.lists(st.floats(-0.5, 2), min_size=1, max_size=5))
def test_a_logarithm_does_not_depend_on_the_unit_of_amounts(unit, amounts):
    euros = NumberColumn("cost", -0.5, 2, log=True).encode(amounts)
    others = NumberColumn("cost", -0.5 * unit, 2 * unit, log=True).encode([unit * amount for amount in amounts])
    np.testing.assert_allclose(others, euros, atol=1e-9)


@pytest.mark.parametrize("largest", [5e-324, 1e-321, 1e-300, 1e308])
def test_a_logarithm_stays_finite_at_the_ends_of_floating_point(largest):
    encoded = NumberColumn("cost", 0, largest, log=True).encode([0, largest])
    np.testing.assert_allclose(encoded[:, 0], [-math.sqrt(3), math.sqrt(3)])


@pytest.mark.parametrize("centre", [None, 0, 3, 50, 99])
@pytest.mark.parametrize("log", [False, True])
def test_values_spread_evenly_have_mean_square_one_around_any_centre(centre, log):
    column = NumberColumn("cost", 0, 99, centre=centre, log=log)
    evenly = (np.arange(100_000) + 0.5) / 100_000
    values = column.knee * np.expm1(evenly * column.curved(99)) if log else 99 * evenly
    assert np.mean(column.encode(values) ** 2) == pytest.approx(1.0, abs=1e-6)
    assert column.usual[0] == pytest.approx(1.0)


def test_a_line_that_may_bend_is_cut_into_parts_that_add_up_to_it():
    line, bent = (NumberColumn("cost", 0, 3000, log=True, bends=bends, missing=9.0) for bends in (False, True))
    values = [-1, 0, 1, 9, 13, 14, 100, 207, 208, 3000, 1e9, None]
    parts, whole = bent.encode(values), line.encode(values)
    np.testing.assert_allclose(parts[:, :3].sum(axis=1), whole[:, 0], atol=1e-12)
    np.testing.assert_array_equal(parts[:, 3], whole[:, 1])
    assert bent.feature_names == (
        "cost, lower third (0 to 13.42)",
        "cost, middle third (13.42 to 207.1)",
        "cost, upper third (207.1 to 3000)",
        "cost is missing",
    )
    large = NumberColumn("income", 0, 1_000_000, log=True, bends=True)
    assert large.feature_names[2] == "income, upper third (69018 to 1000000)"
    # only the part in which a value lies tells it from others there
    third = 2 / math.sqrt(3)
    assert (np.ptp(parts[:5], axis=0)[1:] == 0).all()
    assert (np.ptp(parts[5:8], axis=0)[[0, 2]] == 0).all()
    np.testing.assert_allclose(parts[[1, 9], :3], [[-third, -third / 2, 0], [0, third / 2, third]], atol=1e-12)


def test_norms_of_a_bent_line_are_those_of_values_spread_evenly():
    column = NumberColumn("cost", -7, 99, log=True, bends=True, weight=2.0)
    low, high = column.curved(-7), column.curved(99)
    evenly = low + (high - low) * (np.arange(100_000) + 0.5) / 100_000
    squares = np.sum(column.encode(np.sign(evenly) * column.knee * np.expm1(np.abs(evenly))) ** 2, axis=1)
    np.testing.assert_allclose(column.usual, (squares.mean(), squares.var()), rtol=1e-6)
    assert column.longest == pytest.approx(math.sqrt(squares.max()), rel=1e-4)


def test_names_of_bins_that_look_alike_are_told_apart():
    names = NumberColumn("year", 1000000, 1000001, bins=(1000000.25, 1000000.5)).feature_names
    assert names[0] == "year from 1e+06 to 1000000.25"
    assert len(set(names)) == 3


def test_everything_that_is_not_filled_in_is_told_at_once():
    columns = [
        {"name": "age", "minimum": 0, "maximum": 110},
        {"name": "income", "log": True},
        {"name": "smoker", "categories": []},
    ]
    with pytest.raises(InputError) as refused:
        Schema.from_dict({"label": {"name": "ill", "values": []}, "columns": columns})
    assert str(refused.value) == (
        "columns 'income': key 'minimum' is missing; to be filled in or mended too: 'smoker', 'ill'"
    )


def test_bins_are_categories_of_a_number():
    ages = NumberColumn("age", 0, 100, bins=(18, 65), missing=True)
    assert ages.feature_names == ("age from 0 to 18", "age from 18 to 65", "age from 65 to 100", "age is missing")
    np.testing.assert_array_equal(ages.encode([-3, 18, 64.9, 65, 300, None]).argmax(axis=1), [0, 1, 1, 2, 2, 3])
    np.testing.assert_allclose(ages.encode([50]), [[-0.25, 0.75, -0.25, -0.25]])


@pytest.mark.parametrize("blank", ["", " ", "NA", "n/a", "NULL", "?", None, float("nan")])
def test_blanks_are_told_by_a_feature_of_their_own(blank):
    age = NumberColumn("age", 0, 100, centre=50, scale=25, missing=True)
    assert age.feature_names == ("age", "age is missing")
    np.testing.assert_array_equal(age.encode([blank, "75"]), [[0, 1], [1, 0]])
    np.testing.assert_array_equal(
        NumberColumn("age", 0, 100, centre=50, scale=25, missing=0).encode([blank]), [[-2, 1]]
    )
    colour = CategoryColumn("colour", ("red",), other=True, missing=True)
    assert colour.feature_names == ("colour=red", "colour is other", "colour is missing")
    np.testing.assert_array_equal(colour.encode(["red", blank, "green"]).argmax(axis=1), [0, 2, 1])
    with pytest.raises(InputError, match="row 1 is missing; a finite number, or missing = true in the schema, is"):
        NumberColumn("age", 0, 100).encode([1, blank])
    with pytest.raises(InputError, match="row 1 is missing"):
        CategoryColumn("colour", ("red",), other=True).encode(["green", blank])


def test_a_listed_category_is_no_blank_and_whole_numbers_are_their_texts():
    country = CategoryColumn("country", ("NA", "BW"), missing=True)
    np.testing.assert_array_equal(country.encode(["NA", "", "BW"]).argmax(axis=1), [0, 2, 1])
    np.testing.assert_array_equal(CategoryColumn("flag", ("0", "1")).encode([1.0, 0]).argmax(axis=1), [1, 0])


def test_misfits_are_listed_with_column_count_and_place():
    table = {"age": ["1", "old", "", "300", "2"], "colour": ["red", "green", "", "green", "blue"], "shift": [0] * 5}
    found = {(m.column, m.what): m for m in SCHEMA.misfits(table | {"ill": ["no", "no", "yes", "so", "no"]})}
    assert {key: m.rows.tolist() for key, m in found.items()} == {
        ("age", "no finite number"): [1],
        ("age", "missing"): [2],
        ("age", "outside the range"): [3],
        ("colour", "something else"): [1, 3],
        ("colour", "missing"): [2],
        ("ill", "something else"): [3],
    }
    assert [key for key, m in found.items() if not m.refused] == [("age", "outside the range")]
    with pytest.raises(InputError, match=r"column 'colour': row 1 is something else \(so are 1 more\); one"):
        SCHEMA.columns[1].encode(table["colour"])


def test_rows_of_categories_are_never_cut_and_a_share_of_others_is_stated():
    """The share is that of rows that fill their ranges; of 20,000, 5 standard deviations are 1.8 points, and the normal
    law is off by some points more."""
    texts = tuple(f"c{i}" for i in range(9))
    nine = Schema(tuple(CategoryColumn(f"x{i}", ("a", "b", "c")) for i in range(9)), Label("ill", ("no", "yes")))
    assert (nine.longest, nine.share_clipped, nine.rows_clipped) == (1.0, 0.0, "no row can be clipped")
    assert np.linalg.norm(nine.encode({f"x{i}": ["a", "c"] for i in range(9)}), axis=1) == pytest.approx([1, 1])
    rng = np.random.default_rng(0)
    numbers = tuple(NumberColumn(f"x{i}", 0, 10**i) for i in range(8))
    mixed = Schema((*numbers, CategoryColumn("c", texts)), Label("ill", ("no", "yes")))
    table = {f"x{i}": rng.uniform(0, 10**i, 20_000) for i in range(8)} | {"c": rng.choice(texts, 20_000)}
    norms = np.linalg.norm(mixed.encode(table), axis=1)
    assert mixed.share_clipped == pytest.approx(0.5, abs=1e-3)
    assert np.mean(norms > 1) == pytest.approx(mixed.share_clipped, abs=0.04)
    assert np.mean(norms**2) == pytest.approx(1.0, abs=0.02)
    assert norms.max() <= mixed.longest
    assert "about 50% of rows" in mixed.rows_clipped
    everything_clipped = Schema(mixed.columns, mixed.label, longest_row=0.1)
    assert everything_clipped.share_clipped > 0.99


extremes = st.sampled_from([0.0, 1.0, -1.0, 1e9, -1e9])


@given(st.lists(st.tuples(extremes, extremes, st.sampled_from(["a", "b", "?", "z"])), min_size=1, max_size=5))
def test_no_row_is_longer_than_the_schema_says(rows):
    columns = (
        NumberColumn("x", -1, 3, missing=3.0, weight=2.0),
        NumberColumn("y", -5, 5, log=True, centre=1, scale=0.3),
        NumberColumn("z", -5, 5, log=True, bends=True, missing=5),
        CategoryColumn("c", ("a", "b"), other=True, missing=True),
    )
    schema = Schema(columns, Label("ill", ("no", "yes")))
    cells = {"x": 0, "y": 1, "z": 1, "c": 2}
    X = schema.encode({name: [row[place] for row in rows] for name, place in cells.items()})
    assert np.linalg.norm(X, axis=1).max() <= schema.longest * (1 + 1e-12)


def test_labels_are_validated_and_number_labels_clipped():
    np.testing.assert_array_equal(SCHEMA.encode_label(["yes", "no"]), np.array(["yes", "no"]))
    cost = NumberLabel("cost", 0, 10)
    with pytest.raises(InputError, match=r"^column 'cost': row 1 is missing; a finite number is needed$"):
        cost.encode([1.0, float("nan")])
    np.testing.assert_array_equal(cost.encode([-1, 5, 11]), [0, 5, 10])
    assert cost.bound == 10
    assert Schema(SCHEMA.columns, Label("ill", ("0", "1"))).encode_label([1, 0]).tolist() == ["1", "0"]


def test_labels_as_positions_are_those_of_the_texts():
    unsorted = Schema(SCHEMA.columns, Label("ill", ("yes", "no", "?!")))
    assert unsorted.label_positions(["no", "yes", "?!"]).tolist() == [1, 0, 2]
    with pytest.raises(InputError, match="row 1 is something else"):
        unsorted.label_positions(["no", "maybe"])
    np.testing.assert_array_equal(
        Schema(SCHEMA.columns, NumberLabel("cost", 0, 10)).label_positions([-1, 5, 11]), [0, 5, 10]
    )


# what no schema may hold
UNSEEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
names = st.text(st.characters(codec="utf-8", exclude_categories=UNSEEN), min_size=1, max_size=8)
# narrower ranges are refused where nothing can be divided by them
bounds = (
    st.tuples(st.floats(-1e300, 1e300), st.floats(-1e300, 1e300))
    .map(sorted)
    .filter(lambda pair: pair[1] - pair[0] > 1e-300)
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
            "column 'colour': row 1 is something else; one of ('red', 'blue'), or other",
        ),
        ({"age": [1, "old"]}, "column 'age': row 1 is no finite number; a finite number"),
        ({"age": [None, 1]}, "column 'age': row 0 is missing; a finite number"),
        ({"age": [1, float("nan")]}, "column 'age': row 1 is missing; a finite number"),
        ({"age": [[1], [2]]}, "column 'age': row 0 is no finite number (so are 1 more)"),
        ({"age": 3}, "column 'age': got int; a list"),
        ({"colour": "red"}, "column 'colour': got str; a list"),
        ({"shift": [1.0]}, "column 'shift': got 1 values but column 'age' has 2"),
    ],
)
def test_bad_tables_are_refused(change, sentence):
    with pytest.raises(InputError, match="^" + re.escape(sentence)):
        SCHEMA.encode(TABLE | change)


@pytest.mark.parametrize(
    ("shown", "words"), [(True, "is something else ('maybe'); one"), (False, "is something else (--show-values quotes")]
)
def test_a_command_quotes_a_cell_or_says_by_which_option_it_would(shown, words):
    with values_shown(shown), pytest.raises(InputError, match=re.escape(words)):
        SCHEMA.encode_label(["no", "maybe"])


def test_missing_column_and_unknown_label_are_refused():
    table = {"aeg": TABLE["age"], **{name: TABLE[name] for name in ("colour", "shift")}}
    with pytest.raises(InputError, match=re.escape("table: column 'age' is missing (did you mean 'aeg'?)")):
        SCHEMA.encode(table)
    with pytest.raises(
        InputError,
        match=re.escape("column 'ill': row 1 is something else; one of ('no', 'yes')"),
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
        (lambda: CategoryColumn("colour", ("red",)), "column 'colour': got categories ('red',); at least 2"),
        (lambda: CategoryColumn("colour", ("red", "blue"), other="yes"), "column 'colour': got other 'yes'"),
        (lambda: CategoryColumn("colour", ("red", "blue"), weight=0), "column 'colour': got weight 0"),
        (lambda: NumberColumn("age", 0, 1, centre=2), "column 'age': got centre 2; a number from 0 to 1"),
        (lambda: NumberColumn("age", 0, 1, scale=0), "column 'age': got scale 0; a positive"),
        (lambda: NumberColumn("age", 0, 1, scale=1e-101), "column 'age': got scale 1e-101; a positive"),
        (lambda: NumberColumn("age", 0, 1e300, scale=1e-90), "column 'age': got scale 1e-90 for the range"),
        (lambda: NumberColumn("age", 0, 1, log=1), "column 'age': got log 1; true or false"),
        (lambda: NumberColumn("age", 0, 1, bends=2), "column 'age': got bends 2; true or false"),
        (lambda: NumberColumn("age", 0, 1, bends=True), "column 'age': got bends without log"),
        (
            lambda: NumberColumn("age", 0, 1, log=True, centre=1, bends=True),
            "column 'age': got bends without log, or bes",
        ),
        (lambda: NumberColumn("age", 0, 5e-324, log=True, bends=True), "column 'age': got bends in the range 0 to 4.9"),
        (lambda: NumberColumn("age", 0, 1, missing=5), "column 'age': got missing 5; a number from 0 to 1"),
        (lambda: NumberColumn("age", 0, 1, missing="fill"), "column 'age': got missing 'fill'; a number from"),
        (lambda: NumberColumn("age", 0, 9, bins=(3, 2)), "column 'age': got bins (3, 2); increasing"),
        (lambda: NumberColumn("age", 0, 9, bins=(0, 2)), "column 'age': got bins (0, 2); increasing"),
        (lambda: NumberColumn("age", 0, 9, bins=3), "column 'age': got bins 3; increasing"),
        (lambda: NumberColumn("age", 0, 9, bins=(3,), log=True), "column 'age': got bins beside log"),
        (lambda: NumberColumn("age", 0, 9, bins=(3,), missing=2), "column 'age': got missing 2 beside bins"),
        (lambda: Schema(SCHEMA.columns, SCHEMA.label, longest_row=0), "longest_row: got 0; a positive"),
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


@pytest.mark.parametrize(
    "text", ["x = " + "9" * 5000, "x = " + "[" * 5000 + "]" * 5000, ".".join("a" * 50_000) + " = 1"]
)
def test_files_that_would_take_for_ever_are_refused_in_one_line(tmp_path, text):
    (tmp_path / "schema.toml").write_text(text)
    with pytest.raises(InputError, match="is not a TOML file") as refused:
        Schema.read(tmp_path / "schema.toml")
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 500


def test_missing_file_and_folder_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"path: cannot read .*none\.toml"):
        Schema.read(tmp_path / "none.toml")
    with pytest.raises(InputError, match=r"path: cannot write .*none/schema\.toml"):
        SCHEMA.write(tmp_path / "none" / "schema.toml")
