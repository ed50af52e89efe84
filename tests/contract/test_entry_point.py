"""`python -m coterie`, `--verbose`, a log file, and errors of every kind in one sentence."""

import os
import subprocess
import sys

import pytest

from coterie.cli import cite

SPEC = '[data]\ndataset = "heart"\n[privacy]\nepsilon = 2.0\ndelta = 1e-5\nadjacency = "replace-one"\n'


def test_the_package_can_be_executed():
    done = subprocess.run([sys.executable, "-m", "coterie", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()[0]) == (0, "coterie")


ERRORS = [
    (MemoryError(), 1),
    (RecursionError("maximum recursion depth exceeded"), 2),
    (PermissionError(13, "Permission denied", "/somewhere"), 1),
    (OSError(28, "No space left on device"), 1),
    (ZeroDivisionError("float\ndivision"), 1),
]


@pytest.mark.parametrize(("error", "expected"), ERRORS, ids=[type(error).__name__ for error, _ in ERRORS])
def test_every_error_is_one_sentence(coterie, monkeypatch, error, expected):
    def fail(*_):
        raise error

    monkeypatch.setattr(cite.json, "dumps", fail)
    code, out, told = coterie("cite", "--json")
    assert (code, out) == (expected, "")
    assert told.startswith("coterie: ")
    assert told.count("\n") == 1
    assert "Traceback" in coterie("--verbose", "cite", "--json")[2]


def test_a_closed_pipe_is_no_traceback():
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "coterie", "cite", "--json"], stdout=write, stderr=subprocess.PIPE, text=True
    )
    os.close(write)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


# streams that are closed before Python begins, as for what a daemon starts
CLOSED = """
import os, sys
for number in map(int, sys.argv[1]):
    os.close(number)
os.execv(sys.executable, [sys.executable, "-m", "coterie", *sys.argv[2:]])
"""


def test_closed_streams_cost_no_result_and_nothing_is_said_into_a_file(coterie, tmp_path):
    (tmp_path / "spec.toml").write_text(SPEC + "[algorithm]\nrounds = 2\n")
    command = [sys.executable, "-c", CLOSED, "012", "run", "spec.toml", "--out", "run"]
    assert subprocess.run(command, cwd=tmp_path, timeout=120).returncode == 0
    assert coterie("certificate", "verify", tmp_path / "run")[0] == 0


def test_a_run_that_cannot_be_told_says_where_it_is(coterie, tmp_path, monkeypatch):
    (tmp_path / "spec.toml").write_text(SPEC + "[algorithm]\nrounds = 2\n")
    with open("/dev/full", "w") as full, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", full)
        code, _, told = coterie("run", tmp_path / "spec.toml", "--out", tmp_path / "run", "--json")
    assert code == 1
    assert f"the run is complete in {tmp_path / 'run'}, but standard output cannot be written" in told
    assert coterie("certificate", "verify", tmp_path / "run")[0] == 0


def test_what_happens_when_is_said_to_whoever_asks(coterie, tmp_path):
    (tmp_path / "spec.toml").write_text(SPEC + "[algorithm]\nrounds = 2\n")
    told = coterie("--verbose", "run", tmp_path / "spec.toml", "--out", tmp_path / "a", "--json")[2]
    assert "2 of 2 rounds released" in told
    log = tmp_path / "log.txt"
    code, _, told = coterie("--log-file", log, "run", tmp_path / "spec.toml", "--out", tmp_path / "b", "--json")
    assert (code, told) == (0, "")
    assert "2 of 2 rounds released" in log.read_text()
    assert coterie("--log-file", tmp_path / "no" / "log.txt", "cite")[0] == 2
    assert coterie("cite", "--json")[2] == ""
