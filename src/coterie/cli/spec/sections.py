"""The tables of a spec, checked, as plain values."""

import dataclasses
from pathlib import Path
from typing import Any

from coterie.data import Schema


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSection:
    """Exactly one of `dataset`, `file` and `files` (party name -> path)."""

    dataset: str | None
    preprocessing: str
    constant_column: bool
    file: Path | None
    files: dict[str, Path] | None
    row_norm: float | str
    weight_column: str | None
    weight_bound: float | str
    min_records: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartiesSection:
    """Who holds what, and who hears whom."""

    column: str | None
    count: int | None
    seed: int
    topology: Any
    topology_seed: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProblemSection:
    loss: str | None
    width: float | None
    threshold: float | None
    l2: float
    l1: float | None
    low: float | None
    high: float | None
    radius: float | None
    record_weight: float | None
    party_weight: float | None
    class_weight: tuple[float, ...] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacySection:
    """Without `epsilon` the noise in [algorithm] is taken as it is, and the loss is what it comes to. `trust` is for an
    algorithm that is left open; `ledger` is the file in which everything spent on these data adds up, and
    `ledger_limit` the (epsilon, delta) that it may not exceed."""

    epsilon: float | None
    delta: float
    adjacency: str
    unit: str
    records_per_person: int
    people_span_parties: bool
    observer: str | None
    trust: str | None
    tuning: str | None
    ledger: Path | None
    ledger_limit: tuple[float, float] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class AlgorithmSection:
    """Without a name the estimators' rules choose the algorithm, and its rounds unless they are given."""

    name: str | None
    rounds: int | None
    settings: dict[str, Any]  # checked where the algorithm is made


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineSection:
    """With a `seed` nothing is private. `checkpoint` and `checkpoint_every` are for the engine 'mpi'."""

    name: str
    seed: int | None
    checkpoint: Path | None
    checkpoint_every: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spec:
    """`text` is the file as it was written; `data_derived` names what the schema says it read off the data."""

    text: str = dataclasses.field(repr=False)
    data: DataSection
    schema: Schema | None
    data_derived: tuple[str, ...]
    parties: PartiesSection
    problem: ProblemSection
    privacy: PrivacySection
    algorithm: AlgorithmSection
    engine: EngineSection
