"""Tables for people say both numbers, and where a paper's hypotheses fail."""

import dataclasses

from rich.console import Console

from coterie.algorithms import PenaltyPerturbedADMM
from coterie.facts import Facts
from coterie.papers.published import privacy_table
from coterie.plan import Plan
from coterie.privacy.objective import PenaltyPerturbation
from coterie.problems import L2, Logistic, Problem

FACTS = Facts(parties=("north", "south"), sizes=(100, 50), n_features=3, row_norm=1.0, labels=("no", "yes"))


def shown(facts, **noise):
    algorithm = PenaltyPerturbedADMM(mechanism=PenaltyPerturbation(penalty=2.0, **noise), dual_step=2.0)
    problem = Problem(loss=Logistic(), penalty=L2(1.0), party_weight=10.0)
    plan = Plan.make(algorithm, problem, "path", facts, rounds=4, adjacency="replace-one")
    console = Console(width=140)
    with console.capture() as capture:
        console.print(privacy_table(plan, 1e-6))
    return plan, capture.get()


def test_published_stands_beside_certified():
    plan, text = shown(FACTS, noise_rate=1.0)
    # C (1.4 c1 + alpha) / (eta V B) per round
    assert f"{4 * 10 * (1.4 * 0.25 + 1) / (2 * 1 * 50):.4g}" in text
    assert f"{plan.epsilon(1e-6):.4g}" in text
    assert "PP Theorem 4.1" in text
    assert "its hypotheses hold" in text


def test_failed_hypotheses_and_missing_bounds_are_said():
    _, text = shown(dataclasses.replace(FACTS, row_norm=2.0), noise_rate=1.0)
    assert "hypotheses fail: rows have norm at most 1" in text
    _, text = shown(FACTS, noise_multiplier=3.0)
    assert text.count("none") == 2


def test_a_bound_read_off_the_data_is_called_void():
    _, text = shown(dataclasses.replace(FACTS, data_derived=("row_norm",)), noise_multiplier=3.0)
    assert "VOID as a guarantee: row_norm read off the data" in text
    assert "VOID" not in shown(FACTS, noise_multiplier=3.0)[1]
