"""A round trip of NVIDIA FLARE's Collab interface and nothing else: bytes to every site, bytes back (../relay.py)."""

import json
import os
import time

from nvflare.collab import collab


class AtServer:
    def __init__(self, n_rounds, there, back, out):
        self.n_rounds, self.there, self.back, self.out = n_rounds, there, back, out

    @collab.main
    def measure(self):
        times = []
        for _ in range(self.n_rounds):
            started = time.perf_counter()
            # random, so that no compression makes it smaller than something sealed
            answers = collab.clients.echo(os.urandom(self.there), self.back)
            assert all(len(answer) == self.back for _, answer in answers)
            times.append(time.perf_counter() - started)
        with open(f"{self.out}.part", "w") as file:
            json.dump(times, file)
        os.replace(f"{self.out}.part", self.out)


class AtSite:
    @collab.publish
    def echo(self, content, back):
        return os.urandom(back)
