"""Public matrices that are part of a plan: kept by their non-zero entries, so sparse ones stay small."""

import dataclasses
import functools
from typing import Any

import numpy as np
import scipy.sparse

from coterie.errors import InputError
from coterie.values import serialisable


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class Matrix:
    shape: tuple[int, int]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        m, n = self.shape
        if not (len(self.rows) == len(self.columns) == len(self.values)):
            raise InputError("values: as many rows, columns and values are needed")
        if m < 1 or n < 1 or not all(0 <= i < m for i in self.rows) or not all(0 <= j < n for j in self.columns):
            raise InputError(f"shape: got {self.shape}; entries must lie inside it")
        if not np.isfinite(self.values).all():
            raise InputError("values: finite numbers are needed")

    @classmethod
    def of(cls, name: str, matrix: Any) -> "Matrix":
        """From anything two-dimensional, dense or sparse."""
        if isinstance(matrix, Matrix):
            return matrix
        try:
            entries: Any = scipy.sparse.coo_array(
                matrix if scipy.sparse.issparse(matrix) else np.asarray(matrix, float)
            )
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{name}: got a {type(matrix).__name__}; a matrix of numbers is needed ({error})"
            ) from None
        if entries.ndim != 2:
            raise InputError(f"{name}: got {entries.ndim} dimensions; a matrix has two")
        entries.sum_duplicates()
        rows, columns = (tuple(map(int, index)) for index in entries.coords)
        m, n = map(int, entries.shape)
        return cls(shape=(m, n), rows=rows, columns=columns, values=tuple(map(float, entries.data)))

    @functools.cached_property
    def sparse(self) -> scipy.sparse.csr_array:
        return scipy.sparse.csr_array((self.values, (self.rows, self.columns)), shape=self.shape)

    @functools.cached_property
    def dense(self) -> np.ndarray:
        return self.sparse.toarray()

    @functools.cached_property
    def gram(self) -> np.ndarray:
        """M'M, dense: it has as many rows as M has columns."""
        return (self.sparse.T @ self.sparse).toarray()

    @functools.cached_property
    def smallest_singular_value(self) -> float:
        """From below: what rounding in M'M could have added is taken off."""
        lowest, *_, highest = np.linalg.eigvalsh(self.gram)[[0, -1]]
        return float(np.sqrt(max(0.0, lowest - 1e-13 * self.shape[1] * highest)))

    def times(self, x: Any) -> Any:
        """M x for a traced vector."""
        # plans are made and priced without it
        import jax.numpy as jnp

        values, rows, columns = np.asarray(self.values), np.asarray(self.rows), np.asarray(self.columns)
        return jnp.zeros(self.shape[0], x.dtype).at[rows].add(values * x[columns])

    @functools.cached_property
    def transposed(self) -> "Matrix":
        m, n = self.shape
        return Matrix(shape=(n, m), rows=self.columns, columns=self.rows, values=self.values)
