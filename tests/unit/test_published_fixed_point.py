"""Losses as Cyffers, Bellet & Basu (2023) print them: by hand, conditions that flip, and the conversion."""

import functools
import itertools
import math

import numpy as np
import pytest
from scipy.optimize import minimize

from coterie.errors import InputError
from coterie.papers.fixed_point import published

# 8 alpha L^2 gamma^2 / sigma^2 = 1.5
SETTING = {"lipschitz": 0.5, "prox_step": 4.0, "noise_std": 8.0, "order": 3.0}


@pytest.mark.parametrize(
    ("name", "counts", "by_hand"),
    [
        ("theorem_2", {"n_parties": 10, "n_rounds": 7}, 7 * 1.5 / 100),
        ("theorem_3_local", {"n_visits": 7}, 7 * 1.5),
        ("theorem_9", {"n_visits": 7}, 7 * 1.5),
        ("theorem_3_central", {"n_parties": 10, "n_sampled": 1, "n_rounds": 7}, 2 * 7 * 1.5 / 100),
        ("theorem_10", {"n_parties": 10, "n_sampled": 1, "n_rounds": 7}, 2 * 7 * 1.5 / 100),
        ("remark_4", {"n_sampled": 5, "n_visits": 7}, 7 * 1.5 / 25),
        ("theorem_4", {"n_parties": 10, "n_visits": 7}, 7 * 1.5 * math.log(10) / 10),
        (
            "theorem_7",
            {"n_parties": 10, "n_rounds": 7, "matrix_norm": 3.0, "smallest_singular_value": 2.0},
            7 * 1.5 * 9 / 4 / 100,
        ),
    ],
)
def test_losses_by_hand(name, counts, by_hand):
    loss = functools.partial(getattr(published, name), **SETTING)
    assert loss(**counts).rdp == pytest.approx(by_hand)
    assert loss(**counts).order == 3.0
    assert name.split("_")[1] in loss(**counts).theorem
    # a loss that is not Lipschitz gets no number
    steep = loss(**counts, lipschitz=math.inf)
    assert steep.rdp == math.inf
    assert not steep.holds
    with pytest.raises(InputError, match="order"):
        loss(**counts, order=1.0)
    with pytest.raises(InputError, match="noise_std"):
        loss(**counts, noise_std=0.0)
    for count in counts:
        with pytest.raises(InputError, match=count):
            loss(**(counts | {count: -1}))


def test_conditions_of_the_walk():
    """2 L gamma sqrt(alpha (alpha - 1)) = 4 sqrt(6) at order 3."""
    walk = functools.partial(published.theorem_4, **(SETTING | {"noise_std": 9.8}), n_parties=10, n_visits=1)
    assert walk().holds
    assert not walk(noise_std=9.7).holds


def test_conditions_of_sampling():
    """At q = 0.1, alpha = 2: M = ln 11, and orders up to 50.8 are allowed for sigma = 4."""
    central = functools.partial(
        published.theorem_10, lipschitz=1.0, prox_step=1.0, noise_std=4.0, n_parties=100, n_sampled=10, n_rounds=1
    )
    assert central(order=2.0).holds
    assert [met for _, met in central(order=2.0, noise_std=3.9).hypotheses] == [True, True, True, False]
    assert published.theorem_3_central(**(central.keywords | {"noise_std": 3.9}), order=2.0).holds
    assert not central(order=2.0, n_sampled=20).holds
    assert not central(order=60.0).holds
    allowed = [order for order in range(2, 60) if central(order=float(order)).holds]
    assert allowed == list(range(2, max(allowed) + 1))
    M, order = math.log(1 + 10 / (max(allowed) - 1)), max(allowed)
    assert order <= (8 * M**2 - math.log(80)) / (M + math.log(0.1 * order) + 1 / 32)


def test_a_matrix_without_full_rank():
    flat = {"n_parties": 10, "n_rounds": 7, "matrix_norm": 3.0, "smallest_singular_value": 0.0}
    assert not published.theorem_7(**SETTING, **flat).holds
    with pytest.raises(InputError, match="smallest_singular_value"):
        published.theorem_7(**SETTING, **(flat | {"smallest_singular_value": 4.0}))


def test_subsampling_factors():
    """Without sampling alpha Delta^2 / (2 sigma^2) = 2 * 9 / 50."""
    sampled = {"sampling_probability": 0.1, "sensitivity": 3.0, "noise_std": 5.0, "order": 2.0}
    assert published.lemma_c_1(**sampled).rdp == pytest.approx(0.04 * 0.36)
    assert published.lemma_c_1_as_applied(**sampled).rdp == pytest.approx(0.02 * 0.36)
    for lemma in (published.lemma_c_1, published.lemma_c_1_as_applied):
        assert lemma(**sampled).holds
        assert not lemma(**(sampled | {"sampling_probability": 0.2})).holds
        assert not lemma(**(sampled | {"noise_std": 3.0})).holds


def test_theorem_10_follows_from_remark_4_and_the_lemma_as_applied():
    n, m, order = 100, 10, 2.0
    setting = {"lipschitz": 1.0, "prox_step": 1.0, "noise_std": 4.0, "order": order}
    one_round = published.theorem_10(**setting, n_parties=n, n_sampled=m, n_rounds=1)
    summed = published.remark_4(**setting, n_sampled=m, n_visits=1)
    factor = published.lemma_c_1_as_applied(sampling_probability=m / n, sensitivity=1.0, noise_std=4.0, order=order)
    assert one_round.rdp == pytest.approx(summed.rdp * factor.rdp / (order / 32))


# --- amplification by iteration ---------------------------------------------------------------------------------------


def test_one_shift_is_split_evenly():
    assert published.theorem_6(shifts=[6.0, 0.0, 0.0], noise_std=2.0, order=2.0).rdp == pytest.approx(3 * 4 * 2 / 8)
    # later shifts cannot be moved to earlier iterations
    assert published.theorem_6(shifts=[0.0, 0.0, 6.0], noise_std=2.0, order=2.0).rdp == pytest.approx(36 * 2 / 8)
    # three steps share the first shift, and the last keeps its own
    assert published.theorem_6(shifts=[3.0, 0.0, 0.0, 5.0], noise_std=1.0, order=2.0).rdp == pytest.approx(3 + 25)


def test_no_allowed_split_is_better():
    rng = np.random.default_rng(0)
    for _ in range(10):
        shifts = rng.uniform(0, 2, 6) * (rng.random(6) < 0.6)
        sums = np.cumsum(shifts)
        constraints = [{"type": "ineq", "fun": lambda a, s=sums: s[:-1] - np.cumsum(a)[:-1]}]
        constraints.append({"type": "eq", "fun": lambda a, s=sums: s[-1] - a.sum()})
        best = minimize(lambda a: a @ a, shifts, constraints=constraints, method="SLSQP").fun
        found = published.theorem_6(shifts=shifts, noise_std=1.0, order=2.0).rdp
        assert found == pytest.approx(best, abs=1e-5)


@pytest.mark.parametrize("shifts", [[], [-1.0, 2.0], [[1.0]]])
def test_shifts_are_checked(shifts):
    with pytest.raises(InputError, match="shifts"):
        published.theorem_6(shifts=shifts, noise_std=1.0, order=2.0)


# --- epsilon ----------------------------------------------------------------------------------------------------------


def test_epsilon_of_a_straight_line():
    """min over alpha of rho alpha + ln(1/delta)/(alpha - 1) is rho + 2 sqrt(rho ln(1/delta))."""
    for n_visits, delta in itertools.product((1, 10), (1e-5, 1e-2)):
        local = functools.partial(
            published.theorem_3_local, lipschitz=1.0, prox_step=1.0, noise_std=10.0, n_visits=n_visits
        )
        rho = 0.08 * n_visits
        exact = rho + 2 * math.sqrt(rho * math.log(1 / delta))
        found = published.published_epsilon(lambda order, local=local: local(order=order), delta)
        assert exact <= found <= 1.001 * exact


def test_epsilon_uses_orders_with_met_hypotheses_only():
    def walk(noise_std):
        return lambda order: published.theorem_4(
            lipschitz=1.0, prox_step=1.0, noise_std=noise_std, n_parties=100, n_visits=1, order=order
        )

    # orders up to 1.36 are allowed at sigma = 1.4, and the best one would be far above
    largest = (1 + math.sqrt(1 + 1.4**2)) / 2
    expected = 8 * largest * math.log(100) / 100 / 1.96 + math.log(1e5) / (largest - 1)
    assert published.published_epsilon(walk(1.4), 1e-5) == pytest.approx(expected, rel=0.05)
    assert published.published_epsilon(walk(0.1), 1e-5) == math.inf
    with pytest.raises(InputError, match="delta"):
        published.published_epsilon(walk(1.0), 0.0)
