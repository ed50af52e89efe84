"""The machine: its cores and worker processes, whether it has Numba, and where programs that were compiled for it are
kept, under `$XDG_CACHE_HOME/coterie`.

Machine code fits one kind of processor, so each kind has a folder of its own. Whoever can write there can have code
executed, so a folder is used only if nobody but its owner can write to it or put another in its place.
"""

import contextlib
import functools
import hashlib
import multiprocessing
import os
import platform
import stat
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

# --- where compiled programs are kept ---------------------------------------------------------------------------------

# bytes in one folder; the files that were used longest ago are removed
LARGEST = 2 * 10**9


def cache_folder(name: str) -> Path | None:
    """For whoever runs this alone; None where that cannot be had."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    # somebody without a home would get a folder called ~ wherever they are
    if not os.path.isabs(home):
        return None
    try:
        top = Path(home).resolve() / "coterie"
        return _safe_folder(top, name)
    except (OSError, RuntimeError):
        return None


def _safe_folder(top: Path, name: str) -> Path | None:
    folder = top / name / processor()
    top.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for own in (top, top / name, folder):
        with contextlib.suppress(FileExistsError):
            own.mkdir(mode=0o700)
    if not all(map(_cannot_be_exchanged, top.parents)) or not all(map(_made_private, (top, top / name, folder))):
        return None
    if not os.access(folder, os.W_OK | os.X_OK):
        return None
    _keep_bounded(folder)
    return folder


def _cannot_be_exchanged(parent: Path) -> bool:
    """Nobody but root and the owner can rename what is in it."""
    found = parent.stat()
    writable = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return found.st_uid in (0, os.geteuid()) and (not writable or bool(found.st_mode & stat.S_ISVTX))


def _made_private(own: Path) -> bool:
    """The owner's, 0700; what others could write to until now may hold anything, and is not used."""
    found = own.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        return False
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return False
    if found.st_mode & 0o077:
        own.chmod(0o700)
    return True


@functools.cache
def _keep_bounded(folder: Path) -> None:
    """Once a process."""
    files = []
    for path in folder.iterdir():
        # somebody else removed it
        with contextlib.suppress(OSError):
            found = path.lstat()
            if stat.S_ISREG(found.st_mode):
                files.append((max(found.st_atime, found.st_mtime), found.st_size, path))
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= LARGEST:
            return
        with contextlib.suppress(OSError):
            path.unlink()
        total -= size


@functools.cache
def processor() -> str:
    """A name for this kind of processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    kind = [line for line in lines if line.startswith(("model name", "flags", "Features"))][:2]
    return hashlib.sha256("\n".join([platform.machine(), platform.processor(), *kind]).encode()).hexdigest()[:16]


# --- cores ------------------------------------------------------------------------------------------------------------

Part = TypeVar("Part")
Done = TypeVar("Done")


def n_cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def on_cores(work: Callable[[Part], Done], parts: Iterable[Part]) -> list[Done]:
    with ThreadPoolExecutor(n_cores()) as cores:
        return list(cores.map(work, parts))


def end_with_parent() -> None:
    """In a worker process: it must not go on computing for a starter that was killed."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@functools.cache
def has_numba() -> bool:
    """For loops in machine code (`native`)."""
    return find_spec("numba") is not None


def numba_loaded() -> bool:
    """Whether somebody has paid for loading it, which takes longer than drawing a few numbers."""
    return "numba" in sys.modules
