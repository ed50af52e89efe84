"""From a prepared spec to a finished run, and the directory that holds all of it."""

import dataclasses
import functools
import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coterie.certificate import Certificate, Past
from coterie.cli.spec.preparation import Log, Prepared, Records
from coterie.cli.spec.reading import Spec
from coterie.data import Schema
from coterie.engines.in_process import run
from coterie.privacy.noise import NoiseSource, Seeded, SystemEntropy
from coterie.rundir import new_directory
from coterie.spending import Spending
from coterie.transcript import RANDOMNESS, Interrupted, Transcript

Progress = Callable[[int, int], None]
SUMS = "SHA256SUMS"
_ALWAYS = {"spec.toml", "plan.json", "certificate.json", "certificate.md", "summary.json", "run.log", SUMS}


def transcript_name(complete: bool) -> str:
    return "transcript.npz" if complete else "partial-transcript.npz"


def files_of(complete: bool) -> set[str]:
    """Everything in the directory of a run that came to its end, or that was stopped."""
    return {*_ALWAYS, transcript_name(complete), *({"model.json"} if complete else ())}


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
        """On records that are declared public; None where there are none."""
        if self.records.test is None or not self.transcript.complete:
            return None
        X, y = self.records.test
        model = self.transcript.models[0]
        return float(np.mean((X @ model > 0) != y)) if len(model) == X.shape[1] else None

    def summary(self) -> dict[str, Any]:
        known = {} if self.test_error is None else {"test_error": self.test_error}
        return {**known, **summary_of(self.transcript, self.certificate), "seconds": round(self.seconds, 2)}

    def write(self, directory: Path) -> Path:
        """Spec, plan, transcript, certificate, model, summary, log and their sums; all of it or nothing."""
        self.log.add(f"written to {directory.name}")
        with new_directory(directory) as partial:
            complete = self.transcript.complete
            files = {
                "spec.toml": self.spec.text,
                "plan.json": self.transcript.plan.to_json(),
                "certificate.json": self.certificate.to_json(),
                "certificate.md": self.certificate.to_markdown(),
                "summary.json": json.dumps(self.summary(), indent=1, ensure_ascii=False),
                "run.log": "\n".join(self.log.lines) + "\n",
            }
            if complete:
                model = model_of(self.transcript, self.records.schema, self.records.feature_names)
                files["model.json"] = json.dumps(model, indent=1, ensure_ascii=False)
            assert {*files, transcript_name(complete), SUMS} == files_of(complete)
            for name, text in files.items():
                (partial / name).write_text(text, encoding="utf-8")
            self.transcript.save(partial / transcript_name(complete))
            (partial / SUMS).write_text(sums(partial), encoding="utf-8")
        return directory


def execute(prepared: Prepared, *, progress: Progress | None = None, audit: dict[str, Any] | None = None) -> Outcome:
    """Run the plan. Ctrl-C ends it with what was released so far, charged in full. `audit`: what was found before."""
    past = charge(prepared)
    seed = prepared.spec.engine.seed
    noise: NoiseSource = SystemEntropy() if seed is None else Seeded(seed)

    def carry_out() -> Transcript:
        try:
            return run(
                prepared.plan,
                prepared.records.federation,
                noise=noise,
                progress=progress,
                explain=lambda choice: prepared.log.add(f"path: {choice}"),
            )
        except Interrupted as stopped:
            return stopped.transcript

    return outcome_of(prepared, carry_out, past, audit)


def outcome_of(
    prepared: Prepared, carry_out: Callable[[], Transcript], past: Past, audit: dict[str, Any] | None
) -> Outcome:
    """What a run, however it is carried out, comes to."""
    log, started = prepared.log, time.perf_counter()
    log.add("run started")
    transcript = carry_out()
    log.add(f"{transcript.n_rounds} of {prepared.plan.n_rounds} rounds released")
    return Outcome(
        spec=prepared.spec,
        records=prepared.records,
        transcript=transcript,
        certificate=prepared.certificate(transcript.n_rounds, past=past, audit=audit),
        seconds=time.perf_counter() - started,
        log=log,
    )


def charge(prepared: Prepared) -> Past:
    """What the ledger knew of these data before; charged first, so that no failure can hide a spend."""
    privacy, plan = prepared.spec.privacy, prepared.plan
    if prepared.spec.ledger is None:
        return ()
    # whoever knows the seed can take the noise off
    epsilon = plan.epsilon(privacy.delta) if prepared.spec.engine.seed is None else math.inf
    ledger = Spending(path=prepared.spec.ledger)
    past = ledger.charge(f"run of plan {plan.digest[:12]}", epsilon, privacy.delta, terms=privacy.terms)
    prepared.log.add(f"charged to the ledger {prepared.spec.ledger.name}")
    return past


# --- what it leaves behind --------------------------------------------------------------------------------------------


def summary_of(transcript: Transcript, certificate: Certificate) -> dict[str, Any]:
    plan = transcript.plan
    return {
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
