"""Which numbers are reported: linear functions of coefficients, in the units of the columns they belong to."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from coterie.data.federation import make_design, split_intercept
from coterie.data.schema import Column, NumberColumn, Schema
from coterie.problems import Logistic, Loss
from coterie.values import Facts


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
        """What a change of one column does to the score: by one unit of a number, on each straight part of its line, or
        from the first level to another.

        Encoding is affine between probes, so the difference of two encoded rows is the contrast. `intercept` is the
        score of a record whose features are all 0, at the centre of every column.
        """
        d = len(schema.feature_names) + intercept
        shrink, scale = split_intercept(np.ones(d), row_norm, intercept=intercept)
        constant = float(make_design(np.zeros((1, d - intercept)), row_norm, intercept=intercept)[0, -1])
        usual: dict[str, Any] = {column.name: _changes(column)[0].before for column in schema.columns}
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
            changes, block = _changes(column), np.zeros(d)
            block[start : (start := start + len(column.feature_names))] = 1.0
            if not _is_line(column):
                sums = float(encoded(column.name, changes[0].before) @ block)
                (null if abs(sums) < 1e-12 else fixed).append(block / (sums if abs(sums) >= 1e-12 else 1.0))
            tested = [place for place, change in enumerate(changes) if not _is_line(column) or change.after is not None]
            groups[column.name] = [len(rows) + place for place in tested]
            for change in changes:
                moved = encoded(column.name, change.after) - encoded(column.name, change.before)
                names.append(change.name)
                rows.append(moved / change.length)
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


class _Change(NamedTuple):
    """Of one column from a value to another; `length` in the units in which it is reported."""

    name: str
    before: Any
    after: Any
    length: float = 1.0


def _changes(column: Column) -> list[_Change]:
    """Along a line or its straight parts, from end to end; of categories and bins, from the first to each other."""
    if isinstance(column, NumberColumn) and not column.bins:
        name = f"log(1 + |{column.name}|/{column.knee:.4g})" if column.log else column.name
        names = [f"{name}, {part}" for part in column.parts] if column.bends else [name]
        lines = [
            _Change(part, low, high, float(column.curved(high) - column.curved(low)))
            for part, (low, high) in zip(names, itertools.pairwise(column.edges), strict=True)
        ]
        missing = [_Change(f"{column.name} is missing", column.minimum, None)] if column.missing is not False else []
        return [*lines, *missing]
    if isinstance(column, NumberColumn):
        values: list[Any] = [column.minimum, *column.bins]
    else:
        # nobody would list a text of unprintable characters
        values = [*column.categories, *(("\0",) if column.other else ())]
    values += [None] if column.missing else []
    first, *others = column.feature_names
    return [_Change(f"{n} (not {first})", values[0], v) for n, v in zip(others, values[1:], strict=True)]
