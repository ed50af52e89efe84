"""An algorithm from plain numbers: each setting goes to the field of that name, of the algorithm or its mechanism.

Without a name the algorithm and all its settings are chosen by `coterie.rules`. Of a named one, what is left open
follows from public facts by these rules, with B the largest party, w a record's weight, c1 the loss's
smoothness, X the row norm, d the features and V a party's neighbours:

    coupling   2 eta V = 2 B w c1 X^2 / d, twice the average curvature of a party's own records, and more where
               that would let the Jacobian of objective perturbation dominate the price
    step       of a proximal step: 1/coupling; of gradient descent: 1/(n w c1 X^2 + l2), n all records
    A          the identity
"""

import dataclasses
import math
import re
import types
import typing
from typing import Any

import scipy.sparse

from coterie import rules
from coterie.algorithms import ALGORITHMS, Algorithm
from coterie.algorithms.averaging import Averaging
from coterie.algorithms.penalty_perturbed import EdgewiseADMM
from coterie.cli.spec import keys
from coterie.cli.spec.names import CHANNELS, SELECTIONS, one_of
from coterie.cli.spec.sections import AlgorithmSection, PrivacySection
from coterie.errors import InputError
from coterie.facts import Facts
from coterie.matrices import Matrix
from coterie.network.channels import Channel
from coterie.network.selection import Selection, Walk
from coterie.network.topology import Topology
from coterie.privacy.mechanisms import Mechanism
from coterie.problems import Penalty, Problem, Squared
from coterie.schedules import Schedule

_NUMBERS = ("penalty", "step", "clip")
_NOISE = ("noise_multiplier", "noise_rate", "step_epsilon")
_HIDDEN = ("mechanism", "as_published")  # papers' slips stay within Python


def make_algorithm(
    section: AlgorithmSection, problem: Problem, facts: Facts, topology: Topology, privacy: PrivacySection
) -> tuple[Algorithm, int]:
    """The algorithm, its noise perhaps still to be calibrated, and its number of rounds."""
    if section.name is None:
        return _chosen(section, problem, facts, topology, privacy)
    assert section.rounds is not None
    return _named(section, section.name, problem, facts, topology, privacy, section.rounds), section.rounds


def _chosen(
    section: AlgorithmSection, problem: Problem, facts: Facts, topology: Topology, privacy: PrivacySection
) -> tuple[Algorithm, int]:
    """By the rules that the estimators follow."""
    if privacy.epsilon is None:
        raise InputError("privacy: key 'epsilon' is missing; an algorithm without a name is chosen by it")
    given = section.settings
    if isinstance(problem.loss, Squared) and "clip" not in given:
        raise InputError("algorithm: key 'clip' is missing; slopes of the loss 'squared' have no bound of their own")
    positive = {name: keys.positive(f"algorithm.{name}", given[name]) for name in _NUMBERS if name in given}
    situation = rules.Situation(
        problem=problem,
        facts=facts,
        topology=topology,
        trust=privacy.trust or "none",
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        adjacency=privacy.adjacency,
        unit=privacy.unit,
        records_per_person=privacy.records_per_person,
        clip=positive.get("clip"),
        hardened=keys.boolean("algorithm.hardened", given.get("hardened", False)),
    )
    averaging = given.get("averaging")
    settled = rules.Open(
        rounds=section.rounds,
        averaging=None if averaging is None else one_of("algorithm.averaging", averaging, typing.get_args(Averaging)),
        penalty=positive.get("penalty"),
        step=positive.get("step"),
    )
    return rules.choose(situation, settled)


def _named(
    section: AlgorithmSection,
    name: str,
    problem: Problem,
    facts: Facts,
    topology: Topology,
    privacy: PrivacySection,
    n_rounds: int,
) -> Algorithm:
    cls = ALGORITHMS[name]
    hints = _field_types(cls)
    mechanism_cls = _mechanism_class(hints["mechanism"], section.settings)
    mechanism_hints = _field_types(mechanism_cls)
    own = {n: t for n, t in hints.items() if n not in _HIDDEN and Penalty not in _alternatives(t)}
    ours = {n: t for n, t in mechanism_hints.items() if n not in _HIDDEN}
    choices = ("mechanism",) if len(_alternatives(hints["mechanism"])) > 1 else ()
    keys.refuse_unknown("algorithm", section.settings, ("name", "rounds", *choices, *own, *ours))
    given = {
        name: _converted(f"algorithm.{name}", value, {**ours, **own}[name], facts)
        for name, value in section.settings.items()
        if name != "mechanism"
    }
    open_settings = _Rules(problem, facts, topology, privacy, n_rounds)
    if cls is EdgewiseADMM:
        return _edgewise(given, open_settings)
    wanted = {**open_settings.defaults(cls, own, ours, given), **given}
    if "penalty" in hints and Penalty in _alternatives(hints["penalty"]):
        own, wanted = {**own, "penalty": Penalty}, {**wanted, "penalty": problem.penalty}
    if "channel" in own and "channel" not in wanted:
        raise InputError(
            f"algorithm: key 'channel' is missing; whom do you trust with the sum: {' or '.join(CHANNELS)}?"
        )
    mechanism = mechanism_cls(**{name: value for name, value in wanted.items() if name in ours})
    return cls(mechanism=mechanism, **{name: value for name, value in wanted.items() if name in own})  # type: ignore[call-arg]


def _field_types(cls: type) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}


def _alternatives(hint: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def _mechanism_class(hint: Any, settings: dict[str, Any]) -> type[Mechanism]:
    """The only one, or the one that is named in small letters and hyphens; the first unless told."""
    named = {re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__).lower(): cls for cls in _alternatives(hint)}
    if len(named) > 1 and "mechanism" in settings:
        return named[one_of("algorithm.mechanism", settings["mechanism"], named)]
    return next(iter(named.values()))


# --- plain values to fields -------------------------------------------------------------------------------------------


def _converted(where: str, value: Any, hint: Any, facts: Facts) -> Any:
    alternatives = _alternatives(hint)
    kinds = [kind for kind in alternatives if isinstance(kind, type)]
    if any(typing.get_origin(kind) is tuple for kind in alternatives):
        return keys.numbers(where, value)
    if Schedule in kinds:
        return _schedule(where, value, facts)
    if Matrix in kinds:
        return _matrix(where, value)
    if any(issubclass(kind, Channel) for kind in kinds):
        return CHANNELS[one_of(where, value, CHANNELS)]()
    if any(issubclass(kind, Selection) for kind in kinds):
        return _selection(where, value)
    if bool in kinds:
        return keys.boolean(where, value)
    if float in kinds:
        return keys.number(where, value)
    return one_of(where, value, typing.get_args(hint))  # a Literal


def _schedule(where: str, value: Any, facts: Facts) -> Schedule:
    """A number, a list with one per party, or { start = ..., ratio = ... } of either."""
    if isinstance(value, dict):
        part = keys.Key(lambda w, v: _schedule(w, v, facts).start, keys.REQUIRED)
        return Schedule(**keys.read_table(where, value, {"start": part, "ratio": part}))
    if not isinstance(value, list):
        return Schedule(keys.positive(where, value))
    if len(value) != facts.n_parties:
        raise InputError(f"{where}: {len(value)} numbers given for {facts.n_parties} parties; one per party is needed")
    return Schedule(tuple(keys.positive(f"{where}[{place}]", item) for place, item in enumerate(value)))


def _matrix(where: str, value: Any) -> Matrix:
    if not isinstance(value, list) or not value:
        raise InputError(f"{where}: got {keys.short(value)}; a list of rows is needed")
    rows = [keys.numbers(f"{where}[{place}]", row) for place, row in enumerate(value)]
    if len({len(row) for row in rows}) > 1:
        raise InputError(f"{where}: got rows of different lengths; a matrix is needed")
    return Matrix.of(where, rows)


def _selection(where: str, value: Any) -> Selection:
    """A name, or { name = ..., seed = ..., ... }; a seed of "secret" is drawn during the run."""
    content = {"name": value} if isinstance(value, str) else value
    if not isinstance(content, dict):
        raise InputError(f"{where}: got {keys.short(value)}; a name or a table with a name is needed")
    cls = SELECTIONS[one_of(f"{where}.name", content.get("name"), SELECTIONS)]
    fields = [field.name for field in dataclasses.fields(cls)]
    keys.refuse_unknown(where, content, ("name", *fields))
    given = {key: item for key, item in content.items() if key != "name"}
    if "seed" in fields:
        given.setdefault("seed", 0)
    if given.get("seed") == "secret":
        given["seed"] = None
    try:
        return cls(**given)
    except TypeError:
        needed = [f.name for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING and f.name not in given]
        raise InputError(f"{where}: key {needed[0]!r} is missing") from None


# --- what is left open ------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Rules:
    problem: Problem
    facts: Facts
    topology: Topology
    privacy: PrivacySection
    n_rounds: int

    def defaults(self, cls: type, own: dict[str, Any], ours: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
        values: dict[str, Any] = {"relaxation": 0.5, "recycle_weight": 0.5, "extra_l2": self.solo_l2}
        penalty = given.get("penalty", Schedule(self.penalties))
        values["penalty"] = penalty
        values["dual_step"] = Schedule(min(penalty.start) if isinstance(penalty.start, tuple) else penalty.start)
        values["step"] = self.gradient_step if "step" in own else 1 / self.coupling
        if "noise_multiplier" in ours and not any(name in given for name in _NOISE):
            values["noise_multiplier"] = Schedule(1.0)
        if ours.get("A") is Matrix:
            values["A"] = Matrix.of("A", scipy.sparse.eye_array(self.problem.n_coefficients(self.facts)))
        if own.get("selection") is Walk:
            values["selection"] = self.walk(secret=cls is ALGORITHMS["memoryless-walk"])
        return {name: value for name, value in values.items() if name in own or name in ours}

    @property
    def record_curvature(self) -> float:
        """w c1 X^2 of a record at the largest party."""
        weight = self.problem.largest_record_weight(self.facts.largest, self.facts)
        return weight * self.problem.loss.smoothness * self.facts.row_norm**2

    @property
    def one_shot(self) -> float:
        """About the Gaussian noise multiplier that would spend the whole budget in one release."""
        if self.privacy.epsilon is None:
            return 1.0
        of_one_record = self.privacy.epsilon / self.privacy.records_per_person
        return math.sqrt(2 * math.log(1.25 / self.privacy.delta)) / of_one_record

    @property
    def coupling(self) -> float:
        """2 eta V."""
        of_records = 2 * self.facts.largest * self.record_curvature / self.facts.n_features
        releases = self.n_rounds * (self.facts.n_parties if self.privacy.people_span_parties else 1)
        against_jacobian = math.sqrt(8 * releases) * self.record_curvature * self.one_shot
        return max(of_records, against_jacobian)

    @property
    def penalties(self) -> tuple[float, ...]:
        """eta_i = coupling / (2 V_i), so that all parties pay alike."""
        return tuple(self.coupling / (2 * max(int(degree), 1)) for degree in self.topology.degrees)

    @property
    def solo_l2(self) -> float:
        """One release at order a ~ m sqrt(2 ln 1/delta) needs k a well below 1."""
        return 4 * self.record_curvature * self.one_shot * math.sqrt(2 * math.log(1 / self.privacy.delta))

    @property
    def gradient_step(self) -> Schedule:
        smoothness = sum(self.facts.sizes) * self.record_curvature + self.problem.penalty.l2
        return Schedule(1 / smoothness)

    def walk(self, *, secret: bool) -> Walk:
        """A public walk, or a secret one on which nobody works more than twice as often as on average."""
        if not secret:
            return Walk(seed=0)
        return Walk(seed=None, most_visits=2 * -(-self.n_rounds // self.facts.n_parties))


def _edgewise(given: dict[str, Any], settled: _Rules) -> Algorithm:
    if "penalty" in given:
        raise InputError("algorithm.penalty: an edgewise algorithm takes edge_penalty, one number per edge")
    n_edges = len(settled.topology.edges)
    if n_edges == 0:
        raise InputError("parties.topology: an edgewise algorithm needs a graph with at least one edge")
    edges = given.get("edge_penalty", (settled.coupling * settled.facts.n_parties / (4 * max(n_edges, 1)),) * n_edges)
    noise = {name: given[name] for name in _NOISE if name in given} or {"noise_multiplier": Schedule(1.0)}
    made = EdgewiseADMM.with_edges(settled.topology, edges, dual_step=given.get("dual_step", min(edges)), **noise)
    return dataclasses.replace(made, averaging=given.get("averaging", made.averaging))
