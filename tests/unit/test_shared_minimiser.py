"""Minimisations over the same records, solved together: each within its tolerance, and where each alone would end."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coterie.minimisers import Subproblem, shared
from coterie.minimisers.one_party import minimise, solved_together
from coterie.problems import L2, Huber, HuberisedHinge, Logistic, Records, Squared

N, D, M = 2000, 12, 7
LOSSES = [Logistic(), HuberisedHinge(), Squared(), Huber(threshold=0.7)]


def make_records(loss, n=N, d=D, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * np.geomspace(1, 0.05, d) + 0.5
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    score = X @ rng.normal(size=d) + 0.3 * rng.normal(size=n)
    return Records(X, (score > 0).astype(float) if loss.margin else score, rng.uniform(0.5, 1.5, size=n))


def make_batch(m=M, d=D, size=30.0, seed=1):
    rng = np.random.default_rng(seed)
    tolerance = np.full(m, 1e-11 * N)
    return Subproblem(size * rng.normal(size=(m, d)), rng.normal(size=(m, d)), rng.uniform(2, 20, size=m), tolerance)


def solve(loss, regulariser, records, batch, axes=Subproblem(0, 0, 0, 0), records_axis=None, smallest=0):  # noqa: B008
    def one(records, own):
        return minimise(loss, regulariser, records, **own._asdict())

    with jax.enable_x64(True), solved_together(smallest):
        f, bound = jax.jit(jax.vmap(one, in_axes=(records_axis, axes)))(records, jax.tree.map(jnp.asarray, batch))
    return np.asarray(f), np.asarray(bound)


def gradients(loss, l2, records, batch, f):
    """In double precision and from the definition."""
    with jax.enable_x64(True):
        slopes = np.stack([np.asarray(loss.slope(jnp.asarray(records.X @ row), jnp.asarray(records.y))) for row in f])
    data = (slopes * records.weight) @ records.X
    return data + l2 * f + batch.linear + np.reshape(batch.curvature, (-1, 1)) * (f - batch.target)


def each_alone(*arguments):
    return solve(*arguments, smallest=None)


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_all_are_within_their_tolerances_and_where_each_alone_ends(loss):
    records, batch = make_records(loss), make_batch()
    f, bound = solve(loss, L2(0.3), records, batch)
    met = bound <= batch.tolerance
    # whose corners stop some of them
    assert met.all() or (isinstance(loss, Huber) and met.any())
    own = np.linalg.norm(gradients(loss, 0.3, records, batch, f), axis=1)
    np.testing.assert_allclose(own, bound, rtol=1e-9, atol=0.05 * batch.tolerance[0])
    expected, _ = each_alone(loss, L2(0.3), records, batch)
    np.testing.assert_allclose(f[met], expected[met], atol=1e-8 * np.abs(expected).max())


def test_what_is_not_mapped_counts_for_all():
    loss, records = Logistic(), make_records(Logistic())
    batch = make_batch(size=10.0)._replace(curvature=np.float64(5.0), tolerance=np.float64(1e-8), target=np.ones(D))
    axes = Subproblem(0, None, None, None)
    f, bound = solve(loss, L2(0.0), records, batch, axes)
    assert f.shape == (M, D)
    assert np.all(bound <= 1e-8)
    np.testing.assert_allclose(f, each_alone(loss, L2(0.0), records, batch, axes)[0], atol=1e-8)


def test_mapped_parties_of_mapped_repeats():
    """As an engine maps: parties outside, repeats inside."""
    loss = Logistic()
    parties = [make_records(loss, seed=seed) for seed in (0, 5, 6)]
    batch = [make_batch(seed=seed) for seed in (1, 2, 3)]
    stacked = Records(*map(np.stack, zip(*parties, strict=True)))
    stacked_batch = Subproblem(*map(np.stack, zip(*batch, strict=True)))

    def one(records, own):
        return minimise(loss, L2(0.3), records, **own._asdict())

    with jax.enable_x64(True), solved_together(0):
        f, bound = jax.jit(jax.vmap(jax.vmap(one, in_axes=(None, 0))))(stacked, stacked_batch)
    assert np.all(np.asarray(bound) <= stacked_batch.tolerance)
    for i in range(3):
        np.testing.assert_allclose(f[i], solve(loss, L2(0.3), parties[i], batch[i])[0], atol=1e-9)


def test_records_that_differ_are_solved_one_by_one():
    loss = Logistic()
    parties = [make_records(loss, seed=seed) for seed in range(M)]
    stacked, batch = Records(*map(np.stack, zip(*parties, strict=True))), make_batch()
    f, bound = solve(loss, L2(0.3), stacked, batch, records_axis=0)
    assert np.all(bound <= batch.tolerance)
    one = Subproblem(*(column[:1] for column in batch))
    np.testing.assert_allclose(f[:1], solve(loss, L2(0.3), parties[0], one)[0], atol=1e-9)


@pytest.mark.parametrize("setting", ["MOST_STEPS", "MOST_CORRECTIONS"])
def test_a_tolerance_that_is_missed_is_not_hidden(setting, monkeypatch):
    """Cut short, it misses every tolerance; whoever asked for it must ask another one."""
    records, batch = make_records(Logistic()), make_batch()
    monkeypatch.setattr(shared, setting, 0)
    f, bound = solve(Logistic(), L2(0.3), records, batch)
    assert not np.any(bound <= batch.tolerance)
    np.testing.assert_allclose(np.linalg.norm(gradients(Logistic(), 0.3, records, batch, f), axis=1), bound, rtol=1e-6)


def test_parties_that_are_too_small_and_callers_who_do_not_ask_get_the_plain_minimiser(monkeypatch):
    records, batch = make_records(Logistic()), make_batch()
    monkeypatch.setattr(shared.SharedCurvature, "minimise", lambda *_: pytest.fail("solved together"))
    for smallest in (None, records.X.size + 1):
        _, bound = solve(Logistic(), L2(0.3), records, batch, smallest=smallest)
        assert np.all(bound <= batch.tolerance)


@pytest.mark.parametrize("size", [1e-6, 1e4], ids=str)
def test_pulls_of_any_size(size):
    records, batch = make_records(Logistic()), make_batch(size=size)
    batch = batch._replace(
        tolerance=1e-11 * (N + np.linalg.norm(batch.linear, axis=1)), curvature=np.geomspace(0.1, 1e3, M)
    )
    _, bound = solve(Logistic(), L2(0.3), records, batch)
    # the least convex one may miss, and says so
    assert np.sum(bound <= batch.tolerance) >= M - 1


@pytest.mark.parametrize("where", ["X", "y", "weight", "linear", "target"])
def test_nan_ends_and_never_looks_solved(where):
    records, batch = make_records(Logistic()), make_batch()
    if where in batch._fields:
        spoiled = getattr(batch, where).copy()
        spoiled[1, 1] = np.nan
        batch = batch._replace(**{where: spoiled})
    else:
        spoiled = getattr(records, where).copy()
        spoiled[(1,) * spoiled.ndim] = np.nan
        records = records._replace(**{where: spoiled})
    _, bound = solve(Logistic(), L2(0.3), records, batch)
    assert not bound[1] <= batch.tolerance[1]
    # a start is shared by all
    if where == "linear":
        assert np.all(np.delete(bound, 1) <= batch.tolerance[0])


def test_records_of_no_weight_leave_the_pull_alone():
    records, batch = make_records(Logistic())._replace(weight=np.zeros(N)), make_batch()
    f, bound = solve(Logistic(), L2(0.3), records, batch)
    assert np.all(bound <= batch.tolerance)
    curvature = batch.curvature[:, None]
    np.testing.assert_allclose(f, (curvature * batch.target - batch.linear) / (curvature + 0.3), rtol=1e-9)
