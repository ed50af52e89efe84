"""What a published bound on the privacy loss is, which of them is a plan's, and the conditions that the graph family's
papers share.

No bound is used to calibrate anything. One that fails is here because people will look for it. Hypotheses are checked
and listed; `holds` tells whether the paper's own conditions are met, not whether the theorem is true (`coterie errata`
tells that).
"""

import dataclasses
from collections.abc import Callable

from coterie.algorithms import Algorithm, DualPerturbedADMM, PenaltyPerturbedADMM, RecycledADMM
from coterie.errors import InputError
from coterie.plan import Plan


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
    from coterie.papers.dual_variable.published import dual_perturbation_theorem_1
    from coterie.papers.penalty.published import penalty_perturbation_theorem_4_1
    from coterie.papers.recycled.published import recycled_theorem_v_1

    bounds: dict[type[Algorithm], Callable[[Plan], PublishedBound | None]] = {
        DualPerturbedADMM: dual_perturbation_theorem_1,
        PenaltyPerturbedADMM: penalty_perturbation_theorem_4_1,
        RecycledADMM: recycled_theorem_v_1,
    }
    return next((bound(plan) for kind, bound in bounds.items() if isinstance(plan.algorithm, kind)), None)


# --- what their conditions and sums are made of -----------------------------------------------------------------------


def check_constant(constant: float) -> None:
    if not constant > 0:
        raise InputError(f"constant: got {constant}; the papers leave it open, a positive guess is needed")


def summed(plan: Plan, loss: Callable[[int, int], float]) -> tuple[float, ...]:
    return tuple(sum(loss(t, i) for t in range(plan.n_rounds)) for i in range(plan.facts.n_parties))


def record_weight(plan: Plan, party: int) -> float:
    """C / B_i."""
    return plan.problem.weight_of_one_record(plan.facts.sizes[party])


def common_hypotheses(plan: Plan) -> tuple[tuple[str, bool], ...]:
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


def room_for_jacobian(plan: Plan, penalty: Callable[[int, int], float]) -> bool:
    share = plan.problem.regulariser.l2 / plan.facts.n_parties
    return all(
        2 * plan.problem.loss.smoothness * record_weight(plan, i) < share + 2 * penalty(0, i) * int(degree)
        for i, degree in enumerate(plan.topology.degrees)
    )
