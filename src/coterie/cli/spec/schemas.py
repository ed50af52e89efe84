"""Schemas made for a file and files checked against a schema."""

from pathlib import Path
from typing import Any

import numpy as np

from coterie.cli.spec.preparation import encode, wanted_columns
from coterie.cli.spec.reading import read_schema
from coterie.data.checks import nearest
from coterie.data.tables import column_names, read_columns
from coterie.errors import InputError

_MOST_CLASSES = 10  # more different whole numbers are a number to predict
_MOST_CATEGORIES = 100  # more different texts are names or notes, not categories

_TEMPLATE = """\
# A public schema. Fill in every range and every list of categories from public knowledge: what could ever be there,
# not what is there. Remove columns that should not be features.
"""
_FROM_DATA = """\
# Ranges and categories were read off the data, which voids every guarantee. For experiments.
data_derived = ["ranges", "categories"]
"""


def schema_text(file: Path, *, label: str, party_column: str | None, from_data: bool) -> str:
    names = column_names(file)
    for option, name in (("--label", label), ("--party-column", party_column)):
        if name is not None and name not in names:
            raise InputError(f"{option}: got {name!r}, which is no column of {str(file)!r}{nearest(name, names)}")
    if label == party_column:
        raise InputError(f"--label: got {label!r}, which is the party column too")
    features = [name for name in names if name not in (label, party_column)]
    if not features:
        raise InputError(f"file: {str(file)!r} has no column left for a feature")
    columns = read_columns(file, [*features, label], numbers=[*features, label])
    described = {name: _described(name, columns[name], from_data, is_label=name == label) for name in columns}
    party = "" if party_column is None else f"party_column = {_quoted(party_column)}\n"
    parts = [_FROM_DATA if from_data else _TEMPLATE, party, f"\n[label]\n{described[label]}"]
    return "".join(parts) + "".join(f"\n[[columns]]\n{described[name]}" for name in features)


def _described(name: str, values: np.ndarray, from_data: bool, *, is_label: bool) -> str:
    lines = [f"name = {_quoted(name)}"]
    if is_label and values.dtype == np.float64:
        if not from_data:
            either = ['# for classes: values = ["0", "1"]', "# for a number: minimum = ", "# and: maximum = "]
            return "\n".join([*lines, *either, ""])
        found = np.unique(values[np.isfinite(values)])
        if len(found) <= _MOST_CLASSES and np.all(found == np.rint(found)):
            return "\n".join([*lines, f"values = [{', '.join(_quoted(str(int(v))) for v in found)}]", ""])
    if values.dtype == np.float64:
        if not from_data:
            return "\n".join([*lines, "# minimum = ", "# maximum = ", ""])
        if not np.isfinite(values).all():
            raise InputError(f"column {name!r}: row {int(np.argmin(np.isfinite(values)))} is not a finite number")
        low, high = float(values.min()), float(values.max())
        high = high if high > low else low + 1.0  # a constant column still needs a range
        return "\n".join([*lines, f"minimum = {low!r}", f"maximum = {high!r}", ""])
    key = "values" if is_label else "categories"
    if not from_data:
        return "\n".join([*lines, f"{key} = []", ""])
    found = sorted({str(value) for value in values.tolist()})
    if len(found) > _MOST_CATEGORIES:
        raise InputError(f"column {name!r}: {len(found)} different texts; at most {_MOST_CATEGORIES} make categories")
    return "\n".join([*lines, f"{key} = [{', '.join(map(_quoted, found))}]", ""])


def _quoted(text: str) -> str:
    import tomli_w

    return tomli_w.dumps({"k": text}).removeprefix("k = ").rstrip("\n")


def write_new(path: Path, text: str) -> int:
    """Write a file that must not exist; returns the number of columns in it."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InputError(f"--out: {str(path)!r} exists already; choose another") from None
    except OSError as error:
        raise InputError(f"--out: cannot write {str(path)!r} ({error.strerror})") from None
    return text.count("\n[[columns]]\n")


def check_file(schema_path: Path, file: Path) -> dict[str, Any]:
    schema, data_derived = read_schema(schema_path)
    names, numbers = wanted_columns(schema)
    party = [] if schema.party_column is None else [schema.party_column]
    table = read_columns(file, [*names, *party], numbers=numbers)
    parties = None if schema.party_column is None else len(set(table.pop(schema.party_column).tolist()))
    X, _ = encode(schema, table)
    return {
        "records": len(X),
        "features": X.shape[1],
        "parties": parties,
        "data_derived": list(data_derived),
    }
