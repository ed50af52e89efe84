"""A spec whose columns are standardised by noised sums: its directory says so, verifies, and predicts as tested."""

import hashlib
import json
import shutil

import numpy as np
import pytest

from coterie.cli.spec import execute, prepare, read_spec
from coterie.cli.spec.verification import verify_path
from coterie.errors import InputError
from coterie.rundir import FittedModel

SPEC = """
[data]
dataset = "heart"
standardise = "private"
[privacy]
epsilon = 8.0
delta = 1e-5
adjacency = "replace-one"
trust = "curator"
[algorithm]
rounds = 22
momentum = 0.5
"""


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    folder = tmp_path_factory.mktemp("standardised")
    (folder / "spec.toml").write_text(SPEC)
    found = execute(prepare(read_spec(folder / "spec.toml")), ())
    return found, found.write(folder / "run")


def test_the_directory_lists_the_sums_and_verifies(outcome):
    found, folder = outcome
    verify_path(folder)
    page = (folder / "certificate.md").read_text()
    assert "| round 1 | sums of columns, of all records, gaussian noise of " in page
    assert "| round 2 | sums of squares of columns, of all records, gaussian noise of " in page
    listed = json.loads((folder / "certificate.json").read_text())["first_rounds"]
    events = [event for event, _ in found.transcript.plan.ledger(0)]
    assert [one["sensitivity_over_noise"] for one in listed] == pytest.approx([e.ratio for e in events[:2]])


def test_the_model_that_is_read_back_scores_as_the_run_said(outcome):
    found, folder = outcome
    model = FittedModel.read(folder)
    X, y = found.records.test
    assert float(np.mean(model.predict(X) != y)) == pytest.approx(found.result["error"])
    without = json.loads((folder / "model.json").read_text())
    del without["clipping"]
    assert np.abs(FittedModel.of(without).decision_function(X) - model.decision_function(X)).max() > 0.01


@pytest.mark.parametrize("change", [lambda s: s.update(centre=s["centre"][:-1]), lambda s: s.pop("scale")])
def test_a_model_with_other_columns_is_refused(outcome, change):
    content = json.loads((outcome[1] / "model.json").read_text())
    change(content["clipping"])
    with pytest.raises(InputError, match=r"model\.json is no model of a run"):
        FittedModel.of(content)


def test_a_clipping_that_does_not_follow_from_the_releases_is_found(outcome, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(outcome[1], copy)
    content = json.loads((copy / "model.json").read_text())
    content["clipping"]["scale"][0] *= 1.01
    (copy / "model.json").write_text(json.dumps(content))
    files = sorted(path for path in copy.iterdir() if path.name != "SHA256SUMS")
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
    (copy / "SHA256SUMS").write_text(sums)
    with pytest.raises(InputError, match=r"model\.json"):
        verify_path(copy)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"private"', '"publicly"', "data.standardise: got 'publicly'; one of private, none is needed"),
        ('"private"', "true", "data.standardise: got True; one of private, none is needed"),
        ("rounds = 22", "rounds = 2", "rounds: got 2; 2 release sums of columns"),
        ("rounds = 22", 'name = "admm"', "standardise: got it with algorithm 'admm'"),
        ("momentum = 0.5", "momentum = 1.5", "momentum: got "),
        ("momentum = 0.5", "n_records = 5", "unknown key 'n_records'"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_released(tmp_path, old, new, message):
    (tmp_path / "spec.toml").write_text(SPEC.replace(old, new, 1))
    with pytest.raises(InputError, match=message):
        prepare(read_spec(tmp_path / "spec.toml"))
