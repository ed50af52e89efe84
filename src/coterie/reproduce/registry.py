"""Which figures there are, and the module of each: imported when it is asked for."""

import importlib
from collections.abc import Iterable

from coterie.data.checks import nearest
from coterie.errors import InputError
from coterie.reproduce.figure import Figure

MODULES = {
    "dvp-2": "coterie.reproduce.dual_variable",
    "dvp-3": "coterie.reproduce.dual_variable_tradeoff",
    "pp-1": "coterie.reproduce.penalty_convergence",
    "pp-2": "coterie.reproduce.penalty",
    "pp-3": "coterie.reproduce.penalty",
    "pp-4": "coterie.reproduce.penalty",
    "mr-1": "coterie.reproduce.recycled_convergence",
    "mr-2": "coterie.reproduce.recycled_regulariser",
    "mr-3": "coterie.reproduce.recycled_settings",
    "mr-4": "coterie.reproduce.recycled_settings",
    "mr-5": "coterie.reproduce.recycled_comparison",
    "fp-1": "coterie.reproduce.fixed_point_lasso",
    "frontier": "coterie.reproduce.frontier",
}


def find(names: Iterable[str]) -> list[Figure]:
    """The figures of these names, each once, in the order given."""
    names = list(dict.fromkeys(names))
    for name in names:
        if name not in MODULES:
            hint = nearest(name, MODULES)
            raise InputError(f"name: got {name!r}; one of {', '.join(MODULES)} is needed{hint}")
    return [importlib.import_module(MODULES[name]).FIGURES[name] for name in names]
