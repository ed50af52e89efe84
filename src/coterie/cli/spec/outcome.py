"""A finished run, and the directory that holds all of it."""

import dataclasses
import functools
import hashlib
import json
import logging
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coterie.certificate import Certificate
from coterie.cli.spec.records import Records
from coterie.cli.spec.sections import Spec
from coterie.data import Schema
from coterie.rundir import new_directory
from coterie.transcript import RANDOMNESS, Transcript

SUMS = "SHA256SUMS"
_LOGGER = logging.getLogger("coterie")
_ALWAYS = {"spec.toml", "plan.json", "certificate.json", "certificate.md", "summary.json", "run.log", SUMS}


def transcript_name(complete: bool) -> str:
    return "transcript.npz" if complete else "partial-transcript.npz"


def files_of(complete: bool) -> set[str]:
    """Everything in the directory of a run that came to its end, or that was stopped."""
    return {*_ALWAYS, transcript_name(complete), *({"model.json"} if complete else ())}


class Log:
    """What happened: public facts only, for a run directory is made to be shown. How long it took depends on the
    records, so times go to Python's logging alone, which `--verbose` shows."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, sentence: str) -> None:
        self.lines.append(sentence)
        _LOGGER.info(sentence)

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)


@dataclasses.dataclass(frozen=True, eq=False)
class Outcome:
    spec: Spec
    records: Records
    transcript: Transcript
    certificate: Certificate
    seconds: float
    log: Log

    @functools.cached_property
    def test_error(self) -> float | None:
        return test_error_of(self.transcript, self.records)

    def summary(self) -> dict[str, Any]:
        return summary_of(self.transcript, self.certificate, self.test_error)

    def write(self, directory: Path) -> Path:
        """A new directory with all that came out; all of it or nothing."""
        with new_directory(directory) as partial:
            self.fill(partial)
        return directory

    def fill(self, folder: Path) -> None:
        """Spec, plan, transcript, certificate, model, summary, log and their sums."""
        complete = self.transcript.complete
        # first what cannot be made again
        (folder / transcript_name(complete)).unlink(missing_ok=True)
        self.transcript.save(folder / transcript_name(complete))
        files = {
            "spec.toml": self.spec.text,
            "plan.json": self.transcript.plan.to_json(),
            "certificate.json": self.certificate.to_json(),
            "certificate.md": self.certificate.to_markdown(),
            "summary.json": json.dumps(self.summary(), indent=1, ensure_ascii=False),
            "run.log": self.log.text,
        }
        if complete:
            model = model_of(self.transcript, self.records.schema, self.records.feature_names)
            files["model.json"] = json.dumps(model, indent=1, ensure_ascii=False)
        assert {*files, transcript_name(complete), SUMS} == files_of(complete)
        for name, text in files.items():
            write_text(folder / name, text)
        write_text(folder / SUMS, sums(folder))


def write_text(path: Path, text: str) -> None:
    """A full disk is noticed here, not after a rename."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def test_error_of(transcript: Transcript, records: Records) -> float | None:
    """On records that are declared public; None where there are none."""
    if records.test is None or not transcript.complete:
        return None
    X, y = records.test
    model = transcript.models[0]
    return float(np.mean((X @ model > 0) != y)) if len(model) == X.shape[1] else None


def summary_of(transcript: Transcript, certificate: Certificate, test_error: float | None) -> dict[str, Any]:
    plan = transcript.plan
    return {
        **({} if test_error is None else {"test_error": test_error}),
        "epsilon": certificate.epsilon if math.isfinite(certificate.epsilon) else "infinite",
        "delta": certificate.delta,
        "total_epsilon": certificate.total_epsilon if math.isfinite(certificate.total_epsilon) else "infinite",
        "adjacency": plan.adjacency,
        "verdict": list(certificate.verdict),
        "n_parties": plan.facts.n_parties,
        "n_records": sum(plan.facts.sizes),
        "rounds": transcript.n_rounds,
        "algorithm": certificate.document["mechanism"]["algorithm"],
        "plan_digest": plan.digest,
        "randomness": RANDOMNESS[transcript.reproducible],
    }


def model_of(transcript: Transcript, schema: Schema, feature_names: Sequence[str]) -> dict[str, Any]:
    """Coefficients with all that is needed to apply them to a table."""
    plan = transcript.plan
    return {
        "loss": type(plan.problem.loss).__name__,
        "labels": None if plan.facts.labels is None else list(plan.facts.labels),
        "row_norm": plan.facts.row_norm,
        "coefficients": _named_coefficients(transcript, feature_names),
        "schema": schema.to_dict(),
    }


def _named_coefficients(transcript: Transcript, feature_names: Sequence[str]) -> Any:
    """By feature, one number or one per class; a plain list where the model does not live on the features."""
    plan, model = transcript.plan, transcript.models[0]
    if len(model) != plan.problem.n_coefficients(plan.facts):
        return model.tolist()
    rows = model.reshape(plan.facts.n_features, -1).tolist()
    return {n: row[0] if len(row) == 1 else row for n, row in zip(feature_names, rows, strict=True)}


def sums(directory: Path) -> str:
    """In the form that `sha256sum --check` reads."""
    files = sorted(path for path in directory.iterdir() if path.name != SUMS)
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
