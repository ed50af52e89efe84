"""How far one person's data can move an update: the declared bounds from which a loss is computed.

A declaration gives, for the person who pays most, a bound on the 2-norm change of the working blocks of R(u) + e in
each round, at any fixed u. Which one applies depends on where a person's data can enter.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from coterie.errors import InputError


class Sensitivity:
    def per_round(self, table: np.ndarray) -> np.ndarray:
        """One bound per round; `table` is (n_rounds, n_blocks), True where a block works."""
        raise NotImplementedError

    def check(self, n_blocks: int) -> None:
        """Refuse a declaration that does not fit the number of blocks."""


@dataclasses.dataclass(frozen=True)
class WholeUpdate(Sensitivity):
    """One bound for all working blocks together, in every round."""

    bound: float

    def __post_init__(self) -> None:
        not_negative("sensitivity", self.bound)

    def per_round(self, table):
        return np.where(table.any(axis=1), self.bound, 0.0)


@dataclasses.dataclass(frozen=True)
class PerBlock(Sensitivity):
    """One bound per block, where a person's data may move all blocks at once; never more than `whole` together."""

    bounds: tuple[float, ...]
    whole: float = math.inf

    def __post_init__(self) -> None:
        _check_bounds(self.bounds)
        if not self.whole >= 0:
            raise InputError(f"whole: got {self.whole}; a number >= 0 is needed")

    def check(self, n_blocks):
        _check_count(self.bounds, n_blocks)

    def per_round(self, table):
        together = np.sqrt(np.where(table, np.square(self.bounds), 0.0).sum(axis=1))
        return np.minimum(together, self.whole)


@dataclasses.dataclass(frozen=True)
class OwnBlock(Sensitivity):
    """One bound per block, where a person's data enter one block only, such as a user's own state."""

    bounds: tuple[float, ...]

    def __post_init__(self) -> None:
        _check_bounds(self.bounds)

    def check(self, n_blocks):
        _check_count(self.bounds, n_blocks)

    def per_round(self, table):
        # Gaussian releases compose by their squares, so the largest sum of squares is the largest loss
        pays_most = int(np.argmax(table.sum(axis=0) * np.square(self.bounds)))
        return np.where(table[:, pays_most], self.bounds[pays_most], 0.0)


@dataclasses.dataclass(frozen=True)
class OwnRounds(Sensitivity):
    """One bound, where round k reads one record only, the public `record_of(k)`."""

    bound: float
    record_of: Callable[[int], int]

    def __post_init__(self) -> None:
        not_negative("sensitivity", self.bound)

    def per_round(self, table):
        works = table.any(axis=1)
        records = np.array([self.record_of(k) for k in range(len(table))])
        most_used = np.argmax(np.bincount(records[works], minlength=1))
        return np.where(works & (records == most_used), self.bound, 0.0)


def as_sensitivity(value: Any) -> Sensitivity | None:
    """A number bounds the whole update, a sequence has one bound per block."""
    if value is None or isinstance(value, Sensitivity):
        return value
    if isinstance(value, (list, tuple, np.ndarray)):
        return PerBlock(tuple(value))
    return WholeUpdate(value)


def not_negative(name: str, value: Any) -> float:
    number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not (number and 0 <= value < math.inf):
        raise InputError(f"{name}: got {value!r}; a finite number >= 0 is needed")
    return float(value)


def _check_bounds(bounds: tuple[float, ...]) -> None:
    for bound in bounds:
        not_negative("sensitivity", bound)


def _check_count(bounds: tuple[float, ...], n_blocks: int) -> None:
    if len(bounds) != n_blocks:
        raise InputError(f"sensitivity: {len(bounds)} bounds given for {n_blocks} blocks; one per block is needed")
