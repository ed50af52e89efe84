"""A progress bar on standard error, so that standard output stays clean."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any


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
