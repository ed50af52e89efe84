"""Exact minimisers of a party's part of a problem, behind one interface: each prepares records once, and minimises over
them as often as it is asked.

    argmin_f  sum_n w_n loss(x_n . f, y_n) + regulariser(f) + linear . f + (curvature/2) |f - target|^2

Each hands back the norm of the gradient at what it found, in double precision and over all records; a grant turns what
misses its tolerance into NaN, because the price of its noise relies on it. Fast minimisers may miss; whoever uses one
asks the plain one then (`unless_missed`).

| minimiser | of | batch | where |
|---|---|---|---|
| `one_party.Newton` | one party | one | anywhere: the plain one |
| `one_party.OneRecord` | one record with one score | one | anywhere, exact to rounding |
| `shared.SharedCurvature` | one party | (problem,) | large parties, problems that share their records |
| `matrices.Matrices` | several parties | (problem, party) | a GPU |
| `native.minimiser.Native` | several parties | (problem, party) | a processor, logistic loss, Numba |
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from coterie.problems import Loss, Regulariser

State = TypeVar("State")


class Subproblem(NamedTuple):
    """What differs between minimisations over the same records. With leading axes: a batch of them."""

    # (d,)
    linear: Any
    # (d,)
    target: Any
    curvature: Any
    # absolute, on the norm of the gradient
    tolerance: Any


@dataclasses.dataclass(frozen=True)
class Minimiser(abc.ABC):
    loss: Loss
    regulariser: Regulariser

    def prepare(self, records: Any) -> Any:
        """Whatever `minimise` needs of these records: of one party, or a sequence with those of several."""
        return records

    @abc.abstractmethod
    def minimise(self, prepared: Any, batch: Subproblem) -> tuple[Any, Any]:
        """Minimisers, and the norms of the gradients there."""


def unless_missed(found: tuple[State, Any], again: Callable[[], tuple[State, Any]]) -> tuple[State, Any]:
    """A state and what was released or contributed on the way to it; by `again`, with the plain minimiser, where a
    minimisation missed its tolerance: its grant has made that NaN then."""
    return found if all(np.isfinite(np.asarray(values)).all() for values in jax.tree.leaves(found[1])) else again()
