"""A study: a spec without data. Public facts stand in it instead: who takes part, with how many records, bounds."""

import dataclasses
from pathlib import Path
from typing import Any

from coterie.cli.spec.preparation import make_plan
from coterie.cli.spec.reading import (
    DataSection,
    Key,
    Spec,
    as_positive,
    as_text,
    as_whole,
    check_tables,
    parties_section,
    read_schema,
    read_table,
    read_text,
    refuse_unknown,
    schema_from,
    tables_in,
)
from coterie.data import Label, Schema
from coterie.data.tables import USUAL
from coterie.errors import InputError
from coterie.keys import Identity
from coterie.plan import Plan
from coterie.site.proposal import LARGEST_NORM, Proposal
from coterie.values import Facts

SECTIONS = ("study", "schema", "parties", "bounds", "problem", "privacy", "algorithm", "inference", "engine")
_NEEDED = ("schema", "parties", "privacy")


@dataclasses.dataclass(frozen=True)
class Study:
    """Everything of a proposal but the coordinator's key."""

    plan: Plan
    schema: Schema
    identities: tuple[Identity, ...]
    delta: float
    tuning: str | None
    settings: dict[str, Any]

    def proposal(self, coordinator: Identity) -> Proposal:
        return Proposal(
            self.plan, self.delta, self.schema, self.identities, coordinator, tuning=self.tuning, **self.settings
        )


def read_study(path: Path) -> Study:
    spec, facts, schema, identities, content = _read(path)
    privacy, engine = spec.privacy, spec.engine
    about = read_table("study", content.get("study", {}), _ABOUT)
    settings = {**about, "seed": engine.seed, "intercept": spec.intercept}
    found = make_plan(spec, facts)
    return Study(found, schema, tuple(identities.values()), privacy.delta, privacy.tuning, settings)


def read_study_spec(path: Path) -> tuple[Spec, Facts, Schema]:
    """What a forecast needs of a study."""
    return _read(path)[:3]


def _read(path: Path) -> tuple[Spec, Facts, Schema, dict[str, Identity], dict[str, Any]]:
    text = read_text(path)
    content = _tables(text, path)
    schema, derived = _schema(content["schema"], path.parent)
    if derived:
        raise InputError(f"schema: {', '.join(derived)} in it were read off data; a study has public bounds only")
    sizes, identities, parties = _parties(content["parties"])
    bounds = read_table(
        "bounds",
        content.get("bounds", {}),
        {"row_norm": Key(as_positive, 1.0), "weight_bound": Key(as_positive, 1.0)},
    )
    spec = Spec.of(
        content, text, path, data=_NO_DATA, schema=(schema, ()), parties=parties_section(parties), engine="sites"
    )
    if spec.ledger is not None:
        raise InputError("privacy.ledger: got one; between sites every site keeps its own")
    label = schema.label
    facts = Facts(
        parties=tuple(sizes),
        sizes=tuple(sizes.values()),
        n_features=len(schema.feature_names) + spec.intercept,
        row_norm=bounds["row_norm"],
        labels=label.values if isinstance(label, Label) else None,
        label_bound=None if isinstance(label, Label) else label.bound,
        weight_bound=bounds["weight_bound"],
    )
    return spec, facts, schema, identities, content


_ABOUT = {
    "title": Key(as_text, "A model from several parties' records"),
    "wait_s": Key(as_positive),
    "largest_norm": Key(as_positive, LARGEST_NORM),
}
_NO_DATA = DataSection(
    dataset=None, preprocessing="public", constant_column=False, file=None, files=None, test=None, public=False,
    dialect=USUAL, row_norm=1.0, weight_column=None, weight_bound=1.0, min_records=1,
)  # fmt: skip


def _tables(text: str, path: Path) -> dict[str, Any]:
    content = tables_in("study", text, path)
    if "data" in content:
        raise InputError("study: got the table [data]; a study has none: each site has its own (`coterie site init`)")
    check_tables("study", content, SECTIONS, _NEEDED)
    return content


def _schema(content: dict[str, Any], folder: Path) -> tuple[Schema, tuple[str, ...]]:
    if "file" in content:
        refuse_unknown("schema", content, ("file",))
        return read_schema(folder / as_text("schema.file", content["file"]))
    return schema_from(content)


def _parties(content: dict[str, Any]) -> tuple[dict[str, int], dict[str, Identity], dict[str, Any]]:
    """Sizes and identities, in the order in which a federation has its parties; and what is left for others."""
    known = ("sizes", "identities", "topology", "topology_seed")
    refuse_unknown("parties", content, known)
    for name in ("sizes", "identities"):
        if name not in content or not isinstance(content[name], dict) or not content[name]:
            what = "how many records each holds" if name == "sizes" else "what `coterie site identity` prints at each"
            raise InputError(f"parties.{name}: a table party = ... with {what} is needed")
    sizes, identities = content["sizes"], content["identities"]
    for name in sorted(sizes.keys() ^ identities.keys()):
        missing = "identities" if name in sizes else "sizes"
        raise InputError(f"parties.{missing}: the party {name!r} is missing")
    order = sorted(sizes)
    checked = {name: as_whole(1)(f"parties.sizes.{name}", sizes[name]) for name in order}
    who = {name: Identity.parse(identities[name], f"parties.identities.{name}") for name in order}
    return checked, who, {name: content[name] for name in known[2:] if name in content}
