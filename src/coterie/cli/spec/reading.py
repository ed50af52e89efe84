"""A spec: [data], [schema], [parties], [problem], [privacy], [algorithm], [inference] and [engine] of one TOML file.

Read key by key: every value is checked, and an unknown key is refused with the nearest valid one.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from coterie.algorithms import ALGORITHMS
from coterie.data import DATASETS, Schema
from coterie.data.tables import DELIMITERS, USUAL, Dialect
from coterie.errors import InputError, short
from coterie.network.topology import GRAPHS, UNRESTRICTED
from coterie.problems import LOSSES
from coterie.promise import TRUST, UNITS, Privacy
from coterie.relay.engines import ENGINES as RELAYS
from coterie.values import file_text, nearest, read_toml

SECTIONS = ("data", "schema", "parties", "problem", "privacy", "algorithm", "inference", "engine")
SOURCES = ("dataset", "file", "files")
ENGINES = ("in-process", "mpi", *RELAYS)
# characters; a spec is written by people
LARGEST_SPEC = 10**7
LARGEST_SEED = 2**63 - 1
PRIVATE = "private"

Check = Callable[[str, Any], Any]
REQUIRED: Any = object()
# squares of larger numbers leave the range of float64
LARGEST = 1e100


class Key(NamedTuple):
    check: Check
    default: Any = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSection:
    """Exactly one of `dataset`, `file` and `files` (party name -> path). `test` is a file of public records, `public`
    says that all records are; `dialect` is how CSV files are written; `purpose` is what the model is for, in words;
    `standardise` is "private" where columns are standardised by noised sums, "none" where they stay as they are."""

    dataset: str | None
    preprocessing: str
    constant_column: bool
    file: Path | None
    files: dict[str, Path] | None
    test: Path | None
    public: bool
    dialect: Dialect
    row_norm: float | str
    weight_column: str | None
    weight_bound: float | str
    min_records: int
    purpose: str | None = None
    standardise: str | None = None


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
    l2: float | None
    l1: float | None
    low: float | None
    high: float | None
    radius: float | None
    record_weight: float | None
    party_weight: float | None
    class_weight: tuple[float, ...] | None
    intercept: bool | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class AlgorithmSection:
    """What is None, or not among `settings`, is left to the rules."""

    name: str | None
    rounds: int | None
    # checked where the algorithm is made
    settings: dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class InferenceSection:
    """What intervals are released for: `share` of the budget (by the rules where it is None), and their `level`."""

    share: float | None
    robust: bool
    level: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineSection:
    """With a `seed` nothing is private. `checkpoint` and `checkpoint_every` are for the engine 'mpi'."""

    name: str
    seed: int | None
    checkpoint: Path | None
    checkpoint_every: int

    @property
    def between_sites(self) -> bool:
        """Every party's records are in a process of its own, whatever carries its packets."""
        return self.name in RELAYS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spec:
    """`text` is the file as it was written; `data_derived` names what the schema says it read off the data; `ledger` is
    the file in which everything spent on these data adds up, and `ledger_limit` what it may not exceed."""

    text: str = dataclasses.field(repr=False)
    data: DataSection
    schema: Schema | None
    data_derived: tuple[str, ...]
    parties: PartiesSection
    problem: ProblemSection
    privacy: Privacy
    ledger: Path | None
    ledger_limit: tuple[float, float] | None
    algorithm: AlgorithmSection
    inference: InferenceSection | None
    engine: EngineSection

    @classmethod
    def of(
        cls,
        content: dict[str, Any],
        text: str,
        path: Path,
        *,
        data: DataSection,
        schema: tuple[Schema | None, tuple[str, ...]],
        parties: PartiesSection,
        engine: str | None = None,
    ) -> "Spec":
        """From the tables of the file at `path`; `schema` with what it says it read off the data."""
        privacy, ledger, limit = privacy_section(content["privacy"], path.parent)
        return cls(
            text=text,
            data=data,
            schema=schema[0],
            data_derived=schema[1],
            parties=parties,
            problem=problem_section(content.get("problem", {})),
            privacy=privacy,
            ledger=ledger,
            ledger_limit=limit,
            algorithm=algorithm_section(content.get("algorithm", {})),
            inference=inference_section(content.get("inference")),
            engine=engine_section(content.get("engine", {}), path.parent, engine),
        )

    @property
    def intercept(self) -> bool:
        """Whether the design has a constant column; the papers' own preprocessing has none unless it is asked for."""
        said = self.problem.intercept
        return self.data.preprocessing != "papers" if said is None else said


def read_spec(path: str | Path, *, engine: str | None = None) -> Spec:
    """Read and check a spec; paths in it start from its own folder. `engine` takes the place of the one it names."""
    path = Path(path)
    text = read_text(path)
    content = tables_of(text, path)
    data = data_section(content["data"], path.parent)
    schema = _schema(content.get("schema"), data, path.parent)
    parties = parties_of(content.get("parties", {}), data, schema[0])
    spec = Spec.of(content, text, path, data=data, schema=schema, parties=parties, engine=engine)
    if spec.inference is not None and data.preprocessing == "papers":
        raise InputError("inference: got one with the papers' preprocessing, which has no units; 'public' is needed")
    return spec


def tables_of(text: str, path: Path) -> dict[str, Any]:
    """The tables of a spec as TOML gives them, unknown ones refused."""
    content = tables_in("spec", text, path)
    if "study" in content:
        raise InputError("spec: got the table [study]; a study has no data, and is for `coterie propose` or `plan`")
    check_tables("spec", content, SECTIONS, ("data", "privacy"))
    return content


def read_text(path: Path) -> str:
    try:
        # also of a pipe, but not of what has no end
        with path.open(encoding="utf-8") as file:
            text = file.read(LARGEST_SPEC + 1)
    except OSError as error:
        raise InputError(f"spec: cannot read {str(path)!r} ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise InputError(f"spec: {str(path)!r} is not UTF-8 text ({error.reason} at byte {error.start})") from None
    if len(text) > LARGEST_SPEC:
        raise InputError(f"spec: {str(path)!r} has more than {LARGEST_SPEC:,} characters; a TOML spec is needed")
    return text


def data_section(content: Any, folder: Path) -> DataSection:
    def path(where: str, value: Any) -> Path:
        return folder / as_path(where, value)

    def paths(where: str, value: Any) -> dict[str, Path]:
        if not isinstance(value, dict) or not value:
            raise InputError(f"{where}: got {short(value)}; a table of party = 'path' is needed")
        found = {as_text(where, party): path(f"{where}.{party}", given) for party, given in value.items()}
        for party, file in found.items():
            twins = [other for other in found if other != party and found[other].absolute() == file.absolute()]
            if twins:
                raise InputError(
                    f"{where}: parties {party!r} and {twins[0]!r} share {str(file)!r}; one file each is needed"
                )
        return found

    table = {
        "dataset": Key(name_in(DATASETS)),
        "preprocessing": Key(name_in(("public", "papers")), "public"),
        "constant_column": Key(as_boolean, False),
        "file": Key(path),
        "files": Key(paths),
        "test": Key(path),
        "public": Key(as_boolean, False),
        "delimiter": Key(name_in(DELIMITERS)),
        "encoding": Key(as_text, USUAL.encoding),
        "row_norm": Key(as_bound, 1.0),
        "weight_column": Key(as_text),
        "weight_bound": Key(as_bound, 1.0),
        "min_records": Key(as_whole(1), 2),
        "purpose": Key(as_text),
        "standardise": Key(name_in((PRIVATE, "none"))),
    }
    values = read_table("data", content, table)
    source, delimiter, encoding = exactly_one("data", content, SOURCES), values.pop("delimiter"), values.pop("encoding")
    # a data set of the package is no CSV file
    dialect = USUAL if source == "dataset" else Dialect.checked("data.", delimiter, encoding)
    section = DataSection(dialect=dialect, **values)
    for name in ("delimiter", "encoding") if source == "dataset" else ():
        if name in content:
            raise InputError(f"data.{name}: a data set of the package is not read from a CSV file; leave it out")
    if section.test is not None and source == "dataset":
        raise InputError("data.test: a data set of the package has its own test records; leave it out")
    for name in ("preprocessing", "constant_column") if section.dataset != "adult" else ():
        if name in content:
            raise InputError(f"data.{name}: belongs to dataset = 'adult' only")
    if source == "dataset" and section.weight_column is not None:
        raise InputError("data.weight_column: a data set of the package has no weights")
    return section


def _schema(content: Any, data: DataSection, folder: Path) -> tuple[Schema | None, tuple[str, ...]]:
    file = schema_file(content, data)
    if file is not None:
        return read_schema(folder / file)
    return (None, ()) if data.dataset is not None else schema_from(content)


def schema_file(content: Any, data: DataSection) -> str | None:
    """The file in which the schema is, if it is in one; refused where there is one too many or none."""
    if data.dataset is not None:
        if content is not None:
            raise InputError(f"schema: got one beside data.dataset = {data.dataset!r}, which has its own; leave it out")
        return None
    if content is None:
        raise InputError("spec: the table [schema] is missing; `coterie schema make` writes one to fill in")
    if not isinstance(content, dict) or "file" not in content:
        return None
    refuse_unknown("schema", content, ("file",))
    return as_text("schema.file", content["file"])


def read_schema(path: Path) -> tuple[Schema, tuple[str, ...]]:
    """A schema file, and what it says it read off the data."""
    try:
        content = read_toml(file_text(path, LARGEST_SPEC))
    except OSError as error:
        raise InputError(f"schema: cannot read {str(path)!r} ({error.strerror})") from None
    except ValueError as error:
        raise InputError(f"schema: {str(path)!r} is not a TOML file ({error})") from None
    return schema_from(content)


def schema_from(content: Any) -> tuple[Schema, tuple[str, ...]]:
    """`data_derived` is ours: `Schema` refuses it, so such a file cannot be taken for a public schema."""
    if not isinstance(content, dict):
        raise InputError(f"schema: got {short(content)}; a table is needed")
    derived = as_texts("schema.data_derived", content.get("data_derived", []))
    return Schema.from_dict({key: value for key, value in content.items() if key != "data_derived"}), derived


def parties_section(content: Any) -> PartiesSection:
    def topology(where: str, value: Any) -> Any:
        if isinstance(value, list):
            for place, edge in enumerate(value):
                if not isinstance(edge, list) or len(edge) != 2:
                    raise InputError(f"{where}[{place}]: got {short(edge)}; a pair of party numbers is needed")
            return [tuple(as_whole(0)(where, end) for end in edge) for edge in value]
        return one_of(where, value, (*GRAPHS, UNRESTRICTED))

    table = {
        "column": Key(as_text),
        "count": Key(as_whole(1, 10**5)),
        "seed": Key(as_whole(0, LARGEST_SEED), 0),
        "topology": Key(topology),
        "topology_seed": Key(as_whole(0, 2**31), 0),
    }
    return PartiesSection(**read_table("parties", content, table))


def parties_of(content: Any, data: DataSection, schema: Schema | None) -> PartiesSection:
    section = parties_section(content)
    if section.column is not None and (data.file is None or section.count is not None):
        raise InputError(f"parties.column: got {section.column!r}; it goes with data.file, and not with parties.count")
    if data.files is not None and section.count is not None:
        raise InputError(f"parties.count: got {section.count}; data.files has one file per party")
    if data.file is not None and section.column is None and section.count is None:
        if schema is None or schema.party_column is None:
            raise InputError("parties: no party column is given; parties.column or the schema's party_column is needed")
        return dataclasses.replace(section, column=schema.party_column)
    return section


def problem_section(content: Any) -> ProblemSection:
    table = {
        "loss": Key(name_in(LOSSES)),
        "width": Key(as_positive),
        "threshold": Key(as_positive),
        "l2": Key(as_not_negative),
        "l1": Key(as_not_negative),
        "low": Key(as_number),
        "high": Key(as_number),
        "radius": Key(as_positive),
        "record_weight": Key(as_positive),
        "party_weight": Key(as_positive),
        "class_weight": Key(as_numbers),
        "intercept": Key(as_boolean),
    }
    return ProblemSection(**read_table("problem", content, table))


def privacy_section(content: Any, folder: Path) -> tuple[Privacy, Path | None, tuple[float, float] | None]:
    """What is promised, and file and limit of the ledger, which is opened when something is charged to it."""
    table = {
        "epsilon": Key(as_positive),
        "delta": Key(as_fraction, REQUIRED),
        "adjacency": Key(name_in(("replace-one", "zero-out")), REQUIRED),
        "unit": Key(name_in(UNITS), "record"),
        "records_per_person": Key(as_whole(1), 1),
        "people_span_parties": Key(as_boolean, False),
        "trust": Key(name_in(TRUST), "none"),
        "colluders": Key(as_whole(0)),
        "observer": Key(as_text),
        "tuning": Key(as_text),
        "ledger": Key(lambda where, value: folder / as_path(where, value)),
        "ledger_limit": Key(_limit),
    }
    values = read_table("privacy", content, table)
    ledger, limit = values.pop("ledger"), values.pop("ledger_limit")
    if limit is not None and ledger is None:
        raise InputError("privacy.ledger_limit: got one without privacy.ledger, the file that it is the limit of")
    return Privacy(**values), ledger, limit


def _limit(where: str, value: Any) -> tuple[float, float]:
    if not isinstance(value, list) or len(value) != 2:
        raise InputError(f"{where}: got {short(value)}; a pair [epsilon, delta] is needed")
    return as_positive(f"{where}[0]", value[0]), as_fraction(f"{where}[1]", value[1])


def algorithm_section(content: dict[str, Any]) -> AlgorithmSection:
    rounds, name = content.get("rounds"), content.get("name")
    return AlgorithmSection(
        name=None if name is None else one_of("algorithm.name", name, ALGORITHMS),
        rounds=None if rounds is None else as_whole(1, 10**5)("algorithm.rounds", rounds),
        settings={key: value for key, value in content.items() if key not in ("name", "rounds")},
    )


def inference_section(content: Any) -> InferenceSection | None:
    """None where the spec has no such table; an empty one asks for everything by the rules."""
    if content is None:
        return None
    table = {
        "share": Key(as_fraction),
        "robust": Key(as_boolean, False),
        "level": Key(as_fraction, 0.95),
    }
    return InferenceSection(**read_table("inference", content, table))


def engine_section(content: Any, folder: Path, name: str | None = None) -> EngineSection:
    if name is not None and isinstance(content, dict):
        content = {**content, "name": name}
    table = {
        "name": Key(name_in(ENGINES), ENGINES[0]),
        "seed": Key(as_whole(0, LARGEST_SEED)),
        "checkpoint": Key(lambda where, value: folder / as_path(where, value)),
        "checkpoint_every": Key(as_whole(1), 10),
    }
    section = EngineSection(**read_table("engine", content, table))
    for name in ("checkpoint", "checkpoint_every") if section.name != "mpi" else ():
        if name in content:
            raise InputError(f"engine.{name}: belongs to the engine 'mpi' only")
    return section


# --- tables, key by key -----------------------------------------------------------------------------------------------


def tables_in(what: str, text: str, path: Path) -> dict[str, Any]:
    try:
        return read_toml(text)
    except ValueError as error:
        raise InputError(f"{what}: {str(path)!r} is not TOML ({error})") from None


def check_tables(what: str, content: dict[str, Any], known: Iterable[str], needed: Iterable[str]) -> None:
    refuse_unknown(what, content, known)
    for name in needed:
        if name not in content:
            raise InputError(f"{what}: the table [{name}] is missing")
    for name, table in content.items():
        if not isinstance(table, dict):
            raise InputError(f"{name}: got {short(table)}; a table is needed, the line [{name}] with its keys below it")


def read_table(where: str, content: Any, keys: dict[str, Key]) -> dict[str, Any]:
    """The checked values of all keys, defaults where nothing is given."""
    if not isinstance(content, dict):
        raise InputError(f"{where}: got {short(content)}; a table is needed")
    refuse_unknown(where, content, keys)
    values = {}
    for name, key in keys.items():
        if name in content:
            values[name] = key.check(f"{where}.{name}", content[name])
        elif key.default is REQUIRED:
            raise InputError(f"{where}: key {name!r} is missing")
        else:
            values[name] = key.default
    return values


def refuse_unknown(where: str, content: dict[str, Any], known: Iterable[str]) -> None:
    known = list(known)
    for name in content:
        if name not in known:
            hint = f" ([{name}] is a table of its own)" if name in SECTIONS else nearest(name, known)
            raise InputError(f"{where}: unknown key {name!r}{hint}; keys are {', '.join(known)}")


def exactly_one(where: str, content: dict[str, Any], names: Iterable[str]) -> str:
    names = list(names)
    given = [name for name in names if name in content]
    if len(given) != 1:
        got = " and ".join(given) or "none of them"
        raise InputError(f"{where}: got {got}; exactly one of {', '.join(names)} is needed")
    return given[0]


def as_text(where: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{where}: got {short(value)}; a text that is not empty is needed")
    return value


def as_path(where: str, value: Any) -> str:
    if "\0" in as_text(where, value):
        raise InputError(f"{where}: got {value!r}; a path is needed")
    return value


def as_texts(where: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise InputError(f"{where}: got {short(value)}; a list of texts is needed")
    return tuple(as_text(f"{where}[{place}]", item) for place, item in enumerate(value))


def as_boolean(where: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"{where}: got {short(value)}; true or false is needed")
    return value


def as_number(where: str, value: Any) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or value in (math.inf, -math.inf) or value != value:
        raise InputError(f"{where}: got {short(value)}; a finite number is needed")
    if abs(value) > LARGEST:
        raise InputError(f"{where}: got {short(value)}; a number between -{LARGEST:g} and {LARGEST:g} is needed")
    return float(value)


def as_not_negative(where: str, value: Any) -> float:
    if as_number(where, value) < 0:
        raise InputError(f"{where}: got {value}; a number >= 0 is needed")
    return float(value)


def as_positive(where: str, value: Any) -> float:
    if as_number(where, value) <= 0 or value < 1 / LARGEST:
        raise InputError(f"{where}: got {value}; a positive number is needed")
    return float(value)


def as_numbers(where: str, value: Any) -> tuple[float, ...]:
    if not isinstance(value, list) or not value:
        raise InputError(f"{where}: got {short(value)}; a list of numbers is needed")
    return tuple(as_number(f"{where}[{place}]", item) for place, item in enumerate(value))


def as_bound(where: str, value: Any) -> float | str:
    """A public bound, or the request to read it off the data, which voids the guarantee."""
    if value == "from-data":
        return value
    if isinstance(value, str):
        raise InputError(f"{where}: got {value!r}; a positive number or 'from-data' is needed")
    return as_positive(where, value)


def as_whole(at_least: int, at_most: int = 10**6) -> Check:
    def check(where: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not at_least <= value <= at_most:
            raise InputError(f"{where}: got {short(value)}; an integer from {at_least} to {at_most} is needed")
        return value

    return check


def as_fraction(where: str, value: Any) -> float:
    if not 0 < as_number(where, value) < 1 or not math.isfinite(1 / value):
        raise InputError(f"{where}: got {value}; a number strictly between 0 and 1 is needed")
    return float(value)


def one_of(where: str, value: Any, names: Iterable[str]) -> str:
    """The value, if it is one of the names."""
    names = list(names)
    if not isinstance(value, str) or value not in names:
        raise InputError(f"{where}: got {value!r}; one of {', '.join(names)} is needed{nearest(value, names)}")
    return value


def name_in(names: Iterable[str]) -> Check:
    names = list(names)
    return lambda where, value: one_of(where, value, names)
