"""Which numbers are reported: linear functions of coefficients, in the units of the columns they belong to."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coterie.data.federation import make_design, split_intercept
from coterie.data.schema import Column, NumberColumn, Schema
from coterie.facts import Facts
from coterie.problems import Logistic, Loss


@dataclasses.dataclass(frozen=True, eq=False)
class Columns:
    """`contrasts` (row, coefficient) are what is reported, by name. `constant`: a vector whose product with every row
    of the design is 1, where there is one. `null`: vectors (as columns) whose product with every row is 0, along which
    no data can tell coefficients apart. `groups`: rows that belong to one column, tested together."""

    names: tuple[str, ...]
    contrasts: np.ndarray
    constant: np.ndarray | None = None
    null: np.ndarray | None = None
    groups: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)

    @classmethod
    def of_features(
        cls,
        names: Sequence[str],
        scales: np.ndarray,
        *,
        intercept: tuple[float, float] | None = None,
    ) -> "Columns":
        """One number a feature, coefficient times scale. `intercept` is scale and value of a constant last column."""
        d = len(names) + (intercept is not None)
        if intercept is None:
            return cls(tuple(names), np.diag(scales))
        last = np.eye(d)[-1]
        return cls((*names, "intercept"), np.diag(np.append(scales, intercept[0])), constant=last / intercept[1])

    @classmethod
    def of_schema(cls, schema: Schema, row_norm: float, *, intercept: bool) -> "Columns":
        """What a change of one column does to the score: by one unit of a number, or from the first level to another.

        Encoding is affine between probes, so the difference of two encoded rows is the contrast. `intercept` is the
        score of a record whose features are all 0, at the centre of every column.
        """
        d = len(schema.feature_names) + intercept
        shrink, scale = split_intercept(np.ones(d), row_norm, intercept=intercept)
        constant = float(make_design(np.zeros((1, d - intercept)), row_norm, intercept=intercept)[0, -1])
        usual: dict[str, Any] = {column.name: _levels(column)[0][1] for column in schema.columns}
        names: list[str] = []
        rows: list[np.ndarray] = []
        groups: dict[str, list[int]] = {}
        null: list[np.ndarray] = []
        # times every row: 1
        fixed: list[np.ndarray] = []
        start = 0

        def encoded(column: str, value: Any) -> np.ndarray:
            table = {name: [value if name == column else given] for name, given in usual.items()}
            return np.append(shrink * schema.encode(table)[0], np.zeros(int(intercept)))

        for column in schema.columns:
            (_, first), *others = _levels(column)
            before, block = encoded(column.name, first), np.zeros(d)
            block[start : (start := start + len(column.feature_names))] = 1.0
            if not _is_line(column):
                sums = float(before @ block)
                (null if abs(sums) < 1e-12 else fixed).append(block / (sums if abs(sums) >= 1e-12 else 1.0))
                groups[column.name] = list(range(len(rows), len(rows) + len(others)))
            for name, value in others:
                length = _length(column, first, value) if _is_line(column) and value is not None else 1.0
                names.append(name)
                rows.append((encoded(column.name, value) - before) / length)
        if intercept:
            last = np.eye(d)[-1]
            fixed.insert(0, last / constant)
            names, rows = [*names, "intercept"], [*rows, float(scale) * last]
        null += [other - fixed[0] for other in fixed[1:]]
        return cls(
            tuple(names),
            np.array(rows),
            constant=fixed[0] if intercept else None,
            null=np.array(null).T if null else None,
            groups={name: places for name, places in groups.items() if len(places) > 1},
        )

    def of_outputs(self, loss: Loss, facts: Facts) -> "Columns":
        """The same of a model with several outputs, each class against the first."""
        k = loss.n_outputs
        if k == 1:
            return self if isinstance(loss, Logistic) else dataclasses.replace(self, constant=None)
        labels = facts.labels or tuple(map(str, range(k)))
        against, d = np.eye(k)[1:] - np.eye(k)[0], self.contrasts.shape[1]
        # adding a number to all classes changes nothing
        alike = [np.kron(np.eye(d), np.ones((k, 1)) / np.sqrt(k))]
        if self.null is not None:
            alike.append(np.kron(self.null, against.T))
        m = len(self.names)
        return Columns(
            tuple(f"{label}: {name}" for label in labels[1:] for name in self.names),
            np.concatenate([np.kron(self.contrasts, row[None]) for row in against]),
            null=np.concatenate(alike, axis=1),
            groups={
                f"{label}: {name}": [m * i + place for place in places]
                for i, label in enumerate(labels[1:])
                for name, places in self.groups.items()
            },
        )

    def basis(self) -> np.ndarray | None:
        """Orthonormal vectors (as columns) across what no data can tell; None where that is nothing."""
        if self.null is None or not self.null.size:
            return None
        u, sizes, _ = np.linalg.svd(self.null, full_matrices=True)
        return u[:, int((sizes > 1e-9 * sizes[0]).sum()) :]


def _is_line(column: Column) -> bool:
    return isinstance(column, NumberColumn) and not column.bins


def _levels(column: Column) -> list[tuple[str, Any]]:
    """Names and values to compare: of a number its ends, of categories and bins one each, the first to compare with."""
    if isinstance(column, NumberColumn) and not column.bins:
        name = f"log(1 + |{column.name}|/{column.knee:.4g})" if column.log else column.name
        more: list[tuple[str, Any]] = [(f"{column.name} is missing", None)] if column.missing is not False else []
        return [(name, column.minimum), (name, column.maximum), *more]
    if isinstance(column, NumberColumn):
        values: list[Any] = [column.minimum, *column.bins]
    else:
        # nobody would list a text of unprintable characters
        values = [*column.categories, *(("\0",) if column.other else ())]
    values += [None] if column.missing else []
    first, *others = column.feature_names
    return [(first, values[0]), *((f"{n} (not {first})", v) for n, v in zip(others, values[1:], strict=True))]


def _length(column: Column, low: float, high: float) -> float:
    """Between two values, in the units of the column or of its logarithm."""
    return float(column.curved(high) - column.curved(low)) if isinstance(column, NumberColumn) else high - low
