"""Which figures there are, and the module of each: imported when it is asked for."""

import importlib
from collections.abc import Iterable

from coterie.data.checks import nearest
from coterie.errors import InputError
from coterie.papers.figure import Figure

MODULES = {
    "dvp-2": "coterie.papers.dual_variable.figure_2",
    "dvp-3": "coterie.papers.dual_variable.figure_3",
    "pp-1": "coterie.papers.penalty.figure_1",
    "pp-2": "coterie.papers.penalty.figures_2_to_4",
    "pp-3": "coterie.papers.penalty.figures_2_to_4",
    "pp-4": "coterie.papers.penalty.figures_2_to_4",
    "mr-1": "coterie.papers.recycled.figure_1",
    "mr-2": "coterie.papers.recycled.figure_2",
    "mr-3": "coterie.papers.recycled.figures_3_and_4",
    "mr-4": "coterie.papers.recycled.figures_3_and_4",
    "mr-5": "coterie.papers.recycled.figure_5",
    "fp-1": "coterie.papers.fixed_point.figure_1",
    "frontier": "coterie.papers.frontier.figure",
}


def find(names: Iterable[str]) -> list[Figure]:
    """The figures of these names, each once, in the order given."""
    names = list(dict.fromkeys(names))
    for name in names:
        if name not in MODULES:
            hint = nearest(name, MODULES)
            raise InputError(f"name: got {name!r}; one of {', '.join(MODULES)} is needed{hint}")
    return [importlib.import_module(MODULES[name]).FIGURES[name] for name in names]
