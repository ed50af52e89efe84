"""A figure's worth of private ADMM on Adult: 4 algorithms x 3 noise levels x 10 repeats x 100 iterations, exact solves.

    python benchmarks/sweep.py [--json] [--quick]

Quick: two algorithms at one level, 60 iterations, compiling left out.

The scale of Zhang, Khalili & Liu (2019), Fig. 5: 40,000 census records at five parties, C = 1750, rho = 0.22. R-ADMM
and MR-ADMM minimise in every other iteration. The baseline (`baselines/sweep_lbfgs.py`) does the first iterations of
one repeat of every cell with the same noise and stopping gradient; throughput, in iterations x repeats a second,
is compared, and so are the broadcasts.
"""

import time

import figures
import numpy as np
from baselines import sweep_lbfgs
from figures import RATIO, Figure
from threadpoolctl import threadpool_limits

from coterie.algorithms import DualPerturbedADMM, PenaltyPerturbedADMM, RecycledADMM
from coterie.data import Federation, load_adult, partition
from coterie.engines.in_process import run_many
from coterie.plan import Plan
from coterie.privacy.noise import Seeded
from coterie.privacy.objective import DualPerturbation, LinearPerturbation, PenaltyPerturbation
from coterie.problems import L2, Logistic, Problem
from coterie.values import Schedule

N_PARTIES, N_ITERATIONS, REPEATS, BASELINE_ITERATIONS = 5, 100, 10, 10
QUICK_ITERATIONS, QUICK_CELLS = 60, ("ADMM", "R-ADMM")
PROBLEM = Problem(loss=Logistic(), regulariser=L2(0.22), party_weight=1750.0)
# of eta = 1 on the complete graph
CURVATURE = 2 * (N_PARTIES - 1)
# the paper's 1.04^k
RISING = Schedule(1.04, 1.04)
# noise rates of R-ADMM and MR-ADMM, in gradient units
LEVELS = (0.5, 1.0, 2.0)
SEED = 0


def algorithms(rate: float):
    """Name -> (algorithm, whether every other iteration recycles). Twice the releases at half the rate cost as much."""
    half = rate / 2
    sensitivity = 2 * 1750 / 8000
    step_epsilon = half * sensitivity + np.log1p(0.25 * sensitivity / 2 / CURVATURE)
    return {
        "ADMM": (
            DualPerturbedADMM(mechanism=DualPerturbation(penalty=1.0, step_epsilon=step_epsilon), dual_step=1.0),
            1,
        ),
        "M-ADMM": (
            PenaltyPerturbedADMM(
                mechanism=PenaltyPerturbation(penalty=Schedule(1.0, 1.02), noise_rate=Schedule(half * CURVATURE, 1.02)),
                dual_step=1.0,
            ),
            1,
        ),
        "R-ADMM": (
            RecycledADMM(mechanism=LinearPerturbation(penalty=1.0, noise_rate=rate), dual_step=1.0, recycle_weight=0.5),
            2,
        ),
        "MR-ADMM": (
            RecycledADMM(
                mechanism=LinearPerturbation(penalty=RISING, noise_rate=rate), dual_step=1.0, recycle_weight=0.5
            ),
            2,
        ),
    }


def federation() -> Federation:
    adult = load_adult(preprocessing="papers")
    rows = adult.train[:40_000]
    parties = partition.evenly(len(rows), N_PARTIES, seed=0)
    return Federation.from_arrays(
        adult.X[rows], adult.y[rows], parties=parties, labels=adult.labels, data_derived=adult.data_derived
    )


def cells(facts, quick: bool):
    """[(name, level, plan)]."""
    found = []
    n_iterations = QUICK_ITERATIONS if quick else N_ITERATIONS
    for rate in LEVELS[:1] if quick else LEVELS:
        for name, (algorithm, per_round) in algorithms(rate).items():
            if quick and name not in QUICK_CELLS:
                continue
            n_rounds = n_iterations // per_round
            plan = Plan.make(algorithm, PROBLEM, "complete", facts, rounds=n_rounds, adjacency="replace-one")
            found.append((name, rate, plan))
    return found


def baseline(plan: Plan, census: Federation, n_iterations: int) -> np.ndarray:
    """The broadcasts of repeat 0 by the straightforward program."""
    algorithm, scales, source = plan.algorithm, plan.grant_scales(), Seeded(SEED)
    rounds = np.arange(plan.n_rounds)
    setting = sweep_lbfgs.Setting(
        penalty=np.array([algorithm.mechanism.penalty.at(t, 0) for t in rounds]),
        dual_step=np.array([algorithm.dual_step.at(t, 0) for t in rounds]),
        noise_scale=scales.noise_scale[:, 0],
        output_scale=scales.output_scale[:, 0],
        extra_l2=scales.extra_l2[:, 0],
        tolerance=scales.tolerance[:, 0],
        recycle_weight=getattr(algorithm, "recycle_weight", None),
    )

    def noise(party, t):
        return [plan.draw(source, [(0, party, int(t))], purpose)[0] for purpose in ("release", "output")]

    shards = [(shard.X, 2.0 * shard.y - 1) for shard in census.shards]
    weight, l2 = PROBLEM.weight_of_one_record(census.facts.sizes[0]), PROBLEM.regulariser.l2 / N_PARTIES
    return sweep_lbfgs.run(shards, weight, l2, setting, noise, n_iterations)


def measure(quick: bool = False) -> dict:
    census = federation()
    work, n_iterations = cells(census.facts, quick), QUICK_ITERATIONS if quick else N_ITERATIONS
    plans, clocks = [plan for _, _, plan in work], []
    # compiled in the first
    for _ in range(2):
        clocks.append(_Clock())
        transcripts = run_many(plans, census, noise=Seeded(SEED), repeats=REPEATS)
        clocks[-1].stop()
    rows = []
    for (name, rate, plan), transcript in zip(work, transcripts, strict=True):
        # a second thread makes these small products slower
        with threadpool_limits(1, user_api="blas"):
            plain = _Clock()
            reference = baseline(plan, census, BASELINE_ITERATIONS)
            plain.stop()
        apart = np.abs(transcript.releases[0, : len(reference)] - reference).max() / np.abs(reference).max()
        rows.append({"cell": f"{name} {rate:g}", "baseline_seconds": plain.seconds, "apart": float(apart)})
    compiling, ours = clocks
    baseline_seconds = sum(row["baseline_seconds"] for row in rows)
    baseline_rate = len(work) * BASELINE_ITERATIONS / baseline_seconds
    rate = len(work) * n_iterations * REPEATS / ours.seconds
    return {
        "figures": [Figure("sweep: against L-BFGS-B", rate / baseline_rate, RATIO, at_least=100.0).row()],
        "iterations_per_s": rate,
        "baseline_iterations_per_s": baseline_rate,
        "ratio": rate / baseline_rate,
        "ratio_with_compiling": rate / baseline_rate * ours.seconds / compiling.seconds,
        "seconds": ours.seconds,
        "cpu_seconds": ours.cpu_seconds,
        "farthest_apart": max(row["apart"] for row in rows),
        "cells": rows,
    }


class _Clock:
    """Seconds passed, and seconds of processor time of all threads, which others on the machine disturb less."""

    def __init__(self) -> None:
        self.seconds, self.cpu_seconds = time.perf_counter(), time.process_time()

    def stop(self) -> None:
        self.seconds, self.cpu_seconds = time.perf_counter() - self.seconds, time.process_time() - self.cpu_seconds


def tell(result: dict) -> str:
    return (
        f"{result['seconds']:.1f} s ({result['cpu_seconds']:.1f} of processor time): {result['iterations_per_s']:.0f} "
        f"iterations x repeats a second, baseline {result['baseline_iterations_per_s']:.1f}: {result['ratio']:.1f} "
        f"times, with compiling {result['ratio_with_compiling']:.1f} times; broadcasts apart by at most "
        f"{result['farthest_apart']:.1e} of the largest"
    )


if __name__ == "__main__":
    figures.main(measure, __doc__, tell)
