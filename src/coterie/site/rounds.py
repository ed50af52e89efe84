"""What is sent and told in a round, as the plan's channel has it; the same for a site and for the coordinator.

broadcast, token    each party at work sends a release, and everybody is told all of them
pairwise-sum        each party sends a masked message, everybody is told all of them, and adds them up
curator             each party seals a contribution to the coordinator, and everybody is told the noised sum

Releases for intervals come after the last round, numbered on from it, over the same channel, and everybody takes part.
"""

from typing import Any

import numpy as np

from coterie.engines import moments, own_steps
from coterie.network.channels import Curator, PairwiseSum
from coterie.privacy.noise import NoiseSource
from coterie.site.messages import COORDINATOR, Message, MessageError, numbers
from coterie.site.proposal import Proposal


class RoundForm:
    def __init__(self, proposal: Proposal) -> None:
        self.proposal, self.plan = proposal, proposal.plan
        self.n_rounds, self.width = self.plan.n_rounds, self.plan.release_width
        # with what is released after the rounds
        self.n_releases = self.n_rounds + moments.n_moments(self.plan)
        self.channel: Any = self.plan.algorithm.channel
        self.curated, self.masked = isinstance(self.channel, Curator), isinstance(self.channel, PairwiseSum)
        # kinds of packets: of what parties send, and of what everybody is told
        self.sent = "contribution" if self.curated else "masked" if self.masked else "release"
        self.told = "sum" if self.curated else self.sent

    def size(self, t: int) -> int:
        """How many numbers a packet of round t holds."""
        if t >= self.n_rounds:
            return moments.moment_size(self.plan, t - self.n_rounds)
        return self.plan.problem.n_coefficients(self.plan.facts)

    def works(self, t: int, party: int) -> bool:
        works = self.plan.participation
        return t < self.n_releases and (works is None or t >= self.n_rounds or bool(works[t, party]))

    def workers(self, t: int) -> list[str]:
        """Who sends something in round t, in order."""
        return [name for party, name in enumerate(self.proposal.names) if self.works(t, party)]

    def tellers(self, t: int) -> list[str]:
        """Whose packets everybody is told."""
        return [COORDINATOR] if self.curated else self.workers(t)

    def value(self, t: int, message: Message) -> np.ndarray:
        """The numbers of a packet that everybody is told, checked."""
        if message.kind != self.told or message.run != self.proposal.digest or message["round"] != t:
            raise MessageError(f"a {message.kind!r} from {message.sender!r} where a {self.told!r} of round {t} belongs")
        if self.masked:
            return numbers(message["steps"], (self.size(t),))
        return numbers(message["value"], (self.size(t),), largest_norm=self.proposal.largest_norm)

    def released(self, t: int, values: list[np.ndarray]) -> np.ndarray:
        """What round t released, (width, d), as it stands in a transcript; after the rounds, one row for everybody."""
        number = t - self.n_rounds
        if self.masked:
            values = [self.channel.sum_of(np.stack(values), self._grid(t))]
            if not np.linalg.norm(values[0]) <= self.proposal.largest_norm:
                raise MessageError(f"a sum of norm above {self.proposal.largest_norm:g}: somebody's message is none")
        if number >= 0:
            return np.stack(values)
        released = np.zeros((self.width, self.size(t)))
        released[: len(values)] = values
        return released

    def _grid(self, t: int) -> float:
        """Of the noised sum of round t."""
        if t >= self.n_rounds:
            return float(self.plan.moment_grants(0)[t - self.n_rounds].grant.grid)
        grants, index = self.plan.issued
        return float(grants[index[t % len(index)][0]].grid)

    def noised_sum(self, t: int, contributions: np.ndarray, source: NoiseSource) -> np.ndarray:
        """What a curator releases of what the parties contributed."""
        if t >= self.n_rounds:
            return moments.noised_sum(self.plan, t - self.n_rounds, contributions, source)
        return own_steps.noised_sum(self.plan, t, contributions, source)

    def signed(self, t: int, released: np.ndarray) -> np.ndarray:
        """What everybody signs of round t: the round as it stands in a transcript, or the sum as intervals keep it."""
        if t < self.n_rounds:
            return released
        return moments.as_matrices(self.plan, t - self.n_rounds, released.sum(axis=0))
