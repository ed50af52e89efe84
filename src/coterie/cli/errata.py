"""`coterie errata`: published statements that fail, recomputed."""

import json
from typing import Annotated

import typer

from coterie.cli.options import JSON_LIST

EXAMPLES = "Examples: coterie errata; coterie errata A1 B5; coterie errata --all --json"


def errata(
    ids: Annotated[list[str] | None, typer.Argument(help="Which ones. [default: all]", show_default=False)] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them, as without IDS.")] = False,
    json_line: Annotated[bool, JSON_LIST] = False,
) -> None:
    """Recompute the papers' claims about privacy.

    What is claimed, reached and certified, on instances that show the difference.

    Verdicts: false (more than the claim is reached), loose (true, and less is certified), true, unproved.
    """
    from rich.console import Console
    from rich.table import Table

    from coterie.papers.errata import compute

    found = compute([] if everything else ids or [])
    if json_line:
        typer.echo(json.dumps([erratum.as_dict() for erratum in found]))
        return
    table = Table(box=None, padding=(0, 1, 1, 0))
    for heading in ("id", "paper", "claimed", "exact", "certified", "verdict", "statement"):
        table.add_column(heading, no_wrap=heading != "statement")
    for e in found:
        numbers = ("none" if value is None else f"{value:.5g}" for value in (e.claimed, e.exact, e.certified))
        table.add_row(e.id, e.paper, *numbers, e.verdict, e.statement)
    Console(markup=False, highlight=False).print(table)
