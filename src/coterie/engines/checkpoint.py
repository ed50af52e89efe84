"""A run on disk, so that it can go on after a crash: what was released, private states, and the key of the noise.

Public states are functions of releases and are computed again. Whoever can read the directory can take the noise off,
so it belongs to the run's owner alone and is removed when the run is done.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from coterie.errors import InputError
from coterie.privacy.keyed_noise import KeyedEntropy

RUN, PROGRESS = "run.json", "progress.json"


class Checkpoint:
    """The part of one rank in a directory that all ranks share."""

    def __init__(self, directory: Path, *, rank: int, n_ranks: int) -> None:
        self.directory, self.rank, self.n_ranks = directory, rank, n_ranks

    @property
    def exists(self) -> bool:
        return (self.directory / RUN).exists()

    def begin(self, plan_digest: str, software: str, past: Any = ()) -> None:
        """Rank 0: make the directory with a fresh key, unless it is there already. `past`: what a ledger said before
        this run was charged to it, which happens once."""
        if not self.exists:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            content = {"plan": plan_digest, "software": software, "ranks": self.n_ranks, "key": os.urandom(32).hex()}
            self._write(RUN, json.dumps({**content, "past": past}).encode())

    @property
    def past(self) -> list[tuple[str, float, float]]:
        return [(what, float(epsilon), float(delta)) for what, epsilon, delta in self._json(RUN)["past"]]

    def key(self, plan_digest: str, software: str) -> KeyedEntropy:
        """The noise of this run. Another plan, other code or other ranks would not repeat releases byte for byte."""
        stored = self._json(RUN)
        expected = {"plan": plan_digest, "software": software, "ranks": self.n_ranks}
        for name, value in expected.items():
            if stored.get(name) != value:
                raise InputError(
                    f"checkpoint: {str(self.directory)!r} was made with {name} {stored.get(name)}, not {value}; "
                    "go on with the same, or remove it and count what was released as spent"
                )
        return KeyedEntropy(bytes.fromhex(stored["key"]))

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

    def load(self, n_private: int) -> tuple[np.ndarray, list[np.ndarray]]:
        """(rounds done, own parties, d) of what was released, and the private states after it."""
        done = self.rounds_done
        blocks = sorted(self.directory.glob(f"releases-*-{self.rank:04d}.npy"))
        blocks = [path for path in blocks if int(path.name.split("-")[2]) <= done]
        private = [
            np.load(self.directory / f"private-{done:06d}-{self.rank:04d}-{place}.npy") for place in range(n_private)
        ]
        return np.concatenate([np.load(path) for path in blocks]), private

    def remove(self) -> None:
        shutil.rmtree(self.directory)

    def _json(self, name: str) -> dict[str, Any]:
        try:
            return json.loads((self.directory / name).read_text())
        except (OSError, ValueError) as error:
            raise InputError(f"checkpoint: {str(self.directory / name)!r} cannot be read ({error})") from None

    def _save(self, name: str, array: np.ndarray) -> None:
        partial = self.directory / f".{name}"
        with partial.open("wb") as file:
            np.save(file, array)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self.directory / name)

    def _write(self, name: str, content: bytes) -> None:
        partial = self.directory / f".{name}"
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self.directory / name)
