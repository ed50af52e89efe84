"""A public schema: what columns, categories, ranges and labels a federation agreed on before anyone looked at data."""

import dataclasses
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data.checks import is_missing, nearest, quoted
from coterie.errors import InputError
from coterie.facts import check_plain


def _check_name(what: str, name: Any) -> str:
    if not isinstance(name, str) or not name:
        raise InputError(f"{what}: got name {name!r}; a non-empty text is needed")
    check_plain(what, [name])
    return str(name)


def _check_range(name: str, minimum: Any, maximum: Any) -> tuple[float, float]:
    are_numbers = all(isinstance(value, Real) and math.isfinite(value) for value in (minimum, maximum))
    if not (are_numbers and minimum < maximum):
        raise InputError(f"column {name!r}: got range {minimum!r} to {maximum!r}; finite minimum < maximum is needed")
    return float(minimum), float(maximum)


def _check_texts(name: str, what: str, texts: Any, *, at_least: int) -> tuple[str, ...]:
    is_list = isinstance(texts, Sequence | np.ndarray) and not isinstance(texts, str)
    if not is_list or not all(isinstance(text, str) and text for text in texts):
        raise InputError(f"column {name!r}: got {what} {texts!r}; a list of non-empty texts is needed")
    if len(texts) < at_least or len(set(texts)) != len(texts):
        raise InputError(f"column {name!r}: got {what} {tuple(texts)}; at least {at_least} different ones are needed")
    check_plain(f"column {name!r}", texts)
    return tuple(str(text) for text in texts)


def _values(name: str, values: Any) -> list[Any]:
    if isinstance(values, str) or not isinstance(values, Iterable) or getattr(values, "ndim", 1) != 1:
        raise InputError(f"column {name!r}: got {type(values).__name__}; a list with one value per row is needed")
    return values.tolist() if isinstance(values, np.ndarray) else list(values)


def _numbers(name: str, values: Any) -> np.ndarray:
    """Finite numbers; text such as "39" counts as a number, as it does in a CSV file."""
    rows = _values(name, values)
    try:
        numbers = np.array(rows, dtype=np.float64)
    except (TypeError, ValueError):
        numbers = np.empty((0, 0))
    if numbers.ndim != 1:  # some cell is no number: find it
        numbers = np.array([_number_or_nan(value) for value in rows])
    if not np.isfinite(numbers).all():
        row = int(np.argmin(np.isfinite(numbers)))
        what = "missing" if is_missing(rows[row]) else f"no finite number{quoted(rows[row])}"
        raise InputError(f"column {name!r}: row {row} is {what}; a finite number is needed")
    return numbers


def _number_or_nan(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def _positions(name: str, values: Any, allowed: tuple[str, ...]) -> np.ndarray:
    """Position of each value in `allowed`, compared as text."""
    position = {text: number for number, text in enumerate(allowed)}
    rows = _values(name, values)
    positions = [position.get(value if isinstance(value, str) else str(value), -1) for value in rows]
    if -1 in positions:
        row = positions.index(-1)
        what = "missing" if is_missing(rows[row]) else f"something else{quoted(rows[row])}"
        raise InputError(f"column {name!r}: row {row} is {what}; one of {allowed} is needed")
    return np.array(positions, dtype=np.int64)


@dataclasses.dataclass(frozen=True)
class NumberColumn:
    """A number with a public range: clipped into it, then divided by its largest absolute value."""

    name: str
    minimum: float
    maximum: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", _check_name("column", self.name))
        minimum, maximum = _check_range(self.name, self.minimum, self.maximum)
        object.__setattr__(self, "minimum", minimum)
        object.__setattr__(self, "maximum", maximum)

    @property
    def bound(self) -> float:
        return max(abs(self.minimum), abs(self.maximum))

    @property
    def feature_names(self) -> tuple[str, ...]:
        return (self.name,)

    def encode(self, values: Any) -> np.ndarray:
        return (np.clip(_numbers(self.name, values), self.minimum, self.maximum) / self.bound)[:, None]


@dataclasses.dataclass(frozen=True)
class CategoryColumn:
    """One of the public categories: one 0/1 feature for each, in the declared order."""

    name: str
    categories: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", _check_name("column", self.name))
        object.__setattr__(self, "categories", _check_texts(self.name, "categories", self.categories, at_least=1))

    @property
    def feature_names(self) -> tuple[str, ...]:
        return tuple(f"{self.name}={category}" for category in self.categories)

    def encode(self, values: Any) -> np.ndarray:
        positions = _positions(self.name, values, self.categories)
        one_hot = np.zeros((len(positions), len(self.categories)))
        one_hot[np.arange(len(positions)), positions] = 1.0
        return one_hot


@dataclasses.dataclass(frozen=True)
class Label:
    """The public label set, in order."""

    name: str
    values: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", _check_name("label", self.name))
        object.__setattr__(self, "values", _check_texts(self.name, "values", self.values, at_least=2))

    def encode(self, values: Any) -> np.ndarray:
        return np.array(self.values)[_positions(self.name, values, self.values)]


@dataclasses.dataclass(frozen=True)
class NumberLabel(NumberColumn):
    """A number to predict, clipped into its public range but not scaled; `bound` serves as `label_bound`."""

    def encode(self, values: Any) -> np.ndarray:
        return np.clip(_numbers(self.name, values), self.minimum, self.maximum)


@dataclasses.dataclass(frozen=True)
class Schema:
    """Feature columns in order, the label, and the column that names each row's party (if there is one)."""

    columns: tuple[NumberColumn | CategoryColumn, ...]
    label: Label | NumberLabel
    party_column: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        if not self.columns:
            raise InputError("columns: got none; a schema needs at least one feature column")
        names = [column.name for column in self.columns] + [self.label.name]
        if self.party_column is not None:
            names.append(_check_name("party_column", self.party_column))
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise InputError(f"columns: the name {repeated[0]!r} is used twice; every column needs its own name")

    @property
    def feature_names(self) -> tuple[str, ...]:
        return tuple(name for column in self.columns for name in column.feature_names)

    def encode(self, table: Mapping[str, Iterable[Any]]) -> np.ndarray:
        """The feature matrix of a table given as column name -> values; other columns are ignored."""
        blocks: list[np.ndarray] = []
        for column in self.columns:
            if column.name not in table:
                raise InputError(f"table: column {column.name!r} is missing{nearest(column.name, map(str, table))}")
            blocks.append(column.encode(table[column.name]))
            if len(blocks[-1]) != len(blocks[0]):
                first = f"column {self.columns[0].name!r} has {len(blocks[0])}"
                raise InputError(f"column {column.name!r}: got {len(blocks[-1])} values but {first}")
        return np.hstack(blocks)

    def encode_label(self, values: Iterable[Any]) -> np.ndarray:
        """Labels as texts of the public label set, or numbers clipped into the public range."""
        return self.label.encode(values)

    def to_dict(self) -> dict[str, Any]:
        party = {} if self.party_column is None else {"party_column": self.party_column}
        columns = [dataclasses.asdict(column) for column in self.columns]
        return {**party, "label": dataclasses.asdict(self.label), "columns": columns}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "Schema":
        _check_keys("schema", content, needed=("label", "columns"), optional=("party_column",))
        if not isinstance(content["columns"], list | tuple):
            raise InputError(f"columns: got {content['columns']!r}; a list of tables is needed")
        columns = tuple(
            _read_part("columns", part, "categories", CategoryColumn, NumberColumn) for part in content["columns"]
        )
        label = _read_part("label", content["label"], "values", Label, NumberLabel)
        return cls(columns, label, content.get("party_column"))

    @classmethod
    def read(cls, path: str | Path) -> "Schema":
        """Read a schema from a TOML file."""
        try:
            return cls.from_dict(tomllib.loads(Path(path).read_text(encoding="utf-8")))
        except OSError as error:
            raise InputError(f"path: cannot read {str(path)!r}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"path: {str(path)!r} is not a TOML file: {error}") from error

    def write(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the schema as a TOML file; an existing file is kept unless `overwrite` is asked for."""
        import tomli_w  # reading needs only the standard library

        try:
            with Path(path).open("wb" if overwrite else "xb") as file:
                tomli_w.dump(self.to_dict(), file)
        except FileExistsError as error:
            raise InputError(f"path: {str(path)!r} exists already; overwrite=True replaces it") from error
        except OSError as error:
            raise InputError(f"path: cannot write {str(path)!r}: {error.strerror}") from error


def _check_keys(where: str, content: Any, *, needed: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
    if not isinstance(content, Mapping):
        raise InputError(f"{where}: got {content!r}; a table is needed")
    for key in content:
        if key not in needed + optional:
            raise InputError(f"{where}: unknown key {key!r}{nearest(key, needed + optional)}")
    for key in needed:
        if key not in content:
            raise InputError(f"{where}: key {key!r} is missing")


def _read_part(where: str, content: Any, list_key: str, of_texts: type, of_numbers: type) -> Any:
    """One column or the label: texts where it has `list_key`, a number with a range otherwise."""
    _check_keys(where, content, needed=("name",), optional=("minimum", "maximum", list_key))
    where = f"{where} {content['name']!r}"
    if list_key in content:
        _check_keys(where, content, needed=("name", list_key))
        return of_texts(content["name"], content[list_key])
    _check_keys(where, content, needed=("name", "minimum", "maximum"))
    return of_numbers(content["name"], content["minimum"], content["maximum"])
