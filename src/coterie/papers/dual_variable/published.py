"""What Zhang & Zhu (2016) state: the loss of a step, and how many records an accuracy takes."""

import math

from coterie.papers.bounds import PublishedBound, check_constant, common_hypotheses
from coterie.plan import Plan
from coterie.privacy.objective import DualPerturbation


def dual_perturbation_theorem_1(plan: Plan) -> PublishedBound | None:
    """DVP Theorem 1: alpha_p(t) per iteration. The paper holds that iterations need not be added; the sum is given."""
    mechanism = plan.algorithm.mechanism
    assert isinstance(mechanism, DualPerturbation)
    schedule = mechanism.step_epsilon
    if schedule is None:
        return None
    losses = [sum(schedule.at(t, i) for t in range(plan.n_rounds)) for i in range(plan.facts.n_parties)]
    return PublishedBound("DVP Theorem 1, summed over iterations", tuple(losses), common_hypotheses(plan))


# --- sample complexity: orders of magnitude, never a guarantee


def dual_perturbation_records(
    *, reference_norm: float, excess: float, failure: float, step_epsilon: float, d: int, party_weight: float,
    smoothness: float, constant: float,
) -> float:  # fmt: skip
    """DVP Theorem 3: records per party for an excess loss, up to the unknown `constant` beta."""
    check_constant(constant)
    c, norm = party_weight, reference_norm
    return constant * max(
        norm * d * math.log(d / failure) / (excess * step_epsilon),
        c * smoothness * norm**2 / (excess * step_epsilon),
        c * norm**2 * math.log(1 / failure) / excess**2,
    )


def nonprivate_records(
    *, reference_norm: float, excess: float, failure: float, party_weight: float = 1.0, constant: float
) -> float:
    """DVP Theorem 2 (`party_weight` = C) and MR Theorem VI.1 (`party_weight` = 1, `excess` = tau - Delta)."""
    check_constant(constant)
    return constant * party_weight * reference_norm**2 * math.log(1 / failure) / excess**2
