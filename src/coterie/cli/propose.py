"""`coterie propose`: from a study to a proposal that sites can look at and approve."""

import json
from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.options import JSON

EXAMPLES = "Examples: coterie propose study.toml --out study; coterie propose study.toml --out study --json"
KEY_FILE = "coordinator.key"


def propose(
    study: Annotated[Path, typer.Argument(help="A spec without data; docs/sites.md shows one.", show_default=False)],
    out: Annotated[Path, typer.Option(help="New folder for proposal.json, proposal.md and your key.")],
    key: Annotated[Path | None, typer.Option(help="A coordinator.key to use again. [default: a new one]")] = None,
    json_line: Annotated[bool, JSON] = False,
) -> None:
    """Write what sites are asked to agree to. That is the plan with its loss, and a page for a review board.

    No data are read. Send proposal.json and proposal.md to the sites; coordinator.key stays with you, and is what
    `coterie coordinate` needs.
    """
    from coterie.cli.spec.study import read_study
    from coterie.keys import PrivateKeys
    from coterie.rundir import check_free, new_directory

    check_free(out)
    content = read_study(study)
    keys = PrivateKeys.generate() if key is None else PrivateKeys.load(key)
    proposal = content.proposal(keys.identity)
    with new_directory(out) as partial:
        (partial / "proposal.json").write_text(proposal.to_json(), encoding="utf-8")
        (partial / "proposal.md").write_text(proposal.to_markdown(), encoding="utf-8")
        keys.save(partial / KEY_FILE)
    if json_line:
        told = {"proposal": proposal.digest, "plan": proposal.plan.digest, "rounds": proposal.plan.n_rounds}
        told["epsilon"] = {
            name: loss if loss < float("inf") else "infinite"
            for name, loss in zip(proposal.names, proposal.losses, strict=True)
        }
        typer.echo(json.dumps(told))
        return
    typer.echo(f"proposal {proposal.digest[:16]}: {proposal.plan.n_rounds} rounds among {len(proposal.names)} parties")
    typer.echo(f"send {out / 'proposal.json'} and {out / 'proposal.md'} to them; {KEY_FILE} stays with you")
