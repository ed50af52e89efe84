"""The part of a plan that says which grant each party holds in each round, and who works when."""

import functools
from typing import Any

import jax
import numpy as np

from coterie.algorithms.algorithm import Algorithm
from coterie.facts import Facts
from coterie.network.selection import All, Poisson, Walk
from coterie.network.topology import Topology
from coterie.privacy.events import Adjacency
from coterie.privacy.grants import Grant
from coterie.privacy.mechanisms import PartyFacts, Unit
from coterie.problems.problem import Problem


class Granting:
    algorithm: Algorithm
    problem: Problem
    topology: Topology
    facts: Facts
    n_rounds: int
    adjacency: Adjacency
    unit: Unit

    @functools.cached_property
    def kinds(self) -> tuple[np.ndarray, list[int]]:
        """The kind of every party, and one party of each kind: parties of one kind get the same grants."""
        degrees, columns = self.topology.degrees, []
        for schedule in self.algorithm.mechanism.schedules().values():
            columns += [value for value in (schedule.start, schedule.ratio) if isinstance(value, tuple)]
        if not columns and self.facts.smallest == self.facts.largest and (degrees == degrees[0]).all():
            return np.zeros(self.facts.n_parties, int), [0]
        columns += [self.facts.sizes, degrees]
        _, first, kind = np.unique(np.column_stack(columns), axis=0, return_index=True, return_inverse=True)
        return kind.ravel(), first.tolist()

    def party_facts(self, party: int) -> PartyFacts:
        selection = self.algorithm.selection
        secret_rate = selection.probability if isinstance(selection, Poisson) and selection.secret else 1.0
        degree = int(self.topology.degrees[party])
        return PartyFacts.of(party, self.problem, self.facts, degree, self.adjacency, self.unit, secret_rate)

    @functools.cached_property
    def issued(self) -> tuple[list[Grant], np.ndarray]:
        """The distinct grants, and which of them party i holds in round t: (n_rounds or 1, n_parties)."""
        mechanism, (kind, one_of_each) = self.algorithm.mechanism, self.kinds
        places: dict[Any, int] = {}
        grants: list[Grant] = []
        n_rows = 1 if mechanism.constant_in_time else self.n_rounds
        index = np.empty((n_rows, len(one_of_each)), dtype=np.int32)
        for k, party in enumerate(one_of_each):
            facts = self.party_facts(party)
            for t in range(n_rows):
                key = (mechanism.values(t, party), facts)
                if key not in places:
                    places[key] = len(grants)
                    grants.append(mechanism.grant(t, party, self.problem, facts))
                index[t, k] = places[key]
        return grants, index[:, kind]

    def grant_table(self) -> Any:
        """The scales of the distinct grants, as one pytree of arrays."""
        grants, _ = self.issued
        return type(grants[0]).Scales(*(np.asarray(column) for column in zip(*(g.scales for g in grants), strict=True)))

    def grant_scales(self) -> Any:
        """The scales of every round and party, (n_rounds, n_parties): for small plans."""
        rows = np.broadcast_to(self.issued[1], (self.n_rounds, self.facts.n_parties))
        return jax.tree.map(lambda column: column[rows], self.grant_table())

    def as_grant(self, scales: Any) -> Grant:
        """A grant around (traced) scales that were issued by this plan, as a party's step gets it."""
        return jax.tree.unflatten(jax.tree.structure(self.issued[0][0]), list(scales))

    @functools.cached_property
    def participation(self) -> np.ndarray | None:
        """(n_rounds, n_parties), True where a party works; None where everybody does, or where it is secret."""
        selection = self.algorithm.selection
        if isinstance(selection, All) or selection.secret:
            return None
        return selection.table(self.n_rounds, self.topology)

    @functools.cached_property
    def charged(self) -> np.ndarray | None:
        """As `participation`, True where a release tells about a party: when it works, and where a sum goes on counting
        those who do not, ever since it first worked."""
        if self.participation is None or not self.algorithm.absent_stays:
            return self.participation
        return np.maximum.accumulate(self.participation, axis=0)

    @property
    def release_width(self) -> int:
        """How many values are released in a round, at most."""
        if self.algorithm.channel.aggregates or isinstance(self.algorithm.selection, Walk):
            return 1
        table = self.participation
        return self.facts.n_parties if table is None else max(1, int(table.sum(axis=1).max()))
