"""A demo that is interrupted, and what it leaves running."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def check_ctrl_c(engine: str, moment: bytes, folder: Path) -> None:
    """Ctrl-C once a process with `moment` in its command line is there ends the demo, and all that it has started."""
    # a shell's background jobs ignore SIGINT, and hand that on
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = [sys.executable, "-c", f"{heard}; from coterie.cli.main import main; main()"]
    demo = subprocess.Popen(
        [*command, "demo", "--engine", engine, "--json"],
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    end = time.monotonic() + 120
    while not any(moment in command for command in processes_below(folder)):
        assert time.monotonic() < end
        time.sleep(0.02)
    demo.send_signal(signal.SIGINT)
    out, _ = demo.communicate(timeout=120)
    assert (demo.returncode, out) == (130, b"")
    assert processes_below(folder) == []
    assert list(folder.iterdir()) == []


def processes_below(folder: Path) -> list[bytes]:
    """Command lines of everything that was started with this folder for its temporary files."""
    mark, found = os.fsencode(f"TMPDIR={folder}"), []
    for place in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if place.name.isdecimal() and mark in (place / "environ").read_bytes().split(b"\0"):
                found.append((place / "cmdline").read_bytes())
    return found
