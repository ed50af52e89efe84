"""What a check found about one stated privacy loss."""

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any, Literal

# "no claim": nothing finite is stated; "not applicable": the check has no way to look at this mechanism
Verdict = Literal["pass", "fail", "refused", "no claim", "not applicable", "not run"]
BAD: tuple[Verdict, ...] = ("fail", "refused")
# relative: exact losses are computed in double precision by other formulas than the stated ones
_ROUNDING = 1e-6
_COLUMNS = (
    "algorithm",
    "mechanism",
    "noise",
    "adjacency",
    "check",
    "epsilon_stated",
    "epsilon_lower",
    "seconds",
    "verdict",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """`lower` is a loss that is certainly reached (None: the check measures something else); `sound` is False where
    anything else that was claimed does not hold. Both losses are at the audit's delta."""

    stated: float
    lower: float | None = None
    sound: bool = True
    applicable: bool = True
    detail: str = ""

    @property
    def verdict(self) -> Verdict:
        if not self.applicable:
            return "not applicable"
        if not self.sound or (self.lower is not None and self.lower > self.stated * (1 + _ROUNDING)):
            return "fail"
        return "pass" if math.isfinite(self.stated) else "no claim"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    algorithm: str
    mechanism: str
    noise: str
    adjacency: str
    check: str
    epsilon_stated: float | None
    epsilon_lower: float | None
    seconds: float
    verdict: Verdict
    detail: str = ""

    @property
    def passed(self) -> bool:
        return self.verdict not in BAD

    @property
    def tightness(self) -> float | None:
        """How much of the stated loss is certainly reached."""
        if self.epsilon_lower is None or not self.epsilon_stated:
            return None
        return self.epsilon_lower / self.epsilon_stated

    def as_dict(self) -> dict[str, Any]:
        return {name: _plain(getattr(self, name)) for name in _COLUMNS}


def _plain(value: Any) -> Any:
    """JSON has no word for infinity."""
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value


def largest(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The largest number up to `high` at which something holds that holds at `low` and, once it fails, for no larger
    one."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def timed(measure: Callable[[], Measured], **labels: str) -> Finding:
    start = time.perf_counter()
    measured = measure()
    return Finding(
        **labels,
        epsilon_stated=measured.stated,
        epsilon_lower=measured.lower,
        seconds=time.perf_counter() - start,
        verdict=measured.verdict,
        detail=measured.detail,
    )
