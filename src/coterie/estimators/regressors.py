"""Ridge and lasso regression with bounded influence of every record."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.linear_model import Lasso, Ridge
from sklearn.pipeline import Pipeline

from coterie.errors import InputError
from coterie.estimators.base import PrivateLinearModel
from coterie.problems import ElasticNet, Huber, Loss, Regulariser, Squared
from coterie.rules import lasso_regulariser
from coterie.values import Facts, positive_number

LOSSES = ("huber", "squared")


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class _PrivateRegressor(RegressorMixin, PrivateLinearModel):
    """Parameters of regressors:

    label_bound: labels are clipped to [-label_bound, label_bound]; it has no default, for it would clip in silence.
    loss: how the influence of a record is bounded. "huber": squared up to `threshold`, then linear. "squared": the
        gradient of each record is clipped to threshold * bounds, which needs trust "curator" or "secure-sum".
    threshold: label_bound when left open.
    """

    label_bound: float | None = None
    loss: str = "huber"
    threshold: float | None = None

    _is_regression: ClassVar[bool] = True

    def _encode_labels(self, y: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
        if self.loss not in LOSSES:
            raise InputError(f"loss: got {self.loss!r}; one of {', '.join(LOSSES)} is needed")
        if self.label_bound is None:
            raise InputError(
                "label_bound: missing; the largest size that a label can have, from public knowledge, is needed"
            )
        return y, {"label_bound": positive_number("label_bound", self.label_bound)}

    def _cut(self, X: np.ndarray, y: np.ndarray) -> Iterator[str]:
        yield from super()._cut(X, y)
        assert self.label_bound is not None
        if np.mean(np.abs(y) > self.label_bound) > 0.01:
            yield f"labels are larger than label_bound = {self.label_bound:g} and were clipped"

    def _loss(self) -> Loss:
        return Squared() if self.loss == "squared" else Huber(self._threshold)

    def _settings(self) -> dict[str, Any]:
        settings = super()._settings()
        if self.loss == "squared" and self.threshold is not None:
            settings.setdefault("clip", self._threshold * float(self.bounds))
        return settings

    @property
    def _threshold(self) -> float:
        return positive_number("threshold", self.label_bound if self.threshold is None else self.threshold)

    def _keep(self, coefficients: np.ndarray) -> None:
        super()._keep(coefficients)
        self.coef_, self.intercept_ = self.coef_[0], self.intercept_[0]

    def predict(self, X: Any) -> np.ndarray:
        return self._scores(X)[:, 0]

    def score(self, X: Any, y: Any, sample_weight: Any = None, *, public: bool = False) -> float:
        """Exact R^2, for records that everybody may know."""
        self._check_exact_score(public)
        return float(super().score(X, y, sample_weight))


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class PrivateRidge(_PrivateRegressor):
    """Ridge regression with a certified privacy loss: (l2/2) times the squared norm of all coefficients."""

    def to_sklearn(self) -> Pipeline:
        """The projection and a plain fitted Ridge: the same predictions without this class."""
        return self._plain(Ridge())


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class PrivateLasso(_PrivateRegressor):
    """Lasso regression with a certified privacy loss: l1 times the sum of the coefficients' sizes, and an l2 term where
    one is given. Noise reaches every coefficient, so exact zeros are those that the proximal map makes.

    l1: weight of the sum of the coefficients' sizes.
    """

    l1: float | None = None

    def _regulariser(
        self, facts: Facts, open_l2: Callable[[], float], weight_of_record: Callable[[int], float]
    ) -> Regulariser:
        l2 = 0.0 if self.l2 is None else float(self.l2)
        if self.l1 is not None:
            return ElasticNet(l2, positive_number("l1", self.l1))
        return ElasticNet(l2, lasso_regulariser(facts, self._threshold, weight_of_record))

    def to_sklearn(self) -> Pipeline:
        """The projection and a plain fitted Lasso: the same predictions without this class."""
        return self._plain(Lasso())
