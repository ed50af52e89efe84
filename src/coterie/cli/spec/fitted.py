"""A model of a run, applied: scores of rows that its schema encodes, held to its row norm."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data import Schema
from coterie.data.federation import Shortening, project_rows
from coterie.data.tables import Table
from coterie.errors import InputError
from coterie.serialise import file_text, read_json

_PROBABLE = ("Logistic", "Multinomial")


@dataclasses.dataclass(frozen=True, eq=False)
class FittedModel:
    """`slopes` is (feature, output), `constants` (output). Labels are positions in `labels`; None in regression."""

    schema: Schema
    labels: tuple[str, ...] | None
    row_norm: float
    slopes: np.ndarray
    constants: np.ndarray
    # of Adult: a feature that is no column of the schema
    constant_column: bool = False
    shortening: Shortening | None = None

    @classmethod
    def of(cls, model: dict[str, Any]) -> "FittedModel":
        """From the content of a model.json; a run without one number for each feature has no such model."""
        try:
            schema, named = Schema.from_dict(model["schema"]), model["coefficients"]
            if not isinstance(named, dict):
                raise InputError("model: it is not one number for each feature, so it cannot be applied to a table")
            slopes = np.array([np.atleast_1d(row) for row in named.values()], dtype=np.float64)
            constants = np.zeros(slopes.shape[1]) if model["intercept"] is None else np.atleast_1d(model["intercept"])
            labels = None if model["labels"] is None else tuple(model["labels"])
            extra = list(named)[len(schema.feature_names) :]
            if list(named)[: len(schema.feature_names)] != list(schema.feature_names) or extra not in (
                [],
                ["constant"],
            ):
                raise KeyError("features")
            kind = ProbableModel if model["loss"] in _PROBABLE else cls
            row_norm, shortening = float(model["row_norm"]), None
            if "shortening" in model:
                centre, scale = (np.array(model["shortening"][name], dtype=float) for name in Shortening._fields)
                if not centre.shape == scale.shape == (len(slopes),):
                    raise KeyError("shortening")
                shortening = Shortening(centre, scale)
            return kind(schema, labels, row_norm, slopes, constants.astype(float), bool(extra), shortening)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError("model: model.json is no model of a run") from None

    @classmethod
    def read(cls, run: Path) -> "FittedModel":
        """The model in a run's directory."""
        path = run / "model.json"
        try:
            text = file_text(path)
        except OSError as error:
            stopped = (run / "partial-transcript.npz").exists()
            reason = "the run was stopped, so there is none" if stopped else error.strerror
            raise InputError(f"RUN: cannot read {str(path)!r} ({reason})") from None
        except UnicodeDecodeError:
            raise InputError(f"RUN: {str(path)!r} is not UTF-8 text") from None
        return cls.of(read_json(f"RUN: {str(path)!r}", text))

    def encode(self, table: Table) -> np.ndarray:
        X = self.schema.encode(table)
        return np.column_stack([X, np.ones(len(X))]) if self.constant_column else X

    @property
    def classes_(self) -> np.ndarray:
        return np.arange(len(self.labels or ()))

    def scores(self, X: np.ndarray) -> np.ndarray:
        """(record, output)."""
        rows = project_rows(X, self.row_norm) if self.shortening is None else self.shortening(X, self.row_norm)
        return rows @ self.slopes + self.constants

    def decision_function(self, X: np.ndarray) -> np.ndarray:
        scores = self.scores(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Positions in `labels`, or numbers."""
        scores = self.decision_function(X)
        if self.labels is None:
            return scores
        return (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)


class ProbableModel(FittedModel):
    """A model whose loss knows probabilities."""

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        scores = self.scores(X)
        if scores.shape[1] == 1:
            scores = np.column_stack([np.zeros(len(scores)), scores])
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        return odds / odds.sum(axis=1, keepdims=True)


def exact_result(model: FittedModel, X: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """How good a model is on records that are declared public; y as positions in its labels, or numbers."""
    if model.labels is None:
        gap, spread = model.predict(X) - y, y - y.mean()
        r2 = 1 - float(gap @ gap) / max(float(spread @ spread), 1e-300)
        return {"records": len(y), "rmse": float(np.sqrt(np.mean(gap**2))), "mean_rmse": float(y.std()), "r2": r2}
    from coterie.evaluation import evaluate

    probable = isinstance(model, ProbableModel)
    metrics = ("accuracy", "auc", *(("calibration",) if probable else ()))
    found = evaluate(model, X, y.astype(int), metrics=metrics, public=True)
    told = {"records": len(y), "error": 1 - found["accuracy"].value, "majority_error": found.majority_error}
    return {**told, "auc": found["auc"].value, **({"calibration_error": found.calibration_error} if probable else {})}
