"""Which constants a schema should choose by itself, tried on invented tables and on no real one.

python benchmarks/schema_encodings.py [--tables 60] [--amounts | --alone | --useful]

A table has numbers that fill a part of their range around some place in it, amounts that are spread over orders of
magnitude (every other table; many of them zero in some), and categories with uneven shares; a label follows a random
half of them, amounts by their value, by its logarithm or by a threshold. A model is the exact minimiser of the noised
logistic objective, which is what every algorithm here comes near to, with l2 by the rule of old or the best of three;
noise is that of the summed gradient, for 4,000 records. Printed are gains of AUC over the defaults, on the same tables
with the same noise, and how often an encoding falls 0.005 below the one before schemas (numbers over their largest
bound, rows clipped to 1). With --amounts, encodings of amounts alone, on tables that have some: one logarithm,
features of it in its place, the logarithm and the amount side by side; where somebody has said what is usual (median
and spread of the amounts that are not zero, to one digit); and what the label follows itself, which nobody knows.
With --alone, the same on tables of one to six amounts and nothing else. With --useful, how many models err less than
the majority class, by the share that noise has of the largest sum of gradients (`coterie.certificate.statements`),
with 300, 1,000 or 4,000 records.
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
    effects: dict[str, np.ndarray]


def invented(rng: np.random.Generator, *, amounts: bool, alone: bool = False) -> Table:
    n = N_TRAIN + N_TEST
    columns, values, effects, score = [], {}, {}, np.zeros(n)

    def add(column: NumberColumn | CategoryColumn, cells: np.ndarray, effect: np.ndarray, share: float) -> None:
        nonlocal score
        columns.append(column)
        values[column.name] = cells
        standard = np.clip((effect - effect.mean()) / (effect.std() + 1e-12), -3, 3)
        effects[column.name] = standard
        score = score + rng.standard_normal() * (rng.random() < share) * standard

    for number in range(0 if alone else rng.integers(2, 7)):
        middle, spread = rng.uniform(0.2, 0.8), np.exp(rng.uniform(np.log(0.04), np.log(0.29)))
        shape = rng.standard_normal(n) if rng.random() < 0.7 else rng.uniform(-math.sqrt(3), math.sqrt(3), n)
        cells = np.clip(middle + spread * shape, 0, 1)
        add(NumberColumn(f"number {number}", 0, 1), cells, cells, 0.7)
    for number in range(rng.integers(1, 7 if alone else 4) if amounts else 0):
        median = np.exp(rng.uniform(np.log(1 / 2000), np.log(1 / 4)))
        cells = np.minimum(median * np.exp(rng.uniform(0.5, 1.5) * rng.standard_normal(n)), 1)
        if rng.random() < 0.4:
            cells[rng.random(n) < rng.uniform(0.05, 0.9)] = 0
        threshold = np.quantile(cells, rng.uniform(0.2, 0.8))
        laws = (cells, np.log(cells + median / 3), (cells > threshold).astype(float))
        effect = laws[rng.integers(3)]
        add(NumberColumn(f"amount {number}", 0, LARGEST, log=True), LARGEST * cells, effect, 0.8)
    for number in range(0 if alone else rng.integers(0, 7)):
        k = int(rng.choice([2, 2, 2, 3, 5, 8]))
        shares = np.maximum(rng.dirichlet(np.ones(k)), 0.02)
        cells = rng.choice(k, size=n, p=shares / shares.sum())
        column = CategoryColumn(f"category {number}", tuple(map(str, range(k))))
        add(column, cells, rng.standard_normal(k)[cells], 0.7)
    score = rng.uniform(0.5, 2.5) * score / (score.std() + 1e-9) + rng.standard_normal()
    label = (rng.random(n) < expit(score)).astype(int)
    return Table(Schema(tuple(columns), Label("label", ("0", "1"))), values, label, effects)


# --- encodings --------------------------------------------------------------------------------------------------------

Encoding = Callable[[Table], np.ndarray]
Features = Callable[[np.ndarray], np.ndarray]


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


def through(features: Features, encoding: Callable[[NumberColumn, np.ndarray], NumberColumn] | None = None) -> Encoding:
    """Features of the line of every amount, from -√3 to √3 over its range, in its place, as `bends` has three."""
    evenly = features(math.sqrt(3) * np.linspace(-1, 1, 2001))
    square = float(np.mean(np.sum(evenly**2, axis=1)))

    def encode(table: Table) -> np.ndarray:
        blocks, usual = [], 0.0
        for column in table.schema.columns:
            cells = table.values[column.name]
            if isinstance(column, NumberColumn) and column.log:
                blocks.append(features((column if encoding is None else encoding(column, cells)).encode(cells)[:, 0]))
                usual += square
            else:
                blocks.append(column.encode(cells))
                usual += column.usual[0]
        return np.column_stack(blocks) / math.sqrt(usual)

    return encode


def parts(n: int) -> Features:
    """The line cut into parts of equal length."""
    edges = math.sqrt(3) * np.linspace(-1, 1, n + 1)
    edges[0], edges[-1] = -np.inf, np.inf
    ends = list(itertools.pairwise(edges))
    return lambda line: np.column_stack([np.clip(line, low, high) - np.clip(0, low, high) for low, high in ends])


def beside_line(weight: float, *more: Callable[[np.ndarray], np.ndarray]) -> Features:
    """The line at full weight, and what more there is at another; with mean square 1 and uncorrelated if values are
    spread evenly."""

    def plain(line: np.ndarray) -> np.ndarray:
        return np.column_stack([np.ones_like(line), line, *(one(line) for one in more)])

    evenly = plain(math.sqrt(3) * np.linspace(-1, 1, 2001))
    turn = math.sqrt(len(evenly)) * np.linalg.inv(np.linalg.qr(evenly)[1])
    weights = np.array([1.0] + [weight] * len(more))
    return lambda line: (plain(line) @ turn)[:, 1:] * weights


def circles(*chosen: tuple[float, float]) -> Features:
    """Sine and centred cosine of angles along the line. Of each: the angle at its ends, and the mean square of both."""

    def features(line: np.ndarray) -> np.ndarray:
        found = []
        for end, square in chosen:
            mean, double = math.sin(end) / end, math.sin(2 * end) / (2 * end)
            angle = end / math.sqrt(3) * line
            found.append(math.sqrt(square / (1 - double)) * np.sin(angle))
            found.append(math.sqrt(square / (1 + double - 2 * mean**2)) * (np.cos(angle) - mean))
        return np.column_stack(found)

    return features


def effects(table: Table) -> np.ndarray:
    """Of every amount what the label follows, at mean square 1: more than anybody can know."""
    blocks = [
        table.effects[column.name][:, None]
        if isinstance(column, NumberColumn) and column.log
        else column.encode(table.values[column.name])
        for column in table.schema.columns
    ]
    return np.column_stack(blocks) / math.sqrt(sum(column.usual[0] for column in table.schema.columns))


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


# at a third of the line and at two
BENDS = [lambda line: np.maximum(line - 1 / math.sqrt(3), 0), lambda line: np.minimum(line + 1 / math.sqrt(3), 0)]
# name: (encoding, share of the intercept)
OF_AMOUNTS: dict[str, tuple[Encoding, float]] = {
    "as it is": (default, 0.5),
    "before schemas": (lambda table: encode_before(table.schema, table.values), 0.5),
    "logarithm and amount": (with_amount, 0.5),
    "two parts": (through(parts(2)), 0.5),
    "bends = true": (of_amounts(lambda column, _: dataclasses.replace(column, bends=True)), 0.5),
    "four parts": (through(parts(4)), 0.5),
    "line and square": (through(beside_line(0.5, np.square)), 0.5),
    "line and two bends": (through(beside_line(0.5, *BENDS)), 0.5),
    "one circle": (through(circles((0.75 * math.pi, 1.0))), 0.5),
    "two circles": (through(circles((0.6 * math.pi, 0.6), (1.2 * math.pi, 0.4))), 0.5),
    "what is usual is said": (of_amounts(told), 0.5),
    "said, and three parts": (through(parts(3), told), 0.5),
    "effects themselves": (effects, 0.5),
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


def tables(count: int, *, amounts: bool = False, alone: bool = False) -> Iterator[Table]:
    """`amounts`: in all of them, not in every other. `alone`: nothing else."""
    for seed in range(1, 2 * count, 2) if amounts else range(count):
        yield invented(np.random.default_rng(seed), amounts=bool(seed % 2), alone=alone)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=60)
    parser.add_argument("--amounts", action="store_true", help="encodings of amounts, on tables with amounts")
    parser.add_argument(
        "--alone", action="store_true", help="encodings of amounts, on tables with one to six of them and nothing else"
    )
    parser.add_argument("--useful", action="store_true", help="how much noise is too much")
    options = parser.parse_args()
    if options.useful:
        print_usefulness(options.tables)
        return
    of_amounts_only = options.amounts or options.alone
    alternatives, noises = (OF_AMOUNTS, (1.0, *NOISES)) if of_amounts_only else (ALTERNATIVES, NOISES)
    chosen = tables(options.tables, amounts=of_amounts_only, alone=options.alone)
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
