"""The demo: Adult's 40,000 training records at five parties on a ring, (1, 1e-6) for everything anybody sees.

Every setting is a constant or follows from public facts. The penalty makes the coupling of a party to its neighbours
twice as stiff as the average curvature its own records can have: 2 eta V = 2 B c1 X^2 / d, with V = 2 on a ring.
"""

import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from coterie.algorithms import ConsensusADMM, PenaltyPerturbedADMM
from coterie.data import Federation, load_adult, partition
from coterie.engines.in_process import Progress, run
from coterie.plan import Plan
from coterie.privacy.accountants import epsilon as composed_epsilon
from coterie.privacy.noise import NoiseSource, Seeded, SystemEntropy
from coterie.privacy.objective import NoNoise, PenaltyPerturbation
from coterie.problems import L2, Logistic, Problem
from coterie.rundir import new_directory
from coterie.schedules import as_schedule
from coterie.transcript import RANDOMNESS, Transcript

N_PARTIES = 5
EPSILON = 1.0
DELTA = 1e-6
ADJACENCY = "replace-one"
N_ROUNDS = 20
PROBLEM = Problem(loss=Logistic(), penalty=L2(1.0), record_weight=1.0)


@dataclasses.dataclass(frozen=True)
class DemoResult:
    transcript: Transcript
    test_error_by_round: np.ndarray  # with privacy
    exact_error_by_round: np.ndarray  # the same algorithm without noise
    nonprivate_error: float  # of the pooled optimum
    majority_error: float
    feature_names: tuple[str, ...]
    n_test: int
    seconds: float

    @property
    def test_error(self) -> float:
        return float(self.test_error_by_round[-1])

    def summary(self) -> dict[str, Any]:
        plan = self.transcript.plan
        return {
            "test_error": self.test_error,
            "nonprivate_error": self.nonprivate_error,
            "majority_error": self.majority_error,
            "epsilon": plan.epsilon(DELTA),
            "delta": DELTA,
            "adjacency": plan.adjacency,
            "n_parties": plan.facts.n_parties,
            "rounds": plan.n_rounds,
            "algorithm": "penalty-perturbed-admm",
            "seconds": round(self.seconds, 2),
            "randomness": RANDOMNESS[self.transcript.reproducible],
        }

    def epsilon_by_round(self) -> np.ndarray:
        """What the worst party's records have paid after each round."""
        (event, _), *more = self.transcript.plan.ledger(0)
        assert not more  # one price for all rounds and parties
        return np.array([composed_epsilon([(event, t)], DELTA) for t in range(1, N_ROUNDS + 1)])

    def write(self, directory: Path, draw: Callable[["DemoResult", Path], None] | None) -> Path:
        """Plan, transcript, model, summary and figure; the directory appears complete or not at all."""
        with new_directory(directory) as partial:
            (partial / "plan.json").write_text(self.transcript.plan.to_json())
            self.transcript.save(partial / "transcript.npz")
            coefficients = dict(zip(self.feature_names, self.transcript.models[0].tolist(), strict=True))
            model = {"labels": self.transcript.plan.facts.labels, "row_norm": 1.0, "coefficients": coefficients}
            (partial / "model.json").write_text(json.dumps(model, indent=1, ensure_ascii=False))
            (partial / "summary.json").write_text(json.dumps(self.summary(), indent=1))
            if draw is not None:
                draw(self, partial / "figure.png")
        return directory


def make_plan(federation: Federation) -> Plan:
    facts = federation.facts
    penalty = max(facts.sizes) * PROBLEM.loss.smoothness * facts.row_norm**2 / (2 * facts.n_features)
    algorithm = PenaltyPerturbedADMM(
        mechanism=PenaltyPerturbation(penalty=as_schedule("penalty", penalty), noise_multiplier=as_schedule("", 1.0)),
        dual_step=as_schedule("dual_step", penalty),
    )
    plan = Plan.make(algorithm, PROBLEM, "ring", facts, rounds=N_ROUNDS, adjacency=ADJACENCY)
    return plan.calibrate(EPSILON, DELTA)


def run_demo(*, seed: int | None = None, progress: Progress | None = None) -> DemoResult:
    noise: NoiseSource = SystemEntropy() if seed is None else Seeded(seed)
    started = time.perf_counter()
    adult = load_adult(preprocessing="public")
    parties = partition.evenly(len(adult.train), N_PARTIES, seed=0)
    train = Federation.from_arrays(adult.X[adult.train], adult.y[adult.train], parties=parties, labels=adult.labels)
    test = Federation.from_arrays(adult.X[adult.test], adult.y[adult.test], parties=None, labels=adult.labels)
    X_test, y_test, _ = test.pooled

    def errors(models: np.ndarray) -> np.ndarray:
        return np.mean((models @ X_test.T > 0) != y_test, axis=1)

    plan = make_plan(train)
    transcript = run(plan, train, noise=noise, progress=progress)
    private = plan.algorithm
    assert isinstance(private, PenaltyPerturbedADMM)
    exact = ConsensusADMM(mechanism=NoNoise(penalty=private.mechanism.penalty), dual_step=private.dual_step)
    exact_plan = Plan.make(exact, PROBLEM, "ring", train.facts, rounds=N_ROUNDS, adjacency=ADJACENCY)
    return DemoResult(
        transcript=transcript,
        test_error_by_round=errors(transcript.models_by_round[0]),
        exact_error_by_round=errors(run(exact_plan, train).models_by_round[0]),
        nonprivate_error=float(errors(pooled_optimum(train))[0]),
        majority_error=float(min(np.mean(y_test), 1 - np.mean(y_test))),
        feature_names=adult.feature_names,
        n_test=len(y_test),
        seconds=time.perf_counter() - started,
    )


def pooled_optimum(train: Federation) -> np.ndarray:
    """What all records in one place would give without noise: one party, one exact solve."""
    X, y, _ = train.pooled
    labels = train.facts.labels
    assert labels is not None
    pooled = Federation.from_arrays(X, np.asarray(labels)[y.astype(int)], parties=None, labels=labels)
    algorithm = ConsensusADMM.with_penalty(1.0)
    plan = Plan.make(algorithm, PROBLEM, "complete", pooled.facts, rounds=1, adjacency=ADJACENCY)
    return run(plan, pooled).models
