"""A million people on one GPU against what the memory allows.

    python benchmarks/gpu.py [--people 1000000] [--rounds 100] [--json]

Broadcast-noised ADMM, 64 features in single precision, logistic and squared loss. Prints the time of the rounds (data
on the device, compiled) beside the floor: the bytes that must move, over the bandwidth of a copy measured here. Two
floors: "vectors" counts a row and a state vector read and a state vector written for each person and round, as the
algorithm is written down; "rows" counts each person's row once, the least that any method must read.
"""

import argparse
import functools
import json
import time

import jax
import jax.numpy as jnp
import numpy as np

from coterie.algorithms import fixed_point_admm
from coterie.channels import Curator
from coterie.data import Federation
from coterie.engines import in_process, people
from coterie.plan import Plan
from coterie.privacy.noise import Seeded
from coterie.problems import L2, Logistic, Problem, Squared

N_FEATURES, EPSILON, DELTA = 64, 1.0, 1e-6


def copy_bandwidth() -> float:
    """Bytes a second, read and written, of a large array that is copied."""
    array = jnp.zeros(2**28, jnp.float32)
    copy = jax.jit(lambda a, n: jax.lax.fori_loop(0, n, lambda _, a: a + 1, a), static_argnums=1)
    copy(array, 20).block_until_ready()
    started = time.perf_counter()
    copy(array, 20).block_until_ready()
    return 20 * 2 * array.nbytes / (time.perf_counter() - started)


def make_people(n: int, loss: str) -> Federation:
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(n, N_FEATURES)) / 12).astype(np.float32)
    score = X @ rng.normal(size=N_FEATURES)
    labels = {"labels": (0, 1)} if loss == "logistic" else {"label_bound": 5.0}
    y = (score > 0).astype(int) if loss == "logistic" else score
    return Federation.from_arrays(X, y, parties=np.arange(n), min_records=1, row_norm=1.5, **labels)


def rounds_seconds(plan: Plan, data: Federation) -> float:
    """Of the compiled rounds alone: the second of two runs."""
    spent, original = [], people.compiled

    def timed(program):
        advance = original(program)

        @functools.wraps(advance)
        def run(*arguments):
            arguments = jax.block_until_ready(jax.device_put(arguments))
            started = time.perf_counter()
            result = jax.block_until_ready(advance(*arguments))
            spent.append(time.perf_counter() - started)
            return result

        return run

    people.compiled = timed
    blocks, in_process.BLOCKS = in_process.BLOCKS, 1
    try:
        for seed in range(2):
            in_process.run(plan, data, noise=Seeded(seed))
    finally:
        people.compiled, in_process.BLOCKS = original, blocks
    return spent[-1]


def measure(n: int = 1_000_000, rounds: int = 100) -> list[dict]:
    bandwidth, rows = copy_bandwidth(), []
    for loss in ("logistic", "squared"):
        data = make_people(n, loss)
        penalty = L2(1.0)
        clip = None if loss == "logistic" else 1.0
        algorithm = fixed_point_admm(channel=Curator(), penalty=penalty, step=2.0, noise_multiplier=1.0, clip=clip)
        problem = Problem(loss=Logistic() if loss == "logistic" else Squared(), penalty=penalty, record_weight=1.0)
        plan = Plan.make(algorithm, problem, "unrestricted", data.facts, rounds=rounds, adjacency="replace-one")
        seconds = rounds_seconds(plan.calibrate(EPSILON, DELTA), data)
        row_bytes = n * N_FEATURES * 4 * rounds
        rows.append(
            {
                "workload": f"people, {loss}",
                "device": jax.devices()[0].device_kind,
                "milliseconds": 1e3 * seconds,
                "copy_terabytes_per_second": bandwidth / 1e12,
                "fraction_of_vector_floor": 3 * row_bytes / bandwidth / seconds,
                "fraction_of_row_floor": row_bytes / bandwidth / seconds,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--people", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = measure(arguments.people, arguments.rounds)
    if arguments.json:
        print(json.dumps(rows))
        return
    for row in rows:
        vectors, least = row["fraction_of_vector_floor"], row["fraction_of_row_floor"]
        floors = f"{vectors:.0%} of the vector floor, {least:.0%} of the row floor"
        speed = f"copy {row['copy_terabytes_per_second']:.2f} TB/s"
        print(f"{row['workload']:18} {row['device']}: {row['milliseconds']:.1f} ms; {speed}; {floors}")


if __name__ == "__main__":
    main()
