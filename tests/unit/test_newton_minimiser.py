"""The local solver meets its absolute gradient bound on every loss and regulariser from anywhere, and knows when.

Residuals are computed here from the formulas in plain NumPy, never with the solver's own code.
"""

import functools
import subprocess
import sys
import textwrap

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coterie.minimisers.one_party import minimise
from coterie.problems import (
    L1,
    L2,
    Ball,
    Box,
    ElasticNet,
    Huber,
    HuberisedHinge,
    Logistic,
    Multinomial,
    Records,
    Squared,
)

LOSSES = [Logistic(), HuberisedHinge(), Squared(), Huber(), Multinomial(3)]
ONE_SCORE = [loss for loss in LOSSES if loss.n_outputs == 1]
REGULARISERS = [L2(0.0), L2(0.3), L1(0.5), ElasticNet(0.2, 0.5), Box(-0.4, 0.3), Ball(0.8, 0.1)]
CURVATURES = (1e-3, 1.0, 1e3)


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


@functools.cache
def solver(loss, regulariser):
    with jax.enable_x64(True):
        return jax.jit(functools.partial(minimise, loss, regulariser))


def solve(loss, regulariser, records, *, linear, target, curvature, tolerance):
    f, bound = solver(loss, regulariser)(
        records,
        linear=np.asarray(linear, float),
        target=np.asarray(target, float),
        curvature=np.asarray(curvature, float),
        tolerance=np.asarray(tolerance, float),
    )
    return np.asarray(f), float(bound)


def make_records(loss, n, d, seed=0, weight=1.0):
    """Rows of norm <= 1, as every federation guarantees."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * rng.uniform(0.05, 1.5, size=d)
    X /= np.maximum(1.0, np.linalg.norm(X, axis=1))[:, None]
    score = X @ rng.normal(size=d) * 3 + 0.3 * rng.normal(size=n)
    if isinstance(loss, Multinomial):
        y = rng.integers(loss.n_classes, size=n).astype(float)
    elif isinstance(loss, (Squared, Huber)):
        y = np.clip(score, -3, 3)
    else:
        y = (score > 0).astype(float)
    return Records(X, y, np.full(n, weight))


# --- the formulas once more -----------------------------------------------------------------------------------------


def numpy_slope(loss, score, y):
    sign = 2 * y - 1
    match loss:
        case Logistic():
            margin = sign * score
            small = np.exp(-np.abs(margin))
            return -sign * np.where(margin > 0, small, 1.0) / (1 + small)
        case HuberisedHinge(width=h):
            margin = sign * score
            inside = -(1 + h - margin) / (2 * h)
            return sign * np.where(margin >= 1 + h, 0.0, np.where(margin <= 1 - h, -1.0, inside))
        case Squared():
            return score - y
        case Huber(threshold=c):
            return np.where(np.abs(score - y) <= c, score - y, c * np.sign(score - y))
        case Multinomial(n_classes=k):
            p = np.exp(score - score.max(axis=1, keepdims=True))
            return p / p.sum(axis=1, keepdims=True) - np.eye(k)[y.astype(int)]


def smooth_gradient(loss, l2, records, f, linear, target, curvature):
    score = records.X @ (f if loss.n_outputs == 1 else f.reshape(-1, loss.n_outputs))
    slopes = numpy_slope(loss, score, records.y)
    data = np.einsum("n,nd,n...->d...", records.weight, records.X, slopes).ravel()
    return data + l2 * f + linear + curvature * (f - target)


def least_subgradient_norm(regulariser, f, g):
    """Distance of 0 to g + subdifferential of the part beyond l2, infinite outside a constraint."""
    match regulariser:
        case ElasticNet(l1=l1):
            g = np.where(f != 0, g + l1 * np.sign(f), np.maximum(np.abs(g) - l1, 0.0))
        case Box(low=low, high=high):
            if (f < low).any() or (f > high).any():
                return np.inf
            g = np.where(f == low, np.minimum(g, 0.0), np.where(f == high, np.maximum(g, 0.0), g))
        case Ball(radius=radius):
            norm = np.linalg.norm(f)
            if norm > radius * (1 + 1e-12):
                return np.inf
            if norm >= radius * (1 - 1e-12):
                g = g - min(0.0, g @ f) * f / (f @ f)
    return np.linalg.norm(g)


def check(loss, regulariser, records, linear, target, curvature):
    """Solve to the tolerance that plans use, or to rounding where that is larger.

    A coefficient vector of norm r is known to 1e-16 r, so the gradient cannot be told better than that times the
    largest curvature; constrained coefficients stay small.
    """
    total, pull = records.weight.sum(), np.linalg.norm(linear)
    reach = np.linalg.norm(target) + (total + pull) / (curvature + regulariser.l2)
    reach = {Box: 1.0, Ball: 1.0}.get(type(regulariser), reach)
    rounding = 1e-15 * (loss.smoothness * total * reach + curvature * (reach + np.linalg.norm(target)) + pull)
    tolerance = 1e-11 * (total + pull) + 4 * rounding
    f, bound = solve(loss, regulariser, records, linear=linear, target=target, curvature=curvature, tolerance=tolerance)
    assert bound <= tolerance
    gradient = smooth_gradient(loss, regulariser.l2, records, f, linear, target, curvature)
    assert least_subgradient_norm(regulariser, f, gradient) <= tolerance + rounding


# --- the bound is met -----------------------------------------------------------------------------------------------


def check_from_any_start(loss, regulariser, records, curvatures=CURVATURES):
    p = records.X.shape[1] * loss.n_outputs
    rng = np.random.default_rng(1)
    linear, direction = rng.normal(size=(2, p))
    direction /= np.linalg.norm(direction)
    for curvature in curvatures:
        check(loss, regulariser, records, linear, np.zeros(p), curvature)
        check(loss, regulariser, records, 0.01 * linear, 1e3 * direction, curvature)
        check(loss, regulariser, records, 1e3 * linear, -30 * direction, curvature)


def padded(records, n_rows):
    more = n_rows - len(records.y)
    return Records(*(np.concatenate([a, np.zeros((more, *a.shape[1:]))]) for a in records))


@pytest.mark.parametrize("regulariser", REGULARISERS, ids=str)
@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_bound_is_met_from_any_start(loss, regulariser):
    """1, 3 and 1000 records, filled up to one shape with rows of weight 0 so that one compilation does."""
    for n in (1, 3, 1000):
        check_from_any_start(loss, regulariser, padded(make_records(loss, n, 5), 1000))
    # `bound` decides whether a value may be released, so it must not flatter an unfinished solve either
    records, p = padded(make_records(loss, 40, 5), 1000), 5 * loss.n_outputs
    linear, target = np.full(p, 0.3), np.full(p, 0.2)
    f, bound = solve(loss, regulariser, records, linear=linear, target=target, curvature=0.1, tolerance=0.5)
    gradient = smooth_gradient(loss, regulariser.l2, records, f, linear, target, 0.1)
    assert least_subgradient_norm(regulariser, f, gradient) <= bound * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("regulariser", REGULARISERS, ids=str)
def test_bound_is_met_with_one_record_and_one_feature(regulariser):
    check_from_any_start(Logistic(), regulariser, make_records(Logistic(), 1, 1))


@pytest.mark.parametrize(
    ("loss", "regulariser"),
    [
        (Logistic(), L2(0.3)),
        (Logistic(), L1(0.5)),
        (HuberisedHinge(), Ball(0.8, 0.1)),
        (Huber(), Box(-0.4, 0.3)),
        (Multinomial(3), L2(0.3)),
    ],
    ids=str,
)
def test_bound_is_met_with_fifty_features(loss, regulariser):
    check_from_any_start(loss, regulariser, make_records(loss, 1000, 50))


@pytest.mark.parametrize("regulariser", [L1(0.5), ElasticNet(1e-3, 0.5)], ids=str)
@pytest.mark.parametrize("loss", [Logistic(), pytest.param(HuberisedHinge(), marks=pytest.mark.slow)], ids=str)
def test_the_bound_is_honest_about_large_coefficients(loss, regulariser):
    """Far out these losses are straight, so the gradient is known to 1e-12 although f itself is only good to 1e-10.

    A step that is too short to move such an f must not be taken for a step that has arrived.
    """
    records = make_records(loss, 1000, 5)
    linear = 1e3 * np.array([0.345, 0.822, 0.33, -1.303, 0.905])
    tolerance = 1e-11 * (1000 + np.linalg.norm(linear))
    f, bound = solve(loss, regulariser, records, linear=linear, target=np.zeros(5), curvature=1e-3, tolerance=tolerance)
    assert np.linalg.norm(f) > 1e5
    residual = least_subgradient_norm(
        regulariser, f, smooth_gradient(loss, regulariser.l2, records, f, linear, 0.0, 1e-3)
    )
    assert residual <= bound + 1e-11


@pytest.mark.slow
@pytest.mark.parametrize("loss", [HuberisedHinge(), Huber()], ids=str)
def test_bound_is_met_where_newton_steps_run_out(loss):
    """An l1 regulariser with almost no curvature: the gradient method has to finish the work."""
    records = make_records(loss, 1000, 50)
    check(loss, L1(0.5), records, np.random.default_rng(1).normal(size=50), np.zeros(50), 1e-3)


@pytest.mark.parametrize("regulariser", [L2(0.3), L1(0.5), Ball(0.8)], ids=str)
@pytest.mark.parametrize("loss", [Logistic(), Huber()], ids=str)
def test_bound_is_met_with_many_more_features_than_records(loss, regulariser):
    records = make_records(loss, 3, 1000)
    rng = np.random.default_rng(2)
    for curvature in (1.0, 1e3):
        check(loss, regulariser, records, 0.1 * rng.normal(size=1000), rng.normal(size=1000) * 30, curvature)


@pytest.mark.parametrize("regulariser", [L2(1.0), ElasticNet(0.5, 20.0)], ids=str)
@pytest.mark.parametrize("loss", [Logistic(), HuberisedHinge(width=0.1)], ids=str)
def test_bound_is_met_on_a_hundred_thousand_records(loss, regulariser):
    records = make_records(loss, 100_000, 20)
    check(loss, regulariser, records, np.ones(20), np.full(20, 2.0), 1.0)


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_bound_is_met_with_very_unequal_weights_and_repeated_columns(loss):
    """Weights over nine orders of magnitude and a singular data Hessian: only the curvature keeps it convex."""
    records = make_records(loss, 60, 5)
    X = np.concatenate([records.X, records.X], axis=1) / 2
    records = Records(X, records.y, np.geomspace(1e-6, 1e3, 60))
    p = X.shape[1] * loss.n_outputs
    for curvature in CURVATURES:
        check(loss, L2(0.0), records, np.ones(p), np.full(p, 10.0), curvature)


@pytest.mark.parametrize(("target", "tolerance"), [(1.0, 0.0), (1e8, 1e-9)], ids=["no tolerance", "far away"])
def test_a_tolerance_below_rounding_ends_and_is_not_claimed(target, tolerance):
    """Run in a process of its own, because the failure this guards against is a loop without end."""
    script = f"""
        import jax, numpy as np
        from coterie.minimisers import one_party as newton
        from coterie.minimisers import Subproblem
        from coterie.problems import L2, Logistic, Records
        newton.GRADIENT_STEPS = 200  # the gradient method would search on for longer, in vain
        rng = np.random.default_rng(0)
        X = rng.normal(size=(200, 5)) / 5
        with jax.enable_x64(True):
            records = Records(X, (X[:, 0] > 0).astype(float), np.ones(200))
            one = Subproblem(np.ones(5), np.full(5, {target}), np.float64(1.0), np.float64({tolerance}))
            f, bound = jax.jit(lambda: newton.Newton(Logistic(), L2(0.3)).minimise(records, one))()
        print(float(bound))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60, check=True
    )
    assert tolerance < float(done.stdout) < 1e-15 * 1e4 * max(1.0, target)


# --- against an interior-point solver -------------------------------------------------------------------------------


def cvxpy_data_term(loss, records, f):
    sign, score = 2 * records.y - 1, records.X @ f
    match loss:
        case Logistic():
            parts = cp.logistic(-cp.multiply(sign, score))
        case Squared():
            parts = cp.square(score - records.y) / 2
        case Huber(threshold=c):
            parts = cp.huber(score - records.y, c) / 2
        case HuberisedHinge(width=h):
            # the infimal convolution of the hinge with a parabola, shifted by the width
            over = cp.pos(1 + h - cp.multiply(sign, score))
            parts = cp.huber(over, 2 * h) / (4 * h)
    return records.weight @ parts


def cvxpy_solution(loss, regulariser, records, linear, target, curvature):
    f = cp.Variable(len(linear))
    objective = cvxpy_data_term(loss, records, f) + linear @ f + curvature / 2 * cp.sum_squares(f - target)
    objective += regulariser.l2 / 2 * cp.sum_squares(f)
    constraints = []
    match regulariser:
        case ElasticNet(l1=l1):
            objective += l1 * cp.norm1(f)
        case Box(low=low, high=high):
            constraints = [f >= low, f <= high]
        case Ball(radius=radius):
            constraints = [cp.norm2(f) <= radius]
    problem = cp.Problem(cp.Minimize(objective), constraints)
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-8, tol_gap_rel=1e-8, tol_feas=1e-8)
    return f.value, problem.value


def numpy_value(loss, score, y):
    margin = (2 * y - 1) * score
    match loss:
        case Logistic():
            return np.logaddexp(0.0, -margin)
        case HuberisedHinge(width=h):
            inside = (1 + h - margin) ** 2 / (4 * h)
            return np.where(margin >= 1 + h, 0.0, np.where(margin <= 1 - h, 1 - margin, inside))
        case Squared():
            return (score - y) ** 2 / 2
        case Huber(threshold=c):
            r = np.abs(score - y)
            return np.where(r <= c, r**2 / 2, c * r - c**2 / 2)


@pytest.mark.parametrize("regulariser", [L2(0.3), L1(0.5), Box(-0.4, 0.3), Ball(0.8, 0.1)], ids=str)
@pytest.mark.parametrize("loss", ONE_SCORE, ids=str)
def test_agrees_with_clarabel(loss, regulariser):
    records = make_records(loss, 40, 5, seed=3)
    records = records._replace(weight=np.random.default_rng(4).uniform(0.1, 2.0, size=40))
    linear, target, curvature = np.linspace(-1, 1, 5), np.linspace(2, -1, 5), 0.7
    f, _ = solve(loss, regulariser, records, linear=linear, target=target, curvature=curvature, tolerance=1e-9)
    value = records.weight @ numpy_value(loss, records.X @ f, records.y) + linear @ f
    value += curvature / 2 * np.sum((f - target) ** 2) + regulariser.l2 / 2 * np.sum(f**2)
    value += regulariser.l1 * np.abs(f).sum() if isinstance(regulariser, ElasticNet) else 0.0
    reference, reference_value = cvxpy_solution(loss, regulariser, records, linear, target, curvature)
    assert abs(value - reference_value) <= 1e-7 * abs(reference_value)
    np.testing.assert_allclose(f, reference, atol=1e-4)


# --- weights, padding, batches, bad numbers -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "regulariser"),
    [*((loss, L2(0.3)) for loss in LOSSES), (Logistic(), L1(0.5)), (Huber(), Ball(0.8))],
    ids=str,
)
def test_weights_count_like_repeated_rows_and_padding_changes_nothing(loss, regulariser):
    records, p = make_records(loss, 12, 3), 3 * loss.n_outputs
    counts = np.arange(12) % 4
    weighted = records._replace(weight=counts.astype(float))
    repeated = Records(np.repeat(records.X, counts, axis=0), np.repeat(records.y, counts), np.ones(counts.sum()))
    results = [
        solve(loss, regulariser, r, linear=np.linspace(-1, 1, p), target=np.ones(p), curvature=0.5, tolerance=1e-11)[0]
        for r in (weighted, repeated, padded(weighted, len(repeated.y)))
    ]
    np.testing.assert_allclose(results[1], results[0], atol=1e-10)
    np.testing.assert_allclose(results[2], results[0], atol=1e-10)


@pytest.mark.parametrize(
    ("loss", "regulariser"),
    [(Logistic(), L2(0.3)), (Logistic(), L1(0.5)), (HuberisedHinge(), Ball(0.8)), (Multinomial(3), L2(0.3))],
    ids=str,
)
def test_a_batch_gives_what_its_members_give_alone(loss, regulariser):
    """A batch runs until its slowest member ends; the others must not be disturbed by the extra rounds."""
    records, p = make_records(loss, 30, 4), 4 * loss.n_outputs
    linear = np.random.default_rng(5).normal(size=(6, p)) * np.geomspace(1e-2, 1e3, 6)[:, None]
    tolerance = 1e-11 * (30 + np.linalg.norm(linear, axis=1))

    def one(linear, tolerance):
        return minimise(
            loss,
            regulariser,
            records,
            linear=linear,
            target=jnp.zeros(p),
            curvature=jnp.asarray(0.2),
            tolerance=tolerance,
        )

    together, bounds = jax.jit(jax.vmap(one))(linear, tolerance)
    assert np.all(np.asarray(bounds) <= tolerance)
    for row in range(6):
        alone, _ = solve(
            loss, regulariser, records, linear=linear[row], target=np.zeros(p), curvature=0.2, tolerance=tolerance[row]
        )
        np.testing.assert_allclose(together[row], alone, atol=10 * tolerance[row] / 0.2)


@pytest.mark.parametrize("regulariser", [L2(0.3), L1(0.5)], ids=str)
@pytest.mark.parametrize("where", ["X", "y", "weight", "linear", "target"])
def test_nan_ends_at_once_and_never_looks_solved(where, regulariser):
    records = make_records(Huber(), 20, 3)
    arguments = {"linear": np.ones(3), "target": np.ones(3), "curvature": 1.0, "tolerance": 1e-9}
    if where in arguments:
        arguments[where] = np.array([1.0, np.nan, 1.0])
    else:
        spoiled = getattr(records, where).copy()
        spoiled[(1,) * spoiled.ndim] = np.nan
        records = records._replace(**{where: spoiled})
    _, bound = solve(Huber(), regulariser, records, **arguments)
    assert not bound <= arguments["tolerance"]
