"""Would shrinking the planned model help, which costs no privacy? Each data set left out in turn.

    python benchmarks/planner_shrinking.py PACKS [--every 3] [--only heart InstEval]

PACKS is the folder that `benchmarks/planner_packs.py` writes. The planned setting, from the shapes of the other twelve,
is run at levels of noise of `benchmarks/planner.py`; then all coefficients f but the constant's are multiplied by

    plain     max(0.02, 1 - E|noise|^2 / |f|^2), James and Stein's factor; 0.02 keeps a ranking
    scores    min(1, (1 - E(noise of scores)^2 / (scores)^2) / slope), for standardised columns: what is left of the
              scores' variance, over the share of the signal that descent has reached; (scores)^2 = |f|^2 spread / d as
              if columns were uncorrelated

with noise and slope as `coterie.forecast` has them, the median over the other shapes. 60 seeds of small data sets, 20
of others, 10 of those with more than 30,000 records. `threshold` is the model as it is with the threshold that is best
on its training records, which nobody may look at: about what any factor or intercept could bring, of two classes.
"""

import argparse
import math
import zlib
from pathlib import Path

import numpy as np
from planner import Results, settings_of, stored
from planner_sweep import STANDARDISING_SHARE, Data, standardised
from scipy.special import expit, softmax

from coterie import forecast

LEAST = 0.02


def slopes(scores: np.ndarray, y: np.ndarray, n_classes: int) -> np.ndarray:
    """Derivative in the scores, (records, runs, outputs)."""
    if n_classes == 0:
        return np.clip(scores - y[:, None, None], -1, 1)
    if n_classes == 2:
        return expit(scores) - y[:, None, None]
    found = softmax(scores, axis=-1)
    found[np.arange(len(y)), :, y.astype(int)] -= 1
    return found


def descend(X: np.ndarray, data: Data, setting: forecast.Setting, noise: float, rng: np.random.Generator, n_runs: int):
    """Averaged models, (d, runs, outputs); `noise` of a summed gradient over the whole budget."""
    n, d = X.shape
    shape, each = (d, n_runs, data.n_outputs), noise * math.sqrt(setting.rounds)
    x, ahead, average = np.zeros((3, *shape), np.float32)
    for t in range(setting.rounds):
        scores = (X @ ahead.reshape(d, -1)).reshape(n, n_runs, -1)
        slope = slopes(scores, data.y, data.n_classes).astype(np.float32)
        gradient = (X.T @ slope.reshape(n, -1)).reshape(shape)
        gradient += np.float32(each) * rng.standard_normal(shape, dtype=np.float32)
        after = ahead - np.float32(setting.step / n) * (gradient + np.float32(setting.l2 * n) * ahead)
        ahead, x = after + np.float32(setting.momentum) * (after - x), after
        average = average + np.float32(2 / (t + 2)) * (after - average)
    return average


def expected_parts(task: forecast.Task, setting: forecast.Setting, shapes: list[forecast.Shape]) -> np.ndarray:
    """Medians over shapes: squared noise of coefficients, of scores, and slope."""
    response, variance = forecast.filters([setting], task.smoothness * forecast._CURVATURES)
    found = []
    for shape in shapes:
        where, best = forecast._directions(shape, task, setting.standardise), forecast._scores(shape, task)
        at = best.curvature / task.smoothness * where.variance
        reached, carried = (forecast._interpolated(values, at)[0] for values in (response, variance))
        own = (reached**2).sum() * best.own_variance / task.n_records
        of_scores = where.noise**2 * (carried * where.variance).sum() + own
        found.append((where.noise**2 * carried.sum(), of_scores, (reached * where.signal).sum()))
    return np.median(found, axis=0)


def factors(models: np.ndarray, setting: forecast.Setting, parts: np.ndarray) -> list[np.ndarray]:
    """By run: none, plain, scores."""
    noise, noise_of_scores, slope = parts
    square, as_is = (models[:-1] ** 2).sum(axis=0).mean(axis=-1), np.ones(models.shape[1])
    plain = np.maximum(1 - noise / square, LEAST)
    if not setting.standardise:
        return [as_is, plain, as_is]
    of_scores = square * (1 - forecast.CONSTANT_SHARE) / (len(models) - 1)
    return [as_is, plain, np.minimum(np.maximum(1 - noise_of_scores / of_scores, LEAST) / slope, 1)]


def errors(models: np.ndarray, X: np.ndarray, y: np.ndarray, n_classes: int) -> np.ndarray:
    """By run; of numbers 1 - R^2."""
    scores = np.einsum("nd,dro->nro", X, models)
    if n_classes == 0:
        return ((scores[..., 0] - y[:, None]) ** 2).mean(axis=0) / y.var()
    found = scores.argmax(axis=-1) if n_classes > 2 else scores[..., 0] > 0
    return (found != y[:, None]).mean(axis=0)


def best_threshold(scores: np.ndarray, y: np.ndarray) -> float:
    order = np.argsort(scores)
    wrong = np.append(0, np.cumsum(np.where(y[order] > 0.5, 1, -1)))
    place = int(wrong.argmin())
    return float(scores[order[place - 1]]) if place else -math.inf


def measured(own: Results, data: Data, level: int, shapes: list[forecast.Shape], rng: np.random.Generator):
    """Mean errors of the three factors and of the best threshold."""
    task, noise, n = own.task(level), float(own.noises[level]), len(data.y)
    settings = settings_of(task)
    setting = settings[forecast.choose(task, settings, forecast.with_steeper(shapes))[0]]
    parts = expected_parts(task, setting, forecast.with_steeper(shapes))
    n_seeds = 60 if n < 2000 else 20 if n < 30_000 else 10
    found = []
    for seed in range(n_seeds) if setting.standardise else [0]:
        X, X_test, left, n_runs = data.X, data.X_test, noise, n_seeds
        if setting.standardise:
            X, X_test = standardised(data, noise, np.random.default_rng([7, level, seed]))
            left, n_runs = noise / math.sqrt(1 - STANDARDISING_SHARE), 1
        models = descend(X, data, setting, left, rng, n_runs)
        every = []
        for factor in factors(models, setting, parts):
            shrunk = models.copy()
            shrunk[:-1] *= factor[:, None]
            every.append(errors(shrunk, X_test, data.y_test, data.n_classes).mean())
        if data.n_classes == 2:
            cuts = [best_threshold(X @ model, data.y) for model in models[..., 0].T]
            wrong = ((X_test @ models[..., 0]) > np.array(cuts)) != data.y_test[:, None]
            every.append(wrong.mean())
        else:
            every.append(math.nan)
        found.append(every)
    return 100 * np.mean(found, axis=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packs", type=Path)
    parser.add_argument("--every", type=int, default=3, help="only every so many levels of noise")
    parser.add_argument("--only", nargs="+")
    options = parser.parse_args()
    print("| data | noise | as it is | plain | scores | threshold | hindsight | majority |\n|" + "---|" * 8, flush=True)
    for name, own in stored().items():
        if options.only and name not in options.only:
            continue
        with np.load(options.packs / f"{name}.npz") as packed:
            data = Data(*(packed[key] for key in ("X", "y", "X_test", "y_test")), int(packed["n_classes"]))
        shapes = [shape for other, shape in forecast.SHAPES.items() if other != name]
        hindsight, _ = own.hindsight
        for level in range(0, len(own.noises), options.every):
            rng = np.random.default_rng([zlib.crc32(name.encode()), level])
            found = measured(own, data, level, shapes, rng)
            numbers = [*found, 100 * hindsight[level], 100 * own.trivial_error]
            told = " | ".join("" if math.isnan(value) else f"{value:.2f}" for value in numbers)
            print(f"| {name} | {own.noises[level] / own.n:.4f} | {told} |", flush=True)


if __name__ == "__main__":
    main()
