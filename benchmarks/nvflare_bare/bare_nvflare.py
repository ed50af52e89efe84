"""A round trip of NVIDIA FLARE and nothing else: bytes to every site, bytes back (../relay.py).

By calls of the Collab interface, as whoever uses FLARE makes them, and by single messages between cells, as
`coterie.relay.nvflare_job` sends them.
"""

import json
import os
import queue
import time
from pathlib import Path

from nvflare.collab import collab
from nvflare.fuel.f3.message import Message
from processor_time import per_round, processor_time

CHANNEL, THERE, BACK = "bare", "there", "back"


class AtServer:
    def __init__(self, n_rounds, skipped, there, back, out, started):
        self.n_rounds, self.skipped, self.there, self.back = n_rounds, skipped, there, back
        self.out, self.started = out, started

    @collab.main
    def measure(self):
        cell, answers = _cell(), queue.SimpleQueue()
        cell.register_request_cb(CHANNEL, BACK, lambda message: answers.put(bytes(message.payload)))
        cells = [site.meet(cell.get_fqcn(), self.back) for site in collab.clients]

        def calls():
            # random, so that no compression makes it smaller than something sealed
            found = collab.clients.echo(os.urandom(self.there), self.back)
            assert all(len(answer) == self.back for _, answer in found)

        def messages():
            for name in cells:
                cell.fire_and_forget(CHANNEL, THERE, name, Message({}, os.urandom(self.there)))
            assert all(len(answers.get(timeout=60)) == self.back for _ in cells)

        told = {"calls": self._timed(calls), "messages": self._timed(messages)}
        with open(f"{self.out}.part", "w") as file:
            json.dump(told, file)
        os.replace(f"{self.out}.part", self.out)

    def _timed(self, round_trip):
        times, spent = [], []
        for t in range(self.n_rounds):
            if t == self.skipped:
                spent.append(processor_time(Path(self.started)))
            started = time.perf_counter()
            round_trip()
            times.append(time.perf_counter() - started)
        spent.append(processor_time(Path(self.started)))
        return {"seconds": times[self.skipped :], "processor": per_round(*spent, self.n_rounds - self.skipped)}


class AtSite:
    @collab.publish
    def echo(self, content, back):
        return os.urandom(back)

    @collab.publish
    def meet(self, server, back):
        cell = _cell()

        def answer(message):
            cell.fire_and_forget(CHANNEL, BACK, server, Message({}, os.urandom(back)))

        cell.register_request_cb(CHANNEL, THERE, answer)
        return cell.get_fqcn()


def _cell():
    return collab.fl_ctx.get_engine().get_cell().core_cell
