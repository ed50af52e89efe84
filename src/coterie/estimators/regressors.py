"""Ridge and lasso regression with bounded influence of every record."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.linear_model import Lasso, Ridge
from sklearn.pipeline import Pipeline

from coterie.data.checks import positive_number
from coterie.errors import InputError
from coterie.estimators.base import PrivateLinearModel
from coterie.estimators.export import with_projection
from coterie.problems import L2, ElasticNet, Huber, Loss, Penalty, Squared
from coterie.rules import lasso_regulariser, regulariser

LOSSES = ("huber", "squared")


class _PrivateRegressor(RegressorMixin, PrivateLinearModel):
    """Labels are cut to [-label_bound, label_bound]. A record's influence is bounded in one of two ways:

    loss="huber": squared up to `threshold` (label_bound when left open), then linear.
    loss="squared": the gradient of each record is clipped to threshold * bounds; needs trust "curator" or "secure-sum".
    """

    _is_regression = True
    label_bound: float
    loss: str
    threshold: float | None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = self.random_state is None and not math.isinf(self.epsilon)
        return tags

    def _encode_labels(self, y: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
        if self.loss not in LOSSES:
            raise InputError(f"loss: got {self.loss!r}; one of {', '.join(LOSSES)} is needed")
        return y, {"label_bound": positive_number("label_bound", self.label_bound)}

    def _loss(self) -> Loss:
        return Squared() if self.loss == "squared" else Huber(self._threshold)

    def _clip(self) -> float | None:
        return self._threshold * float(self.bounds) if self.loss == "squared" else None

    @property
    def _threshold(self) -> float:
        return positive_number("threshold", self.label_bound if self.threshold is None else self.threshold)

    def _keep(self, coefficients: np.ndarray) -> None:
        self.coefficients_ = coefficients
        coef, intercept = self._split(coefficients)
        self.coef_, self.intercept_ = coef[0], intercept[0]

    def predict(self, X: Any) -> np.ndarray:
        return self._scores(X)[:, 0]

    def score(self, X: Any, y: Any, sample_weight: Any = None, *, public: bool = False) -> float:
        """Exact R^2, for records that everybody may know."""
        self._check_exact_score(public)
        return float(super().score(X, y, sample_weight))


class PrivateRidge(_PrivateRegressor):
    """Ridge regression with a certified privacy loss: (l2/2) times the squared norm of all coefficients."""

    def __init__(
        self,
        *,
        epsilon: float,
        delta: float,
        adjacency: str,
        bounds: float = 1.0,
        label_bound: float = 1.0,
        loss: str = "huber",
        threshold: float | None = None,
        trust: str = "none",
        algorithm: str | None = None,
        topology: Any = None,
        unit: str = "record",
        records_per_person: int = 1,
        people_span_parties: bool = False,
        fit_intercept: bool = True,
        l2: float | None = None,
        party_weight: float | None = None,
        weight_bound: float = 1.0,
        rounds: int | None = None,
        averaging: str | None = None,
        penalty: float | None = None,
        step: float | None = None,
        hardened: bool = False,
        data_derived: Sequence[str] = (),
        tuning: str | None = None,
        ledger: Any = None,
        random_state: Any = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.adjacency = adjacency
        self.bounds = bounds
        self.label_bound = label_bound
        self.loss = loss
        self.threshold = threshold
        self.trust = trust
        self.algorithm = algorithm
        self.topology = topology
        self.unit = unit
        self.records_per_person = records_per_person
        self.people_span_parties = people_span_parties
        self.fit_intercept = fit_intercept
        self.l2 = l2
        self.party_weight = party_weight
        self.weight_bound = weight_bound
        self.rounds = rounds
        self.averaging = averaging
        self.penalty = penalty
        self.step = step
        self.hardened = hardened
        self.data_derived = data_derived
        self.tuning = tuning
        self.ledger = ledger
        self.random_state = random_state

    def _penalty(self, federation: Any, weight_of_record: Any) -> Penalty:
        return L2(regulariser(federation.facts, weight_of_record) if self.l2 is None else float(self.l2))

    def to_sklearn(self) -> Pipeline:
        """The projection and a plain fitted Ridge: the same predictions without this class."""
        return with_projection(self, Ridge())


class PrivateLasso(_PrivateRegressor):
    """Lasso regression with a certified privacy loss: l1 times the sum of the coefficients' sizes, and an l2 term where
    one is given. Noise reaches every coefficient, so exact zeros are those that the proximal map makes."""

    def __init__(
        self,
        *,
        epsilon: float,
        delta: float,
        adjacency: str,
        bounds: float = 1.0,
        label_bound: float = 1.0,
        loss: str = "huber",
        threshold: float | None = None,
        trust: str = "none",
        algorithm: str | None = None,
        topology: Any = None,
        unit: str = "record",
        records_per_person: int = 1,
        people_span_parties: bool = False,
        fit_intercept: bool = True,
        l1: float | None = None,
        l2: float | None = None,
        party_weight: float | None = None,
        weight_bound: float = 1.0,
        rounds: int | None = None,
        averaging: str | None = None,
        penalty: float | None = None,
        step: float | None = None,
        hardened: bool = False,
        data_derived: Sequence[str] = (),
        tuning: str | None = None,
        ledger: Any = None,
        random_state: Any = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.adjacency = adjacency
        self.bounds = bounds
        self.label_bound = label_bound
        self.loss = loss
        self.threshold = threshold
        self.trust = trust
        self.algorithm = algorithm
        self.topology = topology
        self.unit = unit
        self.records_per_person = records_per_person
        self.people_span_parties = people_span_parties
        self.fit_intercept = fit_intercept
        self.l1 = l1
        self.l2 = l2
        self.party_weight = party_weight
        self.weight_bound = weight_bound
        self.rounds = rounds
        self.averaging = averaging
        self.penalty = penalty
        self.step = step
        self.hardened = hardened
        self.data_derived = data_derived
        self.tuning = tuning
        self.ledger = ledger
        self.random_state = random_state

    def _penalty(self, federation: Any, weight_of_record: Any) -> Penalty:
        l2 = 0.0 if self.l2 is None else float(self.l2)
        if self.l1 is not None:
            return ElasticNet(l2, positive_number("l1", self.l1))
        return ElasticNet(l2, lasso_regulariser(federation.facts, self._threshold, weight_of_record))

    def to_sklearn(self) -> Pipeline:
        """The projection and a plain fitted Lasso: the same predictions without this class."""
        return with_projection(self, Lasso())
