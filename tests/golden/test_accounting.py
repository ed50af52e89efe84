"""Accounting against numbers that were not computed by this package: published ones, mpmath and dp_accounting."""

import dataclasses
import math

import mpmath
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.rdp import RdpAccountant
from dp_accounting.rdp import rdp_privacy_accountant as rdp_library
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.algorithms import NoisyGradientDescent, PenaltyPerturbedADMM
from coterie.errors import InputError, PrivacyPreconditionError
from coterie.network.channels import Curator, SecureSum
from coterie.plan import Plan
from coterie.privacy import accountants
from coterie.privacy.events import (
    Gaussian,
    GaussianObjective,
    PoissonGaussian,
    Pure,
    Unprotected,
    determinant_loss,
)
from coterie.privacy.mechanisms import GaussianGradient, PartyFacts
from coterie.privacy.moments import Moments
from coterie.privacy.objective import ArgminBounds, PenaltyPerturbation
from coterie.problems import L2, Logistic, Multinomial, Problem
from coterie.values import Facts

ORDERS = np.array([1.01, 1.5, 2.0, 3.7, 8.0, 32.0, 500.0])


def facts_of(sizes, **changes):
    names = tuple(f"party {i:04d}" for i in range(len(sizes)))
    return Facts(
        **{"parties": names, "sizes": sizes, "n_features": 3, "row_norm": 1.0, "labels": ("no", "yes")} | changes
    )


def plan_of(
    facts, *, rounds, topology="complete", penalty=1.0, multiplier=None, rate=None, party_weight=1750.0, **settings
):
    mechanism = PenaltyPerturbation(penalty=penalty, noise_multiplier=multiplier, noise_rate=rate)
    problem = Problem(loss=Logistic(), regulariser=L2(0.22), party_weight=party_weight)
    algorithm = PenaltyPerturbedADMM(mechanism=mechanism, dual_step=1.0)
    return Plan.make(algorithm, problem, topology, facts, rounds=rounds, **{"adjacency": "replace-one"} | settings)


# --- a secret coin, once ----------------------------------------------------------------------------------------------


def delta_of_a_coin(eps, ratio, rate):
    """Exactly, the larger of both directions: (1 - q) N(0, 1) + q N(ratio, 1) against N(0, 1)."""

    def beyond(threshold, shift=0.0):
        return mpmath.ncdf(shift - threshold)

    def mixed(tail):
        return (1 - rate) * tail(0.0) + rate * tail(ratio)

    at = mpmath.log((mpmath.exp(eps) - 1 + rate) / rate) / ratio + ratio / 2
    found = mixed(lambda shift: beyond(at, shift)) - mpmath.exp(eps) * beyond(at)
    if mpmath.exp(-eps) > 1 - rate:
        at = mpmath.log((mpmath.exp(-eps) - 1 + rate) / rate) / ratio + ratio / 2
        found = max(found, 1 - beyond(at) - mpmath.exp(eps) * mixed(lambda shift: 1 - beyond(at, shift)))
    return found


@pytest.mark.parametrize(("ratio", "rate"), [(0.5, 0.2), (2.0, 0.1), (3.0, 0.7)])
def test_numerical_composition_knows_a_secret_coin(ratio, rate):
    eps = accountants.epsilon([(PoissonGaussian(ratio=ratio, rate=rate), 1)], 1e-3, "pld")
    # never too little, and by no more than its grid too much
    assert delta_of_a_coin(eps, ratio, rate) <= 1e-3 * (1 + 1e-9)
    assert delta_of_a_coin(eps - 1e-3, ratio, rate) > 1e-3


def test_twice_the_noise_is_twice_the_multiplier_or_half_the_rate():
    of_rate = PenaltyPerturbation(penalty=1.0, noise_rate=0.5).with_noise(2.0)
    of_multiplier = PenaltyPerturbation(penalty=1.0, noise_multiplier=0.5).with_noise(2.0)
    assert (of_rate.levels(0, 0), of_multiplier.levels(0, 0)) == ((None, 0.25), (1.0, None))


# --- a hundred rounds on five parties ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("topology", "published"), [("complete", 2.467), ("ring", 2.606)])
def test_hundred_rounds_of_objective_perturbation(topology, published):
    plan = plan_of(facts_of((8000,) * 5), rounds=100, topology=topology, multiplier=20.0)
    assert plan.epsilon(1e-6, accountant="rdp") == pytest.approx(published, abs=1e-3)
    # nothing else applies
    assert plan.epsilon(1e-6) == plan.epsilon(1e-6, accountant="rdp")


def test_hundred_rounds_of_the_plain_gaussian_mechanism():
    ledger = [(Gaussian(ratio=1 / 20), 100)]
    assert accountants.epsilon(ledger, 1e-6, "rdp") == pytest.approx(2.419, abs=1e-3)
    assert accountants.epsilon(ledger, 1e-6, "gaussian") == pytest.approx(2.254, abs=1e-3)
    assert accountants.epsilon(ledger, 1e-6, "pld") == pytest.approx(2.254, abs=1e-3)


# --- curves -----------------------------------------------------------------------------------------------------------


def exact_gaussian_delta(eps, ratio):
    eps, ratio = mpmath.mpf(eps), mpmath.mpf(ratio)
    return mpmath.ncdf(ratio / 2 - eps / ratio) - mpmath.exp(eps) * mpmath.ncdf(-ratio / 2 - eps / ratio)


@pytest.mark.parametrize("ratio", [1e-3, 0.05, 0.5, 2.0, 10.0, 60.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-6, 1e-12, 1e-40])
def test_analytic_gaussian_is_exact_and_never_below_the_truth(ratio, delta):
    with mpmath.workdps(80):
        eps = accountants.gaussian_epsilon([(Gaussian(ratio=ratio), 1)], delta)
        if eps == 0.0:
            assert exact_gaussian_delta(0, ratio) <= delta
            return
        truth = mpmath.findroot(lambda e: mpmath.log(exact_gaussian_delta(e, ratio) / delta), eps)
        # bisection ends on the safe side; what is left is rounding of the normal distribution's tail
        assert float((eps - truth) / truth) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("ratio", [0.02, 0.7, 1.3, 8.0, 60.0])
def test_the_largest_delta_that_an_order_allows_is_never_below_the_truth(ratio):
    """By a golden-section search in 80 digits; 60 and 999 are far beyond what anybody promises, and have the most to
    cancel."""
    orders = np.array([1.1, 3.0, 30.0, 500.0, 999.0])
    found = accountants._log_peaks(orders, ratio)
    shrink = (mpmath.sqrt(5) - 1) / 2
    with mpmath.workdps(80):
        for order, peak in zip(orders, found, strict=True):
            wanted = mpmath.mpf(float(order)) - 1

            def height(x, wanted=wanted):
                return mpmath.log(exact_gaussian_delta(x, ratio)) + wanted * x

            low, high = mpmath.mpf(-60), mpmath.mpf(ratio) ** 2 * float(order) + 60
            for _ in range(120):
                left, right = high - shrink * (high - low), low + shrink * (high - low)
                low, high = (left, high) if height(left) < height(right) else (low, right)
            truth = height((low + high) / 2)
            assert 0 <= peak - truth <= 3e-9 + 1e-11 * abs(truth)


@pytest.mark.parametrize(
    "ledger",
    [
        [(Gaussian(ratio=0.05), 100)],
        [(Gaussian(ratio=0.3), 7), (Gaussian(ratio=0.01), 1000)],
        [(Pure(epsilon=0.05), 100)],
        [(GaussianObjective(0.05, 0.01, 1, 1, "replace-one", margin=True), 50)],
        [(GaussianObjective(0.05, 0.01, 2, 2, "zero-out", margin=False), 50)],
    ],
    ids=["gaussian", "two gaussians", "pure", "objective replace-one", "objective zero-out"],
)
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-10])
def test_conversion_from_renyi_agrees_with_dp_accounting(ledger, delta):
    curves = sum(count * event.rdp(accountants.ORDERS) for event, count in ledger)
    theirs = []
    for curve in curves:
        finite = np.isfinite(curve)
        theirs.append(rdp_library.compute_epsilon(accountants.ORDERS[finite], curve[finite], delta)[0])
    assert accountants.rdp_epsilon(ledger, delta) == pytest.approx(max(theirs), rel=1e-9)


def test_composed_gaussians_agree_with_the_accountant_of_dp_accounting():
    theirs = RdpAccountant(orders=accountants.ORDERS).compose(GaussianDpEvent(20.0), 100).get_epsilon(1e-6)
    assert accountants.rdp_epsilon([(Gaussian(ratio=1 / 20), 100)], 1e-6) == pytest.approx(theirs, rel=1e-9)


@pytest.mark.parametrize("eps", [1e-4, 0.1, 1.0, 5.0, 40.0])
def test_pure_curve_is_that_of_randomised_response(eps):
    """Truth with probability e^eps/(1 + e^eps): the worst of all eps-DP mechanisms at every order."""
    curve = Pure(epsilon=eps).rdp(ORDERS)
    with mpmath.workdps(60):
        for order, row in zip(ORDERS, curve.T, strict=True):
            a, likely = mpmath.mpf(float(order)), mpmath.exp(eps) / (1 + mpmath.exp(eps))
            power_sum = likely**a * (1 - likely) ** (1 - a) + (1 - likely) ** a * likely ** (1 - a)
            response = mpmath.log(power_sum) / (a - 1)
            formula = mpmath.log((mpmath.exp(a * eps) + mpmath.exp((1 - a) * eps)) / (1 + mpmath.exp(eps))) / (a - 1)
            assert abs(response - formula) < mpmath.mpf(10) ** -40
            # near order 1 the curve is a difference of nearly equal numbers over a small one
            assert row == pytest.approx([float(response)] * 2, rel=1e-9, abs=1e-13)


@pytest.mark.parametrize(("eps", "count"), [(0.5, 1), (0.1, 20), (0.02, 500)])
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_composed_pure_losses_stay_above_the_numerical_truth(eps, count, delta):
    ledger = [(Pure(epsilon=eps), count)]
    truth = accountants.epsilon(ledger, delta, "pld")
    assert accountants.epsilon(ledger, delta, "rdp") >= truth - 1e-6
    assert accountants.epsilon(ledger, delta, "pure") >= truth - 1e-6
    assert accountants.epsilon(ledger, delta, "best") >= truth - 1e-6
    # and are of use: a bound twice as large as the truth would pass the lines above
    assert accountants.epsilon(ledger, delta, "best") <= 1.3 * truth


@pytest.mark.parametrize("jacobian", [1e-6, 0.01, 0.3])
@pytest.mark.parametrize("order", [1.5, 2.0, 4.0])
def test_objective_curve_agrees_with_its_formula_in_high_precision(jacobian, order):
    ratio, rank = 0.2, 2
    with mpmath.workdps(60):
        a, k = mpmath.mpf(order), mpmath.mpf(jacobian)
        noise = a * mpmath.mpf(ratio) ** 2 / 2
        plus = mpmath.log(1 + k) - mpmath.log(1 + (a - 1) * k / (1 + k)) / (a - 1)
        minus = -mpmath.log(1 + k) - mpmath.log(1 - (a - 1) * k) / (a - 1)
        zero_out = [float(noise + rank * plus), float(noise + rank * minus)]
        replace_one = [float(noise + rank * (plus + minus))] * 2
    for adjacency, expected in (("zero-out", zero_out), ("replace-one", replace_one)):
        event = GaussianObjective(ratio, jacobian, rank, rank, adjacency, margin=False)
        assert event.rdp(np.array([order]))[:, 0] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("n_classes", [2, 3, 10])
@pytest.mark.parametrize("jacobian", [1e-3, 0.05, 0.3, 2.0])
def test_eigenvalues_of_many_classes_cost_no_more_than_is_stated_and_hardly_less(n_classes, jacobian):
    """Over random probabilities of K classes and the worst ones, two alike or all alike, of whose Hessian
    diag p - pp' the largest eigenvalue is at most 1/2."""
    loss, rng = Multinomial(n_classes), np.random.default_rng(0)
    orders = np.array([1.01, 1.5, 2.0, 8.0, 64.0])
    words = {"rank": loss.rank, "effective_rank": loss.effective_rank, "adjacency": "zero-out", "margin": False}
    stated = GaussianObjective(ratio=0.0, jacobian=jacobian, **words).rdp(orders)
    of_gamma = determinant_loss(jacobian, loss.rank, loss.effective_rank)
    two, alike = np.eye(n_classes)[:2].sum(axis=0) / 2, np.full(n_classes, 1 / n_classes)
    drawn = [rng.dirichlet(np.full(n_classes, share)) for share in (0.05, 0.3, 1.0, 5.0) for _ in range(200)]
    reached, reached_by_gamma, t = np.zeros((2, len(orders))), 0.0, orders[:, None] - 1
    for p in (two, alike, *drawn):
        k = 2 * jacobian * np.clip(np.linalg.eigvalsh(np.diag(p) - np.outer(p, p))[1:], 0, 0.5)
        with np.errstate(invalid="ignore", divide="ignore"):
            minus = np.where(t * k < 1, -np.log1p(k) - np.log1p(-t * k) / t, np.inf).sum(axis=1)
        plus = (np.log1p(k) - np.log1p(t * k / (1 + k)) / t).sum(axis=1)
        reached = np.maximum(reached, [plus, minus])
        reached_by_gamma = max(reached_by_gamma, np.log1p(k).sum())
    assert (reached <= stated * (1 + 1e-9) + 1e-15).all()
    assert reached_by_gamma == pytest.approx(of_gamma, rel=1e-9)
    # the worst eigenvalues need not be those of one p: half of what is stated is reached in one direction and beyond
    finite = np.isfinite(stated)
    assert (stated[finite] <= 2.5 * reached[finite] + 1e-12).all()


@pytest.mark.parametrize("ratio", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("jacobian", [0.05, 0.2, 0.45])
def test_one_record_of_three_classes_loses_no_more_than_is_stated(ratio, jacobian):
    """Exact divergences of the minimiser's densities with one record and with none, by the trapezoidal rule over the
    noise; Lambda and the row are 1. What all three coefficients have in common no record moves."""
    loss, orders = Multinomial(3), np.array([1.5, 2.0, 3.0])
    weight = 2 * jacobian
    std = weight * loss.lipschitz / ratio
    line, step = np.linspace(-10 * std, 10 * std, 501, retstep=True)
    plane = np.array([[1, -1, 0], [1, 1, -2]]) / np.sqrt([[2], [6]])
    b = np.stack(np.meshgrid(line, line, indexing="ij"), axis=-1).reshape(-1, 2) @ plane
    chance = np.exp(-(b**2).sum(axis=1) / (2 * std**2)) * step**2 / (2 * np.pi * std**2)
    p = np.exp(-b - np.max(-b, axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    # without the record f = -b; with it the same f needs another b
    other = b - weight * (p - np.eye(3)[0])
    bends = np.eye(3) + weight * (p[:, :, None] * np.eye(3) - p[:, :, None] * p[:, None, :])
    log_ratio = ((b**2).sum(axis=1) - (other**2).sum(axis=1)) / (2 * std**2) + np.log(np.linalg.det(bends))
    assert chance @ np.exp(log_ratio) == pytest.approx(1.0, abs=1e-7)
    words = {"rank": loss.rank, "effective_rank": loss.effective_rank, "adjacency": "zero-out", "margin": False}
    stated = GaussianObjective(ratio=ratio, jacobian=jacobian, **words).rdp(orders)
    powers = np.array([orders, 1 - orders])
    exact = np.log([[chance @ np.exp(power * log_ratio) for power in row] for row in powers]) / (orders - 1)
    assert (exact <= stated).all()
    # and not next to nothing: a bound ten times as large would be of no use
    assert exact[0, 1] > 0.1 * stated[0, 1]


@pytest.mark.parametrize("jacobian", [0.25, 0.5, 4.0])
def test_objective_curve_is_infinite_where_the_proof_ends(jacobian):
    """From order 1 + 1/k on there is no bound: a large number instead of infinity would be an invention."""
    last = 1 + 1 / jacobian
    orders = np.array([1 + 0.999 / jacobian, last, last + 1, 1e6])
    event = GaussianObjective(0.1, jacobian, 1, 1, "replace-one", margin=True)
    assert np.isfinite(event.rdp(orders)).tolist() == [[True, False, False, False]] * 2
    zero_out = dataclasses.replace(event, adjacency="zero-out", margin=False)
    assert np.isfinite(zero_out.rdp(orders)).tolist() == [[True] * 4, [True, False, False, False]]
    # a slope of one sign has a bound without the Jacobian, at every order
    assert np.isfinite(dataclasses.replace(zero_out, margin=True).rdp(orders)).all()


@pytest.mark.parametrize("ratio", [0.05, 0.5, 2.0])
def test_a_slope_of_one_sign_costs_at_least_what_a_step_in_it_costs(ratio):
    """A convex loss whose slope jumps from 0 to its bound where the noise is -r/2, the worst of one sign.
    From without to with it loses log(P(g < -r/2) + E[exp(t (g r + r²/2)); g > -r/2]) / t, t one less than the order."""
    orders = np.array([1.01, 1.5, 2.0, 8.0, 64.0])
    event = GaussianObjective(ratio=ratio, jacobian=1e9, rank=1, effective_rank=1, adjacency="zero-out", margin=True)
    exact = []
    with mpmath.workdps(60):
        for order in orders:
            t, r = mpmath.mpf(float(order)) - 1, mpmath.mpf(ratio)
            jump = mpmath.exp(t * (t + 1) * r**2 / 2) * mpmath.ncdf(t * r + r / 2)
            exact.append(float(mpmath.log(mpmath.ncdf(-r / 2) + jump) / t))
    stated = event.rdp(orders)[1]
    assert (stated >= exact).all()
    # and hardly more, where much is lost
    assert (stated[-2:] <= np.array(exact[-2:]) + math.log(2) / (orders[-2:] - 1)).all()


# --- Gaussian releases after others -----------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-10])
@pytest.mark.parametrize("ratio", [0.05, 0.3, 1.0, 3.0])
def test_gaussian_releases_afterwards_count_exactly(ratio, delta):
    """Alone, and after one that has a sixteenth of the budget and is known by its Renyi divergences only."""
    truth = accountants.epsilon([(Gaussian(ratio=ratio), 1)], delta, "gaussian")
    alone = accountants.mixed_epsilon([], delta, [(Gaussian(ratio=ratio), 1)])
    assert truth - 1e-9 <= alone <= 1.001 * truth
    first, second = [(Gaussian(ratio=ratio / 4), 1)], [(Gaussian(ratio=ratio * math.sqrt(15 / 32)), 2)]
    together = accountants.mixed_epsilon(first, delta, second)
    assert truth <= together <= 1.01 * truth
    assert accountants.rdp_epsilon([*first, *second], delta) > 1.03 * truth


@pytest.mark.parametrize("delta", [1e-3, 1e-6])
@pytest.mark.parametrize(("eps", "count", "ratio"), [(0.5, 1, 0.3), (0.1, 20, 0.5), (0.02, 500, 0.2), (2.0, 1, 1.0)])
def test_gaussian_releases_after_pure_ones_stay_above_the_numerical_truth(eps, count, ratio, delta):
    first, second = [(Pure(epsilon=eps), count)], [(Gaussian(ratio=ratio), 1)]
    truth = accountants.epsilon([*first, *second], delta, "pld")
    found = accountants.epsilon(first, delta, "mixed", afterwards=second)
    assert truth - 1e-6 <= found <= 1.3 * truth
    assert accountants.epsilon(first, delta, afterwards=second) <= found


def test_what_is_not_known_to_come_last_is_not_counted_as_if_it_did():
    ledger = [(Pure(epsilon=0.5), 1), (Gaussian(ratio=0.5), 1)]
    assert accountants.epsilon(ledger, 1e-6) == accountants.epsilon(ledger, 1e-6, "rdp")
    assert accountants.epsilon(ledger[:1], 1e-6, afterwards=ledger[1:]) < accountants.epsilon(ledger, 1e-6)
    with pytest.raises(InputError, match="there are none; use 'rdp'"):
        accountants.epsilon(ledger, 1e-6, "mixed")
    with pytest.raises(InputError, match="'mixed' takes Gaussian releases only"):
        accountants.epsilon(ledger[1:], 1e-6, "mixed", afterwards=ledger[:1])


# --- the least of several bounds --------------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [1e-2, 1e-6])
@pytest.mark.parametrize(
    ("ledger", "applicable"),
    [
        ([(Gaussian(ratio=0.05), 100)], ("pure", "rdp", "gaussian")),
        ([(Pure(epsilon=0.01), 2)], ("pure", "rdp")),
        ([(Pure(epsilon=0.05), 400)], ("pure", "rdp")),
        ([(Pure(epsilon=0.01), 3), (Gaussian(ratio=0.2), 4)], ("pure", "rdp")),
    ],
    ids=["gaussian", "few pure", "many pure", "mixed"],
)
def test_best_is_the_least_of_what_applies(ledger, applicable, delta):
    bounds = [accountants.epsilon(ledger, delta, name) for name in applicable]
    assert accountants.epsilon(ledger, delta, "best") == min(bounds)
    # so that the choice matters
    assert len(set(bounds)) == len(bounds)


@pytest.mark.parametrize("size", [2, 5, 20])
@pytest.mark.parametrize("ratio", [0.01, 0.3])
def test_group_loss_satisfies_the_group_inequality(ratio, size):
    delta, ledger = 1e-5, [(Gaussian(ratio=ratio), 1)]
    grouped = accountants.group_epsilon(lambda d: accountants.gaussian_epsilon(ledger, d), delta, size)
    single = accountants.gaussian_epsilon(ledger, delta)
    assert grouped >= size * single
    one = grouped / size
    assert accountants.gaussian_delta(one, ratio) * math.expm1(grouped) / math.expm1(one) <= delta * (1 + 1e-9)
    # a group of records moves a Gaussian release by that many times the sensitivity: the truth is known
    assert grouped >= accountants.gaussian_epsilon([(Gaussian(ratio=size * ratio), 1)], delta)


@pytest.mark.parametrize("alone", [0.0, 1.0, 0.7])
def test_a_group_loses_so_often_what_one_record_loses_at_any_delta(alone):
    """Also where that is nothing."""
    assert accountants.group_epsilon(lambda delta: alone, 1e-6, 3) == 3 * alone


def test_a_group_of_one_is_one_record():
    ledger = [(Gaussian(ratio=0.3), 4)]
    assert accountants.group_epsilon(lambda d: accountants.rdp_epsilon(ledger, d), 1e-6, 1) == accountants.rdp_epsilon(
        ledger, 1e-6
    )


@pytest.mark.parametrize("noise", [{"multiplier": 40.0}, {"rate": 0.5}], ids=["gaussian", "gamma"])
def test_more_records_per_person_cost_more(noise):
    losses = [
        plan_of(facts_of((8000,) * 5), rounds=5, penalty=10.0, records_per_person=size, **noise).epsilon(1e-6)
        for size in (1, 2, 4)
    ]
    assert losses[1] >= 2 * losses[0]
    assert losses[2] >= 2 * losses[1]


# --- plans ------------------------------------------------------------------------------------------------------------


def test_people_at_several_parties_pay_at_each_of_them():
    facts = facts_of((100, 200, 400))
    gamma = plan_of(facts, rounds=3, rate=0.5, penalty=10.0, party_weight=1.0)
    spread = dataclasses.replace(gamma, people_span_parties=True)
    by_party = [accountants.pure_epsilon(gamma.ledger(party)) for party in range(3)]
    assert len(set(by_party)) == 3
    assert gamma.pure_epsilon() == max(by_party)
    assert spread.pure_epsilon() == pytest.approx(sum(by_party), rel=1e-12)

    gaussian = plan_of(facts, rounds=3, multiplier=30.0, penalty=10.0, party_weight=1.0)
    spread = dataclasses.replace(gaussian, people_span_parties=True)
    everything = [entry for party in range(3) for entry in gaussian.ledger(party)]
    assert spread.epsilon(1e-6) == pytest.approx(accountants.epsilon(everything, 1e-6), rel=1e-12)
    assert spread.epsilon(1e-6) > gaussian.epsilon(1e-6) == max(gaussian.party_epsilons(1e-6))


def test_a_long_run_of_many_parties_is_priced_through_few_events():
    sizes = (500, 1000) * 500
    plan = plan_of(facts_of(sizes), rounds=10_000, topology="ring", multiplier=5000.0, penalty=10.0, party_weight=1.0)
    ledgers = [plan.ledger(party) for party in range(1000)]
    assert all([count for _, count in ledger] == [10_000] for ledger in ledgers)
    assert len({event for ledger in ledgers for event, _ in ledger}) == 2
    expected = max(accountants.epsilon(ledgers[0], 1e-6), accountants.epsilon(ledgers[1], 1e-6))
    assert plan.epsilon(1e-6) == expected


@st.composite
def uncalibrated_plans(draw):
    gaussian = draw(st.booleans())
    return plan_of(
        facts_of((1000, 2000)),
        rounds=draw(st.integers(1, 300)),
        penalty=1.0,
        party_weight=draw(st.sampled_from([1e-3, 1e-2])),
        multiplier=1.0 if gaussian else None,
        rate=None if gaussian else 1.0,
        adjacency=draw(st.sampled_from(["replace-one", "zero-out"])),
    )


@settings(max_examples=40)
@given(plan=uncalibrated_plans(), target=st.floats(0.05, 20.0), log_delta=st.floats(-12.0, -2.0))
def test_calibrated_plans_meet_their_target_and_waste_none_of_it(plan, target, log_delta):
    delta = 10.0**log_delta
    calibrated = plan.calibrate(target, delta)
    assert 0.999 * target <= calibrated.epsilon(delta) <= target
    # only the noise may change
    same_noise = dataclasses.replace(calibrated, algorithm=plan.algorithm)
    assert same_noise == plan


@pytest.mark.parametrize("noise", [{"multiplier": 1.0}, {"rate": 1.0}], ids=["gaussian", "gamma"])
def test_targets_below_the_price_of_the_jacobian_are_refused(noise):
    """No amount of noise hides the Jacobian, so that the penalty must be named and not more noise be drawn."""
    plan = plan_of(facts_of((50, 50)), rounds=100, penalty=1.0, party_weight=100.0, **noise)
    with pytest.raises(PrivacyPreconditionError, match=r"^epsilon: got 0\.1; .* raise the penalty"):
        plan.calibrate(0.1, 1e-6)


@pytest.mark.parametrize("channel", [Curator(), SecureSum()])
def test_a_person_at_every_party_moves_one_sum_by_all_of_them(channel):
    """One noise covers the sum, so sensitivities add; composing the parties' losses would understate by sqrt(N)."""
    facts = facts_of((40,) * 25)
    algorithm = NoisyGradientDescent(
        mechanism=GaussianGradient(noise_multiplier=20.0), regulariser=L2(1.0), step=0.1, channel=channel
    )
    problem = Problem(loss=Logistic(), regulariser=L2(1.0), record_weight=1.0)
    plan = Plan.make(algorithm, problem, "ring", facts, rounds=10, adjacency="replace-one", people_span_parties=True)
    moments = Moments(multipliers=(30.0, 40.0), curvature_weight=1.5, second_moment_multiplier=50.0)
    for afterwards, multipliers in ((None, ()), (moments, (30, 40, 50))):
        released = [(Gaussian(25 / 20), 10), *((Gaussian(25 / multiplier), 1) for multiplier in multipliers)]
        continuous = accountants.gaussian_epsilon(released, 1e-6)
        # a grid costs next to nothing, and more than nothing
        assert continuous < dataclasses.replace(plan, moments=afterwards).epsilon(1e-6) < continuous * (1 + 1e-6)


def test_a_curve_that_is_not_a_number_proves_nothing():
    class Broken(Gaussian):
        def rdp(self, orders):
            return np.full((2, len(orders)), np.nan)

    assert accountants.rdp_epsilon([(Broken(0.1), 1)], 1e-6) == math.inf
    with pytest.raises(PrivacyPreconditionError, match="finite"):
        Gaussian(math.inf)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (1.0, 1e-6), (4.0, 1e-5), (50.0, 1e-3)])
def test_the_multiplier_of_one_release_spends_the_whole_budget(epsilon, delta):
    """Balle and Wang's condition holds with equality, in fifty digits."""
    ratio = 1 / mpmath.mpf(accountants.gaussian_multiplier(epsilon, delta))
    with mpmath.workdps(50):
        spent = mpmath.ncdf(ratio / 2 - epsilon / ratio) - mpmath.exp(epsilon) * mpmath.ncdf(
            -ratio / 2 - epsilon / ratio
        )
    assert float(spent) == pytest.approx(delta, rel=1e-8)
    assert float(spent) <= delta * (1 + 1e-12)


@pytest.mark.parametrize("rate", [0.01, 0.3, 1.0])
@pytest.mark.parametrize("ratio", [0.2, 1.5])
def test_a_secret_coin_costs_what_the_exact_mixture_does(ratio, rate):
    """Both directions by quadrature: never below, and tight at whole orders."""
    x = np.linspace(-40, 140, 400_001)
    plain = -(x**2) / 2
    mixed = np.logaddexp(np.log1p(-rate) if rate < 1 else -np.inf, math.log(rate) - ratio**2 / 2 + ratio * x) + plain

    def divergence(order, one, two):
        integrand = order * one + (1 - order) * two
        largest = integrand.max()
        mass = np.trapezoid(np.exp(integrand - largest), x) / math.sqrt(2 * math.pi)
        return (largest + math.log(mass)) / (order - 1)

    orders = np.array([1.3, 2.0, 2.5, 3.0, 8.0, 40.0])
    stated = PoissonGaussian(ratio=ratio, rate=rate).rdp(orders)
    exact = np.array([[divergence(a, mixed, plain), divergence(a, plain, mixed)] for a in orders]).T
    assert stated.shape == (2, len(orders))
    assert (stated >= exact * (1 - 1e-9)).all()
    whole = orders == np.rint(orders)
    np.testing.assert_allclose(stated[0, whole], exact[0, whole], rtol=1e-6)
    assert (stated <= Gaussian(ratio).rdp(orders) * (1 + 1e-12)).all()


def test_beyond_the_largest_order_a_secret_coin_costs_the_plain_release():
    event, orders = PoissonGaussian(ratio=0.1, rate=0.01), np.array([512.0, 512.5, 10_000.0])
    plain = Gaussian(0.1).rdp(orders)
    assert event.rdp(orders)[0, 0] < plain[0, 0]
    np.testing.assert_array_equal(event.rdp(orders)[:, 1:], plain[:, 1:])


def test_a_secret_coin_at_the_largest_orders():
    ratio, rate = mpmath.mpf("0.1"), mpmath.mpf("0.01")

    def exact(a):
        terms = (
            mpmath.binomial(a, k) * (1 - rate) ** (a - k) * rate**k * mpmath.exp(k * (k - 1) * ratio**2 / 2)
            for k in range(a + 1)
        )
        return float(mpmath.log(mpmath.fsum(terms)) / (a - 1))

    orders = np.array([510, 511, 512])
    found = PoissonGaussian(ratio=0.1, rate=0.01).rdp(orders.astype(float))
    np.testing.assert_allclose(found[0], [exact(int(a)) for a in orders], rtol=1e-9)


def test_what_has_no_noise_has_no_bound_in_either_direction():
    curve = Unprotected().rdp(accountants.ORDERS)
    assert curve.shape == (2, len(accountants.ORDERS))
    assert np.isinf(curve).all()


@pytest.mark.parametrize("rate", [0.02, 0.4, 5.0, 400.0])
@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
def test_a_logistic_record_pays_where_its_slope_and_curvature_cost_most_together(rate, adjacency):
    """With slope p its curvature is p (1 - p): the largest sum over p, by trying many."""
    weight, row_norm, penalty, degree = 2.0, 3.0, 0.5, 2
    known = Facts(parties=("a", "b", "c"), sizes=(5, 5, 5), n_features=1, row_norm=row_norm, labels=("-", "+"))
    problem = Problem(loss=Logistic(), regulariser=L2(0.3), record_weight=weight)
    bounds = ArgminBounds(
        problem, PartyFacts.of(0, problem, known, degree, adjacency, "record"), curvature=2 * penalty * degree
    )
    convexity = 0.3 / 3 + 2 * penalty * degree
    p = np.linspace(0, 1, 200_001)
    own = rate * weight * row_norm * p + np.log1p(weight * row_norm**2 / convexity * p * (1 - p))
    other = rate * weight * row_norm if adjacency == "replace-one" else 0.0
    assert bounds.gamma_loss(rate) == pytest.approx(own.max() + other, rel=1e-9)
    if rate * convexity >= row_norm:
        assert bounds.gamma_loss(rate) == pytest.approx(rate * bounds.sensitivity, rel=1e-12)
