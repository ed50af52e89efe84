"""What a reproduced figure is, and which there are.

How to add one:

1. Write parts: functions (Scale) -> list[Curve], each a piece that is computed and kept by itself, so that a stopped
   run resumes after the last finished part. A part should take seconds to a minute; give runs that share data to one
   `run(plan, federation, noise=Seeded(scale.seed), repeats=scale.runs)`. `census` has the data of the papers,
   `measures` turns releases into curves of loss, error and privacy by iteration.
2. Everything that `draw` and `claims` need must be in the curves: they are what curves.csv holds and what is kept.
   Draw with `panels`. Privacy axes come three times: the paper's own bound, the certified pure loss, and (ε, 1e-6).
3. Add every claim of the text about the figure to `Claims`, in our own words, with a margin that is positive exactly
   when it holds; a claim about privacy once for each accounting. A claim that fails is a result.
4. List every setting in `choices`: printed in the paper, or chosen and why.
5. Parts are kept by figure, part, scale, package version and the figure's `revision`. Raise `revision` whenever a part
   would compute something else; claims, drawings, derived curves and the words of `choices` leave it alone.
6. Put the Figure into the module's FIGURES and its name into `MODULES` below.
"""

import dataclasses
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from coterie.errors import InputError
from coterie.values import nearest

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

Accounting = Literal["none", "published", "certified pure", "certified (ε, 1e-6)"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale:
    """How much is computed: independent runs, iterations of each, and the seed all noise is drawn from."""

    runs: int
    iterations: int
    seed: int = 0
    quick: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """One line of one panel: y over x, with the range over runs where there are several."""

    panel: str
    name: str
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None

    def from_x(self, start: float) -> np.ndarray:
        """The values of y at x >= start."""
        return self.y[self.x >= start]

    @property
    def last(self) -> float:
        return float(self.y[-1])


class Curves:
    """All curves of a figure, by panel and name, in the order they were computed."""

    def __init__(self, curves: Iterable[Curve]) -> None:
        self._curves = {(curve.panel, curve.name): curve for curve in curves}

    def __call__(self, panel: str, name: str) -> Curve:
        return self._curves[panel, name]

    def __iter__(self) -> Iterator[Curve]:
        return iter(self._curves.values())

    def of(self, panel: str) -> list[Curve]:
        return [curve for curve in self if curve.panel == panel]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """A statement about a figure that a number decides."""

    text: str
    # in the paper
    where: str
    accounting: Accounting
    # positive where the claim holds
    margin: float
    margin_means: str
    runs: int

    @property
    def holds(self) -> bool:
        return bool(self.margin > 0)

    def as_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "holds": self.holds}


class Claims(list[Claim]):
    """The claims about a figure, one after the other, each decided by so many `runs`; `where` begins every place."""

    def __init__(self, runs: int, *, where: str = "") -> None:
        super().__init__()
        self.runs, self.where = runs, where

    def add(
        self,
        text: str,
        margin: float | np.floating[Any],
        means: str,
        *,
        where: str = "",
        accounting: Accounting = "none",
        runs: int | None = None,
    ) -> None:
        self.append(
            Claim(
                text=text,
                where=self.where + where,
                accounting=accounting,
                margin=float(margin),
                margin_means=means,
                runs=self.runs if runs is None else runs,
            )
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
    """A setting: printed in the paper, or chosen here for a reason."""

    name: str
    value: str
    printed: bool
    reason: str = ""


def printed(name: str, value: object, reason: str = "") -> Choice:
    return Choice(name=name, value=str(value), printed=True, reason=reason)


def chosen(name: str, value: object, reason: str) -> Choice:
    return Choice(name=name, value=str(value), printed=False, reason=reason)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """A piece that is computed and kept by itself; `cost` is its share of the work, in any one unit per figure list."""

    compute: Callable[[Scale], list[Curve]]
    cost: float = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figure:
    """`full` and `quick` are (runs, iterations); `derived` makes the curves that need more than one part, `table` a
    Markdown table for the page; parts kept under another `revision` are computed again."""

    name: str
    citation: str
    title: str
    parts: Mapping[str, Part]
    draw: Callable[[Curves], "Picture"]
    claims: Callable[[Curves, Scale], list[Claim]]
    choices: Sequence[Choice]
    full: tuple[int, int]
    quick: tuple[int, int]
    derived: Callable[[Curves], list[Curve]] = lambda curves: []
    table: Callable[[Curves], str] = lambda curves: ""
    revision: int = 1

    def scale(self, *, quick: bool, seed: int) -> Scale:
        runs, iterations = self.quick if quick else self.full
        return Scale(runs=runs, iterations=iterations, seed=seed, quick=quick)


# --- which figures there are, and the module of each, imported when it is asked for -----------------------------------


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
    return [next(f for f in importlib.import_module(MODULES[name]).FIGURES if f.name == name) for name in names]
