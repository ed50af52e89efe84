"""The ledger: what was spent on bodies of data, and what left for it. The only one in the package.

A run first *reserves* its whole price, which is refused if everything reserved and charged would exceed a limit, so
runs that overlap cannot overspend. Every reply is then *committed*, on disk before it may be sent, and asked for
again it is the same bytes, never noised anew. A reservation of which nothing was ever committed can be given back;
all else stays.

A ledger is a SQLite file (WAL, synchronous) of entries that are only ever added. Each holds the hash of the one
before, and the owner's signature where the owner has an Ed25519 key. `verify` finds every edit and deletion. A file
that was cut off or that went back to an earlier state is whole in itself; it is found by whoever has seen a later
entry: whoever has it open, the file `.head` beside it, and everybody who keeps a receipt (`Ledger.head`).

How prices add up is fixed when the ledger is made: by `curves`, as `privacy.composition` says, or by `sum`, adding
epsilons and deltas.
"""

from coterie.ledger.entries import (
    BudgetError,
    Entry,
    LedgerError,
    Limit,
    NoLedgerError,
    Receipt,
    Reservation,
    Terms,
    Total,
)
from coterie.ledger.ledger import Ledger
from coterie.privacy.composition import Price

__all__ = [
    "BudgetError",
    "Entry",
    "Ledger",
    "LedgerError",
    "Limit",
    "NoLedgerError",
    "Price",
    "Receipt",
    "Reservation",
    "Terms",
    "Total",
]
