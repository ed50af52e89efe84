"""The files of a run that a report is made from; `coterie certificate verify` tells whether they agree."""

import dataclasses
import functools
import math
import re
from pathlib import Path
from typing import Any

from coterie.certificate import Certificate
from coterie.data import Schema
from coterie.errors import InputError
from coterie.plan import Plan
from coterie.serialise import file_text, read_json, read_toml

_DATE = re.compile(r"date: (\d{4}-\d{2}-\d{2})")


@dataclasses.dataclass(frozen=True, eq=False)
class RunFiles:
    """What was read; None where there is none: a run that was stopped has no model, one between organisations no spec.
    `date` is the day before whose end the run began, as its log tells."""

    certificate: Certificate
    summary: dict[str, Any]
    spec: dict[str, Any] | None
    model: dict[str, Any] | None
    intervals: dict[str, Any] | None
    date: str | None
    proposal: dict[str, Any] | None = None

    @classmethod
    def read(cls, directory: Path) -> "RunFiles":
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
    def plan(self) -> Plan:
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
