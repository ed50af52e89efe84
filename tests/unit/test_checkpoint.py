"""A checkpoint is what was written, or it is refused: a second release under the same noise would give records away."""

import json
import subprocess
import sys

import numpy as np
import pytest

from coterie import evaluate
from coterie.algorithms import NoisyGradientDescent
from coterie.data import Federation
from coterie.engines import mpi
from coterie.engines.checkpoint import LOCK, PROGRESS, RUN, Checkpoint, noise_of_records, records_mark
from coterie.engines.in_process import run, run_many
from coterie.errors import InputError
from coterie.inference import infer
from coterie.network.channels import Curator
from coterie.plan import Plan
from coterie.privacy.mechanisms import GaussianGradient
from coterie.privacy.noise import KeyedEntropy, draw_many
from coterie.problems import L2, Logistic, Problem

FEDERATION = Federation.from_arrays(
    np.eye(4), np.array([0, 1, 0, 1]), parties=np.array(["a", "a", "b", "b"]), labels=(0, 1)
)
IDENTITY = {"plan": "a digest", "ranks": 1}
RECORDS = [np.arange(6.0).reshape(2, 3), np.ones(2)]
ROUNDS = 2


def saved(folder):
    checkpoint = Checkpoint(folder / "run", rank=0)
    checkpoint.begin(IDENTITY, [["before", 1.0, 1e-6]])
    assert checkpoint.same_records(records_mark(RECORDS, checkpoint.key(IDENTITY)))
    checkpoint.records_known()
    checkpoint.save(0, np.arange(24.0).reshape(ROUNDS, 3, 4), [np.full((3, 4), 0.5)])
    checkpoint.all_saved(ROUNDS)
    return checkpoint


@pytest.mark.parametrize("there", ["a file", "a folder with something in it"])
def test_a_place_that_holds_something_else_is_refused(tmp_path, there):
    place = tmp_path / "run"
    if there == "a file":
        place.write_text("mine")
    else:
        place.mkdir()
        (place / "thesis.tex").write_text("mine")
    with pytest.raises(InputError, match="is no checkpoint and not empty"):
        Checkpoint(place, rank=0).begin(IDENTITY)


def test_a_place_where_the_first_file_was_not_finished_is_begun_anew(tmp_path):
    (tmp_path / f".{RUN}").write_text("{")
    checkpoint = Checkpoint(tmp_path, rank=0)
    checkpoint.begin(IDENTITY)
    assert checkpoint.exists
    assert tmp_path.stat().st_mode & 0o777 == 0o700


def stored(checkpoint):
    return sorted(path for path in checkpoint.directory.iterdir() if path.name != LOCK)


def gone_on_with(checkpoint, records=RECORDS):
    """What a run that goes on looks at."""
    key = checkpoint.key(IDENTITY)
    assert checkpoint.past == [("before", 1.0, 1e-6)]
    if not checkpoint.same_records(records_mark(records, key)):
        raise InputError("other records")
    return checkpoint.load(checkpoint.rounds_done, 1)


def test_what_was_saved_comes_back(tmp_path):
    checkpoint = saved(tmp_path)
    releases, private = gone_on_with(checkpoint)
    np.testing.assert_array_equal(releases, np.arange(24.0).reshape(ROUNDS, 3, 4))
    np.testing.assert_array_equal(private[0], np.full((3, 4), 0.5))
    checkpoint.finish()
    assert checkpoint.finished
    assert not any(b'"key"' in path.read_bytes() for path in checkpoint.directory.iterdir())
    np.testing.assert_array_equal(checkpoint.load(ROUNDS, 0)[0], releases)


def test_every_flipped_bit_is_found(tmp_path):
    checkpoint = saved(tmp_path)
    rng = np.random.default_rng(0)
    for path in stored(checkpoint):
        whole = path.read_bytes()
        for place in range(len(whole)):
            flipped = bytearray(whole)
            flipped[place] ^= 1 << int(rng.integers(8))
            path.write_bytes(flipped)
            with pytest.raises(InputError):
                gone_on_with(checkpoint)
        path.write_bytes(whole[:-1])
        with pytest.raises(InputError):
            gone_on_with(checkpoint)
        path.write_bytes(whole)
    gone_on_with(checkpoint)


def test_a_missing_file_is_refused(tmp_path):
    checkpoint = saved(tmp_path)
    for path in stored(checkpoint):
        if path.name == PROGRESS:
            # without it all rounds are repeated, on the same records and with the same noise
            continue
        whole = path.read_bytes()
        path.unlink()
        with pytest.raises(InputError):
            gone_on_with(checkpoint)
        path.write_bytes(whole)


def test_other_records_are_refused_also_when_their_digest_was_taken_away(tmp_path):
    checkpoint = saved(tmp_path)
    others = [RECORDS[0] + 1, RECORDS[1]]
    with pytest.raises(InputError, match="other records"):
        gone_on_with(checkpoint, others)
    (checkpoint.directory / "records-0000").unlink()
    with pytest.raises(InputError, match="records-0000' is missing"):
        gone_on_with(checkpoint, others)


def test_one_file_in_the_place_of_another_is_refused(tmp_path):
    checkpoint = saved(tmp_path)
    private, records = checkpoint.directory / "private-000002-0000-0.npy", checkpoint.directory / "records-0000"
    records.write_bytes(private.read_bytes())
    with pytest.raises(InputError, match="was altered"):
        gone_on_with(checkpoint)


@pytest.mark.parametrize("tag", ["é", "\ud800", "", None, 7])
def test_a_tag_of_any_characters_is_refused_in_a_sentence(tmp_path, tag):
    checkpoint = saved(tmp_path)
    path = checkpoint.directory / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tag": tag}))
    with pytest.raises(InputError, match="was altered"):
        gone_on_with(checkpoint)


def test_nothing_but_the_key_is_no_run_that_has_just_begun(tmp_path):
    """Whoever takes everything else away would have other records released under the same noise."""
    checkpoint = saved(tmp_path)
    for path in checkpoint.directory.iterdir():
        if path.name != RUN:
            path.unlink()
    with pytest.raises(InputError, match="records-0000' is missing"):
        checkpoint.same_records(records_mark([RECORDS[0] + 1, RECORDS[1]], checkpoint.key(IDENTITY)))


def test_a_copy_from_before_any_records_were_known_gives_others_other_noise(tmp_path):
    """Put back, it takes whatever records it is given: releases under one noise would differ by the record alone."""
    checkpoint = Checkpoint(tmp_path / "run", rank=0)
    checkpoint.begin(IDENTITY)
    key = checkpoint.key(IDENTITY)
    mine, others = (records_mark(records, key) for records in (RECORDS, [RECORDS[0] + 1e-9, RECORDS[1]]))

    def drawn(*marks):
        return draw_many(noise_of_records(marks, key), "gaussian", 3, [(0, 0, 0)], "release")

    np.testing.assert_array_equal(drawn(mine, others), drawn(mine, others))
    for marks in ((others,), (mine, others), (others, mine)):
        assert not np.any(drawn(*marks) == drawn(mine))
    # nor is it what the key itself would draw
    assert not np.any(draw_many(key, "gaussian", 3, [(0, 0, 0)], "release") == drawn(mine))


OTHER = """
import sys
from pathlib import Path
from coterie.engines.checkpoint import Checkpoint
from coterie.errors import InputError
try:
    Checkpoint(Path(sys.argv[1]), rank=0).begin({"plan": "a digest", "ranks": 1}, [["before", 1.0, 1e-6]])
except InputError as error:
    print(error)
"""


def test_two_processes_do_not_go_on_with_one_run(tmp_path):
    """The same command twice: one would vouch for the records of the other, and whoever is done first would remove what
    the other needs."""

    def begun_elsewhere():
        command = [sys.executable, "-c", OTHER, str(tmp_path / "run")]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout

    checkpoint = saved(tmp_path)
    assert (tmp_path / "run" / LOCK).stat().st_mode & 0o7777 == 0o600
    # again, as a run does that charges a ledger first
    Checkpoint(tmp_path / "run", rank=0).begin(IDENTITY)
    assert "another process goes on with" in begun_elsewhere()
    gone_on_with(checkpoint)
    checkpoint.remove()
    assert not (tmp_path / "run").exists()
    # a process that was killed leaves its lock to whoever comes next
    assert begun_elsewhere() == ""
    Checkpoint(tmp_path / "run", rank=0).begin(IDENTITY)


class OneProcess:
    """Of a cluster that has no other."""

    rank, size = 0, 1


@pytest.mark.parametrize(
    "release",
    [
        lambda plan, noise: run(plan, FEDERATION, noise=noise),
        lambda plan, noise: run_many([plan, plan], FEDERATION, noise=noise),
        lambda plan, noise: mpi.run(plan, lambda party: FEDERATION.shards[party], noise=noise, comm=OneProcess()),
        lambda plan, noise: evaluate(None, None, None, noise=noise),
        lambda plan, noise: infer(None, FEDERATION, delta=1e-5, noise=noise),
    ],
    ids=["run", "run_many", "mpi", "evaluate", "infer"],
)
def test_noise_that_can_be_drawn_again_belongs_to_a_run_with_a_checkpoint(release):
    """Under one key two plans, or one plan on other records, release what can be subtracted from each other."""
    algorithm = NoisyGradientDescent(
        mechanism=GaussianGradient(noise_multiplier=5.0), regulariser=L2(1.0), step=0.1, channel=Curator()
    )
    problem = Problem(loss=Logistic(), regulariser=L2(1.0), record_weight=1.0)
    plan = Plan.make(algorithm, problem, "complete", FEDERATION.facts, rounds=2, adjacency="replace-one")
    with pytest.raises(InputError, match=r"noise: got KeyedEntropy, .* belongs to a run with a checkpoint"):
        release(plan, KeyedEntropy())
