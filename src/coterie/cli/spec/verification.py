"""Check a certificate, the directory of a run around it, and whether it certifies what the run's spec asks for."""

import hashlib
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from coterie.certificate import Certificate
from coterie.certificate.certificate import compare, package_digest, software
from coterie.certificate.statements import NO_TUNING
from coterie.cli.spec.execution import (
    columns_of,
    model_of,
    report_of,
    result_of,
    summary_of,
)
from coterie.cli.spec.preparation import Records, load_records, make_plan
from coterie.cli.spec.reading import (
    DataSection,
    Spec,
    data_section,
    parties_of,
    parties_section,
    schema_file,
    schema_from,
    tables_of,
)
from coterie.data import Label, Schema
from coterie.errors import InputError, short
from coterie.inference import Columns, Inference, Released, Releasing, conclude
from coterie.inference.result import LEVEL
from coterie.promise import Privacy
from coterie.rundir import REPORT, SUMS, files_of, transcript_name
from coterie.site.proposal import Proposal
from coterie.transcript import ReleaseChain, Transcript
from coterie.values import Facts, file_text, read_json

# keys of a spec on which neither the plan nor anything else in the directory of a run depends
ONLY_SAID = {
    "data": (
        "file", "files", "test", "public", "delimiter", "encoding", "weight_column", "min_records", "purpose",
    ),
    "schema": ("file",),
    "parties": ("column", "seed"),
    "privacy": ("ledger", "ledger_limit"),
    # --engine takes the place of the name; the certificate says which it was
    "engine": ("name", "checkpoint", "checkpoint_every"),
}  # fmt: skip
_OF_THE_DATA = ("labels", "parties", "sizes", "n_features", "label_bound", "data_derived")


class Source(NamedTuple):
    """What a spec tells about its data: all of it of a data set of the package, perhaps the schema of others."""

    records: Records | None
    schema: Schema | None
    intercept: bool
    # on records that are not here
    tested: bool
    # of intervals
    level: float | None = None


# of coefficients: other machines round sums of opposite numbers differently
_NEAR_ZERO = 1e-12


def verify_path(path: Path, *, report: bool = True) -> tuple[Certificate, list[str], list[str]]:
    """The certificate, what agrees with it, and what could not be checked; InputError where anything differs. `report`:
    a page that lies in the directory is checked as well."""
    directory = path if path.is_dir() else None
    certificate = Certificate.from_json(_text(path / "certificate.json" if directory else path))
    notes = list(certificate.verify())
    if certificate.signers:
        notes.append("whose keys signed it is for you to know: compare them with those the parties gave you")
    else:
        notes.append("digests are no signature: they show changes, not who made the file")
    checked = ["all statements", "plan digest", *(["every party's signature"] if certificate.signers else [])]
    if directory is not None:
        _check_sums(directory)
        agreeing, unsure = _check_run(directory, certificate, report=report)
        checked += [*agreeing, "file sums"]
        notes += unsure
        notes.append("the log is what the run told: nothing here implies it")
        notes.append("whether the releases carry the noise of the plan cannot be seen in them")
    return certificate, checked, notes


def _text(path: Path) -> str:
    try:
        return file_text(path)
    except OSError as error:
        raise InputError(f"certificate: cannot read {str(path)!r} ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InputError(f"certificate: {str(path)!r} is not UTF-8 text") from None


def _check_sums(directory: Path) -> None:
    if not (directory / SUMS).exists():
        only = str(directory / "certificate.json")
        raise InputError(
            f"certificate: {str(directory)!r} has no {SUMS}, as a demo has none; of it {only!r} alone can be verified"
        )
    lines = [line.partition("  ") for line in _text(directory / SUMS).splitlines()]
    listed = {name: stated for stated, _, name in lines}
    if len(listed) != len(lines):
        raise InputError(f"certificate: {SUMS} lists a file twice")
    present = {path.name for path in directory.iterdir()} - {SUMS, REPORT}
    for name in sorted(listed.keys() ^ present):
        where = f"listed in {SUMS} and missing" if name in listed else f"not listed in {SUMS}"
        raise InputError(f"certificate: {name!r} is {where}")
    for name, stated in listed.items():
        file = directory / name
        if not file.is_file():
            raise InputError(f"certificate: {name!r} is no file")
        with file.open("rb") as content:
            found = hashlib.file_digest(content, "sha256").hexdigest()
        if found != stated:
            raise InputError(f"certificate: {name!r} was changed after it was written ({SUMS} differs)")


def _check_run(directory: Path, certificate: Certificate, *, report: bool) -> tuple[list[str], list[str]]:
    """The run in the directory is the one that is certified; which files were compared, and what was not."""
    document, notes = certificate.document, []
    present = {path.name for path in directory.iterdir()} - {REPORT}
    complete = transcript_name(True) in present
    with_intervals = certificate.plan.moments is not None
    origin = {"spec.toml"}
    if document["execution"]["engine"] == "sites":
        # a spec makes a proposal to sites on one machine; between organisations there is the proposal alone
        origin = {"proposal.json", *({"spec.toml"} & present)}
    for name in sorted(present ^ files_of(complete, origin, intervals=with_intervals)):
        what = "does not belong into" if name in present else "is missing from"
        raise InputError(f"certificate: {name!r} {what} the directory of a run")
    if _text(directory / "plan.json") != certificate.plan.to_json():
        raise InputError("certificate: plan.json is not the plan that is certified")
    transcript = Transcript.load(directory / transcript_name(complete))
    if transcript.plan.digest != document["plan_digest"]:
        raise InputError("certificate: the transcript is one of another plan")
    if transcript.reproducible != certificate.not_private or transcript.releases.shape[0] != 1:
        raise InputError("certificate: the transcript was made with other randomness than is certified")
    if transcript.impairments is not None or transcript.complete != complete:
        raise InputError("certificate: the transcript is not one of a run like this")
    if transcript.n_rounds != document["rounds"]["done"]:
        raise InputError(
            f"certificate: the transcript has {transcript.n_rounds} rounds, {document['rounds']['done']} are certified"
        )
    agreeing = ["plan.json", "transcript", "summary.json", *sorted(origin)]
    source = Source(None, None, intercept=False, tested=False)
    if "proposal.json" in origin:
        released: Iterable[np.ndarray] = ()
        if complete and with_intervals:
            released = Released.from_json(_text(directory / "moments.json"), certificate.plan).in_order()
        source = _check_proposal(Proposal.read(directory), transcript, released, certificate)
    if "spec.toml" in origin:
        text = _text(directory / "spec.toml")
        source = _check_spec(text, directory / "spec.toml", certificate)
        if said := _only_said(tables_of(text, directory / "spec.toml")):
            notes.append(f"{', '.join(said)} in spec.toml: nothing here implies what it says there")
    stated = _json(directory / "summary.json")
    references = {}
    for name in ("nonprivate", "alone"):
        if isinstance(stated, dict) and name in stated:
            references[name] = _stated_numbers(stated, name)
    if references:
        notes.append("the lines without privacy are what the run told")
    inference = _check_intervals(directory, transcript, certificate, source) if complete and with_intervals else None
    result = None if source.records is None else result_of(transcript, source.records, inference)
    if source.tested and isinstance(stated, dict):
        result = _stated_numbers(stated, "test")
        notes.append("how good the model is on data.test is what the run told: those records are not here")
    compare("summary.json: ", summary_of(transcript, certificate, result, references), stated)
    if source.records is None:
        notes.append("sizes, and names of parties that a column gives, are the data's: no data are here")
    if _check_page(_text(directory / "certificate.md"), certificate):
        agreeing.append("certificate.md")
    else:
        notes.append("certificate.md was worded by other code: its first lines agree, the rest was not compared")
    if complete:
        _check_model(_json(directory / "model.json"), transcript, source, inference)
        agreeing += ["model", *(["intervals"] if inference is not None else [])]
        if source.schema is None:
            notes.append("ranges and categories in model.json are those of a schema file that is not here")
    if report and (directory / REPORT).exists():
        if _check_report(directory, certificate):
            agreeing.append(REPORT)
        else:
            notes.append(f"{REPORT} was made by other software and not compared; coterie report makes it anew")
    return agreeing, notes


def _check_report(directory: Path, certificate: Certificate) -> bool:
    """Whether it is what the other files give; other software may draw it otherwise."""
    if _text(directory / REPORT) == report_of(directory):
        return True
    if certificate.document["software"] == software():
        raise InputError(
            f"certificate: {REPORT} does not show what the other files say; without it they can be verified, and "
            "coterie report makes it anew"
        )
    return False


def _stated_numbers(stated: dict[str, Any], key: str) -> dict[str, Any] | None:
    """Numbers by name, as a run writes them."""
    result = stated.get(key)
    names = {"records", "error", "majority_error", "auc", "calibration_error", "rmse", "mean_rmse", "r2"}
    if result is None:
        return None
    if not isinstance(result, dict) or not result.keys() <= names:
        raise InputError(f"certificate: summary.json has another {key} than a run writes")
    if not all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in result.values()):
        raise InputError(f"certificate: summary.json has a {key} that is not numbers")
    return result


def _check_page(page: str, certificate: Certificate) -> bool:
    """Whether the page is word for word what the certificate gives; other versions must at least promise the same."""
    expected = certificate.to_markdown()
    if certificate.document["software"]["package_digest"] == package_digest():
        if page != expected:
            raise InputError("certificate: certificate.md does not say what certificate.json says")
        return True
    # title, verdict and the promise
    head = expected[: expected.index("\n|")]
    if not page.startswith(head):
        raise InputError("certificate: certificate.md does not promise what certificate.json says")
    return False


def _json(path: Path) -> Any:
    return read_json(f"certificate: {path.name}", _text(path))


def _check_intervals(directory: Path, transcript: Transcript, certificate: Certificate, source: Source) -> Inference:
    """Work the intervals out again from what was released."""
    plan = certificate.plan
    try:
        schema = Schema.from_dict(_json(directory / "model.json")["schema"]) if source.schema is None else source.schema
    except (KeyError, TypeError):
        raise InputError("certificate: model.json is no model of a run") from None
    level = source.level
    if level is None:
        raise InputError("certificate: it pays for intervals that no spec here asks for")
    stated = _json(directory / "intervals.json")
    _agree("inference.level", level, stated.get("level") if isinstance(stated, dict) else None)
    names = schema.feature_names if source.records is None else source.records.feature_names
    columns = columns_of(schema, names, plan.facts, intercept=source.intercept)
    released = Released.from_json(_text(directory / "moments.json"), plan)
    _check_models(transcript, released, columns)
    inference = conclude(
        plan,
        released,
        columns,
        delta=certificate.delta,
        reproducible=transcript.reproducible,
    )
    implied = json.loads(inference.to_json(level))
    compare("intervals.json: ", implied, stated, near_zero=_NEAR_ZERO)
    for name, text in (("intervals.csv", inference.to_csv(level)), ("intervals.txt", inference.summary(level) + "\n")):
        if certificate.document["software"]["package_digest"] == package_digest() and _text(directory / name) != text:
            raise InputError(f"certificate: {name} does not say what intervals.json says")
    return inference


def _check_models(transcript: Transcript, released: Released, columns: Columns) -> None:
    """Moments were taken where what was released before says."""
    course = Releasing(transcript, columns)
    for model, gradient, hessian in zip(released.models, released.gradients, released.hessians, strict=True):
        compare("moments.json: models.", course.at.tolist(), model.tolist(), near_zero=_NEAR_ZERO)
        course.keep(model, gradient, hessian)


def _check_model(stated: Any, transcript: Transcript, source: Source, inference: Inference | None) -> None:
    """Everything in it follows from the transcript and the schema; of a schema that is not known, at least its labels
    and features must be those of the plan."""
    facts = transcript.plan.facts
    try:
        schema, coefficients = Schema.from_dict(stated["schema"]), stated["coefficients"]
    except (KeyError, TypeError, AttributeError):
        raise InputError("certificate: model.json is no model of a run") from None
    if not isinstance(coefficients, (dict, list)):
        raise InputError(f"certificate: model.json has coefficients of type {type(coefficients).__name__}")
    names = list(schema.feature_names)
    if source.records is not None:
        names = list(source.records.feature_names)
    if source.schema is not None:
        compare("model.json: schema.", json.loads(json.dumps(source.schema.to_dict())), stated["schema"])
    else:
        _check_schema(schema, facts, source.intercept)
    if isinstance(coefficients, dict) and list(coefficients) != names:
        raise InputError("certificate: the coefficients of model.json are not those of the features of its schema")
    if isinstance(coefficients, dict) and len(names) + source.intercept != facts.n_features:
        raise InputError(f"certificate: model.json has {len(names)} coefficients, the plan other features")
    implied = json.loads(
        json.dumps(model_of(transcript, schema, names, intercept=source.intercept, inference=inference))
    )
    compare("model.json: ", implied, stated, near_zero=_NEAR_ZERO)


def _check_proposal(
    proposal: Proposal, transcript: Transcript, moments: Iterable[np.ndarray], certificate: Certificate
) -> Source:
    """It is the one that every site has signed a run of, and this is what they have signed."""
    if proposal.plan.digest != certificate.plan.digest:
        raise InputError("certificate: proposal.json proposes another plan than is certified")
    if (proposal.delta, proposal.seed is not None) != (certificate.delta, certificate.not_private):
        raise InputError("certificate: proposal.json proposes another delta, or other randomness, than is certified")
    if (proposal.tuning or NO_TUNING) != certificate.document["tuning"]:
        raise InputError("certificate: proposal.json says something else about tuning than is certified")
    if transcript.complete:
        if tuple(key for _, key in certificate.signers) != proposal.parties:
            raise InputError("certificate: it is not signed by the keys that proposal.json pins for the parties")
        sites = certificate.document["sites"]
        chain = ReleaseChain(proposal.digest)
        for released in (*transcript.releases[0], *moments):
            chain.add(released)
        if (sites["proposal"], sites["transcript"]) != (proposal.digest, chain.hexdigest):
            raise InputError("certificate: the sites have signed another proposal, or other releases, than are here")
    # a proposal names no level, and `coterie coordinate` writes intervals of the usual one
    level = LEVEL if proposal.plan.moments is not None else None
    return Source(None, proposal.schema, proposal.intercept, tested=False, level=level)


# --- does it certify what the spec asks for? --------------------------------------------------------------------------


def _check_spec(text: str, path: Path, certificate: Certificate) -> Source:
    """Refuse the first thing that the spec asks for and the certificate does not say."""
    plan, content = certificate.plan, tables_of(text, path)
    data = data_section(content["data"], path.parent)
    elsewhere = schema_file(content.get("schema"), data) is not None
    schema = (None, ()) if elsewhere or data.dataset is not None else schema_from(content["schema"])
    # a schema that is not here may name the column of the parties
    parties = parties_section(content.get("parties", {}))
    spec = Spec.of(
        content,
        text,
        path,
        data=data,
        schema=schema,
        parties=parties if elsewhere else parties_of(content.get("parties", {}), data, schema[0]),
    )
    privacy = spec.privacy
    _agree("privacy.delta", privacy.delta, certificate.delta)
    _agree("privacy.tuning", privacy.tuning or NO_TUNING, certificate.document["tuning"])
    if spec.ledger is None and certificate.document["past"]:
        raise InputError("certificate: it lists earlier releases, but spec.toml names no ledger that could know them")
    _check_loss(privacy, certificate)
    _agree("engine.seed", spec.engine.seed is not None, certificate.not_private)
    _check_bounds(spec.data, plan.facts)
    source = _check_source(spec, plan.facts)
    _check_plan(spec, certificate)
    return source


def _only_said(content: dict[str, Any]) -> list[str]:
    return [f"{table}.{key}" for table, keys in ONLY_SAID.items() for key in keys if key in content.get(table, {})]


def _check_loss(privacy: Privacy, certificate: Certificate) -> None:
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
    level = None if spec.inference is None else spec.inference.level
    if spec.data.dataset is not None:
        records = load_records(spec)
        for name in _OF_THE_DATA:
            known = getattr(records.federation.facts, name)
            _agree(f"data.dataset: {name}", known, getattr(facts, name))
        return Source(records, records.schema, spec.intercept, tested=False, level=level)
    for name in spec.data_derived:
        if name not in facts.data_derived:
            raise InputError(f"certificate: {name} was read off the data by spec.toml, which the certificate omits")
    if spec.data.files is not None:
        _agree("data.files: parties", tuple(sorted(spec.data.files)), facts.parties)
    if spec.parties.count is not None:
        _agree("parties.count", tuple(map(str, range(spec.parties.count))), facts.parties)
    if spec.schema is not None:
        _check_schema(spec.schema, facts, spec.intercept)
    return Source(None, spec.schema, spec.intercept, tested=spec.data.test is not None, level=level)


def _check_schema(schema: Schema, facts: Facts, intercept: bool) -> None:
    """What a schema says of labels and features is what the plan was made for."""
    if isinstance(schema.label, Label):
        _agree("schema.label", schema.label.values, facts.labels)
    else:
        _agree("schema.label", (None, schema.label.bound), (facts.labels, facts.label_bound))
    _agree("schema.columns: features", len(schema.feature_names) + intercept, facts.n_features)


def _check_plan(spec: Spec, certificate: Certificate) -> None:
    """Make the plan again, from the spec and the public facts."""
    try:
        remade = make_plan(spec, certificate.plan.facts)
        # other machines may round the last digits of a noise differently
        if remade.digest != certificate.plan.digest:
            compare("plan: ", json.loads(remade.to_json()), json.loads(certificate.plan.to_json()))
    except InputError as error:
        reason = str(error).removeprefix("certificate: ").replace("its plan", "spec.toml")
        raise InputError(f"certificate: spec.toml makes another plan than is certified ({reason})") from None


def _agree(key: str, asked: Any, certified: Any) -> None:
    if asked != certified:
        raise InputError(f"certificate: {key} of spec.toml asks for {short(asked)}, certified is {short(certified)}")
