"""The two apps that Flower starts. They carry envelopes, and hold no key, no record and no plan.

`client` runs at a site, in a new process for every message: it hands the envelope to the site's own server over its
Unix socket, and the answer back. `server` runs beside the coordinator and passes envelopes between hub and grid.
The apps come with the package: what Flower sends around is a pyproject that names them (`coterie.relay.flower`).
"""

# pyright: reportMissingImports=false

import queue
import threading
import time
from pathlib import Path
from typing import NamedTuple

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from coterie.relay.at_site import SiteSocket
from coterie.relay.flower import COORDINATOR_SOCKET
from coterie.relay.hub import Request, Worker
from coterie.site.sockets import ANSWER_S

RECORD, ENVELOPE = "coterie", "envelope"

# a request to the SuperLink each time, on a machine that others need too
_POLL_S = 0.5
# how often it is looked whether nodes were started again
_LOOK_S = 3.0

client = ClientApp()
server = ServerApp()


@client.query()
def pass_on(message: Message, context: Context) -> Message:
    """An envelope to the site that this node belongs to, and its answer."""
    answer = SiteSocket.of_this_site()(_envelope(message) or b"")
    return Message(_record(answer), reply_to=message)


@server.main()
def relay(grid: Grid, context: Context) -> None:
    """Carry everything, until the coordinator goes."""
    worker = Worker(Path(str(context.run_config[COORDINATOR_SOCKET])))
    try:
        _Carrier(grid, worker).carry()
    finally:
        worker.close()


class _Node(NamedTuple):
    id: int
    # it forgets messages when it is started again
    activated: str


class _OnItsWay(NamedTuple):
    request: Request
    node: _Node


class _Carrier:
    """Requests of the coordinator out, answers of the sites back."""

    def __init__(self, grid: Grid, worker: Worker) -> None:
        self.grid, self.worker = grid, worker
        self.asked: queue.Queue[Request | None] = queue.Queue()
        self.on_their_way: dict[str, _OnItsWay] = {}
        self.nodes: dict[str, _Node] = {}
        self.looked = 0.0

    def carry(self) -> None:
        threading.Thread(target=self._read, daemon=True).start()
        brought = time.monotonic()
        while True:
            # those who are asked again and again, because they are not there, hold up nobody's answer
            left = brought + _POLL_S - time.monotonic()
            try:
                request = self.asked.get(timeout=max(left, 0.01))
            except queue.Empty:
                pass
            else:
                if request is None:
                    return
                self._send(request)
            if time.monotonic() >= brought + _POLL_S:
                self._bring_what_is_answered()
                brought = time.monotonic()

    def _read(self) -> None:
        for request in self.worker.requests():
            self.asked.put(request)
        self.asked.put(None)

    def _send(self, request: Request) -> None:
        if request.party not in self.nodes:
            self._look()
        node = self.nodes.get(request.party)
        if node is None:
            self.worker.answer(request, None)
            return
        message = Message(_record(request.envelope), node.id, "query", ttl=ANSWER_S)
        for message_id in self.grid.push_messages([message]):
            if message_id:
                self.on_their_way[message_id] = _OnItsWay(request, node)
            else:
                self.worker.answer(request, None)

    def _bring_what_is_answered(self) -> None:
        if time.monotonic() - self.looked > _LOOK_S:
            self._look()
        if self.on_their_way:
            for reply in self.grid.pull_messages(list(self.on_their_way)):
                self._answer(reply.metadata.reply_to_message_id, _envelope(reply))

    def _look(self) -> None:
        """Who is there; what was on its way to a node that was stopped or started again is lost."""
        self.nodes = {node.name: _Node(node.node_id, node.last_activated_at) for node in self.grid.get_nodes()}
        self.looked = time.monotonic()
        for message_id, (request, node) in list(self.on_their_way.items()):
            if self.nodes.get(request.party) != node:
                self._answer(message_id, None)

    def _answer(self, message_id: str, envelope: bytes | None) -> None:
        sent = self.on_their_way.pop(message_id, None)
        if sent is not None:
            self.worker.answer(sent.request, envelope)


def _record(envelope: bytes) -> RecordDict:
    return RecordDict({RECORD: ConfigRecord({ENVELOPE: envelope})})


def _envelope(message: Message) -> bytes | None:
    """What is in a message of ours; None of an error, or of anything else."""
    record = None if message.has_error() else message.content.get(RECORD)
    envelope = None if record is None else record.get(ENVELOPE)
    return envelope if isinstance(envelope, bytes) else None
