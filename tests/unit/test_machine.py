"""Compiled programs are read from folders that nobody else can write to, and from no others; workers end in time."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coterie import machine
from coterie.machine import cache_folder, processor


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir(mode=0o755)
    return tmp_path / "cache"


def test_the_whole_path_is_the_owners_alone(home):
    folder = cache_folder("xla")
    assert folder == home.resolve() / "coterie" / "xla" / processor()
    for own in (folder, folder.parent, folder.parent.parent):
        assert own.stat().st_mode & 0o777 == 0o700


def test_folders_that_others_could_read_are_closed(home):
    folder = cache_folder("xla")
    (home / "coterie").chmod(0o755)
    assert cache_folder("xla") == folder
    assert (home / "coterie").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("part", ["coterie", "coterie/numba", "processor", "."])
@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_folders_that_others_could_write_to_are_not_used(home, part, mode):
    folder = cache_folder("numba")
    place = folder if part == "processor" else home / part
    place.chmod(mode)
    assert cache_folder("numba") is None
    assert place.stat().st_mode & 0o777 == mode


def test_a_folder_of_somebody_else_is_not_used(home, monkeypatch):
    assert cache_folder("xla") is not None
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert cache_folder("xla") is None


def test_a_link_in_place_of_a_folder_is_not_used(home, tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (home / "coterie").symlink_to(tmp_path / "elsewhere")
    assert cache_folder("xla") is None


@pytest.mark.parametrize("said", [None, "", "cache", "~/cache"])
def test_nothing_is_kept_for_somebody_without_a_home(tmp_path, monkeypatch, said):
    """Such as users of a container that no list of users knows: no folder called ~ is made where they are."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if said is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", said)
    assert cache_folder("xla") is None
    assert not list(tmp_path.iterdir())


def test_the_size_is_bounded_and_the_oldest_go_first(home, monkeypatch):
    monkeypatch.setattr(machine, "LARGEST", 250)
    folder = cache_folder("xla")
    machine._keep_bounded.cache_clear()
    for age, name in enumerate(("new", "older", "oldest")):
        (folder / name).write_bytes(bytes(100))
        os.utime(folder / name, (10**9 - age, 10**9 - age))
    assert cache_folder("xla") == folder
    assert {path.name for path in folder.iterdir()} == {"new", "older"}


STARTER = """
import multiprocessing, sys, time
from concurrent.futures import ProcessPoolExecutor
from coterie.machine import end_with_parent

if __name__ == "__main__":
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=end_with_parent)
    pool.submit(time.sleep, 60)
    while not pool._processes:
        time.sleep(0.01)
    print(*pool._processes, flush=True)
    time.sleep(60)
"""


def test_a_worker_ends_with_whoever_started_it(tmp_path):
    (tmp_path / "starter.py").write_text(STARTER)
    with subprocess.Popen([sys.executable, tmp_path / "starter.py"], stdout=subprocess.PIPE, text=True) as starter:
        worker = int(starter.stdout.readline())
        starter.kill()
    end = time.monotonic() + 30
    while Path(f"/proc/{worker}/cmdline").exists() and Path(f"/proc/{worker}/cmdline").read_bytes():
        assert time.monotonic() < end, "it still runs"
        time.sleep(0.05)
