"""Every path of the engine under the audit: nothing it releases refutes the stated losses, and half the noise does.

The audit's chance that anything correct fails is 0.001. Paths that real plans take only when they are large, or on a
GPU, are taken here by small ones."""

import pytest

from coterie.audit import suite
from coterie.audit.instances import path_instances
from coterie.engines import argmin, people, rounds
from coterie.engines.in_process import PATHS

INSTANCES = {instance.paths.only[0]: instance for instance in path_instances()}
OPTIONS = suite.Settings(
    checks=tuple(suite.CHECKS), n_runs=suite.QUICK_RUNS, thorough=False, seed=0, false_alarm=suite.FALSE_ALARM / 20
)


def test_every_path_is_examined():
    """Small plans take the general one anyway."""
    pytest.importorskip("numba")
    assert {*INSTANCES, "general"} == {path.name for path in PATHS}


@pytest.mark.parametrize("path", INSTANCES)
def test_nothing_is_refuted(path):
    findings = suite.examine(INSTANCES[path], 0, OPTIONS)
    assert [finding.check for finding in findings] == [name for name in suite.CHECKS if name in suite.THROUGH_ENGINE]
    assert [(f.check, f.verdict, f.detail) for f in findings if f.verdict != "pass"] == []
    assert all(f"path: {path}" in finding.mechanism for finding in findings)


# where noise enters on each path
ENTERS = {
    "argmin by matrices": (argmin, "unit_noise"),
    "argmin in machine code": (argmin, "unit_noise"),
    "people in machine code": (people.Runs, "_noise"),
    "people": (people, "unit_noise"),
    "solved together": (rounds, "unit_noise"),
}


@pytest.mark.parametrize("path", INSTANCES)
def test_half_the_noise_is_noticed(path, monkeypatch):
    owner, name = ENTERS[path]
    original, compiled = (
        getattr(owner, name),
        (rounds.compiled, people.compiled, argmin._halves, argmin._in_one_program),
    )

    def halved(*given):
        return original(*given) / 2 if name == "_noise" else original(*(draws / 2 for draws in given))

    monkeypatch.setattr(owner, name, halved)
    for cache in compiled:
        cache.cache_clear()
    findings = suite.examine(INSTANCES[path], 0, OPTIONS)
    for cache in compiled:
        cache.cache_clear()
    checks = {finding.check for finding in findings if finding.verdict == "fail"}
    assert checks & {"gaussian-view", "game", "noise-law"}, findings


def test_all_paths_are_part_of_the_whole_audit(monkeypatch):
    examined = []
    monkeypatch.setattr(suite, "examine", lambda instance, *_: examined.append(instance) or [])
    for quick in (True, False):
        suite.audit(quick=quick)
        assert {name for each in examined for name in each.paths.only} == set(INSTANCES)
        examined.clear()
