"""What estimators with everything left open reach: Adult beside the best pooled fit, ten classes, and whether trusting
more ever hurts.

    python benchmarks/planner_fits.py adult
    python benchmarks/planner_fits.py digits PACKS
    python benchmarks/planner_fits.py trust PACKS [--only heart cps]

PACKS is the folder that `benchmarks/planner_packs.py` writes; `adult` is of rows as the package's own schema encodes
them, with bends where packs have straight logarithms. 10 seeds; replace-one; delta is 1e-6, or 1e-5 for at most
20,000 records. Means of the test error in % (of numbers, of 1 - R^2) with their standard error over seeds. The best
pooled fit is that of `planner_peers.py`: all records in one place without privacy, the best l2 of five by its test
error. `trust` goes from nobody to pairs of whom a third collude to a curator, among 20 parties at epsilon 1; it hurts
if any of the three has an error above that of one with less trust by more than two standard errors of the difference.
"""

import argparse
import itertools
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from planner_packs import pack as pack_of
from planner_peers import Data as TwoClasses
from planner_peers import best_fit

from coterie import PrivateLogisticRegression, PrivateRidge, load_adult
from coterie.data.federation import INTERCEPT_SHARE

SEEDS = range(10)
EPSILONS = (0.5, 1.0, 2.0, 4.0)
NOBODY: dict[str, Any] = {"trust": "none"}
CURATOR: dict[str, Any] = {"trust": "curator"}


class Pack(NamedTuple):
    """Rows as estimators take them, norm 1 at most, without the constant column; `n_classes` is 0 of numbers."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    n_classes: int
    delta: float

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> "Pack":
        X, X_test = (arrays[name][:, :-1] * math.hypot(1, INTERCEPT_SHARE) for name in ("X", "X_test"))
        return cls(X, arrays["y"], X_test, arrays["y_test"], int(arrays["n_classes"]), float(arrays["delta"]))

    @classmethod
    def read(cls, path: Path) -> "Pack":
        with np.load(path) as arrays:
            return cls.of(arrays)


class Measured(NamedTuple):
    """Mean over seeds and its standard error."""

    error: float
    spread: float

    def __str__(self) -> str:
        return f"{100 * self.error:.2f} ± {100 * self.spread:.2f}"


def pairs(n_parties: int) -> dict[str, Any]:
    return {"trust": "pairs", "colluders": (n_parties - 1) // 3}


def fitted(pack: Pack, epsilon: float, n_parties: int, trusted: dict[str, Any]) -> Measured:
    parties = None if n_parties == 1 else [f"party {place % n_parties}" for place in range(len(pack.y))]
    errors = [_error(pack, seed, parties, epsilon=epsilon, **trusted) for seed in SEEDS]
    return Measured(float(np.mean(errors)), float(np.std(errors, ddof=1) / math.sqrt(len(errors))))


def _error(pack: Pack, seed: int, parties: list[str] | None, **promise: Any) -> float:
    common = {"delta": pack.delta, "adjacency": "replace-one", "bounds": 1.0, "random_state": seed, **promise}
    if pack.n_classes == 0:
        numbers = PrivateRidge(label_bound=1.0, **common).fit(pack.X, pack.y, parties=parties)
        return float(np.mean((numbers.predict(pack.X_test) - pack.y_test) ** 2) / np.var(pack.y_test))
    classes = tuple(range(pack.n_classes))
    model = PrivateLogisticRegression(classes=classes, **common).fit(pack.X, pack.y.astype(int), parties=parties)
    return float(np.mean(model.predict(pack.X_test) != pack.y_test))


# --- tables -----------------------------------------------------------------------------------------------------------


def show_adult() -> None:
    data = load_adult()
    arrays = pack_of(data.X, data.y == data.labels[1], data.train, data.test, 2)
    pack = Pack.of(arrays)
    rows = (arrays[name].astype(float) for name in ("X", "y", "X_test", "y_test"))
    best = best_fit(TwoClasses("adult", *rows, pack.delta)).error
    print(f"best pooled fit: {100 * best:.2f}\n\n| | ε | error | excess |\n|---|---|---|---|", flush=True)
    for words, n_parties, trusted, epsilon in (
        ("one noise", 1, {}, 1.0),
        ("one noise", 1, {}, 4.0),
        ("5 parties, nobody trusted", 5, NOBODY, 1.0),
        ("100 parties, pairs, 33 collude", 100, pairs(100), 1.0),
    ):
        found = fitted(pack, epsilon, n_parties, trusted)
        print(f"| {words} | {epsilon:g} | {found} | {100 * (found.error - best):.2f} |", flush=True)


def show_digits(packs: Path) -> None:
    pack = Pack.read(packs / "digits.npz")
    print("| | " + " | ".join(f"ε = {epsilon:g}" for epsilon in EPSILONS) + " |\n|---|---|---|---|---|", flush=True)
    for words, n_parties, trusted in (
        ("one noise", 1, {}),
        ("5 parties, pairs, 1 colludes", 5, pairs(5)),
        ("5 parties, nobody trusted", 5, NOBODY),
    ):
        found = [fitted(pack, epsilon, n_parties, trusted) for epsilon in EPSILONS]
        print(f"| {words} | " + " | ".join(map(str, found)) + " |", flush=True)


def show_trust(packs: Path, only: list[str] | None, n_parties: int = 20, epsilon: float = 1.0) -> None:
    print("| data | nobody | pairs | a curator | hurts |\n|---|---|---|---|---|", flush=True)
    for path in sorted(packs.glob("*.npz"), key=lambda path: path.stat().st_size):
        if only and path.stem not in only:
            continue
        pack = Pack.read(path)
        found = [fitted(pack, epsilon, n_parties, trusted) for trusted in (NOBODY, pairs(n_parties), CURATOR)]
        hurts = any(
            more.error - less.error > 2 * math.hypot(more.spread, less.spread)
            for less, more in itertools.combinations(found, 2)
        )
        print(f"| {path.stem} | " + " | ".join(map(str, found)) + f" | {'yes' if hurts else 'no'} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=("adult", "digits", "trust"))
    parser.add_argument("packs", type=Path, nargs="?", help="needed by digits and trust")
    parser.add_argument("--only", nargs="+", help="data sets of the table on trust")
    options = parser.parse_args()
    if options.table != "adult" and options.packs is None:
        parser.error(f"PACKS is needed for {options.table}")
    warnings.simplefilter("ignore")
    if options.table == "adult":
        show_adult()
    elif options.table == "digits":
        show_digits(options.packs)
    else:
        show_trust(options.packs, options.only)


if __name__ == "__main__":
    main()
