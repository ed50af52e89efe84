"""From feature rows to the design that is fitted: rows held to a public norm, and a constant column for the intercept;
and back from a fitted model to plain scikit-learn objects.

    design row = (x projected to norm <= bounds, INTERCEPT_SHARE * bounds) / sqrt(1 + INTERCEPT_SHARE^2)

so that a design row has norm <= bounds too. The constant is a column like any other: regularised, and paid for in
noise. At one half it raises the sensitivity by 12 %; at one, by 41 % for an intercept that is barely freer.
"""

import math
from typing import Any

import numpy as np
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer

INTERCEPT_SHARE = 0.5


def project_rows(X: np.ndarray, bounds: float) -> np.ndarray:
    """Rows of a larger 2-norm are scaled down to `bounds`; the others stay as they are."""
    peak = np.abs(X).max(axis=1, initial=0.0, keepdims=True)
    safe_peak = np.where(peak > 0, peak, 1.0)
    direction_norm = np.linalg.norm(X / safe_peak, axis=1, keepdims=True)  # squares of huge numbers would overflow
    longer = (direction_norm > 0) & (safe_peak > bounds / np.maximum(direction_norm, 1.0))
    shortened = X / safe_peak * (bounds / np.maximum(direction_norm, 1.0))
    return np.where(longer, shortened, X)


def make_design(X: np.ndarray, bounds: float, *, intercept: bool) -> np.ndarray:
    rows = project_rows(X, bounds)
    if not intercept:
        return rows
    return np.column_stack([rows, np.full(len(X), INTERCEPT_SHARE * bounds)]) / math.sqrt(1 + INTERCEPT_SHARE**2)


def split_intercept(coefficients: np.ndarray, bounds: float, *, intercept: bool) -> tuple[np.ndarray, np.ndarray]:
    """(coef, intercept) for projected rows, from coefficients of the design (last axis: columns)."""
    if not intercept:
        return coefficients, np.zeros(coefficients.shape[:-1])
    scaled = coefficients / math.sqrt(1 + INTERCEPT_SHARE**2)
    return scaled[..., :-1], scaled[..., -1] * (INTERCEPT_SHARE * bounds)


def plain_model(fitted: Any, plain: Any, **attributes: Any) -> Pipeline:
    """Projection to the public row norm, then `plain` with the fitted coefficients: a private model has only ever seen
    projected rows, so without the projection long rows would get other predictions."""
    project = FunctionTransformer(project_rows, kw_args={"bounds": float(fitted.bounds)}, validate=True)
    project.fit([[0.0] * fitted.n_features_in_])
    plain.coef_, plain.intercept_ = fitted.coef_.copy(), fitted.intercept_.copy()
    plain.n_features_in_, plain.n_iter_ = fitted.n_features_in_, fitted.n_iter_
    for name, value in attributes.items():
        setattr(plain, name, value)
    return Pipeline([("project", project), ("model", plain)])
