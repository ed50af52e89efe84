"""Minimisations in machine code, on all cores: sixteen problems of a party at a time, or one each of many parties."""

import dataclasses
import queue
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from coterie.machine import n_cores
from coterie.minimisers import Minimiser, Subproblem
from coterie.problems import Records

# for each core: those who are done early take another
PIECES = 8


def sparse(records: Sequence[Records], features_per_place: int) -> bool:
    """Whether so few of the features are in the fullest row that rows are best kept sparse."""
    from coterie.minimisers.native.passes import COMMON

    d = records[0].X.shape[1]
    fullest = max(int(np.count_nonzero(own.X, axis=1).max()) for own in records)
    return features_per_place * fullest <= d and d > COMMON


@dataclasses.dataclass(frozen=True)
class Native(Minimiser):
    """Of several parties, with logistic loss; leaves of batches and results have axes (problem, party, ...). Norms of
    gradients should be, and need not be, within the tolerances."""

    sparse: bool

    def prepare(self, records: Sequence[Records]) -> "_Parties":
        return (_SparseParties if self.sparse else _DenseParties)(float(self.regulariser.l2), records)

    def minimise(self, prepared: "_Parties", batch: Subproblem) -> tuple[np.ndarray, np.ndarray]:
        batch = Subproblem(*(np.ascontiguousarray(a) for a in batch))
        f, norms = np.empty_like(batch.linear), np.empty_like(batch.curvature)
        tasks = prepared.tasks(batch)
        for done in [prepared.cores.submit(prepared.work_in_room, task, batch, f, norms) for task in tasks]:
            done.result()
        return f, norms


class _Parties:
    """Records of several parties, threads, and room for each of them to work in."""

    def __init__(self, l2: float, records: Sequence[Records]) -> None:
        self.l2, self.n_parties, self.d = l2, len(records), records[0].X.shape[1]
        self.most_rows = max(len(own.y) for own in records)
        self.n_cores = n_cores()
        self.cores = ThreadPoolExecutor(self.n_cores)
        self.rooms: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for _ in range(self.n_cores):
            self.rooms.put(self.room())

    def work_in_room(self, task: Any, *arrays: Any) -> None:
        room = self.rooms.get()
        try:
            self.work(task, room, *arrays)
        finally:
            self.rooms.put(room)

    def room(self) -> Any:
        raise NotImplementedError

    def tasks(self, batch: Subproblem) -> list[Any]:
        raise NotImplementedError

    def work(self, task: Any, room: Any, batch: Subproblem, f: np.ndarray, norms: np.ndarray) -> None:
        raise NotImplementedError


class _SparseParties(_Parties):
    """Sixteen problems of a party at a time."""

    def __init__(self, l2: float, records: Sequence[Records]) -> None:
        from coterie.minimisers.native.newton import sparse_party

        super().__init__(l2, records)
        self.ready = [sparse_party(*own) for own in records]

    def room(self):
        from coterie.minimisers.native.newton import room

        return room(self.most_rows, self.d, sparse=True)

    def tasks(self, batch):
        from coterie.native.vectors import LANES

        n_problems, tasks = len(batch.curvature), []
        for party in range(self.n_parties):
            # problems that share a preconditioner should be alike
            alike = np.array_split(np.argsort(batch.curvature[:, party]), -(-n_problems // LANES))
            tasks += [(party, np.resize(chosen, LANES)) for chosen in alike]
        return tasks

    def work(self, task, room, batch, f, norms):
        from coterie.minimisers.native.newton import minimise_sixteen

        party, chosen = task
        minimise_sixteen(self.ready[party], self.l2, party, chosen, batch, room, f, norms)


class _DenseParties(_Parties):
    """One problem at a time, many parties in a task."""

    def __init__(self, l2: float, records: Sequence[Records]) -> None:
        from coterie.minimisers.native.newton import dense_rows

        super().__init__(l2, records)
        self.rows, self.starts = dense_rows([tuple(own) for own in records])

    def room(self):
        from coterie.minimisers.native.newton import room, single_rows

        return single_rows(self.most_rows, self.d), room(self.most_rows, self.d, sparse=False)

    def tasks(self, batch):
        return np.array_split(np.arange(self.n_parties), min(self.n_parties, PIECES * self.n_cores))

    def work(self, task, room, batch, f, norms):
        from coterie.minimisers.native.newton import minimise_each

        minimise_each(self.rows, self.starts, self.l2, task, batch, *room, f, norms)
