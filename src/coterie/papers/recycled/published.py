"""What Zhang, Khalili & Liu (2019) state: the loss of a run, and how many records an accuracy takes."""

import math

from coterie.papers.bounds import (
    PublishedBound,
    check_constant,
    common_hypotheses,
    record_weight,
    room_for_jacobian,
    summed,
)
from coterie.plan import Plan
from coterie.privacy.objective import LinearPerturbation


def recycled_theorem_v_1(plan: Plan) -> PublishedBound | None:
    """MR Theorem V.1: sum_k (2C/B_i) (1.4 c1 / (rho/N + 2 eta_i(2k-1) V_i) + alpha_i(k)); even iterations are free."""
    mechanism = plan.algorithm.mechanism
    if not isinstance(mechanism, LinearPerturbation) or mechanism.noise_rate is None:
        return None
    rate = mechanism.noise_rate

    def loss(t: int, i: int) -> float:
        convexity = plan.problem.regulariser.l2 / plan.facts.n_parties + 2 * mechanism.penalty.at(t, i) * int(
            plan.topology.degrees[i]
        )
        return 2 * record_weight(plan, i) * (1.4 * plan.problem.loss.smoothness / convexity + rate.at(t, i))

    return PublishedBound(
        "MR Theorem V.1",
        summed(plan, loss),
        (
            *common_hypotheses(plan),
            ("2 c1 < (B_i/C) (rho/N + 2 eta_i(1) V_i)", room_for_jacobian(plan, mechanism.penalty.at)),
        ),
    )


def recycled_records(
    *, reference_norm: float, excess: float, failure: float, noise_rate: float, d: int, party_weight: float,
    n_parties: int, slack: float, constant: float,
) -> float:  # fmt: skip
    """MR Theorem VI.2, up to the unknown `constant` w; infinite where the noise alone exceeds the allowed excess."""
    check_constant(constant)
    c, n = party_weight, n_parties
    room = n * c * excess**2 / (2 * reference_norm**2)
    noise = (1 + slack) * n * d**2 / (c * noise_rate**2) * math.log(d / failure) ** 2
    return math.inf if room <= noise else constant * c * n * math.log(1 / failure) / (room - noise)
