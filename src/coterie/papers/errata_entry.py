"""What an erratum is, and how its verdict follows from its numbers."""

import dataclasses
import math
from typing import Any, Literal

from coterie.errors import CoterieError

Verdict = Literal["false", "loose", "true", "unproved"]

DVP = "Zhang & Zhu 2016"
PP = "Zhang et al. 2018"
MR = "Zhang et al. 2019"
FP = "Cyffers et al. 2023"

ROUNDING = 1e-9  # relative; numbers near 1 are compared to this
_SMALLEST = 1e-12  # and numbers near 0 to this


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
        verdict = "unproved"  # nobody exceeded it, and nobody has shown that nobody can
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
