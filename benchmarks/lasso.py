"""Lasso among people at equal certified (epsilon, 1e-6): three places for the noise against proximal DP-SGD and DP-GD.

    python benchmarks/lasso.py [--workers 2] [--quick] [--out FILE.json]

The set-up of Cyffers, Bellet & Basu (2023), Appendix E: 1000 people with one record each, rows on the unit sphere in
64 dimensions, 8 coefficients uniform on [0, 1], labels with noise of variance 0.01; a tenth of the people per round
where that applies. Zero-out adjacency of a person, Poisson sampling priced by its privacy loss distribution. Settings
(rounds, step, clipping, averaging) are picked per method and epsilon on two public data sets of the same law; the table
is about a third, with ten draws of the noise.
"""

import argparse
import dataclasses
import functools
import itertools
import json
import math
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from coterie.algorithms import BroadcastNoisedADMM, LocallyNoisedADMM, NoisyGradientDescent, SumNoisedADMM
from coterie.data import Federation
from coterie.engines.in_process import run
from coterie.network.channels import Curator
from coterie.network.selection import EVERYBODY_WORKS, Poisson, Sample
from coterie.plan import Plan
from coterie.privacy import accountants
from coterie.privacy.events import Gaussian, PoissonGaussian
from coterie.privacy.mechanisms import GaussianGradient
from coterie.privacy.noise import Seeded
from coterie.privacy.proximal import BroadcastNoise, LocalNoise, SumNoise
from coterie.problems import L1, Problem, Squared

N, P, SUPPORT, LABEL_STD, DELTA, RATE = 1000, 64, 8, 0.1, 1e-6, 0.1
# the universal threshold for columns of norm sqrt(N/P)
KAPPA = LABEL_STD * math.sqrt(2 * math.log(P) / N) / math.sqrt(P)
PROBLEM = Problem(loss=Squared(), regulariser=L1(KAPPA), record_weight=1 / N)
EPSILONS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 20.0)
METHODS = ("M1", "M2", "M3", "DP-SGD", "DP-GD")
# a proximal step of one record moves like a gradient step of length step/(1 + step), so it takes more rounds
PROXIMAL = {"rounds": (3, 10, 30, 100, 300, 1000, 3000), "steps": (0.25, 1.0, 4.0)}
GRADIENT = {"rounds": (3, 10, 30, 100, 300, 1000), "steps": (0.25, 1.0, 4.0, 16.0, 64.0)}
GRIDS = {"M1": PROXIMAL, "M2": PROXIMAL, "M3": PROXIMAL, "DP-SGD": GRADIENT, "DP-GD": GRADIENT}
MOST_ROUNDS = {"M1": 300}  # more of them never helped it, and everybody draws noise of their own
CLIPS = (0.1, 0.3)
PUBLIC_SEEDS, TEST_SEED = (1, 2), 3


@dataclasses.dataclass(frozen=True)
class Setting:
    """`step` is that of gradient descent on the mean loss; what is clipped at `clip` is a gradient, or step * gradient
    where the step is proximal."""

    rounds: int
    step: float
    clip: float
    averaging: str = "last"


@functools.cache
def draw(seed):
    """(federation of people, test rows, test labels)."""
    rng = np.random.default_rng(seed)
    truth = np.zeros(P)
    truth[rng.choice(P, SUPPORT, replace=False)] = rng.random(SUPPORT)
    A = rng.normal(size=(2 * N, P))
    A /= np.linalg.norm(A, axis=1, keepdims=True)
    b = A @ truth + LABEL_STD * rng.normal(size=2 * N)
    people = Federation.from_arrays(A[:N], b[:N], parties=np.arange(N), label_bound=2.0, min_records=1)
    return people, A[N:], b[N:]


def objective(models, A, b):
    return 0.5 * np.mean((models @ A.T - b) ** 2, axis=-1) + KAPPA * np.abs(models).sum(axis=-1)


def algorithm(method, setting, multiplier=1.0):
    noise, regulariser = {"noise_multiplier": multiplier}, PROBLEM.regulariser
    proximal = {"prox_step": setting.step * N, "relaxation": 0.5, **noise}
    secret = Poisson(probability=RATE, seed=None)
    if method == "M1":
        mechanism = LocalNoise(**proximal, clip=setting.clip)
        return LocallyNoisedADMM(
            mechanism=mechanism, regulariser=regulariser, selection=Sample(count=int(RATE * N), seed=0)
        )
    if method == "M2":
        mechanism = SumNoise(**proximal, clip=setting.clip)
        return SumNoisedADMM(mechanism=mechanism, regulariser=regulariser, channel=Curator(), selection=secret)
    if method == "M3":
        mechanism = BroadcastNoise(**proximal, clip=setting.clip / setting.step)
        return BroadcastNoisedADMM(mechanism=mechanism, regulariser=regulariser, channel=Curator())
    return NoisyGradientDescent(
        mechanism=GaussianGradient(**noise, clip=setting.clip),
        regulariser=regulariser,
        step=setting.step,
        channel=Curator(),
        selection=secret if method == "DP-SGD" else EVERYBODY_WORKS,
    )


def plan_of(method, setting, multiplier=1.0):
    facts = draw(TEST_SEED)[0].facts  # equal for all
    built = algorithm(method, setting, multiplier)
    return Plan.make(built, PROBLEM, "unrestricted", facts, rounds=setting.rounds, adjacency="zero-out", unit="party")


def calibrate(cell):
    """The least noise multiplier, to 0.1 %; it depends on nothing but (method, rounds, epsilon)."""
    method, rounds, epsilon = cell
    sampled = method in ("M2", "DP-SGD")
    count = plan_of("M1", Setting(rounds, 8.0, 0.1)).most_charged if method == "M1" else rounds

    def loss(multiplier, accountant):
        event = PoissonGaussian(1 / multiplier, RATE) if sampled else Gaussian(1 / multiplier)
        return accountants.epsilon([(event, count)], DELTA, accountant)

    low, high = 1e-2, 1e7
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if loss(middle, "best") <= epsilon else (middle, high)
    if not sampled:
        return high
    low = 0.5 * high  # distributions are tighter than moments, by less than that
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if loss(middle, "pld") <= epsilon else (middle, high)
    return high


def models(method, setting, multiplier, seed, repeats):
    """Both ways to read a model off one run, {averaging: (repeat, coefficient)}."""
    plan = plan_of(method, setting, multiplier)
    by_round = run(plan, draw(seed)[0], noise=Seeded(1000 + seed), repeats=repeats).models_by_round
    weights = np.arange(1, setting.rounds + 1)
    return {"last": by_round[:, -1], "linear": np.tensordot(by_round, weights / weights.sum(), axes=(1, 0))}


def tune(task):
    """[(epsilon, setting, mean objective on the public data sets)] for one method, number of rounds and step."""
    method, rounds, step, clips, multipliers, repeats = task
    found = []
    for clip, (epsilon, multiplier) in itertools.product(clips, multipliers.items()):
        setting, scores = Setting(rounds, step, clip), {"last": [], "linear": []}
        for seed in PUBLIC_SEEDS:
            _, A, b = draw(seed)
            for averaging, model in models(method, setting, multiplier, seed, repeats).items():
                scores[averaging].extend(objective(model, A, b))
        found += [(method, epsilon, dataclasses.replace(setting, averaging=a), np.mean(s)) for a, s in scores.items()]
    return found


def evaluate(task):
    method, epsilon, setting, multiplier, repeats = task
    _, A, b = draw(TEST_SEED)
    values = objective(models(method, setting, multiplier, TEST_SEED, repeats)[setting.averaging], A, b)
    plan = plan_of(method, setting, multiplier)
    certified = plan.epsilon(DELTA, accountant="pld" if method in ("M2", "DP-SGD") else "best")
    assert certified <= epsilon * (1 + 1e-9), (method, certified, epsilon)
    return {
        "method": method,
        "epsilon": epsilon,
        "certified": certified,
        "mean": float(values.mean()),
        "std": float(values.std(ddof=1)),
        "setting": dataclasses.asdict(setting),
    }


def reference():
    """Test objective of the exact minimiser, and of doing nothing."""
    exact = plan_of("DP-GD", Setting(3000, 64.0, 100.0), 1e-12)
    people, A, b = draw(TEST_SEED)
    best = run(exact, people, noise=Seeded(0)).models[0]
    return {"exact": float(objective(best, A, b)), "zero": float(objective(np.zeros(P), A, b))}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="a coarse grid and three values of epsilon")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    epsilons, clips, most = (EPSILONS, CLIPS, math.inf) if not args.quick else ((0.1, 1.0, 10.0), (0.1,), 300)
    start = time.time()
    cells = [
        (method, rounds)
        for method, grid in GRIDS.items()
        for rounds in grid["rounds"]
        if rounds <= min(most, MOST_ROUNDS.get(method, math.inf))
    ]
    with ProcessPoolExecutor(args.workers, mp_context=get_context("spawn")) as pool:
        keys = [(*cell, epsilon) for cell in cells for epsilon in epsilons]
        level = dict(zip(keys, pool.map(calibrate, keys), strict=True))
        print(f"calibrated in {time.time() - start:.0f} s", flush=True)
        tasks = [
            (method, rounds, step, clips, {epsilon: level[method, rounds, epsilon] for epsilon in epsilons}, 2)
            for method, rounds in cells
            for step in GRIDS[method]["steps"]
        ]
        tasks.sort(key=lambda task: -task[1])  # long ones first
        tried = [row for rows in pool.map(tune, tasks) for row in rows]
        print(f"tuned in {time.time() - start:.0f} s", flush=True)
        best = {}
        for method, epsilon, setting, score in tried:
            if score < best.get((method, epsilon), (math.inf,))[0]:
                best[method, epsilon] = (score, setting)
        chosen = [
            (method, epsilon, setting, level[method, setting.rounds, epsilon], 10)
            for (method, epsilon), (_, setting) in best.items()
        ]
        rows = list(pool.map(evaluate, chosen))
    lines = reference()
    result = {"rows": rows, "reference": lines, "seconds": time.time() - start, "kappa": KAPPA}
    print(table(result))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


def table(result):
    rows, lines = result["rows"], result["reference"]
    by_cell = {(row["method"], row["epsilon"]): row for row in rows}
    epsilons = sorted({row["epsilon"] for row in rows})
    text = [f"test objective x 1000; exact minimiser {1e3 * lines['exact']:.2f}, zero {1e3 * lines['zero']:.2f}", ""]
    text += ["| ε | " + " | ".join(METHODS) + " |", "|---" * (1 + len(METHODS)) + "|"]
    for epsilon in epsilons:
        cells = [by_cell[method, epsilon] for method in METHODS]
        text.append(
            f"| {epsilon:g} | " + " | ".join(f"{1e3 * c['mean']:.2f} ± {1e3 * c['std']:.2f}" for c in cells) + " |"
        )
    return "\n".join(text)


if __name__ == "__main__":
    main()
