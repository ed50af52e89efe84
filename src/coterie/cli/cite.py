"""`coterie cite`: what to cite."""

import json
from typing import Annotated

import typer

EXAMPLES = "Examples: coterie cite; coterie cite recycled-admm; coterie cite walk-admm --bibtex; coterie cite --json"


def _keys(incomplete: str) -> list[str]:
    from coterie.citations import CITATIONS

    return [key for key in CITATIONS if key.startswith(incomplete)]


def cite(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Algorithms, or keys of papers. [default: all]", show_default=False, autocompletion=_keys),
    ] = None,
    bibtex: Annotated[bool, typer.Option("--bibtex", help="Print BibTeX entries.")] = False,
    json_list: Annotated[bool, typer.Option("--json", help="Print one list as JSON and nothing else.")] = False,
) -> None:
    """Print what to cite: Coterie, and the paper behind each algorithm."""
    from coterie.algorithms import ALGORITHMS
    from coterie.citations import cite as find

    found = find(names or [], ALGORITHMS)
    if json_list:
        typer.echo(json.dumps([citation.as_dict() for citation in found]))
        return
    for citation in found:
        typer.echo(citation.bibtex if bibtex else f"{citation.key}\n    {citation.text}")
