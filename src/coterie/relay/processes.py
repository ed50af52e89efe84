"""Processes of an engine on this machine: started, started again when they end, and all gone at the end.

Each has a session of its own, so that Ctrl-C is answered by whoever started them, and a log in the folder. Each carries
the folder's name in its environment, and so does everything that it starts: that is how all of it is found again, also
by the next start in the same folder when whoever started them was killed.

    python -m coterie.relay.processes FOLDER

is a guard: a process that waits for the end of whoever started it, however it ends, and then clears up. It reads its
standard input, whose other end nobody but the starter holds; when that is closed it ends every process that was started
for the folder, and removes the folder.
"""

import contextlib
import dataclasses
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from coterie.errors import CoterieError

LOOPBACK = "127.0.0.1"
# between asking a process to end and ending it
STOP_S = 5.0
# before a process that has ended is started again
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 8.0
# one that ran for so long is started again without waiting
LONG_ENOUGH_S = 20.0
_MARK = "COTERIE_ENGINE_FOLDER"
_WATCH_S = 0.2


@dataclasses.dataclass
class _Child:
    command: Sequence[str]
    env: Mapping[str, str]
    process: subprocess.Popen[bytes]
    started: float
    pause: float = FIRST_PAUSE_S
    # when it is to be started again
    again: float | None = None


class Processes:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._children: dict[str, _Child] = {}
        self._lock = threading.RLock()
        self._ended = threading.Event()
        end_all(folder)
        threading.Thread(target=self._watch, daemon=True).start()

    def start(self, name: str, command: Sequence[str], env: Mapping[str, str]) -> None:
        with self._lock:
            self._children[name] = _Child(command, env, self._spawn(name, command, env), time.monotonic())

    def alive(self, name: str) -> bool:
        return self._children[name].process.poll() is None

    def pid(self, name: str) -> int:
        return self._children[name].process.pid

    def last_words(self, name: str) -> str:
        """The end of its log, in one line."""
        log = self._log(name)
        lines = log.read_text(errors="replace").split("\n") if log.exists() else []
        said = [" ".join(line.split()) for line in lines if line.strip()]
        return said[-1][:300] if said else "it said nothing"

    def check_started(self, name: str) -> None:
        """Refuse to go on when a process that was just started has ended."""
        process = self._children[name].process
        if process.poll() is not None:
            raise CoterieError(f"{name} ended with code {process.returncode}: {self.last_words(name)}")

    def stop(self) -> None:
        """End all of them, with everything that they have started themselves."""
        self._ended.set()
        with self._lock:
            end_all(self.folder, [child.process for child in self._children.values()])
            self._children.clear()

    def _spawn(self, name: str, command: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        with open(self._log(name), "ab") as log:
            return subprocess.Popen(
                command,
                env={**env, **mark(self.folder)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _watch(self) -> None:
        while not self._ended.wait(_WATCH_S):
            with self._lock:
                for name, child in self._children.items():
                    self._look_after(name, child)

    def _look_after(self, name: str, child: _Child) -> None:
        now = time.monotonic()
        if self._ended.is_set() or child.process.poll() is None:
            return
        if child.again is None:
            if now - child.started > LONG_ENOUGH_S:
                child.pause = FIRST_PAUSE_S
            child.again, child.pause = now + child.pause, min(2 * child.pause, LONGEST_PAUSE_S)
        if now >= child.again:
            child.process, child.started, child.again = self._spawn(name, child.command, child.env), now, None


def end_all(folder: Path, own: Sequence[subprocess.Popen[bytes]] = ()) -> None:
    """Everything that was started for this folder, by this process or by one that is no more."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        end, asked = time.monotonic() + STOP_S, set[int]()
        while (found := set(marked(folder))) and time.monotonic() < end:
            # also those that others have started meanwhile
            for pid in found - asked:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            asked |= found
            time.sleep(0.05)
    for process in own:
        # or it would stay as a zombie
        process.wait()


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as open_sockets:
        found = [open_sockets.enter_context(socket.socket()) for _ in range(count)]
        for one in found:
            one.bind((LOOPBACK, 0))
        return [one.getsockname()[1] for one in found]


def mark(folder: Path) -> dict[str, str]:
    """For the environment of whatever is started for this folder."""
    return {_MARK: str(folder.resolve())}


def marked(folder: Path) -> list[int]:
    """Numbers of the processes that were started for this folder or one in it, and of those that they have started."""
    wanted = os.fsencode(f"{_MARK}={folder.resolve()}")
    found = []
    for place in Path("/proc").iterdir():
        # of other users' processes nothing can be read, and of those that have ended nothing is there
        with contextlib.suppress(OSError):
            if not place.name.isdecimal():
                continue
            lines = (place / "environ").read_bytes().split(b"\0")
            if any(line == wanted or line.startswith(wanted + b"/") for line in lines):
                found.append(int(place.name))
    return found


# --- the guard --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def guarded(folder: Path) -> Iterator[None]:
    """Nothing is left of what is started for this folder, nor of the folder: also when this process is killed."""
    command = [sys.executable, "-m", "coterie.relay.processes", str(folder)]
    guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
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
