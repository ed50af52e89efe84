"""Runs between real processes in which one of them is killed, at every point where that could matter.

    python tests/sites/kills.py --runs 100

Four sites serve; for each run one of them, or the coordinator, gets a server that kills itself at one point, and is
started again when it is gone. Afterwards: the run is complete and signed, whatever the coordinator received for one
round is one and the same packet, every round is committed once, and the price is reserved once.
"""

import argparse
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
sys.path.insert(0, str(Path(__file__).parent))

import msgpack

ROUNDS = 3
SITE_POINTS = (
    "before reserve", "after reserve", "before compute", "after compute", "before commit", "after commit",
    "before send", "after send",
)  # fmt: skip
COORDINATOR_POINTS = ("opened", "answers in", "written", "before signing", "signed", "handed out")
KINDS = ("states", "pairs", "walk")
DEADLINE_S = 300.0


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def wrap(owner, name, before=None, after=None):
    """Call `before` or `after` around a function, with its arguments."""
    original = getattr(owner, name)

    def wrapped(*args, **kwargs):
        if before is not None:
            before(*args, **kwargs)
        result = original(*args, **kwargs)
        if after is not None:
            after(*args, **kwargs)
        return result

    setattr(owner, name, wrapped)


def serve_site(folder, point, t):
    """A site's process; with a point, one that dies there."""
    from coterie.engines.own_steps import OneParty
    from coterie.ledger import Ledger
    from coterie.site import serve
    from coterie.site.messages import unpack
    from coterie.site.site import Site

    if point is not None:
        when, what = point.split(" ", 1)

        # envelopes are sealed: what is in them is seen before
        last = [b""]
        answered = Site._handled

        def handled(site, packet):
            run, last[0] = answered(site, packet)
            return run, last[0]

        Site._handled = handled

        def if_reply(connection, envelope):
            message = unpack(last[0])
            if message.kind in ("release", "masked", "contribution") and message["round"] >= t:
                die()

        ways = {
            "reserve": (Ledger, "reserve", lambda *_, **__: die()),
            "compute": (OneParty, "work", lambda party, **_: party.rounds_heard >= t and die()),
            "commit": (Ledger, "commit", lambda ledger, run, number, *_: number >= t and die()),
            "send": (serve, "send", if_reply),
        }
        owner, name, hook = ways[what]
        wrap(owner, name, **{when: hook})
    serve.serve(Site(Path(folder)))


def run_coordinator(folder, sites, point, t):
    """A coordinator's process."""
    from coterie.site.proposal import Proposal
    from coterie.site.sockets import Sockets

    names = Proposal.read(Path(folder)).names
    coordinate(Path(folder), Sockets({name: Path(sites) / name / "site.sock" for name in names}), point, t)


def coordinate(folder, carry, point=None, t=0):
    """From the proposal to everybody's directory; what was received is kept."""
    import made

    from coterie.certificate import make_certificate
    from coterie.cli.spec.execution import fill_run, model_of
    from coterie.data import Label, NumberColumn, Schema
    from coterie.keys import PrivateKeys
    from coterie.rundir import new_directory
    from coterie.site import coordinator
    from coterie.site.envelope import Sealing
    from coterie.site.proposal import Proposal

    proposal, keys = Proposal.read(folder), PrivateKeys.load(folder / "key")
    sealed = Sealing(proposal, keys, carry)

    def exchange(party, packet):
        answer = sealed(party, packet)
        with open(folder / "received", "ab") as file:
            file.write(msgpack.packb([party, answer]))
        return answer

    one = coordinator.Coordinator(proposal, keys, exchange, folder / "rounds")
    at_round = lambda path, content: path.name.startswith("round-") and int(path.name[6:]) >= t and die()  # noqa: E731
    if point == "opened":
        wrap(one, "_opened", after=lambda message: die())
    if point == "answers in":
        wrap(coordinator, "write_whole", before=at_round)
    if point == "written":
        wrap(coordinator, "write_whole", after=at_round)
    transcript = one.run()
    if point == "before signing":
        die()
    signed = one.signatures()
    if point == "signed":
        die()
    result = folder / "result"
    if not result.exists():
        certificate = make_certificate(proposal.plan, proposal.delta, reproducible=False, engine="sites", sites=signed)
        names = [f"x{i}" for i in range(made.X.shape[1])]
        schema = Schema(tuple(NumberColumn(name, -9, 9) for name in names), Label("y", ("0", "1")))
        with new_directory(result) as partial:
            model = model_of(transcript, schema, names, intercept=False)
            fill_run(partial, transcript, certificate, {"proposal.json": proposal.to_json()}, "", model)
    one.hand_out({path.name: path.read_bytes() for path in result.iterdir()})
    if point == "handed out":
        die()


class Servers:
    def __init__(self, folder):
        import made

        self.folder, self.context = folder, multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["coterie.site.serve", "coterie.site.coordinator", "coterie.cli.spec"])
        self.sites = {site.policy.name: site for site in made.make_sites(folder / "sites", epsilon="1e9")}
        self.processes = {name: self.start(name) for name in self.sites}

    def start(self, name, point=None, t=0):
        return self.spawn(serve_site, str(self.folder / "sites" / name), point, t)

    def spawn(self, target, *args):
        process = self.context.Process(target=target, args=args, daemon=True)
        process.start()
        return process

    def stop(self):
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.join(10)

    def run(self, number, kind, victim, point, t):
        """One run in which `victim` is killed; returns what is wrong with it, or None."""
        import made

        from coterie.keys import PrivateKeys

        place = self.folder / f"run-{number}"
        place.mkdir()
        keys = PrivateKeys.generate()
        proposal, _ = made.propose(made.plan_of(kind, ROUNDS), list(self.sites.values()), keys=keys)
        (place / "proposal.json").write_text(proposal.to_json())
        keys.save(place / "key")
        for site in self.sites.values():
            assert site.approve(proposal).fits
        args = str(place), str(self.folder / "sites")
        if victim == "coordinator":
            coordinator = self.spawn(run_coordinator, *args, point, t)
        else:
            self.processes[victim].terminate()
            self.processes[victim].join(10)
            self.processes[victim] = self.start(victim, point, t)
            coordinator = self.spawn(run_coordinator, *args, None, 0)
        killed, end = 0, time.monotonic() + DEADLINE_S
        while True:
            if time.monotonic() > end:
                coordinator.kill()
                return "it did not come to its end"
            if victim != "coordinator" and self.processes[victim].exitcode == -signal.SIGKILL:
                killed += 1
                self.processes[victim] = self.start(victim)
            coordinator.join(0.05)
            if coordinator.exitcode == 0:
                break
            if coordinator.exitcode == -signal.SIGKILL and victim == "coordinator":
                killed += 1
                coordinator = self.spawn(run_coordinator, *args, None, 0)
            elif coordinator.exitcode is not None:
                return f"the coordinator ended with {coordinator.exitcode}"
        # a site that dies after its last reply may do so when the run is over
        if victim != "coordinator" and not killed:
            self.processes[victim].join(5)
            killed += self.processes[victim].exitcode == -signal.SIGKILL
            self.processes[victim] = self.start(victim)
        if killed != 1:
            return f"{killed} processes were killed; one was to be"
        return faults(place, proposal, self.sites)


def faults(place, proposal, sites):
    """What is wrong with a run that has ended, or None: packets that were received, ledgers, results."""
    from coterie.certificate import Certificate

    certificate = Certificate.from_json((place / "result" / "certificate.json").read_text())
    certificate.verify()
    for name, site in sites.items():
        if not (site.store.result(proposal.digest) / "certificate.json").exists():
            return f"{name} does not have the result"
    return faults_in_ledgers(place, proposal, sites)


def faults_in_ledgers(place, proposal, sites):
    """What is wrong with the packets that were received, or with what sites have booked of them, or None."""
    from coterie.site.messages import unpack

    sent = {}
    with open(place / "received", "rb") as received:
        for party, packet in msgpack.Unpacker(received, raw=False):
            message = unpack(packet)
            if message.kind in ("release", "masked", "contribution"):
                sent.setdefault((party, message["round"]), set()).add(packet)
    if any(len(packets) > 1 for packets in sent.values()):
        return "a round was answered with two different packets"
    works = proposal.plan.participation
    for party, (name, site) in enumerate(sites.items()):
        site.ledger.verify()
        of_run = [entry for entry in site.ledger.entries() if entry.content.get("run") == proposal.digest]
        rounds = [entry.content["round"] for entry in of_run if entry.kind == "committed"]
        wanted = [t for t in range(proposal.plan.n_rounds) if works is None or works[t, party]]
        if rounds != wanted or [entry.kind for entry in of_run].count("reserved") != 1:
            return f"{name} has committed {rounds}, and reserved {[entry.kind for entry in of_run]}"
        for t in wanted:
            if sent[name, t] != {site.ledger.reply(proposal.digest, t)}:
                return f"{name} has sent something else in round {t} than its ledger holds"
    return None


def cases(runs):
    """Every point, at every party and round in turn."""
    names = ("east", "north", "south", "west")
    points = [(names[k % 4], point, k % ROUNDS) for k, point in enumerate(SITE_POINTS * 3)]
    points += [("coordinator", point, k % ROUNDS) for k, point in enumerate(COORDINATOR_POINTS * 2)]
    for number in range(runs):
        victim, point, t = points[number % len(points)]
        kind = KINDS[number % len(KINDS)] if victim == "coordinator" else KINDS[(number // 2) % 2]
        yield number, kind, victim, point, t


def main(runs, folder):
    servers, wrong = Servers(folder), []
    try:
        for number, kind, victim, point, t in cases(runs):
            fault = servers.run(number, kind, victim, point, t)
            print(f"{number + 1:4d} {kind:9s} {victim:12s} {point:15s} round {t}: {fault or 'complete'}", flush=True)
            if fault is not None:
                wrong.append((number, fault))
    finally:
        servers.stop()
    print(f"{runs - len(wrong)} of {runs} runs complete")
    return wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    arguments = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="kills-"))
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(home / "compiled"))
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    try:
        sys.exit(bool(main(arguments.runs, home)))
    finally:
        shutil.rmtree(home, ignore_errors=True)
