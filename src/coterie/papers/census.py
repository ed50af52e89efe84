"""Adult as the papers dealt it to the nodes of a network, and what they measured on it.

Complete rows in file order, columns divided by their maximum, rows scaled to norm at most 1, the first
40,000 for training. Bounds are read off the data, as the papers did, so nothing here is a guarantee for these records.
"""

import dataclasses
import functools
import math

import numpy as np

from coterie.algorithms import ConsensusADMM
from coterie.data import Federation, load_adult, partition
from coterie.engines.in_process import run
from coterie.network.topology import Topology, make_topology
from coterie.papers.figure import Curve, Scale
from coterie.plan import Plan
from coterie.privacy.noise import Seeded
from coterie.problems import L2, Logistic, Problem
from coterie.values import Schedule

# the papers' C
PARTY_WEIGHT = 1750.0
# margins held at once
_CHUNK = 2**24


@dataclasses.dataclass(frozen=True, eq=False)
class Network:
    """Nodes with their records, who hears whom, and the held-out records."""

    train: Federation
    topology: Topology
    X_test: np.ndarray
    y_test: np.ndarray

    def plan(self, algorithm, *, l2: float, rounds: int, party_weight: float = PARTY_WEIGHT) -> Plan:
        """`l2` is the whole problem's; a node carries its N-th part."""
        problem = Problem(loss=Logistic(), regulariser=L2(l2), party_weight=party_weight)
        return Plan.make(algorithm, problem, self.topology, self.train.facts, rounds=rounds, adjacency="replace-one")

    def releases(self, plan: Plan, scale: Scale, *, runs: int | None = None) -> np.ndarray:
        """f_i(t) of every run, (run, iteration, node, coefficient)."""
        repeats = scale.runs if runs is None else runs
        return run(plan, self.train, noise=Seeded(scale.seed), repeats=repeats).releases

    def average_loss(self, releases: np.ndarray) -> np.ndarray:
        """L(t) = 1/N sum_i 1/B_i sum_n loss(y f_i(t) . x) over every node's own records, (run, iteration)."""
        total = np.zeros(releases.shape[:2])
        for node, shard in enumerate(self.train.shards):
            signs = 2.0 * shard.y - 1
            signed = (shard.X * signs[:, None]).T
            models = releases[:, :, node].reshape(-1, releases.shape[-1])
            losses = [_logistic(piece @ signed).mean(axis=1) for piece in _pieces(models, len(shard.y))]
            total += np.concatenate(losses).reshape(total.shape)
        return total / len(self.train.shards)

    def convergence(self, panel: str, name: str, models: np.ndarray, *, l2: float) -> list[Curve]:
        """Of one run's models, (iteration, node, coefficient): average loss, its excess over the optimum's, and the
        largest distance of a node's from the optimum, relative to the latter's size."""
        best = optimum(len(self.train.shards), l2=l2)
        loss = self.average_loss(models[None])[0]
        optimal = self.average_loss(np.broadcast_to(best, (1, 1, *models.shape[1:])))[0, 0]
        away = np.linalg.norm(models - best, axis=-1).max(axis=-1) / np.linalg.norm(best)
        x = np.arange(1, len(loss) + 1)
        kinds = {"": loss, " excess": loss - optimal, " distance": away}
        return [Curve(panel + kind, name, x, values) for kind, values in kinds.items()]

    def test_error(self, models: np.ndarray) -> np.ndarray:
        """Share of held-out records that models of shape (..., coefficient) get wrong."""
        flat = models.reshape(-1, models.shape[-1])
        wrong = [((piece @ self.X_test.T > 0) != self.y_test).mean(axis=1) for piece in _pieces(flat, len(self.y_test))]
        return np.concatenate(wrong).reshape(models.shape[:-1])


@functools.cache
def optimum(n_nodes: int, *, l2: float, party_weight: float = PARTY_WEIGHT) -> np.ndarray:
    """The minimiser of the whole problem of equal nodes, every node's records in one place."""
    train = _dealt(n_nodes, None)
    (X, y, _), labels, sizes = train.pooled, train.facts.labels, train.facts.sizes
    assert labels is not None
    pooled = Federation.from_arrays(X, np.asarray(labels)[y.astype(int)], parties=None, labels=labels)
    problem = Problem(loss=Logistic(), regulariser=L2(l2), record_weight=party_weight / sizes[0])
    algorithm = ConsensusADMM.with_penalty(1.0)
    plan = Plan.make(algorithm, problem, "complete", pooled.facts, rounds=1, adjacency="replace-one")
    return run(plan, pooled).models[0]


@functools.cache
def network(n_nodes: int, graph: str, *, shares: tuple[float, ...] | None = None) -> Network:
    """Adult on `n_nodes` nodes, with as many records each or in these proportions."""
    return Network(_dealt(n_nodes, shares), make_topology(graph, n_nodes), *_held_out())


@functools.cache
def _dealt(n_nodes: int, shares: tuple[float, ...] | None) -> Federation:
    adult = load_adult(preprocessing="papers")
    if shares is None:
        nodes = partition.evenly(len(adult.train), n_nodes, seed=0)
    else:
        nodes = partition.unevenly(len(adult.train), list(shares), seed=0)
    return Federation.from_arrays(
        adult.X[adult.train],
        adult.y[adult.train],
        parties=nodes,
        labels=adult.labels,
        data_derived=adult.data_derived,
    )


@functools.cache
def _held_out() -> tuple[np.ndarray, np.ndarray]:
    adult = load_adult(preprocessing="papers")
    test = Federation.from_arrays(adult.X[adult.test], adult.y[adult.test], parties=None, labels=adult.labels)
    return test.pooled[:2]


def every_iteration(schedule: Schedule, scale: Scale) -> Schedule:
    """At quick scale a constant grows by its last digit, so that what is compiled for schedules that grow fits it."""
    return Schedule(schedule.start, math.nextafter(1.0, 2.0)) if scale.quick and schedule.constant_in_time else schedule


def _logistic(margins: np.ndarray) -> np.ndarray:
    return np.maximum(-margins, 0.0) + np.log1p(np.exp(-np.abs(margins)))


def _pieces(models: np.ndarray, n_records: int) -> list[np.ndarray]:
    return np.array_split(models, max(1, models.shape[0] * n_records // _CHUNK))
