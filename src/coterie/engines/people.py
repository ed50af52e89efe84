"""Rounds among people with one record each. What is computed is what `rounds` computes, in another order.

Where the sum of states is noised, a state is a number instead of a vector; a round reads everybody's row twice and
writes nothing as large. Rows that are exact in single precision are kept in it.

Where the sum of moves is noised, whoever works, it is machine code. A round of one run among a sample of people moves
little memory and computes less, so a run's rounds are one loop, and runs are spread over the cores: the one that draws
a run's noise has it in its cache when it needs it.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from coterie.algorithms import BroadcastNoisedADMM, SumNoisedADMM
from coterie.engines.rounds import Program, RoundInputs, at_round
from coterie.machine import on_cores
from coterie.network.channels import Curator, Impairments
from coterie.network.topology import All, Poisson
from coterie.plan import Plan
from coterie.privacy.for_engines import (
    People,
    PeopleMoves,
    PeopleStates,
    Solver,
    advance_people,
    can_take,
    check_kernel,
    few_enough,
    in_few_steps,
    with_search,
)
from coterie.privacy.noise import NoiseSource, Seeded
from coterie.privacy.proximal import StateGrant
from coterie.privacy.release import unit_noise
from coterie.problems import Records

# --- whose states' sum is noised --------------------------------------------------------------------------------------


def states_fit(plan: Plan, impairments: Impairments | None) -> bool:
    """Of people with one record: one score each, all at work in every round, under the same grant."""
    index = plan.issued[1]
    return (
        type(plan.algorithm) is BroadcastNoisedADMM
        and isinstance(plan.algorithm.selection, All)
        and impairments is None
        and plan.problem.loss.n_outputs == 1
        and bool(np.all(index == index[:, :1]))
        and all(few_enough(cast(StateGrant, grant), plan.facts.n_parties) for grant in plan.issued[0])
    )


def rows(records: Records) -> People:
    """From the engine's only bucket, (n_people, 1, ...)."""
    X, y, weight = (column[:, 0] for column in records)
    square = np.einsum("ij,ij->i", X, X)
    single = X.astype(np.float32)
    return People(single if np.array_equal(single, X) else X, y, weight, square)


def first_states(n_people: int, d: int) -> PeopleStates:
    """All zero, as `BroadcastNoisedADMM.init` has them."""
    return PeopleStates(jnp.zeros(d), jnp.zeros(n_people))


@functools.lru_cache(maxsize=32)
def compiled(program: Program) -> Callable[..., Any]:
    """A few steps that are enough for nearly everybody first; the search only for rounds in which they were not."""
    # a GPU that is not told how many rounds stops after each to ask
    told = (4,) if jax.default_backend() == "gpu" else ()
    few, search = (
        jax.jit(functools.partial(_advance, program, solve), static_argnums=told)
        for solve in (in_few_steps, with_search)
    )
    # losses with corners often take more, and quadratic ones no steps at all
    if not program.problem.loss.self_bounded:
        return search

    def advance(*arguments):
        state, out = few(*arguments)
        return (state, out) if np.all(np.isfinite(out)) else search(*arguments)

    return advance


def _advance(program: Program, solve: Solver, state, people: People, table, start, count, inputs: RoundInputs):
    """`count` rounds from `start` on: the state after them and what was released."""
    problem = program.problem.share(len(program.sizes))
    out = jnp.zeros((program.repeats, program.block, 1, program.d))

    def one_round(k, carry):
        state, out = carry
        now = at_round(inputs, k)
        scales = jax.tree.map(lambda column: column[now.grant[0]], table)
        grant = jax.tree.unflatten(program.grant, jax.tree.leaves(scales))
        each = functools.partial(_round, program, problem, people, grant, start + k, solve)
        state, released = jax.vmap(each)(state, unit_noise(*now.noise))
        return state, out.at[:, k].set(released)

    return jax.lax.fori_loop(0, count, one_round, (state, out))


def _round(program: Program, problem, people: People, grant, t, solve: Solver, state, noise):
    algorithm: Any = program.algorithm
    public, states, silence = state
    # everybody hears the same
    centre = algorithm.inbox(t, public, program.topology)[0]
    states, subtotal = advance_people(grant, problem, people, centre=centre, states=states, solve=solve)
    total = algorithm.channel.noised(subtotal, grant, noise).value
    return (algorithm.combine(t, public, total, program.topology), states, silence), total[None]


# --- whose moves' sum is noised, in machine code ----------------------------------------------------------------------

# rounds x runs x people at work x features for which it pays to load Numba
ENOUGH_WORK = 2**26
# of them in a block: about a tenth of a second, and a run's states are fetched once a block
BLOCK_WORK = 2**28


def moves_fit(plan: Plan, impairments: Impairments | None, repeats: int, enough_work: float = ENOUGH_WORK) -> bool:
    """Of people with one record: squared loss, all under the same grant, and a sum that is noised by a curator."""
    algorithm, (grants, index) = plan.algorithm, plan.issued
    return (
        type(algorithm) is SumNoisedADMM
        and type(algorithm.channel) is Curator
        and impairments is None
        and can_take(grants, plan.problem, plan.facts.n_parties)
        and bool(np.all(index == index[:, :1]))
        and algorithm.coordinator_regulariser.as_soft_threshold(1.0) is not None
        and _work(plan, repeats) >= enough_work
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
    # their states, in lanes as their rows
    people: np.ndarray
    # (d,)
    z_hat: np.ndarray


class Runs:
    """All runs of a plan among the people in the engine's only bucket, with states that change in place."""

    def __init__(self, plan: Plan, records: Records, source: NoiseSource, repeats: int) -> None:
        check_kernel()
        self.plan, self.source, self.repeats = plan, source, repeats
        algorithm, n, (grants, index) = cast(SumNoisedADMM, plan.algorithm), plan.facts.n_parties, plan.issued
        self.d = plan.facts.n_features
        self.moves = PeopleMoves(cast(Any, grants), index[:, 0], plan.problem.share(n), records)
        soft = algorithm.coordinator_regulariser.as_soft_threshold(algorithm.mechanism.prox_step / n)
        assert soft is not None
        self.centre = (*soft, float(n))
        # not every source can be asked by two threads at a time
        self.asking: Any = contextlib.nullcontext() if isinstance(source, Seeded) else threading.Lock()
        self.public = None if plan.algorithm.selection.secret else _public_participants(plan)
        self.under_way: dict[int, RunState] = {}
        # states of runs that are over, for those that begin
        self.left_over: list[np.ndarray] = []

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
        selection, n_rounds, topology = self.plan.algorithm.selection, self.plan.n_rounds, self.plan.topology
        with self.asking:
            coins = self.source.coins(repeat=run)
            if isinstance(selection, Poisson):
                return _listed(selection.at_work(n_rounds, topology, coins), topology.n_parties)
            return _of_table(selection.table(n_rounds, topology, coins))

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
        return _of_table(plan.participation)
    return AtWork(np.arange(n, dtype=np.uint32), np.zeros(n_rounds, int), np.full(n_rounds, n))


def _of_table(table: np.ndarray) -> AtWork:
    return _listed([(len(table), np.flatnonzero(table))], table.shape[1])


def _listed(parts: Iterable[tuple[int, np.ndarray]], n_people: int) -> AtWork:
    """Round after round, in order; parts are as `Poisson.at_work` has them."""
    from coterie.native import draws

    listed, ends = [], [np.zeros(1, int)]
    for n_rounds, places in parts:
        listed.append(np.empty(len(places), np.uint32))
        ends.append(np.empty(n_rounds, int))
        draws.split_rows(places, n_people, listed[-1], ends[-1])
        ends[-1] += ends[-2][-1]
    bounds = np.concatenate(ends)
    return AtWork(np.concatenate(listed), bounds[:-1], bounds[1:])
