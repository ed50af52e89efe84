"""The page around a report: style and script, both inside it, and parts of which its sections are made.

The policy in its head lets a browser run this script and use this style, and load nothing at all: whatever stands in a
name can neither run nor ask anybody for anything.
"""

import base64
import hashlib
import html
from collections.abc import Iterable, Sequence

from coterie.charts import Chart

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
