"""One run on one page: a function of the files of the run, and of nothing else.

The policy in the page's head lets a browser run its own script and use its own style, and load nothing at all: whatever
stands in a name can neither run nor ask anybody for anything.
"""

import base64
import hashlib
import html
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import coterie
from coterie.certificate import cautions, shown_loss
from coterie.charts import Bar, Bars, Chart, Lines, Series, alike, cut, percent, short, short_percent, tiny
from coterie.data import CategoryColumn, Label, NumberColumn, Schema
from coterie.rundir import RunFiles

STYLE = """
:root{--paper:#fff;--raised:#f4f6f8;--ink:#1c2430;--soft:#4f5b69;--rule:#cdd5de;--link:#075a80;--warn:#8f1d1d;
--warn-paper:#fdecec;--c0:#0b6e99;--c1:#b35c00;--c2:#5f6b7a;--c3:#2f7d32;--c4:#7b4fa3;--c5:#a3304a}
@media (prefers-color-scheme:dark){:root{--paper:#12171e;--raised:#1b222c;--ink:#e6ebf1;--soft:#aab6c4;--rule:#3a4552;
--link:#7cc8ec;--warn:#ffb4b4;--warn-paper:#3a1618;--c0:#5cb8e0;--c1:#f0a04b;--c2:#aab6c4;--c3:#7cc47f;--c4:#c6a0e8;
--c5:#f093a6}}
*{box-sizing:border-box}
html{color-scheme:light dark;-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.55 system-ui,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
.skip{position:absolute;left:-999em}.skip:focus{left:.5em;top:.5em;background:var(--paper);padding:.3em .6em}
header,main,footer{max-width:66rem;margin:0 auto;padding:0 1.25rem}
header{padding-top:2rem}h1{font-size:1.8rem;line-height:1.2;margin:0 0 .3rem}
h2{font-size:1.25rem;margin:2.6rem 0 .8rem;padding-top:.6rem;border-top:1px solid var(--rule)}
h3{font-size:1rem;margin:1.4rem 0 .4rem}
p{margin:.5rem 0;max-width:46rem}sup{line-height:0}.soft,caption,dt,figcaption,footer{color:var(--soft)}
a{color:var(--link)}:focus-visible{outline:3px solid var(--c1);outline-offset:2px}
nav ul{display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;list-style:none;margin:.8rem 0 0;padding:0}
.warning{background:var(--warn-paper);color:var(--warn);border-left:5px solid var(--warn);
padding:.6rem .9rem;font-weight:600}
.key{display:grid;grid-template-columns:repeat(auto-fit,minmax(11rem,1fr));gap:.8rem;margin:1.4rem 0}
.key div{background:var(--raised);border-radius:.5rem;padding:.8rem 1rem}.key dt{font-size:.88rem}
.key dd{margin:0;font-size:1.5rem;font-weight:650;line-height:1.25;overflow-wrap:anywhere}
.key dd small{display:block;font-size:.88rem;font-weight:400;color:var(--soft)}
.promise{font-size:1.08rem;border-left:5px solid var(--c0);padding:.1rem 0 .1rem 1rem}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,25rem),1fr));gap:1.5rem;align-items:start}
figure{margin:0}figcaption{font-weight:600;margin-bottom:.3rem}svg{display:block;width:100%;max-width:40rem;height:auto}
svg text{font-size:13px;fill:var(--ink)}
.grid{stroke:var(--rule)}.axis{stroke:var(--soft)}.line{fill:none;stroke-width:2}.level{stroke:var(--soft);stroke-width:1.6}
.d0{stroke-dasharray:7 4}.d1{stroke-dasharray:2 4}.d2{stroke-dasharray:9 3 2 3}
.c0{stroke:var(--c0);fill:var(--c0)}.c1{stroke:var(--c1);fill:var(--c1)}.c2{stroke:var(--c2);fill:var(--c2)}
.c3{stroke:var(--c3);fill:var(--c3)}.c4{stroke:var(--c4);fill:var(--c4)}.c5{stroke:var(--c5);fill:var(--c5)}
polyline.line{fill:none}.own,.node{fill:var(--c0)}.other{fill:var(--c2)}.whisker{stroke:var(--soft);stroke-width:2;fill:none}
.edge{stroke:var(--soft);stroke-width:1.3}.hub{fill:var(--raised);stroke:var(--soft)}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.94rem;margin:.4rem 0;min-width:min(100%,18rem)}
caption{text-align:left;padding-bottom:.3rem}
th,td{text-align:left;vertical-align:top;padding:.32rem .9rem .32rem 0;
border-bottom:1px solid var(--rule);font-weight:400}
thead th{font-weight:600;white-space:nowrap}tbody th{overflow-wrap:break-word;min-width:6.5rem}
td.number{font-variant-numeric:tabular-nums;white-space:nowrap}
thead button{font:inherit;color:inherit;background:none;border:0;padding:0;cursor:pointer;
text-decoration:underline dotted}
th[aria-sort=ascending] button::after{content:" ↑"}th[aria-sort=descending] button::after{content:" ↓"}
table.facts tbody th{width:11rem;font-weight:600}
details{margin:.4rem 0}summary{cursor:pointer;color:var(--link)}
code{font-family:ui-monospace,"DejaVu Sans Mono",monospace;font-size:.9em;overflow-wrap:anywhere}
footer{margin-top:3rem;padding-bottom:2.5rem;font-size:.9rem}
@media (max-width:34rem){h1{font-size:1.45rem}table.facts,table.facts tbody,table.facts tr,table.facts th,table.facts td
{display:block;width:100%}table.facts tbody th{border:0;padding-bottom:0}
.wide td:not(.number){min-width:9rem}thead th{white-space:normal}}
@media print{:root{--paper:#fff;--raised:#f4f6f8;--ink:#000;--soft:#333;--rule:#bbb;--link:#000;--warn:#8f1d1d;
--warn-paper:#fff;--c0:#0b6e99;--c1:#b35c00;--c2:#5f6b7a;--c3:#2f7d32;--c4:#7b4fa3;--c5:#a3304a}
@page{margin:16mm}body{font-size:10.5pt}nav,.skip,details{display:none}header,main,footer{max-width:none;padding:0}
header{padding-top:0}.wide{overflow:visible}h2{break-after:avoid;margin-top:1.6rem}figure,tr,.key,.promise,.warning{break-inside:avoid}
svg{max-width:15cm}thead button{text-decoration:none}.pair{grid-template-columns:1fr 1fr}
.key{grid-template-columns:repeat(auto-fit,minmax(7rem,1fr))}
thead th{white-space:normal}
*{-webkit-print-color-adjust:exact;print-color-adjust:exact}}
"""

SCRIPT = """
"use strict";
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
      const rows = [...body.rows].sort((a, b) => {
        const [p, q] = [key(a), key(b)];
        const [x, y] = [p, q].map((text) => Number(text.replace(/[,%\\s]/g, "")));
        const numbers = p !== "" && q !== "" && !Number.isNaN(x) && !Number.isNaN(y);
        return (up ? 1 : -1) * (numbers ? (x > y) - (x < y) : p.localeCompare(q));
      });
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      body.append(...rows);
    });
  });
}
"""


class Markup(str):
    """A text that is HTML already, every name in it escaped."""


def safe(text: str) -> Markup:
    return text if isinstance(text, Markup) else Markup(html.escape(text))


def joined(parts: Iterable[str]) -> Markup:
    return Markup("".join(safe(part) for part in parts))


def paragraph(*parts: str, kind: str = "") -> Markup:
    return Markup(f"<p{_class(kind)}>{joined(parts)}</p>")


def section(name: str, title: str, *parts: str) -> Markup:
    return Markup(f'<section aria-labelledby="{name}"><h2 id="{name}">{safe(title)}</h2>{joined(parts)}</section>')


def bullets(texts: Iterable[str]) -> Markup:
    return Markup("<ul>" + "".join(f"<li>{safe(text)}</li>" for text in texts) + "</ul>")


def facts(rows: Sequence[tuple[str, str]], label: str) -> Markup:
    """Names and what they are, beside each other or, on a phone, below each other."""
    body = "".join(f'<tr><th scope="row">{safe(name)}</th><td>{safe(value)}</td></tr>' for name, value in rows)
    return Markup(f'<table class="facts" aria-label="{safe(label)}"><tbody>{body}</tbody></table>')


def table(heading: Sequence[str], rows: Sequence[Sequence[str | tuple[str, float]]], label: str) -> Markup:
    """Sortable; a cell that is a number is (how it is shown, what it is)."""
    head = "".join(f'<th scope="col">{safe(text)}</th>' for text in heading)
    body = "".join("<tr>" + "".join(_cell(cell, first=k == 0) for k, cell in enumerate(row)) + "</tr>" for row in rows)
    inner = f'<table class="sortable"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return Markup(f'<div class="wide" role="region" tabindex="0" aria-label="{safe(label)}">{inner}</div>')


def _cell(cell: str | tuple[str, float], *, first: bool) -> str:
    if isinstance(cell, tuple):
        return f'<td class="number" data-value="{cell[1]!r}">{safe(cell[0])}</td>'
    return f'<th scope="row">{safe(cell)}</th>' if first else f"<td>{safe(cell)}</td>"


def figure(chart: Chart, name: str, *, numbers: bool = True) -> Markup:
    """The picture, and below it, folded up, the same as a table; not where such a table stands beside it."""
    heading, rows = chart.table()
    content = ""
    if numbers:
        content = folded("The same as a table", table(heading, rows, f"{chart.title}: numbers"))
    return Markup(f"<figure><figcaption>{safe(chart.title)}</figcaption>{chart.svg(name)}{content}</figure>")


def folded(summary: str, content: str) -> Markup:
    """Opened by whoever wants it; not on paper."""
    return Markup(f"<details><summary>{safe(summary)}</summary>{safe(content)}</details>")


def pair(*parts: str) -> Markup:
    return Markup('<div class="pair">' + "".join(f"<div>{safe(part)}</div>" for part in parts if part) + "</div>")


def page(title: str, under: str, sections: Sequence[tuple[str, str, str]], top: str, footer: str) -> str:
    """`sections`: (anchor, title, content); `top` is what must be seen before them."""
    policy = f"default-src 'none'; style-src '{_hash(STYLE)}'; script-src '{_hash(SCRIPT)}'"
    policy += "; base-uri 'none'; form-action 'none'"
    links = "".join(f'<li><a href="#{name}">{safe(text)}</a></li>' for name, text, _ in sections)
    return "".join(
        [
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width,initial-scale=1"><meta name="color-scheme" ',
            'content="light dark"><meta name="referrer" content="no-referrer">',
            f"<title>{safe(title)}</title><style>{STYLE}</style></head><body>",
            '<a class="skip" href="#content">To the content</a>',
            f"<header><h1>{safe(title)}</h1>{paragraph(under, kind='soft')}",
            f'<nav aria-label="Sections"><ul>{links}</ul></nav></header>\n<main id="content">{safe(top)}\n',
            "\n".join(section(name, text, content) for name, text, content in sections),
            f"</main>\n<footer>{safe(footer)}</footer><script>{SCRIPT}</script></body></html>\n",
        ]
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


MOST_ROWS, MOST_BARS, MOST_TEXT = 200, 20, 400
FACTOR = Markup("e<sup>ε</sup>")


class Published(NamedTuple):
    """What the algorithm's own paper states for the whole run, beside what is certified."""

    theorem: str
    total: float
    hypotheses: tuple[tuple[str, bool], ...]


def report_page(run: RunFiles, published: Published | None = None) -> str:
    label = None if run.schema is None else run.schema.label.name
    title = "Private learning: report of a run" if label is None else f"A {_private(run)}model of {cut(label, 80)}"
    data = run.summary.get("n_records", sum(run.plan.facts.sizes))
    n_parties = run.plan.facts.n_parties
    who = f"{data:,} records at {_count(n_parties, 'party', 'parties')}" if isinstance(data, int) else ""
    under = ". ".join(part for part in (who, f"{run.date} (UTC)" if run.date else "") if part)
    sections = [
        ("promise", "What is promised", _promise(run)),
        ("result", "How good the model is", _result(run)),
        ("spent", "Privacy spent", _spent(run)),
        ("parties", "Who took part", _parties(run)),
        ("model", "The model", _model(run)),
        ("published", "Published and certified", _published(run, published)),
        ("data", "The data", _data(run)),
        ("certificate", "Certificate", _certificate(run)),
    ]
    return page(title, under, [part for part in sections if part[2]], _top(run), _footer())


# --- before anything else ---------------------------------------------------------------------------------------------


def _top(run: RunFiles) -> Markup:
    certificate = run.certificate
    warnings = [paragraph(f"{text}.", kind="warning") for text in certificate.verdict]
    if run.model is None:
        done = run.certificate.document["rounds"]
        warnings.append(
            paragraph(
                f"The run was stopped after round {done['done']} of {done['planned']}: there is no model, and the loss "
                "of the whole plan counts as spent.",
                kind="warning",
            )
        )
    if not certificate.verdict:
        warnings += [paragraph(f"{_sentence(text)}.", kind="warning") for text in cautions(run.plan, certificate.delta)]
    return joined([*warnings, _key_figures(run)])


def _key_figures(run: RunFiles) -> Markup:
    certificate, result = run.certificate, run.result
    void = bool(certificate.verdict)
    loss = "none that holds" if void else f"ε = {shown_loss(certificate.epsilon)}"
    under = "read the warning above" if void else f"at δ = {tiny(certificate.delta)}, for {_unit(run)}"
    told = [("Privacy loss, at most", loss, under)]
    if certificate.document["past"] and not void:
        total = f"ε = {shown_loss(certificate.total_epsilon)}"
        told.append(("With earlier releases", total, f"at δ = {shown_loss(certificate.total_delta)}"))
    if result is not None and "error" in result:
        told.append(("Error", percent(result["error"]), _against(result, "majority_error", "majority class")))
    if result is not None and "auc" in result:
        told.append(("AUC", f"{result['auc']:.3f}", "0.5 is guessing, 1 is perfect"))
    if result is not None and "rmse" in result:
        told.append(("Root mean square error", short(result["rmse"]), _against(result, "mean_rmse", "the mean")))
    rounds = certificate.document["rounds"]
    told.append(("Rounds", str(rounds["done"]), f"of {rounds['planned']} planned and charged"))
    cells = "".join(
        f"<div><dt>{safe(name)}</dt><dd>{safe(value)} <small>{safe(more)}</small></dd></div>"
        for name, value, more in told
    )
    return Markup(f'<dl class="key">{cells}</dl>')


def _unit(run: RunFiles) -> str:
    return run.certificate.document["guarantee"]["unit_of_privacy"].split(" (")[0]


def _against(result: dict[str, Any], key: str, name: str) -> str:
    if key not in result:
        return ""
    shown = percent if "error" in key else short
    return (
        f"{shown(result[key])} for always answering {name}" if name == "the mean" else f"{name}: {shown(result[key])}"
    )


# --- sections ---------------------------------------------------------------------------------------------------------


def _promise(run: RunFiles) -> Markup:
    certificate = run.certificate
    document, guarantee = certificate.document, certificate.document["guarantee"]
    sees = document["views"][0]["sees"]
    if certificate.verdict:
        return joined(
            [
                paragraph("Nothing is promised, because:"),
                bullets(certificate.verdict),
                paragraph("Whatever is said of losses below is what the plan would promise if that were otherwise."),
            ]
        )
    epsilon, delta = certificate.epsilon, certificate.delta
    # beyond that a factor says nothing, and floating point ends
    factor, even = (math.exp(epsilon), 1 / (1 + math.exp(-epsilon))) if epsilon < 100 else (math.inf, 1.0)
    words = paragraph(
        f"Whatever somebody believed about {_unit(run)} before the run, everything they see changes the odds of that "
        "belief by at most a factor of ",
        FACTOR,
        f" = {_up(factor)}, leaving aside what δ allows for. Whoever held it "
        f"to be as likely as not (50 %) can hold it to be at most {_up_percent(even)} likely afterwards.",
        kind="promise",
    )
    exactly = paragraph(
        f"Precisely: let {_unit(run)} be any other within the public bounds ({guarantee['adjacency']}). Then no set of "
        "outcomes becomes more than ",
        FACTOR,
        f" times as likely, plus δ = {tiny(delta)}. This holds against anybody who sees "
        f"{sees}, whatever else they know, and however much they compute.",
    )
    rare = paragraph(
        f"δ = {tiny(delta)} is one in {1 / delta:,.0f}; the parties hold {sum(run.plan.facts.sizes):,} records.",
        kind="soft",
    )
    trust = document["trust_model"]
    who = paragraph(f"Who has to be trusted: {trust['model']}. {_sentence(trust['who_is_trusted'])}.")
    where = paragraph(f"Where it ran: {document['execution']['what']}.")
    limits = Markup("<h3>Not promised</h3>") + bullets(document["not_covered"])
    return joined([words, exactly, rare, who, where, Markup(limits)])


def _result(run: RunFiles) -> Markup:
    result = run.result
    lines = {"without privacy": run.nonprivate, "a party alone": run.alone}
    others = {name: numbers for name, numbers in lines.items() if numbers}
    parts: list[str] = []
    if result is not None:
        trivial = "majority class" if "error" in result else "always the mean"
        forms = {"error": percent, "auc": _three, "calibration_error": percent, "rmse": short, "r2": _three}
        names = {
            "error": "error",
            "auc": "AUC",
            "calibration_error": "calibration error",
            "rmse": "root mean square error",
            "r2": "R²",
        }
        baseline = {"error": "majority_error", "rmse": "mean_rmse"}
        constant = {"auc": 0.5, "r2": 0.0}
        measured = [key for key in forms if key in result]
        chance = {key: result.get(baseline.get(key, ""), constant.get(key)) for key in measured}
        rows = [
            [name, *(("", math.nan) if (v := of.get(key)) is None else (forms[key](v), float(v)) for key in measured)]
            for name, of in {_own(run): result, **others, trivial: chance}.items()
        ]
        heading = ["model", *(names[key] for key in measured)]
        main = "error" if "error" in result else "rmse"
        if main in result:
            parts.append(figure(_result_bars(_own(run), main, result, others, trivial), "result-chart", numbers=False))
        said = f"On {result.get('records', 0):,} held-out records that are declared public."
        if others:
            said += " Without privacy: the optimum on all public training records, hardly regularised, no noise."
        if run.alone:
            said += " A party alone: the same on its own records, the mean over parties."
        parts.append(joined([table(heading, rows, "Result"), paragraph(said, kind="soft")]))
    if run.errors_by_round:
        parts.append(figure(_by_round(run), "rounds-chart"))
    if not parts and run.model is not None:
        return paragraph(
            "No records were declared public for testing, so nothing is known here. ",
            Markup("<code>coterie evaluate RUN FILE</code>"),
            " tells it, priced or on public records.",
        )
    return pair(*parts) if parts else Markup("")


def _three(value: float) -> str:
    return f"{value:.3f}"


def _result_bars(own: str, key: str, result: dict[str, Any], others: dict[str, dict[str, Any]], trivial: str) -> Bars:
    base = "majority_error" if key == "error" else "mean_rmse"
    bars = [Bar(own, result[key])]
    bars += [Bar(name, numbers[key], other=True) for name, numbers in others.items() if key in numbers]
    if base in result:
        bars.append(Bar(trivial, result[base], other=True))
    names = {"error": "error on public records", "rmse": "root mean square error"}
    return Bars(
        title="Less is better", x_label=names[key], bars=tuple(bars), shown=percent if key == "error" else short
    )


def _by_round(run: RunFiles) -> Lines:
    result = run.result or {}
    levels = [("majority class", result["majority_error"])] if "majority_error" in result else []
    if run.nonprivate and "error" in run.nonprivate:
        levels.append(("all records in one place, no noise", run.nonprivate["error"]))
    if run.alone and "error" in run.alone:
        levels.append(("a party alone, no noise", run.alone["error"]))
    return Lines(
        title="Test error after each round",
        x_label="round",
        y_label="test error",
        series=tuple(Series(n, tuple(range(1, len(v) + 1)), tuple(v)) for n, v in run.errors_by_round.items()),
        levels=tuple(levels),
        whole_x=True,
        shown=percent,
        shown_tick=short_percent,
    )


def _spent(run: RunFiles) -> Markup:
    certificate, document = run.certificate, run.certificate.document
    chart = run.plan.loss_chart(certificate.delta)
    names, sizes = document["public_facts"]["parties"], document["public_facts"]["sizes"]
    views = certificate.views
    heading = ["party", "records", *(f"ε against {view.observer}" for view in views)]
    rows = [
        [name, (f"{size:,}", size), *((shown_loss(v.party_epsilons[i]), v.party_epsilons[i]) for v in views)]
        for i, (name, size) in enumerate(zip(names[:MOST_ROWS], sizes[:MOST_ROWS], strict=True))
    ]
    by_party = [table(heading, rows, "Loss by party"), _more(len(names), "certificate.json")]
    seen = facts([(f"against {v.observer}", f"ε = {shown_loss(v.epsilon)}: sees {v.sees}") for v in views], "Observers")
    parts = [pair("" if chart is None else figure(chart, "spent-chart"), joined(by_party)), seen]
    if document["past"]:
        earlier = [
            [
                entry["what"],
                (shown_loss(entry["epsilon"]), _float(entry["epsilon"])),
                (shown_loss(entry["delta"]), entry["delta"]),
            ]
            for entry in document["past"][:MOST_ROWS]
        ]
        parts += [Markup("<h3>Earlier releases from the same data</h3>"), table(["what", "ε", "δ"], earlier, "Earlier")]
        parts.append(_more(len(document["past"]), "certificate.json"))
        total = f"ε = {shown_loss(certificate.total_epsilon)} at δ = {shown_loss(certificate.total_delta)}"
        parts.append(paragraph(f"Everything together: {total} ({document['total']['how']})."))
    else:
        parts.append(paragraph("No earlier releases from the same data were declared.", kind="soft"))
    return joined(parts)


def _float(value: Any) -> float:
    return math.inf if value == "infinite" else float(value)


def _parties(run: RunFiles) -> Markup:
    plan, chart = run.plan, run.plan.network_chart()
    sizes, graph = plan.facts.sizes, run.certificate.document["public_facts"]["graph"]
    trust, mechanism = run.certificate.document["trust_model"], run.certificate.document["mechanism"]
    held = f"{min(sizes):,}" if min(sizes) == max(sizes) else f"{min(sizes):,} to {max(sizes):,}"
    links = "no graph: anybody can be reached" if graph["unrestricted"] else f"{graph['edges']:,} links"
    told = facts(
        [
            ("parties", f"{len(sizes):,}, with {held} records" + (" each" if min(sizes) == max(sizes) else "")),
            ("graph", links),
            ("what travels", f"{trust['channel']}: {trust['model']}"),
            ("algorithm", mechanism["algorithm"]),
            ("noise", f"{mechanism['mechanism']}, {mechanism['noise']}"),
        ],
        "Parties",
    )
    return pair("" if chart is None else figure(chart, "network-chart"), told)


def _model(run: RunFiles) -> Markup:
    named = run.coefficients
    intervals = [] if run.intervals is None else [Markup("<h3>Intervals</h3>"), _intervals(run.intervals)]
    if not named:
        return joined(intervals)
    ranked = sorted(named.items(), key=lambda item: -abs(item[1]))
    shown = alike(named.values())
    chart = Bars(
        title="Coefficients" + (f", the {MOST_BARS} largest" if len(ranked) > MOST_BARS else ""),
        x_label="coefficient of the encoded feature",
        bars=tuple(Bar(name, value) for name, value in ranked[:MOST_BARS]),
        shown=shown,
    )
    rows = [[name, (shown(value), value)] for name, value in ranked[:MOST_ROWS]]
    heading = ["feature", "coefficient"]
    largest, everything = table(heading, rows[:MOST_BARS], "Coefficients"), Markup("")
    if len(ranked) > MOST_BARS:
        whole = joined([table(heading, rows, "All coefficients"), _more(len(ranked), "model.json")])
        everything = folded(f"All {len(ranked):,} coefficients", whole)
    labels = None if run.model is None else run.model.get("labels")
    if isinstance(labels, list) and len(labels) == 2:
        said = f"More than zero speaks for {labels[1]!r}, less for {labels[0]!r}."
    else:
        said = "By how much the answer grows with each feature."
    told = " The noise of the run is in every number"
    noise = ", and no interval was paid for: a sign may be chance." if run.intervals is None else "; see the intervals."
    drawn = pair(figure(chart, "coefficients-chart", numbers=False), largest)
    return joined([paragraph(said + told + noise), drawn, everything, *intervals])


def _intervals(told: dict[str, Any]) -> Markup:
    rows = [row for row in told.get("coefficients", ()) if isinstance(row, dict)]
    known = [row for row in rows if row.get("identified")]
    level = f"{100 * float(told.get('level', 0.95)):g} %"
    drawn = [row for row in known if all(_is_number(row.get(key)) for key in ("estimate", "low", "high"))]
    bars = tuple(Bar(row["name"], row["estimate"], (row["low"], row["high"])) for row in drawn[:MOST_BARS])
    keys = ["estimate", "standard_error", "sampling_error", "noise_error", "low", "high", "p_value"]
    heading = ["coefficient", "estimate", "standard error", "of sampling", "of noise", "from", "to", "p"]
    if told.get("odds"):
        keys += ["odds_ratio", "odds_low", "odds_high"]
        heading += ["odds ratio", "from", "to"]
    cells = [[row["name"], *(_number_cell(key, row.get(key)) for key in keys)] for row in known[:MOST_ROWS]]
    parts = [paragraph(f"{told.get('method', 'Estimates')}, with intervals that hold the truth in {level} of studies.")]
    if bars:
        chart = Bars(title=f"Estimates with {level} intervals", x_label="coefficient", bars=bars, shown=_three_digits)
        parts.append(figure(chart, "intervals-chart", numbers=False))
    if cells:
        parts += [table(heading, cells, "Intervals"), _more(len(known), "intervals.json")]
    unknown: dict[str, list[str]] = {}
    for row in rows:
        if not row.get("identified"):
            unknown.setdefault(str(row.get("needed", "not identified")), []).append(str(row["name"]))
    if unknown:
        said = (f"{cut(', '.join(names), 5 * MOST_TEXT)}: {needed}" for needed, names in unknown.items())
        parts += [paragraph("No interval is given where the noise leaves none:"), bullets(said)]
    if isinstance(told.get("notes"), list) and told["notes"]:
        parts.append(bullets(str(note) for note in told["notes"]))
    return joined(parts)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _three_digits(value: float) -> str:
    return f"{value:.3g}".replace("-", "−")


def _number_cell(key: str, value: Any) -> tuple[str, float]:
    """JSON has no word for infinity, nor for no number."""
    if _is_number(value):
        if key == "p_value":
            return ("< 0.001" if value < 0.001 else f"{value:.3f}"), float(value)
        return _three_digits(value), float(value)
    known = {"infinite": ("∞", math.inf), "-infinite": ("−∞", -math.inf)}
    return known.get(value, ("", math.nan))


def _published(run: RunFiles, published: Published | None) -> Markup:
    if published is None:
        return Markup("")
    certified = run.certificate.epsilon
    bars = [Bar("published, δ = 0", published.total, other=True)]
    if math.isfinite(certified):
        bars.append(Bar(f"certified, δ = {tiny(run.certificate.delta)}", certified))
    chart = Bars(title="The loss of the whole run", x_label="ε", bars=tuple(bars))
    met = [f"{text}: {'met' if holds else 'NOT met'}" for text, holds in published.hypotheses]
    said = (
        f"{published.theorem}. The certified number is the promise; the published one is for comparison, and whether "
    )
    said += "its theorem is true is told by `coterie errata`."
    return joined([paragraph(said), pair(figure(chart, "published-chart"), bullets(met))])


def _data(run: RunFiles) -> Markup:
    parts: list[str] = []
    if run.schema is not None:
        rows = list(_columns(run.schema))
        parts.append(
            paragraph(
                "What the public schema says of the columns. No value of a record is in this page, nor anything "
                "computed from records but what the certificate covers."
            )
        )
        heading = ["column", "kind", "allowed", "encoded", "blanks"]
        parts += [table(heading, rows[:MOST_ROWS], "Columns"), _more(len(rows), "model.json")]
        parts.append(paragraph(f"Long rows: {run.schema.rows_clipped}.", kind="soft"))
    bounds = run.certificate.document["bounds"]
    shown = [(b["bound"].replace("_", " "), f"{_bound(b['value'])}; {b['source']}; {b['enforced']}") for b in bounds]
    parts += [Markup("<h3>Bounds that were kept</h3>"), facts(shown, "Bounds")]
    return joined(parts)


def _bound(value: Any) -> str:
    if isinstance(value, list):
        return cut(", ".join(map(str, value)), MOST_TEXT)
    return "no number" if value is None else _plain(value)


def _columns(schema: Schema) -> Iterator[list[str]]:
    for column in schema.columns:
        if isinstance(column, CategoryColumn):
            allowed = cut(", ".join(column.categories), MOST_TEXT) + (", or any other" if column.other else "")
            blanks = "a category of their own" if column.missing else "refused"
            yield [column.name, "category", allowed, f"one feature each ({column.levels})", blanks]
            continue
        yield [column.name, "number", _range(column.minimum, column.maximum), _encoding(column), _blanks(column)]
    label = schema.label
    if isinstance(label, Label):
        yield [label.name, "label", cut(", ".join(label.values), MOST_TEXT), "positions in this list", "refused"]
    else:
        yield [label.name, "label", _range(label.minimum, label.maximum), "number", "refused"]


def _encoding(column: NumberColumn) -> str:
    if column.bins:
        return f"{column.levels} intervals, cut at {', '.join(map(_plain, column.bins))}"
    parts = [f"logarithm{' in thirds' if column.bends else ''}"] if column.log else []
    centre = "the middle of the range" if column.centre is None else _plain(column.centre)
    parts.append(f"centred at {centre}" + ("" if column.scale is None else f", divided by {_plain(column.scale)}"))
    return ", ".join(parts) + ("" if column.weight == 1 else f", times {_plain(column.weight)}")


def _blanks(column: NumberColumn) -> str:
    if column.missing is False:
        return "refused"
    if column.bins:
        return "an interval of their own"
    filled = "the centre" if column.missing is True else _plain(column.missing)
    return f"filled with {filled}, and told by a feature"


def _certificate(run: RunFiles) -> Markup:
    document = run.certificate.document
    guarantee, accountant, rounds = document["guarantee"], document["accountant"], document["rounds"]
    software = {k: v for k, v in document["software"].items() if k != "package_digest"}
    audit = document["audit"]
    rows = [
        ("date", f"{run.date} (UTC)" if run.date else "not stated"),
        ("purpose", run.purpose),
        ("data set", run.data_set),
        ("definition", f"{guarantee['definition']}; {guarantee['adjacency']}: {guarantee['neighbouring_data']}"),
        ("unit of privacy", guarantee["unit_of_privacy"]),
        ("accountant", f"{accountant['used']}: {accountant['how']}"),
        ("randomness", document["randomness"]["source"]),
        ("design", document["design"]["what"]),
        ("rounds", f"{rounds['done']} done, {rounds['charged']} charged; {rounds['fixed_in_advance']}"),
        ("tuning", document["tuning"]),
        ("audit", audit if isinstance(audit, str) else f"{audit.get('verdict', 'see certificate.json')}"),
        ("software", ", ".join(f"{name} {version}" for name, version in software.items())),
        ("plan", Markup(f"<code>{safe(document['plan_digest'])}</code>")),
        ("certificate", Markup(f"<code>{safe(document['digest'])}</code>")),
    ]
    parts: list[str] = [facts(rows, "Certificate")]
    parts.append(
        paragraph(
            "Date, purpose and data set are what the log and the spec of the run say. ",
            Markup("<code>coterie certificate verify RUN</code>"),
            " recomputes all that can be, this page too.",
        )
    )
    parts += [Markup("<h3>Signatures</h3>"), _signatures(document.get("sites"))]
    parts += [Markup("<h3>Cite</h3>"), bullets(document["cite"])]
    return joined(parts)


def _signatures(sites: Any) -> Markup:
    if sites is None:
        return paragraph("Nobody has signed it: digests show changes, not who made a file.")
    signed = [(entry["statement"], entry["identity"]) for entry in sites["signed"]]
    code = [
        [
            statement["party"],
            Markup(f"<code>{safe(statement['ledger_entry'])}</code>"),
            Markup(f"<code>{safe(identity)}</code>"),
        ]
        for statement, identity in signed[:MOST_ROWS]
    ]
    said = "Every site has signed the plan, everything released and the entry of its ledger that pays for it. Whether "
    said += "these are the parties' keys is for you to know: compare them with those the parties gave you."
    return joined([paragraph(said), table(["party", "ledger entry", "key"], code, "Signatures")])


# --- words ------------------------------------------------------------------------------------------------------------


def _footer() -> Markup:
    return paragraph(
        f"Made by Coterie {coterie.__version__} from the files of one run. This page loads nothing and holds no record."
    )


def _more(n: int, where: str) -> Markup:
    return paragraph(f"... and {n - MOST_ROWS:,} more in {where}.", kind="soft") if n > MOST_ROWS else Markup("")


def _count(n: int, one: str, many: str) -> str:
    return f"{n:,} {one if n == 1 else many}"


def _private(run: RunFiles) -> str:
    """Nothing is called so that promises nothing."""
    return "" if run.certificate.verdict else "private "


def _own(run: RunFiles) -> str:
    return "this model" if run.certificate.verdict else "this model, private"


def _range(low: float, high: float) -> str:
    return f"{_plain(low)} to {_plain(high)}"


def _plain(value: float) -> str:
    """As people write it: whole numbers whole, others by four digits."""
    return (f"{value:,.0f}" if value == round(value) and abs(value) < 1e15 else f"{value:.4g}").replace("-", "−")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _up(value: float) -> str:
    """Three digits, rounded up: a page must not promise more than the certificate."""
    if not math.isfinite(value):
        return "∞"
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return f"{math.ceil(value / unit - 1e-9) * unit:,.10g}"


def _up_percent(value: float) -> str:
    for digits in (1, 2, 4, 6):
        shown = math.ceil(value * 100 * 10**digits - 1e-9) / 10**digits
        if shown < 100:
            return f"{shown:.10g} %"
    return "100 %"
