"""A run on disk, so that it can go on after a crash: what was released, private states, and the key of the noise.

Public states are functions of releases and are computed again. Whoever can read the directory can take the noise off,
so it belongs to the run's owner alone, and the key is removed when the last round is released. What was released stays
until somebody has written it elsewhere. Every file ends with a tag under a key that is made from the noise's: one that
is missing, cut off or altered is refused, because a second release under the same noise would give records away; for
the same reason the noise is made from the key and the records together.
"""

import contextlib
import fcntl
import hashlib
import hmac
import io
import json
import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from coterie.errors import InputError
from coterie.privacy.noise import KeyedEntropy

RUN, PROGRESS, LOCK = "run.json", "progress.json", ".lock"
_TAG_BYTES = 32
_OURS = (
    RUN,
    PROGRESS,
    "records-*",
    "releases-*.npy",
    "private-*.npy",
    "moments-*.npy",
    ".*.json",
    ".*.npy",
    ".records-*",
    LOCK,
)
# locks of this process, by directory
_HELD: dict[Path, int] = {}


class Checkpoint:
    """The part of one rank in a directory that all ranks share."""

    def __init__(self, directory: Path, *, rank: int) -> None:
        self.directory, self.rank = directory, rank

    @property
    def exists(self) -> bool:
        return (self.directory / RUN).exists()

    def begin(self, identity: dict[str, Any], past: Any = ()) -> None:
        """Rank 0: make the directory with a fresh key and a name, unless it is there already.

        identity: what a run that goes on must have in common with this one. past: what a ledger said before this run
        was charged to it, which happens once; None where that comes later, by `settle`.
        """
        if not self.exists:
            # a kill while the first file was written leaves no more than its beginning
            if self.directory.exists() and (
                not self.directory.is_dir()
                or any(path.name not in (f".{RUN}", LOCK) for path in self.directory.iterdir())
            ):
                raise InputError(f"checkpoint: {str(self.directory)!r} is no checkpoint and not empty; choose another")
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.directory.chmod(0o700)
        self._hold()
        if self.exists:
            return
        key = os.urandom(32)
        self._write_run(
            {
                "identity": identity,
                "name": secrets.token_hex(8),
                "past": past,
                "records_known": False,
                "key": key.hex(),
                "tag_key": _tag_key(key).hex(),
            }
        )

    def settle(self, past: Any) -> None:
        """Rank 0: the run is paid for, and this is what the ledger said before."""
        self._write_run({**self._run(), "past": past})

    def check(self, identity: dict[str, Any]) -> None:
        """Refuse to go on with another run, which would not repeat releases byte for byte, or not the same ones."""
        stored = self._stored("identity")
        for name, value in json.loads(json.dumps(identity)).items():
            if stored.get(name) != value:
                raise InputError(
                    f"checkpoint: {str(self.directory)!r} was made with {name} {stored.get(name)}, not {value}; "
                    "go on with the same, or remove it and count what was released as spent"
                )

    def key(self, identity: dict[str, Any]) -> KeyedEntropy:
        """The noise of this run, if it is this one."""
        self.check(identity)
        try:
            return KeyedEntropy(bytes.fromhex(self._stored("key")))
        except ValueError:
            raise InputError(f"checkpoint: {str(self.directory / RUN)!r} cannot be read (its key is damaged)") from None

    @property
    def name(self) -> str:
        """Of this run, which nobody else has: what its charge is known by."""
        return self._stored("name")

    @property
    def past(self) -> list[tuple[str, float, float]] | None:
        """What the ledger said before this run was charged to it; None if nobody has noted that it was."""
        past = self._stored("past")
        return None if past is None else [(what, float(epsilon), float(delta)) for what, epsilon, delta in past]

    def same_records(self, mark: bytes) -> bool:
        """Whether this rank's records, by their `records_mark`, are those it began with: what others would release was
        not paid for."""
        name = f"records-{self.rank:04d}"
        if not (self.directory / name).exists():
            if self._stored("records_known"):
                raise self._damaged(name, "is missing")
            self._write(name, mark)
        return hmac.compare_digest(self._read(name), mark)

    def records_known(self) -> None:
        """Rank 0, when `same_records` was asked by every rank and before anything is released: from here on no rank's
        records are taken on trust."""
        if not self._stored("records_known"):
            self._write_run({**self._run(), "records_known": True})

    @property
    def rounds_done(self) -> int:
        """By all ranks."""
        # without it rounds are repeated from the first, on the same records and with the same noise
        return json.loads(self._read(PROGRESS))["rounds"] if (self.directory / PROGRESS).exists() else 0

    def save(self, start: int, releases: np.ndarray, private: list[np.ndarray]) -> None:
        """This rank's part of the rounds from `start` on; counts once `all_saved` was called."""
        end = start + len(releases)
        self._save(f"releases-{start:06d}-{end:06d}-{self.rank:04d}.npy", releases)
        for place, array in enumerate(private):
            self._save(f"private-{end:06d}-{self.rank:04d}-{place}.npy", array)

    def all_saved(self, rounds: int) -> None:
        """Rank 0, after everybody has saved: from here on a restart begins after `rounds`."""
        self._write(PROGRESS, json.dumps({"rounds": rounds}).encode())
        for path in self.directory.glob("private-*.npy"):
            if int(path.name.split("-")[1]) != rounds:
                path.unlink()

    def load(self, rounds: int, n_private: int) -> tuple[np.ndarray, list[np.ndarray]]:
        """(rounds, own parties, d) of what was released, and the private states after it."""
        blocks, reached = [], 0
        try:
            # blocks that were cut off by a crash do not end where the next one begins
            while reached < rounds:
                found = self.directory.glob(f"releases-{reached:06d}-*-{self.rank:04d}.npy")
                end, path = max((int(p.name.split("-")[2]), p) for p in found if int(p.name.split("-")[2]) <= rounds)
                blocks.append(self._load(path.name))
                reached = end
            private = [self._load(f"private-{rounds:06d}-{self.rank:04d}-{place}.npy") for place in range(n_private)]
        except (OSError, ValueError) as error:
            raise InputError(f"checkpoint: {str(self.directory)!r} is not complete ({error})") from None
        return np.concatenate(blocks), private

    def save_moments(self, number: int, at: np.ndarray, total: np.ndarray) -> None:
        """Rank 0: what was released after the rounds, and at which model."""
        self._save(f"moments-{number}.npy", np.concatenate([at, total]))

    def load_moments(self, number: int, n_coefficients: int) -> tuple[np.ndarray, np.ndarray]:
        both = self._load(f"moments-{number}.npy")
        return both[:n_coefficients], both[n_coefficients:]

    def finish(self) -> None:
        """Rank 0, after the last round: away with the key, and with what only a run that goes on has use for."""
        content = self._run()
        content.pop("key", None)
        self._write_run(content)
        for pattern in ("private-*.npy", "records-*"):
            for path in self.directory.glob(pattern):
                path.unlink()

    @property
    def finished(self) -> bool:
        return "key" not in self._run()

    def remove(self) -> None:
        """What this class has written, and the directory if nothing else is in it."""
        for pattern in _OURS:
            for path in self.directory.glob(pattern):
                path.unlink()
        # somebody else may have begun another one there
        with contextlib.suppress(OSError):
            self.directory.rmdir()
        if (lock := _HELD.pop(self.directory.resolve(), None)) is not None:
            os.close(lock)

    def _hold(self) -> None:
        """Until this process ends or the checkpoint is removed. Of two processes that go on with one run, each would
        take its records for those that the other has vouched for, and the first to end would remove what the other one
        is about to read."""
        path, known = self.directory / LOCK, _HELD.pop(self.directory.resolve(), None)
        if known is not None:
            if path.exists() and os.path.samestat(os.fstat(known), path.stat()):
                _HELD[self.directory.resolve()] = known
                return
            os.close(known)
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            raise InputError(
                f"checkpoint: another process goes on with {str(self.directory)!r}; wait until it is done"
            ) from None
        except OSError:
            # a file system without locks
            pass
        _HELD[self.directory.resolve()] = file

    def _stored(self, name: str) -> Any:
        content = self._run()
        if name not in content:
            raise self._damaged(RUN, f"has no {name}")
        return content[name]

    def _run(self) -> dict[str, Any]:
        """What `begin` has written, under the tag that is written beside it."""
        try:
            content = json.loads((self.directory / RUN).read_text())
            tag = content.pop("tag")
            right = _tag(bytes.fromhex(content["tag_key"]), RUN, json.dumps(content).encode()).hex()
            key = content.get("key")
            made_of_key = key is None or _tag_key(bytes.fromhex(key)).hex() == content["tag_key"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._damaged(RUN, f"cannot be read ({error})") from None
        if not (hmac.compare_digest(str(tag).encode(errors="replace"), right.encode()) and made_of_key):
            raise self._damaged(RUN, "was altered")
        return content

    def _write_run(self, content: dict[str, Any]) -> None:
        content = json.loads(json.dumps(content))
        tag = _tag(bytes.fromhex(content["tag_key"]), RUN, json.dumps(content).encode())
        with self._replaced(RUN) as file:
            file.write(json.dumps({**content, "tag": tag.hex()}).encode())

    def _save(self, name: str, array: np.ndarray) -> None:
        out = io.BytesIO()
        np.save(out, array)
        self._write(name, out.getvalue())

    def _load(self, name: str) -> np.ndarray:
        return np.load(io.BytesIO(self._read(name)))

    def _write(self, name: str, content: bytes) -> None:
        tag = _tag(bytes.fromhex(self._stored("tag_key")), name, content)
        with self._replaced(name) as file:
            file.write(content + tag)

    def _read(self, name: str) -> bytes:
        try:
            whole = (self.directory / name).read_bytes()
        except OSError as error:
            raise self._damaged(name, f"cannot be read ({error})") from None
        content, tag = whole[:-_TAG_BYTES], whole[-_TAG_BYTES:]
        if not hmac.compare_digest(tag, _tag(bytes.fromhex(self._stored("tag_key")), name, content)):
            raise self._damaged(name, "was altered")
        return content

    def _damaged(self, name: str, how: str) -> InputError:
        return InputError(
            f"checkpoint: {str(self.directory / name)!r} {how}; remove the checkpoint, and count it as spent"
        )

    def _replaced(self, name: str) -> "_Replaced":
        return _Replaced(self.directory, name)


class _Replaced:
    """A file for its owner alone that appears complete or not at all."""

    def __init__(self, directory: Path, name: str) -> None:
        self.partial, self.path = directory / f".{name}", directory / name

    def __enter__(self) -> Any:
        self.file = open(os.open(self.partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")
        return self.file

    def __exit__(self, kind: object, *_: object) -> None:
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        if kind is None:
            self.partial.replace(self.path)


def records_mark(arrays: Iterable[np.ndarray], key: KeyedEntropy) -> bytes:
    """What records are known by, which tells nothing about them to whoever does not have the key."""
    found = hmac.new(key.key, digestmod=hashlib.sha256)
    for array in arrays:
        found.update(f"{array.shape}{array.dtype}".encode() + np.ascontiguousarray(array).tobytes())
    return found.hexdigest().encode()


def noise_of_records(marks: Iterable[bytes], key: KeyedEntropy) -> KeyedEntropy:
    """Of all ranks' records together. Others have other noise, so that nothing could be subtracted even where a copy of
    the directory, made before any records were known, was put back."""
    found = hashlib.blake2b(b"noise of a checkpoint", key=key.key, digest_size=32)
    for mark in marks:
        found.update(mark)
    return KeyedEntropy(found.digest())


def _tag_key(key: bytes) -> bytes:
    """Tells nothing about the noise, so it may stay when the key goes."""
    return hashlib.blake2b(b"tags of a checkpoint", key=key, digest_size=32).digest()


def _tag(key: bytes, name: str, content: bytes) -> bytes:
    return hmac.new(key, name.encode() + b"\0" + content, hashlib.sha256).digest()
