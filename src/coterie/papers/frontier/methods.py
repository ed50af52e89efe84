"""The methods of the frontier with their settings: functions of public facts and the budget, the same for every cell.

Rounds, penalties, steps and averaging are those of `coterie.rules`. Algorithms of the graph family without a rule of
their own take the penalties of penalty perturbation; sum noise takes the settings of broadcast noise, and a walk visits
every party at most as often as parties that all work in every round do.
"""

import dataclasses
import functools

from coterie.algorithms import (
    Algorithm,
    DualPerturbedADMM,
    PenaltyPerturbedADMM,
    PrimalPerturbedADMM,
    RecycledADMM,
    SumNoisedADMM,
    WalkADMM,
)
from coterie.network.selection import Walk
from coterie.network.topology import make_topology
from coterie.papers.census import Network, network
from coterie.papers.measures import DELTA
from coterie.plan import Plan
from coterie.privacy.objective import DualPerturbation, LinearPerturbation, OutputPerturbation
from coterie.privacy.proximal import SumNoise
from coterie.problems import L2, Logistic, Problem
from coterie.rules import RECYCLE_WEIGHT, Open, Situation, choose

GRAPHS = {1: "complete", 5: "ring", 20: "watts-strogatz", 100: "watts-strogatz"}
PROBLEM = Problem(loss=Logistic(), penalty=L2(1.0), record_weight=1.0)
OUTPUT_NOISED = "MR-ADMM, output noise"
NEEDS_NEIGHBOURS = ("DVP", "PVP", "PP", "R-ADMM", "MR-ADMM", OUTPUT_NOISED)
METHODS = (*NEEDS_NEIGHBOURS, "one release", "M1", "walk", "M2", "M3", "DP-GD")
ONE_NOISE = ("M2", "M3", "DP-GD")  # for all parties, however many they are
GROWTH = 1.04  # of MR-ADMM's penalty per pair of iterations
RULES = {
    "one release": ("none", "one-release-average"),
    "M1": ("none", "locally-noised-admm"),
    "walk": ("none", "locally-noised-admm"),
    "M2": ("curator", "broadcast-noised-admm"),
    "M3": ("curator", "broadcast-noised-admm"),
    "DP-GD": ("curator", "noisy-gradient-descent"),
}


@functools.cache
def nodes_of(size: int) -> Network:
    return network(size, GRAPHS[size])


def plan_at(method: str, size: int, epsilon: float, *, most_rounds: int) -> Plan:
    """The method with the noise that makes it cost (epsilon, 1e-6) for one record, replace-one."""
    nodes = nodes_of(size)
    trust, rule = RULES.get(method, ("none", "penalty-perturbed-admm"))
    situation = Situation(
        problem=PROBLEM, facts=nodes.train.facts, topology=nodes.topology, trust=trust, epsilon=epsilon, delta=DELTA,
        adjacency="replace-one", unit="record", records_per_person=1, clip=None, hardened=False,
    )  # fmt: skip
    algorithm, rounds = choose(situation, Open(algorithm=rule))
    if rounds > most_rounds:
        algorithm, rounds = choose(situation, Open(algorithm=rule, rounds=most_rounds))
    algorithm, rounds = _variant(method, algorithm, rounds, size)
    topology = nodes.topology if algorithm.needs_graph else make_topology("unrestricted", size)
    plan = Plan.make(algorithm, PROBLEM, topology, nodes.train.facts, rounds=rounds, adjacency="replace-one")
    return plan.calibrate(epsilon, DELTA)


def _variant(method: str, algorithm: Algorithm, rounds: int, size: int) -> tuple[Algorithm, int]:
    """The method's own algorithm in place of the one that the rule is for."""
    if isinstance(algorithm, PenaltyPerturbedADMM):
        return _graph_variant(method, algorithm), rounds
    if method == "walk":
        fields = {name: getattr(algorithm, name) for name in ("mechanism", "penalty", "averaging")}
        return WalkADMM(**fields, selection=Walk(seed=0, most_visits=rounds)), rounds * size
    if method == "M2":
        mechanism = algorithm.mechanism
        noise = SumNoise(step=mechanism.step, relaxation=mechanism.relaxation, noise_multiplier=1.0)  # type: ignore[arg-type, attr-defined]  # a rule of M3: its mechanism has both
        fields = {name: getattr(algorithm, name) for name in ("penalty", "channel", "averaging")}
        return SumNoisedADMM(mechanism=noise, **fields), rounds
    return algorithm, rounds


def _graph_variant(method: str, algorithm: PenaltyPerturbedADMM) -> Algorithm:
    penalty, common = algorithm.mechanism.penalty, {"averaging": algorithm.averaging}
    noise = {"penalty": penalty, "noise_multiplier": 1.0}
    if method == "DVP":
        mechanism = DualPerturbation(**noise)  # type: ignore[arg-type]
        return DualPerturbedADMM(mechanism=mechanism, dual_step=algorithm.dual_step, **common)  # type: ignore[arg-type]
    if method == "PVP":
        mechanism = OutputPerturbation(**noise)  # type: ignore[arg-type]
        return PrimalPerturbedADMM(mechanism=mechanism, dual_step=algorithm.dual_step, **common)  # type: ignore[arg-type]
    if method == "PP":
        return algorithm
    if method != "R-ADMM":
        noise["penalty"] = dataclasses.replace(penalty, ratio=GROWTH)
    kind = OutputPerturbation if method == OUTPUT_NOISED else LinearPerturbation
    return RecycledADMM(
        mechanism=kind(**noise),  # type: ignore[arg-type]
        dual_step=algorithm.dual_step,
        recycle_weight=RECYCLE_WEIGHT,
        **common,  # type: ignore[arg-type]
    )
