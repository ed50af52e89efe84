"""A spec: the tables [data], [schema], [parties], [problem], [privacy], [algorithm] and [engine] of one TOML file."""

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

from coterie.cli.spec import keys
from coterie.cli.spec.keys import REQUIRED, Key
from coterie.cli.spec.names import ALGORITHMS, DATASETS, ENGINES, LOSSES, OPEN_SETTINGS, TOPOLOGIES, TRUST, one_of
from coterie.cli.spec.sections import (
    AlgorithmSection,
    DataSection,
    EngineSection,
    PartiesSection,
    PrivacySection,
    ProblemSection,
    Spec,
)
from coterie.data import Schema
from coterie.errors import InputError

SECTIONS = ("data", "schema", "parties", "problem", "privacy", "algorithm", "engine")
SOURCES = ("dataset", "file", "files")
LARGEST_SPEC = 10**7  # bytes; a spec is written by people
DEFAULT_ROUNDS = 20  # of a named algorithm; where none is named, the rules choose them too
LARGEST_SEED = 2**63 - 1


def read_spec(path: str | Path, *, engine: str | None = None) -> Spec:
    """Read and check a spec; paths in it start from its own folder. `engine` takes the place of the one it names."""
    path = Path(path)
    text = read_text(path)
    content = tables_of(text, path)
    data = data_section(content["data"], path.parent)
    schema, data_derived = _schema(content.get("schema"), data, path.parent)
    privacy = privacy_section(content["privacy"], path.parent)
    return Spec(
        text=text,
        data=data,
        schema=schema,
        data_derived=data_derived,
        parties=_parties(content.get("parties", {}), data, schema),
        problem=problem_section(content.get("problem", {})),
        privacy=privacy,
        algorithm=algorithm_section(content.get("algorithm", {}), privacy),
        engine=engine_section(content.get("engine", {}), path.parent, engine),
    )


def tables_of(text: str, path: Path) -> dict[str, Any]:
    """The tables of a spec as TOML gives them, unknown ones refused."""
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # besides TOMLDecodeError: integers of thousands of digits
        raise InputError(f"spec: {str(path)!r} is not TOML ({' '.join(str(error).split())[:200]})") from None
    keys.refuse_unknown("spec", content, SECTIONS)
    for name in ("data", "privacy"):
        if name not in content:
            raise InputError(f"spec: the table [{name}] is missing")
    for name, table in content.items():
        if not isinstance(table, dict):
            raise InputError(f"{name}: got {keys.short(table)}; a table is needed")
    return content


def read_text(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST_SPEC:
            raise InputError(f"spec: {str(path)!r} has more than {LARGEST_SPEC:,} bytes; a TOML spec is needed")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"spec: cannot read {str(path)!r} ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise InputError(f"spec: {str(path)!r} is not UTF-8 text ({error.reason} at byte {error.start})") from None


def data_section(content: Any, folder: Path) -> DataSection:
    def path(where: str, value: Any) -> Path:
        return folder / keys.path(where, value)

    def paths(where: str, value: Any) -> dict[str, Path]:
        if not isinstance(value, dict) or not value:
            raise InputError(f"{where}: got {keys.short(value)}; a table of party = 'path' is needed")
        found = {keys.text(where, party): path(f"{where}.{party}", given) for party, given in value.items()}
        for party, file in found.items():
            twins = [other for other in found if other != party and found[other].absolute() == file.absolute()]
            if twins:
                raise InputError(
                    f"{where}: parties {party!r} and {twins[0]!r} share {str(file)!r}; one file each is needed"
                )
        return found

    table = {
        "dataset": Key(keys.name_in(DATASETS)),
        "preprocessing": Key(keys.name_in(("public", "papers")), "public"),
        "constant_column": Key(keys.boolean, False),
        "file": Key(path),
        "files": Key(paths),
        "row_norm": Key(keys.bound, 1.0),
        "weight_column": Key(keys.text),
        "weight_bound": Key(keys.bound, 1.0),
        "min_records": Key(keys.whole(1), 2),
    }
    section = DataSection(**keys.read_table("data", content, table))
    source = keys.exactly_one("data", content, SOURCES)
    for name in ("preprocessing", "constant_column") if section.dataset != "adult" else ():
        if name in content:
            raise InputError(f"data.{name}: belongs to dataset = 'adult' only")
    if source == "dataset" and section.weight_column is not None:
        raise InputError("data.weight_column: a data set of the package has no weights")
    return section


def _schema(content: Any, data: DataSection, folder: Path) -> tuple[Schema | None, tuple[str, ...]]:
    if data.dataset is not None:
        if content is not None:
            raise InputError(f"schema: got one beside data.dataset = {data.dataset!r}, which has its own; leave it out")
        return None, ()
    if content is None:
        raise InputError("spec: the table [schema] is missing; `coterie schema make` writes one to fill in")
    if isinstance(content, dict) and "file" in content:
        keys.refuse_unknown("schema", content, ("file",))
        return read_schema(folder / keys.text("schema.file", content["file"]))
    return schema_from(content)


def read_schema(path: Path) -> tuple[Schema, tuple[str, ...]]:
    """A schema file, and what it says it read off the data."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"schema: cannot read {str(path)!r} ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"schema: {str(path)!r} is not a TOML file ({' '.join(str(error).split())[:200]})") from None
    return schema_from(content)


def schema_from(content: Any) -> tuple[Schema, tuple[str, ...]]:
    """`data_derived` is ours: `Schema` refuses it, so such a file cannot be taken for a public schema."""
    if not isinstance(content, dict):
        raise InputError(f"schema: got {keys.short(content)}; a table is needed")
    derived = keys.texts("schema.data_derived", content.get("data_derived", []))
    return Schema.from_dict({key: value for key, value in content.items() if key != "data_derived"}), derived


def parties_section(content: Any) -> PartiesSection:
    def topology(where: str, value: Any) -> Any:
        if isinstance(value, list):
            for place, edge in enumerate(value):
                if not isinstance(edge, list) or len(edge) != 2:
                    raise InputError(f"{where}[{place}]: got {keys.short(edge)}; a pair of party numbers is needed")
            return [tuple(keys.whole(0)(where, end) for end in edge) for edge in value]
        return one_of(where, value, TOPOLOGIES)

    table = {
        "column": Key(keys.text),
        "count": Key(keys.whole(1, 10**5)),
        "seed": Key(keys.whole(0, LARGEST_SEED), 0),
        "topology": Key(topology),
        "topology_seed": Key(keys.whole(0, 2**31), 0),
    }
    return PartiesSection(**keys.read_table("parties", content, table))


def _parties(content: Any, data: DataSection, schema: Schema | None) -> PartiesSection:
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
        "loss": Key(keys.name_in(LOSSES)),
        "width": Key(keys.positive),
        "threshold": Key(keys.positive),
        "l2": Key(keys.not_negative, 1.0),
        "l1": Key(keys.not_negative),
        "low": Key(keys.number),
        "high": Key(keys.number),
        "radius": Key(keys.positive),
        "record_weight": Key(keys.positive),
        "party_weight": Key(keys.positive),
        "class_weight": Key(keys.numbers),
    }
    return ProblemSection(**keys.read_table("problem", content, table))


def privacy_section(content: Any, folder: Path) -> PrivacySection:
    table = {
        "epsilon": Key(keys.positive),
        "delta": Key(keys.fraction, REQUIRED),
        "adjacency": Key(keys.name_in(("replace-one", "zero-out")), REQUIRED),
        "unit": Key(keys.name_in(("record", "party")), "record"),
        "records_per_person": Key(keys.whole(1), 1),
        "people_span_parties": Key(keys.boolean, False),
        "observer": Key(keys.text),
        "trust": Key(keys.name_in(TRUST)),
        "tuning": Key(keys.text),
        "ledger": Key(lambda where, value: folder / keys.path(where, value)),
        "ledger_limit": Key(_limit),
    }
    section = PrivacySection(**keys.read_table("privacy", content, table))
    if section.ledger_limit is not None and section.ledger is None:
        raise InputError("privacy.ledger_limit: got one without privacy.ledger, the file that it is the limit of")
    return section


def _limit(where: str, value: Any) -> tuple[float, ...]:
    if not isinstance(value, list) or len(value) != 2:
        raise InputError(f"{where}: got {keys.short(value)}; a pair [epsilon, delta] is needed")
    return keys.positive(f"{where}[0]", value[0]), keys.fraction(f"{where}[1]", value[1])


def algorithm_section(content: Any, privacy: PrivacySection) -> AlgorithmSection:
    if not isinstance(content, dict):
        raise InputError(f"algorithm: got {keys.short(content)}; a table is needed")
    rounds, name = content.get("rounds"), content.get("name")
    if rounds is not None:
        rounds = keys.whole(1, 10**5)("algorithm.rounds", rounds)
    settings = {key: value for key, value in content.items() if key not in ("name", "rounds")}
    if name is None:
        keys.refuse_unknown("algorithm", settings, OPEN_SETTINGS)
        return AlgorithmSection(name=None, rounds=rounds, settings=settings)
    name = one_of("algorithm.name", name, ALGORITHMS)
    if privacy.trust is not None:
        raise InputError(
            f"privacy.trust: got {privacy.trust!r} beside algorithm.name; a named algorithm says whom it trusts by its "
            "channel"
        )
    default = 1 if name == "one-release-average" else DEFAULT_ROUNDS
    return AlgorithmSection(name=name, rounds=rounds or default, settings=settings)


def engine_section(content: Any, folder: Path, name: str | None = None) -> EngineSection:
    if name is not None and isinstance(content, dict):
        content = {**content, "name": name}
    table = {
        "name": Key(keys.name_in(ENGINES), ENGINES[0]),
        "seed": Key(keys.whole(0, LARGEST_SEED)),
        "checkpoint": Key(lambda where, value: folder / keys.path(where, value)),
        "checkpoint_every": Key(keys.whole(1), 10),
    }
    section = EngineSection(**keys.read_table("engine", content, table))
    for name in ("checkpoint", "checkpoint_every") if section.name != "mpi" else ():
        if name in content:
            raise InputError(f"engine.{name}: belongs to the engine 'mpi' only")
    return section
