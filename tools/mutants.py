"""Change one line of what states or keeps a privacy loss, run the tests that should notice, and list what survives.

python tools/mutants.py [--sample 60 | --each 8 | --all] [--seed 0] [--only privacy/events.py ...] [--seconds 600]
                        [--workers 2] [--json FILE]

A mutant changes one operator, number, comparison, condition or refusal. It is run in a copy of the sources, in a forked
process that has everything but the package loaded already, against tests of its own source file, up to the first
failure or until it has computed for several times as long as those tests take without any mutant. mutmut and cosmic-ray
start the whole suite anew for every mutant, minutes each here. Survivors that docs/mutants.md argues away are counted
apart; any other one makes the exit status 1.
"""

import argparse
import ast
import dataclasses
import hashlib
import importlib
import json
import multiprocessing
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "coterie"
ARGUED = ROOT / "docs" / "mutants.md"
# seconds of computing for tests without any mutant: on a busy machine the clock says nothing
LONGEST = 600
# a mutant computes for so many times as long as its tests do without it, and this besides, before it has timed out
TIMES, BESIDES = 3, 20
# times that, by the clock, for one that waits and does not compute
WAIT = 10
# loaded once, before any fork: whatever the package or its tests import, but not the package
PRELOADED = (
    "jax.numpy",
    "numpy",
    "scipy.special",
    "scipy.stats",
    "sklearn.linear_model",
    "dp_accounting.rdp",
    "mpmath",
    "cryptography.hazmat.primitives.ciphers",
    "jax.scipy.linalg",
    "jax.scipy.special",
    "msgpack",
    "numba",
    "pytest",
    "rich.table",
    "scipy.optimize",
    "scipy.sparse.linalg",
    "typer",
)

# which tests should notice a change of which file, the quickest first; what compiles much is left out, so that a
# survivor may still be caught by `make test`
ACCOUNTING = ("golden/test_prices.py", "unit/test_solver_error.py", "golden/test_accounting.py")
DOORS = ("leaks/test_release_door.py", "unit/test_grid.py")
LEDGER = ("unit/test_ledger.py", "unit/test_ledger_files.py")
SITE = ("sites/test_site.py", "sites/test_fuzz.py")
PEOPLE = ("contract/test_people_native.py", "contract/test_people_engine.py")
# of the second tier: all of their tests are slow ones, which are left out elsewhere
SLOW = {"contract/test_mpi_engine.py", *PEOPLE, "contract/test_interrupted_runs.py", "unit/test_native_minimiser.py"}
TESTS: dict[str, tuple[str, ...]] = {
    "privacy/events.py": (*ACCOUNTING, "property/test_token_walk.py", "leaks/test_mutant_views.py"),
    "privacy/accountants.py": ACCOUNTING,
    "privacy/composition.py": ("golden/test_prices.py", "golden/test_composition.py", "unit/test_ledger.py"),
    "privacy/mechanisms.py": (
        *ACCOUNTING,
        "unit/test_evaluation.py",
        "unit/test_steps_of_grants.py",
        *DOORS,
        "statistical/test_release_noise.py",
    ),
    "privacy/objective.py": ACCOUNTING,
    "privacy/proximal.py": ("unit/test_steps_of_grants.py", *ACCOUNTING, *DOORS),
    "privacy/image.py": (*ACCOUNTING, "unit/test_steps_of_grants.py", "property/test_fixed_point_views.py"),
    "privacy/release.py": DOORS,
    "privacy/noise.py": (
        "golden/test_prices.py",
        "unit/test_sampling.py",
        "golden/test_quantile.py",
        "statistical/test_noise.py",
    ),
    "values.py": (
        "unit/test_checks.py",
        "unit/test_serialise.py",
        "unit/test_schedules.py",
        "unit/test_data_federation.py",
        "unit/test_data_schema.py",
    ),
    "plan.py": (
        "unit/test_rounds.py",
        "golden/test_accounting.py",
        "unit/test_views.py",
        "unit/test_limits.py",
        "unit/test_certificate.py",
    ),
    "evaluation.py": ("unit/test_evaluation.py", "unit/test_charges.py"),
    "privacy/pairs.py": ("golden/test_prices.py", "unit/test_pairs.py"),
    "spending.py": ("unit/test_spending.py", "unit/test_spending_files.py", "unit/test_charges.py"),
    "ledger/ledger.py": LEDGER,
    "ledger/entries.py": LEDGER,
    "ledger/pages.py": ("unit/test_ledger_pages.py", *LEDGER),
    "engines/rounds.py": (
        "unit/test_rounds.py",
        "statistical/test_release_noise.py",
        "leaks/test_every_door.py",
        "sites/test_parity.py",
    ),
    "engines/checkpoint.py": ("unit/test_checkpoint.py", "unit/test_charges.py"),
    "network/channels.py": (
        "unit/test_selection.py",
        "unit/test_pairs.py",
        "unit/test_grid.py",
        "statistical/test_release_noise.py",
    ),
    "privacy/moments.py": ("unit/test_moments.py",),
    "privacy/standardising.py": ("unit/test_standardising.py",),
    "privacy/for_engines.py": ("leaks/test_every_door.py", *PEOPLE),
    "engines/moments.py": ("unit/test_moments.py", "unit/test_inference.py"),
    "engines/own_steps.py": (*SITE, "sites/test_parity.py"),
    "engines/mpi.py": ("contract/test_mpi_engine.py",),
    "engines/people.py": PEOPLE,
    "native/draws.py": ("unit/test_sampling.py", "golden/test_quantile.py", *PEOPLE),
    "native/moves.py": PEOPLE,
    "native/vectors.py": ("unit/test_native_minimiser.py", *PEOPLE),
    "site/site.py": (*SITE, "sites/test_parity.py"),
    "site/envelope.py": ("sites/test_envelope.py",),
    "site/messages.py": SITE,
    "site/policy.py": SITE,
    "site/proposal.py": SITE,
    "site/records.py": ("sites/test_records.py", *SITE),
    "site/rounds.py": (*SITE, "sites/test_parity.py"),
    "site/store.py": (*SITE, "sites/test_failures.py"),
    "site/coordinator.py": (*SITE, "sites/test_failures.py", "sites/test_parity.py"),
    "site/sockets.py": ("sites/test_serve.py", "relay/test_hub.py"),
    "relay/hub.py": ("relay/test_hub.py",),
    "relay/processes.py": ("unit/test_processes.py", "relay/test_guard.py"),
    "relay/certificates.py": ("relay/test_flower_kit.py", "relay/test_nvflare_kit.py"),
    "keys.py": ("sites/test_envelope.py", *SITE),
    "terminal.py": ("contract/test_interrupted_runs.py",),
}

_SWAPPED = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.Pow: "*", ast.FloorDiv: "/",
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.And: "or", ast.Or: "and",
}  # fmt: skip
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "ceil": "floor", "floor": "ceil"}


@dataclasses.dataclass(frozen=True)
class Mutant:
    file: str
    line: int
    before: str
    after: str
    source: str = dataclasses.field(repr=False, compare=False)

    @property
    def row(self) -> str:
        """As it stands in the table of survivors."""
        return " | ".join(_cell(text) for text in (self.file, self.before, self.after))


def _cell(text: str) -> str:
    return f"`{text}`".replace("|", "\\|")


def mutants_of(file: str) -> Iterator[Mutant]:
    text = (PACKAGE / file).read_text()
    lines = text.splitlines(keepends=True)
    begins = [0]
    for line in lines:
        begins.append(begins[-1] + len(line.encode()))
    content = text.encode()
    tree = ast.parse(text)
    _without_what_decides_nothing(tree)

    def place(line: int, column: int) -> int:
        return begins[line - 1] + column

    for node in ast.walk(tree):
        for start, end, new in _changes(node, content, place):
            changed = content[:start] + new.encode() + content[end:]
            # one line: what a reader of the list can judge at a glance
            number = content[:start].count(b"\n")
            before, after = lines[number].strip(), changed.decode().splitlines()[number].strip()
            if content.count(b"\n") == changed.count(b"\n") and before != after:
                yield Mutant(file, number + 1, before, after, changed.decode())


def _without_what_decides_nothing(tree: ast.AST) -> None:
    """Types, and what `Literal` lists; the numbers in a sentence; how long is waited, how much a cache holds, how far a
    file is indented, and how often an interval is halved: more of that is slower, and nothing else. A length that is
    left to NumPy or JAX, for which any negative number stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            node.values = []
        if isinstance(node, ast.AnnAssign):
            node.annotation = _nothing()
        elif isinstance(node, ast.FunctionDef):
            node.returns = None
            for argument in (*node.args.args, *node.args.kwonlyargs):
                argument.annotation = None
        elif isinstance(node, ast.Assign):
            # how long something waits, by the house's way of naming it; a tolerance decides
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            if len(names) == len(node.targets) and all(re.search(r"(?<!TOLERANCE)_S$", name) for name in names):
                node.value = _nothing()
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "reshape":
            node.args = [_nothing() if isinstance(length, ast.UnaryOp) else length for length in node.args]
        elif isinstance(node, ast.keyword) and node.arg in ("maxsize", "indent"):
            node.value = _nothing()
        elif isinstance(node, ast.For) and isinstance(node.target, ast.Name) and node.target.id == "_":
            # what does not look at its number is repeated until it no longer changes
            numbers = node.iter.args if isinstance(node.iter, ast.Call) else [node.iter]
            node.iter = _nothing() if all(isinstance(number, ast.Constant) for number in numbers) else node.iter


def _nothing() -> ast.Constant:
    return ast.Constant(value=None, lineno=1, col_offset=0, end_lineno=1, end_col_offset=0)


def _changes(node: ast.AST, content: bytes, place) -> Iterator[tuple[int, int, str]]:
    """(start, end, what to put there), in bytes."""

    def between(left: ast.expr, right: ast.expr) -> tuple[int, int]:
        return place(left.end_lineno, left.end_col_offset), place(right.lineno, right.col_offset)

    def whole(found: ast.AST) -> tuple[int, int]:
        return place(found.lineno, found.col_offset), place(found.end_lineno, found.end_col_offset)  # type: ignore[attr-defined]

    def operator(left: ast.expr, right: ast.expr, kind: ast.AST) -> Iterator[tuple[int, int, str]]:
        signs = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**", ast.FloorDiv: "//",
                 ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
                 ast.And: "and", ast.Or: "or"}  # fmt: skip
        if type(kind) not in _SWAPPED:
            return
        start, end = between(left, right)
        gap, sign = content[start:end].decode(), signs[type(kind)]
        if gap.count(sign) == 1:
            at = start + gap.index(sign)
            yield at, at + len(sign), _SWAPPED[type(kind)]

    if isinstance(node, ast.BinOp):
        if not any(isinstance(side, ast.Constant) and isinstance(side.value, str) for side in (node.left, node.right)):
            yield from operator(node.left, node.right, node.op)
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield from operator(node.left, node.comparators[0], node.ops[0])
    elif isinstance(node, ast.BoolOp):
        for left, right in zip(node.values, node.values[1:], strict=False):
            yield from operator(left, right, node.op)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        start, end = whole(node)
        yield start, end, content[start:end].decode().removeprefix("not ")
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        start, end = whole(node)
        new = {0: "1", 1: "2", 2: "1"}.get(node.value, f"(2 * {node.value!r})")
        yield start, end, new
    elif isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in _NAMES:
            end = place(node.func.end_lineno, node.func.end_col_offset)
            yield end - len(name), end, _NAMES[name]
    elif isinstance(node, ast.If) and all(isinstance(step, ast.Raise) for step in node.body):
        start, end = whole(node.test)
        if content[start:end].count(b"\n") == 0:
            yield start, end, "False"


# --- running ---------------------------------------------------------------------------------------------------------


# of this process: where its copy of the sources is
_SOURCES = Path()


def _copy_sources(folder: Path) -> None:
    global _SOURCES
    _SOURCES = Path(tempfile.mkdtemp(dir=folder)) / "src"
    shutil.copytree(PACKAGE, _SOURCES / "coterie", ignore=shutil.ignore_patterns("__pycache__"))


def verdict_on(mutant: Mutant) -> str:
    """ "caught", "survived" or "timed out"."""
    file = _SOURCES / "coterie" / mutant.file
    longest = TIMES * _seconds_without(TESTS[mutant.file]) + BESIDES
    original = file.read_text()
    file.write_text(mutant.source)
    try:
        return _outcome(TESTS[mutant.file], longest)[0]
    finally:
        file.write_text(original)


def _seconds_without(tests: tuple[str, ...]) -> float:
    """Of computing that tests take on the sources as they are, where they have to pass."""
    known = _SOURCES.parents[1] / hashlib.sha256(" ".join(tests).encode()).hexdigest()
    if not known.exists():
        outcome, seconds = _outcome(tests, LONGEST)
        if outcome != "survived":
            told = (_SOURCES / "told.txt").read_text()[-3000:]
            raise SystemExit(f"tests fail without any mutant: {' '.join(tests)}\n{told}")
        known.write_text(str(seconds))
    return float(known.read_text())


def _outcome(tests: tuple[str, ...], longest: float) -> tuple[str, float]:
    """What became of the tests in a process of their own, and the seconds that it computed."""
    child = os.fork()
    if child == 0:
        _run_tests(_SOURCES, tests, int(longest))
    deadline = time.monotonic() + WAIT * longest
    while time.monotonic() < deadline:
        done, status, used = os.wait4(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            outcome = {0: "survived", -signal.SIGXCPU: "timed out"}.get(code, "caught")
            return outcome, used.ru_utime + used.ru_stime
        time.sleep(0.02)
    # the group of the process that was forked here
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "timed out", longest


def _run_tests(sources: Path, tests: tuple[str, ...], longest: int) -> None:
    """In a process of its own, which does not come back."""
    code = 1
    try:
        os.setpgid(0, 0)
        spent = int(time.process_time())
        resource.setrlimit(resource.RLIMIT_CPU, (spent + longest, spent + longest + 5))
        os.chdir(ROOT)
        told = os.open(sources / "told.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(told, stream)
        # no bytecode: a copy that changes within a second would be taken for the one before
        sys.dont_write_bytecode = True
        # a compiled program is known by what it does, so that mutants share all but the one they change
        programs = str(sources.parents[1] / "programs")
        os.environ.update(PYTHONPATH=str(sources), PYTHONDONTWRITEBYTECODE="1", COTERIE_TEST_PROGRAMS=programs)
        sys.path.insert(0, str(sources))
        import pytest

        options = ["-x", "-q", "-p", "no:cacheprovider", "-n", "0"]
        if not SLOW & set(tests):
            options += ["-m", "not slow"]
        code = int(pytest.main([*options, *(str(ROOT / "tests" / test) for test in tests)]))
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def tried(mutants: list[Mutant], workers: int, end: float) -> Iterator[tuple[Mutant, str]]:
    """Mutants and verdicts on them as they come in; none is begun after `end`."""
    waiting, under_way = iter(mutants), dict[Future[str], Mutant]()
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), _copy_sources, (Path(folder),)) as pool,
    ):
        while True:
            while len(under_way) < workers and time.monotonic() < end and (mutant := next(waiting, None)) is not None:
                under_way[pool.submit(verdict_on, mutant)] = mutant
            if not under_way:
                return
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                yield under_way.pop(future), future.result()


def argued() -> set[str]:
    """Rows of the table of survivors, without their reasons."""
    rows = (line.strip().strip("|").strip() for line in ARGUED.read_text().splitlines() if line.startswith("| `"))
    return {row.rsplit(" | ", 1)[0] for row in rows}


def chosen(options: argparse.Namespace) -> list[Mutant]:
    files = [file for file in TESTS if not options.only or any(word in file for word in options.only)]
    found = [mutant for file in files for mutant in mutants_of(file)]

    def drawn(mutant: Mutant) -> str:
        """By its own words, so that a change of one file does not draw others of all."""
        return hashlib.sha256(f"{options.seed} {mutant.row}".encode()).hexdigest()

    order = sorted(found, key=drawn)
    if options.each is not None:
        # so many of every file, one file after the other as long as it has some
        of_file = {file: [mutant for mutant in order if mutant.file == file][: options.each] for file in files}
        return [some[k] for k in range(options.each) for some in of_file.values() if k < len(some)]
    return order if options.all else order[: options.sample]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sample", type=int, default=60, help="so many, drawn with the seed")
    parser.add_argument("--each", type=int, help="so many of every file instead")
    parser.add_argument("--all", action="store_true", help="every mutant there is: hours")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[], help="parts of names of source files")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing after that")
    parser.add_argument("--workers", type=int, default=2, help="processes at a time")
    parser.add_argument("--json", type=Path, help="where to write what was found")
    parser.add_argument("--list", action="store_true", help="say which mutants there are, and run nothing")
    options = parser.parse_args()
    mutants = chosen(options)
    if options.list:
        for file, number in Counter(mutant.file for mutant in mutants).items():
            print(f"{number:5} {file}")
        return
    for name in PRELOADED:
        importlib.import_module(name)
    known, found, counts, began = argued(), [], Counter(), time.monotonic()
    for mutant, verdict in tried(mutants, options.workers, began + options.seconds):
        if verdict == "survived" and mutant.row in known:
            verdict = "argued"
        found.append((mutant, verdict))
        if verdict in ("survived", "timed out"):
            print(f"{verdict}: | {mutant.row} |  (line {mutant.line}, {len(found)} of {len(mutants)})", flush=True)
        counts = Counter(verdict for _, verdict in found)
        if options.json is not None:
            rows = [{"file": m.file, "before": m.before, "after": m.after, "verdict": v} for m, v in found]
            options.json.write_text(json.dumps({"counts": counts, "mutants": rows}, indent=1) + "\n")
    print(f"{len(found)} mutants in {time.monotonic() - began:.0f} s: {dict(counts)}")
    sys.exit(1 if counts["survived"] else 0)


if __name__ == "__main__":
    main()
