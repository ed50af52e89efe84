"""Where an engine meets the coordinator: a Unix socket at which a worker takes envelopes and brings back answers.

    to the worker      [number, party, envelope]
    from the worker    [number, answer], or [number, None] where there is no answer now

Frames hold MessagePack. The coordinator listens, so that a worker, which an engine starts when it likes, finds it; the
worker that connected last carries everything. Neither end can open an envelope for a site.
"""

import contextlib
import itertools
import os
import queue
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from coterie.errors import InputError
from coterie.site.messages import MessageError, decoded, encoded
from coterie.site.sockets import ANSWER_S, LARGEST_ENVELOPE, UnreachableError, listening, receive, send, short_address

# an environment variable of an engine's server: where the coordinator listens
SOCKET = "COTERIE_COORDINATOR_SOCKET"
# bytes: an envelope, whose largest packet is the one limit that senders know, a number and a party's name
_LARGEST_FRAME = LARGEST_ENVELOPE + 1024


class Request(NamedTuple):
    number: int
    party: str
    envelope: bytes


class Hub:
    """The coordinator's end: an exchange that hands envelopes to whichever worker is connected."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._worker: socket.socket | None = None
        self._waiting: dict[int, queue.SimpleQueue[bytes | None]] = {}

    @classmethod
    @contextlib.contextmanager
    def at(cls, path: Path, *, group: str | None = None) -> Iterator["Hub"]:
        """group: of a worker that runs as another user."""
        hub = cls()
        with listening(path, group=group) as listener:
            threading.Thread(target=hub._accept, args=(listener,), daemon=True).start()
            try:
                yield hub
            finally:
                hub._drop(hub._worker)

    @property
    def connected(self) -> bool:
        return self._worker is not None

    def __call__(self, party: str, envelope: bytes) -> bytes:
        """The party's answer; UnreachableError where there is none now."""
        answered: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        with self._lock:
            worker, number = self._worker, next(self._numbers)
            if worker is None:
                raise UnreachableError(f"{party}: no worker of the engine is connected")
            self._waiting[number] = answered
            try:
                send(worker, encoded([number, party, envelope]))
            except OSError:
                answered.put(None)
        try:
            answer = answered.get(timeout=ANSWER_S)
        except queue.Empty:
            answer = None
        finally:
            self._waiting.pop(number, None)
        if answer is None:
            raise UnreachableError(f"{party}: the engine brought no answer")
        return answer

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                # closed
                return
            self._drop(self._worker)
            with self._lock:
                self._worker = connection
            threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def _read(self, connection: socket.socket) -> None:
        """Answers, until the worker goes or says something that is none."""
        try:
            while True:
                number, answer = _answer(receive(connection, _LARGEST_FRAME))
                answered = self._waiting.get(number)
                if answered is not None:
                    answered.put(answer)
        except (OSError, UnreachableError, MessageError):
            self._drop(connection)

    def _drop(self, connection: socket.socket | None) -> None:
        """Forget a worker; whatever it was to bring has to be asked for again."""
        with self._lock:
            if connection is None or self._worker is not connection:
                return
            self._worker = None
            waiting = list(self._waiting.values())
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()
        for answered in waiting:
            answered.put(None)


class Worker:
    """The engine's end, in whatever process the engine runs: no keys and no records are needed for it."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with short_address(path) as address:
                self._connection.connect(address)
        except OSError as error:
            self._connection.close()
            reason = error.strerror or str(error)
            raise UnreachableError(f"no coordinator listens at {str(path)!r} ({reason})") from None

    @classmethod
    def of_this_machine(cls) -> "Worker":
        path = os.environ.get(SOCKET)
        if not path:
            raise InputError(f"{SOCKET}: got nothing; the path at which the coordinator listens is needed")
        return cls(Path(path))

    def requests(self) -> Iterator[Request]:
        """What is to be carried, until the coordinator goes."""
        with contextlib.suppress(OSError, UnreachableError):
            while True:
                yield _request(receive(self._connection, _LARGEST_FRAME))

    def answer(self, request: Request, answer: bytes | None) -> None:
        """None, or nothing at all: there is no answer now."""
        # a coordinator that went asks again when it is back
        with self._lock, contextlib.suppress(OSError):
            send(self._connection, encoded([request.number, answer or None]))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


def _request(frame: bytes) -> Request:
    number, party, envelope = _fields(frame, int, str, bytes)
    return Request(number, party, envelope)


def _answer(frame: bytes) -> tuple[int, bytes | None]:
    number, answer = _fields(frame, int, bytes | None)
    return number, answer


def _fields(frame: bytes, *types: Any) -> list[Any]:
    fields = decoded(frame)
    fits = isinstance(fields, list) and len(fields) == len(types)
    if not fits or not all(isinstance(field, kind) for field, kind in zip(fields, types, strict=True)):
        raise MessageError("a frame that is none of those between a coordinator and a worker")
    return fields
