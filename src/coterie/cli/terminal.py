"""The terminal: a progress bar on standard error, and standard streams that are closed, full or gone."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any


def fill_gaps() -> None:
    """Where a standard stream is closed, the next file that is opened takes its number, and whatever is said then is
    written into that file."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # the lowest number that is free
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        # of standard output commands want to know
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def mute_output() -> None:
    """Nobody reads what is still to be said, and Python would complain about it when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _MayBeGone:
    """Standard error, whose terminal or pipe may be gone: a bar that nobody sees must not cost a run its result."""

    def __init__(self) -> None:
        # as it is now: while a bar is drawn, something else is in its place
        self._file = sys.stderr

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._file.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._file.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@contextlib.contextmanager
def shown_progress(
    what: str, *, quiet: bool = False, estimate_over: float = 30.0
) -> Iterator[Callable[[int, int], None] | None]:
    """A callback (done, total) that draws a bar, or None when nothing may be drawn.

    The time left is estimated from the last `estimate_over` seconds.
    """
    if quiet:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console: Any = Console(file=_MayBeGone())  # pyright: ignore[reportArgumentType]
    with Progress(*columns, console=console, transient=True, speed_estimate_period=estimate_over) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
