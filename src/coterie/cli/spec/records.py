"""The records of a spec: a data set of the package, one file with a party column, or one file per party."""

import dataclasses
from collections.abc import Iterable

import numpy as np

from coterie.cli.spec.sections import DataSection, Spec
from coterie.data import CategoryColumn, Federation, Label, NumberColumn, Schema, load, partition
from coterie.data.tables import read_columns
from coterie.errors import InputError

DEFAULT_PARTIES = 5  # of a data set that has no parties of its own


@dataclasses.dataclass(frozen=True)
class Records:
    """`test` is held out and declared public: only the package's own data sets have it."""

    federation: Federation
    schema: Schema
    feature_names: tuple[str, ...]
    test: tuple[np.ndarray, np.ndarray] | None


def load_records(spec: Spec) -> Records:
    return _from_dataset(spec) if spec.data.dataset is not None else _from_files(spec)


def _from_dataset(spec: Spec) -> Records:
    assert spec.data.dataset is not None
    options = {}
    if spec.data.dataset == "adult":
        options = {"preprocessing": spec.data.preprocessing, "constant_column": spec.data.constant_column}
    data = load(spec.data.dataset, **options)
    if data.parties is not None and spec.parties.count is None:
        parties = data.parties[data.train]
    else:
        count = spec.parties.count or DEFAULT_PARTIES
        parties = partition.evenly(len(data.train), count, seed=spec.parties.seed)

    def federation(rows: np.ndarray, parties: np.ndarray | None) -> Federation:
        return Federation.from_arrays(
            data.X[rows],
            data.y[rows],
            parties=parties,
            labels=data.labels,
            row_norm=spec.data.row_norm,
            min_records=spec.data.min_records,
            data_derived=data.data_derived,
        )

    X, y, _ = federation(data.test, None).pooled
    return Records(federation(data.train, parties), data.schema, data.feature_names, (X, y))


def _from_files(spec: Spec) -> Records:
    schema, data = spec.schema, spec.data
    assert schema is not None
    table, parties = _read(data, schema, spec.parties.column)
    weight = None if data.weight_column is None else _weights(data.weight_column, table)
    X, y = encode(schema, table)
    if spec.parties.count is not None:
        parties = partition.evenly(len(X), spec.parties.count, seed=spec.parties.seed)
    else:
        _check_party_names(parties)
    federation = Federation.from_arrays(
        X,
        y,
        parties=parties,
        labels=schema.label.values if isinstance(schema.label, Label) else None,
        label_bound=None if isinstance(schema.label, Label) else schema.label.bound,
        row_norm=data.row_norm,
        sample_weight=weight,
        weight_bound=data.weight_bound,
        min_records=data.min_records,
        data_derived=spec.data_derived,
    )
    return Records(federation, schema, schema.feature_names, None)


def _weights(name: str, table: dict[str, np.ndarray]) -> np.ndarray:
    """Weights have no range of their own: `weight_bound` cuts them."""
    values = table.pop(name)
    if values.dtype != np.float64:
        raise InputError(f"data.weight_column: {name!r} holds texts; numbers are needed")
    return values


def wanted_columns(schema: Schema) -> tuple[list[str], list[str]]:
    """The names of all columns that a schema needs, and of those that are numbers."""
    numbers = [column.name for column in schema.columns if isinstance(column, NumberColumn)]
    if not isinstance(schema.label, Label):
        numbers.append(schema.label.name)
    return [*(column.name for column in schema.columns), schema.label.name], numbers


def encode(schema: Schema, table: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Features and labels; columns leave `table` as they are used, so that no two copies of all of them exist."""
    y = schema.encode_label(table.pop(schema.label.name))
    X = np.empty((len(y), len(schema.feature_names)))
    start = 0
    for column in schema.columns:
        width = len(column.categories) if isinstance(column, CategoryColumn) else 1
        X[:, start : start + width] = column.encode(table.pop(column.name))
        start += width
    return X, y


def _read(data: DataSection, schema: Schema, party_column: str | None) -> tuple[dict[str, np.ndarray], np.ndarray]:
    names, numbers = wanted_columns(schema)
    if data.weight_column is not None:
        if data.weight_column in (*names, party_column):
            raise InputError(
                f"data.weight_column: got {data.weight_column!r}, which is used for something else already"
            )
        names, numbers = [*names, data.weight_column], [*numbers, data.weight_column]
    if data.file is not None:
        extra = [] if party_column is None else [party_column]
        if party_column in names:
            raise InputError(f"parties.column: got {party_column!r}, which is a feature, the label or the weight")
        table = read_columns(data.file, [*names, *extra], numbers=numbers)
        return table, (np.empty(0) if party_column is None else table.pop(party_column))
    assert data.files is not None
    tables = {party: read_columns(path, names, numbers=numbers) for party, path in data.files.items()}
    parties = np.repeat(list(tables), [len(table[names[0]]) for table in tables.values()])
    return {name: np.concatenate([table.pop(name) for table in tables.values()]) for name in names}, parties


def _check_party_names(parties: Iterable[object]) -> None:
    """Refuse rows without a party, and names that differ in case or spaces only: most likely one party, misspelt."""
    seen: dict[str, str] = {}
    for name in sorted({str(name) if name is not None else "" for name in parties}):
        plain = " ".join(name.split()).casefold()
        if plain in ("", "nan", "none"):
            raise InputError(f"parties: a row has the party {name!r}; every row needs the name of its party")
        if plain in seen:
            raise InputError(f"parties: {seen[plain]!r} and {name!r} differ in case or spaces only; one name is needed")
        seen[plain] = name
