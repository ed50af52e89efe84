"""Packets over Unix sockets: a site's server, and the coordinator's end.

A frame is four bytes with the length of a packet, then the packet. Each connection is read by a thread of its own, so
that one that hangs holds up nobody; packets are answered one after the other by the thread that serves.
"""

import contextlib
import os
import queue
import shutil
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from coterie.engines.xla import set_up
from coterie.errors import CoterieError, InputError
from coterie.site.messages import LARGEST_PACKET
from coterie.site.site import Site
from coterie.site.store import locked

_LENGTH = struct.Struct(">I")
MOST_CONNECTIONS = 64
_LONGEST_ADDRESS = 100  # bytes; the operating system takes 107
IDLE_S = 600.0  # after which a silent connection is closed


class UnreachableError(CoterieError):
    """Nobody answers at a socket, or not any more."""


def serve(site: Site, socket_path: Path | None = None, *, group: str | None = None) -> None:
    """Answer until SIGTERM or Ctrl-C. One server at a time works in a site's folder.

    group: whose members may connect besides the owner, such as the user of a relay, which needs no access to the data.
    """
    path = site.store.socket_file if socket_path is None else socket_path
    with locked(site.store.folder, "site"), set_up(), _listening(path, group) as listener:
        asked: queue.Queue[Any] = queue.Queue()
        stopping = threading.Event()
        _on_stop(lambda: (stopping.set(), asked.put(None)))
        threading.Thread(target=_accept, args=(listener, asked, stopping), daemon=True).start()
        site.store.log("serving", socket=str(path))
        while not stopping.is_set():
            item = asked.get()
            if item is None:
                break
            packet, answer = item
            answer(site.handle(packet))
        site.store.log("stopped serving")


def _on_stop(stop: Callable[[], Any]) -> None:
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop())


@contextlib.contextmanager
def _listening(path: Path, group: str | None) -> Iterator[socket.socket]:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)  # of a server that was killed: the folder's lock says that none is alive
        mask = os.umask(0o177)
        try:
            with _address(path) as address:
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
        listener.close()
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _address(path: Path) -> Iterator[str]:
    """A name for a socket's path that is short enough for the operating system."""
    if len(os.fsencode(path)) <= _LONGEST_ADDRESS:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _accept(listener: socket.socket, asked: "queue.Queue[Any]", stopping: threading.Event) -> None:
    places = threading.Semaphore(MOST_CONNECTIONS)
    while not stopping.is_set():
        try:
            connection, _ = listener.accept()
        except OSError:
            return  # closed
        if not places.acquire(blocking=False):
            connection.close()
            continue
        threading.Thread(target=_converse, args=(connection, asked, places), daemon=True).start()


def _converse(connection: socket.socket, asked: "queue.Queue[Any]", places: threading.Semaphore) -> None:
    """Packet for packet, until the other end goes or says something that is no frame."""
    try:
        connection.settimeout(IDLE_S)
        while True:
            packet = receive(connection)
            answered: queue.Queue[bytes] = queue.Queue()
            asked.put((packet, answered.put))
            send(connection, answered.get())
    except (OSError, UnreachableError):
        pass
    finally:
        connection.close()
        places.release()


def send(connection: socket.socket, packet: bytes) -> None:
    connection.sendall(_LENGTH.pack(len(packet)) + packet)


def receive(connection: socket.socket) -> bytes:
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    if length > LARGEST_PACKET:
        raise UnreachableError(f"a frame of {length:,} bytes; at most {LARGEST_PACKET:,} are read")
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

    def __init__(self, paths: dict[str, Path], *, answer_s: float = 600.0) -> None:
        self.paths, self.answer_s = paths, answer_s
        self._connections: dict[str, socket.socket] = {}

    def __call__(self, party: str, packet: bytes) -> bytes:
        """The party's answer; UnreachableError where there is none now."""
        connection = self._connections.pop(party, None)
        try:
            if connection is None:
                connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                connection.settimeout(self.answer_s)
                with _address(self.paths[party]) as address:
                    connection.connect(address)
            send(connection, packet)
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
