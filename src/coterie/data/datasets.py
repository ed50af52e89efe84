"""Two public data sets, carried compressed in the package: Adult (the papers') and Heart Disease (four hospitals)."""

import dataclasses
import tomllib
from collections.abc import Callable
from importlib import resources
from typing import Any

import numpy as np

from coterie.data.schema import CategoryColumn, Label, NumberColumn, Schema
from coterie.errors import InputError
from coterie.values import nearest

_FILES = resources.files("coterie.data") / "files"
_MISSING = 255
_ADULT_TRAIN = 40_000

_ADULT_ATTRIBUTION = (
    "Becker, B. and Kohavi, R. (1996). Adult. UCI Machine Learning Repository. doi:10.24432/C5XW20. CC BY 4.0."
)
_HEART_ATTRIBUTION = (
    "Janosi, A., Steinbrunn, W., Pfisterer, M. and Detrano, R. (1988). Heart Disease. UCI Machine Learning Repository."
    " doi:10.24432/C52P4X. CC BY 4.0."
)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Encoded rows, labels as text, and a fixed split.

    `train` and `test` are row numbers; `parties` names each row's party where the data have real ones.
    `data_derived` names what the preprocessing read off the data; pass it on to Federation.from_arrays.
    """

    name: str
    X: np.ndarray = dataclasses.field(repr=False)
    y: np.ndarray = dataclasses.field(repr=False)
    labels: tuple[str, ...]
    feature_names: tuple[str, ...] = dataclasses.field(repr=False)
    train: np.ndarray = dataclasses.field(repr=False)
    test: np.ndarray = dataclasses.field(repr=False)
    parties: np.ndarray | None = dataclasses.field(repr=False)
    schema: Schema = dataclasses.field(repr=False)
    data_derived: tuple[str, ...]
    attribution: str

    def __post_init__(self) -> None:
        for field in ("X", "y", "train", "test", "parties"):
            if (array := getattr(self, field)) is not None:
                array.setflags(write=False)


def load_adult(*, preprocessing: str = "public", constant_column: bool = False) -> Dataset:
    """Adult: does a person earn more than 50,000 dollars a year? 45,222 complete rows in file order.

    The first 40,000 rows are `train`, the last 5,222 `test`.
    preprocessing: "public" encodes by the public schema (111 features). "papers" is what the papers did: numbers
        divided by their maximum and one feature for each category that occurs, both read off the complete rows
        (104 features).
    constant_column: append a feature that is always 1 (105 features with "papers", the number the papers print).
    """
    if preprocessing not in ("public", "papers"):
        hint = nearest(preprocessing, ("public", "papers"))
        raise InputError(f"preprocessing: got {preprocessing!r}; 'public' or 'papers' is needed{hint}")
    table = _read_table("adult")
    schema, data_derived = _read_schema("adult"), ()
    if preprocessing == "papers":
        schema, data_derived = _fitted(schema, table), ("column_maxima", "categories")
    X, feature_names = schema.encode(table), schema.feature_names
    if constant_column:
        X, feature_names = np.column_stack([X, np.ones(len(X))]), (*feature_names, "constant")
    return Dataset(
        name="adult",
        X=X,
        y=schema.encode_label(table["income"]),
        labels=_label_values(schema),
        feature_names=feature_names,
        train=np.arange(_ADULT_TRAIN),
        test=np.arange(_ADULT_TRAIN, len(X)),
        parties=None,
        schema=schema,
        data_derived=data_derived,
        attribution=_ADULT_ATTRIBUTION,
    )


def load_heart() -> Dataset:
    """Heart disease in four hospitals, the parties: 303 + 261 + 46 + 130 complete rows, 15 features, public schema.

    The columns slope, ca and thal are left out, then rows with a missing value. In file order, every fifth row of
    each hospital (its 5th, 10th, ...) is in `test`, the others in `train`. The label is "present" where num > 0.
    """
    table = _read_table("heart")
    schema = _read_schema("heart")
    parties = table["hospital"]
    is_test = np.zeros(len(parties), dtype=bool)
    for hospital in np.unique(parties):
        is_test[np.flatnonzero(parties == hospital)[4::5]] = True
    return Dataset(
        name="heart",
        X=schema.encode(table),
        y=schema.encode_label(np.where(table["num"] > 0, "present", "absent")),
        labels=_label_values(schema),
        feature_names=schema.feature_names,
        train=np.flatnonzero(~is_test),
        test=np.flatnonzero(is_test),
        parties=parties,
        schema=schema,
        data_derived=(),
        attribution=_HEART_ATTRIBUTION,
    )


DATASETS: dict[str, Callable[..., Dataset]] = {"adult": load_adult, "heart": load_heart}


def load(name: str, **options: Any) -> Dataset:
    """Load a data set by name, with the options of its own loader."""
    if name not in DATASETS:
        raise InputError(f"name: got {name!r}; known data sets are {', '.join(DATASETS)}{nearest(name, DATASETS)}")
    return DATASETS[name](**options)


def _label_values(schema: Schema) -> tuple[str, ...]:
    # both data sets are classifications
    assert isinstance(schema.label, Label)
    return schema.label.values


def _read_schema(name: str) -> Schema:
    return Schema.from_dict(tomllib.loads((_FILES / f"{name}.toml").read_text(encoding="utf-8")))


def _read_table(name: str) -> dict[str, np.ndarray]:
    """Columns of the complete rows: numbers as they are, categories as text."""
    with (_FILES / f"{name}.npz").open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        stored = {key: arrays[key] for key in arrays.files}
    columns = {key: column for key, column in stored.items() if not key.endswith(".categories")}
    complete = np.ones(len(next(iter(columns.values()))), dtype=bool)
    for key, column in columns.items():
        complete &= column != _MISSING if f"{key}.categories" in stored else np.isfinite(column)
    table = {key: column[complete] for key, column in columns.items()}
    return {
        key: stored[f"{key}.categories"][column] if f"{key}.categories" in stored else column
        for key, column in table.items()
    }


def _fitted(schema: Schema, table: dict[str, np.ndarray]) -> Schema:
    """The papers' schema: maxima and categories as they occur in the data, which is a leak in real use."""
    columns: list[NumberColumn | CategoryColumn] = []
    for column in schema.columns:
        values = table[column.name]
        if isinstance(column, NumberColumn):
            largest = float(values.max())
            columns.append(NumberColumn(column.name, 0.0, largest, centre=0.0, scale=largest))
        else:
            occurring = set(values.tolist())
            categories = tuple(c for c in column.categories if c in occurring)
            columns.append(CategoryColumn(column.name, categories, centred=False))
    return dataclasses.replace(schema, columns=tuple(columns), longest_row=1.0)
