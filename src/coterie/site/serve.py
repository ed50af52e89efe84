"""A site's server: envelopes come in over a Unix socket, and their answers go out.

Each connection is read by a thread of its own, so that one that hangs holds up nobody; envelopes are answered one after
the other by the thread that serves.
"""

import contextlib
import queue
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from coterie.engines.rounds import set_up
from coterie.site.site import Site
from coterie.site.sockets import MOST_CONNECTIONS, UnreachableError, listening, receive, send
from coterie.site.store import locked

# after which a silent connection is closed
IDLE_S = 600.0


def serve(site: Site, socket_path: Path | None = None, *, group: str | None = None) -> None:
    """Answer until SIGTERM or Ctrl-C. One server at a time works in a site's folder.

    group: whose members may connect besides the owner, such as the user of a relay, which needs no access to the data.
    """
    path = site.store.socket_file if socket_path is None else socket_path
    asked: queue.SimpleQueue[Any] = queue.SimpleQueue()
    stopping = threading.Event()
    with (
        # first, so that another signal does not end it before the socket is gone
        _on_signals(lambda: (stopping.set(), asked.put(None))),
        locked(site.store.folder, "site"),
        set_up(),
        listening(path, group=group) as listener,
    ):
        threading.Thread(target=_accept, args=(listener, asked, stopping), daemon=True).start()
        site.store.log("serving", socket=str(path))
        while not stopping.is_set():
            item = asked.get()
            if item is None:
                break
            envelope, answer = item
            answer(site.handle_sealed(envelope))
        site.store.log("stopped serving")


@contextlib.contextmanager
def _on_signals(stop: Callable[[], Any]) -> Iterator[None]:
    """Call `stop` once a SIGTERM or Ctrl-C has come, where the process is ours to stop.

    A thread calls it: Python runs handlers in the main thread alone, and one that waits for an envelope does not run
    them where the signal came to another thread, or just before it began to wait.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    read_end, write_end = socket.socketpair()
    # as a descriptor that is written to by a signal has to be
    write_end.setblocking(False)
    # Ctrl-C's last, for its own handler raises once it is back
    numbers = (signal.SIGTERM, signal.SIGINT)

    def wait() -> None:
        # other signals with handlers are written too
        while received := read_end.recv(1):
            if received[0] in numbers:
                stop()

    waiting = threading.Thread(target=wait, daemon=True)
    with read_end:
        waiting.start()
        try:
            with write_end:
                descriptor = signal.set_wakeup_fd(write_end.fileno())
                handlers = {number: signal.signal(number, lambda *_: None) for number in numbers}
                try:
                    yield
                finally:
                    # before it is closed: another file may get its number
                    signal.set_wakeup_fd(descriptor)
                    for number, handler in handlers.items():
                        signal.signal(number, handler)
        finally:
            # which the end of what it reads ends
            waiting.join()


def _accept(listener: socket.socket, asked: "queue.SimpleQueue[Any]", stopping: threading.Event) -> None:
    places = threading.Semaphore(MOST_CONNECTIONS)
    while not stopping.is_set():
        try:
            connection, _ = listener.accept()
        except OSError:
            # closed
            return
        if not places.acquire(blocking=False):
            connection.close()
            continue
        threading.Thread(target=_converse, args=(connection, asked, places), daemon=True).start()


def _converse(connection: socket.socket, asked: "queue.SimpleQueue[Any]", places: threading.Semaphore) -> None:
    """Envelope for envelope, until the other end goes or says something that is no frame."""
    try:
        connection.settimeout(IDLE_S)
        while True:
            envelope = receive(connection)
            answered: queue.SimpleQueue[bytes] = queue.SimpleQueue()
            asked.put((envelope, answered.put))
            send(connection, answered.get())
    except (OSError, UnreachableError):
        pass
    finally:
        connection.close()
        places.release()
