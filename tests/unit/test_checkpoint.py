"""A checkpoint is what was written, or it is refused: a second release under the same noise would give records away."""

import numpy as np
import pytest

from coterie.engines.checkpoint import PROGRESS, Checkpoint
from coterie.errors import InputError

IDENTITY = {"plan": "a digest", "ranks": 1}
RECORDS = [np.arange(6.0).reshape(2, 3), np.ones(2)]
ROUNDS = 2


def saved(folder):
    checkpoint = Checkpoint(folder / "run", rank=0)
    checkpoint.begin(IDENTITY, [["before", 1.0, 1e-6]])
    assert checkpoint.same_records(RECORDS, checkpoint.key(IDENTITY))
    checkpoint.save(0, np.arange(24.0).reshape(ROUNDS, 3, 4), [np.full((3, 4), 0.5)])
    checkpoint.all_saved(ROUNDS)
    return checkpoint


def gone_on_with(checkpoint, records=RECORDS):
    """What a run that goes on looks at."""
    key = checkpoint.key(IDENTITY)
    assert checkpoint.past == [("before", 1.0, 1e-6)]
    if not checkpoint.same_records(records, key):
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
    for path in sorted(checkpoint.directory.iterdir()):
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
    for path in sorted(checkpoint.directory.iterdir()):
        if path.name == PROGRESS:
            continue  # without it all rounds are repeated, on the same records and with the same noise
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
