"""Minimisations with curvatures as matrices: within their tolerances, where each alone ends, and honest if not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coterie.minimisers import Subproblem, matrices
from coterie.minimisers.one_party import Newton
from coterie.problems import L2, Huber, HuberisedHinge, Logistic, Records, Squared

# no whole number of pieces
PARTIES, N, D, M = 2, 403, 12, 5
LOSSES = [Logistic(), HuberisedHinge(), Squared(), Huber(threshold=0.7)]


def make_records(loss, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(PARTIES, N, D)) * np.geomspace(1, 0.05, D) + 0.5
    X /= np.linalg.norm(X, axis=2, keepdims=True)
    score = X @ rng.normal(size=D) + 0.3 * rng.normal(size=(PARTIES, N))
    weight = rng.uniform(0.5, 1.5, size=(PARTIES, N))
    # a smaller party
    weight[1, -50:] = 0.0
    return Records(X, (score > 0).astype(float) if loss.margin else score, weight)


def make_batch(size=30.0, convexity=(2.0, 20.0), tolerance=1e-9, seed=1):
    rng = np.random.default_rng(seed)
    linear, target = size * rng.normal(size=(PARTIES, M, D)), rng.normal(size=(PARTIES, M, D))
    return Subproblem(linear, target, rng.uniform(*convexity, size=(PARTIES, M)), np.full((PARTIES, M), tolerance))


def solve(loss, l2, records, batch, pairs=True):
    with jax.enable_x64(True):
        ready = matrices.stack(Records(*map(jnp.asarray, records)), pairs)
        program = jax.jit(lambda ready, batch: matrices.minimise(loss, L2(l2), ready, batch))
        f, norms = program(ready, jax.tree.map(jnp.asarray, batch))
    return np.asarray(f), np.asarray(norms)


def gradient_norms(loss, l2, records, batch, f):
    """In double precision and from the definition."""
    with jax.enable_x64(True):
        scores = np.einsum("pnd,prd->prn", records.X, f)
        slopes = np.asarray(loss.slope(jnp.asarray(scores), jnp.asarray(records.y)[:, None]))
    data = np.einsum("prn,pnd->prd", slopes * records.weight[:, None], records.X)
    whole = data + l2 * f + batch.linear + batch.curvature[..., None] * (f - batch.target)
    return np.linalg.norm(whole, axis=-1)


def test_what_one_party_releases_tells_nothing_of_another_that_takes_longer():
    """To the last bit, in 20 problems: turns that everybody takes until all are done would show in several."""
    loss = Logistic()
    with jax.enable_x64(True):
        program = jax.jit(lambda ready, batch: matrices.minimise(loss, L2(0.0), ready, batch))
        for seed in range(20):
            rng = np.random.default_rng(seed)
            X, y, weight = make_records(loss, seed)
            others = weight * np.array([[0.0], [1.0]])
            size, tolerance = 10 ** rng.uniform(0, 3), 3e-10
            batch = jax.tree.map(jnp.asarray, make_batch(size, (20.0, 20.0), tolerance, seed))
            found = [
                np.asarray(program(matrices.stack(Records(*map(jnp.asarray, (X, y, w))), True), batch)[0])
                for w in (weight, others)
            ]
            assert (found[0][0] != found[1][0]).any()
            assert (found[0][1] == found[1][1]).all()


@pytest.mark.parametrize("pairs", [True, False], ids=["pairs", "rows"])
@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_all_are_within_their_tolerances_and_where_each_alone_ends(loss, pairs):
    records, batch = make_records(loss), make_batch()
    f, norms = solve(loss, 0.3, records, batch, pairs)
    assert (norms <= batch.tolerance).all()
    assert np.allclose(norms, gradient_norms(loss, 0.3, records, batch, f), rtol=0, atol=1e-11)
    with jax.enable_x64(True):
        for party in range(PARTIES):
            own = Records(*(jnp.asarray(column[party]) for column in records))
            for problem in range(M):
                own_problem = Subproblem(*(jnp.asarray(a[party, problem]) for a in batch))
                alone, _ = Newton(loss, L2(0.3)).minimise(own, own_problem)
                assert np.abs(f[party, problem] - alone).max() <= 1e-8 * np.abs(alone).max()


@pytest.mark.parametrize("pairs", [True, False], ids=["pairs", "rows"])
def test_the_matrix_is_that_of_second_derivatives(pairs):
    """To half precision, also of one feature, of which there is one pair."""
    loss, records, batch = Logistic(), make_records(Logistic()), make_batch()
    for d in (1, 3):
        X, f = 0.3 + records.X[..., :d], batch.target[..., :d]
        scores = np.einsum("pnd,prd->prn", X, f)
        bends = np.exp(-scores) / (1 + np.exp(-scores)) ** 2 * records.weight[:, None]
        right = np.einsum("prn,pnd,pne->prde", bends, X, X) + 2.0 * np.eye(d)
        with jax.enable_x64(True):
            ready = matrices.stack(Records(jnp.asarray(X), *map(jnp.asarray, records[1:])), pairs)
            objective = matrices._Objective(loss, ready, jnp.full((PARTIES, M, 1), 2.0), jnp.zeros((PARTIES, M, d)))
            matrix = objective.matrix(objective.bends(objective.at(jnp.asarray(f))[0]))
        assert np.abs(matrix - right).max() <= 0.004 * np.abs(right).max()


def test_badly_conditioned_problems_take_more_steps_and_arrive():
    """Sixty features whose curvatures go from hundreds to one along no axis: eight steps solve nothing."""
    rng, d = np.random.default_rng(3), 60
    turned, _ = np.linalg.qr(rng.normal(size=(d, d)))
    X = rng.normal(size=(PARTIES, N, d)) * np.geomspace(1, 0.03, d) @ turned
    records = Records(X, rng.normal(size=(PARTIES, N)), np.ones((PARTIES, N)))
    batch = Subproblem(
        rng.normal(size=(PARTIES, M, d)),
        np.zeros((PARTIES, M, d)),
        np.full((PARTIES, M), 0.5),
        np.full((PARTIES, M), 1e-9),
    )
    f, norms = solve(Squared(), 0.0, records, batch)
    assert (norms <= batch.tolerance).all()
    assert np.allclose(norms, gradient_norms(Squared(), 0.0, records, batch, f), rtol=0, atol=1e-10)


def test_steps_that_go_too_far_are_halved():
    """From where the logistic loss is flat, Newton's first step leads far beyond the minimiser, and never back."""
    records = make_records(Logistic())
    batch = make_batch(size=0.1, convexity=(0.1, 0.12))._replace(target=np.full((PARTIES, M, D), 4.0))
    f, norms = solve(Logistic(), 0.0, records, batch)
    assert (norms <= batch.tolerance).all()
    assert np.allclose(norms, gradient_norms(Logistic(), 0.0, records, batch, f), rtol=0, atol=1e-11)


@pytest.mark.parametrize(("turns", "last"), [(0, 0), (1, 0), (30, 20)])
def test_a_tolerance_that_is_missed_is_not_hidden(turns, last, monkeypatch):
    monkeypatch.setattr(matrices, "MOST_TURNS", turns)
    monkeypatch.setattr(matrices, "MOST_LAST_TURNS", last)
    records, batch = make_records(Logistic()), make_batch(tolerance=0.0)
    f, norms = solve(Logistic(), 0.3, records, batch)
    right = gradient_norms(Logistic(), 0.3, records, batch, f)
    assert np.allclose(norms, right, rtol=1e-9, atol=1e-11)
    assert turns > 1 or (right > 1e-3).all()


def test_records_without_weight_in_the_first_pieces():
    """Nothing stands for the others then: a party may not arrive, which is told, and the others do."""
    records, batch = make_records(Logistic()), make_batch(size=3.0)
    records.weight[0, np.arange(N) % matrices.PIECES < matrices.THIN] = 0.0
    f, norms = solve(Logistic(), 0.3, records, batch)
    assert (norms[1] <= 1e-9).all()
    assert np.allclose(norms, gradient_norms(Logistic(), 0.3, records, batch, f), rtol=1e-9, atol=1e-11)


def test_a_start_at_the_minimiser_stays_there():
    records, batch = make_records(Logistic()), make_batch()
    f, _ = solve(Logistic(), 0.3, records, batch)
    linear = batch.linear + batch.curvature[..., None] * (f - batch.target)
    again, norms = solve(Logistic(), 0.3, records, batch._replace(linear=linear, target=f))
    assert (norms <= batch.tolerance).all()
    assert np.abs(again - f).max() <= 1e-10


def test_not_a_number_is_not_within_a_tolerance():
    records, batch = make_records(Logistic()), make_batch()
    batch.linear[0, 2] = np.nan
    _, norms = solve(Logistic(), 0.3, records, batch)
    assert np.isnan(norms[0, 2])
    assert (np.delete(norms.ravel(), 2) <= 1e-9).all()
