"""A run on disk, so that it can go on after a crash: what was released, private states, and the key of the noise.

Public states are functions of releases and are computed again. Whoever can read the directory can take the noise off,
so it belongs to the run's owner alone, and the key is removed when the last round is released. What was released stays
until somebody has written it elsewhere.
"""

import hashlib
import hmac
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from coterie.errors import InputError
from coterie.privacy.noise import KeyedEntropy

RUN, PROGRESS = "run.json", "progress.json"
_OURS = (RUN, PROGRESS, "records-*", "releases-*.npy", "private-*.npy", ".*.json", ".*.npy")


class Checkpoint:
    """The part of one rank in a directory that all ranks share."""

    def __init__(self, directory: Path, *, rank: int) -> None:
        self.directory, self.rank = directory, rank

    @property
    def exists(self) -> bool:
        return (self.directory / RUN).exists()

    def begin(self, identity: dict[str, Any], past: Any = ()) -> None:
        """Rank 0: make the directory with a fresh key, unless it is there already.

        identity: what a run that goes on must have in common with this one. past: what a ledger said before this run
        was charged to it, which happens once.
        """
        if self.exists:
            return
        if self.directory.exists() and (not self.directory.is_dir() or any(self.directory.iterdir())):
            raise InputError(f"checkpoint: {str(self.directory)!r} is no checkpoint and not empty; choose another")
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.directory.chmod(0o700)
        content = {"identity": identity, "past": past, "key": os.urandom(32).hex()}
        self._write(RUN, json.dumps(content).encode())

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
    def past(self) -> list[tuple[str, float, float]]:
        return [(what, float(epsilon), float(delta)) for what, epsilon, delta in self._stored("past")]

    def same_records(self, arrays: Iterable[np.ndarray], key: KeyedEntropy) -> bool:
        """Whether this rank's records are those it began with: others under the same noise would give both away."""
        found = hmac.new(key.key, digestmod=hashlib.sha256)
        for array in arrays:
            found.update(f"{array.shape}{array.dtype}".encode() + np.ascontiguousarray(array).tobytes())
        path = self.directory / f"records-{self.rank:04d}"
        if not path.exists():
            self._write(path.name, found.hexdigest().encode())
        return hmac.compare_digest(path.read_bytes(), found.hexdigest().encode())

    @property
    def rounds_done(self) -> int:
        """By all ranks."""
        return self._json(PROGRESS)["rounds"] if (self.directory / PROGRESS).exists() else 0

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
            while reached < rounds:  # blocks that were cut off by a crash do not end where the next one begins
                found = self.directory.glob(f"releases-{reached:06d}-*-{self.rank:04d}.npy")
                end, path = max((int(p.name.split("-")[2]), p) for p in found if int(p.name.split("-")[2]) <= rounds)
                blocks.append(np.load(path))
                reached = end
            private = [
                np.load(self.directory / f"private-{rounds:06d}-{self.rank:04d}-{place}.npy")
                for place in range(n_private)
            ]
        except (OSError, ValueError) as error:
            raise InputError(f"checkpoint: {str(self.directory)!r} is not complete ({error})") from None
        return np.concatenate(blocks), private

    def finish(self) -> None:
        """Rank 0, after the last round: away with the key, and with what only a run that goes on has use for."""
        content = self._json(RUN)
        content.pop("key", None)
        self._write(RUN, json.dumps(content).encode())
        for pattern in ("private-*.npy", "records-*"):
            for path in self.directory.glob(pattern):
                path.unlink()

    @property
    def finished(self) -> bool:
        return "key" not in self._json(RUN)

    def remove(self) -> None:
        """What this class has written, and the directory if nothing else is in it."""
        for pattern in _OURS:
            for path in self.directory.glob(pattern):
                path.unlink()
        if not any(self.directory.iterdir()):
            self.directory.rmdir()

    def _stored(self, name: str) -> Any:
        content = self._json(RUN)
        if name not in content:
            raise InputError(f"checkpoint: {str(self.directory / RUN)!r} cannot be read (no {name})")
        return content[name]

    def _json(self, name: str) -> dict[str, Any]:
        try:
            content = json.loads((self.directory / name).read_text())
            return content if isinstance(content, dict) else {}
        except (OSError, ValueError) as error:
            raise InputError(f"checkpoint: {str(self.directory / name)!r} cannot be read ({error})") from None

    def _save(self, name: str, array: np.ndarray) -> None:
        with self._replaced(name) as file:
            np.save(file, array)

    def _write(self, name: str, content: bytes) -> None:
        with self._replaced(name) as file:
            file.write(content)

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
