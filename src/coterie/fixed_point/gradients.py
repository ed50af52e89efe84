"""Private gradient methods as noisy fixed-point iterations: R = I - (2/beta) grad f, lambda = step * beta / 2.

Propositions 1 and 2 of Cyffers, Bellet & Basu (2023). f is convex and beta-smooth, so R is non-expansive, and the
iteration is the textbook u -= step * (gradient + noise) of Bassily, Smith & Thakurta (2014) and, with coordinate
blocks, of Mangold, Bellet, Salmon & Tommasi (2022). `noise_std` is the noise on the gradient, beta / 2 times sigma.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import jax
import numpy as np

from coterie.data.checks import finite_array, positive_number, same_length, whole_number
from coterie.errors import InputError
from coterie.fixed_point.iteration import BlockIteration
from coterie.fixed_point.sensitivity import OwnRounds, PerBlock, WholeUpdate, not_negative
from coterie.network.selection import All, Selection
from coterie.privacy.events import Adjacency, check_adjacency
from coterie.problems.losses import Loss
from coterie.schedules import Schedule, as_schedule

Sampling = Literal["passes", "uniform"]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class EmpiricalRisk:
    """f(u) = (1/n) sum_i loss(x_i . u, y_i) + (l2/2) |u|^2, with the public bounds that a loss is stated from.

    Rows longer than `row_norm` are scaled down to it and entries beyond `column_bounds` are cut off, so both hold
    whatever the data are. `clip_norm` clips each record's gradient of the loss. With a single score this is again the
    gradient of a convex loss, as smooth as before, so R stays non-expansive; the minimiser may be another one.
    Under "replace-one" a neighbour has one other record; under "zero-out" one record adds nothing to the gradient.
    """

    X: np.ndarray
    y: np.ndarray
    loss: Loss
    row_norm: float
    adjacency: Adjacency
    l2: float = 0.0
    clip_norm: float | None = None
    column_bounds: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        X, y = finite_array("X", self.X, ndim=2), finite_array("y", self.y, ndim=1)
        same_length("y", y, len(X))
        check_adjacency(self.adjacency)
        positive_number("row_norm", self.row_norm)
        not_negative("l2", self.l2)
        if self.loss.n_outputs != 1:
            raise InputError(f"loss: got {self.loss}; a loss of one score is needed")
        if self.clip_norm is not None:
            positive_number("clip_norm", self.clip_norm)
        elif math.isinf(self.loss.lipschitz):
            raise InputError(f"clip_norm: got None; {self.loss} has unbounded slopes, so a positive number is needed")
        if self.loss.margin and not np.isin(y, (0, 1)).all():
            raise InputError(f"y: {self.loss} takes the labels 0 and 1; others are there")
        # the margin keeps rounding from leaving a row longer than the bound
        norms = np.linalg.norm(X, axis=1, keepdims=True)
        X = np.where(norms > self.row_norm, X * (1 - 1e-15) * (self.row_norm / np.maximum(norms, self.row_norm)), X)
        if self.column_bounds is not None:
            bounds = tuple(not_negative("column_bounds", bound) for bound in self.column_bounds)
            if len(bounds) != X.shape[1]:
                raise InputError(f"column_bounds: {len(bounds)} given for {X.shape[1]} columns; one each is needed")
            object.__setattr__(self, "column_bounds", bounds)
            X = np.clip(X, -np.asarray(bounds), bounds)
        object.__setattr__(self, "X", X)
        object.__setattr__(self, "y", y)

    @property
    def n_records(self) -> int:
        return self.X.shape[0]

    @property
    def n_features(self) -> int:
        return self.X.shape[1]

    @property
    def smoothness(self) -> float:
        """beta, of f and of every record's part of it."""
        return self.loss.smoothness * self.row_norm**2 + self.l2

    def gradient(self, u: np.ndarray, records: Sequence[int] | slice = slice(None)) -> np.ndarray:
        """grad f(u), or the gradient with the mean over `records` in place of the mean over all."""
        X = self.X[records]
        return X.T @ self._slopes(u, records) / len(X) + self.l2 * u

    def gradient_change(self, features: np.ndarray | None = None) -> float:
        """Bound on the change of one record's gradient, or of its part at `features`, between neighbours."""
        length = self.row_norm
        if self.column_bounds is not None:
            bounds = np.asarray(self.column_bounds)
            length = min(length, float(np.linalg.norm(bounds if features is None else bounds[features])))
        part = min(self.loss.lipschitz * length, math.inf if self.clip_norm is None else self.clip_norm)
        return 2 * part if self.adjacency == "replace-one" else part

    def _slopes(self, u: np.ndarray, records: Sequence[int] | slice) -> np.ndarray:
        with jax.enable_x64(True):
            slopes = np.asarray(self.loss.slope(self.X[records] @ u, self.y[records]))  # type: ignore[arg-type]
        if self.clip_norm is None:
            return slopes
        most = self._largest_slopes[records]
        return np.clip(slopes, -most, most)

    @functools.cached_property
    def _largest_slopes(self) -> np.ndarray:
        """|slope| |x| <= clip_norm; a row of zeros has no gradient to clip."""
        with np.errstate(divide="ignore", over="ignore"):
            return self.clip_norm / np.linalg.norm(self.X, axis=1)  # type: ignore[operator] - only used with clip_norm


def gradient_descent(risk: EmpiricalRisk, *, step: Schedule | float, noise_std: float) -> BlockIteration:
    """u -= step * (grad f(u) + N(0, noise_std^2 I)), with all records in every round."""
    return _descent(
        risk,
        step=step,
        noise_std=noise_std,
        blocks=(slice(0, risk.n_features),),
        selection=All(),
        sensitivity=WholeUpdate(2 / risk.smoothness * risk.gradient_change() / risk.n_records),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordSequence:
    """The public i_k: in "passes" over the records in their order, or "uniform" and independent, from the seed."""

    n_records: int
    sampling: Sampling
    seed: int = 0

    def __post_init__(self) -> None:
        whole_number("seed", self.seed, at_least=0)
        if self.sampling not in get_args(Sampling):
            raise InputError(f"sampling: got {self.sampling!r}; one of {', '.join(get_args(Sampling))} is needed")

    def __call__(self, k: int) -> int:
        if self.sampling == "passes":
            return k % self.n_records
        return int(np.random.default_rng([self.seed, k]).integers(self.n_records))


def stochastic_gradient_descent(
    risk: EmpiricalRisk, *, step: Schedule | float, noise_std: float, sampling: Sampling, seed: int = 0
) -> BlockIteration:
    """u -= step * (grad f_i(u) + N(0, noise_std^2 I)), with one record i = i_k in round k.

    The sequence is public, so no amplification by sampling is claimed: the loss is that of the record used most often.
    The operator is the full gradient's and the error e takes it back, as Proposition 1 has it, which costs a full pass
    over the data in every round.
    """
    record_of = RecordSequence(n_records=risk.n_records, sampling=sampling, seed=seed)

    def errors(k: int, u: np.ndarray) -> np.ndarray:
        return 2 / risk.smoothness * (risk.gradient(u) - risk.gradient(u, [record_of(k)]))

    return _descent(
        risk,
        step=step,
        noise_std=noise_std,
        blocks=(slice(0, risk.n_features),),
        selection=All(),
        errors=errors,
        sensitivity=OwnRounds(2 / risk.smoothness * risk.gradient_change(), record_of),
    )


def coordinate_descent(
    risk: EmpiricalRisk,
    *,
    step: Schedule | float,
    noise_std: float,
    selection: Selection,
    blocks: Sequence[Any] | None = None,
) -> BlockIteration:
    """u[b] -= step * (grad_b f(u) + N(0, noise_std^2 I)) for the selected blocks; by default each coordinate is one.

    Public `column_bounds` make a coordinate cheaper than the whole gradient.
    """
    if blocks is None:
        blocks = [[j] for j in range(risk.n_features)]
    iteration = _descent(risk, step=step, noise_std=noise_std, blocks=tuple(blocks), selection=selection)
    if iteration.n_coordinates != risk.n_features:
        raise InputError(f"blocks: {iteration.n_coordinates} coordinates given; all {risk.n_features} are needed")
    scale = 2 / risk.smoothness / risk.n_records
    bounds = tuple(scale * risk.gradient_change(block) for block in iteration.blocks)
    return dataclasses.replace(iteration, sensitivity=PerBlock(bounds, whole=scale * risk.gradient_change()))


def _descent(risk: EmpiricalRisk, *, step: Schedule | float, noise_std: float, **others: Any) -> BlockIteration:
    beta, step = risk.smoothness, as_schedule("step", step)
    if step.per_party or step.start > 2 / beta or step.ratio > 1:  # type: ignore[operator] - one number each
        raise InputError(f"step: got {step}; one number of at most 2 / smoothness = {2 / beta:g} is needed")
    return BlockIteration(
        operator=lambda u: u - 2 / beta * risk.gradient(u),
        relaxation=step.times(beta / 2),
        noise_std=2 / beta * not_negative("noise_std", noise_std),
        **others,
    )
