"""Which constants a schema should choose by itself, tried on invented tables and on no real one.

python benchmarks/schema_encodings.py [--tables 60] [--amounts | --useful]

A table has numbers that fill a part of their range around some place in it, amounts that are spread over orders of
magnitude (every other table; many of them zero in some), and categories with uneven shares; a label follows a random
half of them, amounts by their value, by its logarithm or by a threshold. A model is the exact minimiser of the noised
logistic objective, which is what every algorithm here comes near to, with l2 by the rule of old or the best of three;
noise is that of the summed gradient, for 4,000 records. Printed are gains of AUC over the defaults, on the same tables
with the same noise, and how often an encoding falls 0.005 below the one before schemas (numbers over their largest
bound, rows cut to 1). With --amounts, encodings of amounts alone, on tables that have some: one logarithm, one that
may bend, the logarithm and the amount side by side; and where somebody has said what is usual (median and spread of the
amounts that are not zero, to one digit). With --useful, how many models err less than the majority class, by the share
that noise has of the largest sum of gradients (`coterie.certificate.statements`), with 300, 1,000 or 4,000 records.
"""

import argparse
import dataclasses
import itertools
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


def of_amounts(change: Callable[[NumberColumn, np.ndarray], NumberColumn]) -> Encoding:
    """Columns of amounts replaced, with a look at their values only to say what somebody would have known."""

    def encode(table: Table) -> np.ndarray:
        replaced = tuple(
            change(column, table.values[column.name]) if isinstance(column, NumberColumn) and column.log else column
            for column in table.schema.columns
        )
        return dataclasses.replace(table.schema, columns=replaced).encode(table.values)

    return encode


def told(column: NumberColumn, amounts: np.ndarray) -> NumberColumn:
    some = amounts[amounts > 0]
    spread = np.std(column.curved(some))
    return dataclasses.replace(column, centre=float(f"{np.median(some):.0e}"), scale=float(f"{spread:.0e}"))


def parted(n_parts: int, encoding: Callable[[NumberColumn, np.ndarray], NumberColumn] | None = None) -> Encoding:
    """The line of every amount cut into parts of equal length between -√3 and √3, as `bends` does with three."""
    edges = math.sqrt(3) * np.linspace(-1, 1, n_parts + 1)
    edges[0], edges[-1] = -np.inf, np.inf

    def parts(line: np.ndarray) -> np.ndarray:
        ends = list(itertools.pairwise(edges))
        return np.column_stack([np.clip(line, low, high) - np.clip(0, low, high) for low, high in ends])

    evenly = parts(math.sqrt(3) * np.linspace(-1, 1, 2001))

    def encode(table: Table) -> np.ndarray:
        blocks, usual = [], 0.0
        for column in table.schema.columns:
            cells = table.values[column.name]
            if isinstance(column, NumberColumn) and column.log:
                line = (column if encoding is None else encoding(column, cells)).encode(cells)[:, 0]
                blocks.append(parts(line))
                usual += float(np.mean(np.sum(evenly**2, axis=1)))
            else:
                blocks.append(column.encode(cells))
                usual += column.usual[0]
        return np.column_stack(blocks) / math.sqrt(usual)

    return encode


def with_amount(table: Table) -> np.ndarray:
    """The logarithm and the amount, each with mean square 1/2 where the logarithm is spread evenly."""
    blocks, usual = [], 0.0
    for column in table.schema.columns:
        block = column.encode(table.values[column.name])
        if isinstance(column, NumberColumn) and column.log:
            evenly = column.knee * np.expm1(np.linspace(0, column.curved(column.maximum), 2001))
            amount = (table.values[column.name] - evenly.mean()) / evenly.std()
            block = np.column_stack([block, amount]) / math.sqrt(2)
        blocks.append(block)
        usual += column.usual[0]
    return np.column_stack(blocks) / math.sqrt(usual)


# name: (encoding, share of the intercept)
OF_AMOUNTS: dict[str, tuple[Encoding, float]] = {
    "as it is": (default, 0.5),
    "before schemas": (lambda table: encode_before(table.schema, table.values), 0.5),
    "logarithm and amount": (with_amount, 0.5),
    "two parts": (parted(2), 0.5),
    "bends = true": (of_amounts(lambda column, _: dataclasses.replace(column, bends=True)), 0.5),
    "four parts": (parted(4), 0.5),
    "what is usual is said": (of_amounts(told), 0.5),
    "said, and three parts": (parted(3, told), 0.5),
}
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


def noise_of(table: Table, n_features: int, rng: np.random.Generator) -> np.ndarray:
    """Standard; the same in every encoding but for further features of amounts, which come after the first of each."""
    usual = rng.standard_normal(len(table.schema.feature_names) + 1)
    amounts, start = [], 0
    for column in table.schema.columns:
        start += len(column.feature_names)
        amounts += [start] if isinstance(column, NumberColumn) and column.log else []
    places = np.repeat(amounts, (n_features - len(usual)) // max(len(amounts), 1)).astype(int)
    return np.insert(usual, places, rng.standard_normal(len(places)))


def areas(table: Table, encoding: Encoding, share: float, noises: tuple[float, ...]) -> np.ndarray:
    """(noises, regularisers): AUC, mean over seeds."""
    with mock.patch.object(federation, "INTERCEPT_SHARE", share):
        X = federation.make_design(encoding(table), 1.0, intercept=True)
    train, test = slice(None, N_TRAIN), slice(N_TRAIN, None)
    found = np.empty((len(noises), len(REGULARISERS), SEEDS))
    for seed in range(SEEDS):
        unit_noise = noise_of(table, X.shape[1], np.random.default_rng(seed))
        for i, noise in enumerate(noises):
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


def tables(count: int, *, amounts: bool = False) -> Iterator[Table]:
    """`amounts`: in all of them, not in every other."""
    for seed in range(1, 2 * count, 2) if amounts else range(count):
        yield invented(np.random.default_rng(seed), amounts=bool(seed % 2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=60)
    parser.add_argument("--amounts", action="store_true", help="encodings of amounts, on tables with amounts")
    parser.add_argument("--useful", action="store_true", help="how much noise is too much")
    options = parser.parse_args()
    if options.useful:
        print_usefulness(options.tables)
        return
    alternatives, noises = (OF_AMOUNTS, (1.0, *NOISES)) if options.amounts else (ALTERNATIVES, NOISES)
    chosen = tables(options.tables, amounts=options.amounts)
    found = np.array([[areas(table, *words, noises) for words in alternatives.values()] for table in chosen])
    for title, by_table in (("l2 by the rule", found[..., 1]), ("l2 the best of three", found.max(axis=-1))):
        usual, before = by_table[:, 0], by_table[:, 1]
        print(f"\n{title}; AUC as it is {' '.join(f'{value:.3f}' for value in usual.mean(axis=0))}\n")
        print(f"| | {' | '.join(f'noise {noise:g}' for noise in noises)} | all | below before |")
        print("|---" * (len(noises) + 3) + "|")
        for place, name in enumerate(alternatives):
            gain = by_table[:, place] - usual
            gains = (*gain.T, gain.mean(axis=1))
            cells = [f"{one.mean():+.4f} ± {one.std(ddof=1) / math.sqrt(len(one)):.4f}" for one in gains]
            cells.append(f"{np.mean(by_table[:, place] < before - 0.005):.0%}")
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
