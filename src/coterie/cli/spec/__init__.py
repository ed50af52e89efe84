"""One TOML file that says everything about a run, and the run itself."""

from coterie.cli.spec.execution import Outcome, charge, execute, open_ledger
from coterie.cli.spec.preparation import Prepared, prepare
from coterie.cli.spec.reading import Spec, read_spec

__all__ = ["Outcome", "Prepared", "Spec", "charge", "execute", "open_ledger", "prepare", "read_spec"]
