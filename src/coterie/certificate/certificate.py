"""A certificate: made from a plan, written as JSON or as a page for people, read back and recomputed."""

import dataclasses
import decimal
import functools
import hashlib
import html
import json
import math
import platform
import re
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import coterie
from coterie.certificate.signatures import check_section
from coterie.certificate.statements import DESIGN, EXECUTION, Declared, Past, number, statements, void_reasons
from coterie.charts import table_html
from coterie.errors import AuditError, InputError, short
from coterie.keys import Identity
from coterie.plan import Plan
from coterie.privacy.accountants import check_delta
from coterie.values import check_plain, read_json

FORMAT = "coterie-certificate-1"
_VERSION = re.compile(r"[0-9A-Za-z.+!_-]{1,80}")
# relative; other machines round the last digits differently
SAME_NUMBER = 1e-9


@dataclasses.dataclass(frozen=True)
class View:
    """The loss against one observer; `party_epsilons` in the order of the plan's parties."""

    observer: str
    sees: str
    epsilon: float
    party_epsilons: tuple[float, ...]


def make_certificate(
    plan: Plan,
    delta: float,
    *,
    reproducible: bool,
    rounds_done: int | None = None,
    past: Past = (),
    tuning: str | None = None,
    audit: dict[str, Any] | None = None,
    engine: str = "in-process",
    design: str = "declared",
    sites: dict[str, Any] | None = None,
) -> "Certificate":
    """The certificate of one run of `plan`.

    reproducible: the noise came from a seed, so nothing is private.
    past: (description, epsilon, delta) of what was released from the same data before; the total is stated.
    tuning: what choosing the settings cost, in words. audit: results of an audit, as plain JSON values. engine: what
    carried the plan out. design: "schema" where a public schema encoded the columns, else "declared". sites: who signed
    it, as `signatures.section` has it.
    """
    check_delta(delta)
    if not isinstance(tuning, (str, type(None))) or not isinstance(audit, (dict, type(None))):
        raise InputError(f"tuning, audit: got {short(tuning)}, {short(audit)}; a text and a table, or None, are needed")
    if engine not in EXECUTION:
        raise InputError(f"engine: got {engine!r}; one of {', '.join(EXECUTION)} is needed")
    if design not in DESIGN:
        raise InputError(f"design: got {design!r}; one of {', '.join(DESIGN)} is needed")
    checked_past = _checked_past(past)
    check_plain("tuning, audit, past", _texts([tuning, audit, [what for what, _, _ in checked_past]]))
    rounds_done = _checked_rounds(plan, rounds_done)
    declared = Declared(delta, bool(reproducible), rounds_done, checked_past, tuning, audit, engine, design, sites)
    document = {
        "format": FORMAT,
        **statements(plan, declared),
        "software": software(),
        "plan_digest": plan.digest,
        "plan": json.loads(plan.to_json()),
    }
    return Certificate({**document, "digest": _digest(document)})


@dataclasses.dataclass(frozen=True)
class Certificate:
    """`document` is the JSON content; `verify` tells whether it says what its plan implies."""

    document: dict[str, Any] = dataclasses.field(repr=False)

    @property
    def epsilon(self) -> float:
        """Against the strongest observer, for the worst party, of this run alone."""
        return _read_number(self.document["guarantee"]["epsilon"])

    @property
    def delta(self) -> float:
        return self.document["guarantee"]["delta"]

    @property
    def total_epsilon(self) -> float:
        """With everything that was released from the same data before."""
        return _read_number(self.document["total"]["epsilon"])

    @property
    def total_delta(self) -> float:
        return self.document["total"]["delta"]

    @property
    def views(self) -> list[View]:
        return [
            View(v["observer"], v["sees"], _read_number(v["epsilon"]), tuple(map(_read_number, v["party_epsilons"])))
            for v in self.document["views"]
        ]

    @property
    def party_epsilons(self) -> tuple[float, ...]:
        return self.views[0].party_epsilons

    @property
    def plan(self) -> Plan:
        return Plan.from_json(json.dumps(self.document["plan"]))

    @property
    def void(self) -> tuple[str, ...]:
        """Why this is no guarantee: facts that were read off the data."""
        return void_reasons(self.plan)

    @property
    def not_private(self) -> bool:
        """The noise came from a seed."""
        return self.document["randomness"]["reproducible"]

    @property
    def verdict(self) -> tuple[str, ...]:
        """What must be read before any number; empty where there is nothing to warn of."""
        return tuple(self.document["verdict"])

    @property
    def signers(self) -> list[tuple[str, Identity]]:
        """Parties and the keys they signed with, every signature checked, and that it is under the loss that is stated
        here; nobody where no sites took part."""
        sites = self.document.get("sites")
        if sites is None:
            return []
        done, planned = self.document["rounds"]["done"], self.plan.n_rounds
        if done != planned:
            raise InputError(f"certificate: a run is signed at its end, and {done} of {planned} rounds are certified")
        who = check_section(sites, self.plan)
        for entry, loss in zip(sites["signed"], self._charged, strict=True):
            statement = entry["statement"]
            for name, certified in (("delta", self.delta), ("epsilon", number(loss))):
                if not _same(certified, statement[name], 0.0):
                    raise InputError(f"certificate: {statement['party']!r} has signed another {name}")
        return who

    @property
    def _charged(self) -> tuple[float, ...]:
        """To each party's ledger, in the order of the plan's parties."""
        n_parties = self.plan.facts.n_parties
        if self.not_private or self.void:
            return (math.inf,) * n_parties
        return (self.epsilon,) * n_parties if self.plan.people_span_parties else self.party_epsilons

    def to_json(self) -> str:
        return json.dumps(self.document, indent=1, ensure_ascii=False, allow_nan=False)

    def to_markdown(self) -> str:
        return as_markdown(self.document)

    def __str__(self) -> str:
        return self.to_markdown()

    def _repr_html_(self) -> str:
        document, guarantee = self.document, self.document["guarantee"]
        loss = f"ε = {shown_loss(self.epsilon)} at δ = {shown_loss(self.delta)}"
        total = f"ε = {shown_loss(self.total_epsilon)} at δ = {shown_loss(self.total_delta)}"
        rows = [
            *(("WARNING", text) for text in self.verdict),
            ("privacy loss", loss),
            ("against anybody who sees", document["views"][0]["sees"]),
            ("unit of privacy", f"{guarantee['unit_of_privacy']}; {guarantee['adjacency']}"),
            *([("with earlier releases", total)] if document["past"] else []),
            ("trust model", document["trust_model"]["model"]),
            ("mechanism", f"{document['mechanism']['algorithm']}, noise: {document['mechanism']['noise']}"),
            ("digest", document["digest"][:16]),
        ]
        return table_html(("", ""), rows, "Privacy certificate; print it for the whole page")

    @classmethod
    def from_json(cls, text: str) -> "Certificate":
        document = read_json("certificate", text)
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise InputError(f"certificate: no {FORMAT!r} is in this file; a certificate.json is needed")
        return cls(document)

    def verify(self) -> tuple[str, ...]:
        """Recompute all that follows from the embedded plan and refuse any difference; what could not be checked is
        returned as sentences."""
        content = {key: value for key, value in self.document.items() if key != "digest"}
        if self.document.get("digest") != _digest(content):
            raise InputError("certificate: its digest does not fit its content; it was changed after it was made")
        try:
            plan, declared = self.plan, self._declared()
            plan.check_flow()
            _check_software(self.document["software"])
            _ = self.signers
            again = make_certificate(plan, **declared._asdict()).document
            compare(
                "", {**again, "software": None, "digest": None}, {**self.document, "software": None, "digest": None}
            )
        except InputError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError, MemoryError) as error:
            raise InputError(f"certificate: it cannot be read ({type(error).__name__}: {error})") from None
        return tuple(self._unchecked())

    def audited(self, found: dict[str, Any]) -> "Certificate":
        """The same certificate with what `coterie.audit.audit_plan` found about it; refused where a check failed."""
        if found["verdict"] != "pass":
            raise AuditError(f"audit: {', '.join(found['failed'])} failed; this certificate must not be used")
        return make_certificate(self.plan, **self._declared()._replace(audit=found)._asdict())

    def _declared(self) -> Declared:
        """What the certificate was told; read back so that everything else can be worked out again."""
        document = self.document
        past = [(entry["what"], _read_number(entry["epsilon"]), entry["delta"]) for entry in document["past"]]
        audit = document["audit"]
        return Declared(
            delta=self.delta,
            reproducible=self.not_private,
            rounds_done=document["rounds"]["done"],
            past=past,
            tuning=document["tuning"],
            audit=audit if isinstance(audit, dict) else None,
            engine=document["execution"]["engine"],
            design=document["design"]["by"],
            sites=document.get("sites"),
        )

    def _unchecked(self) -> list[str]:
        notes = [
            "randomness, past releases, tuning, design and audit are declarations: a plan cannot tell whether they are "
            "true"
        ]
        made, here = self.document["software"], software()
        if made["package_digest"] != here["package_digest"]:
            notes.append(
                f"made by other code (coterie {made['coterie']}); this is coterie {here['coterie']}, which agrees"
            )
        others = [
            f"{name} {made.get(name, 'absent')} (here {here.get(name, 'absent')})"
            for name in (*ALWAYS, *EXTRAS)
            if made.get(name) != here.get(name) and name not in ("coterie", "package_digest")
        ]
        if others:
            notes.append(f"made with {', '.join(others)}")
        return notes


def _read_number(value: Any) -> float:
    if value == "infinite":
        return math.inf
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"certificate: got {value!r} where a number is needed")
    return float(value)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str) and value:
        yield value
    elif isinstance(value, dict):
        for key, content in value.items():
            yield from _texts(key)
            yield from _texts(content)
    elif isinstance(value, (list, tuple)):
        for content in value:
            yield from _texts(content)


def _checked_rounds(plan: Plan, rounds_done: Any) -> int | None:
    whole = isinstance(rounds_done, int) and not isinstance(rounds_done, bool)
    if rounds_done is not None and not (whole and 0 <= rounds_done <= plan.n_rounds):
        raise InputError(f"rounds_done: got {rounds_done!r}; an integer from 0 to {plan.n_rounds} is needed")
    return rounds_done


def _checked_past(past: Any) -> Past:
    entries: list[tuple[str, float, float]] = []
    for entry in past:
        match entry:
            case [str(what), int() | float() as epsilon, int() | float() as delta] if epsilon >= 0 and 0 <= delta <= 1:
                entries.append((what, float(epsilon), float(delta)))
            case _:
                raise InputError(f"past: got {entry!r}; (description, epsilon >= 0, delta in [0, 1]) is needed")
    return entries


def _check_software(made: Any) -> None:
    """Other versions are allowed, and so is an extra that only one side has; other fields are not."""
    fits = isinstance(made, dict) and {*ALWAYS} <= made.keys() <= {*ALWAYS, *EXTRAS}
    if not fits or not all(isinstance(version, str) and _VERSION.fullmatch(version) for version in made.values()):
        raise InputError(f"certificate: software is {short(made)}; versions of {', '.join(ALWAYS)} are needed")


def _digest(content: dict[str, Any]) -> str:
    try:
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"certificate: plain JSON values are needed ({error})") from None
    return hashlib.sha256(text.encode()).hexdigest()


def compare(where: str, computed: Any, stated: Any, *, near_zero: float = 0.0) -> None:
    """Refuse the first difference between what follows from the plan and what is stated."""
    if isinstance(computed, dict) and isinstance(stated, dict):
        for key in sorted(computed.keys() | stated.keys(), key=str):
            if key not in computed or key not in stated:
                what = "is missing" if key in computed else "does not belong there"
                raise InputError(f"certificate: {where}{key} {what}; it was changed after it was made")
            compare(f"{where}{key}.", computed[key], stated[key], near_zero=near_zero)
    elif isinstance(computed, list) and isinstance(stated, list) and len(computed) == len(stated):
        for position, pair in enumerate(zip(computed, stated, strict=True)):
            compare(f"{where}{position}.", *pair, near_zero=near_zero)
    elif not _same(computed, stated, near_zero):
        raise InputError(
            f"certificate: {where.rstrip('.')} is stated as {short(stated)}, but its plan gives {short(computed)}"
        )


def _same(computed: Any, stated: Any, near_zero: float) -> bool:
    numbers = [isinstance(v, (int, float)) and not isinstance(v, bool) for v in (computed, stated)]
    if all(numbers):
        return math.isclose(computed, stated, rel_tol=SAME_NUMBER, abs_tol=near_zero)
    return type(computed) is type(stated) and computed == stated


# --- which software made it: versions, and a digest of the package's own files ----------------------------------------

_NUMERICS = ("numpy", "scipy", "jax")
ALWAYS = ("coterie", "package_digest", "python", *_NUMERICS)
# whose code may have computed releases
EXTRAS = ("numba",)


@functools.cache
def package_digest() -> str:
    """SHA-256 over the names and contents of all files of the installed package, compiled ones apart."""
    root = Path(coterie.__file__).parent
    total = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.suffix in (".py", ".toml", ".npz", ".md"):
            total.update(
                path.relative_to(root).as_posix().encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest()
            )
    return total.hexdigest()


@functools.cache
def software() -> dict[str, str]:
    versions = {name: metadata.version(name) for name in (*_NUMERICS, *EXTRAS) if find_spec(name) is not None}
    return {
        "coterie": coterie.__version__,
        "package_digest": package_digest(),
        "python": platform.python_version(),
        **versions,
    }


# --- as a page for people ---------------------------------------------------------------------------------------------


# rows of a table that somebody would still read
MOST_PARTIES = 50


def as_markdown(document: dict[str, Any]) -> str:
    guarantee, total = document["guarantee"], document["total"]
    lines = ["# Privacy certificate", ""]
    for warning in document["verdict"]:
        lines += [f"> **{plain(warning)}.**", ""]
    loss = f"**ε = {shown_loss(guarantee['epsilon'])} at δ = {shown_loss(guarantee['delta'])}**"
    lines += [
        f"{loss} for {guarantee['unit_of_privacy']}, against anybody who sees {document['views'][0]['sees']}.",
        "",
    ]
    if document["past"]:
        loss = f"**ε = {shown_loss(total['epsilon'])} at δ = {shown_loss(total['delta'])}**"
        lines += [f"With what was released from the same data before: {loss}.", ""]
    trust, accountant, rounds = document["trust_model"], document["accountant"], document["rounds"]
    mechanism, randomness = document["mechanism"], document["randomness"]
    charged = f"{rounds['done']} of {rounds['planned']} done, {rounds['charged']} charged"
    lines += _table(
        ("", ""),
        [
            ("definition", guarantee["definition"]),
            ("unit of privacy", guarantee["unit_of_privacy"]),
            ("neighbouring data", f"{guarantee['adjacency']}; {guarantee['neighbouring_data']}"),
            ("trust model", f"{trust['model']} ({trust['channel']}): {trust['who_is_trusted']}"),
            ("execution", f"{document['execution']['engine']}: {document['execution']['what']}"),
            ("mechanism", f"{mechanism['algorithm']}: {mechanism['mechanism']}, noise: {mechanism['noise']}"),
            *((f"round {t}", _moment(one)) for t, one in enumerate(document.get("first_rounds", ()), start=1)),
            *(("after the rounds", _moment(one)) for one in document.get("after_the_rounds", ())),
            ("accountant", f"{accountant['used']}: {accountant['how']}"),
            ("randomness", randomness["source"]),
            ("design", document["design"]["what"]),
            ("rounds", f"{charged}; {rounds['fixed_in_advance']}"),
            ("tuning", document["tuning"]),
            ("audit", _audit(document["audit"])),
        ],
    )
    lines += ["", "## Loss by observer", ""]
    lines += _table(
        ("observer", "sees", "ε"), [(v["observer"], v["sees"], shown_loss(v["epsilon"])) for v in document["views"]]
    )
    lines += ["", "## Loss by party", "", *_parties(document)]
    lines += ["", "## Where the bounds came from", ""]
    lines += _table(
        ("bound", "value", "source", "enforced"),
        [(b["bound"], _value(b["value"]), b["source"], b["enforced"]) for b in document["bounds"]],
    )
    if document["past"]:
        lines += ["", "## Earlier releases from the same data", "", f"{total['how'].capitalize()}.", ""]
        lines += _table(
            ("what", "ε", "δ"),
            [(p["what"], shown_loss(p["epsilon"]), shown_loss(p["delta"])) for p in document["past"]],
        )
    if "sites" in document:
        lines += ["", "## Signed by every site", "", "Over plan, everything released and the entry of its ledger.", ""]
        signed = [(entry["statement"], entry["identity"]) for entry in document["sites"]["signed"]]
        lines += _table(
            ("party", "ledger entry", "key"), [(one["party"], one["ledger_entry"], key) for one, key in signed]
        )
    lines += ["", "## Not covered", "", *(f"* {sentence}" for sentence in document["not_covered"])]
    lines += ["", "## Cite", "", *(f"* {text}" for text in document["cite"])]
    software = {k: v for k, v in document["software"].items() if k != "package_digest"}
    lines += [
        "",
        "## Digests",
        "",
        *_table(
            ("", ""),
            [
                ("software", ", ".join(f"{name} {version}" for name, version in software.items())),
                ("package", document["software"]["package_digest"]),
                ("plan", document["plan_digest"]),
                ("certificate", document["digest"]),
            ],
        ),
        "",
        "Words as in NIST SP 800-226. `coterie certificate verify certificate.json` recomputes this page.",
        "",
    ]
    return "\n".join(lines)


def _moment(one: dict[str, Any]) -> str:
    ratio = shown_loss(one["sensitivity_over_noise"])
    return f"{one['what']}, {one['noise']} noise of {one['noise_std']:.6g}, sensitivity over noise {ratio}"


def _parties(document: dict[str, Any]) -> list[str]:
    facts, views = document["public_facts"], document["views"]
    names, sizes = facts["parties"], facts["sizes"]
    rows = list(zip(names, sizes, *(view["party_epsilons"] for view in views), strict=True))
    heading = ("party", "records", *(f"ε against {view['observer']}" for view in views))
    shown = _table(
        heading, [(name, f"{size:,}", *map(shown_loss, losses)) for name, size, *losses in rows[:MOST_PARTIES]]
    )
    if len(rows) > MOST_PARTIES:
        shown += ["", f"... and {len(rows) - MOST_PARTIES} more in certificate.json."]
    return shown


def _table(heading: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    return [_row(heading), "|" + "---|" * len(heading), *map(_row, rows)]


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(map(plain, cells)) + " |"


def plain(text: str) -> str:
    """Names come from files: nothing in them may become a tag, a link, another cell or a promise in bold."""
    return re.sub(r"([\\`*\[\]|])", r"\\\1", html.escape(" ".join(text.split()), quote=False))


def shown_loss(value: Any) -> str:
    """Six digits, rounded up: a page must not promise more than the certificate."""
    if value in ("infinite", math.inf):
        return "∞"
    rounding = decimal.Context(prec=6, rounding=decimal.ROUND_CEILING)
    without_rounding_error = f"{value:.12g}"
    return f"{float(rounding.create_decimal(without_rounding_error)):.6g}"


def _value(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is None else shown_loss(value)


def _audit(audit: Any) -> str:
    if isinstance(audit, str):
        return audit
    shown = {key: ", ".join(map(str, value)) if isinstance(value, list) else value for key, value in audit.items()}
    return "; ".join(f"{key.replace('_', ' ')}: {value}" for key, value in shown.items() if value not in ("", None))
