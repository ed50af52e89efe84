"""A coordinator's hub and the workers of an engine: real sockets, workers that go, and frames that are none."""

import socket
import threading
import time

import pytest

from coterie.errors import InputError
from coterie.keys import PrivateKeys
from coterie.relay.at_site import NO_ANSWER, SOCKET, SiteSocket
from coterie.relay.engines import on_this_machine
from coterie.relay.hub import SOCKET as HUB
from coterie.relay.hub import Hub, Worker
from coterie.site.messages import LARGEST_PACKET
from coterie.site.sockets import LARGEST_ENVELOPE, UnreachableError, send, short_address


@pytest.fixture
def place(tmp_path):
    return tmp_path / "coordinator.sock"


def connected(hub):
    for _ in range(500):
        if hub.connected:
            return
        time.sleep(0.01)
    raise AssertionError("no worker was seen")


def carrying(place, exchange):
    """A worker that answers by `exchange`, and the thread that reads for it."""
    worker = Worker(place)

    def bring(request):
        worker.answer(request, exchange(request.party, request.envelope))

    def carry():
        for request in worker.requests():
            threading.Thread(target=bring, args=(request,), daemon=True).start()
        worker.close()

    thread = threading.Thread(target=carry, daemon=True)
    thread.start()
    return worker, thread


def test_many_at_once_each_gets_its_own_answer(place):
    def slow_first(party, envelope):
        time.sleep(0.05 if party == "a" else 0)
        return party.encode() + envelope

    with Hub.at(place) as hub:
        _, thread = carrying(place, slow_first)
        connected(hub)
        found = {}
        asking = [
            threading.Thread(target=lambda p=party: found.update({p: hub(p, b" asks")})) for party in ("a", "b", "c")
        ]
        for one in asking:
            one.start()
        for one in asking:
            one.join(10)
        assert found == {party: party.encode() + b" asks" for party in ("a", "b", "c")}
        assert place.stat().st_mode & 0o777 == 0o600
    # a worker ends when its coordinator has gone
    thread.join(10)
    assert not thread.is_alive()
    assert not place.exists()


def test_without_a_worker_nobody_is_reached_and_the_next_worker_is_used(place):
    with Hub.at(place) as hub:
        with pytest.raises(UnreachableError, match="no worker"):
            hub("a", b"x")
        first, _ = carrying(place, lambda party, envelope: time.sleep(30))
        connected(hub)
        threading.Timer(0.1, first.close).start()
        with pytest.raises(UnreachableError, match="brought no answer"):
            # it went while it was carrying this
            hub("a", b"x")
        carrying(place, lambda party, envelope: b"second")
        connected(hub)
        assert hub("a", b"x") == b"second"
        carrying(place, lambda party, envelope: b"third")
        time.sleep(0.2)
        assert hub("a", b"x") == b"third"


def test_nothing_is_no_answer(place):
    for nothing in (None, NO_ANSWER):
        with Hub.at(place) as hub:
            carrying(place, lambda party, envelope, nothing=nothing: nothing)
            connected(hub)
            with pytest.raises(UnreachableError, match="a: the engine brought no answer"):
                hub("a", b"x")


def test_the_largest_envelope_passes_both_ways_for_the_longest_name(place):
    largest = PrivateKeys.generate().identity.seal(bytes(LARGEST_PACKET), b"context")
    assert len(largest) == LARGEST_ENVELOPE
    name = 200 * "\N{GRINNING FACE}"
    with Hub.at(place) as hub:
        carrying(place, lambda party, envelope: envelope)
        connected(hub)
        assert hub(name, largest) == largest
        with pytest.raises(UnreachableError, match="the engine brought no answer"):
            hub(name, largest + bytes(1024))


@pytest.mark.parametrize("frame", [b"", b"nonsense", b"\x93\x01\x02\x03", b"\x92\xa1x\xc4\x01x"])
def test_a_worker_that_talks_nonsense_is_dropped(frame, place):
    with Hub.at(place) as hub:
        connection = socket.socket(socket.AF_UNIX)
        with short_address(place) as address:
            connection.connect(address)
        connected(hub)
        send(connection, frame)
        connection.settimeout(10)
        assert connection.recv(1) == b""
        connection.close()
        assert not hub.connected


def test_a_worker_without_a_coordinator_or_a_site_says_so(place, monkeypatch):
    with pytest.raises(UnreachableError, match=r"no coordinator listens at .* \(No such file or directory\)"):
        Worker(place)
    monkeypatch.delenv(HUB, raising=False)
    with pytest.raises(InputError, match=r"COTERIE_COORDINATOR_SOCKET: got nothing; the path"):
        Worker.of_this_machine()
    monkeypatch.delenv(SOCKET, raising=False)
    with pytest.raises(InputError, match=r"COTERIE_SITE_SOCKET: got nothing; the path"):
        SiteSocket.of_this_site()
    monkeypatch.setenv(SOCKET, str(place))
    assert SiteSocket.of_this_site()(b"anything") == NO_ANSWER


def test_an_engine_that_is_none_is_named(tmp_path):
    with pytest.raises(InputError, match="engine: got 'telepathy'; one of sites"):
        on_this_machine("telepathy", tmp_path, {})
