"""What the papers of the graph family state, as printed: the loss of a run, and how many records an accuracy takes.

    DVP   Zhang & Zhu (2016)      PP   Zhang, Khalili & Liu (2018)      MR   Zhang, Khalili & Liu (2019)

No bound is used to calibrate anything. One that fails is here because people will look for it. Hypotheses are checked
and listed; `holds` tells whether the paper's own conditions are met, not whether the theorem is true (`coterie errata`
tells that).
"""

import dataclasses
import math
from collections.abc import Callable

from coterie.algorithms import Algorithm, DualPerturbedADMM, PenaltyPerturbedADMM, RecycledADMM
from coterie.errors import InputError
from coterie.plan import Plan
from coterie.privacy.objective import DualPerturbation, LinearPerturbation


@dataclasses.dataclass(frozen=True)
class PublishedBound:
    """A paper's pure privacy loss for a whole run."""

    theorem: str
    per_party: tuple[float, ...]
    hypotheses: tuple[tuple[str, bool], ...]

    @property
    def total(self) -> float:
        """The largest over parties, which is what the papers report."""
        return max(self.per_party)

    @property
    def holds(self) -> bool:
        return all(met for _, met in self.hypotheses)


def published_bound(plan: Plan) -> PublishedBound | None:
    """The bound of the paper that the plan's algorithm comes from; None where the paper has none for this noise."""
    return next((bound(plan) for kind, bound in _BOUNDS.items() if isinstance(plan.algorithm, kind)), None)


def dual_perturbation_theorem_1(plan: Plan) -> PublishedBound | None:
    """DVP Theorem 1: alpha_p(t) per iteration. The paper holds that iterations need not be added; the sum is given."""
    mechanism = plan.algorithm.mechanism
    assert isinstance(mechanism, DualPerturbation)
    schedule = mechanism.step_epsilon
    if schedule is None:
        return None
    return PublishedBound("DVP Theorem 1, summed over iterations", _summed(plan, schedule.at), _common_hypotheses(plan))


def penalty_perturbation_theorem_4_1(plan: Plan) -> PublishedBound | None:
    """PP Theorem 4.1: sum_t C (1.4 c1 + alpha_i(t)) / (eta_i(t) V_i B_i)."""
    assert isinstance(plan.algorithm, PenaltyPerturbedADMM)
    mechanism, dual_step = plan.algorithm.mechanism, plan.algorithm.dual_step
    rate = mechanism.noise_rate
    if rate is None:
        return None

    def loss(t: int, i: int) -> float:
        penalties = mechanism.penalty.at(t, i) * int(plan.topology.degrees[i])
        return _record_weight(plan, i) * (1.4 * plan.problem.loss.smoothness + rate.at(t, i)) / penalties

    def penalty_is_enough(i: int) -> bool:
        return all(mechanism.penalty.at(t, i) >= dual_step.at(t, i) for t in range(plan.n_rounds))

    return PublishedBound(
        "PP Theorem 4.1",
        _summed(plan, loss),
        (
            *_common_hypotheses(plan),
            ("2 c1 < (B_i/C) (rho/N + 2 theta V_i)", _room_for_jacobian(plan, dual_step.at)),
            ("eta_i(t) >= theta", all(map(penalty_is_enough, range(plan.facts.n_parties)))),
        ),
    )


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
        return 2 * _record_weight(plan, i) * (1.4 * plan.problem.loss.smoothness / convexity + rate.at(t, i))

    return PublishedBound(
        "MR Theorem V.1",
        _summed(plan, loss),
        (
            *_common_hypotheses(plan),
            ("2 c1 < (B_i/C) (rho/N + 2 eta_i(1) V_i)", _room_for_jacobian(plan, mechanism.penalty.at)),
        ),
    )


_BOUNDS: dict[type[Algorithm], Callable[[Plan], PublishedBound | None]] = {
    DualPerturbedADMM: dual_perturbation_theorem_1,
    PenaltyPerturbedADMM: penalty_perturbation_theorem_4_1,
    RecycledADMM: recycled_theorem_v_1,
}


# --- what their conditions and sums are made of -----------------------------------------------------------------------


def _summed(plan: Plan, loss: Callable[[int, int], float]) -> tuple[float, ...]:
    return tuple(sum(loss(t, i) for t in range(plan.n_rounds)) for i in range(plan.facts.n_parties))


def _record_weight(plan: Plan, party: int) -> float:
    """C / B_i."""
    return plan.problem.weight_of_one_record(plan.facts.sizes[party])


def _common_hypotheses(plan: Plan) -> tuple[tuple[str, bool], ...]:
    loss, facts = plan.problem.loss, plan.facts
    return (
        ("rows have norm at most 1", facts.row_norm <= 1),
        ("the loss is a margin loss with slope at most 1", loss.margin and loss.lipschitz <= 1),
        # of ours, the logistic alone
        ("the loss is strictly convex and twice differentiable", loss.self_bounded),
        (
            "the regulariser is strongly convex and smooth",
            plan.problem.regulariser.smooth and plan.problem.regulariser.l2 > 0,
        ),
        ("records have weight 1", facts.weight_bound <= 1 and plan.problem.class_weight is None),
        (
            "neighbours differ in one record",
            plan.adjacency == "replace-one" and plan.records_per_person == 1 and not plan.people_span_parties,
        ),
    )


def _room_for_jacobian(plan: Plan, penalty: Callable[[int, int], float]) -> bool:
    share = plan.problem.regulariser.l2 / plan.facts.n_parties
    return all(
        2 * plan.problem.loss.smoothness * _record_weight(plan, i) < share + 2 * penalty(0, i) * int(degree)
        for i, degree in enumerate(plan.topology.degrees)
    )


# --- sample complexity: orders of magnitude, never a guarantee --------------------------------------------------------


def nonprivate_records(
    *, reference_norm: float, excess: float, failure: float, party_weight: float = 1.0, constant: float
) -> float:
    """DVP Theorem 2 (`party_weight` = C) and MR Theorem VI.1 (`party_weight` = 1, `excess` = tau - Delta)."""
    _check_constant(constant)
    return constant * party_weight * reference_norm**2 * math.log(1 / failure) / excess**2


def dual_perturbation_records(
    *, reference_norm: float, excess: float, failure: float, step_epsilon: float, d: int, party_weight: float,
    smoothness: float, constant: float,
) -> float:  # fmt: skip
    """DVP Theorem 3: records per party for an excess loss, up to the unknown `constant` beta."""
    _check_constant(constant)
    c, norm = party_weight, reference_norm
    return constant * max(
        norm * d * math.log(d / failure) / (excess * step_epsilon),
        c * smoothness * norm**2 / (excess * step_epsilon),
        c * norm**2 * math.log(1 / failure) / excess**2,
    )


def recycled_records(
    *, reference_norm: float, excess: float, failure: float, noise_rate: float, d: int, party_weight: float,
    n_parties: int, slack: float, constant: float,
) -> float:  # fmt: skip
    """MR Theorem VI.2, up to the unknown `constant` w; infinite where the noise alone exceeds the allowed excess."""
    _check_constant(constant)
    c, n = party_weight, n_parties
    room = n * c * excess**2 / (2 * reference_norm**2)
    noise = (1 + slack) * n * d**2 / (c * noise_rate**2) * math.log(d / failure) ** 2
    return math.inf if room <= noise else constant * c * n * math.log(1 / failure) / (room - noise)


def _check_constant(constant: float) -> None:
    if not constant > 0:
        raise InputError(f"constant: got {constant}; the papers leave it open, a positive guess is needed")
