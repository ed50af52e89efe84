"""`coterie reproduce`: the papers' figures, and whether what they say about them holds."""

import itertools
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.cli.options import JSON_LIST

if TYPE_CHECKING:
    from coterie.papers.runner import Reproduced

EXAMPLES = "Examples: coterie reproduce --list; coterie reproduce pp-2; coterie reproduce --all --quick"
# seconds of the past that the time left is estimated from: parts take up to minutes
_ESTIMATE_OVER = 3600.0


def _names(incomplete: str) -> list[str]:
    from coterie.papers.figure import MODULES

    return [name for name in MODULES if name.startswith(incomplete)]


def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(help="Which figures.", show_default=False, autocompletion=_names)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All figures; resumes where it was stopped.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="Say which figures there are, and compute nothing.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Few runs and iterations: to look, not to conclude.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Other noise for another seed.")] = 0,
    out: Annotated[Path, typer.Option(help="Directory for one directory per figure.")] = Path("reproduced"),
    json_list: Annotated[bool, JSON_LIST] = False,
) -> None:
    """Compute the papers' figures again, and check their claims.

    Every figure leaves figure.png, curves.csv, claims.json, settings.json and page.md. Privacy is drawn as the paper
    bounds it and as it is certified. Finished parts are kept under OUT/.parts, so a stopped run resumes. A claim that
    fails is a result: the exit status stays 0.
    """
    from coterie.errors import InputError
    from coterie.papers.figure import MODULES, find

    if sum((bool(names), everything, listed)) != 1:
        raise InputError("name: give names of figures, or --all, or --list")
    if listed:
        _list(json_list)
        return
    if quick:
        os.environ.setdefault("XLA_FLAGS", _fast_compilation())
        if not json_list:
            typer.echo(
                "quick: few runs and iterations, so that claims may hold or fail by chance; to look, not to conclude"
            )
    figures = find(MODULES if everything else names or ())
    try:
        out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryDirectory(dir=out).cleanup()
    except OSError as error:
        raise InputError(f"--out: {str(out)!r} cannot be written to ({error.strerror})") from None

    from coterie.papers.runner import reproduce as run_figures
    from coterie.terminal import shown_progress

    with shown_progress("reproducing", quiet=json_list, estimate_over=_ESTIMATE_OVER) as progress:
        tell = None if json_list else _tell
        workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        results = run_figures(figures, out, quick=quick, seed=seed, workers=workers, progress=progress, finished=tell)
    if json_list:
        typer.echo(json.dumps([result.summary() for result in results], ensure_ascii=False))


def _fast_compilation() -> str:
    """Runs are short, so machine code that takes long to make would not pay."""
    from importlib.metadata import version

    flags = "--xla_backend_optimization_level=0"
    # XLA ends the process at a flag that it does not know, so only where it is known to know this one
    return f"{flags} --xla_cpu_use_fusion_emitters=false" if version("jaxlib").startswith("0.10.") else flags


def _tell(result: "Reproduced") -> None:
    failing = [claim for claim in result.claims if not claim["holds"]]
    there = ", was there already" if result.resumed else ""
    held = len(result.claims) - len(failing)
    typer.echo(f"{result.figure.name}: {held} of {len(result.claims)} claims hold{there} ({result.directory})")
    for claim in failing:
        accounting = "" if claim["accounting"] == "none" else f", {claim['accounting']}"
        typer.echo(f"  does not hold{accounting}: {claim['text']}")


def _list(json_list: bool) -> None:
    from coterie.algorithms import CITATIONS
    from coterie.papers.figure import MODULES, find

    figures = find(MODULES)
    if json_list:
        told = [{"name": f.name, "title": f.title, "citation": f.citation} for f in figures]
        typer.echo(json.dumps(told, ensure_ascii=False))
        return
    for citation, of_paper in itertools.groupby(figures, key=lambda figure: figure.citation):
        typer.echo(CITATIONS[citation].text)
        for figure in of_paper:
            typer.echo(f"  {figure.name:9} {figure.title}")
