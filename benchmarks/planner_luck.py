"""How much of the regret of benchmarks/planner.py is the luck of the test records?

    python benchmarks/planner_luck.py PACKS [--every 3] [--only heart cps]

Hindsight takes the best of 216 settings of a cell by one half of the seeds and is measured on the other, but on the
same test records: it knows which setting suits these. Here it takes the setting by one half of the seeds and one half
of the test records and is measured, like the planned one, on the other half of both; 50 divisions of the records, every
half in turn. PACKS is the folder that `benchmarks/planner_packs.py` writes. Data sets of two classes; 40 seeds of small
ones, 10 of others.
"""

import argparse
import math
import zlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from planner import GRID, Results, settings_of, stored
from planner_sweep import STANDARDISING_SHARE, Data, Setting, descend, of_grid, standardised

from coterie import forecast

# runs whose scores fit into a processor's cache
BATCH = 64
DIVISIONS = 50


def mistakes(
    data: Data, X: np.ndarray, X_test: np.ndarray, settings: list[Setting], noise: float, seed: int
) -> np.ndarray:
    """(settings, test records) of one run of each."""
    found = np.empty((len(settings), len(X_test)), bool)
    rows, labels = jax.device_put(X), jax.device_put(data.y.astype(np.float32))
    order = np.argsort([setting.rounds for setting in settings])
    for start in range(0, len(order), BATCH):
        places = order[start : start + BATCH]
        # padded to one shape, so that there is one program
        chosen = [settings[place] for place in np.resize(places, BATCH)]
        rounds = np.array([setting.rounds for setting in chosen])
        columns = {
            "step": [setting.step for setting in chosen],
            "l2": [setting.l2 for setting in chosen],
            "momentum": [setting.momentum for setting in chosen],
            "noise": noise * np.sqrt(rounds),
        }
        models = descend(
            rows,
            labels,
            jax.random.key(int(np.random.SeedSequence([seed, start]).generate_state(1)[0])),
            rounds=jnp.asarray(rounds),
            averaged=jnp.ones(BATCH, bool),
            most=int(rounds.max()),
            n_classes=2,
            n_outputs=1,
            **{name: jnp.asarray(values, jnp.float32) for name, values in columns.items()},
        )
        scores = X_test @ np.asarray(models)[..., 0]
        found[places] = ((scores > 0) != (data.y_test > 0.5)[:, None]).T[: len(places)]
    return found


def grid(data: Data, noise: float, first: int) -> np.ndarray:
    """(2, settings, test records): how often each is classified wrongly, over halves of the seeds."""
    settings = [of_grid(point, data, noise) for point in GRID]
    scaled = np.array([setting.standardise for setting in settings])
    n_seeds = 40 if len(data.y) < 2000 else 10
    wrong = np.zeros((2, len(settings), len(data.y_test)))
    for seed in range(n_seeds):
        for kind in (False, True):
            X, X_test, left = data.X.astype(np.float32), data.X_test.astype(np.float32), noise
            if kind:
                X, X_test = standardised(data, noise, np.random.default_rng([first, seed]))
                left = noise / math.sqrt(1 - STANDARDISING_SHARE)
            chosen = [setting for setting in settings if setting.standardise == kind]
            wrong[seed % 2, scaled == kind] += mistakes(data, X, X_test, chosen, left, first + 1000 * seed)
    return wrong / (n_seeds / 2)


def regrets(wrong: np.ndarray, place: int, rng: np.random.Generator) -> tuple[float, float]:
    """Of the setting at `place`, in points: on the records on which hindsight chose, and on others."""

    def regret(seeds: int, records: np.ndarray, others: np.ndarray) -> float:
        best = wrong[seeds][:, records].mean(axis=1).argmin()
        return 100 * float((wrong[1 - seeds, place] - wrong[1 - seeds, best])[others].mean())

    n = wrong.shape[-1]
    same = [regret(seeds, np.arange(n), np.arange(n)) for seeds in (0, 1)]
    apart = []
    for _ in range(DIVISIONS):
        order = rng.permutation(n)
        halves = order[: n // 2], order[n // 2 :]
        apart += [regret(seeds, halves[i], halves[1 - i]) for seeds in (0, 1) for i in (0, 1)]
    return float(np.mean(same)), float(np.mean(apart))


def measured(name: str, own: Results, packs: Path, every: int) -> np.ndarray:
    with np.load(packs / f"{name}.npz") as packed:
        data = Data(*(packed[key] for key in ("X", "y", "X_test", "y_test")), int(packed["n_classes"]))
    shapes = [shape for other, shape in forecast.SHAPES.items() if other != name]
    rng, found = np.random.default_rng(zlib.crc32(name.encode())), []
    for level in range(0, len(own.noises), every):
        task = own.task(level)
        place = forecast.choose(task, settings_of(task), forecast.with_steeper(shapes))[0]
        wrong = grid(data, float(own.noises[level]), zlib.crc32(name.encode()) + level)
        found.append(regrets(wrong, place, rng))
    return np.array(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packs", type=Path)
    parser.add_argument("--every", type=int, default=3, help="only every so many levels of noise")
    parser.add_argument("--only", nargs="+")
    options = parser.parse_args()
    print("| data | cells | same records: mean | worst | other records: mean | worst |\n|" + "---|" * 6, flush=True)
    for name, own in stored().items():
        if own.n_classes != 2 or (options.only and name not in options.only):
            continue
        (same, apart), n = measured(name, own, options.packs, options.every).T, len(own.noises[:: options.every])
        numbers = f"{same.mean():.2f} | {same.max():.2f} | {apart.mean():.2f} | {apart.max():.2f}"
        print(f"| {name} | {n} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
