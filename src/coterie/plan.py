"""A plan fixes everything that can be fixed before data is touched, and knows its privacy loss.

Building one checks every hypothesis and issues every grant; `Plan.make` also checks that no party's step can carry data
past the release door. Plans are plain data: they can be saved, compared, hashed and read back.
"""

import dataclasses
import functools
import itertools
import json
import math
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from coterie.algorithms.algorithm import Algorithm
from coterie.charts import Lines, Network, Series, short, table_html, tiny
from coterie.errors import InputError, PrivacyPreconditionError
from coterie.network.channels import Curator
from coterie.network.topology import All, Poisson, Topology, Walk, make_topology
from coterie.privacy import accountants
from coterie.privacy.accountants import Accountant, Ledger, check_delta, check_epsilon
from coterie.privacy.events import Adjacency, Event, Gaussian, Observer, Unit, check_adjacency, check_observer
from coterie.privacy.mechanisms import Grant, PartyFacts
from coterie.privacy.moments import MomentGrant, Moments, derivatives_size, packed_size
from coterie.privacy.noise import Keys, NoiseSource, Purpose, draw_many, law_for
from coterie.privacy.release import Contribution, as_issued, check_flow, unit_noise
from coterie.problems import Problem, Records
from coterie.values import Facts, canonical, check_size, decode, digest, read_json, serialisable, whole_number

# that can be told apart in a picture
MOST_LINES, MOST_POINTS, MOST_DRAWN = 4, 30, 40


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that is fixed before data are touched; `make` also checks it, and issues the grants.

    algorithm, problem: what is run, and what it minimises.
    topology: who hears whom; `make` takes a name, edges or a networkx graph as well.
    facts: the public facts of the federation; a plan sees nothing else of it.
    n_rounds: how many rounds there are (`rounds` of `make`).
    adjacency: "replace-one" or "zero-out": what may happen to the protected unit.
    unit: what is protected: a "record", or all records of a "party".
    records_per_person, people_span_parties: what one person may own: that many records at a party, and records at one
        party only (losses of parties are then alternatives) or at all of them (then they add up).
    moments: what is released at the model for inference once all rounds are done, over the same channel.
    """

    algorithm: Algorithm
    problem: Problem
    topology: Topology
    facts: Facts
    n_rounds: int
    adjacency: Adjacency
    unit: Unit = "record"
    records_per_person: int = 1
    people_span_parties: bool = False
    moments: Moments | None = None

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
        moments: Moments | None = None,
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
            moments=moments,
        )
        plan.check_flow()
        return plan

    def __post_init__(self) -> None:
        check_adjacency(self.adjacency)
        if self.unit not in ("record", "party"):
            raise InputError(f"unit: got {self.unit!r}; 'record' or 'party' is needed")
        # whatever NumPy handed in
        object.__setattr__(self, "n_rounds", whole_number("rounds", self.n_rounds, at_least=1))
        persons = whole_number("records_per_person", self.records_per_person, at_least=1)
        object.__setattr__(self, "records_per_person", persons)
        if self.topology.n_parties != self.facts.n_parties:
            raise InputError(f"topology: {self.topology.n_parties} nodes given for {self.facts.n_parties} parties")
        self.problem.check(self.facts)
        object.__setattr__(self, "algorithm", self.algorithm.for_facts(self.facts))
        if self.unit == "party" and (self.records_per_person > 1 or self.people_span_parties):
            raise InputError("unit: got 'party'; records_per_person and people_span_parties are for unit 'record'")
        self.algorithm.check(self.topology, self.problem)
        # every hypothesis is checked here
        _ = self.issued
        if self.moments is not None:
            self.moments.check(self.problem, self.facts)
            for party in self.kinds[1]:
                self.moment_grants(party)

    # --- grants -----------------------------------------------------------------------------------------------------

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
        channel, n_parties = self.algorithm.channel, self.facts.n_parties
        return PartyFacts.of(
            party,
            self.problem,
            self.facts,
            int(self.topology.degrees[party]),
            self.adjacency,
            self.unit,
            secret_rate,
            channel.noise(n_parties),
        )

    @functools.cached_property
    def issued(self) -> tuple[list[Grant], np.ndarray]:
        """The distinct grants, and which of them party i holds in round t: (n_rounds or 1, n_parties)."""
        mechanism, (kind, one_of_each) = self.algorithm.mechanism, self.kinds
        places: dict[Any, int] = {}
        grants: list[Grant] = []
        n_rows = 1 if mechanism.constant_in_time else self.n_rounds
        n_different = n_rows if mechanism.changing_rounds is None else min(mechanism.changing_rounds, n_rows)
        index = np.empty((n_different, len(one_of_each)), dtype=np.int32)
        for k, party in enumerate(one_of_each):
            facts = self.party_facts(party)
            for t in range(n_different):
                key = (mechanism.values(t, party), facts)
                if key not in places:
                    places[key] = len(grants)
                    grants.append(mechanism.grant(t, party, self.problem, facts))
                index[t, k] = places[key]
        rounds = np.minimum(np.arange(n_rows), n_different - 1)
        return grants, index[rounds][:, kind]

    def moment_grants(self, party: int) -> tuple[MomentGrant, ...]:
        """What party i may release after the rounds, everybody taking part."""
        if self.moments is None:
            return ()
        facts = dataclasses.replace(self.party_facts(party), secret_rate=1.0)
        if facts not in self._moment_grants:
            self._moment_grants[facts] = self.moments.grants(self.problem, facts)
        return self._moment_grants[facts]

    @functools.cached_property
    def _moment_grants(self) -> dict[PartyFacts, tuple[MomentGrant, ...]]:
        return {}

    def grant_table(self) -> Any:
        """The scales of the distinct grants, as one pytree of arrays."""
        grants, _ = self.issued
        return type(grants[0]).Scales(*(np.asarray(column) for column in zip(*(g.scales for g in grants), strict=True)))

    def grant_scales(self) -> Any:
        """The scales of every round and party, (n_rounds, n_parties): for small plans."""
        rows = np.broadcast_to(self.issued[1], (self.n_rounds, self.facts.n_parties))
        return jax.tree.map(lambda column: column[rows], self.grant_table())

    def as_grant(self, scales: Any) -> Any:
        """A grant around (traced) scales that were issued by this plan, as a party's step gets it."""
        return jax.tree.unflatten(jax.tree.structure(self.issued[0][0]), list(scales))

    def draw(self, source: NoiseSource, keys: Keys, purpose: Purpose) -> np.ndarray | None:
        """The unit noise that grants have a use for, a row for each (repeat, party, round); None where they have none.
        The noise of a sum has the places of the channel's rows instead of parties."""
        law, uses = self.algorithm.mechanism.law, type(self.issued[0][0]).uses
        if law is None or purpose not in uses:
            return None
        d = self.problem.n_coefficients(self.facts)
        return draw_many(source, law_for(law, uses[purpose]), d, keys, purpose, self.noise_rows)

    @property
    def noise_rows(self) -> int:
        """How many draws a round needs: the channel's, or one of each party."""
        channel, n_parties = self.algorithm.channel, self.facts.n_parties
        return channel.noise(n_parties).rows if channel.aggregates else n_parties

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

    # --- privacy ----------------------------------------------------------------------------------------------------

    def ledger(self, party: int, *, observer: str | None = None, n_rounds: int | None = None) -> Ledger:
        """What one record (or all, with unit "party") of this party pays over the run with its moments, or over its
        first `n_rounds` alone, equal rounds counted together."""
        seen_by = self.observer(observer)
        grants, index = self.issued
        rounds = np.broadcast_to(index[:, party], self.n_rounds)[:n_rounds]
        if self.charged is not None:
            rounds = rounds[self.charged[:n_rounds, party]]
        selection = self.algorithm.selection
        if isinstance(selection, Walk) and selection.secret:
            # all alike: a secret walk takes constant noise only
            rounds = rounds[: selection.most_visits]
        used, counts = np.unique(rounds, return_counts=True)
        facts, mechanism = self.party_facts(party), self.algorithm.mechanism
        paid: list[tuple[Event, int]] = [
            (mechanism.seen_by(seen_by, grants[g].event, self.problem, facts), int(count))
            for g, count in zip(used, counts, strict=True)
        ]
        return paid if n_rounds is not None else [*paid, *self._afterwards(party)]

    def _afterwards(self, party: int) -> Ledger:
        """What this party pays for once all rounds are over."""
        return [(granted.grant.event, 1) for granted in self.moment_grants(party)]

    def person_ledger(self, party: int) -> Ledger:
        """As `ledger`, of somebody who has records at this party; at all of them where people may."""
        return [*itertools.chain(*self._spanning_ledgers())] if self.people_span_parties else self.ledger(party)

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
            paid = self.ledger(party, observer=observer, n_rounds=self.n_rounds), self._afterwards(party)
            key = tuple(map(tuple, paid))
            if key not in known:
                known[key] = self._person_epsilon(paid, delta, accountant)
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
        return self._person_epsilon(self._spanning_ledgers(), delta, accountant)

    def _spanning_ledgers(self) -> tuple[Ledger, Ledger]:
        """What somebody pays who has a record at every party, against whoever sees most, over the rounds and after
        them: nothing hides under the noise of parties that are all affected."""
        of_rounds, afterwards = Counter[Any](), Counter[Any]()
        if not self.algorithm.channel.aggregates:
            for party in range(self.facts.n_parties):
                for event, count in self.ledger(party, n_rounds=self.n_rounds):
                    of_rounds[event] += count
                for event, count in self._afterwards(party):
                    afterwards[event] += count
            return list(of_rounds.items()), list(afterwards.items())
        grants, index = self.issued
        ratios = [e.ratio if isinstance(e := grant.event, Gaussian) else None for grant in grants]
        if None in ratios:
            raise PrivacyPreconditionError("people_span_parties: got True; a secret selection has no bound for that")
        by_round = np.asarray(ratios, dtype=float)[index]
        by_round = by_round if self.charged is None else by_round * self.charged
        channel = self.algorithm.channel
        for ratios_of_round in by_round:
            ratio = channel.all_together(ratios_of_round)
            of_rounds[Gaussian(ratio=ratio)] += self.n_rounds // len(by_round)
        kind, one_of_each = self.kinds
        moments = [[granted.grant.event.ratio for granted in self.moment_grants(party)] for party in one_of_each]
        for ratios in zip(*moments, strict=True):
            afterwards[Gaussian(ratio=channel.all_together(np.asarray(ratios)[kind]))] += 1
        return list(of_rounds.items()), list(afterwards.items())

    def pure_epsilon(self) -> float:
        """The loss at delta = 0 for one person; infinite with Gaussian noise."""
        if self.people_span_parties:
            return self.records_per_person * accountants.pure_epsilon(self.person_ledger(0))
        return self.records_per_person * max(accountants.pure_epsilon(self.ledger(party)) for party in self._alike[1])

    def _person_epsilon(self, paid: tuple[Ledger, Ledger], delta: float, accountant: Accountant) -> float:
        """Of what is paid over the rounds, and after them."""
        of_rounds, afterwards = paid

        def curve(d: float) -> float:
            return accountants.epsilon(of_rounds, d, accountant, afterwards=afterwards)

        grouped = accountants.group_epsilon(curve, delta, self.records_per_person)
        # pure losses of a group add up with no delta to pay
        if accountant in ("best", "pure"):
            grouped = min(grouped, self.records_per_person * accountants.pure_epsilon([*of_rounds, *afterwards]))
        return grouped

    def calibrate(
        self, epsilon: float, delta: float, *, observer: str | None = None, accountant: Accountant = "best"
    ) -> "Plan":
        """The same plan with the least noise, in rounds and moments, that keeps the loss at or under `epsilon`."""
        check_epsilon(epsilon)
        check_delta(delta)

        def scaled(factor: float) -> Plan:
            mechanism = self.algorithm.mechanism.with_noise(factor)
            moments = None if self.moments is None else self.moments.with_noise(factor)
            algorithm = dataclasses.replace(self.algorithm, mechanism=mechanism)
            return dataclasses.replace(self, algorithm=algorithm, moments=moments)

        def loss(factor: float) -> float:
            return scaled(factor).epsilon(delta, observer=observer, accountant=accountant)

        factor = accountants.least_noise(loss, epsilon)
        if math.isinf(factor):
            raise PrivacyPreconditionError(
                f"epsilon: got {epsilon}; with any amount of noise this plan costs at least {loss(2.0**64):.4g} at "
                f"delta={delta}: raise the penalty or the l2, or take fewer rounds"
            )
        if factor == 0:
            raise PrivacyPreconditionError(f"epsilon: got {epsilon}; no noise at all would be needed")
        return scaled(factor)

    # --- information flow -------------------------------------------------------------------------------------------

    def check_flow(self) -> None:
        """Refuse the plan if a party's step could carry data past the release door."""
        _ = self._flow_checked

    @functools.cached_property
    def _flow_checked(self) -> bool:
        _check_plan_flow(self)
        _check_moments_flow(self)
        return True

    # --- for people -------------------------------------------------------------------------------------------------

    def loss_chart(self, delta: float) -> Lines | None:
        """The loss as it is spent, after each round; of parties that pay differently, the first to third and the last.
        None where nothing bounds it. A person who may be at every party pays the level, not a line."""
        by_party = self.party_epsilons(delta)
        whole = self.epsilon(delta)
        if not math.isfinite(whole):
            return None
        places, one_of_each = self._alike
        ordered = sorted(one_of_each, key=lambda party: -by_party[party])
        drawn = ordered if len(ordered) <= MOST_LINES else [*ordered[: MOST_LINES - 1], ordered[-1]]
        every = np.linspace(1, self.n_rounds, min(self.n_rounds, MOST_POINTS))
        rounds = sorted({round(float(t)) for t in every})
        known: dict[Any, float] = {}

        def spent(party: int, t: int) -> float:
            ledger = self.ledger(party, n_rounds=t)
            if (key := tuple(ledger)) not in known:
                known[key] = self._person_epsilon((ledger, ()), delta, "best")
            return known[key]

        # noise is found by search, so equal prices differ in digits that nobody sees: those are one line
        curves: dict[tuple[str, ...], tuple[tuple[float, ...], list[int]]] = {}
        for i in drawn:
            losses = tuple(spent(i, t) for t in rounds)
            curves.setdefault(tuple(map(short, losses)), (losses, []))[1].append(i)

        def named(alike: list[int]) -> str:
            others = int(np.isin(places, places[alike]).sum()) - 1
            if others + 1 == len(places):
                return "every party"
            more = "" if others == 0 else f" and {others} {'other' if others == 1 else 'others'}"
            return f"{self.facts.parties[alike[0]]}{more}"

        series = [Series(named(alike), tuple(rounds), losses) for losses, alike in curves.values()]
        return Lines(
            title="Privacy loss as it is spent",
            x_label="rounds done",
            y_label=f"ε at δ = {tiny(delta)}",
            series=tuple(series),
            levels=(("whole run" if self.moments is None else "whole run, with what intervals need", whole),),
            whole_x=True,
        )

    def network_chart(self) -> Network | None:
        """Who exchanges with whom; None where that would be too many to see."""
        if self.facts.n_parties > MOST_DRAWN:
            return None
        between = None
        if self.algorithm.channel.aggregates:
            between = {"curator": "curator", "secure-sum": "secure sum"}.get(self.algorithm.channel.name, "sum")
        elif self.topology.unrestricted:
            between = "anybody"
        edges = () if between is not None else tuple((int(i), int(j)) for i, j in self.topology.edges)
        return Network(
            title="Who exchanges with whom",
            names=self.facts.parties,
            sizes=self.facts.sizes,
            edges=edges,
            centre=between,
        )

    def plot(self, delta: float, ax: Any = None) -> Any:
        """The loss at `delta` as it is spent round by round, on matplotlib axes, which are returned."""
        chart = self.loss_chart(delta)
        if chart is None:
            raise PrivacyPreconditionError("plot: nothing bounds the loss of this plan, so there is no line to draw")
        return chart.plot(ax)

    def plot_network(self, ax: Any = None) -> Any:
        """The parties with their numbers of records and who exchanges with whom, on matplotlib axes."""
        chart = self.network_chart()
        if chart is None:
            raise InputError(f"plot_network: got {self.facts.n_parties} parties; at most {MOST_DRAWN} can be seen")
        return chart.plot(ax)

    def _repr_html_(self) -> str:
        facts = self.facts
        person = f"{self.unit}, {self.records_per_person} a person" if self.unit == "record" else self.unit
        return table_html(
            ("", ""),
            [
                ("algorithm", type(self.algorithm).__name__),
                (
                    "mechanism",
                    f"{type(self.algorithm.mechanism).__name__}, noise: {self.algorithm.mechanism.law or 'none'}",
                ),
                ("rounds", str(self.n_rounds)),
                ("parties", f"{facts.n_parties:,} with {sum(facts.sizes):,} records"),
                ("features", f"{facts.n_features:,}"),
                ("protected", f"{person}; {self.adjacency}"),
                ("loss", "plan.epsilon(delta) against anybody who sees " + self.observer().sees),
                ("digest", self.digest[:16]),
            ],
            "Plan",
        )

    # --- identity ---------------------------------------------------------------------------------------------------

    @functools.cached_property
    def digest(self) -> str:
        return digest(self)

    def to_json(self) -> str:
        return json.dumps(json.loads(canonical(self)), indent=1, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        content = read_json("plan", text)
        check_size(content)
        plan = decode(content)
        if not isinstance(plan, cls):
            raise InputError(f"plan: got a {type(plan).__name__}; a saved Plan is needed")
        return plan


def _check_moments_flow(plan: Plan) -> None:
    """The same of what is released at the model, each party's by itself or all as one."""
    problem = plan.problem.share(plan.facts.n_parties)
    n, d, p = plan.facts.largest, plan.facts.n_features, plan.problem.n_coefficients(plan.facts)
    for name, grant in {granted.purpose: granted.grant for granted in plan.moment_grants(0)}.items():
        size = packed_size(p) if name == "second_moment" else derivatives_size(p)
        tree = jax.tree.structure(grant)

        def step(
            records: Any, private: Any, noise: Any, scales: Any, inbox: Any, name: str = name, tree: Any = tree
        ) -> Any:
            issued = jax.tree.unflatten(tree, scales)
            given = getattr(issued, name)(problem, records, at=inbox)
            stacked = jax.tree.map(lambda a: as_issued(a, "contribution")[None], given)
            return private, Curator().aggregate(stacked, issued, noise)

        def array(*shape: int) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(shape, jnp.float64)

        with jax.enable_x64(True):
            check_flow(
                step,
                records=Records(array(n, d), array(n), array(n)),
                private=(),
                noise=unit_noise(array(1, size), None),
                scales=[array() for _ in jax.tree.leaves(grant)],
                inbox=array(p),
            )


def _check_plan_flow(plan: Plan) -> None:
    """Refuse the plan if a party's step could carry data past the release door."""
    algorithm, problem = plan.algorithm, plan.problem.share(plan.facts.n_parties)
    channel: Any = algorithm.channel
    n, d, p = plan.facts.largest, plan.facts.n_features, plan.problem.n_coefficients(plan.facts)

    def array(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float64)

    def of_one_party(tree: Any) -> Any:
        return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), tree)

    def step(records: Any, private: Any, noise: Any, scales: Any, inbox: Any) -> Any:
        grant = plan.as_grant(scales)
        if not channel.aggregates:
            return algorithm.local(grant, problem, records, private, inbox, noise)
        kept, out = algorithm.local(grant, problem, records, private, inbox, None)
        if not isinstance(out, Contribution):
            return kept, out
        stacked = jax.tree.map(lambda a: as_issued(a, "contribution")[None], out)
        return kept, channel.aggregate(stacked, grant, noise)

    with jax.enable_x64(True):
        public, private = jax.eval_shape(lambda: algorithm.init(plan.topology, p))
        noise_shape = (1, p) if channel.aggregates else (p,)
        check_flow(
            step,
            records=Records(array(n, d), array(n), array(n)),
            private=of_one_party(private),
            noise=unit_noise(array(*noise_shape), array(*noise_shape)),
            scales=[array() for _ in jax.tree.leaves(plan.issued[0][0])],
            inbox=of_one_party(jax.eval_shape(lambda pub: algorithm.inbox(0.0, pub, plan.topology), public)),
        )
