"""Ranks that are asked to stop do so together, keep what was released, and end with 130."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

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
TELL_AND_RUN = (
    "import os, sys; from mpi4py import MPI\n"
    "open(f'rank-{MPI.COMM_WORLD.rank}', 'w').write(str(os.getpid()))\n"
    "from coterie.cli.main import main; main()"
)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_one_command_stops_all_ranks_and_says_so(coterie, tmp_path, number):
    """Ctrl-C at mpiexec itself would kill them within a quarter of a second."""
    Spending.create(tmp_path / "spent.json")
    (tmp_path / "spec.toml").write_text(SPEC)
    command = [sys.executable, "-m", "coterie", "run", "spec.toml", "--ranks", "2", "--json"]
    job = subprocess.Popen(
        command, cwd=tmp_path, env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        for _ in range(600):
            if Spending(path=tmp_path / "spent.json").charges:
                break
            time.sleep(0.1)
        # until rounds are under way: programs are compiled first
        time.sleep(5)
        job.send_signal(number)
        out, told = job.communicate(timeout=120)
    finally:
        job.kill()
        job.wait()
    assert job.returncode == 130, told
    assert "spent.json was charged in full" in told
    assert json.loads(out)["rounds"] < 100_000
    assert len(Spending(path=tmp_path / "spent.json").charges) == 1
    assert coterie("certificate", "verify", tmp_path / "spec-run")[0] == 0


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (("--ranks", "0"), "--ranks: got 0; an integer >= 1 is needed"),
        (("--ranks", "2", "--engine", "sites"), "--ranks: got 2 with --engine sites; only the engine mpi has ranks"),
        (("--ranks", "5"), "5 processes for 4 parties"),
    ],
)
def test_ranks_that_cannot_be_are_refused_before_anything_is_charged(tmp_path, more, sentence):
    Spending.create(tmp_path / "spent.json")
    (tmp_path / "spec.toml").write_text(SPEC)
    command = [sys.executable, "-m", "coterie", "run", "spec.toml", *more]
    many = {**ENVIRONMENT, "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    done = subprocess.run(command, cwd=tmp_path, env=many, text=True, capture_output=True)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert Spending(path=tmp_path / "spent.json").charges == ()


@pytest.mark.parametrize("rank", [0, 1, None], ids=["the first", "another", "all, by mpiexec"])
def test_ranks_stop_together(coterie, tmp_path, rank):
    Spending.create(tmp_path / "spent.json")
    (tmp_path / "spec.toml").write_text(SPEC)
    mpiexec = shutil.which("mpiexec", path=str(Path(sys.executable).parent))
    command = [mpiexec, "--oversubscribe", "-n", "2", sys.executable, "-c", TELL_AND_RUN, "run", "spec.toml", "--json"]
    job = subprocess.Popen(
        command, cwd=tmp_path, env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        for _ in range(600):
            if Spending(path=tmp_path / "spent.json").charges:
                break
            time.sleep(0.1)
        # until rounds are under way: programs are compiled first
        time.sleep(5)
        if rank is None:
            # which mpiexec hands on
            job.send_signal(signal.SIGUSR1)
        else:
            os.kill(int((tmp_path / f"rank-{rank}").read_text()), signal.SIGINT)
        out, told = job.communicate(timeout=120)
    finally:
        job.kill()
        job.communicate()
    assert job.returncode == 130, told
    assert "spent.json was charged in full" in told
    assert json.loads(out)["rounds"] < 100_000
    assert len(Spending(path=tmp_path / "spent.json").charges) == 1
    assert coterie("certificate", "verify", tmp_path / "spec-run")[0] == 0
