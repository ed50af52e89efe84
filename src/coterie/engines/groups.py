"""Plans that run side by side, since they differ in grants and numbers alone: from the first state to transcripts."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from coterie.engines.inputs import Inputs
from coterie.engines.rounds import Program
from coterie.errors import LocalSolveError
from coterie.network.impairments import Impairments
from coterie.plan import Plan
from coterie.privacy.noise import KeyedEntropy, NoiseSource
from coterie.transcript import Transcript


class PlanGroup:
    """`state` is for whoever advances it."""

    def __init__(
        self,
        plans: Sequence[Plan],
        source: NoiseSource,
        repeats: int,
        impairments: Impairments | None,
        block: int,
    ) -> None:
        self.plans, self.plan = plans, plans[0]
        self.n_rounds, self.repeats, self.block = self.plan.n_rounds, repeats * len(plans), block
        self.n_parties, self.d = self.plan.facts.n_parties, self.plan.problem.n_coefficients(self.plan.facts)
        self.source = source.for_plan(self.plan.digest) if isinstance(source, KeyedEntropy) else source
        self.impairments = impairments
        self.state: Any = None
        self.done: list[np.ndarray] = []

    @functools.cached_property
    def inputs(self) -> Inputs:
        """For engines that do not draw for themselves."""
        return Inputs(self.plans, self.source, self.repeats // len(self.plans), self.impairments, self.block)

    def start(self, private: Any = None) -> None:
        """The first state of every repeat, with the algorithm's own private states or others."""
        silence = jnp.zeros((self.n_parties, self.d)) if self._remembers() else ()
        public, own = self.plan.algorithm.init(self.plan.topology, self.d)
        one = (public, own if private is None else private, silence)
        self.state = jax.tree.map(lambda a: jnp.broadcast_to(a, (self.repeats, *a.shape)), one)

    def program(self, repeats: int, **settings: Any) -> Program:
        return Program.of(
            self.plan, repeats, self.block, remembers=self._remembers(), plans=len(self.plans), **settings
        )

    def _remembers(self) -> bool:
        """What counts for a party that is silent: its last release, or what it last put into a sum."""
        some_work = self.inputs.works is not None
        return self.impairments is not None or (some_work and self.plan.algorithm.absent_stays)

    def keep(self, released: np.ndarray, start: int) -> None:
        """What was released from round `start` on, if it may be."""
        finite = np.isfinite(released)
        if not finite.all():
            _, t, place, _ = np.argwhere(~finite)[0]
            one_by_one = released.shape[2] == self.n_parties and not self.plan.algorithm.channel.aggregates
            who = f"party {self.plan.facts.parties[place]!r}" if one_by_one else "a party"
            raise LocalSolveError(
                f"{who} could not compute its step of round {start + t} to the plan's tolerance; "
                "nothing of that round was released, and the whole budget of the plan counts as spent"
            )
        self.done.append(released)

    def transcripts(self) -> list[Transcript]:
        empty = np.zeros((self.repeats, 0, self.plan.release_width, self.d))
        alone = len(self.done) == 1 and self.done[0].flags.writeable  # nothing to join, and an array of our own
        whole = self.done[0] if alone else np.concatenate([empty, *self.done], axis=1)
        by_plan = np.split(whole, len(self.plans))
        return [
            Transcript(plan, releases, self.source.reproducible, self.impairments)
            for plan, releases in zip(self.plans, by_plan, strict=True)
        ]
