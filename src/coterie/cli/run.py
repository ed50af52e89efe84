"""`coterie run`: one spec, one run, one directory."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from coterie.certificate import Certificate
    from coterie.plan import Plan

EXAMPLES = "Examples: coterie run spec.toml; coterie run spec.toml --out results --json; coterie run spec.toml --plan"


def run(
    spec: Annotated[Path, typer.Argument(help="A TOML file; docs/commands.md lists its tables.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option(help="New directory for all that comes out. [default: SPEC's name with -run]")
    ] = None,
    plan_only: Annotated[
        bool, typer.Option("--plan", help="Check spec and data, print the loss, and release nothing.")
    ] = False,
    audit: Annotated[
        bool, typer.Option("--audit", help="First audit the algorithm and its mechanism; the certificate shows it.")
    ] = False,
    engine: Annotated[str | None, typer.Option(help="in-process or mpi, whatever the spec says.")] = None,
    json_line: Annotated[bool, typer.Option("--json", help="Print one line of JSON and nothing else.")] = False,
) -> None:
    """Learn one model from what a spec names, and certify its privacy loss.

    The directory holds the spec, the plan, the transcript, the certificate, the model and a log; it appears complete or
    not at all, and an existing one is never overwritten. Exit codes: 0 done, 1 failed, 2 bad input, 130 stopped by
    Ctrl-C (what was released is kept, and charged in full). On a cluster: mpiexec -n 8 coterie run spec.toml --engine
    mpi.
    """
    from coterie.rundir import check_free, unused

    directory = unused(Path(f"{spec.stem}-run")) if out is None else out
    if not plan_only:
        check_free(directory)

    from coterie.cli.progress import shown_progress
    from coterie.cli.spec import Outcome, execute, prepare, read_spec

    content = read_spec(spec, engine=engine)
    carry_out: Callable[..., Outcome | None] = execute
    together: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if content.engine.name == "mpi":
        from coterie.cli.spec.cluster import ended_together, execute_on_cluster, is_first

        carry_out, together = execute_on_cluster, ended_together()
        json_line = json_line or not is_first()  # nobody but the first process speaks
    with together:
        prepared = prepare(content)
        if plan_only:
            _print_plan(prepared, json_line)
            return
        found = _audited(prepared.plan, quiet=json_line) if audit else None
        with shown_progress("training", quiet=json_line) as progress:
            outcome = carry_out(prepared, progress=progress, audit=found)
    if outcome is None:
        return
    outcome.write(directory)
    if content.engine.checkpoint is not None:
        from coterie.engines.checkpoint import Checkpoint

        Checkpoint(content.engine.checkpoint, rank=0).remove()  # what was released is in the directory now
    if json_line:
        typer.echo(json.dumps({**outcome.summary(), "directory": str(directory)}))
    else:
        error = {} if outcome.test_error is None else {"test error": f"{outcome.test_error:.2%} (public records)"}
        more = {**error, "rounds": str(outcome.transcript.n_rounds), "seconds": f"{outcome.seconds:.1f}"}
        _show(_loss_table(outcome.certificate, {**more, "written to": str(directory)}))
    if not outcome.transcript.complete:
        raise typer.Exit(130)


def _audited(plan: "Plan", *, quiet: bool) -> dict[str, Any]:
    from coterie.audit import audit_plan
    from coterie.errors import AuditError

    if not quiet:
        typer.echo("auditing the algorithm and its mechanism ...", err=True)
    found = audit_plan(plan)
    if found["verdict"] != "pass":
        raise AuditError(f"audit: {', '.join(found['failed'])} failed; nothing was released")
    return found


def _print_plan(prepared: Any, json_line: bool) -> None:
    certificate = prepared.certificate()
    if json_line:
        document = certificate.document
        told = {key: document[key] for key in ("verdict", "guarantee", "views", "mechanism", "plan_digest")}
        typer.echo(json.dumps(told))
        return
    _show(_loss_table(certificate, {"rounds": str(prepared.plan.n_rounds), "released": "nothing yet"}))


def _loss_table(certificate: "Certificate", more: dict[str, str]) -> "Table":
    from rich.table import Table

    from coterie.certificate import shown_loss

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for warning in certificate.verdict:
        table.add_row("WARNING", warning)
    for view in certificate.views:
        table.add_row("privacy loss", f"ε = {shown_loss(view.epsilon)} at δ = {certificate.delta:g}")
        table.add_row("", f"against anybody who sees {view.sees}")
    table.add_row("protected", certificate.document["guarantee"]["unit_of_privacy"])
    for name, value in more.items():
        table.add_row(name, value)
    return table


def _show(table: "Table") -> None:
    from rich.console import Console

    Console(markup=False, highlight=False).print(table)
