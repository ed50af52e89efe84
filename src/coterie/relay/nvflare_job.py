"""What NVIDIA FLARE runs: at its server a worker of the coordinator's hub, at each site a worker of the site's socket.

Jobs name these classes and bring no code of their own, so a site can allow them and nothing else.

The two meet by a call of the Collab interface. From then on an envelope is one message between their cells, and its
answer another: a call takes four, a copy of its content for each, and at the server a thread that stays for a minute.
What a call does besides is done here or not needed: an envelope that got lost is sent again, which changes nothing,
because a site answers a round twice with the same bytes. Envelopes that are longer than what FLARE itself puts into one
message are carried by calls, which cut them up.
"""

import itertools
import math
import threading
import time
from typing import Any, NamedTuple

from nvflare.collab import collab
from nvflare.collab.api.exceptions import CollabCallError
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.message import Message

from coterie.relay.at_site import SiteSocket
from coterie.relay.hub import Request, Worker
from coterie.site.sockets import ANSWER_S

# after which a worker that has brought no answer is asked whether it is there
LATE_S = 1.0
# within which a site's worker says that it is there
ALIVE_S = 5.0
# after which a worker that says nothing is given up, and with it the job
LOST_S = 8.0
LOOK_S = 1.0
# after which an envelope is sent again to a worker that is there
AGAIN_S = 30.0
# bytes that FLARE puts into one message
LARGEST_MESSAGE = 2**20

_CHANNEL, _REQUEST, _ANSWER, _NUMBER = "coterie", "request", "answer", "coterie-number"


class AtServer:
    """`parties` are FLARE's names of the sites, by party."""

    def __init__(self, parties: dict[str, str]) -> None:
        self.parties = parties

    @collab.main
    def carry(self) -> str:
        worker = Worker.of_this_machine()
        carrier = _Carrier(worker, self.parties, _cell(), {client.name: client for client in collab.clients})
        threading.Thread(target=carrier.look, daemon=True).start()
        try:
            for request in worker.requests():
                carrier.send(request)
        finally:
            worker.close()
        return f"lost {carrier.lost}" if carrier.lost else "the coordinator has gone"


class _OnItsWay(NamedTuple):
    request: Request
    # FLARE's name of the site
    site: str
    sent: float


class _Carrier:
    """Requests of the coordinator out, answers of the sites back."""

    def __init__(self, worker: Worker, parties: dict[str, str], cell: Any, sites: dict[str, Any]) -> None:
        self.worker, self.cell, self.sites = worker, cell, sites
        self.names = {party: name for party, name in parties.items() if name in sites}
        self.cells = {name: sites[name](timeout=ANSWER_S).meet(cell.get_fqcn()) for name in self.names.values()}
        self.on_their_way: dict[int, _OnItsWay] = {}
        self.numbers = itertools.count()
        self.lost: str | None = None
        cell.register_request_cb(_CHANNEL, _ANSWER, self._answered)

    def send(self, request: Request) -> None:
        name = self.names.get(request.party)
        if name is None:
            self.worker.answer(request, None)
        else:
            self._send(next(self.numbers), request, name)

    def _send(self, number: int, request: Request, name: str) -> None:
        self.on_their_way[number] = _OnItsWay(request, name, time.monotonic())
        if len(request.envelope) > LARGEST_MESSAGE:
            threading.Thread(target=self._call, args=(number, request, name), daemon=True).start()
            return
        cell = self.cells[name]
        message = Message({_NUMBER: number}, request.envelope)
        if self.cell.fire_and_forget(_CHANNEL, _REQUEST, cell, message, optional=True).get(cell):
            self._bring(number, None)

    def _call(self, number: int, request: Request, name: str) -> None:
        try:
            answer = self.sites[name](timeout=ANSWER_S).carry(request.envelope)
        except CollabCallError:
            answer = None
        self._bring(number, answer)

    def _answered(self, message: Any) -> None:
        number = message.get_header(_NUMBER)
        sent = self.on_their_way.get(number)
        if sent is not None and message.get_header(MessageHeaderKey.ORIGIN) == self.cells[sent.site]:
            self._bring(number, bytes(message.payload or b""))

    def _bring(self, number: int, answer: bytes | None) -> None:
        sent = self.on_their_way.pop(number, None)
        if sent is not None:
            self.worker.answer(sent.request, answer)

    def look(self) -> None:
        """Whether those are there who have not answered for a while; once one is lost, so is the job."""
        heard = dict.fromkeys(self.sites, time.monotonic())
        while self.lost is None:
            for name, site in self.sites.items():
                late = time.monotonic() - self._oldest(name)
                if late <= LATE_S or _is_alive(site):
                    heard[name] = time.monotonic()
                elif time.monotonic() - heard[name] > LOST_S:
                    self.lost = name
                if late > AGAIN_S and heard[name] > time.monotonic() - LATE_S:
                    self._send_again(name)
            time.sleep(LOOK_S)
        self.worker.close()

    def _oldest(self, name: str) -> float:
        """When the envelope was sent for whose answer a site has been waited for longest."""
        return min((one.sent for one in self.on_their_way.copy().values() if one.site == name), default=math.inf)

    def _send_again(self, name: str) -> None:
        for number, (request, site, sent) in self.on_their_way.copy().items():
            # calls look after themselves
            small = len(request.envelope) <= LARGEST_MESSAGE
            if site == name and small and time.monotonic() - sent > AGAIN_S:
                self._send(number, request, name)


class AtSite:
    def __init__(self) -> None:
        self._site = SiteSocket.of_this_site()

    @collab.publish
    def meet(self, server: str) -> str:
        """Take envelopes from the server's cell from now on; returns the name of this site's."""
        cell = _cell()

        def carry(message: Any) -> None:
            # in one of a hundred threads of FLARE's, of which the coordinator, who waits for its answers, needs few
            if message.get_header(MessageHeaderKey.ORIGIN) == server:
                answer = Message({_NUMBER: message.get_header(_NUMBER)}, self._site(bytes(message.payload)))
                cell.fire_and_forget(_CHANNEL, _ANSWER, server, answer, optional=True)

        cell.register_request_cb(_CHANNEL, _REQUEST, carry)
        return cell.get_fqcn()

    @collab.publish
    def carry(self, envelope: bytes) -> bytes:
        """The site's answer, or nothing where the site is not being served."""
        return self._site(envelope)

    @collab.publish
    def alive(self) -> bool:
        return True


def _cell() -> Any:
    """FLARE's end of all connections of this process."""
    return collab.fl_ctx.get_engine().get_cell().core_cell


def _is_alive(site: Any) -> bool:
    try:
        return site(timeout=ALIVE_S).alive()
    except CollabCallError:
        return False
