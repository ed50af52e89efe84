"""The general noisy fixed-point iteration, of which private gradient, coordinate and splitting methods are cases.

Algorithm 1 of Cyffers, Bellet & Basu (2023):

    u[b] += rho[k,b] lambda_k (R_b(u) + e[k,b] + eta[k+1,b] - u[b]),    eta ~ N(0, sigma^2 I)

    R        `operator`     non-expansive: |R(u) - R(v)| <= |u - v|
    b        `blocks`       the coordinates of each block
    rho      `selection`    which blocks work in round k
    lambda   `relaxation`   in (0, 1]
    e        `errors`       what an inexact or sampled operator adds
    sigma    `noise_std`    standard deviation of the noise
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from coterie.data.checks import finite_array, whole_number
from coterie.errors import InputError
from coterie.fixed_point.sensitivity import Sensitivity, as_sensitivity, not_negative
from coterie.network.selection import Selection
from coterie.network.topology import UNRESTRICTED, Topology, make_topology
from coterie.privacy import accountants
from coterie.privacy.events import Event, Gaussian, Unprotected
from coterie.privacy.noise import NoiseSource, SystemEntropy
from coterie.schedules import Schedule, as_schedule

Operator = Callable[[np.ndarray], np.ndarray]


class Trajectory(NamedTuple):
    """Everything a run shows."""

    points: np.ndarray  # (n_rounds + 1, n_coordinates), the start first
    table: np.ndarray  # (n_rounds, n_blocks), True where a block worked


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class BlockIteration:
    """A noisy block iteration, and the loss to somebody who sees all its points.

    `operator` and `errors` are functions of the data and of their arguments, and of nothing else. `solution` turns a
    point into a model; it must not see data.

    `sensitivity` declares how far the working blocks of R(u) + e move, in 2-norm and at any fixed u, when the data
    change to neighbouring data: a number for all of them together, one number per block where a record may move every
    block, or a `Sensitivity`. The stated loss is as true as this declaration, which cannot be checked from here; the
    instances of this package declare it from public bounds that they enforce.
    """

    operator: Operator
    blocks: tuple[np.ndarray, ...]  # slices are taken too
    relaxation: Schedule
    selection: Selection
    noise_std: float
    errors: Callable[[int, np.ndarray], np.ndarray] | None = None
    sensitivity: Sensitivity | None = None
    solution: Operator = lambda u: u

    def __post_init__(self) -> None:
        set_field = functools.partial(object.__setattr__, self)
        set_field("blocks", _disjoint_cover(self.blocks))
        set_field("relaxation", as_schedule("relaxation", self.relaxation))
        set_field("noise_std", not_negative("noise_std", self.noise_std))
        set_field("sensitivity", as_sensitivity(self.sensitivity))
        if self.relaxation.per_party:
            raise InputError(f"relaxation: got {self.relaxation}; one number for all blocks is needed")
        if self.relaxation.start > 1 or self.relaxation.ratio > 1:  # type: ignore[operator] - one number each
            raise InputError(f"relaxation: got {self.relaxation}; numbers in (0, 1] are needed in every round")
        if self.selection.secret:
            raise InputError(
                f"selection: got {self.selection}; a public seed is needed, for the loss counts its rounds"
            )
        self.selection.check(self._topology)
        if self.sensitivity is not None:
            self.sensitivity.check(self.n_blocks)

    @property
    def n_blocks(self) -> int:
        return len(self.blocks)

    @functools.cached_property
    def n_coordinates(self) -> int:
        return sum(len(block) for block in self.blocks)

    @functools.cached_property
    def _topology(self) -> Topology:
        return make_topology(UNRESTRICTED, self.n_blocks)

    def table(self, rounds: int) -> np.ndarray:
        """rho: (n_rounds, n_blocks), True where a block works."""
        return self.selection.table(whole_number("rounds", rounds, at_least=1), self._topology)

    def run(self, start: Any, rounds: int, noise: NoiseSource | None = None, *, repeat: int = 0) -> Trajectory:
        """The points of one run; blocks that do not work neither move nor draw noise.

        Without `noise` it comes from the operating system. Seeded noise is for research: nothing it makes is private.
        Every further run on the same data is a further release and pays again.
        """
        table = self.table(rounds)
        start = finite_array("start", start, ndim=1)
        if len(start) != self.n_coordinates:
            raise InputError(f"start: got {len(start)} numbers; the blocks have {self.n_coordinates} coordinates")
        if noise is None and self.noise_std > 0:
            noise = SystemEntropy()
        points = np.empty((rounds + 1, self.n_coordinates))
        points[0] = start
        for k, working in enumerate(table):
            points[k + 1] = points[k]
            if working.any():
                image = self._noiseless_image(k, points[k].copy())
                relaxation = float(self.relaxation(k))
                for b in np.flatnonzero(working):
                    block = self.blocks[b]
                    target = image[block]
                    if noise is not None and self.noise_std > 0:
                        unit = noise.draw("gaussian", len(block), repeat=repeat, party=int(b), t=k)
                        target = target + self.noise_std * unit
                    points[k + 1, block] += relaxation * (target - points[k, block])
        return Trajectory(points, table)

    def _noiseless_image(self, k: int, u: np.ndarray) -> np.ndarray:
        image = _same_shape("operator", self.operator(u), u)
        if self.errors is not None:
            image = image + _same_shape("errors", self.errors(k, u), u)
        return image

    def ledger(self, rounds: int) -> list[tuple[Event, int]]:
        """What the person who pays most has paid after `rounds` rounds.

        Given u, a round shows its working blocks of lambda (R(u) + e + eta) and nothing else: one Gaussian release
        with ratio sensitivity / noise_std, for lambda cancels. Rounds in which this person's data play no part are
        free.
        """
        table = self.table(rounds)
        if self.sensitivity is None or self.noise_std == 0:
            return [(Unprotected(), rounds)]
        ratios, counts = np.unique(self.sensitivity.per_round(table) / self.noise_std, return_counts=True)
        return [(Gaussian(float(r)), int(n)) for r, n in zip(ratios, counts, strict=True) if r > 0]

    def epsilon(self, rounds: int, delta: float, accountant: accountants.Accountant = "best") -> float:
        """The (epsilon, delta) loss of the whole trajectory; infinite without noise or without a declaration."""
        return accountants.epsilon(self.ledger(rounds), delta, accountant)


def _disjoint_cover(blocks: Sequence[Any]) -> tuple[np.ndarray, ...]:
    resolved = tuple(_indices(block) for block in blocks)
    covered = np.sort(np.concatenate(resolved)) if resolved else np.empty(0, dtype=int)
    if len(covered) == 0 or not np.array_equal(covered, np.arange(len(covered))):
        repeated = covered[:-1][np.diff(covered) == 0]
        missing = np.setdiff1d(np.arange(covered.max(initial=0) + 1), covered)
        fault = (
            f"coordinate {repeated[0]} is in two of them"
            if len(repeated)
            else f"coordinate {missing[0]} is in none of them"
        )
        raise InputError(f"blocks: {fault}; every coordinate from 0 on is needed exactly once")
    return resolved


def _indices(block: Any) -> np.ndarray:
    if isinstance(block, slice):
        if block.stop is None or block.stop < 0 or (block.start or 0) < 0:
            raise InputError(f"blocks: got {block}; a slice needs an end, counted from the front")
        block = range(block.stop)[block]
    indices = np.array(block)
    if indices.ndim != 1 or indices.size == 0 or indices.dtype.kind not in "iu" or indices.min() < 0:
        raise InputError(f"blocks: got {block!r}; each block is a slice or a list of coordinates >= 0, and not empty")
    indices.flags.writeable = False
    return indices


def _same_shape(name: str, value: Any, u: np.ndarray) -> np.ndarray:
    value = np.asarray(value, dtype=np.float64)
    if value.shape != u.shape:
        raise InputError(f"{name}: returned shape {value.shape}; the shape of its argument, {u.shape}, is needed")
    return value
