"""Adult as the papers dealt it to the nodes of a network, and what they measured on it.

Complete rows in file order, columns divided by their maximum, rows scaled to norm at most 1, the first
40,000 for training. Bounds are read off the data, as the papers did, so nothing here is a guarantee for these records.
"""

import dataclasses
import functools

import numpy as np

from coterie.data import Federation, load_adult, partition
from coterie.engines.in_process import run
from coterie.plan import Plan
from coterie.privacy.noise import Seeded
from coterie.problems import L2, Logistic, Problem
from coterie.reproduce.figure import Scale
from coterie.topology import Topology, make_topology

PARTY_WEIGHT = 1750.0  # the papers' C
_CHUNK = 2**24  # margins held at once


@dataclasses.dataclass(frozen=True, eq=False)
class Network:
    """Nodes with their records, who hears whom, and the held-out records."""

    train: Federation
    topology: Topology
    X_test: np.ndarray
    y_test: np.ndarray

    def plan(self, algorithm, *, l2: float, rounds: int, party_weight: float = PARTY_WEIGHT) -> Plan:
        """`l2` is the whole problem's; a node carries its N-th part."""
        problem = Problem(loss=Logistic(), penalty=L2(l2), party_weight=party_weight)
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

    def test_error(self, models: np.ndarray) -> np.ndarray:
        """Share of held-out records that models of shape (..., coefficient) get wrong."""
        flat = models.reshape(-1, models.shape[-1])
        wrong = [((piece @ self.X_test.T > 0) != self.y_test).mean(axis=1) for piece in _pieces(flat, len(self.y_test))]
        return np.concatenate(wrong).reshape(models.shape[:-1])

    def optimum(self, *, l2: float, party_weight: float = PARTY_WEIGHT) -> np.ndarray:
        """The minimiser of the whole problem, every node's records in one place (nodes of equal size)."""
        from coterie.algorithms import ConsensusADMM

        X, y, _ = self.train.pooled
        labels, sizes = self.train.facts.labels, self.train.facts.sizes
        assert labels is not None
        assert len(set(sizes)) == 1
        pooled = Federation.from_arrays(X, np.asarray(labels)[y.astype(int)], parties=None, labels=labels)
        problem = Problem(loss=Logistic(), penalty=L2(l2), record_weight=party_weight / sizes[0])
        algorithm = ConsensusADMM.with_penalty(1.0)
        plan = Plan.make(algorithm, problem, "complete", pooled.facts, rounds=1, adjacency="replace-one")
        return run(plan, pooled).models[0]


@functools.cache
def network(n_nodes: int, graph: str, *, uneven: bool = False) -> Network:
    """Adult on `n_nodes` nodes: equal shares, or sizes that fall linearly to a quarter of the largest."""
    adult = load_adult(preprocessing="papers")
    if uneven:
        nodes = partition.unevenly(len(adult.train), np.linspace(1.0, 0.25, n_nodes).tolist(), seed=0)
    else:
        nodes = partition.evenly(len(adult.train), n_nodes, seed=0)
    train = Federation.from_arrays(
        adult.X[adult.train],
        adult.y[adult.train],
        parties=nodes,
        labels=adult.labels,
        data_derived=adult.data_derived,
    )
    test = Federation.from_arrays(adult.X[adult.test], adult.y[adult.test], parties=None, labels=adult.labels)
    X_test, y_test, _ = test.pooled
    return Network(train, make_topology(graph, n_nodes), X_test, y_test)


def _logistic(margins: np.ndarray) -> np.ndarray:
    return np.maximum(-margins, 0.0) + np.log1p(np.exp(-np.abs(margins)))


def _pieces(models: np.ndarray, n_records: int) -> list[np.ndarray]:
    return np.array_split(models, max(1, models.shape[0] * n_records // _CHUNK))
