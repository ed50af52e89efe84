"""Check a certificate, and the directory of a run around it."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from coterie.certificate import Certificate
from coterie.errors import InputError
from coterie.spec.outcome import SUMS
from coterie.transcript import Transcript

_MODEL_TOLERANCE = 1e-9


def verify_path(path: Path) -> tuple[Certificate, list[str], list[str]]:
    """The certificate, what agrees with it, and what could not be checked; InputError where anything differs."""
    directory = path if path.is_dir() else None
    certificate = Certificate.from_json(_text(path / "certificate.json" if directory else path))
    notes = list(certificate.verify())
    notes.append("digests are no signature: they show changes, not who made the file")
    checked = ["all statements", "plan digest"]
    if directory is not None:
        _check_sums(directory)
        _check_run(directory, certificate)
        checked += ["plan.json", "transcript", "model", "file sums"]
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


def _check_run(directory: Path, certificate: Certificate) -> None:
    """The run in the directory is the one that is certified."""
    document = certificate.document
    plan = certificate.plan
    if _text(directory / "plan.json") != plan.to_json():
        raise InputError("certificate: plan.json is not the plan that is certified")
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
    if transcript.complete:
        _check_model(_text(directory / "model.json"), transcript)


def _check_model(text: str, transcript: Transcript) -> None:
    try:
        stated: Any = json.loads(text)["coefficients"]
        stated = np.array(list(stated.values()) if isinstance(stated, dict) else stated, dtype=float).ravel()
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError("certificate: model.json is no model of a run") from None
    replayed = transcript.models[0]
    if stated.shape != replayed.shape or not np.allclose(stated, replayed, rtol=_MODEL_TOLERANCE, atol=1e-12):
        raise InputError("certificate: model.json is not what the transcript gives")
