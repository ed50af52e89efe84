"""Results that were paid for are never lost: signals, failures, full disks, two runs in one folder."""

import errno
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coterie import rundir
from coterie.cli.spec import execution, preparation
from coterie.errors import LocalSolveError
from coterie.rundir import Reserved
from coterie.spending import Spending
from coterie.terminal import stoppable
from coterie.transcript import Transcript

SPEC = """\
[data]
dataset = "heart"
[privacy]
epsilon = 2.0
delta = 1e-5
adjacency = "replace-one"
ledger = "spent.json"
[algorithm]
rounds = 40
"""


@pytest.fixture
def spec(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Spending.create(tmp_path / "spent.json")
    (tmp_path / "spec.toml").write_text(SPEC)
    return tmp_path / "spec.toml"


def charged(spec):
    return len(Spending(path=spec.parent / "spent.json").charges)


def left(folder):
    return {path.name for path in folder.iterdir()} - {"spec.toml", "spent.json", "spent.json.lock", "spent.json.head"}


@pytest.fixture
def during_the_run(monkeypatch):
    """Do something before a given round of the next run."""
    run = execution.run

    def use(at, act):
        def progress(done, total):
            if done >= at:
                act()

        monkeypatch.setattr(execution, "run", lambda *args, **options: run(*args, **{**options, "progress": progress}))

    return use


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_keeps_what_was_released(coterie, spec, during_the_run, number):
    during_the_run(20, lambda: signal.raise_signal(number))
    code, out, told = coterie("run", spec, "--json")
    assert code == 130
    # the block that was under way ends: two rounds
    assert json.loads(out)["rounds"] == 22
    assert "stopped after round 22 of 40: there is no model, and spent.json was charged in full" in told
    assert "everything that was released is kept in spec-run" in told
    assert charged(spec) == 1
    assert left(spec.parent) == {"spec-run"}
    assert coterie("certificate", "verify", spec.parent / "spec-run")[0] == 0


def test_a_signal_in_a_collectors_callback_is_not_swallowed(coterie, spec, during_the_run):
    def in_callback(phase, _):
        if phase == "start":
            gc.callbacks.remove(in_callback)
            signal.raise_signal(signal.SIGINT)

    def collect():
        if not landed:
            landed.append(True)
            gc.callbacks.append(in_callback)
            gc.collect()

    landed = []
    during_the_run(10, collect)
    code, out, _ = coterie("run", spec, "--json")
    assert code == 130
    assert json.loads(out)["rounds"] == 12


def test_a_signal_while_the_result_is_written_costs_nothing(coterie, spec, monkeypatch):
    written = execution.write_text

    def interrupted(path, text):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        written(path, text)

    # what is written before the run begins is not meant
    fill = execution.Outcome.fill

    def patched(self, folder):
        monkeypatch.setattr(execution, "write_text", interrupted)
        fill(self, folder)

    monkeypatch.setattr(execution.Outcome, "fill", patched)
    code, out, told = coterie("run", spec, "--json")
    assert code == 130
    assert json.loads(out)["rounds"] == 40
    assert "asked to stop when it was done" in told
    assert coterie("certificate", "verify", spec.parent / "spec-run")[0] == 0


def test_a_second_signal_stops_at_once(coterie, spec, during_the_run):
    def twice():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    during_the_run(20, twice)
    code, out, _ = coterie("run", spec, "--json")
    assert code == 130
    assert json.loads(out)["rounds"] == 20


BEFORE_THE_CHARGE = """
import signal, sys
from coterie.cli.main import main

class Interrupts:
    def find_spec(self, name, path, target=None):
        if name == "{library}":
            try:
                signal.raise_signal(signal.SIGINT)
            except BaseException:
                print("an exception went through a library that was being loaded", file=sys.stderr)
                raise

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupts())
sys.argv[1:] = ["run", "spec.toml", "--json"]
main()
"""


@pytest.mark.parametrize("library", ["jax", "coterie.spending"])
def test_a_signal_before_the_charge_costs_and_leaves_nothing(spec, library):
    """Where it lands nothing is raised: libraries written in C++ have answered that with a segmentation fault."""
    command = [sys.executable, "-c", BEFORE_THE_CHARGE.format(library=library)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=spec.parent)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "coterie: stopped before anything was charged or released; nothing is kept\n"
    assert charged(spec) == 0
    assert left(spec.parent) == set()


@pytest.mark.parametrize("error", [LocalSolveError("a party could not"), MemoryError(), RuntimeError("XLA: no")])
def test_a_run_that_fails_after_its_charge_leaves_a_log(coterie, spec, during_the_run, error):
    def fail():
        raise error

    during_the_run(20, fail)
    code, out, told = coterie("run", spec, "--json")
    assert (code, out) == (1, "")
    assert told.count("\n") == 1
    assert "its log is in spec-run-failed" in told
    assert charged(spec) == 1
    assert left(spec.parent) == {"spec-run-failed"}
    log = (spec.parent / "spec-run-failed" / "run.log").read_text()
    assert "charged to the ledger spent.json" in log
    assert "failed: " in log
    assert (spec.parent / "spec-run-failed" / "spec.toml").read_text() == SPEC


def test_a_run_over_its_budget_leaves_nothing(coterie, spec):
    (spec.parent / "small.json").unlink(missing_ok=True)
    Spending.create(spec.parent / "small.json", limit=(1.0, 1e-3))
    spec.write_text(SPEC.replace("spent.json", "small.json"))
    assert coterie("run", spec, "--json")[0] == 1
    assert left(spec.parent) == {"small.json"}


def test_a_ledger_is_made_only_when_asked_for(coterie, spec):
    spec.write_text(SPEC.replace("spent.json", "psent.json").replace("rounds = 40", "rounds = 2"))
    code, _, told = coterie("run", spec, "--json")
    assert code == 2
    assert "ledger: none is at" in told
    assert left(spec.parent) == set()
    assert coterie("run", spec, "--json", "--new-ledger")[0] == 0
    assert len(Spending(path=spec.parent / "psent.json").charges) == 1
    assert coterie("run", spec, "--json", "--new-ledger")[0] == 2


def test_a_ledger_that_its_first_charge_would_exceed_is_not_begun(coterie, spec):
    spec.write_text(SPEC.replace('"spent.json"', '"limited.json"\nledger_limit = [0.01, 1e-3]').replace("40", "2"))
    code, _, told = coterie("run", spec, "--json", "--new-ledger")
    assert code == 1
    assert "beyond the limit" in told
    assert left(spec.parent) == set()


def test_a_spec_may_say_the_limit_of_its_ledger(coterie, spec):
    spec.write_text(SPEC.replace('"spent.json"', '"limited.json"\nledger_limit = [3.0, 1e-3]').replace("40", "2"))
    assert coterie("run", spec, "--json", "--new-ledger")[0] == 0
    assert Spending(path=spec.parent / "limited.json").limit == (3.0, 1e-3)
    assert coterie("run", spec, "--json")[0] == 1
    spec.write_text(spec.read_text().replace("[3.0", "[30.0"))
    code, _, told = coterie("run", spec, "--json")
    assert code == 2
    assert "its limit is" in told


def test_a_disk_that_fills_up_at_the_end_loses_nothing(coterie, spec, monkeypatch, tmp_path):
    written = execution.write_text

    def full(path, text):
        if path.name == "summary.json" and path.is_relative_to(tmp_path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written(path, text)

    monkeypatch.setattr(execution, "write_text", full)
    code, _, told = coterie("run", spec, "--out", tmp_path / "full", "--json")
    assert code == 1
    assert "No space left on device); the run is complete in " in told
    kept = Path(told.strip().rsplit(" in ", 1)[1])
    assert coterie("certificate", "verify", kept)[0] == 0
    assert left(tmp_path) == set()


def test_without_a_home_and_a_temporary_folder_there_is_still_memory(monkeypatch):
    def none(kind):
        def found():
            raise kind("there is none")

        return found

    places = [none(FileNotFoundError), none(RuntimeError), lambda: "/dev/shm"]
    monkeypatch.setattr(rundir, "_ELSEWHERE", places)
    kept = rundir.saved_elsewhere("run", lambda folder: (folder / "model").write_text("paid for"))
    assert kept is not None
    assert (kept / "model").read_text() == "paid for"
    shutil.rmtree(kept)
    monkeypatch.setattr(rundir, "_ELSEWHERE", places[:2])
    assert rundir.saved_elsewhere("run", lambda folder: None) is None


@pytest.mark.parametrize("error", [MemoryError(), ValueError("scikit-learn: no")])
@pytest.mark.parametrize("what", ["certificate", "result"])
def test_what_was_released_outlives_a_failure_after_the_last_round(coterie, spec, monkeypatch, what, error):
    def fail(*_, **__):
        raise error

    owner, name = (preparation.Prepared, what) if what == "certificate" else (execution, "result_of")
    monkeypatch.setattr(owner, name, fail)
    code, out, told = coterie("run", spec, "--json")
    assert (code, out) == (1, "")
    assert told.count("\n") == 1
    assert "what was released is in spec-run-failed" in told
    assert charged(spec) == 1
    assert left(spec.parent) == {"spec-run-failed"}
    kept = spec.parent / "spec-run-failed"
    assert Transcript.load(kept / "transcript.npz").n_rounds == 40
    assert (kept / "spec.toml").read_text() == SPEC
    assert "failed: " in (kept / "run.log").read_text()


def test_two_runs_in_one_folder_both_keep_their_results(coterie, spec, during_the_run):
    """The second begins and ends while the first is under way."""
    inner = []

    def second():
        if not inner:
            inner.append(True)
            done = subprocess.run(
                [sys.executable, "-m", "coterie", "run", str(spec), "--json"], capture_output=True, text=True
            )
            inner.append(done)

    during_the_run(4, second)
    code, out, _ = coterie("run", spec, "--json")
    assert code == 0
    assert inner[1].returncode == 0, inner[1].stderr
    assert json.loads(out)["directory"] == "spec-run"
    assert json.loads(inner[1].stdout)["directory"] == "spec-run-2"
    assert charged(spec) == 2
    for name in ("spec-run", "spec-run-2"):
        assert coterie("certificate", "verify", spec.parent / name)[0] == 0
    assert left(spec.parent) == {"spec-run", "spec-run-2"}


def test_a_name_that_another_run_has_reserved_is_refused_before_the_charge(coterie, spec, tmp_path):
    place = Reserved(tmp_path / "results")
    code, _, told = coterie("run", spec, "--out", tmp_path / "results", "--json")
    place.discard()
    assert code == 2
    assert "is being written by another run" in told
    assert charged(spec) == 0


def test_a_killed_run_leaves_its_log_to_the_next_one(coterie, spec):
    killed = subprocess.Popen(
        [sys.executable, "-m", "coterie", "run", str(spec)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    log = spec.parent / ".spec-run.partial" / "run.log"
    try:
        for _ in range(600):
            if log.exists() and "charged" in log.read_text():
                break
            time.sleep(0.1)
    finally:
        killed.kill()
        killed.communicate()
    assert charged(spec) == 1
    spec.write_text(SPEC.replace("rounds = 40", "rounds = 2"))
    code, _, told = coterie("run", spec, "--json")
    assert code == 0
    assert "an earlier run was killed; what it left is in spec-run-failed" in told
    assert left(spec.parent) == {"spec-run", "spec-run-failed"}
    assert "charged to the ledger" in (spec.parent / "spec-run-failed" / "run.log").read_text()


# in a process of its own: JAX, which other tests load, warns of forks
TERMINAL = """
import os, pty, select, sys, time
from pathlib import Path
run, terminal = pty.fork()
if run == 0:
    os.execv(sys.executable, [sys.executable, "-m", "coterie", "run", "spec.toml"])
log = Path(".spec-run.partial", "run.log")
while not (log.exists() and "charged" in log.read_text()):
    select.select([terminal], [], [], 0.1)
os.close(terminal)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(run, 0)[1]))
"""


def test_a_terminal_that_goes_away_keeps_what_was_released(coterie, spec):
    """Its signal stops the run; nothing can be drawn or said any more, and that must not cost the result."""
    many = SPEC.replace("rounds = 40", 'name = "noisy-gradient-descent"\nrounds = 30000')
    spec.write_text(many.replace("ledger", 'trust = "curator"\nledger'))
    done = subprocess.run([sys.executable, "-c", TERMINAL], cwd=spec.parent, timeout=120)
    assert done.returncode == 130
    assert charged(spec) == 1
    assert left(spec.parent) == {"spec-run"}
    assert coterie("certificate", "verify", spec.parent / "spec-run")[0] == 0


def test_the_first_signal_is_noted_and_the_second_is_raised_where_it_lands():
    with stoppable() as stop:
        assert not stop.asked
        signal.raise_signal(signal.SIGINT)
        assert stop.asked
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_an_answer_that_nobody_hears_raises_nothing():
    reading, writing = os.pipe()
    os.close(reading)
    before = os.dup(2)
    os.dup2(writing, 2)
    try:
        with stoppable() as stop:
            stop.answer = "stopping"
            signal.raise_signal(signal.SIGINT)
            assert stop.asked
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(writing)


def test_an_exception_waits_until_the_collectors_callback_is_over(capfd):
    landed = []

    def collect_and_wait():
        gc.collect()
        time.sleep(30)

    def in_callback(*_):
        if not landed:
            landed.append(True)
            signal.raise_signal(signal.SIGINT)

    with stoppable() as stop:
        stop.patience = 0
        gc.callbacks.append(in_callback)
        try:
            with pytest.raises(KeyboardInterrupt):
                collect_and_wait()
        finally:
            gc.callbacks.remove(in_callback)
        assert stop.asked
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_signal_while_handlers_are_put_back_is_neither_lost_nor_in_the_way(monkeypatch, place):
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    before = {number: signal.getsignal(number) for number in numbers}
    put, changed = signal.signal, []

    def interrupted(number, handler):
        if inside and len(changed) == place:
            signal.raise_signal(signal.SIGINT)
        if inside:
            changed.append(number)
        return put(number, handler)

    inside = []
    monkeypatch.setattr(signal, "signal", interrupted)
    with pytest.raises(KeyboardInterrupt), stoppable(*numbers):
        inside.append(True)
    monkeypatch.undo()
    assert {number: signal.getsignal(number) for number in numbers} == before
    with stoppable() as stop:
        assert not stop.asked


def test_a_patience_that_is_set_behind_a_shield_holds_when_the_shield_goes():
    """No signal falls into a gap between what is shielded and what comes of it."""
    with stoppable() as stop:
        stop.patience = 0
        with stop.shielded(), stop.shielded():
            signal.raise_signal(signal.SIGINT)
            stop.patience = 2
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_flags_nest_and_leave_others_handlers_alone():
    before = signal.getsignal(signal.SIGINT)
    with stoppable() as outer:
        with stoppable() as inner:
            signal.raise_signal(signal.SIGINT)
        assert inner is outer
        assert outer.asked
        with outer.shielded():
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stoppable() as stop:
            signal.raise_signal(signal.SIGINT)
        assert not stop.asked
    finally:
        signal.signal(signal.SIGINT, before)
