"""A hundred thousand people with one record each, 64 features, 1000 rounds of broadcast-noised ADMM.

    python benchmarks/people.py [--people 100000] [--rounds 1000] [--loss logistic|squared]

Prints seconds and peak memory of the whole program, from reading the arrays to the model.
"""

import argparse
import resource
import time

import numpy as np

from coterie.algorithms import fixed_point_admm
from coterie.data import Federation
from coterie.engines.in_process import run
from coterie.network.channels import Curator
from coterie.plan import Plan
from coterie.privacy.noise import Seeded
from coterie.problems import L2, Logistic, Problem, Squared

N_FEATURES, EPSILON, DELTA = 64, 1.0, 1e-6


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--people", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--loss", choices=("logistic", "squared"), default="logistic")
    args = parser.parse_args()
    start = time.perf_counter()
    rng = np.random.default_rng(0)
    X, truth = rng.normal(size=(args.people, N_FEATURES)) / 8, rng.normal(size=N_FEATURES)
    score = X @ truth + 0.1 * rng.normal(size=args.people)
    labels = {"labels": (0, 1)} if args.loss == "logistic" else {"label_bound": 5.0}
    y = (score > 0).astype(int) if args.loss == "logistic" else score
    people = Federation.from_arrays(X, y, parties=np.arange(args.people), min_records=1, row_norm=1.5, **labels)
    regulariser, loss = L2(1.0), Logistic() if args.loss == "logistic" else Squared()
    algorithm = fixed_point_admm(
        channel=Curator(),
        regulariser=regulariser,
        prox_step=2.0,
        noise_multiplier=1.0,
        clip=None if args.loss == "logistic" else 1.0,
    )
    problem = Problem(loss=loss, regulariser=regulariser, record_weight=1.0)
    plan = Plan.make(algorithm, problem, "unrestricted", people.facts, rounds=args.rounds, adjacency="replace-one")
    plan = plan.calibrate(EPSILON, DELTA)
    ready = time.perf_counter()
    model = run(plan, people, noise=Seeded(0)).models[0]
    done = time.perf_counter()
    angle = model @ truth / np.linalg.norm(model) / np.linalg.norm(truth)
    print(f"{args.people:,} people x {N_FEATURES}, {args.rounds} rounds, {args.loss}: {done - start:.1f} s")
    each = 1e3 * (done - ready) / args.rounds
    print(f"data and plan {ready - start:.1f} s, rounds {each:.1f} ms each, compiling included")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")
    print(f"epsilon {plan.epsilon(DELTA):.6f}; cosine of the angle to the truth {angle:.4f}")


if __name__ == "__main__":
    main()
