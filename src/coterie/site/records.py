"""A site's own records: read, held against a proposal, and told about in a table that never leaves the site."""

import dataclasses
import math
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data import CategoryColumn, Federation, Label, NumberColumn, Schema
from coterie.data.checks import is_missing
from coterie.data.federation import Shard
from coterie.data.tables import read_columns
from coterie.errors import InputError
from coterie.plan import Plan
from coterie.site.proposal import Proposal

ENCODED = ".npz"  # of records that were encoded before: X, y and weight
FIRST_LINE = 2  # of a table: the first line has the column names
MOST_CUT = 0.5  # share of a column outside its range, from which on it is most likely in another unit
NARROW = 0.02  # share of its range that a column fills, below which it may be in another unit


@dataclasses.dataclass(frozen=True)
class Misfit:
    """Cells of one column that do not fit; `refused`: records with such cells cannot be used as they are.

    Only for the owner of the records: `example` is one of their cells.
    """

    column: str
    what: str
    count: int
    line: int | None
    example: str
    refused: bool


def read_shard(path: Path, proposal: Proposal, party: int) -> Shard:
    """The records as the plan's bounds want them; InputError where they cannot be used."""
    facts = proposal.plan.facts
    if path.suffix == ENCODED:
        shard = _encoded(path)
    else:
        schema = _schema_of(proposal)
        shard = _projected(schema, _read(path, schema), proposal.plan)
    if len(shard.y) != facts.sizes[party]:
        raise InputError(
            f"records: {len(shard.y)} are here, the plan says {facts.sizes[party]} for {facts.parties[party]!r}"
        )
    # which checks rows, labels and weights against the public bounds
    own = dataclasses.replace(facts, parties=(facts.parties[party],), sizes=(facts.sizes[party],))
    return Federation(own, (shard,)).shards[0]


def misfits(path: Path, proposal: Proposal, party: int) -> list[Misfit]:
    """Everything about these records that the proposal did not expect."""
    facts = proposal.plan.facts
    if path.suffix == ENCODED:
        return []  # `read_shard` refuses what does not fit
    schema = _schema_of(proposal)
    table = _read(path, schema)
    found = [row for column in (*schema.columns, schema.label) for row in _of_column(column, table[column.name])]
    n_records = len(table[schema.label.name])
    if n_records != facts.sizes[party]:
        what = f"records are here, the proposal says {facts.sizes[party]}"
        found.append(Misfit("(all)", what, n_records, None, "", True))
    return found


def write_encoded(path: Path, shard: Shard) -> None:
    with open(path, "xb") as file:
        np.savez(file, X=shard.X, y=shard.y, weight=shard.weight)
    path.chmod(0o600)


def _encoded(path: Path) -> Shard:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            shard = Shard(*(np.asarray(arrays[name], dtype=np.float64) for name in ("X", "y", "weight")))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"records: {str(path)!r} cannot be read ({type(error).__name__})") from None
    return shard


def _schema_of(proposal: Proposal) -> Schema:
    if proposal.schema is None:
        raise InputError("proposal: it has no schema, so it cannot be asked of records in a table")
    return proposal.schema


def _read(path: Path, schema: Schema) -> dict[str, np.ndarray]:
    numbers = [column.name for column in (*schema.columns, schema.label) if isinstance(column, NumberColumn)]
    return read_columns(path, [column.name for column in (*schema.columns, schema.label)], numbers=numbers)


def _projected(schema: Schema, table: dict[str, np.ndarray], plan: Plan) -> Shard:
    facts = plan.facts
    federation = Federation.from_arrays(
        schema.encode(table),
        schema.encode_label(table[schema.label.name]),
        parties=None,
        labels=facts.labels,
        label_bound=facts.label_bound,
        row_norm=facts.row_norm,
        weight_bound=facts.weight_bound,
        min_records=1,
    )
    return federation.shards[0]


def _of_column(column: Any, values: np.ndarray) -> Iterator[Misfit]:
    cells: list[Any] = values.tolist()
    absent = [row for row, cell in enumerate(cells) if is_missing(cell) or (isinstance(cell, str) and not cell.strip())]
    if absent:
        share = f"missing ({len(absent) / len(cells):.0%} of {len(cells)})"
        yield Misfit(column.name, share, len(absent), absent[0] + FIRST_LINE, "", True)
    missing = set(absent)
    present = [row for row in range(len(cells)) if row not in missing]
    if isinstance(column, (CategoryColumn, Label)):
        allowed = column.categories if isinstance(column, CategoryColumn) else column.values
        yield from _unknown(column.name, cells, present, allowed)
    else:
        yield from _out_of_range(column, cells, present)


def _unknown(name: str, cells: Sequence[Any], rows: Sequence[int], allowed: Sequence[str]) -> Iterator[Misfit]:
    by_value: dict[str, list[int]] = {}
    for row in rows:
        if str(cells[row]) not in allowed:
            by_value.setdefault(str(cells[row]), []).append(row)
    for value, where in sorted(by_value.items(), key=lambda item: -len(item[1])):
        yield Misfit(name, "not among the categories", len(where), where[0] + FIRST_LINE, value, True)


def _out_of_range(column: NumberColumn, cells: Sequence[Any], rows: Sequence[int]) -> Iterator[Misfit]:
    numbers = {row: _number(cells[row]) for row in rows}
    texts = [row for row, number in numbers.items() if not math.isfinite(number)]
    if texts:
        yield Misfit(column.name, "no number", len(texts), texts[0] + FIRST_LINE, str(cells[texts[0]]), True)
    finite = {row: number for row, number in numbers.items() if math.isfinite(number)}
    span = f"{column.minimum:g} to {column.maximum:g}"
    outside = [row for row, number in finite.items() if not column.minimum <= number <= column.maximum]
    if outside:
        mostly = len(outside) > MOST_CUT * len(finite)
        what = f"outside {span}: most of the column, in another unit?" if mostly else f"outside {span}, would be cut"
        yield Misfit(column.name, what, len(outside), outside[0] + FIRST_LINE, f"{finite[outside[0]]:g}", mostly)
    elif len(finite) > 1:
        low, high = min(finite.values()), max(finite.values())
        if 0 < high - low < NARROW * (column.maximum - column.minimum):
            what = f"all within {low:g} to {high:g} of {span}: in another unit?"
            yield Misfit(column.name, what, len(finite), min(finite) + FIRST_LINE, f"{low:g}", False)


def _number(cell: Any) -> float:
    try:
        return float(cell)
    except (TypeError, ValueError):
        return math.nan


def check_readable(path: Path, schema: Schema) -> None:
    """Refuse a file that cannot be read, or that lacks a column."""
    _read(path, schema)
