"""Rounds of any plan: one compiled function in which repeats are vectorised, parties mapped in batches, rounds looped.

It calls `inbox`, `local`, `Channel.aggregate` and `combine`, as engines between organisations do, and nothing else.
"""

import dataclasses
import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from coterie.algorithms.algorithm import Algorithm, Heard
from coterie.engines.inputs import RoundInputs, numbers_in, with_numbers, without_numbers
from coterie.engines.xla import simple_code
from coterie.minimisers import unless_missed
from coterie.minimisers.one_party import solved_together, together
from coterie.network.impairments import ImpairedTopology
from coterie.network.selection import All
from coterie.network.topology import Topology
from coterie.plan import Plan
from coterie.privacy.release import unit_noise
from coterie.problems import Problem, group_by_size

# records x features x repeats worked on at once: bounds memory
BATCH_ELEMENTS = 2**25
# on a GPU; arrays of scores, slopes, ... of repeats that share records
GPU_BATCH_ELEMENTS, SCORES = 2**28, 8


@dataclasses.dataclass(frozen=True)
class Program:
    """All of a plan that is compiled in. Grants are not, nor is a number that only they or `combine` depend on."""

    algorithm: Algorithm
    problem: Problem
    topology: Topology
    sizes: tuple[int, ...]
    d: int
    release_width: int
    # its pytree structure
    grant: Any
    repeats: int
    block: int
    remembers: bool
    # all parties have the same grant in a round
    alike: bool = False
    # compiled with `simple_code`
    simple: bool = False
    # that run side by side, each with repeats / plans of the repeats
    plans: int = 1
    # records x features of a party, see `solved_together`
    together_from: float | None = None

    @classmethod
    def of(
        cls,
        plan: Plan,
        repeats: int,
        block: int,
        *,
        remembers: bool = False,
        plans: int = 1,
        together_from: float | None = None,
        simple_below: float = 0.0,
    ) -> "Program":
        """`simple_below`: rounds x repeats x records x features up to which a plan in which only some parties work is
        compiled with `simple_code`; one in which all do always is."""
        mechanism: Any = plan.algorithm.mechanism.beyond_grants()
        index = plan.issued[1]
        work = plan.n_rounds * repeats * sum(plan.facts.sizes) * plan.facts.n_features
        algorithm: Any = dataclasses.replace(plan.algorithm, mechanism=mechanism)
        return cls(
            algorithm=without_numbers(algorithm, numbers_in(plan)),
            problem=plan.problem,
            topology=plan.topology,
            sizes=plan.facts.sizes,
            d=plan.problem.n_coefficients(plan.facts),
            release_width=plan.release_width,
            grant=jax.tree.structure(plan.issued[0][0]),
            repeats=repeats,
            block=block,
            remembers=remembers,
            alike=bool(np.all(index == index[:, :1])),
            simple=isinstance(plan.algorithm.selection, All) or work < simple_below,
            plans=plans,
            together_from=together_from,
        )


@functools.lru_cache(maxsize=32)
def compiled(program: Program) -> Callable[..., Any]:
    """Kept, because a plan is often run more than once and compiling takes longer than running."""
    # a state from which rounds may have to be computed again stays
    donated = 0 if program.together_from is None else ()
    options = simple_code() if program.simple else None
    return jax.jit(Rounds(program).advance, donate_argnums=donated, compiler_options=options)


def advance(program: Program, *arguments: Any) -> tuple[Any, Any]:
    """`Rounds.advance`, with fast minimisers where the program says so; with plain ones else, and where these miss."""
    if program.together_from is None:
        return compiled(program)(*arguments)
    with solved_together(program.together_from):
        found = compiled(program)(*arguments)
    return unless_missed(found, lambda: advance(dataclasses.replace(program, together_from=None), *arguments))


class Rounds:
    """Holds no data: only what a plan says."""

    def __init__(self, program: Program) -> None:
        self.program, self.algorithm, self.topology = program, program.algorithm, program.topology
        self.repeats, self.remembers, self.d = program.repeats, program.remembers, program.d
        self.n_parties, self.joined = len(program.sizes), program.plans > 1
        self.problem = program.problem.share(self.n_parties)
        self.groups = group_by_size(program.sizes)

    def advance(self, state, records, table, start, count, inputs: RoundInputs):
        """`count` rounds from `start` on: the state after them and what was released."""
        out = jnp.zeros((self.repeats, self.program.block, self.program.release_width, self.d))

        def one_round(k, carry):
            state, out = carry
            now = at_round(inputs, k)
            state, released = self._round(state, records, self.scales(table, now), start + k, now)
            return state, out.at[:, k].set(released)

        return jax.lax.fori_loop(0, count, one_round, (state, out))

    def scales(self, table, now: RoundInputs):
        """Of everybody's grants in this round; of several plans, by repeat."""
        scales = jax.tree.map(lambda column: column[now.grant], table)
        if self.joined:
            scales = jax.tree.map(lambda a: jnp.repeat(a, self.repeats // len(a), axis=0), scales)
        return scales

    def combined(self, t, public, received, now: RoundInputs, topology):
        def one(numbers, public, received):
            return with_numbers(self.algorithm, numbers).combine(t, public, received, topology)

        return jax.vmap(one, (0 if self.joined else None, 0, 0))(now.numbers, public, received)

    def _round(self, state, records, scales, t, now: RoundInputs):
        algorithm = self.algorithm
        topology: Any = self.topology if now.delivery is None else ImpairedTopology(self.topology, now.delivery)
        public, private, last = state
        noise = unit_noise(*now.noise)
        inbox = jax.vmap(lambda pub: algorithm.inbox(t, pub, topology))(public)
        if algorithm.channel.aggregates:
            if now.who is not None:
                private, parts = self._some(now, records, scales, private, inbox, None)
            else:
                after, parts = self._everybody(records, scales, private, inbox, None)
                if now.works is not None:
                    works = jnp.broadcast_to(now.works, (self.repeats, self.n_parties))
                    after = _where(works, after, private)
                    absent = last if self.remembers else jax.tree.map(jnp.zeros_like, parts.value)
                    parts = jax.tree.map(lambda new: jnp.where(works[..., None], new, absent), parts)
                    last = parts.value if self.remembers else last
                private = after
            # a sum has one grant
            one = jax.tree.map(lambda s: s[..., 0], scales)
            noised = jax.vmap(self._aggregate, (0, 0, 0 if self.joined else None))
            total = noised(parts, noise, one)
            received, released = total.value, total.value[:, None]
        elif now.who is not None:
            private, outs = self._some(now, records, scales, private, inbox, noise)
            received, released = jax.vmap(Heard)(now.who, outs.value), outs.value
        else:
            private, outs = self._everybody(records, scales, private, inbox, noise)
            received = outs.value
            if now.delivery is not None:
                received = last = jnp.where(now.delivery.speaks[:, None], received, last)
            released = received

        public = self.combined(t, public, received, now, topology)
        return (public, private, last), released

    def _everybody(self, records, scales, private, inbox, noise, with_data=None):
        """All repeats of all parties; results have axes (repeat, party, ...)."""
        parts = []
        for parties, data in zip(self.groups, records, strict=True):
            parts.append(self._bucket(parties, data, scales, private, inbox, noise, with_data))
        # in order already
        if len(parts) == 1:
            return parts[0]
        back = np.argsort(np.concatenate(self.groups))
        return jax.tree.map(lambda *a: jnp.concatenate(a, axis=1)[:, back], *parts)

    def _some(self, now: RoundInputs, records, scales, private, inbox, noise):
        """The parties `now.who`, (repeat, place); values of nobody are zero."""
        who = now.who

        def of_those(tree):
            return jax.tree.map(lambda a: jax.vmap(lambda row, places: row[places])(a, who), tree)

        somebody = who < self.n_parties
        if len(self.groups) == 1:
            data = jax.tree.map(lambda a: a[who], records[0])
            alike = self.program.alike
            theirs = jax.tree.map(lambda a: a[0] if alike else a[who], scales)
            args = (data, of_those(private), of_those(inbox), noise, now.with_data)
            axes = (None if alike else 0, *[0] * len(args))
            after, outs = jax.vmap(jax.vmap(self._local, axes), axes)(theirs, *args)
            private = jax.vmap(lambda old, new, places: jax.tree.map(lambda o, n: o.at[places].set(n), old, new))(
                private, after, who
            )
        else:
            # parties of different sizes lie in different arrays: everybody works and only `who` counts
            spread = jax.vmap(lambda row, places: jnp.zeros((self.n_parties, row.shape[-1])).at[places].set(row))
            everyone = jax.tree.map(lambda n: spread(n, who), noise)
            with_data = None if now.with_data is None else spread(now.with_data[..., None], who)[..., 0]
            after, everything = self._everybody(records, scales, private, inbox, everyone, with_data)
            works = jax.vmap(lambda places: jnp.zeros(self.n_parties, bool).at[places].set(True))(who)
            private, outs = _where(works, after, private), of_those(everything)
        return private, jax.tree.map(lambda a: jnp.where(somebody[..., None], a, 0.0), outs)

    def _local(self, scales, records, private, inbox, noise, with_data=None):
        # records without weight say nothing
        if with_data is not None:
            records = records._replace(weight=records.weight * with_data)
        return self.algorithm.local(self.grant(scales), self.problem, records, private, inbox, noise)

    def _aggregate(self, parts, noise, scales):
        channel: Any = self.algorithm.channel
        return channel.aggregate(parts, self.grant(scales), noise)

    def grant(self, scales):
        return jax.tree.unflatten(self.program.grant, jax.tree.leaves(scales))

    def _bucket(self, parties: np.ndarray, records, scales, private, inbox, noise, with_data):
        """All repeats of the parties of one bucket."""

        # repeats share their records, and those of one plan their grants
        axes = (0 if self.joined else None, None, 0, 0, 0, 0)

        def one_party(args):
            return jax.vmap(self._local, axes)(*args)

        whole = len(parties) == self.n_parties

        def party_first(tree):
            return jax.tree.map(lambda a: jnp.moveaxis(a if whole else a[:, parties], 1, 0), tree)

        args = (
            party_first(scales) if self.joined else jax.tree.map(lambda a: a if whole else a[parties], scales),
            records,
            *(party_first(tree) for tree in (private, inbox, noise, with_data)),
        )
        batch = self._batch_of(records.X[0])
        if batch <= 1:
            mapped = jax.lax.map(one_party, args)
        elif batch >= len(parties):
            mapped = jax.vmap(one_party)(args)
        else:
            mapped = jax.lax.map(one_party, args, batch_size=batch)
        return jax.tree.map(lambda a: jnp.moveaxis(a, 0, 1), mapped)

    def _batch_of(self, X) -> int:
        """How many parties with as many records are worked on at once."""
        smallest, problem = self.program.together_from, self.problem
        if smallest is None or not together(problem.loss, problem.regulariser, X.size, smallest):
            return BATCH_ELEMENTS // (X.size * self.repeats)
        # which idles while it works for one party
        if jax.default_backend() == "gpu":
            return GPU_BATCH_ELEMENTS // (X.size + SCORES * len(X) * self.repeats)
        # matrix products of several parties at once are slower than one after another
        return 1


def at_round(inputs: RoundInputs, k: Any) -> RoundInputs:
    return jax.tree.map(lambda a: a[k % a.shape[0]], inputs)


def _where(works, new, old):
    """Leaves (repeat, party, ...) of those who work from `new`, of the others from `old`."""
    return jax.tree.map(lambda n, o: jnp.where(works.reshape(works.shape + (1,) * (n.ndim - 2)), n, o), new, old)


def at_a_time(repeats: int, n_parties: int, d: int, most_bytes: int) -> int:
    """How many repeats are best run at a time where only some parties work: a divisor of all, or all where there is
    nothing to gain.

    A round moves much then and computes little. Picked rows and states of all repeats together outgrow the caches, and
    XLA picks rows on one core; those of a few repeats stay in the cache of the core that works on them.
    """
    if jax.default_backend() != "cpu":
        return repeats
    fitting = max(1, most_bytes // (8 * n_parties * d))
    return max(k for k in range(1, min(repeats, fitting) + 1) if repeats % k == 0)


def advance_some_at_a_time(program: Program, repeats: int, state: Any, *arguments: Any) -> tuple[list[Any], np.ndarray]:
    """`advance` of all repeats from that of `program.repeats` of them; states stay apart from one call to the next."""
    some, (*fixed, inputs) = program.repeats, arguments
    starts = range(0, repeats, some)
    if not isinstance(state, list):
        state = [jax.tree.map(lambda a, start=start: a[start : start + some], state) for start in starts]

    def part(start: int) -> Any:
        mine = _of_repeats(inputs, slice(start, start + some))
        # each thread has a setting of its own
        with jax.enable_x64(True):
            return jax.block_until_ready(advance(program, state[start // some], *fixed, mine))

    # compiles, where that has not been done yet
    first = part(0)
    with ThreadPoolExecutor(os.cpu_count()) as cores:
        states, released = zip(*[first, *cores.map(part, starts[1:])], strict=True)
    return list(states), np.concatenate(released)


def _of_repeats(inputs: RoundInputs, here: slice) -> RoundInputs:
    """Of a single plan, whose grants, numbers and deliveries are those of all repeats."""
    by_repeat = inputs.who, inputs.works, inputs.with_data, inputs.noise
    who, works, with_data, noise = jax.tree.map(lambda a: a[:, here], by_repeat)
    return inputs._replace(who=who, works=works, with_data=with_data, noise=noise)
