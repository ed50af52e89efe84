"""`coterie coordinate`: run an approved proposal at its sites."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.cli.options import JSON
from coterie.cli.propose import KEY_FILE

if TYPE_CHECKING:
    from coterie.inference import Columns, Released
    from coterie.site.coordinator import Progress
    from coterie.site.proposal import Proposal

EXAMPLES = (
    "Examples: coterie coordinate study --sites sites; coterie coordinate study --sites sites --out result --json; "
    "coterie coordinate study --engine nvflare --kit kits/coordinator"
)
# where the coordinator keeps what was released, beside the proposal
ROUNDS = "rounds"
# of a log, in which a line for each round would bury the rest
_BETWEEN_LINES_S = 10.0


def coordinate(
    proposal: Annotated[Path, typer.Argument(help="The folder that `coterie propose` made.", show_default=False)],
    sites: Annotated[
        Path | None, typer.Option(help="Folder with the sites' sockets: PARTY.sock, or PARTY/site.sock.")
    ] = None,
    engine: Annotated[
        str, typer.Option(help="What carries the envelopes: sites (their sockets, no engine), nvflare or flower.")
    ] = "sites",
    kit: Annotated[Path | None, typer.Option(help="An engine's kit for the coordinator: `coterie deploy`.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="New directory for all that comes out. [default: result, beside the proposal]")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="[default: coordinator.key, beside the proposal]")] = None,
    json_line: Annotated[bool, JSON] = False,
) -> None:
    """Run what every site has approved, round by round. Everybody ends with the same directory.

    Shows the round, who has answered and who is waited for. It can be stopped and started again: what was released is
    kept beside the proposal, and sites answer what they have answered before.
    """
    from coterie.cli.spec.execution import add_report
    from coterie.cli.spec.local_sites import coordinate as run_all
    from coterie.cli.spec.preparation import Log
    from coterie.errors import CoterieError
    from coterie.inference import Releasing
    from coterie.keys import PrivateKeys
    from coterie.relay.engines import between_machines
    from coterie.rundir import REPORT, check_free, new_directory
    from coterie.site.coordinator import Coordinator
    from coterie.site.envelope import Sealing
    from coterie.site.proposal import Proposal
    from coterie.terminal import stoppable
    from coterie.transcript import Transcript

    way = _way(engine, sites, kit)
    beside = proposal if proposal.is_dir() else proposal.parent
    content = Proposal.read(proposal)
    directory = out or beside / "result"
    done = _is_result_of(directory, content)
    if not done:
        check_free(directory)
    keys = PrivateKeys.load(key or beside / KEY_FILE)
    with (
        between_machines(engine, way, content.names) as carry,
        _watched(quiet=json_line) as watch,
        stoppable() as stop,
    ):
        courses: list[Releasing] = []

        def course_of(transcript: Transcript) -> Releasing:
            courses.append(Releasing(transcript, _columns(content)))
            return courses[0]

        envelopes = Sealing(content, keys, carry)
        coordinator = Coordinator(content, keys, envelopes, beside / ROUNDS, watch=watch, course_of=course_of)
        transcript, signed = run_all(coordinator, stop)
        if signed is None:
            typer.echo(
                f"coterie: stopped after {transcript.n_rounds} of {transcript.plan.n_rounds} rounds; the same command "
                "goes on, and what was released is charged in full",
                err=True,
            )
            raise typer.Exit(130)
        if not done:
            log = Log()
            log.add(f"proposal {content.digest}: {content.plan.n_rounds} rounds among {', '.join(content.names)}")
            log.add(f"signed by {', '.join(content.names)}")
            with new_directory(directory) as partial:
                _fill(partial, content, transcript, courses[0].released if courses else None, signed, log.text)
            add_report(directory)
        try:
            # a page is for each site to make: nobody should open one that somebody else has sent
            files = [path for path in sorted(directory.iterdir()) if path.name != REPORT]
            coordinator.hand_out({path.name: path.read_bytes() for path in files})
        except CoterieError as error:
            raise CoterieError(f"the run is complete in {directory}, but not everybody took it ({error})") from None
    summary = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
    if json_line:
        typer.echo(json.dumps({**summary, "directory": str(directory)}))
        return
    loss = f"ε = {summary['epsilon']:.6g}" if not isinstance(summary["epsilon"], str) else "ε is infinite"
    typer.echo(f"{loss} at δ = {summary['delta']:g}, signed by {', '.join(content.names)}; written to {directory}")


def _way(engine: str, sites: Path | None, kit: Path | None) -> Path:
    """What the engine needs to reach the sites."""
    from coterie.errors import InputError
    from coterie.relay.engines import ENGINES

    if engine not in ENGINES:
        raise InputError(f"--engine: got {engine!r}; one of {', '.join(ENGINES)} is needed")
    name, way, other = ("--sites", sites, kit) if engine == "sites" else ("--kit", kit, sites)
    if way is None or other is not None:
        raise InputError(f"--engine: got {engine!r}; {name} is needed with it, and nothing else of the two")
    return way


def _is_result_of(directory: Path, proposal: "Proposal") -> bool:
    """Whether it was written before, by a command that was cut off while it handed it out."""
    from coterie.site.proposal import Proposal as Read

    return (directory / "proposal.json").exists() and Read.read(directory).digest == proposal.digest


def _columns(proposal: "Proposal") -> "Columns":
    from coterie.cli.spec.execution import columns_of
    from coterie.errors import InputError

    if proposal.schema is None:
        raise InputError("proposal: it has no schema; one that `coterie propose` made is needed")
    names = proposal.schema.feature_names
    return columns_of(proposal.schema, names, proposal.plan.facts, intercept=proposal.intercept)


def _fill(
    folder: Path,
    proposal: "Proposal",
    transcript: Any,
    moments: "Released | None",
    signed: dict[str, Any],
    log: str,
) -> None:
    from coterie.certificate import make_certificate
    from coterie.cli.spec.execution import fill_run, interval_files, model_of
    from coterie.errors import InputError
    from coterie.inference import conclude
    from coterie.inference.result import LEVEL

    if proposal.schema is None:
        raise InputError("proposal: it has no schema; one that `coterie propose` made is needed")
    certificate = make_certificate(
        proposal.plan,
        proposal.delta,
        reproducible=proposal.seed is not None,
        tuning=proposal.tuning,
        engine="sites",
        design="schema",
        sites=signed,
    )
    model, schema, inference = None, proposal.schema, None
    texts = {"proposal.json": proposal.to_json()}
    if moments is not None:
        seeded = proposal.seed is not None
        inference = conclude(proposal.plan, moments, _columns(proposal), delta=proposal.delta, reproducible=seeded)
        texts |= interval_files(moments, inference, LEVEL)
    if transcript.complete:
        names = schema.feature_names
        model = model_of(transcript, schema, names, intercept=proposal.intercept, inference=inference)
    fill_run(folder, transcript, certificate, texts, log, model)


@contextlib.contextmanager
def _watched(*, quiet: bool) -> Iterator[Callable[["Progress"], None] | None]:
    """A line that shows where the run is, on standard error; on what is no terminal, a line for each phase, and one
    every few seconds."""
    if quiet:
        yield None
        return
    from rich.console import Console

    console = Console(stderr=True, markup=False, highlight=False)
    if not console.is_terminal:
        last: list[Any] = [None, 0.0]

        def tell(now: "Progress") -> None:
            if now.phase != last[0] or time.monotonic() - last[1] > _BETWEEN_LINES_S:
                last[:] = now.phase, time.monotonic()
                console.print(_line(now))

        yield tell
        return
    from rich.live import Live

    with Live(console=console, refresh_per_second=8, transient=True) as live:
        yield lambda now: live.update(_line(now))


def _line(now: "Progress") -> str:
    where = f"round {now.round + 1} of {now.n_rounds}" if now.phase == "round" else now.phase
    answered = f"answered: {', '.join(now.answered) or 'nobody yet'}"
    waiting = f"waiting for: {', '.join(now.waiting)}" if now.waiting else "nobody is waited for"
    return f"{where}  {answered}  {waiting}"
