"""The flow a hospital sees: init, identity, propose, check, approve, serve, coordinate, ledger, verify, withdraw."""

import contextlib
import csv
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from coterie.transcript import Transcript

SIZES = {"east": 60, "north": 90, "south": 75}
SCHEMA = """\
[label]
name = "outcome"
values = ["no", "yes"]

[[columns]]
name = "age"
minimum = 0
maximum = 110

[[columns]]
name = "sex"
categories = ["female", "male"]

[[columns]]
name = "height_cm"
minimum = 0
maximum = 250
"""
STUDY = """\
[study]
title = "Outcome by age"
wait_s = 120

[schema]
file = "schema.toml"

[parties]
topology = "complete"
sizes = {{ {sizes} }}
identities = {{ {identities} }}

[problem]
loss = "logistic"
l2 = 1.0

[privacy]
epsilon = 2.0
delta = 1e-5
adjacency = "replace-one"

[algorithm]
name = "penalty-perturbed-admm"
rounds = 3
"""


def write_patients(path, n, *, seed=0, change=lambda row: row):
    rng = np.random.default_rng(seed)
    with open(path, "w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["age", "sex", "height_cm", "outcome"])
        for number in range(n):
            age = int(rng.integers(30, 80))
            row = [age, str(rng.choice(["female", "male"])), int(rng.normal(170, 10)), ["no", "yes"][age > 55]]
            out.writerow(change((number, row))[1])


@pytest.fixture
def study(tmp_path, coterie):
    """Three sites and a proposal to them."""
    (tmp_path / "schema.toml").write_text(SCHEMA)
    identities = {}
    for number, (name, size) in enumerate(SIZES.items()):
        write_patients(tmp_path / f"{name}.csv", size, seed=number)
        code, told, _ = coterie(
            "site", "init", tmp_path / "sites" / name, "--data", tmp_path / f"{name}.csv", "--schema",
            tmp_path / "schema.toml", "--epsilon", 3, "--delta", 1e-5, "--json",
        )  # fmt: skip
        assert code == 0
        identities[name] = json.loads(told)["identity"]
    sizes = ", ".join(f"{name} = {size}" for name, size in SIZES.items())
    keys = ", ".join(f'{name} = "{key}"' for name, key in identities.items())
    (tmp_path / "study.toml").write_text(STUDY.format(sizes=sizes, identities=keys))
    code, told, error = coterie("propose", tmp_path / "study.toml", "--out", tmp_path / "study", "--json")
    assert code == 0, error
    return tmp_path, json.loads(told)


def test_a_proposal_states_every_loss_and_holds_no_data(study):
    folder, told = study
    assert list(told["epsilon"]) == list(SIZES)
    assert all(loss == pytest.approx(2.0, rel=1e-6) for loss in told["epsilon"].values())
    page = (folder / "study" / "proposal.md").read_text()
    for words in ("Outcome by age", "What leaves each site", "| north | 90 | 3 | 2 |", "What is left open"):
        assert words in page
    assert (folder / "study" / "coordinator.key").stat().st_mode & 0o777 == 0o600


def test_check_and_approve_tell_price_and_what_is_left(study, coterie):
    folder, told = study
    site = folder / "sites" / "north"
    code, out, _ = coterie("site", "check", site, folder / "study")
    assert code == 0
    assert "ε = 0 before, 2 with it, of 3" in out
    # nothing was approved
    assert coterie("site", "status", site)[1].count("\n") == 2
    code, out, _ = coterie("site", "approve", site, folder / "study", "--json")
    assert code == 0
    assert json.loads(out)["fits"]
    code, out, _ = coterie("site", "status", site, "--json")
    assert [run["state"] for run in json.loads(out)["runs"]] == ["approved"]
    code, out, _ = coterie("site", "withdraw", site, told["proposal"][:10])
    assert code == 0
    assert "nothing is charged" in out
    assert coterie("site", "withdraw", site, "abc")[0] == 2


def mixed_up(row):
    return row[0], [row[1][0], row[1][1], row[1][2] / 100, row[1][3]]


def in_millimetres(row):
    return row[0], [row[1][0], row[1][1], row[1][2] * 10, row[1][3]]


def new_category(row):
    return row[0], [row[1][0], "diverse" if row[0] % 10 == 3 else row[1][1], *row[1][2:]]


def missing(row):
    return row[0], ["" if row[0] % 10 < 3 else row[1][0], *row[1][1:]]


MISFITS = [
    (new_category, "sex", "not among the categories", 9, 5, "diverse", True),
    (missing, "age", "missing (30% of 90)", 27, 2, "", True),
    (in_millimetres, "height_cm", "in another unit?", 90, 2, None, True),
    (mixed_up, "height_cm", "in another unit?", 90, 2, None, False),
]


def test_records_that_do_not_fit_are_shown_before_anything_is_approved(study, coterie):
    folder, _ = study
    for change, column, what, count, line, example, refused in MISFITS:
        write_patients(folder / "north.csv", 90, seed=1, change=change)
        code, out, _ = coterie("site", "check", folder / "sites" / "north", folder / "study", "--json")
        assert (code == 2) == refused
        [row] = json.loads(out)["misfits"]
        assert (row["column"], row["count"], row["line"]) == (column, count, line)
        assert what in row["what"]
        assert example is None or row["example"] == example
        code, out, _ = coterie("site", "approve", folder / "sites" / "north", folder / "study")
        assert (code == 2) == refused
        assert column in out
        assert str(count) in out
        assert (f"refused: records: what is listed for {column} does not fit" in out) == refused
    # for the owner's eyes: no cell is in the log
    assert "diverse" not in (folder / "sites" / "north" / "log.jsonl").read_text()


def test_a_file_of_another_size_is_refused(study, coterie):
    folder, _ = study
    write_patients(folder / "north.csv", 80)
    code, out, _ = coterie("site", "approve", folder / "sites" / "north", folder / "study")
    assert code == 2
    assert "the proposal says 90" in out
    assert "refused: records: what is listed for (all) does not fit" in out


MALFORMED = [
    ("[problem]", "[data]\nfile = 'x.csv'\n\n[problem]", "got the table [data]"),
    ("delta = 1e-5", "delta = 1e-5\nledger = 'x'", "every site keeps its own"),
    ("north = 90", "north = 90, west = 3", "the party 'west' is missing"),
    ("north = 90", "north = 0", "parties.sizes.north"),
    ('south = "coterie1:', 'south = "coterie2:', "as `coterie site identity` prints it"),
    (
        'one"\n\n[algorithm]\nname = "penalty-perturbed-admm"',
        'one"\ntrust = "secure-sum"\n\n[algorithm]\nname = "noisy-gradient-descent"',
        "nothing stands behind that word",
    ),
    ("[study]", "[studies]", "unknown key 'studies'"),
    ("wait_s = 120", "wait_s = -1", "study.wait_s"),
    ("adjacency", "adjacent", "adjacent"),
]


def test_a_study_that_cannot_be_proposed_leaves_nothing(study, coterie):
    folder, _ = study
    text = (folder / "study.toml").read_text()
    for old, new, sentence in MALFORMED:
        assert old in text
        (folder / "study.toml").write_text(text.replace(old, new, 1))
        code, _, error = coterie("propose", folder / "study.toml", "--out", folder / "other")
        assert code == 2
        assert sentence in error
        assert not (folder / "other").exists()


def test_commands_on_what_is_no_site_end_with_a_sentence(tmp_path, coterie):
    for command in ("identity", "status", "ledger", "verify", "serve"):
        code, _, error = coterie("site", command, tmp_path / "nowhere")
        assert code == 2
        assert error.startswith("coterie: ")
        assert error.count("\n") == 1
    (tmp_path / "proposal.json").write_text("{}")
    assert coterie("coordinate", tmp_path, "--sites", tmp_path)[0] == 2


@pytest.mark.parametrize(
    ("budget", "sentence"),
    [
        (("-3", "1e-5"), "--epsilon: got -3.0; a positive number is needed"),
        (("nan", "1e-5"), "--epsilon: got nan; a positive number is needed"),
        (("3", "1"), "delta: got 1.0; a number strictly between 0 and 1 is needed"),
    ],
)
def test_a_budget_that_is_none_makes_no_site(study, coterie, budget, sentence):
    folder, _ = study
    west = folder / "sites" / "west"
    epsilon, delta = budget
    data = ("--data", folder / "north.csv", "--schema", folder / "schema.toml")
    code, _, error = coterie("site", "init", west, *data, "--epsilon", epsilon, "--delta", delta)
    assert (code, error) == (2, f"coterie: {sentence}\n")
    assert not list(west.parent.glob("*west*"))


def test_a_run_of_a_study_is_told_what_a_study_is_for(study, coterie):
    folder, _ = study
    code, _, error = coterie("run", folder / "study.toml")
    assert (code, error.count("\n")) == (2, 1)
    assert "a study has no data, and is for `coterie propose`" in error


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--engine", "pigeons", "--kit", "kits"], "--engine: got 'pigeons'; one of sites, "),
        (["--engine", "flower"], "--engine: got 'flower'; --kit is needed with it"),
        (["--engine", "flower", "--sites", "sites"], "--engine: got 'flower'; --kit is needed with it"),
        (
            ["--engine", "flower", "--sites", "sites", "--kit", "kits"],
            "--engine: got 'flower'; --kit is needed with it",
        ),
        (["--kit", "kits"], "--engine: got 'sites'; --sites is needed with it"),
        ([], "--engine: got 'sites'; --sites is needed with it"),
    ],
)
def test_what_an_engine_needs_to_reach_sites_is_asked_for_first(coterie, options, sentence):
    code, _, error = coterie("coordinate", "nowhere", *options)
    assert code == 2
    assert sentence in error


def test_receipts_and_backups(study, coterie):
    folder, _ = study
    site = folder / "sites" / "north"
    code, out, _ = coterie("site", "verify", site, "--new-receipt", folder / "receipt.json", "--json")
    assert code == 0
    entries = json.loads(out)["entries"]
    code, out, _ = coterie("site", "verify", site, "--receipt", folder / "receipt.json")
    assert code == 0
    assert f"still holds entry {entries}" in out
    assert coterie("site", "backup", site, folder / "copy.sqlite")[0] == 0
    assert coterie("site", "backup", site, folder / "copy.sqlite")[0] != 0
    other = folder / "sites" / "south"
    assert coterie("site", "verify", other, "--receipt", folder / "receipt.json")[0] != 0


@contextlib.contextmanager
def served(sites, names, stop=lambda process: process.send_signal(signal.SIGTERM)):
    """A server for each site, that ends when it is told to; one that does not says where it hangs."""
    traces = [sites.parent / f"{name}.trace" for name in names]
    command = [sys.executable, "-X", "faulthandler", "-m", "coterie", "site", "serve"]
    processes = []
    for name, trace in zip(names, traces, strict=True):
        with trace.open("w") as file:
            processes.append(subprocess.Popen([*command, sites / name], stderr=file))
    try:
        yield
    finally:
        for process in processes:
            stop(process)
        for process, trace in zip(processes, traces, strict=True):
            try:
                assert process.wait(30) == 0
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGABRT)
                process.wait()
                pytest.fail(trace.read_text())


def test_a_server_ends_also_where_the_signal_comes_to_another_of_its_threads(study):
    folder, _ = study
    log = folder / "sites" / "north" / "log.jsonl"

    def stop(process):
        until = time.monotonic() + 30
        while not (log.exists() and '"serving"' in log.read_text()) and time.monotonic() < until:
            time.sleep(0.05)
        main, *others = sorted(int(task.name) for task in Path(f"/proc/{process.pid}/task").iterdir())
        assert main == process.pid
        # to the youngest, which accepts connections
        assert ctypes.CDLL(None).tgkill(process.pid, others[-1], signal.SIGTERM) == 0

    with served(folder / "sites", ["north"], stop):
        pass


@pytest.mark.slow
def test_the_whole_flow_between_processes(study, coterie):
    folder, _ = study
    sites = folder / "sites"
    for name in SIZES:
        assert coterie("site", "approve", sites / name, folder / "study")[0] == 0
    with served(sites, SIZES):
        code, out, error = coterie("coordinate", folder / "study", "--sites", sites, "--json")
        assert code == 0, error
        # another server in the same folder is refused
        assert coterie("site", "serve", sites / "north")[0] == 2
    assert json.loads(out)["epsilon"] == pytest.approx(2.0, rel=1e-6)
    result = folder / "study" / "result"
    code, out, _ = coterie("certificate", "verify", result, "--json")
    assert code == 0
    assert list(json.loads(out)["signed_by"]) == list(SIZES)
    for name in SIZES:
        [kept] = (sites / name / "results").iterdir()
        assert {path.name: path.read_bytes() for path in kept.iterdir()} == {
            path.name: path.read_bytes() for path in result.iterdir() if path.name != "report.html"
        }
        code, out, _ = coterie("site", "ledger", sites / name, "--json")
        [release] = json.loads(out)["releases"]
        assert (release["rounds_released"], release["what"]) == (3, "Outcome by age")
        assert json.loads(out)["budget"]["left"] == pytest.approx(1.0, rel=1e-6)
    # and a changed file is found
    (result / "model.json").write_text("{}")
    assert coterie("certificate", "verify", result)[0] == 2


SEEDED = """\
[data]
dataset = "heart"

[parties]
topology = "ring"

[privacy]
epsilon = 4.0
delta = 1e-5
adjacency = "replace-one"

[algorithm]
name = "penalty-perturbed-admm"
rounds = 3

[engine]
seed = 5
"""


@pytest.mark.slow
def test_a_study_with_intervals_comes_to_its_end_with_them(study, coterie):
    folder, _ = study
    sites = folder / "sites"
    (folder / "study.toml").write_text((folder / "study.toml").read_text() + "\n[inference]\n")
    assert coterie("propose", folder / "study.toml", "--out", folder / "with")[0] == 0
    page = (folder / "with" / "proposal.md").read_text()
    assert "gradient and Hessian of its records, 20 numbers" in page
    assert "| north | 90 | 5 | 2 |" in page
    for name in SIZES:
        assert coterie("site", "approve", sites / name, folder / "with")[0] == 0
    with served(sites, SIZES):
        code, out, error = coterie("coordinate", folder / "with", "--sites", sites, "--json")
        assert code == 0, error
    result = folder / "with" / "result"
    names = [row["name"] for row in json.loads((result / "intervals.json").read_text())["coefficients"]]
    assert names == ["age", "sex=male (not sex=female)", "height_cm", "intercept"]
    code, out, error = coterie("certificate", "verify", result)
    assert code == 0, error
    assert "intervals" in out
    assert len(list((sites / "north" / "results").iterdir())) == 1


@pytest.mark.slow
def test_processes_release_what_one_process_releases(tmp_path, coterie):
    (tmp_path / "spec.toml").write_text(SEEDED)
    for engine in ("in-process", "sites"):
        code, _, error = coterie("run", tmp_path / "spec.toml", "--engine", engine, "--out", tmp_path / engine)
        assert code == 0, error
        assert coterie("certificate", "verify", tmp_path / engine)[0] == 0
    one, many = (Transcript.load(tmp_path / engine / "transcript.npz") for engine in ("in-process", "sites"))
    np.testing.assert_allclose(many.releases, one.releases, rtol=0, atol=1e-9)
    summaries = [json.loads((tmp_path / engine / "summary.json").read_text()) for engine in ("in-process", "sites")]
    assert [summary["test_error"] for summary in summaries] == [summaries[0]["test_error"]] * 2


@pytest.mark.slow
def test_a_site_that_dies_or_a_user_who_stops_ends_with_a_sentence(tmp_path):
    (tmp_path / "spec.toml").write_text(SEEDED.replace("rounds = 3", "rounds = 4000"))
    for victim, code in (("site", 1), ("user", 130)):
        out = tmp_path / victim
        command = [sys.executable, "-m", "coterie", "run", tmp_path / "spec.toml", "--engine", "sites", "--out", out]
        running = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        [first, *_] = started_by(running.pid, 4)
        wait_for_a_release(first)
        os.kill(first if victim == "site" else running.pid, signal.SIGKILL if victim == "site" else signal.SIGINT)
        _, error = running.communicate(timeout=120)
        assert running.returncode == code, error
        assert ("the site of" if victim == "site" else "stopped after") in error
        assert not any(is_alive(pid) for pid in started_by(running.pid, 0))
    assert (tmp_path / "user" / "partial-transcript.npz").exists()


def test_a_demo_that_is_stopped_before_anything_is_charged_just_stops(tmp_path):
    command = [sys.executable, "-m", "coterie", "demo", "--engine", "sites", "--json"]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    # they are still loading
    sites = started_by(running.pid, 4)
    os.kill(running.pid, signal.SIGINT)
    out, error = running.communicate(timeout=120)
    assert (running.returncode, out) == (130, ""), error
    assert "defect" not in error
    # one that was just being started is ended by the guard, a moment later
    end = time.monotonic() + 30
    while any(is_alive(pid) for pid in sites) and time.monotonic() < end:
        time.sleep(0.1)
    assert not any(is_alive(pid) for pid in sites)
    assert list(tmp_path.iterdir()) == []


def started_by(pid, at_least):
    """Processes whose parent this is, as soon as there are so many."""
    for _ in range(600):
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):
                    parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                    if parent == pid and b"serve" in (entry / "cmdline").read_bytes():
                        found.append(int(entry.name))
        if len(found) >= at_least:
            return found
        time.sleep(0.1)
    raise AssertionError("no sites were started")


def is_alive(pid):
    return Path(f"/proc/{pid}").exists()


def wait_for_a_release(pid):
    folder = Path(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[-2].decode())
    for _ in range(1200):
        with contextlib.suppress(OSError):
            if "released" in (folder / "log.jsonl").read_text():
                return
        time.sleep(0.1)
    raise AssertionError("nothing was released")
