"""`coterie cite`: what to cite."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.cli.options import JSON_LIST

if TYPE_CHECKING:
    from coterie.algorithms import Citation

EXAMPLES = "Examples: coterie cite; coterie cite recycled-admm; coterie cite walk-admm --bibtex; coterie cite --json"


def _keys(incomplete: str) -> list[str]:
    from coterie.algorithms import CITATIONS

    return [key for key in CITATIONS if key.startswith(incomplete)]


def cite(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Algorithms, or keys of papers. [default: all]", show_default=False, autocompletion=_keys),
    ] = None,
    bibtex: Annotated[bool, typer.Option("--bibtex", help="Print BibTeX entries.")] = False,
    json_list: Annotated[bool, JSON_LIST] = False,
) -> None:
    """Print what to cite: Coterie and the papers behind it."""
    found = _found(names or [])
    if json_list:
        typer.echo(json.dumps([citation.as_dict() for citation in found]))
        return
    for citation in found:
        typer.echo(citation.bibtex if bibtex else f"{citation.key}\n    {citation.text}")


def _found(names: list[str]) -> "list[Citation]":
    """Coterie and the papers behind `names`: keys, or algorithms; without names, everything."""
    from coterie.algorithms import ALGORITHMS, CITATIONS, SOFTWARE
    from coterie.errors import InputError
    from coterie.values import nearest

    keys = [SOFTWARE.key] if names else list(CITATIONS)
    known = (*ALGORITHMS, *CITATIONS)
    for name in names:
        if name not in known:
            raise InputError(
                f"name: got {name!r}; an algorithm or the key of a paper is needed{nearest(name, known)} "
                f"(algorithms: {', '.join(ALGORITHMS)})"
            )
        keys.append(ALGORITHMS[name].citation.key if name in ALGORITHMS else name)
    return [CITATIONS[key] for key in dict.fromkeys(keys)]
