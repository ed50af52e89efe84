"""A progress bar on standard error, so that standard output stays clean."""

import contextlib
from collections.abc import Callable, Iterator


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
    with Progress(*columns, console=Console(stderr=True), transient=True, speed_estimate_period=estimate_over) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
