"""What the statistical checks of the audit say about correct mechanisms, over seeds, and the one-run audit's power.

`make audit-calibration` does this at length; here a few repetitions guard against a check that cries wolf or sleeps.
"""

import dataclasses

import pytest

from coterie.audit import canary, game, noise_law
from coterie.audit.instances import enumerate_instances
from coterie.audit.recording import Workbench

# of each check, for the seeds below
FALSE_ALARM = 1e-4


def bench():
    instances = enumerate_instances(["noisy-gradient-descent"])
    instance = next(i for i in instances if (i.adjacency, i.unit) == ("zero-out", "record"))
    return Workbench(instance, false_alarm=FALSE_ALARM)


@pytest.mark.parametrize("seed", range(3))
def test_correct_mechanisms_pass(seed):
    workbench = dataclasses.replace(bench(), seed=seed, n_runs=12_000)
    played = game.check(workbench)
    assert 0.5 * played.stated < played.lower < played.stated
    assert noise_law.check(workbench).verdict == "pass"


def test_one_run_tells_something_and_not_too_much():
    found = canary.check(bench())
    assert found.lower is not None
    assert 0.5 < found.lower < found.stated
