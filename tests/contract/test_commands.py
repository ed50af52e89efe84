"""The commands as people type them; a few in a process of their own, the others through the same entry point."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.algorithms import ALGORITHMS, CITATIONS
from coterie.cli.spec import execute, prepare, read_spec
from coterie.data import DATASETS
from coterie.data.federation import split_intercept
from coterie.rundir import sums
from coterie.spending import Spending
from coterie.transcript import Transcript

COTERIE = Path(sys.executable).with_name("coterie")
ROOT = Path(__file__).parents[2]
FILES = {
    "spec.toml",
    "plan.json",
    "transcript.npz",
    "certificate.json",
    "certificate.md",
    "model.json",
    "summary.json",
    "run.log",
    "SHA256SUMS",
}
SPEC = """\
[data]
dataset = "heart"
[privacy]
epsilon = 2.0
delta = 1e-5
adjacency = "replace-one"
[algorithm]
rounds = {rounds}
[engine]
seed = 3
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The directory of one run, made by the command in a process of its own."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "spec.toml").write_text(SPEC.format(rounds=3))
    done = subprocess.run([COTERIE, "run", "spec.toml", "--json"], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return folder / "spec-run", json.loads(done.stdout)


def test_a_run_leaves_everything(finished):
    directory, told = finished
    assert {path.name for path in directory.iterdir()} == FILES | {"report.html"}
    assert (directory / "spec.toml").read_text() == SPEC.format(rounds=3)
    transcript = Transcript.load(directory / "transcript.npz")
    assert transcript.plan.to_json() == (directory / "plan.json").read_text()
    model = json.loads((directory / "model.json").read_text())
    slopes, intercept = split_intercept(transcript.models[0], 1.0, intercept=True)
    assert list(model["coefficients"].values()) == slopes.tolist()
    assert model["intercept"] == intercept
    assert len(model["coefficients"]) == 15
    assert told["epsilon"] <= 2.0
    assert told["rounds"] == 3
    assert told["verdict"][0].startswith("NOT PRIVATE")
    assert 0 < told["test_error"] < 0.6
    assert (directory / "run.log").read_text().count("\n") == 7


def test_nothing_is_overwritten(finished, coterie):
    directory, _ = finished
    before = (directory / "SHA256SUMS").read_bytes()
    code, _, told = coterie("run", directory.parent / "spec.toml", "--out", directory)
    assert code == 2
    assert "exists already" in told
    assert (directory / "SHA256SUMS").read_bytes() == before


def test_a_second_run_of_a_seeded_spec_releases_the_same(finished, coterie, tmp_path):
    directory, _ = finished
    code, _, _ = coterie("run", directory.parent / "spec.toml", "--out", tmp_path / "again", "--json")
    assert code == 0
    for name in ("plan.json", "model.json"):
        assert (tmp_path / "again" / name).read_text() == (directory / name).read_text()


def test_a_plan_releases_nothing(finished, coterie, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spec = finished[0].parent / "spec.toml"
    code, told, _ = coterie("run", spec, "--plan")
    assert code == 0
    assert "nothing yet" in told
    code, told, _ = coterie("run", spec, "--plan", "--json")
    assert json.loads(told)["guarantee"]["epsilon"] <= 2.0
    assert list(tmp_path.iterdir()) == []


def test_a_finished_run_can_be_verified(finished, coterie):
    directory, _ = finished
    code, told, _ = coterie("certificate", "verify", directory)
    assert code == 0
    assert "recomputed: ε = 2 at δ = 1e-05" in told
    code, told, _ = coterie("certificate", "verify", directory / "certificate.json", "--json")
    assert code == 0
    assert json.loads(told)["valid"] is True
    code, told, _ = coterie("certificate", "show", directory)
    assert code == 0
    assert told.strip() == (directory / "certificate.md").read_text().strip()


@pytest.mark.parametrize(
    ("name", "old", "new", "words"),
    [
        ("certificate.md", "replace-one", "add-one", "certificate.md does not say"),
        ("summary.json", '"n_parties": 4', '"n_parties": 5', "n_parties"),
        ("summary.json", '"n_parties"', '"delta": 1e-05, "n_parties"', "stands twice"),
        ("model.json", '"absent"', '"present"', "labels"),
        ("model.json", '"row_norm": 1.0', '"row_norm": 2.0', "row_norm"),
        ("model.json", '"age": ', '"aged": ', "features of its schema"),
        ("spec.toml", "epsilon = 2.0", "epsilon = 1.0", "asks for epsilon = 1.0"),
        ("spec.toml", "delta = 1e-5", "delta = 1e-6", "privacy.delta"),
        ("spec.toml", "replace-one", "zero-out", "adjacency is stated as"),
        ("spec.toml", "seed = 3", "", "engine.seed"),
        ("spec.toml", "rounds = 3", "rounds = 4", "another plan"),
        ("spec.toml", '"heart"', '"heart"\nrow_norm = "from-data"', "reads row_norm off the data"),
        ("spec.toml", '"heart"', '"heart"\nrow_norm = 2.0', "data.row_norm"),
        ("spec.toml", '"heart"', '"adult"', "labels"),
        ("spec.toml", "[algorithm]", "[problem]\nl2 = 2.0\n[algorithm]", "another plan"),
        ("spec.toml", "[algorithm]", 'trust = "curator"\n[algorithm]', "another plan"),
        ("spec.toml", "[algorithm]", 'tuning = "none"\n[algorithm]', "privacy.tuning"),
        ("spec.toml", "[engine]\nseed = 3", "", "engine.seed"),
        ("certificate.json", '"format"', '"delta": 0.5, "delta": 0.5, "format"', "'delta' stands twice"),
    ],
)
def test_a_forged_run_with_right_sums_is_refused(finished, coterie, tmp_path, name, old, new, words):
    directory, _ = finished
    for path in directory.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    text = (tmp_path / name).read_text()
    assert old in text
    (tmp_path / name).write_text(text.replace(old, new, 1))
    (tmp_path / "SHA256SUMS").write_text(sums(tmp_path))
    code, out, told = coterie("certificate", "verify", tmp_path)
    assert (code, out) == (2, "")
    assert words in told


def test_nothing_else_may_lie_in_the_directory_of_a_run(finished, coterie, tmp_path):
    for path in finished[0].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "coefficients.csv").write_text("better ones")
    (tmp_path / "SHA256SUMS").write_text(sums(tmp_path))
    code, _, told = coterie("certificate", "verify", tmp_path)
    assert code == 2
    assert "'coefficients.csv' does not belong" in told


def test_runs_on_the_same_data_add_up_in_a_ledger(coterie, tmp_path):
    Spending.create(tmp_path / "spent.json", limit=(1.5, 1e-4))
    spec = tmp_path / "spec.toml"
    spec.write_text(
        '[data]\ndataset = "heart"\n[privacy]\nepsilon = 0.7\ndelta = 1e-5\nadjacency = "zero-out"\n'
        'trust = "curator"\nledger = "spent.json"\n[algorithm]\nrounds = 2\n'
    )
    for place, total in (("one", 0.7), ("two", 1.4)):
        code, told, _ = coterie("run", spec, "--out", tmp_path / place, "--json")
        assert code == 0
        assert json.loads(told)["total_epsilon"] == pytest.approx(total, rel=1e-6)
        assert coterie("certificate", "verify", tmp_path / place)[0] == 0
    code, _, told = coterie("run", spec, "--out", tmp_path / "three", "--json")
    assert code == 1
    assert "beyond the limit" in told
    assert not (tmp_path / "three").exists()
    # the spec need not repeat the ledger's limit
    spec.write_text(spec.read_text().replace("epsilon = 0.7", "epsilon = 0.05"))
    told = " ".join(coterie("run", spec, "--out", tmp_path / "four")[1].split())
    assert "ε = 1.45 at δ = 3e-05 in all, of at most ε = 1.5 at δ = 0.0001 (spent.json)" in told
    assert len(Spending(path=tmp_path / "spent.json").charges) == 3


def test_an_audit_stands_on_the_certificate(coterie, tmp_path):
    (tmp_path / "spec.toml").write_text(SPEC.format(rounds=2).replace("[algorithm]", 'trust = "curator"\n[algorithm]'))
    code, _, _ = coterie("run", tmp_path / "spec.toml", "--out", tmp_path / "run", "--audit", "--json")
    assert code == 0
    found = json.loads((tmp_path / "run" / "certificate.json").read_text())["audit"]
    assert (found["verdict"], found["failed"]) == ("pass", [])
    assert 0.5 * found["epsilon_stated"] < found["epsilon_lower"] <= found["epsilon_stated"]
    assert "verdict: pass" in (tmp_path / "run" / "certificate.md").read_text()


@pytest.mark.parametrize("name", sorted(FILES | {"report.html"}))
def test_a_changed_run_is_refused(finished, coterie, tmp_path, name):
    directory, _ = finished
    for path in directory.iterdir():
        content = bytearray(path.read_bytes())
        if path.name == name:
            content[-3] = ord("8") if content[-3] == ord("7") else ord("7")
        (tmp_path / path.name).write_bytes(content)
    code, out, told = coterie("certificate", "verify", tmp_path)
    assert (code, out) == (2, "")
    assert told.count("\n") == 1


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_run_with_a_file_missing_is_refused(finished, coterie, tmp_path, name):
    directory, _ = finished
    for path in directory.iterdir():
        if path.name != name:
            (tmp_path / path.name).write_bytes(path.read_bytes())
    assert coterie("certificate", "verify", tmp_path)[0] == 2


def test_ctrl_c_keeps_what_was_released(coterie, tmp_path):
    (tmp_path / "spec.toml").write_text(SPEC.format(rounds=40))

    def stop_half_way(done, total):
        if done >= total / 2:
            raise KeyboardInterrupt

    outcome = execute(prepare(read_spec(tmp_path / "spec.toml")), progress=stop_half_way)
    outcome.write(tmp_path / "out")
    assert outcome.transcript.n_rounds == 20
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES - {"transcript.npz", "model.json"} | {
        "partial-transcript.npz"
    }
    code, told, _ = coterie("certificate", "verify", tmp_path / "out")
    assert code == 0, told
    certificate = json.loads((tmp_path / "out" / "certificate.json").read_text())
    assert (certificate["rounds"]["done"], certificate["rounds"]["charged"]) == (20, 40)


def test_cite(coterie):
    code, told, _ = coterie("cite", "recycled-admm", "--bibtex")
    assert code == 0
    assert told.count("@") == 2
    assert "@article{zhang-khalili-liu-2019," in told
    everything = json.loads(coterie("cite", "--json")[1])
    assert {entry["key"] for entry in everything} == set(CITATIONS)
    code, out, told = coterie("cite", "recycled-adm")
    assert (code, out) == (2, "")
    assert "did you mean 'recycled-admm'" in told


def test_every_algorithm_can_be_cited(coterie):
    for name, cls in ALGORITHMS.items():
        told = coterie("cite", name)[1]
        assert cls.citation.text in told


def test_the_citation_file_says_the_same():
    text = (ROOT / "CITATION.cff").read_text()
    stated = re.findall(r'\n    title: "([^"]+)".*?notes: "([^"]+)"', text, flags=re.DOTALL)
    assert len(stated) >= 6
    for title, key in stated:
        assert CITATIONS[key].title == title


def test_datasets(coterie):
    listed = json.loads(coterie("datasets", "--json")[1])
    assert {data["name"] for data in listed} == set(DATASETS)
    assert "Cleveland" in coterie("datasets", "heart")[1]
    assert coterie("datasets", "hart")[0] == 2


@pytest.fixture
def patients(tmp_path):
    path = tmp_path / "patients.csv"
    path.write_text('age,"a ""quoted"" name",site,outcome\n40,x,n,no\n50,y,n,yes\n60,x,s,no\n45,y,s,yes\n')
    return path


def test_a_schema_has_to_be_filled_in(coterie, patients, tmp_path):
    out = tmp_path / "schema.toml"
    code, _, _ = coterie("schema", "make", patients, "--label", "outcome", "--party-column", "site", "--out", out)
    assert code == 0
    made = out.read_text()
    assert "40" not in made
    assert "proposed because of its name (ages of people in years)" in made
    code, _, told = coterie("schema", "check", out, patients)
    assert code == 2
    assert "got categories (); at least 2" in told
    out.write_text(made.replace("minimum = 0", ""))
    assert "'minimum' is missing" in coterie("schema", "check", out, patients)[2]
    # never overwritten
    assert coterie("schema", "make", patients, "--label", "outcome", "--out", out)[0] == 2


def test_a_schema_read_off_the_data_says_so(coterie, patients, tmp_path):
    out = tmp_path / "schema.toml"
    made = ("schema", "make", patients, "--label", "outcome", "--party-column", "site", "--from-data", "--out", out)
    code, told, _ = coterie(*made)
    assert code == 0
    assert "VOIDS" in told
    code, told, _ = coterie("schema", "check", out, patients, "--json")
    told = json.loads(told)
    assert (told["records"], told["features"], told["parties"], told["fits"]) == (4, 3, 2, True)
    assert told["data_derived"] == ["ranges", "categories"]
    code, told, _ = coterie("schema", "check", out, patients)
    assert "4 records, 3 features, 2 parties" in told
    patients.write_text(patients.read_text().replace("60,x", "60,z"))
    code, _, told = coterie("schema", "check", out, patients)
    assert code == 2
    assert "1 cell in 1 column does not fit" in told
    code, told, _ = coterie("schema", "check", out, patients)
    assert "1 cell is something else, first in line 4;" in told
    assert "'z'" not in told
    assert "('z')" in coterie("schema", "check", out, patients, "--show-values")[1]


def test_rows_without_a_party_do_not_fit(coterie, patients, tmp_path):
    out = tmp_path / "schema.toml"
    made = ("schema", "make", patients, "--label", "outcome", "--party-column", "site", "--from-data", "--out", out)
    assert coterie(*made)[0] == 0
    patients.write_text(patients.read_text().replace("60,x,s", "60,x, ").replace("45,y,s", "45,y,NaN"))
    code, told, _ = coterie("schema", "check", out, patients)
    assert code == 2
    assert "column 'site': 2 cells are missing, first in line 4; the name of a party is needed" in told
    spec = tmp_path / "spec.toml"
    privacy = '[privacy]\nepsilon = 1\ndelta = 1e-5\nadjacency = "zero-out"\n'
    spec.write_text(f'[data]\nfile = "{patients}"\n[schema]\nfile = "{out}"\n{privacy}')
    code, _, error = coterie("run", spec, "--plan")
    assert code == 2
    assert "parties: line 4 has the party ' '; every row needs the name of its party" in error


def test_identifiers_are_left_open_where_all_else_is_read_off_the_data(coterie, tmp_path):
    table, out = tmp_path / "table.csv", tmp_path / "schema.toml"
    table.write_text("id,age,outcome\n" + "".join(f"F{i},{20 + i % 60},{['no', 'yes'][i % 2]}\n" for i in range(150)))
    code, told, error = coterie("schema", "make", table, "--label", "outcome", "--from-data", "--out", out)
    assert code == 0, error
    assert "150 different texts, more than 100" in told
    assert "as identifiers have: remove the column, or list what could be there\ncategories = []" in out.read_text()
    code, _, error = coterie("schema", "make", table, "--label", "id", "--from-data", "--out", tmp_path / "other.toml")
    assert (code, (tmp_path / "other.toml").exists()) == (2, False)
    assert "--label: got 'id', which has 150 different texts" in error


def test_whole_numbers_to_predict_may_be_classes(coterie, patients, tmp_path):
    patients.write_text(patients.read_text().replace(",no\n", ",0\n").replace(",yes\n", ",1\n"))
    made = ("schema", "make", patients, "--label", "outcome", "--party-column", "site", "--out")
    assert coterie(*made, tmp_path / "blank.toml")[0] == 0
    assert '# for classes: values = ["0", "1"]' in (tmp_path / "blank.toml").read_text()
    assert coterie(*made, tmp_path / "read.toml", "--from-data")[0] == 0
    assert coterie("schema", "check", tmp_path / "read.toml", patients)[0] == 0
    assert 'values = ["0", "1"]' in (tmp_path / "read.toml").read_text()


def test_examples_are_valid(coterie):
    specs = sorted((ROOT / "examples").glob("*.toml"))
    assert specs
    for spec in specs:
        code, _, told = coterie("run", spec, "--plan", "--json")
        assert code == 0, told


@pytest.mark.parametrize(
    "command", ["run", "cite", "datasets", "schema make", "schema check", "certificate verify", "certificate show"]
)
def test_help_has_examples_and_stays_light(command):
    code = (
        "import sys; from coterie.cli.main import app; sys.argv = ['coterie', *sys.argv[1:], '--help']\n"
        "try: app()\nfinally: print('HEAVY', [m for m in ('jax', 'numpy', 'networkx', 'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, *command.split()], capture_output=True, text=True)
    assert "Examples: " in done.stdout
    assert "--json" in done.stdout
    assert "HEAVY []" in done.stdout


# --- reports ----------------------------------------------------------------------------------------------------------


def test_a_report_is_made_again_and_checked(finished, coterie, tmp_path):
    directory, _ = finished
    run = tmp_path / "run"
    shutil.copytree(directory, run)
    page = (run / "report.html").read_text(encoding="utf-8")
    (run / "report.html").write_text(page.replace("NOT PRIVATE", "PRIVATE"), encoding="utf-8")
    code, out, told = coterie("certificate", "verify", run)
    assert (code, out) == (2, "")
    assert "report.html does not show" in told
    assert coterie("report", run)[0] == 0
    assert (run / "report.html").read_text(encoding="utf-8") == page
    assert "report.html" in coterie("certificate", "verify", run)[1]
    (run / "report.html").unlink()
    assert coterie("certificate", "verify", run)[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_a_page_that_cannot_be_written_says_where_else_it_could_be(finished, coterie, tmp_path, monkeypatch):
    run = shutil.copytree(finished[0], tmp_path / "run")

    def refused(source, target):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(source))

    monkeypatch.setattr(os, "replace", refused)
    code, _, error = coterie("report", run)
    assert (code, error.count("\n")) == (2, 1)
    assert "report.html' cannot be written (Permission denied); `coterie report RUN --out FILE`" in error
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_report_of_a_forged_run_is_refused(finished, coterie, tmp_path):
    directory, _ = finished
    run = tmp_path / "run"
    shutil.copytree(directory, run)
    (run / "report.html").unlink()
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps({**summary, "test_error": 0.001}))
    (run / "SHA256SUMS").write_text(sums(run))
    for arguments in (("report", run), ("report", "--compare", directory, run, "--out", tmp_path / "both.html")):
        code, out, told = coterie(*arguments)
        assert (code, out) == (2, "")
        assert told.count("\n") == 1
    assert not (run / "report.html").exists()
    assert not (tmp_path / "both.html").exists()


def test_reports_of_nonsense_are_one_sentence(finished, coterie, tmp_path):
    directory, _ = finished
    (tmp_path / "taken.html").write_text("mine")
    for arguments in (
        ("report", tmp_path / "nowhere"),
        ("report", tmp_path),
        ("report", directory, directory, "--out", tmp_path / "one.html"),
        ("report", directory, "--out", tmp_path / "taken.html"),
        ("report", directory, "--out", tmp_path / "no" / "folder.html"),
    ):
        code, out, told = coterie(*arguments)
        assert (code, out) == (2, ""), arguments
        assert told.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["taken.html"]
    code, out, _ = coterie("report", "--compare", directory, directory, "--out", tmp_path / "both.html", "--json")
    assert code == 0
    assert json.loads(out)["written"] == [str(tmp_path / "both.html")]
