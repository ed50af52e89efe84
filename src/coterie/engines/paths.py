"""Which way rounds are run: one table of paths, each with the conditions under which it is taken, in words.

There are three ways: any algorithm (`rounds`), graph algorithms with a minimiser of several parties (`argmin`), and
people with one record each (`people`, `people_native`). The first path of the table whose conditions all hold is
taken. What is released is the same on every path, up to the plan's tolerance.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from coterie import native
from coterie.engines import people, people_native, rounds
from coterie.engines.argmin import Argmins, come_apart
from coterie.engines.groups import PlanGroup
from coterie.errors import InputError
from coterie.minimisers import matrices, shared
from coterie.minimisers.base import Minimiser
from coterie.minimisers.batches import make_buckets
from coterie.minimisers.native import minimiser as native_minimiser
from coterie.network.impairments import Impairments
from coterie.plan import Plan
from coterie.problems.losses import Logistic

Advance = Callable[[Sequence[PlanGroup], int, int, Sequence[Any]], Sequence[Any]]  # groups, start, count, inputs


@dataclasses.dataclass(frozen=True, kw_only=True)
class Paths:
    """From where on which path pays, as measured; and which may be taken, all unless said otherwise.

    Work is rounds x repeats x records x features. With other numbers small plans take paths of large ones, which is how
    tests and the audit reach them all.
    """

    only: tuple[str, ...] = ()
    native_work: float = 2**28  # loading Numba takes half a second, compiling once ten
    native_sparse: int = 3  # features for each place in a row, from which on rows are kept sparse
    # of one party with dense rows: more share matrix products in XLA, which are faster then
    native_few_problems: int = 4
    people_work: float = people_native.ENOUGH_WORK
    together_from: float = 2**14  # records x features of a party, from which on minimisations are solved together
    matrices_on: tuple[str, ...] = ("gpu",)
    matrices_most_scores: float = 2**28  # records x problems: bounds memory, and so does
    matrices_most_rows: float = 2**31  # records x features x problems, where no pairs are kept
    matrices_block: int = 10  # rounds at least in a block: what lies between blocks takes as long as a round or two
    blocks: int = 20  # progress is shown, and Ctrl-C obeyed, about this many times a run
    simple_code_below: float = 2**29  # work, where only some parties do any
    share_bytes: int = 2**22  # of states of repeats that run at a time, where only some parties work

    def __post_init__(self) -> None:
        for name in self.only:
            if name not in (names := [path.name for path in PATHS]):
                raise InputError(f"only: got {name!r}; of {', '.join(map(repr, names))} are needed")


@dataclasses.dataclass(frozen=True)
class Work:
    """What is to be run."""

    plan: Plan  # the first one
    repeats: int  # of each plan
    n_problems: int  # repeats of all plans together
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
    conditions: tuple[tuple[str, Callable[[Work], bool]], ...]  # in words, and whether it holds
    start: Callable[[Sequence[PlanGroup], Work], Advance]
    block: Callable[[Work], int] = lambda work: -(-work.plan.n_rounds // work.paths.blocks)  # rounds in one
    alone: bool = False  # several plans do not run side by side,
    with_others: bool = False  # even those that differ in more than numbers do
    draws: bool = False  # noise and selections, for itself

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
    return come_apart(work.plan, work.impairments)


_MINIMISES = ("a graph algorithm, a smooth regulariser and no impairments", _minimises)
_ON_PROCESSOR = ("a processor, not a GPU", lambda work: jax.default_backend() == "cpu")
_NUMBA = ("Numba (the extra 'fast')", lambda work: native.available())


def _fits_in_memory(work: Work) -> bool:
    n_scores, paths = work.n_records * work.n_problems, work.paths
    rows = n_scores * work.plan.facts.n_features
    return n_scores <= paths.matrices_most_scores and (work.pairs or rows <= paths.matrices_most_rows)


def _people_fit(work: Work) -> bool:
    return people_native.fits(work.plan, work.impairments, work.repeats, work.paths.people_work)


def _solved_together(work: Work) -> bool:
    facts, problem = work.plan.facts, work.plan.problem
    return shared.applies(problem.loss, problem.regulariser, facts.largest * facts.n_features, work.paths.together_from)


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
    runs = people_native.Runs(group.plan, records, group.source, group.repeats)
    return lambda groups, start, count, inputs: [runs.advance(start, count)]


def _start_people(groups: Sequence[PlanGroup], work: Work) -> Advance:
    [group] = groups
    rows = jax.device_put(people.rows(make_buckets(work.plan.problem, work.shards)[0]))
    advance = people.compiled(group.program(group.repeats))
    group.start(people.first_states(group.n_parties, group.d))
    return _advance_one(group, rows, advance)


def _start_general(groups: Sequence[PlanGroup], work: Work) -> Advance:
    return _start_rounds(groups, work, None)


def _start_together(groups: Sequence[PlanGroup], work: Work) -> Advance:
    return _start_rounds(groups, work, work.paths.together_from)


def _start_rounds(groups: Sequence[PlanGroup], work: Work, together_from: float | None) -> Advance:
    [group] = groups
    share = group.repeats
    if group.inputs.who is not None:
        share = rounds.share_of(group.repeats, group.n_parties, group.d, work.paths.share_bytes)
    program = group.program(share, together_from=together_from, simple_below=work.paths.simple_code_below)
    buckets = jax.device_put(make_buckets(work.plan.problem, work.shards))
    group.start()
    if share < group.repeats:
        return _advance_one(group, buckets, functools.partial(rounds.advance_in_shares, program, group.repeats))
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
            ("a single plan", lambda work: work.n_problems == work.repeats),
            _ON_PROCESSOR,
            _NUMBA,
            ("people with one record and squared loss, whose sum a curator noises, and enough work", _people_fit),
        ),
        start=_start_people_in_machine_code,
        block=lambda work: people_native.block_length(work.plan, work.repeats, work.paths.blocks),
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
            ("a single plan", lambda work: work.n_problems == work.repeats),
            (
                "people with one record, all at work in every round, whose states' sum is noised",
                lambda work: people.fits(work.plan, work.impairments),
            ),
        ),
        start=_start_people,
        alone=True,
    ),
    Path(
        name="solved together",
        conditions=(("parties with many records, a smooth regulariser and a loss of one score", _solved_together),),
        start=_start_together,
    ),
    Path(name="general", conditions=(), start=_start_general),
)
