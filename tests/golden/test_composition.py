"""What plans cost together: by curves as by one plan that holds them all, exactly for Gaussians, and paid for where the
way may be chosen after the fact."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.errors import InputError
from coterie.privacy import accountants
from coterie.privacy.composition import ORDERS, Price, fits, order_shares, total
from coterie.privacy.events import Gaussian, GaussianObjective, PoissonGaussian, Pure

DELTA = 1e-6
SOME = [
    [(Gaussian(0.2), 1)],
    [(Gaussian(0.01), 100), (Gaussian(0.3), 1)],
    [(Pure(0.1), 3)],
    [(GaussianObjective(0.05, 0.01, 1, 1, "zero-out", True), 20)],
    [(GaussianObjective(0.05, 0.01, 2, 2, "replace-one", False), 20)],
    [(PoissonGaussian(0.5, 0.01), 200)],
]
PRICES = {delta: [Price.of(ledger, delta) for ledger in SOME] for delta in (1e-7, DELTA)}


def rdp_on_orders(ledger, delta):
    curve = sum(count * event.rdp(ORDERS) for event, count in ledger)
    return float(np.max(np.min(curve + np.log1p(-1 / ORDERS) - np.log(delta * ORDERS) / (ORDERS - 1), axis=1)))


@pytest.mark.parametrize("first", [0.05, 0.4])
@pytest.mark.parametrize("second", [0.1, 1.5])
def test_two_gaussian_plans_are_one(first, second):
    prices = [Price.of([(Gaussian(ratio), 1)], DELTA) for ratio in (first, second)]
    one = accountants.gaussian_epsilon([(Gaussian(math.hypot(first, second)), 1)], DELTA)
    assert total(prices, DELTA, in_advance=True) == pytest.approx(one, rel=1e-8)
    # where the second may have been chosen after the first was seen, a third of delta is left to this way
    third = accountants.gaussian_epsilon([(Gaussian(math.hypot(first, second)), 1)], DELTA / 3)
    assert total(prices, DELTA) == pytest.approx(third, rel=1e-8)
    assert one < third


@pytest.mark.parametrize("first", SOME[3:])
@pytest.mark.parametrize("second", SOME[3:])
def test_curves_add_up_to_that_of_one_plan(first, second):
    prices = [Price.of(ledger, DELTA) for ledger in (first, second)]
    stated = total(prices, DELTA, in_advance=True)
    assert stated == pytest.approx(rdp_on_orders([*first, *second], DELTA), rel=1e-8)
    exact = accountants.rdp_epsilon([*first, *second], DELTA)
    assert exact <= stated <= 1.03 * exact
    # a third of delta, divided once more among the orders
    assert stated < total(prices, DELTA) < min(1.2 * stated, rdp_on_orders([*first, *second], DELTA / 100))


@pytest.mark.parametrize("limit", [(0.01, 1e-9), (1.0, 1e-6), (8.0, 1e-4), (100.0, 0.1)])
def test_orders_share_no_more_than_there_is(limit):
    shares = order_shares(limit)
    assert (shares > 0).all()
    assert shares.sum() == pytest.approx(1.0, rel=1e-12)
    ratio = next(
        r for r in np.geomspace(10, 1e-4, 2000) if accountants.rdp_epsilon([(Gaussian(r), 1)], limit[1]) <= limit[0]
    )
    curve = ORDERS * ratio**2 / 2 + np.log1p(-1 / ORDERS) - np.log(limit[1] * ORDERS) / (ORDERS - 1)
    assert abs(int(np.argmin(curve)) - int(np.argmax(shares))) <= 1


@pytest.mark.parametrize("ledger", SOME)
def test_one_plan_alone_costs_what_it_states(ledger):
    price = Price.of(ledger, DELTA)
    assert total([price], DELTA) <= price.epsilon
    assert fits([price], (price.epsilon, DELTA))
    assert not fits([price], (0.9 * total([price], DELTA), DELTA))
    assert total([price], DELTA) >= 0.97 * accountants.epsilon(ledger, DELTA)


@settings(max_examples=30)
@given(st.sampled_from([1e-7, DELTA]), st.data())
def test_never_above_adding(delta, data):
    """Nor, where plans may be chosen after the fact, above adding with a third of delta."""
    prices = data.draw(st.lists(st.sampled_from(PRICES[delta]), min_size=2, max_size=6))
    added = sum(price.epsilon for price in prices)
    assert total(prices, len(prices) * delta, in_advance=True) <= added * (1 + 1e-8)
    assert total(prices, 3 * len(prices) * delta) <= added * (1 + 1e-8)


@settings(max_examples=30)
@given(st.lists(st.sampled_from(PRICES[DELTA]), min_size=1, max_size=5), st.sampled_from(PRICES[DELTA]))
def test_more_never_costs_less(prices, another):
    assert total([*prices, another], DELTA) >= total(prices, DELTA) * (1 - 1e-8)


@settings(max_examples=30)
@given(st.lists(st.sampled_from(PRICES[DELTA]), min_size=1, max_size=4), st.sampled_from([1, 3]))
def test_a_total_is_the_least_limit_that_admits(prices, records):
    prices = [dataclasses.replace(price, records=records) for price in prices]
    stated = total(prices, DELTA)
    assert fits(prices, (stated, DELTA))
    assert not fits(prices, (0.999 * stated, DELTA))


@pytest.mark.parametrize("records", [2, 4])
@pytest.mark.parametrize("ratio", [0.02, 0.1])
def test_people_with_several_records_lose_what_a_plan_says_they_do(ratio, records):
    """One plan alone at its own delta, against the plan's own search over what one record may lose."""
    ledger = [(Gaussian(ratio), 1)]
    alone = total([Price.of(ledger, DELTA, stated=math.inf, records=records)], DELTA)
    searched = accountants.group_epsilon(lambda d: accountants.epsilon(ledger, d), DELTA, records)
    assert alone == pytest.approx(searched, rel=1e-6)
    # a group sees at least a Gaussian of so many times the ratio
    assert alone >= accountants.gaussian_epsilon([(Gaussian(records * ratio), 1)], DELTA)
    with pytest.raises(InputError, match="stated: got None"):
        Price.of(ledger, DELTA, records=records)


def test_a_plan_without_loss_costs_nobody_anything():
    assert total([Price.of([], DELTA, stated=0.0, records=3)] * 2, DELTA) == 0.0


def lost_beyond(limit, orders, shares, ratio=0.05):
    """A Gaussian release is seen, then a plan is chosen that fills the limit at one order: with a chance c it shows a
    loss x, and e^((a-1) R) - 1 = c e^((a-1) x) holds its divergence of order a below R. The delta that is lost beyond
    the limit's epsilon, for the worst order fixed before, and for the order that suits what was seen."""
    z = np.linspace(-9, 9, 20_001)
    weight = np.exp(-(z**2) / 2) / np.exp(-(z**2) / 2).sum()
    # of the first release
    loss = ratio**2 / 2 + ratio * z
    exceeding = []
    for order, delta in zip(orders, shares * limit[1], strict=True):
        left = limit[0] - np.log1p(-1 / order) + np.log(delta * order) / (order - 1) - order * ratio**2 / 2
        # the worst
        x = limit[0] - loss + np.log1p(1 / (order - 1))
        assert (x > 0).all()
        chance = np.minimum(np.expm1((order - 1) * max(left, 0.0)) * np.exp(-(order - 1) * x), 1.0)
        exceeding.append(weight * chance * -np.expm1(limit[0] - loss - x))
    exceeding = np.array(exceeding)
    return exceeding.sum(axis=1).max(), exceeding.max(axis=0).sum()


def test_an_order_that_is_chosen_after_the_fact_can_exceed_delta():
    """Why delta is divided."""
    limit = (1.0, 1e-6)
    fixed, chosen = lost_beyond(limit, np.linspace(5, 150, 60), np.ones(60))
    assert 0.9 * limit[1] < fixed <= limit[1]
    assert chosen > 2 * limit[1]
    orders = ORDERS[(ORDERS > 4) & (ORDERS < 300)]
    _, divided = lost_beyond(limit, orders, order_shares(limit)[(ORDERS > 4) & (ORDERS < 300)])
    assert 0.3 * limit[1] < divided <= limit[1]


def test_a_release_without_a_bound_fits_no_limit():
    bounded, unbounded = Price.of(SOME[0], DELTA), Price.unbounded(DELTA)
    assert total([bounded, unbounded], DELTA) == math.inf
    assert not fits([unbounded], (1e6, 0.5))
    assert fits([bounded, unbounded], (math.inf, DELTA))
    assert Price.of([(Pure(1.0), 1)], DELTA).pure == 1.0


@pytest.mark.parametrize("ledger", SOME)
def test_prices_are_read_back_as_they_were(ledger):
    price = Price.of(ledger, DELTA)
    assert Price.from_dict(price.to_dict()) == price


def test_a_price_keeps_both_directions():
    event = GaussianObjective(ratio=0.2, jacobian=0.01, rank=2, effective_rank=2, adjacency="zero-out", margin=False)
    with_it, without = 3 * event.rdp(ORDERS)
    assert (with_it != without).any()
    assert Price.of([(event, 3)], DELTA).curve == (tuple(with_it), tuple(without))


BAD = [
    {"epsilon": -1.0},
    {"epsilon": math.nan},
    {"delta": 2.0},
    {"delta": "infinite"},
    {"gaussian": -1.0},
    {"pure": math.nan},
    {"pure": math.inf},
    {"curve": [[0.0]]},
    {"curve": [[0.0] * len(ORDERS), [-1.0] * len(ORDERS)]},
    {"records": 0},
    {"records": 1.5},
    {"note": 1},
]


@pytest.mark.parametrize("change", BAD, ids=map(str, BAD))
def test_prices_that_are_none_are_refused(change):
    with pytest.raises(InputError):
        Price.from_dict({**Price.of(SOME[0], DELTA).to_dict(), **change})
