"""Losses that steps of the graph family reach, from their output densities, which know nothing of the proofs; and the
numbers that a plan fixes for its first party."""

from typing import Any

import numpy as np

from coterie.audit.density_ratio import Step, log_density
from coterie.facts import Facts
from coterie.papers.bounds import PublishedBound
from coterie.plan import Plan
from coterie.privacy.mechanisms import PartyFacts
from coterie.problems import L2, Logistic, Problem, Records

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
        weight = first_party(plan).record_weight
        step = step_of(plan, t, offset=(-convexity(plan, t) * far + weight * along / (1 + np.exp(score)), 2 * weight))
        total += abs(float((log_density(step, record, point) - log_density(step, opposite, point))[0]))
    return total


def plan_of(algorithm: Any, problem: Problem, facts: Facts, rounds: int) -> Plan:
    return Plan.make(algorithm, problem, "complete", facts, rounds=rounds, adjacency=ADJACENCY)


def first_party(plan: Plan) -> PartyFacts:
    return PartyFacts.of(0, plan.problem, plan.facts, int(plan.topology.degrees[0]), plan.adjacency, plan.unit)


def sensitivity(plan: Plan) -> float:
    return first_party(plan).gradient_sensitivity(plan.problem)


def scales(plan: Plan, t: int) -> Any:
    grants, index = plan.issued
    return grants[index[t % len(index), 0]].scales


def noise_scale(plan: Plan) -> float:
    """Of the first round: 1/rate in gradient units."""
    return float(scales(plan, 0).noise_scale)


def convexity(plan: Plan, t: int) -> float:
    issued = scales(plan, t)
    return plan.problem.regulariser.l2 / plan.facts.n_parties + issued.curvature + issued.extra_l2


def step_of(plan: Plan, t: int, offset: tuple[float, ...]) -> Step:
    return Step(
        loss=plan.problem.loss,
        weight=first_party(plan).record_weight,
        strong_convexity=convexity(plan, t),
        offset=offset,
        law="gamma-sphere",
        noise_scale=scales(plan, t).noise_scale,
    )


def stated(published: PublishedBound | None) -> float:
    assert published is not None
    return published.total
