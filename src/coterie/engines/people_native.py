"""Rounds of sum-noised ADMM among people with one record each, whoever of them works, in machine code.

What is computed is what `rounds` computes (`privacy.people_moves`). A round of one run among a sample of people moves
little memory and computes less, so a run's rounds are one loop, and runs are spread over the cores: the one that draws
a run's noise has it in its cache when it needs it.
"""

import contextlib
import threading
from typing import Any, NamedTuple, cast

import jax
import numpy as np

from coterie import native
from coterie.algorithms import SumNoisedADMM
from coterie.native.cores import on_cores
from coterie.network.channels import Curator
from coterie.network.impairments import Impairments
from coterie.plan import Plan
from coterie.privacy import people_moves
from coterie.privacy.noise import NoiseSource, Seeded
from coterie.problems.problem import Records

ENOUGH_WORK = 2**26  # rounds x runs x people at work x features for which it pays to load Numba
BLOCK_WORK = 2**28  # of them in a block: about a tenth of a second, and a run's states are fetched once a block


def fits(plan: Plan, impairments: Impairments | None, repeats: int, enough_work: float = ENOUGH_WORK) -> bool:
    """People with one record and squared loss, all under the same grant, whose sum is noised by a curator."""
    algorithm, (grants, index) = plan.algorithm, plan.issued
    return (
        type(algorithm) is SumNoisedADMM
        and type(algorithm.channel) is Curator
        and impairments is None
        and plan.facts.largest == 1
        and people_moves.can_take(grants, plan.problem, plan.facts.n_parties)
        and bool(np.all(index == index[:, :1]))
        and algorithm.coordinator_regulariser.as_soft_threshold(1.0) is not None
        and _work(plan, repeats) >= enough_work
        and native.available()
        and jax.default_backend() == "cpu"
    )


def block_length(plan: Plan, repeats: int, most_blocks: int) -> int:
    """How many rounds are executed before progress is told."""
    blocks = min(most_blocks, plan.n_rounds, max(1, int(_work(plan, repeats) // BLOCK_WORK)))
    return -(-plan.n_rounds // blocks)


def _work(plan: Plan, repeats: int) -> float:
    at_work = plan.algorithm.selection.rate(plan.facts.n_parties) * plan.facts.n_parties
    return plan.n_rounds * repeats * at_work * plan.facts.n_features


class AtWork(NamedTuple):
    """Those who work in round t of a run are `who[begins[t] : ends[t]]`."""

    who: np.ndarray
    begins: np.ndarray
    ends: np.ndarray


class RunState(NamedTuple):
    at_work: AtWork
    people: np.ndarray  # their states, in lanes as their rows
    z_hat: np.ndarray  # (d,)


class Runs:
    """All runs of a plan among the people in the engine's only bucket, with states that change in place."""

    def __init__(self, plan: Plan, records: Records, source: NoiseSource, repeats: int) -> None:
        people_moves.check_kernel()
        self.plan, self.source, self.repeats = plan, source, repeats
        algorithm, n, (grants, index) = cast(SumNoisedADMM, plan.algorithm), plan.facts.n_parties, plan.issued
        self.d = plan.facts.n_features
        self.moves = people_moves.PeopleMoves(cast(Any, grants), index[:, 0], plan.problem.share(n), records)
        soft = algorithm.coordinator_regulariser.as_soft_threshold(algorithm.mechanism.prox_step / n)
        assert soft is not None
        self.centre = (*soft, float(n))
        # not every source can be asked by two threads at a time
        self.asking: Any = contextlib.nullcontext() if isinstance(source, Seeded) else threading.Lock()
        self.public = None if plan.algorithm.selection.secret else _public_participants(plan)
        self.under_way: dict[int, RunState] = {}
        self.left_over: list[np.ndarray] = []  # states of runs that are over, for those that begin

    def advance(self, start: int, count: int) -> np.ndarray:
        """`count` rounds from `start` on, where the last ones ended: what was released."""
        out = np.empty((self.repeats, count, 1, self.d))
        on_cores(lambda run: self._advance_run(run, start, out[run, :, 0]), range(self.repeats))
        return out

    def _advance_run(self, run: int, start: int, out: np.ndarray) -> None:
        state = self.under_way.pop(run, None) or self._begin(run)
        end = start + len(out)
        at_work, people, z_hat = state
        released = self.moves.advance(
            start, self._noise(run, start, len(out)), centre=self.centre, at_work=at_work, states=people, z_hat=z_hat
        )
        out[:] = released.value
        if end < self.plan.n_rounds:
            self.under_way[run] = state
        else:
            self.left_over.append(state.people)

    def _begin(self, run: int) -> RunState:
        """All zero, as `SumNoisedADMM.init` has it."""
        try:
            people = self.left_over.pop()
            people[:] = 0
        except IndexError:
            people = self.moves.states()
        return RunState(self._participants(run), people, np.zeros(self.d))

    def _participants(self, run: int) -> AtWork:
        """As `Selection.table` draws them."""
        if self.public is not None:
            return self.public
        plan = self.plan
        with self.asking:
            return _listed(plan.algorithm.selection.table(plan.n_rounds, plan.topology, self.source.coins(repeat=run)))

    def _noise(self, run: int, start: int, count: int) -> np.ndarray:
        """Unit draws for the curator, who has the place of party 0."""
        keys = np.zeros((count, 3), int)
        keys[:, 0], keys[:, 2] = run, np.arange(start, start + count)
        with self.asking:
            units = self.plan.draw(self.source, keys, "release")
        assert units is not None
        return units


def _public_participants(plan: Plan) -> AtWork:
    n_rounds, n = plan.n_rounds, plan.facts.n_parties
    if plan.participation is not None:
        return _listed(plan.participation)
    return AtWork(np.arange(n, dtype=np.uint32), np.zeros(n_rounds, int), np.full(n_rounds, n))


def _listed(table: np.ndarray) -> AtWork:
    """Round after round, in order."""
    from coterie.native import draws

    who, ends = np.empty(np.count_nonzero(table) + 1, np.uint32), np.empty(len(table), int)
    draws.list_heads(table, who, ends)
    return AtWork(who, np.concatenate([[0], ends[:-1]]), ends)
