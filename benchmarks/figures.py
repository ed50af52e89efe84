"""What benchmarks have in common: figures with targets, laps of a run, and programs in a process of their own.

Every benchmark has `measure(quick)`, which returns a dictionary with a list of figures under "figures", and prints it
as JSON with `--json`; `bench.py` reads that.
"""

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from typing import Any

# the unit of two things measured side by side: what a noisy machine leaves comparable
RATIO = "x"


@dataclasses.dataclass(frozen=True)
class Figure:
    name: str
    value: float
    unit: str
    at_least: float | None = None
    at_most: float | None = None

    @property
    def met(self) -> bool | None:
        """None without a target."""
        if self.at_least is None and self.at_most is None:
            return None
        return (self.at_least is None or self.value >= self.at_least) and (
            self.at_most is None or self.value <= self.at_most
        )

    @property
    def target(self) -> str:
        ends = [f"{sign} {end:g}" for sign, end in ((">=", self.at_least), ("<=", self.at_most)) if end is not None]
        return ", ".join(ends)

    @property
    def less_is_better(self) -> bool:
        return self.at_least is None and self.at_most is not None

    def row(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "met": self.met}

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> "Figure":
        return cls(**{field.name: row[field.name] for field in dataclasses.fields(cls)})


class Laps:
    """The `progress` of a run: seconds a round, without the first block of rounds, in which programs are compiled."""

    def __init__(self) -> None:
        self.times, self.rounds = [], []

    def __call__(self, done: int, _: int) -> None:
        self.times.append(time.perf_counter())
        self.rounds.append(done)

    @property
    def each(self) -> list[float]:
        pairs = zip(self.times, self.times[1:], self.rounds, self.rounds[1:], strict=False)
        return [(after - before) / (end - start) for before, after, start, end in pairs][1:]

    @property
    def fastest(self) -> float:
        """The least disturbed block: rounds all do the same work."""
        return min(self.each)

    @property
    def median(self) -> float:
        return statistics.median(self.each)

    @property
    def mean(self) -> float:
        return (self.times[-1] - self.times[1]) / (self.rounds[-1] - self.rounds[1])


@dataclasses.dataclass(frozen=True)
class Finished:
    output: str
    seconds: float
    peak_gb: float


def in_new_process(command: list[str], environment: dict[str, str] | None = None) -> Finished:
    """Standard output, seconds and peak resident memory; start it before anything big is in memory here, because
    Linux lets a child begin with its parent's peak."""
    with tempfile.TemporaryFile("w+") as output:
        started = time.perf_counter()
        child = subprocess.Popen(command, stdout=output, env={**os.environ, **(environment or {})})
        _, status, used = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - started
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise SystemExit(f"{' '.join(command)} failed with code {child.returncode}")
        output.seek(0)
        # Linux counts in KiB
        return Finished(output.read(), seconds, used.ru_maxrss * 1024 / 1e9)


def main(
    measure: Callable[..., dict], doc: str | None, tell: Callable[[dict], str], options: tuple[str, ...] = ()
) -> None:
    """The command line of a benchmark; `options` are whole numbers that `measure` takes."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a smaller scale, seconds instead of minutes")
    parser.add_argument("--json", action="store_true")
    for name in options:
        parser.add_argument(f"--{name}", type=int)
    arguments = parser.parse_args()
    result = measure(arguments.quick, **{name: getattr(arguments, name) for name in options})
    if arguments.json:
        print(json.dumps(result, indent=1))
        return
    print(tell(result))
    print(table([Figure.from_row(row) for row in result["figures"]]))


def table(figures: list[Figure], more: dict[str, str] | None = None) -> str:
    """Aligned lines; `more` adds a word to a figure by its name."""
    rows = [("figure", "value", "unit", "target", "met", "")]
    for f in figures:
        met = {None: "", True: "yes", False: "NO"}[f.met]
        rows.append((f.name, f"{f.value:.4g}", f.unit, f.target, met, (more or {}).get(f.name, "")))
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    lines = (
        f"{row[0]:{widths[0]}}  {row[1]:>{widths[1]}} {row[2]:{widths[2]}}  {row[3]:{widths[3]}}  "
        f"{row[4]:{widths[4]}}  {row[5]}"
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)
