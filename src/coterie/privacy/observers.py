"""Who is watching. A privacy loss is always a loss against somebody who sees certain things."""

import dataclasses

from coterie.errors import InputError


@dataclasses.dataclass(frozen=True)
class Observer:
    name: str
    sees: str


EVERYBODY = Observer("everybody", "every release of every party in every round, and all public facts")
AGGREGATES = Observer("aggregates", "the noised aggregate of every round, and all public facts")

PEER = Observer(
    "peer",
    "the token whenever it visits one party that is not the protected one, and all public facts; not the last token",
)


def coalition(colluders: int) -> Observer:
    """Everybody, and so many parties who put together what they know."""
    known = f", and the noise and secrets of any {colluders} parties but the protected one" if colluders else ""
    return Observer("coalition", f"every message of every party in every round{known}, and all public facts")


def check_observer(name: str, provided: tuple[Observer, ...], channel: str) -> Observer:
    """Refuse an observer the channel does not provide: a weaker one would understate, a stronger one has no bound."""
    for observer in provided:
        if observer.name == name:
            return observer
    allowed = ", ".join(o.name for o in provided)
    raise InputError(f"observer: got {name!r}; the {channel} channel provides {allowed}")
