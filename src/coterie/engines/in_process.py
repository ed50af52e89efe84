"""Run a whole plan in one process, a block of rounds at a time on the device."""

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from coterie.data.federation import Federation
from coterie.engines.groups import PlanGroup
from coterie.engines.inputs import Drawn
from coterie.engines.paths import PATHS, Choice, Paths, Work, choose
from coterie.engines.rounds import Program
from coterie.engines.xla import set_up
from coterie.errors import InputError
from coterie.network.impairments import Impairments
from coterie.network.selection import All
from coterie.plan import Plan
from coterie.privacy.noise import NoiseSource, SystemEntropy
from coterie.stopping import stoppable
from coterie.transcript import Interrupted, Transcript

Progress = Callable[[int, int], None]
Explain = Callable[[Choice], None]


def run(
    plan: Plan,
    federation: Federation,
    *,
    noise: NoiseSource | None = None,
    repeats: int = 1,
    impairments: Impairments | None = None,
    progress: Progress | None = None,
    paths: Paths | None = None,
    explain: Explain | None = None,
) -> Transcript:
    """Execute the plan; noise comes from the operating system's entropy unless a source is given.

    `paths`: from where on which way of running rounds pays; `explain` is told which one is taken, and why no other.
    """
    _check(plan, federation, repeats)
    if impairments is not None and not plan.algorithm.bears_impairments:
        raise InputError(f"impairments: got {impairments}; {type(plan.algorithm).__name__} needs every message")
    work = Work(plan, repeats, repeats, impairments, federation.shards, paths or Paths())
    return _execute([[plan]], work, noise, progress, explain)[0][0]


def run_many(
    plans: Sequence[Plan],
    federation: Federation,
    *,
    noise: NoiseSource | None = None,
    repeats: int = 1,
    progress: Progress | None = None,
    paths: Paths | None = None,
    explain: Explain | None = None,
) -> list[Transcript]:
    """For research: each plan as `run` would execute it, on the same records. Plans that differ in noise, penalties and
    steps alone are executed side by side, and their minimisations solved together."""
    for plan in plans:
        _check(plan, federation, repeats)

    def work_of(plan: Plan, n_plans: int) -> Work:
        return Work(plan, repeats, repeats * n_plans, None, federation.shards, paths or Paths())

    total, before, done = sum(plan.n_rounds for plan in plans), 0, {}
    for places in _together(plans, work_of):
        groups = [[plans[place] for place in group] for group in places]
        rounds = sum(plan.n_rounds for group in groups for plan in group)

        def tell(now: int, of: int, before: int = before, rounds: int = rounds) -> None:
            if progress is not None:
                progress(before + now * rounds // max(of, 1), total)

        work = work_of(groups[0][0], sum(map(len, groups)))
        for group, found in zip(places, _execute(groups, work, noise, tell, explain), strict=True):
            done.update(zip(group, found, strict=True))
        before += rounds
    return [done[place] for place in range(len(plans))]


def _together(plans: Sequence[Plan], work_of: Callable[[Plan, int], Work]) -> list[list[list[int]]]:
    """Places of plans that are executed together; in groups of those that differ in grants and numbers alone."""
    groups: dict[Any, list[int]] = {}
    for place, plan in enumerate(plans):
        work = work_of(plan, 1)
        alone = any(path.alone and path.passed_over(work) is None for path in PATHS)
        joins = isinstance(plan.algorithm.selection, All) and not alone
        key = (Program.of(plan, work.repeats, 1), plan.n_rounds) if joins else place
        groups.setdefault(key, []).append(place)
    together: list[list[list[int]]] = []
    for group in groups.values():
        last = together[-1] if together else []
        first_plans, n_plans = [plans[some[0]] for some in (*last, group)], sum(map(len, (*last, group)))
        works = [work_of(plan, n_plans) for plan in first_plans]
        alike = len({plan.problem for plan in first_plans}) == 1
        if last and alike and any(_all_take(path, works) for path in PATHS if path.with_others):
            last.append(group)
        else:
            together.append([group])
    return together


def _all_take(path: Any, works: Sequence[Work]) -> bool:
    return all(path.passed_over(work) is None for work in works)


def _check(plan: Plan, federation: Federation, repeats: int) -> None:
    if federation.facts != plan.facts:
        raise InputError("federation: its public facts differ from those the plan was made for; make a new plan")
    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
        raise InputError(f"repeats: got {repeats!r}; an integer >= 1 is needed")


def _execute(
    groups: Sequence[Sequence[Plan]],
    work: Work,
    noise: NoiseSource | None,
    progress: Progress | None,
    explain: Explain | None,
) -> list[list[Transcript]]:
    for group in groups:
        for plan in group:
            plan.check_flow()
    source = SystemEntropy() if noise is None else noise
    with set_up():
        choice = choose(work)
        if explain is not None:
            explain(choice)
        return _Run(groups, work, choice, source).go(progress)


class _Run:
    def __init__(self, groups: Sequence[Sequence[Plan]], work: Work, choice: Choice, source: NoiseSource) -> None:
        path, block = choice.path, choice.path.block(work)
        self.n_rounds = max(group[0].n_rounds for group in groups)
        self.groups = [PlanGroup(group, source, work.repeats, work.impairments, block) for group in groups]
        self.ends = sorted({*range(block, self.n_rounds, block), *(group.n_rounds for group in self.groups)})
        self.draws_itself = path.draws
        self.advance = path.start(self.groups, work)

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
                    for group, released in zip(active, self.advance(active, start, end - start, inputs), strict=True):
                        group.keep(np.asarray(released)[:, : end - start], start)
                if stop.asked:
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise Interrupted(self.groups[0].transcripts()[0]) from None
        if progress is not None:
            progress(self.n_rounds, self.n_rounds)
        return [group.transcripts() for group in self.groups]

    def _active(self, start: int) -> list[PlanGroup]:
        return [group for group in self.groups if group.n_rounds > start]

    def _inputs(self, start: int, end: int) -> list[Any]:
        if self.draws_itself:
            return []
        drawn: Drawn = {}
        with jax.enable_x64(True):  # a thread has settings of its own
            return jax.device_put([group.inputs.block(start, end - start, drawn) for group in self._active(start)])
