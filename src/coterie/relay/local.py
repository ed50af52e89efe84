"""No engine at all: the coordinator reaches the sites' sockets itself, on one machine or through folders it shares."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from coterie.errors import InputError
from coterie.site.sockets import Exchange, Sockets


def check_installed() -> None:
    """Nothing is needed for it."""


@contextlib.contextmanager
def on_this_machine(folder: Path, sockets: dict[str, Path]) -> Iterator[Exchange]:
    carry = Sockets(sockets)
    try:
        yield carry
    finally:
        carry.close()


@contextlib.contextmanager
def between_machines(kit: Path, parties: Sequence[str]) -> Iterator[Exchange]:
    """`kit` is a folder with the sites' sockets: PARTY.sock, or PARTY/site.sock; those not there yet are waited for."""
    if not kit.is_dir():
        raise InputError(f"--sites: {str(kit)!r} is no folder; one with the sites' sockets is needed")
    sockets = {}
    for name in parties:
        if "/" in name or name.startswith("."):
            raise InputError(f"--sites: the party {name!r} cannot be the name of a file")
        sockets[name] = kit / name / "site.sock" if (kit / name).is_dir() else kit / f"{name}.sock"
    with on_this_machine(kit, sockets) as carry:
        yield carry
