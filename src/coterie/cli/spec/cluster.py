"""A spec on a cluster: every process reads it, the first one charges, writes and speaks."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from coterie.caches import processor
from coterie.certificate.software import software
from coterie.cli.spec.execution import Outcome, Progress, charge, outcome_of
from coterie.cli.spec.preparation import Prepared
from coterie.engines import mpi
from coterie.engines.checkpoint import Checkpoint
from coterie.errors import InputError
from coterie.privacy.noise import Seeded
from coterie.transcript import Transcript


def is_first() -> bool:
    return mpi.world().rank == 0


@contextlib.contextmanager
def ended_together() -> Iterator[None]:
    """An error in one process ends all of them: the others would wait for it for ever."""
    comm = mpi.world()
    try:
        yield
    except Exception as error:
        if comm.size == 1:
            raise
        print(f"coterie: {error}", file=sys.stderr, flush=True)
        comm.Abort(2 if isinstance(error, InputError) else 1)


def execute_on_cluster(
    prepared: Prepared, *, progress: Progress | None = None, audit: dict[str, Any] | None = None
) -> Outcome | None:
    """The outcome at the first process, None at the others."""
    comm, engine, plan = mpi.world(), prepared.spec.engine, prepared.plan
    mpi.check(plan, comm.size, engine.checkpoint)
    noise, ledger = None if engine.seed is None else Seeded(engine.seed), prepared.spec.ledger
    identity = {
        **software(),
        "processor": processor(),
        "delta": prepared.spec.privacy.delta,
        "ledger": None if ledger is None else str(ledger.absolute()),
    }

    def carry_out() -> Transcript | None:
        return mpi.run(
            plan,
            lambda party: prepared.records.federation.shards[party],
            noise=noise,
            checkpoint=engine.checkpoint,
            every=engine.checkpoint_every,
            identity=identity,
            comm=comm,
            progress=progress,
        )

    if comm.rank != 0:
        carry_out()
        return None
    past = charge(prepared) if engine.checkpoint is None else ()
    if engine.checkpoint is not None:
        saved = Checkpoint(engine.checkpoint, rank=0)
        common = mpi.whole_identity(plan, comm.size, noise, identity)
        if not saved.exists:
            saved.begin(common, charge(prepared))
        saved.check(common)  # another run's checkpoint is refused here
        past = saved.past  # a run that goes on after a crash has been charged already
    first: Callable[[], Any] = carry_out
    return outcome_of(prepared, first, past, audit)
