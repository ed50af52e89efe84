"""An algorithm's own numbers as arguments of its compiled program: another dual step is not another program."""

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from coterie.algorithms.algorithm import Algorithm
from coterie.schedules import Schedule


class _Traced(NamedTuple):
    """A `Schedule` whose numbers are not known when it is compiled."""

    start: Any
    ratio: Any

    def __call__(self, t: Any) -> Any:
        return self.start * self.ratio**t

    @property
    def per_party(self) -> bool:
        return self.start.ndim > 0


def without_numbers(algorithm: Any) -> Any:
    """The algorithm with 1 in place of every number that its program takes as an argument."""
    for name in algorithm.numbers:
        owner, field = _place(algorithm, name)
        value = getattr(owner, field)
        neutral = 1.0
        if isinstance(value, Schedule):
            neutral = Schedule(tuple(np.ones_like(_arrays(value).start)) if value.per_party else 1.0)
        changed = dataclasses.replace(owner, **{field: neutral})
        algorithm = changed if owner is algorithm else dataclasses.replace(algorithm, mechanism=changed)
    return algorithm


def numbers_of(algorithms: Sequence[Algorithm], repeats: int) -> Any:
    """Of one algorithm, or of several that differ in numbers alone and have `repeats` each. The first axis is that of
    rounds and has length 1."""
    each = [[_arrays(getattr(*_place(algorithm, name))) for name in algorithm.numbers] for algorithm in algorithms]
    if len(each) == 1:
        return jax.tree.map(lambda a: a[None], each[0])
    return jax.tree.map(lambda *a: np.repeat(np.stack(a), repeats, axis=0)[None], *each)


def with_numbers(algorithm: Any, numbers: Any) -> Any:
    """The algorithm with these, which may be traced, in their places: no check looks at them again."""
    algorithm, mechanism = copy.copy(algorithm), copy.copy(algorithm.mechanism)
    object.__setattr__(algorithm, "mechanism", mechanism)
    for name, value in zip(algorithm.numbers, numbers, strict=True):
        object.__setattr__(*_place(algorithm, name), value)
    return algorithm


def _place(algorithm: Any, name: str) -> tuple[Any, str]:
    """The algorithm or its mechanism, and the field."""
    return (algorithm.mechanism if name.startswith("mechanism.") else algorithm), name.rpartition(".")[2]


def _arrays(value: Any) -> Any:
    if isinstance(value, Schedule):
        return _Traced(*np.broadcast_arrays(np.asarray(value.start), np.asarray(value.ratio)))
    return np.asarray(value, dtype=float)
