"""A site's folder: what was approved, states of runs, results, and a log that says what happened and to whom.

    site.toml       what the site agrees to                 approved/   proposals, by digest
    private-key     its keys, for its owner alone           withdrawn/  those that were taken back
    ledger.sqlite   what was spent, and every reply         runs/       private states of runs that are under way
    log.jsonl       what happened, without record content   results/    directories of runs that came to their end

Files appear whole or not at all: written, synced, renamed.
"""

import contextlib
import datetime
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from coterie.errors import InputError
from coterie.site.messages import MessageError, array, decoded, encoded, numbers
from coterie.site.proposal import Proposal

LOG = "log.jsonl"
_LONGEST_LINE = 10**4


def write_whole(path: Path, content: bytes) -> None:
    """Only its owner can read it; after this returns it survives a loss of power."""
    partial = path.with_name(f".{path.name}.partial")
    file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with open(file, "wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextlib.contextmanager
def locked(folder: Path, what: str) -> Iterator[None]:
    """One process at a time; the lock ends with the process."""
    file = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"{what}: another process works in {str(folder)!r} already") from None
        yield
    finally:
        os.close(file)


class Store:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def key_file(self) -> Path:
        return self.folder / "private-key"

    @property
    def ledger_file(self) -> Path:
        return self.folder / "ledger.sqlite"

    @property
    def socket_file(self) -> Path:
        return self.folder / "site.sock"

    # --- proposals --------------------------------------------------------------------------------------------------

    def approve(self, proposal: Proposal) -> None:
        self._subfolder("approved")
        write_whole(self._approved(proposal.digest), proposal.to_json().encode())
        self._withdrawn(proposal.digest).unlink(missing_ok=True)

    def withdraw(self, digest: str) -> None:
        self._subfolder("withdrawn")
        os.replace(self._approved(digest), self._withdrawn(digest))

    def is_approved(self, digest: str) -> bool:
        return self._approved(digest).exists()

    def approved(self, digest: str) -> Proposal | None:
        """The proposal of this digest, if it is approved and still what it was."""
        if not self.is_approved(digest):
            return None
        proposal = Proposal.read(self._approved(digest))
        if proposal.digest != digest:
            raise InputError(f"approved: the proposal stored as {digest[:12]} has another digest; it was changed")
        return proposal

    def find(self, beginning: str) -> str:
        """The digest of the one approved proposal that begins so."""
        found = [digest for digest in self.digests() if digest.startswith(beginning)]
        if len(found) != 1:
            what = "no approved proposal begins" if not found else f"{len(found)} approved proposals begin"
            raise InputError(f"proposal: {what} with {beginning!r}; approved are {_list(self.digests())}")
        return found[0]

    def digests(self) -> list[str]:
        """Of what is approved."""
        folder = self.folder / "approved"
        return sorted(path.stem for path in folder.glob("*.json")) if folder.is_dir() else []

    def _approved(self, digest: str) -> Path:
        return self.folder / "approved" / f"{digest}.json"

    def _withdrawn(self, digest: str) -> Path:
        return self.folder / "withdrawn" / f"{digest}.json"

    def _subfolder(self, name: str) -> Path:
        folder = self.folder / name
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder

    # --- private states of runs -------------------------------------------------------------------------------------

    def save_state(self, run: str, t: int, leaves: list[np.ndarray]) -> None:
        """After round t, before that round is committed; the state before it stays until the next one is saved."""
        folder = self._subfolder(f"runs/{run}")
        write_whole(folder / f"state-{t:06d}", encoded([array(leaf) for leaf in leaves]))
        for path in folder.glob("state-*"):
            if int(path.name.removeprefix("state-")) < t - 1:
                path.unlink()

    def load_state(self, run: str, t: int, shapes: list[tuple[int, ...]]) -> list[np.ndarray]:
        path = self.folder / "runs" / run / f"state-{t:06d}"
        try:
            fields = decoded(path.read_bytes())
            return [numbers(field, shape) for field, shape in zip(fields, shapes, strict=True)]
        except (OSError, ValueError, KeyError, TypeError, MessageError) as error:
            raise InputError(
                f"state: {str(path)!r} cannot be read ({type(error).__name__}), so this run cannot go on"
            ) from None

    def forget_states(self, run: str) -> None:
        """When a run has come to its end."""
        folder = self.folder / "runs" / run
        for path in folder.glob("state-*") if folder.is_dir() else ():
            path.unlink()

    def result(self, run: str) -> Path:
        self._subfolder("results")
        return self.folder / "results" / run[:16]

    # --- the log ----------------------------------------------------------------------------------------------------

    def log(self, event: str, **details: Any) -> None:
        """One line of JSON: public facts and reasons, never the content of a record."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": now, "event": event, **details}, ensure_ascii=False)[:_LONGEST_LINE]
        file = os.open(self.folder / LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, line.encode(errors="replace") + b"\n")
        finally:
            os.close(file)


def _list(digests: list[str]) -> str:
    return ", ".join(digest[:12] for digest in digests) or "none"
