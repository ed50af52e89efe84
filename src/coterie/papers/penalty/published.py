"""What Zhang, Khalili & Liu (2018) state about the loss of a run."""

from coterie.algorithms import PenaltyPerturbedADMM
from coterie.papers.bounds import PublishedBound, common_hypotheses, record_weight, room_for_jacobian, summed
from coterie.plan import Plan


def penalty_perturbation_theorem_4_1(plan: Plan) -> PublishedBound | None:
    """PP Theorem 4.1: sum_t C (1.4 c1 + alpha_i(t)) / (eta_i(t) V_i B_i)."""
    assert isinstance(plan.algorithm, PenaltyPerturbedADMM)
    mechanism, dual_step = plan.algorithm.mechanism, plan.algorithm.dual_step
    rate = mechanism.noise_rate
    if rate is None:
        return None

    def loss(t: int, i: int) -> float:
        penalties = mechanism.penalty.at(t, i) * int(plan.topology.degrees[i])
        return record_weight(plan, i) * (1.4 * plan.problem.loss.smoothness + rate.at(t, i)) / penalties

    def penalty_is_enough(i: int) -> bool:
        return all(mechanism.penalty.at(t, i) >= dual_step.at(t, i) for t in range(plan.n_rounds))

    return PublishedBound(
        "PP Theorem 4.1",
        summed(plan, loss),
        (
            *common_hypotheses(plan),
            ("2 c1 < (B_i/C) (rho/N + 2 theta V_i)", room_for_jacobian(plan, dual_step.at)),
            ("eta_i(t) >= theta", all(map(penalty_is_enough, range(plan.facts.n_parties)))),
        ),
    )
