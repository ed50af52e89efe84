"""Facts: the public constants a plan rests on are refused when they cannot be true."""

import math
import re

import pytest

from coterie.errors import InputError
from coterie.values import Facts

GOOD = {"parties": ("a", "b"), "sizes": (3, 4), "n_features": 2, "row_norm": 1.0, "labels": ("no", "yes")}


def test_good_facts_are_kept_and_compared_by_value():
    facts = Facts(**GOOD)
    assert facts.n_parties == 2
    assert facts == Facts(**GOOD)
    assert facts != Facts(**GOOD | {"row_norm": 2.0})
    assert hash(facts) == hash(Facts(**GOOD))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sizes": (3,)}, "sizes: 1 given for 2 parties;"),
        ({"parties": (), "sizes": ()}, "sizes: 0 given for 0 parties;"),
        ({"parties": ("a", "a")}, "parties: names must differ, got ('a', 'a')"),
        ({"sizes": (3, 0)}, "parties: party 'b' has 0 records;"),
        ({"sizes": (-3, 2)}, "parties: party 'a' has -3 records;"),
        ({"n_features": 0}, "n_features: got 0;"),
        ({"row_norm": 0.0}, "row_norm: got 0.0;"),
        ({"row_norm": -1.0}, "row_norm: got -1.0;"),
        ({"row_norm": math.inf}, "row_norm: got inf;"),
        ({"row_norm": math.nan}, "row_norm: got nan;"),
        ({"weight_bound": 0.0}, "weight_bound: got 0.0;"),
        ({"weight_bound": math.nan}, "weight_bound: got nan;"),
        ({"labels": ("yes",)}, "labels: got ('yes',);"),
        ({"labels": ("yes", "yes")}, "labels: got ('yes', 'yes');"),
        ({"labels": None, "label_bound": 0.0}, "label_bound: got 0.0;"),
        ({"labels": None, "label_bound": -1.0}, "label_bound: got -1.0;"),
        ({"labels": None, "label_bound": math.inf}, "label_bound: got inf;"),
    ],
    ids=lambda value: value.partition(";")[0] if isinstance(value, str) else "-".join(value),
)
def test_impossible_facts_are_refused_by_name_and_value(changes, message):
    with pytest.raises(InputError, match="^" + re.escape(message)):
        Facts(**GOOD | changes)


def test_facts_cannot_be_changed():
    with pytest.raises(AttributeError, match="cannot assign"):
        Facts(**GOOD).row_norm = 0.5  # type: ignore[misc]
