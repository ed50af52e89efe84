"""Nothing is left of what was started for a folder: not when its starter ends, is stopped or is killed."""

import os
import signal
import subprocess
import sys
import time

import pytest

from coterie.relay.processes import marked

# a process, and one that it has started in a session of its own, as engines do
STARTER = """
import os, signal, subprocess, sys, time
from pathlib import Path
from coterie.relay.processes import guarded, mark

signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have it ignored in jobs in the background
folder = Path(sys.argv[1])
with guarded(folder):
    (folder / "records").write_text("of somebody")
    command = ["sh", "-c", "setsid sleep 600 & sleep 600"]
    subprocess.Popen(command, env={**os.environ, **mark(folder / "engine")}, start_new_session=True)
    print("started", flush=True)
    time.sleep(float(sys.argv[2]))
"""


def wait_for(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("end", ["by itself", signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_everything_and_the_folder_go_with_their_starter(end, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    command = [sys.executable, "-c", STARTER, str(folder), "0" if end == "by itself" else "600"]
    starter = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert starter.stdout.readline() == "started\n"
    if end != "by itself":
        wait_for(lambda: len(marked(folder)) == 3)
        assert marked(folder / "other") == []
        os.kill(starter.pid, end)
    starter.wait(30)
    starter.stdout.close()
    wait_for(lambda: not folder.exists())
    assert marked(folder) == []
