"""Run plans in one process, a block of rounds at a time on the device, by the path that pays.

There are three ways to run rounds: any algorithm (`rounds`), graph algorithms with a minimiser of several parties
(`argmin`), and people with one record each (`people`). One table has all paths, each with the conditions under which it
is taken, in words; the first whose conditions all hold is taken. What is released is the same on every path, up to the
plan's tolerance.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import coterie.machine as machine
from coterie.algorithms.consensus import GraphADMM
from coterie.data.federation import Federation
from coterie.engines import people, rounds
from coterie.engines.argmin import Argmins
from coterie.engines.rounds import Drawn, Inputs, Program, set_up
from coterie.errors import InputError, LocalSolveError
from coterie.minimisers import Minimiser, matrices
from coterie.minimisers.native import minimiser as native_minimiser
from coterie.minimisers.one_party import together
from coterie.network.channels import Impairments
from coterie.network.topology import All
from coterie.plan import Plan
from coterie.privacy.mechanisms import ArgminGrant
from coterie.privacy.noise import NoiseSource, drawn_once
from coterie.problems import Logistic, make_buckets
from coterie.terminal import stoppable
from coterie.transcript import Interrupted, Transcript
from coterie.values import whole_number

# --- plans that run side by side --------------------------------------------------------------------------------------


class PlanGroup:
    """Plans that differ in grants and numbers alone, from the first state to transcripts. `state` is the engine's."""

    def __init__(
        self,
        plans: Sequence[Plan],
        source: NoiseSource,
        repeats: int,
        impairments: Impairments | None,
        block: int,
    ) -> None:
        self.plans, self.plan = plans, plans[0]
        self.n_rounds, self.repeats, self.block = self.plan.n_rounds, repeats * len(plans), block
        self.n_parties, self.d = self.plan.facts.n_parties, self.plan.problem.n_coefficients(self.plan.facts)
        self.source, self.impairments = source, impairments
        self.state: Any = None
        self.done: list[np.ndarray] = []

    @functools.cached_property
    def inputs(self) -> Inputs:
        """For engines that do not draw for themselves."""
        return Inputs(self.plans, self.source, self.repeats // len(self.plans), self.impairments, self.block)

    def start(self, private: Any = None) -> None:
        """The first state of every repeat, with the algorithm's own private states or others."""
        silence = jnp.zeros((self.n_parties, self.d)) if self._remembers() else ()
        public, own = self.plan.algorithm.init(self.plan.topology, self.d)
        one = (public, own if private is None else private, silence)
        self.state = jax.tree.map(lambda a: jnp.broadcast_to(a, (self.repeats, *a.shape)), one)

    def program(self, repeats: int, **settings: Any) -> Program:
        return Program.of(
            self.plan, repeats, self.block, remembers=self._remembers(), plans=len(self.plans), **settings
        )

    def _remembers(self) -> bool:
        """What counts for a party that is silent: its last release, or what it last put into a sum."""
        some_work = self.inputs.works is not None
        return self.impairments is not None or (some_work and self.plan.algorithm.absent_stays)

    def keep(self, released: np.ndarray, start: int) -> None:
        """What was released from round `start` on, if it may be."""
        finite = np.isfinite(released)
        if not finite.all():
            _, t, place, _ = np.argwhere(~finite)[0]
            one_by_one = released.shape[2] == self.n_parties and not self.plan.algorithm.channel.aggregates
            who = f"party {self.plan.facts.parties[place]!r}" if one_by_one else "a party"
            raise LocalSolveError(
                f"{who} could not compute its step of round {start + t} to the plan's tolerance; "
                "nothing of that round was released, and the whole budget of the plan counts as spent"
            )
        self.done.append(released)

    def transcripts(self) -> list[Transcript]:
        empty = np.zeros((self.repeats, 0, self.plan.release_width, self.d))
        # nothing to join, and an array of our own
        alone = len(self.done) == 1 and self.done[0].flags.writeable
        whole = self.done[0] if alone else np.concatenate([empty, *self.done], axis=1)
        by_plan = np.split(whole, len(self.plans))
        return [
            Transcript(plan, releases, self.source.reproducible, self.impairments)
            for plan, releases in zip(self.plans, by_plan, strict=True)
        ]


# --- which way rounds are run -----------------------------------------------------------------------------------------

# groups, start, count, inputs
Advance = Callable[[Sequence[PlanGroup], int, int, Sequence[Any]], Sequence[Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Paths:
    """From where on which path pays, as measured; and which may be taken, all unless said otherwise.

    Work is rounds x repeats x records x features. With other numbers small plans take paths of large ones, which is how
    tests and the audit reach them all.
    """

    only: tuple[str, ...] = ()
    # loading Numba takes half a second, compiling once ten
    native_work: float = 2**28
    # features for each place in a row, from which on rows are kept sparse
    native_sparse: int = 3
    # of one party with dense rows: more share matrix products in XLA, which are faster then
    native_few_problems: int = 4
    people_work: float = people.ENOUGH_WORK
    # records x features of a party, from which on minimisations are solved together
    together_from: float = 2**14
    matrices_on: tuple[str, ...] = ("gpu",)
    # records x problems: bounds memory, and so does
    matrices_most_scores: float = 2**28
    # records x features x problems, where no pairs are kept
    matrices_most_rows: float = 2**31
    # rounds at least in a block: what lies between blocks takes as long as a round or two
    matrices_block: int = 10
    # progress is shown, and Ctrl-C obeyed, about this many times a run
    blocks: int = 20
    # work, where only some parties do any
    simple_code_below: float = 2**29
    # of states of repeats that run at a time, where only some parties work
    cached_bytes: int = 2**22

    def __post_init__(self) -> None:
        for name in self.only:
            if name not in (names := [path.name for path in PATHS]):
                raise InputError(f"only: got {name!r}; of {', '.join(map(repr, names))} are needed")


@dataclasses.dataclass(frozen=True)
class Work:
    """What is to be run."""

    # the first one
    plan: Plan
    # of each plan
    repeats: int
    # repeats of all plans together
    n_problems: int
    impairments: Impairments | None
    shards: Sequence[Any]
    paths: Paths

    @property
    def amount(self) -> float:
        return self.plan.n_rounds * self.n_problems * self.n_records * self.plan.facts.n_features

    @property
    def n_records(self) -> int:
        return sum(self.plan.facts.sizes)

    @property
    def pairs(self) -> bool:
        return matrices.with_pairs(self.n_records, self.plan.facts.n_features, self.n_problems)

    @functools.cached_property
    def sparse(self) -> bool:
        records = [self.plan.problem.records(shard) for shard in self.shards]
        return native_minimiser.sparse(records, self.paths.native_sparse)


@dataclasses.dataclass(frozen=True)
class Path:
    name: str
    # in words, and whether it holds
    conditions: tuple[tuple[str, Callable[[Work], bool]], ...]
    start: Callable[[Sequence[PlanGroup], Work], Advance]
    # rounds in one
    block: Callable[[Work], int] = lambda work: -(-work.plan.n_rounds // work.paths.blocks)
    # several plans do not run side by side,
    alone: bool = False
    # even those that differ in more than numbers do
    with_others: bool = False
    # noise and selections, for itself
    draws: bool = False

    def passed_over(self, work: Work) -> str | None:
        """Why; None where it can be taken."""
        if work.paths.only and self.name not in work.paths.only:
            return f"only {', '.join(work.paths.only)} may be taken"
        return next((f"needs {words}" for words, holds in self.conditions if not holds(work)), None)


@dataclasses.dataclass(frozen=True)
class Choice:
    """The path that is taken, and why none of those before it in the table."""

    path: Path
    others: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return "; ".join([self.path.name, *(f"not {name}: {reason}" for name, reason in self.others)])


def choose(work: Work) -> Choice:
    others = []
    for path in PATHS:
        reason = path.passed_over(work)
        if reason is None:
            return Choice(path, tuple(others))
        others.append((path.name, reason))
    raise InputError(f"paths: none can be taken ({'; '.join(f'{name} {reason}' for name, reason in others)})")


# --- conditions -----------------------------------------------------------------------------------------------------


def _minimises(work: Work) -> bool:
    """Rounds then come apart into what is asked of a minimiser and what its answer leads to (`argmin`)."""
    return (
        type(work.plan.algorithm).local is GraphADMM.local
        and isinstance(work.plan.issued[0][0], ArgminGrant)
        and work.plan.problem.regulariser.smooth
        and work.impairments is None
    )


_MINIMISES = ("a graph algorithm, a smooth regulariser and no impairments", _minimises)
_ON_PROCESSOR = ("a processor, not a GPU", lambda work: jax.default_backend() == "cpu")
_NUMBA = ("Numba (the extra 'fast')", lambda work: machine.has_numba())
_A_SINGLE_PLAN = ("a single plan", lambda work: work.n_problems == work.repeats)
_ONE_RECORD_EACH = ("people with one record each", lambda work: work.plan.facts.largest == 1)


def _fits_in_memory(work: Work) -> bool:
    n_scores, paths = work.n_records * work.n_problems, work.paths
    rows = n_scores * work.plan.facts.n_features
    return n_scores <= paths.matrices_most_scores and (work.pairs or rows <= paths.matrices_most_rows)


def _people_fit(work: Work) -> bool:
    return people.moves_fit(work.plan, work.impairments, work.repeats, work.paths.people_work)


def _solved_together(work: Work) -> bool:
    facts, problem = work.plan.facts, work.plan.problem
    return together(problem.loss, problem.regulariser, facts.largest * facts.n_features, work.paths.together_from)


# --- how each begins ------------------------------------------------------------------------------------------------


def _start_argmins(groups: Sequence[PlanGroup], work: Work, minimiser: Minimiser) -> Advance:
    argmins = Argmins(minimiser, work.plan.problem, work.shards)
    # for blocks that have to be computed again
    together_from = work.paths.together_from if _solved_together(work) else None
    programs = {group: group.program(group.repeats, together_from=together_from) for group in groups}
    tables = {group: jax.device_put(group.inputs.table) for group in groups}
    for group in groups:
        group.start()

    def advance(groups: Sequence[PlanGroup], start: int, count: int, inputs: Sequence[Any]) -> Sequence[Any]:
        own, states = tuple(programs[group] for group in groups), [group.state for group in groups]
        states, released = argmins.advance(own, states, [tables[g] for g in groups], float(start), count, list(inputs))
        for group, state in zip(groups, states, strict=True):
            group.state = state
        return released

    return advance


def _start_matrices(groups: Sequence[PlanGroup], work: Work) -> Advance:
    own = work.plan.problem.share(work.plan.facts.n_parties)
    minimiser = matrices.Matrices(own.loss, own.regulariser, work.plan.facts.sizes, work.pairs)
    return _start_argmins(groups, work, minimiser)


def _start_machine_code(groups: Sequence[PlanGroup], work: Work) -> Advance:
    own = work.plan.problem.share(work.plan.facts.n_parties)
    return _start_argmins(groups, work, native_minimiser.Native(own.loss, own.regulariser, work.sparse))


def _start_people_in_machine_code(groups: Sequence[PlanGroup], work: Work) -> Advance:
    [group] = groups
    records = make_buckets(work.plan.problem, work.shards)[0]
    runs = people.Runs(group.plan, records, group.source, group.repeats)
    return lambda groups, start, count, inputs: [runs.advance(start, count)]


def _start_people(groups: Sequence[PlanGroup], work: Work) -> Advance:
    [group] = groups
    rows = jax.device_put(people.rows(make_buckets(work.plan.problem, work.shards)[0]))
    advance = people.compiled(group.program(group.repeats))
    group.start(people.first_states(group.n_parties, group.d))
    return _advance_one(group, rows, advance)


def _start_rounds(groups: Sequence[PlanGroup], work: Work, together_from: float | None) -> Advance:
    [group] = groups
    some = group.repeats
    if group.inputs.who is not None:
        some = rounds.at_a_time(group.repeats, group.n_parties, group.d, work.paths.cached_bytes)
    program = group.program(some, together_from=together_from, simple_below=work.paths.simple_code_below)
    buckets = jax.device_put(make_buckets(work.plan.problem, work.shards))
    group.start()
    if some < group.repeats:
        return _advance_one(group, buckets, functools.partial(rounds.advance_some_at_a_time, program, group.repeats))
    return _advance_one(group, buckets, functools.partial(rounds.advance, program))


def _advance_one(group: PlanGroup, records: Any, advance: Callable[..., Any]) -> Advance:
    table = jax.device_put(group.inputs.table)

    def advance_group(groups: Sequence[PlanGroup], start: int, count: int, inputs: Sequence[Any]) -> Sequence[Any]:
        group.state, released = advance(group.state, records, table, float(start), count, *inputs)
        return [released]

    return advance_group


# --- the table ------------------------------------------------------------------------------------------------------

PATHS = (
    Path(
        name="argmin by matrices",
        conditions=(
            ("a GPU", lambda work: jax.default_backend() in work.paths.matrices_on),
            _MINIMISES,
            ("a loss of one score", lambda work: work.plan.problem.loss.n_outputs == 1),
            (
                "parties with many records",
                lambda work: work.plan.facts.smallest * work.plan.facts.n_features >= work.paths.together_from,
            ),
            ("scores that fit into memory", _fits_in_memory),
        ),
        start=_start_matrices,
        block=lambda work: max(-(-work.plan.n_rounds // work.paths.blocks), work.paths.matrices_block),
        with_others=True,
    ),
    Path(
        name="people in machine code",
        conditions=(
            _A_SINGLE_PLAN,
            _ON_PROCESSOR,
            _NUMBA,
            _ONE_RECORD_EACH,
            ("squared loss, one grant for all, a sum that a curator noises, and enough work", _people_fit),
        ),
        start=_start_people_in_machine_code,
        block=lambda work: people.block_length(work.plan, work.repeats, work.paths.blocks),
        alone=True,
        draws=True,
    ),
    Path(
        name="argmin in machine code",
        conditions=(
            _MINIMISES,
            ("the logistic loss", lambda work: type(work.plan.problem.loss) is Logistic),
            _ON_PROCESSOR,
            _NUMBA,
            ("enough work", lambda work: work.amount >= work.paths.native_work),
            (
                "sparse rows, or few problems a party",
                lambda work: work.n_problems <= work.paths.native_few_problems or work.sparse,
            ),
        ),
        start=_start_machine_code,
    ),
    Path(
        name="people",
        conditions=(
            _A_SINGLE_PLAN,
            _ONE_RECORD_EACH,
            (
                "everybody at work in every round under one grant, and states whose sum is noised",
                lambda work: people.states_fit(work.plan, work.impairments),
            ),
        ),
        start=_start_people,
        alone=True,
    ),
    Path(
        name="solved together",
        conditions=(
            (
                "a party with many records",
                lambda work: work.plan.facts.largest * work.plan.facts.n_features >= work.paths.together_from,
            ),
            ("a smooth regulariser and a loss of one score", _solved_together),
        ),
        start=lambda groups, work: _start_rounds(groups, work, work.paths.together_from),
    ),
    Path(name="general", conditions=(), start=lambda groups, work: _start_rounds(groups, work, None)),
)


# --- runs -------------------------------------------------------------------------------------------------------------

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
    """Execute the plan in this process.

    plan, federation: whose public facts must be the same.
    noise: where it comes from; the operating system's entropy where it is left out.
    repeats: independent runs on the same records, for research; publishing more than one costs each one's loss again.
    impairments: which messages are lost or late, where the algorithm bears it.
    progress: called with the rounds that are done and all there are.
    paths: from where on which way of running rounds pays.
    explain: called with which way is taken, and why no other.
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
    steps alone are executed side by side, and their minimisations solved together.

    plans, federation: whose public facts must be the same.
    noise, repeats, progress, paths, explain: as of `run`.
    """
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
        all_take = (all(path.passed_over(work) is None for work in works) for path in PATHS if path.with_others)
        if last and alike and any(all_take):
            last.append(group)
        else:
            together.append([group])
    return together


def _check(plan: Plan, federation: Federation, repeats: int) -> None:
    if federation.facts != plan.facts:
        raise InputError("federation: its public facts differ from those the plan was made for; make a new plan")
    whole_number("repeats", repeats, at_least=1)


def _execute(
    groups: Sequence[Sequence[Plan]],
    work: Work,
    noise: NoiseSource | None,
    progress: Progress | None,
    explain: Explain | None,
) -> list[list[Transcript]]:
    source = drawn_once(noise)
    for group in groups:
        for plan in group:
            plan.check_flow()
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
        # a thread has settings of its own
        with jax.enable_x64(True):
            return jax.device_put([group.inputs.block(start, end - start, drawn) for group in self._active(start)])
