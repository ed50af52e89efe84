"""Packets over sockets: real ones, at paths of any length, with connections that hang, flood or lie about lengths."""

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import pytest
from made import NAMES, make_sites

from coterie.errors import InputError
from coterie.site.messages import unpack
from coterie.site.serve import _on_signals, serve
from coterie.site.sockets import LARGEST_ENVELOPE, Sockets, UnreachableError, receive, send


@pytest.fixture
def served(tmp_path):
    """A site behind a socket whose path is longer than the operating system takes."""
    folder = tmp_path / ("long" * 20)
    folder.mkdir()
    [site, *_] = make_sites(folder)
    threading.Thread(target=serve, args=(site,), daemon=True).start()
    sockets = Sockets({NAMES[0]: site.store.socket_file})
    # the file is there a moment before anybody listens
    for _ in range(200):
        try:
            sockets(NAMES[0], b"nonsense")
            break
        except UnreachableError:
            time.sleep(0.05)
    sockets.close()
    assert len(os.fsencode(site.store.socket_file)) > 108
    return site


def test_a_site_answers_whoever_connects_and_only_the_owner_can(served):
    sockets = Sockets({NAMES[0]: served.store.socket_file})
    for _ in range(3):
        assert unpack(sockets(NAMES[0], b"nonsense")).kind == "refused"
    assert served.store.socket_file.stat().st_mode & 0o777 == 0o600
    # connections that hang in the middle of a frame hold up nobody
    hanging = []
    for _ in range(5):
        connection = socket.socket(socket.AF_UNIX)
        folder = os.open(served.store.folder, os.O_PATH)
        connection.connect(f"/proc/self/fd/{folder}/site.sock")
        os.close(folder)
        connection.send(struct.pack(">I", 1000) + b"the beginning")
        hanging.append(connection)
    assert unpack(sockets(NAMES[0], b"nonsense")).kind == "refused"
    # one that announces more than any packet has is closed
    hanging[0].send(bytes(987) + struct.pack(">I", LARGEST_ENVELOPE + 1))
    hanging[0].settimeout(10)
    (length,) = struct.unpack(">I", hanging[0].recv(4))
    assert unpack(hanging[0].recv(length)).kind == "refused"
    assert hanging[0].recv(1) == b""
    for connection in hanging:
        connection.close()
    sockets.close()
    with pytest.raises(InputError, match="another process works in"):
        serve(served)


def test_the_largest_frame_is_read_and_no_larger_one():
    one, other = socket.socketpair()
    with one, other:
        send(one, b"12345")
        assert receive(other, 5) == b"12345"
        send(one, b"123456")
        with pytest.raises(UnreachableError, match="a frame of 6 bytes; at most 5 are read"):
            receive(other, 5)


def test_nobody_at_a_socket_is_said_so(tmp_path):
    sockets = Sockets({"east": tmp_path / "east.sock"})
    with pytest.raises(UnreachableError, match="east: no answer"):
        sockets("east", b"x")


STOPPED = """
import os, queue, signal, sys, threading, time
from pathlib import Path
from coterie.site.serve import serve
from coterie.site.site import Site

place = Path(sys.argv[1])

def stop():
    sys.settrace(None)
    os.kill(os.getpid(), signal.SIGTERM)

def looking(frame, event, _):
    # in a queue that is written in Python, when it has locked itself
    if frame.f_code is queue.Queue.get.__code__:
        return lambda frame, event, _: stop() if frame.f_locals["self"].mutex.locked() else None

def later():
    while '"serving"' not in (place / "log.jsonl").read_text():
        time.sleep(0.05)
    time.sleep(1.0)
    stop()

threading.Thread(target=later, daemon=True).start()
sys.settrace(looking)
serve(Site(place))
"""


def test_sigterm_ends_a_site_whatever_it_interrupts(tmp_path):
    """A handler of signals that waited for a lock which the code under it holds would wait for ever."""
    [site, *_] = make_sites(tmp_path)
    site.close()
    process = subprocess.Popen([sys.executable, "-c", STOPPED, str(site.store.folder)])
    try:
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    assert not site.store.socket_file.exists()


STOPPED_AGAIN = """
import contextlib, os, signal, sys, threading, time
from pathlib import Path
from coterie.site import serve
from coterie.site.site import Site

place, listening = Path(sys.argv[1]), serve.listening

def stop():
    os.kill(os.getpid(), signal.SIGTERM)

@contextlib.contextmanager
def stopped_again(*arguments, **settings):
    with listening(*arguments, **settings) as listener:
        yield listener
        stop()

def later():
    while '"serving"' not in (place / "log.jsonl").read_text():
        time.sleep(0.05)
    stop()

serve.listening = stopped_again
threading.Thread(target=later, daemon=True).start()
serve.serve(Site(place))
"""


def test_a_second_sigterm_leaves_no_socket_behind(tmp_path):
    [site, *_] = make_sites(tmp_path)
    site.close()
    process = subprocess.Popen([sys.executable, "-c", STOPPED_AGAIN, str(site.store.folder)])
    try:
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    assert not site.store.socket_file.exists()


def test_ctrl_c_while_a_site_ends_leaves_signals_as_they_were(monkeypatch):
    """It raises as soon as its own handler is back; a descriptor that is closed then may be that of a ledger next."""
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    descriptor = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(descriptor)
    put = signal.signal

    def interrupted(number, handler):
        put(number, handler)
        if number == signal.SIGINT:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), _on_signals(lambda: None):
        monkeypatch.setattr(signal, "signal", interrupted)
    found = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)], signal.set_wakeup_fd(descriptor)
    for number, handler in zip((signal.SIGTERM, signal.SIGINT), before, strict=True):
        put(number, handler)
    assert found == (before, descriptor)
