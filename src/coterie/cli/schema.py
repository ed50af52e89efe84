"""`coterie schema`: write a schema to fill in, and check a file against one."""

import json
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Public schemas: write one to fill in, check a file against one.")

_JSON = typer.Option("--json", help="Print one line of JSON and nothing else.")


@app.command(
    epilog="Examples: coterie schema make patients.csv --label outcome --party-column hospital; "
    "coterie schema make patients.parquet --label cost --from-data --out schema.toml"
)
def make(
    file: Annotated[Path, typer.Argument(help="A CSV or Parquet file.", show_default=False)],
    label: Annotated[str, typer.Option(help="The column to predict.", show_default=False)],
    party_column: Annotated[str | None, typer.Option(help="The column that names each row's party.")] = None,
    from_data: Annotated[
        bool, typer.Option("--from-data", help="Read ranges and categories off the file: VOIDS the guarantee.")
    ] = False,
    out: Annotated[Path, typer.Option(help="New file.")] = Path("schema.toml"),
    json_line: Annotated[bool, _JSON] = False,
) -> None:
    """Write a schema for a file.

    Names and kinds of columns come from the file. Ranges and categories have to be filled in from public knowledge:
    what could ever be there, not what is there. With --from-data they are read off the file, for experiments; the
    schema then says so, and so will every certificate.
    """
    from coterie.cli.spec.schemas import schema_text, write_new

    columns = write_new(out, schema_text(file, label=label, party_column=party_column, from_data=from_data))
    told = "read off the data, which VOIDS the guarantee" if from_data else "to be filled in from public knowledge"
    if json_line:
        typer.echo(json.dumps({"schema": str(out), "columns": columns, "from_data": from_data}))
        return
    typer.echo(f"{out}: {columns} columns and the label, ranges and categories {told}")


@app.command(
    epilog="Examples: coterie schema check schema.toml patients.csv; coterie schema check s.toml a.parquet --json"
)
def check(
    schema: Annotated[Path, typer.Argument(help="A schema in TOML.", show_default=False)],
    file: Annotated[Path, typer.Argument(help="A CSV or Parquet file.", show_default=False)],
    show_values: Annotated[bool, typer.Option("--show-values", help="Quote the cell that does not fit.")] = False,
    json_line: Annotated[bool, _JSON] = False,
) -> None:
    """Check that a file fits a schema; the first thing that does not fit is named, with exit code 2."""
    from coterie.cli.spec.schemas import check_file
    from coterie.data.checks import values_shown

    with values_shown(show_values):
        told = check_file(schema, file)
    if json_line:
        typer.echo(json.dumps(told))
        return
    parties = "" if told["parties"] is None else f", {told['parties']} parties"
    typer.echo(f"{file} fits: {told['records']:,} records, {told['features']} features{parties}")
    if told["data_derived"]:
        typer.echo(f"VOID as a guarantee: {', '.join(told['data_derived'])} read off the data")
