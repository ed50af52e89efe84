"""From runs and plans to curves by iteration: mean and range over runs, and the loss of privacy three times."""

import dataclasses

import numpy as np

from coterie.papers.bounds import published_bound
from coterie.papers.figure import Accounting, Curve
from coterie.plan import Plan
from coterie.privacy.accountants import ORDERS, converted

DELTA = 1e-6
PUBLISHED: Accounting = "published"
PURE: Accounting = "certified pure"
APPROXIMATE: Accounting = "certified (ε, 1e-6)"
ACCOUNTINGS = (PUBLISHED, PURE, APPROXIMATE)


def over_runs(panel: str, name: str, values: np.ndarray, x: np.ndarray | None = None) -> Curve:
    """Mean and range of (run, x) values; x counts from 1 where it is left out."""
    x = np.arange(1, values.shape[1] + 1) if x is None else x
    return Curve(panel, name, x, values.mean(axis=0), values.min(axis=0), values.max(axis=0))


def certified_by_round(plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """What the worst party's records have lost after each round: pure, and ε at δ = 1e-6."""
    rounds = np.arange(1, plan.n_rounds + 1)
    worst_pure, worst_approximate = np.zeros(plan.n_rounds), np.zeros(plan.n_rounds)
    grants, index = plan.issued
    index = np.broadcast_to(index, (plan.n_rounds, plan.facts.n_parties))
    rdp: dict[int, np.ndarray] = {}
    for party in plan.kinds[1]:
        used = index[:, party]
        for g in set(used.tolist()) - rdp.keys():
            rdp[g] = grants[g].event.rdp(ORDERS)
        pure = np.cumsum([grants[g].event.pure for g in used])
        curve = np.zeros_like(next(iter(rdp.values())))
        approximate = np.empty(len(rounds))
        for t, g in enumerate(used.tolist()):
            curve = curve + rdp[g]
            approximate[t] = converted(np.where(np.isnan(curve), np.inf, curve), DELTA)
        worst_pure = np.maximum(worst_pure, pure)
        worst_approximate = np.maximum(worst_approximate, np.minimum(pure, approximate))
    return worst_pure, worst_approximate


def published_by_round(plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """Rounds, about 25 of them and the last, and the paper's own bound after each."""
    every = max(1, plan.n_rounds // 25)
    rounds = np.arange(plan.n_rounds, 0, -every)[::-1]
    bounds = [published_bound(dataclasses.replace(plan, n_rounds=t)) for t in rounds.tolist()]
    assert None not in bounds
    return rounds, np.array([bound.total for bound in bounds if bound is not None])


def privacy(panel: str, name: str, plan: Plan) -> list[Curve]:
    """Three curves in the panels "PANEL published", "PANEL certified pure" and "PANEL certified (ε, 1e-6)"."""
    rounds, (pure, approximate) = np.arange(1, plan.n_rounds + 1), certified_by_round(plan)
    return [
        Curve(f"{panel} {PUBLISHED}", name, *published_by_round(plan)),
        Curve(f"{panel} {PURE}", name, rounds, pure),
        Curve(f"{panel} {APPROXIMATE}", name, rounds, approximate),
    ]
