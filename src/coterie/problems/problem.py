"""Problem = loss x regulariser x weighting: what all parties together minimise.

    sum_i w_i sum_n loss(x_n . f, y_n) + regulariser(f)

`record_weight=w` counts every record alike (the pooled problem). `party_weight=C` counts every party alike, so that a
record of a party with B records weighs C/B (the papers' convention). Each party carries 1/N of the regulariser.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from coterie.errors import InputError
from coterie.facts import Facts
from coterie.problems.losses import Loss
from coterie.problems.regularisers import Regulariser
from coterie.serialise import serialisable


class Records(NamedTuple):
    """One party's records as arrays; padding rows have weight 0."""

    # (n_records, n_features)
    X: Any
    # (n_records,)
    y: Any
    # (n_records,)
    weight: Any


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    """Loss and regulariser of a linear model, and what a record weighs.

    loss, regulariser: of `coterie.problems`.
    record_weight: what every record weighs; or
    party_weight: what all records of a party weigh together, by equal parts. One of the two is needed.
    class_weight: factors by label, in the order of the public label set.
    """

    loss: Loss
    regulariser: Regulariser
    record_weight: float | None = None
    party_weight: float | None = None
    class_weight: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if (self.record_weight is None) == (self.party_weight is None):
            raise InputError(
                f"record_weight, party_weight: got {self.record_weight}, {self.party_weight}; exactly one is needed"
            )
        for name, value in (("record_weight", self.record_weight), ("party_weight", self.party_weight)):
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise InputError(f"{name}: got {value}; a positive finite number is needed")
        if self.class_weight is not None and not all(w > 0 and math.isfinite(w) for w in self.class_weight):
            raise InputError(f"class_weight: got {self.class_weight}; positive finite numbers are needed")

    def check(self, facts: Facts) -> None:
        self.loss.check(facts)
        if self.class_weight is not None and (facts.labels is None or len(self.class_weight) != len(facts.labels)):
            n_labels = 0 if facts.labels is None else len(facts.labels)
            raise InputError(
                f"class_weight: {len(self.class_weight)} given for {n_labels} labels; one per label is needed"
            )

    def n_coefficients(self, facts: Facts) -> int:
        return facts.n_features * self.loss.n_outputs

    def weight_of_one_record(self, size: int) -> float:
        """w_i: what a record of sample and class weight 1 weighs at a party with `size` records."""
        if self.record_weight is not None:
            return self.record_weight
        # exactly one is given
        assert self.party_weight is not None
        return self.party_weight / size

    def largest_record_weight(self, size: int, facts: Facts) -> float:
        """Public bound on the weight of any record, with sample and class weights at their largest."""
        return self.weight_of_one_record(size) * facts.weight_bound * max(self.class_weight or (1.0,))

    def share(self, n_parties: int) -> "Problem":
        """The same problem with the part of the regulariser that one party carries."""
        return dataclasses.replace(self, regulariser=self.regulariser.scaled(1 / n_parties))

    def records(self, shard: Any, *, size: int | None = None) -> Records:
        """A party's shard with all weights folded into one column (NumPy); or several shards of one `size`, pooled."""
        weight = shard.weight * self.weight_of_one_record(len(shard.y) if size is None else size)
        if self.class_weight is not None:
            weight = weight * np.asarray(self.class_weight)[shard.y.astype(int)]
        return Records(shard.X, shard.y, weight)

    def value(self, f: Any, all_records: list[Records]) -> Any:
        """The whole objective at one coefficient vector, over all parties."""
        matrix = f if self.loss.n_outputs == 1 else jnp.reshape(f, (-1, self.loss.n_outputs))
        data = sum(jnp.dot(r.weight, self.loss.value(r.X @ matrix, r.y)) for r in all_records)
        return data + self.regulariser.value(f)


# --- unequal parties on one device: similar sizes are stacked, so nothing is padded to the largest --------------------

# the largest party of a bucket over its smallest
MOST_PADDING = 1.25


def group_by_size(sizes: Sequence[int]) -> list[np.ndarray]:
    """Parties of similar size, as ascending positions in the federation."""
    by_size = np.asarray(sizes)
    # a million people take no loop
    if by_size.max() <= MOST_PADDING * by_size.min():
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
    # no padding: a million people take no loop
    if all(len(shard.y) == size for shard in shards):
        pooled = Records(*(np.concatenate([getattr(s, name) for s in shards]) for name in ("X", "y", "weight")))
        columns = problem.records(pooled, size=size)
        return Records(*(column.reshape(len(shards), size, *column.shape[1:]) for column in columns))
    return padded([problem.records(shard) for shard in shards])


def _pad(arrays: tuple[np.ndarray, ...], n_rows: int) -> np.ndarray:
    out = np.zeros((len(arrays), n_rows, *arrays[0].shape[1:]))
    for i, array in enumerate(arrays):
        out[i, : len(array)] = array
    return out
