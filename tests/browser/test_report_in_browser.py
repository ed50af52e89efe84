"""Reports in a real browser: nothing is loaded, nothing runs but the page's own script, and everybody can read them.

They need Chromium, and fail without it: `apt-get install chromium`.
"""

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from chromium import Chromium

pytestmark = pytest.mark.slow

COTERIE = Path(sys.executable).with_name("coterie")
ROOT = Path(__file__).parents[2]
HOSTILE = [
    "<script>window.hit = 1</script>",
    '"><img src=x onerror="window.hit = 2">',
    "<svg onload='window.hit = 3'>",
    "</title></svg><b>out</b>",
    "javascript:window.hit=4",
    "A&amp;B ${'$'}{x} `y` " + "long " * 40,
]
SPEC = """\
[data]
file = "records.csv"
test = "records.csv"
public = true
purpose = {purpose}
[schema]
party_column = "party"
label = {{ name = {label}, values = ["<i>no</i>", "<i>yes</i>"] }}
columns = [
    {{ name = {first}, minimum = -1.0, maximum = 1.0, missing = true }},
    {{ name = {second}, categories = {categories} }},
]
[privacy]
epsilon = {epsilon}
delta = 1e-3
adjacency = "replace-one"
"""

CONTRAST = """
(() => {
  const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (rgb) => {
    const [r, g, b] = rgb.map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const found = numbers(getComputedStyle(e).backgroundColor);
      if (found.length < 4 || found[3] > 0) return found.slice(0, 3);
    }
    return [255, 255, 255];
  };
  const bad = [];
  let seen = 0;
  for (const element of document.querySelectorAll("body *")) {
    const text = [...element.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!text || ["SCRIPT", "STYLE", "title", "desc"].includes(element.tagName)) continue;
    if (element.getClientRects().length === 0) continue;
    const style = getComputedStyle(element);
    const front = numbers(element instanceof SVGElement ? style.fill : style.color).slice(0, 3);
    const [a, b] = [light(front), light(behind(element))].sort((x, y) => y - x);
    seen += 1;
    if ((a + 0.05) / (b + 0.05) < 4.5) bad.push([element.tagName, element.textContent.slice(0, 40), front]);
  }
  return { seen, bad };
})()
"""

STRUCTURE = """
(() => {
  const bad = [];
  const all = (s) => [...document.querySelectorAll(s)];
  if (!document.documentElement.lang) bad.push("no language");
  if (!document.title) bad.push("no title");
  if (all("main").length !== 1 || all("h1").length !== 1) bad.push("landmarks");
  let level = 1;
  for (const h of all("h1,h2,h3")) {
    const now = Number(h.tagName[1]);
    if (now > level + 1) bad.push("heading skipped at " + h.textContent);
    level = now;
  }
  for (const svg of all("svg")) {
    const named = (svg.getAttribute("aria-labelledby") || "").split(" ").map((id) => document.getElementById(id));
    if (svg.getAttribute("role") !== "img" || named.length !== 2 || named.some((n) => !n || !n.textContent.trim()))
      bad.push("picture without words");
  }
  for (const region of all("[tabindex='0']")) if (!region.getAttribute("aria-label")) bad.push("region without label");
  for (const th of all("th")) if (!th.scope) bad.push("th without scope: " + th.textContent);
  for (const b of all("button,a,summary")) if (!b.textContent.trim()) bad.push("nothing to read on a " + b.tagName);
  const ids = all("[id]").map((e) => e.id);
  if (new Set(ids).size !== ids.length) bad.push("id twice");
  for (const a of all("a")) if (!document.getElementById(a.getAttribute("href").slice(1))) bad.push("dead link");
  if (all("[style]").length) bad.push("style attribute");
  return bad;
})()
"""

CUT = """
(() => {
  const bad = [];
  const wide = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > wide) bad.push("page wider than screen");
  for (const svg of document.querySelectorAll("svg")) {
    const box = svg.viewBox.baseVal;
    for (const text of svg.querySelectorAll("text")) {
      const b = text.getBBox(), m = text.getCTM(), o = svg.getCTM();
      const shift = (m.e - o.e) / o.a, down = (m.f - o.f) / o.d;
      if (b.y + down < -1 || b.y + b.height + down > box.height + 1) bad.push("cut: " + text.textContent);
      if (b.x + shift < -1 || b.x + b.width + shift > box.width + 1) bad.push("cut: " + text.textContent);
    }
  }
  return bad;
})()
"""


@pytest.fixture(scope="module")
def browser():
    found = Chromium()
    yield found
    found.close()


def coterie(*arguments, folder):
    done = subprocess.run([COTERIE, *map(str, arguments)], capture_output=True, text=True, cwd=folder, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A report of hospitals, one of hostile names, and a comparison of two."""
    folder = tmp_path_factory.mktemp("pages")
    coterie("run", ROOT / "examples" / "heart.toml", "--out", "heart", folder=folder)
    rng = np.random.default_rng(0)
    with open(folder / "records.csv", "w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow([HOSTILE[1], HOSTILE[2], HOSTILE[3], "party"])
        for i in range(240):
            x = "" if i % 9 == 0 else f"{rng.uniform(-1, 1):.3f}"
            label = "<i>yes</i>" if rng.random() < 0.5 else "<i>no</i>"
            rows.writerow([x, HOSTILE[rng.integers(4)], label, HOSTILE[i % 6]])
    for epsilon in (1.0, 8.0):
        spec = SPEC.format(
            purpose=json.dumps(HOSTILE[0]),
            label=json.dumps(HOSTILE[3]),
            first=json.dumps(HOSTILE[1]),
            second=json.dumps(HOSTILE[2]),
            categories=json.dumps(HOSTILE[:4]),
            epsilon=epsilon,
        )
        (folder / "spec.toml").write_text(spec, encoding="utf-8")
        coterie("run", "spec.toml", "--out", f"hostile-{epsilon:g}", folder=folder)
    coterie("report", "--compare", "hostile-1", "hostile-8", "--out", "both.html", folder=folder)
    return {
        "heart": folder / "heart" / "report.html",
        "hostile": folder / "hostile-8" / "report.html",
        "comparison": folder / "both.html",
    }


NAMES = ("heart", "hostile", "comparison")


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_asked_for_and_nothing_else_runs(browser, pages, name):
    browser.show(width=1200)
    browser.open(pages[name])
    assert browser.run("document.querySelectorAll('svg').length") >= 1
    for button in range(browser.run("document.querySelectorAll('thead button').length")):
        browser.run(f"document.querySelectorAll('thead button')[{button}].click()")
    assert browser.run("window.hit") is None
    assert browser.run("document.querySelectorAll('img, b, i, iframe, svg svg, svg script').length") == 0
    assert browser.run("document.scripts.length") == 1
    assert browser.requests() == [pages[name].resolve().as_uri()]
    assert browser.troubles() == []
    assert pages[name].stat().st_size < 300_000


def test_a_foreign_script_would_be_stopped_and_seen(browser, pages, tmp_path):
    """So that the test above can fail."""
    forged = tmp_path / "forged.html"
    text = pages["heart"].read_text(encoding="utf-8")
    forged.write_text(text.replace("</main>", "<script>window.hit = 5</script><img src='http://x.invalid/y'></main>"))
    browser.open(forged)
    assert browser.run("window.hit") is None
    assert browser.troubles()


@pytest.mark.parametrize("name", NAMES)
def test_tables_sort_by_click_and_by_key(browser, pages, name):
    browser.open(pages[name])
    table = "document.querySelector('table.sortable:not(details table)')"
    column = f"[...{table}.tBodies[0].rows].map((row) => row.cells[1].dataset.value)"
    head = f"{table}.tHead.rows[0].cells[1]"
    browser.run(f"{head}.querySelector('button').click()")
    rising = [float(value) for value in browser.run(column) if value != "nan"]
    assert rising == sorted(rising)
    assert browser.run(f"{head}.getAttribute('aria-sort')") == "ascending"
    browser.run(f"{head}.querySelector('button').focus()")
    for kind in ("keyDown", "keyUp"):
        browser.ask("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r")
    assert browser.run(f"{head}.getAttribute('aria-sort')") == "descending"
    falling = [float(value) for value in browser.run(column) if value != "nan"]
    assert falling == sorted(falling, reverse=True)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("width", "dark"), [(1200, False), (1200, True), (360, False), (360, True)])
def test_everybody_can_read_it(browser, pages, name, width, dark):
    browser.show(width=width, dark=dark)
    browser.open(pages[name])
    contrast = browser.run(CONTRAST)
    assert contrast["bad"] == []
    assert contrast["seen"] > 20
    assert browser.run(STRUCTURE) == []
    assert browser.run(CUT) == []


def test_faint_text_would_be_found(browser, pages):
    browser.show(width=1200)
    browser.open(pages["heart"])
    browser.run("document.querySelector('h1').animate([{color: '#bbb'}, {color: '#bbb'}], {duration: 1e9})")
    assert browser.run(CONTRAST)["bad"]
    browser.run("document.querySelector('svg').removeAttribute('role')")
    assert browser.run(STRUCTURE) == ["picture without words"]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_cut_in_print(browser, pages, name):
    """On A4 between its margins, from a dark screen: everything is as wide as the paper, and dark on white."""
    browser.show(width=673, dark=True, media="print")
    browser.open(pages[name])
    assert browser.run(CUT) == []
    wide = "[...document.querySelectorAll('.wide')].filter((e) => e.scrollWidth > document.body.clientWidth + 1).length"
    assert browser.run(wide) == 0
    assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.run(CONTRAST)["bad"] == []
    browser.show(width=1200)
    assert len(browser.ask("Page.printToPDF", paperWidth=8.27, paperHeight=11.69)["data"]) > 10_000
