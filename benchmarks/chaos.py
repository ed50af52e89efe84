"""Kill and interrupt `coterie run` at random moments, and look whether a charge or a result was lost.

python benchmarks/chaos.py [--times 30] [--seed 0]

Every run charges one ledger. Afterwards: the ledger is whole, has as many charges as runs that were charged, a run that
was charged and could speak left a directory that verifies, and one that was killed left its log to the next run.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from coterie.cli.spec.verification import verify_path
from coterie.errors import InputError
from coterie.spending import Spending

SPEC = """\
[data]
dataset = "heart"
[privacy]
epsilon = 0.5
delta = 1e-7
adjacency = "replace-one"
ledger = "spent.json"
[algorithm]
rounds = 400
"""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)


class Chaos:
    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.folder, self.rng = folder, rng
        self.ledger = folder / "spent.json"
        Spending.create(self.ledger)
        (folder / "spec.toml").write_text(SPEC)
        self.found: Counter[str] = Counter()
        self.faults: list[str] = []

    def start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "coterie", "run", "spec.toml", "--json"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, cwd=self.folder, text=True, **pipes)

    def undisturbed(self) -> float:
        began = time.perf_counter()
        _, told = self.start().communicate(timeout=120)
        if told:
            raise SystemExit(f"an undisturbed run says: {told}")
        return time.perf_counter() - began

    def disturbed(self, longest: float) -> None:
        charges, before = len(Spending(path=self.ledger).charges), self.directories()
        number, delay = self.rng.choice(SIGNALS), self.rng.uniform(0.05, longest)
        run = self.start()
        time.sleep(delay)
        # by the id of a process that was started here
        run.send_signal(number)
        try:
            out, told = run.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            run.kill()
            run.communicate()
            self.fault(number, delay, "it went on for a minute")
            return
        self.judge(number, delay, run.returncode, out, told, charges, before)

    def judge(self, number: int, delay: float, code: int, out: str, told: str, charges: int, before: set[str]) -> None:
        charged = len(Spending(path=self.ledger).charges) - charges
        new = sorted(name for name in self.directories() - before if "-failed" not in name)
        outcome = f"{signal.Signals(number).name}: exit {code}, {charged} charged, {len(new)} written"
        self.found[outcome] += 1
        # before the command is reached Python says by itself that it was interrupted
        unexpected = "Traceback" in told and (charged or code != -signal.SIGINT)
        if charged not in (0, 1) or unexpected:
            self.fault(number, delay, f"{outcome}: {told[-300:]}")
        if code in (0, 130) and out and (charged, len(new)) != (1, 1):
            self.fault(number, delay, f"{outcome}, and it said {out}")
        if code in (0, 130) and charged and not new:
            self.fault(number, delay, f"{outcome}: what was paid for is lost: {told}")
        # Python ends by the signal before and after the command, and by SIGINT where an exception of that name went
        # through code that Python was asked to execute by others; a shell calls that 130
        if code not in (0, 130, -signal.SIGINT, -number):
            self.fault(number, delay, f"{outcome}: {told[-300:]}")
        for name in new:
            try:
                verify_path(self.folder / name)
            except InputError as error:
                self.fault(number, delay, f"{outcome}: {error}")

    def directories(self) -> set[str]:
        return {path.name for path in self.folder.glob("spec-run*")}

    def fault(self, number: int, delay: float, what: str) -> None:
        self.faults.append(f"{signal.Signals(number).name} after {delay:.2f} s: {what}")

    def last_words(self) -> None:
        """One more run; with it everything that was charged must be in a directory or have left its log."""
        self.start().communicate(timeout=120)
        logs = [path / "run.log" for path in self.folder.glob("spec-run*")]
        kept = sum("charged to the ledger" in log.read_text() for log in logs if log.exists())
        charges = len(Spending(path=self.ledger).charges)
        # a run that is killed between its charge and the first line of its log has released nothing
        if not charges - self.found_killed() <= kept <= charges:
            self.faults.append(f"{charges} charges, but {kept} logs tell of one")

    def found_killed(self) -> int:
        return sum(n for name, n in self.found.items() if name.startswith("SIGKILL") and "1 charged, 0 written" in name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--times", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        chaos = Chaos(Path(folder), random.Random(options.seed))
        chaos.undisturbed()
        longest = chaos.undisturbed()
        for _ in range(options.times):
            chaos.disturbed(longest)
        chaos.last_words()
        result = {"times": options.times, "seconds_undisturbed": round(longest, 1), "found": dict(chaos.found)}
        print(json.dumps({**result, "faults": chaos.faults}, indent=1))
    sys.exit(1 if chaos.faults else 0)


if __name__ == "__main__":
    main()
