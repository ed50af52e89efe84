"""The demo between sites: four hospitals, each a process with its own records, keys, noise and ledger."""

import dataclasses
import signal
import tempfile
from pathlib import Path
from typing import Any

from rich.table import Table

from coterie.certificate import shown_loss
from coterie.cli.spec import Outcome, prepare, read_spec
from coterie.cli.spec.execution import Progress
from coterie.cli.spec.local_sites import SiteProcesses, execute_at_sites
from coterie.ledger import Ledger
from coterie.site.store import Store
from coterie.terminal import stoppable
from coterie.transcript import Interrupted

SPEC = """\
# Four hospitals learn one model of heart disease, each in a process of its own.

[data]
dataset = "heart"

[parties]
topology = "complete"

[problem]
loss = "logistic"
l2 = 1.0

[privacy] # the loss of one patient's record, against somebody who sees every message
epsilon = 4.0
delta = 1e-5
adjacency = "replace-one"

[algorithm]
name = "penalty-perturbed-admm"
rounds = {rounds}

[engine]
name = "{engine}"
"""
# a round takes milliseconds between processes, and seconds where an engine starts a process for every message
ROUNDS = {"flower": 3}
MANY_ROUNDS = 10


@dataclasses.dataclass(frozen=True)
class SitesDemo:
    outcome: Outcome
    # of the optimum without noise; None where scikit-learn is not there
    nonprivate_error: float | None
    # of a hospital's own optimum without noise, the mean over hospitals
    alone_error: float | None
    majority_error: float
    # party, rounds it has released, epsilon it has charged
    ledgers: tuple[tuple[str, int, float], ...]

    @property
    def test_error(self) -> float:
        assert self.outcome.result is not None
        return self.outcome.result["error"]

    def summary(self) -> dict[str, Any]:
        """As the demo in one process."""
        told = self.outcome.summary()
        names = ("epsilon", "delta", "adjacency", "n_parties", "rounds", "algorithm")
        return {
            "test_error": self.test_error,
            "nonprivate_error": self.nonprivate_error,
            "alone_error": self.alone_error,
            "majority_error": self.majority_error,
            **{name: told[name] for name in names},
            "seconds": round(self.outcome.seconds, 2),
            "randomness": told["randomness"],
            "engine": self.outcome.spec.engine.name,
            "signed_by": [party for party, _ in self.outcome.certificate.signers],
        }

    def _without_privacy(self) -> dict[str, str]:
        if self.nonprivate_error is None:
            return {}
        return {
            "test error, not private": f"{self.nonprivate_error:.2%}  (all records in one place, no noise)",
            "a hospital alone": f"{self.alone_error:.2%}  (its own records, no noise; mean over hospitals)",
        }

    def table(self) -> Table:
        certificate = self.outcome.certificate
        table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
        table.add_column(style="dim")
        table.add_column()
        for warning in certificate.verdict:
            table.add_row("WARNING", warning)
        rows = {
            "test error, private": f"[bold]{self.test_error:.2%}[/bold]",
            **self._without_privacy(),
            "majority class": f"{self.majority_error:.2%}  on held-out records, declared public",
            "privacy loss": f"ε = {shown_loss(certificate.epsilon)} at δ = {certificate.delta:g}, replace-one",
            "from": f"anybody who sees {certificate.views[0].sees}",
            "signed by": ", ".join(party for party, _ in certificate.signers),
        }
        rows |= {
            f"ledger of {party}": f"{rounds} releases, ε = {shown_loss(loss)}" for party, rounds, loss in self.ledgers
        }
        for name, value in {**rows, "seconds": f"{self.outcome.seconds:.1f}"}.items():
            table.add_row(name, value)
        return table


def run_sites_demo(engine: str, *, seed: int | None = None, progress: Progress | None = None) -> SitesDemo:
    """engine: what carries the envelopes between the hospitals, all of it on this machine."""
    text = SPEC.format(engine=engine, rounds=ROUNDS.get(engine, MANY_ROUNDS))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spec.toml"
        path.write_text(text + ("" if seed is None else f"seed = {seed}\n"), encoding="utf-8")
        prepared = prepare(read_spec(path))
    ledgers: list[tuple[str, int, float]] = []

    def look(running: SiteProcesses, run: str) -> None:
        for name, place in running.places.items():
            with Ledger.open(Store(place).ledger_file) as book:
                booked = book.reservation(run)
                # a demo that is stopped at once has charged nothing
                if booked is not None:
                    ledgers.append((name, len(booked.committed), booked.price.epsilon))

    with stoppable(signal.SIGINT, signal.SIGTERM) as stop:
        # until there is something to keep
        stop.patience = 0
        outcome = execute_at_sites(prepared, (), progress=progress, at_end=look)
    transcript = outcome.transcript
    if not transcript.complete:
        raise Interrupted(transcript)
    exact = outcome.references
    assert outcome.result is not None
    return SitesDemo(
        outcome=outcome,
        nonprivate_error=exact["nonprivate"]["error"] if exact else None,
        alone_error=exact["alone"]["error"] if exact else None,
        majority_error=outcome.result["majority_error"],
        ledgers=tuple(ledgers),
    )
