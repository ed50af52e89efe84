"""A plan fixes everything that can be fixed before data is touched, and knows its privacy loss.

Building one checks every hypothesis and issues every grant; `Plan.make` also checks that no party's step can carry data
past the release door. Plans are plain data: they can be saved, compared, hashed and read back.
"""

import dataclasses
import functools
import json
import math
from collections import Counter
from typing import Any

import numpy as np

from coterie.algorithms.algorithm import Algorithm
from coterie.errors import InputError, PrivacyPreconditionError
from coterie.facts import Facts
from coterie.flow import check_plan_flow
from coterie.granting import Granting
from coterie.network.selection import Walk
from coterie.network.topology import Topology, make_topology
from coterie.privacy import accountants
from coterie.privacy.accountants import Accountant, Ledger, check_delta, check_epsilon
from coterie.privacy.discrete import DiscreteGaussian
from coterie.privacy.events import Adjacency, Gaussian, check_adjacency
from coterie.privacy.mechanisms import Unit
from coterie.privacy.observers import Observer, check_observer
from coterie.problems.problem import Problem
from coterie.serialise import canonical, decode, digest, serialisable


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan(Granting):
    """`records_per_person` and `people_span_parties` say what one person may own: that many records at a party, and
    records at one party only (losses of parties are then alternatives) or at all of them (then they add up)."""

    algorithm: Algorithm
    problem: Problem
    topology: Topology
    facts: Facts
    n_rounds: int
    adjacency: Adjacency
    unit: Unit = "record"
    records_per_person: int = 1
    people_span_parties: bool = False

    @classmethod
    def make(
        cls,
        algorithm: Algorithm,
        problem: Problem,
        topology: Any,
        facts: Facts,
        *,
        rounds: int,
        adjacency: Adjacency,
        unit: Unit = "record",
        records_per_person: int = 1,
        people_span_parties: bool = False,
    ) -> "Plan":
        plan = cls(
            algorithm=algorithm,
            problem=problem,
            topology=make_topology(topology, facts.n_parties),
            facts=facts,
            n_rounds=rounds,
            adjacency=adjacency,
            unit=unit,
            records_per_person=records_per_person,
            people_span_parties=people_span_parties,
        )
        plan.check_flow()
        return plan

    def __post_init__(self) -> None:
        check_adjacency(self.adjacency)
        if self.unit not in ("record", "party"):
            raise InputError(f"unit: got {self.unit!r}; 'record' or 'party' is needed")
        for name, value in (("rounds", self.n_rounds), ("records_per_person", self.records_per_person)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{name}: got {value!r}; an integer >= 1 is needed")
        if self.topology.n_parties != self.facts.n_parties:
            raise InputError(f"topology: {self.topology.n_parties} nodes given for {self.facts.n_parties} parties")
        self.problem.check(self.facts)
        if self.unit == "party" and (self.records_per_person > 1 or self.people_span_parties):
            raise InputError("unit: got 'party'; records_per_person and people_span_parties are for unit 'record'")
        self.algorithm.check(self.topology, self.problem)
        _ = self.issued  # every hypothesis is checked here

    # --- privacy ----------------------------------------------------------------------------------------------------

    def ledger(self, party: int, *, observer: str | None = None, n_rounds: int | None = None) -> Ledger:
        """What one record (or all, with unit "party") of this party pays over the run or its first `n_rounds`, equal
        rounds counted together."""
        seen_by = self.observer(observer)
        grants, index = self.issued
        rounds = np.broadcast_to(index[:, party], self.n_rounds)[:n_rounds]
        if self.charged is not None:
            rounds = rounds[self.charged[:n_rounds, party]]
        selection = self.algorithm.selection
        if isinstance(selection, Walk) and selection.secret:
            rounds = rounds[: selection.most_visits]  # all alike: a secret walk takes constant noise only
        used, counts = np.unique(rounds, return_counts=True)
        facts, mechanism = self.party_facts(party), self.algorithm.mechanism
        return [
            (mechanism.seen_by(seen_by, grants[g].event, facts), int(count))  # type: ignore[arg-type]
            for g, count in zip(used, counts, strict=True)
        ]

    def observer(self, name: str | None = None) -> Observer:
        channel = self.algorithm.channel
        return channel.observers[0] if name is None else check_observer(name, channel.observers, channel.name)

    def party_epsilons(
        self, delta: float, *, observer: str | None = None, accountant: Accountant = "best"
    ) -> tuple[float, ...]:
        """The loss of each party's own records or people."""
        check_delta(delta)
        strongest = self.observer().name
        if observer not in (None, strongest):
            # whoever sees less cannot learn more, though the bound at hand may be looser
            seen_by = (observer, strongest)
            losses = [self._party_epsilons(delta, observer=name, accountant=accountant) for name in seen_by]
            return tuple(map(min, *losses))
        return self._party_epsilons(delta, observer=observer, accountant=accountant)

    def _party_epsilons(self, delta: float, *, observer: str | None, accountant: Accountant) -> tuple[float, ...]:
        places, one_of_each = self._alike
        known: dict[Any, float] = {}
        losses = []
        for party in one_of_each:
            ledger = self.ledger(party, observer=observer)
            key = tuple(ledger)
            if key not in known:
                known[key] = self._person_epsilon(ledger, delta, accountant)
            losses.append(known[key])
        return tuple(np.asarray(losses)[places].tolist())

    @property
    def most_charged(self) -> int:
        """The number of rounds for which the most charged party pays."""
        return max(sum(count for _, count in self.ledger(party)) for party in self._alike[1])

    @functools.cached_property
    def _alike(self) -> tuple[np.ndarray, list[int]]:
        """Parties that certainly pay alike, as in `kinds`: of one kind, and charged in the same or as many rounds."""
        kind, one_of_each = self.kinds
        if self.charged is None:
            return kind, one_of_each
        constant = len(self.issued[1]) == 1
        work = self.charged.sum(axis=0) if constant else np.arange(len(kind))
        _, first, place = np.unique(np.column_stack([kind, work]), axis=0, return_index=True, return_inverse=True)
        return place.ravel(), first.tolist()

    def epsilon(self, delta: float, *, observer: str | None = None, accountant: Accountant = "best") -> float:
        """The loss of the run: the worst party's, or all parties' together where a person may be at each of them."""
        if not self.people_span_parties:
            return max(self.party_epsilons(delta, observer=observer, accountant=accountant))
        check_delta(delta)
        self.observer(observer)
        return self._person_epsilon(self._spanning_ledger(), delta, accountant)

    def _spanning_ledger(self) -> Ledger:
        """What somebody pays who has a record at every party, against whoever sees most: nothing hides under the noise
        of parties that are all affected."""
        total: Counter[Any] = Counter()
        if not self.algorithm.channel.aggregates:
            for party in range(self.facts.n_parties):
                for event, count in self.ledger(party):
                    total[event] += count
            return list(total.items())
        # one noise covers the sum, and all parties' records move it together: ratios add, not their squares
        grants, index = self.issued
        kind = DiscreteGaussian if isinstance(grants[0].event, DiscreteGaussian) else Gaussian
        ratios = [e.ratio if isinstance(e := grant.event, kind) else None for grant in grants]
        if None in ratios:
            raise PrivacyPreconditionError("people_span_parties: got True; a secret selection has no bound for that")
        by_round = np.asarray(ratios, dtype=float)[index]
        by_round = by_round if self.charged is None else by_round * self.charged
        for ratio in by_round.sum(axis=1):
            total[kind(ratio=float(ratio))] += self.n_rounds // len(by_round)
        return list(total.items())

    def pure_epsilon(self) -> float:
        """The loss at delta = 0 for one person; infinite with Gaussian noise."""
        if self.people_span_parties:
            return self.records_per_person * accountants.pure_epsilon(self._spanning_ledger())
        return self.records_per_person * max(accountants.pure_epsilon(self.ledger(party)) for party in self._alike[1])

    def _person_epsilon(self, ledger: Ledger, delta: float, accountant: Accountant) -> float:
        def curve(d: float) -> float:
            return accountants.epsilon(ledger, d, accountant)

        grouped = accountants.group_epsilon(curve, delta, self.records_per_person)
        # pure losses of a group add up with no delta to pay
        if accountant in ("best", "pure"):
            grouped = min(grouped, self.records_per_person * accountants.pure_epsilon(ledger))
        return grouped

    def calibrate(
        self, epsilon: float, delta: float, *, observer: str | None = None, accountant: Accountant = "best"
    ) -> "Plan":
        """The same plan with the least noise that keeps the loss at or under `epsilon`."""
        check_epsilon(epsilon)
        check_delta(delta)

        def scaled(factor: float) -> Plan:
            mechanism = self.algorithm.mechanism.with_noise(factor)
            return dataclasses.replace(self, algorithm=dataclasses.replace(self.algorithm, mechanism=mechanism))  # type: ignore[type-var]

        def loss(log_factor: float) -> float:
            return scaled(math.exp2(log_factor)).epsilon(delta, observer=observer, accountant=accountant)

        low, high = -1.0, 0.0
        while not loss(high) <= epsilon:
            low, high = high, high + max(1.0, abs(high))
            if high > 64:
                floor = loss(64.0)
                raise PrivacyPreconditionError(
                    f"epsilon: got {epsilon}; with any amount of noise this plan costs at least {floor:.4g} at "
                    f"delta={delta}: raise the penalty or the l2, or take fewer rounds"
                )
        while loss(low) <= epsilon:
            low, high = low - max(1.0, abs(low)), low
            if low < -64:
                raise PrivacyPreconditionError(f"epsilon: got {epsilon}; no noise at all would be needed")
        for _ in range(48):
            middle = (low + high) / 2
            low, high = (low, middle) if loss(middle) <= epsilon else (middle, high)
        return scaled(math.exp2(high))

    # --- information flow -------------------------------------------------------------------------------------------

    def check_flow(self) -> None:
        """Refuse the plan if a party's step could carry data past the release door."""
        _ = self._flow_checked

    @functools.cached_property
    def _flow_checked(self) -> bool:
        check_plan_flow(self)
        return True

    # --- identity ---------------------------------------------------------------------------------------------------

    @functools.cached_property
    def digest(self) -> str:
        return digest(self)

    def to_json(self) -> str:
        return json.dumps(json.loads(canonical(self)), indent=1, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        try:
            plan = decode(json.loads(text))
        except json.JSONDecodeError as error:
            raise InputError(f"plan: not valid JSON ({error})") from None
        if not isinstance(plan, cls):
            raise InputError(f"plan: got a {type(plan).__name__}; a saved Plan is needed")
        return plan
