"""Private federated ADMM for the Lasso: 1000 people, 64 features, a tenth at work; 1000 rounds x 70 runs.

    python benchmarks/federated_lasso.py [--json] [--quick] [--rounds 1000] [--runs 70]

The scale of Cyffers, Bellet & Basu (2023), Fig. 1. Two baselines do the first run with the same people at work and the
same noise: a Python loop over people, on a tenth of the rounds, and vectorised NumPy. Milliseconds per round of one run
are compared, drawing included on both sides and compiling left out, and so are the models. Quick: 200 rounds, and the
fastest of three turns counts on every side.
"""

import time

import figures
import numpy as np
from baselines import lasso_loop, lasso_numpy
from figures import RATIO, Figure

from coterie.algorithms import SumNoisedADMM
from coterie.data import Federation
from coterie.engines.in_process import run
from coterie.network.channels import Curator
from coterie.network.topology import Poisson
from coterie.plan import Plan
from coterie.privacy.noise import Seeded
from coterie.privacy.proximal import SumNoise
from coterie.problems import L1, Problem, Squared

N, P, RATE, SEED = 1000, 64, 0.1, 0
KAPPA = 1e-3
STEP, RELAXATION, CLIP, MULTIPLIER = float(N), 0.5, 0.1, 10.0
PROBLEM = Problem(loss=Squared(), regulariser=L1(KAPPA), record_weight=1 / N)


def people():
    rng = np.random.default_rng(SEED)
    truth = np.zeros(P)
    truth[:8] = rng.random(8)
    A = rng.normal(size=(N, P))
    A /= np.linalg.norm(A, axis=1, keepdims=True)
    b = A @ truth + 0.1 * rng.normal(size=N)
    return Federation.from_arrays(A, b, parties=np.arange(N), label_bound=2.0, min_records=1)


def make_plan(facts, n_rounds: int) -> Plan:
    mechanism = SumNoise(prox_step=STEP, relaxation=RELAXATION, noise_multiplier=MULTIPLIER, clip=CLIP)
    algorithm = SumNoisedADMM(
        mechanism=mechanism,
        regulariser=PROBLEM.regulariser,
        channel=Curator(),
        selection=Poisson(probability=RATE, seed=None),
    )
    return Plan.make(algorithm, PROBLEM, "unrestricted", facts, rounds=n_rounds, adjacency="zero-out", unit="party")


def baseline(program, plan: Plan, crowd: Federation, n_rounds: int) -> tuple[np.ndarray, float]:
    """Models of run 0 after every round, and seconds."""
    A, b, _ = crowd.pooled
    source = Seeded(SEED)
    works = plan.algorithm.selection.table(plan.n_rounds, plan.topology, source.coins(repeat=0))[:n_rounds]
    start, rng = time.perf_counter(), np.random.default_rng(0)
    # what a plain program would draw
    rng.normal(size=(n_rounds, P)), rng.random(size=(n_rounds, N)) < RATE
    drawn = time.perf_counter() - start
    noise = np.stack([source.draw("rounded-gaussian", P, repeat=0, party=0, t=t) for t in range(n_rounds)])
    start = time.perf_counter()
    models = program.run(
        A,
        b,
        works=works,
        noise=noise,
        weight=1 / N,
        step=STEP,
        relaxation=RELAXATION,
        clip=CLIP,
        noise_std=float(plan.grant_table().noise_std[0]),
        threshold=STEP / N * KAPPA,
    )
    return models, drawn + time.perf_counter() - start


def measure(quick: bool = False, rounds: int | None = None, runs: int | None = None) -> dict:
    n_rounds, n_runs = rounds or (200 if quick else 1000), runs or 70
    n_loop_rounds = n_rounds // (4 if quick else 10)
    crowd = people()
    plan = make_plan(crowd.facts, n_rounds)
    turns = 3 if quick else 1
    loop, loop_s = _fastest(turns, lambda: baseline(lasso_loop, plan, crowd, n_loop_rounds))
    vectorised, numpy_s = _fastest(turns, lambda: baseline(lasso_numpy, plan, crowd, n_rounds))
    start = time.perf_counter()
    run(plan, crowd, noise=Seeded(SEED), repeats=n_runs)
    compiling_s = time.perf_counter() - start
    transcript, ours_s = _fastest(turns, lambda: _timed(plan, crowd, n_runs))
    models = transcript.models_by_round[0]
    ours_ms, numpy_ms = 1e3 * ours_s / n_rounds / n_runs, 1e3 * numpy_s / n_rounds
    loop_ms = 1e3 * loop_s / n_loop_rounds
    return {
        "figures": [
            Figure("federated lasso: against a loop", loop_ms / ours_ms, RATIO, at_least=200.0).row(),
            Figure("federated lasso: against NumPy", numpy_ms / ours_ms, RATIO, at_least=8.0).row(),
        ],
        "ms_per_round": ours_ms,
        "loop_ms_per_round": loop_ms,
        "numpy_ms_per_round": numpy_ms,
        "ratio_to_loop": loop_ms / ours_ms,
        "ratio_to_numpy": numpy_ms / ours_ms,
        "seconds": ours_s,
        "seconds_with_compiling": compiling_s,
        "farthest_apart": max(
            float(np.abs(models[: len(plain)] - plain).max() / np.abs(plain).max()) for plain in (loop, vectorised)
        ),
    }


def _timed(plan: Plan, crowd: Federation, n_runs: int):
    start = time.perf_counter()
    transcript = run(plan, crowd, noise=Seeded(SEED), repeats=n_runs)
    return transcript, time.perf_counter() - start


def _fastest(turns: int, program):
    return min((program() for _ in range(turns)), key=lambda found: found[1])


def tell(result: dict) -> str:
    return (
        f"{result['ms_per_round']:.4f} ms a round and run; loop {result['loop_ms_per_round']:.2f} "
        f"({result['ratio_to_loop']:.0f} times), NumPy {result['numpy_ms_per_round']:.3f} "
        f"({result['ratio_to_numpy']:.1f} times); {result['seconds']:.1f} s, with compiling "
        f"{result['seconds_with_compiling']:.1f}; models apart by {result['farthest_apart']:.1e}"
    )


if __name__ == "__main__":
    figures.main(measure, __doc__, tell, options=("rounds", "runs"))
