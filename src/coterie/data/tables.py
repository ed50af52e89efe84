"""Columns from CSV and Parquet files: only those asked for, numbers as float64, with bounded memory.

CSV means UTF-8, commas and one line of column names. A cell that should be a number and is none stays a text, so that
the schema can refuse it by row and value.
"""

import csv
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data.checks import nearest
from coterie.errors import InputError, MissingExtraError

CHUNK_ROWS = 50_000  # rows of a CSV file that are held as texts at a time
_SHOWN_COLUMNS = 8


def read_columns(path: Path, names: Collection[str], *, numbers: Collection[str] = ()) -> dict[str, np.ndarray]:
    """The columns `names` of a file; those in `numbers` as float64 where every cell is a number."""
    kind = _kind(path)
    try:
        return _READERS[kind](path, tuple(names), frozenset(numbers))
    except OSError as error:
        raise _unreadable(path, error) from None


def column_names(path: Path) -> list[str]:
    kind = _kind(path)
    try:
        return _parquet_file(path).schema_arrow.names if kind == "parquet" else next(_csv_rows(path))[1]
    except OSError as error:
        raise _unreadable(path, error) from None


def _kind(path: Path) -> str:
    kind = path.suffix.lower().removeprefix(".")
    if kind not in _READERS:
        raise InputError(f"file: got {str(path)!r}; a name that ends in .csv or .parquet is needed")
    return kind


def _unreadable(path: Path, error: OSError) -> InputError:
    reason = error.strerror or " ".join(str(error).split())[:200]
    return InputError(f"file: cannot read {str(path)!r} ({reason})")


def _check_names(path: Path, present: list[str], wanted: tuple[str, ...]) -> None:
    repeated = sorted({name for name in present if present.count(name) > 1})
    if repeated:
        raise InputError(f"file: {str(path)!r} has two columns named {repeated[0]!r}; every column needs its own name")
    for name in wanted:
        if name not in present:
            shown = ", ".join(present[:_SHOWN_COLUMNS]) + (", ..." if len(present) > _SHOWN_COLUMNS else "")
            raise InputError(f"file: {str(path)!r} has no column {name!r}{nearest(name, present)}; it has {shown}")


# --- CSV --------------------------------------------------------------------------------------------------------------


def _read_csv(path: Path, names: tuple[str, ...], numbers: frozenset[str]) -> dict[str, np.ndarray]:
    rows = _csv_rows(path)
    _, header = next(rows)
    _check_names(path, header, names)
    places = [header.index(name) for name in names]
    shared: dict[str, str] = {}  # equal texts are stored once
    pieces: list[list[np.ndarray]] = [[] for _ in names]
    chunk: list[list[str]] = []

    def put_away() -> None:
        for name, place, stored in zip(names, places, pieces, strict=True):
            cells = [row[place] for row in chunk]
            stored.append(_as_numbers(cells) if name in numbers else _as_texts(cells, shared))
        chunk.clear()

    for line, row in rows:
        if len(row) != len(header):
            raise InputError(
                f"file: {str(path)!r} has {len(row)} cells in line {line} and {len(header)} column names; it is cut "
                "off or not a table with commas"
            )
        chunk.append(row)
        if len(chunk) == CHUNK_ROWS:
            put_away()
    put_away()
    if not sum(map(len, pieces[0])):
        raise _no_rows(path)
    return {name: np.concatenate(stored) for name, stored in zip(names, pieces, strict=True)}


def _csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(line number, cells), the column names first; empty lines are passed over."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        found = False
        try:
            for row in reader:
                if row:
                    found = True
                    yield reader.line_num, row
        except UnicodeDecodeError as error:
            raise InputError(
                f"file: {str(path)!r} is not UTF-8 text (byte 0x{error.object[error.start]:02x} after line "
                f"{reader.line_num}); save it as UTF-8"
            ) from None
        except csv.Error as error:
            raise InputError(f"file: {str(path)!r} is no CSV table (line {reader.line_num}: {error})") from None
        if not found:
            raise InputError(f"file: {str(path)!r} is empty; column names and rows are needed")


def _as_numbers(cells: list[str]) -> np.ndarray:
    try:
        return np.array(cells, dtype=np.float64)
    except ValueError:
        return np.array(cells, dtype=object)


def _as_texts(cells: list[str], shared: dict[str, str]) -> np.ndarray:
    return np.array([shared.setdefault(cell, cell) for cell in cells], dtype=object)


def _no_rows(path: Path) -> InputError:
    return InputError(f"file: {str(path)!r} has 0 rows; at least one record is needed")


# --- Parquet ----------------------------------------------------------------------------------------------------------


def _read_parquet(path: Path, names: tuple[str, ...], numbers: frozenset[str]) -> dict[str, np.ndarray]:
    import pyarrow as pa

    file = _parquet_file(path)
    _check_names(path, file.schema_arrow.names, names)
    if file.metadata.num_rows == 0:
        raise _no_rows(path)
    columns: dict[str, np.ndarray] = {}
    try:
        for name in names:  # one at a time: a whole file in memory twice would be too much
            column = file.read(columns=[name], use_threads=False).column(0)
            columns[name] = _from_arrow(path, name, column, as_number=name in numbers)
    except pa.ArrowException as error:
        raise _broken_parquet(path, error) from None
    return columns


def _from_arrow(path: Path, name: str, column: Any, *, as_number: bool) -> np.ndarray:
    import pyarrow as pa

    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    if not (is_number or pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_decimal(kind)):
        raise InputError(f"file: column {name!r} of {str(path)!r} holds {kind}; numbers or texts are needed")
    if is_number and as_number:
        return column.to_numpy().astype(np.float64, copy=False)  # missing cells are NaN, which the schema refuses
    return np.array(column.to_pylist(), dtype=object)


def _parquet_file(path: Path) -> Any:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtraError("Parquet files need pyarrow: pip install 'coterie[parquet]'") from None
    try:
        return pq.ParquetFile(path)
    except pa.ArrowException as error:
        raise _broken_parquet(path, error) from None


def _broken_parquet(path: Path, error: Exception) -> InputError:
    return InputError(f"file: {str(path)!r} is no readable Parquet file ({' '.join(str(error).split())[:200]})")


_READERS = {"csv": _read_csv, "parquet": _read_parquet}
