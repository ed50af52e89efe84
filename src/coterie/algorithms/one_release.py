"""The trivial baseline: every party releases one model of its own records, and the model is their average.

Nothing is exchanged but the one release, so the whole budget goes into one noise. `extra_l2` in the mechanism keeps the
local problem strongly convex; the price of bias is paid by whoever averages models of small parties.
"""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp

from coterie.algorithms.algorithm import Algorithm, Citation
from coterie.network.channels import Broadcast
from coterie.privacy.mechanisms import ArgminGrant
from coterie.privacy.objective import SoloPerturbation
from coterie.values import serialisable


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class OneReleaseAverage(Algorithm[ArgminGrant]):
    mechanism: SoloPerturbation
    channel = Broadcast()
    needs_graph: ClassVar[bool] = False
    citation: ClassVar[Citation] = Citation(
        key="chaudhuri-monteleoni-sarwate-2011",
        kind="article",
        authors=("Chaudhuri, Kamalika", "Monteleoni, Claire", "Sarwate, Anand D."),
        title="Differentially Private Empirical Risk Minimization",
        venue="Journal of Machine Learning Research",
        year=2011,
    )

    def init(self, topology, d):
        return jnp.zeros((topology.n_parties, d)), ()

    def inbox(self, t, public, topology):
        return jnp.zeros_like(public)

    def local(self, grant: ArgminGrant, problem, records, private, inbox, noise):
        return private, grant.argmin(problem, records, noise, linear=inbox, target=inbox)

    def combine(self, t, public, received, topology):
        """Rounds are independent releases of the same thing; more than one averages their noise."""
        return public + (received - public) / (t + 1)

    def models(self, public):
        return public
