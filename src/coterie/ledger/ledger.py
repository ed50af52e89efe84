"""A ledger in a SQLite file, or in memory."""

import contextlib
import dataclasses
import json
import math
import os
import secrets
import sqlite3
import stat
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coterie.charts import table_html
from coterie.errors import CoterieError, InputError
from coterie.ledger.entries import (
    FORMAT,
    SIGNED,
    BudgetError,
    Composition,
    Entry,
    LedgerError,
    Limit,
    NoLedgerError,
    Receipt,
    Reservation,
    State,
    Terms,
    Total,
    canonical,
    checked_text,
    limit_shown,
    public,
    sha256,
)
from coterie.ledger.pages import check_unused
from coterie.privacy import composition
from coterie.privacy.composition import Price
from coterie.values import file_text, whole_number

LOCK_TIMEOUT_S = 5.0
# bytes
LARGEST_REPLY = 10**9
# bytes of a file whose unused space is looked at
LARGEST_IMAGE = 2**29
LARGEST_RECEIPT = 10**4
# of a file that holds a receipt: what a disk writes whole or not at all
HEAD_BYTES = 512
HEAD_TRIES, HEAD_PAUSE_S = 3, 0.01
# what this process sees mounted, on Linux
MOUNTS = Path("/proc/self/mountinfo")
APPLICATION_ID = 0x436F7465
USER_VERSION = 1
# what SQLite says may quote what it read
_DAMAGE = (sqlite3.Error, UnicodeDecodeError)
_UNWRITABLE = ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")
SCHEMA = (
    "CREATE TABLE entries "
    "(number INTEGER PRIMARY KEY, body TEXT NOT NULL, reply BLOB, hash BLOB NOT NULL, signature BLOB)",
    "CREATE TRIGGER entries_follow BEFORE INSERT ON entries WHEN NEW.number IS NOT "
    "(SELECT coalesce(max(number), 0) + 1 FROM entries) BEGIN SELECT RAISE(ABORT, 'entries follow each other'); END",
    "CREATE TRIGGER entries_stay BEFORE UPDATE ON entries BEGIN SELECT RAISE(ABORT, 'entries are never changed'); END",
    "CREATE TRIGGER entries_remain BEFORE DELETE ON entries BEGIN SELECT RAISE(ABORT, 'entries are never deleted'); "
    "END",
)


_OPEN: "weakref.WeakSet[Ledger]" = weakref.WeakSet()
# connections of another process, which must not be closed here
_INHERITED: "list[Ledger]" = []
os.register_at_fork(after_in_child=lambda: _INHERITED.extend(_OPEN))


class Ledger:
    """Made by `create`, opened by `open`, closed by `close` or at the end of a `with` block.

    Several processes and threads may use one file, each process through a `Ledger` of its own.
    """

    def __init__(
        self, path: str | os.PathLike[str] | None, key: Ed25519PrivateKey | None, *, first: Any = None
    ) -> None:
        """Called by `create`, which hands over the `first` entry, and `open`."""
        self._lock, self._process = threading.RLock(), os.getpid()
        self._state, self._key = State(), key
        self._file = None if path is None else _File(path)
        self._check_no_other_process()
        self._connection = _connected(self._file, new=first is not None)
        _OPEN.add(self)
        try:
            if first is not None:
                self._begin(first)
            self._read_all()
        except BaseException:
            self.close()
            if first is not None and self._file is not None:
                self._file.remove()
            raise

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str] | None,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        key: Ed25519PrivateKey | None = None,
        composition: Composition = "curves",
    ) -> "Ledger":
        """A new ledger in a file that must not exist, or in memory (None).

        epsilon, delta: the limit of every body of data; `set_limit` sets others.
        key: signs every entry; nobody without it can add one.
        """
        if composition not in get_args(Composition):
            raise InputError(f"composition: got {composition!r}; one of {', '.join(get_args(Composition))} is needed")
        if (epsilon is None) != (delta is None):
            raise InputError(f"epsilon, delta: got {epsilon}, {delta}; both are needed, or none")
        limit = None if epsilon is None or delta is None else limit_shown(Limit(epsilon, delta))
        # a number of its own: entries of one ledger do not fit into another
        own = {"format": FORMAT, "made": secrets.token_hex(16), "composition": composition}
        first = {"kind": "created", **own, "limit": limit, "owner": None if key is None else public(key)}
        return cls(path, key, first=first)

    @classmethod
    def open(cls, path: str | os.PathLike[str], key: Ed25519PrivateKey | None = None) -> "Ledger":
        """A ledger that exists. Without its key one that has an owner can be read, not added to."""
        return cls(path, key)

    def close(self) -> None:
        with self._lock:
            if self._process == os.getpid():
                self._connection.close()
                _OPEN.discard(self)

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def path(self) -> Path | None:
        return None if self._file is None else self._file.path

    @property
    def composition(self) -> Composition:
        return self._state.composition

    @property
    def owner(self) -> str | None:
        """The owner's public key, in hexadecimal digits."""
        return self._state.owner

    # --- limits -------------------------------------------------------------------------------------------------------

    def set_limit(self, epsilon: float, delta: float, *, data: str | None = None, days: float | None = None) -> None:
        """A limit for one body of data or, without a name, for all that have none of their own; kept as an entry.

        days: the limit is on runs that could release something within any so many days; it stands beside the one
            without days.
        """
        limit = Limit(epsilon, delta, days)
        name = None if data is None else checked_text("data", data)
        with self._writing():
            if self._state.limits.get((name, days)) != limit:
                self._append({"kind": "limit", "data": name, "limit": limit_shown(limit)})

    def limits(self, data: str | None = None) -> tuple[Limit, ...]:
        """The limits that hold for a body of data, the one without days first."""
        with self._reading():
            return self._state.limits_of(data)

    # --- spending -----------------------------------------------------------------------------------------------------

    def reserve(
        self,
        run: str,
        *,
        data: str,
        plan: str,
        price: Price,
        terms: Terms,
        rounds: int,
        what: str = "",
        by: str = "",
    ) -> Reservation:
        """Book the whole price of a run, before anything is computed; the same again changes nothing.

        run: its name, used once. data: the body of data, by name or digest. plan: the plan's digest. rounds: how many
        replies may be committed. what, by: for people who read the ledger: a description, and who asked.
        """
        texts = {"run": run, "data": data, "plan": plan}
        body = {name: checked_text(name, text) for name, text in texts.items()}
        body |= {"what": checked_text("what", what, empty=True), "by": checked_text("by", by, empty=True)}
        body |= {"rounds": whole_number("rounds", rounds, at_least=1), "price": price.to_dict()}
        body = {"kind": "reserved", **body, "terms": dataclasses.asdict(terms)}
        with self._writing():
            known = self._state.runs.get(run)
            if known is not None:
                if known.given_back:
                    raise InputError(f"run: {run!r} was given back; a run's name is used once")
                same = (known.data, known.plan, known.rounds, known.price, known.terms) == (
                    data, plan, rounds, price, terms,
                )  # fmt: skip
                if not same:
                    raise InputError(f"run: {run!r} was reserved with another plan, price or body of data")
                return dataclasses.replace(known, committed=dict(known.committed))
            self._check(data, price, terms, what or f"run {run}")
            self._append(body)
            return dataclasses.replace(self._state.runs[run], committed={})

    def charge(self, what: str, price: Price, *, data: str, terms: Terms) -> tuple[tuple[str, float, float], ...]:
        """Book a price that is never given back, and return what was charged to these data before, as stated."""
        texts = {"what": checked_text("what", what, empty=True), "data": checked_text("data", data)}
        body = {"kind": "charged", **texts, "price": price.to_dict(), "terms": dataclasses.asdict(terms)}
        with self._writing():
            past = self._state.stated(data)
            self._check(data, price, terms, what)
            self._append(body)
        return past

    def commit(self, run: str, round: int, reply: bytes, request: str) -> bytes:
        """Store the reply of a round, which may be sent when this returns; `request` is the digest of what was asked.

        A round that was committed before gives the stored reply, whatever `reply` is, if the request is the same.
        """
        request = checked_text("request", request)
        if not isinstance(reply, bytes) or len(reply) > LARGEST_REPLY:
            raise InputError(f"reply: got a {type(reply).__name__}; at most {LARGEST_REPLY:,} bytes are needed")
        if type(round) is not int:
            raise InputError(f"round: got {round!r}; an integer is needed")
        with self._writing():
            booked = self._booked(run)
            if round in booked.committed:
                asked, number = booked.committed[round]
                if asked != request:
                    raise InputError(f"round: {round} of run {run!r} was asked for with other content")
                return self._stored_reply(number)
            if booked.given_back or booked.ended:
                how = "given back" if booked.given_back else "ended"
                raise InputError(f"run: {run!r} was {how}; nothing more of it can be sent")
            last = booked.last_round
            if not (-1 if last is None else last) < round < booked.rounds:
                raise InputError(
                    f"round: got {round!r} of run {run!r}; a number below {booked.rounds} that comes after "
                    f"{'nothing' if last is None else last} is needed"
                )
            body = {"kind": "committed", "run": run, "round": round, "request": request, "reply": sha256(reply).hex()}
            self._append(body, reply)
        return reply

    def reply(self, run: str, round: int) -> bytes | None:
        """What was committed for a round, or None."""
        with self._reading():
            found = self._booked(run).committed.get(round)
            return None if found is None else self._stored_reply(found[1])

    def give_back(self, run: str) -> None:
        """End a reservation of which nothing was ever committed; its price counts no more."""
        with self._writing():
            booked = self._booked(run)
            if booked.committed:
                raise InputError(
                    f"run: {run!r} has committed round {booked.last_round}; what was released stays charged"
                )
            if not booked.given_back:
                self._append({"kind": "given-back", "run": run})

    def end(self, run: str) -> None:
        """Let nothing more of a run be committed. What it booked stays, but within periods it counts no longer as of
        today. A run that has committed its last round has ended by itself."""
        with self._writing():
            booked = self._booked(run)
            if booked.given_back:
                raise InputError(f"run: {run!r} was given back")
            if not booked.ended:
                self._append({"kind": "ended", "run": run})

    def reservation(self, run: str) -> Reservation | None:
        with self._reading():
            found = self._state.runs.get(run)
            return None if found is None else dataclasses.replace(found, committed=dict(found.committed))

    # --- reading ------------------------------------------------------------------------------------------------------

    def total(self, data: str, *, delta: float | None = None, plus: Price | None = None) -> Total:
        """What was spent on a body of data, and with `plus` what would be; at the limit's delta where none is given."""
        with self._reading():
            state = self._state
            limits = state.limits_of(data)
            limit = limits[0] if limits and limits[0].days is None else None
            prices = [price for price, _ in state.counted(data)] + ([] if plus is None else [plus])
            if state.composition == "sum":
                spent = sum(p.epsilon for p in prices), sum(p.delta for p in prices)
                return Total(data, *spent, limit, len(prices))
            if delta is None:
                if limit is None or limit.delta == 0:
                    raise InputError(f"delta: got None; {data!r} has no limit that says at which delta to state a loss")
                delta = limit.delta
            return Total(data, composition.total(prices, delta), delta, limit, len(prices))

    def stated(self, data: str) -> tuple[tuple[str, float, float], ...]:
        """(description, epsilon, delta) of everything that counts, each as it was stated, in order."""
        with self._reading():
            return self._state.stated(data)

    def bodies(self) -> tuple[str, ...]:
        """Every body of data that something was reserved or charged for."""
        with self._reading():
            return tuple(dict.fromkeys(booked.data for booked in self._state.bookings))

    def entries(self) -> Iterator[Entry]:
        """All entries in order, the first of which says how the ledger was made."""
        with self._reading():
            rows = self._rows(0)
        for number, text, found, signature in rows:
            content = json.loads(text)
            kind, at = content.pop("kind"), content.pop("time")
            for name in ("previous", "sqlite"):
                content.pop(name)
            yield Entry(number, kind, at, content, found.hex(), None if signature is None else signature.hex())

    def head(self) -> Receipt:
        """The last entry. Others who keep it find out if the ledger ever goes back behind it."""
        with self._reading():
            return self._state.receipt()

    def check_holds(self, receipt: Receipt) -> None:
        """Refuse to go on where the ledger has gone back behind a receipt."""
        with self._reading():
            try:
                self._state.check_holds(receipt)
            except ValueError as error:
                raise self._altered(error) from None

    def verify(self, receipt: Receipt | None = None) -> int:
        """The number of entries, if the file and all that is in it is whole; the first fault is raised.

        receipt: of an earlier `head`, which a ledger that was cut off or that went back does not hold.
        """
        # before the entries, which others may add to
        head = None if self._file is None else self._file.head()
        with self._reading():
            try:
                found = self._connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
                if found != "ok":
                    raise ValueError(f"the file is damaged: {found}")
                _check_schema(self._connection)
                fresh = State()
                for row in self._rows(0):
                    fresh.add(*row, every_signature=True)
                for number, digest in fresh.replies.items():
                    stored = self._connection.execute(
                        "SELECT reply FROM entries WHERE number = ?", (number,)
                    ).fetchone()[0]
                    if not isinstance(stored, bytes) or sha256(stored) != digest:
                        raise ValueError(f"the reply of entry {number} was changed")
                replies = "SELECT count(*) FROM entries WHERE reply IS NOT NULL"
                if self._connection.execute(replies).fetchone()[0] != len(fresh.replies):
                    raise ValueError("an entry has a reply that it does not name")
                if fresh.receipt() != self._state.receipt():
                    raise ValueError("it is not what this process has read")
                if self._file is not None:
                    self._check_unused(fresh)
                for known in (head, receipt):
                    fresh.check_holds(known)
            except (ValueError, KeyError, TypeError, IndexError, RecursionError, sqlite3.Error) as error:
                raise self._altered(error) from None
            return fresh.count

    def backup(self, path: str | os.PathLike[str]) -> Path:
        """A copy in a file that must not exist. Put back in place of the ledger it is refused once something was spent
        that it does not know of."""
        target = _File(path)
        target.claim()
        try:
            with self._reading(), contextlib.closing(sqlite3.connect(target.path, isolation_level=None)) as copy:
                self._connection.backup(copy)
                copy.execute("PRAGMA journal_mode = DELETE")
                # which copying has counted up
                copy.execute(f"PRAGMA schema_version = {len(SCHEMA)}")
            target.sync()
        except (OSError, sqlite3.Error) as error:
            target.remove()
            raise LedgerError(f"path: {str(target.path)!r} cannot be written ({error}); no backup was made") from None
        except BaseException:
            target.remove()
            raise
        return target.path

    # --- checks -------------------------------------------------------------------------------------------------------

    def _repr_html_(self) -> str:
        rows = []
        for data in self.bodies():
            total = self.total(data)
            limits = "; ".join(
                f"ε = {limit.epsilon:g}, δ = {limit.delta:g}"
                + ("" if limit.days is None else f" in {limit.days:g} days")
                for limit in self.limits(data)
            )
            rows.append((data, f"{total.epsilon:.6g}", f"{total.delta:.3g}", limits or "none"))
        return table_html(("data", "ε", "δ", "limits"), rows, f"Ledger of {self.head().number + 1} entries")

    def _booked(self, run: str) -> Reservation:
        found = self._state.runs.get(run)
        if found is None:
            raise InputError(f"run: {run!r} was never reserved")
        return found

    def _check(self, data: str, price: Price, terms: Terms, what: str) -> None:
        state = self._state
        if price.curve is not None and price.records != terms.records_per_person:
            raise InputError(
                f"price: of people with {price.records} records, beside terms of {terms.records_per_person}"
            )
        for other in state.terms(data):
            if not other.add_up_with(terms):
                raise InputError(f"ledger: it holds losses of ({other}); losses of ({terms}) do not add up with them")
        now = state.now()
        for limit in state.limits_of(data):
            since = -math.inf if limit.days is None else now - 86400 * limit.days
            prices = [booked for booked, at in state.counted(data) if at > since] + [price]
            if not state.within(prices, limit):
                raise BudgetError(
                    f"ledger: {what} would bring the loss to {state.shown(prices, limit)}, "
                    f"beyond the limit of {limit}; nothing was run"
                )

    def _check_no_other_process(self) -> None:
        """SQLite takes what a fork has copied for locks of its own: a file that was open then cannot be opened here."""
        if self._file is not None and any(
            other._process != os.getpid() and other._file is not None and other._file.path == self._file.path
            for other in list(_OPEN)
        ):
            raise LedgerError(
                f"ledger: {self._name()} was open when this process was forked; close it before a fork, or start "
                "processes by spawning them. Nothing was charged"
            )

    # --- entries ------------------------------------------------------------------------------------------------------

    def _begin(self, first: dict[str, Any]) -> None:
        with self._translated(writing=True):
            self._connection.execute("BEGIN IMMEDIATE")
            for statement in SCHEMA:
                self._connection.execute(statement)
            self._insert(first)
            self._connection.execute("COMMIT")
            if self._file is not None:
                self._file.sync()

    def _append(self, body: dict[str, Any], reply: bytes | None = None) -> None:
        """Write one more entry, on disk when this returns; where that fails, the ledger is as it was."""
        if self._state.owner is not None and self._key is None:
            raise InputError("key: got None; only its owner can add to this ledger")
        row = self._insert(body, reply)
        self._connection.execute("COMMIT")
        self._state.add(*row)
        if self._file is not None:
            self._file.check_same()
            self._file.keep_head(self._state.receipt())

    def _insert(self, body: dict[str, Any], reply: bytes | None = None) -> tuple[int, str, bytes, bytes | None]:
        state = self._state
        stamped = {
            **body,
            "time": state.now(),
            "sqlite": sqlite3.sqlite_version,
            "previous": None if state.hash is None else state.hash.hex(),
        }
        number, text = state.count + 1, canonical(stamped)
        found = sha256(text.encode())
        signature = None if self._key is None else self._key.sign(SIGNED + found)
        row = (number, text, found, signature)
        self._connection.execute(
            "INSERT INTO entries (number, body, reply, hash, signature) VALUES (?, ?, ?, ?, ?)",
            (number, text, reply, found, signature),
        )
        return row

    def _rows(self, after: int) -> list[tuple[int, str, bytes, bytes | None]]:
        select = "SELECT number, body, hash, signature FROM entries WHERE number > ? ORDER BY number"
        return self._connection.execute(select, (after,)).fetchall()

    def _stored_reply(self, number: int) -> bytes:
        row = self._connection.execute("SELECT reply FROM entries WHERE number = ?", (number,)).fetchone()
        if row is None or not isinstance(row[0], bytes) or sha256(row[0]) != self._state.replies[number]:
            raise self._altered(ValueError(f"the reply of entry {number} was changed"))
        return row[0]

    def _read_all(self) -> None:
        # before the entries, which others may add to
        head = None if self._file is None else self._file.head()
        with self._reading():
            try:
                _check_schema(self._connection)
                self._state.check_holds(head)
            except (ValueError, sqlite3.Error) as error:
                raise self._altered(error) from None
        if self._key is not None and public(self._key) != self._state.owner:
            owner = "nobody" if self._state.owner is None else f"{self._state.owner[:16]}..."
            raise InputError(f"key: got that of {public(self._key)[:16]}...; this ledger belongs to {owner}")

    def _check_unused(self, state: State) -> None:
        """Of files up to a size, because the whole of it is held in memory."""
        size, pages = (self._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_size", "page_count"))
        if self._file is not None:
            self._check_length(self._file.path, size * pages)
        if size * pages <= LARGEST_IMAGE:
            image = self._connection.serialize()
            check_unused(image, user_version=USER_VERSION, schema_version=len(SCHEMA), writers=state.writers)

    @staticmethod
    def _check_length(path: Path, length: int) -> None:
        """Some versions of SQLite take what is missing at the end of a file for zeros."""
        log, found = path.with_name(f"{path.name}-wal"), path.stat().st_size
        # pages that are not yet in the file itself
        waiting = log.exists() and log.stat().st_size > 0
        if not 0 < found <= length or (found < length and not waiting):
            raise ValueError("something was added to the file, or cut off it")

    def _catch_up(self) -> None:
        """Read what others have added; whatever this object has seen must still be there."""
        state = self._state
        try:
            if state.count:
                row = self._connection.execute("SELECT hash FROM entries WHERE number = ?", (state.count,)).fetchone()
                if row is None or row[0] != state.hash:
                    raise ValueError("what was charged last is missing: it went back to an earlier state")
            rows = self._rows(state.count)
            for place, row in enumerate(rows):
                # a signature covers all that came before
                state.add(*row, every_signature=place == len(rows) - 1)
            if not state.count:
                raise ValueError("it is empty")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise self._altered(error) from None

    # --- transactions -------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        with self._held(), self._translated(writing=False):
            self._connection.execute("BEGIN")
            try:
                self._catch_up()
                yield
            finally:
                self._end()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        with self._held(), self._translated(writing=True):
            if self._file is not None:
                self._file.check_writable()
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                if self._file is not None:
                    self._file.check_same()
                self._catch_up()
                if self._file is not None:
                    self._state.check_clock()
                yield
            finally:
                self._end()

    def _end(self) -> None:
        if self._connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        if self._process != os.getpid():
            raise InputError(
                "ledger: it was opened by another process, before a fork, and what is charged here might be lost; "
                "open it again"
            )
        with self._lock:
            if self._file is not None:
                self._file.check_same()
            yield

    @contextlib.contextmanager
    def _translated(self, *, writing: bool) -> Iterator[None]:
        try:
            yield
        except _DAMAGE as error:
            raise _sentence(error, self._name(), writing=writing) from None
        except OSError as error:
            if isinstance(error, CoterieError):
                raise
            raise LedgerError(
                f"ledger: {self._name()} cannot be written ({error.strerror}); nothing was charged"
            ) from None

    def _altered(self, error: Exception) -> InputError:
        return InputError(f"path: {self._name()} cannot be used ({error}); it is left as it is")

    def _name(self) -> str:
        return "the ledger in memory" if self._file is None else repr(str(self._file.path))


# --- the file ---------------------------------------------------------------------------------------------------------


class _File:
    """Where a ledger lies. It is never opened here but through SQLite, whose locks would end with any other handle."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        try:
            # of a link, the file it leads to: what is beside the link would not be beside that file
            self.path = Path(path).resolve()
        except (OSError, RuntimeError, ValueError) as error:
            raise InputError(f"path: {str(path)!r} cannot be used ({error})") from None
        self._identity: tuple[int, int] | None = None

    def beside(self, ending: str) -> Path:
        return self.path.with_name(self.path.name + ending)

    def claim(self) -> None:
        """Make the file, which nobody else may have made."""
        if os.path.exists(self.beside(".head")) and not os.path.exists(self.path):
            raise InputError(
                f"path: a ledger was at {str(self.path)!r} before ({self.beside('.head').name} is still there); bring "
                "it back, or choose another path"
            )
        try:
            os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            raise InputError(
                f"path: {str(self.path)!r} exists already; a ledger is never begun anew: choose another path"
            ) from None
        except OSError as error:
            raise self._unusable(error) from None

    def remove(self) -> None:
        for ending in ("", "-wal", "-shm", "-journal"):
            with contextlib.suppress(OSError):
                self.beside(ending).unlink()

    def check_kind(self) -> None:
        """Before anything is opened: a pipe would keep its reader waiting."""
        found = self._stat()
        if not stat.S_ISREG(found.st_mode):
            raise InputError(f"path: {str(self.path)!r} is no file; a ledger is one")
        if found.st_nlink > 1:
            raise InputError(
                f"path: {str(self.path)!r} has {found.st_nlink} names (hard links), which cannot be locked together; "
                "a symbolic link can be used instead"
            )
        if _mounted_alone(self.path):
            raise InputError(
                f"path: {str(self.path)!r} is mounted by itself, without the folder that holds its log and its locks; "
                "mount that folder instead"
            )
        if found.st_size == 0:
            raise InputError(f"path: {str(self.path)!r} is empty; no ledger is")
        self._identity = (found.st_dev, found.st_ino)

    def check_same(self) -> None:
        found = self._stat()
        if self._identity not in (None, (found.st_dev, found.st_ino)):
            raise InputError(
                f"path: {str(self.path)!r} is another file than the one that was opened; nothing was charged"
            )
        self._identity = (found.st_dev, found.st_ino)

    def check_writable(self) -> None:
        # bits, because nothing else would tell a superuser
        for path in (self.path, self.path.parent):
            if not path.stat().st_mode & 0o222:
                raise LedgerError(f"ledger: {str(path)!r} is write-protected; nothing was charged")

    def sync(self) -> None:
        """The folder knows of the file, also after a power cut."""
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def head(self) -> Receipt | None:
        for left in reversed(range(HEAD_TRIES)):
            try:
                return Receipt.from_json(file_text(self.beside(".head"), LARGEST_RECEIPT))
            except FileNotFoundError:
                return None
            except (OSError, UnicodeDecodeError, InputError) as error:
                if left:
                    # somebody may be writing it just now
                    time.sleep(HEAD_PAUSE_S)
                    continue
                raise InputError(
                    f"path: {str(self.path)!r} cannot be used (its head cannot be read, {error}); it is left as it is"
                ) from None
        return None

    def keep_head(self, receipt: Receipt) -> None:
        # the charge stands; a head that is behind is found in the chain
        head, content = self.beside(".head"), receipt.to_json().encode().ljust(HEAD_BYTES)
        if _overwritten(head, content):
            return
        temporary = head.with_name(f".{head.name}-{os.getpid()}-{threading.get_ident()}")
        try:
            temporary.write_bytes(content)
            os.replace(temporary, head)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()

    def _stat(self) -> os.stat_result:
        try:
            return self.path.stat()
        except FileNotFoundError:
            raise InputError(
                f"ledger: none is at {str(self.path)!r}; `coterie run --new-ledger` makes one, and so does "
                "Spending.create(path, limit=...) or Ledger.create in Python"
            ) from None
        except OSError as error:
            raise self._unusable(error) from None

    def _unusable(self, error: OSError) -> InputError:
        reason = error.strerror or str(error)
        return InputError(f"path: {str(self.path)!r} cannot be used as a ledger ({reason}); nothing was charged")


def _overwritten(path: Path, content: bytes) -> bool:
    """Whether a file of that length was there, and has this content now. Renaming a new one over it would do too, but
    some file systems then write it to disk at once, and keep a charge waiting that is on disk already."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        found = os.fstat(file)
        fits = stat.S_ISREG(found.st_mode) and (found.st_size, found.st_nlink) == (len(content), 1)
        return fits and os.pwrite(file, content, 0) == len(content)
    except OSError:
        return False
    finally:
        os.close(file)


def _mounted_alone(path: Path) -> bool:
    """Whether a file is a mount of its own, as containers are given single files: another name that no count of links
    tells, beside which SQLite would keep another log."""
    try:
        mounts = MOUNTS.read_bytes().splitlines()
    except OSError:
        return False
    name = b"".join(b"\\%03o" % byte if byte in b" \t\n\\" else bytes((byte,)) for byte in os.fsencode(path))
    return any(line.split(b" ")[4:5] == [name] for line in mounts)


def _connected(file: _File | None, *, new: bool) -> sqlite3.Connection:
    marks = (f"PRAGMA application_id = {APPLICATION_ID}", f"PRAGMA user_version = {USER_VERSION}")
    if file is None:
        connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        for mark in marks:
            connection.execute(mark)
        return connection
    if new:
        file.claim()
    else:
        file.check_kind()
    connection = None
    try:
        connection = sqlite3.connect(file.path, timeout=LOCK_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA trusted_schema = OFF")
        if new:
            for mark in marks:
                connection.execute(mark)
        elif connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
            # nothing may be written into what is no ledger
            raise NoLedgerError(f"path: {str(file.path)!r} cannot be used (it is no ledger); it is left as it is")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        # what SQLite moves it leaves as zeros
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("PRAGMA cell_size_check = ON")
        file.check_same()
    except BaseException as error:
        if connection is not None:
            connection.close()
        if new:
            file.remove()
        if isinstance(error, _DAMAGE):
            raise _sentence(error, repr(str(file.path)), writing=True) from None
        raise
    return connection


def _sentence(error: Exception, name: str, *, writing: bool) -> CoterieError:
    code = getattr(error, "sqlite_errorname", None) or ""
    if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL")):
        return LedgerError(
            f"ledger: {name} has been held by another process for {LOCK_TIMEOUT_S:g} seconds; nothing was charged"
        )
    if writing and code.startswith(_UNWRITABLE):
        return LedgerError(f"ledger: {name} cannot be written ({error}); nothing was charged")
    kind = NoLedgerError if code == "SQLITE_NOTADB" else InputError
    return kind(f"path: {name} cannot be used ({error}); it is left as it is")


def _check_schema(connection: sqlite3.Connection) -> None:
    found = connection.execute("SELECT rowid, type, name, tbl_name, rootpage, sql FROM sqlite_schema").fetchall()
    expected = []
    for number, sql in enumerate(SCHEMA, start=1):
        _, kind, name, *_ = sql.split()
        expected.append((number, kind.lower(), name, "entries", 2 if kind == "TABLE" else 0, sql))
    if found != expected:
        raise ValueError("its tables are not those of a ledger")
