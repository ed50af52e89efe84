"""A spec on a cluster: every process reads it, the first one charges, writes and speaks."""

import sys
from collections.abc import Callable
from typing import Any

from coterie.certificate.software import package_digest
from coterie.engines import mpi
from coterie.engines.checkpoint import Checkpoint
from coterie.privacy.noise import Seeded
from coterie.spec.execution import Prepared, Progress, charge, outcome_of
from coterie.spec.outcome import Outcome
from coterie.transcript import Transcript


def execute_on_cluster(
    prepared: Prepared, *, progress: Progress | None = None, audit: dict[str, Any] | None = None
) -> Outcome | None:
    """The outcome at the first process, None at the others. An error in one of them ends all."""
    comm = mpi.world()
    try:
        return _execute(prepared, comm, progress, audit)
    except Exception as error:
        if comm.size == 1:
            raise
        print(f"coterie: rank {comm.rank}: {error}", file=sys.stderr, flush=True)
        return comm.Abort(1)


def _execute(prepared: Prepared, comm: Any, progress: Progress | None, audit: dict[str, Any] | None) -> Outcome | None:
    engine = prepared.spec.engine

    def carry_out() -> Transcript | None:
        return mpi.run(
            prepared.plan,
            lambda party: prepared.records.federation.shards[party],
            noise=None if engine.seed is None else Seeded(engine.seed),
            checkpoint=engine.checkpoint,
            every=engine.checkpoint_every,
            software=package_digest(),
            comm=comm,
            progress=progress,
        )

    if comm.rank != 0:
        carry_out()
        return None
    past = _past(prepared, comm)
    first: Callable[[], Any] = carry_out
    return outcome_of(prepared, first, past, audit)


def _past(prepared: Prepared, comm: Any) -> Any:
    """What the ledger knew before this run; a run that goes on after a crash has been charged already."""
    engine = prepared.spec.engine
    if engine.checkpoint is None:
        return charge(prepared)
    saved = Checkpoint(engine.checkpoint, rank=0, n_ranks=comm.size)
    if not saved.exists:
        saved.begin(prepared.plan.digest, package_digest(), charge(prepared))
    return saved.past


def is_first() -> bool:
    return mpi.world().rank == 0
