"""How benchmarks are compared with the reference; nothing is timed here."""

import importlib
import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def bench(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(BENCHMARKS)
    for name in ("bench", "figures"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    module = importlib.import_module("bench")
    monkeypatch.setattr(module, "REFERENCE", tmp_path / "reference.json")
    return module


def ratio(bench, name, value, **target):
    return bench.Figure(name, value, bench.RATIO, **target)


def quick(bench, monkeypatch, runs, *arguments):
    """The exit code when successive runs of the only benchmark find these figures; every run must be asked for."""
    found = iter(runs)
    monkeypatch.setattr(bench, "BENCHMARKS", ("only",))
    monkeypatch.setattr(bench, "run", lambda name, quick: (next(found), {}))
    monkeypatch.setattr(sys, "argv", ["bench.py", "--quick", *arguments])
    code = bench.main()
    assert next(found, None) is None
    return code


def test_a_target_is_met_on_its_side_only(bench):
    assert ratio(bench, "speed", 8.0, at_least=8.0).met is True
    assert ratio(bench, "speed", 7.9, at_least=8.0).met is False
    assert ratio(bench, "import", 3.1, at_most=3.0).met is False
    assert [ratio(bench, "slope", v, at_least=0.9, at_most=1.1).met for v in (0.8, 1.0, 1.2)] == [False, True, False]
    assert ratio(bench, "free", 1.0).met is None


@pytest.mark.parametrize(
    ("value", "target", "lost"),
    [
        (7.1, {"at_least": 8.0}, False),
        (6.9, {"at_least": 8.0}, True),
        (6.9, {}, True),
        # less is better: 10 / 14 is kept
        (14.0, {"at_most": 20.0}, False),
        (14.5, {"at_most": 20.0}, True),
        (5.0, {"at_most": 20.0}, False),
    ],
)
def test_more_than_thirty_percent_is_a_loss_whichever_way_is_better(bench, value, target, lost):
    found = bench.losses([ratio(bench, "speed", value, **target)], {"speed": 10.0})
    assert bool(found) == lost
    assert not lost or "loss of 31%" in found["speed"]


def test_only_ratios_are_compared_and_none_may_vanish(bench):
    seconds = bench.Figure("seconds", 100.0, "s", at_most=1.0)
    assert bench.losses([seconds], {}) == {}
    assert "was not measured" in bench.losses([seconds], {"speed": 10.0})["speed"]
    told = bench.beside_reference([seconds, ratio(bench, "speed", 9.0), ratio(bench, "new", 1.0)], {"speed": 10.0})
    assert told == {"speed": "reference 10, 90% kept", "new": "no reference"}


def test_a_loss_counts_when_it_is_measured_twice(bench, monkeypatch, capsys):
    slow, fast = [ratio(bench, "speed", 5.0)], [ratio(bench, "speed", 9.0)]
    assert quick(bench, monkeypatch, [[ratio(bench, "speed", 10.0)]], "--update-reference") == 0
    assert json.loads(bench.REFERENCE.read_text()) == {"speed": 10.0}
    assert quick(bench, monkeypatch, [fast]) == 0
    assert quick(bench, monkeypatch, [slow, fast]) == 0
    capsys.readouterr()
    assert quick(bench, monkeypatch, [slow, slow]) == 1
    told = capsys.readouterr()
    assert told.err == "speed: 5 where the reference has 10, a loss of 50% (30% allowed).\n"
    assert "reference 10, 50% kept" in told.out


def test_a_full_run_leaves_a_file_and_a_plot(bench, monkeypatch, tmp_path, capsys):
    figures = [ratio(bench, "speed", 5.0, at_least=8.0), bench.Figure("seconds", 0.5, "s", at_most=2.0)]
    monkeypatch.setattr(bench, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(bench, "run", lambda name, quick: (figures, {"name": name}))
    monkeypatch.setattr(bench, "BENCHMARKS", ("only",))
    monkeypatch.setattr(sys, "argv", ["bench.py"])
    # a target that is missed fails nobody
    assert bench.main() == 0
    content = json.loads((tmp_path / "results" / "bench.json").read_text())
    assert [(row["name"], row["met"]) for row in content["figures"]] == [("speed", False), ("seconds", True)]
    assert (tmp_path / "results" / "bench.png").stat().st_size > 1000


def test_the_table_is_aligned_and_says_what_is_missed(bench):
    lines = bench.table([ratio(bench, "a long name", 5.0, at_least=8.0), bench.Figure("b", 0.25, "s")]).splitlines()
    assert lines[1].split() == ["a", "long", "name", "5", "x", ">=", "8", "NO"]
    assert len({line.index(unit) for line, unit in zip(lines, ("unit", "x", "s"), strict=True)}) == 1


def test_laps_leave_out_the_block_that_compiles(bench, monkeypatch):
    clock = iter([0.0, 9.0, 10.0, 13.0])
    laps = importlib.import_module("figures").Laps()
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    for done in (0, 2, 4, 6):
        laps(done, 6)
    monkeypatch.undo()
    assert laps.each == [0.5, 1.5]
    assert (laps.fastest, laps.mean) == (0.5, 1.0)


def test_the_committed_reference_holds_positive_ratios_only():
    reference = json.loads((BENCHMARKS / "bench_reference.json").read_text())
    assert reference
    assert all(isinstance(value, float | int) and value > 0 for value in reference.values())
