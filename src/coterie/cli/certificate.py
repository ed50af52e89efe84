"""`coterie certificate`: show one, and recompute it."""

import json
from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.options import JSON

app = typer.Typer(no_args_is_help=True, help="Certificates: show one, recompute one.")

_PATH = typer.Argument(help="A certificate.json, or the directory of a run.", show_default=False)


@app.command(epilog="Examples: coterie certificate verify results; coterie certificate verify certificate.json --json")
def verify(
    path: Annotated[Path, _PATH],
    json_line: Annotated[bool, JSON] = False,
) -> None:
    """Recompute a certificate from the plan inside it. It is refused where it says anything else (exit code 2).

    Of a run's directory, the plan, the transcript, the model and the sums of all files are checked as well; of a run
    between sites also every site's signature, and it says who signed.
    """
    from coterie.certificate import shown_loss
    from coterie.cli.spec.verification import verify_path

    certificate, checked, notes = verify_path(path)
    if json_line:
        guarantee = certificate.document["guarantee"]
        told = {"valid": True, **guarantee, "verdict": list(certificate.verdict), "checked": checked, "notes": notes}
        told["signed_by"] = {party: str(key) for party, key in certificate.signers}
        typer.echo(json.dumps(told))
        return
    for warning in certificate.verdict:
        typer.echo(warning)
    loss = f"ε = {shown_loss(certificate.epsilon)} at δ = {certificate.delta:g}"
    typer.echo(f"recomputed: {loss}; {', '.join(checked)} agree")
    for party, key in certificate.signers:
        typer.echo(f"signed by {party}, key {key.fingerprint}")
    for note in notes:
        typer.echo(f"note: {note}")


@app.command(epilog="Examples: coterie certificate show results; coterie certificate show certificate.json --json")
def show(
    path: Annotated[Path, _PATH],
    json_line: Annotated[bool, JSON] = False,
) -> None:
    """Print a certificate as Markdown, after checking it."""
    from coterie.cli.spec.verification import verify_path

    certificate, _, _ = verify_path(path)
    typer.echo(json.dumps(certificate.document) if json_line else certificate.to_markdown())
