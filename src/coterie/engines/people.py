"""Rounds of broadcast-noised ADMM among people with one record each, with a number instead of a vector for a state.

What is computed is what `rounds` computes, in another order (`privacy.people_step`); a round reads everybody's row
twice and writes nothing as large. Rows that are exact in single precision are kept in it.
"""

import functools
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from coterie.algorithms import BroadcastNoisedADMM
from coterie.engines.inputs import RoundInputs
from coterie.engines.rounds import Program, at_round
from coterie.network.impairments import Impairments
from coterie.network.selection import All
from coterie.plan import Plan
from coterie.privacy.people_step import (
    People,
    PeopleStates,
    Solver,
    advance_people,
    few_enough,
    in_few_steps,
    with_search,
)
from coterie.privacy.proximal_grants import StateGrant
from coterie.privacy.release import unit_noise
from coterie.problems.problem import Records


def fits(plan: Plan, impairments: Impairments | None) -> bool:
    """People with one record and one score, all at work in every round, under the same grant."""
    index = plan.issued[1]
    return (
        type(plan.algorithm) is BroadcastNoisedADMM
        and isinstance(plan.algorithm.selection, All)
        and impairments is None
        and plan.facts.largest == 1
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
    centre = algorithm.inbox(t, public, program.topology)[0]  # everybody hears the same
    states, subtotal = advance_people(grant, problem, people, centre=centre, states=states, solve=solve)
    total = algorithm.channel.noised(subtotal, grant, noise).value
    return (algorithm.combine(t, public, total, program.topology), states, silence), total[None]
