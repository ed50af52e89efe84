"""What has been spent on one body of data: losses of everything released from it add up.

Charges are written before anything is computed and are never taken back. Sums are basic composition, which holds
whatever later fits have learnt from earlier ones. Everything in one ledger adds up, also fits on parts of the data: who
was in which part is the data holder's secret. Keep one ledger per body of data.
"""

import contextlib
import dataclasses
import json
import math
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock

from coterie.errors import CoterieError, InputError

FORMAT = "coterie-spending-1"
_ROUNDING = 1e-9  # relative: charges that add up to the limit on paper must not fail in the last digit


class BudgetError(CoterieError, ValueError):
    """A release would exceed the limit of its ledger; nothing was computed."""


@dataclasses.dataclass(frozen=True)
class Terms:
    """What a loss is a loss of. Losses on different terms do not add up, so a ledger takes one kind only."""

    adjacency: str
    unit: str
    records_per_person: int = 1
    people_span_parties: bool = False

    def __str__(self) -> str:
        span = ", people at several parties" if self.people_span_parties else ""
        return f"{self.adjacency}, unit {self.unit}, {self.records_per_person} record(s) per person{span}"


@dataclasses.dataclass(frozen=True)
class Charge:
    """One release: what it was and what it cost."""

    what: str
    epsilon: float
    delta: float

    @property
    def entry(self) -> tuple[str, float, float]:
        return self.what, self.epsilon, self.delta


class Spending:
    """A ledger of repeated fits and evaluations, in memory or in a JSON file.

    limit: (epsilon, delta) that may not be exceeded; a charge that would is refused and nothing is recorded. A file
        keeps its limit: opening it with another one is refused.
    path: the file that holds the ledger. It is created if missing, replaced atomically, and locked while it is read and
        written, so several processes may share it. Without a path the ledger lives here and cannot be pickled.
    """

    def __init__(self, *, limit: tuple[float, float] | None = None, path: str | os.PathLike[str] | None = None) -> None:
        self.limit = _checked_limit(limit)
        self.path = None if path is None else Path(path).absolute()
        self._terms: Terms | None = None
        self._charges: list[Charge] = []
        self._lock = threading.Lock()
        with self._current():
            pass  # an unreadable file is refused here, not when data are about to be used

    # --- spending -----------------------------------------------------------------------------------------------------

    def charge(self, what: str, epsilon: float, delta: float, *, terms: Terms) -> tuple[tuple[str, float, float], ...]:
        """Record one release, and return what was charged before."""
        if not (epsilon >= 0 and 0 <= delta <= 1):
            raise InputError(f"epsilon, delta: got {epsilon}, {delta}; epsilon >= 0 and delta in [0, 1] are needed")
        with self._current():
            if self._terms not in (None, terms):
                raise InputError(
                    f"ledger: it holds losses of ({self._terms}); losses of ({terms}) do not add up with them"
                )
            total = (epsilon + sum(c.epsilon for c in self._charges), delta + sum(c.delta for c in self._charges))
            if self.limit is not None and any(
                spent > allowed * (1 + _ROUNDING) for spent, allowed in zip(total, self.limit, strict=True)
            ):
                raise BudgetError(
                    f"ledger: {what} would bring the loss to epsilon={total[0]:.6g}, delta={total[1]:.3g}, beyond the "
                    f"limit of epsilon={self.limit[0]:.6g}, delta={self.limit[1]:.3g}; nothing was run"
                )
            past = tuple(c.entry for c in self._charges)
            self._terms = terms
            self._charges.append(Charge(what, float(epsilon), float(delta)))
            self._write()
        return past

    @property
    def charges(self) -> tuple[tuple[str, float, float], ...]:
        """Everything that was ever charged: (description, epsilon, delta), in order."""
        with self._current():
            return tuple(c.entry for c in self._charges)

    @property
    def total(self) -> tuple[float, float]:
        """(epsilon, delta) of everything together."""
        with self._current():
            return sum(c.epsilon for c in self._charges), sum(c.delta for c in self._charges)

    # --- one ledger, however often it is copied -----------------------------------------------------------------------

    def __copy__(self) -> "Spending":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "Spending":
        return self

    def __sklearn_clone__(self) -> "Spending":
        """Clones of an estimator, such as a grid search makes, must charge the same ledger."""
        return self

    def __reduce__(self) -> Any:
        if self.path is None:
            raise InputError(
                "ledger: a Spending without a path cannot go to another process or a file, because what is charged "
                "there would be lost; give it a path"
            )
        return _reopen, (self.limit, self.path)

    def __repr__(self) -> str:
        where = "in memory" if self.path is None else repr(str(self.path))
        return f"Spending(limit={self.limit}, {where})"

    # --- the file -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _current(self) -> Iterator[None]:
        """Hold the ledger alone, as it is on disk now."""
        with self._lock:
            if self.path is None:
                yield
                return
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(self.path.with_name(self.path.name + ".lock")):
                if self.path.exists():
                    self._read()
                else:
                    self._write()
                yield

    def _read(self) -> None:
        assert self.path is not None
        try:
            stored = json.loads(self.path.read_text())
            if stored["format"] != FORMAT:
                raise ValueError(f"format {stored['format']!r}")
            limit = None if stored["limit"] is None else tuple(map(float, stored["limit"]))
            if self.limit not in (None, limit):
                raise ValueError(f"its limit is {limit}")
            self.limit = limit
            self._terms = None if stored["terms"] is None else Terms(**stored["terms"])
            self._charges = [Charge(c["what"], float(c["epsilon"]), float(c["delta"])) for c in stored["charges"]]
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            raise InputError(
                f"path: {str(self.path)!r} cannot be used ({type(error).__name__}: {error}); it is left as it is"
            ) from None

    def _write(self) -> None:
        if self.path is None:
            return
        stored = {
            "format": FORMAT,
            "limit": None if self.limit is None else [str(value) for value in self.limit],
            "terms": None if self._terms is None else dataclasses.asdict(self._terms),
            "charges": [{"what": c.what, "epsilon": str(c.epsilon), "delta": c.delta} for c in self._charges],
        }
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(stored, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.path)


def _reopen(limit: tuple[float, float] | None, path: Path) -> Spending:
    return Spending(limit=limit, path=path)


def _checked_limit(limit: Any) -> tuple[float, float] | None:
    if limit is None:
        return None
    try:
        epsilon, delta = (float(value) for value in limit)
    except (TypeError, ValueError):
        epsilon = delta = math.nan
    if not (epsilon > 0 and 0 <= delta < 1):
        raise InputError(f"limit: got {limit!r}; a pair (epsilon > 0, 0 <= delta < 1) is needed")
    return epsilon, delta
