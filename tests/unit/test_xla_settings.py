"""Settings of XLA change how long programs take, and not what they release."""

import subprocess
import sys

import pytest

RUN = """
import numpy as np
from coterie.algorithms import PenaltyPerturbedADMM
from coterie.data import Federation
from coterie.engines import rounds
from coterie.engines.in_process import run
from coterie.plan import Plan
from coterie.privacy.noise import Seeded
from coterie.privacy.objective import PenaltyPerturbation
from coterie.problems import L2, Logistic, Problem
if not {simple}:
    rounds.simple_code = lambda: None
rng = np.random.default_rng(0)
X = 0.5 * rng.normal(size=(60, 3))
data = Federation.from_arrays(X, (X[:, 0] > 0).astype(int), parties=np.arange(60) % 3, labels=(0, 1))
algorithm = PenaltyPerturbedADMM(mechanism=PenaltyPerturbation(penalty=2.0, noise_multiplier=1.0), dual_step=1.0)
problem = Problem(loss=Logistic(), regulariser=L2(1.0), record_weight=1.0)
plan = Plan.make(algorithm, problem, "ring", data.facts, rounds=3, adjacency="replace-one")
print(run(plan, data, noise=Seeded(0)).releases.ravel().tolist())
"""


def released(*, simple):
    """In a process of its own: XLA reads its settings once."""
    clean = {"PATH": "", "JAX_ENABLE_COMPILATION_CACHE": "false"}
    done = subprocess.run(
        [sys.executable, "-c", RUN.format(simple=simple)], capture_output=True, text=True, check=True, env=clean
    )
    return [float(number) for number in done.stdout.strip("[]\n").split(", ")]


def test_both_ways_release_the_same():
    assert released(simple=True) == pytest.approx(released(simple=False), rel=1e-9, abs=1e-9)
