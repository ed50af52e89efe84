"""Run a whole plan in one process: repeats are vectorised, parties mapped in batches, rounds looped on the device.

It calls `inbox`, `local`, `Channel.aggregate` and `combine`, as engines between organisations do, and nothing else.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from coterie.data.federation import Federation
from coterie.engines.buckets import Bucket, make_buckets
from coterie.errors import InputError, LocalSolveError
from coterie.impairments import ImpairedTopology, Impairments
from coterie.plan import Plan
from coterie.privacy.noise import NoiseSource, SystemEntropy
from coterie.privacy.release import unit_noise
from coterie.transcript import Interrupted, Transcript

Progress = Callable[[int, int], None]

BATCH_ELEMENTS = 2**25  # records x features x repeats worked on at once: bounds memory
BLOCKS = 20  # progress is shown, and Ctrl-C obeyed, about this many times a run


def run(
    plan: Plan,
    federation: Federation,
    *,
    noise: NoiseSource | None = None,
    repeats: int = 1,
    impairments: Impairments | None = None,
    progress: Progress | None = None,
) -> Transcript:
    """Execute the plan; noise comes from the operating system's entropy unless a source is given."""
    if federation.facts != plan.facts:
        raise InputError("federation: its public facts differ from those the plan was made for; make a new plan")
    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
        raise InputError(f"repeats: got {repeats!r}; an integer >= 1 is needed")
    if impairments is not None and plan.algorithm.channel.aggregates:
        raise InputError(
            f"impairments: got {impairments}; a {plan.algorithm.channel.name} needs every party in every round"
        )
    plan.check_flow()
    source = SystemEntropy() if noise is None else noise
    with jax.enable_x64(True):
        return _Run(plan, federation, source, repeats, impairments).go(progress)


class _Run:
    def __init__(
        self,
        plan: Plan,
        federation: Federation,
        source: NoiseSource,
        repeats: int,
        impairments: Impairments | None,
    ) -> None:
        self.plan, self.source, self.repeats, self.impairments = plan, source, repeats, impairments
        self.deliveries = None if impairments is None else impairments.deliveries(plan.topology, plan.n_rounds)
        self.n_parties = plan.facts.n_parties
        self.d = plan.problem.n_coefficients(plan.facts)
        self.block = max(1, -(-plan.n_rounds // BLOCKS))
        self.scales = plan.grant_scales()
        self.buckets = make_buckets(plan.problem, federation.shards)

    def go(self, progress: Progress | None) -> Transcript:
        plan, n_rounds = self.plan, self.plan.n_rounds
        records = jax.device_put([bucket.records for bucket in self.buckets])
        silence = jnp.zeros((self.n_parties, self.d))  # what a party that never spoke has released
        state = jax.tree.map(
            lambda a: jnp.broadcast_to(a, (self.repeats, *a.shape)),
            (*plan.algorithm.init(plan.topology, self.d), silence),
        )
        advance = jax.jit(self._block_function(), donate_argnums=0)
        done: list[np.ndarray] = []
        try:
            for start in range(0, n_rounds, self.block):
                if progress is not None:
                    progress(start, n_rounds)
                count = min(self.block, n_rounds - start)
                state, released = advance(state, records, float(start), count, *self._inputs(start, count))
                done.append(self._checked(np.asarray(released)[:, :count], start))
        except KeyboardInterrupt:
            raise Interrupted(self._transcript(done)) from None
        if progress is not None:
            progress(n_rounds, n_rounds)
        return self._transcript(done)

    def _transcript(self, done: list[np.ndarray]) -> Transcript:
        width = 1 if self.plan.algorithm.channel.aggregates else self.n_parties
        empty = np.zeros((self.repeats, 0, width, self.d))
        releases = np.concatenate([empty, *done], axis=1)
        return Transcript(self.plan, releases, self.source.reproducible, self.impairments)

    def _inputs(self, start: int, count: int) -> Any:
        """Scales and noise of `count` rounds, in arrays of one fixed length so that nothing is compiled twice."""
        scales, deliveries = jax.tree.map(
            lambda a: _lengthen(a[start : start + count], self.block), (self.scales, self.deliveries)
        )
        law = self.plan.algorithm.mechanism.law
        noise = np.zeros((2, self.block, self.repeats, self.n_parties, self.d))
        if law is not None:
            for kind, purpose in enumerate(("release", "output")):
                for t in range(count):
                    for repeat in range(self.repeats):
                        for party in range(self.n_parties):
                            noise[kind, t, repeat, party] = self.source.draw(
                                law, self.d, repeat=repeat, party=party, t=start + t, purpose=purpose
                            )
        return scales, deliveries, noise[0], noise[1]

    def _checked(self, released: np.ndarray, start: int) -> np.ndarray:
        bad = np.argwhere(~np.isfinite(released))
        if len(bad):
            _, t, party, _ = bad[0]
            who = "a party" if self.plan.algorithm.channel.aggregates else f"party {self.plan.facts.parties[party]!r}"
            raise LocalSolveError(
                f"{who} could not compute its step of round {start + t} to the plan's tolerance; "
                "nothing of that round was released, and the whole budget of the plan counts as spent"
            )
        return released

    def _block_function(self) -> Callable[..., Any]:
        def advance(state, records, start, count, scales, deliveries, release_noise, output_noise):
            width = 1 if self.plan.algorithm.channel.aggregates else self.n_parties
            out = jnp.zeros((self.repeats, self.block, width, self.d))

            def one_round(k, carry):
                state, out = carry
                noise = unit_noise(release_noise[k], output_noise[k])
                now, delivery = jax.tree.map(lambda a: a[k], (scales, deliveries))
                state, released = self._round(state, records, start + k, now, delivery, noise)
                return state, out.at[:, k].set(released)

            return jax.lax.fori_loop(0, count, one_round, (state, out))

        return advance

    def _round(self, state, records, t, scales, delivery, noise):
        algorithm = self.plan.algorithm
        topology: Any = self.plan.topology if delivery is None else ImpairedTopology(self.plan.topology, delivery)
        public, private, last = state
        inbox = jax.vmap(lambda pub: algorithm.inbox(t, pub, topology))(public)
        parts = [
            self._local(bucket, data, scales, private, inbox, noise)
            for bucket, data in zip(self.buckets, records, strict=True)
        ]
        back = np.argsort(np.concatenate([bucket.parties for bucket in self.buckets]))
        private, outs = jax.tree.map(lambda *a: jnp.concatenate(a, axis=1)[:, back], *parts)
        if algorithm.channel.aggregates:
            grant = self.plan.as_grant([s[0] for s in jax.tree.leaves(scales)])
            outs = jax.vmap(lambda o, n: algorithm.channel.aggregate(o, grant, n))(outs, noise)  # type: ignore[attr-defined]
            received, released = outs.value, outs.value[:, None]
        else:
            received = released = outs.value
            if delivery is not None:
                received = released = jnp.where(delivery.speaks[:, None], released, last)
                last = released
        public = jax.vmap(lambda pub, got: algorithm.combine(t, pub, got, topology))(public, received)
        return (public, private, last), released

    def _local(self, bucket: Bucket, records, scales, private, inbox, noise):
        """All repeats of all parties of one bucket; results have axes (repeat, party, ...)."""
        algorithm, problem = self.plan.algorithm, self.plan.problem.share(self.n_parties)

        def one_party(args):
            scales, records, private, inbox, noise = args
            grant = self.plan.as_grant(jax.tree.leaves(scales))
            return jax.vmap(lambda p, i, n: algorithm.local(grant, problem, records, p, i, n))(private, inbox, noise)

        def party_first(tree):
            return jax.tree.map(lambda a: jnp.moveaxis(a[:, bucket.parties], 1, 0), tree)

        args = (
            jax.tree.map(lambda a: a[bucket.parties], scales),
            records,
            *(party_first(tree) for tree in (private, inbox, noise)),
        )
        batch = max(1, BATCH_ELEMENTS // (records.X[0].size * self.repeats))
        if batch >= len(bucket.parties):
            mapped = jax.vmap(one_party)(args)
        else:
            mapped = jax.lax.map(one_party, args, batch_size=batch)
        return jax.tree.map(lambda a: jnp.moveaxis(a, 0, 1), mapped)


def _lengthen(array: np.ndarray, length: int) -> np.ndarray:
    return np.concatenate([array, np.zeros((length - len(array), *array.shape[1:]), array.dtype)])
