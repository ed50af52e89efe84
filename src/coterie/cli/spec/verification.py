"""Check a certificate, and the directory of a run around it."""

import hashlib
import json
from pathlib import Path
from typing import Any

from coterie.certificate import Certificate
from coterie.certificate.certificate import compare, unique_keys
from coterie.certificate.software import package_digest
from coterie.cli.spec.agreement import Source, check_schema, check_spec
from coterie.cli.spec.outcome import SUMS, files_of, model_of, summary_of, test_error_of, transcript_name
from coterie.data import Schema
from coterie.errors import InputError
from coterie.transcript import Transcript

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
        agreeing, unsure = _check_run(directory, certificate)
        checked += [*agreeing, "file sums"]
        notes += unsure
        notes.append("the log is what the run told: nothing here implies it")
        notes.append("whether the releases carry the noise of the plan cannot be seen in them")
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


def _check_run(directory: Path, certificate: Certificate) -> tuple[list[str], list[str]]:
    """The run in the directory is the one that is certified; which files were compared, and what was not."""
    document, notes = certificate.document, []
    present = {path.name for path in directory.iterdir()}
    complete = transcript_name(True) in present
    for name in sorted(present ^ files_of(complete)):
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
    source = check_spec(_text(directory / "spec.toml"), directory / "spec.toml", certificate)
    stated = _json(directory / "summary.json")
    test_error = None if source.records is None else test_error_of(transcript, source.records)
    compare("summary.json: ", summary_of(transcript, certificate, test_error), stated)
    agreeing = ["plan.json", "transcript", "summary.json", "spec.toml"]
    if source.records is None:
        notes.append("sizes, and names of parties that a column gives, are the data's: no data are here")
    if _check_page(_text(directory / "certificate.md"), certificate):
        agreeing.append("certificate.md")
    else:
        notes.append("certificate.md was worded by other code: its first lines agree, the rest was not compared")
    if complete:
        _check_model(_json(directory / "model.json"), transcript, source)
        agreeing.append("model")
        if source.schema is None:
            notes.append("ranges and categories in model.json are those of a schema file that is not here")
    return agreeing, notes


def _check_page(page: str, certificate: Certificate) -> bool:
    """Whether the page is word for word what the certificate gives; other versions must at least promise the same."""
    expected = certificate.to_markdown()
    if certificate.document["software"]["package_digest"] == package_digest():
        if page != expected:
            raise InputError("certificate: certificate.md does not say what certificate.json says")
        return True
    head = expected[: expected.index("\n|")]  # title, verdict and the promise
    if not page.startswith(head):
        raise InputError("certificate: certificate.md does not promise what certificate.json says")
    return False


def _json(path: Path) -> Any:
    try:
        return json.loads(_text(path), object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as error:
        raise InputError(f"certificate: {path.name} cannot be used ({error})") from None


def _check_model(stated: Any, transcript: Transcript, source: Source) -> None:
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
        check_schema(schema, facts)
    if isinstance(coefficients, dict) and list(coefficients) != names:
        raise InputError("certificate: the coefficients of model.json are not those of the features of its schema")
    if isinstance(coefficients, dict) and len(names) != facts.n_features:
        raise InputError(f"certificate: model.json has {len(names)} coefficients, the plan other features")
    implied = json.loads(json.dumps(model_of(transcript, schema, names)))
    compare("model.json: ", implied, stated, near_zero=_NEAR_ZERO)
