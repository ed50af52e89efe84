"""A million people with one record each: memory, and a round beside the least that NumPy could do for it.

    python benchmarks/people_scale.py [--quick] [--json]

Whole runs are those of `people.py`, 1,000,000 x 64 and 100 rounds, each in a process of its own. The ratio is that of
one gradient over all records in NumPy (two matrix-vector products, one BLAS thread, double precision) to a round of the
algorithm with its proximal step, state and noise; compiling is left out. Quick: 200,000 people, whose rows fit
into no cache, as those of a million do not: the ratio alone.
"""

import json
import re
import sys
import time
from pathlib import Path

import figures
import numpy as np
from figures import RATIO, Figure, Laps, in_new_process
from threadpoolctl import threadpool_limits

LOSSES = ("logistic", "squared")
N_FEATURES = 64


def whole_run(loss: str, n_people: int, n_rounds: int) -> dict:
    program = Path(__file__).with_name("people.py")
    scale = ["--people", str(n_people), "--rounds", str(n_rounds), "--loss", loss]
    done = in_new_process([sys.executable, str(program), *scale])
    return {
        "seconds": done.seconds,
        "peak_gb": done.peak_gb,
        "round_ms": float(re.search(r"rounds ([\d.]+) ms each", done.output)[1]),  # type: ignore[index]
        "says": done.output.splitlines(),
    }


def round_and_gradient(loss: str, n_people: int, n_rounds: int) -> tuple[float, float]:
    """Seconds of a round, and of a gradient."""
    from coterie.algorithms import fixed_point_admm
    from coterie.data import Federation
    from coterie.engines.in_process import run
    from coterie.network.channels import Curator
    from coterie.plan import Plan
    from coterie.privacy.noise import Seeded
    from coterie.problems import L2, Logistic, Problem, Squared

    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_people, N_FEATURES)) / 8
    score = X @ rng.normal(size=N_FEATURES)
    logistic = loss == "logistic"
    y, labels = ((score > 0).astype(int), {"labels": (0, 1)}) if logistic else (score, {"label_bound": 5.0})
    people = Federation.from_arrays(X, y, parties=np.arange(n_people), min_records=1, row_norm=1.5, **labels)
    algorithm = fixed_point_admm(
        channel=Curator(), regulariser=L2(1.0), prox_step=2.0, noise_multiplier=5.0, clip=None if logistic else 1.0
    )
    problem = Problem(loss=Logistic() if logistic else Squared(), regulariser=L2(1.0), record_weight=1.0)
    plan = Plan.make(algorithm, problem, "unrestricted", people.facts, rounds=n_rounds, adjacency="replace-one")
    laps = Laps()
    model = run(plan, people, noise=Seeded(0), progress=laps).models[0]
    gradients = []
    with threadpool_limits(1, user_api="blas"):
        for _ in range(20):
            started = time.perf_counter()
            scores = X @ model
            slopes = 1 / (1 + np.exp(-scores)) - y if logistic else scores - y
            X.T @ slopes
            gradients.append(time.perf_counter() - started)
    return laps.fastest, min(gradients)


def measure(quick: bool = False) -> dict:
    shown, result = [], {}
    if not quick:
        for loss in LOSSES:
            done = result[f"whole, {loss}"] = whole_run(loss, 1_000_000, 100)
            name = f"people: 1,000,000 x 64, 100 rounds, {loss}"
            shown.append(Figure(f"{name}, peak memory", done["peak_gb"], "GB", at_most=8.0))
            shown.append(Figure(f"{name}, whole program", done["seconds"], "s"))
    for loss in LOSSES:
        seconds, gradient = round_and_gradient(loss, *((200_000, 60) if quick else (500_000, 40)))
        result[loss] = {"round_s": seconds, "gradient_s": gradient}
        shown.append(Figure(f"people: a NumPy gradient over a round, {loss}", gradient / seconds, RATIO))
    return {"figures": [figure.row() for figure in shown], **result}


def tell(result: dict) -> str:
    return "\n".join(f"{name}: {json.dumps(values)}" for name, values in result.items() if name != "figures")


if __name__ == "__main__":
    figures.main(measure, __doc__, tell)
