"""The methods of the frontier with their settings: functions of public facts and the budget, the same for every cell.

Rounds, penalties, steps and averaging are those of `coterie.rules`.
"""

import dataclasses
import functools
from typing import Any

from coterie.algorithms import ALGORITHMS
from coterie.network.topology import make_topology
from coterie.papers.census import Network, network
from coterie.papers.measures import DELTA
from coterie.plan import Plan
from coterie.problems import L2, Logistic, Problem
from coterie.promise import Privacy
from coterie.rules import Settled, choose

GRAPHS = {1: "complete", 5: "ring", 20: "watts-strogatz", 100: "watts-strogatz"}
PROBLEM = Problem(loss=Logistic(), regulariser=L2(1.0), record_weight=1.0)
OUTPUT_NOISED = "MR-ADMM, output noise"
NEEDS_NEIGHBOURS = ("DVP", "PVP", "PP", "R-ADMM", "MR-ADMM", OUTPUT_NOISED)
METHODS = (*NEEDS_NEIGHBOURS, "one release", "M1", "walk", "M2", "M3", "DP-GD")
# for all parties, however many they are
ONE_NOISE = ("M2", "M3", "DP-GD")
# of MR-ADMM's penalty per pair of iterations
GROWTH = 1.04
GROWING = ("MR-ADMM", OUTPUT_NOISED)
RULES = {
    "DVP": ("none", "dual-perturbed-admm"),
    "PVP": ("none", "primal-perturbed-admm"),
    "PP": ("none", "penalty-perturbed-admm"),
    "R-ADMM": ("none", "recycled-admm"),
    "MR-ADMM": ("none", "recycled-admm"),
    OUTPUT_NOISED: ("none", "recycled-admm"),
    "one release": ("none", "one-release-average"),
    "M1": ("none", "locally-noised-admm"),
    "walk": ("none", "walk-admm"),
    "M2": ("curator", "sum-noised-admm"),
    "M3": ("curator", "broadcast-noised-admm"),
    "DP-GD": ("curator", "noisy-gradient-descent"),
}


@functools.cache
def nodes_of(size: int) -> Network:
    return network(size, GRAPHS[size])


def plan_at(method: str, size: int, epsilon: float, *, most_rounds: int) -> Plan:
    """The method with the noise that makes it cost (epsilon, 1e-6) for one record, replace-one."""
    nodes = nodes_of(size)
    facts, (trust, name) = nodes.train.facts, RULES[method]
    privacy = Privacy(epsilon=epsilon, delta=DELTA, adjacency="replace-one", trust=trust)
    settled = Settled(
        algorithm=name,
        topology=nodes.topology if ALGORITHMS[name].needs_graph else make_topology("unrestricted", size),
        settings={"mechanism": "output-perturbation"} if method == OUTPUT_NOISED else {},
    )
    most_rounds *= size if method == "walk" else 1
    algorithm, topology, rounds = choose(PROBLEM, facts, privacy, settled)
    if rounds > most_rounds:
        settled = dataclasses.replace(settled, rounds=most_rounds)
        algorithm, topology, rounds = choose(PROBLEM, facts, privacy, settled)
    if method in GROWING:
        mechanism: Any = algorithm.mechanism
        penalty = dataclasses.replace(mechanism.penalty, ratio=GROWTH)
        algorithm = dataclasses.replace(algorithm, mechanism=mechanism.changed(penalty=penalty))
    plan = Plan.make(algorithm, PROBLEM, topology, facts, rounds=rounds, adjacency="replace-one")
    return plan.calibrate(epsilon, DELTA)
