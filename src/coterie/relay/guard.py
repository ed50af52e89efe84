"""A guard: a process that waits for the end of whoever started it, however it ends, and then clears up.

    python -m coterie.relay.guard FOLDER

It reads its standard input, whose other end nobody but the starter holds; when that is closed it ends every process
that was started for the folder (`relay.processes`), and removes the folder.
"""

import contextlib
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from coterie.relay.processes import end_all


@contextlib.contextmanager
def guarded(folder: Path) -> Iterator[None]:
    """Nothing is left of what is started for this folder, nor of the folder: also when this process is killed."""
    guard = subprocess.Popen(
        [sys.executable, "-m", "coterie.relay.guard", str(folder)], stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        yield
    finally:
        guard.communicate()


def main(folder: Path) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # whatever stops the starter must not stop this first
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    end_all(folder)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
