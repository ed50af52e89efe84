"""Rounds of a plan as one compiled function: repeats are vectorised, parties mapped in batches, rounds looped.

It calls `inbox`, `local`, `Channel.aggregate` and `combine`, as engines between organisations do, and nothing else.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from coterie.algorithms.algorithm import Heard
from coterie.engines.buckets import group_by_size
from coterie.engines.inputs import RoundInputs
from coterie.impairments import ImpairedTopology
from coterie.plan import Plan
from coterie.privacy.release import unit_noise

BATCH_ELEMENTS = 2**25  # records x features x repeats worked on at once: bounds memory


@functools.lru_cache(maxsize=32)
def rounds_of(plan: Plan, repeats: int, block: int, remembers: bool) -> Callable[..., Any]:
    """Kept, because a plan is often run more than once and compiling takes longer than running."""
    return jax.jit(Rounds(plan, repeats, block, remembers).advance, donate_argnums=0)


class Rounds:
    """Holds no data: only what a plan says."""

    def __init__(self, plan: Plan, repeats: int, block: int, remembers: bool) -> None:
        self.plan, self.repeats, self.block, self.remembers = plan, repeats, block, remembers
        self.n_parties, self.d = plan.facts.n_parties, plan.problem.n_coefficients(plan.facts)
        self.groups = group_by_size(plan.facts.sizes)

    def advance(self, state, records, table, start, count, inputs: RoundInputs):
        """`count` rounds from `start` on: the state after them and what was released."""
        out = jnp.zeros((self.repeats, self.block, self.plan.release_width, self.d))

        def one_round(k, carry):
            state, out = carry
            now = jax.tree.map(lambda a: a[k % a.shape[0]], inputs)
            scales = jax.tree.map(lambda column: column[now.grant], table)
            state, released = self._round(state, records, scales, start + k, now)
            return state, out.at[:, k].set(released)

        return jax.lax.fori_loop(0, count, one_round, (state, out))

    def _round(self, state, records, scales, t, now: RoundInputs):
        algorithm, plan = self.plan.algorithm, self.plan
        topology: Any = plan.topology if now.delivery is None else ImpairedTopology(plan.topology, now.delivery)
        public, private, last = state
        noise = unit_noise(*now.noise)
        inbox = jax.vmap(lambda pub: algorithm.inbox(t, pub, topology))(public)
        if now.who is not None:
            private, values = self._some(now.who, records, scales, private, inbox, noise)
            received, released = jax.vmap(Heard)(now.who, values), values
        elif algorithm.channel.aggregates:
            after, parts = self._everybody(records, scales, private, inbox, None)
            if now.works is not None:
                works = jnp.broadcast_to(now.works, (self.repeats, self.n_parties))
                after = _where(works, after, private)
                absent = last if self.remembers else jax.tree.map(jnp.zeros_like, parts.value)
                parts = jax.tree.map(lambda new: jnp.where(works[..., None], new, absent), parts)
                last = parts.value if self.remembers else last
            private, grant = after, plan.as_grant([s[0] for s in jax.tree.leaves(scales)])
            total = jax.vmap(lambda part, n: algorithm.channel.aggregate(part, grant, n))(parts, noise)  # type: ignore[attr-defined]
            received, released = total.value, total.value[:, None]
        else:
            private, outs = self._everybody(records, scales, private, inbox, noise)
            received = outs.value
            if now.delivery is not None:
                received = last = jnp.where(now.delivery.speaks[:, None], received, last)
            released = received
        public = jax.vmap(lambda pub, got: algorithm.combine(t, pub, got, topology))(public, received)
        return (public, private, last), released

    def _everybody(self, records, scales, private, inbox, noise):
        """All repeats of all parties; results have axes (repeat, party, ...)."""
        parts = [
            self._bucket(parties, data, scales, private, inbox, noise)
            for parties, data in zip(self.groups, records, strict=True)
        ]
        if len(parts) == 1:  # in order already
            return parts[0]
        back = np.argsort(np.concatenate(self.groups))
        return jax.tree.map(lambda *a: jnp.concatenate(a, axis=1)[:, back], *parts)

    def _some(self, who, records, scales, private, inbox, noise):
        """The parties `who`, (repeat, place); values of nobody are zero."""

        def of_those(tree):
            return jax.tree.map(lambda a: jax.vmap(lambda row, places: row[places])(a, who), tree)

        somebody = who < self.n_parties
        if len(self.groups) == 1:
            data = jax.tree.map(lambda a: a[who], records[0])
            theirs = jax.tree.map(lambda a: a[who], scales)
            args = (theirs, data, of_those(private), of_those(inbox), noise)
            after, outs = jax.vmap(jax.vmap(lambda *a: self._local(*a)))(*args)
            private = jax.vmap(lambda old, new, places: jax.tree.map(lambda o, n: o.at[places].set(n), old, new))(
                private, after, who
            )
        else:  # parties of different sizes lie in different arrays: everybody works and only `who` counts
            spread = jax.vmap(lambda row, places: jnp.zeros((self.n_parties, row.shape[-1])).at[places].set(row))
            after, everything = self._everybody(
                records, scales, private, inbox, jax.tree.map(lambda n: spread(n, who), noise)
            )
            works = jax.vmap(lambda places: jnp.zeros(self.n_parties, bool).at[places].set(True))(who)
            private, outs = _where(works, after, private), of_those(everything)
        return private, jnp.where(somebody[..., None], outs.value, 0.0)

    def _local(self, scales, records, private, inbox, noise):
        grant = self.plan.as_grant(jax.tree.leaves(scales))
        problem = self.plan.problem.share(self.n_parties)
        return self.plan.algorithm.local(grant, problem, records, private, inbox, noise)

    def _bucket(self, parties: np.ndarray, records, scales, private, inbox, noise):
        """All repeats of the parties of one bucket."""

        def one_party(args):
            scales, records, *by_repeat = args
            return jax.vmap(lambda *a: self._local(scales, records, *a))(*by_repeat)

        whole = len(parties) == self.n_parties

        def party_first(tree):
            return jax.tree.map(lambda a: jnp.moveaxis(a if whole else a[:, parties], 1, 0), tree)

        args = (
            jax.tree.map(lambda a: a if whole else a[parties], scales),
            records,
            *(party_first(tree) for tree in (private, inbox, noise)),
        )
        batch = max(1, BATCH_ELEMENTS // (records.X[0].size * self.repeats))
        at_once = batch >= len(parties)
        mapped = jax.vmap(one_party)(args) if at_once else jax.lax.map(one_party, args, batch_size=batch)
        return jax.tree.map(lambda a: jnp.moveaxis(a, 0, 1), mapped)


def _where(works, new, old):
    """Leaves (repeat, party, ...) of those who work from `new`, of the others from `old`."""
    return jax.tree.map(lambda n, o: jnp.where(works.reshape(works.shape + (1,) * (n.ndim - 2)), n, o), new, old)
