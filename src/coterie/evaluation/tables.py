"""Counting what a classifier answers, and metrics of the counts, be they exact or noised."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from coterie.data.checks import plain_array, same_length
from coterie.errors import InputError

TABLE_OF = {"accuracy": "answers", "class-error": "answers", "auc": "scores", "calibration": "scores"}


@dataclasses.dataclass(frozen=True)
class Metric:
    """A number, or one per class or bin. `standard_error` is that of the noise: how far the value may be from the exact
    one on the same records and grid. (epsilon, delta) is what the table behind it cost; metrics of one table share it.
    """

    value: Any
    standard_error: Any
    epsilon: float
    delta: float


def checked_metrics(metrics: Sequence[str], model: Any) -> list[str]:
    names = [metrics] if isinstance(metrics, str) else list(dict.fromkeys(metrics))
    for name in names:
        if name not in TABLE_OF:
            raise InputError(f"metrics: got {name!r}; some of {', '.join(TABLE_OF)} are needed")
    if "calibration" in names and not hasattr(model, "predict_proba"):
        raise InputError(f"metrics: got 'calibration'; {type(model).__name__} has no predict_proba")
    if not names:
        raise InputError(f"metrics: got none; some of {', '.join(TABLE_OF)} are needed")
    return names


def positions(model: Any, y: Any) -> np.ndarray:
    classes = np.asarray(model.classes_)
    y = plain_array("y", y, ndim=1)
    places = np.minimum(np.searchsorted(classes, y), len(classes) - 1)
    if (wrong := classes[places] != y).any():
        raise InputError(f"y: row {int(np.argmax(wrong))} has a label that is not one of {classes.tolist()}")
    return places


@dataclasses.dataclass(frozen=True)
class Cells:
    """The cells of a table in which each record counts, `per_record` of them."""

    shape: tuple[int, ...]
    places: np.ndarray  # (n_records, per_record) positions in the flat table

    @property
    def per_record(self) -> int:
        return self.places.shape[1]

    def table(self) -> np.ndarray:
        return self.tables(np.zeros(len(self.places), int), 1)[0]

    def tables(self, party_of: np.ndarray, n_parties: int) -> np.ndarray:
        """Counts of each party, (party, *shape)."""
        size = math.prod(self.shape)
        counts = np.bincount((party_of[:, None] * size + self.places).ravel(), minlength=n_parties * size)
        return counts.reshape(n_parties, *self.shape).astype(float)


def count(model: Any, X: Any, y: Any, wanted: set[str], bins: int) -> dict[str, Cells]:
    truth = positions(model, y)
    n_classes = len(model.classes_)
    cells = {}
    if "answers" in wanted:
        predicted = positions(model, model.predict(X))
        same_length("y", truth, len(predicted))
        cells["answers"] = Cells((n_classes, n_classes), (truth * n_classes + predicted)[:, None])
    if "scores" in wanted:
        scores = _probabilities(model, X)
        same_length("y", truth, len(scores))
        concerned = np.array([1]) if n_classes == 2 else np.arange(n_classes)
        bin_of = np.clip((scores[:, concerned] * bins).astype(int), 0, bins - 1)
        is_it = truth[:, None] == concerned
        shape = (len(concerned), 2, bins)
        cells["scores"] = Cells(shape, (np.arange(len(concerned)) * 2 + is_it) * bins + bin_of)
    return cells


def _probabilities(model: Any, X: Any) -> np.ndarray:
    """Scores in [0, 1]; without probabilities, a public increasing function of the decision function."""
    if hasattr(model, "predict_proba"):
        return np.asarray(model.predict_proba(X))
    scores = 1 / (1 + np.exp(-np.clip(np.asarray(model.decision_function(X)), -500, 500)))
    return np.column_stack([1 - scores, scores]) if scores.ndim == 1 else scores


def metric(name: str, table: np.ndarray, noise_std: float, price: tuple[float, float]) -> Metric:
    compute, low = _COMPUTED[name], 0.0
    value = compute(table)
    if noise_std == 0:
        error = np.zeros_like(value)
    else:  # to first order in the noise, by differences as large as the noise
        moves = []
        for cell in np.ndindex(table.shape):
            up, down = table.copy(), table.copy()
            up[cell] += noise_std
            down[cell] -= noise_std
            moves.append((compute(up) - compute(down)) / 2)
        error = np.sqrt(np.sum(np.square(moves), axis=0))
    if name == "calibration":
        low = -_middles(table)
    return Metric(_plain(np.clip(value, low, low + 1.0)), _plain(error), *price)


def _plain(value: np.ndarray) -> Any:
    return float(value) if np.ndim(value) == 0 else value


def _accuracy(table: np.ndarray) -> np.ndarray:
    return np.trace(table) / max(table.sum(), 1.0)


def _class_error(table: np.ndarray) -> np.ndarray:
    return 1 - np.diag(table) / np.maximum(table.sum(axis=1), 1.0)


def _auc(table: np.ndarray) -> np.ndarray:
    """Mean over classes of the chance that a record of the class scores higher than another, ties counted half."""
    values = []
    for others, members in table:
        below = np.cumsum(others) - others / 2
        values.append(np.dot(members, below) / (max(members.sum(), 1.0) * max(others.sum(), 1.0)))
    return np.asarray(np.mean(values))


def _calibration(table: np.ndarray) -> np.ndarray:
    """For each bin of the grid: how often the class was true, minus what the middle of the bin says."""
    others, members = table.sum(axis=0)
    return members / np.maximum(members + others, 1.0) - _middles(table)


def majority_error(answers: np.ndarray) -> float:
    by_class = np.maximum(answers.sum(axis=1), 0.0)
    return float(np.clip(1 - by_class.max() / max(by_class.sum(), 1.0), 0.0, 1.0))


def calibration_error(scores: np.ndarray) -> float:
    """Mean over records of the distance between bin and truth; noised counts below zero count as none."""
    records = np.maximum(scores.sum(axis=(0, 1)), 0.0)
    gaps = np.abs(np.clip(_calibration(scores), -1.0, 1.0))
    return float(np.dot(records, gaps) / max(records.sum(), 1.0))


def _middles(table: np.ndarray) -> np.ndarray:
    n_bins = table.shape[-1]
    return (np.arange(n_bins) + 0.5) / n_bins


_COMPUTED: dict[str, Callable[[np.ndarray], Any]] = {
    "accuracy": _accuracy,
    "class-error": _class_error,
    "auc": _auc,
    "calibration": _calibration,
}
