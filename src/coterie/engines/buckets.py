"""Unequal parties on one device: parties of similar size are stacked, so nothing is padded to the largest party."""

import dataclasses
from typing import Any

import numpy as np

from coterie.problems.local import Records
from coterie.problems.problem import Problem

MOST_PADDING = 1.25  # the largest party of a bucket over its smallest


@dataclasses.dataclass(frozen=True)
class Bucket:
    parties: np.ndarray  # positions in the federation
    records: Records  # arrays with a leading party axis


def make_buckets(problem: Problem, shards: Any) -> list[Bucket]:
    """Stack the shards; padding rows are zeros of weight 0."""
    sizes = np.array([len(shard.y) for shard in shards])
    order = np.argsort(sizes, kind="stable")
    groups: list[list[int]] = []
    for party in order:
        if not groups or sizes[party] > MOST_PADDING * sizes[groups[-1][0]]:
            groups.append([])
        groups[-1].append(int(party))
    return [_stack(problem, shards, group, int(sizes[group].max())) for group in groups]


def _stack(problem: Problem, shards: Any, parties: list[int], n_rows: int) -> Bucket:
    columns = zip(*(problem.records(shards[i]) for i in parties), strict=True)
    return Bucket(np.array(parties), Records(*(_pad(column, n_rows) for column in columns)))


def _pad(arrays: tuple[np.ndarray, ...], n_rows: int) -> np.ndarray:
    out = np.zeros((len(arrays), n_rows, *arrays[0].shape[1:]))
    for i, array in enumerate(arrays):
        out[i, : len(array)] = array
    return out
