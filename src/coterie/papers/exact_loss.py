"""Losses that steps of the graph family reach, from their output densities, which know nothing of the proofs."""

from typing import Any

import numpy as np

from coterie.audit.density_ratio import Step, convexity, log_density
from coterie.papers.bounds import PublishedBound
from coterie.plan import Plan
from coterie.problems import L2, Logistic, Problem, Records
from coterie.values import Facts

LABELS = ("-", "+")
ADJACENCY = "replace-one"

# the papers' experiment: five parties with 8000 records each, C = 1750, rho = 0.22
ADULT = Facts(parties=tuple("abcde"), sizes=(8000,) * 5, n_features=2, row_norm=1.0, labels=LABELS)
ADULT_PROBLEM = Problem(loss=Logistic(), regulariser=L2(0.22), party_weight=1750.0)


def reached_loss(plan: Plan) -> float:
    """A pure loss that logistic regression in two dimensions reaches at the first party.

    Neighbours may broadcast anything, so in every round the linear term can be any vector. Both records have score -20
    at f, hence slopes near 1, and lie almost opposite to each other; the linear term puts the noise on the line between
    them. Then the noises differ by all of the sensitivity, and the Jacobians not at all.
    """
    far, score = 4e4, -20.0
    along = score / far
    across = np.sqrt(1 - along**2)
    record, opposite = (Records(np.array([[along, side * across]]), np.ones(1), np.ones(1)) for side in (1.0, -1.0))
    point = np.array([[far, 0.0]])
    total = 0.0
    for t in range(plan.n_rounds):
        weight = plan.party_facts(0).record_weight
        step = Step.of(plan, t, offset=(-convexity(plan, t) * far + weight * along / (1 + np.exp(score)), 2 * weight))
        total += abs(float((log_density(step, record, point) - log_density(step, opposite, point))[0]))
    return total


def plan_of(algorithm: Any, problem: Problem, facts: Facts, rounds: int) -> Plan:
    return Plan.make(algorithm, problem, "complete", facts, rounds=rounds, adjacency=ADJACENCY)


def stated(published: PublishedBound | None) -> float:
    assert published is not None
    return published.total
