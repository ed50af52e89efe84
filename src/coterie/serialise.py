"""Frozen dataclasses to plain JSON and back, so that plans can be saved, compared and hashed."""

import dataclasses
import functools
import hashlib
import json
import math
import types
import typing
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
        return {"type": "float", "value": str(value)}  # JSON has no word for infinity
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)  # 1 and 1.0 are equal, so they must have one digest
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
