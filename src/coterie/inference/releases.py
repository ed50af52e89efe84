"""Carrying out the moments of a plan: contributions of the parties, noised by their channel or each by itself."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from coterie.data.federation import Federation
from coterie.plan import Plan
from coterie.privacy.moments import derivatives_size, packed_size, unpacked
from coterie.privacy.noise import NoiseSource, Purpose, draw_many, law_for
from coterie.privacy.release import unit_noise
from coterie.problems import Records


def release(
    plan: Plan, federation: Federation, purpose: Purpose, stage: int, at: np.ndarray, source: NoiseSource
) -> np.ndarray:
    """The noised sum over all parties: a vector of gradient and packed Hessian, or a packed second moment."""
    return seen(plan, federation, purpose, stage, at, source).sum(axis=0)


def seen(
    plan: Plan, federation: Federation, purpose: Purpose, stage: int, at: np.ndarray, source: NoiseSource
) -> np.ndarray:
    """What everybody sees of a release, a row each: the sum of a channel, or what every party noised by itself."""
    p, n_rows = plan.problem.n_coefficients(plan.facts), plan.noise_rows
    size = packed_size(p) if purpose == "second_moment" else derivatives_size(p)
    channel = plan.algorithm.channel
    grant: Any = _granted(plan, purpose, stage)
    keys = [(0, row, stage) for row in range(n_rows)]
    with jax.enable_x64(True):
        contributions = _contributions(plan, federation, purpose, stage, jnp.asarray(at))
        units = jnp.asarray(draw_many(source, law_for("gaussian", "value"), size, keys, purpose, n_rows))
        if not channel.aggregates:
            return np.asarray(_each_alone(grant, contributions, units).value)
        total = channel.aggregate(contributions, grant, unit_noise(units, None))  # type: ignore[attr-defined]
        return np.asarray(total.value)[None]


def release_derivatives(
    plan: Plan, federation: Federation, stage: int, at: np.ndarray, source: NoiseSource
) -> tuple[np.ndarray, np.ndarray]:
    """Noised gradient and Hessian of all records."""
    values, p = release(plan, federation, "derivatives", stage, at, source), len(at)
    return values[:p], unpacked(values[p:], p) / _granted(plan, "derivatives", stage).scales.curvature_factor


def release_second_moment(plan: Plan, federation: Federation, at: np.ndarray, source: NoiseSource) -> np.ndarray:
    assert plan.moments is not None
    return unpacked(release(plan, federation, "second_moment", len(plan.moments.multipliers), at, source), len(at))


@jax.jit
def _each_alone(grant: Any, contributions: Any, units: jax.Array) -> Any:
    """Every party noises its own."""
    return jax.vmap(lambda one, unit: grant.noised_alone(one, unit_noise(unit, None)))(contributions, units)


@functools.partial(jax.jit, static_argnames="purpose")
def _contributed(grant: Any, records: Records, at: jax.Array, *, purpose: Purpose) -> Any:
    return jax.vmap(lambda one: getattr(grant, purpose)(grant.problem, one, at=at))(records)


def noise_std(plan: Plan, purpose: Purpose, stage: int) -> float:
    """Of the noise on each number of the sum over all parties."""
    channel, n_parties = plan.algorithm.channel, plan.facts.n_parties
    many = channel.noise(n_parties).total if channel.aggregates else math.sqrt(n_parties)
    return many * _granted(plan, purpose, stage).scales.noise_std


def derivative_stds(plan: Plan, stage: int) -> tuple[float, float]:
    """Of the noise on a gradient, and on the diagonal of a Hessian."""
    std = noise_std(plan, "derivatives", stage)
    return std, std / _granted(plan, "derivatives", stage).scales.curvature_factor


def _granted(plan: Plan, purpose: Purpose, stage: int, party: int = 0) -> Any:
    [grant] = [g.grant for g in plan.moment_grants(party) if (g.purpose, g.stage) == (purpose, stage)]
    return grant


def _contributions(plan: Plan, federation: Federation, purpose: Purpose, stage: int, at: jax.Array) -> Any:
    """Stacked in the order of parties; those of one size are worked out together."""
    sizes = np.asarray(plan.facts.sizes)
    found, order = [], []
    for size in np.unique(sizes):
        parties = np.flatnonzero(sizes == size)
        grant = _granted(plan, purpose, stage, int(parties[0]))
        columns = zip(*(plan.problem.records(federation.shards[i]) for i in parties), strict=True)
        records = Records(*(jnp.asarray(np.stack(column)) for column in columns))
        found.append(_contributed(grant, records, at, purpose=purpose))
        order.append(parties)
    back = np.argsort(np.concatenate(order))
    return jax.tree.map(lambda *parts: jnp.concatenate(parts)[back], *found)
