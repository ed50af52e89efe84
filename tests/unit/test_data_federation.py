"""Federation: the split, the projection to public bounds, and one clear sentence for bad input."""

import re

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from coterie.data import Federation, Shard
from coterie.errors import InputError
from coterie.values import Facts

X = np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0], [1.0, 0.0]])
Y = np.array(["no", "yes", "no", "yes"])
PARTIES = np.array(["b", "a", "b", "a"])


def federation(**changes):
    arguments = {"X": X, "y": Y, "parties": PARTIES, "labels": ("no", "yes")} | changes
    return Federation.from_arrays(arguments.pop("X"), arguments.pop("y"), **arguments)


def test_splits_by_column_in_name_order_and_projects_long_rows_only():
    made = federation()
    assert made.facts.parties == ("a", "b")
    assert made.facts.sizes == (2, 2)
    assert made.facts.data_derived == ()
    a, b = made.shards
    np.testing.assert_array_equal(a.X, [[0.3, 0.4], [1.0, 0.0]])
    np.testing.assert_allclose(b.X, [[0.6, 0.8], [0.0, 0.0]], rtol=1e-15)
    np.testing.assert_array_equal(a.y, [1.0, 1.0])
    np.testing.assert_array_equal(b.y, [0.0, 0.0])
    assert [array.dtype for array in made.pooled] == [np.float64] * 3
    np.testing.assert_array_equal(made.pooled[0], np.concatenate([a.X, b.X]))


def test_numbered_parties_are_ordered_as_numbers_and_none_is_one_party():
    assert federation(parties=[10, 9, 10, 9]).facts.parties == ("9", "10")
    assert federation(parties=None).facts.parties == ("all",)


def test_shards_are_read_only_and_hide_their_records_but_leave_the_callers_arrays_alone():
    mine = X.copy()
    shard = federation(X=mine).shards[0]
    for array in (shard.X, shard.y, shard.weight):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 7
    assert repr(shard) == "Shard(X: (2, 2), y: (2,), weight: (2,))"
    mine[:] = 0
    assert shard.X[0, 0] == 0.3


def projected(rows, row_norm):
    made = Federation.from_arrays(
        rows, np.zeros(len(rows)), parties=None, label_bound=1, row_norm=row_norm, min_records=1
    )
    return made.shards[0].X


def row_directions(rows):
    peak = np.abs(rows).max(axis=1, keepdims=True)
    return rows / np.where(peak > 0, peak, 1)


SHAPES = st.tuples(st.integers(1, 6), st.integers(1, 5))


@given(hnp.arrays(np.float64, SHAPES, elements=st.floats(-1e308, 1e308)), st.floats(1e-100, 1e100))
def test_no_row_is_longer_than_the_bound_and_directions_stay(rows, row_norm):
    inside = projected(rows, row_norm)
    assert (np.linalg.norm(inside, axis=1) <= row_norm).all()
    np.testing.assert_allclose(row_directions(inside), row_directions(rows), rtol=0, atol=1e-12)


@given(hnp.arrays(np.float64, SHAPES, elements=st.floats(-4, 4)), st.floats(0.5, 5))
def test_long_rows_reach_the_bound_and_short_rows_stay_as_they_are(rows, row_norm):
    inside = projected(rows, row_norm)
    norms = np.linalg.norm(rows, axis=1)
    short, long = norms < row_norm * (1 - 1e-12), norms > row_norm
    np.testing.assert_array_equal(inside[short], rows[short])
    np.testing.assert_allclose(np.linalg.norm(inside[long], axis=1), row_norm, rtol=1e-12)


def test_regression_clips_labels_and_weights_are_clipped():
    made = federation(y=[5.0, -5.0, 0.5, 1], labels=None, label_bound=2, sample_weight=[0, 3, 0.25, 1], weight_bound=1)
    np.testing.assert_array_equal(made.pooled[1], [-2, 1, 2, 0.5])
    np.testing.assert_array_equal(made.pooled[2], [1, 1, 0, 0.25])
    assert (made.facts.label_bound, made.facts.labels) == (2.0, None)


def test_labels_are_matched_by_value():
    made = federation(y=[0.0, 1.0, 0.0, 1.0], labels=(1, 0))
    assert made.facts.labels == ("1", "0")
    np.testing.assert_array_equal(made.pooled[1], [0, 0, 1, 1])


def test_facts_read_off_the_data_are_recorded():
    made = federation(labels="from-data", row_norm="from-data", data_derived=("column_maxima",))
    assert made.facts.data_derived == ("column_maxima", "row_norm", "labels")
    assert made.facts.row_norm == 5.0
    assert made.facts.labels == ("no", "yes")
    made = federation(
        y=[1, -3, 2, 0], labels=None, label_bound="from-data", sample_weight=[1, 4, 0, 2], weight_bound="from-data"
    )
    assert made.facts.data_derived == ("weight_bound", "label_bound")
    assert (made.facts.label_bound, made.facts.weight_bound) == (3.0, 4.0)


def test_people_as_parties_when_asked():
    assert federation(parties=["a", "b", "c", "d"], min_records=1).n_parties == 4


WITH_NAN = X.copy()
WITH_NAN[2, 1] = np.nan

REFUSALS = {
    "nan": ({"X": WITH_NAN}, "X: row 2, column 1 is nan"),
    "inf": ({"X": np.where(X == 1, np.inf, X)}, "X: row 3, column 0 is inf"),
    "flat": ({"X": X[0]}, "X: got shape (2,)"),
    "no rows": ({"X": X[:0]}, "X: got shape (0, 2)"),
    "no columns": ({"X": X[:, :0]}, "X: got shape (4, 0)"),
    "ragged": ({"X": [[1.0], [1.0, 2.0]]}, "X: got rows of different lengths"),
    "text": ({"X": X.astype(str)}, "X: got dtype <U"),
    "objects": ({"X": X.astype(object)}, "X: got dtype object"),
    "sparse": ({"X": scipy.sparse.csr_matrix(X)}, "X: got a sparse csr_matrix; a dense array is needed"),
    "masked": ({"X": np.ma.masked_equal(X, 0)}, "X: got a masked array"),
    "y length": ({"y": Y[:3]}, "y: got 3 values for the 4 rows of X"),
    "y shape": ({"y": Y[:, None]}, "y: got shape (4, 1)"),
    "unknown label": (
        {"y": ["no", "yes", "maybe", "no"]},
        "y: row 2 has a label that is not in labels=('no'",
    ),
    "nan label": ({"y": [0, 1, np.nan, 1], "labels": (0, 1)}, "y: row 2 is nan"),
    "one class": ({"y": ["no"] * 4, "labels": "from-data"}, "labels: got ('no',); at least two"),
    "one label": ({"labels": ["no"]}, "labels: got ('no',); at least two"),
    "same label": ({"labels": ("no", "yes", "no")}, "labels: got ('no', 'yes', 'no'); at least two different"),
    "label text": ({"labels": "yes"}, "labels: got 'yes'"),
    "no task": ({"labels": None}, "labels: got None without a label_bound"),
    "two tasks": ({"label_bound": 2.0}, "label_bound: got 2.0 beside labels"),
    "text target": ({"labels": None, "label_bound": 1}, "y: got dtype <U3"),
    "label bound": ({"y": [1, 2, 3, 4], "labels": None, "label_bound": -1}, "label_bound: got -1"),
    "row norm": ({"row_norm": 0}, "row_norm: got 0;"),
    "row norm text": ({"row_norm": "data"}, "row_norm: got 'data'"),
    "row norm size": ({"row_norm": 1e200}, "row_norm: got 1e+200"),
    "all zero": ({"X": 0 * X, "row_norm": "from-data"}, "row_norm: got 'from-data' but the data are all zero"),
    "weight sign": ({"sample_weight": [1, 1, -2, 1]}, "sample_weight: row 2 is negative"),
    "weight nan": ({"sample_weight": [1, np.nan, 1, 1]}, "sample_weight: row 1 is nan"),
    "weight length": ({"sample_weight": [1, 1]}, "sample_weight: got 2 values"),
    "weight bound": ({"weight_bound": np.inf}, "weight_bound: got inf"),
    "one record": (
        {"parties": ["a", "a", "a", "b"]},
        "parties: the party of row 3 has 1 record; at least min_records=2",
    ),
    "party length": ({"parties": ["a", "b"]}, "parties: got 2 values"),
    "party missing": ({"parties": ["a", None, "a", "a"]}, "parties: row 1 is None"),
    "party scalar": ({"parties": "hospital"}, "parties: got shape ()"),
    "min records": ({"min_records": 0}, "min_records: got 0"),
    "derived": ({"data_derived": "row_norm"}, "data_derived: got 'row_norm'"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals_name_the_argument_and_the_value(case):
    changes, sentence = REFUSALS[case]
    with pytest.raises(InputError, match="^" + re.escape(sentence)) as caught:
        federation(**changes)
    assert "\n" not in str(caught.value)


def test_one_record_party_is_told_how_to_be_allowed():
    with pytest.raises(InputError, match="min_records=1 allows people as parties"):
        federation(parties=["a", "a", "a", "b"])


@pytest.mark.parametrize(
    ("shard", "sentence"),
    [
        (Shard(np.full((2, 1), 1.1), np.zeros(2), np.ones(2)), "a row norm is outside 0 to 1.0"),
        (Shard(np.ones((2, 1)), np.zeros(2), np.full(2, -1.0)), "a weight is outside 0 to 1.0"),
        (Shard(np.ones((2, 1)), np.array([0.0, 2.0]), np.ones(2)), "positions in labels"),
        (Shard(np.ones((2, 1)), np.zeros(3), np.ones(2)), "party 'a' has Shard"),
        (Shard(np.full((2, 1), np.nan), np.zeros(2), np.ones(2)), "a row norm is outside"),
    ],
)
def test_shards_made_by_hand_must_keep_the_public_facts(shard, sentence):
    facts = Facts(parties=("a",), sizes=(2,), n_features=1, row_norm=1.0, labels=("no", "yes"))
    with pytest.raises(InputError, match=sentence):
        Federation(facts, (shard,))
    with pytest.raises(InputError, match="shards: got 2 for 1 parties"):
        Federation(facts, (shard, shard))


def test_a_party_without_records_is_refused():
    with pytest.raises(InputError, match="party 'b' has 0 records"):
        Facts(parties=("a", "b"), sizes=(2, 0), n_features=1, row_norm=1.0)


def test_every_record_can_be_a_party_of_its_own():
    X, y = np.arange(12.0).reshape(6, 2) / 20, np.array([0, 1, 1, 0, 1, 0])
    federation = Federation.from_arrays(X, y, parties=[1, 0, 1, 0, 1, 0], labels=(0, 1), sample_weight=np.full(6, 0.5))
    people = federation.one_record_each()
    assert people.facts.sizes == (1,) * 6
    assert people.facts.labels == federation.facts.labels
    for mine, theirs in zip(people.pooled, federation.pooled, strict=True):
        np.testing.assert_array_equal(mine, theirs)
