"""Envelopes over Unix sockets, as everybody reads and writes them; nothing here can open one.

A frame is four bytes with the length of an envelope, then the envelope.
"""

import contextlib
import os
import shutil
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from coterie.errors import CoterieError, InputError
from coterie.keys import SEAL_BYTES
from coterie.site.messages import LARGEST_PACKET

# a party's name and bytes for it; its answer, or UnreachableError
Exchange = Callable[[str, bytes], bytes]
LARGEST_ENVELOPE = LARGEST_PACKET + SEAL_BYTES
MOST_CONNECTIONS = 64
# seconds: the longest that an answer is waited for before a site is asked again
ANSWER_S = 600.0
_LENGTH = struct.Struct(">I")
# bytes; the operating system takes 107
_LONGEST_ADDRESS = 100


class UnreachableError(CoterieError):
    """There is no answer now; there may be one later."""


@contextlib.contextmanager
def short_address(path: Path) -> Iterator[str]:
    """A name for a socket's path that is short enough for the operating system."""
    if len(os.fsencode(path)) <= _LONGEST_ADDRESS:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


@contextlib.contextmanager
def listening(path: Path, *, group: str | None = None) -> Iterator[socket.socket]:
    """A socket that its owner can connect to, and members of a group if there is one; gone at the end."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # of a server that was killed: whoever listens has locked the folder
        path.unlink(missing_ok=True)
        mask = os.umask(0o177)
        try:
            with short_address(path) as address:
                listener.bind(address)
        finally:
            os.umask(mask)
        if group is not None:
            shutil.chown(path, group=group)
            path.chmod(0o660)
    except LookupError:
        listener.close()
        raise InputError(f"group: got {group!r}; the name of a group of this machine is needed") from None
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)
        raise InputError(
            f"socket: {str(path)!r} cannot be made ({reason}); a path in a folder that can be written is needed "
            "(--socket)"
        ) from None
    listener.listen(MOST_CONNECTIONS)
    try:
        yield listener
    finally:
        with contextlib.suppress(OSError):
            # wakes whoever accepts
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        path.unlink(missing_ok=True)


def send(connection: socket.socket, frame: bytes) -> None:
    connection.sendall(_LENGTH.pack(len(frame)) + frame)


def receive(connection: socket.socket, largest: int = LARGEST_ENVELOPE) -> bytes:
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    if length > largest:
        raise UnreachableError(f"a frame of {length:,} bytes; at most {largest:,} are read")
    return _exactly(connection, length)


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts: list[bytes] = []
    while size:
        part = connection.recv(min(size, 2**20))
        if not part:
            raise UnreachableError("the connection was closed")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


class Sockets:
    """The coordinator's end: one connection to each site, made when it is needed and again when it is lost."""

    def __init__(self, paths: dict[str, Path]) -> None:
        self.paths = paths
        self._connections: dict[str, socket.socket] = {}

    def __call__(self, party: str, envelope: bytes) -> bytes:
        """The party's answer; UnreachableError where there is none now."""
        connection = self._connections.pop(party, None)
        try:
            if connection is None:
                connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                connection.settimeout(ANSWER_S)
                with short_address(self.paths[party]) as address:
                    connection.connect(address)
            send(connection, envelope)
            answer = receive(connection)
        except (OSError, UnreachableError) as error:
            if connection is not None:
                connection.close()
            reason = getattr(error, "strerror", None) or str(error)
            raise UnreachableError(f"{party}: no answer at {str(self.paths[party])!r} ({reason})") from None
        self._connections[party] = connection
        return answer

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
