"""The command as people type it, in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from coterie.data.federation import split_intercept
from coterie.transcript import Transcript

COTERIE = Path(sys.executable).with_name("coterie")


def coterie(*arguments, cwd=None, env=None):
    # not those of the tests: people have none
    settings = {**os.environ, "XLA_FLAGS": "", **(env or {})}
    return subprocess.run([COTERIE, *map(str, arguments)], capture_output=True, text=True, cwd=cwd, env=settings)


@pytest.fixture(scope="module")
def seeded_demo(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "results"
    return coterie("demo", "--json", "--seed", 1, "--out", out), out


def test_the_demo_prints_one_json_line_with_the_promised_loss(seeded_demo):
    done, _ = seeded_demo
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    result = json.loads(done.stdout)
    assert result["epsilon"] <= 1.0
    assert result["epsilon"] > 0.999
    assert result["delta"] == 1e-6
    assert result["adjacency"] == "replace-one"
    assert (result["n_parties"], result["rounds"]) == (5, 20)
    assert result["majority_error"] == pytest.approx(0.2444, abs=1e-4)
    assert result["nonprivate_error"] == pytest.approx(0.147, abs=0.002)
    assert result["nonprivate_error"] < result["test_error"] < result["nonprivate_error"] + 0.03


def test_the_demo_leaves_a_complete_directory(seeded_demo):
    _, out = seeded_demo
    assert {p.name for p in out.iterdir()} == {
        "plan.json",
        "transcript.npz",
        "model.json",
        "summary.json",
        "figure.png",
        "certificate.json",
        "certificate.md",
        "report.html",
        "run.log",
    }
    transcript = Transcript.load(out / "transcript.npz")
    model = json.loads((out / "model.json").read_text())
    slopes, constant = split_intercept(transcript.models, 1.0, intercept=True)
    np.testing.assert_allclose(list(model["coefficients"].values()), slopes[0], atol=1e-12)
    assert model["intercept"] == pytest.approx(constant[0], abs=1e-12)
    assert transcript.plan.to_json() == (out / "plan.json").read_text()
    assert transcript.reproducible
    # how long parties computed depends on their records, and what is written is meant to be shown
    assert "seconds" not in json.loads((out / "summary.json").read_text())


def test_the_page_of_the_demo_says_of_what_and_when(seeded_demo):
    _, out = seeded_demo
    page = (out / "report.html").read_text(encoding="utf-8")
    # seeded, so nothing is called private
    assert "<h1>A model of income</h1>" in page
    day = json.dumps((out / "run.log").read_text())[len('"date: ') :][:10]
    assert f"{day} (UTC)" in page
    assert "hours-per-week" in page
    summary = json.loads((out / "summary.json").read_text())
    assert summary["test"]["error"] == pytest.approx(summary["test_error"], abs=1e-12)
    for line in ("test", "nonprivate", "alone"):
        assert 0.85 < summary[line]["auc"] < 0.95
        assert f"{summary[line]['auc']:.3f}" in page


def test_of_a_demo_the_certificate_alone_can_be_verified(seeded_demo):
    _, out = seeded_demo
    done = coterie("certificate", "verify", out)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"of it '{out / 'certificate.json'}' alone can be verified" in done.stderr
    assert coterie("certificate", "verify", out / "certificate.json").returncode == 0


def test_results_are_never_overwritten(seeded_demo):
    _, out = seeded_demo
    before = (out / "transcript.npz").read_bytes()
    again = coterie("demo", "--out", out)
    assert again.returncode == 2
    assert again.stderr.count("\n") == 1
    assert str(out) in again.stderr
    assert (out / "transcript.npz").read_bytes() == before


def test_the_table_says_who_is_protected_from_whom(tmp_path):
    done = coterie("demo", "--seed", 2, cwd=tmp_path, env={"NO_COLOR": "1", "COLUMNS": "200"})
    assert done.returncode == 0, done.stderr
    for words in (
        "test error, private",
        "majority class",
        "ε = 1 at δ = 1e-06",
        "every release of every party",
        "seeded",
    ):
        assert words in done.stdout
    assert "\x1b[" not in done.stdout
    assert (tmp_path / "coterie-demo" / "figure.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("demo", "--seed", "-1"), ("seed", "-1")),
        (("demo", "--seed", "many"), ("--seed", "many")),
        (("demo", "--out", "/proc/nowhere/at/all"), ("out", "/proc/nowhere")),
        (("demmo",), ("demmo",)),
    ],
)
def test_nonsense_gets_one_sentence_and_exit_code_2(arguments, words, tmp_path):
    done = coterie(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert all(word in done.stderr for word in words), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_leaves_a_readable_partial_transcript(tmp_path):
    out = tmp_path / "stopped"
    script = f"""
import os, signal, sys
from coterie.engines.in_process import PlanGroup
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs this in the background may have it ignored
keep = PlanGroup.keep
def interrupted(self, released, start):
    if start == 3:
        os.kill(os.getpid(), signal.SIGINT)
    return keep(self, released, start)
PlanGroup.keep = interrupted
from coterie.cli.main import main
sys.argv = ["coterie", "demo", "--seed", "0", "--json", "--out", {str(out)!r}]
main()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    transcript = Transcript.load(out / "partial-transcript.npz")
    assert not transcript.complete
    assert 1 <= transcript.n_rounds <= 4
    assert np.isfinite(transcript.models).all()


@pytest.mark.parametrize("group", [(), ("schema",), ("certificate",), ("site",)], ids=" ".join)
def test_every_command_is_listed_by_a_whole_sentence(group):
    listed = coterie(*group, "--help", env={"COLUMNS": "80"}).stdout.partition("Commands:")[2].strip().splitlines()
    assert len(listed) >= 2
    assert [line for line in listed if not line.endswith(".") or line.endswith("...")] == []


def test_help_and_version_answer_without_loading_jax():
    script = "import sys, coterie.cli.main; assert 'jax' not in sys.modules and 'sklearn' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
    assert "demo" in coterie("--help").stdout
    assert coterie("--version").stdout.startswith("coterie ")
