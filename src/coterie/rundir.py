"""Directories of runs: what is in them, and that they appear complete or not at all, under a name that is kept from the
start; what they say when they are read again, and the model in them, applied."""

import contextlib
import dataclasses
import errno
import fcntl
import functools
import hashlib
import math
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.data import Schema
from coterie.data.federation import Clipping, project_rows
from coterie.data.tables import Table
from coterie.errors import InputError
from coterie.values import file_text, read_json, read_toml

if TYPE_CHECKING:
    from coterie.certificate import Certificate
    from coterie.plan import Plan

# which the other files give, so it needs no sum
SUMS, REPORT = "SHA256SUMS", "report.html"
_ALWAYS = {"plan.json", "certificate.json", "certificate.md", "summary.json", "run.log", SUMS}

_OF_INTERVALS = {"moments.json", "intervals.json", "intervals.csv", "intervals.txt"}
# asked one by one, because finding out may fail
_ELSEWHERE: tuple[Callable[[], str | Path], ...] = (tempfile.gettempdir, Path.home, lambda: "/dev/shm")
_DATE = re.compile(r"date: (\d{4}-\d{2}-\d{2})")
_PROBABLE = ("Logistic", "Multinomial")


def transcript_name(complete: bool) -> str:
    return "transcript.npz" if complete else "partial-transcript.npz"


def files_of(complete: bool, origin: Iterable[str] = ("spec.toml",), *, intervals: bool = False) -> set[str]:
    """Everything in the directory of a run that came to its end, with intervals or without, or that was stopped;
    `origin` is what it was made from: a spec, a proposal to sites, or both."""
    more = {"model.json", *(_OF_INTERVALS if intervals else ())} if complete else set()
    return {*_ALWAYS, *origin, transcript_name(complete), *more}


def sums(directory: Path) -> str:
    """In the form that `sha256sum --check` reads."""
    files = sorted(path for path in directory.iterdir() if path.name not in (SUMS, REPORT))
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)


class TakenError(InputError):
    """Another process is about to write a directory of this name."""


def check_free(directory: Path) -> None:
    """Refuse a path that is taken, before any work is done."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise InputError(f"out: {str(directory)!r} exists already and is not an empty directory; choose another")
    parent = directory.absolute().parent
    while not parent.exists():
        parent = parent.parent
    try:
        # asking for permission bits would not know every file system
        tempfile.TemporaryDirectory(dir=parent).cleanup()
    except OSError as error:
        raise InputError(f"out: {str(directory)!r} cannot be made ({error.strerror} in {str(parent)!r})") from None


def unused(directory: Path) -> Path:
    """The path itself, or the first of path-2, path-3, ... that does not exist."""
    return next(path for path in _numbered(directory) if not path.exists())


def _numbered(directory: Path) -> Iterator[Path]:
    yield directory
    number = 2
    while True:
        yield directory.with_name(f"{directory.name}-{number}")
        number += 1


class Reserved:
    """A name that no other process takes, and a hidden sibling `partial` to fill before it appears under that name.

    What a killed process left in such a sibling is removed by whoever reserves the name next, or where it may have been
    `paid_for` brought to light under a name of its own, `recovered`.
    """

    def __init__(self, directory: Path, *, paid_for: bool = False) -> None:
        check_free(directory)
        self.directory = directory
        whole = directory.resolve()
        whole.parent.mkdir(parents=True, exist_ok=True)
        self.partial = whole.with_name(f".{whole.name}.partial")
        self._lock_path = whole.with_name(f".{whole.name}.lock")
        self._lock = _locked(self._lock_path)
        if self._lock is None:
            raise TakenError(f"out: {str(directory)!r} is being written by another run; choose another")
        self.recovered: Path | None = None
        if self.partial.exists() and paid_for:
            self.recovered = self._brought_to_light()
        shutil.rmtree(self.partial, ignore_errors=True)
        self.partial.mkdir(mode=0o700)

    def finish(self) -> Path:
        """Let the directory appear; under another name if somebody else has taken its own in the meantime."""
        self.partial.chmod(0o755)
        for path in _numbered(self.directory):
            try:
                # over an empty directory, or nothing
                self.partial.rename(path.resolve())
            except OSError:
                if not path.exists():
                    raise
                continue
            self._release()
            return path
        raise AssertionError("unreachable")

    def give_up(self) -> Path | None:
        """Free the name. What was put into `partial` appears as a directory called -failed, which is returned."""
        if self._lock is None:
            return None
        kept = self._brought_to_light() if self.partial.exists() else None
        self._release()
        return kept

    def discard(self) -> None:
        """Free the name, and forget what was put into `partial`."""
        if self._lock is not None:
            shutil.rmtree(self.partial, ignore_errors=True)
            self._release()

    def _brought_to_light(self) -> Path | None:
        if not any(self.partial.iterdir()):
            self.partial.rmdir()
            return None
        kept = unused(self.directory.with_name(f"{self.directory.name}-failed"))
        self.partial.rename(kept.absolute())
        return kept

    def _release(self) -> None:
        assert self._lock is not None
        self._lock_path.unlink(missing_ok=True)
        os.close(self._lock)
        self._lock = None


def _locked(path: Path) -> int | None:
    """A lock that ends with this process, or None where another one holds it."""
    while True:
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise InputError(f"out: {str(path)!r} cannot be made ({error.strerror})") from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            return None
        # whoever held it may have removed the file in between
        if path.exists() and os.path.samestat(os.fstat(file), path.stat()):
            return file
        os.close(file)


def reserve_next(directory: Path, *, paid_for: bool = False) -> Reserved:
    """The first of path, path-2, path-3, ... that is free and that no other process has reserved."""
    for path in _numbered(directory):
        if not path.exists():
            with contextlib.suppress(TakenError):
                return Reserved(path, paid_for=paid_for)
    raise AssertionError("unreachable")


@contextlib.contextmanager
def new_directory(directory: Path) -> Iterator[Path]:
    """A temporary sibling to write into, renamed to `directory` when the block ends well and removed when not."""
    place = Reserved(directory)
    try:
        yield place.partial
        place.finish()
    finally:
        place.discard()


def saved_elsewhere(name: str, write: Callable[[Path], None]) -> Path | None:
    """Write a directory wherever that is possible, for what cannot be made again; where it is, if anywhere."""
    for folder in _ELSEWHERE:
        try:
            place = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=folder()))
        except (OSError, RuntimeError):
            # full, or there is none: users of a container may have no home
            continue
        try:
            write(place)
        except OSError:
            shutil.rmtree(place, ignore_errors=True)
            continue
        return place
    return None


# --- what a directory says when it is read again ----------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class RunFiles:
    """What a report is made from; `coterie certificate verify` tells whether it agrees. None where there is none: a run
    that was stopped has no model, one between organisations no spec. `date` is the day before whose end the run began,
    as its log tells."""

    certificate: "Certificate"
    summary: dict[str, Any]
    spec: dict[str, Any] | None
    model: dict[str, Any] | None
    intervals: dict[str, Any] | None
    date: str | None
    proposal: dict[str, Any] | None = None

    @classmethod
    def read(cls, directory: Path) -> "RunFiles":
        # JAX takes a second to load, and whoever writes a directory or applies a model needs none of it
        from coterie.certificate import Certificate

        text = _text(directory / "certificate.json")
        if text is None:
            raise InputError(f"RUN: {str(directory)!r} holds no certificate.json; the directory of a run is needed")
        spec, log = _text(directory / "spec.toml"), _text(directory / "run.log") or ""
        dated = _DATE.match(log)
        try:
            tables = None if spec is None else read_toml(spec)
        except ValueError as error:
            raise InputError(f"RUN: spec.toml cannot be used ({error})") from None
        return cls(
            certificate=Certificate.from_json(text),
            summary=_table(directory / "summary.json") or {},
            spec=tables,
            model=_table(directory / "model.json"),
            intervals=_table(directory / "intervals.json"),
            date=dated.group(1) if dated else None,
            proposal=_table(directory / "proposal.json"),
        )

    @functools.cached_property
    def plan(self) -> "Plan":
        return self.certificate.plan

    @functools.cached_property
    def schema(self) -> Schema | None:
        stated = None if self.model is None else self.model.get("schema")
        return None if stated is None else Schema.from_dict(stated)

    @property
    def result(self) -> dict[str, Any] | None:
        """On public records: error or rmse with what it is compared with."""
        return _numbers(self.summary.get("test"))

    @property
    def nonprivate(self) -> dict[str, Any] | None:
        return _numbers(self.summary.get("nonprivate"))

    @property
    def alone(self) -> dict[str, Any] | None:
        """A party's own fit without privacy, the mean over parties."""
        return _numbers(self.summary.get("alone"))

    @property
    def errors_by_round(self) -> dict[str, list[float]]:
        """Of the demo: test errors after each round, by name."""
        told = self.summary.get("test_error_by_round")
        if not isinstance(told, dict):
            return {}
        return {str(name): [float(value) for value in values] for name, values in told.items()}

    @property
    def coefficients(self) -> dict[str, float]:
        """One number for each feature, the intercept first; none of models that have several."""
        if self.model is None or not isinstance(self.model.get("coefficients"), dict):
            return {}
        named = {"intercept": self.model.get("intercept"), **self.model["coefficients"]}
        numbers = {name: value for name, value in named.items() if value is not None}
        return {name: float(value) for name, value in numbers.items()} if all(map(_number, numbers.values())) else {}

    @property
    def data_set(self) -> str:
        """Which data, as the spec has it: names, never contents."""
        data = (self.spec or {}).get("data", {})
        if "dataset" in data:
            return f"{data['dataset']}, which comes with Coterie and is public"
        if "file" in data:
            return f"file {Path(str(data['file'])).name}"
        if isinstance(data.get("files"), dict):
            return "one file of each party"
        return str(self.summary.get("data", "not stated" if self.proposal is None else "each site's own records"))

    @property
    def purpose(self) -> str:
        """As the spec has it, or the title of a proposal to sites."""
        title = (self.proposal or {}).get("title", "not stated")
        return str((self.spec or {}).get("data", {}).get("purpose", title))


@dataclasses.dataclass(frozen=True, eq=False)
class FittedModel:
    """A model of a run, applied: scores of rows that its schema encodes, held to its row norm.

    `slopes` is (feature, output), `constants` (output). Labels are positions in `labels`; None in regression.
    """

    schema: Schema
    labels: tuple[str, ...] | None
    row_norm: float
    slopes: np.ndarray
    constants: np.ndarray
    # of Adult: a feature that is no column of the schema
    constant_column: bool = False
    clipping: Clipping | None = None

    @classmethod
    def of(cls, model: dict[str, Any]) -> "FittedModel":
        """From the content of a model.json; a run without one number for each feature has no such model."""
        try:
            schema, named = Schema.from_dict(model["schema"]), model["coefficients"]
            if not isinstance(named, dict):
                raise InputError("model: it is not one number for each feature, so it cannot be applied to a table")
            slopes = np.array([np.atleast_1d(row) for row in named.values()], dtype=np.float64)
            constants = np.zeros(slopes.shape[1]) if model["intercept"] is None else np.atleast_1d(model["intercept"])
            labels = None if model["labels"] is None else tuple(model["labels"])
            extra = list(named)[len(schema.feature_names) :]
            if list(named)[: len(schema.feature_names)] != list(schema.feature_names) or extra not in (
                [],
                ["constant"],
            ):
                raise KeyError("features")
            kind = ProbableModel if model["loss"] in _PROBABLE else cls
            row_norm, clipping = float(model["row_norm"]), None
            if "clipping" in model:
                centre, scale = (np.array(model["clipping"][name], dtype=float) for name in Clipping._fields)
                if not centre.shape == scale.shape == (len(slopes),):
                    raise KeyError("clipping")
                clipping = Clipping(centre, scale)
            return kind(schema, labels, row_norm, slopes, constants.astype(float), bool(extra), clipping)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError("model: model.json is no model of a run") from None

    @classmethod
    def read(cls, run: Path) -> "FittedModel":
        """The model in a run's directory."""
        path = run / "model.json"
        text = _text(path)
        if text is None:
            stopped = (run / transcript_name(complete=False)).exists()
            reason = "the run was stopped, so there is none" if stopped else os.strerror(errno.ENOENT)
            if not run.is_dir():
                raise InputError(f"RUN: {str(run)!r} is no directory; that of a run is needed")
            raise InputError(f"RUN: cannot read {str(path)!r} ({reason})")
        return cls.of(read_json(f"RUN: {str(path)!r}", text))

    def encode(self, table: Table) -> np.ndarray:
        X = self.schema.encode(table)
        return np.column_stack([X, np.ones(len(X))]) if self.constant_column else X

    @property
    def classes_(self) -> np.ndarray:
        return np.arange(len(self.labels or ()))

    def scores(self, X: np.ndarray) -> np.ndarray:
        """(record, output)."""
        rows = project_rows(X, self.row_norm) if self.clipping is None else self.clipping(X, self.row_norm)
        return rows @ self.slopes + self.constants

    def decision_function(self, X: np.ndarray) -> np.ndarray:
        scores = self.scores(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Positions in `labels`, or numbers."""
        scores = self.decision_function(X)
        if self.labels is None:
            return scores
        return (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)


class ProbableModel(FittedModel):
    """A model whose loss knows probabilities."""

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        scores = self.scores(X)
        if scores.shape[1] == 1:
            scores = np.column_stack([np.zeros(len(scores)), scores])
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        return odds / odds.sum(axis=1, keepdims=True)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _numbers(stated: Any) -> dict[str, Any] | None:
    if not isinstance(stated, dict):
        return None
    return {str(name): value for name, value in stated.items() if _number(value)}


def _text(path: Path) -> str | None:
    try:
        return file_text(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"RUN: cannot read {str(path)!r} ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InputError(f"RUN: {str(path)!r} is not UTF-8 text") from None


def _table(path: Path) -> dict[str, Any] | None:
    text = _text(path)
    if text is None:
        return None
    content = read_json(f"RUN: {str(path)!r}", text)
    if not isinstance(content, dict):
        raise InputError(f"RUN: {str(path)!r} holds no table")
    return content
