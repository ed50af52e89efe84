"""What has been spent on one body of data: losses of everything released from it add up.

Charges are written before anything is computed and are never taken back. Sums are basic composition, which holds
whatever later fits have learnt from earlier ones. Everything in one ledger adds up, also fits on parts of the data: who
was in which part is the data holder's secret. Keep one ledger per body of data.

A ledger's file has one line of JSON per entry, the limit first, and each line holds the hash of the line before it, so
that an edit or a deletion is found. Beside it lie a lock and the hash of the last line (`.head`): a file that went back
to an earlier state is found as long as its head did not go with it.
"""

import contextlib
import dataclasses
import errno
import hashlib
import json
import math
import os
import secrets
import stat
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from coterie.errors import CoterieError, InputError

FORMAT, FIRST_FORMAT = "coterie-spending-2", "coterie-spending-1"
LOCK_TIMEOUT_S = 5.0
LARGEST = 10**8  # bytes
_ROUNDING = 1e-9  # relative: charges that add up to the limit on paper must not fail in the last digit

Entry = tuple[str, float, float]


class BudgetError(CoterieError, ValueError):
    """A release would exceed the limit of its ledger; nothing was computed."""


class LedgerError(CoterieError, OSError):
    """A ledger could not be locked or written; nothing was charged."""


@dataclasses.dataclass(frozen=True)
class Terms:
    """What a loss is a loss of. Losses on different terms do not add up, so a ledger takes one kind only.

    `parties` and `sizes` are digests, for unit "party": what is protected then depends on who holds what.
    """

    adjacency: str
    unit: str
    records_per_person: int = 1
    people_span_parties: bool = False
    parties: str | None = None
    sizes: str | None = None

    @classmethod
    def of(
        cls,
        adjacency: str,
        unit: str,
        parties: Iterable[str],
        sizes: Iterable[int] | None = None,
        *,
        records_per_person: int = 1,
        people_span_parties: bool = False,
    ) -> "Terms":
        """`sizes` may be left out where other rows of the same parties are looked at, such as held-out ones."""
        plain = cls(adjacency, unit, records_per_person, people_span_parties)
        if unit != "party":
            return plain
        names = list(map(str, parties))
        order = sorted(range(len(names)), key=names.__getitem__)
        named = _digest([names[place] for place in order])
        if sizes is None:
            return dataclasses.replace(plain, parties=named)
        counts = list(map(int, sizes))
        return dataclasses.replace(plain, parties=named, sizes=_digest([counts[place] for place in order]))

    def add_up_with(self, other: "Terms") -> bool:
        sizes = (self.sizes, other.sizes)
        return dataclasses.replace(self, sizes=None) == dataclasses.replace(other, sizes=None) and (
            None in sizes or sizes[0] == sizes[1]
        )

    def __str__(self) -> str:
        span = ", people at several parties" if self.people_span_parties else ""
        who = "" if self.parties is None else f", parties {self.parties[:8]}"
        who += "" if self.sizes is None else f" of sizes {self.sizes[:8]}"
        return f"{self.adjacency}, unit {self.unit}, {self.records_per_person} record(s) per person{span}{who}"


@dataclasses.dataclass(frozen=True)
class _Charge:
    what: str
    epsilon: float
    delta: float
    terms: Terms

    @property
    def entry(self) -> Entry:
        return self.what, self.epsilon, self.delta


class Spending:
    """A ledger of repeated fits and evaluations, in memory or in a file that was made by `Spending.create`.

    limit: (epsilon, delta) that may not be exceeded; a charge that would is refused and nothing is recorded. A file
        keeps its limit: opening it with another one is refused.
    path: the file that holds the ledger, locked while it is read and written, so several processes may share it.
        Without a path the ledger lives in this process and cannot leave it.
    """

    def __init__(self, *, limit: tuple[float, float] | None = None, path: str | os.PathLike[str] | None = None) -> None:
        self.limit = _checked_limit(limit)
        self._lock, self._process = threading.Lock(), os.getpid()
        self._charges: list[_Charge] = []
        self._file = None if path is None else _File(path)
        with self._current():
            pass  # an unusable file is refused here, not when data are about to be used

    @classmethod
    def create(cls, path: str | os.PathLike[str], *, limit: tuple[float, float] | None = None) -> "Spending":
        """A new ledger in a file that must not exist."""
        checked = _checked_limit(limit)
        file = _File(path)
        with file.locked(new=True):
            file.create(checked)
        return cls(limit=limit, path=path)

    @property
    def path(self) -> Path | None:
        return None if self._file is None else self._file.path

    # --- spending -----------------------------------------------------------------------------------------------------

    def charge(self, what: str, epsilon: float, delta: float, *, terms: Terms) -> tuple[Entry, ...]:
        """Record one release, and return what was charged before."""
        charge = _checked_charge(what, epsilon, delta, terms)
        with self._current():
            past = tuple(c.entry for c in self._charges)
            self._check(charge)
            if self._file is not None:
                self._file.append(charge, self.limit, self._charges)
            self._charges.append(charge)
        return past

    def _check(self, new: _Charge) -> None:
        for charge in self._charges:
            if not charge.terms.add_up_with(new.terms):
                raise InputError(
                    f"ledger: it holds losses of ({charge.terms}); losses of ({new.terms}) do not add up with them"
                )
        total = (new.epsilon + sum(c.epsilon for c in self._charges), new.delta + sum(c.delta for c in self._charges))
        if self.limit is not None and any(
            spent > allowed * (1 + _ROUNDING) for spent, allowed in zip(total, self.limit, strict=True)
        ):
            raise BudgetError(
                f"ledger: {new.what} would bring the loss to epsilon={total[0]:.6g}, delta={total[1]:.3g}, beyond the "
                f"limit of epsilon={self.limit[0]:.6g}, delta={self.limit[1]:.3g}; nothing was run"
            )

    @property
    def charges(self) -> tuple[Entry, ...]:
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
                "there would be lost; make it with Spending.create(path)"
            )
        return _reopen, (self.limit, self.path)

    def __repr__(self) -> str:
        where = "in memory" if self.path is None else repr(str(self.path))
        return f"Spending(limit={self.limit}, {where})"

    @contextlib.contextmanager
    def _current(self) -> Iterator[None]:
        """Hold the ledger alone, as it is on disk now."""
        if self._process != os.getpid():  # after a fork
            if self._file is None:
                raise InputError(
                    "ledger: it lives in the memory of another process, where what is charged here would be lost; make "
                    "it with Spending.create(path)"
                )
            # whoever held the lock was not copied with it
            self._lock, self._process = threading.Lock(), os.getpid()
        with self._lock:
            if self._file is None:
                yield
                return
            with self._file.locked():
                self.limit, self._charges = self._file.read(self.limit)
                yield


class _File:
    """The lines of a ledger on disk. Methods are for whoever holds `locked`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        try:
            # of a link, the file it leads to: a lock beside the link would not keep others from that file
            self.path = Path(path).resolve()
        except (OSError, RuntimeError, ValueError) as error:
            raise InputError(f"path: {str(path)!r} cannot be used ({error})") from None
        self.seen: str | None = None  # the hash of the last line, as this process knows it

    def _beside(self, ending: str) -> Path:
        return self.path.with_name(self.path.name + ending)

    @contextlib.contextmanager
    def locked(self, *, new: bool = False) -> Iterator[None]:
        self._check_kind(new)
        lock = FileLock(self._beside(".lock"), timeout=LOCK_TIMEOUT_S)
        try:
            # FileLock would try again and again where no file can be made
            os.close(os.open(lock.lock_file, os.O_RDWR | os.O_CREAT, 0o600))
            lock.acquire()
        except Timeout:
            raise LedgerError(
                f"ledger: {str(self.path)!r} has been held by another process for {LOCK_TIMEOUT_S:g} seconds; nothing "
                "was charged"
            ) from None
        except (OSError, NotImplementedError) as error:
            raise self._unusable(error) from None
        try:
            yield
        finally:
            lock.release()

    def _check_kind(self, new: bool) -> None:
        """Before anything is opened: a pipe would keep its reader waiting."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            if new:
                return
            raise InputError(
                f"path: no ledger is at {str(self.path)!r}; Spending.create(path, limit=...), or `coterie run "
                "--new-ledger`, makes one"
            ) from None
        except OSError as error:
            raise self._unusable(error) from None
        if not stat.S_ISREG(found.st_mode):
            raise InputError(f"path: {str(self.path)!r} is no file; a ledger is one")
        if found.st_nlink > 1:
            raise InputError(
                f"path: {str(self.path)!r} has {found.st_nlink} names (hard links), which cannot be locked together; "
                "a symbolic link can be used instead"
            )
        if found.st_size > LARGEST:
            raise InputError(f"path: {str(self.path)!r} has more than {LARGEST:,} bytes; no ledger is that large")

    def create(self, limit: tuple[float, float] | None) -> None:
        if self._beside(".head").exists() and not self.path.exists():
            raise InputError(
                f"path: a ledger was at {str(self.path)!r} before ({self._beside('.head').name} is still there); bring "
                "it back, or choose another path"
            )
        try:
            file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise InputError(f"path: {str(self.path)!r} exists already; a ledger is never begun anew") from None
        except OSError as error:
            raise self._unusable(error) from None
        try:
            _write_all(file, _first_line(limit).encode())
        except OSError as error:
            self.path.unlink()
            raise self._unusable(error) from None
        finally:
            os.close(file)

    def read(self, limit: tuple[float, float] | None) -> tuple[tuple[float, float] | None, list[_Charge]]:
        """The limit and all charges; `limit` is the one that is expected, if any is."""
        try:
            content = self.path.read_bytes()
        except OSError as error:
            raise self._unusable(error) from None
        try:
            stored, charges, hashes = _parsed(content)
            if limit not in (None, stored):
                raise ValueError(f"its limit is {stored}")
            for known in (self.seen, self._head()):
                if known is not None and known not in hashes:
                    raise ValueError("what was charged last is missing: it went back to an earlier state")
        except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
            raise InputError(
                f"path: {str(self.path)!r} cannot be used ({type(error).__name__}: {error}); it is left as it is"
            ) from None
        self.seen = hashes[-1] if hashes else None
        return stored, charges

    def append(self, charge: _Charge, limit: tuple[float, float] | None, before: list[_Charge]) -> None:
        """Write one more line; where that fails, the file is as it was."""
        try:
            if not self.path.stat().st_mode & 0o222:  # which nothing else would tell a superuser
                raise OSError(errno.EACCES, "write-protected")
            if self.seen is None:
                self._begin_chain(limit, before)
            line = chained({**_as_json(charge), "previous": self.seen})
            file = os.open(self.path, os.O_RDWR)
        except OSError as error:
            raise self._failed(error) from None
        try:
            end = _end_of_last_line(file, os.fstat(file).st_size)
            os.ftruncate(file, end)
            os.lseek(file, end, os.SEEK_SET)
            try:
                _write_all(file, line.encode())
            except OSError:
                os.ftruncate(file, end)
                raise
        except OSError as error:
            raise self._failed(error) from None
        finally:
            os.close(file)
        self.seen = json.loads(line)["hash"]
        self._keep_head()

    def _begin_chain(self, limit: tuple[float, float] | None, charges: list[_Charge]) -> None:
        """A file of the first format becomes one of this format, with all it holds."""
        lines = [_first_line(limit)]
        for charge in charges:
            lines.append(chained({**_as_json(charge), "previous": json.loads(lines[-1])["hash"]}))
        self._replace(self.path, "".join(lines).encode())
        self.seen = json.loads(lines[-1])["hash"]

    def _head(self) -> str | None:
        try:
            return self._beside(".head").read_text().strip() or None
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"its head cannot be read, {error}") from None

    def _keep_head(self) -> None:
        # the charge stands; a head that is behind is found in the chain
        with contextlib.suppress(OSError):
            self._replace(self._beside(".head"), f"{self.seen}\n".encode())

    def _replace(self, path: Path, content: bytes) -> None:
        temporary = path.with_name(f".{path.name}.new")
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            _write_all(file, content)
        finally:
            os.close(file)
        os.replace(temporary, path)

    def _unusable(self, error: Exception) -> InputError:
        reason = getattr(error, "strerror", None) or str(error)
        return InputError(f"path: {str(self.path)!r} cannot be used as a ledger ({reason}); nothing was charged")

    def _failed(self, error: OSError) -> LedgerError:
        return LedgerError(f"ledger: {str(self.path)!r} cannot be written ({error.strerror}); nothing was charged")


# --- lines ------------------------------------------------------------------------------------------------------------


def chained(content: dict[str, Any]) -> str:
    """A line with its own hash, which the next line repeats."""
    return json.dumps({**content, "hash": _digest(content)}) + "\n"


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _first_line(limit: tuple[float, float] | None) -> str:
    shown = None if limit is None else [_number_shown(value) for value in limit]
    # a number of its own: lines of one ledger do not fit into another
    return chained({"format": FORMAT, "limit": shown, "made": secrets.token_hex(16)})


def _as_json(charge: _Charge) -> dict[str, Any]:
    return {
        "what": charge.what,
        "epsilon": _number_shown(charge.epsilon),
        "delta": charge.delta,
        "terms": dataclasses.asdict(charge.terms),
    }


def _parsed(content: bytes) -> tuple[tuple[float, float] | None, list[_Charge], list[str]]:
    """Limit, charges and hashes. Whoever died while writing a line has released nothing: a last line without its end
    does not count."""
    whole = content[: content.rfind(b"\n") + 1] if b"\n" in content else content
    lines = [_object(line) for line in whole.decode("utf-8").splitlines()]
    if not lines:
        raise ValueError("it is empty")
    if lines[0].get("format") == FIRST_FORMAT and len(lines) == 1:
        limit, charges = _parsed_first_format(lines[0])
        return limit, charges, []
    previous: str | None = None
    limit: tuple[float, float] | None = None
    hashes: list[str] = []
    charges: list[_Charge] = []
    for place, line in enumerate(lines):
        stated = line.pop("hash", None)
        if stated != _digest(line):
            raise ValueError(f"line {place + 1} was changed")
        if place == 0:
            if line.keys() != {"format", "limit", "made"} or line["format"] != FORMAT:
                raise ValueError(f"format {line.get('format')!r}")
            limit = None if line["limit"] is None else _checked_limit([_number_read(v) for v in line["limit"]])
        else:
            if line.pop("previous", None) != previous:
                raise ValueError(f"line {place + 1} does not follow line {place}")
            if line.keys() != {"what", "epsilon", "delta", "terms"}:
                raise ValueError(f"line {place + 1} has keys {', '.join(line)}")
            terms = Terms(**line["terms"])
            charges.append(_checked_charge(line["what"], _number_read(line["epsilon"]), line["delta"], terms))
        previous = stated
        hashes.append(stated)
    return limit, charges, hashes


def _parsed_first_format(stored: dict[str, Any]) -> tuple[tuple[float, float] | None, list[_Charge]]:
    """One document without a chain, with losses as texts."""
    limit = None if stored["limit"] is None else _checked_limit([float(value) for value in stored["limit"]])
    charges = [
        _checked_charge(c["what"], float(c["epsilon"]), float(c["delta"]), Terms(**stored["terms"]))
        for c in stored["charges"]
    ]
    return limit, charges


def _object(line: str) -> dict[str, Any]:
    found = json.loads(line)
    if not isinstance(found, dict):
        raise ValueError("a line is no table")
    return found


def _end_of_last_line(file: int, size: int) -> int:
    return os.pread(file, size, 0).rfind(b"\n") + 1


def _write_all(file: int, content: bytes) -> None:
    while content:
        content = content[os.write(file, content) :]
    os.fsync(file)


# --- values -----------------------------------------------------------------------------------------------------------


def _number_shown(value: float) -> float | str:
    """JSON has no word for infinity."""
    return "infinite" if math.isinf(value) else value


def _number_read(value: Any) -> Any:
    if value == "infinite":
        return math.inf
    if isinstance(value, float) and math.isinf(value):
        raise ValueError("a number is infinite")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _checked_charge(what: Any, epsilon: Any, delta: Any, terms: Any) -> _Charge:
    numbers = _is_number(epsilon) and _is_number(delta)
    if not numbers or not (epsilon >= 0 and 0 <= delta <= 1):
        raise InputError(f"epsilon, delta: got {epsilon}, {delta}; epsilon >= 0 and delta in [0, 1] are needed")
    if not isinstance(what, str) or not what.isprintable():
        raise InputError(f"what: got {what!r}; a text without control characters is needed")
    return _Charge(what, float(epsilon), float(delta), terms)


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
