"""Processes of an engine: started again when they end, ended with all they have started, leftovers included."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from coterie.errors import CoterieError
from coterie.relay.processes import LOOPBACK, Processes, end_all, free_ports, marked

# its child is in a session of its own, and stays when it goes
PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
open(sys.argv[1], "a").write(f"{os.getpid()} {child.pid}\\n")
time.sleep(600)
"""


def started(file, count):
    """Pairs of a process and its child, when there are so many."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        lines = file.read_text().splitlines() if file.exists() else []
        if len(lines) >= count:
            return [tuple(map(int, line.split())) for line in lines]
        time.sleep(0.02)
    raise AssertionError("it did not start")


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pids):
    end = time.monotonic() + 10
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(0.02)
    return not any(map(alive, pids))


@pytest.fixture
def processes(tmp_path):
    found = Processes(tmp_path)
    yield found
    found.stop()


def test_a_process_that_is_killed_is_started_again_and_all_of_it_is_gone_at_the_end(processes, tmp_path):
    processes.start("one", [sys.executable, "-c", PARENT, str(tmp_path / "pids")], os.environ)
    [(first, orphan)] = started(tmp_path / "pids", 1)
    assert processes.pid("one") == first
    os.kill(first, signal.SIGKILL)
    [_, (second, child)] = started(tmp_path / "pids", 2)
    assert second != first
    assert alive(second)
    assert alive(orphan)
    processes.stop()
    assert gone([second, child, orphan])
    assert marked(tmp_path) == []


def test_what_a_killed_predecessor_left_is_ended_and_nobody_else(tmp_path):
    command = f"""
import os, sys, time
from pathlib import Path
from coterie.relay.processes import Processes
command = [sys.executable, "-c", {PARENT!r}, {str(tmp_path / "pids")!r}]
Processes(Path({str(tmp_path)!r})).start("one", command, os.environ)
time.sleep(600)
"""
    first = subprocess.Popen([sys.executable, "-c", command])
    [(pid, child)] = started(tmp_path / "pids", 1)
    first.kill()
    first.wait()
    assert alive(pid)
    # not in it, though it begins alike
    other = tmp_path.with_name(f"{tmp_path.name}-other")
    other.mkdir()
    elsewhere = Processes(other)
    elsewhere.start("two", [sys.executable, "-c", "import time; time.sleep(600)"], os.environ)
    try:
        end_all(tmp_path)
        assert gone([pid, child])
        assert elsewhere.alive("two")
    finally:
        elsewhere.stop()


def test_ports_that_are_free_can_be_listened_at():
    ports = free_ports(5)
    assert len(set(ports)) == 5
    for port in ports:
        with socket.create_server((LOOPBACK, port)):
            pass


def test_one_that_ends_at_once_is_said_with_its_last_words(processes, tmp_path):
    processes.start("brief", [sys.executable, "-c", "print('no such port'); raise SystemExit(3)"], os.environ)
    while processes.alive("brief"):
        time.sleep(0.01)
    with pytest.raises(CoterieError, match="brief ended with code 3: no such port"):
        processes.check_started("brief")
