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

import jax
import jax.numpy as jnp
import numpy as np

from coterie.algorithms.algorithm import Algorithm
from coterie.errors import InputError, PrivacyPreconditionError
from coterie.facts import Facts
from coterie.privacy import accountants
from coterie.privacy.accountants import Accountant, Ledger, check_delta, check_epsilon
from coterie.privacy.events import Adjacency, Gaussian, check_adjacency
from coterie.privacy.grants import Grant
from coterie.privacy.mechanisms import PartyFacts, Unit
from coterie.privacy.observers import Observer, check_observer
from coterie.privacy.release import Contribution, as_issued, check_flow, unit_noise
from coterie.problems.local import Records
from coterie.problems.problem import Problem
from coterie.serialise import canonical, decode, digest, serialisable
from coterie.topology import Topology, make_topology


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
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
        self.algorithm.check(self.topology)
        _ = self.issued  # every hypothesis is checked here

    # --- grants -----------------------------------------------------------------------------------------------------

    @functools.cached_property
    def issued(self) -> tuple[list[Grant], np.ndarray]:
        """The distinct grants, and which of them party i holds in round t: (n_rounds or 1, n_parties)."""
        mechanism = self.algorithm.mechanism
        places: dict[Any, int] = {}
        grants: list[Grant] = []
        n_rows = 1 if mechanism.constant_in_time else self.n_rounds
        index = np.empty((n_rows, self.facts.n_parties), dtype=np.int32)
        party_facts = [
            PartyFacts.of(i, self.problem, self.facts, int(degree), self.adjacency, self.unit)
            for i, degree in enumerate(self.topology.degrees)
        ]
        for t in range(n_rows):
            for i, facts in enumerate(party_facts):
                key = (mechanism.values(t, i), facts)
                if key not in places:
                    places[key] = len(grants)
                    grants.append(mechanism.grant(t, i, self.problem, facts))
                index[t, i] = places[key]
        return grants, index

    def grant_scales(self) -> Any:
        """The scales of all grants as one pytree of arrays (n_rounds, n_parties), and the grant class."""
        grants, index = self.issued
        table = type(grants[0]).Scales(
            *(np.asarray(column) for column in zip(*(g.scales for g in grants), strict=True))
        )
        rows = np.broadcast_to(index, (self.n_rounds, self.facts.n_parties))
        return type(table)(*(column[rows] for column in table))

    def as_grant(self, scales: Any) -> Grant:
        """A grant around (traced) scales that were issued by this plan, as a party's step gets it."""
        return jax.tree.unflatten(jax.tree.structure(self.issued[0][0]), list(scales))

    # --- privacy ----------------------------------------------------------------------------------------------------

    def ledger(self, party: int) -> Ledger:
        """What one record of this party pays over the whole run, equal rounds counted together."""
        grants, index = self.issued
        counts = Counter(index[:, party].tolist())
        times = self.n_rounds if len(index) == 1 else 1
        return [(grants[g].event, count * times) for g, count in counts.items()]  # type: ignore[misc]

    def observer(self, name: str | None = None) -> Observer:
        channel = self.algorithm.channel
        return channel.observers[0] if name is None else check_observer(name, channel.observers, channel.name)

    def party_epsilons(
        self, delta: float, *, observer: str | None = None, accountant: Accountant = "best"
    ) -> tuple[float, ...]:
        """The loss of each party's own records or people."""
        self.observer(observer)
        check_delta(delta)
        known: dict[Any, float] = {}
        result = []
        for party in range(self.facts.n_parties):
            ledger = self.ledger(party)
            key = tuple(ledger)
            if key not in known:
                known[key] = self._person_epsilon(ledger, delta, accountant)
            result.append(known[key])
        return tuple(result)

    def epsilon(self, delta: float, *, observer: str | None = None, accountant: Accountant = "best") -> float:
        """The loss of the run: the worst party's, or all parties' together where a person may be at each of them."""
        if not self.people_span_parties:
            return max(self.party_epsilons(delta, observer=observer, accountant=accountant))
        self.observer(observer)
        check_delta(delta)
        return self._person_epsilon(self._spanning_ledger(), delta, accountant)

    def _spanning_ledger(self) -> Ledger:
        """What somebody pays who has a record at every party."""
        total: Counter[Any] = Counter()
        if self.algorithm.channel.aggregates:
            # one noise covers the sum, and all parties' records move it together: ratios add, not their squares
            grants, index = self.issued
            for row in index:
                ratios = [grants[g].event.gaussian_ratio for g in row]  # type: ignore[union-attr]
                total[Gaussian(ratio=sum(ratios))] += self.n_rounds // len(index)  # type: ignore[arg-type]
        else:
            for party in range(self.facts.n_parties):
                for event, count in self.ledger(party):
                    total[event] += count
        return list(total.items())

    def pure_epsilon(self) -> float:
        """The loss at delta = 0 for one person; infinite with Gaussian noise."""
        if self.people_span_parties:
            return self.records_per_person * accountants.pure_epsilon(self._spanning_ledger())
        return self.records_per_person * max(
            accountants.pure_epsilon(self.ledger(party)) for party in range(self.facts.n_parties)
        )

    def _person_epsilon(self, ledger: Ledger, delta: float, accountant: Accountant) -> float:
        def curve(d: float) -> float:
            return accountants.epsilon(ledger, d, accountant)

        grouped = accountants.group_epsilon(curve, delta, self.records_per_person)
        # pure losses of a group add up with no delta to pay
        if accountant in ("best", "pure"):
            grouped = min(grouped, self.records_per_person * accountants.pure_epsilon(ledger))
        return grouped

    def calibrate(self, epsilon: float, delta: float) -> "Plan":
        """The same plan with the least noise that keeps the loss at or under `epsilon`."""
        check_epsilon(epsilon)
        check_delta(delta)

        def scaled(factor: float) -> Plan:
            mechanism = self.algorithm.mechanism.with_noise(factor)
            return dataclasses.replace(self, algorithm=dataclasses.replace(self.algorithm, mechanism=mechanism))  # type: ignore[type-var]

        def loss(log_factor: float) -> float:
            return scaled(math.exp2(log_factor)).epsilon(delta)

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
        algorithm, channel, problem = self.algorithm, self.algorithm.channel, self.problem.share(self.facts.n_parties)
        n, d, p = max(self.facts.sizes), self.facts.n_features, self.problem.n_coefficients(self.facts)

        def array(*shape: int) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(shape, jnp.float64)

        def of_one_party(tree: Any) -> Any:
            return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), tree)

        def step(records: Any, private: Any, noise: Any, scales: Any, inbox: Any) -> Any:
            grant = self.as_grant(scales)
            if not channel.aggregates:
                return algorithm.local(grant, problem, records, private, inbox, noise)[1]
            one_share = jax.tree.map(lambda a: a[0], noise)
            _, out = algorithm.local(grant, problem, records, private, inbox, one_share)
            if not isinstance(out, Contribution):
                return out
            stacked = jax.tree.map(lambda a: as_issued(a, "contribution")[None], out)
            return channel.aggregate(stacked, grant, noise)  # type: ignore[attr-defined]

        with jax.enable_x64(True):
            public, private = jax.eval_shape(lambda: algorithm.init(self.topology, p))
            noise_shape = (1, p) if channel.aggregates else (p,)
            check_flow(
                step,
                records=Records(array(n, d), array(n), array(n)),
                private=of_one_party(private),
                noise=unit_noise(array(*noise_shape), array(*noise_shape)),
                scales=[array() for _ in jax.tree.leaves(self.issued[0][0])],
                inbox=of_one_party(jax.eval_shape(lambda pub: algorithm.inbox(0.0, pub, self.topology), public)),
            )
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
