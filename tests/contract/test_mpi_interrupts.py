"""Ranks that are asked to stop do so together, keep what was released, and end with 130; nobody is left waiting."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coterie.relay.processes import marked
from coterie.spending import Spending

ENVIRONMENT = {
    **os.environ,
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}
SPEC = """\
[data]
dataset = "heart"
[privacy]
epsilon = 2.0
delta = 1e-5
adjacency = "replace-one"
trust = "curator"
ledger = "spent.json"
[algorithm]
name = "noisy-gradient-descent"
rounds = 100000
[engine]
name = "mpi"
"""
# each rank says who it is, and that it has read its data; the second one is late with what comes then
TELL_AND_RUN = """
import os, sys, time
from pathlib import Path
from mpi4py import MPI
from coterie.cli import spec

rank, late = MPI.COMM_WORLD.rank, float(sys.argv.pop(1))
prepare = spec.prepare

def prepare_and_wait(*content):
    prepared = prepare(*content)
    Path(f"rank-{rank}.new").write_text(str(os.getpid()))
    Path(f"rank-{rank}.new").rename(f"rank-{rank}")
    time.sleep(late * rank)
    return prepared

spec.prepare = prepare_and_wait
from coterie.cli.main import main
main()
"""
NOTHING = "coterie: stopped before anything was charged or released; nothing is kept"


def wait_for(condition):
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Spending.create(Path("spent.json"))
    Path("spec.toml").write_text(SPEC)
    # where all that is started for it can be found again
    Path("temporary").mkdir()
    return tmp_path


def charges():
    return len(Spending(path=Path("spent.json")).charges)


@contextlib.contextmanager
def started(command):
    env = {**ENVIRONMENT, "TMPDIR": str(Path("temporary").absolute())}
    job = subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        yield job
    finally:
        job.kill()
        job.communicate()


def one_command(*more):
    return started([sys.executable, "-m", "coterie", "run", "spec.toml", "--ranks", "2", "--json", *more])


def by_mpiexec(late=0.0):
    mpiexec = shutil.which("mpiexec", path=str(Path(sys.executable).parent))
    ranks = [sys.executable, "-c", TELL_AND_RUN, str(late), "run", "spec.toml", "--json"]
    return started([mpiexec, "--oversubscribe", "-n", "2", *ranks])


def ended(job):
    """What it said, and that it said what it has done."""
    out, told = job.communicate(timeout=120)
    assert job.returncode == 130, told
    return out, told


def check_kept(coterie, out, told):
    assert "spent.json was charged in full" in told
    assert json.loads(out)["rounds"] < 100_000
    assert charges() == 1
    assert coterie("certificate", "verify", "spec-run")[0] == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_one_command_stops_all_ranks_and_says_so(coterie, place, number):
    """Ctrl-C at mpiexec itself would kill them within a quarter of a second."""
    with one_command() as job:
        wait_for(charges)
        job.send_signal(number)
        check_kept(coterie, *ended(job))
    assert marked(place / "temporary") == []
    assert list((place / "temporary").glob("coterie-ranks-*")) == []


@pytest.mark.parametrize("seconds", [0.0, 0.3, 1.0, 2.0, 3.0, 4.0])
def test_whenever_it_is_asked_it_stops_before_the_charge_or_keeps_what_was_paid_for(coterie, place, seconds):
    """Also while mpiexec is about to start them, and twice in a row."""
    with one_command() as job:
        # or Python itself is not ready for a signal
        wait_for(lambda: list((place / "temporary").glob("coterie-ranks-*")))
        time.sleep(0.05 + seconds)
        job.send_signal(signal.SIGINT)
        out, told = ended(job)
    if charges():
        check_kept(coterie, out, told)
    else:
        assert out == ""
        assert not list(place.glob("spec-run*"))
    assert marked(place / "temporary") == []


@pytest.mark.parametrize("rank", [0, 1, None], ids=["the first", "another", "all, by mpiexec"])
def test_nothing_is_charged_when_anybody_is_asked_before_all_are_ready(place, rank):
    with by_mpiexec(late=3.0) as job:
        wait_for(lambda: all(Path(f"rank-{k}").exists() for k in (0, 1)))
        # the first would have charged by now if it waited for nobody
        time.sleep(1.0)
        stop(job, rank)
        out, told = ended(job)
    assert (out, charges(), told.count(NOTHING)) == ("", 0, 1)
    assert not list(place.glob(".spec-run*"))


@pytest.mark.parametrize("rank", [0, 1, None], ids=["the first", "another", "all, by mpiexec"])
def test_ranks_stop_together(coterie, place, rank):
    with by_mpiexec() as job:
        wait_for(charges)
        stop(job, rank)
        check_kept(coterie, *ended(job))


def stop(job, rank):
    if rank is None:
        # which mpiexec hands on
        job.send_signal(signal.SIGUSR1)
    else:
        os.kill(int(Path(f"rank-{rank}").read_text()), signal.SIGINT)


def test_asked_twice_they_stop_at_once_and_leave_a_log(place):
    with by_mpiexec() as job:
        wait_for(charges)
        first = int(Path("rank-0").read_text())
        for _ in range(2):
            os.kill(first, signal.SIGINT)
            # or the two would be one
            time.sleep(0.002)
        _, told = ended(job)
    assert charges() == 1
    kept = list(place.glob("spec-run*"))
    assert [path.name for path in kept] in (["spec-run"], ["spec-run-failed"]), told
    assert (kept[0] / "run.log").exists()


def test_with_a_checkpoint_the_same_command_goes_on(coterie, place):
    Path("spec.toml").write_text(SPEC.replace("100000", "2000") + 'checkpoint = "state"\ncheckpoint_every = 10\n')
    with one_command() as job:
        wait_for(charges)
        job.send_signal(signal.SIGTERM)
        out, told = ended(job)
    assert out == ""
    assert "the same command goes on" in told
    with one_command() as job:
        out, told = job.communicate(timeout=300)
        assert job.returncode == 0, told
    assert json.loads(out)["rounds"] == 2000
    assert charges() == 1
    assert coterie("certificate", "verify", "spec-run")[0] == 0


def test_nothing_is_left_running_when_the_command_is_killed(place):
    with one_command() as job:
        wait_for(charges)
        # the command's guard, mpiexec and two ranks
        assert len(marked(place / "temporary")) >= 3
        job.kill()
        wait_for(lambda: marked(place / "temporary") == [] and not list(place.glob("temporary/coterie-ranks-*")))
    assert charges() == 1


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (("--ranks", "0"), "--ranks: got 0; an integer >= 1 is needed"),
        (("--ranks", "2", "--engine", "sites"), "--ranks: got 2 with --engine sites; only the engine mpi has ranks"),
        (("--ranks", "5"), "5 processes for 4 parties"),
    ],
)
def test_ranks_that_cannot_be_are_refused_before_anything_is_charged(place, more, sentence):
    command = [sys.executable, "-m", "coterie", "run", "spec.toml", *more]
    many = {**ENVIRONMENT, "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    done = subprocess.run(command, env=many, text=True, capture_output=True)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert charges() == 0
