"""Published statements that are false, loose or unproved: what such an erratum is, how its verdict follows from its
numbers, and all of them, each recomputed on the smallest instance that shows it.

A statement that is true is here where people would otherwise compare its number with a certified one and wonder.
"""

import dataclasses
import importlib
import math
from collections.abc import Callable, Iterable
from typing import Any, Literal

from coterie.errors import CoterieError, InputError
from coterie.values import nearest

Verdict = Literal["false", "loose", "true", "unproved"]

DVP = "Zhang & Zhu 2016"
PP = "Zhang et al. 2018"
MR = "Zhang et al. 2019"
FP = "Cyffers et al. 2023"

# relative; numbers near 1 are compared to this
ROUNDING = 1e-9
# and numbers near 0 to this
_SMALLEST = 1e-12


@dataclasses.dataclass(frozen=True)
class Erratum:
    """One published statement on one small instance.

    `statement` says what is measured; `claimed` is the paper's number, `exact` the one that is reached on the instance
    and `certified` what the package proves or does instead, None where nothing is proved.
    """

    id: str
    paper: str
    statement: str
    claimed: float
    exact: float
    certified: float | None
    verdict: Verdict

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


class ContradictionError(CoterieError, ArithmeticError):
    """A value above the package's own proved bound was reached: one of the two is wrong."""


def bound(id: str, paper: str, statement: str, *, claimed: float, exact: float, certified: float | None) -> Erratum:
    """The paper says that something is at most `claimed`; the package proves that it is at most `certified`."""
    if certified is not None and _above(exact, certified):
        raise ContradictionError(f"{id}: {exact!r} is reached, and at most {certified!r} was certified")
    if _above(exact, claimed):
        verdict: Verdict = "false"
    elif certified is None or _above(certified, claimed):
        # nobody exceeded it, and nobody has shown that nobody can
        verdict = "unproved"
    else:
        verdict = "loose" if _above(claimed, certified) else "true"
    return Erratum(id, paper, statement, float(claimed), float(exact), certified, verdict)


def limit(id: str, paper: str, statement: str, *, claimed: float, exact: float, certified: float) -> Erratum:
    """The paper says that an iteration goes to `claimed`; it goes to `exact`, and the package's form to `certified`."""
    if not _equal(certified, claimed):
        raise ContradictionError(f"{id}: the package's form went to {certified!r} instead of {claimed!r}")
    verdict: Verdict = "true" if _equal(exact, claimed) else "false"
    return Erratum(id, paper, statement, float(claimed), float(exact), float(certified), verdict)


def _equal(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=ROUNDING, abs_tol=_SMALLEST)


def _above(a: float, b: float) -> bool:
    return a > b and not _equal(a, b)


# --- all of them ------------------------------------------------------------------------------------------------------

PAPERS = ("dual_variable", "penalty", "recycled", "fixed_point")


def known() -> dict[str, Callable[[], Erratum]]:
    """By letter and number; every paper's own module has its own."""
    found: dict[str, Callable[[], Erratum]] = {}
    for paper in PAPERS:
        found |= importlib.import_module(f"coterie.papers.{paper}.errata").ERRATA
    return found


def compute(ids: Iterable[str] = ()) -> list[Erratum]:
    """The named errata in the order given, or all of them; names are checked before anything runs."""
    errata = known()
    wanted = list(dict.fromkeys(ids)) or list(errata)
    for name in wanted:
        if name not in errata:
            raise InputError(f"ids: unknown {name!r}{nearest(name.upper(), errata)}; known are {', '.join(errata)}")
    return [errata[name]() for name in wanted]
