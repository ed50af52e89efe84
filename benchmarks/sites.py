"""What a round costs at a site: checking, committing and signing it, over the bare step of its party.

    python benchmarks/sites.py [--rounds 60]

Four hospitals (heart disease), all in this process, no transport: the time from a request's bytes to the reply's bytes,
beside the time of the same step alone and of one synced write on this disk.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from coterie.cli.spec import prepare, read_spec
from coterie.cli.spec.local_sites import open_policy
from coterie.data import Federation
from coterie.engines.own_steps import OneParty
from coterie.engines.rounds import set_up
from coterie.keys import PrivateKeys
from coterie.plan import Plan
from coterie.privacy.noise import SystemEntropy
from coterie.site.messages import pack, unpack
from coterie.site.proposal import Proposal
from coterie.site.records import write_encoded
from coterie.site.site import Site

SPEC = """\
[data]
dataset = "heart"
[parties]
topology = "complete"
[problem]
l2 = 1.0
[privacy]
epsilon = 4.0
delta = 1e-5
adjacency = "replace-one"
[algorithm]
name = "penalty-perturbed-admm"
rounds = {rounds}
"""


def four_hospitals(rounds: int) -> tuple[Plan, Federation]:
    """What is run, here and over engines (`relay.py`)."""
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder) / "spec.toml"
        spec.write_text(SPEC.format(rounds=rounds))
        prepared = prepare(read_spec(spec))
    return prepared.plan, prepared.records.federation


def measure(rounds: int, folder: Path) -> None:
    plan, federation = four_hospitals(rounds)
    shards = federation.shards
    sites, own = [], PrivateKeys.generate()
    for name, shard in zip(plan.facts.parties, shards, strict=True):
        policy = open_policy(name, 1e-5, seeded=False, curator=False)
        sites.append(Site.create(folder / name, name=name, data=Path("records.npz"), policy=policy))
        write_encoded(folder / name / "records.npz", shard)
    identities = tuple(site.keys.identity for site in sites)
    proposal = Proposal(plan, 1e-5, None, identities, own.identity)

    with set_up():
        for site in sites:
            site.store.approve(proposal)
            assert unpack(site.handle(pack("open", proposal.digest, "coordinator", own))).kind == "ready"
        bare = OneParty(plan, 0, shards[0], SystemEntropy())
        whole, step, heard = [], [], []
        for t in range(rounds):
            asked = pack("round", proposal.digest, "coordinator", own, round=t, first=max(t - 1, 0), heard=heard[-1:])
            packets = []
            for site in sites:
                started = time.perf_counter()
                packets.append(site.handle(asked))
                whole.append(time.perf_counter() - started)
            heard.append(packets)
            values = np.stack([np.frombuffer(unpack(packet)["value"]["data"]) for packet in packets])
            started = time.perf_counter()
            bare.work()
            bare.hear(values)
            step.append(time.perf_counter() - started)
    told = {
        "bare step": statistics.median(step[2:]),
        "whole round": statistics.median(whole[8:]),
        "synced write": synced_write(folder),
    }
    for what, seconds in told.items():
        print(f"{what:14s} {1e3 * seconds:7.2f} ms")
    print(f"{'difference':14s} {1e3 * (told['whole round'] - told['bare step']):7.2f} ms  (goal: at most 10)")


def synced_write(folder: Path) -> float:
    times = []
    for number in range(30):
        started = time.perf_counter()
        file = os.open(folder / f"write-{number}", os.O_WRONLY | os.O_CREAT)
        os.write(file, bytes(1000))
        os.fsync(file)
        os.close(file)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    # on this disk
    with tempfile.TemporaryDirectory(dir=".") as folder:
        measure(parser.parse_args().rounds, Path(folder))
