"""`coterie schema`: write a schema to fill in, and check a file against one."""

import json
from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.options import DELIMITER, ENCODING, FILE, JSON, write_new

app = typer.Typer(no_args_is_help=True, help="Write a public schema to fill in, or check a file against it.")


@app.command(
    epilog="Examples: coterie schema make patients.csv --label outcome --party-column hospital --range income=0..1000; "
    "coterie schema make patients.parquet --label cost --from-data --out schema.toml"
)
def make(
    file: Annotated[Path, FILE],
    label: Annotated[str, typer.Option(help="The column to predict.", show_default=False)],
    party_column: Annotated[str | None, typer.Option(help="The column that names each row's party.")] = None,
    given: Annotated[
        list[str] | None, typer.Option("--range", metavar="NAME=LOW..HIGH", help="A public range; may be repeated.")
    ] = None,
    from_data: Annotated[
        bool, typer.Option("--from-data", help="Read ranges and categories off the file: VOIDS the guarantee.")
    ] = False,
    out: Annotated[Path, typer.Option(help="New file.")] = Path("schema.toml"),
    encoding: Annotated[str, ENCODING] = "utf-8",
    delimiter: Annotated[str | None, DELIMITER] = None,
    json_line: Annotated[bool, JSON] = False,
) -> None:
    """Write a schema for a file, and say where each range comes from.

    Names and kinds of columns come from the file. Ranges are taken from --range, proposed where a column's name says
    what it must be (age, percent, month, ...), and left to be filled in from public knowledge otherwise: what could
    ever be there, not what is there. With --from-data they are read off the file, for experiments; the schema then says
    so, and so will every certificate.
    """
    from coterie.cli.spec.schemas import described_columns, read_ranges, schema_text
    from coterie.data.tables import Dialect

    columns = described_columns(
        file,
        label=label,
        party_column=party_column,
        from_data=from_data,
        ranges=read_ranges(given or ()),
        dialect=Dialect.checked("--", delimiter, encoding),
    )
    write_new(out, schema_text(columns, party_column=party_column, from_data=from_data))
    if json_line:
        sources = {column.name: column.source for column in columns}
        told = {"schema": str(out), "columns": len(columns) - 1, "from_data": from_data, "sources": sources}
        typer.echo(json.dumps(told))
        return
    width = max(len(column.name) for column in columns)
    for column in columns:
        typer.echo(f"  {column.name:{width}}  {column.source}")
    told = ": ranges and categories read off the data, which VOIDS the guarantee" if from_data else ""
    typer.echo(f"{out}: {len(columns) - 1} columns and the label{told}")


@app.command(
    epilog="Examples: coterie schema check schema.toml patients.csv; coterie schema check s.toml a.parquet --json"
)
def check(
    schema: Annotated[Path, typer.Argument(help="A schema in TOML.", show_default=False)],
    file: Annotated[Path, FILE],
    show_values: Annotated[bool, typer.Option("--show-values", help="Quote the cells that do not fit.")] = False,
    encoding: Annotated[str, ENCODING] = "utf-8",
    delimiter: Annotated[str | None, DELIMITER] = None,
    json_line: Annotated[bool, JSON] = False,
) -> None:
    """Check that a file fits a schema.

    Every misfit is told with column, count and first line; exit code 2 if there is one.

    Numbers outside their range are no misfit: they are clipped, and counted here. What is printed is about the records
    and for whoever holds them.
    """
    from coterie.cli.spec.schemas import check_file
    from coterie.data.tables import Dialect

    checked = check_file(schema, file, dialect=Dialect.checked("--", delimiter, encoding), show_values=show_values)
    told, refused = checked.summary, checked.refused
    if json_line:
        typer.echo(json.dumps({**told, "fits": not refused, "misfits": checked.misfits}))
        raise typer.Exit(2 if refused else 0)
    for row in checked.misfits:
        value = f" ({row['value']!r})" if "value" in row and row["what"] != "missing" else ""
        clipped = "" if row["refused"] else " and will be clipped"
        cells = f"{row['count']:,} cells are" if row["count"] > 1 else "1 cell is"
        typer.echo(
            f"column {row['column']!r}: {cells} {row['what']}{clipped}, first in {row['first']}{value}; "
            f"{row['needed']} is needed"
        )
    if refused:
        names = list(dict.fromkeys(row["column"] for row in refused))
        cells = sum(row["count"] for row in refused)
        hint = "" if show_values else "; --show-values quotes one of each"
        counted = "1 cell in 1 column does" if cells == 1 else f"{cells:,} cells in {_columns(len(names))} do"
        typer.echo(f"coterie: {file}: {counted} not fit{hint}", err=True)
        raise typer.Exit(2)
    parties = "" if told["parties"] is None else f", {told['parties']} parties"
    typer.echo(f"{file} fits: {told['records']:,} records, {told['features']} features{parties}")
    typer.echo(f"{told['rows_clipped']:,} rows are clipped to the row norm ({told['by_the_schema']})")
    if told["data_derived"]:
        typer.echo(f"VOID as a guarantee: {', '.join(told['data_derived'])} read off the data")


def _columns(n: int) -> str:
    return "1 column" if n == 1 else f"{n:,} columns"
