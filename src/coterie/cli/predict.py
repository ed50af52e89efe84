"""`coterie predict`: the model of a run, applied to a table."""

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.cli.options import DELIMITER, ENCODING, FILE, JSON, RUN, SHOW_VALUES, write_new

if TYPE_CHECKING:
    from coterie.data.tables import Dialect, Table
    from coterie.rundir import FittedModel

EXAMPLES = "Examples: coterie predict spec-run new.csv; coterie predict spec-run new.csv --out predictions.csv"


def predict(
    run: Annotated[Path, RUN],
    file: Annotated[Path, FILE],
    out: Annotated[Path | None, typer.Option(help="New CSV file. [default: standard output]")] = None,
    encoding: Annotated[str, ENCODING] = "utf-8",
    delimiter: Annotated[str | None, DELIMITER] = None,
    show_values: Annotated[bool, SHOW_VALUES] = False,
    json_line: Annotated[bool, JSON] = False,
) -> None:
    """Predict every row of a table with a run's model. Rows are encoded by the schema it came with.

    One line for each record: its line in the file, the prediction, and a probability for each label where the loss
    knows them. The table needs the columns of the schema, not the label. What is predicted costs nobody in the training
    data anything; it is about the people in the table.
    """
    from coterie.data.tables import Dialect
    from coterie.rundir import FittedModel
    from coterie.values import values_shown

    with values_shown(show_values):
        model = FittedModel.read(run)
        table = read_features(model, file, Dialect.checked("--", delimiter, encoding))
        rows = _predicted(model, table)
    if json_line:
        typer.echo(json.dumps(rows))
        return
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    if out is None:
        typer.echo(text.getvalue(), nl=False)
        return
    write_new(out, text.getvalue())
    typer.echo(f"{len(rows):,} predictions written to {out}")


def read_features(model: "FittedModel", file: Path, dialect: "Dialect", *more: str) -> "Table":
    """The columns that a model needs, and `more` of them."""
    from coterie.data.schema import wanted_columns
    from coterie.data.tables import read_columns

    names, numbers = wanted_columns(model.schema)
    names = [name for name in names if name != model.schema.label.name]
    return read_columns(file, [*names, *more], numbers=numbers, dialect=dialect)


def _predicted(model: "FittedModel", table: "Table") -> list[dict[str, Any]]:
    from coterie.rundir import ProbableModel

    X = model.encode(table)
    told: dict[str, list[Any]] = {"line": [table.line(row) or row + 1 for row in range(len(X))]}
    answers = model.predict(X).tolist()
    told["prediction"] = answers if model.labels is None else [model.labels[place] for place in answers]
    if isinstance(model, ProbableModel):
        for label, column in zip(model.labels or (), model.predict_proba(X).T.tolist(), strict=True):
            told[f"probability of {label}"] = [round(value, 6) for value in column]
    return [dict(zip(told, row, strict=True)) for row in zip(*told.values(), strict=True)]
