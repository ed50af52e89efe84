"""Stopwatch of the quickstart: a clean clone, a table with semicolons, blanks and a category that nobody listed, and
its report in a browser. Prints the table for docs/quickstart.md.

    python tools/stopwatch.py [--extras sklearn,report]

Everything happens in a new folder that is removed at the end, with the commands and files of docs/quickstart.md as they
stand there; packages come from wherever pip gets them. Waiting is measured, and beside it what the processor did, which
is what waiting comes to where nothing else runs. Typing is not measured: it is counted, as the characters of commands
and of lines that are not in the draft which `schema make` wrote, at `TYPED_PER_MINUTE`. Reading is left out. Needs git
and chromium.
"""

import argparse
import dataclasses
import difflib
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
TYPED_PER_MINUTE = 200
BLOCK = re.compile(r"^```(bash|toml)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BROWSER = ("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000", "--dump-dom")


@dataclasses.dataclass(frozen=True)
class Took:
    waited_s: float
    worked_s: float

    def __add__(self, other: "Took") -> "Took":
        return Took(self.waited_s + other.waited_s, self.worked_s + other.worked_s)


class Step(NamedTuple):
    what: str
    took: Took
    typed: int


def typed_into(old: str, new: str) -> int:
    """Characters of lines that somebody has to write to make the new text of the old."""
    lines = difflib.ndiff(old.splitlines(), new.splitlines())
    return sum(len(line) - 1 for line in lines if line.startswith("+ "))


def worked_so_far() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def timed(command: list[str], folder: Path, environment: dict[str, str], *, refused: bool = False) -> tuple[Took, str]:
    started, worked = time.perf_counter(), worked_so_far()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    took = Took(time.perf_counter() - started, worked_so_far() - worked)
    if done.returncode != (2 if refused else 0):
        sys.exit(f"{shlex.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    print(f"{took.waited_s:7.1f} s  {shlex.join(command)}", file=sys.stderr, flush=True)
    return took, done.stdout


def install(folder: Path, extras: str) -> tuple[list[Step], Path, dict[str, str]]:
    """A clone, and an environment that has nothing of this one."""
    plain = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    clone = folder / "coterie"
    took, _ = timed(["git", "clone", "--quiet", f"file://{ROOT}", str(clone)], folder, plain)
    steps = [Step("`git clone`, from a disk", took, len("git clone https://example.org/coterie"))]
    made, _ = timed([sys.executable, "-m", "venv", str(clone / ".venv")], clone, plain)
    binaries = clone / ".venv" / "bin"
    wanted = f".[{extras}]" if extras else "."
    command = ["pip", "install", "--quiet", "--constraint", "constraints.txt", wanted]
    took, _ = timed([str(binaries / "python"), "-m", *command], clone, plain)
    steps.append(Step(f"an environment and `pip install '{wanted}'`", made + took, len(shlex.join(command)) + 60))
    return steps, clone, {**plain, "PATH": f"{binaries}:{plain['PATH']}"}


def follow(page: str, clone: Path, environment: dict[str, str]) -> list[Step]:
    """The page's commands and files, in order; what prepares the environment has been done."""
    steps = []
    for language, title, text in BLOCK.findall(page):
        if language == "toml":
            path = clone / title
            old = (clone / "draft.toml") if title == "schema.toml" and not path.exists() else path
            typed = typed_into(old.read_text(encoding="utf-8") if old.exists() else "", text)
            path.write_text(text, encoding="utf-8")
            steps.append(Step(f"`{title}` in an editor", Took(0.0, 0.0), typed))
            continue
        for line in text.splitlines():
            command, _, remark = line.partition("  # ")
            if command.startswith(("coterie ", "python ")):
                took, _ = timed(shlex.split(command), clone, environment, refused=remark.startswith("refused"))
                steps.append(Step(f"`{command}`", took, len(command)))
    return steps


def opened(report: Path, environment: dict[str, str]) -> Step:
    if shutil.which("chromium") is None:
        sys.exit("chromium is needed: apt-get install chromium")
    with tempfile.TemporaryDirectory() as profile:
        command = [*BROWSER, f"--user-data-dir={profile}", report.resolve().as_uri()]
        took, shown = timed(command, report.parent, environment)
    if "majority class" not in shown or "<svg" not in shown:
        sys.exit("the browser showed no result")
    return Step("`report.html` in the browser", took, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--extras", default="", help="of the package that are installed, by commas")
    options = parser.parse_args()
    cores, (load, _, _) = os.cpu_count(), os.getloadavg()
    with tempfile.TemporaryDirectory(prefix="coterie-stopwatch-") as name:
        steps, clone, environment = install(Path(name), options.extras)
        page = (clone / "docs" / "quickstart.md").read_text(encoding="utf-8")
        steps += follow(page, clone, environment)
        steps.append(opened(clone / "study-run" / "report.html", environment))
    steps.append(Step("all", sum((step.took for step in steps), Took(0.0, 0.0)), sum(step.typed for step in steps)))
    print(f"{time.strftime('%-d %B %Y')}, {cores} cores, load {load:.0f} at the start\n")
    print("| | waiting, s | of which the processor worked, s | typing, s |\n|---|---|---|---|")
    for step in steps:
        typing_s = step.typed * 60 / TYPED_PER_MINUTE
        print(f"| {step.what} | {step.took.waited_s:.1f} | {step.took.worked_s:.1f} | {typing_s:.0f} |")


if __name__ == "__main__":
    main()
