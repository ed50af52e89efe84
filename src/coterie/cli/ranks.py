"""`coterie run --ranks`: all processes of a cluster's run started by one command, which stops them as it stops any run.

Ctrl-C at Open MPI's `mpiexec` kills its processes a quarter of a second later, whatever they are doing. SIGUSR1 it
hands on to them, and they stop together after a round. So `mpiexec` gets a session of its own, where no terminal
reaches it, and is told to stop by SIGUSR1 alone. What it has not started yet it cannot tell: there is a file besides
which all look for before anything is charged. A guard ends all of them when this command is killed.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from coterie.errors import MissingExtraError
from coterie.relay.processes import guarded, mark

# an environment variable of the processes: a file that appears when this command is asked to stop
ASKED_FILE = "COTERIE_ASKED_FILE"
STOPPED = 130


def run_ranks(n_ranks: int, arguments: Sequence[str]) -> int:
    """`coterie run` with these arguments, at so many processes; its exit code."""
    command = [_mpiexec(), "-n", str(n_ranks), sys.executable, "-m", "coterie", "run", *arguments]
    # for the owner alone; the guard removes it
    folder = Path(tempfile.mkdtemp(prefix="coterie-ranks-"))
    told = folder / "asked"
    asked = False
    job: subprocess.Popen[bytes] | None = None

    def stop(*_: object) -> None:
        nonlocal asked
        asked = True
        # or the signal alone has to do
        with contextlib.suppress(OSError):
            told.touch()
        if job is not None:
            job.send_signal(signal.SIGUSR1)

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    # what somebody has asked to be ignored, as nohup does, stays so
    heard = [number for number in signals if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in heard}
    try:
        with guarded(folder):
            env = {**os.environ, **mark(folder), ASKED_FILE: str(told)}
            job = subprocess.Popen(command, env=env, start_new_session=True)
            code = job.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    # a process that was not ready for a signal ends by it, before anything was charged
    return STOPPED if asked and code != 0 else code


def _mpiexec() -> str:
    """The one that belongs to this Python, or any."""
    found = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")
    if found is None:
        raise MissingExtraError("--ranks: no mpiexec is here; pip install 'coterie[mpi]' brings one")
    return found
