"""Logistic regression and a linear support vector machine."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline
from sklearn.svm import LinearSVC
from sklearn.utils.multiclass import check_classification_targets

from coterie.errors import InputError
from coterie.estimators.base import PrivateLinearModel
from coterie.estimators.export import with_projection
from coterie.problems import L2, HuberisedHinge, Logistic, Loss, Multinomial, Penalty
from coterie.rules import regulariser


class _PrivateClassifier(ClassifierMixin, PrivateLinearModel):
    classes: Any
    class_weight: dict[Any, float] | None
    classes_: np.ndarray
    _many_classes: bool

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = self.random_state is None and not math.isinf(self.epsilon)
        tags.classifier_tags.multi_class = self._many_classes
        return tags

    def _encode_labels(self, y: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
        check_classification_targets(y)
        derived: tuple[str, ...] = ()
        if self.classes is None:
            self.classes_, derived = np.unique(y), ("labels",)
        else:
            self.classes_ = np.unique(np.asarray(self.classes))
            if self.classes_.ndim != 1 or len(self.classes_) != len(self.classes):
                raise InputError(f"classes: got {self.classes!r}; a list of different labels is needed")
        if len(self.classes_) < 2:
            raise InputError(f"classes: got one class, {self.classes_.tolist()}; at least two classes are needed")
        if len(self.classes_) > 2 and not self._many_classes:
            raise InputError(
                f"Only binary classification is supported. The type of the target is multiclass: {len(self.classes_)} "
                "classes were given; OneVsRestClassifier with a ledger adds up what its fits spend"
            )
        return y, {"labels": self.classes_.tolist(), "data_derived": derived}

    def _class_weight(self) -> tuple[float, ...] | None:
        if self.class_weight is None:
            return None
        if not isinstance(self.class_weight, dict):
            raise InputError(
                f"class_weight: got {self.class_weight!r}; a dict from label to positive number is needed, chosen "
                "without looking at the data (how frequent a class is, is private)"
            )
        known = self.classes_.tolist()
        unknown = [label for label in self.class_weight if label not in known]
        if unknown:
            raise InputError(f"class_weight: label {unknown[0]!r} is not one of the classes {known}")
        return tuple(float(self.class_weight.get(label, 1.0)) for label in known)

    def _penalty(self, federation: Any, weight_of_record: Any) -> Penalty:
        return L2(regulariser(federation.facts, weight_of_record) if self.l2 is None else float(self.l2))

    def _keep(self, coefficients: np.ndarray) -> None:
        self.coefficients_ = coefficients
        self.coef_, self.intercept_ = self._split(coefficients)

    def decision_function(self, X: Any) -> np.ndarray:
        scores = self._scores(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> np.ndarray:
        scores = self.decision_function(X)
        place = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        return self.classes_[place]

    def score(self, X: Any, y: Any, sample_weight: Any = None, *, public: bool = False) -> float:
        """Exact accuracy, for records that everybody may know; `evaluate` and `PrivateScorer` are for the others."""
        self._check_exact_score(public)
        return float(super().score(X, y, sample_weight))


class PrivateLogisticRegression(_PrivateClassifier):
    """Logistic regression, binary or multinomial, with a certified privacy loss.

    Minimises the summed log loss of the design rows plus (l2/2) times the squared norm of all coefficients.
    """

    _many_classes = True

    def __init__(
        self,
        *,
        epsilon: float,
        delta: float,
        adjacency: str,
        bounds: float = 1.0,
        trust: str = "none",
        algorithm: str | None = None,
        topology: Any = None,
        unit: str = "record",
        classes: Any = None,
        class_weight: dict[Any, float] | None = None,
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
        self.trust = trust
        self.algorithm = algorithm
        self.topology = topology
        self.unit = unit
        self.classes = classes
        self.class_weight = class_weight
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

    def _loss(self) -> Loss:
        return Logistic() if len(self.classes_) == 2 else Multinomial(len(self.classes_))

    def predict_proba(self, X: Any) -> np.ndarray:
        return np.exp(self.predict_log_proba(X))

    def predict_log_proba(self, X: Any) -> np.ndarray:
        scores = self._scores(X)
        if scores.shape[1] == 1:
            scores = np.column_stack([np.zeros(len(scores)), scores])
        scores = scores - scores.max(axis=1, keepdims=True)
        return scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))

    def to_sklearn(self) -> Pipeline:
        """The projection and a plain fitted LogisticRegression: the same predictions without this class."""
        return with_projection(self, LogisticRegression(), classes_=self.classes_)


class PrivateLinearSVC(_PrivateClassifier):
    """A linear support vector machine for two classes, with a certified privacy loss.

    The hinge's corner is replaced by a parabola of half-width `width` (Huberised hinge), as the proofs need.
    """

    _many_classes = False

    def __init__(
        self,
        *,
        epsilon: float,
        delta: float,
        adjacency: str,
        bounds: float = 1.0,
        trust: str = "none",
        algorithm: str | None = None,
        topology: Any = None,
        unit: str = "record",
        classes: Any = None,
        class_weight: dict[Any, float] | None = None,
        records_per_person: int = 1,
        people_span_parties: bool = False,
        fit_intercept: bool = True,
        l2: float | None = None,
        width: float = 0.5,
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
        self.trust = trust
        self.algorithm = algorithm
        self.topology = topology
        self.unit = unit
        self.classes = classes
        self.class_weight = class_weight
        self.records_per_person = records_per_person
        self.people_span_parties = people_span_parties
        self.fit_intercept = fit_intercept
        self.l2 = l2
        self.width = width
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

    def _loss(self) -> Loss:
        return HuberisedHinge(self.width)

    def to_sklearn(self) -> Pipeline:
        """The projection and a plain fitted LinearSVC: the same predictions without this class."""
        return with_projection(self, LinearSVC(), classes_=self.classes_)
