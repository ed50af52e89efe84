"""Check a certificate, the directory of a run around it, and whether it certifies what the run's spec asks for."""

import hashlib
import json
import math
from pathlib import Path
from typing import Any

from coterie.certificate import Certificate
from coterie.certificate.certificate import compare, unique_keys
from coterie.certificate.software import package_digest
from coterie.certificate.statements import NO_TUNING
from coterie.cli.spec.execution import SUMS, files_of, model_of, summary_of, transcript_name
from coterie.cli.spec.preparation import make_problem
from coterie.cli.spec.reading import (
    AlgorithmSection,
    DataSection,
    algorithm_section,
    data_section,
    engine_section,
    privacy_section,
    problem_section,
    schema_from,
    tables_of,
)
from coterie.data import Schema, load
from coterie.errors import InputError
from coterie.facts import Facts
from coterie.promise import TRUST, Privacy
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
        agreeing, unsure = _check_run(directory, certificate)
        checked += [*agreeing, "file sums"]
        notes += unsure
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
    stated = _json(directory / "summary.json")
    compare("summary.json: ", summary_of(transcript, certificate), _without(stated, _NOT_IMPLIED))
    _check_spec(_text(directory / "spec.toml"), directory / "spec.toml", certificate)
    agreeing = ["plan.json", "transcript", "summary.json", "spec.toml"]
    if _check_page(_text(directory / "certificate.md"), certificate):
        agreeing.append("certificate.md")
    else:
        notes.append("certificate.md was worded by other code: its first lines agree, the rest was not compared")
    if complete:
        _check_model(_json(directory / "model.json"), transcript)
        agreeing.append("model")
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


# --- does it certify what the spec asks for? --------------------------------------------------------------------------


def _check_spec(text: str, path: Path, certificate: Certificate) -> None:
    """Refuse the first thing that the spec asks for and the certificate does not say.

    The spec's data are elsewhere, and its schema may be.
    """
    plan, content = certificate.plan, tables_of(text, path)
    privacy, _ = privacy_section(content["privacy"], path.parent)
    algorithm = algorithm_section(content.get("algorithm", {}))
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


def _check_loss(privacy: Privacy, certificate: Certificate) -> None:
    views = {view.observer: view.epsilon for view in certificate.views}
    wanted = math.inf if privacy.epsilon is None else privacy.epsilon
    reached = certificate.epsilon if privacy.observer is None else views.get(privacy.observer, math.inf)
    if reached > wanted * (1 + 1e-9):
        raise InputError(f"certificate: spec.toml asks for epsilon = {wanted}, certified is {reached}")


def _check_algorithm(algorithm: AlgorithmSection, privacy: Privacy, certificate: Certificate) -> None:
    plan = certificate.plan
    channel = plan.algorithm.channel.name
    _agree("privacy.trust", privacy.trust, channel if channel in TRUST else "none")
    if algorithm.name is not None:
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
