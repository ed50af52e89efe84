"""The tool that makes mutants, and the page that argues which of them may survive."""

import ast
import importlib.util
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def mutants():
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "tools" / "mutants.py")
    module = importlib.util.module_from_spec(spec)
    # dataclasses look there
    sys.modules["mutants"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["mutants"]


def test_every_file_and_every_test_that_is_named_is_there(mutants):
    for file, tests in mutants.TESTS.items():
        assert (mutants.PACKAGE / file).exists(), file
        for test in tests:
            assert (ROOT / "tests" / test).exists(), test


def rows_of(mutants, heading: str) -> list[list[str]]:
    """Cells of the table below a heading of the page; a bar within a cell stays as it is written."""
    below = mutants.ARGUED.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line.strip().strip("|").strip() for line in below.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)] for row in rows[2:]]


def test_whoever_is_argued_away_is_still_a_mutant(mutants):
    rows = {mutant.row for file in mutants.TESTS for mutant in mutants.mutants_of(file)}
    assert mutants.argued()
    stale = mutants.argued() - rows
    assert not stale, "\n".join(sorted(stale))


def test_every_survivor_is_argued_once_and_with_a_reason(mutants):
    rows = rows_of(mutants, "Survivors")
    assert all(len(row) == 4 for row in rows), [row for row in rows if len(row) != 4]
    named = [" | ".join(row[:3]) for row in rows]
    assert set(named) == mutants.argued()
    assert len(set(named)) == len(named), [row for row, number in Counter(named).items() if number > 1]
    for *mutant, reason in rows:
        # a sentence, with an end
        assert re.fullmatch(r"(\S+ ){3,}\S*\.", reason), mutant


def test_an_argument_for_several_places_says_so(mutants):
    """One row silences every mutant with its words, also one that somebody writes elsewhere in the file later."""
    places = Counter(mutant.row for file in mutants.TESTS for mutant in mutants.mutants_of(file))
    for row in rows_of(mutants, "Survivors"):
        number = places[" | ".join(row[:3])]
        said = re.search(r"^In all (\d+) places: ", row[3])
        assert number == (int(said[1]) if said else 1), row


def test_what_is_killed_is_said_once_and_names_a_test(mutants):
    rows = rows_of(mutants, "Found, and killed by a test since")
    assert all(len(row) == 2 and "`test_" in row[1] for row in rows), rows
    assert len({found for found, _ in rows}) == len(rows)


def test_tests_that_the_page_names_are_there(mutants):
    named = set(re.findall(r"`(test_\w+)`", mutants.ARGUED.read_text()))
    assert named <= {path.stem for path in (ROOT / "tests").rglob("test_*.py")}


def test_a_mutant_is_one_line_that_still_is_python(mutants):
    found = list(mutants.mutants_of("privacy/events.py"))
    lines = (mutants.PACKAGE / "privacy/events.py").read_text().splitlines()
    assert len(found) > 100
    for mutant in found:
        changed = mutant.source.splitlines()
        assert [k for k, (one, two) in enumerate(zip(lines, changed, strict=True)) if one != two] == [mutant.line - 1]
        ast.parse(mutant.source)
    loosened = "return np.where(self.jacobian * np.sqrt(a) <= 2, self._at_most(plus), beyond)"
    assert [mutant.after for mutant in found].count(loosened) == 1
