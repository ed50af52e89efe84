"""What has been spent on whose data: losses of everything released from the same records add up.

Charges are written before anything is computed and are never taken back. Sums are basic composition, which holds
whatever later fits have learnt from earlier ones. By default everything in one ledger adds up: keep one ledger per
body of data.

With `tell_apart` a ledger knows records by keyed digests (HMAC-SHA256, cut to eight bytes) and adds up what was
charged to the same record. The key is random and stays in the ledger, so a digest by itself tells nothing; who holds
the ledger can test guesses, so it belongs to the data holder. Records that happen to share a digest are charged for
each other, which can only overstate. A record whose numbers were changed between two fits, say by a scaler, is a
different record to a digest.
"""

import base64
import contextlib
import dataclasses
import fcntl
import hashlib
import hmac
import json
import math
import os
import secrets
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coterie.errors import CoterieError, InputError

FORMAT = "coterie-spending-1"
_KEY_BYTES = 32
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

    @property
    def knows_records(self) -> bool:
        """One record is all that is protected, so charges on other records do not count."""
        return self.unit == "record" and self.records_per_person == 1 and not self.people_span_parties


@dataclasses.dataclass(frozen=True)
class Charge:
    """One release: what it was, what it cost, and which owners (digests, sorted) it was charged to."""

    what: str
    epsilon: float
    delta: float
    owners: np.ndarray = dataclasses.field(repr=False)

    @property
    def entry(self) -> tuple[str, float, float]:
        return self.what, self.epsilon, self.delta


class Spending:
    """A ledger of repeated fits and evaluations, in memory or in a JSON file.

    limit: (epsilon, delta) that nobody may exceed; a charge that would is refused and nothing is recorded.
    tell_apart: charge records one by one, so that fits on disjoint records do not add up. Right only where a record
        always arrives with the same numbers: no preprocessing that was fitted on data or that differs between fits.
    path: the file that holds the ledger. It is created if missing, replaced atomically, and locked while it is read and
        written, so several processes may share it. Without a path the ledger lives here and cannot be pickled.
    """

    def __init__(
        self,
        *,
        limit: tuple[float, float] | None = None,
        path: str | os.PathLike[str] | None = None,
        tell_apart: bool = False,
    ) -> None:
        self.limit = _checked_limit(limit)
        self.tell_apart = bool(tell_apart)
        self.path = None if path is None else Path(path).absolute()
        self._key = secrets.token_bytes(_KEY_BYTES)
        self._terms: Terms | None = None
        self._charges: list[Charge] = []
        self._lock = threading.Lock()
        with self._current():
            pass  # an unreadable file is refused here, not when data are about to be used

    # --- spending -----------------------------------------------------------------------------------------------------

    def charge(
        self, what: str, epsilon: float, delta: float, *, terms: Terms, parties: Sequence[str], rows: np.ndarray
    ) -> tuple[tuple[str, float, float], ...]:
        """Record one release, and return what was charged before to the owner who has lost most.

        parties: their names. rows: all their records as they came, features and label side by side.
        """
        if not (epsilon >= 0 and 0 <= delta <= 1):
            raise InputError(f"epsilon, delta: got {epsilon}, {delta}; epsilon >= 0 and delta in [0, 1] are needed")
        with self._current():
            if self._terms not in (None, terms):
                raise InputError(f"ledger: it holds losses on {self._terms}, and losses on {terms} do not add up")
            owners = self._owners(terms, parties, rows)
            past = self._past(owners)
            total = (epsilon + sum(c.epsilon for c in past), delta + sum(c.delta for c in past))
            if self.limit is not None and any(
                spent > allowed * (1 + _ROUNDING) for spent, allowed in zip(total, self.limit, strict=True)
            ):
                raise BudgetError(
                    f"ledger: {what} would bring the loss to epsilon={total[0]:.6g}, delta={total[1]:.3g}, beyond the "
                    f"limit of epsilon={self.limit[0]:.6g}, delta={self.limit[1]:.3g}; nothing was run"
                )
            self._terms = terms
            self._charges.append(Charge(what, float(epsilon), float(delta), owners))
            self._write()
        return tuple(c.entry for c in past)

    @property
    def charges(self) -> tuple[tuple[str, float, float], ...]:
        """Everything that was ever charged: (description, epsilon, delta), in order."""
        with self._current():
            return tuple(c.entry for c in self._charges)

    @property
    def total(self) -> tuple[float, float]:
        """(epsilon, delta) of the owner who has lost most."""
        with self._current():
            everybody = np.unique(np.concatenate([np.zeros(0, np.uint64), *(c.owners for c in self._charges)]))
            past = self._past(everybody)
        return sum(c.epsilon for c in past), sum(c.delta for c in past)

    def _past(self, owners: np.ndarray) -> list[Charge]:
        """The charges of the owner who has lost most; of all together where epsilon and delta disagree on who."""
        members = [np.isin(owners, c.owners, assume_unique=True) for c in self._charges]
        concerned = [i for i, member in enumerate(members) if member.any()]
        if not concerned:
            return []
        # an infinite charge cannot be summed by a product with 0
        losses = [
            np.sum([np.where(members[i], getattr(self._charges[i], field), 0.0) for i in concerned], axis=0)
            for field in ("epsilon", "delta")
        ]
        worst = np.flatnonzero((losses[0] == losses[0].max()) & (losses[1] == losses[1].max()))
        return [self._charges[i] for i in concerned if not len(worst) or members[i][worst[0]]]

    def _owners(self, terms: Terms, parties: Sequence[str], rows: np.ndarray) -> np.ndarray:
        """Digests of records or of parties, whichever is protected; one for all where nobody can be told apart."""
        words: Iterable[bytes] = [b"anybody"]
        if self.tell_apart and terms.knows_records:
            # adding zero turns -0.0 into 0.0, which is the same number and must be the same record
            words = (row.tobytes() for row in np.ascontiguousarray(rows, dtype="<f8") + 0.0)
        elif self.tell_apart and terms.unit == "party":
            words = [b"party " + name.encode() for name in parties]
        digests = b"".join(hmac.digest(self._key, word, hashlib.sha256)[:8] for word in words)
        return np.unique(np.frombuffer(digests, dtype="<u8"))

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
        return _reopen, (self.limit, self.path, self.tell_apart)

    def __repr__(self) -> str:  # no digests: a ledger must not end up in a log
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
            with open(self.path.with_name(self.path.name + ".lock"), "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed
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
            if stored["tell_apart"] != self.tell_apart:
                raise ValueError(f"it has tell_apart={stored['tell_apart']}")
            groups = [np.frombuffer(base64.b64decode(text), dtype="<u8") for text in stored["owners"]]
            self._key = base64.b64decode(stored["key"])
            self._terms = None if stored["terms"] is None else Terms(**stored["terms"])
            self._charges = [
                Charge(c["what"], float(c["epsilon"]), float(c["delta"]), groups[c["owners"]])
                for c in stored["charges"]
            ]
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            raise InputError(
                f"path: {str(self.path)!r} cannot be used ({type(error).__name__}: {error}); it is left as it is"
            ) from None

    def _write(self) -> None:
        if self.path is None:
            return
        groups: dict[bytes, int] = {}  # the same records are stored once, however often they were used
        charges = [
            {"what": c.what, "epsilon": str(c.epsilon), "delta": c.delta, "owners": place}
            for c in self._charges
            for place in [groups.setdefault(c.owners.tobytes(), len(groups))]
        ]
        stored = {
            "format": FORMAT,
            "key": base64.b64encode(self._key).decode(),
            "tell_apart": self.tell_apart,
            "terms": None if self._terms is None else dataclasses.asdict(self._terms),
            "owners": [base64.b64encode(group).decode() for group in groups],
            "charges": charges,
        }
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        # for its owner's eyes only: whoever has the key can test guesses about records
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(stored, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.path)


def _reopen(limit: tuple[float, float] | None, path: Path, tell_apart: bool) -> Spending:
    return Spending(limit=limit, path=path, tell_apart=tell_apart)


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
