"""A site's own records: read, held against a proposal, and told about in a table that never leaves the site."""

import dataclasses
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data import Federation, NumberColumn, Schema
from coterie.data import schema as fitting
from coterie.data.federation import Shard
from coterie.data.tables import Table, read_columns
from coterie.errors import InputError
from coterie.site.proposal import Proposal

# of records that were encoded before: X, y and weight
ENCODED = ".npz"
# share of a column outside its range, from which on it is most likely in another unit
MOST_CUT = 0.5
# share of its range that a column fills, below which it may be in another unit
NARROW = 0.02


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
        shard = _projected(schema, _read(path, schema), proposal)
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
        # `read_shard` refuses what does not fit
        return []
    schema = _schema_of(proposal)
    table = _read(path, schema)
    found = [row for misfit in schema.misfits(table) for row in _rows(misfit, table)]
    found += [row for column in schema.columns if isinstance(column, NumberColumn) for row in _narrow(column, table)]
    if table.n_rows != facts.sizes[party]:
        what = f"records here; the proposal says {facts.sizes[party]}"
        found.append(Misfit("(all)", what, table.n_rows, None, "", True))
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


def _read(path: Path, schema: Schema) -> Table:
    names, numbers = fitting.wanted_columns(schema)
    return read_columns(path, names, numbers=numbers)


def _projected(schema: Schema, table: Table, proposal: Proposal) -> Shard:
    facts = proposal.plan.facts
    y = schema.encode_label(table.take(schema.label.name), place=table.place)
    about_labels: Any = {"labels": facts.labels} if facts.labels is not None else {"label_bound": facts.label_bound}
    federation = Federation.from_arrays(
        schema.encode(table),
        y,
        parties=None,
        row_norm=facts.row_norm,
        weight_bound=facts.weight_bound,
        min_records=1,
        intercept=proposal.intercept,
        **about_labels,
    )
    return federation.shards[0]


def _rows(misfit: fitting.Misfit, table: Table) -> Iterator[Misfit]:
    """What the schema found in a column, by text where texts are not listed."""
    share = len(misfit.rows) / table.n_rows

    def row(what: str, rows: list[int], example: Any, refused: bool) -> Misfit:
        return Misfit(misfit.column, what, len(rows), table.line(rows[0]), str(example), refused)

    rows = misfit.rows.tolist()
    if misfit.what == fitting.MISSING:
        yield row(f"missing ({share:.0%} of {table.n_rows})", rows, "", misfit.refused)
    elif misfit.what == fitting.UNLISTED:
        by_text: dict[str, list[int]] = {}
        for where, value in zip(rows, misfit.values, strict=True):
            by_text.setdefault(str(value), []).append(where)
        for text, where in sorted(by_text.items(), key=lambda item: -len(item[1])):
            yield row("not among the categories", where, text, misfit.refused)
    elif misfit.what == fitting.OUTSIDE and share > MOST_CUT:
        yield row(f"outside {misfit.needed}: most of the column, in another unit?", rows, misfit.example, True)
    elif misfit.what == fitting.OUTSIDE:
        yield row(f"outside {misfit.needed}, would be clipped", rows, misfit.example, False)
    else:
        yield row(misfit.what, rows, misfit.example, misfit.refused)


def _narrow(column: NumberColumn, table: Table) -> Iterator[Misfit]:
    """A column that fills next to nothing of its range."""
    values = table[column.name]
    if values.dtype != np.float64 or not len(values := values[np.isfinite(values)]):
        return
    low, high = float(values.min()), float(values.max())
    inside = column.minimum <= low and high <= column.maximum
    if inside and 0 < high - low < NARROW * (column.maximum - column.minimum):
        what = f"all within {low:g} to {high:g} of {column.minimum:g} to {column.maximum:g}: in another unit?"
        yield Misfit(column.name, what, len(values), table.line(0), f"{low:g}", False)


def check_readable(path: Path, schema: Schema) -> None:
    """Refuse a file that cannot be read, or that lacks a column."""
    _read(path, schema)
