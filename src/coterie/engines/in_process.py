"""Run a whole plan in one process, a block of rounds at a time on the device."""

import functools
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from coterie.data.federation import Federation
from coterie.engines import argmins, at_once, people, people_at_work
from coterie.engines.buckets import make_buckets
from coterie.engines.compile_cache import kept_compilations
from coterie.engines.inputs import Drawn
from coterie.engines.rounds import Program, compiled
from coterie.engines.shares import in_shares, share_of
from coterie.engines.threads import one_lapack_thread
from coterie.engines.tracks import Track
from coterie.errors import InputError
from coterie.network.impairments import Impairments
from coterie.network.selection import All
from coterie.plan import Plan
from coterie.privacy.noise import NoiseSource, SystemEntropy
from coterie.stopping import stoppable
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
    return _execute([[plan]], federation, noise, repeats, impairments, progress)[0][0]


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
    total, before, done = sum(plan.n_rounds for plan in plans), 0, {}
    for places in _together(plans, repeats):
        rounds = sum(plans[place].n_rounds for group in places for place in group)

        def tell(now: int, of: int, before: int = before, rounds: int = rounds) -> None:
            if progress is not None:
                progress(before + now * rounds // max(of, 1), total)

        groups = [[plans[place] for place in group] for group in places]
        for group, found in zip(places, _execute(groups, federation, noise, repeats, None, tell), strict=True):
            done.update(zip(group, found, strict=True))
        before += rounds
    return [done[place] for place in range(len(plans))]


def _together(plans: Sequence[Plan], repeats: int) -> list[list[list[int]]]:
    """Places of plans that are executed together; in groups of those that differ in grants and numbers alone."""
    groups: dict[Any, list[int]] = {}
    for place, plan in enumerate(plans):
        key = (Program.of(plan, repeats, 1, False), plan.n_rounds) if _can_join(plan, repeats) else place
        groups.setdefault(key, []).append(place)
    together: list[list[list[int]]] = []
    for group in groups.values():
        last = together[-1] if together else []
        first_plans = [plans[some[0]] for some in (*last, group)]
        n_problems = repeats * sum(map(len, (*last, group)))
        alike = len({plan.problem for plan in first_plans}) == 1
        if last and alike and all(at_once.fits(plan, None, n_problems) for plan in first_plans):
            last.append(group)
        else:
            together.append([group])
    return together


def _can_join(plan: Plan, repeats: int) -> bool:
    alone = people.fits(plan, None) or people_at_work.fits(plan, None, repeats)
    return isinstance(plan.algorithm.selection, All) and not alone


def _check(plan: Plan, federation: Federation, repeats: int) -> None:
    if federation.facts != plan.facts:
        raise InputError("federation: its public facts differ from those the plan was made for; make a new plan")
    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
        raise InputError(f"repeats: got {repeats!r}; an integer >= 1 is needed")


def _execute(
    groups: Sequence[Sequence[Plan]],
    federation: Federation,
    noise: NoiseSource | None,
    repeats: int,
    impairments: Impairments | None,
    progress: Progress | None,
) -> list[list[Transcript]]:
    for group in groups:
        for plan in group:
            plan.check_flow()
    source = SystemEntropy() if noise is None else noise
    with jax.enable_x64(True), kept_compilations(), one_lapack_thread():
        return _Run(groups, federation, source, repeats, impairments).go(progress)


class _Run:
    def __init__(
        self,
        groups: Sequence[Sequence[Plan]],
        federation: Federation,
        source: NoiseSource,
        repeats: int,
        impairments: Impairments | None,
    ) -> None:
        self.n_rounds = max(group[0].n_rounds for group in groups)
        block = max(1, -(-self.n_rounds // BLOCKS))
        plan, n_problems = groups[0][0], repeats * sum(map(len, groups))
        on_gpu = at_once.fits(plan, impairments, n_problems)
        at_work = n_problems == repeats and people_at_work.fits(plan, impairments, repeats)
        if on_gpu:
            block = max(block, at_once.BLOCK)
        elif at_work:
            block = people_at_work.block_length(plan, repeats, BLOCKS)
        self.draws = not at_work  # which draws for itself
        self.tracks = [Track(group, source, repeats, impairments, block) for group in groups]
        self.ends = sorted({*range(block, self.n_rounds, block), *(track.n_rounds for track in self.tracks)})
        if on_gpu:
            self.advance = _at_once(self.tracks, federation, n_problems)
        elif at_work:
            self.advance = _at_work(self.tracks[0], federation)
        else:
            self.advance = _one_by_one(self.tracks[0], federation)

    def go(self, progress: Progress | None) -> list[list[Transcript]]:
        blocks = list(itertools.pairwise([0, *self.ends]))
        try:
            # the next rounds' noise is drawn while the device works
            with stoppable() as stop, ThreadPoolExecutor(1) as drawing:
                coming = drawing.submit(self._inputs, *blocks[0])
                for place, (start, end) in enumerate(blocks):
                    if stop.asked:
                        raise KeyboardInterrupt
                    if progress is not None:
                        progress(start, self.n_rounds)
                    inputs = coming.result()
                    if end < self.n_rounds:
                        coming = drawing.submit(self._inputs, *blocks[place + 1])
                    active = self._active(start)
                    for track, released in zip(active, self.advance(active, start, end - start, inputs), strict=True):
                        track.keep(np.asarray(released)[:, : end - start], start)
                if stop.asked:
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise Interrupted(self.tracks[0].transcripts()[0]) from None
        if progress is not None:
            progress(self.n_rounds, self.n_rounds)
        return [track.transcripts() for track in self.tracks]

    def _active(self, start: int) -> list[Track]:
        return [track for track in self.tracks if track.n_rounds > start]

    def _inputs(self, start: int, end: int) -> list[Any]:
        if not self.draws:
            return []
        drawn: Drawn = {}
        with jax.enable_x64(True):  # a thread has settings of its own
            return jax.device_put([track.inputs.block(start, end - start, drawn) for track in self._active(start)])


Advance = Callable[[Sequence[Track], int, int, Sequence[Any]], Sequence[Any]]  # tracks, start, count, inputs


def _at_work(track: Track, federation: Federation) -> Advance:
    records = make_buckets(track.plan.problem, federation.shards)[0]
    runs = people_at_work.Runs(track.plan, records, track.source, track.repeats)
    return lambda tracks, start, count, inputs: [runs.advance(start, count)]


def _at_once(tracks: Sequence[Track], federation: Federation, n_problems: int) -> Advance:
    parties = at_once.Parties(tracks[0].plan.problem, federation.shards, n_problems)
    programs = {track: track.program(track.repeats) for track in tracks}
    tables = {track: jax.device_put(track.inputs.table) for track in tracks}
    for track in tracks:
        track.start()

    @functools.cache
    def compiled_rounds(tracks: tuple[Track, ...]) -> Callable[..., Any]:
        return at_once.compiled(tuple(programs[track] for track in tracks))

    def advance(tracks: Sequence[Track], start: int, count: int, inputs: Sequence[Any]) -> Sequence[Any]:
        rounds = compiled_rounds(tuple(tracks))
        states, own = [track.state for track in tracks], [tables[track] for track in tracks]
        states, released = rounds(states, parties, own, float(start), count, list(inputs))
        for track, state in zip(tracks, states, strict=True):
            track.state = state
        return released

    return advance


def _one_by_one(track: Track, federation: Federation) -> Advance:
    plan, n_parties = track.plan, track.n_parties
    private = native = None
    if argmins.fits(plan, track.impairments, track.repeats):
        native = argmins.parties(plan.problem, federation.shards, n_parties, track.repeats)
    share = track.repeats if track.inputs.who is None else share_of(track.repeats, n_parties, track.d)
    program = track.program(share)
    if native is not None:
        records, advance = native, argmins.compiled(program)
    elif people.fits(plan, track.impairments):
        records = jax.device_put(people.rows(make_buckets(plan.problem, federation.shards)[0]))
        private, advance = people.first_states(n_parties, track.d), people.compiled(program)
    else:
        records, advance = jax.device_put(make_buckets(plan.problem, federation.shards)), compiled(program)
    if share < track.repeats:
        advance = in_shares(advance, track.repeats, share)
    table = jax.device_put(track.inputs.table)
    track.start(private)

    def advance_track(tracks: Sequence[Track], start: int, count: int, inputs: Sequence[Any]) -> Sequence[Any]:
        track.state, released = advance(track.state, records, table, float(start), count, *inputs)
        return [released]

    return advance_track
