"""Hardened noise as an option of runs: what is released, what it costs, and where it is refused."""

import functools
import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coterie import PrivateLogisticRegression, PrivateRidge, Spending
from coterie.algorithms import BroadcastNoisedADMM, LocallyNoisedADMM, NoisyGradientDescent, SumNoisedADMM, WalkADMM
from coterie.audit.replay import declared_sensitivity
from coterie.certificate import make_certificate
from coterie.data.federation import Federation
from coterie.engines.in_process import run
from coterie.errors import InputError, LeakError, MissingExtraError, PrivacyPreconditionError
from coterie.network.channels import Curator, SecureSum
from coterie.network.selection import EVERYBODY_WORKS, Poisson, Walk
from coterie.plan import Plan
from coterie.privacy import discrete
from coterie.privacy.discrete import LARGEST_STEP, STEPS_PER_STD, DiscreteGaussian, grid_event, grid_spacing
from coterie.privacy.grants import noised
from coterie.privacy.mechanisms import GaussianGradient
from coterie.privacy.noise import Seeded, SystemEntropy
from coterie.privacy.proximal import BroadcastNoise, LocalNoise, SumNoise
from coterie.problems import L2, Logistic, Problem

DELTA = 1e-5
CURATOR = Curator()
PENALTY = L2(1.0)
PROBLEM = Problem(loss=Logistic(), penalty=PENALTY, record_weight=1.0)
PROX = {"step": 0.5, "relaxation": 0.5}
RNG = np.random.default_rng(0)
FEDERATION = Federation.from_arrays(
    RNG.normal(size=(30, 3)),
    RNG.choice(["no", "yes"], size=30),
    parties=np.repeat(["a", "b", "c"], 10),
    row_norm=1.0,
    labels=("no", "yes"),
)


def summed(algorithm, mechanism, **fixed):
    def made(channel=CURATOR, selection=EVERYBODY_WORKS, **noise):
        return algorithm(mechanism=mechanism(**noise), penalty=PENALTY, channel=channel, selection=selection, **fixed)

    return made


ALGORITHMS = {
    "gradient": summed(NoisyGradientDescent, GaussianGradient, step=0.1),
    "M1": lambda **noise: LocallyNoisedADMM(mechanism=LocalNoise(**PROX, **noise), penalty=PENALTY),
    "walk": lambda **noise: WalkADMM(mechanism=LocalNoise(**PROX, **noise), penalty=PENALTY, selection=Walk(seed=0)),
    "M2": summed(SumNoisedADMM, functools.partial(SumNoise, **PROX)),
    "M3": summed(BroadcastNoisedADMM, functools.partial(BroadcastNoise, **PROX)),
}


def plan(name, *, hardened=True, multiplier=5.0, promise=None, **settings):
    algorithm = ALGORITHMS[name](noise_multiplier=multiplier, hardened=hardened, **settings)
    promise = {"adjacency": "replace-one"} if promise is None else promise
    return Plan.make(algorithm, PROBLEM, "complete", FEDERATION.facts, rounds=3, **promise)


@pytest.fixture
def no_opendp(monkeypatch):
    discrete._sampler.cache_clear()
    for name in ("opendp", "opendp.prelude"):
        monkeypatch.setitem(sys.modules, name, None)
    yield
    discrete._sampler.cache_clear()


# --- one release ------------------------------------------------------------------------------------------------------


def released(value, steps, *, noise_std, grid):
    """What `noised` makes of a value and of whole steps of noise."""
    with jax.enable_x64(True):
        unit = jnp.asarray(np.asarray(steps) * (grid / noise_std))
        return np.asarray(noised(jnp.full(unit.shape, value), unit, noise_std, grid))


@pytest.mark.parametrize("per_std", [1.0, 2.0, 8.0])
@pytest.mark.parametrize(("value", "change"), [(0.2, 0.9), (-1.3, 0.31), (5.249, 0.002), (0.74, 2.0)])
def test_its_law_is_the_discrete_gaussian_around_the_rounded_value_and_no_neighbour_exceeds_the_price(
    monkeypatch, per_std, value, change
):
    """On a coarse grid all outcomes can be listed, and both losses summed exactly."""
    monkeypatch.setattr(discrete, "STEPS_PER_STD", per_std)
    noise_std = 1.5
    grid, event = grid_spacing(noise_std), grid_event(change, noise_std, d=1)
    assert grid == noise_std / per_std
    z = np.arange(-int(60 * per_std), int(60 * per_std) + 1)
    log_pmf = -(z**2) / (2 * per_std**2)
    log_pmf -= np.logaddexp.reduce(log_pmf)
    laws = []
    for one in (value, value + change):
        steps = released(one, z, noise_std=noise_std, grid=grid) / grid
        np.testing.assert_array_equal(steps, np.rint(one / grid) + z)
        laws.append(dict(zip(steps.astype(int).tolist(), log_pmf.tolist(), strict=True)))
    for p, q in (laws, laws[::-1]):
        both = sorted(set(p) & set(q))  # what lies outside weighs less than exp(-1000)
        log_p, log_q = (np.array([law[k] for k in both]) for law in (p, q))
        for order in (1.25, 2.0, 5.0, 12.0):
            exact = np.logaddexp.reduce(order * log_p - (order - 1) * log_q) / (order - 1)
            assert exact <= event.rdp(np.array([order]))[0, 0] + 1e-12


def test_the_two_roundings_to_the_grid_are_needed_in_the_price(monkeypatch):
    """A change too small to matter moves a rounded value by a whole step, which the plain ratio would not pay for."""
    monkeypatch.setattr(discrete, "STEPS_PER_STD", 1.0)
    low, high = (released(v, [0], noise_std=1.0, grid=1.0)[0] for v in (0.499, 0.501))
    assert high - low == 1.0
    assert 0.002 < high - low <= grid_event(0.002, 1.0, d=1).ratio


def test_values_that_do_not_fit_are_cut_and_broken_ones_stay_broken():
    noise_std = 3.0
    grid = grid_spacing(noise_std)
    z = np.array([-7, 0, 12345])
    for value, cut in ((1e300, LARGEST_STEP), (-1e300, -LARGEST_STEP), (1e18, LARGEST_STEP)):
        np.testing.assert_array_equal(released(value, z, noise_std=noise_std, grid=grid), (cut + z) * grid)
    assert np.isnan(released(np.nan, [0], noise_std=noise_std, grid=grid)).all()


def test_without_a_grid_it_is_plain_noise():
    with jax.enable_x64(True):
        value, unit = jnp.asarray([0.1, 1e20]), jnp.asarray([0.3, -0.7])
        np.testing.assert_array_equal(noised(value, unit, 2.0, 0.0), value + 2.0 * unit)


@pytest.mark.parametrize("noise_std", [1e-320, 0.0, math.inf, math.nan])
def test_a_grid_that_would_vanish_is_refused(noise_std):
    with pytest.raises(InputError, match="noise_std"):
        grid_spacing(noise_std)


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("source", [Seeded(3), SystemEntropy()], ids=["seeded", "entropy"])
def test_every_release_of_a_run_is_a_whole_number_of_steps(name, source):
    one = plan(name)
    releases = run(one, FEDERATION, noise=source).releases
    (grid,) = set(one.grant_table().grid.tolist())
    steps = np.rint(releases / grid)
    assert np.any(steps != 0)
    np.testing.assert_array_equal(steps * grid, releases)
    plain = run(plan(name, hardened=False), FEDERATION, noise=source).releases
    assert np.any(np.rint(plain / grid) * grid != plain)


@pytest.mark.parametrize("name", ["gradient", "M1"])
def test_a_seed_repeats_a_run_and_entropy_does_not(name):
    one = plan(name)
    first, second = (run(one, FEDERATION, noise=Seeded(3)).releases for _ in range(2))
    np.testing.assert_array_equal(first, second)
    first, second = (run(one, FEDERATION, noise=SystemEntropy()).releases for _ in range(2))
    assert np.all(first != second)


def test_seeded_noise_is_the_continuous_noise_to_the_nearest_step():
    one, plain = (Seeded(1).draw(law, 50, repeat=0, party=0, t=0) for law in ("discrete-gaussian", "gaussian"))
    np.testing.assert_array_equal(one * STEPS_PER_STD, np.rint(plain * STEPS_PER_STD))


def test_a_plan_keeps_the_option_when_it_is_saved():
    one = plan("M3")
    assert Plan.from_json(one.to_json()) == one
    assert one.digest != plan("M3", hardened=False).digest


class WithoutGrid(LocallyNoisedADMM):
    def local(self, grant, problem, records, private, inbox, noise):
        scales, tree = jax.tree.flatten(grant)
        scales[type(grant).Scales._fields.index("grid")] *= 0.0
        return super().local(jax.tree.unflatten(tree, scales), problem, records, private, inbox, noise)


def test_the_grid_must_arrive_as_issued():
    algorithm = WithoutGrid(mechanism=LocalNoise(**PROX, noise_multiplier=5.0, hardened=True), penalty=PENALTY)
    with pytest.raises(LeakError, match="scale altered"):
        Plan.make(algorithm, PROBLEM, "complete", FEDERATION.facts, rounds=3, adjacency="replace-one")


# --- price ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALGORITHMS)
def test_it_costs_a_little_more_than_continuous_noise_and_less_with_more_noise(name):
    one, plain = plan(name), plan(name, hardened=False)
    np.testing.assert_array_equal(one.grant_table().noise_std, plain.grant_table().noise_std)
    for (event, count), (other, same) in zip(one.ledger(0), plain.ledger(0), strict=True):
        assert isinstance(event, DiscreteGaussian)
        assert count == same
        assert other.ratio < event.ratio < other.ratio * (1 + 1e-6)
    loss = one.epsilon(DELTA)
    assert plain.epsilon(DELTA, accountant="rdp") < loss < plain.epsilon(DELTA, accountant="rdp") * (1 + 1e-6)
    assert plan(name, multiplier=6.0).epsilon(DELTA) < loss < plan(name, multiplier=4.0).epsilon(DELTA)
    assert 0.999 < one.calibrate(1.0, DELTA).epsilon(DELTA) <= 1.0


@pytest.mark.parametrize("name", ["gradient", "M1"])
def test_a_person_at_every_party_pays_for_all_of_them_together(name):
    promise = {"adjacency": "replace-one", "people_span_parties": True}
    one, plain = (plan(name, hardened=hardened, promise=promise) for hardened in (True, False))
    loss, continuous = one.epsilon(DELTA), plain.epsilon(DELTA, accountant="rdp")
    assert plan(name).epsilon(DELTA) < continuous < loss < continuous * (1 + 1e-6)
    with pytest.raises(InputError, match="'gaussian' takes Gaussian releases only"):
        one.epsilon(DELTA, accountant="gaussian")


def test_the_audit_knows_what_it_declares():
    hardened, plain = (declared_sensitivity(plan("M2", hardened=h).issued[0][0]) for h in (True, False))
    assert plain < hardened < plain * (1 + 1e-6)


def test_more_coefficients_cost_more():
    ratios = [grid_event(1.0, 4.0, d).ratio for d in (1, 10, 1000)]
    assert ratios == sorted(ratios)
    assert ratios[-1] == pytest.approx(0.25 + 2 * math.sqrt(1000) / STEPS_PER_STD, rel=1e-14)


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gradient", "M2", "M3"])
def test_a_secure_sum_is_refused(name):
    with pytest.raises(InputError, match="hardened: got True with a secure sum"):
        plan(name, channel=SecureSum())


@pytest.mark.parametrize(("name", "clip"), [("gradient", None), ("M2", 0.5)])
def test_a_secret_coin_is_refused(name, clip):
    promise = {"adjacency": "zero-out", "unit": "party"}
    secret = {"selection": Poisson(probability=0.5, seed=None), "clip": clip, "promise": promise}
    plan(name, hardened=False, **secret)
    with pytest.raises(PrivacyPreconditionError, match="hardened: got True with a secret selection"):
        plan(name, **secret)


def test_the_exact_gaussian_accountant_is_refused():
    with pytest.raises(InputError, match="'gaussian' takes Gaussian releases only"):
        plan("gradient").epsilon(DELTA, accountant="gaussian")


def test_a_missing_extra_is_named(no_opendp):
    one = plan("gradient")  # others may still read and verify the plan
    run(one, FEDERATION, noise=Seeded(0))
    with pytest.raises(MissingExtraError, match=r"coterie\[opendp\]"):
        run(one, FEDERATION, noise=SystemEntropy())


# --- certificates and estimators --------------------------------------------------------------------------------------


def test_the_certificate_says_for_which_releases_the_channel_is_closed():
    exact = make_certificate(plan("M1"), DELTA, reproducible=False).document
    assert exact["mechanism"]["noise"] == "discrete-gaussian"
    assert exact["accountant"]["used"] == "rdp"
    assert "every release of this run is a whole number of grid steps" in exact["not_covered"][0]
    assert not any("8.2" in sentence for sentence in exact["not_covered"])
    assert "OpenDP" in exact["randomness"]["source"]
    for document in (
        make_certificate(plan("M1"), DELTA, reproducible=True).document,
        make_certificate(plan("M1", hardened=False), DELTA, reproducible=False).document,
    ):
        assert "double precision" in document["not_covered"][0]
        assert "OpenDP" not in document["randomness"]["source"]


X = RNG.normal(size=(60, 2))
BUDGET = {"epsilon": 2.0, "delta": DELTA, "adjacency": "replace-one", "rounds": 3, "hardened": True}


@pytest.mark.parametrize("algorithm", [None, "broadcast-noised-admm"])
def test_estimators_take_it_with_a_curator(algorithm):
    model = PrivateLogisticRegression(**BUDGET, classes=("no", "yes"), trust="curator", algorithm=algorithm)
    model.fit(X, np.where(X[:, 0] > 0, "yes", "no"), parties=np.repeat(["a", "b"], 30))
    assert model.transcript_.plan.algorithm.mechanism.law == "discrete-gaussian"
    assert 1.99 < model.privacy_.epsilon <= 2.0
    model.certificate_.verify()


@pytest.mark.parametrize("trust", ["none", "secure-sum"])
def test_estimators_refuse_it_elsewhere(trust):
    with pytest.raises(InputError, match=f"hardened: got True with trust='{trust}'"):
        PrivateRidge(**BUDGET, label_bound=1.0, trust=trust).fit(X, X[:, 0])


def test_a_missing_extra_costs_an_estimator_nothing(no_opendp):
    ledger = Spending()
    with pytest.raises(MissingExtraError):
        PrivateRidge(**BUDGET, label_bound=1.0, trust="curator", ledger=ledger).fit(X, X[:, 0])
    assert ledger.charges == ()
