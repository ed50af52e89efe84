"""What has been spent on one body of data by fits, scores and runs: a ledger that adds losses up.

Charges are written before anything is computed and are never taken back. Sums are basic composition, which holds
whatever later fits have learnt from earlier ones. Everything in one `Spending` adds up, also fits on parts of the data:
who was in which part is the data holder's secret. Keep one per body of data.

The file is a `coterie.ledger.Ledger`. Files of lines of JSON, which came before, are made into one when they are
opened; what they held is kept beside it, ending in `.old`.
"""

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from coterie.charts import Lines, Series, table_html
from coterie.errors import InputError
from coterie.ledger import BudgetError, Ledger, LedgerError, NoLedgerError, Price, Receipt, Terms

__all__ = ["BudgetError", "LedgerError", "Spending", "Terms"]

Entry = tuple[str, float, float]

# bytes
LARGEST_OLD = 10**8
LOCK_TIMEOUT_S = 5.0
MOST_SHOWN = 30
_LINES, _DOCUMENT = "coterie-spending-2", "coterie-spending-1"
# a Spending knows one body of data
_DATA = "all"


class Spending:
    """A ledger of repeated fits and evaluations, in memory or in a file that was made by `Spending.create`.

    limit: (epsilon, delta) that may not be exceeded; a charge that would is refused and nothing is recorded. A file
        keeps its limit: opening it with another one is refused.
    path: the file that holds the ledger, locked while it is read and written, so several processes may share it.
        Without a path the ledger lives in this process and cannot leave it.
    """

    def __init__(self, *, limit: tuple[float, float] | None = None, path: str | os.PathLike[str] | None = None) -> None:
        self.limit = _checked_limit(limit)
        self._process = os.getpid()
        self._seen: Receipt | None = None
        self._path: Path | None = None
        if path is None:
            self._in_memory = _created(None, self.limit)
            return
        try:
            # also after the working directory has changed
            self._path = Path(path).resolve()
        except (OSError, RuntimeError, ValueError) as error:
            raise InputError(f"path: {str(path)!r} cannot be used ({error})") from None
        with self._ledger():
            # an unusable file is refused here, not when data are about to be used
            pass

    @classmethod
    def create(cls, path: str | os.PathLike[str], *, limit: tuple[float, float] | None = None) -> "Spending":
        """A new ledger in a file that must not exist."""
        _created(path, _checked_limit(limit)).close()
        return cls(limit=limit, path=path)

    @property
    def path(self) -> Path | None:
        return self._path

    def charge(self, what: str, epsilon: float, delta: float, *, terms: Terms) -> tuple[Entry, ...]:
        """Record one release, and return what was charged before."""
        price = Price(epsilon, delta)
        with self._ledger() as ledger:
            return ledger.charge(what, price, data=_DATA, terms=terms)

    @property
    def charges(self) -> tuple[Entry, ...]:
        """Everything that was ever charged: (description, epsilon, delta), in order."""
        with self._ledger() as ledger:
            return ledger.stated(_DATA)

    @property
    def total(self) -> tuple[float, float]:
        """(epsilon, delta) of everything together."""
        with self._ledger() as ledger:
            total = ledger.total(_DATA)
        return total.epsilon, total.delta

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

    def _repr_html_(self) -> str:
        epsilon, delta = self.total
        rows = [(what, f"{eps:.6g}", f"{d:.3g}") for what, eps, d in self.charges[-MOST_SHOWN:]]
        earlier = len(self.charges) - len(rows)
        before = [] if earlier <= 0 else [(f"{earlier} earlier charges", "", "")]
        limit = [] if self.limit is None else [("limit", f"{self.limit[0]:.6g}", f"{self.limit[1]:.3g}")]
        total = ("everything together", f"{epsilon:.6g}", f"{delta:.3g}")
        return table_html(("charged", "ε", "δ"), [*before, *rows, total, *limit], "Spending")

    def plot(self, ax: Any = None) -> Any:
        """The sum of all losses after each charge, on matplotlib axes; a charge without a bound is not drawn."""
        losses = [epsilon for _, epsilon, _ in self.charges if math.isfinite(epsilon)]
        sums = tuple(sum(losses[: k + 1]) for k in range(len(losses)))
        return Lines(
            title="Privacy loss of everything charged",
            x_label="charges",
            y_label="ε, added up",
            series=(Series("spent", tuple(range(1, len(sums) + 1)), sums),),
            levels=() if self.limit is None else (("limit", self.limit[0]),),
            whole_x=True,
        ).plot(ax)

    @contextlib.contextmanager
    def _ledger(self) -> Iterator[Ledger]:
        """The ledger as it is now. Opened each time, so that a Spending may live through forks and long pauses."""
        if self._path is None:
            if self._process != os.getpid():
                raise InputError(
                    "ledger: it lives in the memory of another process, where what is charged here would be lost; make "
                    "it with Spending.create(path)"
                )
            yield self._in_memory
            return
        with _opened(self._path) as ledger:
            if ledger.composition != "sum" or ledger.owner is not None:
                raise InputError(f"path: {str(self._path)!r} is a site's ledger; a Spending is made by Spending.create")
            limits = [(limit.epsilon, limit.delta) for limit in ledger.limits(_DATA)]
            stored = limits[0] if limits else None
            if self.limit not in (None, stored):
                raise InputError(
                    f"path: {str(self._path)!r} cannot be used (its limit is {stored}); it is left as it is"
                )
            self.limit = stored
            if self._seen is not None:
                ledger.check_holds(self._seen)
            try:
                yield ledger
            finally:
                with contextlib.suppress(InputError):
                    self._seen = ledger.head()


def _reopen(limit: tuple[float, float] | None, path: Path) -> Spending:
    return Spending(limit=limit, path=path)


def _created(path: str | os.PathLike[str] | None, limit: tuple[float, float] | None) -> Ledger:
    epsilon, delta = (None, None) if limit is None else limit
    return Ledger.create(path, epsilon=epsilon, delta=delta, composition="sum")


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


# --- files that came before -------------------------------------------------------------------------------------------


def _opened(path: Path) -> Ledger:
    try:
        return Ledger.open(path)
    except NoLedgerError:
        _import(path)
        return Ledger.open(path)


def _import(path: Path) -> None:
    """Make a file of lines of JSON into a ledger, with all it holds; versions that know such files honour the lock."""
    lock, head = path.with_name(path.name + ".lock"), path.with_name(path.name + ".head")
    new, old = path.with_name(f".{path.name}.new"), path.with_name(path.name + ".old")
    try:
        # first of all, so that no lock is left beside a file that is no ledger
        _parsed(path, _content(path), None)
        with FileLock(lock, timeout=LOCK_TIMEOUT_S):
            with contextlib.suppress(NoLedgerError):
                Ledger.open(path).close()
                # somebody else has done it
                return
            content = _content(path)
            limit, charges = _parsed(path, content, _old_head(head))
            # which nothing else would tell a superuser
            if not path.stat().st_mode & 0o222:
                raise LedgerError(f"ledger: {str(path)!r} is write-protected; nothing was charged")
            new.unlink(missing_ok=True)
            with _created(new, None) as ledger:
                for what, epsilon, delta, terms in charges:
                    ledger.charge(what, Price(epsilon, delta), data=_DATA, terms=terms)
                if limit is not None:
                    # afterwards: what was charged before it was kept counts all the same
                    ledger.set_limit(*limit)
            old.write_bytes(content)
            for stale in (head, new.with_name(new.name + ".head")):
                stale.unlink(missing_ok=True)
            os.replace(new, path)
    except Timeout:
        raise LedgerError(f"ledger: {str(path)!r} is held by another process; nothing was charged") from None
    except OSError as error:
        if isinstance(error, LedgerError):
            raise
        raise LedgerError(f"ledger: {str(path)!r} cannot be written ({error.strerror}); nothing was charged") from None


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.stat().st_size <= LARGEST_OLD else b""


def _old_head(head: Path) -> str | None:
    try:
        return head.read_text().strip() or None
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        return f"unreadable: {error}"


def _parsed(path: Path, content: bytes, head: str | None) -> tuple[tuple[float, float] | None, list[Any]]:
    try:
        limit, charges, hashes = _lines(content)
        if head is not None and head not in hashes:
            raise ValueError("what was charged last is missing: it went back to an earlier state")
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise InputError(
            f"path: {str(path)!r} cannot be used ({type(error).__name__}: {error}); it is left as it is"
        ) from None
    return limit, charges


def _lines(content: bytes) -> tuple[tuple[float, float] | None, list[Any], list[str]]:
    """Limit, charges and hashes. Whoever died while writing a line has released nothing: a last line without its end
    does not count."""
    whole = content[: content.rfind(b"\n") + 1] if b"\n" in content else content
    lines = [json.loads(line) for line in whole.decode("utf-8").splitlines()]
    if not lines or not all(isinstance(line, dict) for line in lines):
        raise ValueError("it holds no ledger")
    if lines[0].get("format") == _DOCUMENT and len(lines) == 1:
        stored, terms = lines[0], Terms(**lines[0]["terms"])
        charges = [(c["what"], float(c["epsilon"]), float(c["delta"]), terms) for c in stored["charges"]]
        return _checked_limit(stored["limit"]), _checked(charges), []
    limit, charges, hashes = None, [], []
    for place, line in enumerate(lines):
        stated = line.pop("hash", None)
        if stated != hashlib.sha256(json.dumps(line, sort_keys=True, separators=(",", ":")).encode()).hexdigest():
            raise ValueError(f"line {place + 1} was changed")
        if place == 0:
            if line.keys() != {"format", "limit", "made"} or line["format"] != _LINES:
                raise ValueError(f"format {line.get('format')!r}")
            limit = None if line["limit"] is None else _checked_limit([_number_read(v) for v in line["limit"]])
        else:
            if line.pop("previous", None) != hashes[-1]:
                raise ValueError(f"line {place + 1} does not follow line {place}")
            if line.keys() != {"what", "epsilon", "delta", "terms"}:
                raise ValueError(f"line {place + 1} has keys {', '.join(line)}")
            charges.append((line["what"], _number_read(line["epsilon"]), line["delta"], Terms(**line["terms"])))
        hashes.append(stated)
    return limit, _checked(charges), hashes


def _checked(charges: list[Any]) -> list[Any]:
    for what, epsilon, delta, _ in charges:
        Price(epsilon, delta)
        if not isinstance(what, str) or not what.isprintable():
            raise ValueError(f"a description is {what!r}")
    return charges


def _number_read(value: Any) -> Any:
    """JSON has no word for infinity."""
    if value == "infinite":
        return math.inf
    if isinstance(value, float) and math.isinf(value):
        raise ValueError("a number is infinite")
    return value
