"""Unequal parties on one device: parties of similar size are stacked, so nothing is padded to the largest party."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from coterie.data.federation import Shard
from coterie.problems.problem import Problem, Records

MOST_PADDING = 1.25  # the largest party of a bucket over its smallest


def group_by_size(sizes: Sequence[int]) -> list[np.ndarray]:
    """Parties of similar size, as ascending positions in the federation."""
    by_size = np.asarray(sizes)
    if by_size.max() <= MOST_PADDING * by_size.min():  # a million people take no loop
        return [np.arange(len(by_size))]
    groups: list[list[int]] = []
    for party in np.argsort(by_size, kind="stable"):
        if not groups or by_size[party] > MOST_PADDING * by_size[groups[-1][0]]:
            groups.append([])
        groups[-1].append(int(party))
    return [np.sort(group) for group in groups]


def make_buckets(problem: Problem, shards: Any) -> list[Records]:
    """The records of each group, arrays with a leading party axis; padding rows are zeros of weight 0."""
    return [_stack(problem, [shards[i] for i in group]) for group in group_by_size([len(s.y) for s in shards])]


def padded(parties: Sequence[Records]) -> Records:
    """The records of one group, likewise."""
    n_rows = max(len(own.y) for own in parties)
    return Records(*(_pad(column, n_rows) for column in zip(*parties, strict=True)))


def _stack(problem: Problem, shards: Sequence[Any]) -> Records:
    size = len(shards[0].y)
    if all(len(shard.y) == size for shard in shards):  # no padding: a million people take no loop
        pooled = Shard(*(np.concatenate([getattr(s, name) for s in shards]) for name in ("X", "y", "weight")))
        columns = problem.records(pooled, size=size)
        return Records(*(column.reshape(len(shards), size, *column.shape[1:]) for column in columns))
    return padded([problem.records(shard) for shard in shards])


def _pad(arrays: tuple[np.ndarray, ...], n_rows: int) -> np.ndarray:
    out = np.zeros((len(arrays), n_rows, *arrays[0].shape[1:]))
    for i, array in enumerate(arrays):
        out[i, : len(array)] = array
    return out
