"""Public values: how one that is not allowed is refused, the one text of each, so that plans can be saved, compared and
hashed, how much is read from a file, and those that every plan is made of: facts about the data, schedules of numbers.
"""

import contextlib
import contextvars
import dataclasses
import difflib
import errno
import functools
import hashlib
import json
import math
import operator
import os
import stat
import tomllib
import types
import typing
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from coterie.errors import InputError

# --- refusals: one sentence that names the argument, the value and what is allowed ------------------------------------

FROM_DATA = "from-data"
# bool, integers, floats
NUMERIC_KINDS = "biuf"


# None: nobody can ask for them, as in Python, where whoever sees a row's number has the rows
_SHOW_VALUES: contextvars.ContextVar[bool | None] = contextvars.ContextVar("show_values", default=None)


@contextlib.contextmanager
def values_shown(wanted: bool = True) -> Iterator[None]:
    """Refusals say where a value stands; inside this block, also what it is, or by which option it can be asked for."""
    before = _SHOW_VALUES.set(wanted)
    try:
        yield
    finally:
        _SHOW_VALUES.reset(before)


def quoted(value: Any) -> str:
    """A cell of somebody's record in a sentence that may be logged or sent on: only where it was asked for."""
    wanted = _SHOW_VALUES.get()
    hint = "" if wanted is None else " (--show-values quotes it)"
    return f" ({value!r})" if wanted else hint


# how blanks are written in files
BLANKS = frozenset(("", "NA", "N/A", "n/a", "NaN", "nan", "NAN", "null", "NULL", "Null", "None", "?"))


def is_missing(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip() in BLANKS
    return (
        value is None or (isinstance(value, float) and value != value) or type(value).__name__ in ("NAType", "NaTType")
    )


def spelt_out(number: float) -> str:
    """A bound of a range in a sentence: no exponent where people write none."""
    return f"{number:,.15g}"


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


# --- frozen dataclasses to plain JSON and back ------------------------------------------------------------------------

_CLASSES: dict[str, type] = {}
T = TypeVar("T")


def serialisable(cls: type[T]) -> type[T]:
    """Register a dataclass under its name; its fields must be plain values or registered classes."""
    other = _CLASSES.setdefault(cls.__name__, cls)
    if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
        raise InputError(f"serialisable: the name {cls.__name__!r} is taken by {other.__module__}")
    _CLASSES[cls.__name__] = cls
    return cls


def encode(value: Any) -> Any:
    if value is None or type(value) in (str, bool, int):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if _CLASSES.get(type(value).__name__) is not type(value):
            raise InputError(f"{type(value).__name__} cannot be saved: decorate it with coterie.values.serialisable")
        fields = {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
        return {"type": type(value).__name__, **fields}
    if isinstance(value, (tuple, list)):
        return [encode(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        # JSON has no word for infinity
        return {"type": "float", "value": str(value)}
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        # 1 and 1.0 are equal, so they must have one digest
        return int(value)
    if isinstance(value, (str, bool, int, float)):
        return value
    raise InputError(f"a {type(value).__name__} cannot be part of a plan; plain numbers and words are needed")


def decode(value: Any) -> Any:
    if isinstance(value, dict):
        name = value.get("type")
        if name == "float":
            return float(value["value"])
        cls = _CLASSES.get(name) if isinstance(name, str) else None
        if cls is None:
            raise InputError(f"plan: unknown type {name!r}; known types are {', '.join(sorted(_CLASSES))}")
        known = {f.name for f in dataclasses.fields(cls) if f.init}
        unknown = sorted(set(value) - known - {"type"})
        if unknown:
            raise InputError(f"plan: {name} has no field {unknown[0]!r}; fields are {', '.join(sorted(known))}")
        fields = {k: decode(v) for k, v in value.items() if k != "type"}
        hints = _hints(cls)
        for field, content in fields.items():
            if not _fits(content, hints[field]):
                raise InputError(f"plan: {name}.{field} got a {type(content).__name__} that it cannot hold")
        try:
            return cls(**fields)
        except (TypeError, ArithmeticError) as error:
            raise InputError(f"plan: {name} cannot be read: {error}") from None
    if isinstance(value, list):
        return tuple(decode(v) for v in value)
    return value


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value from a file is of a field's type; kinds of types that are not listed here take anything."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, one) for one in arguments)
    if origin is typing.Literal:
        return value in arguments
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        each = arguments[:1] * len(value) if arguments[-1:] == (Ellipsis,) else arguments
        return len(each) == len(value) and all(map(_fits, value, each))
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint) if isinstance(hint, type) else True


def canonical(value: Any) -> str:
    """One text for one value: sorted keys, no spaces, shortest round-trip floats."""
    return json.dumps(encode(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(value: Any) -> str:
    return hashlib.sha256(canonical(value).encode()).hexdigest()


# --- how large a plan may be that is read from a file: checked on plain JSON, before anything of that size is made ----


MOST_ROUNDS = 10**5
MOST_PARTIES = 10**6
MOST_FEATURES = 10**6
# parties times rounds: who works when is a table of so many cells
MOST_PARTY_ROUNDS = 10**8
# parties times rounds, where grants differ from round to round
MOST_GRANTS = 10**6
# characters of a plan or a certificate
LONGEST_TEXT = 10**8
# of a text of TOML, the squares of the dots in its lines: what a key of so many parts takes to be read
MOST_DOTS = 10**7


def file_text(path: str | Path, largest: int = LONGEST_TEXT) -> str:
    """The text of a file that others may have made. OSError also of a pipe, which would keep its reader waiting, and of
    more than so many bytes: a device has no end."""
    with open(path, encoding="utf-8", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no plain file", str(path))
        if found.st_size > largest:
            raise OSError(errno.EFBIG, f"it has {found.st_size:,} bytes, and at most {largest:,} are read", str(path))
        return file.read()


def read_toml(text: str) -> dict[str, Any]:
    """ValueError, in one line, where a text is no TOML, or would take for ever."""
    if sum(line.count(".") ** 2 for line in text.split("\n")) > MOST_DOTS:
        raise ValueError("its lines have too many dots")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # besides TOMLDecodeError: integers of thousands of digits
        raise ValueError(" ".join(str(error).split())[:200]) from None


def read_json(what: str, text: str) -> Any:
    """What a text from a file holds, if it is valid and not too long."""
    if len(text) > LONGEST_TEXT:
        raise InputError(f"{what}: got {len(text):,} characters; at most {LONGEST_TEXT:,} are read")

    def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """Of two equal keys a reader sees the first and a program the last."""
        content = dict(pairs)
        if len(content) != len(pairs):
            names = [name for name, _ in pairs]
            twin = next(name for name in names if names.count(name) > 1)
            raise InputError(f"{what}: the key {twin!r} stands twice in one table")
        return content

    try:
        return json.loads(text, object_pairs_hook=unique_keys)
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        # besides JSONDecodeError: integers of thousands of digits
        raise InputError(f"{what}: not valid JSON ({' '.join(str(error).split())[:200]})") from None


def check_size(plan: Any) -> None:
    """Refuse a plan, as JSON gives it, whose numbers ask for more than any plan needs."""
    if not isinstance(plan, dict):
        return
    facts, topology = _table(plan.get("facts")), _table(plan.get("topology"))
    rounds, parties = _number(plan.get("n_rounds")), _length(facts.get("parties"))
    bounds = {
        "n_rounds": (rounds, MOST_ROUNDS),
        "parties": (parties, MOST_PARTIES),
        "topology.n_parties": (_number(topology.get("n_parties")), MOST_PARTIES),
        "n_features": (_number(facts.get("n_features")), MOST_FEATURES),
        "n_rounds times parties": (rounds * parties, MOST_PARTY_ROUNDS),
    }
    if any(_number(schedule.get("ratio", 1)) != 1 for schedule in _schedules(plan.get("algorithm"))):
        bounds["n_rounds times parties, with grants that change,"] = (rounds * parties, MOST_GRANTS)
    for name, (found, most) in bounds.items():
        if found > most:
            raise InputError(f"plan: {name} got {found:g}; at most {most:,} can be read from a file")


def _schedules(content: Any) -> Iterator[dict[str, Any]]:
    if isinstance(content, dict):
        if "ratio" in content:
            yield content
        for value in content.values():
            yield from _schedules(value)
    elif isinstance(content, list):
        for value in content:
            yield from _schedules(value)


def _number(value: Any) -> float:
    """Whatever is no number is refused where the plan is made."""
    if isinstance(value, list):
        return max(map(_number, value), default=0.0)
    return float(value) if isinstance(value, (int, float)) and abs(value) < 1e300 else (0.0 if value is None else 1e300)


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list) else 0


# --- facts and schedules ----------------------------------------------------------------------------------------------

# control, zero-width and private characters, and lone surrogates
_UNSEEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def check_plain(what: str, texts: Iterable[str]) -> None:
    """Refuse names that a terminal or a page would not show as they are, such as one that hides another."""
    for text in texts:
        if not isinstance(text, str) or not text:
            raise InputError(f"{what}: got {text!r}; texts that are not empty are needed")
        if not text.isprintable():
            for character in text:
                if unicodedata.category(character) in _UNSEEN:
                    raise InputError(f"{what}: got {text!r}; the character {character!r} in it cannot be seen")


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything about the data that is public, and nothing else.

    `labels` is the public label set (None for regression); labels travel as positions in it.
    `data_derived` names the facts that were read off the data: each one voids the guarantee.
    """

    parties: tuple[str, ...]
    sizes: tuple[int, ...]
    n_features: int
    row_norm: float
    labels: tuple[str, ...] | None = None
    label_bound: float | None = None
    weight_bound: float = 1.0
    data_derived: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.parties) != len(self.sizes) or not self.parties:
            raise InputError(f"sizes: {len(self.sizes)} given for {len(self.parties)} parties; one per party is needed")
        for what, texts in (
            ("parties", self.parties),
            ("labels", self.labels or ()),
            ("data_derived", self.data_derived),
        ):
            check_plain(what, texts)
        if len(set(self.parties)) != len(self.parties):
            raise InputError(f"parties: names must differ, got {self.parties}")
        for name, size in zip(self.parties, self.sizes, strict=True):
            if size < 1:
                raise InputError(f"parties: party {name!r} has {size} records; at least 1 is needed")
        if self.n_features < 1:
            raise InputError(f"n_features: got {self.n_features}; at least 1 is needed")
        positive_number("row_norm", self.row_norm)
        positive_number("weight_bound", self.weight_bound)
        if not 1e-100 <= self.row_norm <= 1e100:
            raise InputError(f"row_norm: got {self.row_norm}; a number between 1e-100 and 1e100 is needed")
        if self.label_bound is not None:
            positive_number("label_bound", self.label_bound)
        if self.labels is not None and (len(self.labels) < 2 or len(set(self.labels)) != len(self.labels)):
            raise InputError(f"labels: got {self.labels}; at least two different labels are needed")

    @functools.cached_property
    def smallest(self) -> int:
        return min(self.sizes)

    @functools.cached_property
    def largest(self) -> int:
        return max(self.sizes)

    @property
    def n_parties(self) -> int:
        return len(self.parties)


@serialisable
@dataclasses.dataclass(frozen=True)
class Schedule:
    """start * ratio^t in round t.

    start, ratio: one number for all parties, or a tuple with one number per party.
    """

    start: float | tuple[float, ...]
    ratio: float | tuple[float, ...] = 1.0

    def __post_init__(self) -> None:
        for name in ("start", "ratio"):
            value = getattr(self, name)
            if isinstance(value, Sequence) and not isinstance(value, str):
                value = tuple(float(v) for v in value)
            else:
                value = float(value)
            object.__setattr__(self, name, value)
            if value == () or not np.all(np.isfinite(value)) or not np.all(np.asarray(value) > 0):
                raise InputError(f"{name}: got {value}; positive finite numbers are needed")

    def __call__(self, t: Any) -> Any:
        """Value at round t: a number, or one per party. Works on traced t as well."""
        if self.constant_in_time:
            return np.asarray(self.start) if self.per_party else self.start
        return np.asarray(self.start) * np.asarray(self.ratio) ** t

    @property
    def per_party(self) -> bool:
        return isinstance(self.start, tuple) or isinstance(self.ratio, tuple)

    @property
    def constant_in_time(self) -> bool:
        return bool(np.all(np.asarray(self.ratio) == 1.0))

    def check_parties(self, name: str, n_parties: int) -> None:
        for value in (self.start, self.ratio):
            if isinstance(value, tuple) and len(value) != n_parties:
                raise InputError(f"{name}: {len(value)} values given for {n_parties} parties; one per party is needed")

    def at(self, t: int, party: int) -> float:
        start = self.start[party] if isinstance(self.start, tuple) else self.start
        ratio = self.ratio[party] if isinstance(self.ratio, tuple) else self.ratio
        return start * ratio**t

    def times(self, factor: float) -> "Schedule":
        start = tuple(v * factor for v in self.start) if isinstance(self.start, tuple) else self.start * factor
        return dataclasses.replace(self, start=start)


if TYPE_CHECKING:
    # dataclass fields that take whatever `as_schedule` takes and hold a Schedule: type checkers read the type to give
    # from `__set__`, the type to get from `__get__`
    class ScheduleField:
        def __get__(self, owner: object, kind: Any) -> Schedule: ...
        def __set__(self, owner: object, value: "Schedule | float | Sequence[float]") -> None: ...

    class OptionalScheduleField:
        def __get__(self, owner: object, kind: Any) -> Schedule | None: ...
        def __set__(self, owner: object, value: "Schedule | float | Sequence[float] | None") -> None: ...

else:
    ScheduleField = Schedule
    OptionalScheduleField = Schedule | None

# the default of an optional one
NOT_GIVEN: Any = None


def as_schedule(name: str, value: "Schedule | float | Sequence[float]") -> Schedule:
    """A number is constant, a sequence is one constant per party."""
    if isinstance(value, Schedule):
        return value
    try:
        return Schedule(tuple(value) if isinstance(value, (Sequence, np.ndarray)) else value)
    except (TypeError, ValueError):
        raise InputError(f"{name}: got {value!r}; a positive number, one per party, or a Schedule is needed") from None
