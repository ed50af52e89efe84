"""Which numbers are reported: linear functions of coefficients, in the units of the columns they belong to."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from coterie.data.schema import CategoryColumn, Schema
from coterie.facts import Facts
from coterie.problems.losses import Logistic, Loss


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
    def of_schema(cls, schema: Schema, facts: Facts) -> "Columns":
        """Numbers per unit of their column; categories against the first of their column."""
        names: list[str] = []
        rows: list[np.ndarray] = []
        groups: dict[str, list[int]] = {}
        whole: list[np.ndarray] = []  # of each category column: its features sum to 1 in every row
        each, start = np.eye(facts.n_features), 0
        for column in schema.columns:
            if isinstance(column, CategoryColumn):
                here = each[start : start + len(column.categories)]
                whole.append(here.sum(axis=0))
                groups[column.name] = list(range(len(rows), len(rows) + len(here) - 1))
                rows += list(here[1:] - here[0])
                names += [f"{column.name}={c} (not {column.categories[0]})" for c in column.categories[1:]]
                start += len(here)
            else:
                rows.append(each[start] / column.bound)
                names.append(column.name)
                start += 1
        null = np.array([other - whole[0] for other in whole[1:]]).T if len(whole) > 1 else None
        groups = {name: places for name, places in groups.items() if len(places) > 1}
        return cls(tuple(names), np.array(rows), null=null, groups=groups)

    def of_outputs(self, loss: Loss, facts: Facts) -> "Columns":
        """The same of a model with several outputs, each class against the first."""
        k = loss.n_outputs
        if k == 1:
            return self if isinstance(loss, Logistic) else dataclasses.replace(self, constant=None)
        labels = facts.labels or tuple(map(str, range(k)))
        against, d = np.eye(k)[1:] - np.eye(k)[0], self.contrasts.shape[1]
        alike = [np.kron(np.eye(d), np.ones((k, 1)) / np.sqrt(k))]  # adding a number to all classes changes nothing
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
