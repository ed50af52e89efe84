"""Whether a certificate certifies what a spec asks for. The spec's data are elsewhere, and its schema may be."""

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

from coterie.certificate import Certificate
from coterie.certificate.certificate import compare
from coterie.certificate.statements import NO_TUNING
from coterie.cli.spec.execution import make_plan
from coterie.cli.spec.reading import (
    algorithm_section,
    data_section,
    engine_section,
    parties_section,
    privacy_section,
    problem_section,
    schema_from,
    tables_of,
)
from coterie.cli.spec.records import Records, load_records
from coterie.cli.spec.sections import DataSection, PrivacySection, Spec
from coterie.data import Label, Schema
from coterie.errors import InputError
from coterie.facts import Facts

_OF_THE_DATA = ("labels", "parties", "sizes", "n_features", "label_bound", "data_derived")


class Source(NamedTuple):
    """What a spec tells about its data: all of it of a data set of the package, perhaps the schema of others."""

    records: Records | None
    schema: Schema | None


def check_spec(text: str, path: Path, certificate: Certificate) -> Source:
    """Refuse the first thing that the spec asks for and the certificate does not say."""
    plan, content = certificate.plan, tables_of(text, path)
    privacy = privacy_section(content["privacy"], path.parent)
    schema, derived = _schema(content.get("schema", {}))
    spec = Spec(
        text=text,
        data=data_section(content["data"], path.parent),
        schema=schema,
        data_derived=derived,
        parties=parties_section(content.get("parties", {})),
        problem=problem_section(content.get("problem", {})),
        privacy=privacy,
        algorithm=algorithm_section(content.get("algorithm", {}), privacy),
        engine=engine_section(content.get("engine", {}), path.parent),
    )
    _agree("privacy.delta", privacy.delta, certificate.delta)
    _agree("privacy.tuning", privacy.tuning or NO_TUNING, certificate.document["tuning"])
    if privacy.ledger is None and certificate.document["past"]:
        raise InputError("certificate: it lists earlier releases, but spec.toml names no ledger that could know them")
    _check_loss(privacy, certificate)
    _agree("engine.seed", spec.engine.seed is not None, certificate.not_private)
    _check_bounds(spec.data, plan.facts)
    source = _check_source(spec, plan.facts)
    _check_plan(spec, certificate)
    return source


def _schema(content: dict[str, Any]) -> tuple[Schema | None, tuple[str, ...]]:
    """None where the spec has none, or names a file."""
    return (None, ()) if not content or "file" in content else schema_from(content)


def _check_loss(privacy: PrivacySection, certificate: Certificate) -> None:
    views = {view.observer: view.epsilon for view in certificate.views}
    wanted = math.inf if privacy.epsilon is None else privacy.epsilon
    reached = certificate.epsilon if privacy.observer is None else views.get(privacy.observer, math.inf)
    if reached > wanted * (1 + 1e-9):
        raise InputError(f"certificate: spec.toml asks for epsilon = {wanted}, certified is {reached}")


def _check_bounds(data: DataSection, facts: Facts) -> None:
    """Bounds that were read off the data are void in the certificate, and the others are the spec's."""
    for name in ("row_norm", "weight_bound"):
        stated = getattr(data, name)
        if not isinstance(stated, str):
            _agree(f"data.{name}", float(stated), getattr(facts, name))
        elif name not in facts.data_derived:
            raise InputError(f"certificate: spec.toml reads {name} off the data, which the certificate does not say")


def _check_source(spec: Spec, facts: Facts) -> Source:
    """All public facts follow from a data set of the package; of files, only names, labels and what was derived."""
    if spec.data.dataset is not None:
        records = load_records(spec)
        for name in _OF_THE_DATA:
            known = getattr(records.federation.facts, name)
            _agree(f"data.dataset: {name}", known, getattr(facts, name))
        return Source(records, records.schema)
    for name in spec.data_derived:
        if name not in facts.data_derived:
            raise InputError(f"certificate: {name} was read off the data by spec.toml, which the certificate omits")
    if spec.data.files is not None:
        _agree("data.files: parties", tuple(sorted(spec.data.files)), facts.parties)
    if spec.parties.count is not None:
        _agree("parties.count", tuple(map(str, range(spec.parties.count))), facts.parties)
    if spec.schema is not None:
        check_schema(spec.schema, facts)
    return Source(None, spec.schema)


def check_schema(schema: Schema, facts: Facts) -> None:
    """What a schema says of labels and features is what the plan was made for."""
    if isinstance(schema.label, Label):
        _agree("schema.label", schema.label.values, facts.labels)
    else:
        _agree("schema.label", (None, schema.label.bound), (facts.labels, facts.label_bound))
    _agree("schema.columns: features", len(schema.feature_names), facts.n_features)


def _check_plan(spec: Spec, certificate: Certificate) -> None:
    """Make the plan again, from the spec and the public facts."""
    try:
        remade = make_plan(spec, certificate.plan.facts)
        if remade.digest != certificate.plan.digest:  # other machines may round the last digits of a noise differently
            compare("plan: ", json.loads(remade.to_json()), json.loads(certificate.plan.to_json()))
    except InputError as error:
        reason = str(error).removeprefix("certificate: ").replace("its plan", "spec.toml")
        raise InputError(f"certificate: spec.toml makes another plan than is certified ({reason})") from None


def _agree(key: str, asked: Any, certified: Any) -> None:
    if asked != certified:
        raise InputError(f"certificate: {key} of spec.toml asks for {_short(asked)}, certified is {_short(certified)}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
