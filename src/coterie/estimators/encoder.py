"""A public schema as a step of a scikit-learn pipeline."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin

from coterie.data.schema import Schema
from coterie.errors import InputError


class SchemaEncoder(TransformerMixin, BaseEstimator):
    """Encodes tables by a public `Schema`; `fit` looks at nothing, so a pipeline with it keeps its certificate.

    schema: a `coterie.Schema`, or the path of its TOML file.

    Tables are data frames, dicts from column names to values, or arrays whose columns are those of the schema in order.
    """

    def __init__(self, schema: Any) -> None:
        self.schema = schema

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.input_tags.string = tags.input_tags.categorical = tags.input_tags.allow_nan = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def fit(self, X: Any = None, y: Any = None) -> "SchemaEncoder":
        """Checks that there is a schema, and nothing else."""
        self._read()
        return self

    def transform(self, X: Any) -> np.ndarray:
        schema = self._read()
        if isinstance(X, Mapping):
            return schema.encode(X)
        if hasattr(X, "columns"):
            return schema.encode({str(name): X[name] for name in X.columns})
        rows = np.asarray(X, dtype=object) if not isinstance(X, np.ndarray) else X
        if rows.ndim != 2 or rows.shape[1] != len(schema.columns):
            raise InputError(
                f"X: got {type(X).__name__} of shape {rows.shape}; a table by column name, or an array with the "
                f"{len(schema.columns)} columns of the schema, is needed"
            )
        return schema.encode({column.name: rows[:, place] for place, column in enumerate(schema.columns)})

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        return np.array(self._read().feature_names, dtype=object)

    def _read(self) -> Schema:
        if isinstance(self.schema, Schema):
            return self.schema
        if not isinstance(self.schema, str) and not hasattr(self.schema, "__fspath__"):
            raise InputError(f"schema: got a {type(self.schema).__name__}; a coterie.Schema or its path is needed")
        return Schema.read(self.schema)
