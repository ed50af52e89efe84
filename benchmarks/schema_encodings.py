"""Which constants a schema should choose by itself, tried on invented tables and on no real one.

python benchmarks/schema_encodings.py [--tables 60] [--useful]

A table has numbers that fill a part of their range around some place in it, amounts that are spread over orders of
magnitude (every other table; many of them zero in some), and categories with uneven shares; a label follows a random
half of them, amounts by their value, by its logarithm or by a threshold. A model is the exact minimiser of the noised
logistic objective, which is what every algorithm here comes near to, with l2 by the rule of old or the best of three;
noise is that of the summed gradient, for 4,000 records. Printed are gains of AUC over the defaults, on the same tables
with the same noise, and how often an encoding falls 0.005 below the one before schemas (numbers over their largest
bound, rows cut to 1). With --useful, how many models err less than the majority class, by the share that noise has of
the largest sum of gradients (`coterie.certificate.statements`), with 300, 1,000 or 4,000 records.
"""

import argparse
import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple
from unittest import mock

import numpy as np
from preprocessing import encode_before
from scipy.special import expit
from sklearn.metrics import roc_auc_score

from coterie.data import CategoryColumn, Label, NumberColumn, Schema, federation
from coterie.data import schema as constants

N_TRAIN, N_TEST = 4000, 3000
NOISES = (5.0, 15.0, 50.0, 150.0)
# times noise; the middle one is the rule
REGULARISERS = (0.125, 0.5, 2.0)
SEEDS = 3
LARGEST = 100_000.0


class Table(NamedTuple):
    schema: Schema
    values: dict[str, np.ndarray]
    label: np.ndarray


def invented(rng: np.random.Generator, *, amounts: bool) -> Table:
    n = N_TRAIN + N_TEST
    columns, values, score = [], {}, np.zeros(n)

    def add(column: NumberColumn | CategoryColumn, cells: np.ndarray, effect: np.ndarray, share: float) -> None:
        nonlocal score
        columns.append(column)
        values[column.name] = cells
        standard = np.clip((effect - effect.mean()) / (effect.std() + 1e-12), -3, 3)
        score = score + rng.standard_normal() * (rng.random() < share) * standard

    for number in range(rng.integers(2, 7)):
        middle, spread = rng.uniform(0.2, 0.8), np.exp(rng.uniform(np.log(0.04), np.log(0.29)))
        shape = rng.standard_normal(n) if rng.random() < 0.7 else rng.uniform(-math.sqrt(3), math.sqrt(3), n)
        cells = np.clip(middle + spread * shape, 0, 1)
        add(NumberColumn(f"number {number}", 0, 1), cells, cells, 0.7)
    for number in range(rng.integers(1, 4) if amounts else 0):
        median = np.exp(rng.uniform(np.log(1 / 2000), np.log(1 / 4)))
        cells = np.minimum(median * np.exp(rng.uniform(0.5, 1.5) * rng.standard_normal(n)), 1)
        if rng.random() < 0.4:
            cells[rng.random(n) < rng.uniform(0.05, 0.9)] = 0
        threshold = np.quantile(cells, rng.uniform(0.2, 0.8))
        effects = (cells, np.log(cells + median / 3), (cells > threshold).astype(float))
        effect = effects[rng.integers(3)]
        add(NumberColumn(f"amount {number}", 0, LARGEST, log=True), LARGEST * cells, effect, 0.8)
    for number in range(rng.integers(0, 7)):
        k = int(rng.choice([2, 2, 2, 3, 5, 8]))
        shares = np.maximum(rng.dirichlet(np.ones(k)), 0.02)
        cells = rng.choice(k, size=n, p=shares / shares.sum())
        column = CategoryColumn(f"category {number}", tuple(map(str, range(k))))
        add(column, cells, rng.standard_normal(k)[cells], 0.7)
    score = rng.uniform(0.5, 2.5) * score / (score.std() + 1e-9) + rng.standard_normal()
    label = (rng.random(n) < expit(score)).astype(int)
    return Table(Schema(tuple(columns), Label("label", ("0", "1"))), values, label)


# --- encodings --------------------------------------------------------------------------------------------------------

Encoding = Callable[[Table], np.ndarray]


def default(table: Table) -> np.ndarray:
    return table.schema.encode(table.values)


def changed(numbers: dict | None = None, categories: dict | None = None, unit: float = 1.0) -> Encoding:
    """Fields of all columns replaced, and the row norm times `unit`."""

    def encode(table: Table) -> np.ndarray:
        replaced = tuple(
            dataclasses.replace(column, **((numbers if isinstance(column, NumberColumn) else categories) or {}))
            for column in table.schema.columns
        )
        return dataclasses.replace(table.schema, columns=replaced).encode(table.values) / unit

    return encode


def with_knee(share: float) -> Encoding:
    def encode(table: Table) -> np.ndarray:
        with mock.patch.object(constants, "LOG_KNEE", share):
            return default(table)

    return encode


# name: (encoding, share of the intercept)
ALTERNATIVES: dict[str, tuple[Encoding, float]] = {
    "as it is": (default, 0.5),
    "before schemas": (lambda table: encode_before(table.schema, table.values), 0.5),
    "log(1 + amount)": (with_knee(1 / LARGEST), 0.5),
    "knee at 1/10,000": (with_knee(1e-4), 0.5),
    "knee at 1/1,000": (with_knee(1e-3), 0.5),
    "knee at 1/100": (with_knee(1e-2), 0.5),
    "no logarithm": (changed(numbers={"log": False}), 0.5),
    "numbers times 0.5": (changed(numbers={"weight": 0.5}), 0.5),
    "numbers times 0.7": (changed(numbers={"weight": 0.7}), 0.5),
    "numbers times 1.4": (changed(numbers={"weight": 1.4}), 0.5),
    "categories not centred": (changed(categories={"centred": False}), 0.5),
    "row norm times 0.7": (changed(unit=0.7), 0.5),
    "row norm times 1.4": (changed(unit=1.4), 0.5),
    "intercept share 0.25": (default, 0.25),
    "intercept share 1": (default, 1.0),
}


# --- models -----------------------------------------------------------------------------------------------------------


def minimiser(X: np.ndarray, y: np.ndarray, l2: float, push: np.ndarray) -> np.ndarray:
    """Of the logistic objective plus a linear term, by Newton's method with steps of bounded scores."""
    found = np.zeros(X.shape[1])
    for _ in range(30):
        p = expit(X @ found)
        gradient = X.T @ (p - y) + l2 * found + push
        if np.linalg.norm(gradient) < 1e-4 * l2:
            break
        step = np.linalg.solve((X * (p * (1 - p))[:, None]).T @ X + l2 * np.eye(len(found)), gradient)
        found -= step * min(1.0, 4 / np.abs(X @ step).max())
    return found


def areas(table: Table, encoding: Encoding, share: float) -> np.ndarray:
    """(noises, regularisers): AUC, mean over seeds."""
    with mock.patch.object(federation, "INTERCEPT_SHARE", share):
        X = federation.make_design(encoding(table), 1.0, intercept=True)
    train, test = slice(None, N_TRAIN), slice(N_TRAIN, None)
    found = np.empty((len(NOISES), len(REGULARISERS), SEEDS))
    for seed in range(SEEDS):
        unit_noise = np.random.default_rng(seed).standard_normal(X.shape[1])
        for i, noise in enumerate(NOISES):
            for j, l2 in enumerate(REGULARISERS):
                model = minimiser(X[train], table.label[train], l2 * noise, noise * unit_noise)
                found[i, j, seed] = roc_auc_score(table.label[test], X[test] @ model)
    return found.mean(axis=-1)


SHARES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.2)


def gains_over_majority(table: Table, n_records: int) -> np.ndarray:
    """By share of noise: what the model errs less than the majority class, mean over seeds."""
    X = federation.make_design(default(table), 1.0, intercept=True)
    train, test = slice(None, n_records), slice(N_TRAIN, None)
    positives = np.mean(table.label[test])
    found = np.empty((len(SHARES), SEEDS))
    for seed in range(SEEDS):
        unit_noise = np.random.default_rng(seed).standard_normal(X.shape[1])
        for i, share in enumerate(SHARES):
            noise = share * n_records / math.sqrt(X.shape[1])
            model = minimiser(X[train], table.label[train], REGULARISERS[1] * noise, noise * unit_noise)
            wrong = np.mean((X[test] @ model > 0) != table.label[test])
            found[i, seed] = min(positives, 1 - positives) - wrong
    return found.mean(axis=-1)


def print_usefulness(count: int) -> None:
    records = (300, 1000, N_TRAIN)
    gains = np.array([gains_over_majority(table, records[i % 3]) for i, table in enumerate(tables(count))])
    print(f"| share of noise | {' | '.join(f'{share:g}' for share in SHARES)} |")
    print("|---" * (len(SHARES) + 1) + "|")
    print(f"| better than the majority class | {' | '.join(f'{rate:.0%}' for rate in np.mean(gains > 0, axis=0))} |")
    print(f"| gain, points | {' | '.join(f'{100 * gain:+.1f}' for gain in gains.mean(axis=0))} |")


def tables(count: int) -> Iterator[Table]:
    for seed in range(count):
        yield invented(np.random.default_rng(seed), amounts=bool(seed % 2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=60)
    parser.add_argument("--useful", action="store_true", help="how much noise is too much")
    options = parser.parse_args()
    if options.useful:
        print_usefulness(options.tables)
        return
    found = np.array(
        [[areas(table, *alternative) for alternative in ALTERNATIVES.values()] for table in tables(options.tables)]
    )
    for title, by_table in (("l2 by the rule", found[..., 1]), ("l2 the best of three", found.max(axis=-1))):
        usual, before = by_table[:, 0], by_table[:, 1]
        print(f"\n{title}; AUC as it is {' '.join(f'{value:.3f}' for value in usual.mean(axis=0))}\n")
        print(f"| | {' | '.join(f'noise {noise:g}' for noise in NOISES)} | all | below before |")
        print("|---" * (len(NOISES) + 3) + "|")
        for place, name in enumerate(ALTERNATIVES):
            gain = by_table[:, place] - usual
            cells = [f"{gain[:, i].mean():+.4f}" for i in range(len(NOISES))]
            whole = gain.mean(axis=1)
            cells.append(f"{whole.mean():+.4f} ± {whole.std(ddof=1) / math.sqrt(len(whole)):.4f}")
            cells.append(f"{np.mean(by_table[:, place] < before - 0.005):.0%}")
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
