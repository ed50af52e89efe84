"""What a coalition sees of sums whose messages carry noise that cancels between pairs: every message, exactly.

Engines in one process make sums, for noise that cancels exactly need not be drawn to be taken off again. Here all
parties send messages, through the grant and the streams that sites use. A coalition of t others knows its own
contributions, noise and pairs; what is left of all messages of the run is one Gaussian vector on each data set.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from coterie.audit.finding import Measured
from coterie.audit.gaussian_view import GaussianPair, compared
from coterie.audit.recording import Affine, Workbench, with_probes
from coterie.data.federation import Federation
from coterie.network.channels import PairwiseSum
from coterie.network.topology import All
from coterie.plan import Plan
from coterie.privacy.noise import Keys
from coterie.privacy.pairs import PairStreams
from coterie.privacy.release import unit_noise
from coterie.problems import Records

# of the largest deviation of a message
_ASTRAY = 1e-6


class _Prepared:
    """One pair's noise in every round, (round, d), in standard deviations."""

    def __init__(self, units: np.ndarray) -> None:
        self.units = units

    def whole_steps(self, d: int, keys: Keys, steps: float) -> np.ndarray:
        return np.rint(self.units[[t for _, _, t in keys]] * steps)


def messages(plan: Plan, data: Federation, own: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """(run, round, party, d): what everybody sends, with unit noise own (run, round, party, d) and pairs (run, round,
    pair, d)."""
    channel, n, d = plan.algorithm.channel, plan.facts.n_parties, own.shape[-1]
    assert isinstance(channel, PairwiseSum)
    edges, noise = list(channel.partners(n).edges), channel.pairs(n)
    steps = np.zeros(own.shape, np.int64)
    for run, units in enumerate(pairs):
        for party in range(n):
            streams = {sum(edge) - party: _Prepared(units[:, e]) for e, edge in enumerate(edges) if party in edge}
            sent = PairStreams(party, streams, noise)
            for t in range(plan.n_rounds):
                steps[run, t, party] = sent.steps(t, d)
    with jax.enable_x64(True):
        records = [Records(*map(jnp.asarray, plan.problem.records(shard))) for shard in data.shards]
        one_run = functools.partial(_one_run, plan, records)
        return np.asarray(jax.jit(jax.vmap(one_run))(jnp.asarray(own), jnp.asarray(steps)))


def _one_run(plan: Plan, records: list[Records], own: Any, steps: Any) -> Any:
    algorithm, n, channel = plan.algorithm, plan.facts.n_parties, plan.algorithm.channel
    assert isinstance(channel, PairwiseSum)
    problem, scales = plan.problem.share(n), plan.grant_scales()
    public, private = algorithm.init(plan.topology, own.shape[-1])
    sent = []
    for t in range(plan.n_rounds):
        inbox, kept, now = algorithm.inbox(float(t), public, plan.topology), [], []
        for party in range(n):
            grant = plan.as_grant(jax.tree.map(lambda a, party=party, t=t: a[t, party], scales))
            heard, state = (jax.tree.map(lambda a, party=party: a[party], tree) for tree in (inbox, private))
            state, out = algorithm.local(grant, problem, records[party], state, heard, None)
            alone = jax.tree.map(lambda a: a[None], out)
            now.append(channel.message(alone, grant, unit_noise(own[t, party], steps[t, party])).value)
            kept.append(state)
        private = jax.tree.map(lambda *states: jnp.stack(states), *kept)
        grid = plan.as_grant(jax.tree.map(lambda a, t=t: a[t, 0], scales)).grid
        steps_sent = jnp.stack(now)
        received = steps_sent.sum(axis=0).astype(jnp.float64) * grid
        public = algorithm.combine(float(t), public, received, plan.topology)
        sent.append(steps_sent.astype(jnp.float64) * grid)
    return jnp.stack(sent)


def check(bench: Workbench) -> Measured:
    plan, n = bench.plan, bench.plan.facts.n_parties
    channel = plan.algorithm.channel
    if not isinstance(channel, PairwiseSum) or not isinstance(plan.algorithm.selection, All):
        return bench.not_applicable("no messages whose noise cancels")
    honest = n - channel.colluders
    edges = np.asarray(channel.partners(n).edges)
    d = plan.problem.n_coefficients(plan.facts)
    shape = (plan.n_rounds, n + len(edges), d)
    # the protected party is the first, and the last ones collude
    unknown = np.concatenate([np.arange(n) < honest, (edges < honest).all(axis=1)])
    places = np.flatnonzero(np.broadcast_to(unknown[:, None], shape))
    round_of, member, _ = np.unravel_index(places, shape)
    of_pair = member >= n
    random = np.random.default_rng(bench.seed).standard_normal((8, len(places)))
    noise = with_probes(random)
    everywhere = np.zeros((len(noise), np.prod(shape)))
    everywhere[:, places] = noise
    own, pairs = np.split(everywhere.reshape(-1, *shape), [n], axis=2)
    views = []
    for data in bench.pair:
        view = Affine.of(noise, messages(plan, data, own, pairs)[:, :, :honest].reshape(len(noise), -1))
        if not view.holds:
            return bench.not_applicable(f"messages are not affine in the noise (off by {view.error:.1e} deviations)")
        by_round = view.response.reshape(plan.n_rounds, honest, d, -1)[..., of_pair]
        elsewhere = by_round * (np.arange(plan.n_rounds)[:, None] != round_of[of_pair])[:, None, None]
        for astray, detail in (
            (by_round.sum(axis=1), "noise of pairs does not cancel in the sum"),
            (elsewhere, "noise of pairs of one round is in messages of another"),
        ):
            if np.abs(astray).max(initial=0.0) > _ASTRAY * np.linalg.norm(view.response, axis=1).max():
                return Measured(stated=bench.stated, sound=False, detail=detail)
        views.append(view)
    return compared(bench, GaussianPair.of(*views))
