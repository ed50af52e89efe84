"""A spec at sites on this machine: a folder, keys, a ledger and a process for every party, a coordinator here."""

import contextlib
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from coterie.certificate import Past
from coterie.cli.spec.execution import Outcome, after_releasing, releasing
from coterie.cli.spec.preparation import Prepared
from coterie.data.federation import Federation
from coterie.errors import CoterieError, InputError
from coterie.inference import Releasing
from coterie.keys import PrivateKeys
from coterie.plan import Plan
from coterie.relay.engines import check_installed, on_this_machine
from coterie.relay.processes import guarded, mark
from coterie.site.coordinator import Coordinator
from coterie.site.coordinator import Progress as SiteProgress
from coterie.site.envelope import Sealing
from coterie.site.policy import template
from coterie.site.proposal import Proposal, check_plan
from coterie.site.records import write_encoded
from coterie.site.site import Site
from coterie.site.sockets import Exchange, UnreachableError
from coterie.terminal import Stop, stoppable
from coterie.transcript import Interrupted, Transcript

MOST_PROCESSES = 64
STOP_S = 5.0


class SiteProcesses:
    """Sites of a proposal, each a process that serves its own folder."""

    def __init__(self, folder: Path, names: tuple[str, ...]) -> None:
        self.folder, self.names = folder, names
        # a path to a socket must be short
        self.places = {name: folder / f"{number}" for number, name in enumerate(names)}
        self.sockets = {name: place / "site.sock" for name, place in self.places.items()}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        for name, place in self.places.items():
            with open(place / "errors", "wb") as errors:
                self.processes[name] = subprocess.Popen(
                    [sys.executable, "-m", "coterie", "site", "serve", str(place)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    env={**os.environ, **mark(self.folder)},
                    # Ctrl-C is this process's to answer
                    start_new_session=True,
                )

    def watched(self, carry: Exchange) -> Exchange:
        """The same exchange, which says so when a site cannot answer because its process has ended."""

        def exchange(party: str, envelope: bytes) -> bytes:
            try:
                return carry(party, envelope)
            except UnreachableError:
                process = self.processes[party]
                if process.poll() is not None:
                    told = (self.places[party] / "errors").read_text(errors="replace").strip().splitlines()
                    reason = told[-1][:300] if told else "nothing was said"
                    raise CoterieError(f"the site of {party} ended with code {process.returncode}: {reason}") from None
                raise

        return exchange

    def stop(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
        end = time.monotonic() + STOP_S
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, end - time.monotonic()))
            if process.poll() is None:
                process.kill()
                process.wait()


@contextlib.contextmanager
def sites_of(
    plan: Plan, federation: Federation, *, delta: float, seed: int | None, title: str
) -> Iterator[tuple[Proposal, PrivateKeys, SiteProcesses]]:
    """Sites with these records on this machine, all of which have approved the plan; all gone at the end."""
    # for the owner alone
    folder = Path(tempfile.mkdtemp(prefix="coterie-"))
    with guarded(folder):
        keys = [PrivateKeys.generate() for _ in federation.shards]
        own = PrivateKeys.generate()
        proposal = Proposal(
            plan, delta, None, tuple(key.identity for key in keys), own.identity, title=title, seed=seed
        )
        running = SiteProcesses(folder, plan.facts.parties)
        for name, shard, key in zip(plan.facts.parties, federation.shards, keys, strict=True):
            policy = open_policy(name, delta, seeded=seed is not None, curator=proposal.curated)
            site = Site.create(running.places[name], name=name, data=Path("records.npz"), keys=key, policy=policy)
            write_encoded(running.places[name] / "records.npz", shard)
            site.store.approve(proposal)
            site.close()
        try:
            running.start()
            yield proposal, own, running
        finally:
            running.stop()


def open_policy(name: str, delta: float, *, seeded: bool, curator: bool) -> str:
    """Of a site that belongs to whoever runs all of them, and keeps one ledger for all, if any."""
    text = template(name, "records.npz", None, float("inf"), delta)
    for key, value in (("seeded", seeded), ("curator", curator)):
        text = text.replace(f"{key} = false", f"{key} = {str(value).lower()}")
    return text.replace("smallest_parties = 2", "smallest_parties = 1")


def execute_at_sites(
    prepared: Prepared,
    past: Past,
    *,
    progress: Callable[[int, int], None] | None = None,
    audit: dict[str, Any] | None = None,
    at_end: Callable[[SiteProcesses, str], None] | None = None,
) -> Outcome:
    """As `execute`, with every party's records in a process of its own, and a certificate that every one signs.

    at_end: is shown the sites and the name of the run before they are gone.
    """
    plan, spec, log = prepared.plan, prepared.spec, prepared.log
    started = time.perf_counter()

    def watch(now: SiteProgress) -> None:
        if progress is not None and now.phase == "round":
            progress(now.round, now.n_rounds)

    log.add(f"starting a site for each of {plan.facts.n_parties} parties")
    with (
        sites_of(
            plan,
            prepared.records.federation,
            delta=spec.privacy.delta,
            seed=spec.engine.seed,
            title="A run on one machine",
        ) as (proposal, keys, running),
        on_this_machine(spec.engine.name, running.folder / "engine", running.sockets) as carry,
        stoppable() as stop,
    ):
        # from here on, what was released is kept
        stop.patience = max(stop.patience, 1)
        exchange = Sealing(proposal, keys, running.watched(carry))
        courses: list[Releasing] = []

        def course_of(transcript: Transcript) -> Releasing:
            courses.append(releasing(prepared, transcript))
            return courses[0]

        coordinator = Coordinator(proposal, keys, exchange, running.folder / "run", watch=watch, course_of=course_of)
        transcript, signed = coordinate(coordinator, stop)
        # until whoever called this has written it
        stop.patience = math.inf
        log.add(f"{transcript.n_rounds} of {plan.n_rounds} rounds released")
        if signed is not None:
            log.add(f"signed by {', '.join(plan.facts.parties)}")
        certificate = prepared.certificate(transcript.n_rounds, past=past, audit=audit, sites=signed)
        if at_end is not None:
            at_end(running, proposal.digest)
    return Outcome(
        spec=spec,
        records=prepared.records,
        transcript=transcript,
        certificate=certificate,
        seconds=time.perf_counter() - started,
        log=log,
        moments=courses[0].released if signed is not None and courses else None,
        proposal=proposal,
    )


def coordinate(coordinator: Coordinator, stop: Stop) -> tuple[Transcript, dict[str, Any] | None]:
    """The transcript and everybody's signatures; of a run that is stopped, what was released and None."""
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.1):
            if stop.asked:
                coordinator.stop.set()
                return

    threading.Thread(target=look, daemon=True).start()
    try:
        transcript = coordinator.run()
        with after_releasing(transcript):
            return transcript, coordinator.signatures()
    except Interrupted as stopped:
        return stopped.transcript, None
    finally:
        done.set()


def check(prepared: Prepared) -> None:
    """Refuse, before anything is charged, what this engine cannot carry out."""
    plan, observer = prepared.plan, prepared.spec.privacy.observer
    check_installed(prepared.spec.engine.name)
    check_plan(plan)
    if observer not in (None, plan.observer().name):
        raise InputError(
            f"privacy.observer: got {observer!r}; between sites the coordinator sees every message, so only the loss "
            f"against {plan.observer().name!r} can be stated"
        )
    if plan.facts.n_parties > MOST_PROCESSES:
        raise InputError(
            f"engine: got {prepared.spec.engine.name!r} for {plan.facts.n_parties} parties; it starts a process for "
            f"each, at most {MOST_PROCESSES}"
        )
