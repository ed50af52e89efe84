"""A certificate as a page for people."""

import decimal
import html
import math
import re
from typing import Any

MOST_PARTIES = 50  # rows of a table that somebody would still read


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
