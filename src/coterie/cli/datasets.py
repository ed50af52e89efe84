"""`coterie datasets`: what comes with the package."""

import json
from typing import Annotated, Any

import typer

from coterie.cli.options import JSON_LIST

EXAMPLES = "Examples: coterie datasets; coterie datasets heart; coterie datasets --json"


def _names(incomplete: str) -> list[str]:
    from coterie.data import DATASETS

    return [name for name in DATASETS if name.startswith(incomplete)]


def datasets(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Which ones. [default: all]", show_default=False, autocompletion=_names),
    ] = None,
    json_list: Annotated[bool, JSON_LIST] = False,
) -> None:
    """List the data sets of the package. With sizes, labels, parties, and whom to credit.

    Their names may stand in a spec: [data] dataset = "heart".
    """
    from coterie.data import DATASETS

    found = [_described(name) for name in names or DATASETS]
    if json_list:
        typer.echo(json.dumps(found))
        return
    for data in found:
        parties = "no parties of its own" if data["parties"] is None else ", ".join(data["parties"])
        typer.echo(f"{data['name']}: {data['train']:,} training and {data['test']:,} test records")
        typer.echo(f"    {data['n_features']} features; labels {' and '.join(data['labels'])}; {parties}")
        typer.echo(f"    {data['attribution']}")


def _described(name: str) -> dict[str, Any]:
    from coterie.data import load

    data = load(name)
    return {
        "name": name,
        "train": len(data.train),
        "test": len(data.test),
        "n_features": len(data.feature_names),
        "labels": data.labels,
        "parties": None if data.parties is None else sorted(set(data.parties.tolist())),
        "attribution": data.attribution,
    }
