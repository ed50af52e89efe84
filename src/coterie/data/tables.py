"""Columns from CSV and Parquet files: only those asked for, numbers as float64, with bounded memory.

CSV means one line of column names, UTF-8 unless another encoding is named, and commas, semicolons, tabs or bars between
cells, whichever the line of names has; `.csv.gz` is unpacked on the way. Beside anything but commas, a comma in a
number is its decimal point. A cell that should be a number and is none stays a text, so that the schema can refuse it
by line and value.
"""

import codecs
import contextlib
import csv
import gzip
import io
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from coterie.errors import InputError, MissingExtraError
from coterie.values import BLANKS, nearest

# rows of a CSV file that are held as texts at a time
CHUNK_ROWS = 50_000
DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_SHOWN_COLUMNS = 8


class Dialect(NamedTuple):
    """How a CSV file is written, where that is not to be seen in it."""

    delimiter: str | None = None
    encoding: str = "utf-8"

    @classmethod
    def checked(cls, where: str, delimiter: Any, encoding: Any) -> "Dialect":
        if delimiter is not None and delimiter not in DELIMITERS:
            raise InputError(
                f"{where}delimiter: got {delimiter!r}; one of {', '.join(map(repr, DELIMITERS))} is needed"
            )
        try:
            "names".encode(encoding)
        except (LookupError, ValueError, TypeError):
            raise InputError(
                f"{where}encoding: got {encoding!r}; the name of a text encoding is needed, such as 'latin-1'"
            ) from None
        return cls(delimiter, encoding)


USUAL = Dialect()


class Table(dict[str, np.ndarray]):
    """Columns by name, and where in which file each row stands."""

    def __init__(self, columns: dict[str, np.ndarray], path: Path, lines: np.ndarray | None) -> None:
        super().__init__(columns)
        n_rows = len(next(iter(columns.values())))
        self.parts = [(path, n_rows, lines)]

    @classmethod
    def joined(cls, tables: Collection["Table"]) -> "Table":
        """One below the other; the columns leave `tables`, so that no two copies of all of them exist."""
        first = next(iter(tables))
        whole = cls.__new__(cls)
        whole.parts = [part for table in tables for part in table.parts]
        for name in list(first):
            whole[name] = np.concatenate([table.pop(name) for table in tables])
        return whole

    @property
    def n_rows(self) -> int:
        return sum(n_rows for _, n_rows, _ in self.parts)

    def take(self, name: str) -> np.ndarray:
        return self.pop(name)

    def line(self, row: int) -> int | None:
        """The line of the file in which a row ends; None of a file without lines."""
        return self._part(row)[1]

    def place(self, row: int) -> str:
        path, line, row = self._part(row)
        of = "" if len(self.parts) == 1 else f" of {path.name!r}"
        return f"row {row}{of}" if line is None else f"line {line}{of}"

    def _part(self, row: int) -> tuple[Path, int | None, int]:
        for path, n_rows, lines in self.parts:
            if row < n_rows:
                return path, None if lines is None else int(lines[row]), row
            row -= n_rows
        raise IndexError(row)


def read_columns(
    path: Path, names: Collection[str], *, numbers: Collection[str] = (), dialect: Dialect = USUAL
) -> Table:
    """The columns `names` of a file; those in `numbers` as float64 where every cell is a number or blank."""
    kind = _kind(path)
    try:
        if kind == "parquet":
            return _read_parquet(path, tuple(names), frozenset(numbers))
        return _read_csv(path, tuple(names), frozenset(numbers), dialect)
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable(path, error) from None


def column_names(path: Path, *, dialect: Dialect = USUAL) -> list[str]:
    kind = _kind(path)
    try:
        if kind == "parquet":
            return _parquet_file(path).schema_arrow.names
        rows = _csv_rows(path, dialect)
        next(rows)
        return next(rows)[1]
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable(path, error) from None


def _kind(path: Path) -> str:
    name = path.name.lower()
    for ending, kind in ((".csv", "csv"), (".csv.gz", "csv"), (".parquet", "parquet")):
        if name.endswith(ending):
            return kind
    raise InputError(f"file: got {str(path)!r}; a name that ends in .csv, .csv.gz or .parquet is needed")


def _unreadable(path: Path, error: Exception) -> InputError:
    reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:200]
    return InputError(f"file: cannot read {str(path)!r} ({reason})")


def _check_names(path: Path, present: list[str], wanted: tuple[str, ...]) -> None:
    # of a file that has none of them the first line may be somebody's record, which no message must quote
    if not set(wanted) & set(present):
        raise InputError(
            f"file: {str(path)!r} has no column {wanted[0]!r}, nor any other that is needed; its first line must be "
            "names of columns"
        )
    repeated = sorted({name for name in present if present.count(name) > 1})
    if repeated:
        raise InputError(f"file: {str(path)!r} has two columns named {repeated[0]!r}; every column needs its own name")
    for name in wanted:
        if name not in present:
            shown = ", ".join(present[:_SHOWN_COLUMNS]) + (", ..." if len(present) > _SHOWN_COLUMNS else "")
            raise InputError(f"file: {str(path)!r} has no column {name!r}{nearest(name, present)}; it has {shown}")


# --- CSV --------------------------------------------------------------------------------------------------------------


def _read_csv(path: Path, names: tuple[str, ...], numbers: frozenset[str], dialect: Dialect) -> Table:
    rows = _csv_rows(path, dialect)
    delimiter = next(rows)[1][0]
    _, header = next(rows)
    _check_names(path, header, names)
    places = [header.index(name) for name in names]
    # equal texts are stored once
    shared: dict[str, str] = {}
    pieces: list[list[np.ndarray]] = [[] for _ in names]
    chunk: list[list[str]] = []
    lines: list[int] = []

    def put_away() -> None:
        for name, place, stored in zip(names, places, pieces, strict=True):
            cells = [row[place] for row in chunk]
            if name in numbers and delimiter != ",":
                _check_decimals(path, name, cells, lines[-len(cells) :])
            stored.append(_as_numbers(cells, delimiter) if name in numbers else _as_texts(cells, shared))
        chunk.clear()

    for line, row in rows:
        if len(row) != len(header):
            raise InputError(
                f"file: {str(path)!r} has {len(row)} cells in line {line} and {len(header)} column names; it is cut "
                f"off or not a table with {DELIMITERS[delimiter]}"
            )
        chunk.append(row)
        lines.append(line)
        if len(chunk) == CHUNK_ROWS:
            put_away()
    put_away()
    if not lines:
        raise _no_rows(path)
    columns = {name: np.concatenate(stored) for name, stored in zip(names, pieces, strict=True)}
    return Table(columns, path, np.array(lines))


def _csv_rows(path: Path, dialect: Dialect) -> Iterator[tuple[int, list[str]]]:
    """(line number, cells): first [delimiter], then the column names, then the rows; empty lines are passed over."""
    encoding = "utf-8-sig" if codecs.lookup(dialect.encoding).name == "utf-8" else dialect.encoding
    with contextlib.ExitStack() as stack:
        opened = gzip.open if path.name.lower().endswith(".gz") else open
        binary: Any = stack.enter_context(opened(path, "rb"))
        if codecs.lookup(dialect.encoding).name == "utf-8":
            _check_kind(path, binary.read(1024))
            binary.seek(0)
        file = stack.enter_context(io.TextIOWrapper(binary, encoding=encoding, newline=""))
        line_number, found = 0, False
        try:
            delimiter = dialect.delimiter or _delimiter(next((line for line in file if line.strip()), ""))
            yield 0, [delimiter]
            file.seek(0)
            reader = csv.reader(file, strict=True, delimiter=delimiter)
            for row in reader:
                line_number = reader.line_num
                if row:
                    found = True
                    yield line_number, row
        except UnicodeDecodeError as error:
            binary.seek(0)
            place = _first_misfit(binary, encoding) or f"byte 0x{error.object[error.start]:02x}"
            raise InputError(
                f"file: {str(path)!r} is not {_encoding_name(dialect.encoding)} text ({place}); save it as UTF-8, or "
                "name its encoding"
            ) from None
        except UnicodeError:
            raise InputError(f"file: {str(path)!r} is not {dialect.encoding} text; name its encoding") from None
        except csv.Error as error:
            raise InputError(f"file: {str(path)!r} is no CSV table (line {line_number + 1}: {error})") from None
        if not found:
            raise InputError(f"file: {str(path)!r} is empty; column names and rows are needed")


def _check_kind(path: Path, start: bytes) -> None:
    """Files of other kinds, by how they begin: what is in them must not end up in a message as if it were names."""
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise InputError(f"file: {str(path)!r} is UTF-16 text; save it as UTF-8, or name its encoding, 'utf-16'")
    if start.startswith(b"PK\x03\x04"):
        raise InputError(f"file: {str(path)!r} is a workbook or an archive; save the table in it as CSV")
    if b"\0" in start.partition(b"\n")[0]:
        raise InputError(
            f"file: {str(path)!r} holds NUL bytes where column names should be; text is needed, and another encoding "
            "than UTF-8 must be named"
        )


def _first_misfit(binary: Any, encoding: str) -> str | None:
    """Where bytes are no text, of encodings in which a line ends as in ASCII."""
    for number, line in enumerate(binary, start=1):
        try:
            line.decode(encoding)
        except UnicodeDecodeError as error:
            return f"byte 0x{error.object[error.start]:02x} in line {number}"
    return None


def _encoding_name(encoding: str) -> str:
    return "UTF-8" if codecs.lookup(encoding).name == "utf-8" else encoding


def _delimiter(names: str) -> str:
    """The one that the line of column names has most of, outside of quotes."""
    bare = "".join(names.split('"')[::2])
    return max(DELIMITERS, key=bare.count)


def _as_numbers(cells: list[str], delimiter: str) -> np.ndarray:
    # Python takes 3_0 for thirty; the schema refuses it
    plain = not any("_" in cell for cell in cells)
    if plain:
        with contextlib.suppress(ValueError):
            return np.array(cells, dtype=np.float64)
    filled = ["nan" if cell.strip() in BLANKS else cell for cell in cells]
    if delimiter != ",":
        filled = [cell.replace(",", ".") for cell in filled]
    if plain:
        with contextlib.suppress(ValueError):
            return np.array(filled, dtype=np.float64)
    return np.array(filled, dtype=object)


def _check_decimals(path: Path, name: str, cells: list[str], lines: list[int]) -> None:
    """Beside points, a comma may stand between thousands: then nobody can tell what a number is."""
    with_comma = next((k for k, cell in enumerate(cells) if "," in cell and _is_number(cell.replace(",", "."))), None)
    if with_comma is None:
        return
    with_point = next((k for k, cell in enumerate(cells) if "." in cell and _is_number(cell)), None)
    if with_point is not None:
        raise InputError(
            f"file: column {name!r} of {str(path)!r} has numbers with a comma (line {lines[with_comma]}) and with a "
            f"point (line {lines[with_point]}); one of the two must be the decimal point of all"
        )


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _as_texts(cells: list[str], shared: dict[str, str]) -> np.ndarray:
    return np.array([shared.setdefault(cell, cell) for cell in cells], dtype=object)


def _no_rows(path: Path) -> InputError:
    return InputError(f"file: {str(path)!r} has 0 rows; at least one record is needed")


# --- Parquet ----------------------------------------------------------------------------------------------------------


def _read_parquet(path: Path, names: tuple[str, ...], numbers: frozenset[str]) -> Table:
    import pyarrow as pa

    file = _parquet_file(path)
    _check_names(path, file.schema_arrow.names, names)
    if file.metadata.num_rows == 0:
        raise _no_rows(path)
    columns: dict[str, np.ndarray] = {}
    try:
        # one at a time: a whole file in memory twice would be too much
        for name in names:
            column = file.read(columns=[name], use_threads=False).column(0)
            columns[name] = _from_arrow(path, name, column, as_number=name in numbers)
    except pa.ArrowException as error:
        raise _broken_parquet(path, error) from None
    return Table(columns, path, None)


def _from_arrow(path: Path, name: str, column: Any, *, as_number: bool) -> np.ndarray:
    import pyarrow as pa

    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    if not (is_number or pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_decimal(kind)):
        raise InputError(f"file: column {name!r} of {str(path)!r} holds {kind}; numbers or texts are needed")
    if is_number and as_number:
        # missing cells are NaN, which the schema refuses
        return column.to_numpy().astype(np.float64, copy=False)
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
