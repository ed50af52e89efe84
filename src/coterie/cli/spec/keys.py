"""Tables of a spec, key by key: every value is checked, and an unknown key is refused with the nearest valid one."""

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from coterie.checks import nearest
from coterie.errors import InputError, short
from coterie.serialise import read_toml

Check = Callable[[str, Any], Any]
REQUIRED: Any = object()
# squares of larger numbers leave the range of float64
LARGEST = 1e100


class Key(NamedTuple):
    check: Check
    default: Any = None


def tables_in(what: str, text: str, path: Path) -> dict[str, Any]:
    try:
        return read_toml(text)
    except ValueError as error:
        raise InputError(f"{what}: {str(path)!r} is not TOML ({error})") from None


def check_tables(what: str, content: dict[str, Any], known: Iterable[str], needed: Iterable[str]) -> None:
    refuse_unknown(what, content, known)
    for name in needed:
        if name not in content:
            raise InputError(f"{what}: the table [{name}] is missing")
    for name, table in content.items():
        if not isinstance(table, dict):
            raise InputError(f"{name}: got {short(table)}; a table is needed")


def read_table(where: str, content: Any, keys: dict[str, Key]) -> dict[str, Any]:
    """The checked values of all keys, defaults where nothing is given."""
    if not isinstance(content, dict):
        raise InputError(f"{where}: got {short(content)}; a table is needed")
    refuse_unknown(where, content, keys)
    values = {}
    for name, key in keys.items():
        if name in content:
            values[name] = key.check(f"{where}.{name}", content[name])
        elif key.default is REQUIRED:
            raise InputError(f"{where}: key {name!r} is missing")
        else:
            values[name] = key.default
    return values


def refuse_unknown(where: str, content: dict[str, Any], known: Iterable[str]) -> None:
    known = list(known)
    for name in content:
        if name not in known:
            raise InputError(f"{where}: unknown key {name!r}{nearest(name, known)}; keys are {', '.join(known)}")


def exactly_one(where: str, content: dict[str, Any], names: Iterable[str]) -> str:
    names = list(names)
    given = [name for name in names if name in content]
    if len(given) != 1:
        got = " and ".join(given) or "none of them"
        raise InputError(f"{where}: got {got}; exactly one of {', '.join(names)} is needed")
    return given[0]


def text(where: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{where}: got {short(value)}; a text that is not empty is needed")
    return value


def path(where: str, value: Any) -> str:
    if "\0" in text(where, value):
        raise InputError(f"{where}: got {value!r}; a path is needed")
    return value


def texts(where: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise InputError(f"{where}: got {short(value)}; a list of texts is needed")
    return tuple(text(f"{where}[{place}]", item) for place, item in enumerate(value))


def boolean(where: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"{where}: got {short(value)}; true or false is needed")
    return value


def number(where: str, value: Any) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or value in (math.inf, -math.inf) or value != value:
        raise InputError(f"{where}: got {short(value)}; a finite number is needed")
    if abs(value) > LARGEST:
        raise InputError(f"{where}: got {short(value)}; a number between -{LARGEST:g} and {LARGEST:g} is needed")
    return float(value)


def not_negative(where: str, value: Any) -> float:
    if number(where, value) < 0:
        raise InputError(f"{where}: got {value}; a number >= 0 is needed")
    return float(value)


def positive(where: str, value: Any) -> float:
    if number(where, value) <= 0 or value < 1 / LARGEST:
        raise InputError(f"{where}: got {value}; a positive number is needed")
    return float(value)


def numbers(where: str, value: Any) -> tuple[float, ...]:
    if not isinstance(value, list) or not value:
        raise InputError(f"{where}: got {short(value)}; a list of numbers is needed")
    return tuple(number(f"{where}[{place}]", item) for place, item in enumerate(value))


def bound(where: str, value: Any) -> float | str:
    """A public bound, or the request to read it off the data, which voids the guarantee."""
    if value == "from-data":
        return value
    if isinstance(value, str):
        raise InputError(f"{where}: got {value!r}; a positive number or 'from-data' is needed")
    return positive(where, value)


def whole(at_least: int, at_most: int = 10**6) -> Check:
    def check(where: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not at_least <= value <= at_most:
            raise InputError(f"{where}: got {short(value)}; an integer from {at_least} to {at_most} is needed")
        return value

    return check


def fraction(where: str, value: Any) -> float:
    if not 0 < number(where, value) < 1 or not math.isfinite(1 / value):
        raise InputError(f"{where}: got {value}; a number strictly between 0 and 1 is needed")
    return float(value)


def one_of(where: str, value: Any, names: Iterable[str]) -> str:
    """The value, if it is one of the names."""
    names = list(names)
    if not isinstance(value, str) or value not in names:
        raise InputError(f"{where}: got {value!r}; one of {', '.join(names)} is needed{nearest(value, names)}")
    return value


def name_in(names: Iterable[str]) -> Check:
    names = list(names)
    return lambda where, value: one_of(where, value, names)
