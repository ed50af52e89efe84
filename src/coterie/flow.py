"""What `Plan.check_flow` does: trace one party's step with labels on its inputs and follow them."""

from typing import Any

import jax
import jax.numpy as jnp

from coterie.privacy.release import Contribution, as_issued, check_flow, unit_noise
from coterie.problems.local import Records


def check_plan_flow(plan: Any) -> None:
    """Refuse the plan if a party's step could carry data past the release door."""
    algorithm, channel, problem = plan.algorithm, plan.algorithm.channel, plan.problem.share(plan.facts.n_parties)
    n, d, p = plan.facts.largest, plan.facts.n_features, plan.problem.n_coefficients(plan.facts)

    def array(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float64)

    def of_one_party(tree: Any) -> Any:
        return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), tree)

    def step(records: Any, private: Any, noise: Any, scales: Any, inbox: Any) -> Any:
        grant = plan.as_grant(scales)
        if not channel.aggregates:
            return algorithm.local(grant, problem, records, private, inbox, noise)
        kept, out = algorithm.local(grant, problem, records, private, inbox, None)
        if not isinstance(out, Contribution):
            return kept, out
        stacked = jax.tree.map(lambda a: as_issued(a, "contribution")[None], out)
        return kept, channel.aggregate(stacked, grant, noise)

    with jax.enable_x64(True):
        public, private = jax.eval_shape(lambda: algorithm.init(plan.topology, p))
        noise_shape = (1, p) if channel.aggregates else (p,)
        check_flow(
            step,
            records=Records(array(n, d), array(n), array(n)),
            private=of_one_party(private),
            noise=unit_noise(array(*noise_shape), array(*noise_shape)),
            scales=[array() for _ in jax.tree.leaves(plan.issued[0][0])],
            inbox=of_one_party(jax.eval_shape(lambda pub: algorithm.inbox(0.0, pub, plan.topology), public)),
        )
