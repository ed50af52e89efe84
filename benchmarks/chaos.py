"""Kill and interrupt `coterie run` in every phase, and look whether a charge or a result was lost.

python benchmarks/chaos.py [--times 200] [--seed 0]

Every run charges one ledger; every fourth has a checkpoint and is started again until it is done, every eighth has two
ranks. Afterwards: the ledger is whole; nothing was charged twice, and nothing was released that was not charged; a run
that was charged and could speak left a directory that verifies, one with a checkpoint came to its end, and one that was
killed left its log to the next run; nothing is left running.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from coterie.cli.spec.verification import verify_path
from coterie.errors import InputError
from coterie.relay.processes import marked
from coterie.spending import Spending

SPEC = """\
[data]
dataset = "heart"
[privacy]
epsilon = 0.5
delta = 1e-7
adjacency = "replace-one"
trust = "curator"
ledger = "spent.json"
[algorithm]
name = "noisy-gradient-descent"
rounds = {rounds}
"""
SPECS = {
    "spec": SPEC.format(rounds=2000),
    "saved": SPEC.format(rounds=100) + '[engine]\nname = "mpi"\ncheckpoint = "state"\ncheckpoint_every = 7\n',
    "ranks": SPEC.format(rounds=2000),
}
# Open MPI's, for more than one process
MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_mpi_yield_when_idle": "1"}
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
PHASES = ("start", "charge", "rounds", "writing", "end")
# seconds
JUST_AFTER = 0.02
# until a guard has ended what a command that was killed had started
GUARDED = 30


class Chaos:
    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.folder, self.rng = folder, rng
        self.ledger = folder / "spent.json"
        Spending.create(self.ledger)
        # where everything that is started for a run can be found again
        (folder / "temporary").mkdir()
        self.env = {**os.environ, **MPI, "TMPDIR": str(folder / "temporary")}
        for name, text in SPECS.items():
            (folder / f"{name}.toml").write_text(text)
        self.longest = {name: self._undisturbed(name) for name in SPECS}
        self.found: Counter[str] = Counter()
        self.phases: Counter[str] = Counter()
        # after a charge
        self.killed = 0
        self.faults: list[str] = []

    def start(self, name: str) -> subprocess.Popen[str]:
        more = ["--ranks", "2"] if name == "ranks" else []
        command = [sys.executable, "-m", "coterie", "run", f"{name}.toml", "--json", *more]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, cwd=self.folder, env=self.env, text=True, **pipes)

    def _undisturbed(self, name: str) -> float:
        # the first one compiles
        for _ in range(2):
            began = time.perf_counter()
            _, told = self.start(name).communicate(timeout=300)
            if told:
                raise SystemExit(f"an undisturbed run says: {told}")
        return time.perf_counter() - began

    @property
    def charges(self) -> int:
        return len(Spending(path=self.ledger).charges)

    def directories(self) -> set[str]:
        runs = (path for name in SPECS for path in self.folder.glob(f"{name}-run*"))
        return {path.name for path in runs if "-failed" not in path.name}

    def wait_for(self, phase: str, run: subprocess.Popen[str], name: str) -> None:
        """Until the run is in that phase, or over."""
        longest, size = self.longest[name], self.ledger.stat().st_size
        happened: Callable[[], bool] = lambda: True  # noqa: E731
        delay = self.rng.uniform(0, JUST_AFTER)
        if phase == "start":
            delay = self.rng.uniform(0.05, 0.6 * longest)
        elif phase == "end":
            delay = self.rng.uniform(0.9, 1.1) * longest
        elif phase == "writing":
            happened = lambda: self.is_writing(name)  # noqa: E731
        else:
            happened = lambda: self.ledger.stat().st_size != size  # noqa: E731
            delay = delay if phase == "charge" else self.rng.uniform(0, 0.4 * longest)
        deadline = time.monotonic() + 60
        while not happened() and run.poll() is None and time.monotonic() < deadline:
            time.sleep(0.0005)
        time.sleep(delay)

    def is_writing(self, name: str) -> bool:
        try:
            return any(self.folder.glob(f".{name}-run*.partial/*transcript.npz*"))
        except FileNotFoundError:
            # its folder got its last name while it was looked into
            return True

    def disturbed(self, k: int) -> None:
        name = "saved" if k % 4 == 0 else "ranks" if k % 8 == 3 else "spec"
        phase, number = PHASES[k % len(PHASES)], self.rng.choice(SIGNALS)
        charges, before = self.charges, self.directories()
        run = self.start(name)
        self.wait_for(phase, run, name)
        # by the id of a process that was started here
        run.send_signal(number)
        try:
            out, told = run.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            run.kill()
            run.communicate()
            self.fault(number, phase, "it went on for a minute")
            return
        self.phases[phase] += 1
        end = time.monotonic() + GUARDED
        while marked(self.folder / "temporary"):
            if time.monotonic() > end:
                self.fault(number, phase, "something is left running")
                break
            time.sleep(0.01)
        if name == "saved":
            self.go_on(number, phase, run.returncode, told, charges, before)
        else:
            self.judge(name, number, phase, run.returncode, out, told, charges, before)

    def judge(
        self, name: str, number: int, phase: str, code: int, out: str, told: str, charges: int, before: set[str]
    ) -> None:
        charged, new = self.charges - charges, sorted(self.directories() - before)
        kind = "two ranks, " if name == "ranks" else ""
        outcome = f"{kind}{signal.Signals(number).name}: exit {code}, {charged} charged, {len(new)} written"
        self.found[outcome] += 1
        self.killed += charged and not new and number == signal.SIGKILL
        # before the command is reached Python says by itself that it was interrupted
        unexpected = "Traceback" in told and (charged or code != -signal.SIGINT)
        if charged not in (0, 1) or unexpected:
            self.fault(number, phase, f"{outcome}: {told[-300:]}")
        if new and charged != 1:
            self.fault(number, phase, f"{outcome}: released and not charged")
        if code in (0, 130) and out and (charged, len(new)) != (1, 1):
            self.fault(number, phase, f"{outcome}, and it said {out}")
        if code in (0, 130) and charged and not new:
            self.fault(number, phase, f"{outcome}: what was paid for is lost: {told}")
        # Python ends by the signal before and after the command, and by SIGINT where an exception of that name went
        # through code that Python was asked to execute by others; a shell calls that 130
        if code not in (0, 130, -signal.SIGINT, -number):
            self.fault(number, phase, f"{outcome}: {told[-300:]}")
        self.verify(number, phase, new)

    def go_on(self, number: int, phase: str, code: int, told: str, charges: int, before: set[str]) -> None:
        """The same command once more, unless the run came to its end: one charge in all, and one result."""
        over = bool(self.directories() - before) and not (self.folder / "state").exists()
        if not over:
            again = self.start("saved")
            try:
                _, told = again.communicate(timeout=300)
            except subprocess.TimeoutExpired:
                again.kill()
                _, told = again.communicate()
                self.fault(number, phase, "it goes on for more than five minutes")
            if again.returncode != 0:
                self.fault(number, phase, f"it does not go on: {told[-300:]}")
        charged, new = self.charges - charges, sorted(self.directories() - before)
        what = "done before" if over else "gone on"
        outcome = f"with a checkpoint, {signal.Signals(number).name}: exit {code}, {what}, {charged} charged"
        self.found[outcome] += 1
        if charged != 1 or not new:
            self.fault(number, phase, f"{outcome}, {len(new)} written: {told[-300:]}")
        if (self.folder / "state").exists():
            self.fault(number, phase, f"{outcome}: the checkpoint is still there")
        self.verify(number, phase, new)

    def verify(self, number: int, phase: str, new: list[str]) -> None:
        for name in new:
            try:
                verify_path(self.folder / name)
            except InputError as error:
                self.fault(number, phase, f"{name}: {error}")

    def fault(self, number: int, phase: str, what: str) -> None:
        self.faults.append(f"{signal.Signals(number).name} in phase {phase}: {what}")
        # at once: a trial of an hour may be stopped
        print(self.faults[-1], file=sys.stderr, flush=True)

    def last_words(self) -> None:
        """One more run of each; with them all that was charged must be in a directory or have left its log."""
        for name in SPECS:
            self.start(name).communicate(timeout=300)
        logs = [path / "run.log" for name in SPECS for path in self.folder.glob(f"{name}-run*")]
        kept = sum("charged to the ledger" in log.read_text() for log in logs if log.exists())
        # their logs begin anew
        gone_on = sum(n for outcome, n in self.found.items() if "gone on" in outcome)
        # a run that is killed between its charge and the first line of its log has released nothing
        if kept < self.charges - self.killed - gone_on:
            self.faults.append(f"{self.charges} charges, but {kept} logs tell of one")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    # a shell ignores Ctrl-C on behalf of what it runs in the background, and so would every run that is started here
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as folder:
        chaos = Chaos(Path(folder), random.Random(options.seed))
        for k in range(options.times):
            chaos.disturbed(k)
            if (k + 1) % 20 == 0:
                print(f"{k + 1} of {options.times}, {len(chaos.faults)} faults", file=sys.stderr, flush=True)
        chaos.last_words()
        seconds = {name: round(longest, 1) for name, longest in chaos.longest.items()}
        result = {"times": options.times, "seconds_undisturbed": seconds, "phases": dict(chaos.phases)}
        print(json.dumps({**result, "found": dict(sorted(chaos.found.items())), "faults": chaos.faults}, indent=1))
    sys.exit(1 if chaos.faults else 0)


if __name__ == "__main__":
    main()
