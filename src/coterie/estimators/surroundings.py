"""What a fit can see of the program around it: preprocessing that was fitted on the same records, exact scores, and
folds that were made by looking at labels.

It guards against honest mistakes: whoever wants to can hide either.
"""

import contextlib
import inspect
import math
import warnings
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.model_selection import (
    KFold,
    RepeatedStratifiedKFold,
    StratifiedGroupKFold,
    StratifiedKFold,
    StratifiedShuffleSplit,
)
from sklearn.multiclass import OneVsOneClassifier
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.semi_supervised import SelfTrainingClassifier
from sklearn.utils import get_tags

from coterie.errors import InputError
from coterie.estimators.encoder import SchemaEncoder

STANDARDISED = 1e-6
# fewer may be standardised by chance, or on purpose in a test
LEAST_ROWS = 10
# what scikit-learn's functions call what they score with and what they split records with, and its classes theirs
_SCORERS = ("scorer", "curve_scorer", "_curve_scorer")
_SPLITTERS = ("cv", "cv_orig", "_checked_cv_orig")
# fit to records that they choose by labels: how many these are is then no public number
_CHOOSING = (OneVsOneClassifier, SelfTrainingClassifier)
_STRATIFIED = (StratifiedKFold, StratifiedShuffleSplit, RepeatedStratifiedKFold, StratifiedGroupKFold)


def fitted_preprocessing() -> tuple[str, ...]:
    """Steps before this fit, in the pipelines around it, that were fitted on its records or their labels, and whoever
    has chosen its records by their labels."""
    steps = (*_steps_before(), *_steps_of_labels())
    choosing = (frame.f_locals.get("self") for frame in _frames())
    names = [type(one).__name__ for one in choosing if isinstance(one, _CHOOSING)]
    return tuple(dict.fromkeys([*(name for step in steps for name in _looked(step)), *names]))


def encoded_by_schema() -> bool:
    """Whether a schema, and nothing else, comes before this fit."""
    steps = [step for step in _steps_before() if step is not None and step != "passthrough"]
    return bool(steps) and all(isinstance(step, SchemaEncoder) for step in steps)


def _steps_before() -> Iterator[Any]:
    for frame in _frames():
        pipeline = frame.f_locals.get("self")
        if isinstance(pipeline, Pipeline) and frame.f_code.co_name.startswith("fit"):
            yield from (step for _, step in pipeline.steps[:-1])


def _steps_of_labels() -> Iterator[Any]:
    for frame in _frames():
        regressor = frame.f_locals.get("self")
        if isinstance(regressor, TransformedTargetRegressor) and frame.f_code.co_name == "fit":
            yield getattr(regressor, "transformer_", None)


def _looked(step: Any) -> Iterator[str]:
    """Names of what has looked at the records in a step; a step that needs no fit has not."""
    if step is None or isinstance(step, str):
        return
    if isinstance(step, Pipeline):
        parts = [part for _, part in step.steps]
    elif isinstance(step, FeatureUnion):
        parts = [part for _, part in step.transformer_list]
    elif isinstance(step, ColumnTransformer):
        parts = [part for _, part, _ in getattr(step, "transformers_", step.transformers)]
    else:
        if isinstance(step, BaseEstimator) and not get_tags(step).requires_fit:
            return
        yield type(step).__name__
        return
    for part in parts:
        yield from _looked(part)


def standardised(X: np.ndarray) -> bool:
    """Whether a column has mean 0 and variance 1 as only a scaler that was fitted on these rows makes them; columns of
    two values are left out, for even halves of -1 and 1 have both."""
    if len(X) < LEAST_ROWS:
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        found = (np.abs(X.mean(axis=0)) < STANDARDISED) & (np.abs(X.var(axis=0) - 1) < STANDARDISED)
    return any(len(np.unique(X[:, column])) > 2 for column in np.flatnonzero(found))


def refuse_exact_scores() -> None:
    """Refuse a fit whose model is going to be scored exactly on private records, before anything is charged."""
    for frame in _frames_of_sklearn():
        more = frame.f_locals.get("score_params") or {}
        if any(map(_is_exact, _called(frame, _SCORERS))) and not more.get("public"):
            raise InputError(
                "scoring: an exact score of private records is a release that the ledger knows nothing of, and is "
                "refused before anything is charged; use scoring=PrivateScorer(...)"
            )


def refuse_stratified_folds() -> None:
    """Refuse a fit to a fold that was made by looking at labels: one record's label then decides where others go, and a
    fit and a score lose more of it than they are charged for."""
    for frame in _frames_of_sklearn():
        seen = any(isinstance(splitter, _STRATIFIED) for splitter in _called(frame, _SPLITTERS))
        # another process or thread, which knows its fold and not how it was made
        if seen or (frame.f_code.co_name == "_fit_and_score" and _is_stratified(*_called(frame, ("y", "test")))):
            raise InputError(
                "cv: stratified folds are made by looking at labels, so that one record decides in which folds others "
                "are, which no fit is charged for (a number of folds is stratified for classifiers); use "
                "cv=KFold(...) of sklearn.model_selection"
            )


def _is_stratified(y: Any, test: Any) -> bool:
    """Whether this is one of so many stratified folds, in the order of the records, and not one of so many others."""
    n, found = len(y), False
    for n_folds in {n // len(test), math.ceil(n / len(test))}:
        if n_folds < 2:
            continue
        with warnings.catch_warnings(), contextlib.suppress(ValueError):
            # of classes with few records
            warnings.simplefilter("ignore")
            by_label, others = (
                any(np.array_equal(test, fold) for _, fold in kind(n_folds).split(np.zeros(n), y))
                for kind in (StratifiedKFold, KFold)
            )
            found = found or (by_label and not others)
    return found


def _is_exact(scorer: Any) -> bool:
    """Of scikit-learn: by a name, `make_scorer`, or a model's own score."""
    several = scorer.values() if isinstance(scorer, dict) else getattr(scorer, "_scorers", {}).values() or (scorer,)
    return any(type(one).__module__.startswith("sklearn.") for one in several)


def _frames_of_sklearn() -> Iterator[FrameType]:
    return (frame for frame in _frames() if frame.f_globals.get("__name__", "").startswith("sklearn."))


def _called(frame: FrameType, names: Iterable[str]) -> Iterator[Any]:
    """What has one of these names in a call, or in the object whose method it is."""
    known = {**getattr(frame.f_locals.get("self"), "__dict__", {}), **frame.f_locals}
    return (known[name] for name in names if name in known)


def _frames() -> Iterator[FrameType]:
    frame = inspect.currentframe()
    while frame is not None:
        yield frame
        frame = frame.f_back
