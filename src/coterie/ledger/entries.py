"""What a ledger's entries say, and what they come to: each is checked as it is added, in memory, without a file."""

import dataclasses
import hashlib
import json
import math
import time
from collections.abc import Iterable
from typing import Any, Literal, get_args

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from coterie.errors import CoterieError, InputError
from coterie.privacy import composition
from coterie.privacy.composition import Price, is_number
from coterie.values import whole_number

FORMAT = "coterie-ledger-1"
# characters of a name or a description
LONGEST_TEXT = 1000
CLOCK_TOLERANCE_S = 2.0
# before the hash, so that no signature of an entry is one of something else
SIGNED = b"coterie ledger entry\0"

Composition = Literal["curves", "sum"]
# relative: charges that add up to the limit on paper must not fail in the last digit
_ROUNDING = 1e-9


class BudgetError(CoterieError, ValueError):
    """A release would exceed the limit of its ledger; nothing was computed."""


class LedgerError(CoterieError, OSError):
    """A ledger could not be locked or written; nothing was charged."""


class NoLedgerError(InputError):
    """A file is something else than a ledger; it was left as it is."""


@dataclasses.dataclass(frozen=True)
class Terms:
    """What a loss is a loss of. Losses on different terms do not add up, so a body of data takes one kind only.

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
        records = "1 record" if self.records_per_person == 1 else f"{self.records_per_person} records"
        return f"{self.adjacency}, unit {self.unit}, {records} per person{span}{who}"


@dataclasses.dataclass(frozen=True)
class Limit:
    """(epsilon, delta) that may not be exceeded, ever or within any so many days."""

    epsilon: float
    delta: float
    days: float | None = None

    def __post_init__(self) -> None:
        numbers = [self.epsilon, self.delta, 1.0 if self.days is None else self.days]
        if not all(is_number(value) for value in numbers) or not (
            self.epsilon > 0 and 0 <= self.delta < 1 and 0 < numbers[2] < math.inf
        ):
            raise InputError(
                f"limit: got {(self.epsilon, self.delta)!r}, days {self.days!r}; a pair (epsilon > 0, 0 <= delta < 1), "
                "and days > 0 or None are needed"
            )

    def __str__(self) -> str:
        period = "" if self.days is None else f" within {self.days:g} days"
        return f"epsilon={self.epsilon:.6g}, delta={self.delta:.3g}{period}"


@dataclasses.dataclass(frozen=True)
class Entry:
    """One entry as it is stored. `kind`: created, limit, reserved, charged, committed, given-back or ended."""

    number: int
    kind: str
    time: float
    content: dict[str, Any]
    hash: str
    signature: str | None


@dataclasses.dataclass(frozen=True)
class Receipt:
    """The last entry of a ledger, for others to keep: a ledger that does not hold it any more has lost something."""

    number: int
    hash: str
    signature: str | None = None
    key: str | None = None

    def to_json(self) -> str:
        return canonical(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Receipt":
        try:
            receipt = cls(**_object(text))
            if type(receipt.number) is not int or receipt.number < 1 or len(bytes.fromhex(receipt.hash)) != 32:
                raise ValueError("no entry is named")
            if (receipt.signature is None) != (receipt.key is None):
                raise ValueError("signature and key belong together")
            if receipt.key is not None and receipt.signature is not None:
                _check_signature(receipt.key, bytes.fromhex(receipt.hash), bytes.fromhex(receipt.signature))
        except (ValueError, TypeError, RecursionError) as error:
            raise InputError(f"receipt: cannot be used ({error})") from None
        return receipt


@dataclasses.dataclass(frozen=True)
class Total:
    """What was spent on a body of data, all reservations counted in full: `epsilon` at `delta`, under the limit."""

    data: str
    epsilon: float
    delta: float
    limit: Limit | None
    releases: int

    @property
    def left(self) -> float:
        """Of the limit's epsilon."""
        return math.inf if self.limit is None else max(0.0, self.limit.epsilon - self.epsilon)


@dataclasses.dataclass
class Reservation:
    """What is booked for a run; rounds that were `committed` stand by number with their request and their entry."""

    number: int
    time: float
    run: str
    data: str
    plan: str
    what: str
    by: str
    rounds: int
    price: Price
    terms: Terms
    committed: dict[int, tuple[str, int]] = dataclasses.field(default_factory=dict)
    given_back: bool = False
    ended: bool = False
    last_time: float = -math.inf

    @property
    def counts_until(self) -> float:
        """When it last released something, for limits of periods; a run that may go on counts as if it did now."""
        over = self.ended or self.rounds == 0 or self.last_round == self.rounds - 1
        return max(self.time, self.last_time) if over else math.inf

    @property
    def last_round(self) -> int | None:
        # they only ever go up
        return next(reversed(self.committed), None)


class State:
    """Everything that follows from the entries so far; each is checked as it is added."""

    def __init__(self) -> None:
        self.count, self.hash, self.signature = 0, None, None
        self.time = -math.inf
        self.owner: str | None = None
        self.composition: Composition = "curves"
        self.limits: dict[tuple[str | None, float | None], Limit] = {}
        self.runs: dict[str, Reservation] = {}
        # and charges, which are reservations that no run goes with
        self.bookings: list[Reservation] = []
        self.replies: dict[int, bytes] = {}
        self.hashes: list[bytes] = []
        # versions of SQLite
        self.writers: set[str] = set()

    hash: bytes | None
    signature: bytes | None

    def add(self, number: Any, text: Any, found: Any, signature: Any, *, every_signature: bool = False) -> None:
        if number != self.count + 1:
            raise ValueError(f"entry {self.count + 1} is missing")
        if not isinstance(text, str) or not isinstance(found, bytes) or sha256(text.encode()) != found:
            raise ValueError(f"entry {number} was changed")
        body = _object(text)
        if canonical(body) != text or body.pop("previous") != (None if self.hash is None else self.hash.hex()):
            raise ValueError(f"entry {number} does not follow entry {self.count}")
        at, kind, writer = body.pop("time"), body.pop("kind"), body.pop("sqlite")
        if not is_number(at) or not math.isfinite(at) or not isinstance(writer, str):
            raise ValueError(f"entry {number} does not say when and by what it was written")
        if (number == 1) != (kind == "created"):
            raise ValueError(f"entry {number} is of kind {kind!r}")
        if number == 1:
            self._created(**body)
        if (signature is None) != (self.owner is None):
            raise ValueError(f"entry {number} is {'not ' if signature is None else ''}signed")
        if self.owner is not None and every_signature:
            _check_signature(self.owner, found, signature)
        fold = {
            "limit": self._limit,
            "reserved": self._reserved,
            "charged": self._charged,
            "committed": self._committed,
            "given-back": self._given_back,
            "ended": self._ended,
        }
        if number > 1:
            if kind not in fold:
                raise ValueError(f"entry {number} is of kind {kind!r}")
            fold[kind](number, float(at), **body)
        self.count, self.hash, self.signature, self.time = number, found, signature, max(self.time, float(at))
        self.hashes.append(found)
        self.writers.add(writer)

    def _created(self, *, format: Any, made: Any, composition: Any, limit: Any, owner: Any) -> None:
        if format != FORMAT or composition not in get_args(Composition) or not isinstance(made, str):
            raise ValueError(f"format {format!r}, composition {composition!r}")
        self.owner, self.composition = owner, composition
        if limit is not None:
            self.limits[None, None] = _limit_read(limit)

    def _limit(self, number: int, at: float, *, data: str | None, limit: Any) -> None:
        read = _limit_read(limit)
        self.limits[data, read.days] = read

    def _reserved(self, number: int, at: float, *, price: Any, terms: Any, **texts: Any) -> None:
        booked = Reservation(number, at, price=Price.from_dict(price), terms=Terms(**terms), **texts)
        whole_number("rounds", booked.rounds, at_least=1)
        for name in ("run", "data", "plan", "what", "by"):
            checked_text(name, getattr(booked, name), empty=name in ("what", "by"))
        if booked.run in self.runs:
            raise ValueError(f"run {booked.run!r} was reserved twice")
        self.runs[booked.run] = booked
        self.bookings.append(booked)

    def _charged(self, number: int, at: float, *, what: str, data: str, price: Any, terms: Any) -> None:
        checked_text("what", what, empty=True)
        checked_text("data", data)
        loss = Price.from_dict(price)
        self.bookings.append(Reservation(number, at, "", data, "", what, "", 0, loss, Terms(**terms)))

    def _committed(self, number: int, at: float, *, run: str, round: int, request: str, reply: str) -> None:
        booked = self.runs[run]
        last = booked.last_round
        if (
            booked.given_back
            or booked.ended
            or type(round) is not int
            or not (-1 if last is None else last) < round < booked.rounds
        ):
            raise ValueError(f"round {round!r} of run {run!r} was not to be committed")
        booked.committed[round] = (request, number)
        booked.last_time = at
        self.replies[number] = bytes.fromhex(reply)

    def _given_back(self, number: int, at: float, *, run: str) -> None:
        booked = self.runs[run]
        if booked.committed or booked.given_back:
            raise ValueError(f"run {run!r} was not to be given back")
        booked.given_back = True

    def _ended(self, number: int, at: float, *, run: str) -> None:
        booked = self.runs[run]
        if booked.given_back or booked.ended:
            raise ValueError(f"run {run!r} was not to be ended")
        booked.ended = True

    # --- asking -------------------------------------------------------------------------------------------------------

    def receipt(self) -> Receipt:
        assert self.hash is not None
        return Receipt(
            self.count, self.hash.hex(), None if self.signature is None else self.signature.hex(), self.owner
        )

    def check_holds(self, receipt: Receipt | None) -> None:
        if receipt is None:
            return
        if receipt.key != self.owner:
            raise ValueError("the receipt is another owner's")
        if receipt.number > self.count or self.hashes[receipt.number - 1].hex() != receipt.hash:
            raise ValueError("what was charged last is missing: it went back to an earlier state, or was cut off")

    def limits_of(self, data: str | None) -> tuple[Limit, ...]:
        periods = sorted({days for _, days in self.limits}, key=lambda days: (days is not None, days))
        found = [self.limits.get((data, days), self.limits.get((None, days))) for days in periods]
        return tuple(limit for limit in found if limit is not None)

    def terms(self, data: str) -> tuple[Terms, ...]:
        return tuple(booked.terms for booked in self.bookings if booked.data == data and not booked.given_back)

    def counted(self, data: str) -> list[tuple[Price, float]]:
        """Prices, each with the time until which it counts within a period."""
        counted = [booked for booked in self.bookings if booked.data == data and not booked.given_back]
        return [(booked.price, booked.counts_until) for booked in counted]

    def stated(self, data: str) -> tuple[tuple[str, float, float], ...]:
        counted = [booked for booked in self.bookings if booked.data == data and not booked.given_back]
        return tuple((booked.what, booked.price.epsilon, booked.price.delta) for booked in counted)

    def within(self, prices: list[Price], limit: Limit) -> bool:
        if self.composition == "curves":
            return composition.fits(prices, (limit.epsilon, limit.delta))
        spent = sum(price.epsilon for price in prices), sum(price.delta for price in prices)
        return spent[0] <= limit.epsilon * (1 + _ROUNDING) and spent[1] <= limit.delta * (1 + _ROUNDING)

    def shown(self, prices: list[Price], limit: Limit) -> str:
        if self.composition == "sum" or limit.delta == 0:
            return f"epsilon={sum(p.epsilon for p in prices):.6g}, delta={sum(p.delta for p in prices):.3g}"
        return f"epsilon={composition.total(prices, limit.delta):.6g}, delta={limit.delta:.3g}"

    def now(self) -> float:
        """Seconds since 1970; never before the last entry."""
        return max(round(time.time(), 3), self.time)

    def check_clock(self) -> None:
        behind = self.time - time.time()
        if behind > CLOCK_TOLERANCE_S:
            raise LedgerError(
                f"ledger: the clock is {behind:.0f} seconds behind the last entry; set it right. Nothing was charged"
            )


# --- values -----------------------------------------------------------------------------------------------------------


def canonical(content: Any) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def _digest(content: Any) -> str:
    return sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hex()


def sha256(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def _object(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("an entry is no table")
    return found


def public(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes_raw().hex()


def _check_signature(key: str, found: bytes, signature: bytes) -> None:
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(signature, SIGNED + found)
    except InvalidSignature:
        raise ValueError("a signature is not the owner's") from None


def limit_shown(limit: Limit) -> dict[str, Any]:
    shown = "infinite" if math.isinf(limit.epsilon) else limit.epsilon
    return {"epsilon": shown, "delta": limit.delta, "days": limit.days}


def _limit_read(content: dict[str, Any]) -> Limit:
    epsilon = content["epsilon"]
    return Limit(**{**content, "epsilon": math.inf if epsilon == "infinite" else epsilon})


def checked_text(name: str, text: Any, *, empty: bool = False) -> str:
    if not isinstance(text, str) or not text.isprintable() or len(text) > LONGEST_TEXT or not (text or empty):
        raise InputError(
            f"{name}: got {text!r:.80}; a text of at most {LONGEST_TEXT} characters without control characters is "
            "needed"
        )
    return text
