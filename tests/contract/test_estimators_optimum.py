"""Without noise an estimator is the textbook model on its own projected design, to 1e-6."""

import math

import cvxpy as cp
import numpy as np
import pytest
from sklearn.linear_model import Lasso, LogisticRegression, Ridge

from coterie import PrivateLasso, PrivateLinearSVC, PrivateLogisticRegression, PrivateRidge

EXACT = {"epsilon": math.inf, "delta": 1e-6, "adjacency": "replace-one"}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(240, 4)) * [1.0, 2.0, 0.5, 1.0]
PARTIES = np.repeat(["a", "b", "c"], [40, 80, 120])
# 1/B_i
SHARE = 1 / np.repeat([40, 80, 120], [40, 80, 120])
SCORE = X @ [1.0, -0.5, 0.3, 0.0] + RNG.normal(size=240)


@pytest.mark.parametrize("party_weight", [None, 50.0])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_logistic_regression(n_classes, party_weight):
    y = np.digitize(SCORE, [0.0] if n_classes == 2 else [-0.5, 0.8])
    model = PrivateLogisticRegression(**EXACT, bounds=1.5, l2=0.7, party_weight=party_weight)
    model.fit(X, y, parties=PARTIES)
    weight = np.ones(240) if party_weight is None else party_weight * SHARE
    plain = LogisticRegression(C=1 / 0.7, fit_intercept=False, tol=1e-12, max_iter=100_000)
    plain.fit(model.design(X), y, sample_weight=weight)
    np.testing.assert_allclose(model.decision_function(X), plain.decision_function(model.design(X)), atol=1e-6)
    np.testing.assert_allclose(model.predict_proba(X), plain.predict_proba(model.design(X)), atol=1e-6)


def test_class_and_sample_weights():
    y, sample_weight = (SCORE > 0).astype(int), RNG.uniform(0, 2, size=240)
    model = PrivateLogisticRegression(**EXACT, class_weight={1: 3.0}, weight_bound=2.0)
    model.fit(X, y, sample_weight=sample_weight)
    plain = LogisticRegression(fit_intercept=False, class_weight={1: 3.0}, tol=1e-12, max_iter=100_000)
    plain.fit(model.design(X), y, sample_weight=sample_weight)
    np.testing.assert_allclose(model.decision_function(X), plain.decision_function(model.design(X)), atol=1e-6)


def test_support_vector_machine():
    y = (SCORE > 0).astype(int)
    model = PrivateLinearSVC(**EXACT, bounds=1.5, l2=0.7, width=0.4).fit(X, y)
    D, f = model.design(X), cp.Variable(5)
    margin = cp.multiply(2 * y - 1, D @ f)
    # the Huberised hinge is the least of (1 + h - m - v)_+^2/(4h) + v over v >= 0
    excess = cp.Variable(240, nonneg=True)
    loss = cp.sum(cp.square(cp.pos(1.4 - margin - excess)) / 1.6 + excess)
    cp.Problem(cp.Minimize(loss + 0.35 * cp.sum_squares(f))).solve(
        solver=cp.CLARABEL, tol_gap_abs=1e-13, tol_gap_rel=1e-13, tol_feas=1e-13
    )
    np.testing.assert_allclose(model.decision_function(X), D @ f.value, atol=1e-6)


def test_ridge_with_squared_loss():
    model = PrivateRidge(**EXACT, l2=2.0, label_bound=100.0, loss="squared").fit(X, SCORE)
    plain = Ridge(alpha=2.0, fit_intercept=False, solver="cholesky").fit(model.design(X), SCORE)
    np.testing.assert_allclose(model.predict(X), plain.predict(model.design(X)), atol=1e-6)


def test_ridge_with_huber_loss():
    model = PrivateRidge(**EXACT, bounds=3.0, l2=2.0, label_bound=100.0, threshold=0.8).fit(X, SCORE)
    D, f = model.design(X), cp.Variable(5)
    cp.Problem(cp.Minimize(cp.sum(cp.huber(D @ f - SCORE, 0.8)) / 2 + cp.sum_squares(f))).solve(
        solver=cp.CLARABEL, tol_gap_abs=1e-13, tol_gap_rel=1e-13, tol_feas=1e-13
    )
    np.testing.assert_allclose(model.predict(X), D @ f.value, atol=1e-6)


@pytest.mark.parametrize("l1", [3.0, 40.0])
def test_lasso_with_squared_loss(l1):
    model = PrivateLasso(**EXACT, l1=l1, label_bound=100.0, loss="squared").fit(X, SCORE)
    plain = Lasso(alpha=l1 / 240, fit_intercept=False, tol=1e-14, max_iter=1_000_000).fit(model.design(X), SCORE)
    np.testing.assert_allclose(model.predict(X), plain.predict(model.design(X)), atol=1e-6)
    np.testing.assert_array_equal(model.coefficients_ == 0, plain.coef_ == 0)


def test_the_regularised_constant_column_keeps_rows_within_the_bound():
    model = PrivateRidge(**EXACT, bounds=0.7, label_bound=1.0).fit(X * 1e9, SCORE)
    norms = np.linalg.norm(model.design(np.vstack([X * 1e9, X * 1e200, np.zeros((1, 4))])), axis=1)
    assert norms.max() <= 0.7 * (1 + 1e-15)
    np.testing.assert_allclose(norms[:-1], 0.7)
    np.testing.assert_allclose(norms[-1], 0.7 * 0.5 / math.sqrt(1.25))
