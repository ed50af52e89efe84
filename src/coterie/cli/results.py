"""Results as tables for people."""

from rich.table import Table

from coterie.cli.demo import DELTA, DemoResult
from coterie.papers.fixed_point.views import three_views
from coterie.papers.published import published_bound
from coterie.plan import Plan
from coterie.privacy.accountants import pure_epsilon
from coterie.transcript import RANDOMNESS


def demo_table(result: DemoResult) -> Table:
    plan = result.transcript.plan
    losses = plan.party_epsilons(DELTA)
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column()
    rows = {
        "test error, private": f"[bold]{result.test_error:.2%}[/bold]",
        "test error, not private": f"{result.nonprivate_error:.2%}  (all records in one place, no noise)",
        "majority class": f"{result.majority_error:.2%}  on {result.n_test:,} held-out records, declared public",
        "privacy loss": f"ε = {max(losses):.4g} at δ = {DELTA:g}, {plan.adjacency}, "
        + f"at each of {len(losses)} parties of {plan.facts.sizes[0]:,} records",
        "protected": "every single record of every party",
        "from": f"anybody who sees {plan.observer().sees}",
        "algorithm": f"M-ADMM, penalty perturbation, Gaussian noise, ring, {plan.n_rounds} rounds",
        "randomness": RANDOMNESS[result.transcript.reproducible],
        "seconds": f"{result.seconds:.1f}",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def views_table(plan: Plan, delta: float) -> Table:
    """Local, central and network loss side by side; what the paper states is marked as published."""
    table = Table(title=f"ε at δ = {delta:g}, {plan.adjacency}, unit: {plan.unit}")
    for column in ("view", "certified ε", "published ε", "why"):
        table.add_column(column, justify="right" if "ε" in column else "left")
    for view in three_views(plan, delta):
        certified = "none" if view.certified is None else f"{view.certified:.4g}"
        stated = "\n".join(f"{p.epsilon:.4g} ({p.theorem}, published)" for p in view.published)
        table.add_row(view.onlooker, certified, stated or "none", view.why)
    return table


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
