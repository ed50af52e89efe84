"""One process against two on the cluster engine: a thousand parties x 1,000 records x 50 features on a graph.

    python benchmarks/mpi_scaling.py [--quick] [--json]

The plan of `many_parties.py`. Before JAX is loaded every rank ties itself to one core of its own, so that XLA has one
thread a rank and one rank is one core's work. In turns the first rank runs the plan alone, while the other sleeps, and
both run it together; each makes the records of its own parties. Rounds are synchronous, so the first rank's times are
everybody's; the fastest round of each kind counts. Compiling is left out. What the machine allows is found the same way
with matrix products in NumPy that exchange nothing: cores share caches and memory, and with other programs.
"""

import json
import os
import shutil
import sys
import time
from pathlib import Path

import figures
from figures import RATIO, Figure, Laps, in_new_process

# processes that wait give way to those that work
ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "OPENBLAS_NUM_THREADS": "1",
}


def as_rank(n_parties: int, n_records: int, n_rounds: int, turns: int) -> None:
    """Started by mpiexec; the first rank prints seconds a round, alone and together, for every turn."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(os.environ["OMPI_COMM_WORLD_RANK"]) % len(cores)]})

    import numpy as np
    from many_parties import SEED, facts_of, make_plan, records_of

    from coterie.data.federation import Shard
    from coterie.engines import mpi
    from coterie.privacy.noise import Seeded

    def shard_of(party: int) -> Shard:
        X, y = records_of(party, n_records)
        return Shard(X, y, np.ones(n_records))

    def fastest_round(comm) -> float:
        laps = Laps()
        mpi.run(plan, shard_of, noise=Seeded(SEED), comm=comm, progress=laps)
        return laps.fastest if comm.rank == 0 else float("nan")

    def products(repeats: int) -> float:
        seconds, X, v = [], np.ones((n_records, 50)), np.ones(50)
        for _ in range(repeats):
            started = time.perf_counter()
            for _ in range(3000):
                X @ v
            seconds.append(time.perf_counter() - started)
        return min(seconds)

    plan, both = make_plan(facts_of(n_parties, n_records), n_rounds), mpi.world()
    alone, rows = both.Split(color=both.rank), []
    for _ in range(turns):
        if both.rank == 0:
            one, by_itself = fastest_round(alone), products(3)
            both.send(None, dest=1)
            side_by_side = products(3)
            rows.append({"one": one, "two": fastest_round(both), "machine_allows": 2 * by_itself / side_by_side})
        else:
            # a receive would keep its core busy
            while not both.iprobe(source=0):
                time.sleep(0.05)
            both.recv(source=0)
            # until the other is done
            products(6)
            fastest_round(both)
    if both.rank == 0:
        print(json.dumps(rows))


def measure(quick: bool = False) -> dict:
    scale = (100, 1000, 20, 2) if quick else (1000, 1000, 10, 2)
    launcher = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or "mpiexec"
    # ranks tie themselves to cores
    command = [launcher, "--oversubscribe", "--bind-to", "none", "-n", "2", sys.executable, __file__, "--rank"]
    rows = json.loads(in_new_process([*command, *map(str, scale)], ENVIRONMENT).output)
    one, two = (min(row[ranks] for row in rows) for ranks in ("one", "two"))
    return {
        "figures": [
            Figure("cluster: work rate of two ranks over one", one / two, RATIO, at_least=1.7).row(),
            Figure("cluster: a round with two ranks", two, "s").row(),
        ],
        "scale": scale,
        "turns": rows,
    }


def tell(result: dict) -> str:
    return "\n".join(json.dumps(row) for row in result["turns"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        as_rank(*map(int, sys.argv[2:6]))
    else:
        figures.main(measure, __doc__, tell)
