"""Would a priced release for the threshold lower the planned model's error? Each data set of two classes left out in
turn.

    python benchmarks/planner_threshold.py PACKS [--every 3] [--only heart InstEval]

PACKS is the folder that `benchmarks/planner_packs.py` writes. The planned setting, from the shapes of the other twelve,
is run with a share of the budget less; the share buys, by the final model f with coefficients c of all columns but the
constant one, a noised table of b bins of scores

    T_j = sum of (2 y - 1) over the records with a score in bin j;     bins end at 0 and at multiples of |c|

A record adds a vector of norm 1, as it adds a gradient of norm 1 at most to a round: replacing it moves either by 2 at
most (the other label in the same bin), so that with the noise of a summed gradient that spends the whole budget, which
knows parties and trust, noise(T_j) = noise / sqrt(share), and the rounds are left noise / sqrt(1 - share). Errors on
the training records at the end of every bin, but for a constant, are sums of T_1, T_2, ...; to predict one class always
is a threshold too. That of the model itself is left where

    sum of T between both + caution * noise * sqrt(number of bins between)

is less than 0; then the least is taken (`least`), or the median of all thresholds under weights exp(-that / noise)
(`median`). Where the noise of a bin would be more than a limit, in shares of all records, nothing is bought, and all is
left to the rounds. Share, bins, caution, which of both, and limit are chosen by the mean regret on the other data sets.

`best` is the threshold that is best on the training records, without any noise or price. `loss` is the mean logistic
loss were the threshold moved into the coefficient of the constant column; a threshold beside the model leaves it alone.
60 seeds of small data sets, 10 of others, 50 draws of every table.
"""

import argparse
import dataclasses
import itertools
import math
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from planner import Results, settings_of, stored
from planner_shrinking import best_threshold, descend
from planner_sweep import STANDARDISING_SHARE, Data, standardised

from coterie import forecast

SHARES = (0.05, 0.1)
# ends of bins above 0 over |c|; there are as many below
ENDS = {4: (0.1,), 8: (0.03, 0.1, 0.25)}
CAUTIONS = (0.5, 1.0, 2.0)
RULES = ("least", "median")
LIMITS = (0.02, 0.05, math.inf)
DRAWS = 50
# points of error above the majority class
WORSE = 0.5
# of all designs
SHOWN = 10


class Design(NamedTuple):
    share: float
    n_bins: int
    caution: float
    rule: str
    limit: float

    def __str__(self) -> str:
        where = "" if math.isinf(self.limit) else f" up to {self.limit:g}"
        return f"{self.share:g}, {self.n_bins}, {self.caution:g}, {self.rule}{where}"


DESIGNS = tuple(Design(*point) for point in itertools.product(SHARES, ENDS, CAUTIONS, RULES, LIMITS))


class Scored(NamedTuple):
    """Models of one cell that were left 1 - share of the budget, a row each. By number of bins: the table without noise
    of training records, and error in % and loss of test records at every threshold."""

    tables: dict[int, np.ndarray]
    errors: dict[int, np.ndarray]
    losses: dict[int, np.ndarray]
    auc: float
    # error at the threshold that is best on training records
    best: float
    noise: float


def planned(own: Results, level: int, share: float, shapes: Sequence[forecast.Shape]) -> forecast.Setting:
    """By a planner that knows how much is left to the rounds."""
    task, left = own.task(level), math.sqrt(1 - share)
    task = dataclasses.replace(task, noise=task.noise / left, column_noise=task.column_noise / left)
    settings = settings_of(task)
    return settings[forecast.choose(task, settings, forecast.with_steeper(shapes))[0]]


def scored(own: Results, data: Data, level: int, share: float, setting: forecast.Setting, seed: int) -> Scored:
    n_seeds = 60 if len(data.y) < 2000 else 10
    noise, rng = float(own.noises[level]) / math.sqrt(1 - share), np.random.default_rng([seed, level])
    found = []
    for repeat in range(n_seeds) if setting.standardise else [0]:
        X, X_test, left, n_runs = data.X.astype(np.float32), data.X_test.astype(np.float32), noise, n_seeds
        if setting.standardise:
            X, X_test = standardised(data, noise, np.random.default_rng([7, level, repeat]))
            left, n_runs = noise / math.sqrt(1 - STANDARDISING_SHARE), 1
        models = descend(X, data, setting, left, rng, n_runs)[..., 0]
        length = np.linalg.norm(models[:-1], axis=0)
        constant = models[-1] * X[0, -1]
        found += zip((X @ models).T, (X_test @ models).T, length, constant, strict=True)
    y, y_test = data.y > 0.5, data.y_test > 0.5
    tables, errors, losses = ({n_bins: [] for n_bins in ENDS} for _ in range(3))
    for (scores, test, length, constant), (n_bins, ends) in itertools.product(found, ENDS.items()):
        inner = length * np.array([*(-end for end in reversed(ends)), 0.0, *ends])
        # rows have norm 1 at most, so beyond these one class is predicted for all
        thresholds = np.array([constant - length, *inner, constant + length])
        tables[n_bins].append(_table(scores, y, inner))
        wrong = np.append(0, np.cumsum(_table(test, y_test, inner))) + (~y_test).sum()
        errors[n_bins].append(100 * wrong / len(y_test))
        moved = test[:, None] - thresholds
        losses[n_bins].append((np.logaddexp(0, moved) - y_test[:, None] * moved).mean(axis=0))
    cuts = [best_threshold(scores, data.y) for scores, *_ in found]
    return Scored(
        *({n_bins: np.array(rows) for n_bins, rows in each.items()} for each in (tables, errors, losses)),
        float(np.mean([area(test, y_test) for _, test, *_ in found])),
        float(np.mean([100 * ((test > cut) != y_test).mean() for (_, test, *_), cut in zip(found, cuts, strict=True)])),
        float(own.noises[level]),
    )


def _table(scores: np.ndarray, y: np.ndarray, ends: np.ndarray) -> np.ndarray:
    return np.bincount(np.searchsorted(ends, scores), weights=np.where(y, 1.0, -1.0), minlength=len(ends) + 1)


def area(scores: np.ndarray, y: np.ndarray) -> float:
    ranks = np.empty(len(y))
    ranks[np.argsort(scores)] = np.arange(1, len(y) + 1)
    n_true = y.sum()
    return float((ranks[y].sum() - n_true * (n_true + 1) / 2) / (n_true * (len(y) - n_true)))


def places(tables: np.ndarray, noise: float, caution: float, rule: str) -> np.ndarray:
    """Which threshold noised tables, (..., bins), choose."""
    n_bins = tables.shape[-1]
    errors = np.concatenate([np.zeros((*tables.shape[:-1], 1)), np.cumsum(tables, axis=-1)], axis=-1)
    between = np.abs(np.arange(n_bins + 1) - n_bins // 2)
    lost = (errors - errors[..., [n_bins // 2]]) / noise + caution * np.sqrt(between)
    if rule == "least":
        return lost.argmin(axis=-1)
    weights = np.cumsum(np.exp(lost.min(axis=-1, keepdims=True) - lost), axis=-1)
    return (weights >= weights[..., [-1]] / 2).argmax(axis=-1)


def released(by_share: dict[float, Scored], design: Design, n_records: int, seed: int) -> tuple[float, float, float]:
    """Mean error, loss and AUC, at thresholds by noised tables."""
    models = by_share[design.share]
    noise = models.noise / math.sqrt(design.share)
    if noise > design.limit * n_records:
        return as_it_is(by_share[0.0])
    tables = models.tables[design.n_bins]
    drawn = np.random.default_rng(seed).standard_normal((DRAWS, *tables.shape))
    at = places(tables + noise * drawn, noise, design.caution, design.rule)
    rows = np.arange(len(tables))
    error, loss = (values[design.n_bins][rows, at].mean() for values in (models.errors, models.losses))
    return float(error), float(loss), models.auc


def as_it_is(models: Scored) -> tuple[float, float, float]:
    """The threshold of the model itself is the middle one."""
    n_bins = min(ENDS)
    error, loss = (values[n_bins][:, n_bins // 2].mean() for values in (models.errors, models.losses))
    return float(error), float(loss), models.auc


class Measured(NamedTuple):
    """Of one data set, by level: (level, 3) error in %, loss and AUC; `released` (level, design, 3)."""

    as_is: np.ndarray
    released: np.ndarray
    # error alone
    best: np.ndarray
    hindsight: np.ndarray
    majority: float

    def mean_regrets(self) -> np.ndarray:
        """By design."""
        return (self.released[..., 0] - self.hindsight[:, None]).mean(axis=0)

    def n_worse(self, errors: np.ndarray) -> int:
        """Than the majority class."""
        return int((errors > self.majority + WORSE).sum())


def measured(name: str, own: Results, packs: Path, every: int) -> Measured:
    with np.load(packs / f"{name}.npz") as packed:
        data = Data(*(packed[key] for key in ("X", "y", "X_test", "y_test")), int(packed["n_classes"]))
    shapes = [shape for other, shape in forecast.SHAPES.items() if other != name]
    seed, as_is, by_design, best = zlib.crc32(name.encode()), [], [], []
    levels = list(range(0, len(own.noises), every))
    for level in levels:
        found = {
            share: scored(own, data, level, share, planned(own, level, share, shapes), seed) for share in (0.0, *SHARES)
        }
        as_is.append(as_it_is(found[0.0]))
        best.append(found[0.0].best)
        by_design.append([released(found, design, own.n, level) for design in DESIGNS])
    hindsight = 100 * own.hindsight[0][levels]
    return Measured(np.array(as_is), np.array(by_design), np.array(best), hindsight, 100 * own.trivial_error)


def show(found: dict[str, Measured]) -> None:
    """`found` by data set; the design of each is the best of the others."""
    print("| data | as it is: mean | worst | best | released: mean | worst | AUC lost | loss | loss, moved | design |")
    print("|" + "---|" * 10)
    regrets, worse = [], np.zeros(2, int)
    for name, own in found.items():
        of_others = [other.mean_regrets() for key, other in found.items() if key != name]
        place = int(np.mean(of_others, axis=0).argmin())
        after = own.released[:, place]
        lost = np.array([own.as_is[:, 0], own.best, after[:, 0]]) - own.hindsight
        worse += [own.n_worse(own.as_is[:, 0]), own.n_worse(after[:, 0])]
        regrets.append(lost)
        numbers = [lost[0].mean(), lost[0].max(), lost[1].mean(), lost[2].mean(), lost[2].max()]
        told = " | ".join(f"{value:.2f}" for value in numbers)
        loss, auc = (own.as_is - after)[:, 1:].mean(axis=0)
        told += f" | {auc:+.4f} | {own.as_is[:, 1].mean():.4f} | {own.as_is[:, 1].mean() - loss:.4f}"
        print(f"| {name} | {told} | {DESIGNS[place]} |")
    before, best, after = np.concatenate(regrets, axis=1)
    print(f"\n{len(before)} cells: mean regret {before.mean():.2f} as it is (worst {before.max():.2f}), ", end="")
    print(f"{best.mean():.2f} at the best threshold, {after.mean():.2f} released (worst {after.max():.2f}); ", end="")
    print(f"more than {WORSE} points above the majority: {worse[0]} as it is, {worse[1]} released\n")
    print("The designs that are best on all data sets, by which none is chosen; mean regret, cells above the majority:")
    mean = np.mean([own.mean_regrets() for own in found.values()], axis=0)
    for place in np.argsort(mean)[:SHOWN]:
        n_worse = sum(own.n_worse(own.released[:, place, 0]) for own in found.values())
        print(f"{mean[place]:.2f} {n_worse:3d}   {DESIGNS[place]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packs", type=Path)
    parser.add_argument("--every", type=int, default=3, help="only every so many levels of noise")
    parser.add_argument("--only", nargs="+", help="at least two, for a design is chosen on the others")
    options = parser.parse_args()
    every = {name: own for name, own in stored().items() if own.n_classes == 2}
    show(
        {
            name: measured(name, own, options.packs, options.every)
            for name, own in every.items()
            if not options.only or name in options.only
        }
    )


if __name__ == "__main__":
    main()
