"""Plain JSON and back: one value has one text, one text has one value, and nothing unknown is read."""

import contextlib
import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.errors import InputError
from coterie.problems import Box, ElasticNet, Huber, Logistic, Problem
from coterie.values import Facts, Schedule, canonical, check_size, decode, digest, encode, serialisable

numbers = st.floats(1e-300, 1e300)


@given(numbers, st.lists(numbers, min_size=2, max_size=4))
def test_round_trip_keeps_every_bit(l1, starts):
    for value in (ElasticNet(0.1 + 0.2, l1), Schedule(tuple(starts), l1), Huber(l1)):
        again = decode(json.loads(canonical(value)))
        assert again == value
        assert digest(again) == digest(value)


def test_nested_values_come_back_as_they_were():
    problem = Problem(loss=Logistic(), regulariser=Box(-1.0, 2.0, 0.5), party_weight=3.0, class_weight=(1.0, 2.0))
    assert decode(encode(problem)) == problem
    facts = Facts(parties=("ä", "b"), sizes=(2, 3), n_features=4, row_norm=1.0, labels=("no", "yes"))
    assert decode(json.loads(canonical(facts))) == facts


@given(numbers, numbers)
def test_different_values_have_different_digests(a, b):
    assert (digest(Huber(a)) == digest(Huber(b))) == (a == b)


def test_canonical_text_is_sorted_and_dense():
    assert canonical(ElasticNet(1.5, 0.5)) == '{"l1":0.5,"l2":1.5,"type":"ElasticNet"}'


def test_infinity_survives_although_json_has_no_word_for_it():
    box = Box(-math.inf, math.inf)
    assert decode(json.loads(canonical(box))) == box


def test_a_word_is_not_turned_into_a_number():
    """A party or a label may be called "inf"."""
    facts = Facts(parties=("inf", "b"), sizes=(2, 3), n_features=4, row_norm=1.0, labels=("-inf", "yes"))
    assert decode(encode(facts)) == facts


def test_equal_numbers_have_one_digest():
    """1 and 1.0 are the same setting to everything else, so they must be the same plan."""
    assert Huber(1) == Huber(1.0)
    assert digest(Huber(1)) == digest(Huber(1.0))


@pytest.mark.parametrize("value", [np.ones(2), {1, 2}, object(), Huber], ids=lambda v: type(v).__name__)
def test_what_is_not_plain_is_refused(value):
    with pytest.raises(InputError, match=r"cannot be (part of a plan|saved)"):
        canonical(value)


def test_a_class_that_was_not_registered_is_refused():
    @dataclasses.dataclass(frozen=True)
    class Stranger:
        x: float

    with pytest.raises(InputError, match=r"^Stranger cannot be saved"):
        canonical(Stranger(1.0))


def test_a_taken_name_is_refused():
    with pytest.raises(InputError, match=r"^serialisable: the name 'Huber' is taken by coterie\.problems$"):
        serialisable(type("Huber", (), {}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"type": "Nonsense"}', r"^plan: unknown type 'Nonsense'"),
        ("{}", r"^plan: unknown type None"),
        ('{"type": ["L2"]}', r"^plan: unknown type \['L2'\]"),
        ('{"type": "L2", "l2": 1.0, "l3": 2.0}', r"^plan: L2 has no field 'l3'; fields are l2"),
        ('{"type": "L2"}', r"^plan: L2 cannot be read: .*l2"),
        ('{"type": "L2", "l2": "big"}', r"^plan: L2\.l2 got a str"),
        ('{"type": "L2", "l2": -1.0}', r"^l2: got -1\.0"),
    ],
)
def test_bad_text_is_refused_with_the_reason(text, message):
    with pytest.raises(InputError, match=message):
        decode(json.loads(text))


def test_nan_never_reaches_a_plan():
    with pytest.raises((InputError, ValueError)):
        decode(json.loads(json.dumps(encode(Schedule(1.5))).replace("1.5", "NaN", 1)))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("parties", [1, 2]),
        ("parties", "ab"),
        ("sizes", [True, 3]),
        ("sizes", [2.5, 3]),
        ("sizes", ["2", 3]),
        ("n_features", True),
        ("n_features", 3.5),
        ("row_norm", True),
        ("row_norm", "1"),
        ("labels", "no"),
        ("labels", [0, 1]),
        ("data_derived", None),
        ("weight_bound", None),
    ],
)
def test_values_of_other_types_are_refused(field, value):
    plain = encode(Facts(parties=("a", "b"), sizes=(2, 3), n_features=3, row_norm=1.0, labels=("no", "yes")))
    assert decode(plain).sizes == (2, 3)
    with pytest.raises(InputError, match=rf"Facts\.{field} got"):
        decode({**plain, field: value})


@pytest.mark.parametrize(
    ("rounds", "parties", "ratio", "sentence"),
    [
        (10**5, 1000, 1, None),
        (10**5 + 1, 1, 1, "n_rounds got 100001; at most 100,000"),
        (1, 10**6 + 1, 1, r"parties got 1e\+06; at most 1,000,000"),
        (10**5, 1001, 1, r"n_rounds times parties got 1\.001e\+08; at most 100,000,000"),
        (10**4, 100, 0.9, None),
        (10**4, 101, 0.9, r"n_rounds times parties, with grants that change, got 1\.01e\+06; at most 1,000,000"),
    ],
)
def test_a_plan_from_a_file_is_no_larger_than_any_needs_to_be(rounds, parties, ratio, sentence):
    plan = {"n_rounds": rounds, "facts": {"parties": ["p"] * parties}, "algorithm": {"step": {"ratio": ratio}}}
    with contextlib.nullcontext() if sentence is None else pytest.raises(InputError, match=f"^plan: {sentence}"):
        check_size(plan)
