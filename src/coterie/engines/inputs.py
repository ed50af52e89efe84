"""What a block of rounds needs from outside: which grants, who works, and the noise, drawn on the host."""

from typing import Any, NamedTuple

import numpy as np

from coterie.impairments import Impairments
from coterie.plan import Plan
from coterie.privacy.noise import NoiseSource
from coterie.selection import participants


class RoundInputs(NamedTuple):
    """Arrays with a leading round axis; None where a plan has no use for them."""

    grant: Any  # (rounds or 1, n_parties) which row of the plan's table of grants
    delivery: Any  # impairments
    who: Any  # (rounds, repeats, width) those who work and are heard one by one; n_parties is nobody
    works: Any  # (rounds, repeats, n_parties) those who work and enter a sum
    noise: Any  # pair of (rounds, repeats, rows, d)


class Inputs:
    def __init__(
        self, plan: Plan, source: NoiseSource, repeats: int, impairments: Impairments | None, d: int, length: int
    ) -> None:
        self.plan, self.source, self.repeats, self.d, self.length = plan, source, repeats, d, length
        self.deliveries = None if impairments is None else impairments.deliveries(plan.topology, plan.n_rounds)
        self.who = self.works = None
        selection, topology = plan.algorithm.selection, plan.topology
        if selection.secret:
            tables = [
                selection.table(plan.n_rounds, topology, lambda size, r=r: source.uniform(size, repeat=r))
                for r in range(repeats)
            ]
        elif plan.participation is not None:
            tables = [plan.participation]
        else:
            return
        if plan.algorithm.channel.aggregates:
            self.works = np.stack(tables, axis=1)
        else:
            found = np.stack([participants(table) for table in tables], axis=1)
            self.who = np.broadcast_to(found, (plan.n_rounds, repeats, plan.release_width))

    def block(self, start: int, count: int) -> RoundInputs:
        """Of `count` rounds, in arrays of one fixed length so that nothing is compiled twice."""
        index = self.plan.issued[1]

        def piece(array: np.ndarray | None) -> np.ndarray | None:
            return None if array is None else _lengthen(array[start : start + count], self.length)

        delivery = None if self.deliveries is None else type(self.deliveries)(*map(piece, self.deliveries))
        who = piece(self.who)
        return RoundInputs(
            grant=index if len(index) == 1 else piece(index),
            delivery=delivery,
            who=who,
            works=piece(self.works),
            noise=self._noise(start, count, who),
        )

    def _noise(self, start: int, count: int, who: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        plan = self.plan
        n_rows = plan.algorithm.channel.noise_rows(plan.facts.n_parties) if who is None else who.shape[2]
        law, purposes = plan.algorithm.mechanism.law, type(plan.issued[0][0]).purposes
        drawn = []
        for purpose in ("release", "output"):
            if law is None or purpose not in purposes:
                drawn.append(np.zeros((self.length, self.repeats, n_rows, 1)))  # broadcasts against anything
                continue
            noise = np.zeros((self.length, self.repeats, n_rows, self.d))
            for k, repeat, row in np.ndindex(count, self.repeats, n_rows):
                party = row if who is None else int(who[k, repeat, row])
                if party < plan.facts.n_parties:
                    noise[k, repeat, row] = self.source.draw(
                        law, self.d, repeat=repeat, party=party, t=start + k, purpose=purpose
                    )
            drawn.append(noise)
        return drawn[0], drawn[1]


def _lengthen(array: np.ndarray, length: int) -> np.ndarray:
    return np.concatenate([array, np.zeros((length - len(array), *array.shape[1:]), array.dtype)])
