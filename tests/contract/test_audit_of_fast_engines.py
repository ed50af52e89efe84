"""Engines that real plans use only when they are large, or on a GPU, under the audit: nothing they release refutes the
stated losses. The audit's chance that anything correct fails is 0.001; its power is shown with the general engine."""

import pytest

from coterie.audit import instances
from coterie.audit.suite import audit
from coterie.engines import argmins, at_once
from coterie.problems import Logistic

GRAPH_FAMILY = ("dual-perturbed-admm", "penalty-perturbed-admm", "recycled-admm")


def use_at_once(monkeypatch, used):
    compiled = at_once.compiled

    def counted(programs):
        advance = compiled(programs)
        return lambda *a: used.append(len(programs)) or advance(*a)

    monkeypatch.setattr(at_once, "compiled", counted)
    monkeypatch.setattr(at_once, "fits", lambda plan, impairments, _: at_once.come_apart(plan, impairments))


def use_machine_code(monkeypatch, used):
    minimise = argmins.Parties.minimise
    for setting in (instances.LIGHT, instances.HEAVY):
        monkeypatch.setitem(vars(setting), "loss", Logistic())  # the only one it knows
    monkeypatch.setattr(argmins, "ENOUGH_WORK", 0)
    monkeypatch.setattr(argmins, "FEW_PROBLEMS", 10**9)
    monkeypatch.setattr(argmins.Parties, "minimise", lambda *a: used.append(1) or minimise(*a))


@pytest.mark.slow
@pytest.mark.parametrize("use", [use_at_once, use_machine_code])
def test_nothing_is_refuted(use, monkeypatch):
    used = []
    use(monkeypatch, used)
    findings = list(audit(GRAPH_FAMILY, quick=True, workers=1))
    games = [finding for finding in findings if finding.check == "game"]
    assert {finding.algorithm for finding in games} == set(GRAPH_FAMILY)
    assert all(finding.passed for finding in findings), [finding for finding in findings if not finding.passed]
    assert len(used) >= len(games)
