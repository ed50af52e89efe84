"""The bound that an algorithm's own paper states, beside the certified loss."""

from collections.abc import Callable

from coterie.algorithms import Algorithm, DualPerturbedADMM, PenaltyPerturbedADMM, RecycledADMM
from coterie.papers.bounds import PublishedBound
from coterie.papers.dual_variable.published import dual_perturbation_theorem_1
from coterie.papers.penalty.published import penalty_perturbation_theorem_4_1
from coterie.papers.recycled.published import recycled_theorem_v_1
from coterie.plan import Plan

_BOUNDS: dict[type[Algorithm], Callable[[Plan], PublishedBound | None]] = {
    DualPerturbedADMM: dual_perturbation_theorem_1,
    PenaltyPerturbedADMM: penalty_perturbation_theorem_4_1,
    RecycledADMM: recycled_theorem_v_1,
}


def published_bound(plan: Plan) -> PublishedBound | None:
    """The bound of the paper that the plan's algorithm comes from; None where the paper has none for this noise."""
    for algorithm, bound in _BOUNDS.items():
        if isinstance(plan.algorithm, algorithm):
            return bound(plan)
    return None
