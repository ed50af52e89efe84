"""`coterie site`: a data holder's own folder, keys, policy, ledger and server."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.cli.options import JSON, write_new

if TYPE_CHECKING:
    from coterie.keys import PrivateKeys
    from coterie.ledger import Ledger
    from coterie.site.site import Review, Site

app = typer.Typer(no_args_is_help=True, help="A data holder's side: records, keys, policy, ledger, server.")

_FOLDER = typer.Argument(help="The site's folder.", show_default=False)
_PROPOSAL = typer.Argument(help="A proposal.json, or the folder it is in.", show_default=False)
# letters
_BAR = 30


@app.command(
    epilog="Examples: coterie site init north --data patients.csv --schema schema.toml --epsilon 2 --delta 1e-6"
)
def init(
    folder: Annotated[Path, typer.Argument(help="New folder.", show_default=False)],
    data: Annotated[Path, typer.Option(help="The records: a CSV or Parquet file. It stays where it is.")],
    schema: Annotated[Path, typer.Option(help="What may be in their columns; `coterie schema make` writes one.")],
    name: Annotated[str | None, typer.Option(help="As proposals must call it. [default: the folder's name]")] = None,
    epsilon: Annotated[float | None, typer.Option(help="The most that all runs together may lose ...")] = None,
    delta: Annotated[float | None, typer.Option(help="... at this delta. Can be written into site.toml later.")] = None,
    json_line: Annotated[bool, JSON] = False,
) -> None:
    """Make a site: keys, an empty ledger and a site.toml. The latter says what the site agrees to.

    Nothing is read off the records but whether the file can be read. The keys are for this machine alone.
    """
    from coterie.cli.spec.reading import read_schema
    from coterie.errors import InputError
    from coterie.privacy.accountants import check_delta
    from coterie.site.records import check_readable
    from coterie.site.site import Site

    if (epsilon is None) != (delta is None):
        raise InputError(f"--epsilon, --delta: got {epsilon}, {delta}; both or neither are needed")
    if epsilon is not None and delta is not None:
        if not epsilon > 0:
            raise InputError(f"--epsilon: got {epsilon}; a positive number is needed")
        check_delta(delta)
    content, derived = read_schema(schema)
    if derived:
        raise InputError(f"--schema: {', '.join(derived)} in it were read off data; a site takes public schemas only")
    check_readable(data, content)
    site = Site.create(
        folder,
        name=name or folder.resolve().name,
        data=data.resolve(),
        schema=schema.resolve(),
        epsilon=epsilon,
        delta=delta,
    )
    identity = site.keys.identity
    if json_line:
        typer.echo(json.dumps({"site": str(folder), "name": site.policy.name, "identity": str(identity)}))
        return
    typer.echo(f"made the site {site.policy.name!r} in {folder}")
    typer.echo(f"its identity, to be sent to whoever proposes a study:\n{identity}")
    typer.echo(f"read {folder / 'site.toml'} and change what it agrees to")


@app.command(epilog="Examples: coterie site identity north; coterie site identity north --json")
def identity(folder: Annotated[Path, _FOLDER], json_line: Annotated[bool, JSON] = False) -> None:
    """Print the site's public keys and their fingerprint.

    Proposals name the keys; compare the fingerprint by telephone.
    """
    from coterie.site.policy import Policy

    keys = _keys(folder)
    name = Policy.read(folder).name
    if json_line:
        told = {"name": name, "identity": str(keys.identity), "fingerprint": keys.identity.fingerprint}
        typer.echo(json.dumps(told))
        return
    typer.echo(str(keys.identity))
    typer.echo(f"{name}, fingerprint {keys.identity.fingerprint}", err=True)


@app.command(epilog="Examples: coterie site check north study/; coterie site check north proposal.json --json")
def check(
    folder: Annotated[Path, _FOLDER], proposal: Annotated[Path, _PROPOSAL], json_line: Annotated[bool, JSON] = False
) -> None:
    """Check a proposal against records, policy and budget. Every misfit is told with column, line and an example.

    What it prints is for the owner of the records alone. Nothing is approved, charged or sent. Exit code 2 where the
    proposal cannot be approved.
    """
    from coterie.site.proposal import Proposal

    site = _site(folder)
    review = site.review(Proposal.read(proposal))
    _tell_review(site, review, json_line)
    if not review.fits:
        raise typer.Exit(2)


@app.command(epilog="Examples: coterie site approve north study/; coterie site approve north proposal.json --json")
def approve(
    folder: Annotated[Path, _FOLDER], proposal: Annotated[Path, _PROPOSAL], json_line: Annotated[bool, JSON] = False
) -> None:
    """Approve the one run that a proposal describes. It is checked first, as by `check`."""
    from coterie.site.proposal import Proposal

    site = _site(folder)
    review = site.approve(Proposal.read(proposal))
    _tell_review(site, review, json_line)
    if not review.fits:
        if not json_line:
            typer.echo("coterie: not approved", err=True)
        raise typer.Exit(2)
    if not json_line:
        typer.echo(f"approved: {review.proposal.digest}")


@app.command(epilog="Examples: coterie site withdraw north 3f2a91; coterie site withdraw north study/")
def withdraw(
    folder: Annotated[Path, _FOLDER],
    proposal: Annotated[str, typer.Argument(help="The beginning of its digest, or its file.", show_default=False)],
    json_line: Annotated[bool, JSON] = False,
) -> None:
    """Take an approval back, also in the middle of a run. From now on the site refuses it.

    What was released stays released, and charged in full; where nothing was, nothing is charged.
    """
    from coterie.site.proposal import Proposal

    site = _site(folder)
    known = Path(proposal).exists()
    digest = site.store.find(Proposal.read(proposal).digest if known else proposal)
    given_back = site.withdraw(digest)
    if json_line:
        typer.echo(json.dumps({"withdrawn": digest, "nothing_released": given_back}))
        return
    spent = "nothing had been released, so nothing is charged" if given_back else "what was released stays charged"
    typer.echo(f"withdrawn: {digest[:16]}; {spent}")


@app.command(epilog="Examples: coterie site serve north; coterie site serve north --socket /run/coterie/north.sock")
def serve(
    folder: Annotated[Path, _FOLDER],
    socket: Annotated[Path | None, typer.Option(help="Unix socket. [default: site.sock in the folder]")] = None,
    group: Annotated[str | None, typer.Option(help="A group whose members may connect: that of a relay.")] = None,
) -> None:
    """Answer coordinators of approved proposals. Until SIGTERM or Ctrl-C; records stay in memory, steps compiled."""
    from coterie.site.serve import serve as answer
    from coterie.site.site import Site

    def check_result(directory: Path) -> None:
        # which a site needs once a run
        from coterie.cli.spec.verification import verify_path

        verify_path(directory)

    site = Site(folder, check_result=check_result)
    typer.echo(f"coterie: serving {site.policy.name!r} at {socket or site.store.socket_file}", err=True)
    answer(site, socket, group=group)


@app.command(epilog="Examples: coterie site status north; coterie site status north --json")
def status(folder: Annotated[Path, _FOLDER], json_line: Annotated[bool, JSON] = False) -> None:
    """Show approvals, progress of runs and the budget left. Also whether the site is being served."""
    from coterie.errors import InputError
    from coterie.site.store import locked

    site = _site(folder)
    try:
        with locked(folder, "site"):
            serving = False
    except InputError:
        serving = True
    runs = []
    for digest in site.store.digests():
        proposal = site.store.approved(digest)
        assert proposal is not None
        booked = site.ledger.reservation(digest)
        committed = 0 if booked is None else len(booked.committed)
        ended = site.store.result(digest).exists()
        state = "ended" if ended else "approved" if booked is None else f"round {committed} of {proposal.plan.n_rounds}"
        runs.append({"proposal": digest, "title": proposal.title, "state": state})
    spent = _spent(site)
    if json_line:
        typer.echo(json.dumps({"name": site.policy.name, "serving": serving, "budget": spent, "runs": runs}))
        return
    typer.echo(f"{site.policy.name}: {'serving' if serving else 'not serving'}")
    typer.echo(_budget_line(spent))
    for run in runs:
        typer.echo(f"  {run['proposal'][:16]}  {run['state']}  {run['title']}")


@app.command(epilog="Examples: coterie site ledger north; coterie site ledger north --json")
def ledger(folder: Annotated[Path, _FOLDER], json_line: Annotated[bool, JSON] = False) -> None:
    """Show what was released, to whom, when, and at what cost. Also what is left of the budget."""
    import datetime

    site = _site(folder)
    rows = []
    for entry in site.ledger.entries():
        if entry.kind != "reserved":
            continue
        booked = site.ledger.reservation(entry.content["run"])
        assert booked is not None
        when = datetime.datetime.fromtimestamp(entry.time, datetime.UTC).strftime("%Y-%m-%d %H:%M")
        rows.append(
            {
                "when": when,
                "what": booked.what,
                "to": booked.by,
                "run": booked.run,
                "rounds_released": len(booked.committed),
                "rounds": booked.rounds,
                "epsilon": _number(booked.price.epsilon),
                "delta": booked.price.delta,
                "given_back": booked.given_back,
            }
        )
    spent = _spent(site)
    if json_line:
        typer.echo(json.dumps({"name": site.policy.name, "budget": spent, "releases": rows}))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"Ledger of {site.policy.name}", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for heading in ("when (UTC)", "what", "to (key)", "released", "ε", "δ"):
        table.add_column(heading)
    for row in rows:
        cost = "given back" if row["given_back"] else _loss(row["epsilon"])
        released = f"{row['rounds_released']} of {row['rounds']} rounds"
        table.add_row(row["when"], row["what"], row["to"], released, cost, f"{row['delta']:g}")
    Console(markup=False, highlight=False).print(table)
    if not rows:
        typer.echo("nothing was released")
    typer.echo(_budget_line(spent))


@app.command(epilog="Examples: coterie site verify north; coterie site verify north --receipt receipt.json")
def verify(
    folder: Annotated[Path, _FOLDER],
    receipt: Annotated[Path | None, typer.Option(help="A receipt that somebody else has kept.")] = None,
    new_receipt: Annotated[Path | None, typer.Option(help="Write the ledger's head to this new file.")] = None,
    json_line: Annotated[bool, JSON] = False,
) -> None:
    """Check every entry of the ledger. With a receipt, also that nothing was cut off or went back behind it."""
    from coterie.errors import InputError
    from coterie.ledger import Receipt

    book = _ledger(folder)
    kept = None
    if receipt is not None:
        try:
            kept = Receipt.from_json(receipt.read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"--receipt: cannot read {str(receipt)!r} ({error.strerror})") from None
    entries = book.verify(kept)
    head = book.head()
    if new_receipt is not None:
        write_new(new_receipt, head.to_json())
    if json_line:
        typer.echo(json.dumps({"valid": True, "entries": entries, "head": head.hash}))
        return
    beyond = "" if kept is None else f", and it still holds entry {kept.number} of the receipt"
    typer.echo(f"whole: {entries} entries, every one signed and in its place{beyond}")
    typer.echo(f"head: {head.hash}")


@app.command(epilog="Examples: coterie site backup north ledger-2026-11-16.sqlite")
def backup(
    folder: Annotated[Path, _FOLDER], out: Annotated[Path, typer.Argument(help="New file.", show_default=False)]
) -> None:
    """Copy the ledger while the site goes on. A copy is for reading: put back, it would have forgotten what came after,
    and is refused."""
    typer.echo(f"written to {_ledger(folder).backup(out)}")


# --- what they share --------------------------------------------------------------------------------------------------


def _site(folder: Path) -> "Site":
    from coterie.site.site import Site

    return Site(folder)


def _keys(folder: Path) -> "PrivateKeys":
    from coterie.keys import PrivateKeys
    from coterie.site.store import Store

    return PrivateKeys.load(Store(folder).key_file)


def _ledger(folder: Path) -> "Ledger":
    """To be read: other commands of a site need not be able to."""
    from coterie.ledger import Ledger
    from coterie.site.store import Store

    return Ledger.open(Store(folder).ledger_file, _keys(folder).signing)


def _number(value: float) -> float | str:
    return "infinite" if math.isinf(value) else value


def _loss(value: Any) -> str:
    from coterie.certificate import shown_loss

    return shown_loss(value)


def _spent(site: "Site") -> dict[str, Any]:
    policy = site.policy
    if policy.epsilon is None or policy.delta is None:
        return {"epsilon": None, "delta": None, "spent": None, "left": None, "period_days": None}
    spent = site.ledger.total(site.body_of_data, delta=policy.delta).epsilon
    left = max(0.0, policy.epsilon - spent) if math.isfinite(spent) else 0.0
    return {
        "epsilon": _number(policy.epsilon),
        "delta": policy.delta,
        "spent": _number(spent),
        "left": _number(left),
        "period_days": policy.period_days,
    }


def _budget_line(spent: dict[str, Any]) -> str:
    if spent["epsilon"] is None:
        return "no budget: site.toml has no [budget], so nothing can be approved"
    limit, used = (math.inf if spent[name] == "infinite" else spent[name] for name in ("epsilon", "spent"))
    share = 1.0 if math.isinf(used) else 0.0 if math.isinf(limit) else min(1.0, used / limit)
    filled = round(share * _BAR)
    period = "" if spent["period_days"] is None else f" in any {spent['period_days']:g} days"
    return (
        f"[{'#' * filled}{'.' * (_BAR - filled)}] ε = {_loss(used)} of {_loss(limit)} spent at δ = {spent['delta']:g}"
        f"{period}, {_loss(math.inf if spent['left'] == 'infinite' else spent['left'])} left"
    )


def _tell_review(site: "Site", review: "Review", json_line: bool) -> None:
    proposal, policy = review.proposal, site.policy
    if json_line:
        told = {
            "fits": review.fits,
            "proposal": proposal.digest,
            "epsilon": _number(review.loss),
            "delta": proposal.delta,
            "spent_before": _number(review.spent),
            "spent_after": _number(review.after),
            "budget": None if policy.epsilon is None else _number(policy.epsilon),
            "refusals": review.refusals,
            "misfits": [vars(row) for row in review.misfits],
        }
        typer.echo(json.dumps(told))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, highlight=False)
    plan = proposal.plan
    rows = {
        "proposal": f"{proposal.title} ({proposal.digest[:16]})",
        "leaves this site": f"{plan.n_rounds} rounds, {plan.problem.n_coefficients(plan.facts)} numbers each"
        + (", WITHOUT noise, to the coordinator" if proposal.curated else ", noised"),
        "costs": f"ε = {_loss(review.loss)} at δ = {proposal.delta:g}, {plan.adjacency}",
        "spent": f"ε = {_loss(review.spent)} before, {_loss(review.after)} with it"
        + ("" if policy.epsilon is None else f", of {_loss(policy.epsilon)}"),
    }
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for key, value in rows.items():
        table.add_row(key, value)
    console.print(table)
    if review.misfits:
        found = Table(
            title="Records that do not fit (for you alone)", title_justify="left", box=None, padding=(0, 2, 0, 0)
        )
        for heading in ("column", "what", "count", "first line", "example"):
            found.add_column(heading, justify="right" if heading in ("count", "first line") else "left")
        for row in review.misfits:
            line = "" if row.line is None else str(row.line)
            found.add_row(row.column, row.what, str(row.count), line, row.example)
        console.print(found)
    for sentence in review.refusals:
        typer.echo(f"refused: {sentence}")
    unusable = list(dict.fromkeys(row.column for row in review.misfits if row.refused))
    if unusable:
        typer.echo(f"refused: records: what is listed for {', '.join(unusable)} does not fit the proposal")
    if review.fits:
        typer.echo("records, policy and budget allow it")
