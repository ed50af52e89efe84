"""The one-run audit: many records are in or out by independent fair coins, and one run must not tell which.

Steinke, Nasr & Jagielski, "Privacy auditing with one (1) training run" (2023). Guesses may abstain. If the run is
(epsilon, delta)-private, the number of right ones among r guesses is at most Binomial(r, 1/(1 + e^-epsilon)), up to

    P[at least v right] <= P[Binomial >= v] + 2 m delta max_i P[v - i <= Binomial < v] / i

for m canaries. A run with as many coefficients as canaries gives each canary a direction of its own; a second run,
whose coins are known, trains the score.
"""

import dataclasses

import numpy as np
from scipy.stats import binom

from coterie.audit.finding import Measured, largest
from coterie.audit.game import train
from coterie.audit.recording import Prepared, Workbench, unit_draws
from coterie.data.federation import Federation, Shard
from coterie.engines.in_process import run
from coterie.errors import InputError
from coterie.network.topology import All
from coterie.plan import Plan

N_CANARIES = 200
# share of the canaries whose scores are most outspoken
GUESSED = 0.5
# the bound pays for delta once per canary
DELTA = 1e-7
# noise for which so few canaries tell something
EPSILON = 6.0


def epsilon_lower_bound(n_canaries: int, n_guesses: int, n_right: int, *, delta: float, false_alarm: float) -> float:
    """The largest loss that this many right guesses refute."""

    def refuted(epsilon: float) -> bool:
        return _chance(n_canaries, n_guesses, n_right, epsilon, delta) <= false_alarm

    return largest(refuted, 0.0, 30.0) if refuted(0.0) else 0.0


def _chance(n_canaries: int, n_guesses: int, n_right: int, epsilon: float, delta: float) -> float:
    """Upper bound on the chance of so many right guesses in a private run."""
    q = 1 / (1 + np.exp(-epsilon))
    # P[v - 1], P[v - 2], ...
    below = binom.pmf(np.arange(n_right - 1, -1, -1), n_guesses, q)
    steepest = np.max(np.cumsum(below) / np.arange(1, n_right + 1), initial=0.0)
    return float(binom.sf(n_right - 1, n_guesses, q) + 2 * n_canaries * delta * steepest)


def check(bench: Workbench) -> Measured:
    instance, n = bench.instance, N_CANARIES
    everybody = isinstance(instance.algorithm.selection, All)
    records_in_or_out = (instance.unit, instance.adjacency) == ("record", "zero-out")
    if not (everybody and records_in_or_out and instance.algorithm.mechanism.law == "gaussian"):
        return bench.not_applicable("for records that are in or out, where everybody works and noise is Gaussian")
    setting = dataclasses.replace(instance.light, n_features=n, first_party=n, rounds=1, epsilon=EPSILON)
    try:
        plan = instance.plan(setting)
    except InputError as error:
        return bench.not_applicable(f"no plan with so many features: {error}")
    rng = np.random.default_rng([bench.seed, n])
    coins, seen = zip(*(_one_run(plan, rng) for _ in range(2)), strict=True)
    score = train(seen[0][coins[0] == 1], seen[0][coins[0] == 0])(seen[1])
    outspoken = np.argsort(-np.abs(score))[: int(GUESSED * n)]
    n_right = int(((score > 0) == (coins[1] == 1))[outspoken].sum())
    lower = epsilon_lower_bound(n, len(outspoken), n_right, delta=DELTA, false_alarm=bench.false_alarm)
    return Measured(
        stated=plan.party_epsilons(DELTA)[0],
        lower=lower,
        detail=f"{n_right} of {len(outspoken)} guesses right, delta = {DELTA:g}",
    )


def _one_run(plan: Plan, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Coins, and what the run shows about each canary, (canary, releases)."""
    n, d = plan.facts.sizes[0], plan.facts.n_features
    coins = rng.integers(2, size=n).astype(float)
    others = [Shard(np.zeros((size, d)), np.ones(size), np.ones(size)) for size in plan.facts.sizes[1:]]
    federation = Federation(plan.facts, (Shard(np.eye(n), np.ones(n), coins), *others))
    shape = (2, 1, plan.n_rounds, plan.facts.n_parties, d)
    source = Prepared(unit_draws(rng, plan.algorithm.mechanism.law, shape))
    return coins, run(plan, federation, noise=source).releases[0].reshape(-1, d).T
