"""`coterie deploy`: what separate machines need so that an engine carries envelopes between them."""

import json
from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.options import JSON

EXAMPLES = (
    "Examples: coterie deploy kits --engine nvflare --server relay.example.org --party north --party south; "
    "coterie deploy kits --engine flower --server 192.0.2.7:9092 --party north --party south --json"
)


def deploy(
    out: Annotated[Path, typer.Argument(help="New folder.", show_default=False)],
    engine: Annotated[str, typer.Option(help="What carries the envelopes: nvflare or flower.", show_default=False)],
    server: Annotated[
        str, typer.Option(help="HOST or HOST:PORT of the machine that all sites can reach.", show_default=False)
    ],
    party: Annotated[
        list[str] | None, typer.Option(help="Name of a party, as proposals call it; once for each.", show_default=False)
    ] = None,
    json_line: Annotated[bool, JSON] = False,
) -> None:
    """Write start-up kits for the coordinator and every site. They hold certificates, keys and systemd units.

    The README.md in each folder says what goes where, and what firewalls must let through: sites connect outwards and
    open no port. Nothing is read off records, and nothing here can approve or open anything: that rests on the sites'
    own keys.
    """
    from coterie.relay import deployment
    from coterie.rundir import check_free, new_directory

    parties = party or []
    deployment.check(engine, parties)
    place = deployment.Server.parse(server, engine)
    check_free(out)
    with new_directory(out) as partial:
        deployment.write(partial, engine, place, parties)
    out.chmod(0o700)
    if json_line:
        told = {"directory": str(out), "engine": engine, "server": place.address, "parties": parties}
        typer.echo(json.dumps(told))
        return
    typer.echo(f"written to {out}; {out / 'README.md'} says what goes where")
    keys = (
        path.relative_to(out) for path in out.rglob("*") if path.is_file() and b"PRIVATE KEY-----" in path.read_bytes()
    )
    folders = sorted({str(Path(*key.parts[: 2 if key.parts[0] == "sites" else 1])) for key in keys})
    typer.echo(f"a private key lies in each of {', '.join(folders)}: send them by a way that nobody else can read")
