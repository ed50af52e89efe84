"""Replay of a party that keeps private state: several rounds on two neighbouring data sets that hear the same.

What is released is public and the same for both, so both parties hear the same messages, whatever these are; only their
states may differ. In every round, what the two contribute may differ by what the grant declares and no more.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from coterie.audit.replay import Replay
from coterie.plan import Plan
from coterie.privacy.release import unit_noise
from coterie.problems.problem import Records

N_ROUNDS = 6  # differences between states settle within a few rounds, or grow without end


def keeps_state(plan: Plan) -> bool:
    d = plan.problem.n_coefficients(plan.facts)
    with jax.enable_x64(True):
        return bool(jax.tree.leaves(jax.eval_shape(lambda: plan.algorithm.init(plan.topology, d)[1])))


class StateReplay(Replay):
    """Public inputs have a round axis here; the change is the largest over rounds."""

    follows_state = True

    def __init__(self, plan: Plan, party: int, t: int) -> None:
        super().__init__(plan, party, t)
        self.inbox = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((leaf.shape[0], N_ROUNDS, *leaf.shape[1:]), leaf.dtype), self.inbox
        )
        with jax.enable_x64(True):
            start = plan.algorithm.init(plan.topology, self.d)[1]
            self.private = jax.tree.map(lambda leaf: np.asarray(leaf)[party], start)

    def _changes(self, cases: Any) -> tuple[Any, Any, Any, Any]:
        noise = cases.release_noise, cases.output_noise
        one, two = (self._apply(self._step, self._weighted(cases, side), cases.inbox, *noise) for side in (0, 1))
        finite = np.isfinite(one).all(axis=(1, 2)) & np.isfinite(two).all(axis=(1, 2))
        zeros = np.zeros(len(one))
        return finite, np.linalg.norm(one - two, axis=2).max(axis=1), zeros, zeros

    def _step(self, scales: Any, records: Records, inbox: Any, release_noise: Any, output_noise: Any) -> Any:
        grant, noise = self.plan.as_grant(scales), unit_noise(release_noise, output_noise)
        private = jax.tree.map(jnp.asarray, self.private)

        def one_round(private: Any, heard: Any) -> Any:
            private, out = self.plan.algorithm.local(grant, self.problem, records, private, heard, noise)
            return private, out.value

        return jax.lax.scan(one_round, private, inbox)[1]
