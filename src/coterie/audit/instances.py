"""Small instances of every algorithm in the package, with neighbouring data that reach the stated loss.

Algorithms come from the one table of names, mechanisms and channels from the types their fields accept, noise laws from
the noise fields of a mechanism. Only the values of settings are written down here, by the name of the field; a field
without a value is an error that the audit reports.
"""

import contextlib
import dataclasses
import itertools
import typing
from collections.abc import Iterable, Iterator
from types import UnionType
from typing import Any

import numpy as np

import coterie.machine as machine
from coterie.algorithms import ALGORITHMS, BroadcastNoisedADMM, PenaltyPerturbedADMM, SumNoisedADMM
from coterie.algorithms.algorithm import Algorithm
from coterie.data.federation import Federation, Shard
from coterie.engines.in_process import Paths
from coterie.errors import CoterieError, InputError, PrivacyPreconditionError
from coterie.network.channels import Channel, Curator, PairwiseSum
from coterie.network.topology import All, Cyclic, Poisson, Selection, Walk, make_topology
from coterie.plan import Plan
from coterie.privacy.events import Adjacency, Unit
from coterie.privacy.mechanisms import Mechanism
from coterie.privacy.objective import PenaltyPerturbation
from coterie.privacy.proximal import BroadcastNoise, SumNoise
from coterie.problems import L2, HuberisedHinge, Logistic, Loss, Problem, Regulariser, Squared
from coterie.values import Facts

# a stated loss holds at every delta, and at a large one thousands of runs can come close to it
DELTA = 0.01
N_PARTIES = 3
RECORDS_PER_PARTY = 2
REGULARISER = L2(0.03)
# where not everybody works in every round
SOME_ROUNDS = 4
HINGE = HuberisedHinge(width=0.5)
GRAPH = "complete"
ADJACENCIES: tuple[Adjacency, ...] = typing.get_args(Adjacency)
USUAL = Paths()

# the values that are tried for every field that any algorithm or mechanism asks for
VALUES: dict[str, tuple[Any, ...]] = {
    "penalty": (1.0,),
    "dual_step": (1.0,),
    "recycle_weight": (1.0,),
    "edge_penalty": ((1.0,) * (N_PARTIES * (N_PARTIES - 1) // 2),),
    "extra_l2": (4.0,),
    "step": (0.5,),
    "momentum": (0.9,),
    "column_std": (8.0,),
    "prox_step": (0.5,),
    "relaxation": (0.5,),
    "clip": (None, 0.002),
    "A": (((0.5,),),),
}
# a mechanism has one law of noise for each of these fields
NOISE_VALUES: dict[str, float] = {"noise_multiplier": 4.0, "noise_rate": 1.0, "step_epsilon": 1.0}


class NoInstanceError(InputError):
    """An algorithm has a setting for which no value is known."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """The problem an algorithm is examined on."""

    loss: Loss = HINGE
    record_weight: float
    n_features: int = 1
    row_norm: float = 1.0
    records_per_party: int = RECORDS_PER_PARTY
    # its number of records, where that is another
    first_party: int | None = None
    # for losses of numbers, in place of labels
    label_bound: float | None = None
    rounds: int
    # that noise is calibrated to, where the mechanism allows it
    epsilon: float

    def facts(self, n_parties: int) -> Facts:
        return Facts(
            parties=tuple("abcdefghijklmnopqrstuvwxyz"[:n_parties]),
            sizes=(self.first_party or self.records_per_party,) + (self.records_per_party,) * (n_parties - 1),
            n_features=self.n_features,
            row_norm=self.row_norm,
            labels=("-", "+", *"abc"[: max(0, self.loss.n_outputs - 2)]) if self.label_bound is None else None,
            label_bound=self.label_bound,
        )


# records so light that coefficients stay where the hinge is a straight line: releases are then affine in the noise
# and one record moves them by all of the declared sensitivity
LIGHT = Setting(record_weight=0.01, rounds=2, epsilon=3.0)
# records whose curvature matters beside that of penalty and regulariser
HEAVY = Setting(record_weight=1.0, rounds=1, epsilon=3.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Instance:
    """One algorithm with one mechanism, law of noise and adjacency."""

    name: str
    algorithm: Algorithm
    adjacency: Adjacency
    unit: Unit = "record"
    n_parties: int = N_PARTIES
    light: Setting = LIGHT
    heavy: Setting = HEAVY
    calibrated: bool = True
    # of the engine
    paths: Paths = USUAL

    @property
    def labels(self) -> dict[str, str]:
        algorithm = self.algorithm
        words = [type(algorithm.mechanism).__name__]
        if getattr(algorithm.mechanism, "clip", None) is not None:
            words.append("clip")
        if algorithm.channel.aggregates:
            words.append(algorithm.channel.name)
        if not isinstance(algorithm.selection, All):
            secret = "secret " if algorithm.selection.secret else ""
            words.append(secret + type(algorithm.selection).__name__)
        words += [f"path: {name}" for name in self.paths.only]
        return {
            "algorithm": self.name,
            "mechanism": ", ".join(words),
            "noise": algorithm.mechanism.law or "none",
            "adjacency": self.adjacency if self.unit == "record" else f"{self.adjacency} {self.unit}",
        }

    def plan(self, setting: Setting) -> Plan:
        """The plan that is audited: noise at a level at which runs can tell data sets apart, and barely."""
        plan = self.unchecked_plan(setting)
        plan.check_flow()
        if not self.calibrated:
            return plan
        try:
            return plan.calibrate(setting.epsilon, DELTA)
        except InputError:
            # no noise to change, or none that would do
            return plan

    def unchecked_plan(self, setting: Setting) -> Plan:
        """All hypotheses hold; whether data could get past the release door is not looked at."""
        regulariser = getattr(self.algorithm, "regulariser", REGULARISER)
        # whoever does not work in every round gets more of them
        everybody = isinstance(self.algorithm.selection, All)
        facts, rounds = setting.facts(self.n_parties), setting.rounds + len(self.algorithm.first_rounds)
        return Plan(
            algorithm=self.algorithm,
            problem=Problem(loss=setting.loss, regulariser=regulariser, record_weight=setting.record_weight),
            topology=make_topology(GRAPH, self.n_parties),
            facts=facts,
            n_rounds=rounds if everybody else max(rounds, SOME_ROUNDS),
            adjacency=self.adjacency,
            unit=self.unit,
        )

    def pair(self, setting: Setting) -> tuple[Federation, Federation]:
        """Neighbours that move a gradient by all of its sensitivity: with the record, and with its opposite or none."""
        facts = setting.facts(self.n_parties)
        X = np.zeros((setting.records_per_party, setting.n_features))
        X[:, 0] = facts.row_norm
        ones = np.ones(setting.records_per_party)
        usual, changed = Shard(X, ones, ones), np.ones(setting.records_per_party)
        changed[: 1 if self.unit == "record" else None] = 0.0
        if self.adjacency == "zero-out":
            first = Shard(X, ones, changed)
        elif self.algorithm.first_rounds:
            # which may not look at labels; the opposite row is the other label's
            first = Shard(np.where(changed[:, None] > 0, X, -X), ones, ones)
        else:
            first = Shard(X, changed, ones)
        rest = (usual,) * (self.n_parties - 1)
        return Federation(facts, (usual, *rest)), Federation(facts, (first, *rest))


def instances_of(
    name: str, algorithm: Algorithm, *, adjacency: Adjacency | None = None, unit: Unit | None = None, **changes: Any
) -> list[Instance]:
    """One per adjacency and unit of privacy that the mechanism is proved for, alone if it takes one party only."""
    adjacencies = ADJACENCIES if adjacency is None else (adjacency,)
    units = typing.get_args(Unit) if unit is None else (unit,)
    for n_parties in (N_PARTIES, 1):
        candidates = [
            Instance(name=name, algorithm=algorithm, adjacency=a, unit=u, n_parties=n_parties, **changes)
            for a, u in itertools.product(adjacencies, units)
        ]
        found = [instance for instance in candidates if _offered(instance)]
        if found:
            return found
    return []


def _offered(instance: Instance) -> bool:
    try:
        instance.unchecked_plan(instance.light)
    except InputError:
        return False
    return True


def enumerate_instances(names: Iterable[str] = ()) -> Iterator[Instance | tuple[str, str]]:
    """All instances of the named algorithms, or of all; for one that cannot be built, (its name, why).

    Combinations of settings that the package refuses are not offered, so there is nothing to audit about them; a
    mechanism and law of which no combination is left cannot be audited, which is an error.
    """
    for name in names or ALGORITHMS:
        try:
            combinations = list(_algorithms(ALGORITHMS[name]))
        except CoterieError as error:
            yield name, str(error)
            continue
        audited: dict[tuple[str, str | None], bool] = {}
        for alternatives in combinations:
            for algorithm in alternatives:
                found = instances_of(name, algorithm)
                mechanism = (type(algorithm.mechanism).__name__, algorithm.mechanism.law)
                audited[mechanism] = audited.get(mechanism, False) or bool(found)
                yield from found
                if found:
                    break
        for (mechanism, law), done in audited.items():
            if not done:
                yield name, f"no plan with {mechanism} and {law} noise is accepted"


def _algorithms(cls: type[Algorithm]) -> Iterator[list[Algorithm]]:
    """Every combination of settings, each with the regularisers to try in turn."""
    choices = dict(_choices(cls))
    regularisers = choices.pop("regulariser", [None])
    for combination in itertools.product(*choices.values()):
        settings = dict(zip(choices, combination, strict=True))
        yield [cls(**settings, **({} if r is None else {"regulariser": r})) for r in regularisers]


def _choices(cls: type) -> Iterator[tuple[str, list[Any]]]:
    """Each field of a class with the values it is tried with."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        accepted = _classes(hints[field.name])
        if any(issubclass(c, Mechanism) for c in accepted):
            yield field.name, [m for c in accepted for m in _mechanisms(c)]
        elif any(issubclass(c, Channel) for c in accepted):
            yield field.name, [c(colluders=1) if c is PairwiseSum else c() for c in accepted]
        elif Regulariser in accepted:
            yield field.name, [REGULARISER, L2(0.0)]
        elif any(issubclass(c, Selection) for c in accepted):
            yield field.name, [s for c in accepted for s in _selections(c)]
        elif field.name in VALUES:
            yield field.name, list(VALUES[field.name])
        elif _required(field):
            raise NoInstanceError(f"{cls.__name__} needs {field.name!r}, and the audit knows no value for it")


def _mechanisms(cls: type[Mechanism]) -> Iterator[Mechanism]:
    fields = {field.name: field for field in dataclasses.fields(cls)}
    laws = [name for name in NOISE_VALUES if name in fields]
    known = {name: VALUES[name] for name in fields if name in VALUES}
    for name, field in fields.items():
        if name not in known and name not in laws and _required(field):
            raise NoInstanceError(f"{cls.__name__} needs {name!r}, and the audit knows no value for it")
    for law, *values in itertools.product(laws or [None], *known.values()):
        noise = {} if law is None else {law: NOISE_VALUES[law]}
        # a combination that is not offered
        with contextlib.suppress(PrivacyPreconditionError):
            yield cls(**dict(zip(known, values, strict=True)), **noise)


def _selections(cls: type[Selection]) -> Iterator[Selection]:
    """Everybody, and a secret coin; one after the other, which stands for every public order; or a public walk that
    comes to the first party more than once, and a secret one."""
    if issubclass(All, cls):
        yield All()
    if issubclass(Poisson, cls):
        yield Poisson(probability=0.5, seed=None)
    if cls is Cyclic:
        yield Cyclic()
    if cls is Walk:
        graph = make_topology(GRAPH, N_PARTIES)
        walks = (Walk(seed=seed) for seed in itertools.count())
        yield next(walk for walk in walks if walk.table(SOME_ROUNDS, graph)[:, 0].sum() > 1)
        yield Walk(seed=None, most_visits=2)


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _classes(hint: Any) -> tuple[type, ...]:
    if isinstance(hint, UnionType) or typing.get_origin(hint) is typing.Union:
        return tuple(c for c in typing.get_args(hint) if isinstance(c, type))
    return (hint,) if isinstance(hint, type) else ()


# --- down one path of the engine each, however small ------------------------------------------------------------------

_NOISE: dict[str, Any] = {"noise_multiplier": NOISE_VALUES["noise_multiplier"]}
_PROXIMAL: dict[str, Any] = {"prox_step": VALUES["prox_step"][0], "relaxation": VALUES["relaxation"][0], **_NOISE}
_PENALTY_PERTURBED: Any = (
    "penalty-perturbed-admm",
    PenaltyPerturbedADMM(mechanism=PenaltyPerturbation(penalty=1.0, **_NOISE), dual_step=1.0),
)
_ONE_RECORD: dict[str, Any] = {"records_per_party": 1}
# an algorithm that uses the path, and what is special about the problem it is examined on
_EXAMINED: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "argmin by matrices": (*_PENALTY_PERTURBED, {}),
    "argmin in machine code": (*_PENALTY_PERTURBED, {"loss": Logistic()}),
    "people in machine code": (
        "sum-noised-admm",
        SumNoisedADMM(mechanism=SumNoise(clip=0.002, **_PROXIMAL), regulariser=REGULARISER, channel=Curator()),
        # in one round nothing is clipped that noise has moved, so that releases are affine in the noise
        {"loss": Squared(), "label_bound": 1.0, "rounds": 1, **_ONE_RECORD},
    ),
    "people": (
        "broadcast-noised-admm",
        BroadcastNoisedADMM(mechanism=BroadcastNoise(**_PROXIMAL), regulariser=REGULARISER, channel=Curator()),
        _ONE_RECORD,
    ),
    "solved together": (*_PENALTY_PERTURBED, {}),
}
_NEED_NUMBA = ("argmin in machine code", "people in machine code")


def path_instances() -> Iterator[Instance]:
    """One for each path besides the general one, which small plans take anyway; paths in machine code need Numba."""
    for path, (name, algorithm, changes) in _EXAMINED.items():
        if path in _NEED_NUMBA and not machine.has_numba():
            continue
        paths = Paths(
            only=(path,),
            matrices_on=("cpu", "gpu"),
            native_work=0,
            native_few_problems=10**9,
            people_work=0,
            together_from=0,
        )
        setting = dataclasses.replace(LIGHT, **changes)
        yield instances_of(name, algorithm, adjacency="zero-out", light=setting, paths=paths)[0]
