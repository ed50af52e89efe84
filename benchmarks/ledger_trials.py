"""Race for the last of a budget, kill whoever reserves and commits, and time a committed round.

python benchmarks/ledger_trials.py [--races 1000] [--kills 100] [--rounds 300] [--seed 0] [--folder DIR]

Real processes on a real file. A race is between two processes that have the ledger open and are told to go at the same
time. A kill is SIGKILL, at a random moment, to a process that reserves runs and commits rounds, with new noise each
time it is asked; the next process goes on where that one was.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coterie.ledger import Ledger, Price, Terms
from coterie.privacy.events import Gaussian

PRICE, TERMS = Price(1.0, 1e-6), Terms("replace-one", "record")
ROUNDS_OF_A_RUN = 3
ONE_GETS_IT = {("got it", "refused"), ("refused", "got it")}

RACER = """
import sys
from coterie.ledger import BudgetError, Ledger, Price, Terms
price, terms = Price(1.0, 1e-6), Terms("replace-one", "record")
for line in sys.stdin:
    with Ledger.open(line.strip()) as ledger:
        print("ready", flush=True)
        sys.stdin.readline()
        try:
            ledger.reserve(sys.argv[1], data="d", plan="p", price=price, terms=terms, rounds=1)
            print("got it", flush=True)
        except BudgetError:
            print("refused", flush=True)
"""

WORKER = f"""
import os, sys
from coterie.ledger import Ledger, Price, Terms
price, terms = Price(1.0, 1e-6), Terms("replace-one", "record")
with Ledger.open(sys.argv[1]) as ledger:
    for run in range(int(sys.argv[2]), 10**9):
        ledger.reserve(str(run), data="d", plan="p", price=price, terms=terms, rounds={ROUNDS_OF_A_RUN})
        for t in range({ROUNDS_OF_A_RUN}):
            sent = ledger.commit(str(run), t, os.urandom(200), f"request {{t}}")
            print(run, t, sent.hex(), flush=True)
"""


def races(folder: Path, times: int) -> Counter[tuple[str, ...]]:
    """What both processes said, how often. Each ledger has room for one of them."""
    outcomes: Counter[tuple[str, ...]] = Counter()
    with contextlib.ExitStack() as stack:
        racers = [_process(stack, RACER, name, stdin=subprocess.PIPE) for name in ("first", "second")]
        for number in range(times):
            path = folder / f"ledger-{number}"
            Ledger.create(path, epsilon=1.5, delta=1e-5).close()
            for racer in racers:
                _say(racer, str(path))
            if [_heard(racer) for racer in racers] != ["ready"] * 2:
                raise SystemExit("a process did not come to the start")
            for racer in racers if number % 2 else racers[::-1]:
                _say(racer, "go")
            outcome = tuple(_heard(racer) for racer in racers)
            with Ledger.open(path) as ledger:
                booked = ledger.total("d", delta=1e-5).releases
            outcomes[outcome if booked == 1 else (*outcome, f"{booked} booked")] += 1
            for file in folder.glob(f"ledger-{number}*"):
                # the processes are about to close it
                file.unlink(missing_ok=True)
    return outcomes


def kills(path: Path, times: int, rng: random.Random) -> tuple[int, list[str]]:
    """The number of rounds that were sent, and what went wrong. The ledger must be new and unlimited."""
    first: dict[tuple[str, int], str] = {}
    faults: list[str] = []
    run = 0
    for _ in range(times):
        with contextlib.ExitStack() as stack:
            worker = _process(stack, WORKER, str(path), str(run))
            said = [worker.stdout.readline()] if worker.stdout else []
            time.sleep(rng.uniform(0.0, 0.1))
            # by the id of a process that was started here
            os.kill(worker.pid, signal.SIGKILL)
            said += worker.stdout.readlines() if worker.stdout else []
        for line in said:
            if line.endswith("\n"):
                name, t, sent = line.split()
                if first.setdefault((name, int(t)), sent) != sent:
                    faults.append(f"round {t} of run {name} was sent again with other noise")
                run = int(name)
    with Ledger.open(path) as ledger:
        ledger.verify()
        entries = Counter((e.kind, e.content.get("run"), e.content.get("round")) for e in ledger.entries())
        faults += [f"{entry} is in the ledger {n} times" for entry, n in entries.items() if n > 1]
        for (name, t), sent in first.items():
            stored = ledger.reply(name, t)
            if stored is None or stored.hex() != sent:
                faults.append(f"round {t} of run {name} was sent and is not in the ledger")
    return len(first), faults


def round_times(folder: Path, rounds: int, size: int) -> dict[str, float]:
    """Milliseconds, medians: a committed round in a signed ledger, and a plain write of as much to the same disk."""
    committed, plain = [], []
    with Ledger.create(folder / "timed", epsilon=2.0, delta=1e-5, key=Ed25519PrivateKey.generate()) as ledger:
        price = Price.of([(Gaussian(0.01), rounds)], 1e-6)
        ledger.reserve("run", data="d", plan="p", price=price, terms=TERMS, rounds=rounds)
        with open(folder / "plain", "wb") as file:
            for t in range(rounds):
                reply = os.urandom(size)
                began = time.perf_counter()
                ledger.commit("run", t, reply, f"request {t}")
                committed.append(time.perf_counter() - began)
                began = time.perf_counter()
                file.write(reply)
                file.flush()
                os.fsync(file.fileno())
                plain.append(time.perf_counter() - began)
    spread = statistics.quantiles(committed, n=20)
    return {
        "reply_bytes": size,
        "committed_round_ms": round(1e3 * statistics.median(committed), 2),
        "slowest_in_twenty_ms": round(1e3 * spread[-1], 2),
        "plain_write_ms": round(1e3 * statistics.median(plain), 2),
    }


def _process(
    stack: contextlib.ExitStack, program: str, *arguments: str, stdin: int | None = None
) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *arguments]
    process = subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, text=True, bufsize=1)
    stack.enter_context(process)
    if process.stdin is not None:
        stack.callback(process.stdin.close)
    return process


def _say(process: subprocess.Popen[str], words: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{words}\n")


def _heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--races", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--folder", type=Path, help="on the disk that is meant; the system's folder for such files if left out"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        times = [round_times(Path(tempfile.mkdtemp(dir=folder)), options.rounds, size) for size in (1_000, 100_000)]
        outcomes = races(folder, options.races)
        Ledger.create(folder / "killed").close()
        sent, faults = kills(folder / "killed", options.kills, random.Random(options.seed))
    faults += [
        f"a race ended with {outcome}, {n} times" for outcome, n in outcomes.items() if outcome not in ONE_GETS_IT
    ]
    found = {"one got it, the other was refused": sum(outcomes[outcome] for outcome in ONE_GETS_IT)}
    result = {"rounds": times, "races": options.races, **found, "kills": options.kills, "rounds_sent": sent}
    print(json.dumps({**result, "faults": faults}, indent=1))
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
