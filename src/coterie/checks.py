"""Refusals that rooms share: one sentence that names the argument, the value and what is allowed."""

import contextlib
import contextvars
import difflib
import math
import operator
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from coterie.errors import InputError

FROM_DATA = "from-data"
# bool, integers, floats
NUMERIC_KINDS = "biuf"


_SHOW_VALUES = contextvars.ContextVar("show_values", default=False)


@contextlib.contextmanager
def values_shown(wanted: bool = True) -> Iterator[None]:
    """Refusals say where a value stands; inside this block, also what it is."""
    before = _SHOW_VALUES.set(wanted)
    try:
        yield
    finally:
        _SHOW_VALUES.reset(before)


def quoted(value: Any) -> str:
    """A cell of somebody's record in a sentence that may be logged or sent on: only where it was asked for."""
    return f" ({value!r})" if _SHOW_VALUES.get() else " (--show-values quotes it)"


# how blanks are written in files
BLANKS = frozenset(("", "NA", "N/A", "n/a", "NaN", "nan", "NAN", "null", "NULL", "Null", "None", "?"))


def is_missing(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip() in BLANKS
    return (
        value is None or (isinstance(value, float) and value != value) or type(value).__name__ in ("NAType", "NaTType")
    )


def nearest(word: object, allowed: Iterable[str]) -> str:
    """A hint to end a sentence with, or nothing when no allowed name is close."""
    close = difflib.get_close_matches(str(word), list(allowed))
    return f" (did you mean {close[0]!r}?)" if close else ""


def positive_number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not (number > 0 and math.isfinite(number)) or isinstance(value, str | bool):
        raise InputError(f"{name}: got {value!r}; a positive finite number is needed")
    return number


def whole_number(name: str, value: Any, *, at_least: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or number < at_least or isinstance(value, bool):
        raise InputError(f"{name}: got {value!r}; an integer >= {at_least} is needed")
    return number


def plain_array(name: str, values: Any, *, ndim: int) -> np.ndarray:
    """`values` as a dense array of `ndim` axes and at least one row."""
    if hasattr(values, "toarray"):
        raise InputError(f"{name}: got a sparse {type(values).__name__}; a dense array is needed ({name}.toarray())")
    if isinstance(values, np.ma.MaskedArray):
        raise InputError(f"{name}: got a masked array; an array without hidden values is needed")
    try:
        array = np.asarray(values)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: got rows of different lengths; a {ndim}-dimensional array is needed") from error
    if array.ndim != ndim:
        raise InputError(f"{name}: got shape {array.shape}; a {ndim}-dimensional array is needed")
    if 0 in array.shape:
        raise InputError(f"{name}: got shape {array.shape}; at least one row and one column are needed")
    return array


def finite_array(name: str, values: Any, *, ndim: int) -> np.ndarray:
    """`values` as float64, refused where it is not numeric, NaN or infinite."""
    array = plain_array(name, values, ndim=ndim)
    if array.dtype.kind not in NUMERIC_KINDS:
        raise InputError(f"{name}: got dtype {array.dtype}; numbers are needed (a Schema encodes text columns)")
    array = np.ascontiguousarray(array, dtype=np.float64)
    if not np.isfinite(array).all():
        # Only the position is told: the rest of the row is somebody's record.
        position = tuple(int(axis[0]) for axis in np.nonzero(~np.isfinite(array)))
        where = f"row {position[0]}" + (f", column {position[1]}" if ndim == 2 else "")
        raise InputError(f"{name}: {where} is {array[position]}; every value must be finite")
    return array


def same_length(name: str, array: np.ndarray, n_records: int) -> None:
    if len(array) != n_records:
        raise InputError(f"{name}: got {len(array)} values for the {n_records} rows of X; one per row is needed")


def refuse_missing(name: str, array: np.ndarray) -> None:
    """Refuse None and NaN among names."""
    if array.dtype.kind not in "Of":
        return
    for row, value in enumerate(array.tolist()):
        if value is None or value != value:
            raise InputError(f"{name}: row {row} is {value}; every row needs a value")


def distinct(array: np.ndarray) -> list[Any]:
    """Distinct values in an order that does not depend on the order of rows: numbers by size, the rest by text."""
    if array.dtype.kind in NUMERIC_KINDS:
        return np.unique(array).tolist()
    return sorted(set(array.tolist()), key=str)
