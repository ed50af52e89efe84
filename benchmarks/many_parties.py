"""A thousand parties with a thousand records of 50 features each on a Watts-Strogatz graph: time, growth and memory.

    python benchmarks/many_parties.py [--quick] [--json]
    python benchmarks/many_parties.py --run PARTIES RECORDS ROUNDS

M-ADMM with Gaussian noise and logistic loss. How the time of a round grows is the slope of a line through logarithms,
with one thing varied at a time: parties, records of a party, neighbours of a party. What a party minimises takes nearly
all of a round, so neighbours are also varied with the exchange alone, which is `inbox` and `combine`. Compiling is left
out, and each time is that of the least disturbed block of rounds of three runs, in plans that are long enough for
machine code (`minimisers/native`), as one of a hundred rounds is. `--run` is one whole run, from arrays to transcript;
its memory is the largest resident set of a process that does nothing else. Quick: the comparison with a plain program
alone.

A plain program (`baselines/graph_lbfgs.py`, one BLAS thread) does the same rounds with the same noise.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import figures
import jax
import networkx as nx
import numpy as np
from baselines import graph_lbfgs
from figures import RATIO, Figure, Laps, in_new_process
from threadpoolctl import threadpool_limits

from coterie.algorithms import PenaltyPerturbedADMM
from coterie.data import Federation
from coterie.engines.in_process import Paths, run
from coterie.plan import Plan
from coterie.privacy.noise import Seeded
from coterie.privacy.objective import PenaltyPerturbation
from coterie.problems import L2, Logistic, Problem
from coterie.values import Facts

N_FEATURES, DEGREE, SEED = 50, 4, 0
# however many records a party has, and
PARTY_WEIGHT = 1000.0
# penalty x neighbours, so that minimisations stay alike when one thing is varied
COUPLING = 40.0
PROBLEM = Problem(loss=Logistic(), regulariser=L2(1.0), party_weight=PARTY_WEIGHT)
MULTIPLIER = 5.0
# parties in the exchange alone: what is heard, 32 MB and more, fits in no cache
EXCHANGING = 5000
LINEAR = {"at_least": 0.9, "at_most": 1.1}


def records_of(party: int, n_records: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows within the unit ball, and labels 0 and 1."""
    truth = np.random.default_rng(SEED).normal(size=N_FEATURES)
    rng = np.random.default_rng((SEED, party))
    X = rng.normal(size=(n_records, N_FEATURES))
    X /= np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1.0) * (1 + 1e-12)
    return X, (X @ truth + 0.3 * rng.normal(size=n_records) > 0).astype(float)


def facts_of(n_parties: int, n_records: int) -> Facts:
    return Facts(
        parties=tuple(map(str, range(n_parties))),
        sizes=(n_records,) * n_parties,
        n_features=N_FEATURES,
        row_norm=1.0,
        labels=("0.0", "1.0"),
    )


def federation(n_parties: int, n_records: int) -> Federation:
    X, y = np.empty((n_parties * n_records, N_FEATURES)), np.empty(n_parties * n_records)
    for party in range(n_parties):
        rows = slice(party * n_records, (party + 1) * n_records)
        X[rows], y[rows] = records_of(party, n_records)
    return Federation.from_arrays(X, y, parties=np.repeat(np.arange(n_parties), n_records), labels=(0.0, 1.0))


def make_plan(facts: Facts, n_rounds: int, degree: int = DEGREE, multiplier: float = MULTIPLIER) -> Plan:
    eta = COUPLING / degree
    mechanism = PenaltyPerturbation(penalty=eta, noise_multiplier=multiplier)
    algorithm = PenaltyPerturbedADMM(mechanism=mechanism, dual_step=eta / 2)
    graph = nx.connected_watts_strogatz_graph(facts.n_parties, degree, 0.3, tries=1000, seed=SEED)
    return Plan.make(algorithm, PROBLEM, graph, facts, rounds=n_rounds, adjacency="replace-one")


def enough_rounds(n_parties: int, n_records: int) -> int:
    return -(-Paths().native_work // (n_parties * n_records * N_FEATURES))


def round_seconds(n_parties: int, n_records: int, degree: int = DEGREE) -> float:
    data, laps = federation(n_parties, n_records), Laps()
    # a record weighs less among more: the noise stays as large
    multiplier = MULTIPLIER * n_records / PARTY_WEIGHT
    plan = make_plan(data.facts, enough_rounds(n_parties, n_records), degree, multiplier)
    run(plan, data, noise=Seeded(SEED), progress=laps)
    return laps.fastest


def exchange_seconds(n_parties: int, degree: int, n_rounds: int = 20, repeats: int = 4) -> float:
    """Of one round in which every party broadcasts the midpoint it hears instead of a minimiser."""
    plan = make_plan(facts_of(n_parties, 2), 1, degree)
    algorithm, topology = plan.algorithm, plan.topology

    def one_round(t, public):
        _, midpoint = algorithm.inbox(1.0 * t, public, topology)
        return algorithm.combine(1.0 * t, public, midpoint, topology)

    with jax.enable_x64(True):
        public, _ = algorithm.init(topology, N_FEATURES)
        advance = jax.jit(lambda state: jax.lax.fori_loop(0, n_rounds, one_round, state))
        jax.block_until_ready(advance(public))
        seconds = []
        for _ in range(repeats):
            started = time.perf_counter()
            jax.block_until_ready(advance(public))
            seconds.append(time.perf_counter() - started)
    return min(seconds) / n_rounds


def in_turns(sizes: list[int], seconds: Callable[[int], float], turns: int = 3) -> list[float]:
    """The fastest of each size, all sizes once in every turn: what disturbs the machine for a while disturbs all."""
    return np.min([[seconds(size) for size in sizes] for _ in range(turns)], axis=0).tolist()


def exponent(sizes: list[int], seconds: list[float]) -> float:
    """The slope of the line through the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def against_plain(n_parties: int, n_records: int, n_rounds: int, turns: int = 3) -> dict:
    """The first rounds by the plain program, from the same start with the same noise; the fastest turn of each."""
    data = federation(n_parties, n_records)
    plan = make_plan(data.facts, max(n_rounds, enough_rounds(n_parties, n_records)))
    # compiles
    run(plan, data, noise=Seeded(SEED))
    source, scales = Seeded(SEED), plan.grant_scales()
    keys = [(0, party, t) for t in range(n_rounds) for party in range(n_parties)]
    linear, output = (
        plan.draw(source, keys, purpose).reshape(n_rounds, n_parties, -1) for purpose in ("release", "output")
    )
    shards = [(shard.X, 2 * shard.y - 1) for shard in data.shards]
    adjacency = nx.to_scipy_sparse_array(plan.topology.graph, nodelist=range(n_parties), dtype=float)
    ours, plain, seconds, plain_seconds = np.empty(0), np.empty(0), [], []
    for _ in range(turns):
        laps = Laps()
        ours = run(plan, data, noise=Seeded(SEED), progress=laps).releases[0]
        seconds.append(n_rounds * laps.mean)
        with threadpool_limits(1, user_api="blas"):
            started = time.perf_counter()
            plain = graph_lbfgs.run(
                shards,
                adjacency,
                weight=PARTY_WEIGHT / n_records,
                l2=PROBLEM.regulariser.l2 / n_parties,
                penalty=COUPLING / DEGREE,
                dual_step=COUPLING / DEGREE / 2,
                linear_noise=scales.noise_scale[:n_rounds, :, None] * linear,
                output_noise=scales.output_scale[:n_rounds, :, None] * output,
                extra_l2=scales.extra_l2[0],
                tolerance=scales.tolerance[0],
            )
            plain_seconds.append(time.perf_counter() - started)
    return {
        "scale": [n_parties, n_records, N_FEATURES, n_rounds],
        "seconds": seconds,
        "baseline_seconds": plain_seconds,
        "ratio": min(plain_seconds) / min(seconds),
        "farthest_apart": float(np.abs(ours[:n_rounds] - plain).max() / np.abs(plain).max()),
    }


def whole_run(n_parties: int, n_records: int, n_rounds: int) -> dict:
    started = time.perf_counter()
    data = federation(n_parties, n_records)
    plan = make_plan(data.facts, n_rounds)
    laps, ready = Laps(), time.perf_counter()
    run(plan, data, noise=Seeded(SEED), progress=laps)
    return {
        "data_and_plan_s": ready - started,
        "run_s": time.perf_counter() - ready,
        "round_s": laps.mean,
        "edges": len(plan.topology.edges),
        "epsilon": plan.epsilon(1e-6),
    }


def whole_run_alone(n_parties: int, n_records: int, n_rounds: int) -> dict:
    scale = [str(n) for n in (n_parties, n_records, n_rounds)]
    done = in_new_process([sys.executable, str(Path(__file__)), "--run", *scale])
    return {"scale": [n_parties, n_records, N_FEATURES, n_rounds], **json.loads(done.output), "peak_gb": done.peak_gb}


def measure(quick: bool = False) -> dict:
    result, shown = {}, []

    def grows(what: str, sizes: list[int], seconds: list[float], **target: float) -> None:
        slope = exponent(sizes, seconds)
        result[what] = {"sizes": sizes, "seconds": seconds, "exponent": slope}
        shown.append(Figure(f"many parties: exponent in {what}", slope, "", **target))

    if not quick:
        for label, (n_parties, n_records, n_rounds), limit in (
            ("1,000 x 1,000", (1000, 1000, 100), 4.0),
            ("10,000 x 100", (10_000, 100, 20), None),
        ):
            result[label] = whole_run_alone(n_parties, n_records, n_rounds)
            name = f"many parties: {label} x 50, {n_rounds} rounds"
            shown.append(Figure(f"{name}, peak memory", result[label]["peak_gb"], "GB", at_most=limit))
            shown.append(Figure(f"{name}, each", result[label]["round_s"], "s"))
    result["plain"] = against_plain(*((60, 1000, 5) if quick else (200, 1000, 10)))
    shown.append(Figure("many parties: against a loop with L-BFGS-B", result["plain"]["ratio"], RATIO))
    if not quick:
        parties, records, degrees = [125, 250, 500, 1000], [1000, 2000, 4000, 8000], [4, 8, 16, 32]
        grows("parties", parties, in_turns(parties, lambda n: round_seconds(n, 1000)), **LINEAR)
        grows("records of a party", records, in_turns(records, lambda n: round_seconds(200, n)), **LINEAR)
        edges = [200 * degree // 2 for degree in degrees]
        grows("edges, whole rounds", edges, in_turns(degrees, lambda degree: round_seconds(200, 1000, degree)))
        degrees = [16, 32, 64, 128]
        edges = [EXCHANGING * degree // 2 for degree in degrees]
        exchanged = in_turns(degrees, lambda degree: exchange_seconds(EXCHANGING, degree))
        grows("edges, exchange alone", edges, exchanged, **LINEAR)
    return {"figures": [figure.row() for figure in shown], **result}


def tell(result: dict) -> str:
    lines = [f"{name}: {json.dumps(values)}" for name, values in result.items() if name != "figures"]
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        print(json.dumps(whole_run(*map(int, sys.argv[2:5]))))
    else:
        figures.main(measure, __doc__, tell)
