"""Minimisations over several parties' records at once, with the curvature of every one as a matrix: for a GPU.

Newton's method. A GPU waits whenever it is asked whether to go on, so a step should bring much: it takes the matrix of
second derivatives of each problem, and solves with it by a few steps of conjugate gradients on small matrices, which
touch no records. With many problems over the same records that matrix is one product: weighted curvatures, one row a
problem, times the products of all pairs of a record's entries, which are computed once. Half precision is enough for
them, since a matrix that is off by a thousandth costs no more than another step.

First in single precision and with the curvature of a quarter of the records; then, from a point where Newton's method
converges fast, with one matrix over all records for all further steps. Their gradients are in double precision over all
records, and the last one is what counts. Where curvatures of a problem differ by more than some thousands, half
precision is not enough: the last gradient tells, and callers have another solver.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coterie.minimisers import Minimiser, Subproblem
from coterie.minimisers.shared import ratio
from coterie.problems import Loss, Records, Regulariser, group_by_size, padded

# of the records, interleaved; those in the first matrices
PIECES, THIN = 16, 4
# features for each problem of a party, beyond which pairs do not pay
FEW_PROBLEMS = 8
# records x pairs of features kept
MOST_PAIRS = 2**30
# three and three are usual
MOST_TURNS, MOST_LAST_TURNS = 30, 20
# of the first gradient: from there on one matrix is enough
NEAR = 3e-3
# of a gradient in single precision, over its largest term
ROUNDING = 1e-5
# of conjugate gradients
FIRST_STEPS, LAST_STEPS, MOST_STEPS = 4, 8, 200
# what a solution may leave
SOLVED = 0.1


class Stack(NamedTuple):
    """Parties of similar size; pieces of their records, the last one filled up with rows of weight 0."""

    # (party, piece, record, feature)
    X: Any
    # (party, piece, record, 1)
    y: Any
    weight: Any
    # (party, 1, 1, 1) weight of all pieces over that of the first, whose curvature stands for all
    whole_over_first: Any
    # in half precision: rows, or products of all pairs of a row's entries; of the first pieces, of the rest
    half: Any


def with_pairs(n_records: int, d: int, n_problems: int) -> bool:
    """Whether products of pairs are kept, for so many records of all parties and problems of one."""
    return n_problems * FEW_PROBLEMS >= d and n_records * (d * (d + 1) // 2) <= MOST_PAIRS


def stack(records: Records, pairs: bool) -> Stack:
    """Of records with a leading party axis."""
    n_parties, n_records, d = records.X.shape
    fill = -n_records % PIECES

    def in_pieces(column):
        column = jnp.concatenate([column, jnp.zeros((n_parties, fill, *column.shape[2:]), column.dtype)], axis=1)
        return jnp.moveaxis(column.reshape(n_parties, -1, PIECES, *column.shape[2:]), 2, 1)

    X, y, weight = (in_pieces(jnp.asarray(column)) for column in records)
    first, second = np.triu_indices(d)
    # by their number rows are told from pairs, and of one feature there are as many
    pairs = pairs and d > 1

    def half(X):
        single = X.astype(jnp.float32)
        return (single[..., first] * single[..., second] if pairs else single).astype(jnp.bfloat16)

    weight = weight[..., None]
    whole, part = (jnp.sum(w, axis=(1, 2, 3), keepdims=True) for w in (weight, weight[:, :THIN]))
    return Stack(X, y[..., None], weight, ratio(whole, part), (half(X[:, :THIN]), half(X[:, THIN:])))


@dataclasses.dataclass(frozen=True)
class Matrices(Minimiser):
    """Of several parties; leaves of batches and results have axes (problem, party, ...). Norms of gradients should be,
    and need not be, within the tolerances."""

    # of the parties, by number of records
    sizes: tuple[int, ...]
    # whether products of pairs are kept
    pairs: bool

    def prepare(self, records: Sequence[Records]) -> list[Stack]:
        return [_stacked(padded([records[int(party)] for party in group]), self.pairs) for group in self._groups]

    def minimise(self, prepared: list[Stack], batch: Subproblem) -> tuple[jax.Array, jax.Array]:
        parts = []
        for parties, records in zip(self._groups, prepared, strict=True):
            own = jax.tree.map(lambda a, parties=parties: jnp.swapaxes(a[:, parties], 0, 1), batch)
            parts.append(minimise(self.loss, self.regulariser, records, own))
        back = np.argsort(np.concatenate(self._groups))
        return jax.tree.map(lambda *a: jnp.swapaxes(jnp.concatenate(a)[back], 0, 1), *parts)

    @property
    def _groups(self) -> list[np.ndarray]:
        return group_by_size(self.sizes)


_stacked = jax.jit(stack, static_argnums=1)


# a GPU would round single precision to ten bits
@jax.default_matmul_precision("highest")
def minimise(loss: Loss, regulariser: Regulariser, records: Stack, batch: Subproblem) -> tuple[jax.Array, jax.Array]:
    """For parties of similar size, with axes (party, problem, ...)."""
    convexity = regulariser.l2 + batch.curvature[..., None]
    linear = batch.linear - batch.curvature[..., None] * batch.target
    objective = _Objective(loss, records, convexity, linear)
    near = objective.in_single_precision().approach(batch.target.astype(jnp.float32))
    return objective.finish(near.astype(linear.dtype), batch.tolerance)


class _Turn(NamedTuple):
    f: jax.Array
    # that led there
    step: jax.Array
    # curvatures of the first pieces, in half precision
    bends: jax.Array
    gradient: jax.Array
    # norm of the last gradient that was not larger than the one before it
    before: jax.Array
    turns: jax.Array


class _Objective:
    """sum_n w_n loss(x_n . f, y_n) + (convexity/2) |f|^2 + linear . f"""

    def __init__(self, loss: Loss, records: Stack, convexity: jax.Array, linear: jax.Array) -> None:
        self.loss, self.records, self.convexity, self.linear = loss, records, convexity, linear

    def in_single_precision(self) -> "_Objective":
        *wide, half = self.records
        *wide, convexity, linear = (a.astype(jnp.float32) for a in (*wide, self.convexity, self.linear))
        return _Objective(self.loss, Stack(*wide, half), convexity, linear)

    def at(self, f: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Scores and gradient."""
        X, y, weight, *_ = self.records
        scores = jnp.einsum("pcnd,prd->pcnr", X, f)
        # piece by piece, or a long sum with a small result would keep a small part of a GPU busy
        data = jnp.sum(jnp.einsum("pcnr,pcnd->pcrd", weight * self.loss.slope(scores, y), X), axis=1)
        return scores, data + self.convexity * f + self.linear

    def first_bends(self, scores: jax.Array) -> jax.Array:
        """Weighted curvatures of the loss in the first pieces, which stand for all."""
        _, y, weight, whole_over_first, _ = self.records
        return (whole_over_first * weight * self.loss.curvature(scores, y))[:, :THIN].astype(jnp.bfloat16)

    def bends(self, scores: jax.Array) -> jax.Array:
        """Weighted curvatures of the loss in all pieces."""
        return (self.records.weight * self.loss.curvature(scores, self.records.y)).astype(jnp.bfloat16)

    def matrix(self, bends: jax.Array) -> jax.Array:
        """Second derivatives, (party, problem, d, d), in single precision, from curvatures of the first pieces or of
        all."""
        thin, rest = self.records.half
        d = self.linear.shape[-1]
        data = self._products(bends[:, :THIN], thin)
        if bends.shape[1] > THIN:
            data += self._products(bends[:, THIN:], rest)
        if data.ndim == 3:
            place = np.zeros((d, d), int)
            place[np.triu_indices(d)] = np.arange(data.shape[-1])
            data = data[..., np.maximum(place, place.T)]
        return data + self.convexity.astype(data.dtype)[..., None] * jnp.eye(d, dtype=data.dtype)[None, None]

    def _products(self, bends: jax.Array, half: jax.Array) -> jax.Array:
        """sum_n bend_n x_n x_n', of pairs (party, problem, pair), else (party, problem, d, d)."""
        merged = (half.shape[0], -1)
        bends, half = bends.reshape(*merged, bends.shape[-1]), half.reshape(*merged, half.shape[-1])
        if half.shape[-1] == self.linear.shape[-1]:
            return jnp.einsum("pnrd,pne->prde", bends[..., None] * half[:, :, None], half, preferred_element_type="f4")
        return jnp.einsum("pnr,pnk->prk", bends, half, preferred_element_type="f4")

    def approach(self, start: jax.Array) -> jax.Array:
        """From `start` until every gradient is near zero beside the first one. A step that made a gradient larger is
        halved."""

        def evaluated(f, step, before, turns):
            scores, gradient = self.at(f)
            return _Turn(f, step, self.first_bends(scores), gradient, before, turns)

        def going_on(turn: _Turn):
            return jnp.any(_norm(turn.gradient) > enough) & (turn.turns < MOST_TURNS)

        def move(turn: _Turn):
            norm = _norm(turn.gradient)
            rose = norm > turn.before
            newton = _solve(self.matrix(turn.bends), -turn.gradient, FIRST_STEPS)
            step = jnp.where(rose, turn.step / 2, newton)
            f = turn.f + jnp.where(rose, -step, step)
            before = jnp.where(rose, turn.before, norm)
            # what is near enough stays, or it would tell how long others took
            f, step, before = _where(norm > enough, (f, step, before), (turn.f, turn.step, turn.before))
            return evaluated(f, step, before, turn.turns + 1)

        unseen = jnp.full((*start.shape[:2], 1), jnp.inf, start.dtype)
        first = evaluated(start, jnp.zeros_like(start), unseen, jnp.zeros((), jnp.int32))
        enough = jnp.maximum(NEAR * _norm(first.gradient), ROUNDING * _norm(self.linear))
        last = jax.lax.while_loop(going_on, move, first)
        return jnp.where(_norm(last.gradient) > last.before, last.f - last.step, last.f)

    def finish(self, near: jax.Array, tolerance: jax.Array) -> tuple[jax.Array, jax.Array]:
        """From a point where all steps can be made with the matrix there."""
        scores, gradient = self.at(near)
        matrix = self.matrix(self.bends(scores))

        def going_on(carry):
            _, gradient, turns = carry
            return jnp.any(~(_norm(gradient)[..., 0] <= tolerance)) & (turns < MOST_LAST_TURNS)

        def move(carry):
            f, gradient, turns = carry
            # single precision cannot hold what is left of it
            size = jnp.maximum(_norm(gradient), 1e-300)
            step = _solve(matrix, -(gradient / size).astype(jnp.float32), LAST_STEPS)
            f = jnp.where(_norm(gradient) <= tolerance[..., None], f, f + size * step.astype(f.dtype))
            return f, self.at(f)[1], turns + 1

        f, gradient, _ = jax.lax.while_loop(going_on, move, (near, gradient, jnp.zeros((), jnp.int32)))
        return f, _norm(gradient)[..., 0]


class _System(NamedTuple):
    solution: jax.Array
    left: jax.Array
    direction: jax.Array
    # the matrix times that
    ahead: jax.Array
    fall: jax.Array
    length: jax.Array
    steps: jax.Array


def _solve(matrix: jax.Array, right: jax.Array, n_steps: int) -> jax.Array:
    """By conjugate gradients, each coordinate scaled by the diagonal: `n_steps` at once, and again until solved. In the
    form of Chronopoulos and Gear (1989) with both inner products of a step at one place: each place is a kernel."""
    scale = ratio(1.0, jnp.diagonal(matrix, axis1=-2, axis2=-1))

    def step(system: _System) -> _System:
        ready = scale * system.left
        image = jnp.sum(matrix * ready[..., None, :], axis=-1)
        fall, bend = _dot(system.left, ready), _dot(image, ready)
        turn = ratio(fall, system.fall)
        length = ratio(fall, bend - turn * ratio(fall, system.length))
        direction, ahead = ready + turn * system.direction, image + turn * system.ahead
        solution, left = system.solution + length * direction, system.left - length * ahead
        return _System(solution, left, direction, ahead, fall, length, system.steps + 1)

    def steps(system: _System) -> _System:
        for _ in range(n_steps):
            system = step(system)
        return system

    def unsolved(system: _System):
        return _norm(system.left) > SOLVED * _norm(right)

    def going_on(system: _System):
        return jnp.any(unsolved(system)) & (system.steps < MOST_STEPS)

    def again(system: _System) -> _System:
        after = steps(system)
        kept: _System = _where(unsolved(system), after, system)
        return kept._replace(steps=after.steps)

    nothing, none = jnp.zeros_like(right), jnp.zeros_like(right[..., :1])
    start = _System(nothing, right, nothing, nothing, none, none, jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(going_on, again, steps(start)).solution


def _where(which: jax.Array, yes: Any, no: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(which, a, b), yes, no)


def _dot(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.sum(a * b, axis=-1, keepdims=True)


def _norm(a: jax.Array) -> jax.Array:
    return jnp.sqrt(_dot(a, a))
