"""`coterie audit`: check the stated losses on this machine, with this version of everything."""

import json
import os
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.cli.options import JSON_LIST

if TYPE_CHECKING:
    from rich.table import Table

    from coterie.audit.finding import Finding

EXAMPLES = (
    "Examples: coterie audit recycled-admm; coterie audit --all --quick; coterie audit --all --json --seconds 300"
)
_WORKERS = 2


def audit(
    names: Annotated[list[str] | None, typer.Argument(help="Which algorithms.", show_default=False)] = None,
    everything: Annotated[bool, typer.Option("--all", help="All algorithms of the package.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="One instance of each mechanism, fewer runs, fewer checks.")
    ] = False,
    json_list: Annotated[bool, JSON_LIST] = False,
    seconds: Annotated[float | None, typer.Option(min=0.0, help="Start no check after so many seconds.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Other runs and neighbours for another seed.")] = 0,
) -> None:
    """Try to refute the stated privacy losses. That is, of every algorithm, mechanism, noise law and adjacency.

    Exact densities, replayed steps on worst neighbours, tests of the noise, exact views of whole runs, and games in
    which whole transcripts are told apart, at a chance of 0.001 that anything correct fails. Exit status 1 if anything
    fails.
    """
    from coterie.errors import InputError

    if bool(names) == everything:
        raise InputError("name: give names of algorithms, or --all")
    # thousands of small programs are compiled and run once, so optimised machine code would not pay
    os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

    from coterie.audit.suite import audit as run_audit
    from coterie.terminal import shown_progress

    with shown_progress("auditing", quiet=json_list) as progress:
        findings = run_audit(names or (), quick=quick, seconds=seconds, seed=seed, workers=_WORKERS, progress=progress)
    failures = [finding for finding in findings if not finding.passed]
    if json_list:
        typer.echo(json.dumps([finding.as_dict() for finding in findings]))
    else:
        from rich.console import Console

        # rows that wrap cannot be read
        wide = max(Console().width, 150)
        Console(markup=False, highlight=False, width=wide).print(table(findings))
        n_unseen = sum(finding.verdict == "not run" for finding in findings)
        unseen = f", {n_unseen} not run" if n_unseen else ""
        typer.echo(f"{len(findings)} checks, {len(failures)} failed{unseen}")
    for finding in failures:
        where = ", ".join((finding.algorithm, finding.mechanism, finding.noise, finding.adjacency))
        typer.echo(f"coterie: {finding.verdict}: {where}: {finding.check}: {finding.detail}", err=True)
    if failures:
        raise typer.Exit(1)


def table(findings: "list[Finding]") -> "Table":
    """One row per instance: the check that came closest to the stated loss, and the worst verdict."""
    from rich.table import Table

    shown = Table(box=None, padding=(0, 1, 0, 0))
    columns = (
        "algorithm",
        "mechanism",
        "noise",
        "adjacency",
        "stated ε",
        "lower ε",
        "tightness",
        "by",
        "seconds",
        "verdict",
    )
    for heading in columns:
        shown.add_column(
            heading, justify="right" if heading[-1] == "ε" or heading in ("tightness", "seconds") else "left"
        )
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for f in findings:
        groups.setdefault((f.algorithm, f.mechanism, f.noise, f.adjacency), []).append(f)
    for labels, group in groups.items():
        closest = max(group, key=lambda f: f.tightness or -1.0)
        numbers = (closest.epsilon_stated, closest.epsilon_lower, closest.tightness)
        seconds = f"{sum(f.seconds for f in group):.1f}"
        by = closest.check if closest.tightness is not None else "-"
        shown.add_row(*labels, *map(_number, numbers), by, seconds, verdict(group))
    return shown


def verdict(group: "list[Finding]") -> str:
    bad = [f.check for f in group if not f.passed]
    if bad:
        return "FAIL: " + ", ".join(bad)
    verdicts = {f.verdict for f in group} - {"not applicable"}
    return "pass" if verdicts == {"pass"} else " / ".join(sorted(verdicts)) or "not applicable"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
