"""The audit covers what is in the package, reports in one form, and says no where it should."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import coterie.audit
from coterie.algorithms import ALGORITHMS, NoisyGradientDescent
from coterie.audit import suite
from coterie.audit.finding import Measured
from coterie.audit.instances import HEAVY, LIGHT, REGULARISER, enumerate_instances
from coterie.cli import audit as audit_command
from coterie.errors import InputError
from coterie.network.channels import Curator
from coterie.privacy.mechanisms import GaussianGradient

# without a solver, nothing has to be compiled for long
CHEAP = "noisy-gradient-descent"
KEYS = [
    *("algorithm", "mechanism", "noise", "adjacency", "check"),
    "epsilon_stated",
    "epsilon_lower",
    "seconds",
    "verdict",
]
PAGE = Path(__file__).parents[2] / "docs" / "audit.md"


@pytest.fixture(scope="module")
def instances():
    return list(enumerate_instances())


@pytest.fixture(scope="module")
def quick():
    return suite.audit([CHEAP], quick=True)


def test_every_algorithm_can_be_audited(instances):
    assert [i for i in instances if isinstance(i, tuple)] == []
    assert {i.name for i in instances} == set(ALGORITHMS)


def test_instances_differ_in_their_labels(instances):
    labels = [tuple(i.labels.values()) for i in instances]
    assert len(set(labels)) == len(labels)


def test_all_laws_adjacencies_channels_and_secret_selections_are_there(instances):
    labels = " ".join(" ".join(i.labels.values()) for i in instances)
    for word in (
        "gaussian",
        "gamma-sphere",
        "replace-one",
        "zero-out",
        "party",
        "curator",
        "secure-sum",
        "secret Poisson",
    ):
        assert word in labels


def test_neighbours_differ_in_what_is_protected_and_nothing_else(instances):
    for instance in instances:
        for setting in (LIGHT, HEAVY):
            one, two = instance.pair(setting)
            assert one.facts == two.facts
            n_changed = [
                int(((a.X != b.X).any(axis=1) | (a.y != b.y) | (a.weight != b.weight)).sum())
                for a, b in zip(one.shards, two.shards, strict=True)
            ]
            assert n_changed[0] == (1 if instance.unit == "record" else 2)
            assert not any(n_changed[1:])


def test_findings_have_one_form(quick):
    assert quick
    for finding in quick:
        assert list(finding.as_dict()) == KEYS
        assert finding.verdict in ("pass", "not applicable"), finding
    json.dumps([finding.as_dict() for finding in quick], allow_nan=False)
    games = [f for f in quick if f.check == "game"]
    assert all(0 < f.epsilon_lower < f.epsilon_stated for f in games)


def test_an_algorithm_without_an_instance_is_a_failure(monkeypatch):
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Novel(NoisyGradientDescent):
        unheard_of: float

    monkeypatch.setitem(ALGORITHMS, "novel", Novel)
    (finding,) = suite.audit(["novel"])
    assert (finding.check, finding.verdict) == ("instance", "fail")
    assert "unheard_of" in finding.detail
    assert not finding.passed


def test_a_check_that_breaks_does_not_pass(monkeypatch):
    def broken(bench):
        raise ZeroDivisionError("by accident")

    monkeypatch.setitem(suite.CHECKS, "game", broken)
    algorithm = NoisyGradientDescent(
        mechanism=GaussianGradient(noise_multiplier=4.0), regulariser=REGULARISER, step=0.5, channel=Curator()
    )
    findings = coterie.audit.check(algorithm, checks=["game"], adjacency="replace-one", unit="record")
    assert [(f.verdict, f.detail) for f in findings] == [("fail", "ZeroDivisionError: by accident")]


@pytest.mark.parametrize(
    ("measured", "verdict"),
    [
        (Measured(stated=1.0, lower=0.9), "pass"),
        (Measured(stated=1.0, lower=1.1), "fail"),
        (Measured(stated=1.0), "pass"),
        (Measured(stated=1.0, sound=False), "fail"),
        (Measured(stated=1.0, lower=0.1, sound=False), "fail"),
        (Measured(stated=float("inf"), lower=9.0), "no claim"),
        (Measured(stated=1.0, applicable=False), "not applicable"),
    ],
)
def test_verdicts_follow_from_the_numbers(measured, verdict):
    assert measured.verdict == verdict


def test_unknown_names_are_refused_with_a_hint():
    with pytest.raises(InputError, match=r"name: got 'noisy-gradient-decent'; .*did you mean 'noisy-gradient-descent'"):
        suite.audit(["noisy-gradient-decent"])
    with pytest.raises(InputError, match="checks: unknown 'games'"):
        coterie.audit.check(None, checks=["games"])  # type: ignore[arg-type]


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def command(monkeypatch):
    monkeypatch.setattr(audit_command, "_WORKERS", 1)
    app = typer.Typer()
    app.command()(audit_command.audit)
    return lambda *arguments: CliRunner().invoke(app, arguments)


def test_the_command_prints_one_json_list(command):
    done = command(CHEAP, "--quick", "--json")
    assert done.exit_code == 0, done.output
    assert {tuple(entry) for entry in json.loads(done.stdout)} == {tuple(KEYS)}


def test_the_command_prints_a_table(command):
    done = command(CHEAP, "--quick")
    assert done.exit_code == 0, done.output
    assert "tightness" in done.stdout
    assert re.search(r"\d+ checks, 0 failed", done.stdout)


def test_a_failure_is_named_and_sets_the_exit_status(command, monkeypatch):
    monkeypatch.setitem(suite.CHECKS, "game", lambda bench: Measured(stated=1.0, lower=2.0, detail="told apart"))
    done = command(CHEAP, "--quick", "--json")
    assert done.exit_code == 1
    assert "game: told apart" in done.stderr
    assert any(entry["verdict"] == "fail" for entry in json.loads(done.stdout))


def test_what_there_is_no_time_for_is_reported_as_not_run(command):
    done = command("--all", "--json", "--seconds", "0")
    assert done.exit_code == 0
    assert {entry["verdict"] for entry in json.loads(done.stdout)} == {"not run"}


@pytest.mark.parametrize("arguments", [(), (CHEAP, "--all")])
def test_names_or_all(command, arguments):
    assert isinstance(command(*arguments).exception, InputError)


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_examples_of_the_page_do_what_it_says():
    text = PAGE.read_text()
    scope: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", text, flags=re.S):
        exec(block, scope)
    assert scope["verdicts"] == {"fail"}
    assert scope["right_verdicts"] == {"pass"}
    assert scope["refused"] == {"refused"}
