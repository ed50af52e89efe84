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
from coterie.network.selection import Poisson
from coterie.plan import Plan
from coterie.privacy import people_moves
from coterie.privacy.noise import KEYS_AT_ONCE, Law, NoiseSource, Seeded, draw_many
from coterie.privacy.seeded_streams import load_machine_code
from coterie.problems.local import Records

ENOUGH_WORK = 2**26  # rounds x runs x people at work x features for which it pays to load Numba
BLOCK_WORK = 2**28  # of them in a block: about a tenth of a second, and a run's states are fetched once a block


def fits(plan: Plan, impairments: Impairments | None, repeats: int) -> bool:
    """People with one record and squared loss, all under the same grant, whose sum is noised by a curator."""
    algorithm, (grants, index) = plan.algorithm, plan.issued
    return (
        type(algorithm) is SumNoisedADMM
        and type(algorithm.channel) is Curator
        and impairments is None
        and plan.facts.largest == 1
        and people_moves.can_take(grants, plan.problem)
        and bool(np.all(index == index[:, :1]))
        and algorithm.coordinator_penalty.as_soft_threshold(1.0) is not None
        and _work(plan, repeats) >= ENOUGH_WORK
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
        from coterie.native import lanes, moves

        load_machine_code()  # for noise: a block's alone may be too little to ask for it
        self.plan, self.source, self.repeats, self.native, self.lanes = plan, source, repeats, moves, lanes
        algorithm, n, (grants, index) = cast(SumNoisedADMM, plan.algorithm), plan.facts.n_parties, plan.issued
        self.d, self.chunks = plan.facts.n_features, moves.chunks(plan.facts.n_features)
        self.scales = people_moves.scales_by_round(grants, index[:, 0], plan.problem.share(n))
        self.people = people_moves.people_of(records, self.scales.radius)
        soft = algorithm.coordinator_penalty.as_soft_threshold(algorithm.mechanism.step / n)
        assert soft is not None
        self.centre = moves.Centre(*soft, float(n))
        self.law: Law = algorithm.mechanism.law
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
        self._draw_noise(run, start, out)
        scales = self.scales
        if len(scales.radius) > 1:
            scales = type(scales)(*(column[start:end] for column in scales))
        who, begins, ends = state.at_work
        room = self.lanes.aligned(3 * self.chunks, self.lanes.LANES)
        self.native.advance(
            self.people, scales, self.centre, who, begins[start:end], ends[start:end], *state[1:], room, out
        )
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
            people = self.lanes.aligned(len(self.people.rows), self.lanes.LANES)
        return RunState(self._participants(run), people, np.zeros(self.d))

    def _participants(self, run: int) -> AtWork:
        """As `Selection.table` draws them."""
        if self.public is not None:
            return self.public
        plan, source = self.plan, self.source
        selection, n_rounds, n = plan.algorithm.selection, plan.n_rounds, plan.facts.n_parties
        if isinstance(selection, Poisson) and isinstance(source, Seeded):
            who, ends = source.coins_below(selection.probability, n_rounds, n, repeat=run)
            return AtWork(who, np.concatenate([[0], ends[:-1]]), ends)
        with self.asking:
            return _listed(selection.table(n_rounds, plan.topology, source.coins(repeat=run)))

    def _draw_noise(self, run: int, start: int, out: np.ndarray) -> None:
        """Unit draws for the curator, who has the place of party 0."""
        for first in range(0, len(out), KEYS_AT_ONCE):
            part = out[first : first + KEYS_AT_ONCE]
            keys = np.zeros((len(part), 3), int)
            keys[:, 0], keys[:, 2] = run, np.arange(start + first, start + first + len(part))
            with self.asking:
                part[:] = draw_many(self.source, self.law, self.d, keys, "release")


def _public_participants(plan: Plan) -> AtWork:
    n_rounds, n = plan.n_rounds, plan.facts.n_parties
    if plan.participation is not None:
        return _listed(plan.participation)
    return AtWork(np.arange(n, dtype=np.uint32), np.zeros(n_rounds, int), np.full(n_rounds, n))


def _listed(table: np.ndarray) -> AtWork:
    ends = np.cumsum(table.sum(axis=1))
    return AtWork(np.nonzero(table)[1].astype(np.uint32), np.concatenate([[0], ends[:-1]]), ends)
