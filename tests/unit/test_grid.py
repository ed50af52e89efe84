"""Every release leaves on its grid: the door rounds, the price knows, and sums are exact in any order."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coterie.algorithms import BroadcastNoisedADMM, LocallyNoisedADMM, NoisyGradientDescent, SumNoisedADMM, WalkADMM
from coterie.audit.replay import declared_sensitivity
from coterie.certificate import make_certificate
from coterie.data.federation import Federation
from coterie.engines.in_process import run
from coterie.errors import LeakError
from coterie.network.channels import Broadcast, Curator, PairwiseSum, SecureSum
from coterie.network.topology import EVERYBODY_WORKS, Walk
from coterie.plan import Plan
from coterie.privacy.events import Gaussian
from coterie.privacy.mechanisms import GaussianGradient, SumNoises, grid_event
from coterie.privacy.noise import STEPS, Seeded, SystemEntropy
from coterie.privacy.proximal import BroadcastNoise, LocalNoise, SumNoise
from coterie.privacy.release import add_up, add_up_along, seal, seal_total
from coterie.problems import L2, Logistic, Problem

DELTA = 1e-5
REGULARISER = L2(1.0)
PROBLEM = Problem(loss=Logistic(), regulariser=REGULARISER, record_weight=1.0)
PROX = {"prox_step": 0.5, "relaxation": 0.5}
RNG = np.random.default_rng(0)
FEDERATION = Federation.from_arrays(
    RNG.normal(size=(30, 3)),
    RNG.choice(["no", "yes"], size=30),
    parties=np.repeat(["a", "b", "c"], 10),
    row_norm=1.0,
    labels=("no", "yes"),
)


def summed(algorithm, mechanism, **fixed):
    def made(channel, **noise):
        mech = mechanism(**noise)
        return algorithm(mechanism=mech, regulariser=REGULARISER, channel=channel, selection=EVERYBODY_WORKS, **fixed)

    return made


SUMS = {
    "gradient": summed(NoisyGradientDescent, GaussianGradient, step=0.1),
    "M2": summed(SumNoisedADMM, functools.partial(SumNoise, **PROX)),
    "M3": summed(BroadcastNoisedADMM, functools.partial(BroadcastNoise, **PROX)),
}
ALGORITHMS = {
    "M1": lambda **noise: LocallyNoisedADMM(mechanism=LocalNoise(**PROX, **noise), regulariser=REGULARISER),
    "walk": lambda **noise: WalkADMM(
        mechanism=LocalNoise(**PROX, **noise), regulariser=REGULARISER, selection=Walk(seed=0)
    ),
    "gradient, nobody": functools.partial(SUMS["gradient"], Broadcast()),
    **{f"{name}, curator": functools.partial(made, Curator()) for name, made in SUMS.items()},
    **{f"{name}, secure sum": functools.partial(made, SecureSum()) for name, made in SUMS.items()},
    **{f"{name}, pairs": functools.partial(made, PairwiseSum(colluders=1)) for name, made in SUMS.items()},
}


def plan(name, *, multiplier=5.0, **promise):
    promise = promise or {"adjacency": "replace-one"}
    return Plan.make(
        ALGORITHMS[name](noise_multiplier=multiplier), PROBLEM, "complete", FEDERATION.facts, rounds=3, **promise
    )


# --- the door ---------------------------------------------------------------------------------------------------------


def sealed(value, steps, grid):
    with jax.enable_x64(True):
        return np.asarray(seal(jnp.asarray(value), jnp.asarray(steps), jnp.asarray(grid)).value)


@pytest.mark.parametrize("value", [0.3, -1e6 / 7, 3e18 / 7, -1e40])
def test_what_leaves_is_a_function_of_the_exact_whole_number(value):
    """Also where value and noise no longer fit a double together: the same exact sum gives the same bits."""
    grid = 0.1
    per_unit = 1 / grid
    k = round(value * per_unit)
    for n in (0, 1, -7, 12345):
        out = sealed(value, float(n), grid)
        assert out == float(k + n) * grid
        # from another value that is `shift` steps away, noise that makes up for it leads to the same release
        for shift in (1, -3, 1000):
            other = float((k + shift) * grid)
            if round(other * per_unit) == k + shift:
                assert sealed(other, float(n - shift), grid) == out


def test_broken_values_stay_broken_and_no_grid_is_no_change():
    assert np.isnan(sealed(np.nan, 3.0, 0.5))
    np.testing.assert_array_equal(sealed([0.1, 1e20], [3.0, -1.0], 0.0), [0.1, 1e20])


@pytest.mark.parametrize("scale", [1.0, 1e9, 1e13])
def test_sums_are_exact_in_any_order(scale):
    """Values of up to 2^70 steps: added as integers, whatever the order or the grouping."""
    rng = np.random.default_rng(1)
    values, grid = rng.normal(size=(40, 3)) * scale, 2.0**-26
    noise = rng.integers(-(2**30), 2**30, size=3)
    exact = [sum(int(v) for v in np.rint(column / grid)) + int(n) for column, n in zip(values.T, noise, strict=True)]
    with jax.enable_x64(True):
        for order in (np.arange(40), rng.permutation(40)):
            whole = add_up(jnp.asarray(values[order]), jnp.asarray(grid))
            out = seal_total(whole, jnp.asarray(noise, float), jnp.asarray(grid)).value
            np.testing.assert_array_equal(out, [float(n) * grid for n in exact])
            halves = [add_up(jnp.asarray(half), jnp.asarray(grid)) for half in np.split(values[order], 2)]
            both = jax.tree.map(lambda a, b: a + b, *halves)
            out = seal_total(both, jnp.asarray(noise, float), jnp.asarray(grid)).value
            np.testing.assert_array_equal(out, [float(n) * grid for n in exact])
        # beyond, distances from what is near do not add up exactly
        if scale == 1.0:
            near, shares = rng.normal(size=3), rng.normal(size=40)
            each = np.rint((near + shares[:, None] * values) / grid).sum(axis=0) + noise
            along = add_up_along(*map(jnp.asarray, (near, shares, values, grid)))
            out = seal_total(along, jnp.asarray(noise, float), jnp.asarray(grid)).value
            # one of forty values may lie so near an edge that it is rounded the other way
            np.testing.assert_allclose(out, each * grid, rtol=0, atol=1.01 * grid)


# --- its law and price, on a coarse grid where all outcomes can be listed ---------------------------------------------


def rounded_gaussian_law(steps):
    n = np.arange(-int(60 * steps), int(60 * steps) + 1)
    from scipy.stats import norm

    tails = np.where(n > 0, norm.sf((n - 0.5) / steps) - norm.sf((n + 0.5) / steps), 0.0)
    law = np.where(n > 0, tails, norm.cdf((n + 0.5) / steps) - norm.cdf((n - 0.5) / steps))
    return n, law


def hockey_stick(p, q, eps):
    """P[S] - e^eps Q[S] for the worst set, of laws as {outcome: probability}."""
    return sum(max(0.0, p.get(k, 0.0) - math.exp(eps) * q.get(k, 0.0)) for k in p)


@pytest.mark.parametrize("steps", [1.0, 3.0, 16.0])
@pytest.mark.parametrize(("value", "change"), [(0.2, 0.9), (-1.3, 0.31), (5.249, 0.002), (0.74, 2.0)])
def test_no_neighbour_exceeds_the_price(monkeypatch, steps, value, change):
    """The exact loss of the rounded mechanism is at most that of a Gaussian release whose sensitivity is change + g."""
    from coterie.privacy import mechanisms
    from coterie.privacy.accountants import gaussian_delta

    monkeypatch.setattr(mechanisms, "STEPS", steps)
    noise_std = 1.5
    grid, ratio = noise_std / steps, grid_event(change, noise_std, 1).ratio
    assert ratio == pytest.approx((change + grid) / noise_std, rel=1e-8)
    n, law = rounded_gaussian_law(steps)
    laws = []
    for one in (value, value + change):
        released = sealed(np.full(len(n), one), n.astype(float), grid)
        laws.append(dict(zip(released.tolist(), law.tolist(), strict=True)))
    for (p, q), eps in itertools.product((laws, laws[::-1]), (0.0, 0.1, 0.5, 1.0, 2.0, 4.0)):
        assert hockey_stick(p, q, eps) <= gaussian_delta(eps, ratio) + 1e-12


def test_the_rounding_to_the_grid_is_needed_in_the_price(monkeypatch):
    """A change too small to matter moves a rounded value by a whole step, which the plain ratio would not pay for."""
    low, high = (sealed(v, 0.0, 1.0) for v in (0.499, 0.501))
    assert high - low == 1.0
    from coterie.privacy import mechanisms

    monkeypatch.setattr(mechanisms, "STEPS", 1.0)
    assert 0.002 < high - low <= grid_event(0.002, 1.0, 1).ratio


@pytest.mark.parametrize("n_shares", [2, 3, 5])
@pytest.mark.parametrize("steps", [1.0, 2.0])
def test_shares_of_a_secure_sum_cost_no_more_than_one_noise(monkeypatch, n_shares, steps):
    """The exact law of the sum of rounded Gaussians, by convolution, on grids far coarser than any in use."""
    from coterie.privacy import mechanisms
    from coterie.privacy.accountants import gaussian_delta

    monkeypatch.setattr(mechanisms, "STEPS", steps)
    noise_std, change = 1.0, 0.7
    grid = noise_std / (steps * math.sqrt(n_shares))
    _, law = rounded_gaussian_law(steps)
    total = law
    for _ in range(n_shares - 1):
        total = np.convolve(total, law)
    outcomes = np.arange(len(total)) - len(total) // 2
    ratio = grid_event(change, noise_std, 1, SumNoises(n_shares, 1 / math.sqrt(n_shares))).ratio
    for value in (0.1, 0.42):
        laws = [
            dict(zip((outcomes + round(v / grid)).tolist(), total.tolist(), strict=True))
            for v in (value, value + change)
        ]
        for (p, q), eps in itertools.product((laws, laws[::-1]), (0.0, 0.2, 1.0, 3.0)):
            # what Poisson's formula leaves, nothing at any grid in use
            aliasing = 4 * n_shares * math.exp(-((math.pi * steps) ** 2))
            assert hockey_stick(p, q, eps) <= gaussian_delta(eps, ratio) + aliasing + 1e-12


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("source", [Seeded(3), SystemEntropy()], ids=["seeded", "entropy"])
def test_every_release_of_a_run_is_a_whole_number_of_steps(name, source):
    one = plan(name)
    releases = run(one, FEDERATION, noise=source).releases
    (grid,) = {grant.grid for grant in one.issued[0]}
    steps = np.rint(releases / grid)
    assert np.any(steps != 0)
    np.testing.assert_array_equal(steps * grid, releases)


@pytest.mark.parametrize("name", ["gradient, curator", "M1"])
def test_a_seed_repeats_a_run_and_entropy_does_not(name):
    one = plan(name)
    first, second = (run(one, FEDERATION, noise=Seeded(3)).releases for _ in range(2))
    np.testing.assert_array_equal(first, second)
    first, second = (run(one, FEDERATION, noise=SystemEntropy()).releases for _ in range(2))
    assert np.all(first != second)


class WithoutGrid(LocallyNoisedADMM):
    def local(self, grant, problem, records, private, inbox, noise):
        scales, tree = jax.tree.flatten(grant)
        scales[type(grant).Scales._fields.index("steps")] *= 0.0
        return super().local(jax.tree.unflatten(tree, scales), problem, records, private, inbox, noise)


def test_the_grid_must_arrive_as_issued():
    algorithm = WithoutGrid(mechanism=LocalNoise(**PROX, noise_multiplier=5.0), regulariser=REGULARISER)
    with pytest.raises(LeakError, match="scale altered"):
        Plan.make(algorithm, PROBLEM, "complete", FEDERATION.facts, rounds=3, adjacency="replace-one")


# --- what it costs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_grid_costs_less_than_anybody_notices(name):
    one = plan(name)
    [(event, _)] = one.ledger(0)
    assert isinstance(event, Gaussian)
    # M2's sensitivity holds for whole parties; the others' noise is the multiplier of their own
    assert 0.2 < event.ratio < 0.2 * (1 + 1e-6)
    loss = one.epsilon(DELTA)
    assert one.epsilon(DELTA, accountant="gaussian") == loss
    assert plan(name, multiplier=6.0).epsilon(DELTA) < loss < plan(name, multiplier=4.0).epsilon(DELTA)
    assert 0.999 < one.calibrate(1.0, DELTA).epsilon(DELTA) <= 1.0
    assert declared_sensitivity(one.issued[0][0]) == pytest.approx(event.ratio * one.issued[0][0].scales.noise_std)


def test_more_coefficients_cost_more():
    ratios = [grid_event(1.0, 4.0, d).ratio for d in (1, 10, 1000)]
    assert ratios == sorted(ratios)
    assert ratios[-1] == pytest.approx(0.25 + math.sqrt(1000) / STEPS, rel=1e-9)


def test_the_certificate_has_nothing_left_to_say_about_last_bits():
    document = make_certificate(plan("M1"), DELTA, reproducible=False).document
    assert document["mechanism"]["noise"] == "gaussian"
    assert document["accountant"]["used"] == "gaussian"
    assert not any("loating point" in sentence for sentence in document["not_covered"])
