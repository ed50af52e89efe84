"""Steps of some of a plan's parties, where the others are elsewhere: of those at one process of a cluster, or of the
one party at a site. The same `local`, grants and noise as in process, on the paths of `engines.in_process` that fit.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from coterie.algorithms.algorithm import Algorithm, Heard
from coterie.engines.argmin import ArgminRounds
from coterie.engines.in_process import Paths, Work, choose
from coterie.engines.moments import sent_by
from coterie.engines.rounds import Program, simple_code
from coterie.minimisers import unless_missed
from coterie.minimisers.native.minimiser import Native
from coterie.minimisers.one_party import solved_together
from coterie.network.topology import All, Topology
from coterie.plan import Plan
from coterie.privacy.noise import NoiseSource
from coterie.privacy.pairs import PairStreams
from coterie.privacy.release import Release, contribute, unit_noise
from coterie.problems import make_buckets
from coterie.transcript import who_released

# of `engines.in_process`: for some parties alone
PATHS = ("argmin in machine code", "solved together", "general")


class _Together(ArgminRounds):
    """Of parties that are compiled together."""

    def __init__(self, program: Program, n_parties: int) -> None:
        super().__init__(program)
        # of all, not only of those here
        self.problem = program.problem.share(n_parties)

    def all(self, records: Any, scales: Any, private: Any, inbox: Any, noise: Any, with_data: Any) -> tuple[Any, Any]:
        """States afterwards, and what is released or contributed."""
        return self._everybody(records, scales, private, inbox, noise, with_data)


@functools.lru_cache(maxsize=32)
def _compiled(program: Program, n_parties: int) -> tuple[Any, Any, Any]:
    """What is asked of a minimiser, what its answer leads to, and the whole step."""
    own, options = _Together(program, n_parties), simple_code() if program.simple else None
    return jax.jit(own.ask), jax.jit(own.answer), jax.jit(own.all, compiler_options=options)


@functools.lru_cache(maxsize=32)
def _public_steps(algorithm: Algorithm, topology: Topology) -> tuple[Any, Any]:
    """`combine`, and the part of `inbox` that one party hears."""

    def own_inbox(t: Any, public: Any, party: Any) -> Any:
        return jax.tree.map(lambda a: a[party][None, None], algorithm.inbox(t, public, topology))

    def combine(t: Any, public: Any, received: Any) -> Any:
        return algorithm.combine(t, public, received, topology)

    return jax.jit(own_inbox), jax.jit(combine)


class OwnSteps:
    """Of the parties `own`, whose records are `shards`; algorithm and topology as they are seen from here."""

    def __init__(
        self,
        plan: Plan,
        own: np.ndarray,
        shards: Sequence[Any],
        *,
        paths: Paths,
        algorithm: Algorithm | None = None,
        topology: Topology | None = None,
    ) -> None:
        self.plan, self.own, self.shards = plan, own, shards
        work = Work(plan, 1, 1, None, shards, dataclasses.replace(paths, only=PATHS))
        self.path = choose(work).path.name
        self.together_from = paths.together_from if self.path == "solved together" else None
        n_parties = plan.facts.n_parties
        if self.path == "argmin in machine code":
            share = plan.problem.share(n_parties)
            self.minimiser = Native(share.loss, share.regulariser, work.sparse)
            self.prepared = self.minimiser.prepare([plan.problem.records(shard) for shard in shards])
        self.table = plan.grant_table()
        program = Program(
            algorithm=plan.algorithm if algorithm is None else algorithm,
            problem=plan.problem,
            topology=plan.topology if topology is None else topology,
            sizes=tuple(plan.facts.sizes[party] for party in own),
            d=plan.problem.n_coefficients(plan.facts),
            release_width=plan.release_width,
            grant=jax.tree.structure(plan.issued[0][0]),
            repeats=1,
            block=1,
            remembers=False,
            together_from=self.together_from,
            simple=isinstance(plan.algorithm.selection, All) or work.amount < paths.simple_code_below,
        )
        self.ask, self.answer, self.step = _compiled(program, n_parties)
        self.plain_step = _compiled(dataclasses.replace(program, together_from=None), n_parties)[-1]

    def scales(self, t: int) -> Any:
        """Of own parties' grants in round t."""
        index = self.plan.issued[1]
        here = index[t % len(index)][self.own]
        return jax.tree.map(lambda column: column[here], self.table)

    def noise(self, source: NoiseSource, t: int, rows: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Drawn for these parties, or rows of a sum's noise, with axes (repeat, row, d)."""
        keys = [(0, row, t) for row in rows]
        drawn = (self.plan.draw(source, keys, purpose) for purpose in ("release", "output"))
        release, output = (np.zeros((1, len(rows), 1)) if units is None else units[None] for units in drawn)
        return release, output

    def __call__(self, scales: Any, private: Any, inbox: Any, noise: Any, with_data: Any = None) -> tuple[Any, Any]:
        """Own parties' states afterwards, and what they release or contribute; axes (repeat, party, ...).

        with_data: 0 for a party that works without its records, else 1.
        """

        def taken(step: Any) -> tuple[Any, Any]:
            return step(self.buckets, scales, private, inbox, noise, with_data)

        # which fits no algorithm with private states
        if self.path == "argmin in machine code":
            minimisers = self.minimiser.minimise(self.prepared, self.ask(scales, inbox, noise))
            found = private, self.answer(scales, noise, *minimisers)
        else:
            with solved_together(self.together_from):
                found = taken(self.step)
        if self.path != "general":
            found = unless_missed(found, lambda: taken(self.plain_step))
        after, outs = found
        return after, outs.value if isinstance(outs, Release) else outs

    @functools.cached_property
    def buckets(self) -> Any:
        return jax.device_put(make_buckets(self.plan.problem, self.shards))


class OneParty:
    """One party's part of a run: its private state, and the public state as far as it has heard what was released.

    `hear` what was released in one round after the other; `work` in a round when everything before it was heard.
    """

    def __init__(
        self,
        plan: Plan,
        party: int,
        shard: Any,
        source: NoiseSource,
        pairs: PairStreams | None = None,
        *,
        paths: Paths | None = None,
    ) -> None:
        """pairs: what it shares with its partners, where messages are masked. paths: as for the in-process engine."""
        self.plan, self.party, self.source, self.pairs = plan, party, source, pairs
        self.d = plan.problem.n_coefficients(plan.facts)
        self.steps = OwnSteps(plan, np.array([party]), [shard], paths=paths or Paths())
        self.public, private = plan.algorithm.init(plan.topology, self.d)
        self.private = jax.tree.map(lambda a: a[party : party + 1], private)
        self.rounds_heard, self._who = 0, who_released(plan)
        self._inbox, self._combine = _public_steps(plan.algorithm, plan.topology)

    def hear(self, released: np.ndarray) -> None:
        """What was released in the next round, (width, d), as it stands in a transcript."""
        plan, t = self.plan, self.rounds_heard
        received: Any = released
        if plan.algorithm.channel.aggregates:
            received = received[0]
        elif self._who is not None:
            received = Heard(self._who[t], received)
        self.public = self._combine(float(t), self.public, received)
        self.rounds_heard = t + 1

    def work(self, *, with_data: bool = True) -> tuple[Any, np.ndarray]:
        """The private state after the next round, and the value that is sent in it, (d,): a release, a contribution to
        a curator's sum, or a masked message in whole steps.

        Nothing here changes until `private` is set to that state: whoever commits a round does.
        """
        t, aggregates = self.rounds_heard, self.plan.algorithm.channel.aggregates
        units = self.steps.noise(self.source, t, [self.party]) if not aggregates or self.pairs is not None else None
        noise = None if aggregates or units is None else unit_noise(*units)
        private = jax.tree.map(lambda a: a[None], self.private)
        weight = None if with_data else np.zeros((1, 1))
        scales = self.steps.scales(t)
        after, out = self.steps(scales, private, self._inbox(float(t), self.public, self.party), noise, weight)
        after = jax.tree.map(lambda a: a[0], after)
        if not aggregates:
            return after, np.asarray(out)[0, 0]
        own = jax.tree.map(lambda a: a[0], out)
        if units is None or self.pairs is None:
            return after, np.asarray(own.value)[0]
        channel: Any = self.plan.algorithm.channel
        grant = self.plan.as_grant(jax.tree.map(lambda s: s[0], scales))
        masks = unit_noise(jnp.asarray(units[0][0, 0]), jnp.asarray(self.pairs.steps(t, self.d)))
        return after, np.asarray(channel.message(own, grant, masks).value)

    def moments(self, number: int, at: np.ndarray) -> np.ndarray:
        """What is sent of a release after the rounds, taken at a public model."""
        [shard] = self.steps.shards
        return sent_by(self.plan, self.party, shard, number, at, self.source, self.pairs)


def noised_sum(plan: Plan, t: int, contributions: np.ndarray, source: NoiseSource) -> np.ndarray:
    """What a curator releases in round t, (d,), of what the parties contributed, (party, d)."""
    channel: Any = plan.algorithm.channel
    grants, index = plan.issued
    # a sum has one grant
    grant = grants[index[t % len(index)][0]]
    keys = [(0, row, t) for row in range(plan.noise_rows)]
    drawn = (plan.draw(source, keys, purpose) for purpose in ("release", "output"))
    noise = unit_noise(*(np.zeros((len(keys), 1)) if units is None else units for units in drawn))
    return np.asarray(channel.aggregate(contribute(jnp.asarray(contributions)), grant, noise).value)
