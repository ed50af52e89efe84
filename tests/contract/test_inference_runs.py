"""A run with intervals: its directory says what its releases imply, and changes are found."""

import hashlib
import json
import shutil

import pytest

from coterie.cli.spec import execute, prepare, read_spec
from coterie.cli.spec.local_sites import execute_at_sites
from coterie.cli.spec.verification import verify_path
from coterie.errors import InputError

SPEC = """
[data]
dataset = "heart"
[privacy]
epsilon = 400.0
delta = 1e-5
adjacency = "replace-one"
trust = "curator"
[inference]
level = 0.9
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inference")
    (folder / "spec.toml").write_text(SPEC)
    return execute(prepare(read_spec(folder / "spec.toml")), ()).write(folder / "run")


def rewritten(run, tmp_path, name, change):
    """A copy in which one file was changed and the sums fit again."""
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    (copy / name).write_text(change((copy / name).read_text()))
    files = sorted(path for path in copy.iterdir() if path.name != "SHA256SUMS")
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
    (copy / "SHA256SUMS").write_text(sums)
    return copy


@pytest.mark.slow
def test_the_directory_has_the_table_and_verifies(run):
    content = json.loads((run / "intervals.json").read_text())
    names = [row["name"] for row in content["coefficients"]]
    assert names[0] == "age"
    assert names[-1] == "intercept"
    assert content["level"] == 0.9
    assert sorted(content["joint_tests"]) == ["cp", "restecg"]
    age = content["coefficients"][0]
    assert age["identified"]
    # of one year
    assert 0.9 < age["odds_ratio"] < 1.2
    assert "cp: all 0?" in (run / "intervals.txt").read_text()
    _, agreeing, _ = verify_path(run)
    assert "intervals" in agreeing


@pytest.mark.slow
def test_what_was_changed_afterwards_is_found(run, tmp_path):
    def narrower(text):
        content = json.loads(text)
        content["coefficients"][0]["low"] += 0.001
        return json.dumps(content)

    with pytest.raises(InputError, match=r"intervals\.json"):
        verify_path(rewritten(run, tmp_path / "a", "intervals.json", narrower))
    with pytest.raises(InputError, match="do not fit the plan"):
        verify_path(rewritten(run, tmp_path / "b", "moments.json", lambda text: text.replace("[", "", 1)))
    with pytest.raises(InputError, match=r"intervals\.csv"):
        verify_path(rewritten(run, tmp_path / "c", "intervals.csv", lambda text: text.replace("age", "sex", 1)))


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ("[engine]\nname = 'cloud'", "engine.name: got 'cloud'"),
        ("[inference]\nshare = 2", "inference.share: got 2"),
        ("[inference]\nrobust = 'yes'", "inference.robust"),
        ("[inference]\nlevels = 0.9", "unknown key 'levels'"),
    ],
)
def test_nonsense_is_refused_before_anything_is_read(tmp_path, changed, sentence):
    table = changed.splitlines()[0]
    text = SPEC if table not in SPEC else SPEC[: SPEC.index("[inference]")]
    (tmp_path / "spec.toml").write_text(text + changed + "\n")
    with pytest.raises(InputError, match=sentence):
        read_spec(tmp_path / "spec.toml")


@pytest.mark.slow
def test_sites_release_them_and_sign_them(tmp_path):
    (tmp_path / "spec.toml").write_text(SPEC + "[engine]\nname = 'sites'\n")
    prepared = prepare(read_spec(tmp_path / "spec.toml"))
    found = execute_at_sites(prepared, ()).write(tmp_path / "run")
    _, agreeing, _ = verify_path(found)
    assert "intervals" in agreeing

    def another(text):
        content = json.loads(text)
        content["gradients"][1][0] += 1e-9
        return json.dumps(content)

    with pytest.raises(InputError, match="have signed another proposal, or other releases"):
        verify_path(rewritten(found, tmp_path, "moments.json", another))


@pytest.mark.slow
def test_moments_at_another_model_are_found(run, tmp_path):
    def elsewhere(text):
        content = json.loads(text)
        content["models"][1][0] += 0.01
        return json.dumps(content)

    with pytest.raises(InputError, match=r"moments\.json: models"):
        verify_path(rewritten(run, tmp_path, "moments.json", elsewhere))
