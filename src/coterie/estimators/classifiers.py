"""Logistic regression and a linear support vector machine."""

import dataclasses
from typing import Any, ClassVar

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline
from sklearn.svm import LinearSVC
from sklearn.utils.multiclass import check_classification_targets

from coterie.errors import InputError
from coterie.estimators.base import PrivateLinearModel
from coterie.problems import HuberisedHinge, Logistic, Loss, Multinomial


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class _PrivateClassifier(ClassifierMixin, PrivateLinearModel):
    """Parameters of classifiers:

    classes: the public label set; read off y where it is left open, and the certificate says VOID.
    class_weight: weights by label, as a dict ("balanced" would look at the data).
    """

    classes: Any = None
    class_weight: dict[Any, float] | None = None

    _many_classes: ClassVar[bool]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
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


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class PrivateLogisticRegression(_PrivateClassifier):
    """Logistic regression, binary or multinomial, with a certified privacy loss.

    Minimises the summed log loss of the design rows plus (l2/2) times the squared norm of all coefficients.
    """

    _many_classes: ClassVar[bool] = True

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
        return self._plain(LogisticRegression(), classes_=self.classes_)


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class PrivateLinearSVC(_PrivateClassifier):
    """A linear support vector machine for two classes, with a certified privacy loss.

    The hinge's corner is replaced by a parabola (Huberised hinge), as the proofs need.

    width: half the width of the parabola.
    """

    width: float = 0.5

    _many_classes: ClassVar[bool] = False

    def _loss(self) -> Loss:
        return HuberisedHinge(self.width)

    def to_sklearn(self) -> Pipeline:
        """The projection and a plain fitted LinearSVC: the same predictions without this class."""
        return self._plain(LinearSVC(), classes_=self.classes_)
