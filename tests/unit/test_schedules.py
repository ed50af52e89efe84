"""Schedules: start * ratio^t for all parties or for each, the same number on the host and on the device."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.errors import InputError
from coterie.values import Schedule, as_schedule

positive = st.floats(1e-3, 1e3)
ratios = st.floats(0.8, 1.2)


@given(positive, ratios, st.integers(0, 30))
def test_one_number_for_all(start, ratio, t):
    schedule = Schedule(start, ratio)
    assert not schedule.per_party
    assert schedule.constant_in_time == (ratio == 1)
    for party in (0, 5):
        np.testing.assert_allclose(schedule.at(t, party), start * ratio**t, rtol=1e-14)
    np.testing.assert_allclose(schedule(t), start * ratio**t, rtol=1e-12)


@given(st.lists(positive, min_size=3, max_size=3), st.lists(ratios, min_size=3, max_size=3), st.integers(0, 30))
def test_one_number_per_party(starts, party_ratios, t):
    for schedule in (Schedule(starts, party_ratios), Schedule(starts, 1.1), Schedule(2.0, party_ratios)):
        assert schedule.per_party
        np.testing.assert_allclose(schedule(t), [schedule.at(t, party) for party in range(3)], rtol=1e-12)


def test_traced_rounds_give_the_host_value():
    """What a grant was priced with on the host and what the device uses must be one number."""
    with jax.enable_x64(True):
        for schedule in (Schedule(0.5, 1.01), Schedule((0.5, 2.0), (1.01, 0.9)), Schedule(3.0)):
            on_device = jax.jit(lambda t, schedule=schedule: jnp.asarray(schedule(t)))(jnp.asarray(17.0))
            np.testing.assert_allclose(on_device, schedule(17), rtol=1e-13)


def test_times_scales_every_round_and_every_party():
    for schedule in (Schedule(2.0, 1.1), Schedule((1.0, 2.0), 1.1)):
        np.testing.assert_allclose(schedule.times(3.0)(4), 3 * np.asarray(schedule(4)), rtol=1e-14)
        assert schedule.times(3.0).ratio == schedule.ratio


@pytest.mark.parametrize("given_value", [2, 2.0, np.float64(2.0), np.int64(2), Schedule(2.0)])
def test_numbers_become_constant_schedules(given_value):
    assert as_schedule("penalty", given_value) == Schedule(2.0)


@pytest.mark.parametrize("given_value", [[1, 2], (1.0, 2.0), np.array([1.0, 2.0]), np.array([1, 2])])
def test_sequences_become_one_constant_per_party(given_value):
    schedule = as_schedule("penalty", given_value)
    assert schedule == Schedule((1.0, 2.0))
    assert schedule.per_party
    assert schedule.constant_in_time


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, (1.0, 0.0)])
@pytest.mark.parametrize("name", ["start", "ratio"])
def test_numbers_that_are_not_positive_are_refused(name, bad):
    with pytest.raises(InputError, match=rf"^{name}: got {re.escape(str(bad))};"):
        Schedule(**({"start": 1.0} | {name: bad}))


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, "big", None, (1.0, -2.0), [], {"a": 1}, [[1.0]]])
def test_the_name_of_the_argument_is_in_the_refusal(bad):
    with pytest.raises(InputError, match=r"^penalty: got "):
        as_schedule("penalty", bad)


def test_the_number_of_parties_is_checked_by_name():
    Schedule((1.0, 2.0), 1.1).check_parties("penalty", 2)
    Schedule(1.0, 1.1).check_parties("penalty", 7)
    for schedule in (Schedule((1.0, 2.0)), Schedule(1.0, (1.0, 2.0))):
        with pytest.raises(InputError, match=r"^penalty: 2 values given for 3 parties;"):
            schedule.check_parties("penalty", 3)


def test_numbers_of_each_party_may_be_starts_or_ratios():
    assert Schedule((1.0, 2.0)).per_party
    assert Schedule(1.0, (0.5, 0.9)).per_party
    assert not Schedule(1.0, 0.5).per_party
