"""What grants release, contribute and keep, beside the same steps in plain linear algebra."""

import jax
import numpy as np
import pytest

from coterie.privacy.events import Unprotected
from coterie.privacy.image import ImageGrant, ImageScales
from coterie.privacy.mechanisms import STEPS, ArgminGrant, ArgminScales, GradientSumGrant, SumScales, issue
from coterie.privacy.proximal import MoveGrant, ProxScales, StateGrant, SumMoveGrant
from coterie.privacy.release import unit_noise
from coterie.problems import L2, Problem, Records, Squared

RNG = np.random.default_rng(0)
D = 3
CENTRE, STATE = RNG.normal(size=D), RNG.normal(size=D)
PROBLEM = Problem(loss=Squared(), regulariser=L2(0.0), record_weight=1.0)
CURVATURE, SHARE_OF_L2, RELAXATION = 0.8, 0.6, 0.7


def records(n):
    return Records(RNG.normal(size=(n, D)), RNG.normal(size=n), np.full(n, 1.5))


def granted(kind, radius, *, tolerance=1e-9, strict=1.0):
    scales = ProxScales(
        CURVATURE, SHARE_OF_L2, RELAXATION, radius, noise_std=0.4, steps=STEPS, tolerance=tolerance, strict=strict
    )
    return issue(kind, Unprotected(), priced_for=PROBLEM, **scales._asdict())


def minimiser(shard, point):
    """Of the squared loss, l2/2 |x|² and curvature/2 |x - point|²."""
    X, y, weight = shard
    left = X.T @ (weight[:, None] * X) + (CURVATURE + SHARE_OF_L2) * np.eye(D)
    return np.linalg.solve(left, X.T @ (weight * y) + CURVATURE * point)


def cut(vector, radius):
    return vector * min(1.0, radius / np.linalg.norm(vector))


@pytest.fixture(autouse=True)
def doubles():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("radius", [np.inf, 0.1])
def test_moves_are_clipped_relaxed_and_alike_in_state_and_sum(n, radius):
    shard = records(n)
    move = cut(minimiser(shard, 2 * CENTRE - STATE) - CENTRE, radius)
    assert np.linalg.norm(move) > 0.09
    kept, contributed = granted(SumMoveGrant, radius).move(PROBLEM, shard, centre=CENTRE, state=STATE)
    np.testing.assert_allclose(contributed.value, 2 * RELAXATION * move, rtol=1e-8)
    np.testing.assert_allclose(kept, STATE + 2 * RELAXATION * move, rtol=1e-8)
    unit = np.rint(RNG.normal(size=D) * STEPS) / STEPS
    released = granted(MoveGrant, radius).noised_move(
        PROBLEM, shard, unit_noise(unit, unit), centre=CENTRE, state=STATE
    )
    np.testing.assert_allclose(released.value, move + 0.4 * unit, rtol=1e-7)


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("radius", [np.inf, 0.1])
def test_of_a_state_the_gradient_is_clipped(n, radius):
    shard, point = records(n), 2 * CENTRE - STATE
    stretch = 1 + SHARE_OF_L2 / CURVATURE
    gradient = cut(point - stretch * minimiser(shard, point), radius)
    after = STATE + 2 * RELAXATION * ((point - gradient) / stretch - CENTRE)
    kept, contributed = granted(StateGrant, radius).advance(PROBLEM, shard, centre=CENTRE, state=STATE)
    np.testing.assert_allclose(contributed.value, after, rtol=1e-8)
    np.testing.assert_allclose(kept, after, rtol=1e-8)
    assert np.isinf(radius) or np.linalg.norm(gradient) == pytest.approx(radius)


@pytest.mark.parametrize(("radius", "stays_out"), [(np.inf, False), (0.1, True)])
def test_a_party_whose_records_say_nothing_stays_out_where_moves_are_clipped(radius, stays_out):
    """Its price counts one move, not two: it must not even be pulled to the regulariser's optimum."""
    nothing = Records(np.zeros((2, D)), np.ones(2), np.ones(2))
    kept, contributed = granted(SumMoveGrant, radius).move(PROBLEM, nothing, centre=CENTRE, state=STATE)
    assert (not np.asarray(contributed.value).any()) == stays_out
    assert np.array_equal(kept, STATE) == stays_out


@pytest.mark.parametrize("extra_l2", [0.0, 0.1, 0.3])
def test_a_noised_objective_has_its_minimum_where_its_gradient_is_zero(extra_l2):
    """Of the problem, (linear + noise) . f, curvature/2 |f - target|² and extra_l2/2 |f|²; output noise on top."""
    scales = ArgminScales(CURVATURE, extra_l2, noise_scale=0.5, output_scale=1e-3, steps=STEPS, tolerance=1e-9)
    problem = Problem(loss=Squared(), regulariser=L2(SHARE_OF_L2), record_weight=1.0)
    grant = issue(ArgminGrant, Unprotected(), priced_for=problem, **scales._asdict())
    shard, linear, target = records(5), RNG.normal(size=D), RNG.normal(size=D)
    inside, output = RNG.normal(size=D), np.rint(RNG.normal(size=D) * STEPS) / STEPS
    released = grant.argmin(problem, shard, unit_noise(inside, output), linear=linear, target=target)
    f = np.asarray(released.value) - 1e-3 * output
    X, y, weight = shard
    gradient = X.T @ (weight * (X @ f - y)) + SHARE_OF_L2 * f + linear + 0.5 * inside
    np.testing.assert_allclose(gradient + CURVATURE * (f - target) + extra_l2 * f, 0.0, atol=1e-7)


@pytest.mark.parametrize("coordinates", [None, np.array([1.0, 0.0, 1.0])])
def test_a_sum_of_gradients_has_none_that_is_longer_than_the_clip(coordinates):
    clip, shard = 0.5, records(6)
    scales = SumScales(noise_std=1.0, steps=STEPS, clip=clip)
    grant = issue(GradientSumGrant, Unprotected(), priced_for=PROBLEM, **scales._asdict())
    X, y, weight = shard
    part = np.ones(D) if coordinates is None else coordinates
    each = (X @ CENTRE - y)[:, None] * X * part
    lengths = np.linalg.norm(each, axis=1)
    assert (lengths > clip).any()
    assert (lengths < clip).any()
    expected = (weight[:, None] * each * np.minimum(1.0, clip / lengths)[:, None]).sum(axis=0)
    found = grant.gradient(PROBLEM, shard, at=CENTRE, coordinates=coordinates)
    np.testing.assert_allclose(found.value, expected, rtol=1e-10, atol=1e-12)


def image(row_norm, tolerance=1e-9):
    scales = ImageScales(CURVATURE, row_norm, noise_std=0.4, steps=STEPS, tolerance=tolerance)
    return issue(ImageGrant, Unprotected(), priced_for=PROBLEM, **scales._asdict())


@pytest.mark.parametrize("some_are_longer", [False, True])
def test_in_whatever_basis_rows_count_as_long_as_was_priced(some_are_longer):
    shard, basis, target = records(6), RNG.normal(size=(D, D)), RNG.normal(size=D)
    rows = shard.X @ basis
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    row_norm = np.median(lengths) if some_are_longer else 2 * lengths.max()
    rows = rows * np.minimum(1.0, row_norm / lengths)
    weighted = rows.T * shard.weight
    expected = np.linalg.solve(weighted @ rows + CURVATURE * np.eye(D), weighted @ shard.y + CURVATURE * target)
    unit = np.rint(RNG.normal(size=D) * STEPS) / STEPS
    released = image(row_norm).noised_solution(PROBLEM, shard, unit_noise(unit, unit), target=target, basis=basis)
    np.testing.assert_allclose(released.value, expected + 0.4 * unit, rtol=1e-7)
    missed = image(row_norm, tolerance=-1.0)
    given = missed.noised_solution(PROBLEM, shard, unit_noise(unit, unit), target=target, basis=basis)
    assert np.isnan(given.value).all()


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("kind", [SumMoveGrant, StateGrant])
def test_a_step_that_misses_what_its_price_relies_on_is_never_sent(kind, n):
    """No solver meets a tolerance below zero; where clipping pays for what is released it need not."""
    shard = records(n)
    for strict in (1.0, 0.0):
        grant = granted(kind, 0.1, tolerance=-1.0, strict=strict)
        step = grant.move if kind is SumMoveGrant else grant.advance
        _, contributed = step(PROBLEM, shard, centre=CENTRE, state=STATE)
        assert np.isnan(contributed.value).all() if strict else np.isfinite(contributed.value).all()
