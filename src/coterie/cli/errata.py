"""`coterie errata`: published statements that fail, recomputed."""

import json
from typing import Annotated

import typer

from coterie.cli.options import JSON_LIST

_ROW = "{:4} {:21} {:>10} {:>10} {:>10}  {}"
_INDENT = " " * 5
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
    import shutil
    import textwrap

    from coterie.papers.errata import compute

    found = compute([] if everything else ids or [])
    if json_line:
        typer.echo(json.dumps([erratum.as_dict() for erratum in found]))
        return
    width = min(shutil.get_terminal_size().columns, 120)
    typer.echo(_ROW.format("id", "paper", "claimed", "exact", "certified", "verdict"))
    for e in found:
        numbers = ("none" if value is None else f"{value:.5g}" for value in (e.claimed, e.exact, e.certified))
        typer.echo(_ROW.format(e.id, e.paper, *numbers, e.verdict))
        # below, because a column of its own would leave it a few words a line
        typer.echo(textwrap.fill(e.statement, width, initial_indent=_INDENT, subsequent_indent=_INDENT))
