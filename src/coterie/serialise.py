"""Frozen dataclasses to plain JSON and back, so that plans can be saved, compared and hashed; and how much is read."""

import dataclasses
import errno
import functools
import hashlib
import json
import math
import os
import stat
import tomllib
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from coterie.errors import InputError

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
            raise InputError(f"{type(value).__name__} cannot be saved: decorate it with coterie.serialise.serialisable")
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
