"""Rounds in which every party minimises a noised objective, taken apart: what is asked of a minimiser, and what its
answer leads to. Engines with minimisers of their own put them together again.

Grants are asked what to minimise, and noise the minimisers, by the functions that the algorithm's own step calls.
"""

from typing import Any

import jax

from coterie.algorithms.consensus import GraphADMM
from coterie.engines.inputs import RoundInputs
from coterie.engines.rounds import Program, Rounds, at_round
from coterie.network.impairments import Impairments
from coterie.plan import Plan
from coterie.privacy.argmin_step import answered, asked
from coterie.privacy.grants import ArgminGrant
from coterie.privacy.release import unit_noise
from coterie.problems.shared import Pull


def come_apart(plan: Plan, impairments: Impairments | None) -> bool:
    """Whether the rounds of this plan do."""
    return (
        type(plan.algorithm).local is GraphADMM.local
        and isinstance(plan.issued[0][0], ArgminGrant)
        and plan.problem.penalty.smooth
        and impairments is None
    )


class ArgminRounds(Rounds):
    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.by_repeat = 0 if self.joined else None  # repeats of several plans have several grants

    def ask(self, scales: Any, inbox: Any, noise: Any) -> Pull:
        """What everybody is to minimise, with axes (repeat, party, ...)."""

        def one(scales, inbox, noise):
            linear, target = inbox
            return asked(self.grant(scales), self.problem, noise, linear=linear, target=target)

        return jax.vmap(jax.vmap(one), (self.by_repeat, 0, 0))(scales, inbox, noise)

    def answer(self, scales: Any, noise: Any, f: Any, norms: Any) -> jax.Array:
        """What everybody releases, (repeat, party, d), for minimisers with gradients of these norms."""

        def one(scales, noise, f, norm):
            return answered(self.grant(scales), noise, f, norm)

        return jax.vmap(jax.vmap(one), (self.by_repeat, 0, 0, 0))(scales, noise, f, norms).value

    def before(self, public: Any, table: Any, t: Any, inputs: RoundInputs, k: Any) -> Pull:
        """What is asked in round t, the k-th of these inputs."""
        now = at_round(inputs, k)
        inbox = jax.vmap(lambda public: self.algorithm.inbox(t, public, self.topology))(public)
        return self.ask(self.scales(table, now), inbox, unit_noise(*now.noise))

    def after(self, public: Any, table: Any, t: Any, inputs: RoundInputs, k: Any, f: Any, norms: Any) -> Any:
        """What everybody knows afterwards, and what was released."""
        now = at_round(inputs, k)
        released = self.answer(self.scales(table, now), unit_noise(*now.noise), f, norms)
        return self.combined(t, public, released, now, self.topology), released
