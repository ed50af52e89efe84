"""How big the house is, and how far one walks in it.

    python tools/house.py [--files]

Lines and modules of every room of the package; how many of its files and functions `coterie run` on an example and an
estimator's `fit` pass through (by name with --files); and how many of its calls lie between the engine's `run` and the
first line of an algorithm. Every walk is a process of its own, watched by `sys.setprofile`.
"""

import argparse
import inspect
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "coterie"
STUDY = ROOT / "examples" / "heart.toml"


def rooms() -> tuple[Counter[str], Counter[str]]:
    """Lines and modules: of every package in the package, and of the modules that lie beside them."""
    lines: Counter[str] = Counter()
    modules: Counter[str] = Counter()
    for path in PACKAGE.rglob("*.py"):
        first, *rest = path.relative_to(PACKAGE).parts
        room = first if rest else "(modules)"
        lines[room] += len(path.read_text(encoding="utf-8").splitlines())
        modules[room] += 1
    return lines, modules


# --- walks, each in a process of its own ------------------------------------------------------------------------------


class Watch:
    """The files and functions of the package that are entered."""

    def __init__(self) -> None:
        self.functions: set[tuple[str, str]] = set()
        # from the engine's run to an algorithm's local
        self.hops: tuple[int, int] | None = None

    def __call__(self, frame, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(str(PACKAGE)) or code.co_name.startswith("<"):
            return
        # the body of a class, entered when it is imported
        if not code.co_flags & inspect.CO_OPTIMIZED:
            return
        self.functions.add((code.co_filename, code.co_qualname))
        if self.hops is None and code.co_name == "local" and Path(code.co_filename).parent.name == "algorithms":
            self.hops = _hops(frame)

    def told(self) -> dict[str, Any]:
        files = Counter(str(Path(file).relative_to(PACKAGE)) for file, _ in self.functions)
        return {"files": files, "hops": self.hops}


def _hops(frame) -> tuple[int, int] | None:
    """Calls of the package and calls of anybody; None where it is the plan that looks at the flow of information."""
    ours = anybody = 0
    while frame is not None:
        code = frame.f_code
        if code.co_name == "check_flow":
            return None
        if code.co_filename == str(PACKAGE / "engines" / "in_process.py") and code.co_name == "run":
            return ours, anybody
        ours += code.co_filename.startswith(str(PACKAGE))
        anybody += 1
        frame = frame.f_back
    return None


def run_study() -> None:
    from coterie.cli.main import main

    sys.argv = ["coterie", "run", str(STUDY), "--out", "out"]
    main()


def fit() -> None:
    import numpy as np

    import coterie

    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4))
    y = np.where(X @ rng.normal(size=4) > 0, "yes", "no")
    model = coterie.PrivateLogisticRegression(epsilon=1.0, delta=1e-6, adjacency="replace-one", classes=("no", "yes"))
    model.fit(X, y, parties=np.arange(300) % 3)


WALKS = {"coterie run": run_study, "fit": fit}


def watch(walk: str, told: Path) -> None:
    watcher = Watch()
    threading.setprofile(watcher)
    sys.setprofile(watcher)
    try:
        WALKS[walk]()
    except SystemExit as done:
        if done.code:
            raise
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    told.write_text(json.dumps(watcher.told()), encoding="utf-8")


def walked(walk: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        told = Path(directory) / "told.json"
        paths = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
        command = [sys.executable, __file__, "--walk", walk, "--told", str(told)]
        environment = {**os.environ, "PYTHONPATH": paths}
        subprocess.run(command, cwd=directory, env=environment, check=True, stdout=subprocess.DEVNULL)
        return json.loads(told.read_text(encoding="utf-8"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", action="store_true", help="name the files, with how many of their functions run")
    parser.add_argument("--walk", choices=WALKS, help=argparse.SUPPRESS)
    parser.add_argument("--told", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.walk:
        watch(arguments.walk, arguments.told)
        return
    lines, modules = rooms()
    for room, count in lines.most_common():
        print(f"{room:14} {count:6,} lines {modules[room]:4} modules")
    print(f"{'all':14} {lines.total():6,} lines {modules.total():4} modules")
    for walk in WALKS:
        found = walked(walk)
        files = Counter(found["files"])
        print(f"{walk}: {len(files)} files, {files.total()} functions, {_told(found['hops'])}")
        if arguments.files:
            for file, functions in sorted(files.items()):
                print(f"    {file:34} {functions:4} functions")


def _told(hops: tuple[int, int] | None) -> str:
    if hops is None:
        return "run does not come to an algorithm's local"
    return f"from run to an algorithm's local {hops[0]} calls of the package ({hops[1]} with those of libraries)"


if __name__ == "__main__":
    main()
