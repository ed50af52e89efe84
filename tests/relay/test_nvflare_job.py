"""What NVIDIA FLARE runs at its server: which message goes where, and what becomes of those that get lost."""

import threading
import time

import pytest

pytest.importorskip("nvflare")

from nvflare.collab.api.exceptions import CollabCallError
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.message import Message

from coterie.relay import nvflare_job
from coterie.relay.hub import Request


class Cell:
    """FLARE's end of all connections, which hands what is sent to nobody."""

    def __init__(self):
        self.sent, self.unreachable = [], {}

    def get_fqcn(self):
        return "server.job"

    def register_request_cb(self, channel, topic, callback):
        self.answered = callback

    def fire_and_forget(self, channel, topic, target, message, *, optional):
        self.sent.append((target, message.headers["coterie-number"], message.payload))
        return {target: self.unreachable.get(target, "")}

    def answer(self, origin, number, payload):
        self.answered(Message({MessageHeaderKey.ORIGIN: origin, "coterie-number": number}, payload))


class Site:
    def __init__(self, name):
        self.name, self.is_alive, self.called = name, True, []

    def __call__(self, *, timeout):
        return self

    def meet(self, server):
        assert server == "server.job"
        return f"{self.name}.job"

    def alive(self):
        if not self.is_alive:
            raise CollabCallError(self.name, "alive", TimeoutError())
        return True

    def carry(self, envelope):
        self.called.append(envelope)
        return b"called"


class Answers:
    """In place of the coordinator's hub."""

    def __init__(self):
        self.brought, self.closed = [], threading.Event()

    def answer(self, request, answer):
        self.brought.append((request.party, answer))

    def close(self):
        self.closed.set()


@pytest.fixture
def carrier():
    parties = {"north": "site-0", "south": "site-1", "gone": "site-2"}
    sites = {name: Site(name) for name in ("site-0", "site-1")}
    return nvflare_job._Carrier(Answers(), parties, Cell(), sites)


def test_an_answer_is_taken_from_the_site_that_was_asked_and_once(carrier):
    carrier.send(Request(7, "north", b"to north"))
    carrier.send(Request(8, "south", b"to south"))
    assert carrier.cell.sent == [("site-0.job", 0, b"to north"), ("site-1.job", 1, b"to south")]
    # of another site, of another job, to nothing that was sent
    for origin, number in (("site-1.job", 0), ("site-0.other", 0), ("site-0.job", 5), ("site-0.job", None)):
        carrier.cell.answer(origin, number, b"forged")
    assert carrier.worker.brought == []
    for _ in range(2):
        carrier.cell.answer("site-1.job", 1, memoryview(b"of south"))
    carrier.cell.answer("site-0.job", 0, None)
    # nothing: the site is not being served
    assert carrier.worker.brought == [("south", b"of south"), ("north", b"")]
    assert carrier.on_their_way == {}


def test_nobody_waits_for_whom_no_message_reaches(carrier):
    carrier.cell.unreachable["site-1.job"] = "target_unreachable"
    for party in ("gone", "nobody", "south"):
        carrier.send(Request(1, party, b"x"))
    assert carrier.worker.brought == [("gone", None), ("nobody", None), ("south", None)]
    assert carrier.on_their_way == {}


def test_what_is_longer_than_a_message_goes_by_a_call(carrier):
    longest = bytes(nvflare_job.LARGEST_MESSAGE)
    carrier.send(Request(1, "north", longest))
    assert [len(content) for _, _, content in carrier.cell.sent] == [len(longest)]
    carrier.send(Request(2, "south", longest + b"."))
    wait_for(lambda: carrier.worker.brought == [("south", b"called")])
    assert carrier.sites["site-1"].called == [longest + b"."]
    assert len(carrier.cell.sent) == 1


def test_a_lost_message_is_sent_again_and_a_lost_site_ends_the_job(carrier, monkeypatch):
    for name, seconds in {"LATE_S": 0.1, "LOST_S": 0.6, "AGAIN_S": 0.3, "LOOK_S": 0.05}.items():
        monkeypatch.setattr(nvflare_job, name, seconds)
    carrier.send(Request(1, "north", b"x"))
    looking = threading.Thread(target=carrier.look, daemon=True)
    looking.start()
    wait_for(lambda: len(carrier.cell.sent) == 3)
    # under the number that it had
    assert set(carrier.cell.sent) == {("site-0.job", 0, b"x")}
    assert carrier.lost is None
    carrier.cell.answer("site-0.job", 0, b"at last")
    assert carrier.worker.brought == [("north", b"at last")]
    # nobody asks a site that nothing is wanted of
    carrier.sites["site-1"].is_alive = False
    time.sleep(1.0)
    assert not carrier.worker.closed.is_set()
    carrier.send(Request(2, "south", b"x"))
    looking.join(30)
    assert carrier.worker.closed.is_set()
    assert carrier.lost == "site-1"
    # it was never there to be asked again
    assert [target for target, _, _ in carrier.cell.sent].count("site-1.job") == 1


def wait_for(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
