"""From a spec to records, a problem and a plan: everything that is known before a run.

What the spec leaves open is settled by `coterie.rules`.
"""

import dataclasses
import datetime
import logging
import typing
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

import coterie.rules as rules
from coterie.certificate import Certificate, Past, make_certificate
from coterie.cli.spec.reading import (
    PRIVATE,
    REQUIRED,
    DataSection,
    Key,
    ProblemSection,
    Spec,
    as_boolean,
    as_number,
    as_numbers,
    as_positive,
    as_text,
    one_of,
    read_table,
    refuse_unknown,
)
from coterie.cli.spec.schemas import NO_PARTY
from coterie.data import Federation, Label, Schema, load, partition
from coterie.data.federation import make_design
from coterie.data.schema import wanted_columns
from coterie.data.tables import Dialect, Table, read_columns
from coterie.errors import InputError, short
from coterie.matrices import Matrix
from coterie.network.topology import All, Cyclic, Poisson, Sample, Selection, Shuffled, Topology, Walk, make_topology
from coterie.plan import Plan
from coterie.planner import ALGORITHM, Planner
from coterie.problems import L2, LOSSES, Ball, Box, ElasticNet, Loss, Problem, Regulariser
from coterie.values import Facts, Schedule, quoted

# of a data set that has no parties of its own
DEFAULT_PARTIES = 5
SELECTIONS = {"all": All, "cyclic": Cyclic, "shuffled": Shuffled, "sample": Sample, "poisson": Poisson, "walk": Walk}
_LOGGER = logging.getLogger("coterie")
_SHAPES = {"huberised-hinge": "width", "huber": "threshold"}


@dataclasses.dataclass(frozen=True)
class Records:
    """`test` is held out and declared public, (rows, labels): of the package's own data sets, and of `data.test`.
    `feature_names` are without the constant column that an `intercept` is."""

    federation: Federation
    schema: Schema
    feature_names: tuple[str, ...]
    intercept: bool
    test: tuple[np.ndarray, np.ndarray] | None
    public: bool


class Log:
    """What happened: public facts only, for a run directory is made to be shown. How long it took depends on the
    records, so times go to Python's logging alone, which `--verbose` shows; the day is of before they were read."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.add(f"date: {datetime.datetime.now(datetime.UTC).date()} (UTC)")

    def add(self, sentence: str) -> None:
        self.lines.append(sentence)
        _LOGGER.info(sentence)

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)


@dataclasses.dataclass(frozen=True)
class Prepared:
    """Everything that is known before a run."""

    spec: Spec
    records: Records
    plan: Plan
    log: Log

    def certificate(
        self,
        rounds_done: int | None = None,
        *,
        past: Past = (),
        audit: dict[str, Any] | None = None,
        sites: dict[str, Any] | None = None,
    ) -> Certificate:
        return make_certificate(
            self.plan,
            self.spec.privacy.delta,
            reproducible=self.spec.engine.seed is not None,
            rounds_done=rounds_done,
            past=past,
            tuning=self.spec.privacy.tuning,
            audit=audit,
            engine="sites" if self.spec.engine.between_sites else self.spec.engine.name,
            design="schema",
            sites=sites,
        )


def prepare(spec: Spec) -> Prepared:
    """Read the records and make the plan; nothing is released yet."""
    log = Log()
    records = load_records(spec)
    facts = records.federation.facts
    log.add(f"read {sum(facts.sizes)} records of {facts.n_parties} parties, {facts.n_features} features")
    plan = make_plan(spec, facts)
    log.add(f"plan {plan.digest}: {plan.n_rounds} rounds")
    return Prepared(spec, records, plan, log)


def make_plan(spec: Spec, facts: Facts) -> Plan:
    """The plan that a spec asks for, given the public facts of its data."""
    try:
        # numbers that leave float64 end as infinite or unknown losses, which plans refuse or state
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            return _make_plan(spec, facts)
    except (OverflowError, ZeroDivisionError) as error:
        raise InputError(f"spec: its numbers leave the range of floating point ({error})") from None


def _make_plan(spec: Spec, facts: Facts) -> Plan:
    settled, wanted = _settled(spec, facts), _wanted(spec)
    problem = make_problem(spec.problem, facts)
    if _open_l2(spec):
        l2 = rules.regulariser(problem, facts, spec.privacy, settled, wanted)
        problem = dataclasses.replace(problem, regulariser=_regulariser(spec.problem, l2))
    return rules.make_plan(problem, facts, spec.privacy, settled, wanted)


def _settled(spec: Spec, facts: Facts) -> rules.Settled:
    parties, topology = spec.parties, None
    if parties.topology is not None:
        topology = make_topology(parties.topology, facts.n_parties, seed=parties.topology_seed)
    return rules.Settled(
        algorithm=spec.algorithm.name,
        topology=topology,
        rounds=spec.algorithm.rounds,
        settings=_settings(spec, facts, topology),
        standardise=None if spec.data.standardise is None else spec.data.standardise == PRIVATE,
        intercept=spec.intercept,
    )


def _wanted(spec: Spec) -> rules.Wanted | None:
    if spec.inference is None:
        return None
    # weights are squared in the variance of a sum, which only the robust one knows
    robust = spec.inference.robust or spec.data.weight_column is not None
    return rules.Wanted(share=spec.inference.share, robust=robust)


def _open_l2(spec: Spec) -> bool:
    return spec.problem.l2 is None and spec.problem.l1 is None


def planner_of(spec: Spec, facts: Facts, surrogate: tuple[np.ndarray, np.ndarray] | None = None) -> Planner:
    """What can be expected of what the spec leaves open; settings of an algorithm that it names are of no use here."""
    settled = _settled(spec, facts)
    if settled.algorithm not in (None, ALGORITHM):
        settled = rules.Settled(algorithm=settled.algorithm)
    return Planner(
        problem=make_problem(spec.problem, facts),
        facts=facts,
        privacy=spec.privacy,
        settled=settled,
        open_l2=_open_l2(spec),
        surrogate=surrogate,
    )


def surrogate_of(path: Path, spec: Spec, schema: Schema, facts: Facts) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the design and labels of a public table that fits the schema."""
    X, y = _read_public(path, schema, spec.data.dialect)
    return make_design(X, facts.row_norm, intercept=spec.intercept), y


# --- records: a data set of the package, one file with a party column, or one file per party --------------------------


def load_records(spec: Spec) -> Records:
    return _from_dataset(spec) if spec.data.dataset is not None else _from_files(spec)


def _from_dataset(spec: Spec) -> Records:
    assert spec.data.dataset is not None
    options = {}
    if spec.data.dataset == "adult":
        options = {"preprocessing": spec.data.preprocessing, "constant_column": spec.data.constant_column}
    data = load(spec.data.dataset, **options)
    if data.parties is not None and spec.parties.count is None:
        parties = data.parties[data.train]
    else:
        count = spec.parties.count or DEFAULT_PARTIES
        parties = partition.evenly(len(data.train), count, seed=spec.parties.seed)

    def federation(rows: np.ndarray, parties: np.ndarray | None) -> Federation:
        return _federation(
            spec, data.X[rows], data.y[rows], parties=parties, labels=data.labels, data_derived=data.data_derived
        )

    test = data.X[data.test], np.searchsorted(data.labels, data.y[data.test])
    assert sorted(data.labels) == list(data.labels)
    whole = federation(data.train, parties)
    return Records(whole, data.schema, data.feature_names, spec.intercept, test, public=True)


def _from_files(spec: Spec) -> Records:
    schema, data = spec.schema, spec.data
    assert schema is not None
    table, parties = _read(data, schema, spec.parties.column)
    weight = None if data.weight_column is None else _weights(data.weight_column, table)
    X, y = encode(schema, table)
    about_labels: dict[str, Any] = (
        {"labels": schema.label.values} if isinstance(schema.label, Label) else {"label_bound": schema.label.bound}
    )
    if spec.parties.count is not None:
        parties = partition.evenly(len(X), spec.parties.count, seed=spec.parties.seed)
    else:
        _check_parties(parties, data.min_records, table)
    federation = _federation(
        spec,
        X,
        y,
        parties=parties,
        sample_weight=weight,
        weight_bound=data.weight_bound,
        data_derived=spec.data_derived,
        **about_labels,
    )
    test = None if data.test is None else _read_public(data.test, schema, data.dialect)
    return Records(federation, schema, schema.feature_names, spec.intercept, test, public=data.public)


def _federation(spec: Spec, X: np.ndarray, y: np.ndarray, **more: Any) -> Federation:
    """Shards of the design: rows held to the row norm, with the constant column unless it is declined."""
    return Federation.from_arrays(
        X, y, row_norm=spec.data.row_norm, min_records=spec.data.min_records, intercept=spec.intercept, **more
    )


def _weights(name: str, table: Table) -> np.ndarray:
    """Weights have no range of their own: they are clipped to `weight_bound`."""
    values = table.pop(name)
    if values.dtype != np.float64:
        raise InputError(f"data.weight_column: {name!r} holds texts; numbers are needed")
    return values


def encode(schema: Schema, table: Table) -> tuple[np.ndarray, np.ndarray]:
    """Features and labels; columns leave `table` as they are used, so that no two copies of all of them exist."""
    y = schema.encode_label(table.take(schema.label.name), place=table.place)
    return schema.encode(table), y


def _read_public(path: Path, schema: Schema, dialect: Dialect) -> tuple[np.ndarray, np.ndarray]:
    """Features, and labels as positions in the label set, or numbers."""
    names, numbers = wanted_columns(schema)
    table = read_columns(path, names, numbers=numbers, dialect=dialect)
    y = schema.label_positions(table.take(schema.label.name), place=table.place)
    return schema.encode(table), y


def _read(data: DataSection, schema: Schema, party_column: str | None) -> tuple[Table, np.ndarray]:
    names, numbers = wanted_columns(schema)
    if data.weight_column is not None:
        if data.weight_column in (*names, party_column):
            raise InputError(
                f"data.weight_column: got {data.weight_column!r}, which is used for something else already"
            )
        names, numbers = [*names, data.weight_column], [*numbers, data.weight_column]
    if data.file is not None:
        extra = [] if party_column is None else [party_column]
        if party_column in names:
            raise InputError(f"parties.column: got {party_column!r}, which is a feature, the label or the weight")
        table = read_columns(data.file, [*names, *extra], numbers=numbers, dialect=data.dialect)
        return table, (np.empty(0) if party_column is None else table.pop(party_column))
    assert data.files is not None
    tables = {
        party: read_columns(path, names, numbers=numbers, dialect=data.dialect) for party, path in data.files.items()
    }
    parties = np.repeat(list(tables), [table.n_rows for table in tables.values()])
    return Table.joined(tables.values()), parties


def _check_parties(parties: Iterable[object], least: int, table: Table) -> None:
    """Refuse rows without a party, names that differ in case or spaces only, most likely one party, misspelt, and
    parties with too few records."""
    of_rows = [str(name) if name is not None else "" for name in parties]
    seen: dict[str, str] = {}
    sizes = Counter(of_rows)
    for name in sorted(sizes):
        plain = " ".join(name.split()).casefold()
        if plain in NO_PARTY:
            place = table.place(of_rows.index(name))
            raise InputError(f"parties: {place} has the party {name!r}; every row needs the name of its party")
        if plain in seen:
            raise InputError(f"parties: {seen[plain]!r} and {name!r} differ in case or spaces only; one name is needed")
        seen[plain] = name
    for name, size in sizes.items():
        if size < least:
            # such a name is often a slip, or that of a person
            raise InputError(
                f"parties: that of {table.place(of_rows.index(name))}{quoted(name)} has {size} "
                f"record{'s' * (size > 1)}; at least min_records={least} are needed (min_records=1 allows people as "
                "parties)"
            )


# --- the problem ------------------------------------------------------------------------------------------------------


def make_problem(section: ProblemSection, facts: Facts) -> Problem:
    """Loss and regulariser by name, with what the labels suggest where nothing is said; l2 is 0 where it is open."""
    record_weight = section.record_weight
    if record_weight is None and section.party_weight is None:
        record_weight = 1.0
    return Problem(
        loss=_loss(section, facts),
        regulariser=_regulariser(section, 0.0 if section.l2 is None else section.l2),
        record_weight=record_weight,
        party_weight=section.party_weight,
        class_weight=section.class_weight,
    )


def _loss(section: ProblemSection, facts: Facts) -> Loss:
    name = section.loss or _suggested(facts)
    shape = {key: getattr(section, key) for key in _SHAPES.values() if getattr(section, key) is not None}
    for key in shape:
        if _SHAPES.get(name) != key:
            raise InputError(f"problem.{key}: got {shape[key]}; the loss {name!r} has no {key}")
    if name == "huber":
        shape.setdefault("threshold", rules.residual_threshold(facts))
    if name == "multinomial":
        shape["n_classes"] = len(facts.labels or ())
    kind: Any = LOSSES[name]
    return kind(**shape)


def _suggested(facts: Facts) -> str:
    if facts.labels is None:
        return "huber"
    return "logistic" if len(facts.labels) == 2 else "multinomial"


def _regulariser(section: ProblemSection, l2: float) -> Regulariser:
    box = (section.low, section.high)
    given = {"l1": section.l1 is not None, "low and high": box != (None, None), "radius": section.radius is not None}
    if sum(given.values()) > 1:
        both = " and ".join(name for name, here in given.items() if here)
        raise InputError(f"problem: got {both}; at most one of l1, low with high, and radius can be used")
    if section.l1 is not None:
        return ElasticNet(l2, section.l1)
    if section.radius is not None:
        return Ball(section.radius, l2)
    if given["low and high"]:
        if section.low is None or section.high is None:
            raise InputError(f"problem: got low = {section.low}, high = {section.high}; both or neither are needed")
        return Box(section.low, section.high, l2)
    return L2(l2)


# --- settings of the algorithm ----------------------------------------------------------------------------------------


def _settings(spec: Spec, facts: Facts, topology: Topology | None) -> dict[str, Any]:
    """Each setting as the field of that name, of the algorithm or of its mechanism, needs it."""
    given, standardise = spec.algorithm.settings, spec.data.standardise == PRIVATE
    mechanism = as_text("algorithm.mechanism", given["mechanism"]) if "mechanism" in given else None
    chosen = rules.choose_algorithm(facts, spec.privacy, spec.algorithm.name, topology, standardise=standardise)
    parts = rules.Parts.of(chosen, mechanism)
    choices = ("mechanism",) if parts.mechanisms else ()
    refuse_unknown("algorithm", given, ("name", "rounds", *choices, *parts.fields))
    return {
        name: value if name in choices else _converted(f"algorithm.{name}", value, parts.fields[name], facts)
        for name, value in given.items()
    }


def _converted(where: str, value: Any, hint: Any, facts: Facts) -> Any:
    kinds = [kind for kind in rules.alternatives(hint) if isinstance(kind, type)]
    if any(typing.get_origin(kind) is tuple for kind in rules.alternatives(hint)):
        return as_numbers(where, value)
    if Schedule in kinds:
        return _schedule(where, value, facts)
    if Matrix in kinds:
        return _matrix(where, value)
    if any(issubclass(kind, Selection) for kind in kinds):
        return _selection(where, value)
    if bool in kinds:
        return as_boolean(where, value)
    if float in kinds:
        return as_number(where, value)
    # a Literal
    return one_of(where, value, typing.get_args(hint))


def _schedule(where: str, value: Any, facts: Facts) -> Schedule:
    """A number, a list with one per party, or { start = ..., ratio = ... } of either."""
    if isinstance(value, dict):
        part = Key(lambda w, v: _schedule(w, v, facts).start, REQUIRED)
        return Schedule(**read_table(where, value, {"start": part, "ratio": part}))
    if not isinstance(value, list):
        return Schedule(as_positive(where, value))
    if len(value) != facts.n_parties:
        raise InputError(f"{where}: {len(value)} numbers given for {facts.n_parties} parties; one per party is needed")
    return Schedule(tuple(as_positive(f"{where}[{place}]", item) for place, item in enumerate(value)))


def _matrix(where: str, value: Any) -> Matrix:
    if not isinstance(value, list) or not value:
        raise InputError(f"{where}: got {short(value)}; a list of rows is needed")
    rows = [as_numbers(f"{where}[{place}]", row) for place, row in enumerate(value)]
    if len({len(row) for row in rows}) > 1:
        raise InputError(f"{where}: got rows of different lengths; a matrix is needed")
    return Matrix.of(where, rows)


def _selection(where: str, value: Any) -> Selection:
    """A name, or { name = ..., seed = ..., ... }; a seed of "secret" is drawn during the run."""
    content = {"name": value} if isinstance(value, str) else value
    if not isinstance(content, dict):
        raise InputError(f"{where}: got {short(value)}; a name or a table with a name is needed")
    cls = SELECTIONS[one_of(f"{where}.name", content.get("name"), SELECTIONS)]
    fields = [field.name for field in dataclasses.fields(cls)]
    refuse_unknown(where, content, ("name", *fields))
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
