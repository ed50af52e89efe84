"""What is released for inference: packed matrices, their sensitivities, and a plan that pays for them."""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coterie
from coterie import rules
from coterie.certificate import make_certificate
from coterie.errors import InputError
from coterie.inference.releases import _contributed, noise_std, release
from coterie.plan import Plan
from coterie.privacy.accountants import gaussian_epsilon
from coterie.privacy.events import Gaussian
from coterie.privacy.moments import Moments, packed_size, unpacked
from coterie.privacy.noise import Seeded
from coterie.problems import L2, Huber, HuberisedHinge, Logistic, Multinomial, Problem, Squared
from coterie.problems.problem import Records
from coterie.promise import Privacy

DELTA = 1e-6
LOSSES = {"logistic": Logistic(), "multinomial": Multinomial(3), "huber": Huber(0.8), "squared": Squared()}


def problem_of(loss) -> Problem:
    return Problem(loss=loss, regulariser=L2(1.0), record_weight=1.0)


def federation_of(loss, n=60, d=3, parties=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    X /= np.maximum(1.0, np.linalg.norm(X, axis=1, keepdims=True))
    names = np.arange(n) % parties
    if isinstance(loss, (Huber, Squared)):
        return coterie.Federation.from_arrays(X, rng.uniform(-1, 1, n), parties=names, label_bound=1.0)
    k = max(2, loss.n_outputs)
    return coterie.Federation.from_arrays(X, rng.integers(0, k, n), parties=names, labels=list(range(k)))


def plan_of(loss, federation, *, trust="curator", robust=True, **more) -> Plan:
    colluders = 0 if trust == "pairs" else None
    privacy = Privacy(epsilon=2.0, delta=DELTA, adjacency="replace-one", trust=trust, colluders=colluders, **more)
    return rules.make_plan(problem_of(loss), federation.facts, privacy, rules.Settled(), rules.Wanted(robust=robust))


class NoNoise(Seeded):
    def draw_block(self, law, d, keys, purpose, rows=1):
        return np.zeros((len(keys), d))


def exact(loss, federation, f, clip=None):
    """Gradient, Hessian and second moment by automatic differentiation of each record's loss."""
    X, y, _ = federation.pooled
    k = loss.n_outputs

    def value(f, x, label):
        return loss.value(x @ (f if k == 1 else f.reshape(-1, k)), label)

    with jax.enable_x64(True):
        gradients = np.asarray(jax.jit(jax.vmap(jax.grad(value), (None, 0, 0)))(f, X, y))
        hessians = np.asarray(jax.jit(jax.vmap(jax.hessian(value), (None, 0, 0)))(f, X, y))
    norms = np.linalg.norm(gradients, axis=1)
    if clip is not None:
        hessians = hessians * (norms <= clip)[:, None, None]
        gradients = gradients * np.minimum(1.0, clip / norms)[:, None]
    return gradients.sum(axis=0), hessians.sum(axis=0), gradients.T @ gradients


# squared loss needs a sum in its rounds
@pytest.mark.parametrize(
    ("name", "trust"),
    [(name, trust) for name in LOSSES for trust in ("curator", "none") if (name, trust) != ("squared", "none")],
)
def test_releases_are_the_moments_of_all_records(name, trust):
    loss = LOSSES[name]
    federation = federation_of(loss)
    plan = plan_of(loss, federation, trust=trust)
    f = np.random.default_rng(1).normal(size=plan.problem.n_coefficients(plan.facts))
    found = [
        release(plan, federation, purpose, stage, f, NoNoise(0))
        for purpose, stage in (("gradient", 1), ("curvature", 0), ("second_moment", 2))
    ]
    for value, expected in zip(found, exact(loss, federation, f, plan.moments.clip), strict=True):
        np.testing.assert_allclose(value, expected, atol=2e-4)  # the grid of the noise


@pytest.mark.parametrize("trust", ["none", "pairs", "curator", "secure-sum"])
def test_noise_on_the_sum_is_what_is_said(trust):
    """Mean square over 325 entries: a chance of 1e-6 to be as far off, and three noises counted as one are noticed."""
    federation = federation_of(Logistic(), d=25)
    plan = plan_of(Logistic(), federation, trust=trust)
    f = np.zeros(25)
    noised = release(plan, federation, "curvature", 1, f, Seeded(5))
    exact_value = release(plan, federation, "curvature", 1, f, NoNoise(0))
    rows, columns = np.triu_indices(25)
    ratio = (noised - exact_value)[rows, columns] * np.where(rows == columns, 1, math.sqrt(2))
    ratio = ratio / noise_std(plan, "curvature", 1)
    assert abs(np.mean(ratio**2) - 1) < 4.9 * math.sqrt(2 / packed_size(25))
    parties = 3
    one = plan.moment_grants(0)[3].grant.scales.noise_std
    expected = {"none": math.sqrt(parties), "curator": 1.0, "secure-sum": 1.0}.get(trust)
    if expected is not None:
        assert noise_std(plan, "curvature", 1) == pytest.approx(expected * one)
    else:
        assert 1.0 <= noise_std(plan, "curvature", 1) / one < 1.1


def _parts(plan, purpose, X, y, f):
    """Contributions of single records, (record, ...)."""
    [grant] = [g.grant for g in plan.moment_grants(0) if g.purpose == purpose][-1:]
    with jax.enable_x64(True):
        records = Records(jnp.asarray(X[:, None]), jnp.asarray(y[:, None]), jnp.ones((len(y), 1)))
        return np.asarray(_contributed(grant, records, jnp.asarray(f), purpose=purpose).value)


@pytest.mark.parametrize("name", LOSSES)
def test_no_two_records_are_farther_apart_than_the_sensitivity(name):
    """Packed 2-norms, over records at the bounds; some pair comes near enough that a smaller constant would fail."""
    loss, rng = LOSSES[name], np.random.default_rng(2)
    federation = federation_of(loss, d=2)
    plan = plan_of(loss, federation)
    p = plan.problem.n_coefficients(plan.facts)
    X = np.concatenate([np.eye(2), -np.eye(2), rng.normal(size=(30, 2))])
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = (
        rng.integers(0, max(2, loss.n_outputs), len(X)).astype(float)
        if plan.facts.labels
        else rng.uniform(-1, 1, len(X))
    )
    for purpose in ("gradient", "curvature", "second_moment"):
        [grant] = [g.grant for g in plan.moment_grants(0) if g.purpose == purpose][-1:]
        sensitivity = grant.event.ratio * grant.scales.noise_std
        largest = 0.0
        for f in (np.zeros(p), rng.normal(size=p), 20 * rng.normal(size=p)):
            parts = _parts(plan, purpose, X, y, f)
            for a, b in itertools.combinations(parts, 2):
                largest = max(largest, float(np.linalg.norm(a - b)))
        assert largest <= sensitivity * (1 + 1e-6), purpose
        near = {"curvature": 0.75, "gradient": 0.4, "second_moment": 0.3}[purpose]
        assert largest >= near * sensitivity, (purpose, largest, sensitivity)


def test_the_curvature_of_one_class_probability_is_bounded_in_the_frobenius_norm():
    rng = np.random.default_rng(0)
    for k in (2, 3, 5):
        p = rng.dirichlet(np.full(k, 0.5), size=4000)
        matrices = p[:, :, None] * np.eye(k) - p[:, :, None] * p[:, None, :]
        assert np.linalg.norm(matrices, axis=(1, 2)).max() <= Multinomial(k).smoothness + 1e-12


def test_sqrt_two_is_attained_and_one_would_not_do():
    """Two records at right angles, logistic, f = 0: curvature 1/4 each."""
    federation = federation_of(Logistic(), d=2)
    plan = plan_of(Logistic(), federation)
    a, b = _parts(plan, "curvature", np.eye(2), np.array([0.0, 1.0]), np.zeros(2))
    assert np.linalg.norm(a - b) == pytest.approx(math.sqrt(2) / 4)
    grant = next(g.grant for g in plan.moment_grants(0) if g.purpose == "curvature")
    assert grant.event.ratio * grant.scales.noise_std == pytest.approx(math.sqrt(2) / 4, rel=1e-4)
    out = dataclasses.replace(plan, adjacency="zero-out")
    grant = next(g.grant for g in out.moment_grants(0) if g.purpose == "curvature")
    assert grant.event.ratio * grant.scales.noise_std == pytest.approx(1 / 4, rel=1e-4)


@pytest.mark.parametrize("trust", ["none", "pairs", "curator"])
def test_everything_is_inside_the_stated_loss(trust):
    federation = federation_of(Logistic())
    plan = plan_of(Logistic(), federation, trust=trust)
    assert plan.epsilon(DELTA) <= 2.0
    assert plan.epsilon(DELTA) == pytest.approx(2.0, rel=1e-6)
    without = dataclasses.replace(plan, moments=None)
    assert without.epsilon(DELTA) < 1.0
    alone = [(g.grant.event, 1) for g in plan.moment_grants(0)]
    assert [entry for entry in plan.ledger(0) if entry in alone] == alone
    if trust != "none":
        total = math.sqrt(sum(count * event.ratio**2 for event, count in plan.ledger(0)))
        assert plan.epsilon(DELTA) == pytest.approx(gaussian_epsilon([(Gaussian(total), 1)], DELTA))
    assert plan.ledger(0, n_rounds=plan.n_rounds) == without.ledger(0)
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert again.digest == plan.digest


def test_a_person_at_all_parties_pays_for_the_moments_of_all():
    federation = federation_of(Logistic())
    one = plan_of(Logistic(), federation)
    everywhere = dataclasses.replace(one, people_span_parties=True)
    only = dataclasses.replace(everywhere, moments=None)
    assert everywhere.epsilon(DELTA) > only.epsilon(DELTA) * 1.5
    assert plan_of(Logistic(), federation, people_span_parties=True).epsilon(DELTA) <= 2.0


def test_the_certificate_lists_the_releases_and_recomputes():
    federation = federation_of(Logistic())
    plan = plan_of(Logistic(), federation)
    certificate = make_certificate(plan, DELTA, reproducible=False)
    listed = certificate.document["after_the_rounds"]
    assert [one["what"].split()[0] for one in listed] == ["gradient", "Hessian", "gradient", "Hessian", "second"]
    certificate.verify()
    assert "Hessian of all records, at the model of stage 2" in certificate.to_markdown()
    cheaper = dataclasses.replace(plan, moments=plan.moments.with_noise(0.5))
    forged = dataclasses.replace(certificate, document={**certificate.document, "plan": None})
    with pytest.raises(InputError):
        forged.verify()
    assert make_certificate(cheaper, DELTA, reproducible=False).epsilon > certificate.epsilon


def test_what_cannot_be_had_is_refused_in_a_sentence():
    federation = federation_of(Logistic())
    with pytest.raises(InputError, match="HuberisedHinge; one of Logistic"):
        plan_of(HuberisedHinge(), federation)
    numbers = federation_of(Huber())
    plan = plan_of(Huber(), numbers, robust=False)
    assert plan.moments.second_moment_multiplier is not None
    with pytest.raises(InputError, match="second moment is needed"):
        dataclasses.replace(plan, moments=dataclasses.replace(plan.moments, second_moment_multiplier=None))
    with pytest.raises(InputError, match="one of each"):
        Moments(gradient_multipliers=(1.0,), curvature_multipliers=())
    with pytest.raises(InputError, match="curvature multiplier: got -1"):
        Moments(gradient_multipliers=(1.0,), curvature_multipliers=(-1.0,))
    with pytest.raises(InputError, match=r"inference: got 1\.5"):
        rules.Wanted(share=1.5)


def test_packing_keeps_norms():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(5, packed_size(4)))
    matrices = unpacked(values, 4)
    np.testing.assert_allclose(np.linalg.norm(matrices, axis=(1, 2)), np.linalg.norm(values, axis=1))
    np.testing.assert_array_equal(matrices, np.swapaxes(matrices, 1, 2))
