"""One TOML file that says everything about a run, and the run itself."""

from coterie.cli.spec.execution import Outcome, execute
from coterie.cli.spec.preparation import Prepared, prepare
from coterie.cli.spec.reading import Spec, read_spec

__all__ = ["Outcome", "Prepared", "Spec", "execute", "prepare", "read_spec"]
