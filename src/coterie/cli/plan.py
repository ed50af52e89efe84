"""`coterie plan`: what a spec or a study would do, and what can be expected of it, before anything is spent."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.cli.options import JSON

if TYPE_CHECKING:
    from coterie.planner import Outline, Planner

EXAMPLES = (
    "Examples: coterie plan spec.toml; coterie plan study.toml --json; coterie plan spec.toml --surrogate public.csv"
)


def plan(
    spec: Annotated[Path, typer.Argument(help="A spec, or a study without data.", show_default=False)],
    surrogate: Annotated[
        Path | None, typer.Option(help="A public table that is like the private ones, by the same schema.")
    ] = None,
    json_line: Annotated[bool, JSON] = False,
) -> None:
    """Say what would be run and what accuracy to expect. Beside it stands what else could be done.

    Everything follows from public facts: sizes, columns, bounds, the promise. Nothing is released or charged, and no
    private record is looked at beyond being counted. Bands are over shapes that public data sets have; a public table
    that is like the private ones makes them narrower.
    """
    outline = _planner(spec, surrogate).outline()
    if json_line:
        typer.echo(json.dumps(outline.to_dict()))
        return
    _show(outline)


def _planner(path: Path, surrogate: Path | None) -> "Planner":
    from coterie.cli.spec.preparation import load_records, planner_of, surrogate_of
    from coterie.cli.spec.reading import read_spec, read_text, tables_in
    from coterie.cli.spec.study import read_study_spec

    content = tables_in("spec", read_text(path), path)
    parties = content.get("parties")
    if "data" in content or not isinstance(parties, dict) or "sizes" not in parties:
        spec = read_spec(path)
        records = load_records(spec)
        facts, schema = records.federation.facts, records.schema
    else:
        spec, facts, schema = read_study_spec(path)
    public = None if surrogate is None else surrogate_of(surrogate, spec, schema, facts)
    return planner_of(spec, facts, public)


def _show(outline: "Outline") -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, highlight=False)
    settings = ", ".join(f"{name} {value:.4g}" for name, value in outline.settings.items())
    console.print(f"{outline.algorithm}: {outline.rounds} rounds, {settings}, l2 {outline.l2:.4g}")
    for reason in outline.reasons:
        console.print(f"  {reason}")
    table = Table(box=None, padding=(0, 2, 0, 0))
    number = outline.planned.auc is None and outline.planned.error[2] > 1
    names = [
        "",
        "1 - R²" if number else "error",
        "between",
        *([] if outline.planned.auc is None else ["AUC", "between"]),
    ]
    for name in [*names, "kept"]:
        table.add_column(name)
    for row in outline.rows:
        cells = [row.name, *_cells(row.error, percent=not number)]
        if row.auc is not None:
            cells += _cells(row.auc, percent=False)
        table.add_row(*cells, "" if row.kept is None else f"{row.kept:.0%}")
    console.print(table)
    console.print("kept: the share of what the best fit to all records gains over the trivial model")
    if outline.rarer is not None:
        shares = [f"{share:.0%}" for share in outline.rarer]
        share = " to ".join(dict.fromkeys(shares))
        console.print(
            f"error: where the rarer class has {share} of the records; where it has fewer, errors are smaller, and so "
            "is that of the majority class"
        )
    for sentence in outline.advice:
        console.print(f"NOTE: {sentence}")


def _cells(band: tuple[float, float, float], *, percent: bool) -> list[str]:
    least, middle, largest = ((f"{value:.1%}" if percent else f"{value:.3f}") for value in band)
    return [middle, f"{least} and {largest}"]
