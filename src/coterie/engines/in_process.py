"""Run a whole plan in one process, a block of rounds at a time on the device."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from coterie.data.federation import Federation
from coterie.engines import argmins, people, people_at_work
from coterie.engines.buckets import make_buckets
from coterie.engines.compile_cache import kept_compilations
from coterie.engines.inputs import Inputs
from coterie.engines.rounds import Program, compiled
from coterie.engines.shares import in_shares, share_of
from coterie.engines.threads import one_lapack_thread
from coterie.errors import InputError, LocalSolveError
from coterie.impairments import Impairments
from coterie.plan import Plan
from coterie.privacy.noise import NoiseSource, SystemEntropy
from coterie.selection import All
from coterie.transcript import Interrupted, Transcript

Progress = Callable[[int, int], None]

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
    _check(plan, federation, repeats)
    if impairments is not None and not plan.algorithm.bears_impairments:
        raise InputError(f"impairments: got {impairments}; {type(plan.algorithm).__name__} needs every message")
    return _execute([plan], federation, noise, repeats, impairments, progress)[0]


def run_many(
    plans: Sequence[Plan],
    federation: Federation,
    *,
    noise: NoiseSource | None = None,
    repeats: int = 1,
    progress: Progress | None = None,
) -> list[Transcript]:
    """For research: each plan as `run` would execute it, on the same records. Plans that differ in noise, penalties and
    steps alone are executed side by side, and their minimisations solved together."""
    for plan in plans:
        _check(plan, federation, repeats)
    together: dict[Any, list[int]] = {}
    for place, plan in enumerate(plans):
        key = (Program.of(plan, repeats, 1, False), plan.n_rounds) if _can_join(plan, repeats) else place
        together.setdefault(key, []).append(place)
    total, before, done = sum(plan.n_rounds for plan in plans), 0, {}
    for places in together.values():
        rounds = sum(plans[place].n_rounds for place in places)

        def tell(now: int, of: int, before: int = before, rounds: int = rounds) -> None:
            if progress is not None:
                progress(before + now * rounds // max(of, 1), total)

        group = [plans[place] for place in places]
        done.update(zip(places, _execute(group, federation, noise, repeats, None, tell), strict=True))
        before += rounds
    return [done[place] for place in range(len(plans))]


def _can_join(plan: Plan, repeats: int) -> bool:
    alone = people.fits(plan, None) or people_at_work.fits(plan, None, repeats)
    return isinstance(plan.algorithm.selection, All) and not alone


def _check(plan: Plan, federation: Federation, repeats: int) -> None:
    if federation.facts != plan.facts:
        raise InputError("federation: its public facts differ from those the plan was made for; make a new plan")
    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
        raise InputError(f"repeats: got {repeats!r}; an integer >= 1 is needed")


def _execute(
    plans: Sequence[Plan],
    federation: Federation,
    noise: NoiseSource | None,
    repeats: int,
    impairments: Impairments | None,
    progress: Progress | None,
) -> list[Transcript]:
    for plan in plans:
        plan.check_flow()
    source = SystemEntropy() if noise is None else noise
    with jax.enable_x64(True), kept_compilations(), one_lapack_thread():
        return _Run(plans, federation, source, repeats, impairments).go(progress)


class _Run:
    def __init__(
        self,
        plans: Sequence[Plan],
        federation: Federation,
        source: NoiseSource,
        repeats: int,
        impairments: Impairments | None,
    ) -> None:
        self.plans, self.plan, plan = plans, plans[0], plans[0]  # they differ in grants and numbers alone
        self.source, self.repeats, self.impairments = source, repeats * len(plans), impairments
        self.n_parties, self.d = plan.facts.n_parties, plan.problem.n_coefficients(plan.facts)
        self.block = max(1, -(-plan.n_rounds // BLOCKS))
        self.at_work = len(plans) == 1 and people_at_work.fits(plan, impairments, repeats)
        if self.at_work:
            self.block = people_at_work.block_length(plan, repeats, BLOCKS)
        self.inputs: Any = None if self.at_work else Inputs(plans, source, repeats, impairments, self.block)
        self.people = people.fits(plan, impairments)
        self.native: argmins.Parties | None = None
        self.records: Any = ()
        if argmins.fits(plan, impairments, self.repeats):
            self.native = argmins.parties(plan.problem, federation.shards, self.n_parties, self.repeats)
        if self.native is None:
            buckets = make_buckets(plan.problem, federation.shards)
            self.records = people.rows(buckets[0]) if self.people else buckets
        # what counts for a party that is silent: its last release, or what it last put into a sum
        some_work = not self.at_work and self.inputs.works is not None
        self.remembers = impairments is not None or (some_work and plan.algorithm.absent_stays)

    def go(self, progress: Progress | None) -> list[Transcript]:
        n_rounds = self.plan.n_rounds
        state, advance = self._begin_at_work() if self.at_work else self._begin()
        done: list[np.ndarray] = []
        starts = range(0, n_rounds, self.block)
        try:
            with ThreadPoolExecutor(1) as drawing:  # the next rounds' noise, while the device works
                coming = drawing.submit(self._inputs, 0)
                for start in starts:
                    if progress is not None:
                        progress(start, n_rounds)
                    count, inputs = min(self.block, n_rounds - start), coming.result()
                    if start != starts[-1]:
                        coming = drawing.submit(self._inputs, start + self.block)
                    state, released = advance(state, start, count, inputs)
                    done.append(self._checked(np.asarray(released)[:, :count], start))
        except KeyboardInterrupt:
            raise Interrupted(self._transcripts(done)[0]) from None
        if progress is not None:
            progress(n_rounds, n_rounds)
        return self._transcripts(done)

    def _begin(self) -> tuple[Any, Callable[..., Any]]:
        """The first state, and the program that advances it."""
        plan = self.plan
        records, table = jax.device_put((self.records, self.inputs.table))
        silence = jnp.zeros((self.n_parties, self.d)) if self.remembers else ()
        public, private = plan.algorithm.init(plan.topology, self.d)
        share = share_of(self.repeats, self.n_parties, self.d) if self.inputs.who is not None else self.repeats
        program, compile_rounds = Program.of(plan, share, self.block, self.remembers, len(self.plans)), compiled
        if self.people:
            private, compile_rounds = people.first_states(self.n_parties, self.d), people.compiled
        elif self.native is not None:
            records, compile_rounds = self.native, argmins.compiled
        state = jax.tree.map(lambda a: jnp.broadcast_to(a, (self.repeats, *a.shape)), (public, private, silence))
        advance = compile_rounds(program)
        if share < self.repeats:
            advance = in_shares(advance, self.repeats, share)
        return state, lambda state, start, *rest: advance(state, records, table, float(start), *rest)

    def _begin_at_work(self) -> tuple[Any, Callable[..., Any]]:
        runs = people_at_work.Runs(self.plan, self.records[0], self.source, self.repeats)
        return None, lambda state, start, count, inputs: (None, runs.advance(start, count))

    def _inputs(self, start: int) -> Any:
        if self.at_work:  # which draws for itself
            return None
        return self.inputs.block(start, min(self.block, self.plan.n_rounds - start))

    def _transcripts(self, done: list[np.ndarray]) -> list[Transcript]:
        empty = np.zeros((self.repeats, 0, self.plan.release_width, self.d))
        alone = self.at_work and len(done) == 1  # nothing to join, and an array of our own
        whole = done[0] if alone else np.concatenate([empty, *done], axis=1)
        by_plan = np.split(whole, len(self.plans))
        return [
            Transcript(plan, releases, self.source.reproducible, self.impairments)
            for plan, releases in zip(self.plans, by_plan, strict=True)
        ]

    def _checked(self, released: np.ndarray, start: int) -> np.ndarray:
        finite = np.isfinite(released)
        if not finite.all():
            _, t, place, _ = np.argwhere(~finite)[0]
            one_by_one = released.shape[2] == self.n_parties and not self.plan.algorithm.channel.aggregates
            who = f"party {self.plan.facts.parties[place]!r}" if one_by_one else "a party"
            raise LocalSolveError(
                f"{who} could not compute its step of round {start + t} to the plan's tolerance; "
                "nothing of that round was released, and the whole budget of the plan counts as spent"
            )
        return released
