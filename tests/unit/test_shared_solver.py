"""Minimisations over the same records, solved together: each within its tolerance, and where each alone would end."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coterie.problems import L2, Huber, HuberisedHinge, Logistic, Squared, shared
from coterie.problems.local import Records, minimise

N, D, M = 2000, 12, 7
LOSSES = [Logistic(), HuberisedHinge(), Squared(), Huber(threshold=0.7)]


def make_records(loss, n=N, d=D, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * np.geomspace(1, 0.05, d) + 0.5
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    score = X @ rng.normal(size=d) + 0.3 * rng.normal(size=n)
    return Records(X, (score > 0).astype(float) if loss.margin else score, rng.uniform(0.5, 1.5, size=n))


def make_pulls(m=M, d=D, size=30.0, seed=1):
    rng = np.random.default_rng(seed)
    tolerance = np.full(m, 1e-11 * N)
    return shared.Pull(size * rng.normal(size=(m, d)), rng.normal(size=(m, d)), rng.uniform(2, 20, size=m), tolerance)


def solve(loss, penalty, records, pulls, axes=shared.Pull(0, 0, 0, 0), records_axis=None):  # noqa: B008
    def one(records, pull):
        return minimise(loss, penalty, records, **pull._asdict())

    with jax.enable_x64(True):
        f, bound = jax.jit(jax.vmap(one, in_axes=(records_axis, axes)))(records, jax.tree.map(jnp.asarray, pulls))
    return np.asarray(f), np.asarray(bound)


def gradients(loss, l2, records, pulls, f):
    """In double precision and from the definition."""
    with jax.enable_x64(True):
        slopes = np.stack([np.asarray(loss.slope(jnp.asarray(records.X @ row), jnp.asarray(records.y))) for row in f])
    data = (slopes * records.weight) @ records.X
    return data + l2 * f + pulls.linear + np.reshape(pulls.curvature, (-1, 1)) * (f - pulls.target)


@pytest.fixture
def alone(monkeypatch):
    """Switches the shared solver off."""

    def switch():
        monkeypatch.setattr(shared, "SMALLEST", 10**9)

    return switch


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_all_are_within_their_tolerances_and_where_each_alone_ends(loss, alone):
    records, pulls = make_records(loss), make_pulls()
    assert records.X.size >= shared.SMALLEST
    f, bound = solve(loss, L2(0.3), records, pulls)
    assert np.all(bound <= pulls.tolerance)
    own = np.linalg.norm(gradients(loss, 0.3, records, pulls, f), axis=1)
    np.testing.assert_allclose(own, bound, atol=0.05 * pulls.tolerance[0])
    alone()
    expected, _ = solve(loss, L2(0.3), records, pulls)
    np.testing.assert_allclose(f, expected, atol=1e-8 * np.abs(expected).max())


def test_what_is_not_mapped_counts_for_all(alone):
    loss, records = Logistic(), make_records(Logistic())
    pulls = make_pulls()._replace(curvature=np.float64(5.0), tolerance=np.float64(1e-8), target=np.ones(D))
    axes = shared.Pull(0, None, None, None)
    f, bound = solve(loss, L2(0.0), records, pulls, axes)
    assert f.shape == (M, D)
    assert np.all(bound <= 1e-8)
    alone()
    np.testing.assert_allclose(f, solve(loss, L2(0.0), records, pulls, axes)[0], atol=1e-8)


def test_mapped_parties_of_mapped_repeats():
    """As an engine maps: parties outside, repeats inside."""
    loss = Logistic()
    parties = [make_records(loss, seed=seed) for seed in (0, 5, 6)]
    pulls = [make_pulls(seed=seed) for seed in (1, 2, 3)]
    stacked = Records(*map(np.stack, zip(*parties, strict=True)))
    stacked_pulls = shared.Pull(*map(np.stack, zip(*pulls, strict=True)))

    def one(records, pull):
        return minimise(loss, L2(0.3), records, **pull._asdict())

    with jax.enable_x64(True):
        f, bound = jax.jit(jax.vmap(jax.vmap(one, in_axes=(None, 0))))(stacked, stacked_pulls)
    assert np.all(np.asarray(bound) <= stacked_pulls.tolerance)
    for i in range(3):
        np.testing.assert_allclose(f[i], solve(loss, L2(0.3), parties[i], pulls[i])[0], atol=1e-9)


def test_records_that_differ_are_solved_one_by_one():
    loss = Logistic()
    parties = [make_records(loss, seed=seed) for seed in range(M)]
    stacked, pulls = Records(*map(np.stack, zip(*parties, strict=True))), make_pulls()
    f, bound = solve(loss, L2(0.3), stacked, pulls, records_axis=0)
    assert np.all(bound <= pulls.tolerance)
    one = shared.Pull(*(column[:1] for column in pulls))
    np.testing.assert_allclose(f[:1], solve(loss, L2(0.3), parties[0], one)[0], atol=1e-9)


@pytest.mark.parametrize("setting", ["MOST_STEPS", "MOST_CORRECTIONS"])
def test_a_miss_falls_back_to_each_alone(setting, monkeypatch):
    """Cut short, the shared solver misses every tolerance, and nobody can tell from the result."""
    records, pulls = make_records(Logistic()), make_pulls()
    expected, _ = solve(Logistic(), L2(0.3), records, pulls)
    monkeypatch.setattr(shared, setting, 0)
    f, bound = solve(Logistic(), L2(0.3), records, pulls)
    assert np.all(bound <= pulls.tolerance)
    np.testing.assert_allclose(f, expected, atol=1e-9)


@pytest.mark.parametrize("size", [1e-6, 1e4], ids=str)
def test_pulls_of_any_size(size):
    records, pulls = make_records(Logistic()), make_pulls(size=size)
    pulls = pulls._replace(
        tolerance=1e-11 * (N + np.linalg.norm(pulls.linear, axis=1)), curvature=np.geomspace(0.1, 1e3, M)
    )
    _, bound = solve(Logistic(), L2(0.3), records, pulls)
    assert np.all(bound <= pulls.tolerance)


@pytest.mark.parametrize("where", ["X", "y", "weight", "linear", "target"])
def test_nan_ends_and_never_looks_solved(where):
    records, pulls = make_records(Logistic()), make_pulls()
    if where in pulls._fields:
        spoiled = getattr(pulls, where).copy()
        spoiled[1, 1] = np.nan
        pulls = pulls._replace(**{where: spoiled})
    else:
        spoiled = getattr(records, where).copy()
        spoiled[(1,) * spoiled.ndim] = np.nan
        records = records._replace(**{where: spoiled})
    _, bound = solve(Logistic(), L2(0.3), records, pulls)
    assert not bound[1] <= pulls.tolerance[1]
    if where in pulls._fields:
        assert np.all(np.delete(bound, 1) <= pulls.tolerance[0])


def test_records_of_no_weight_leave_the_pull_alone():
    records, pulls = make_records(Logistic())._replace(weight=np.zeros(N)), make_pulls()
    f, bound = solve(Logistic(), L2(0.3), records, pulls)
    assert np.all(bound <= pulls.tolerance)
    curvature = pulls.curvature[:, None]
    np.testing.assert_allclose(f, (curvature * pulls.target - pulls.linear) / (curvature + 0.3), rtol=1e-9)
