"""Runs over NVIDIA FLARE in which a site, the server or everything is killed, with real processes on loopback.

    python tests/engines/nvflare_kills.py --runs 3

Three cases, each so many times: SIGKILL of one site with all that FLARE runs there, of FLARE's server with its job, and
of everything: FLARE, sites and coordinator. What was killed is started again. Afterwards: the run is complete, and is
what one process computes from the same seed; whatever the coordinator received for one round is one and the same
packet; every round is committed once, and the price is reserved once.
"""

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "sites")]

import kills  # noqa: E402
import msgpack  # noqa: E402
import numpy as np  # noqa: E402
from made import DATA, NAMES, approved, make_sites, plan_of  # noqa: E402

from coterie.relay.at_site import SOCKET as SITE  # noqa: E402
from coterie.relay.hub import SOCKET as HUB  # noqa: E402

ROUNDS = 12
# rounds
KILL_AFTER = 3
SEED = 3
DEADLINE_S = 300.0
# and the kind of plan that runs then
VICTIMS = {"site": "graph", "server": "pairs", "everything": "walk"}


# --- the coordinator's process ----------------------------------------------------------------------------------------


def coordinate(folder):
    """All proposals in the folder in turn, over one start of FLARE, until somebody stops this."""
    from coterie.keys import PrivateKeys
    from coterie.relay.engines import on_this_machine
    from coterie.site.coordinator import Coordinator
    from coterie.site.envelope import Sealing
    from coterie.site.proposal import Proposal

    sockets = {name: folder / "sites" / name / "site.sock" for name in NAMES}
    with on_this_machine("nvflare", folder / "engine", sockets) as carry:
        while True:
            waiting = [place for place in sorted(folder.glob("run-*")) if not (place / "releases.npy").exists()]
            if not waiting:
                time.sleep(0.05)
                continue
            place = waiting[0]
            proposal, keys = Proposal.read(place), PrivateKeys.load(place / "key")
            sealed = Sealing(proposal, keys, carry)

            def exchange(party, packet, sealed=sealed, place=place):
                answer = sealed(party, packet)
                with open(place / "received", "ab") as file:
                    file.write(msgpack.packb([party, answer]))
                return answer

            coordinator = Coordinator(proposal, keys, exchange, place / "rounds")
            transcript = coordinator.run()
            coordinator.signatures()
            np.save(place / "part.npy", transcript.releases)
            os.replace(place / "part.npy", place / "releases.npy")


# --- the other processes, and who kills them --------------------------------------------------------------------------


class Running:
    """Four sites that serve, and a coordinator with its engine, all processes of their own."""

    def __init__(self, folder):
        self.folder = folder
        self.sites = {site.policy.name: site for site in make_sites(folder / "sites")}
        self.served = {name: self.serve(name) for name in self.sites}
        self.coordinator = None

    def serve(self, name):
        return self._python("-m", "coterie", "site", "serve", str(self.folder / "sites" / name))

    def start_coordinator(self):
        self.coordinator = self._python(str(Path(__file__).resolve()), "--coordinate", str(self.folder))

    def _python(self, *args):
        with open(self.folder / "processes.log", "ab") as log:
            return subprocess.Popen([sys.executable, *args], stdout=log, stderr=log, start_new_session=True)

    def propose(self, number, kind):
        place = self.folder / f"run-{number}"
        partial = self.folder / f"partial-{number}"
        partial.mkdir()
        proposal, keys = approved(plan_of(kind, ROUNDS), list(self.sites.values()), seed=SEED)
        (partial / "proposal.json").write_text(proposal.to_json())
        keys.save(partial / "key")
        partial.rename(place)
        return place, proposal

    def kill(self, victim):
        """SIGKILL, and then start again what nobody else does."""
        if victim == "server":
            self._kill_engine(HUB, self.folder / "engine")
            return
        names = list(self.sites) if victim == "everything" else [list(self.sites)[1]]
        if victim == "everything":
            self.coordinator.kill()
            self.coordinator.wait()
        for name in names:
            self.served[name].kill()
            self._kill_engine(SITE, self.folder / "sites" / name)
            self.served[name].wait()
        if victim == "everything":
            self._kill_engine(HUB, self.folder / "engine")
        for name in names:
            self.served[name] = self.serve(name)
        if victim == "everything":
            self.start_coordinator()

    def _kill_engine(self, variable, place):
        for pid in engine_processes(variable, place):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop(self):
        for process in [*self.served.values(), self.coordinator]:
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGINT if process is self.coordinator else signal.SIGTERM)
        for process in [*self.served.values(), self.coordinator]:
            if process is not None:
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()


def engine_processes(variable, place):
    """Whatever FLARE runs that was told, by this variable of its environment, of a socket in this place."""
    told, found = os.fsencode(f"{variable}={place}/"), []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(line.startswith(told) for line in (entry / "environ").read_bytes().split(b"\0")):
                found.append(int(entry.name))
    return found


def one_run(running, number, victim):
    """What is wrong with a run in which `victim` is killed, or None."""
    place, proposal = running.propose(number, VICTIMS[victim])
    if running.coordinator is None:
        running.start_coordinator()
    killed, end = False, time.monotonic() + DEADLINE_S
    while not (place / "releases.npy").exists():
        if time.monotonic() > end:
            return "it did not come to its end"
        if running.coordinator.poll() is not None:
            return f"the coordinator ended with {running.coordinator.returncode}"
        if not killed and (place / "rounds" / f"round-{KILL_AFTER - 1:06d}").exists():
            running.kill(victim)
            killed = True
        time.sleep(0.01)
    if not killed:
        return "nobody was killed: it was too fast"
    return faults(running, place, proposal)


def faults(running, place, proposal):
    from coterie.engines.in_process import run
    from coterie.privacy.noise import Seeded

    expected = run(proposal.plan, DATA, noise=Seeded(SEED)).releases
    if not np.allclose(np.load(place / "releases.npy"), expected, rtol=0, atol=1e-9):
        return "other releases than those of one process"
    return kills.faults_in_ledgers(place, proposal, running.sites)


def main(runs, folder):
    running, wrong = Running(folder), []
    try:
        for number in range(runs * len(VICTIMS)):
            victim = list(VICTIMS)[number % len(VICTIMS)]
            started = time.monotonic()
            fault = one_run(running, number, victim)
            took = time.monotonic() - started
            print(f"{number + 1:4d} {VICTIMS[victim]:6s} {victim:11s} {took:5.1f} s: {fault or 'complete'}", flush=True)
            if fault is not None:
                wrong.append((victim, fault))
                break
    finally:
        running.stop()
    print(f"{number + 1 - len(wrong)} of {number + 1} runs complete")
    return wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="of each victim")
    parser.add_argument("--coordinate", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.coordinate is not None:
        # also where whoever started this ignores it
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with contextlib.suppress(KeyboardInterrupt):
            coordinate(arguments.coordinate)
        sys.exit(0)
    home = Path(tempfile.mkdtemp(prefix="kills-"))
    try:
        sys.exit(bool(main(arguments.runs, home)))
    finally:
        shutil.rmtree(home, ignore_errors=True)
