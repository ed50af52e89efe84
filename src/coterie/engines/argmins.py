"""Rounds in which every party minimises a noised logistic objective, with minimisations in machine code (`native`).

What is released is what `rounds` releases, up to the plan's tolerance. A minimisation that misses its tolerance is done
again by `problems.local`.
"""

import functools
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from coterie import native
from coterie.engines.argmin_rounds import ArgminRounds, come_apart
from coterie.engines.inputs import RoundInputs
from coterie.engines.rounds import Program
from coterie.native.cores import n_cores
from coterie.network.impairments import Impairments
from coterie.plan import Plan
from coterie.problems.local import Records, minimise_alone
from coterie.problems.losses import Logistic
from coterie.problems.problem import Problem
from coterie.problems.shared import Pull

ENOUGH_WORK = 2**28  # rounds x repeats x records x features: loading Numba takes half a second, compiling once ten
SPARSE = 3  # features for each place in a row, from which on rows are kept sparse
FEW_PROBLEMS = 4  # of one party with dense rows: more share matrix products in XLA, which are faster then
PIECES = 8  # for each core: those who are done early take another


def fits(plan: Plan, impairments: Impairments | None, repeats: int) -> bool:
    """As far as a plan tells; `parties` looks at the records."""
    work = plan.n_rounds * repeats * sum(plan.facts.sizes) * plan.facts.n_features
    return (
        native.available()
        and come_apart(plan, impairments)
        and type(plan.problem.loss) is Logistic
        and work >= ENOUGH_WORK
        and jax.default_backend() == "cpu"
    )


def parties(problem: Problem, shards: Sequence[Any], n_parties: int, repeats: int) -> "Parties | None":
    """Of a federation of `n_parties`, those with these shards; None where XLA is the faster one."""
    from coterie.native.sparse import COMMON

    records = [problem.records(shard) for shard in shards]
    d = records[0].X.shape[1]
    fullest = max(int(np.count_nonzero(own.X, axis=1).max()) for own in records)
    sparse = SPARSE * fullest <= d and d > COMMON
    if not sparse and repeats > FEW_PROBLEMS:
        return None
    return (SparseParties if sparse else DenseParties)(problem.share(n_parties), records)


class Parties:
    """Records of several parties, ready for minimisations on all cores."""

    def __init__(self, problem: Problem, records: Sequence[Records]) -> None:
        self.problem, self.records, self.l2 = problem, records, float(problem.penalty.l2)
        self.d = records[0].X.shape[1]
        self.most_rows = max(len(own.y) for own in records)
        self.n_cores = n_cores()
        self.cores = ThreadPoolExecutor(self.n_cores)
        self.rooms: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for _ in range(self.n_cores):
            self.rooms.put(self._room())

    def minimise(self, pulls: Pull) -> tuple[np.ndarray, np.ndarray]:
        """Minimisers and norms of their gradients; `pulls` has axes (problem, party, ...)."""
        from coterie.native.parties import Problems

        problems = Problems(*(np.ascontiguousarray(a) for a in pulls))
        f, norms = np.empty_like(problems.linear), np.empty_like(problems.curvature)
        for done in [self.cores.submit(self._in_room, task, problems, f, norms) for task in self._tasks(problems)]:
            done.result()
        for problem, party in np.argwhere(~(norms <= problems.tolerance)):
            own = Pull(*(a[problem, party] for a in problems))
            f[problem, party], norms[problem, party] = _again(self.problem)(self.records[party], own)
        return f, norms

    def _in_room(self, task: Any, *arrays: Any) -> None:
        room = self.rooms.get()
        try:
            self._work(task, room, *arrays)
        finally:
            self.rooms.put(room)

    def _room(self) -> Any:
        raise NotImplementedError

    def _tasks(self, problems: Any) -> list[Any]:
        raise NotImplementedError

    def _work(self, task: Any, room: Any, problems: Any, f: np.ndarray, norms: np.ndarray) -> None:
        raise NotImplementedError


class SparseParties(Parties):
    """Sixteen problems of a party at a time."""

    def __init__(self, problem: Problem, records: Sequence[Records]) -> None:
        from coterie.native.parties import sparse_party

        super().__init__(problem, records)
        self.ready = [sparse_party(*own) for own in records]

    def _room(self) -> Any:
        from coterie.native.newton import room

        return room(self.most_rows, self.d, sparse=True)

    def _tasks(self, problems: Any) -> list[Any]:
        from coterie.native.lanes import LANES

        n_problems, n_parties = problems.curvature.shape
        tasks = []
        for party in range(n_parties):
            # problems that share a preconditioner should be alike
            alike = np.array_split(np.argsort(problems.curvature[:, party]), -(-n_problems // LANES))
            tasks += [(party, np.resize(chosen, LANES)) for chosen in alike]
        return tasks

    def _work(self, task, room, problems, f, norms):
        from coterie.native.parties import minimise_sixteen

        party, chosen = task
        minimise_sixteen(self.ready[party], self.l2, party, chosen, problems, room, f, norms)


class DenseParties(Parties):
    """One problem at a time, many parties in a task."""

    def __init__(self, problem: Problem, records: Sequence[Records]) -> None:
        from coterie.native.parties import dense_rows

        super().__init__(problem, records)
        self.rows, self.starts = dense_rows([tuple(own) for own in records])

    def _room(self) -> Any:
        from coterie.native.newton import room
        from coterie.native.parties import single_rows

        return single_rows(self.most_rows, self.d), room(self.most_rows, self.d, sparse=False)

    def _tasks(self, problems: Any) -> list[Any]:
        n_parties = len(self.records)
        return np.array_split(np.arange(n_parties), min(n_parties, PIECES * self.n_cores))

    def _work(self, task, room, problems, f, norms):
        from coterie.native.parties import minimise_each

        minimise_each(self.rows, self.starts, self.l2, task, problems, *room, f, norms)


@functools.lru_cache(maxsize=32)
def _again(problem: Problem) -> Callable[..., Any]:
    return jax.jit(functools.partial(minimise_alone, problem.loss, problem.penalty))


@functools.lru_cache(maxsize=32)
def compiled(program: Program) -> Callable[..., Any]:
    """As `rounds.compiled`, with `Parties` for records."""
    return _Rounds(program).advance


class _Rounds(ArgminRounds):
    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.compiled = jax.jit(self.before), jax.jit(self.after)

    def advance(self, state: Any, records: Parties, table: Any, start: float, count: int, inputs: RoundInputs) -> Any:
        before, after = self.compiled
        public, *rest = state
        out = np.zeros((self.repeats, self.program.block, self.program.release_width, self.d))
        for k in range(count):
            minimisers = records.minimise(before(public, table, start + k, inputs, k))
            public, out[:, k] = after(public, table, start + k, inputs, k, *minimisers)
        return (public, *rest), out
