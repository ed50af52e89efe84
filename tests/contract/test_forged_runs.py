"""Directories of runs that somebody changed, with all digests and sums made right again: none may be verified."""

import contextlib
import hashlib
import json
import os
import random
import re
import signal
import tracemalloc

import numpy as np
import pytest

from coterie.certificate import Certificate, make_certificate
from coterie.cli.spec import prepare, read_spec
from coterie.cli.spec.execution import columns_of, model_of, summary_of
from coterie.cli.spec.verification import verify_path
from coterie.data import Schema
from coterie.errors import InputError
from coterie.inference import Released, conclude
from coterie.plan import Plan
from coterie.rundir import sums
from coterie.transcript import Transcript

HEART = """\
[data]
dataset = "heart"
[privacy]
epsilon = 2.0
delta = 1e-5
adjacency = "replace-one"
[algorithm]
rounds = 3
"""
FILES = """\
[data]
files = { north = "north.csv", south = "south.csv" }
[schema.label]
name = "ill"
values = ["no", "yes"]
[[schema.columns]]
name = "age"
minimum = 0
maximum = 100
[[schema.columns]]
name = "ward"
categories = ["a", "b"]
[parties]
topology = "path"
[privacy]
epsilon = 4.0
delta = 1e-5
adjacency = "replace-one"
[algorithm]
name = "recycled-admm"
rounds = 4
"""


STANDARDISED = """\
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
"""
INTERVALS = """\
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


def _run(folder, text):
    import sys

    from coterie.cli.main import main

    (folder / "spec.toml").write_text(text)
    before, sys.argv = sys.argv, ["coterie", "run", str(folder / "spec.toml"), "--out", str(folder / "run"), "--json"]
    try:
        # commands end in SystemExit
        with contextlib.suppress(SystemExit):
            main()
    finally:
        sys.argv = before
    return folder / "run"


@pytest.fixture(scope="module")
def heart(tmp_path_factory):
    return _run(tmp_path_factory.mktemp("heart"), HEART)


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    rng = np.random.default_rng(0)
    for name, size in (("north", 40), ("south", 60)):
        rows = [f"{rng.integers(100)},{rng.choice(['a', 'b'])},{rng.choice(['no', 'yes'])}" for _ in range(size)]
        (folder / f"{name}.csv").write_text("age,ward,ill\n" + "\n".join(rows) + "\n")
    return _run(folder, FILES)


@pytest.fixture(scope="module")
def standardised(tmp_path_factory):
    return _run(tmp_path_factory.mktemp("standardised"), STANDARDISED)


@pytest.fixture(scope="module")
def intervals(tmp_path_factory):
    return _run(tmp_path_factory.mktemp("intervals"), INTERVALS)


class Forged:
    """A copy of a run, and ways to change it consistently."""

    def __init__(self, original, folder):
        self.folder = folder / "forged"
        self.folder.mkdir()
        for path in original.iterdir():
            (self.folder / path.name).write_bytes(path.read_bytes())

    def json(self, name, change):
        path = self.folder / name
        content = json.loads(path.read_text())
        changed = change(content)
        path.write_text(json.dumps(content if changed is None else changed, indent=1, ensure_ascii=False))

    def text(self, name, old, new):
        path = self.folder / name
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    def transcript(self, **changes):
        """Of changed parts; arrays besides releases are added to the archive."""
        path = next(self.folder.glob("*transcript.npz"))
        with np.load(path) as stored:
            parts = {name: stored[name] for name in stored.files}
        with path.open("wb") as file:
            np.savez_compressed(file, **{**parts, **changes})

    def plan(self, change):
        """Another plan in every file that depends on it, beside the same releases."""
        old = Certificate.from_json((self.folder / "certificate.json").read_text())
        content = json.loads(old.plan.to_json())
        change(content)
        plan = Plan.from_json(json.dumps(content))
        path = self.folder / "transcript.npz"
        releases = Transcript.load(path).releases
        path.unlink()
        transcript = Transcript(plan, releases, reproducible=False)
        transcript.save(path)
        certificate = make_certificate(plan, old.delta, reproducible=False, rounds_done=plan.n_rounds)
        (self.folder / "plan.json").write_text(plan.to_json())
        (self.folder / "certificate.json").write_text(certificate.to_json())
        (self.folder / "certificate.md").write_text(certificate.to_markdown())
        stated = json.loads((self.folder / "summary.json").read_text())
        summary = summary_of(transcript, certificate, stated.get("test"))
        (self.folder / "summary.json").write_text(json.dumps(summary))
        model = json.loads((self.folder / "model.json").read_text())
        schema = Schema.from_dict(model["schema"])
        again = model_of(transcript, schema, list(model["coefficients"]), intercept=model["intercept"] is not None)
        (self.folder / "model.json").write_text(json.dumps(again))

    def certificate(self, change):
        path = self.folder / "certificate.json"
        content = json.loads(path.read_text())
        change(content)
        content.pop("digest")
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        certificate = Certificate({**content, "digest": hashlib.sha256(text.encode()).hexdigest()})
        path.write_text(certificate.to_json())
        (self.folder / "certificate.md").write_text(certificate.to_markdown())

    def refused(self):
        (self.folder / "SHA256SUMS").write_text(sums(self.folder))
        with pytest.raises(InputError) as refused:
            verify_path(self.folder)
        assert "\n" not in str(refused.value)
        return str(refused.value)


def multiplied(factor):
    def change(plan):
        noise = plan["algorithm"]["mechanism"]["noise_multiplier"]
        noise["start"] = noise["start"] * factor

    return change


@pytest.fixture(params=["heart", "hospitals"])
def forged(request, tmp_path):
    return Forged(request.getfixturevalue(request.param), tmp_path)


def test_an_honest_run_is_verified(forged):
    (forged.folder / "SHA256SUMS").write_text(sums(forged.folder))
    _, checked, notes = verify_path(forged.folder)
    assert {"spec.toml", "model", "transcript"} <= set(checked)
    assert any("noise of the plan cannot be seen" in note for note in notes)


@pytest.mark.parametrize("factor", [8.0, 0.5, 1.001])
def test_a_plan_with_other_noise_beside_the_same_releases(forged, factor):
    forged.plan(multiplied(factor))
    assert "spec.toml" in forged.refused()


SPECS = [
    ("heart", "[privacy]", '[parties]\ntopology = "ring"\n[privacy]'),
    ("heart", "[privacy]", "[parties]\ncount = 4\n[privacy]"),
    ("heart", "[privacy]", "[problem]\nl2 = 3.0\n[privacy]"),
    ("heart", "epsilon = 2.0", "epsilon = 4.0"),
    ("heart", "rounds = 3", "rounds = 3\npenalty = 7.0"),
    ("heart", 'adjacency = "replace-one"', 'adjacency = "replace-one"\nunit = "party"'),
    ("heart", 'adjacency = "replace-one"', 'adjacency = "replace-one"\nrecords_per_person = 2'),
    ("standardised", 'standardise = "private"', 'standardise = "none"'),
    ("standardised", "rounds = 22", "rounds = 22\nmomentum = 0.5"),
    ("standardised", 'trust = "curator"', 'trust = "none"'),
    ("hospitals", 'topology = "path"', 'topology = "path"\ntopology_seed = -1'),
    ("hospitals", 'values = ["no", "yes"]', 'values = ["yes", "no"]'),
    ("hospitals", "maximum = 100", "maximum = 120"),
    ("hospitals", 'categories = ["a", "b"]', 'categories = ["b", "a"]'),
    ("hospitals", 'categories = ["a", "b"]', 'categories = ["a", "b", "c"]'),
    ("hospitals", "north = ", "west = "),
    ("hospitals", '"recycled-admm"', '"penalty-perturbed-admm"'),
    ("hospitals", "rounds = 4", "rounds = 4\nrecycle_weight = 0.25"),
]


@pytest.mark.parametrize(("which", "old", "new"), SPECS, ids=[new.replace("\n", " ") for _, _, new in SPECS])
def test_another_spec(request, tmp_path, which, old, new):
    forged = Forged(request.getfixturevalue(which), tmp_path)
    forged.text("spec.toml", old, new)
    forged.refused()


IMPOSSIBLE = [
    ("heart", "[privacy]", '[schema]\nfile = "x.toml"\n[privacy]'),
    ("heart", "[privacy]", "[schema]\n[privacy]"),
    ("heart", "[privacy]", '[parties]\ncolumn = "hospital"\n[privacy]'),
    ("hospitals", "[parties]", "[parties]\ncount = 2"),
    ("hospitals", "[schema.label]", '[schema]\nfile = "x.toml"\n[schema.label]'),
]


@pytest.mark.parametrize(("which", "old", "new"), IMPOSSIBLE, ids=[new.replace("\n", " ") for _, _, new in IMPOSSIBLE])
def test_a_spec_that_no_run_accepts(request, tmp_path, which, old, new):
    forged = Forged(request.getfixturevalue(which), tmp_path)
    forged.text("spec.toml", old, new)
    forged.refused()


TOLD = [
    (
        "heart",
        "[privacy]",
        '[privacy]\nledger = "x.json"\nledger_limit = [1.0, 1e-3]',
        "privacy.ledger, privacy.ledger_lim",
    ),
    ("heart", "[privacy]", '[engine]\nname = "mpi"\ncheckpoint = "x"\n[privacy]', "engine.name, engine.checkpoint in"),
    ("heart", "[data]", '[data]\npurpose = "research"\npublic = true', "data.public, data.purpose in"),
    ("hospitals", "north.csv", "other.csv", "data.files in"),
    (
        "hospitals",
        "[data]",
        '[data]\ndelimiter = ";"\nencoding = "latin-1"',
        "data.files, data.delimiter, data.encoding",
    ),
]


@pytest.mark.parametrize(("which", "old", "new", "said"), TOLD, ids=[new.replace("\n", " ") for _, _, new, _ in TOLD])
def test_what_nothing_implies_is_said_to_be_so(request, tmp_path, which, old, new, said):
    forged = Forged(request.getfixturevalue(which), tmp_path)
    forged.text("spec.toml", old, new)
    (forged.folder / "report.html").unlink(missing_ok=True)
    (forged.folder / "SHA256SUMS").write_text(sums(forged.folder))
    _, _, notes = verify_path(forged.folder)
    assert any(said in note and "nothing here implies" in note for note in notes), notes


MODELS = {
    "labels in another order": lambda m: m["labels"].reverse(),
    "labels of the schema in another order": lambda m: m["schema"]["label"]["values"].reverse(),
    "both": lambda m: (m["labels"].reverse(), m["schema"]["label"]["values"].reverse()),
    "a wider range": lambda m: m["schema"]["columns"][0].update(maximum=1000),
    "another column": lambda m: m["schema"]["columns"][0].update(name="years"),
    "columns in another order": lambda m: m["schema"]["columns"].reverse(),
    "a coefficient": lambda m: m["coefficients"].update(age=m["coefficients"]["age"] + 1e-6),
    "a coefficient as a text": lambda m: m["coefficients"].update(age=str(m["coefficients"]["age"])),
    "all coefficients as a text": lambda m: m.update(coefficients="0.1 0.2 0.3"),
    "coefficients as a list": lambda m: m.update(coefficients=list(m["coefficients"].values())),
    "coefficients in another order": lambda m: m.update(coefficients=dict(reversed(m["coefficients"].items()))),
    "no schema": lambda m: m.pop("schema"),
    "another loss": lambda m: m.update(loss="Huber"),
    "a note": lambda m: m.update(note="approved"),
    "a list": lambda m: [m],
    "true for a number": lambda m: m.update(row_norm=True),
}


@pytest.mark.parametrize("change", MODELS.values(), ids=MODELS.keys())
def test_another_model(forged, change):
    forged.json("model.json", change)
    forged.refused()


CERTIFICATES = {
    "a release nobody knew of": lambda c: c["past"].append({"what": "x", "epsilon": 1.0, "delta": 0.0}),
    "a note among versions": lambda c: c["software"].update(approved="yes"),
    "a sentence for a version": lambda c: c["software"].update(numpy="2.0 (approved by NIST)"),
    "no version of NumPy": lambda c: c["software"].pop("numpy"),
    "other rounds done": lambda c: c["rounds"].update(done=1),
    "other engine": lambda c: c["execution"].update(engine="sites"),
    "another tuning": lambda c: c.update(tuning="none"),
    "another view": lambda c: c["views"].append(c["views"][0]),
    "a verdict less": lambda c: c.update(verdict=["fine"]),
}


@pytest.mark.parametrize("change", CERTIFICATES.values(), ids=CERTIFICATES.keys())
def test_another_certificate(forged, change):
    forged.certificate(change)
    forged.refused()


def values_of(content, path=()):
    """Every number, word and truth in a document, by the keys that lead to it."""
    if isinstance(content, (dict, list)):
        for key, value in content.items() if isinstance(content, dict) else enumerate(content):
            yield from values_of(value, (*path, key))
    else:
        yield path, content


def another(value):
    if isinstance(value, bool) or value is None:
        return not value
    return value + "x" if isinstance(value, str) else value * 1.5 + 1


# what nothing in a directory implies: versions of packages and of Python elsewhere, and which machine it was
UNKNOWABLE = ("software",)


VALUES = {
    "hospitals": ("certificate.json", "summary.json", "model.json"),
    "standardised": ("certificate.json", "model.json"),
    "intervals": ("certificate.json", "model.json", "moments.json", "intervals.json"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("which", "name"), [(which, name) for which, names in VALUES.items() for name in names])
def test_every_single_value_is_checked(request, tmp_path, which, name):
    """Each one changed by itself, or a hundred of them, with all digests and sums made right again."""
    forged = Forged(request.getfixturevalue(which), tmp_path)
    original = {path.name: path.read_bytes() for path in forged.folder.iterdir()}
    accepted, tried = [], 0
    values = [value for value in values_of(json.loads(original[name])) if value[0][0] not in (*UNKNOWABLE, "digest")]
    for path, value in random.Random(0).sample(values, min(len(values), 100)):

        def change(content, path=path, value=value):
            for key in path[:-1]:
                content = content[key]
            content[path[-1]] = another(value)

        tried += 1
        try:
            if name == "certificate.json":
                forged.certificate(change)
            else:
                forged.json(name, change)
            (forged.folder / "SHA256SUMS").write_text(sums(forged.folder))
            verify_path(forged.folder)
            accepted.append(path)
        except InputError:
            pass
        for file, content in original.items():
            (forged.folder / file).write_bytes(content)
    assert tried >= 10
    assert accepted == []


@pytest.mark.slow
def test_intervals_of_another_level_than_the_spec_asks_for(intervals, tmp_path):
    """All that follows from the level made right again: narrower intervals that say what they are."""
    forged = Forged(intervals, tmp_path)
    names = prepare(read_spec(forged.folder / "spec.toml")).records.feature_names
    plan = Certificate.from_json((forged.folder / "certificate.json").read_text()).plan
    schema = Schema.from_dict(json.loads((forged.folder / "model.json").read_text())["schema"])
    columns = columns_of(schema, names, plan.facts, intercept=True)
    released = Released.from_json((forged.folder / "moments.json").read_text(), plan)
    inference = conclude(plan, released, columns, delta=1e-5, reproducible=False)
    for level in (0.9, 0.5):
        (forged.folder / "intervals.json").write_text(inference.to_json(level))
        (forged.folder / "intervals.csv").write_text(inference.to_csv(level))
        (forged.folder / "intervals.txt").write_text(inference.summary(level) + "\n")
        (forged.folder / "report.html").unlink(missing_ok=True)
        if level == 0.9:
            (forged.folder / "SHA256SUMS").write_text(sums(forged.folder))
            verify_path(forged.folder)
    assert forged.refused() == "certificate: inference.level of spec.toml asks for 0.9, certified is 0.5"


def test_another_transcript(forged):
    releases = Transcript.load(forged.folder / "transcript.npz").releases
    for changes in (
        {"extra": np.zeros(3)},
        {"releases": releases * np.nan},
        {"releases": releases.astype(np.float32)},
        {"releases": releases[:, ::-1]},
        {"releases": releases * (1 + 1e-6)},
        {"releases": np.concatenate([releases, releases])},
        {"releases": releases[:, :1]},
    ):
        forged.transcript(**changes)
        forged.refused()
        forged.transcript(releases=releases)


def test_a_partial_transcript_of_no_numbers(forged):
    """A complete run made to look like one that was stopped, with rubbish inside."""
    path = forged.folder / "transcript.npz"
    transcript = Transcript.load(path)
    path.unlink()
    (forged.folder / "model.json").unlink()
    partial = Transcript(transcript.plan, transcript.releases[:, :2] * np.nan, reproducible=False)
    partial.save(forged.folder / "partial-transcript.npz")
    forged.certificate(lambda c: c["rounds"].update(done=2))
    forged.json(
        "summary.json", lambda s: {k: v for k, v in {**s, "rounds": 2}.items() if k not in ("test_error", "test")}
    )
    assert "finite" in forged.refused()


@pytest.fixture
def in_time():
    """Whoever waits for the other end of a pipe waits for ever."""

    def ring(*_):
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("name", ["certificate.json", "SHA256SUMS", "spec.toml", "model.json", "transcript.npz"])
def test_what_is_no_file_or_has_no_end_is_not_read(heart, tmp_path, in_time, name):
    folder = Forged(heart, tmp_path).folder
    path = folder / name
    content = path.read_bytes()
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InputError, match=r"no (plain )?file"):
        verify_path(folder)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(InputError, match=r"no (plain )?file"):
        verify_path(folder)
    path.unlink()
    if name != "transcript.npz":
        path.write_bytes(content)
        # without a byte on the disk
        os.truncate(path, 3 * 10**8)
        tracemalloc.start()
        try:
            with pytest.raises(InputError, match=r"bytes, and at most|was changed after"):
                verify_path(folder)
            assert tracemalloc.get_traced_memory()[1] < 10**8
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("command", [("report",), ("predict", "table.csv")])
def test_nor_by_other_commands(heart, tmp_path, in_time, coterie, command):
    folder = Forged(heart, tmp_path).folder
    name = "certificate.json" if command[0] == "report" else "model.json"
    (folder / name).unlink()
    os.mkfifo(folder / name)
    code, _, told = coterie(command[0], folder, *command[1:])
    assert code == 2
    assert "it is no plain file" in told


def test_a_file_that_is_listed_twice(forged):
    path = forged.folder / "SHA256SUMS"
    path.write_text(f"{'0' * 64}  model.json\n" + path.read_text())
    with pytest.raises(InputError, match="lists a file twice"):
        verify_path(forged.folder)


def test_a_key_of_very_many_parts_is_not_read(forged, in_time):
    with (forged.folder / "spec.toml").open("a") as file:
        file.write("\n" + ".".join("a" * 50_000) + " = 1\n")
    assert "too many dots" in forged.refused()


def test_another_test_error_of_public_records(heart, tmp_path):
    forged = Forged(heart, tmp_path)
    forged.json("summary.json", lambda s: s.update(test_error=0.01))
    assert "test_error" in forged.refused()


def test_nothing_in_the_directory_tells_how_long_the_run_took(heart):
    assert "seconds" not in json.loads((heart / "summary.json").read_text())
    assert not re.search(r"\d\d:\d\d", (heart / "run.log").read_text())


@pytest.mark.parametrize("extras", [{}, {"numba": "0.61.0"}], ids=["base", "fast"])
@pytest.mark.parametrize("here", [{}, {"numba": "0.60.0"}], ids=["base here", "fast here"])
def test_extras_on_one_side_only_are_mentioned(heart, tmp_path, monkeypatch, extras, here):
    from coterie.certificate import certificate

    base = {name: version for name, version in certificate.software().items() if name not in certificate.EXTRAS}
    monkeypatch.setattr(certificate, "software", lambda: {**base, **here})
    forged = Forged(heart, tmp_path)
    forged.certificate(lambda c: c.update(software={**base, **extras}))
    (forged.folder / "SHA256SUMS").write_text(sums(forged.folder))
    _, _, notes = verify_path(forged.folder)
    assert any("numba" in note for note in notes) == (extras != here)
