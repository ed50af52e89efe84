"""Directories of runs: what is in them, and that they appear complete or not at all, under a name that is kept from the
start."""

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from coterie.errors import InputError

# which the other files give, so it needs no sum
SUMS, REPORT = "SHA256SUMS", "report.html"
_ALWAYS = {"plan.json", "certificate.json", "certificate.md", "summary.json", "run.log", SUMS}

_OF_INTERVALS = {"moments.json", "intervals.json", "intervals.csv", "intervals.txt"}
# asked one by one, because finding out may fail
_ELSEWHERE: tuple[Callable[[], str | Path], ...] = (tempfile.gettempdir, Path.home, lambda: "/dev/shm")


def transcript_name(complete: bool) -> str:
    return "transcript.npz" if complete else "partial-transcript.npz"


def files_of(complete: bool, origin: Iterable[str] = ("spec.toml",), *, intervals: bool = False) -> set[str]:
    """Everything in the directory of a run that came to its end, with intervals or without, or that was stopped;
    `origin` is what it was made from: a spec, a proposal to sites, or both."""
    more = {"model.json", *(_OF_INTERVALS if intervals else ())} if complete else set()
    return {*_ALWAYS, *origin, transcript_name(complete), *more}


def sums(directory: Path) -> str:
    """In the form that `sha256sum --check` reads."""
    files = sorted(path for path in directory.iterdir() if path.name not in (SUMS, REPORT))
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)


class TakenError(InputError):
    """Another process is about to write a directory of this name."""


def check_free(directory: Path) -> None:
    """Refuse a path that is taken, before any work is done."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise InputError(f"out: {str(directory)!r} exists already and is not an empty directory; choose another")
    parent = directory.absolute().parent
    while not parent.exists():
        parent = parent.parent
    try:
        # asking for permission bits would not know every file system
        tempfile.TemporaryDirectory(dir=parent).cleanup()
    except OSError as error:
        raise InputError(f"out: {str(directory)!r} cannot be made ({error.strerror} in {str(parent)!r})") from None


def unused(directory: Path) -> Path:
    """The path itself, or the first of path-2, path-3, ... that does not exist."""
    return next(path for path in _numbered(directory) if not path.exists())


def _numbered(directory: Path) -> Iterator[Path]:
    yield directory
    number = 2
    while True:
        yield directory.with_name(f"{directory.name}-{number}")
        number += 1


class Reserved:
    """A name that no other process takes, and a hidden sibling `partial` to fill before it appears under that name.

    What a killed process left in such a sibling is removed by whoever reserves the name next, or where it may have been
    `paid_for` brought to light under a name of its own, `recovered`.
    """

    def __init__(self, directory: Path, *, paid_for: bool = False) -> None:
        check_free(directory)
        self.directory = directory
        whole = directory.resolve()
        whole.parent.mkdir(parents=True, exist_ok=True)
        self.partial = whole.with_name(f".{whole.name}.partial")
        self._lock_path = whole.with_name(f".{whole.name}.lock")
        self._lock = _locked(self._lock_path)
        if self._lock is None:
            raise TakenError(f"out: {str(directory)!r} is being written by another run; choose another")
        self.recovered: Path | None = None
        if self.partial.exists() and paid_for:
            self.recovered = self._brought_to_light()
        shutil.rmtree(self.partial, ignore_errors=True)
        self.partial.mkdir(mode=0o700)

    def finish(self) -> Path:
        """Let the directory appear; under another name if somebody else has taken its own in the meantime."""
        self.partial.chmod(0o755)
        for path in _numbered(self.directory):
            try:
                # over an empty directory, or nothing
                self.partial.rename(path.resolve())
            except OSError:
                if not path.exists():
                    raise
                continue
            self._release()
            return path
        raise AssertionError("unreachable")

    def give_up(self) -> Path | None:
        """Free the name. What was put into `partial` appears as a directory called -failed, which is returned."""
        if self._lock is None:
            return None
        kept = self._brought_to_light() if self.partial.exists() else None
        self._release()
        return kept

    def discard(self) -> None:
        """Free the name, and forget what was put into `partial`."""
        if self._lock is not None:
            shutil.rmtree(self.partial, ignore_errors=True)
            self._release()

    def _brought_to_light(self) -> Path | None:
        if not any(self.partial.iterdir()):
            self.partial.rmdir()
            return None
        kept = unused(self.directory.with_name(f"{self.directory.name}-failed"))
        self.partial.rename(kept.absolute())
        return kept

    def _release(self) -> None:
        assert self._lock is not None
        self._lock_path.unlink(missing_ok=True)
        os.close(self._lock)
        self._lock = None


def _locked(path: Path) -> int | None:
    """A lock that ends with this process, or None where another one holds it."""
    while True:
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise InputError(f"out: {str(path)!r} cannot be made ({error.strerror})") from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            return None
        # whoever held it may have removed the file in between
        if path.exists() and os.path.samestat(os.fstat(file), path.stat()):
            return file
        os.close(file)


def reserve_next(directory: Path, *, paid_for: bool = False) -> Reserved:
    """The first of path, path-2, path-3, ... that is free and that no other process has reserved."""
    for path in _numbered(directory):
        if not path.exists():
            with contextlib.suppress(TakenError):
                return Reserved(path, paid_for=paid_for)
    raise AssertionError("unreachable")


@contextlib.contextmanager
def new_directory(directory: Path) -> Iterator[Path]:
    """A temporary sibling to write into, renamed to `directory` when the block ends well and removed when not."""
    place = Reserved(directory)
    try:
        yield place.partial
        place.finish()
    finally:
        place.discard()


def saved_elsewhere(name: str, write: Callable[[Path], None]) -> Path | None:
    """Write a directory wherever that is possible, for what cannot be made again; where it is, if anywhere."""
    for folder in _ELSEWHERE:
        try:
            place = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=folder()))
        except (OSError, RuntimeError):
            # full, or there is none: users of a container may have no home
            continue
        try:
            write(place)
        except OSError:
            shutil.rmtree(place, ignore_errors=True)
            continue
        return place
    return None
