"""Directories that appear complete or not at all."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from coterie.errors import InputError


def check_free(directory: Path) -> None:
    """Refuse a path that is taken, before any work is done."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise InputError(f"out: {str(directory)!r} exists already and is not an empty directory; choose another")
    parent = directory.absolute().parent
    while not parent.exists():
        parent = parent.parent
    try:
        tempfile.TemporaryDirectory(dir=parent).cleanup()  # asking for permission bits would not know every file system
    except OSError as error:
        raise InputError(f"out: {str(directory)!r} cannot be made ({error.strerror} in {str(parent)!r})") from None


def unused(directory: Path) -> Path:
    """The path itself, or the first of path-2, path-3, ... that does not exist."""
    candidate, number = directory, 1
    while candidate.exists():
        number += 1
        candidate = directory.with_name(f"{directory.name}-{number}")
    return candidate


@contextlib.contextmanager
def new_directory(directory: Path) -> Iterator[Path]:
    """A temporary sibling to write into, renamed to `directory` when the block ends well and removed when not."""
    check_free(directory)
    directory.absolute().parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.absolute().parent))
    try:
        yield partial
        partial.chmod(0o755)
        if directory.exists():
            directory.rmdir()
        partial.rename(directory.absolute())
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
