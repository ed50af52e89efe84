"""A spec on a cluster: every process reads it, the first one charges, writes and speaks."""

import atexit
import contextlib
import functools
import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer

from coterie.certificate import Past
from coterie.certificate.certificate import software
from coterie.cli.ranks import ASKED_FILE, STOPPED
from coterie.cli.spec.execution import Outcome, Progress, charge, outcome_of, releasing
from coterie.cli.spec.preparation import Prepared
from coterie.engines import mpi
from coterie.engines.checkpoint import Checkpoint
from coterie.errors import InputError
from coterie.inference import Releasing
from coterie.machine import processor
from coterie.privacy.noise import Seeded
from coterie.spending import BudgetError, LedgerError, Spending
from coterie.terminal import Stop, StoppedInTime
from coterie.transcript import Transcript


@contextlib.contextmanager
def ended_together(stop: Stop) -> Iterator[bool]:
    """Whether this process is the first of all.

    Signals are flags until all have agreed what to do about them (`anybody_asked`). A process that ends in any other
    way than together with the others ends them too: they would wait for it for ever. And nobody leaves before the first
    has written what was released: a signal would end whoever has left, and `mpiexec` then the others.
    """
    with stop.shielded():
        comm = mpi.world()
        abort = functools.partial(comm.Abort, STOPPED)
        if comm.size > 1:
            stop.patience = math.inf
            atexit.register(abort)
    if comm.size == 1:
        yield True
        return
    try:
        yield comm.rank == 0
        comm.Barrier()
    except StoppedInTime:
        atexit.unregister(abort)
        # one of them says so
        if comm.rank == 0:
            raise
        raise typer.Exit(STOPPED) from None
    except Exception as error:
        print(f"coterie: {error}", file=sys.stderr, flush=True)
        comm.Abort(2 if isinstance(error, InputError) else 1)
    atexit.unregister(abort)


def anybody_asked(stop: Stop) -> bool:
    """Whether any process was asked to stop, or whoever has started them: the same answer for all, who ask together."""
    comm, told = mpi.world(), os.environ.get(ASKED_FILE)
    # what arrives while a process waits for the others is looked at afterwards
    comm.Barrier()
    asked = stop.asked or (told is not None and Path(told).exists())
    return bool(comm.allreduce(int(asked)))


def charge_once(prepared: Prepared, ledger: Spending | None) -> Past:
    """As `charge`, at the first process, and not again for a run that goes on from its checkpoint."""
    comm, engine, plan = mpi.world(), prepared.spec.engine, prepared.plan
    mpi.check(plan, comm.size)
    if comm.rank != 0:
        return ()
    if engine.checkpoint is None:
        return charge(prepared, ledger)
    saved = Checkpoint(engine.checkpoint, rank=0)
    common = mpi.whole_identity(plan, comm.size, _noise(prepared), _identity(prepared))
    # first: a charge whose run cannot be found again would be made twice
    saved.begin(common, past=None)
    # another run's checkpoint is refused here
    saved.check(common)
    if saved.past is None:
        paid = _paid_before(ledger, saved.name)
        try:
            saved.settle(charge(prepared, ledger, run=saved.name) if paid is None else paid)
        except (BudgetError, LedgerError, InputError):
            # nothing was charged
            saved.remove()
            raise
    past = saved.past
    assert past is not None
    return tuple(past)


def _paid_before(ledger: Spending | None, run: str) -> Past | None:
    """What the ledger said before the charge of this run, if a process that was killed then has made it."""
    charges = () if ledger is None else ledger.charges
    places = [place for place, (what, _, _) in enumerate(charges) if run in what]
    return charges[: places[0]] if places else None


def execute_on_cluster(
    prepared: Prepared, past: Past, *, progress: Progress | None = None, audit: dict[str, Any] | None = None
) -> Outcome | None:
    """The outcome at the first process, None at the others."""
    comm, engine = mpi.world(), prepared.spec.engine
    courses: list[Releasing] = []

    def course_of(transcript: Transcript) -> Releasing:
        courses.append(releasing(prepared, transcript))
        return courses[0]

    def carry_out() -> Transcript | None:
        return mpi.run(
            prepared.plan,
            lambda party: prepared.records.federation.shards[party],
            noise=_noise(prepared),
            checkpoint=engine.checkpoint,
            every=engine.checkpoint_every,
            identity=_identity(prepared),
            comm=comm,
            progress=progress,
            course_of=None if prepared.plan.moments is None else course_of,
        )

    if comm.rank != 0:
        carry_out()
        return None
    first: Callable[[], Any] = carry_out
    return outcome_of(prepared, first, past, audit, lambda _: courses[0].released if courses else None)


def _noise(prepared: Prepared) -> Seeded | None:
    seed = prepared.spec.engine.seed
    return None if seed is None else Seeded(seed)


def _identity(prepared: Prepared) -> dict[str, Any]:
    ledger = prepared.spec.ledger
    return {
        **software(),
        "processor": processor(),
        "delta": prepared.spec.privacy.delta,
        "ledger": None if ledger is None else str(ledger.resolve()),
    }
