"""Schemas made for a file and files checked against a schema."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from coterie.cli.spec.reading import read_schema
from coterie.data.federation import row_norms
from coterie.data.schema import wanted_columns
from coterie.data.tables import USUAL, Dialect, Table, column_names, read_columns
from coterie.errors import InputError
from coterie.values import is_missing, nearest

# more different whole numbers are a number to predict
_MOST_CLASSES = 10
# more different texts are names or notes, not categories
_MOST_CATEGORIES = 100

_TEMPLATE = """\
# A public schema. Fill in every range and every list of categories from public knowledge: what could ever be there,
# not what is there. Remove columns that should not be features.
"""
_KEYS = """\
# A number may also have: log = true (amounts, counts), centre = 9 and scale = 2 (what is usual, and how far from it),
# bends = true beside log (instead of centre and scale: each third of the logarithm has a slope of its own),
# bins = [18, 65] (intervals instead), missing = true (blanks become a feature; refused otherwise).
# Categories may also have: other = true (texts that are not listed), missing = true.
"""
_FROM_DATA = """\
# Ranges and categories were read off the data, which voids every guarantee. For experiments.
data_derived = ["ranges", "categories"]
"""

LEFT_OPEN, GIVEN, READ = "to be filled in", "given", "read off the data: VOID"


class _Known(NamedTuple):
    """What a column must be if it has such a name: a range, and what is usual in it where a textbook says so."""

    pattern: str
    low: int
    high: int
    words: str
    usual: tuple[float, float] | None = None


_KNOWN = (
    _Known(r"age|age_?(years|yrs)|age_at_\w+|alter", 0, 110, "ages of people in years"),
    _Known(r"\w*(percent|pct|percentage)", 0, 100, "percent"),
    _Known(r"month|\w+_month", 1, 12, "months of a year"),
    _Known(r"day|day_of_month", 1, 31, "days of a month"),
    _Known(r"weekday|day_of_week", 0, 7, "days of a week"),
    _Known(r"hour|\w+_hour", 0, 24, "hours of a day"),
    _Known(r"hours_?per_?week|weekly_hours", 0, 168, "hours of a week"),
    _Known(r"bmi|body_mass_index", 10, 80, "kg/m², adults", (27, 5)),
    _Known(r"height_?cm", 30, 250, "people, in cm"),
    _Known(r"weight_?kg", 0, 300, "people, in kg"),
    _Known(r"sbp|systolic\w*|trestbps|bp_sys\w*", 40, 300, "mm Hg", (130, 20)),
    _Known(r"dbp|diastolic\w*|bp_dia\w*", 20, 200, "mm Hg", (80, 12)),
    _Known(r"heart_?rate|pulse|hr", 20, 250, "beats per minute", (75, 15)),
    _Known(r"thalach|max_?heart_?rate", 20, 250, "highest beats per minute"),
    _Known(r"temperature_?c|temp_?c|body_temp\w*", 25, 45, "bodies, in °C", (37, 1)),
    _Known(r"spo2|oxygen_saturation", 0, 100, "percent", (97, 3)),
)
# amounts and counts are spread over orders of magnitude, whatever their range
_AMOUNTS = (
    r"(\w+_)?(income|salary|wage|wages|earnings|price|cost|costs|amount|balance|revenue|turnover|debt|loan|assets)"
)
_AMOUNTS += r"(_\w+)?|(n|num|number|count)_\w+|\w+_count"
# of a range that begins at nothing or near it: values that filled it evenly would leave its low end empty
_ORDERS = 1000
_SKEWED = (
    "log = true # proposed: amounts are spread over orders of magnitude; remove it where values fill the range evenly",
    "bends = true # proposed: or, instead, centre and scale, where it is known what is usual",
)
_SKEWED_WORDS = "log and bends proposed"


# in lower case; texts that a table has where nobody wrote a name
NO_PARTY = ("", "nan", "none")


class Described(NamedTuple):
    """One column of a schema to be written, and where its range or list comes from."""

    name: str
    text: str
    source: str


def described_columns(
    file: Path,
    *,
    label: str,
    party_column: str | None,
    from_data: bool,
    ranges: dict[str, tuple[float, float]] | None = None,
    dialect: Dialect = USUAL,
) -> list[Described]:
    """The label, then the features. Of the data only names and kinds of columns are looked at, unless `from_data`."""
    names = column_names(file, dialect=dialect)
    given = ranges or {}
    for option, name in (("--label", label), ("--party-column", party_column), *(("--range", name) for name in given)):
        if name is not None and name not in names:
            raise InputError(f"{option}: got {name!r}, which is no column of {str(file)!r}{nearest(name, names)}")
    if label == party_column:
        raise InputError(f"--label: got {label!r}, which is the party column too")
    features = [name for name in names if name not in (label, party_column)]
    if not features:
        raise InputError(f"file: {str(file)!r} has no column left for a feature")
    columns = read_columns(file, [*features, label], numbers=[*features, label], dialect=dialect)
    return [
        _described(name, columns[name], from_data, given.get(name), is_label=name == label)
        for name in (label, *features)
    ]


def schema_text(columns: list[Described], *, party_column: str | None, from_data: bool) -> str:
    label, *features = columns
    party = "" if party_column is None else f"party_column = {_quoted(party_column)}\n"
    parts = [_FROM_DATA if from_data else _TEMPLATE, _KEYS, party, f"\n[label]\n{label.text}"]
    return "".join(parts) + "".join(f"\n[[columns]]\n{column.text}" for column in features)


def read_ranges(texts: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Each NAME=LOW..HIGH, one for a column."""
    found: dict[str, tuple[float, float]] = {}
    for name, limits in map(_read_range, texts):
        if name in found:
            raise InputError(f"--range: got two for {name!r}; one for each column is needed")
        found[name] = limits
    return found


def _read_range(text: str) -> tuple[str, tuple[float, float]]:
    """NAME=LOW..HIGH"""
    name, _, limits = text.rpartition("=")
    low, _, high = limits.partition("..")
    try:
        found = float(low), float(high)
    except ValueError:
        found = (1.0, 0.0)
    if not name or not found[0] < found[1] or not np.isfinite(found).all():
        raise InputError(f"--range: got {text!r}; NAME=LOW..HIGH with finite LOW < HIGH is needed, such as age=0..110")
    return name, found


def _described(
    name: str, values: np.ndarray, from_data: bool, given: tuple[float, float] | None, *, is_label: bool
) -> Described:
    lines, is_number = [f"name = {_quoted(name)}"], values.dtype == np.float64

    def written(source: str, *more: str) -> Described:
        return Described(name, "\n".join([*lines, *more, ""]), source)

    if given is not None:
        if not is_number:
            raise InputError(f"--range: got one for {name!r}, which holds texts")
        more = () if is_label or given[0] < 0 or given[1] < _ORDERS * max(given[0], 1) else _SKEWED
        source = f"{GIVEN}; {_SKEWED_WORDS}" if more else GIVEN
        return written(source, f"minimum = {given[0]!r} # given by --range", f"maximum = {given[1]!r}", *more)
    if is_number and from_data:
        return written(READ, *_read_off(name, values, is_label))
    if is_number and is_label:
        either = ('# for classes: values = ["0", "1"]', "# for a number: minimum = ", "# and: maximum = ")
        return written(LEFT_OPEN, *either)
    if is_number:
        plain = re.sub(r"[\W_]+", "_", name.strip().lower()).strip("_")
        for known in _KNOWN:
            if re.fullmatch(known.pattern, plain):
                comment = f"# proposed because of its name ({known.words}), without a look at the data: check it"
                centre, scale = known.usual or (None, None)
                usual = () if centre is None else (f"centre = {centre:g} # usual", f"scale = {scale:g}")
                return written(
                    f"proposed: {known.words}", comment, f"minimum = {known.low}", f"maximum = {known.high}", *usual
                )
        if re.fullmatch(_AMOUNTS, plain):
            return written(f"{LEFT_OPEN}; {_SKEWED_WORDS}", "# minimum = ", "# maximum = ", *_SKEWED)
        return written(LEFT_OPEN, "# minimum = ", "# maximum = ")
    key = "values" if is_label else "categories"
    if not from_data:
        return written(LEFT_OPEN, f"{key} = []")
    found = sorted({str(value) for value in values.tolist() if not is_missing(value)})
    if len(found) > _MOST_CATEGORIES:
        many = f"{len(found):,} different texts, more than {_MOST_CATEGORIES}"
        if is_label:
            raise InputError(f"--label: got {name!r}, which has {many}; numbers or classes are needed")
        advice = f"# {many}, as identifiers have: remove the column, or list what could be there"
        return written(f"{LEFT_OPEN}: {many}", advice, f"{key} = []")
    blanks = any(is_missing(value) for value in values.tolist()) or (not is_label and len(found) < 2)
    more = ("missing = true",) if blanks and not is_label else ()
    return written(READ, f"{key} = [{', '.join(map(_quoted, found))}]", *more)


def _read_off(name: str, values: np.ndarray, is_label: bool) -> list[str]:
    there = values[np.isfinite(values)]
    if not len(there):
        raise InputError(f"column {name!r}: there is no finite number in it")
    found = np.unique(there)
    if is_label and len(found) <= _MOST_CLASSES and np.all(found == np.rint(found)):
        return [f"values = [{', '.join(_quoted(str(int(v))) for v in found)}]"]
    low, high = float(there.min()), float(there.max())
    # a constant column still needs a range
    high = high if high > low else low + 1.0
    blanks = ["missing = true"] if np.isnan(values).any() and not is_label else []
    return [f"minimum = {low!r}", f"maximum = {high!r}", *blanks]


def _quoted(text: str) -> str:
    import tomli_w

    return tomli_w.dumps({"k": text}).removeprefix("k = ").rstrip("\n")


class Checked(NamedTuple):
    """What a file looks like beside a schema; `misfits` has a row for every column and reason. Of the records and for
    whoever holds them: nothing of it may be shown to others."""

    summary: dict[str, Any]
    misfits: list[dict[str, Any]]

    @property
    def refused(self) -> list[dict[str, Any]]:
        return [row for row in self.misfits if row["refused"]]


def check_file(schema_path: Path, file: Path, *, dialect: Dialect = USUAL, show_values: bool = False) -> Checked:
    schema, data_derived = read_schema(schema_path)
    names, numbers = wanted_columns(schema)
    party = [] if schema.party_column is None else [schema.party_column]
    table = read_columns(file, [*names, *party], numbers=numbers, dialect=dialect)
    parties = None if schema.party_column is None else table.pop(schema.party_column).tolist()
    misfits = [] if schema.party_column is None else _without_a_party(schema.party_column, parties or (), table)
    misfits += [
        {
            "column": misfit.column,
            "what": misfit.what,
            "count": len(misfit.rows),
            "first": table.place(int(misfit.rows[0])),
            **({"value": misfit.example} if show_values else {}),
            "needed": misfit.needed,
            "refused": misfit.refused,
        }
        for misfit in schema.misfits(table)
    ]
    summary: dict[str, Any] = {
        "records": table.n_rows,
        "features": len(schema.feature_names),
        "parties": None if parties is None else len(set(parties)),
        "data_derived": list(data_derived),
        "by_the_schema": schema.rows_clipped,
    }
    if not any(row["refused"] for row in misfits):
        # rounding can leave the longest rows a hair above 1, and nobody would call that clipping
        summary["rows_clipped"] = int(np.sum(row_norms(schema.encode(table)) > 1 + 1e-9))
    return Checked(summary, misfits)


def _without_a_party(column: str, parties: Sequence[object], table: Table) -> list[dict[str, Any]]:
    rows = [row for row, name in enumerate(parties) if " ".join(str(name).split()).casefold() in NO_PARTY]
    if not rows:
        return []
    where = {"column": column, "what": "missing", "count": len(rows), "first": table.place(rows[0])}
    return [{**where, "needed": "the name of a party", "refused": True}]
