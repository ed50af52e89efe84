"""The page about the architecture is true, and no run carries research with it."""

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "coterie"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
CHANGES = (
    "loss", "regulariser", "algorithm", "mechanism", "noise law", "accountant",
    "engine", "topology", "estimator", "command", "figure", "data set",
)  # fmt: skip


def contracts():
    with open(ROOT / "pyproject.toml", "rb") as file:
        return {contract["name"]: contract for contract in tomllib.load(file)["tool"]["importlinter"]["contracts"]}


def drawn_rooms():
    """The lines of the drawing, each with the rooms on it."""
    drawing = PAGE.split("## Which package may import which")[1].split("```")[1]
    line = re.compile(r"^ (?:face|research|runtime|)\s+((?:[a-z_.]+ \| )*[a-z_.]+)(?:\s{2,}.*)?$")
    found = [line.match(text) for text in drawing.splitlines()[1:] if text.strip()]
    assert all(found)
    return [match.group(1).split(" | ") for match in found if match]


def test_the_drawing_is_the_contract():
    layers = contracts()["Data flows one way"]["layers"]
    assert [[f"coterie.{room}" for room in line] for line in drawn_rooms()] == [line.split(" | ") for line in layers]


def test_every_room_is_a_package_or_a_module_and_every_one_is_drawn():
    drawn = {room for line in drawn_rooms() for room in line}
    for room in drawn:
        assert importlib.util.find_spec(f"coterie.{room}") is not None, room
    there = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert there - {"__init__", "__main__"} == {room.split(".")[0] for room in drawn}


def test_every_path_on_the_page_exists():
    named = [word for word in re.findall(r"`([^`\s]+)`", PAGE) if "/" in word or word.endswith((".py", ".toml"))]
    assert len(named) > 25
    missing = [word for word in named if not ((PACKAGE / word).exists() or (ROOT / word).exists())]
    assert not missing


def test_the_typical_changes_are_all_there():
    table = PAGE.split("## Twelve changes")[1]
    assert tuple(re.findall(r"^\| ([a-z ]+) \|", table, re.M))[1:] == CHANGES


# of each kind one that is there, by a name that is in every file it has touched
THERE = {
    "loss": '"huberised-hinge"',
    "regulariser": "Box(",
    "algorithm": '"general-admm"',
    "mechanism": "ImageNoise",
    "noise law": '"gamma-sphere"',
    "accountant": '"mixed"',
    "engine": '"solved together"',
    "topology": '"random-connected"',
    "estimator": "PrivateLasso",
    "command": "cite.EXAMPLES",
    "figure": '"pp-2"',
    "data set": "load_heart",
}
RUNTIMES = ('"mpi"', '"nvflare"')


def files_that_say(name):
    found = [path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if name in path.read_text("utf-8")]
    assert found, name
    return found


@pytest.mark.parametrize(("change", "name"), [*THERE.items(), *(("engine", name) for name in RUNTIMES)])
def test_no_file_that_a_change_touches_is_left_out(change, name):
    """What papers do with it is theirs."""
    (row,) = re.findall(rf"^\| {change} \|.*$", PAGE, re.M)
    named = re.findall(r"`([^`\s]+)`", row)
    folders = tuple(word for word in named if word.endswith("/"))
    left_out = [file for file in files_that_say(name) if file not in named and not file.startswith(folders)]
    assert [file for file in left_out if not file.startswith("papers/")] == []


@pytest.mark.parametrize(
    ("contract", "protected", "allowed"),
    [
        ("Only commands know the papers", "coterie.papers", ["coterie.cli"]),
        ("Only research and commands know the audit", "coterie.audit", ["coterie.cli", "coterie.papers"]),
        ("Nothing knows the commands", "coterie.cli", ["coterie.cli"]),
        (
            "Only engines, minimisers, noise and the grant that owns a kernel know machine code",
            "coterie.native",
            ["coterie.engines", "coterie.minimisers.native", "coterie.privacy.for_engines", "coterie.privacy.noise"],
        ),
        ("Only engines know minimisers in machine code", "coterie.minimisers.native", ["coterie.engines"]),
    ],
)
def test_what_the_page_says_besides_is_a_contract(contract, protected, allowed):
    found = contracts()[contract]
    assert (found["type"], found["protected_modules"], found["allowed_importers"]) == (
        "protected",
        [protected],
        allowed,
    )


def test_commands_load_research_only_when_asked():
    """All modules of the command line, imported in a fresh interpreter; and it can be seen when one is asked for."""
    program = """
import importlib, pkgutil, sys
import coterie.cli
for module in pkgutil.walk_packages(coterie.cli.__path__, "coterie.cli."):
    importlib.import_module(module.name)
loaded = lambda: sorted(name for name in sys.modules if name.startswith(("coterie.papers", "coterie.audit")))
print(loaded())
import coterie.papers.figure
print(len(loaded()) > 1)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["[]", "True"]


def ignored_and_tracked(folder):
    """Files of a repository that its own .gitignore would keep out, and the build of a wheel with them."""
    command = ["git", "ls-files", "--cached", "--ignored", "--exclude-standard"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.split()


def test_no_file_of_the_package_is_left_out_of_a_wheel(tmp_path):
    assert ignored_and_tracked(ROOT) == []
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "x.py").touch()
    for command in (["init", "-q"], ["add", "site/x.py"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    (tmp_path / ".gitignore").write_text("site/\n")
    assert ignored_and_tracked(tmp_path) == ["site/x.py"]


def names_that_are_gone(source):
    """What a program imports from the package and is not there."""
    gone = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.split(".")[0] == "coterie":
            module = importlib.import_module(node.module)
            wanted = (alias.name for alias in node.names if not hasattr(module, alias.name))
            gone += [name for name in wanted if importlib.util.find_spec(f"{node.module}.{name}") is None]
    return gone


@pytest.mark.parametrize("folder", ["benchmarks", "examples", "tools"])
def test_programs_beside_the_package_find_what_they_import(folder):
    programs = sorted((ROOT / folder).rglob("*.py"))
    assert programs
    assert not {program.name: gone for program in programs if (gone := names_that_are_gone(program.read_text("utf-8")))}


def test_a_name_that_is_gone_would_be_found():
    assert names_that_are_gone("from coterie.data import schema, Schema, Shcema") == ["Shcema"]
