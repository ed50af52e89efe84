"""Whoever started a run: signals as a flag, a progress bar, and standard streams that are closed, full or gone.

An exception out of a signal handler may land anywhere: in a garbage collector's callback it is swallowed, in the middle
of a write it costs what is being written. So signals are looked at where stopping is safe.
"""

import contextlib
import gc
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

# the exit code of a command that somebody has stopped
STOPPED = 130
_DEFAULTS = (signal.default_int_handler, signal.SIG_DFL)

_active: "Stop | None" = None
# held by whoever sends a signal to the active one, or makes it inactive
_changing = threading.Lock()


class StoppedInTime(KeyboardInterrupt):
    """Stopped before anything was done that cannot be undone."""


class Stop:
    """`asked` says that somebody wants to stop. Signals beyond `patience` raise KeyboardInterrupt where they land, but
    not in what is shielded."""

    def __init__(self) -> None:
        self.patience: float = 1
        self._shields = 0
        # to the first signal that has to wait, on standard error
        self.answer = ""
        # while there is nothing to clear up: the last words of a process that any signal ends, where it lands. An
        # exception in a library that is being loaded can take the process down instead
        self.last_words = ""
        self.signals = 0
        self.last = signal.SIGINT

    @property
    def asked(self) -> bool:
        return self.signals > 0

    def handle(self, number: int, frame: FrameType | None) -> None:
        if self.last_words:
            with contextlib.suppress(OSError):
                os.write(2, f"{self.last_words}\n".encode())
            os._exit(STOPPED)
        self.signals += 1
        self.last = signal.Signals(number)
        if self.signals > self.patience and not self._shields:
            if not _in_collector(frame):
                raise KeyboardInterrupt
            # what is raised there is printed and forgotten, so it is raised a moment later
            threading.Timer(0.01, self._again, (number,)).start()
        if self.signals == 1 and self.answer:
            # a terminal or a pipe that is gone must not raise in whatever the signal landed in
            with contextlib.suppress(OSError):
                os.write(2, f"{self.answer}\n".encode())

    def _again(self, number: int) -> None:
        with _changing:
            if _active is self:
                os.kill(os.getpid(), number)

    @contextlib.contextmanager
    def shielded(self) -> Iterator[None]:
        """No signal breaks off what is done here; a patience that is set here holds from its end on."""
        self._shields += 1
        try:
            yield
        finally:
            self._shields -= 1


def _in_collector(frame: FrameType | None) -> bool:
    """Whether a signal landed in a callback of the garbage collector."""
    callbacks = {getattr(callback, "__code__", None) for callback in gc.callbacks}
    while frame is not None:
        if frame.f_code in callbacks:
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def stoppable(*signals: int) -> Iterator[Stop]:
    """The flag of whoever is outermost, set by `signals` (Ctrl-C if none are given). Signals that somebody else handles
    or ignores are left alone, and so are all of them outside the main thread."""
    global _active
    if _active is not None or threading.current_thread() is not threading.main_thread():
        yield _active or Stop()
        return
    stop = _active = Stop()
    before = {number: signal.getsignal(number) for number in signals or (signal.SIGINT,)}
    ours = {number: handler for number, handler in before.items() if handler in _DEFAULTS}
    try:
        for number in ours:
            signal.signal(number, stop.handle)
        yield stop
    finally:
        # nothing may be raised before every handler is as it was; what arrives meanwhile is sent again afterwards
        stop.patience, known = math.inf, stop.signals
        with _changing:
            _active = None
        # Ctrl-C's last, for its own handler raises
        for number, handler in sorted(ours.items(), key=lambda item: item[0] == signal.SIGINT):
            signal.signal(number, handler)
        if stop.signals > known:
            signal.raise_signal(stop.last)


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
