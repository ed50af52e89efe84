"""Test error of the graph algorithms on Adult at equal certified (epsilon, 1e-6), replace-one, everything seen.

    python benchmarks/graph_family.py [--seeds 10] [--only WORD] [--out FILE.json]

Rows of `papers` preprocessing and the split that the reference lines were drawn on (docs/benchmarks.md). Settings are
the same function of public facts for every cell, given in `coupling` and `ROUNDS`.
"""

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np

from coterie.algorithms import (
    DualPerturbedADMM,
    OneReleaseAverage,
    PenaltyPerturbedADMM,
    PrimalPerturbedADMM,
    RecycledADMM,
)
from coterie.data import Federation, load_adult, partition
from coterie.engines.in_process import run
from coterie.network.topology import make_topology
from coterie.plan import Plan
from coterie.privacy.accountants import gaussian_epsilon
from coterie.privacy.events import Gaussian
from coterie.privacy.noise import Seeded
from coterie.privacy.objective import (
    DualPerturbation,
    LinearPerturbation,
    OutputPerturbation,
    PenaltyPerturbation,
    SoloPerturbation,
)
from coterie.problems import L2, Logistic, Problem

DELTA = 1e-6
PROBLEM = Problem(loss=Logistic(), regulariser=L2(1.0), record_weight=1.0)
CELLS = [(5, "ring", eps) for eps in (0.5, 1.0, 2.0, 4.0)] + [(100, "watts-strogatz", eps) for eps in (1.0, 4.0)]
REFERENCE = {(5, 0.5): 17.3, (5, 1.0): 16.5, (5, 2.0): 16.2, (5, 4.0): 15.9, (100, 1.0): 18.5, (100, 4.0): 16.7}
ROUNDS = {"gaussian": 20, "gamma": 4}
# of the coefficients: a guess, not a measurement
GUESSED_NORM = 20.0


def one_shot_multiplier(epsilon: float) -> float:
    """Gaussian multiplier that would spend (epsilon, DELTA) in one release."""
    low, high = 1e-3, 1e6
    for _ in range(80):
        middle = math.sqrt(low * high)
        too_little = gaussian_epsilon([(Gaussian(1 / middle), 1)], DELTA) > epsilon
        low, high = (middle, high) if too_little else (low, middle)
    return high


def coupling(epsilon: float, n_rounds: int, facts) -> float:
    """2 eta V: stiff enough against the noise, and so stiff that the Jacobian does not dominate the price.

    K rounds move about as far as gradient descent of total length K / (2 eta V), which should meet noise of norm
    G m sqrt(d / N) at coefficients of the guessed norm.
    """
    multiplier, d = one_shot_multiplier(epsilon), facts.n_features
    against_noise = n_rounds * 2 * facts.row_norm * multiplier * math.sqrt(d / facts.n_parties) / GUESSED_NORM
    against_jacobian = math.sqrt(8 * n_rounds) * PROBLEM.loss.smoothness * facts.row_norm**2 * multiplier
    return max(against_noise, against_jacobian)


def algorithms(epsilon: float, facts, topology):
    """Name -> (algorithm with any noise, rounds)."""

    def penalties(law):
        """eta_i = coupling / (2 V_i): parties with few neighbours hold on to them harder, so all pay the same."""
        return tuple((coupling(epsilon, ROUNDS[law], facts) / (2 * topology.degrees)).tolist())

    def graph(kind, mechanism, law, level, **more):
        eta = penalties(law)
        return kind(mechanism=mechanism(penalty=eta, **level), dual_step=min(eta), **more), ROUNDS[law]

    # one release at order a ~ m sqrt(2 ln 1/delta) needs k a well below 1
    highest_order = one_shot_multiplier(epsilon) * math.sqrt(2 * math.log(1 / DELTA))
    solo_l2 = max(coupling(epsilon, 1, facts), 4 * PROBLEM.loss.smoothness * facts.row_norm**2 * highest_order)
    gauss, gamma = {"noise_multiplier": 1.0}, {"noise_rate": 1.0}
    return {
        "DVP gamma": graph(DualPerturbedADMM, DualPerturbation, "gamma", {"step_epsilon": 1.0}),
        "DVP Gaussian": graph(DualPerturbedADMM, DualPerturbation, "gaussian", gauss),
        "PVP gamma": graph(PrimalPerturbedADMM, OutputPerturbation, "gamma", gamma),
        "PVP Gaussian": graph(PrimalPerturbedADMM, OutputPerturbation, "gaussian", gauss),
        "PP gamma": graph(PenaltyPerturbedADMM, PenaltyPerturbation, "gamma", gamma),
        "PP Gaussian": graph(PenaltyPerturbedADMM, PenaltyPerturbation, "gaussian", gauss),
        "PP Gaussian, averaged": graph(
            PenaltyPerturbedADMM, PenaltyPerturbation, "gaussian", gauss, averaging="linear"
        ),
        "R gamma": graph(RecycledADMM, LinearPerturbation, "gamma", gamma, recycle_weight=0.5),
        "R Gaussian": graph(RecycledADMM, LinearPerturbation, "gaussian", gauss, recycle_weight=0.5),
        "R Gaussian output": graph(RecycledADMM, OutputPerturbation, "gaussian", gauss, recycle_weight=0.5),
        "one release gamma": (OneReleaseAverage(mechanism=SoloPerturbation(**gamma, extra_l2=solo_l2)), 1),
        "one release Gaussian": (OneReleaseAverage(mechanism=SoloPerturbation(**gauss, extra_l2=solo_l2)), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", default="", help="algorithms whose name contains this word")
    parser.add_argument("--parties", type=int, default=0, help="only cells with this many parties")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()

    adult = load_adult(preprocessing="papers")
    test = Federation.from_arrays(adult.X[adult.test], adult.y[adult.test], parties=None, labels=adult.labels)
    X, y, _ = test.pooled
    rows = []
    for n_parties, graph, epsilon in CELLS:
        if arguments.parties not in (0, n_parties):
            continue
        parties = partition.evenly(len(adult.train), n_parties, seed=0)
        train = Federation.from_arrays(
            adult.X[adult.train],
            adult.y[adult.train],
            parties=parties,
            labels=adult.labels,
            data_derived=adult.data_derived,
        )
        topology = make_topology(graph, n_parties)
        for name, (algorithm, n_rounds) in algorithms(epsilon, train.facts, topology).items():
            if arguments.only not in name:
                continue
            started = time.perf_counter()
            plan = Plan.make(algorithm, PROBLEM, topology, train.facts, rounds=n_rounds, adjacency="replace-one")
            plan = plan.calibrate(epsilon, DELTA)
            models = run(plan, train, noise=Seeded(0), repeats=arguments.seeds).models
            errors = 100 * np.mean((models @ X.T > 0) != y, axis=1)
            row = {
                "n_parties": n_parties,
                "epsilon": epsilon,
                "algorithm": name,
                "error": float(errors.mean()),
                "spread": float(errors.std()),
                "over_reference": float(errors.mean() - REFERENCE[n_parties, epsilon]),
                "rounds": n_rounds,
                "certified_epsilon": plan.epsilon(DELTA),
                "seconds": time.perf_counter() - started,
            }
            rows.append(row)
            print(
                f"N = {n_parties:3}  ε = {epsilon:3g}  {name:22}  {row['error']:6.2f} % ± {row['spread']:.2f}"
                f"  reference + {row['over_reference']:5.2f}  ({row['seconds']:.0f} s)",
                flush=True,
            )
    for n_parties, _, epsilon in CELLS:
        cell = [r for r in rows if (r["n_parties"], r["epsilon"]) == (n_parties, epsilon)]
        if cell:
            best = min(cell, key=lambda r: r["error"])
            print(
                f"best at N = {n_parties}, ε = {epsilon:g}: {best['algorithm']}, {best['over_reference']:+.2f} points"
            )
    if arguments.out:
        arguments.out.write_text(json.dumps({"seeds": arguments.seeds, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
