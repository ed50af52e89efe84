"""Rounds in which every party minimises a noised objective, on a GPU: all plans that share records in one program.

A GPU takes hardly longer for the minimisations of several plans than for those of one (`problems.explicit`). A block of
rounds in which one missed its tolerance is computed again as `rounds` computes it.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from coterie.engines import rounds
from coterie.engines.argmin_rounds import ArgminRounds, come_apart
from coterie.engines.buckets import group_by_size, make_buckets
from coterie.engines.compiling import loops_on_device
from coterie.engines.rounds import Program
from coterie.network.impairments import Impairments
from coterie.plan import Plan
from coterie.problems import explicit, shared
from coterie.problems.problem import Problem
from coterie.problems.shared import Pull

BLOCK = 10  # rounds at least before anybody is told: what lies between blocks takes as long as a round or two
MOST_SCORES = 2**28  # records x problems: bounds memory, and so does
MOST_ROWS = 2**31  # records x features x problems, where no pairs are kept


def fits(plan: Plan, impairments: Impairments | None, repeats: int) -> bool:
    """`repeats` of all plans that are to run together."""
    facts, loss = plan.facts, plan.problem.loss
    n_records, d = sum(facts.sizes), facts.n_features
    pairs = explicit.with_pairs(n_records, d, repeats)
    return (
        jax.default_backend() == "gpu"
        and come_apart(plan, impairments)
        and loss.n_outputs == 1
        and min(facts.sizes) * d >= shared.SMALLEST
        and n_records * repeats <= MOST_SCORES
        and (pairs or n_records * d * repeats <= MOST_ROWS)
    )


class Parties:
    """Records of all parties, on the device and ready for so many minimisations over each one's."""

    def __init__(self, problem: Problem, shards: Sequence[Any], n_problems: int) -> None:
        self.buckets = make_buckets(problem, shards)
        n_records, d = sum(len(shard.y) for shard in shards), self.buckets[0].X.shape[-1]
        pairs = explicit.with_pairs(n_records, d, n_problems)
        self.stacks = [_stack(bucket, pairs) for bucket in self.buckets]


_stack = jax.jit(explicit.stack, static_argnums=1)


@functools.lru_cache(maxsize=32)
def compiled(programs: tuple[Program, ...]) -> Callable[..., Any]:
    """As `rounds.compiled` of one program, with a list for each of states, tables and inputs, and `Parties` for
    records."""
    together = jax.jit(_Together(programs).advance, compiler_options=loops_on_device())

    def advance(states: list[Any], parties: Parties, tables: list[Any], start: float, count: int, inputs: list[Any]):
        after, released, met = together(states, parties.stacks, tables, start, count, inputs)
        for place in np.flatnonzero(~np.asarray(met)):
            one_by_one = rounds.compiled(programs[place])
            again = one_by_one(states[place], parties.buckets, tables[place], start, count, inputs[place])
            after[place], released[place] = again
        return after, released

    return advance


class _Together:
    def __init__(self, programs: tuple[Program, ...]) -> None:
        self.each = [ArgminRounds(program) for program in programs]
        self.problem = self.each[0].problem
        self.groups = group_by_size(programs[0].sizes)

    def advance(self, states, stacks, tables, start, count, inputs):
        """States after them, what was released, and whose minimisations met all tolerances."""
        outs = [jnp.zeros((r.repeats, r.program.block, r.program.release_width, r.d)) for r in self.each]
        ends = np.cumsum([r.repeats for r in self.each])[:-1]

        def one_round(k, carry):
            publics, outs = carry
            t = start + k
            asked = [
                r.before(public, table, t, own, k)
                for r, public, table, own in zip(self.each, publics, tables, inputs, strict=True)
            ]
            pulls = jax.tree.map(lambda *a: jnp.concatenate(a), *asked)
            minimisers = zip(*(jnp.split(a, ends) for a in self._minimisers(stacks, pulls)), strict=True)
            done = [
                r.after(public, table, t, own, k, *found)
                for r, public, table, own, found in zip(self.each, publics, tables, inputs, minimisers, strict=True)
            ]
            return [public for public, _ in done], [
                out.at[:, k].set(released) for out, (_, released) in zip(outs, done, strict=True)
            ]

        publics, outs = jax.lax.fori_loop(0, count, one_round, ([public for public, *_ in states], outs))
        after = [(public, *rest) for public, (_, *rest) in zip(publics, states, strict=True)]
        return after, outs, jnp.stack([jnp.all(jnp.isfinite(out)) for out in outs])

    def _minimisers(self, stacks, pulls: Pull) -> Any:
        """With axes (problem, party, ...), and so have minimisers and the norms of their gradients."""
        loss, penalty, parts = self.problem.loss, self.problem.penalty, []
        for parties, records in zip(self.groups, stacks, strict=True):
            own = jax.tree.map(lambda a, parties=parties: jnp.swapaxes(a[:, parties], 0, 1), pulls)
            parts.append(explicit.minimise(loss, penalty, records, own))
        back = np.argsort(np.concatenate(self.groups))
        return jax.tree.map(lambda *a: jnp.swapaxes(jnp.concatenate(a)[back], 0, 1), *parts)
