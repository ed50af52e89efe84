"""Three workloads on one GPU against what the GPU allows: a million people, a sweep, and a thousand parties.

    python benchmarks/gpu.py [--quick] [--json]

The ceilings are measured here: bytes a second of a copy, read and written, and the rate of large matrix products.

People: a million with one record of 64 features in single precision, 100 rounds of broadcast-noised ADMM. The time is
that of the compiled rounds, with the data on the device. It stands beside two floors: "vectors" counts a row and a
state vector read and a state vector written for each person and round, as the algorithm is written down; "rows" counts
each person's row once, the least that any method must read.

Sweep: the cells of `sweep.py`, whole runs from plan to transcript, compiling left out and not. The floor is one
gradient in double precision for each minimisation, at the rate of the products; an exact one takes four or five, four
more in single precision, and four matrices of second derivatives in half precision, three of them of a part of the
records.

Parties: the thousand of `many_parties.py`. The floor of a round is every record read once; an exact minimisation has to
read it several times.
"""

import functools
import time

import figures
import jax
import jax.numpy as jnp
import many_parties
import numpy as np
import sweep
from figures import Figure

from coterie.algorithms import fixed_point_admm
from coterie.data import Federation
from coterie.engines import argmin, in_process, people
from coterie.engines.in_process import Paths
from coterie.network.channels import Curator
from coterie.plan import Plan
from coterie.privacy.noise import Seeded
from coterie.problems import L2, Logistic, Problem, Squared

N_FEATURES, EPSILON, DELTA = 64, 1.0, 1e-6
MATRIX = 4096


def fastest(function, *arguments, turns: int = 5) -> float:
    """Seconds of the compiled function."""
    jax.block_until_ready(function(*arguments))
    seconds = []
    for _ in range(turns):
        started = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def ceilings() -> dict:
    array = jnp.asarray(np.random.default_rng(0).normal(size=2**28).astype(np.float32))
    copy = jax.jit(lambda a: jax.lax.fori_loop(0, 20, lambda _, a: a + 1, a))
    found = {
        "device": jax.devices()[0].device_kind,
        "copy_bytes_per_s": 20 * 2 * array.nbytes / fastest(copy, array),
    }
    with jax.enable_x64(True):
        for dtype in (jnp.float64, jnp.float32):
            square = jnp.asarray(np.random.default_rng(0).normal(size=(MATRIX, MATRIX)), dtype)
            product = jax.jit(lambda a: jnp.matmul(a, a, precision="highest"))
            found[f"{dtype.__name__}_flop_per_s"] = 2 * MATRIX**3 / fastest(product, square)
    return found


def make_people(n: int, loss: str) -> Federation:
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(n, N_FEATURES)) / 12).astype(np.float32)
    score = X @ rng.normal(size=N_FEATURES)
    labels = {"labels": (0, 1)} if loss == "logistic" else {"label_bound": 5.0}
    y = (score > 0).astype(int) if loss == "logistic" else score
    return Federation.from_arrays(X, y, parties=np.arange(n), min_records=1, row_norm=1.5, **labels)


def people_plan(data: Federation, loss: str, rounds: int) -> Plan:
    regulariser, clip = L2(1.0), None if loss == "logistic" else 1.0
    algorithm = fixed_point_admm(
        channel=Curator(), regulariser=regulariser, prox_step=2.0, noise_multiplier=1.0, clip=clip
    )
    problem = Problem(loss=Logistic() if loss == "logistic" else Squared(), regulariser=regulariser, record_weight=1.0)
    plan = Plan.make(algorithm, problem, "unrestricted", data.facts, rounds=rounds, adjacency="replace-one")
    return plan.calibrate(EPSILON, DELTA)


def device_seconds(engine, compiler: str, plan: Plan, data: Federation, turns: int = 5) -> float:
    """Of all rounds in one compiled call, everything on the device before: the fastest turn. `compiler` is the function
    of the module `engine` that the run asks for its program."""
    spent, original = [], getattr(engine, compiler)

    def timed(*program):
        advance = original(*program)

        @functools.wraps(advance)
        def run(state, *arguments):
            result = None
            # the first compiles
            for _ in range(1 + turns):
                # the engine may hand its buffers on
                fresh = jax.block_until_ready(jax.tree.map(jnp.copy, state))
                started = time.perf_counter()
                result = jax.block_until_ready(advance(fresh, *arguments))
                spent.append(time.perf_counter() - started)
            return result

        return run

    setattr(engine, compiler, timed)
    try:
        in_process.run(plan, data, noise=Seeded(0), paths=Paths(blocks=1))
    finally:
        setattr(engine, compiler, original)
    return min(spent[1:])


def of_people(n: int, rounds: int, bandwidth: float) -> list[dict]:
    found = []
    for loss in ("logistic", "squared"):
        data = make_people(n, loss)
        seconds = device_seconds(people, "compiled", people_plan(data, loss, rounds), data)
        floor = n * N_FEATURES * 4 * rounds / bandwidth
        found.append(
            {
                "loss": loss,
                "scale": [n, N_FEATURES, rounds],
                "milliseconds": 1e3 * seconds,
                "of_vector_floor": 3 * floor / seconds,
                "of_row_floor": floor / seconds,
            }
        )
    return found


def of_sweep(quick: bool, double_rate: float) -> dict:
    census, seconds = sweep.federation(), []
    plans = [plan for _, _, plan in sweep.cells(census.facts, quick)]
    # the first compiles
    for _ in range(3):
        started = time.perf_counter()
        in_process.run_many(plans, census, noise=Seeded(sweep.SEED), repeats=sweep.REPEATS)
        seconds.append(time.perf_counter() - started)
    gradients = sum(plan.n_rounds for plan in plans) * sweep.REPEATS
    floor = gradients * 4 * len(census.pooled[0]) * census.facts.n_features / double_rate
    return {"cells": len(plans), "first_seconds": seconds[0], "seconds": min(seconds), "of_floor": floor / min(seconds)}


def of_parties(n_parties: int, n_records: int, rounds: int, bandwidth: float) -> dict:
    data = many_parties.federation(n_parties, n_records)
    plan = many_parties.make_plan(data.facts, rounds)
    seconds = device_seconds(argmin, "_in_one_program", plan, data) / rounds
    in_process.run(plan, data, noise=Seeded(0))
    started = time.perf_counter()
    in_process.run(plan, data, noise=Seeded(0))
    whole = (time.perf_counter() - started) / rounds
    floor = n_parties * n_records * many_parties.N_FEATURES * 8 / bandwidth
    return {
        "scale": [n_parties, n_records, many_parties.N_FEATURES, rounds],
        "milliseconds_a_round": 1e3 * seconds,
        "whole_run_milliseconds_a_round": 1e3 * whole,
        "of_record_floor": floor / seconds,
    }


def measure(quick: bool = False) -> dict:
    limits = ceilings()
    bandwidth = limits["copy_bytes_per_s"]
    persons = of_people(100_000 if quick else 1_000_000, 100, bandwidth)
    swept = of_sweep(quick, limits["float64_flop_per_s"])
    parties = of_parties(*((100, 1000, 10) if quick else (1000, 1000, 100)), bandwidth)
    shown = [
        Figure("copy", bandwidth / 1e12, "TB/s"),
        Figure("matrix product, double", limits["float64_flop_per_s"] / 1e12, "TFLOP/s"),
        Figure("matrix product, single", limits["float32_flop_per_s"] / 1e12, "TFLOP/s"),
    ]
    for row in persons:
        name = f"people, {row['loss']}"
        shown.append(Figure(f"{name}: {row['scale'][2]} rounds", row["milliseconds"], "ms"))
        shown.append(Figure(f"{name}: of the vector floor", row["of_vector_floor"], "", at_least=0.7))
        shown.append(Figure(f"{name}: of the row floor", row["of_row_floor"], ""))
    shown.append(Figure(f"sweep: {swept['cells']} cells, compiling", swept["first_seconds"], "s"))
    shown.append(Figure(f"sweep: {swept['cells']} cells, compiled", swept["seconds"], "s"))
    shown.append(Figure("sweep: of the gradient floor", swept["of_floor"], ""))
    shown.append(Figure("parties: a round on the device", parties["milliseconds_a_round"], "ms"))
    shown.append(Figure("parties: a round of a whole run", parties["whole_run_milliseconds_a_round"], "ms"))
    shown.append(Figure("parties: of the record floor", parties["of_record_floor"], ""))
    return {
        "figures": [figure.row() for figure in shown],
        "ceilings": limits,
        "people": persons,
        "sweep": swept,
        "parties": parties,
    }


def tell(result: dict) -> str:
    return result["ceilings"]["device"]


if __name__ == "__main__":
    figures.main(measure, __doc__, tell)
