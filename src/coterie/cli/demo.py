"""The demo: Adult's 40,000 training records at five parties on a ring, (1, 1e-6) for everything anybody sees.

Algorithm, rounds and all other settings are left to the rules; examples/census.toml is the same plan as a spec.
"""

import dataclasses
import datetime
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

import coterie.rules as rules
from coterie.algorithms import ConsensusADMM, PenaltyPerturbedADMM
from coterie.certificate import Certificate, make_certificate
from coterie.cli.spec.execution import model_of
from coterie.data import Federation, load_adult, partition
from coterie.data.federation import split_intercept
from coterie.engines.in_process import Progress, run
from coterie.errors import MissingExtraError
from coterie.evaluation import exact_result
from coterie.plan import Plan
from coterie.privacy.accountants import epsilon as composed_epsilon
from coterie.privacy.noise import NoiseSource, Seeded, SystemEntropy
from coterie.privacy.objective import NoNoise
from coterie.problems import L2, Logistic, Problem
from coterie.promise import Privacy
from coterie.rundir import ProbableModel, new_directory
from coterie.transcript import RANDOMNESS, Transcript

N_PARTIES = 5
EPSILON = 1.0
DELTA = 1e-6
ADJACENCY = "replace-one"
TOPOLOGY = "ring"
BLUE, ORANGE, GREY = "#0b6e99", "#d9822b", "#7a7a7a"
PROBLEM = Problem(loss=Logistic(), regulariser=L2(1.0), record_weight=1.0)
# l2 of the lines without privacy, for each record
WEAK = 1e-6


@dataclasses.dataclass(frozen=True)
class DemoResult:
    transcript: Transcript
    # with privacy
    test_error_by_round: np.ndarray
    # the same algorithm without noise
    exact_error_by_round: np.ndarray
    # on public records: of this model, of the pooled optimum, hardly regularised, and of a party's own, the mean over
    # parties
    test: dict[str, Any]
    nonprivate: dict[str, Any]
    alone: dict[str, Any]
    model: dict[str, Any]
    date: datetime.date
    seconds: float

    @property
    def test_error(self) -> float:
        return float(self.test_error_by_round[-1])

    def summary(self) -> dict[str, Any]:
        plan = self.transcript.plan
        return {
            "test_error": self.test_error,
            "test": self.test,
            "nonprivate": self.nonprivate,
            "alone": self.alone,
            "test_error_by_round": {
                "private": self.test_error_by_round.tolist(),
                "same algorithm, no noise": self.exact_error_by_round.tolist(),
            },
            "data": "adult, which comes with Coterie and is public",
            "nonprivate_error": self.nonprivate["error"],
            "alone_error": self.alone["error"],
            "majority_error": self.test["majority_error"],
            "epsilon": plan.epsilon(DELTA),
            "delta": DELTA,
            "adjacency": plan.adjacency,
            "n_parties": plan.facts.n_parties,
            "rounds": plan.n_rounds,
            "algorithm": "penalty-perturbed-admm",
            "randomness": RANDOMNESS[self.transcript.reproducible],
        }

    @property
    def certificate(self) -> Certificate:
        """All records and preprocessing are public here; it shows what a run would promise to others."""
        return make_certificate(self.transcript.plan, DELTA, reproducible=self.transcript.reproducible, design="schema")

    def epsilon_by_round(self) -> np.ndarray:
        """What the worst party's records have paid after each round."""
        (event, _), *more = self.transcript.plan.ledger(0)
        # one price for all rounds and parties
        assert not more
        return np.array([composed_epsilon([(event, t)], DELTA) for t in range(1, self.transcript.plan.n_rounds + 1)])

    def write(self, directory: Path, draw: Callable[["DemoResult", Path], None] | None) -> Path:
        """Plan, transcript, certificate, model, summary and figure; the directory appears complete or not at all."""
        with new_directory(directory) as partial:
            (partial / "plan.json").write_text(self.transcript.plan.to_json())
            self.transcript.save(partial / "transcript.npz")
            (partial / "model.json").write_text(json.dumps(self.model, indent=1, ensure_ascii=False))
            (partial / "run.log").write_text(f"date: {self.date} (UTC)\n")
            (partial / "certificate.json").write_text(self.certificate.to_json())
            (partial / "certificate.md").write_text(self.certificate.to_markdown())
            (partial / "summary.json").write_text(json.dumps(self.summary(), indent=1))
            if draw is not None:
                draw(self, partial / "figure.png")
        return directory


def make_plan(federation: Federation) -> Plan:
    privacy = Privacy(epsilon=EPSILON, delta=DELTA, adjacency=ADJACENCY)
    return rules.make_plan(PROBLEM, federation.facts, privacy, rules.Settled(topology=TOPOLOGY))


def run_demo(*, seed: int | None = None, progress: Progress | None = None) -> DemoResult:
    noise: NoiseSource = SystemEntropy() if seed is None else Seeded(seed)
    started, date = time.perf_counter(), datetime.datetime.now(datetime.UTC).date()
    adult = load_adult(preprocessing="public")
    parties = partition.evenly(len(adult.train), N_PARTIES, seed=0)

    def federation(rows: np.ndarray, parties: np.ndarray | None) -> Federation:
        return Federation.from_arrays(
            adult.X[rows], adult.y[rows], parties=parties, labels=adult.labels, intercept=True
        )

    train, test = federation(adult.train, parties), federation(adult.test, None)
    X_test, y_test, _ = test.pooled

    def errors(models: np.ndarray) -> np.ndarray:
        return np.mean((models @ X_test.T > 0) != y_test, axis=1)

    def result(coefficients: np.ndarray) -> dict[str, Any]:
        slopes, constants = split_intercept(coefficients.reshape(1, -1), train.facts.row_norm, intercept=True)
        model = ProbableModel(adult.schema, adult.labels, train.facts.row_norm, slopes.T, constants)
        return exact_result(model, adult.X[adult.test], y_test)

    def of_optimum(X: np.ndarray, y: np.ndarray) -> dict[str, Any]:
        return result(optimum(X, y, train.facts.labels)[0])

    plan = make_plan(train)
    transcript = run(plan, train, noise=noise, progress=progress)
    private = plan.algorithm
    assert isinstance(private, PenaltyPerturbedADMM)
    exact = ConsensusADMM(
        mechanism=NoNoise(penalty=private.mechanism.penalty),
        dual_step=private.dual_step,
        averaging=private.averaging,
    )
    exact_plan = Plan.make(exact, PROBLEM, TOPOLOGY, train.facts, rounds=plan.n_rounds, adjacency=ADJACENCY)
    alone = [of_optimum(shard.X, shard.y) for shard in train.shards]
    return DemoResult(
        transcript=transcript,
        test_error_by_round=errors(transcript.models_by_round[0]),
        exact_error_by_round=errors(run(exact_plan, train).models_by_round[0]),
        test=result(transcript.models[0]),
        nonprivate=of_optimum(*train.pooled[:2]),
        alone={name: float(np.mean([one[name] for one in alone])) for name in ("error", "auc", "calibration_error")},
        model=model_of(transcript, adult.schema, adult.feature_names, intercept=True),
        date=date,
        seconds=time.perf_counter() - started,
    )


def optimum(X: np.ndarray, y: np.ndarray, labels: tuple[str, ...] | None) -> np.ndarray:
    """What these records in one place would give without noise: one party, one exact solve."""
    assert labels is not None
    problem = dataclasses.replace(PROBLEM, regulariser=L2(WEAK * len(y)))
    pooled = Federation.from_arrays(X, np.asarray(labels)[y.astype(int)], parties=None, labels=labels)
    algorithm = ConsensusADMM.with_penalty(1.0)
    plan = Plan.make(algorithm, problem, "complete", pooled.facts, rounds=1, adjacency=ADJACENCY)
    return run(plan, pooled).models


# --- for people -------------------------------------------------------------------------------------------------------


def demo_table(result: DemoResult) -> Table:
    plan = result.transcript.plan
    losses = plan.party_epsilons(DELTA)
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column()
    rows = {
        "test error, private": f"[bold]{result.test_error:.2%}[/bold]",
        "test error, not private": f"{result.nonprivate['error']:.2%}  (all records in one place, no noise)",
        "a party alone, not private": f"{result.alone['error']:.2%}  (its own records, no noise; mean over parties)",
        "majority class": f"{result.test['majority_error']:.2%}  on {result.test['records']:,} held-out records, "
        + "declared public",
        "privacy loss": f"ε = {max(losses):.4g} at δ = {DELTA:g}, {plan.adjacency}, "
        + f"at each of {len(losses)} parties of {plan.facts.sizes[0]:,} records",
        "protected": "every single record of every party",
        "from": f"anybody who sees {plan.observer().sees}",
        "algorithm": f"M-ADMM, penalty perturbation, Gaussian noise, ring, {plan.n_rounds} rounds",
        "randomness": RANDOMNESS[result.transcript.reproducible],
        "seconds": f"{result.seconds:.1f}",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def draw_demo(result: DemoResult, path: Path) -> None:
    """Left: test error by round, with and without privacy. Right: the privacy loss as it is spent."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("the figure needs matplotlib: pip install 'coterie[report]'") from None
    plan = result.transcript.plan
    rounds = np.arange(1, plan.n_rounds + 1)
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))

    left.plot(rounds, 100 * result.test_error_by_round, "o-", color=BLUE, label=f"private, ε = {EPSILON:g} in total")
    left.plot(rounds, 100 * result.exact_error_by_round, "s-", ms=4, color=ORANGE, label="same algorithm, no noise")
    left.axhline(
        100 * result.nonprivate["error"], color=ORANGE, ls="--", lw=1, label="all records in one place, no noise"
    )
    left.axhline(100 * result.test["majority_error"], color=GREY, ls=":", lw=1.2, label="majority class")
    left.set(xlabel="round", ylabel="test error (%)", title=f"Adult, {plan.facts.n_parties} parties on a ring")
    left.legend(frameon=False, fontsize=9)

    right.plot(rounds, result.epsilon_by_round(), "o-", color=BLUE)
    right.axhline(EPSILON, color=GREY, ls=":", lw=1.2)
    right.annotate("budget", (1, EPSILON), xytext=(0, -12), textcoords="offset points", color=GREY, fontsize=9)
    right.set(
        xlabel="round", ylabel=f"ε spent (δ = {DELTA:g})", ylim=(0, 1.1 * EPSILON), title="Privacy loss of a record"
    )
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.get_major_locator().set_params(integer=True)
    figure.savefig(path, dpi=150)
