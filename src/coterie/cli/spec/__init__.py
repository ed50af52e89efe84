"""One TOML file that says everything about a run, and the run itself."""

from coterie.cli.spec.execution import Prepared, charge, execute, open_ledger, prepare
from coterie.cli.spec.outcome import Outcome
from coterie.cli.spec.reading import Spec, read_spec

__all__ = ["Outcome", "Prepared", "Spec", "charge", "execute", "open_ledger", "prepare", "read_spec"]
