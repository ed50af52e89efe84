"""What is released for inference: packed matrices, their sensitivities, and a plan that pays for them."""

import dataclasses
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coterie
from coterie import rules
from coterie.certificate import make_certificate
from coterie.engines.moments import (
    _contributed,
    as_matrices,
    derivative_stds,
    derivatives_of,
    noise_std,
    release,
    release_on_ranks,
)
from coterie.errors import InputError
from coterie.plan import Plan
from coterie.privacy.accountants import gaussian_epsilon
from coterie.privacy.events import Gaussian
from coterie.privacy.moments import Moments, _packed, derivatives_size, free_curvature, packed_size, unpacked
from coterie.privacy.noise import Seeded
from coterie.problems import L2, Huber, HuberisedHinge, Logistic, Multinomial, Problem, Records, Squared
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


def released_derivatives(plan, federation, f, source):
    """Gradient and Hessian of the second stage."""
    return derivatives_of(plan, 1, release(plan, federation, 1, f, source))


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
    sums = [release(plan, federation, number, f, NoNoise(0)) for number in (1, 2)]
    found = [*derivatives_of(plan, 1, sums[0]), unpacked(sums[1], len(f))]
    for value, expected in zip(found, exact(loss, federation, f, plan.moments.clip), strict=True):
        # the grid of the noise
        np.testing.assert_allclose(value, expected, atol=2e-4)
    # as they are kept and signed
    np.testing.assert_array_equal(as_matrices(plan, 1, sums[0]), np.append(found[0], found[1]))
    np.testing.assert_array_equal(as_matrices(plan, 2, sums[1]), found[2].ravel())


@pytest.mark.parametrize("trust", ["none", "pairs", "curator", "secure-sum"])
def test_noise_on_the_sum_is_what_is_said(trust):
    """Mean square over 350 entries: a chance of 1e-6 to be as far off, and three noises counted as one are noticed."""
    federation = federation_of(Logistic(), d=25)
    plan = plan_of(Logistic(), federation, trust=trust)
    f = np.zeros(25)
    noised = released_derivatives(plan, federation, f, Seeded(5))
    exact_value = released_derivatives(plan, federation, f, NoNoise(0))
    rows, columns = np.triu_indices(25)
    gradient_std, hessian_std = derivative_stds(plan, 1)
    in_hessian = (noised[1] - exact_value[1])[rows, columns] * np.where(rows == columns, 1, math.sqrt(2))
    ratio = np.append((noised[0] - exact_value[0]) / gradient_std, in_hessian / hessian_std)
    assert abs(np.mean(ratio**2) - 1) < 4.9 * math.sqrt(2 / derivatives_size(25))
    assert abs(np.mean(ratio[:25] ** 2) - 1) < 4.9 * math.sqrt(2 / 25)
    parties = 3
    one = plan.moment_grants(0)[1].grant.scales.noise_std
    expected = {"none": math.sqrt(parties), "curator": 1.0, "secure-sum": 1.0}.get(trust)
    if expected is not None:
        assert noise_std(plan, 1) == pytest.approx(expected * one)
    else:
        assert 1.0 <= noise_std(plan, 1) / one < 1.1


class Ranks:
    """Processes of a cluster, as threads: what MPI does of `allgather`, `Reduce` and `Bcast`."""

    def __init__(self, size):
        self.sent, self.all_here = [None] * size, threading.Barrier(size, timeout=100)

    def at(self, rank):
        reduce, broadcast = partial(self.reduce, rank), partial(self.broadcast, rank)
        return SimpleNamespace(rank=rank, allgather=partial(self.allgather, rank), Reduce=reduce, Bcast=broadcast)

    def allgather(self, rank, value):
        self.sent[rank] = value
        self.all_here.wait()
        everything = list(self.sent)
        self.all_here.wait()
        return everything

    def reduce(self, rank, value, total, root):
        everything = self.allgather(rank, value)
        if rank == root:
            total[...] = sum(everything)

    def broadcast(self, rank, value, root):
        sent = self.allgather(rank, value.copy())
        value[...] = sent[root]


@pytest.mark.parametrize("trust", ["none", "curator", "secure-sum"])
def test_processes_of_a_cluster_release_what_one_process_does(trust):
    """The noise of a sum is added once, whoever holds which parties."""
    federation = federation_of(Logistic())
    plan, ranks = plan_of(Logistic(), federation, trust=trust), Ranks(2)
    f = np.random.default_rng(1).normal(size=3)

    def at_rank(rank, own):
        shards = [federation.shards[party] for party in own]
        return release_on_ranks(plan, own, shards, 1, f, Seeded(4), ranks.at(rank))

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(at_rank, range(2), [[0, 1], [2]]))
    for values in found:
        np.testing.assert_allclose(values, release(plan, federation, 1, f, Seeded(4)), rtol=0, atol=1e-9)


def parts_of(plan, purpose, X, y, f):
    """Contributions of single records, (record, ...)."""
    [grant] = [g.grant for g in plan.moment_grants(0) if g.purpose == purpose][-1:]
    with jax.enable_x64(True):
        records = Records(jnp.asarray(X[:, None]), jnp.asarray(y[:, None]), jnp.ones((len(y), 1)))
        return np.asarray(_contributed(grant, records, jnp.asarray(f), purpose=purpose).value)


def sensitivity_of(plan, purpose):
    [grant] = [g.grant for g in plan.moment_grants(0) if g.purpose == purpose][-1:]
    return grant.event.ratio * grant.scales.noise_std


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
@pytest.mark.parametrize("name", LOSSES)
def test_no_two_records_are_farther_apart_than_the_sensitivity(name, adjacency):
    """2-norms of what leaves, over records within the bounds at models of all sizes; some pair comes near enough that a
    smaller constant would fail."""
    loss, rng = LOSSES[name], np.random.default_rng(2)
    federation = federation_of(loss, d=2)
    plan = dataclasses.replace(plan_of(loss, federation), adjacency=adjacency)
    p = plan.problem.n_coefficients(plan.facts)
    X = np.concatenate([np.eye(2), -np.eye(2), rng.normal(size=(36, 2))])
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    X[-10:] *= rng.uniform(0.3, 1, (10, 1))
    y = (
        rng.integers(0, max(2, loss.n_outputs), len(X)).astype(float)
        if plan.facts.labels
        else rng.uniform(-1, 1, len(X))
    )
    largest = {"derivatives": 0.0, "second_moment": 0.0}
    for purpose in largest:
        for size in (0.0, 0.5, 1.0, 2.0, 5.0, 50.0):
            parts = parts_of(plan, purpose, X, y, size * rng.normal(size=p))
            others = parts if adjacency == "replace-one" else np.zeros((1, parts.shape[1]))
            moved = np.linalg.norm(parts[:, None] - others[None], axis=-1)
            largest[purpose] = max(largest[purpose], float(moved.max()))
        sensitivity = sensitivity_of(plan, purpose)
        assert largest[purpose] <= sensitivity * (1 + 1e-6), purpose
    assert largest["derivatives"] >= 0.75 * sensitivity_of(plan, "derivatives")
    assert largest["second_moment"] >= 0.6 * sensitivity_of(plan, "second_moment")


def logistic_square(x, t1, t2, u, one_is_flat):
    """Of the distance between two records with the largest curvature beside their slopes, or the second with none."""
    a1, a2 = 4 * t1 * (1 - t1), np.where(one_is_flat, 0.0, 4 * t2 * (1 - t2))
    return t1**2 + t2**2 + 2 * u * t1 * t2 + x * (a1**2 + a2**2 - 2 * u**2 * a1 * a2)


def test_a_logistic_curvature_is_free_up_to_what_is_said_and_not_beyond():
    """A grid over all pairs of records, fine enough: a step of 1/200 changes the square by less than 0.06 per unit, and
    the largest value on it is at its edge, where it is exact."""
    problem = problem_of(Logistic())
    t = np.linspace(0, 1, 201)
    t1, t2, u = np.meshgrid(t, t, np.linspace(0, 1, 101), indexing="ij")
    for flat in (False, True):
        x = free_curvature(problem, None, "replace-one")
        assert logistic_square(x, t1, t2, u, flat).max() <= 4 + 1e-12
        # zeroed out: nothing is at the other side
        x = free_curvature(problem, None, "zero-out")
        assert logistic_square(x, t, 0 * t, 0 * t, flat).max() <= 1 + 1e-12
    assert logistic_square(1.05 * 3 / 2, t1, t2, u, True).max() > 4
    assert logistic_square(1.05 * 11 / 16, t, 0 * t, 0 * t, False).max() > 1
    assert free_curvature(problem, 0.5, "replace-one") == 0
    assert free_curvature(problem_of(Huber()), None, "replace-one") == 0


def test_a_multinomial_curvature_is_free_up_to_what_is_said():
    rng = np.random.default_rng(0)
    for k in (2, 3, 5):
        p = np.concatenate([rng.dirichlet(np.full(k, a), size=2000) for a in (0.1, 0.5, 1.0)])
        C = p[:, :, None] * np.eye(k) - p[:, :, None] * p[:, None, :]
        a = np.linalg.norm(C, axis=(1, 2)) / Multinomial(k).smoothness
        t = np.linalg.norm(p - np.eye(k)[rng.integers(0, k, len(p))], axis=1) / math.sqrt(2)
        assert a.max() <= 1 + 1e-12
        assert (t**2 <= 1 - a / 4 + 1e-12).all()
        x = free_curvature(problem_of(Multinomial(k)), None, "replace-one")
        assert ((t[:, None] + t[None]) ** 2 + x * (a[:, None] ** 2 + a[None] ** 2)).max() <= 4 + 1e-9
        x = free_curvature(problem_of(Multinomial(k)), None, "zero-out")
        assert (t**2 + x * a**2).max() <= 1 + 1e-12


def test_the_sensitivity_is_attained_and_less_would_not_do():
    """Two records whose gradients are opposite and as long as they can be: 2; of a Huber loss, one of them with
    curvature and the other just beyond the threshold: sqrt(4.5)."""
    federation = federation_of(Logistic(), d=2)
    plan = plan_of(Logistic(), federation)
    # rows that are almost opposite, both far on the wrong side of a steep model
    rows = np.array([[math.cos(0.01), math.sin(0.01)], [-math.cos(0.01), math.sin(0.01)]])
    a, b = parts_of(plan, "derivatives", rows, np.zeros(2), np.array([0.0, 1e4]))
    assert np.linalg.norm(a - b) == pytest.approx(2, rel=1e-4)
    assert sensitivity_of(plan, "derivatives") == pytest.approx(2, rel=1e-4)
    assert sensitivity_of(dataclasses.replace(plan, adjacency="zero-out"), "derivatives") > 1
    huber = plan_of(Huber(0.8), federation_of(Huber(0.8), d=2))
    inside, outside = parts_of(
        huber, "derivatives", np.array([[1.0, 0], [1.0, 0]]), np.array([-1 + 1e-9, 1.0]), np.array([-0.2, 0.0])
    )
    assert np.linalg.norm(inside - outside) == pytest.approx(0.8 * math.sqrt(4.5), rel=1e-6)
    assert sensitivity_of(huber, "derivatives") == pytest.approx(0.8 * math.sqrt(4.5), rel=1e-4)


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
    assert [one["what"].split()[0] for one in listed] == ["gradient", "gradient", "second"]
    certificate.verify()
    assert "gradient and Hessian of all records as one vector, at the model of stage 2" in certificate.to_markdown()
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
    with pytest.raises(InputError, match="multipliers: got none"):
        Moments(multipliers=(), curvature_weight=0.5)
    for wrong in (-1.0, 0.0, np.inf):
        with pytest.raises(InputError, match=f"derivatives multiplier: got {wrong}"):
            Moments(multipliers=(wrong,), curvature_weight=0.5)
    with pytest.raises(InputError, match=r"curvature_weight: got 2.*\(0, 1\.7\]"):
        Moments(multipliers=(1.0,), curvature_weight=2.0)
    with pytest.raises(InputError, match=r"inference: got 1\.5"):
        rules.Wanted(share=1.5)


@pytest.mark.parametrize("p", [1, 2, 3, 5, 40, 333])
def test_what_is_packed_stands_where_it_is_looked_for(p):
    """Rows and columns that a step works out of a place, against those of NumPy."""
    matrix = np.arange(float(p * p)).reshape(p, p)
    rows, columns = np.triu_indices(p)
    with jax.enable_x64(True):
        packed = _packed(jnp.asarray(matrix))
    np.testing.assert_allclose(packed, matrix[rows, columns] * np.where(rows == columns, 1, 2**0.5), rtol=1e-15)


def test_packing_keeps_norms():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(5, packed_size(4)))
    matrices = unpacked(values, 4)
    np.testing.assert_allclose(np.linalg.norm(matrices, axis=(1, 2)), np.linalg.norm(values, axis=1))
    np.testing.assert_array_equal(matrices, np.swapaxes(matrices, 1, 2))
