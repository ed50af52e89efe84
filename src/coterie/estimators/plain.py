"""From a fitted model back to plain scikit-learn objects."""

from typing import Any

from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer

from coterie.data.design import project_rows


def plain_model(fitted: Any, plain: Any, **attributes: Any) -> Pipeline:
    """Projection to the public row norm, then `plain` with the fitted coefficients: a private model has only ever seen
    projected rows, so without the projection long rows would get other predictions. So it is with rows that were
    shortened when columns were standardised."""
    project = FunctionTransformer(project_rows, kw_args={"bound": float(fitted.bounds)}, validate=True)
    project.fit([[0.0] * fitted.n_features_in_])
    plain.coef_, plain.intercept_ = fitted.coef_.copy(), fitted.intercept_.copy()
    plain.n_features_in_, plain.n_iter_ = fitted.n_features_in_, fitted.n_iter_
    for name, value in attributes.items():
        setattr(plain, name, value)
    steps: list[tuple[str, Any]] = [("project", project)]
    if getattr(fitted, "shortening_", None) is not None:
        shorten = FunctionTransformer(fitted.shortening_, kw_args={"bound": float(fitted.bounds)}, validate=True)
        steps.append(("shorten", shorten.fit([[0.0] * fitted.n_features_in_])))
    return Pipeline([*steps, ("model", plain)])
