"""What a round between sites costs over an engine, beside a bare round trip of the same engine with as many bytes.

    python benchmarks/relay.py --engine nvflare [--rounds 100] [--repeats 3]
    python benchmarks/relay.py --engine flower --rounds 8 --repeats 1

Four hospitals (heart disease) on this machine, each site a process. A round is everything from a coordinator's request
to its record of what was released: sealing, the engine, the site's checks, its step, its commit on disk, its signature.
The bare round trip is a job of the engine alone that sends every site as many bytes and gets as many back; of NVIDIA
FLARE by calls of its interface, and for comparison also by single messages, as we send them. The same round without any
engine, over the sites' sockets, shows how much of it is the sites' own work. All are run in turn, a few times over one
start of the engine. Processor time is told beside it, by part: what else runs on this machine changes it little.
"""

import argparse
import dataclasses
import itertools
import json
import os
import statistics
import time
from pathlib import Path

from processor_time import is_named, per_round, processor_time

from coterie.cli.spec.local_sites import sites_of
from coterie.relay.engines import on_this_machine
from coterie.site.coordinator import Coordinator
from coterie.site.envelope import Sealing
from coterie.site.store import Store
from sites import four_hospitals

GOAL = 1.2
# in the first rounds sites compile their steps
SKIPPED = 2


def measured(carry, proposal, keys, folder, started):
    """Seconds of each round, processor time of a round by part, and the sizes of a request and an answer in the middle
    of the run. started: the folder of everything that runs here."""
    at, sizes, spent = [], [], []

    def looking(party, envelope):
        answer = carry(party, envelope)
        sizes.append((len(envelope), len(answer)))
        return answer

    def watch(now):
        if now.phase == "round" and not now.answered:
            if len(at) == SKIPPED:
                spent.append(processor_time(started, os.getpid()))
            at.append(time.perf_counter())

    Coordinator(proposal, keys, Sealing(proposal, keys, looking), folder, watch=watch).run()
    spent.append(processor_time(started, os.getpid()))
    rounds = [after - before for before, after in itertools.pairwise(at)]
    return rounds[SKIPPED:], per_round(*spent, len(at) - SKIPPED), sizes[len(sizes) // 2]


class BareNvflare:
    """Our server and sites, and a job of FLARE's that calls every site with as many bytes, in its own way."""

    def prepare(self, place, sockets):
        from coterie.relay import nvflare
        from coterie.relay.processes import free_ports

        place.mkdir()
        hub = place / "coordinator.sock"
        nvflare.make_kits(place / "kits", list(sockets), server="localhost", port=free_ports(1)[0], hub=hub)
        # the other job, which only this benchmark allows
        for local in (place / "kits").glob("*/local"):
            if (local / "resources.json").exists():
                resources = json.loads((local / "resources.json").read_text())
                resources["class_allow_list"] += ["bare_nvflare.AtServer", "bare_nvflare.AtSite"]
                (local / "resources.json").write_text(json.dumps(resources))
        here = Path(__file__).resolve().parent
        found = [str(here / "nvflare_bare"), str(here), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(found)

    def round_trips(self, place, sizes, n_rounds):
        """By kind: seconds of each, and processor time of one by part."""
        from coterie.relay import nvflare

        kit, out = place / "kits" / nvflare.USER, place / "bare.json"
        out.unlink(missing_ok=True)
        arguments = {"n_rounds": n_rounds, "skipped": SKIPPED, "there": sizes[0], "back": sizes[1], "out": str(out)}
        arguments["started"] = str(place)
        names = json.loads((kit / nvflare.KIT).read_text())["parties"]
        nvflare.write_job(kit / "bare", names, "bare_nvflare.AtServer", arguments, "bare_nvflare.AtSite")
        session = nvflare.Session(kit)
        try:
            job = session.ask("submit", str(kit / "bare"))
            while not out.exists():
                status = session.ask("status", job)
                if status.startswith("FINISHED") and not out.exists():
                    raise SystemExit(f"the bare job ended without a result: {status}")
                time.sleep(1.0)
            # what ends takes processor time, too
            while is_named(place, job):
                time.sleep(0.2)
        finally:
            session.close()
        told = json.loads(out.read_text())
        kinds = {"bare": "calls", "messages": "messages"}
        return {kind: (told[name]["seconds"], told[name]["processor"]) for kind, name in kinds.items()}


class BareFlower:
    """Our SuperLink and SuperNodes, and an app of Flower's that asks every node with as many bytes, by its own loop."""

    def prepare(self, place, sockets):
        pass

    def round_trips(self, place, sizes, n_rounds):
        """By kind: seconds of each, and processor time of one by part, which is not told here."""
        from coterie.relay import flower

        (place / "bare.json").unlink(missing_ok=True)
        out, app = place / "bare.json", Path(__file__).parent / "flower_bare"
        config = f'n_rounds={n_rounds} there={sizes[0]} back={sizes[1]} out="{out}"'
        flower.Kit.read(place).flwr("run", str(app), flower.CONNECTION, "--run-config", config)
        end = time.monotonic() + 120 * n_rounds
        while not out.exists():
            if time.monotonic() > end:
                raise SystemExit("the bare app came to no result")
            time.sleep(1.0)
        return {"bare": (json.loads(out.read_text())[SKIPPED:], {})}


BARE = {"flower": BareFlower(), "nvflare": BareNvflare()}


def main(engine, n_rounds, repeats):
    bare = BARE[engine]
    plan, federation = four_hospitals(n_rounds)
    # by kind, one entry a repeat
    seconds, spent = {}, {}

    def add(kind, times, processor):
        seconds.setdefault(kind, []).append(statistics.median(times))
        spent.setdefault(kind, []).append(processor)

    with sites_of(plan, federation, delta=1e-5, seed=None, title="Benchmark") as (first, keys, running):
        place = running.folder / "engine"
        bare.prepare(place, running.sockets)

        def run(name, carry):
            """Another proposal of the same plan, of which the ledgers know nothing."""
            proposal = dataclasses.replace(first, nonce=os.urandom(16).hex())
            for site in running.places.values():
                Store(site).approve(proposal)
            return measured(carry, proposal, keys, running.folder / name, running.folder)

        with on_this_machine(engine, place, running.sockets) as carry:
            for repeat in range(repeats):
                *ours, sizes = run(f"run-{repeat}", carry)
                add("round", *ours)
                for kind, (times, processor) in bare.round_trips(place, sizes, n_rounds).items():
                    add(kind, times, processor)
        with on_this_machine("sites", place, running.sockets) as carry:
            for repeat in range(repeats):
                *own, _ = run(f"without-{repeat}", carry)
                add("no engine", *own)
    show(engine, n_rounds, sizes, seconds, spent)


def show(engine, n_rounds, sizes, seconds, spent):
    times = f"{len(seconds['round'])} times {n_rounds - SKIPPED} rounds"
    print(f"{engine}, 4 sites, {times}, {sizes[0]:,} bytes to each site and {sizes[1]:,} back")
    kinds = list(seconds)
    print(f"{'':34s}" + "".join(f"{kind:>11s}" for kind in kinds))
    print(f"{'time of a round, ms':34s}" + "".join(f"{1e3 * statistics.median(seconds[k]):11.1f}" for k in kinds))
    told("round / bare", [ours / other for ours, other in zip(seconds["round"], seconds["bare"], strict=True)])
    print(f"{'processor time of a round, ms':34s}")
    parts = sorted({part for entries in spent.values() for entry in entries for part in entry})
    for part in parts:
        found = [[entry[part] for entry in spent[kind] if part in entry] for kind in kinds]
        print(
            f"  {part:32s}" + "".join(f"{1e3 * statistics.median(one):11.1f}" if one else f"{'':11s}" for one in found)
        )
    sums = {kind: [sum(entry.values()) for entry in entries] for kind, entries in spent.items()}
    print(f"  {'together':32s}" + "".join(f"{1e3 * statistics.median(sums[kind]):11.1f}" for kind in kinds))
    if all(sums["bare"]):
        told("round / bare", [ours / other for ours, other in zip(sums["round"], sums["bare"], strict=True)])
    print(f"load average {os.getloadavg()[0]:.1f}")


def told(what, ratios):
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    print(f"{what:34s}{statistics.median(ratios):11.2f}  ({spread}; goal: at most {GOAL})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=sorted(BARE), required=True)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    main(arguments.engine, arguments.rounds, arguments.repeats)
