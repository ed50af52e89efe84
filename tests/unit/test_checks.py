"""Refusals that rooms share: what is let through, what is not, and in which words."""

import math

import numpy as np
import pytest

from coterie.errors import InputError
from coterie.values import is_missing, nearest, positive_number, whole_number


@pytest.mark.parametrize("value", [1, 1e-300, 2.5, np.float32(0.5), np.int64(3)])
def test_positive_numbers_become_floats(value):
    found = positive_number("l2", value)
    assert type(found) is float
    assert found == value


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, -math.inf, True, "2", None, [1.0], 10**400])
def test_what_is_no_positive_number_is_refused(value):
    with pytest.raises(InputError, match=r"^l2: got .*; a positive finite number is needed$"):
        positive_number("l2", value)


@pytest.mark.parametrize("value", [2, 3, np.int64(2), 10**30])
def test_whole_numbers_become_plain_ones(value):
    found = whole_number("rounds", value, at_least=2)
    assert type(found) is int
    assert found == value


@pytest.mark.parametrize("value", [1, -5, 2.0, "3", None, np.float64(4)])
def test_what_is_no_such_whole_number_is_refused(value):
    with pytest.raises(InputError, match=r"^rounds: got .*; an integer >= 2 is needed$"):
        whole_number("rounds", value, at_least=2)


def test_truth_is_no_number():
    with pytest.raises(InputError, match="rounds: got True; an integer >= 1 is needed"):
        whole_number("rounds", True, at_least=1)


def test_the_nearest_name_is_a_hint():
    assert nearest("rign", ("complete", "ring")) == " (did you mean 'ring'?)"
    assert nearest(3, ("complete", "ring")) == ""


@pytest.mark.parametrize("value", [None, math.nan, "", " NA ", "?"])
def test_blanks(value):
    assert is_missing(value)


@pytest.mark.parametrize("value", [0, 0.0, 1.5, "0", "none of these", False])
def test_what_is_no_blank(value):
    assert not is_missing(value)
