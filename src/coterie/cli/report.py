"""`coterie report`: runs as pages for people."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.options import JSON, write_new

EXAMPLES = (
    "Examples: coterie report heart-run; coterie report heart-run --out board.html; coterie report --compare eps-1 "
    "eps-2 eps-4 --out frontier.html"
)


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Directories of runs.", show_default=False)],
    compare: Annotated[
        bool, typer.Option("--compare", help="One page for all of them: error against privacy loss.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="A new file for the page. [default: report.html in each run; comparison.html]"),
    ] = None,
    json_line: Annotated[bool, JSON] = False,
) -> None:
    """Write a run as one HTML page that needs no network.

    It says what is promised, how good the model is, what was spent, by whom. Every run is verified first. A page is
    made from the files of its run and from nothing else, so it can be made again and shows nothing that was not
    released.
    """
    from coterie.cli.spec.execution import report_of, write_report
    from coterie.errors import InputError
    from coterie.report import compare_page
    from coterie.rundir import RunFiles

    if out is not None and not compare and len(runs) > 1:
        raise InputError(f"--out: got one file for {len(runs)} runs; leave it out, or say --compare")
    target = out if out is not None else Path("comparison.html") if compare else None
    if target is not None and target.exists():
        raise InputError(f"--out: {str(target)!r} exists already; choose another")
    for run in runs:
        _check(run)
    if compare:
        named = [(os.path.normpath(run), RunFiles.read(run)) for run in runs]
        assert target is not None
        write_new(target, compare_page(named))
    elif target is not None:
        write_new(target, report_of(runs[0]))
    written = [target] if target is not None else [write_report(run) for run in runs]
    if json_line:
        typer.echo(json.dumps({"written": [str(path) for path in written]}))
        return
    for path in written:
        typer.echo(f"written to {path}")


def _check(run: Path) -> None:
    """A page must not show what a changed file says; of a demo, which has no sums, the certificate is recomputed."""
    from coterie.cli.spec.verification import verify_path
    from coterie.errors import InputError
    from coterie.rundir import SUMS

    if not run.is_dir():
        raise InputError(f"RUN: {str(run)!r} is no directory; that of a run is needed")
    if (run / SUMS).exists() or (run / "spec.toml").exists():
        verify_path(run, report=False)
        return
    verify_path(run / "certificate.json")
    typer.echo(f"coterie: {run} has no {SUMS}, so only its certificate was recomputed", err=True)
