"""Results as tables for people."""

from rich.table import Table

from coterie.cli.demo import DELTA, DemoResult
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
