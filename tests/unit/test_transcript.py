"""Transcripts on disk: never overwritten, never half written, and refused with one sentence when they are damaged."""

import json
import tracemalloc
import zipfile

import numpy as np
import pytest

from coterie.algorithms import ConsensusADMM
from coterie.errors import InputError
from coterie.plan import Plan
from coterie.problems import L2, Logistic, Problem
from coterie.transcript import Interrupted, Transcript
from coterie.values import Facts


@pytest.fixture(scope="module")
def transcript():
    facts = Facts(parties=("a", "b", "c"), sizes=(4, 5, 6), n_features=2, row_norm=1.0, labels=("no", "yes"))
    problem = Problem(loss=Logistic(), regulariser=L2(1.0), record_weight=1.0)
    algorithm = ConsensusADMM.with_penalty(1.0)
    plan = Plan.make(algorithm, problem, "ring", facts, rounds=5, adjacency="zero-out")
    releases = np.random.default_rng(0).normal(size=(2, 5, 3, 2))
    return Transcript(plan, releases, reproducible=False)


@pytest.fixture
def saved(transcript, tmp_path):
    return transcript.save(tmp_path / "run.npz")


def rewrite(path, *, header=None, **arrays):
    """The same file with some parts exchanged."""
    with np.load(path) as stored:
        parts = {name: stored[name] for name in stored.files} | arrays
    if header is not None:
        parts["header"] = np.array(json.dumps(header(json.loads(str(parts["header"])))))
    path.unlink()
    with path.open("wb") as file:
        np.savez_compressed(file, **parts)


def test_round_trip(transcript, saved):
    loaded = Transcript.load(saved)
    assert loaded.plan == transcript.plan
    assert loaded.reproducible is False
    np.testing.assert_array_equal(loaded.releases, transcript.releases)
    np.testing.assert_array_equal(loaded.party_models, transcript.party_models)


def test_the_models_are_what_was_last_broadcast(transcript):
    np.testing.assert_array_equal(transcript.party_models, transcript.releases[:, -1])
    np.testing.assert_allclose(transcript.models, transcript.releases[:, -1].mean(axis=1), rtol=1e-14)
    assert transcript.models_by_round.shape == (2, 5, 2)


def test_save_refuses_to_overwrite_and_leaves_the_old_file_alone(transcript, saved):
    before = saved.read_bytes()
    with pytest.raises(InputError, match=r"^path: '.*run\.npz' exists already"):
        transcript.save(saved)
    assert saved.read_bytes() == before


def test_a_failed_save_leaves_nothing_behind(transcript, tmp_path, monkeypatch):
    def disk_full(*_args, **_kwargs):
        raise OSError("no space left on device")

    monkeypatch.setattr(np, "savez_compressed", disk_full)
    with pytest.raises(OSError, match="no space"):
        transcript.save(tmp_path / "run.npz")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"junk", b"PK\x03\x04 not a zip", b"\x93NUMPY\x01\x00 neither"])
def test_junk_is_refused(tmp_path, content):
    path = tmp_path / "junk.npz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"^path: '.*junk\.npz' is no transcript"):
        Transcript.load(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    for path in (tmp_path / "absent.npz", tmp_path):
        with pytest.raises(InputError, match=r"^path: .* is no transcript"):
            Transcript.load(path)


def test_a_plain_array_and_a_foreign_archive_are_refused(tmp_path):
    np.save(tmp_path / "array.npy", np.ones(3))
    np.savez(tmp_path / "foreign.npz", x=np.ones(3))
    for name in ("array.npy", "foreign.npz"):
        with pytest.raises(InputError, match=r"^path: .* is no transcript"):
            Transcript.load(tmp_path / name)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused(saved, share):
    content = saved.read_bytes()
    saved.write_bytes(content[: int(share * len(content))])
    with pytest.raises(InputError, match=r"^path: "):
        Transcript.load(saved)


def test_a_flipped_byte_is_refused(saved):
    content = bytearray(saved.read_bytes())
    content[len(content) // 3] ^= 0xFF
    saved.write_bytes(bytes(content))
    with pytest.raises(InputError, match=r"^path: "):
        Transcript.load(saved)


def test_a_plan_that_was_tampered_with_is_refused(saved):
    def fewer_rounds(header):
        header["plan"]["n_rounds"] = 1
        return header

    rewrite(saved, header=fewer_rounds)
    with pytest.raises(InputError, match=r"^path: .* does not match its digest"):
        Transcript.load(saved)


def test_a_header_without_its_parts_is_refused(saved):
    rewrite(saved, header=lambda header: {"digest": header["digest"]})
    with pytest.raises(InputError):
        Transcript.load(saved)


def test_releases_that_do_not_fit_the_plan_are_refused(saved):
    """Rounds, parties and coefficients are public numbers of the plan: other shapes cannot have come from it."""
    rewrite(saved, releases=np.zeros((1, 5, 7, 9)))
    with pytest.raises(InputError, match="releases"):
        Transcript.load(saved)


def test_objects_are_never_unpickled(tmp_path):
    path = tmp_path / "pickled.npz"
    np.savez(path, header=np.array({"plan": 1}, dtype=object), releases=np.zeros(1))
    with pytest.raises(InputError, match=r"is no transcript"):
        Transcript.load(path)


@pytest.mark.parametrize(
    "arrays",
    [
        {"note": np.zeros(3)},
        {"releases": np.zeros((1, 5, 3, 2), np.float32)},
        {"releases": np.full((1, 5, 3, 2), np.nan)},
        {"releases": np.full((1, 2, 3, 2), np.inf)},
        {"releases": np.zeros((0, 5, 3, 2))},
    ],
    ids=["an extra array", "float32", "NaN", "infinite", "no repeat"],
)
def test_what_no_run_writes_is_refused(saved, arrays):
    rewrite(saved, **arrays)
    with pytest.raises(InputError, match=r"^path: "):
        Transcript.load(saved)


@pytest.mark.parametrize(
    "change", [{"note": 1}, {"reproducible": 0}, {"reproducible": "no"}, {"impairments": 3}, {"plan": None}], ids=str
)
def test_headers_with_other_keys_or_types_are_refused(saved, change):
    rewrite(saved, header=lambda header: {**header, **change})
    with pytest.raises(InputError):
        Transcript.load(saved)


def test_a_small_archive_is_not_unpacked_to_gigabytes(saved):
    """600 MB of zeros pack into 0.6 MB; nothing of that size may be made."""
    repeats = 25 * 10**5
    with zipfile.ZipFile(saved) as archive:
        header = archive.read("header.npy")
    with zipfile.ZipFile(saved, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.npy", header)
        with archive.open("releases.npy", "w", force_zip64=True) as file:
            shape = {"descr": "<f8", "fortran_order": False, "shape": (repeats, 5, 3, 2)}
            np.lib.format.write_array_header_1_0(file, shape)
            for _ in range(6):
                file.write(bytes(10**8))
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="600,000,"):
            Transcript.load(saved)
        assert tracemalloc.get_traced_memory()[1] < 10**8
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("old", "new"), [(b"'<f8'", b"'01,'"), (b"}", b"{"), (b"(2,", b"(((")], ids=["type", "end", "shape"]
)
def test_a_header_that_is_no_python_is_refused(saved, old, new):
    """NumPy reads the header of an array as Python, which fails in ways of its own."""
    with zipfile.ZipFile(saved) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    assert old in members["releases.npy"][:128]
    members["releases.npy"] = members["releases.npy"].replace(old, new, 1)
    with zipfile.ZipFile(saved, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(InputError, match="is no transcript"):
        Transcript.load(saved)


def test_an_interruption_says_how_far_it_came(transcript):
    partial = Transcript(transcript.plan, transcript.releases[:, :2], reproducible=False)
    assert not partial.complete
    assert transcript.complete
    assert str(Interrupted(partial)) == "stopped after 2 of 5 rounds"
    assert isinstance(Interrupted(partial), KeyboardInterrupt)
