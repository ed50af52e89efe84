"""The exact loss of a walk against one other party, which sees the token only when it holds it (`observer="peer"`).

A loss is stated for a visit whenever it comes, so the walk begins at the protected party. The proof hides a visit under
the noise of the steps that follow, not behind who takes them, so the peer is also told the path. Given a path, what the
peer sees on records so light that losses are straight lines is one Gaussian vector on each data set, with one
covariance for both: a Gaussian release of some ratio. With the chance of every path,

    D_a        = ln( sum_paths chance exp(a (a - 1) ratio^2 / 2) ) / (a - 1)
    delta(eps) = sum_paths chance delta(eps, ratio)
"""

import dataclasses
import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import logsumexp

from coterie.algorithms.algorithm import Heard
from coterie.audit.finding import Measured, largest
from coterie.audit.gaussian_view import ORDERS, GaussianPair, exceeded, stated_curve
from coterie.audit.instances import DELTA
from coterie.audit.recording import Affine, Workbench, with_probes
from coterie.data.federation import Federation
from coterie.engines.in_process import run
from coterie.plan import Plan
from coterie.privacy.accountants import gaussian_delta
from coterie.privacy.events import PEER
from coterie.privacy.noise import Law, Purpose

# enough for hiding among the others to be worth something
N_PARTIES = 20
N_ROUNDS = 6
# the others are alike, and one stands for all of them
_PROTECTED, _PEER, _ANOTHER = 0, 1, 2
# runs with random noise, to see whether the view is affine
_N_TRIED = 2


@dataclasses.dataclass(frozen=True)
class _Along:
    """A noise source for walks along given paths: every repeat has its path and one unit of noise a round."""

    # (repeat, round)
    paths: np.ndarray
    # (repeat, round)
    noise: np.ndarray
    n_parties: int
    reproducible = True

    def draw(self, law: Law, d: int, *, repeat: int, party: int, t: int, purpose: Purpose = "release") -> np.ndarray:
        return np.full(d, self.noise[repeat, t])

    def coins(self, *, repeat: int) -> Callable[[int], np.ndarray]:
        return lambda size: (self.paths[repeat, :size] + 0.5) / self.n_parties


def check(bench: Workbench) -> Measured:
    instance, light = bench.instance, bench.instance.light
    if PEER not in instance.algorithm.channel.observers:
        return bench.not_applicable("a party sees what everybody sees")
    instance = dataclasses.replace(instance, n_parties=N_PARTIES)
    light = dataclasses.replace(light, rounds=N_ROUNDS)
    plan = instance.plan(light)
    if plan.ledger(_PROTECTED, observer=PEER.name) == plan.ledger(_PROTECTED):
        return bench.not_applicable("nothing smaller is stated against a peer")
    stated = plan.party_epsilons(DELTA, observer=PEER.name)[_PROTECTED]
    chances, ratios = path_ratios(plan, instance.pair(light))
    if ratios is None:
        return Measured(stated=stated, applicable=False, detail="what a peer sees is not affine in the noise")
    over = exceeded(_divergences(chances, ratios), stated_curve(plan, ORDERS, observer=PEER.name))
    return Measured(stated=stated, lower=_epsilon(chances, ratios, DELTA), sound=not over, detail=over)


def path_ratios(plan: Plan, pair: tuple[Federation, Federation]) -> tuple[np.ndarray, np.ndarray | None]:
    """The chance of every path that begins at the protected party, and the ratio of the Gaussian release that it is to
    the peer; no ratios (None) where that is no such release."""
    n = plan.facts.n_parties
    later = itertools.product((_PROTECTED, _PEER, _ANOTHER), repeat=plan.n_rounds - 1)
    paths = np.array([(_PROTECTED, *path) for path in later])
    chances = np.where(paths[:, 1:] == _ANOTHER, (n - 2) / n, 1 / n).prod(axis=1)
    one, two = (_tokens_and_moves(plan, data, paths) for data in pair)
    noises, ratios = _noises(plan.n_rounds), []
    for k, path in enumerate(paths):
        seen = np.flatnonzero(path == _PEER)
        if len(seen) == 0:
            ratios.append(0.0)
            continue
        views = [Affine.of(noises, view[k][:, seen].reshape(len(noises), -1)) for view in (one, two)]
        spread = np.abs(views[0].response - views[1].response).max()
        if not all(view.holds for view in views) or spread > 1e-6 * np.abs(views[0].response).max():
            return chances, None
        given = GaussianPair((views[0].mean, views[1].mean), (views[0].response, views[0].response))
        ratios.append(float(np.sqrt(given.rdp(np.array([2.0]))[0, 0])))
    return chances, np.array(ratios)


def _noises(n_rounds: int) -> np.ndarray:
    """One number a round: the probes', and some at random."""
    return with_probes(np.random.default_rng(0).standard_normal((_N_TRIED, n_rounds)))


def _tokens_and_moves(plan: Plan, data: Federation, paths: np.ndarray) -> np.ndarray:
    """What the holder sees in every round, the token and its own noised move: (path, noise, round, 2 d)."""
    noises = _noises(plan.n_rounds)
    source = _Along(np.repeat(paths, len(noises), axis=0), np.tile(noises, (len(paths), 1)), plan.facts.n_parties)
    moves = run(plan, data, noise=source, repeats=len(source.paths)).releases[:, :, 0]
    algorithm, topology = plan.algorithm, plan.topology

    def tokens(moves: jax.Array) -> jax.Array:
        public, found = algorithm.init(topology, moves.shape[-1])[0], []
        for t, move in enumerate(moves):
            found.append(algorithm.inbox(float(t), public, topology)[_PEER])
            public = algorithm.combine(float(t), public, Heard(jnp.array([topology.n_parties]), move[None]), topology)
        return jnp.stack(found)

    with jax.enable_x64(True):
        seen = np.concatenate([np.asarray(jax.jit(jax.vmap(tokens))(moves)), moves], axis=-1)
    return seen.reshape(len(paths), len(noises), *seen.shape[1:])


def _divergences(chances: np.ndarray, ratios: np.ndarray) -> np.ndarray:
    logs = [logsumexp(a * (a - 1) * ratios**2 / 2, b=chances) for a in ORDERS]
    return np.array(logs) / (ORDERS - 1)


def _epsilon(chances: np.ndarray, ratios: np.ndarray, delta: float) -> float:
    """The loss that this peer reaches."""

    def reached(eps: float) -> float:
        return sum(c * gaussian_delta(eps, r) for c, r in zip(chances, ratios, strict=True) if r > 0)

    if reached(0.0) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while reached(high) > delta:
        low, high = high, 2 * high
    return largest(lambda eps: reached(eps) > delta, low, high)
