"""The documentation builds, leads nowhere that is not there and asks nobody else for anything; its snippets are true.

First tier: the site is built and its links are followed; Python parses, and what it imports and names exists; TOML is
TOML, and a spec is one; commands and options exist; code that is shown as the package's own stands there. Second tier:
Python runs, and the quickstart is done as it is written.
"""

import ast
import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import pytest

import coterie

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if not page.name.startswith("reproduced-")),
]
# what stands in snippets for things of the reader's own
PRELUDE = """
import coterie
heart = coterie.load_heart()
assert heart.parties is not None
X, y, hospital = heart.X[heart.train], heart.y[heart.train], heart.parties[heart.train]
X_new = heart.X[heart.test]
"""
PRELUDES = {
    "certificate.md": """
import subprocess, sys
from pathlib import Path
Path("spec.toml").write_text(
    '[data]\\ndataset = "heart"\\n[privacy]\\nepsilon = 2.0\\ndelta = 1e-5\\nadjacency = "replace-one"\\n'
)
subprocess.run([sys.executable, "-m", "coterie", "run", "spec.toml"], check=True)
""",
    "estimators.md": "ledger = coterie.Spending(limit=(20.0, 1e-3))\n",
    "schema.md": """
import numpy as np
import pandas as pd
columns = {"age": np.arange(300) % 90, "income": 1000 + np.arange(300), "smoker": ["never", "ever", None] * 100}
frame = pd.DataFrame(columns)
y, hospital = np.array(["no", "yes"] * 150), np.array(["north", "south", "west"] * 100)
""",
    "intervals.md": """
import pandas as pd
X = pd.DataFrame(X).rename(columns=lambda i: {1: "stage 2", 2: "stage 3"}.get(i, f"x{i}"))
""",
    "ledger.md": """
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
signing_key, reply, request_digest = Ed25519PrivateKey.generate(), b"a reply", "0" * 64
from coterie import rules
from coterie.problems import L2, Logistic, Problem
plan = rules.make_plan(
    Problem(loss=Logistic(), regulariser=L2(1.0), record_weight=1.0),
    coterie.Federation.from_arrays(X, y, parties=hospital, labels=heart.labels).facts,
    coterie.Privacy(epsilon=1.0, delta=1e-6, adjacency="replace-one", trust="curator"),
    rules.Settled(),
)
""",
}


class Block(NamedTuple):
    page: Path
    line: int
    language: str
    title: str | None
    text: str

    @property
    def name(self):
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page):
    found, fence = [], None
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        marks = re.match(r"```(\w*)(?: title=\"([^\"]+)\")?$", line)
        if fence is None and marks:
            fence = (number, marks.group(1), marks.group(2), [])
        elif fence is not None and line == "```":
            found.append(Block(page, *fence[:3], "\n".join(fence[3]) + "\n"))
            fence = None
        elif fence is not None:
            fence[3].append(line)
    assert fence is None, f"{page}: a fence that does not end"
    return found


BLOCKS = [block for page in PAGES for block in blocks(page)]


def of(language):
    found = [block for block in BLOCKS if block.language == language]
    return pytest.mark.parametrize("block", found, ids=[block.name for block in found])


def test_no_block_escapes():
    assert {block.language for block in BLOCKS} == {"python", "bash", "toml", "text"}


# ---------------------------------------------------------------------------------------------------------- the site


class Links(HTMLParser):
    def __init__(self):
        super().__init__()
        self.targets, self.ids, self.fetched = [], set(), []

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if attrs.get("id"):
            self.ids.add(attrs["id"])
        where = attrs.get("href") or attrs.get("src")
        if where:
            self.targets.append(where)
        # what a browser asks for by itself; a link is followed by its reader
        if tag != "a" and where and urlsplit(where).netloc and attrs.get("rel") != "canonical":
            self.fetched.append(where)


def read_links(page):
    links = Links()
    links.feed(page.read_text(encoding="utf-8"))
    return links


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    shutil.copytree(ROOT / "docs", folder / "docs")
    for name in ("mkdocs.yml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, folder)
    zensical = Path(sys.executable).parent / "zensical"
    built = subprocess.run([zensical, "build", "--strict"], cwd=folder, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder / "site"


def broken(site):
    pages = {page: read_links(page) for page in site.rglob("*.html")}
    wrong = []
    for page, links in pages.items():
        for target in links.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc or page.name == "404.html":
                continue
            there = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            ids = pages[there].ids if there in pages else None
            if not there.exists() or (parts.fragment and ids is not None and unquote(parts.fragment) not in ids):
                wrong.append(f"{page.relative_to(site)}: {target}")
    return wrong


def test_every_link_of_the_site_leads_somewhere(site):
    assert not broken(site)


def test_a_broken_link_would_be_found(site, tmp_path):
    copy = tmp_path / "site"
    shutil.copytree(site, copy)
    page = copy / "index.html"
    page.write_text(page.read_text() + '<a href="nowhere.html">x</a><a href="guarantees.html#nothing">x</a>')
    assert broken(copy) == ["index.html: nowhere.html", "index.html: guarantees.html#nothing"]


def test_the_site_asks_nobody_else_for_anything(site):
    assert not [where for page in site.rglob("*.html") for where in read_links(page).fetched]
    styles = "".join(sheet.read_text(encoding="utf-8") for sheet in site.rglob("*.css"))
    assert not re.findall(r"url\([\"']?(?:https?:)?//|@import", styles)


def test_every_page_is_in_the_navigation():
    told = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    there = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert set(re.findall(r"[\w/-]+\.md", told)) == there


@pytest.mark.parametrize("page", PAGES[:3], ids=lambda page: page.name)
def test_links_of_pages_outside_the_site_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        assert urlsplit(target).scheme or (page.parent / target).exists(), target


# ------------------------------------------------------------------------------------------------------- the snippets


def lines_of(text):
    return "\n".join(line for line in text.splitlines() if line.strip())


@of("python")
def test_python_parses_and_what_it_names_exists(block):
    if block.title is not None:
        # an excerpt: a path in the repository, in which it stands as it is shown; the formatter moves it to the left
        source = lines_of((ROOT / block.title).read_text(encoding="utf-8"))
        assert any(lines_of(textwrap.indent(block.text, " " * depth)) in source for depth in (0, 4, 8))
        return
    tree = ast.parse(block.text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            exec(compile(ast.Module([node], []), block.name, "exec"), {})
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "coterie":
            assert hasattr(coterie, node.attr) or node.attr == "audit", node.attr


# tests/contract/test_audit.py
RUN_ELSEWHERE = {"audit.md"}
RUN_PAGES = [
    page
    for page in PAGES
    if page.name not in RUN_ELSEWHERE and any(b.language == "python" and b.title is None for b in blocks(page))
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::Warning")
@pytest.mark.parametrize("page", RUN_PAGES, ids=lambda page: page.name)
def test_python_runs(page, tmp_path):
    shown = [block for block in blocks(page) if block.language == "python" and block.title is None]
    for block in blocks(page):
        if block.language == "toml" and block.title is not None:
            (tmp_path / block.title).write_text(block.text, encoding="utf-8")
    program = PRELUDE + PRELUDES.get(page.name, "") + "".join(block.text for block in shown)
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def types_are_wrong(program, folder):
    """What a type checker says of a program that uses the package as it is installed."""
    (folder / "snippet.py").write_text(program, encoding="utf-8")
    (folder / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}', encoding="utf-8")
    pyright = Path(sys.executable).parent / "pyright"
    command = [pyright, "--outputjson", "--pythonpath", sys.executable, "snippet.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == 1
    return [f"{found['range']['start']['line']}: {found['message']}" for found in report["generalDiagnostics"]]


@pytest.mark.parametrize("name", ["README.md", "docs/quickstart.md", "docs/estimators.md"])
def test_snippets_type_check(name, tmp_path):
    page = ROOT / name
    shown = [block.text for block in blocks(page) if block.language == "python" and block.title is None]
    assert not types_are_wrong(PRELUDE + PRELUDES.get(page.name, "") + "".join(shown), tmp_path)


def test_a_snippet_with_wrong_types_would_be_found(tmp_path):
    wrong = PRELUDE + "coterie.PrivateLogisticRegression(epsilon='one').fit(X, y).certificate_.to_word()\n"
    assert len(types_are_wrong(wrong, tmp_path)) == 2


@of("toml")
def test_toml_is_read(block, tmp_path):
    from coterie.cli.spec.reading import SECTIONS, read_spec
    from coterie.data import Schema

    content = tomllib.loads(block.text)
    if set(content) <= set(SECTIONS) and {"data", "privacy"} <= set(content):
        schema = next(other.text for other in BLOCKS if other.title == "schema.toml")
        (tmp_path / "schema.toml").write_text(schema, encoding="utf-8")
        for name in ("patients.csv", "clinics.csv", "new-patients.csv"):
            (tmp_path / name).touch()
        (tmp_path / "spec.toml").write_text(block.text, encoding="utf-8")
        read_spec(tmp_path / "spec.toml")
    elif "columns" in content:
        (tmp_path / "schema.toml").write_text(block.text, encoding="utf-8")
        Schema.read(tmp_path / "schema.toml")


def commands(page):
    """Lines of code, indented or fenced, and words in backquotes that begin with the command."""
    text = page.read_text(encoding="utf-8")
    lines = re.findall(r"^(?: {4})?((?:mpiexec -n \d+ )?coterie .*)$", text, re.M)
    return sorted({line.split("#")[0].strip() for line in lines} | set(re.findall(r"`(coterie [^`\n]*)`", text)))


def unknown(line):
    """What of a command does not exist."""
    import typer

    from coterie.cli.main import app

    words = shlex.split(re.sub(r"^mpiexec -n \d+ ", "", line))[1:]
    commands = [typer.main.get_command(app)]
    while words and hasattr(commands[0], "commands") and not words[0].startswith("-"):
        names = words.pop(0).split("|")
        if not set(names) <= set(commands[0].commands):
            return names
        commands = [commands[0].commands[name] for name in names]
    options = {word.split("=")[0] for word in words if word.startswith("-")}
    known = {name for command in commands for option in command.params for name in option.opts}
    return sorted(options - known - {"--help", "-h", "--install-completion"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_their_options_exist(page):
    wrong = {line: unknown(line) for line in commands(page)}
    assert not {line: what for line, what in wrong.items() if what}


def test_a_command_that_is_not_there_would_be_found():
    assert unknown("coterie run spec.toml --plam") == ["--plam"]
    assert unknown("coterie certify x") == ["certify"]


@of("bash")
def test_shell_blocks_hold_commands_that_are_checked(block):
    allowed = (
        "coterie ",
        "python examples/",
        "python benchmarks/",
        "make ",
        "git clone",
        "cd ",
        "source ",
        "python3 -m venv ",
        "pip install",
    )
    wrong = [line for line in block.text.splitlines() if line and not line.startswith((*allowed, "#"))]
    assert not wrong
    for path in re.findall(r"python ((?:examples|benchmarks)/\S+)", block.text):
        assert (ROOT / path).exists(), path


@pytest.mark.slow
def test_the_quickstart_does_what_it_says(tmp_path):
    steps = blocks(ROOT / "docs" / "quickstart.md")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    codes, told, checked = [], "", 0
    for block in steps:
        if block.language == "toml":
            assert block.title is not None
            (tmp_path / block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "text" and " schema check " in told:
            # what is drawn by noise differs from run to run, but what a schema says of a file does not
            assert block.text == told.partition("\n")[2]
            checked += 1
        elif block.language == "text" and "examples/clinics.py" in told:
            lines = (tmp_path / "clinics.csv").read_text(encoding="utf-8").splitlines()
            assert block.text.splitlines() == lines[: len(block.text.splitlines())]
            checked += 1
        elif block.language == "bash":
            for line in block.text.splitlines():
                command, _, remark = line.partition("  # ")
                if not command.startswith(("coterie ", "python ")):
                    continue
                python = [sys.executable, "-m", "coterie"] if command.startswith("coterie ") else [sys.executable]
                done = subprocess.run(
                    [*python, *shlex.split(command)[1:]], cwd=tmp_path, capture_output=True, text=True, timeout=300
                )
                assert done.returncode == (2 if remark.startswith("refused") else 0), command + done.stderr
                codes.append(done.returncode)
                told = f"{command}\n{done.stdout}{done.stderr}"
    assert codes.count(2) == 1
    assert codes.count(0) >= 6
    assert checked == 3


def test_the_api_page_is_what_the_docstrings_say():
    spec = importlib.util.spec_from_file_location("api_page", ROOT / "tools" / "api_page.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.page() == tool.PAGE.read_text(encoding="utf-8"), "run python tools/api_page.py"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["heavy_ball.py", "hospitals.py", "scikit_learn.py"])
def test_examples_run(name, tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / name], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "fail" not in done.stdout
