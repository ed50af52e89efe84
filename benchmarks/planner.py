"""Is the planner honest on data it has not seen? Regret, bands and usefulness, each data set left out in turn.

    python benchmarks/planner.py                     tables from benchmarks/results/planner_grid.npz
    python benchmarks/planner.py --steeper           what forecast.STEEPER would be without each of the data sets
    python benchmarks/planner.py --trust             whether trusting more ever hurts
    python benchmarks/planner.py --limit             what no planner that knows sizes and noise alone can better
    python benchmarks/planner.py --fit               the shapes of forecast.py, from the same file
    python benchmarks/planner_grid.py DATA OUT       every setting in every cell, on a machine with a GPU
    python benchmarks/planner.py --collect OUT DATA  its means, as benchmarks/results/planner_grid.npz

216 settings of noised gradient descent were run on thirteen public data sets (`planner_sweep.py` repeats the algorithm)
at 28 levels of noise: those of 1, 5, 20 and 100 parties, epsilon of 0.5, 1, 2 and 4, nobody trusted, pairs of whom a
third collude, a curator. DATA has one .npz a data set, as `planner_packs.py` writes them: X and X_test (rows of the
design, the constant column last, norm 1 at most), y and y_test, n_classes (0: a number), noises. 20 seeds, 60 of small
data sets. Hindsight takes the best setting of every cell by one half of the seeds and is measured on the other, by
error and by AUC separately. The planner is given n, d, the number of classes and the noise, and the shapes of the other
twelve. `usual` is the one setting that is best on average over the other twelve.
"""

import argparse
import itertools
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

from coterie import forecast
from coterie.forecast import Setting, Shape, Task
from coterie.network.channels import PairwiseSum
from coterie.privacy.accountants import gaussian_multiplier

STORED = Path(__file__).parent / "results" / "planner_grid.npz"
GRID = tuple(itertools.product(forecast.REACHES, forecast.RIDGES, forecast.PACES, (False, True)))
PLAIN = np.array([not point[3] for point in GRID])
# of what the best fit gains
USEFUL = 0.5


class Results(NamedTuple):
    """Of one data set. `first`, `second`: (levels, settings, 3), means over halves of the seeds of error (1 - R^2), AUC
    and loss."""

    first: np.ndarray
    second: np.ndarray
    noises: np.ndarray
    n: int
    d: int
    n_classes: int
    trivial_error: float

    def task(self, level: int) -> Task:
        noise, slope = float(self.noises[level]), math.sqrt(2) if self.n_classes > 2 else 1.0
        return Task(
            n_records=self.n,
            n_columns=self.d,
            n_classes=self.n_classes,
            noise=noise / self.n,
            column_noise=math.sqrt(6) / 2 * noise / slope / self.n,
            smoothness={0: 1.0, 2: 0.25}.get(self.n_classes, 0.5),
        )

    @property
    def hindsight(self) -> tuple[np.ndarray, np.ndarray]:
        """Error and AUC by level, chosen on one half and measured on the other."""
        error = np.take_along_axis(self.second[..., 0], self.first[..., 0].argmin(axis=1)[:, None], axis=1)[:, 0]
        if self.n_classes != 2:
            return error, np.full_like(error, np.nan)
        places = self.first[..., 1].argmax(axis=1)[:, None]
        return error, np.take_along_axis(self.second[..., 1], places, axis=1)[:, 0]

    def gain(self, values: np.ndarray) -> np.ndarray:
        """Over the trivial model, by (..., 3) values."""
        if self.n_classes == 2:
            return values[..., 1] - 0.5
        return (1.0 if self.n_classes == 0 else 1 - 1 / self.n_classes) - values[..., 0]


def stored() -> dict[str, Results]:
    with np.load(STORED) as file:
        names = sorted({key.split(":")[0] for key in file.files})
        return {
            name: Results(
                *(file[f"{name}:means"].astype(float)),
                file[f"{name}:noises"],
                *(int(value) for value in file[f"{name}:facts"][:3]),
                float(file[f"{name}:facts"][3]),
            )
            for name in names
        }


def collect(out: Path, packs: Path) -> None:
    kept = {}
    for path in sorted(out.glob("*.npz")):
        grid, data = np.load(path), np.load(packs / path.name)
        half = grid["grid"].shape[2] // 2
        means = [grid["grid"][:, :, part].mean(axis=2) for part in (slice(half), slice(half, None))]
        y, n_classes = data["y_test"], int(data["n_classes"])
        trivial = 1.0 if n_classes == 0 else 1 - np.bincount(y.astype(int)).max() / len(y)
        kept[f"{path.stem}:means"] = np.array(means, np.float32)
        kept[f"{path.stem}:noises"] = grid["noises"]
        kept[f"{path.stem}:facts"] = np.array([len(data["y"]), data["X"].shape[1], n_classes, trivial])
    np.savez_compressed(STORED, **kept)


def settings_of(task: Task) -> list[Setting]:
    return [forecast.make_setting(task, *point) for point in GRID]


# --- honesty ----------------------------------------------------------------------------------------------------------


class Cell(NamedTuple):
    name: str
    n_classes: int
    regret: float
    auc_regret: float
    usual_regret: float
    usual_auc_regret: float
    over_trivial: float
    in_band: bool
    auc_in_band: bool
    useful: bool
    said_useful: bool


def usual_setting(results: dict[str, Results], left_out: str, allowed: np.ndarray) -> int:
    """The one with the least mean regret over the other data sets, in the units of the planner's own."""
    lost = np.zeros(len(GRID))
    for name, other in results.items():
        if name != left_out:
            for level in range(len(other.noises)):
                auc = other.first[level, :, 1] if other.n_classes == 2 else np.full(len(GRID), np.nan)
                lost += forecast.regrets(forecast.Expected(other.first[level, :, 0], auc)) / len(other.noises)
    return int(np.argmin(np.where(allowed, lost, np.inf)))


def cells(results: dict[str, Results], allowed: np.ndarray, every: int) -> list[Cell]:
    found = []
    places = np.flatnonzero(allowed)
    for name, own in results.items():
        shapes = [shape for other, shape in forecast.SHAPES.items() if other != name]
        error, auc = own.hindsight
        usual = usual_setting(results, name, allowed)
        best = max(own.gain(own.first[level]).max() for level in range(len(own.noises)))
        for level in range(0, len(own.noises), every):
            task = own.task(level)
            settings = [settings_of(task)[place] for place in places]
            chosen, _ = forecast.choose(task, settings, forecast.with_steeper(shapes))
            outlook = forecast.outlooks(task, [settings[chosen]], shapes)[0]
            place = places[chosen]
            seen = (own.first[level, place] + own.second[level, place]) / 2
            found.append(
                Cell(
                    name,
                    own.n_classes,
                    own.second[level, place, 0] - error[level],
                    auc[level] - own.second[level, place, 1] if own.n_classes == 2 else math.nan,
                    own.second[level, usual, 0] - error[level],
                    auc[level] - own.second[level, usual, 1] if own.n_classes == 2 else math.nan,
                    seen[0] - own.trivial_error,
                    outlook.error[0] <= seen[0] <= outlook.error[2],
                    outlook.auc is None or outlook.auc[0] <= seen[1] <= outlook.auc[2],
                    bool(own.gain(seen) >= USEFUL * best),
                    outlook.useful,
                )
            )
    return found


def show(found: list[Cell]) -> None:
    print("| data | cells | regret, points: mean | worst | AUC: mean | worst | usual: points | AUC | over trivial |")
    print("|---|---|---|---|---|---|---|---|---|")
    groups = {name: [cell for cell in found if cell.name == name] for name in dict.fromkeys(c.name for c in found)}
    groups["**two classes or more**"] = [cell for cell in found if cell.n_classes]
    for name, own in groups.items():
        error = 100 * np.array([cell.regret for cell in own])
        auc = np.array([cell.auc_regret for cell in own if cell.n_classes == 2])
        usual = 100 * np.mean([cell.usual_regret for cell in own])
        usual_auc = [cell.usual_auc_regret for cell in own if cell.n_classes == 2]
        over = 100 * max(cell.over_trivial for cell in own)
        shown = f"{auc.mean():.4f} | {auc.max():.3f}" if len(auc) else " | "
        shown_usual = f"{np.mean(usual_auc):.4f}" if usual_auc else ""
        numbers = f"{error.mean():.2f} | {error.max():.2f} | {shown} | {usual:.2f} | {shown_usual} | {over:+.2f}"
        print(f"| {name} | {len(own)} | {numbers} |")
    print(
        f"\n{len(found)} cells: error in its band {np.mean([c.in_band for c in found]):.1%}, AUC "
        f"{np.mean([c.auc_in_band for c in found if c.n_classes == 2]):.1%}; useful or not said rightly "
        f"{np.mean([c.useful == c.said_useful for c in found]):.1%} ({np.mean([c.useful for c in found]):.0%} are)"
    )


# --- how much steeper -------------------------------------------------------------------------------------------------

STEEPER = (0.5, 1.0, 2.0, 3.0)


def show_steeper(results: dict[str, Results], every: int) -> None:
    """For each data set: the candidate with the least mean regret over the other twelve, in the planner's units."""
    lost = {name: np.zeros(len(STEEPER)) for name in results}
    for name, own in results.items():
        shapes = [shape for other, shape in forecast.SHAPES.items() if other != name]
        for level in range(0, len(own.noises), every):
            task = own.task(level)
            settings = settings_of(task)
            auc = own.second[level, :, 1] if own.n_classes == 2 else np.full(len(GRID), np.nan)
            seen = forecast.regrets(forecast.Expected(own.second[level, :, 0], auc))
            for place, by in enumerate(STEEPER):
                lost[name][place] += seen[forecast.choose(task, settings, forecast.with_steeper(shapes, by))[0]]
    for name in results:
        of_others = sum(values for other, values in lost.items() if other != name)
        print(f"without {name}: {STEEPER[int(np.argmin(of_others))]:g}")


# --- limits -----------------------------------------------------------------------------------------------------------

# of much the same n and d, so that a planner can hardly tell them apart
ALIKE = (
    ("breast_cancer", "heart"),
    ("digits",),
    ("DoctorContacts", "HI", "cps"),
    ("VietNamI", "credit_cards"),
    ("InstEval", "adult", "mortgages"),
)


def show_limit(results: dict[str, Results], every: int) -> None:
    """Regret in points of error of data sets with classes, were settings chosen by what no planner knows."""
    groups = {name: group for group in ALIKE for name in group}
    everybody = tuple(groups)

    def chosen_together(name: str, level: int, group: tuple[str, ...]) -> int:
        """The one setting with the least mean regret over a group, itself included, by the first half of the seeds."""
        errors = [results[other].first[level, :, 0] for other in group]
        return int(np.mean([error - error.min() for error in errors], axis=0).argmin())

    def chosen_by_shape(name: str, level: int, group: tuple[str, ...]) -> int:
        task = results[name].task(level)
        return forecast.choose(task, settings_of(task), [forecast.SHAPES[name]])[0]

    ways = (
        ("its own shape is known to the forecast", chosen_by_shape, {name: (name,) for name in groups}),
        ("one setting a level for all", chosen_together, dict.fromkeys(groups, everybody)),
        ("one setting a level for data sets of like size", chosen_together, groups),
    )
    for words, choose, group_of in ways:
        lost = [
            100 * (own.second[level, choose(name, level, group_of[name]), 0] - own.hindsight[0][level])
            for name, own in results.items()
            if name in groups
            for level in range(0, len(own.noises), every)
        ]
        print(f"{words}: mean {np.mean(lost):.2f}, worst {np.max(lost):.2f} of {len(lost)} cells")


# --- trust ------------------------------------------------------------------------------------------------------------

STEPS = (("nobody", "pairs"), ("pairs", "a curator"), ("nobody", "a curator"))


def show_trust(results: dict[str, Results], n_shown: int = 10) -> None:
    """How much worse the planned error is with more trust, the worst first, with half the difference of both halves of
    seeds in each cell as its spread; delta and noises are those of `planner_packs.py`."""
    found = []
    for name, own in results.items():
        shapes = [shape for other, shape in forecast.SHAPES.items() if other != name]
        seen = []
        for level in range(len(own.noises)):
            task = own.task(level)
            place = forecast.choose(task, settings_of(task), forecast.with_steeper(shapes))[0]
            halves = np.array([own.first[level, place, 0], own.second[level, place, 0]])
            seen.append((halves.mean(), abs(halves[0] - halves[1]) / 2))
        change, delta = 2 * math.sqrt(2) if own.n_classes > 2 else 2.0, 1e-6 if own.n > 20_000 else 1e-5
        for n, epsilon in itertools.product((5, 20, 100), (0.5, 1.0, 2.0, 4.0)):
            pairs = PairwiseSum(colluders=(n - 1) // 3).noise(n).total
            by_trust = {"nobody": math.sqrt(n), "pairs": pairs, "a curator": 1.0}
            noise = change * gaussian_multiplier(epsilon, delta)
            cell = {who: seen[np.abs(own.noises - noise * total).argmin()] for who, total in by_trust.items()}
            for less, more in STEPS:
                worse, spread = cell[more][0] - cell[less][0], math.hypot(cell[more][1], cell[less][1])
                found.append((100 * worse, 100 * spread, f"{name}, {n} parties, epsilon {epsilon:g}: {less} to {more}"))
    found.sort(reverse=True)
    print(f"of {len(found)} steps {sum(step[0] > 0.1 for step in found)} are worse by more than 0.1 points")
    for worse, spread, words in found[:n_shown]:
        print(f"{worse:+.2f} ± {spread:.2f} {words}")


# --- shapes -----------------------------------------------------------------------------------------------------------

LEVELS = (0, 4, 9, 14, 20, 24, 26)
# strength, mean and spreads as logarithms
LIMITS = np.array([(-3, 2.6), (-4.6, -0.35), (-4, -0.2), (0, 4), (-2, 3), (-3, -0.2), (0, 4), (-2, 3), (0, 3)])


def unpacked(x: np.ndarray, share: float) -> Shape:
    x = np.clip(x, *LIMITS.T)
    return Shape(
        math.exp(x[0]), share, math.exp(x[1]) - 0.01, math.exp(x[2]), x[3], x[4], math.exp(x[5]), x[6], x[7], x[8]
    )


def fitted_shape(own: Results, share: float) -> tuple[Shape, float]:
    """The shape whose forecasts are closest to what was seen, in mean absolute error and AUC."""
    chosen = np.sort(np.random.default_rng(0).choice(len(GRID), 72, replace=False))
    seen = (own.first + own.second) / 2
    prepared = []
    for level in LEVELS:
        task = own.task(level)
        settings = [settings_of(task)[place] for place in chosen]
        prepared.append((task, settings, seen[level, chosen]))

    def distance(x: np.ndarray) -> float:
        total = 0.0
        for task, settings, values in prepared:
            (told,) = forecast.expected([unpacked(x, share)], task, settings)
            total += float(np.mean(np.abs(told.error - np.minimum(values[:, 0], 1.5))))
            if own.n_classes == 2:
                total += float(np.mean(np.abs(told.auc - values[:, 1])))
        return total / len(prepared)

    start = np.array([0.5, -1.5, -1.0, 1.5, 1.0, -0.5, 1.0, 1.0, 1.0])
    simplex = np.vstack([start, start + 0.35 * np.eye(len(start))])
    result = minimize(distance, start, method="Nelder-Mead", options={"maxfev": 700, "initial_simplex": simplex})
    return unpacked(result.x, share), float(result.fun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, help="only every so many levels of noise")
    parser.add_argument("--steeper", action="store_true")
    parser.add_argument("--trust", action="store_true")
    parser.add_argument("--limit", action="store_true")
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--collect", type=Path, nargs=2, metavar=("OUT", "DATA"))
    options = parser.parse_args()
    if options.collect is not None:
        collect(*options.collect)
    elif options.steeper:
        show_steeper(stored(), options.every)
    elif options.trust:
        show_trust(stored())
    elif options.limit:
        show_limit(stored(), options.every)
    elif options.fit:
        for name, own in stored().items():
            share = forecast.SHAPES[name].share if name in forecast.SHAPES else 0.5
            shape, distance = fitted_shape(own, share)
            numbers = ", ".join(f"{value:.3f}" for value in shape)
            print(f'    "{name}": Shape({numbers}),  # {distance:.4f}', flush=True)
    else:
        results = stored()
        for words, allowed in (("columns as they are", PLAIN), ("columns standardised or not", np.ones_like(PLAIN))):
            print(f"\n{words}\n")
            show(cells(results, allowed, options.every))


if __name__ == "__main__":
    main()
