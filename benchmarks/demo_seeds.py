"""The demo over ten seeds: test error and its excess over the same problem without noise.

python benchmarks/demo_seeds.py [--seeds 10]
"""

import argparse

import numpy as np

from coterie.cli.demo import DELTA, N_PARTIES, make_plan, optimum
from coterie.data import Federation, load_adult, partition
from coterie.engines.in_process import run
from coterie.privacy.noise import Seeded


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    seeds = parser.parse_args().seeds
    data = load_adult(preprocessing="public")
    parties = partition.evenly(len(data.train), N_PARTIES, seed=0)
    train = Federation.from_arrays(
        data.X[data.train], data.y[data.train], parties=parties, labels=data.labels, intercept=True
    )
    test = Federation.from_arrays(
        data.X[data.test], data.y[data.test], parties=None, labels=data.labels, intercept=True
    )
    X, y, _ = test.pooled
    plan = make_plan(train)
    errors = 100 * np.mean((run(plan, train, noise=Seeded(0), repeats=seeds).models @ X.T > 0) != y, axis=1)
    exact = 100 * np.mean((optimum(*train.pooled[:2], train.facts.labels) @ X.T > 0) != y)
    print(f"ε = {plan.epsilon(DELTA):.6f} at δ = {DELTA:g}, {plan.adjacency}, {seeds} seeds")
    print(
        f"private {errors.mean():.2f} % ± {errors.std():.2f}, not private {exact:.2f} %, "
        f"excess {errors.mean() - exact:.2f} points"
    )


if __name__ == "__main__":
    main()
