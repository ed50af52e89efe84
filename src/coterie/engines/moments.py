"""Carrying out the moments of a plan: contributions of the parties, noised by their channel or each by itself.

Moments are numbered in the order of their release, which is that of `Plan.moment_grants`. Where a course decides at
which model the next one is taken, it knows what was released before and nothing else.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from coterie.data.federation import Federation
from coterie.plan import Plan
from coterie.privacy.moments import derivatives_size, packed_size, unpacked
from coterie.privacy.noise import NoiseSource, Purpose, draw_many, law_for
from coterie.privacy.pairs import PairStreams
from coterie.privacy.release import Contribution, contribute, unit_noise
from coterie.problems import Records


class Course(Protocol):
    """Where moments are taken, one after the other."""

    @property
    def at(self) -> np.ndarray:
        """The model of the next one."""
        ...

    def hear(self, at: np.ndarray, total: np.ndarray) -> None:
        """What was released at a model: the noised sum over all parties."""
        ...


# --- all parties in one process ---------------------------------------------------------------------------------------


def release(plan: Plan, federation: Federation, number: int, at: np.ndarray, source: NoiseSource) -> np.ndarray:
    """The noised sum over all parties: a vector of gradient and packed Hessian, or a packed second moment."""
    return seen(plan, federation, number, at, source).sum(axis=0)


def seen(plan: Plan, federation: Federation, number: int, at: np.ndarray, source: NoiseSource) -> np.ndarray:
    """What everybody sees of a release, a row each: the sum of a channel, or what every party noised by itself."""
    everybody = range(plan.facts.n_parties)
    with jax.enable_x64(True):
        contributions = _contributions(plan, everybody, federation.shards, number, at)
        if not plan.algorithm.channel.aggregates:
            return _noised_alone(plan, everybody, number, contributions, source)
        return _noised(plan, number, contributions, source)[None]


def derivatives_of(plan: Plan, number: int, total: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gradient and Hessian in what was released."""
    p = plan.problem.n_coefficients(plan.facts)
    return total[:p], unpacked(total[p:], p) / _granted(plan, number).scales.curvature_factor


def as_matrices(plan: Plan, number: int, total: np.ndarray) -> np.ndarray:
    """What was released as it is kept and signed: gradient and Hessian, or the second moment, one number after the
    other."""
    assert plan.moments is not None
    if number == len(plan.moments.multipliers):
        return unpacked(total, plan.problem.n_coefficients(plan.facts)).ravel()
    gradient, hessian = derivatives_of(plan, number, total)
    return np.append(gradient, hessian)


# --- parties that are elsewhere ---------------------------------------------------------------------------------------


def sent_by(
    plan: Plan,
    party: int,
    shard: Any,
    number: int,
    at: np.ndarray,
    source: NoiseSource,
    pairs: PairStreams | None = None,
) -> np.ndarray:
    """What one party sends, (size,): its own noised moments, a contribution to a curator's sum, or a masked message in
    whole steps. Masks are those of rounds after the last one."""
    channel: Any = plan.algorithm.channel
    with jax.enable_x64(True):
        own = _contributions(plan, [party], [shard], number, at)
        if not channel.aggregates:
            return _noised_alone(plan, [party], number, own, source)[0]
        if pairs is None:
            return np.asarray(own.value)[0]
        steps = pairs.steps(plan.n_rounds + number, moment_size(plan, number))
        masks = unit_noise(_units(plan, number, [party], source)[0], jnp.asarray(steps))
        return np.asarray(channel.message(own, _granted(plan, number, party), masks).value)


def noised_sum(plan: Plan, number: int, contributions: np.ndarray, source: NoiseSource) -> np.ndarray:
    """What a curator releases, (size,), of what the parties contributed, (party, size)."""
    with jax.enable_x64(True):
        return _noised(plan, number, contribute(jnp.asarray(contributions)), source)


def release_on_ranks(
    plan: Plan,
    own: Sequence[int],
    shards: Sequence[Any],
    number: int,
    at: np.ndarray,
    source: NoiseSource,
    comm: Any,
) -> np.ndarray:
    """The noised sum over the parties of all processes of a cluster, at every one of them."""
    with jax.enable_x64(True):
        contributions = _contributions(plan, own, shards, number, at)
        if not plan.algorithm.channel.aggregates:
            rows = comm.allgather(_noised_alone(plan, own, number, contributions, source))
            return np.concatenate(rows).sum(axis=0)

        def noise() -> Any:
            return unit_noise(_units(plan, number, range(plan.noise_rows), source), None)

        grant, size = _granted(plan, number), moment_size(plan, number)
        return noised_on_ranks(plan.algorithm.channel, grant, contributions, noise, comm, size)


def noised_on_ranks(
    channel: Any, grant: Any, contributions: Contribution, noise: Callable[[], Any], comm: Any, size: int
) -> np.ndarray:
    """The noised sum of what all processes contribute, (size,), at every one of them; the first one draws `noise`."""
    own = grant.subtotal(contributions)
    leaf, shape = np.asarray(own.value), jax.tree.structure(own)
    total, released = np.empty_like(leaf), np.empty(size)
    comm.Reduce(leaf, total, root=0)
    if comm.rank == 0:
        subtotal = jax.tree.unflatten(shape, [jnp.asarray(total)])
        released = np.array(channel.noised(subtotal, grant, noise()).value)
    comm.Bcast(released, root=0)
    return released


# --- sizes and scales -------------------------------------------------------------------------------------------------


def n_moments(plan: Plan) -> int:
    """How many releases there are after the rounds."""
    return len(plan.moment_grants(0))


def moment_size(plan: Plan, number: int) -> int:
    """How many numbers a release has."""
    p = plan.problem.n_coefficients(plan.facts)
    return packed_size(p) if plan.moment_grants(0)[number].purpose == "second_moment" else derivatives_size(p)


def noise_std(plan: Plan, number: int) -> float:
    """Of the noise on each number of the sum over all parties."""
    channel, n_parties = plan.algorithm.channel, plan.facts.n_parties
    many = channel.noise(n_parties).total if channel.aggregates else math.sqrt(n_parties)
    return many * _granted(plan, number).scales.noise_std


def derivative_stds(plan: Plan, number: int) -> tuple[float, float]:
    """Of the noise on a gradient, and on the diagonal of a Hessian."""
    std = noise_std(plan, number)
    return std, std / _granted(plan, number).scales.curvature_factor


# --- one release ------------------------------------------------------------------------------------------------------


def _granted(plan: Plan, number: int, party: int = 0) -> Any:
    return plan.moment_grants(party)[number].grant


def _units(plan: Plan, number: int, rows: Sequence[int], source: NoiseSource) -> jax.Array:
    keys, purpose = [(0, row, number) for row in rows], plan.moment_grants(0)[number].purpose
    law = law_for("gaussian", "value")
    return jnp.asarray(draw_many(source, law, moment_size(plan, number), keys, purpose, plan.noise_rows))


def _noised(plan: Plan, number: int, contributions: Any, source: NoiseSource) -> np.ndarray:
    channel: Any = plan.algorithm.channel
    units = _units(plan, number, range(plan.noise_rows), source)
    return np.asarray(channel.aggregate(contributions, _granted(plan, number), unit_noise(units, None)).value)


def _noised_alone(
    plan: Plan, parties: Sequence[int], number: int, contributions: Any, source: NoiseSource
) -> np.ndarray:
    return np.asarray(_each_alone(_granted(plan, number), contributions, _units(plan, number, parties, source)).value)


@jax.jit
def _each_alone(grant: Any, contributions: Any, units: jax.Array) -> Any:
    """Every party noises its own."""
    return jax.vmap(lambda one, unit: grant.noised_alone(one, unit_noise(unit, None)))(contributions, units)


@functools.partial(jax.jit, static_argnames="purpose")
def _contributed(grant: Any, records: Records, at: jax.Array, *, purpose: Purpose) -> Any:
    return jax.vmap(lambda one: getattr(grant, purpose)(grant.problem, one, at=at))(records)


def _contributions(plan: Plan, parties: Sequence[int], shards: Sequence[Any], number: int, at: np.ndarray) -> Any:
    """Of these parties, stacked in their order; those of one size are worked out together."""
    sizes = np.asarray(plan.facts.sizes)[list(parties)]
    purpose = plan.moment_grants(0)[number].purpose
    found, order = [], []
    for size in np.unique(sizes):
        places = np.flatnonzero(sizes == size).tolist()
        grant = _granted(plan, number, parties[places[0]])
        columns = zip(*(plan.problem.records(shards[i]) for i in places), strict=True)
        records = Records(*(jnp.asarray(np.stack(column)) for column in columns))
        found.append(_contributed(grant, records, jnp.asarray(at), purpose=purpose))
        order.append(places)
    back = np.argsort(np.concatenate(order))
    return jax.tree.map(lambda *parts: jnp.concatenate(parts)[back], *found)
