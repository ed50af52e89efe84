"""Runs over Flower in which a SuperNode, the SuperLink, or everything at once is killed in the middle.

    python tests/engines/flower_kills.py --runs 3

Everything is the SuperLink, all SuperNodes, the coordinator and all sites, with whatever they have started; sites and
coordinator are then started again, as an operator would. Afterwards the run is complete and signed, whatever the
coordinator received for one round is one and the same packet, every round is committed once, and the price is reserved
once (`tests/sites/kills.py`).
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
sys.path.insert(0, str(Path(__file__).parents[1] / "sites"))

import kills
import made

VICTIMS = ("supernode", "superlink", "everything")
ROUNDS = 2
# only so that one that hangs comes to an end
DEADLINE_S = 1200.0


def coordinate(place, sites):
    """A coordinator's process, with an engine of its own."""
    from coterie.relay import flower

    sockets = {name: sites / name / "site.sock" for name in made.NAMES}
    with flower.on_this_machine(place / "engine", sockets) as carry:
        kills.coordinate(place, carry)


class Hospitals:
    """Sites that serve, each a process."""

    def __init__(self, folder):
        self.folder = folder
        self.sites = {site.policy.name: site for site in made.make_sites(folder / "sites", epsilon="1e9")}
        self.processes = []

    def start(self):
        for name in self.sites:
            command = [sys.executable, "-m", "coterie", "site", "serve", str(self.folder / "sites" / name)]
            self.processes.append(spawned(command, self.folder / f"{name}.log"))

    def kill(self):
        for process in self.processes:
            process.kill()
            process.wait()
        self.processes.clear()


def spawned(command, log):
    with open(log, "ab") as out:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)


def kill_marked(place, word):
    """Every process of the engine whose command has this word in it; how many there were."""
    from coterie.relay.processes import marked

    killed = 0
    for pid in marked(place / "engine"):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if word in command:
                os.kill(pid, signal.SIGKILL)
                killed += 1
        except OSError:
            # it has ended meanwhile
            pass
    return killed


def run_with_kills(hospitals, place, kind, victims):
    """One run, in whose rounds victims are killed in turn; what is wrong with it, or None."""
    from coterie.keys import PrivateKeys

    place.mkdir()
    keys = PrivateKeys.generate()
    plan = made.plan_of(kind, max(ROUNDS, 1 + len(victims)))
    proposal, _ = made.propose(plan, list(hospitals.sites.values()), keys=keys)
    (place / "proposal.json").write_text(proposal.to_json())
    keys.save(place / "key")
    for site in hospitals.sites.values():
        assert site.approve(proposal).fits

    def start():
        script = [sys.executable, __file__, "--coordinate", str(place), str(hospitals.folder / "sites")]
        return spawned(script, place / "coordinator.log")

    waiting, coordinator, end = list(victims), start(), time.monotonic() + DEADLINE_S
    try:
        while coordinator.poll() is None:
            if time.monotonic() > end:
                return "it did not come to its end"
            # the first is killed when a round was sent, each next one when a round more is through
            rounds = len(list((place / "rounds").glob("round-*")))
            if waiting and rounds > len(victims) - len(waiting):
                victim = waiting.pop(0)
                if victim == "everything":
                    coordinator.kill()
                    coordinator.wait()
                    hospitals.kill()
                    killed = kill_marked(place, b"")
                    hospitals.start()
                    coordinator = start()
                elif victim == "superlink":
                    killed = kill_marked(place, b"flower-superlink")
                else:
                    killed = kill_marked(place, b"/node-1\0")
                if not killed:
                    return f"there was no {victim} to kill"
                print(f"     killed {victim} ({killed} processes) after {rounds} rounds", flush=True)
            time.sleep(0.1)
        if waiting:
            return f"it ended before {waiting[0]} was killed"
        if coordinator.returncode != 0:
            said = (place / "coordinator.log").read_text()[-500:]
            return f"the coordinator ended with {coordinator.returncode}: {said}"
        return kills.faults(place, proposal, hospitals.sites)
    finally:
        if coordinator.poll() is None:
            coordinator.kill()
            coordinator.wait()
        kill_marked(place, b"")


def main(runs, folder):
    hospitals, wrong = Hospitals(folder), []
    hospitals.start()
    try:
        for number, victims in enumerate(runs):
            kind = ("graph", "pairs", "walk")[number % 3]
            started = time.monotonic()
            fault = run_with_kills(hospitals, folder / f"run-{number}", kind, victims)
            took = time.monotonic() - started
            told = f"{number + 1:4d} {kind:6s} {', '.join(victims)}: {fault or 'complete'} ({took:.0f} s)"
            print(told, flush=True)
            if fault is not None:
                wrong.append((number, fault))
    finally:
        hospitals.kill()
    print(f"{len(runs) - len(wrong)} of {len(runs)} runs complete")
    return wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="of each victim")
    parser.add_argument("--coordinate", nargs=2, type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.coordinate is not None:
        coordinate(*arguments.coordinate)
        sys.exit()
    home = Path(tempfile.mkdtemp(prefix="kills-"))
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(home / "compiled"))
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    try:
        sys.exit(bool(main([(victim,) for victim in VICTIMS for _ in range(arguments.runs)], home)))
    finally:
        shutil.rmtree(home, ignore_errors=True)
