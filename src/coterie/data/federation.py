"""A federation: the parties' shards, held to public bounds, and the facts that everybody may know.

What is fitted is a design, the same for estimators and specs: rows held to a public norm, and a constant column for the
intercept.

    design row = (x projected to norm <= bound, INTERCEPT_SHARE * bound) / sqrt(1 + INTERCEPT_SHARE^2)

so that a design row has norm <= bound too. The constant is a column like any other: regularised, and paid for in noise.
At one half it raises the sensitivity by 12 %; at one, by 41 % for an intercept that is barely freer.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from coterie.errors import InputError
from coterie.values import (
    FROM_DATA,
    Facts,
    distinct,
    finite_array,
    plain_array,
    positive_number,
    quoted,
    refuse_missing,
    same_length,
    whole_number,
)

INTERCEPT_SHARE = 0.5


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Shard:
    """One party's records. `y` is the label's position in `facts.labels`, or the clipped number in regression."""

    X: np.ndarray
    y: np.ndarray
    weight: np.ndarray

    def __post_init__(self) -> None:
        for name in ("X", "y", "weight"):
            value = getattr(self, name)
            if isinstance(value, np.ndarray) and value.flags.writeable:
                read_only = value.view()
                read_only.setflags(write=False)
                object.__setattr__(self, name, read_only)

    # shapes only: a shard must not end up in a log
    def __repr__(self) -> str:
        return f"Shard(X: {self.X.shape}, y: {self.y.shape}, weight: {self.weight.shape})"


@dataclasses.dataclass(frozen=True, eq=False)
class Federation:
    """Public facts and one shard per party; `from_arrays` makes it from rows that still have to be held to bounds.

    facts: what everybody may know: parties, sizes, labels, bounds.
    shards: one per party, in the order of `facts.parties`, within the bounds that facts state.
    """

    facts: Facts
    shards: tuple[Shard, ...]

    def __post_init__(self) -> None:
        facts = self.facts
        if len(self.shards) != facts.n_parties:
            raise InputError(f"shards: got {len(self.shards)} for {facts.n_parties} parties; one per party is needed")
        for party, size, shard in zip(facts.parties, facts.sizes, self.shards, strict=True):
            shapes, needed = (shard.X.shape, shard.y.shape, shard.weight.shape), ((size, facts.n_features),)
            if shapes != (*needed, (size,), (size,)):
                raise InputError(f"shards: party {party!r} has {shard!r}; {needed[0]} is what facts say")
        X, y, weight = self.pooled
        limits = [("row norm", np.linalg.norm(X, axis=1), facts.row_norm), ("weight", weight, facts.weight_bound)]
        if facts.label_bound is not None:
            limits.append(("label", np.abs(y), facts.label_bound))
        for what, values, limit in limits:
            if not (values <= limit).all() or not (values >= 0).all():
                raise InputError(
                    f"shards: a {what} is outside 0 to {limit}; use Federation.from_arrays, which projects"
                )
        if facts.labels is not None and not np.isin(y, np.arange(len(facts.labels))).all():
            raise InputError(f"shards: y must hold positions in labels={facts.labels}; use Federation.from_arrays")

    @classmethod
    def from_arrays(
        cls,
        X: Any,
        y: Any,
        *,
        parties: Any,
        labels: Sequence[Any] | str | None = None,
        label_bound: float | str | None = None,
        row_norm: float | str = 1.0,
        sample_weight: Any = None,
        weight_bound: float | str = 1.0,
        min_records: int = 2,
        intercept: bool = False,
        data_derived: Sequence[str] = (),
    ) -> "Federation":
        """Split rows by `parties` and project them to public bounds.

        X, y: one row of features and one label per record.
        parties: one name per row, or None for a single party called "all". Parties are ordered by name
            (numbers by size), so the order of rows tells nothing.
        labels: the public label set, in order (classification); or None (regression).
        label_bound: of regression, b: y is clipped to [-b, b].
        row_norm: rows with a larger 2-norm are scaled down to it.
        sample_weight: ones when left out.
        weight_bound: weights are clipped to [0, weight_bound], and noise is sized for it.
        min_records: parties with fewer records are refused; 1 allows people as parties.
        intercept: append the constant column of a design; rows keep the same norm.
        data_derived: names of facts that preprocessing already read off the data.

        `labels`, `label_bound`, `row_norm` and `weight_bound` may be "from-data": the fact is then read off the
        data and named in `facts.data_derived`, which voids the guarantee.
        """
        X = finite_array("X", X, ndim=2)
        n_records = len(X)
        derived = _derived_names(data_derived)
        min_records = whole_number("min_records", min_records, at_least=1)
        party_names, party_of_row = _party_codes(parties, n_records, min_records)

        row_norm = _bound("row_norm", row_norm, lambda: row_norms(X), derived)
        # beyond this, squares leave the range of float64
        if not 1e-100 <= row_norm <= 1e100:
            raise InputError(f"row_norm: got {row_norm}; a number from 1e-100 to 1e100 is needed")
        if intercept:
            X = make_design(X, row_norm, intercept=True)
        X = project_rows(X, row_norm)

        weight = np.ones(n_records)
        if sample_weight is not None:
            weight = finite_array("sample_weight", sample_weight, ndim=1)
            same_length("sample_weight", weight, n_records)
            if (weight < 0).any():
                row = int(np.argmax(weight < 0))
                raise InputError(f"sample_weight: row {row} is negative{quoted(weight[row])}; weights must not be")
        weight_bound = _bound("weight_bound", weight_bound, lambda: weight, derived)
        weight = np.minimum(weight, weight_bound)

        label_names = largest_label = None
        if labels is not None and label_bound is not None:
            raise InputError(f"label_bound: got {label_bound!r} beside labels; give labels or label_bound, not both")
        if labels is not None:
            y, label_names = _label_positions(y, labels, n_records, derived)
        elif label_bound is not None:
            y = finite_array("y", y, ndim=1)
            same_length("y", y, n_records)
            largest_label = _bound("label_bound", label_bound, lambda: np.abs(y), derived)
            y = np.clip(y, -largest_label, largest_label)
        else:
            raise InputError(
                "labels: got None without a label_bound; give the public label set (classification)"
                " or label_bound (regression)"
            )

        order = np.argsort(party_of_row, kind="stable")
        sizes = np.bincount(party_of_row, minlength=len(party_names))
        X, y, weight = X[order], y[order], weight[order]
        for array in (X, y, weight):
            # of a million shards none has to do it again
            array.setflags(write=False)
        ends = np.cumsum(sizes)
        pieces = [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]
        facts = Facts(
            parties=party_names,
            sizes=tuple(sizes.tolist()),
            n_features=X.shape[1],
            row_norm=row_norm,
            labels=label_names,
            label_bound=largest_label,
            weight_bound=weight_bound,
            data_derived=tuple(dict.fromkeys(derived)),
        )
        return cls(facts, tuple(Shard(X[piece], y[piece], weight[piece]) for piece in pieces))

    def one_record_each(self) -> "Federation":
        """The same records, every one of them a party: what a curator who holds them all can work with.

        Protecting a party then protects one record, and a party's weight is a record's. Names are running numbers.
        """
        X, y, weight = self.pooled
        n = len(y)
        facts = dataclasses.replace(self.facts, parties=tuple(map(str, range(n))), sizes=(1,) * n)
        return Federation(facts, tuple(Shard(X[i : i + 1], y[i : i + 1], weight[i : i + 1]) for i in range(n)))

    @property
    def n_parties(self) -> int:
        return self.facts.n_parties

    @property
    def pooled(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """All records together, (X, y, weight): for references without privacy."""
        return (
            np.concatenate([shard.X for shard in self.shards]),
            np.concatenate([shard.y for shard in self.shards]),
            np.concatenate([shard.weight for shard in self.shards]),
        )


def _derived_names(data_derived: Sequence[str]) -> list[str]:
    if isinstance(data_derived, str) or not all(isinstance(name, str) for name in data_derived):
        raise InputError(f"data_derived: got {data_derived!r}; a tuple of names is needed")
    return list(data_derived)


def _bound(name: str, value: Any, observed: Callable[[], np.ndarray], derived: list[str]) -> float:
    """The public bound, or on request by name the largest observed value, which is then recorded."""
    if isinstance(value, str) and value == FROM_DATA:
        derived.append(name)
        value = float(observed().max())
        if value == 0:
            raise InputError(f"{name}: got {FROM_DATA!r} but the data are all zero; give a positive number")
    return positive_number(name, value)


def _party_codes(parties: Any, n_records: int, min_records: int) -> tuple[tuple[str, ...], np.ndarray]:
    if parties is None:
        parties = np.full(n_records, "all")
    array = plain_array("parties", parties, ndim=1)
    same_length("parties", array, n_records)
    refuse_missing("parties", array)
    names = distinct(array)
    code = {name: position for position, name in enumerate(names)}
    party_of_row = np.array([code[name] for name in array.tolist()], dtype=np.int64)
    for number, size in enumerate(np.bincount(party_of_row).tolist()):
        if size < min_records:
            row = int(np.argmax(party_of_row == number))
            # such a name is often a slip, or that of a person
            raise InputError(
                f"parties: the party of row {row}{quoted(str(names[number]))} has {size} "
                f"record{'s' * (size > 1)}; at least min_records={min_records} are needed (min_records=1 allows people "
                "as parties)"
            )
    return tuple(str(name) for name in names), party_of_row


def _label_positions(
    y: Any, labels: Sequence[Any] | str, n_records: int, derived: list[str]
) -> tuple[np.ndarray, tuple[str, ...]]:
    array = plain_array("y", y, ndim=1)
    same_length("y", array, n_records)
    refuse_missing("y", array)
    if isinstance(labels, str):
        if labels != FROM_DATA:
            raise InputError(f"labels: got {labels!r}; the public label set in order, or {FROM_DATA!r}, is needed")
        derived.append("labels")
        values = distinct(array)
    else:
        values = list(labels)
    position = {value: number for number, value in enumerate(values)}
    if len(position) < 2 or len(position) != len(values):
        raise InputError(f"labels: got {tuple(values)}; at least two different labels are needed")
    try:
        positions = [position[value] for value in array.tolist()]
    except KeyError:
        row, value = next((row, value) for row, value in enumerate(array.tolist()) if value not in position)
        raise InputError(f"y: row {row} has a label{quoted(value)} that is not in labels={tuple(values)}") from None
    return np.array(positions, dtype=np.float64), tuple(str(value) for value in values)


# --- rows of a design -------------------------------------------------------------------------------------------------


def row_norms(X: np.ndarray) -> np.ndarray:
    """2-norms that do not overflow on the way."""
    peak, direction_norm = _peak_and_direction_norm(X)
    with np.errstate(over="ignore"):
        return peak * direction_norm


def _peak_and_direction_norm(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    peak = np.abs(X).max(axis=1, initial=0.0)
    direction = X / np.where(peak > 0, peak, 1.0)[:, None]
    return peak, np.maximum(np.linalg.norm(direction, axis=1), 1.0)


def project_rows(X: np.ndarray, bound: float) -> np.ndarray:
    """Rows scaled down to norm `bound` where they are longer; the others are returned unchanged."""
    peak, direction_norm = _peak_and_direction_norm(X)
    largest_peak = bound / direction_norm
    projected = X.copy()
    longer = peak > largest_peak
    projected[longer] = X[longer] / peak[longer, None] * largest_peak[longer, None]
    # Rounding can leave a norm one step above the bound, and the bound is what sensitivity rests on.
    while (above := np.linalg.norm(projected, axis=1) > bound).any():
        projected[above] *= 1 - 2.0**-52
    return projected


class Clipping(NamedTuple):
    """How rows are clipped once more, about a centre and by columns: x/bound - centre, times scale, to norm 1."""

    centre: np.ndarray
    scale: np.ndarray

    def __call__(self, X: np.ndarray, bound: float) -> np.ndarray:
        """Of rows that are held to `bound`."""
        apart = project_rows(X, bound) / bound - self.centre
        length = np.linalg.norm(apart * self.scale, axis=1, keepdims=True)
        return bound * (self.centre + apart / np.maximum(length, 1.0))

    def of_design(self, design: np.ndarray, bound: float) -> np.ndarray:
        """Of rows of a design, whose constant column, if it has one, stays."""
        features, constant = np.split(design, [len(self.centre)], axis=1)
        room = math.sqrt(bound**2 - float((constant[:1] ** 2).sum()))
        return np.column_stack([self(features, room), constant])


def make_design(X: np.ndarray, bound: float, *, intercept: bool) -> np.ndarray:
    rows = project_rows(X, bound)
    if not intercept:
        return rows
    design = np.empty((len(X), X.shape[1] + 1))
    design[:, :-1] = rows
    design[:, -1] = INTERCEPT_SHARE * bound
    design /= math.sqrt(1 + INTERCEPT_SHARE**2)
    return design


def split_intercept(coefficients: np.ndarray, bound: float, *, intercept: bool) -> tuple[np.ndarray, np.ndarray]:
    """(coef, intercept) for projected rows, from coefficients of the design (last axis: columns)."""
    if not intercept:
        return coefficients, np.zeros(coefficients.shape[:-1])
    scaled = coefficients / math.sqrt(1 + INTERCEPT_SHARE**2)
    return scaled[..., :-1], scaled[..., -1] * (INTERCEPT_SHARE * bound)
