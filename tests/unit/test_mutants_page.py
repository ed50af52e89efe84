"""The tool that makes mutants, and the page that argues which of them may survive."""

import ast
import importlib.util
import sys
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


def test_whoever_is_argued_away_is_still_a_mutant(mutants):
    rows = {mutant.row for file in mutants.TESTS for mutant in mutants.mutants_of(file)}
    assert mutants.argued()
    assert mutants.argued() <= rows


def test_a_mutant_is_one_line_that_still_is_python(mutants):
    found = list(mutants.mutants_of("privacy/events.py"))
    lines = (mutants.PACKAGE / "privacy/events.py").read_text().splitlines()
    assert len(found) > 100
    for mutant in found:
        changed = mutant.source.splitlines()
        assert [k for k, (one, two) in enumerate(zip(lines, changed, strict=True)) if one != two] == [mutant.line - 1]
        ast.parse(mutant.source)
    dropped = [m for m in found if m.after == "proved = self.ratio * np.sqrt(orders * (orders - 1)) < math.sqrt(2)"]
    assert len(dropped) == 1
