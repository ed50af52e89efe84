"""What is sent and told in a round, as the plan's channel has it; the same for a site and for the coordinator.

broadcast, token    each party at work sends a release, and everybody is told all of them
pairwise-sum        each party sends a masked message, everybody is told all of them, and adds them up
curator             each party seals a contribution to the coordinator, and everybody is told the noised sum
"""

import numpy as np

from coterie.engines.own_steps import sum_of_messages
from coterie.network.channels import Curator, PairwiseSum
from coterie.site.messages import COORDINATOR, Message, MessageError, numbers
from coterie.site.proposal import Proposal


class RoundForm:
    def __init__(self, proposal: Proposal) -> None:
        self.proposal, self.plan = proposal, proposal.plan
        self.d = self.plan.problem.n_coefficients(self.plan.facts)
        channel = self.plan.algorithm.channel
        self.curated, self.masked = isinstance(channel, Curator), isinstance(channel, PairwiseSum)
        # kinds of packets: of what parties send, and of what everybody is told
        self.sent = "contribution" if self.curated else "masked" if self.masked else "release"
        self.told = "sum" if self.curated else self.sent

    def workers(self, t: int) -> list[str]:
        """Who sends something in round t, in order."""
        works, names = self.plan.participation, self.proposal.names
        return list(names) if works is None else [names[party] for party in np.flatnonzero(works[t])]

    def tellers(self, t: int) -> list[str]:
        """Whose packets everybody is told."""
        return [COORDINATOR] if self.curated else self.workers(t)

    def value(self, t: int, message: Message) -> np.ndarray:
        """The numbers of a packet that everybody is told, checked."""
        if message.kind != self.told or message.run != self.proposal.digest or message["round"] != t:
            raise MessageError(f"a {message.kind!r} from {message.sender!r} where a {self.told!r} of round {t} belongs")
        if self.masked:
            return numbers(message["steps"], (self.d,))
        return numbers(message["value"], (self.d,), largest_norm=self.proposal.largest_norm)

    def released(self, t: int, values: list[np.ndarray]) -> np.ndarray:
        """What round t released, (width, d), as it stands in a transcript."""
        if self.masked:
            values = [sum_of_messages(self.plan, t, np.stack(values))]
            if not np.linalg.norm(values[0]) <= self.proposal.largest_norm:
                raise MessageError(f"a sum of norm above {self.proposal.largest_norm:g}: somebody's message is none")
        released = np.zeros((self.plan.release_width, self.d))
        released[: len(values)] = values
        return released
