"""Losses: value, slope and curvature belong together, and the constants that theorems use are never exceeded."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.errors import InputError
from coterie.problems import Huber, HuberisedHinge, Logistic, Multinomial, Squared
from coterie.values import Facts

TWO_LABELS = [Logistic(), HuberisedHinge(), HuberisedHinge(width=0.05), HuberisedHinge(width=2.0)]
REGRESSION = [Squared(), Huber(), Huber(threshold=0.1), Huber(threshold=30.0)]
ONE_SCORE = TWO_LABELS + REGRESSION
MULTINOMIAL = [Multinomial(2), Multinomial(3), Multinomial(7)]

scores = st.floats(-50, 50) | st.floats(-2, 2) | st.sampled_from([-1e6, -1.0, 0.0, 1.0, 1e6])
labels = {False: st.sampled_from([0.0, 1.0]), True: st.floats(-40, 40)}
score_rows = st.lists(st.floats(-30, 30), min_size=7, max_size=7)


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


@functools.cache
def compiled(function, derivative):
    with jax.enable_x64(True):
        return jax.jit(derivative(function) if derivative else function)


def of_one(function, score, y, derivative=None):
    return np.asarray(compiled(function, derivative)(np.asarray(score, float), np.asarray(y, float)))


def corners(loss, y):
    """Scores at which the second derivative jumps."""
    if isinstance(loss, Huber):
        return (y - loss.threshold, y + loss.threshold)
    if isinstance(loss, HuberisedHinge):
        return tuple((2 * y - 1) * m for m in (1 - loss.width, 1 + loss.width))
    return ()


def textbook(loss, score, y):
    """The definitions, written a second time with plain NumPy."""
    margin = (2 * y - 1) * score
    match loss:
        case Logistic():
            return np.logaddexp(0.0, -margin)
        case HuberisedHinge(width=h):
            return 0.0 if margin > 1 + h else 1 - margin if margin < 1 - h else (1 + h - margin) ** 2 / (4 * h)
        case Squared():
            return (score - y) ** 2 / 2
        case Huber(threshold=c):
            r = abs(score - y)
            return r**2 / 2 if r <= c else c * r - c**2 / 2


@pytest.mark.parametrize("loss", ONE_SCORE, ids=str)
def test_value_slope_and_curvature_belong_together(loss):
    @given(scores, labels[loss in REGRESSION])
    def check(score, y):
        np.testing.assert_allclose(of_one(loss.value, score, y), textbook(loss, score, y), rtol=1e-12, atol=1e-14)
        if abs(score) > 1e5 or any(abs(score - c) < 1e-6 for c in corners(loss, y)):
            return
        slope, curvature = of_one(loss.value, score, y, jax.grad), of_one(loss.slope, score, y, jax.grad)
        np.testing.assert_allclose(of_one(loss.slope, score, y), slope, rtol=1e-10, atol=1e-14)
        np.testing.assert_allclose(of_one(loss.curvature, score, y), curvature, rtol=1e-10, atol=1e-14)

    check()


@pytest.mark.parametrize("loss", ONE_SCORE, ids=str)
def test_declared_constants_are_never_exceeded(loss):
    """A slope beyond `lipschitz` or a bend beyond `smoothness` would break every sensitivity built on them."""

    @given(scores, scores, labels[loss in REGRESSION])
    def check(score, other, y):
        slopes = [of_one(loss.slope, s, y) for s in (score, other)]
        assert abs(slopes[0]) <= loss.lipschitz
        # the difference quotient also covers the corners, where no second derivative exists
        rounding = 1e-15 * (1 + abs(slopes[0]) + abs(slopes[1])) * (1 + loss.smoothness)
        assert abs(slopes[0] - slopes[1]) <= loss.smoothness * abs(score - other) * (1 + 1e-12) + rounding
        assert 0 <= of_one(loss.curvature, score, y) <= loss.smoothness
        assert loss.rank == 1

    check()


@pytest.mark.parametrize("loss", ONE_SCORE, ids=str)
def test_declared_constants_are_reached(loss):
    """A constant that is too large would be safe but would cost noise for nothing."""
    grid, y = jnp.linspace(-100.0, 100.0, 200_001), jnp.ones(())
    assert jnp.max(loss.curvature(grid, y)) >= 0.999 * loss.smoothness
    if math.isfinite(loss.lipschitz):
        assert jnp.max(jnp.abs(loss.slope(grid, y))) >= 0.999 * loss.lipschitz


@pytest.mark.parametrize("loss", TWO_LABELS, ids=str)
@given(score=scores, y=labels[False])
def test_margin_losses_fall_with_the_margin(loss, score, y):
    """The one-sided accounting of `margin` losses rests on the sign of the slope."""
    assert loss.margin
    assert (2 * y - 1) * of_one(loss.slope, score, y) <= 0


@pytest.mark.parametrize("loss", REGRESSION + MULTINOMIAL, ids=str)
def test_other_losses_claim_no_margin(loss):
    assert not loss.margin
    assert not loss.self_bounded


@given(scores, labels[False])
def test_logistic_is_self_bounded_as_declared(score, y):
    logistic = TWO_LABELS[0]
    slope = abs(of_one(logistic.slope, score, y))
    assert logistic.self_bounded
    np.testing.assert_allclose(of_one(logistic.curvature, score, y), slope * (1 - slope), atol=1e-15)


@pytest.mark.parametrize("loss", MULTINOMIAL, ids=str)
def test_multinomial_derivatives_bounds_and_rank(loss):
    k = loss.n_classes

    @given(score_rows, st.integers(0, k - 1))
    def check(row, y):
        row = np.array(row[:k])
        exact = np.log(np.sum(np.exp(row - row.max()))) + row.max() - row[y]
        np.testing.assert_allclose(of_one(loss.value, row, y), exact, rtol=1e-12, atol=1e-12)
        slope, bend = of_one(loss.slope, row, y), of_one(loss.curvature, row[None], np.array([float(y)]))[0]
        np.testing.assert_allclose(slope, of_one(loss.value, row, y, jax.grad), rtol=1e-10, atol=1e-14)
        np.testing.assert_allclose(bend, of_one(loss.slope, row, y, jax.jacfwd), rtol=1e-10, atol=1e-14)
        assert np.linalg.norm(slope) <= loss.lipschitz
        eigenvalues = np.linalg.eigvalsh(bend)
        assert eigenvalues[-1] <= loss.smoothness * (1 + 1e-12)
        assert eigenvalues[0] >= -1e-15
        assert (eigenvalues > 1e-13).sum() <= loss.rank == k - 1
        assert eigenvalues.sum() <= loss.effective_rank * loss.smoothness * (1 + 1e-12)

    check()


def test_multinomial_constants_are_reached():
    loss = Multinomial(4)
    wrong = of_one(loss.slope, np.array([0.0, 40.0, 0.0, 0.0]), 0)
    split = of_one(loss.curvature, np.array([[40.0, 40.0, 0.0, 0.0]]), np.zeros(1))[0]
    np.testing.assert_allclose(np.linalg.norm(wrong), loss.lipschitz, rtol=1e-12)
    np.testing.assert_allclose(np.linalg.eigvalsh(split)[-1], loss.smoothness, rtol=1e-12)


@pytest.mark.parametrize("loss", TWO_LABELS, ids=str)
def test_two_class_losses_stay_finite_far_out(loss):
    far = jnp.asarray([-1e300, -1e30, 1e30, 1e300])
    for part in (loss.value, loss.slope, loss.curvature):
        assert jnp.all(jnp.isfinite(part(far, jnp.ones(4))))


@pytest.mark.parametrize(
    ("make", "name", "value"),
    [
        (HuberisedHinge, "width", 0.0),
        (HuberisedHinge, "width", -0.5),
        (HuberisedHinge, "width", math.nan),
        (HuberisedHinge, "width", math.inf),
        (Huber, "threshold", 0.0),
        (Huber, "threshold", -1.0),
        (Huber, "threshold", math.nan),
        (Multinomial, "n_classes", 1),
        (Multinomial, "n_classes", -3),
        (Multinomial, "n_classes", 2.5),
    ],
)
def test_bad_parameters_are_refused_by_name_and_value(make, name, value):
    with pytest.raises(InputError, match=rf"^{name}: got {re.escape(str(value))};"):
        make(**{name: value})


@pytest.mark.parametrize(
    ("loss", "bad_labels"),
    [
        *((loss, None) for loss in TWO_LABELS + MULTINOMIAL),
        *((loss, ("a", "b", "c", "d")) for loss in TWO_LABELS + MULTINOMIAL),
        *((loss, ("a", "b")) for loss in REGRESSION),
    ],
    ids=str,
)
def test_labels_that_do_not_fit_are_refused(loss, bad_labels):
    facts = Facts(parties=("p",), sizes=(3,), n_features=2, row_norm=1.0, labels=bad_labels)
    with pytest.raises(InputError, match=r"^labels: got "):
        loss.check(facts)


def test_labels_that_fit_are_accepted():
    def facts(labels):
        return Facts(parties=("p",), sizes=(3,), n_features=2, row_norm=1.0, labels=labels, label_bound=1.0)

    for loss in TWO_LABELS:
        loss.check(facts(("a", "b")))
    for loss in REGRESSION:
        loss.check(facts(None))
    Multinomial(3).check(facts(("a", "b", "c")))
