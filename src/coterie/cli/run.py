"""`coterie run`: one spec, one run, one directory."""

import contextlib
import json
import math
import signal
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.cli.options import JSON, SHOW_VALUES

if TYPE_CHECKING:
    from rich.table import Table

    from coterie.certificate import Certificate
    from coterie.cli.spec import Outcome, Prepared, Spec
    from coterie.engines.checkpoint import Checkpoint
    from coterie.plan import Plan
    from coterie.rundir import Reserved
    from coterie.terminal import Stop

_SOON = "coterie: stopping as soon as every process has read the data; nothing is charged"
_NOTHING_DONE = "coterie: stopped before anything was charged or released; nothing is kept"
_STOPPING = "coterie: stopping after the rounds that are under way; once more stops at once"
EXAMPLES = (
    "Examples: coterie run spec.toml; coterie run spec.toml --engine sites; "
    "coterie run spec.toml --out results --json; coterie run spec.toml --plan"
)


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
    engine: Annotated[str | None, typer.Option(help="in-process, sites, nvflare, flower or mpi.")] = None,
    ranks: Annotated[
        int | None, typer.Option(help="Start so many processes of the engine mpi, and stop them together.")
    ] = None,
    new_ledger: Annotated[
        bool, typer.Option("--new-ledger", help="Make the ledger that the spec names; without this it must be there.")
    ] = False,
    show_values: Annotated[bool, SHOW_VALUES] = False,
    json_line: Annotated[bool, JSON] = False,
) -> None:
    """Train the model of a spec, and certify its privacy loss.

    The directory holds the spec, the plan, the transcript, the certificate, the model, a log and a report to open in a
    browser; it appears complete or not at all, and an existing one is never overwritten. Exit codes: 0 done, 1 failed,
    2 bad input, 130 stopped by Ctrl-C, SIGTERM, SIGUSR1 or a terminal that is gone (what was released is kept, and
    charged in full). With --engine sites every party's records are in a process of its own, with its own keys and
    ledger, and every one signs the certificate. On a cluster: coterie run spec.toml --ranks 8, or mpiexec -n 8 coterie
    run spec.toml --engine mpi.
    """
    if ranks is not None:
        given = {"--plan": plan_only, "--audit": audit, "--new-ledger": new_ledger, "--show-values": show_values}
        flags = [name for name, wanted in {**given, "--json": json_line}.items() if wanted]
        raise typer.Exit(_at_ranks(ranks, spec, out, engine, flags))

    from coterie.terminal import StoppedInTime, stoppable

    # the last one is what mpiexec and batch systems hand on to the ranks; Ctrl-C at mpiexec kills them
    with stoppable(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1) as stop:
        # until something is charged
        stop.patience = 0
        stop.last_words = _NOTHING_DONE
        try:
            _run(stop, spec, out, plan_only, audit, engine, new_ledger, show_values, json_line)
        except KeyboardInterrupt as stopped:
            if stop.patience == 0 or isinstance(stopped, StoppedInTime):
                typer.echo(_NOTHING_DONE, err=True)
            raise typer.Exit(130) from None


def _at_ranks(ranks: int, spec: Path, out: Path | None, engine: str | None, flags: list[str]) -> int:
    from coterie.cli.ranks import run_ranks
    from coterie.cli.spec import read_spec
    from coterie.errors import InputError

    if ranks < 1:
        raise InputError(f"--ranks: got {ranks}; an integer >= 1 is needed")
    if engine not in (None, "mpi"):
        raise InputError(f"--ranks: got {ranks} with --engine {engine}; only the engine mpi has ranks")
    # what is wrong with it is said once, here
    read_spec(spec, engine="mpi")
    to = [] if out is None else ["--out", str(out)]
    return run_ranks(ranks, [str(spec), "--engine", "mpi", *to, *flags])


def _run(
    stop: "Stop",
    spec: Path,
    out: Path | None,
    plan_only: bool,
    audit: bool,
    engine: str | None,
    new_ledger: bool,
    show_values: bool,
    json_line: bool,
) -> None:
    from coterie.rundir import check_free

    if out is not None and not plan_only:
        check_free(out)

    from coterie.cli.spec import charge, execute, open_ledger, prepare, read_spec
    from coterie.cli.spec.execution import add_report
    from coterie.errors import CoterieError
    from coterie.terminal import StoppedInTime, mute_output, shown_progress
    from coterie.values import values_shown

    content = read_spec(spec, engine=engine)
    settle: Callable[..., Any] = charge
    carry_out: Callable[..., Outcome | None] = execute
    asked: Callable[[Stop], bool] = attrgetter("asked")
    together: contextlib.AbstractContextManager[bool] = contextlib.nullcontext(True)
    if content.engine.name == "mpi":
        # ranks end together
        stop.last_words = ""
        from coterie.cli.spec.cluster import anybody_asked, charge_once, ended_together, execute_on_cluster

        settle, carry_out, asked, together = charge_once, execute_on_cluster, anybody_asked, ended_together(stop)
    elif content.engine.between_sites:
        from coterie.cli.spec.local_sites import execute_at_sites

        carry_out = execute_at_sites
    with together as first:
        # nobody but the first process speaks
        json_line = json_line or not first
        stop.answer = "" if json_line else _SOON
        with values_shown(show_values):
            prepared = prepare(content)
        if content.engine.between_sites:
            from coterie.cli.spec import local_sites

            local_sites.check(prepared)
        if plan_only:
            _print_plan(prepared, json_line)
            return
        # from here on there is a directory to remove
        stop.last_words = ""
        with _reserved(out, spec) if first else contextlib.nullcontext() as place:
            ledger = open_ledger(prepared, new=new_ledger) if first else None
            found = _audited(prepared.plan, quiet=json_line) if audit and first else None
            with stop.shielded():
                # by a signal that waited, or was swallowed by whatever it landed in
                if asked(stop):
                    raise StoppedInTime
                past = settle(prepared, ledger)
                # nobody but the first process stops at once: it keeps a log, and ends the others
                stop.patience = 1 if first else math.inf
                stop.answer = "" if json_line else _STOPPING
            if place is None:
                carry_out(prepared, past)
                return
            with _kept_when_it_fails(place, prepared), shown_progress("training", quiet=json_line) as progress:
                outcome = carry_out(prepared, past, progress=progress, audit=found)
            assert outcome is not None
            with stop.shielded():
                checkpoint = _checkpoint(content)
                if checkpoint is not None and not outcome.transcript.complete:
                    stopped = f"{_what_stopped(outcome, checkpoint.directory)}; the same command goes on"
                else:
                    directory = _write(outcome, place, prepared)
                    if checkpoint is not None:
                        # what was released is in the directory now
                        checkpoint.remove()
                    add_report(directory)
                    try:
                        _tell(outcome, directory, None if ledger is None else ledger.limit, json_line)
                    except OSError as error:
                        # of a terminal that is gone, say
                        if not stop.asked:
                            mute_output()
                            reason = f"standard output cannot be written ({error.strerror})"
                            raise CoterieError(f"the run is complete in {directory}, but {reason}") from None
                    over = not stop.asked and outcome.transcript.complete
                    stopped = "" if over else _what_stopped(outcome, directory)
                if stopped:
                    with contextlib.suppress(OSError):
                        typer.echo(f"coterie: {stopped}", err=True)
    if stopped:
        raise typer.Exit(130)


def _checkpoint(content: "Spec") -> "Checkpoint | None":
    if content.engine.checkpoint is None:
        return None
    from coterie.engines.checkpoint import Checkpoint

    return Checkpoint(content.engine.checkpoint, rank=0)


@contextlib.contextmanager
def _reserved(out: Path | None, spec: Path) -> Iterator["Reserved"]:
    """The name of the directory, kept from before anything is charged."""
    from coterie.rundir import Reserved, reserve_next

    place = reserve_next(Path(f"{spec.stem}-run"), paid_for=True) if out is None else Reserved(out, paid_for=True)
    if place.recovered is not None:
        typer.echo(f"coterie: an earlier run was killed; what it left is in {place.recovered}", err=True)
    try:
        yield place
    finally:
        place.discard()


@contextlib.contextmanager
def _kept_when_it_fails(place: "Reserved", prepared: "Prepared") -> Iterator[None]:
    """A run that ends after its charge leaves its spec and a log, however it ends, and what it has released if it fails
    after that."""
    from coterie.cli.spec.execution import UnfinishedError, sentence_of, write_text, write_transcript
    from coterie.errors import CoterieError

    def keep(error: BaseException | None = None) -> None:
        with contextlib.suppress(OSError):
            if isinstance(error, UnfinishedError):
                write_transcript(place.partial, error.transcript)
            write_text(place.partial / "spec.toml", prepared.spec.text)
            write_text(place.partial / "run.log", prepared.log.text)

    keep()
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        prepared.log.add(f"failed: {sentence_of(error)}")
        keep(error)
        kept = place.give_up()
        what = "what was released" if isinstance(error, UnfinishedError) else "its log"
        where = "no log could be written" if kept is None else f"{what} is in {kept}"
        spent = "the loss of the whole plan counts as spent"
        if isinstance(error, KeyboardInterrupt):
            typer.echo(f"coterie: stopped; nothing could be kept of it, {spent}; {where}", err=True)
            raise
        raise CoterieError(f"{sentence_of(error)}; {spent}; {where}") from error


def _write(outcome: "Outcome", place: "Reserved", prepared: "Prepared") -> Path:
    """Where the run is now: in its directory, or, if that cannot be written, wherever there is room."""
    from coterie.cli.spec.execution import after_releasing
    from coterie.errors import CoterieError
    from coterie.rundir import saved_elsewhere

    outcome.log.add(f"written to {place.directory.name}")
    try:
        outcome.fill(place.partial)
        return place.finish()
    except OSError as error:
        place.discard()
        kept = saved_elsewhere(place.directory.name, outcome.fill)
        if kept is None:
            raise CoterieError(
                f"out: {str(place.directory)!r} cannot be written ({error.strerror}), nor anything else; the run is "
                "lost, and its whole loss counts as spent"
            ) from None
        raise CoterieError(
            f"out: {str(place.directory)!r} cannot be written ({error.strerror}); the run is complete in {kept}"
        ) from None
    except Exception:
        with _kept_when_it_fails(place, prepared), after_releasing(outcome.transcript):
            raise
        raise AssertionError("unreachable") from None


def _tell(outcome: "Outcome", directory: Path, limit: tuple[float, float] | None, json_line: bool) -> None:
    from coterie.cli.spec.execution import cautions_of
    from coterie.rundir import REPORT

    if json_line:
        told = {**outcome.summary(), "seconds": round(outcome.seconds, 2), "directory": str(directory)}
        told |= {"warnings": list(cautions_of(outcome))}
        typer.echo(json.dumps(told))
        return
    more = {"rounds": str(outcome.transcript.n_rounds), "seconds": f"{outcome.seconds:.1f}"}
    if outcome.spec.ledger is not None:
        more = {"ledger": f"{_spent_in_all(outcome, limit)} ({outcome.spec.ledger.name})", **more}
    _show(
        _loss_table(
            outcome.certificate,
            {**more, "written to": str(directory), "to open": str(directory / REPORT)},
            cautions_of(outcome),
        )
    )
    if outcome.result is not None:
        typer.echo("")
        _show(_result_table(outcome.result, outcome.references))
    elif outcome.transcript.complete:
        typer.echo(f"how good it is: coterie evaluate {directory} FILE")


def _spent_in_all(outcome: "Outcome", limit: tuple[float, float] | None) -> str:
    """`limit` is the ledger's, which a spec need not repeat."""
    from coterie.certificate import shown_loss

    certificate = outcome.certificate
    total = f"ε = {shown_loss(certificate.total_epsilon)} at δ = {certificate.total_delta:g} in all"
    return total if limit is None else f"{total}, of at most ε = {limit[0]:g} at δ = {limit[1]:g}"


def _what_stopped(outcome: "Outcome", directory: Path) -> str:
    transcript = outcome.transcript
    done = f"stopped after round {transcript.n_rounds} of {transcript.plan.n_rounds}: there is no model"
    when = "asked to stop when it was done: the model is there" if transcript.complete else done
    ledger = outcome.spec.ledger
    spent = "the loss of the whole plan counts as spent" if ledger is None else f"{ledger.name} was charged in full"
    return f"{when}, and {spent}; everything that was released is kept in {directory}"


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
    from coterie.cli.spec.execution import cautions_of

    certificate = prepared.certificate()
    if json_line:
        document = certificate.document
        told = {key: document[key] for key in ("verdict", "guarantee", "views", "mechanism", "plan_digest")}
        typer.echo(json.dumps({**told, "warnings": list(cautions_of(prepared))}))
        return
    more = {
        "rounds": str(prepared.plan.n_rounds),
        "rows": prepared.records.schema.rows_clipped,
        "released": "nothing yet",
    }
    _show(_loss_table(certificate, more, cautions_of(prepared)))


def _result_table(result: dict[str, Any], references: dict[str, dict[str, Any]]) -> "Table":
    """The model on public records, beside the majority class and, of public data, fits without privacy: of all records
    in one place, and of a party's own."""
    from rich.table import Table

    from coterie.charts import percent

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="")
    heading = [f"on {result['records']:,} public records", "model"]
    rows: dict[str, tuple[Callable[[float], str], str, Any]] = {
        "error": (percent, "majority_error", None),
        "auc": ("{:.3f}".format, "", 0.5),
        "calibration_error": (percent, "", None),
        "rmse": ("{:.4g}".format, "mean_rmse", None),
        "r2": ("{:.3f}".format, "", 0.0),
    }
    names = {"auc": "AUC", "calibration_error": "calibration error", "rmse": "root mean square error", "r2": "R²"}
    trivial = "majority class" if "error" in result else "always the mean"
    shown = {"nonprivate": "without privacy", "alone": "a party alone, without privacy"}
    for column in [*heading, trivial, *(shown[name] for name in references)]:
        table.add_column(column)
    for name, (shown_as, baseline, constant) in rows.items():
        if name in result:
            against = result.get(baseline, constant)
            cells = [shown_as(result[name]), "" if against is None else shown_as(against)]
            cells += [shown_as(fitted[name]) for fitted in references.values()]
            table.add_row(names.get(name, name), *cells)
    return table


def _loss_table(certificate: "Certificate", more: dict[str, str], cautions: Sequence[str] = ()) -> "Table":
    from rich.table import Table

    from coterie.certificate import shown_loss

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for warning in (*certificate.verdict, *cautions):
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
