"""From a fitted model back to plain scikit-learn objects."""

from typing import Any

from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer

from coterie.data.design import project_rows


def plain_model(fitted: Any, plain: Any, **attributes: Any) -> Pipeline:
    """Projection to the public row norm, then `plain` with the fitted coefficients: a private model has only ever seen
    projected rows, so without the projection long rows would get other predictions."""
    project = FunctionTransformer(project_rows, kw_args={"bound": float(fitted.bounds)}, validate=True)
    project.fit([[0.0] * fitted.n_features_in_])
    plain.coef_, plain.intercept_ = fitted.coef_.copy(), fitted.intercept_.copy()
    plain.n_features_in_, plain.n_iter_ = fitted.n_features_in_, fitted.n_iter_
    for name, value in attributes.items():
        setattr(plain, name, value)
    return Pipeline([("project", project), ("model", plain)])
