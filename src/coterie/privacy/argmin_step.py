"""The step of `grants.ArgminGrant` in two parts, for engines that minimise in between by code of their own."""

import jax
import jax.numpy as jnp

from coterie.minimisers.base import Subproblem
from coterie.privacy.grants import ArgminGrant
from coterie.privacy.release import Release, UnitNoise, as_issued
from coterie.problems.problem import Problem


def asked(
    grant: ArgminGrant, problem: Problem, noise: UnitNoise, *, linear: jax.Array, target: jax.Array
) -> Subproblem:
    """What is to be minimised together with the problem, if it is the one that was priced, over the party's records."""
    grant.priced(problem)
    release_noise, _ = noise.value
    release_noise = as_issued(release_noise, "noise")
    return grant._subproblem(release_noise, linear=linear, target=target)  # pyright: ignore[reportPrivateUsage]


def answered(grant: ArgminGrant, noise: UnitNoise, f: jax.Array, bound: jax.Array) -> Release:
    """The minimiser with its output noise; NaN, which engines must not send, where the norm of its gradient misses the
    tolerance."""
    _, output_noise = noise.value
    f = jnp.where(bound <= as_issued(grant.scales.tolerance, "scale"), f, jnp.nan)
    return grant._released(f, output_noise)  # pyright: ignore[reportPrivateUsage]
