"""The command line. Exit codes: 0 done, 1 failed, 2 bad input, 130 stopped by Ctrl-C."""

import contextlib
import json
import logging
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

import coterie
from coterie.cli import (
    audit,
    certificate,
    cite,
    coordinate,
    datasets,
    deploy,
    errata,
    evaluate,
    plan,
    predict,
    propose,
    report,
    reproduce,
    run,
    schema,
    site,
)
from coterie.cli.options import JSON

_LOGGER = logging.getLogger("coterie")

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help=coterie.__doc__,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"coterie {coterie.__version__}")
        raise typer.Exit


def _whole_number(text: str) -> int:
    if not str(text).isdecimal():
        raise typer.BadParameter(f"got {text!r}; an integer >= 0 is needed")
    return int(text)


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Say on standard error what happens when, and where an error arose.")
    ] = False,
    log_file: Annotated[Path | None, typer.Option(help="Add the same to the end of a file. For yourself.")] = None,
) -> None:
    _log_to(verbose, log_file)


def _log_to(verbose: bool, file: Path | None) -> None:
    from coterie.errors import InputError

    for handler in list(_LOGGER.handlers):
        _LOGGER.removeHandler(handler)
        handler.close()
    handlers: list[logging.Handler] = [logging.StreamHandler()] if verbose else []
    if file is not None:
        try:
            handlers.append(logging.FileHandler(file, encoding="utf-8"))
        except OSError as error:
            raise InputError(f"--log-file: cannot write {str(file)!r} ({error.strerror})") from None
    for handler in handlers:
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        _LOGGER.addHandler(handler)
    _LOGGER.setLevel(logging.DEBUG if handlers else logging.WARNING)
    _LOGGER.propagate = False


@app.command(epilog="Examples: coterie demo; coterie demo --json; coterie demo --engine sites; coterie demo --seed 1")
def demo(
    seed: Annotated[
        int | None,
        typer.Option(
            parser=_whole_number,
            metavar="N",
            help="Reproducible noise, for research: whoever knows the seed can remove it.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="New directory for report, certificate, transcript and model. [default: coterie-demo]"),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            help="in-process, or sites: four hospitals, each a process with its own records and ledger; nvflare "
            "or flower: the same hospitals, reached through NVIDIA FLARE or Flower."
        ),
    ] = "in-process",
    json_line: Annotated[bool, JSON] = False,
) -> None:
    """Train on census data at five parties, at ε = 1 in total.

    Adult's 40,000 training records lie at five parties on a ring. They run private M-ADMM; the loss of one record is at
    most (1, 1e-6) against somebody who sees every message of every round. With --engine sites four hospitals learn a
    model of heart disease at (4, 1e-5), each in a process of its own that signs the certificate. With --engine nvflare
    or flower that engine carries what they say: its server and four sites of it are started on this machine, with
    certificates. A round takes seconds on Flower, so there are three.
    """
    from rich.console import Console

    from coterie.errors import InputError
    from coterie.relay.engines import ENGINES
    from coterie.rundir import check_free, unused

    if engine != "in-process" and engine not in ENGINES:
        raise InputError(f"--engine: got {engine!r}; one of in-process, {', '.join(ENGINES)} is needed")
    console, directory = Console(), out
    if directory is None and not json_line:
        directory = unused(Path("coterie-demo"))
    if directory is not None:
        check_free(directory)

    from coterie.cli.spec.execution import add_report
    from coterie.terminal import shown_progress

    if engine != "in-process":
        from coterie.cli.hospitals import run_sites_demo

        with shown_progress("training", quiet=json_line) as progress, _saved_when_stopped(directory):
            told = run_sites_demo(engine, seed=seed, progress=progress)
        if directory is not None:
            told.outcome.write(directory)
            add_report(directory)
        if json_line:
            typer.echo(json.dumps(told.summary()))
            return
        console.print(told.table())
        console.print(f"report.html, plan, transcript, certificate and model written to [bold]{directory}[/bold]")
        return

    from coterie.cli.demo import run_demo

    with shown_progress("training", quiet=json_line) as progress, _saved_when_stopped(directory):
        result = run_demo(seed=seed, progress=progress)
    figure = None
    if directory is not None:
        figure = _figure_or_none()
        result.write(directory, figure)
        add_report(directory)
    if json_line:
        typer.echo(json.dumps({**result.summary(), "seconds": round(result.seconds, 2)}))
        return
    from coterie.cli.demo import demo_table

    console.print(demo_table(result))
    if directory is not None:
        files = "report.html, certificate, plan, transcript, model and " + ("figure" if figure else "summary")
        console.print(f"{files} written to [bold]{directory}[/bold]")
        if figure is None:
            console.print("no figure: matplotlib is not installed (pip install 'coterie\\[report]')")


app.command(epilog=plan.EXAMPLES)(plan.plan)
app.command(epilog=run.EXAMPLES)(run.run)
app.command(epilog=predict.EXAMPLES)(predict.predict)
app.command(epilog=evaluate.EXAMPLES)(evaluate.evaluate)
app.command(epilog=report.EXAMPLES)(report.report)
app.command(epilog=propose.EXAMPLES)(propose.propose)
app.command(epilog=coordinate.EXAMPLES)(coordinate.coordinate)
app.command(epilog=deploy.EXAMPLES)(deploy.deploy)
app.command(epilog=audit.EXAMPLES)(audit.audit)
app.command(epilog=errata.EXAMPLES)(errata.errata)
app.command(epilog=reproduce.EXAMPLES)(reproduce.reproduce)
app.command(epilog=cite.EXAMPLES)(cite.cite)
app.command(epilog=datasets.EXAMPLES)(datasets.datasets)
app.add_typer(schema.app, name="schema")
app.add_typer(certificate.app, name="certificate")
app.add_typer(site.app, name="site")


def _figure_or_none():
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        return None
    from coterie.cli.demo import draw_demo

    return draw_demo


class _saved_when_stopped:  # noqa: N801 - used as a with-statement
    """Keep what was released before Ctrl-C, then go on stopping."""

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        from coterie.transcript import Interrupted

        if isinstance(error, Interrupted) and self.directory is not None:
            from coterie.rundir import new_directory

            with new_directory(self.directory) as partial:
                error.transcript.save(partial / "partial-transcript.npz")
            typer.echo(f"coterie: {error}; released so far: {self.directory}/partial-transcript.npz", err=True)


def main() -> None:
    """Entry point: turns errors into one sentence and an exit code."""
    from coterie.errors import CoterieError, InputError
    from coterie.terminal import fill_gaps, mute_output

    fill_gaps()
    try:
        app()
    except InputError as error:
        _end(str(error), 2)
    except CoterieError as error:
        _end(str(error), 1)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        mute_output()
        _end("standard output was closed before everything was said", 1)
    except MemoryError:
        _end("there is not enough memory for this", 1)
    except RecursionError:
        _end("something in the input is nested too deeply", 2)
    except OSError as error:
        where = "" if error.filename is None else f"{str(error.filename)!r}: "
        _end(f"{where}{error.strerror or error}", 1)
    except Exception as error:
        reason = " ".join(str(error).split())[:500]
        _end(f"{type(error).__name__}: {reason}; this is a defect (coterie --verbose ... says where)", 1)


def _end(sentence: str, code: int) -> NoReturn:
    _LOGGER.debug("this error arose here:", exc_info=True)
    # of a standard error that is gone
    with contextlib.suppress(OSError):
        typer.echo(f"coterie: {sentence}", err=True)
    sys.exit(code)
