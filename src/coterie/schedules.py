"""Numbers that may change from round to round and from party to party: start * ratio^t, t = 0, 1, ..."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.errors import InputError
from coterie.serialise import serialisable


@serialisable
@dataclasses.dataclass(frozen=True)
class Schedule:
    """start * ratio^t in round t.

    start, ratio: one number for all parties, or a tuple with one number per party.
    """

    start: float | tuple[float, ...]
    ratio: float | tuple[float, ...] = 1.0

    def __post_init__(self) -> None:
        for name in ("start", "ratio"):
            value = getattr(self, name)
            if isinstance(value, Sequence) and not isinstance(value, str):
                value = tuple(float(v) for v in value)
            else:
                value = float(value)
            object.__setattr__(self, name, value)
            if value == () or not np.all(np.isfinite(value)) or not np.all(np.asarray(value) > 0):
                raise InputError(f"{name}: got {value}; positive finite numbers are needed")

    def __call__(self, t: Any) -> Any:
        """Value at round t: a number, or one per party. Works on traced t as well."""
        if self.constant_in_time:
            return np.asarray(self.start) if self.per_party else self.start
        return np.asarray(self.start) * np.asarray(self.ratio) ** t

    @property
    def per_party(self) -> bool:
        return isinstance(self.start, tuple) or isinstance(self.ratio, tuple)

    @property
    def constant_in_time(self) -> bool:
        return bool(np.all(np.asarray(self.ratio) == 1.0))

    def check_parties(self, name: str, n_parties: int) -> None:
        for value in (self.start, self.ratio):
            if isinstance(value, tuple) and len(value) != n_parties:
                raise InputError(f"{name}: {len(value)} values given for {n_parties} parties; one per party is needed")

    def at(self, t: int, party: int) -> float:
        start = self.start[party] if isinstance(self.start, tuple) else self.start
        ratio = self.ratio[party] if isinstance(self.ratio, tuple) else self.ratio
        return start * ratio**t

    def times(self, factor: float) -> "Schedule":
        start = tuple(v * factor for v in self.start) if isinstance(self.start, tuple) else self.start * factor
        return dataclasses.replace(self, start=start)


if TYPE_CHECKING:
    # dataclass fields that take whatever `as_schedule` takes and hold a Schedule: type checkers read the type to give
    # from `__set__`, the type to get from `__get__`
    class ScheduleField:
        def __get__(self, owner: object, kind: Any) -> Schedule: ...
        def __set__(self, owner: object, value: "Schedule | float | Sequence[float]") -> None: ...

    class OptionalScheduleField:
        def __get__(self, owner: object, kind: Any) -> Schedule | None: ...
        def __set__(self, owner: object, value: "Schedule | float | Sequence[float] | None") -> None: ...

else:
    ScheduleField = Schedule
    OptionalScheduleField = Schedule | None

# the default of an optional one
NOT_GIVEN: Any = None


def as_schedule(name: str, value: "Schedule | float | Sequence[float]") -> Schedule:
    """A number is constant, a sequence is one constant per party."""
    if isinstance(value, Schedule):
        return value
    try:
        return Schedule(tuple(value) if isinstance(value, (Sequence, np.ndarray)) else value)
    except (TypeError, ValueError):
        raise InputError(f"{name}: got {value!r}; a positive number, one per party, or a Schedule is needed") from None
