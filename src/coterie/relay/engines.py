"""The one table of engines that carry envelopes between a coordinator and sites.

Each is a module of this package with the same three functions:

    check_installed()                   one sentence where its extra is not there
    on_this_machine(folder, sockets)    all of the engine, started here for sites that listen at these sockets
    between_machines(kit, parties)      an engine that runs already; the kit is what the coordinator has for it

The last two are context managers: they yield an exchange of envelopes (`site.sockets.Exchange`), and end what they
have started.
"""

import importlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from coterie.errors import InputError
from coterie.site.sockets import Exchange

ENGINES = {
    "sites": "coterie.relay.local",
    "nvflare": "coterie.relay.nvflare",
    "flower": "coterie.relay.flower",
}


def check_installed(engine: str) -> None:
    """Refuse an engine whose extra is not installed."""
    _module(engine).check_installed()


def on_this_machine(engine: str, folder: Path, sockets: dict[str, Path]) -> AbstractContextManager[Exchange]:
    """`folder` is the engine's own, and what it needs to go on after a kill is in it."""
    return _module(engine).on_this_machine(folder, sockets)


def between_machines(engine: str, kit: Path, parties: Sequence[str]) -> AbstractContextManager[Exchange]:
    return _module(engine).between_machines(kit, parties)


def _module(engine: str) -> Any:
    if engine not in ENGINES:
        raise InputError(f"engine: got {engine!r}; one of {', '.join(ENGINES)} is needed")
    return importlib.import_module(ENGINES[engine])
