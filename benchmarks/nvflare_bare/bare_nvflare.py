"""A round trip of NVIDIA FLARE's Collab interface and nothing else: bytes to every site, bytes back (../relay.py)."""

import json
import os
import time
from pathlib import Path

from nvflare.collab import collab
from processor_time import per_round, processor_time


class AtServer:
    def __init__(self, n_rounds, skipped, there, back, out, started):
        self.n_rounds, self.skipped, self.there, self.back = n_rounds, skipped, there, back
        self.out, self.started = out, started

    @collab.main
    def measure(self):
        times, spent = [], []
        for t in range(self.n_rounds):
            if t == self.skipped:
                spent.append(processor_time(Path(self.started)))
            started = time.perf_counter()
            # random, so that no compression makes it smaller than something sealed
            answers = collab.clients.echo(os.urandom(self.there), self.back)
            assert all(len(answer) == self.back for _, answer in answers)
            times.append(time.perf_counter() - started)
        spent.append(processor_time(Path(self.started)))
        with open(f"{self.out}.part", "w") as file:
            json.dump({"seconds": times, "processor": per_round(*spent, self.n_rounds - self.skipped)}, file)
        os.replace(f"{self.out}.part", self.out)


class AtSite:
    @collab.publish
    def echo(self, content, back):
        return os.urandom(back)
