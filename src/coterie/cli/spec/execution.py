"""From a prepared spec to a finished run, and the directory that holds all of it."""

import contextlib
import dataclasses
import functools
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import typer

from coterie.certificate import Certificate, Past, cautions, price
from coterie.cli.spec.preparation import Log, Prepared, Records
from coterie.cli.spec.reading import Spec
from coterie.data import Schema
from coterie.data.federation import make_design, split_intercept
from coterie.engines.in_process import run
from coterie.errors import CoterieError, InputError
from coterie.evaluation import exact_result
from coterie.inference import Columns, Inference, Released, Releasing, conclude, release_moments
from coterie.plan import Plan
from coterie.privacy.noise import NoiseSource, Seeded, SystemEntropy
from coterie.report import Published, report_page
from coterie.rundir import REPORT, SUMS, FittedModel, RunFiles, files_of, new_directory, sums, transcript_name
from coterie.site.proposal import Proposal
from coterie.spending import Spending
from coterie.terminal import stoppable
from coterie.transcript import RANDOMNESS, Interrupted, Transcript
from coterie.values import Facts

Progress = Callable[[int, int], None]
# by name: "nonprivate", all records in one place, and "alone", a party's own
References = dict[str, dict[str, Any]]
# of those that fill their ranges evenly; half of them are longer than what is usual
MOST_ROWS = 0.75
# l2 of the lines without privacy, for each record
WEAK = 1e-6
# parties whose own fits are looked at
MOST_ALONE = 20
NEVER = -100.0


class UnfinishedError(CoterieError):
    """A run failed after it had released something, which `transcript` holds."""

    def __init__(self, transcript: Transcript, reason: str) -> None:
        super().__init__(reason)
        self.transcript = transcript


@contextlib.contextmanager
def after_releasing(transcript: Transcript) -> Iterator[None]:
    """Whatever fails here, the transcript is not lost with it: it cannot be made again."""
    try:
        yield
    except Exception as error:
        raise UnfinishedError(transcript, sentence_of(error)) from error


def sentence_of(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "there is not enough memory"
    return " ".join(str(error).split())[:500] or type(error).__name__


@dataclasses.dataclass(frozen=True, eq=False)
class Outcome:
    spec: Spec
    records: Records
    transcript: Transcript
    certificate: Certificate
    seconds: float
    log: Log
    moments: Released | None = None
    # of a run between sites
    proposal: Proposal | None = None

    @functools.cached_property
    def inference(self) -> Inference | None:
        if self.moments is None:
            return None
        records, plan = self.records, self.transcript.plan
        return conclude(
            plan,
            self.moments,
            columns_of(records.schema, records.feature_names, plan.facts, intercept=records.intercept),
            delta=self.certificate.delta,
            reproducible=self.transcript.reproducible,
        )

    @property
    def model(self) -> dict[str, Any]:
        return model_of(
            self.transcript,
            self.records.schema,
            self.records.feature_names,
            intercept=self.records.intercept,
            inference=self.inference,
        )

    @functools.cached_property
    def result(self) -> dict[str, Any] | None:
        return result_of(self.transcript, self.records, self.inference)

    @functools.cached_property
    def references(self) -> References:
        return references_of(self)

    def summary(self) -> dict[str, Any]:
        return summary_of(self.transcript, self.certificate, self.result, self.references)

    def write(self, directory: Path) -> Path:
        """A new directory with all that came out; all of it or nothing."""
        with new_directory(directory) as partial:
            self.fill(partial)
        return directory

    def fill(self, folder: Path) -> None:
        """Spec, plan, transcript, certificate, model, summary, log and their sums."""
        # first what cannot be made again: all else takes a while, and might fail
        write_transcript(folder, self.transcript)
        origin = {"spec.toml": self.spec.text}
        if self.proposal is not None:
            origin["proposal.json"] = self.proposal.to_json()
        intervals = dict[str, str]()
        if self.moments is not None and self.inference is not None and self.spec.inference is not None:
            intervals = interval_files(self.moments, self.inference, self.spec.inference.level)
        model = self.model if self.transcript.complete else None
        texts, log = {**origin, **intervals}, self.log.text
        fill_run(folder, self.transcript, self.certificate, texts, log, model, self.result, self.references)


def interval_files(moments: Released, inference: Inference, level: float) -> dict[str, str]:
    """By name: what was released for intervals, and what it comes to, for programs and people."""
    return {
        "moments.json": moments.to_json(),
        "intervals.json": inference.to_json(level),
        "intervals.csv": inference.to_csv(level),
        "intervals.txt": inference.summary(level) + "\n",
    }


def fill_run(
    folder: Path,
    transcript: Transcript,
    certificate: Certificate,
    texts: dict[str, str],
    log: str,
    model: dict[str, Any] | None,
    result: dict[str, Any] | None = None,
    references: References | None = None,
) -> None:
    """All files of a run; `texts` by name: what it was made from, and intervals. No model where it was stopped."""
    complete = transcript.complete
    if not (folder / transcript_name(complete)).exists():
        write_transcript(folder, transcript)
    files = {
        **texts,
        "plan.json": transcript.plan.to_json(),
        "certificate.json": certificate.to_json(),
        "certificate.md": certificate.to_markdown(),
        "summary.json": json.dumps(
            summary_of(transcript, certificate, result, references), indent=1, ensure_ascii=False
        ),
        "run.log": log,
    }
    if model is not None:
        files["model.json"] = json.dumps(model, indent=1, ensure_ascii=False)
    assert {*files, transcript_name(complete), SUMS} == {*files_of(complete, ()), *texts}
    for name, text in files.items():
        write_text(folder / name, text)
    write_text(folder / SUMS, sums(folder))


def write_transcript(folder: Path, transcript: Transcript) -> None:
    """In place of one that may be there."""
    path = folder / transcript_name(transcript.complete)
    path.unlink(missing_ok=True)
    transcript.save(path)


def write_text(path: Path, text: str) -> None:
    """A full disk is noticed here, not after a rename."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def columns_of(schema: Schema, feature_names: Sequence[str], facts: Facts, *, intercept: bool) -> Columns:
    """Numbers to report: of the schema's columns, or of features where there are others."""
    if tuple(feature_names) == schema.feature_names:
        return Columns.of_schema(schema, facts.row_norm, intercept=intercept)
    scales, scale = split_intercept(np.ones(facts.n_features), facts.row_norm, intercept=intercept)
    value = float(make_design(np.zeros((1, len(feature_names))), facts.row_norm, intercept=intercept)[0, -1])
    return Columns.of_features(feature_names, scales, intercept=(float(scale), value) if intercept else None)


def result_of(transcript: Transcript, records: Records, inference: Inference | None = None) -> dict[str, Any] | None:
    """On records that are declared public; None where there are none, or no model of their features."""
    if records.test is None or not transcript.complete:
        return None
    model = model_of(
        transcript, records.schema, records.feature_names, intercept=records.intercept, inference=inference
    )
    if not isinstance(model["coefficients"], dict):
        return None
    return exact_result(FittedModel.of(model), *records.test)


def references_of(outcome: Outcome) -> References:
    """The same on the same records for the best fits without noise, by scikit-learn, to all records in one place and to
    a party's own (the mean over parties): exact optima, and only of records that are declared public."""
    records = outcome.records
    if outcome.result is None or not records.public or find_spec("sklearn") is None:
        return {}
    found = {"nonprivate": _best_fit(records, *records.federation.pooled)}
    n_parties = records.federation.n_parties
    if n_parties > 1:
        chosen = np.unique(np.linspace(0, n_parties - 1, MOST_ALONE).round().astype(int)).tolist()
        shards = [records.federation.shards[i] for i in chosen]
        each = [_best_fit(records, shard.X, shard.y, shard.weight) for shard in shards]
        found["alone"] = {name: float(np.mean([one[name] for one in each])) for name in each[0]}
        found["alone"]["records"] = each[0]["records"]
    return found


def _best_fit(records: Records, X: np.ndarray, y: np.ndarray, weight: np.ndarray) -> dict[str, Any]:
    from sklearn.linear_model import LogisticRegression, Ridge

    facts = records.federation.facts
    l2 = WEAK * len(y) * facts.row_norm**2
    if facts.labels is None:
        slopes = np.atleast_2d(Ridge(alpha=l2, fit_intercept=False).fit(X, y, weight).coef_)
    elif len(present := np.unique(y).astype(int)) == 1:
        # a party that has seen one class answers it
        slopes = np.zeros((1 if len(facts.labels) == 2 else len(facts.labels), X.shape[1]))
        slopes[0 if len(slopes) == 1 else present[0], -1] = 1.0 if len(slopes) > 1 or present[0] else -1.0
    else:
        fitted: Any = LogisticRegression(C=1 / l2, fit_intercept=False, max_iter=1000).fit(X, y, weight)
        slopes = np.atleast_2d(fitted.coef_)
        if len(facts.labels) > 2:
            both = np.vstack([-slopes[0], slopes[0]]) if len(present) == 2 else slopes
            slopes = np.zeros((len(facts.labels), X.shape[1]))
            # of classes that the party has not seen
            slopes[:, -1] = NEVER
            slopes[present] = both
    coefficients, constants = split_intercept(slopes, facts.row_norm, intercept=records.intercept)
    model = {
        "schema": records.schema.to_dict(),
        "loss": "Huber" if facts.labels is None else "Logistic",
        "labels": facts.labels,
        "row_norm": facts.row_norm,
        "coefficients": dict(zip(records.feature_names, coefficients.T.tolist(), strict=True)),
        "intercept": constants.tolist(),
    }
    assert records.test is not None
    return exact_result(FittedModel.of(model), *records.test)


def execute(
    prepared: Prepared,
    past: Past | None = None,
    *,
    progress: Progress | None = None,
    audit: dict[str, Any] | None = None,
) -> Outcome:
    """Run the plan. Ctrl-C ends it with what was released so far, charged in full.

    past: what `charge` returned, where that was called before. audit: what was found before.
    """
    past = charge(prepared, open_ledger(prepared, new=False)) if past is None else past
    seed = prepared.spec.engine.seed
    noise: NoiseSource = SystemEntropy() if seed is None else Seeded(seed)

    def carry_out() -> Transcript:
        return run(
            prepared.plan,
            prepared.records.federation,
            noise=noise,
            progress=progress,
            explain=lambda choice: prepared.log.add(f"path: {choice}"),
        )

    def go_on(transcript: Transcript) -> Released | None:
        records, plan = prepared.records, prepared.plan
        if plan.moments is None:
            return None
        prepared.log.add("moments for intervals released")
        columns = columns_of(records.schema, records.feature_names, plan.facts, intercept=records.intercept)
        return release_moments(transcript, records.federation, columns, noise)

    return outcome_of(prepared, carry_out, past, audit, go_on)


def releasing(prepared: Prepared, transcript: Transcript) -> Releasing:
    """Where the moments of the spec's plan are taken, for engines that ask for them elsewhere."""
    records = prepared.records
    prepared.log.add("moments for intervals released")
    columns = columns_of(records.schema, records.feature_names, transcript.plan.facts, intercept=records.intercept)
    return Releasing(transcript, columns)


def outcome_of(
    prepared: Prepared,
    carry_out: Callable[[], Transcript],
    past: Past,
    audit: dict[str, Any] | None,
    go_on: Callable[[Transcript], Released | None] = lambda transcript: None,
) -> Outcome:
    """What a run, however it is carried out, comes to."""
    log, started = prepared.log, time.perf_counter()
    log.add("run started")
    try:
        transcript = carry_out()
    except Interrupted as stopped:
        transcript = stopped.transcript
    with stoppable() as stop, after_releasing(transcript):
        # until whoever called this has written it
        stop.patience = math.inf
        log.add(f"{transcript.n_rounds} of {prepared.plan.n_rounds} rounds released")
        return Outcome(
            spec=prepared.spec,
            records=prepared.records,
            transcript=transcript,
            certificate=prepared.certificate(transcript.n_rounds, past=past, audit=audit),
            seconds=time.perf_counter() - started,
            log=log,
            moments=go_on(transcript) if transcript.complete else None,
        )


def open_ledger(prepared: Prepared, *, new: bool) -> Spending | None:
    """The ledger of the spec, if it names one; only where `new` is asked for is it made."""
    if prepared.spec.ledger is None:
        if new:
            raise InputError("--new-ledger: the spec names no ledger; ledger = 'path' in its [privacy] is needed")
        return None
    if new:
        # in memory first: a ledger that its first charge would exceed is not begun
        _charge_to(Spending(limit=prepared.spec.ledger_limit), prepared)
        return Spending.create(prepared.spec.ledger, limit=prepared.spec.ledger_limit)
    return Spending(path=prepared.spec.ledger, limit=prepared.spec.ledger_limit)


def charge(prepared: Prepared, ledger: Spending | None, *, run: str | None = None) -> Past:
    """What the ledger knew of these data before; charged first, so that no failure can hide a spend. `run` names the
    run that is paid for, where it can be started again."""
    if ledger is None:
        return ()
    past = _charge_to(ledger, prepared, run=run)
    assert ledger.path is not None
    prepared.log.add(f"charged to the ledger {ledger.path.name}")
    return past


def _charge_to(ledger: Spending, prepared: Prepared, *, run: str | None = None) -> Past:
    spec, plan = prepared.spec, prepared.plan
    epsilon, reason = price(plan, spec.privacy.delta, reproducible=spec.engine.seed is not None)
    terms = spec.privacy.terms(plan.facts.parties, plan.facts.sizes)
    named = "run" if run is None else f"run {run}"
    what = f"{named} of plan {plan.digest[:12]}" + (f" ({reason})" if reason else "")
    return ledger.charge(what, epsilon, spec.privacy.delta, terms=terms)


# --- what it leaves behind --------------------------------------------------------------------------------------------


def cautions_of(made: Prepared | Outcome) -> tuple[str, ...]:
    """What people should know before they rely on the promise or the model; from public facts."""
    plan = made.plan if isinstance(made, Prepared) else made.transcript.plan
    told = cautions(plan, made.spec.privacy.delta)
    schema, derived = made.records.schema, plan.facts.data_derived
    if not derived and schema.share_clipped_at(plan.facts.row_norm) > MOST_ROWS:
        told += ("most rows will be clipped to the row norm: by the schema they are longer; raise longest_row in it",)
    return told


def summary_of(
    transcript: Transcript,
    certificate: Certificate,
    result: dict[str, Any] | None,
    references: References | None = None,
) -> dict[str, Any]:
    plan = transcript.plan
    error = {"test_error": result["error"]} if result is not None and "error" in result else {}
    return {
        **error,
        **({} if result is None else {"test": result}),
        **(references or {}),
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


def model_of(
    transcript: Transcript,
    schema: Schema,
    feature_names: Sequence[str],
    *,
    intercept: bool,
    inference: Inference | None = None,
) -> dict[str, Any]:
    """Coefficients with all that is needed to apply them to a table: they are for rows that the schema encodes, held to
    the row norm and, where columns were standardised, clipped as they were then. By feature, one number or one per
    class; a plain list where the model does not live on features."""
    plan, model = transcript.plan, transcript.models[0] if inference is None else inference.shrunk
    named: dict[str, Any] = {"intercept": None, "coefficients": model.tolist()}
    if len(model) == plan.problem.n_coefficients(plan.facts):
        of_design = model.reshape(plan.facts.n_features, -1).T
        slopes, constants = split_intercept(of_design, plan.facts.row_norm, intercept=intercept)
        by_feature = zip(feature_names, slopes.T.tolist(), strict=True)
        named = {
            "intercept": _alone(constants.tolist()) if intercept else None,
            "coefficients": {name: _alone(row) for name, row in by_feature},
        }
    clipping = transcript.clipping if inference is None else None
    if clipping is not None:
        named["clipping"] = {name: values.tolist() for name, values in clipping._asdict().items()}
    return {
        "loss": type(plan.problem.loss).__name__,
        "labels": None if plan.facts.labels is None else list(plan.facts.labels),
        "row_norm": plan.facts.row_norm,
        **named,
        "schema": schema.to_dict(),
    }


def _alone(numbers: list[float]) -> float | list[float]:
    return numbers[0] if len(numbers) == 1 else numbers


# --- its report: made from the directory's other files, so it needs no sum and can be made again ----------------------


def report_of(directory: Path) -> str:
    run = RunFiles.read(directory)
    return report_page(run, _published(run.plan))


def write_report(directory: Path) -> Path:
    """In the directory itself, over what an earlier version may have drawn; all of it or nothing."""
    page, path = report_of(directory), directory / REPORT
    temporary = directory.parent / f".{directory.name}-{REPORT}.{os.getpid()}"
    try:
        temporary.write_text(page, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(
            f"report: {str(path)!r} cannot be written ({error.strerror}); `coterie report RUN --out FILE` writes it "
            "elsewhere"
        ) from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    return path


def _published(plan: Plan) -> Published | None:
    """What the algorithm's paper states; none of them speaks of Gaussian noise, so most runs need no research."""
    if plan.algorithm.mechanism.law in (None, "gaussian"):
        return None
    from coterie.papers.bounds import published_bound

    found = published_bound(plan)
    return None if found is None else Published(found.theorem, found.total, found.hypotheses)


def add_report(run: Path) -> None:
    """After a run. It is complete and paid for, so a page that cannot be made does not end it."""
    try:
        write_report(run)
    except Exception as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        typer.echo(f"coterie: the run is complete, but no report could be made ({reason})", err=True)
