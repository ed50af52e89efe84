"""What NVIDIA FLARE runs: at its server a worker of the coordinator's hub, at each site a worker of the site's socket.

Jobs name these classes and bring no code of their own, so a site can allow them and nothing else.
"""

import itertools
import math
import threading
import time
from typing import Any

from nvflare.collab import collab  # pyright: ignore[reportMissingImports]
from nvflare.collab.api.exceptions import CollabCallError  # pyright: ignore[reportMissingImports]

from coterie.relay.at_site import SiteSocket
from coterie.relay.hub import Worker
from coterie.site.sockets import UnreachableError

# the longest that a site may take for one answer
ANSWER_S = 600.0
# after which a worker that has brought no answer is asked whether it is there
LATE_S = 1.0
# within which a site's worker says that it is there
ALIVE_S = 5.0
# after which a worker that says nothing is given up, and with it the job
LOST_S = 8.0


class AtServer:
    """`parties` are FLARE's names of the sites, by party."""

    def __init__(self, parties: dict[str, str]) -> None:
        self.parties = parties

    @collab.main
    def carry(self) -> str:
        worker = Worker.of_this_machine()
        sites = {client.name: client for client in collab.clients}
        # when each request that a site has not answered was sent
        waiting: dict[str, dict[int, float]] = {name: {} for name in self.parties.values()}
        numbers = itertools.count()
        lost: list[str] = []

        def exchange(party: str, envelope: bytes) -> bytes:
            name = self.parties.get(party)
            if name is None or name not in sites:
                raise UnreachableError(f"{party}: no site of this job")
            number = next(numbers)
            waiting[name][number] = time.monotonic()
            try:
                return sites[name](timeout=ANSWER_S).carry(envelope)
            except CollabCallError as error:
                raise UnreachableError(f"{party}: {error}") from None
            finally:
                del waiting[name][number]

        def is_late(name: str) -> bool:
            sent = min(waiting.get(name, {}).copy().values(), default=math.inf)
            return time.monotonic() - sent > LATE_S

        def look() -> None:
            heard = dict.fromkeys(sites, time.monotonic())
            while not lost:
                for name, site in sites.items():
                    if not is_late(name) or self._is_alive(site):
                        heard[name] = time.monotonic()
                    elif time.monotonic() - heard[name] > LOST_S:
                        lost.append(name)
                time.sleep(1.0)
            worker.close()

        threading.Thread(target=look, daemon=True).start()
        worker.carry(exchange)
        return f"lost {lost[0]}" if lost else "the coordinator has gone"

    def _is_alive(self, site: Any) -> bool:
        try:
            return site(timeout=ALIVE_S).alive()
        except CollabCallError:
            return False


class AtSite:
    def __init__(self) -> None:
        self._site = SiteSocket.of_this_site()

    @collab.publish
    def carry(self, envelope: bytes) -> bytes:
        """The site's answer, or nothing where the site is not being served."""
        return self._site(envelope)

    @collab.publish
    def alive(self) -> bool:
        return True
