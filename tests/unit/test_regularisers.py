"""Regularisers: the proximal map is the minimiser it claims to be, and shares of a regulariser add up to the whole."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from coterie.errors import InputError
from coterie.problems import L1, L2, Ball, Box, ElasticNet

REGULARISERS = [
    L2(0.0),
    L2(2.0),
    L1(0.7),
    ElasticNet(0.5, 2.0),
    Box(-1.0, 0.5),
    Box(0.2, 3.0, 1.5),
    Ball(2.0),
    Ball(0.1),
]


def flushed(x):
    return x if abs(x) > 1e-150 else 0.0


# numbers below 1e-150 are left out: their squares are not normal numbers, and JAX flushes those to zero
vectors = hnp.arrays(np.float64, 4, elements=st.floats(-20, 20).map(flushed) | st.just(0.0))
steps = st.floats(1e-3, 1e3)


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


@functools.cache
def compiled(function):
    with jax.enable_x64(True):
        return jax.jit(function)


def prox(regulariser, v, step):
    return np.asarray(compiled(regulariser.prox)(np.asarray(v, float), np.asarray(step, float)))


def value(regulariser, f):
    return np.asarray(compiled(regulariser.value)(np.asarray(f, float)))


def rest(regulariser, f):
    """The part beyond l2, by its definition; infinite outside a constraint."""
    match regulariser:
        case L2():
            return 0.0
        case ElasticNet(l1=l1):
            return l1 * np.abs(f).sum()
        case Box(low=low, high=high):
            return 0.0 if (f >= low).all() and (f <= high).all() else math.inf
        case Ball(radius=radius):
            return 0.0 if np.linalg.norm(f) <= radius * (1 + 1e-12) else math.inf


def some_allowed_point(regulariser, f):
    match regulariser:
        case Box(low=low, high=high):
            return low + (high - low) * (np.sin(f) + 1) / 2
        case Ball(radius=radius):
            return f * radius / max(radius, np.linalg.norm(f))
    return f


@pytest.mark.parametrize("regulariser", REGULARISERS, ids=str)
@given(v=vectors, other=vectors, step=steps)
def test_prox_is_the_minimiser(regulariser, v, other, step):
    """rest(f) + |f - v|^2/(2 step) is strongly convex: its minimiser p wins by |f - p|^2/(2 step) against any f."""
    p = prox(regulariser, v, step)
    f = some_allowed_point(regulariser, other)

    def objective(point):
        return step * rest(regulariser, point) + np.sum((point - v) ** 2) / 2

    assert math.isfinite(objective(p))
    slack = 1e-11 * (1 + step) * (1 + np.sum(v**2) + np.sum(f**2))
    assert objective(f) >= objective(p) + np.sum((f - p) ** 2) / 2 - slack


@pytest.mark.parametrize("regulariser", [p for p in REGULARISERS if not isinstance(p, Ball)], ids=str)
@settings(max_examples=20)
@given(v=st.floats(-10, 10), step=st.floats(0.01, 10))
def test_prox_beats_a_fine_grid_in_one_dimension(regulariser, v, step):
    grid = np.unique(np.concatenate([np.linspace(-12, 12, 2401), [v, 0.0]]))
    values = np.array([rest(regulariser, np.array([g])) for g in grid]) * step + (grid - v) ** 2 / 2
    p = prox(regulariser, [v], step)
    assert abs(p[0] - grid[np.argmin(values)]) <= 0.0101


@pytest.mark.parametrize("regulariser", REGULARISERS, ids=str)
@given(f=vectors)
def test_value_is_l2_and_the_rest(regulariser, f):
    exact = regulariser.l2 / 2 * np.sum(f**2) + rest(regulariser, f)
    np.testing.assert_allclose(value(regulariser, f), exact, rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("regulariser", REGULARISERS, ids=str)
@settings(max_examples=20)
@given(f=vectors, n_parties=st.integers(1, 50))
def test_the_parties_shares_add_up_and_constraints_stay_whole(regulariser, f, n_parties):
    share = regulariser.scaled(1 / n_parties)
    f = some_allowed_point(regulariser, f)
    shares = n_parties * np.asarray(share.value(jnp.asarray(f)))
    np.testing.assert_allclose(shares, value(regulariser, f), rtol=1e-12, atol=1e-300)
    np.testing.assert_allclose(share.l2, regulariser.l2 / n_parties, rtol=1e-15)
    outside = jnp.full(4, 100.0)
    assert math.isinf(share.rest(outside)) == math.isinf(regulariser.rest(outside))


@pytest.mark.parametrize("regulariser", REGULARISERS, ids=str)
def test_prox_has_a_finite_derivative_at_the_origin(regulariser):
    """The semismooth Newton step differentiates the map, also where a square root would have no slope."""
    jacobian = jax.jacfwd(regulariser.prox)(jnp.zeros(3), jnp.asarray(0.5))
    assert jnp.all(jnp.isfinite(jacobian))


def test_only_l2_calls_itself_smooth():
    assert {type(p).__name__ for p in REGULARISERS if p.smooth} == {"L2"}


def test_l1_is_the_elastic_net_without_l2():
    assert L1(0.3) == ElasticNet(0.0, 0.3)


@pytest.mark.parametrize("bad", [-1.0, -1e-300, math.nan, math.inf])
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda bad: L2(bad), "l2"),
        (lambda bad: ElasticNet(bad, 1.0), "l2"),
        (lambda bad: ElasticNet(1.0, bad), "l1"),
        (lambda bad: L1(bad), "l1"),
        (lambda bad: Box(-1.0, 1.0, bad), "l2"),
        (lambda bad: Ball(1.0, bad), "l2"),
        (lambda bad: Ball(bad), "radius"),
    ],
)
def test_bad_numbers_are_refused_by_name_and_value(make, name, bad):
    with pytest.raises(InputError, match=rf"^{name}: got {re.escape(str(bad))};"):
        make(bad)


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0), (2.0, 1.0), (math.nan, 1.0), (0.0, math.nan)])
def test_an_empty_box_is_refused(low, high):
    with pytest.raises(InputError, match=rf"^low, high: got {low}, {high};"):
        Box(low, high)
