"""Whether a certificate certifies what a spec asks for. The spec's data are elsewhere, and its schema may be."""

import math
from pathlib import Path
from typing import Any

from coterie.certificate import Certificate
from coterie.certificate.statements import NO_TUNING
from coterie.cli.spec.problems import make_problem
from coterie.cli.spec.reading import (
    algorithm_section,
    data_section,
    engine_section,
    privacy_section,
    problem_section,
    schema_from,
    tables_of,
)
from coterie.cli.spec.sections import AlgorithmSection, DataSection, PrivacySection
from coterie.data import load
from coterie.errors import InputError
from coterie.facts import Facts

_CHANNELS = {"none": "broadcast", "curator": "curator", "secure-sum": "secure-sum"}


def check_spec(text: str, path: Path, certificate: Certificate) -> None:
    """Refuse the first thing that the spec asks for and the certificate does not say."""
    plan, content = certificate.plan, tables_of(text, path)
    privacy = privacy_section(content["privacy"], path.parent)
    algorithm = algorithm_section(content.get("algorithm", {}), privacy)
    engine = engine_section(content.get("engine", {}), path.parent)
    data = data_section(content["data"], path.parent)
    for name in ("adjacency", "unit", "records_per_person", "people_span_parties"):
        _agree(f"privacy.{name}", getattr(privacy, name), getattr(plan, name))
    _agree("privacy.delta", privacy.delta, certificate.delta)
    _agree("privacy.tuning", privacy.tuning or NO_TUNING, certificate.document["tuning"])
    _check_loss(privacy, certificate)
    _agree("engine.seed", engine.seed is not None, certificate.not_private)
    _check_algorithm(algorithm, privacy, certificate)
    _agree("problem", make_problem(problem_section(content.get("problem", {})), plan.facts), plan.problem)
    _check_bounds(data, plan.facts)
    _check_source(data, content.get("schema", {}), plan.facts)


def _check_loss(privacy: PrivacySection, certificate: Certificate) -> None:
    views = {view.observer: view.epsilon for view in certificate.views}
    wanted = math.inf if privacy.epsilon is None else privacy.epsilon
    reached = certificate.epsilon if privacy.observer is None else views.get(privacy.observer, math.inf)
    if reached > wanted * (1 + 1e-9):
        raise InputError(f"certificate: spec.toml asks for epsilon = {wanted}, certified is {reached}")


def _check_algorithm(algorithm: AlgorithmSection, privacy: PrivacySection, certificate: Certificate) -> None:
    plan = certificate.plan
    if algorithm.name is None:
        _agree("privacy.trust", _CHANNELS[privacy.trust or "none"], plan.algorithm.channel.name)
    else:
        _agree("algorithm.name", algorithm.name, certificate.document["mechanism"]["algorithm"])
    if algorithm.rounds is not None:
        _agree("algorithm.rounds", algorithm.rounds, plan.n_rounds)


def _check_bounds(data: DataSection, facts: Facts) -> None:
    """Bounds that were read off the data are void in the certificate, and the others are the spec's."""
    for name in ("row_norm", "weight_bound"):
        stated = getattr(data, name)
        if not isinstance(stated, str):
            _agree(f"data.{name}", float(stated), getattr(facts, name))
        elif name not in facts.data_derived:
            raise InputError(f"certificate: spec.toml reads {name} off the data, which the certificate does not say")


def _check_source(data: DataSection, schema: dict[str, Any], facts: Facts) -> None:
    """A data set of the package, or a schema in the spec, says what it read off the data, and its labels."""
    derived: tuple[str, ...] = ()
    if data.dataset is not None:
        options: dict[str, Any] = {}
        if data.dataset == "adult":
            options = {"preprocessing": data.preprocessing, "constant_column": data.constant_column}
        known = load(data.dataset, **options)
        derived = known.data_derived
        _agree("the data set's labels", tuple(map(str, known.labels)), facts.labels)
        _agree("the number of features of the data set", known.X.shape[1], facts.n_features)
    elif "file" not in schema:
        derived = schema_from(schema)[1]
    for name in derived:
        if name not in facts.data_derived:
            raise InputError(f"certificate: {name} was read off the data by spec.toml, which the certificate omits")


def _agree(key: str, asked: Any, certified: Any) -> None:
    if asked != certified:
        raise InputError(f"certificate: {key} of spec.toml asks for {asked!r}, certified is {certified!r}")
