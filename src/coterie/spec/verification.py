"""Check a certificate, and the directory of a run around it."""

import hashlib
import json
import math
from pathlib import Path
from typing import Any

from coterie.certificate import Certificate
from coterie.certificate.certificate import compare, unique_keys
from coterie.certificate.software import package_digest
from coterie.data import Schema
from coterie.errors import InputError
from coterie.spec.outcome import SUMS, model_of, summary_of
from coterie.spec.reading import algorithm_section, engine_section, privacy_section, schema_from, tables_of
from coterie.transcript import Transcript

# a spec cannot tell how long a run took, and only its own data sets have public test records
_NOT_IMPLIED = ("seconds", "test_error")
_NEAR_ZERO = 1e-12  # of coefficients: other machines round sums of opposite numbers differently


def verify_path(path: Path) -> tuple[Certificate, list[str], list[str]]:
    """The certificate, what agrees with it, and what could not be checked; InputError where anything differs."""
    directory = path if path.is_dir() else None
    certificate = Certificate.from_json(_text(path / "certificate.json" if directory else path))
    notes = list(certificate.verify())
    notes.append("digests are no signature: they show changes, not who made the file")
    checked = ["all statements", "plan digest"]
    if directory is not None:
        _check_sums(directory)
        checked += [*_check_run(directory, certificate), "file sums"]
        notes.append("seconds, test error and log are what the run told: nothing here implies them")
    return certificate, checked, notes


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"certificate: cannot read {str(path)!r} ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InputError(f"certificate: {str(path)!r} is not UTF-8 text") from None


def _check_sums(directory: Path) -> None:
    listed = {name: stated for stated, _, name in (x.partition("  ") for x in _text(directory / SUMS).splitlines())}
    present = {path.name for path in directory.iterdir()} - {SUMS}
    for name in sorted(listed.keys() ^ present):
        where = f"listed in {SUMS} and missing" if name in listed else f"not listed in {SUMS}"
        raise InputError(f"certificate: {name!r} is {where}")
    for name, stated in listed.items():
        file = directory / name
        if not file.is_file():
            raise InputError(f"certificate: {name!r} is no file")
        if hashlib.sha256(file.read_bytes()).hexdigest() != stated:
            raise InputError(f"certificate: {name!r} was changed after it was written ({SUMS} differs)")


def _check_run(directory: Path, certificate: Certificate) -> list[str]:
    """The run in the directory is the one that is certified; which files were compared."""
    document = certificate.document
    if _text(directory / "plan.json") != certificate.plan.to_json():
        raise InputError("certificate: plan.json is not the plan that is certified")
    page, made_here = _text(directory / "certificate.md"), document["software"]["package_digest"] == package_digest()
    if made_here and page != certificate.to_markdown():  # other versions may word it otherwise
        raise InputError("certificate: certificate.md does not say what certificate.json says")
    complete = directory / "transcript.npz"
    transcript = Transcript.load(complete if complete.exists() else directory / "partial-transcript.npz")
    if transcript.plan.digest != document["plan_digest"]:
        raise InputError("certificate: the transcript is one of another plan")
    if transcript.reproducible != certificate.not_private or transcript.releases.shape[0] != 1:
        raise InputError("certificate: the transcript was made with other randomness than is certified")
    if transcript.n_rounds != document["rounds"]["done"]:
        raise InputError(
            f"certificate: the transcript has {transcript.n_rounds} rounds, {document['rounds']['done']} are certified"
        )
    stated = _json(directory / "summary.json")
    compare("summary.json: ", summary_of(transcript, certificate), _without(stated, _NOT_IMPLIED))
    _check_spec(directory / "spec.toml", certificate)
    agreeing = ["plan.json", "transcript", "summary.json", "spec.toml", *(["certificate.md"] if made_here else [])]
    if transcript.complete:
        _check_model(_json(directory / "model.json"), transcript)
        agreeing.append("model")
    return agreeing


def _json(path: Path) -> Any:
    try:
        return json.loads(_text(path), object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as error:
        raise InputError(f"certificate: {path.name} cannot be used ({error})") from None


def _without(content: Any, names: tuple[str, ...]) -> Any:
    return {k: v for k, v in content.items() if k not in names} if isinstance(content, dict) else content


def _check_model(stated: Any, transcript: Transcript) -> None:
    """Everything in it follows from the transcript, but for the schema, which must fit the coefficients."""
    try:
        schema, names = Schema.from_dict(stated["schema"]), list(stated["coefficients"])
    except (KeyError, TypeError, AttributeError):
        raise InputError("certificate: model.json is no model of a run") from None
    constant = [*schema.feature_names, "constant"]
    if isinstance(stated["coefficients"], dict) and tuple(names) not in (tuple(schema.feature_names), tuple(constant)):
        raise InputError("certificate: the coefficients of model.json are not those of the features of its schema")
    if isinstance(stated["coefficients"], dict) and len(names) != transcript.plan.facts.n_features:
        raise InputError(f"certificate: model.json has {len(names)} coefficients, the plan other features")
    implied = json.loads(json.dumps(model_of(transcript, schema, names)))
    compare("model.json: ", implied, stated, near_zero=_NEAR_ZERO)


def _check_spec(path: Path, certificate: Certificate) -> None:
    """What the spec asks for is what is certified. (Its data are elsewhere, and its schema may be.)"""
    plan, content = certificate.plan, tables_of(_text(path), path)
    privacy = privacy_section(content["privacy"], path.parent)
    algorithm = algorithm_section(content.get("algorithm", {}), privacy)
    engine = engine_section(content.get("engine", {}), path.parent)
    for name in ("adjacency", "unit", "records_per_person", "people_span_parties"):
        _agree(f"privacy.{name}", getattr(privacy, name), getattr(plan, name))
    _agree("privacy.delta", privacy.delta, certificate.delta)
    if privacy.tuning is not None:
        _agree("privacy.tuning", privacy.tuning, certificate.document["tuning"])
    views = {view.observer: view.epsilon for view in certificate.views}
    wanted = math.inf if privacy.epsilon is None else privacy.epsilon
    reached = certificate.epsilon if privacy.observer is None else views.get(privacy.observer, math.inf)
    if reached > wanted * (1 + 1e-9):
        raise InputError(f"certificate: spec.toml asks for epsilon = {wanted}, certified is {reached}")
    _agree("engine.seed", engine.seed is not None, certificate.not_private)
    if algorithm.name is not None:
        _agree("algorithm.name", algorithm.name, certificate.document["mechanism"]["algorithm"])
    if algorithm.rounds is not None:
        _agree("algorithm.rounds", algorithm.rounds, plan.n_rounds)
    _check_bounds(content, plan.facts)


def _check_bounds(content: dict[str, Any], facts: Any) -> None:
    """Bounds that the spec says were read off the data are void in the certificate, and the others are the spec's."""
    void = list(facts.data_derived)
    for name in ("row_norm", "weight_bound"):
        stated = content["data"].get(name)
        if stated == "from-data" and name not in void:
            raise InputError(f"certificate: spec.toml reads {name} off the data, which the certificate does not say")
        if isinstance(stated, (int, float)):
            _agree(f"data.{name}", float(stated), getattr(facts, name))
    schema = content.get("schema", {})
    if "file" not in schema and schema:
        for name in schema_from(schema)[1]:
            if name not in void:
                raise InputError(f"certificate: spec.toml reads {name} off the data, which the certificate omits")


def _agree(key: str, asked: Any, certified: Any) -> None:
    if asked != certified:
        raise InputError(f"certificate: {key} of spec.toml asks for {asked!r}, certified is {certified!r}")
