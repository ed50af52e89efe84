"""What an algorithm is: `local` sees one party's records and hands back a Release or a Contribution; everything else
sees released values only, and is therefore post-processing by signature.

    init(topology, d)                               -> (public, private)     both independent of the data
    inbox(t, public, topology)                      -> what each party hears, party axis first
    local(grant, problem, records, private, inbox, noise) -> (private, Release | Contribution)
    combine(t, public, received, topology)          -> public
    models(public)                                  -> coefficients per party, (n_parties, d) or (1, d)

`received` holds one released value per party (broadcast) or the one aggregate (curator, secure sum). `t` counts rounds
from 0.0 and may be traced. Code is written for one repeat; engines add the repeat axis.
"""

from typing import Any, ClassVar

import jax

from coterie.channels import Channel
from coterie.privacy.grants import Grant
from coterie.privacy.mechanisms import Mechanism
from coterie.privacy.release import Contribution, Release, UnitNoise
from coterie.problems.local import Records
from coterie.problems.problem import Problem
from coterie.topology import Topology


class Algorithm:
    mechanism: Mechanism
    channel: Channel
    citation: ClassVar[str]

    def check(self, topology: Topology) -> None:
        """Refuse settings that do not fit the graph."""
        for name, schedule in self.mechanism.schedules().items():
            schedule.check_parties(name, topology.n_parties)

    def init(self, topology: Topology, d: int) -> tuple[Any, Any]:
        raise NotImplementedError

    def inbox(self, t: Any, public: Any, topology: Topology) -> Any:
        raise NotImplementedError

    def local(
        self, grant: Grant, problem: Problem, records: Records, private: Any, inbox: Any, noise: UnitNoise
    ) -> tuple[Any, Release | Contribution]:
        raise NotImplementedError

    def combine(self, t: Any, public: Any, received: jax.Array, topology: Topology) -> Any:
        raise NotImplementedError

    def models(self, public: Any) -> jax.Array:
        raise NotImplementedError

    def model(self, public: Any) -> jax.Array:
        """The one model everybody ends with: the mean over parties, a function of released values."""
        return self.models(public).mean(axis=0)
