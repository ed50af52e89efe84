"""The bound that an algorithm's own paper states, beside the certified loss."""

from collections.abc import Callable

from rich.table import Table

from coterie.algorithms import Algorithm, DualPerturbedADMM, PenaltyPerturbedADMM, RecycledADMM
from coterie.papers.bounds import PublishedBound
from coterie.papers.dual_variable.published import dual_perturbation_theorem_1
from coterie.papers.penalty.published import penalty_perturbation_theorem_4_1
from coterie.papers.recycled.published import recycled_theorem_v_1
from coterie.plan import Plan
from coterie.privacy.accountants import pure_epsilon

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


def privacy_table(plan: Plan, delta: float) -> Table:
    """The certified loss of every party beside the bound its algorithm's paper states, if it states one."""
    published = published_bound(plan)
    table = Table(title=None if published is None else f"published: {published.theorem}")
    for column in ("party", "records", f"certified ε at δ = {delta:g}", "certified ε, pure", "published ε"):
        table.add_column(column, justify="left" if column == "party" else "right")
    rows = zip(plan.facts.parties, plan.facts.sizes, plan.party_epsilons(delta), strict=True)
    for party, (name, size, certified) in enumerate(rows):
        pure = plan.records_per_person * pure_epsilon(plan.ledger(party))
        stated = "none" if published is None else f"{published.per_party[party]:.4g}"
        table.add_row(name, f"{size:,}", f"{certified:.4g}", f"{pure:.4g}", stated)
    notes = []
    if plan.facts.data_derived:
        notes.append(f"VOID as a guarantee: {', '.join(plan.facts.data_derived)} read off the data")
    if plan.people_span_parties:
        notes.append(f"a person at every party loses ε = {plan.epsilon(delta):.4g}")
    if published is not None:
        failed = [name for name, met in published.hypotheses if not met]
        notes.append("its hypotheses hold" if not failed else f"its hypotheses fail: {'; '.join(failed)}")
    table.caption = "\n".join(notes) or None
    return table
