"""What plans release after their rounds, for inference: gradient and Hessian as one vector, and the second moment.

These do not depend on the algorithm, only on the channel, the adjacency and the unit, so they are examined once for
each of these:

    sensitivity     contributions of a party on thousands of neighbours at public models, with a search for the worst,
                    against what each grant declares
    gaussian view   everything that is seen, on the worst neighbours found, is one Gaussian vector on each data set:
                    its exact Renyi divergence against that of the events. Where noise cancels between pairs, what is
                    seen are the messages of those who do not collude, and noise of pairs must cancel in their sum
    reachability    every number leaves on the grid of its noise, and so does the neighbour's
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import block_diag

from coterie.audit.finding import Measured
from coterie.audit.gaussian_view import ORDERS, GaussianPair, exceeded, view_of
from coterie.audit.instances import DELTA, Instance
from coterie.audit.reachability import reached
from coterie.audit.recording import Affine, Workbench
from coterie.audit.replay import Neighbours, Replay, worst_case
from coterie.data.federation import Federation, Shard
from coterie.engines.moments import seen, sent_by
from coterie.errors import InputError
from coterie.network.channels import PairwiseSum
from coterie.plan import Plan
from coterie.privacy.accountants import gaussian_epsilon
from coterie.privacy.moments import MomentGrant, Moments, derivatives_size, free_curvature, packed_size
from coterie.privacy.noise import Keys, Law, Purpose, SystemEntropy
from coterie.privacy.pairs import PairStreams
from coterie.problems import Huber, Logistic, Loss, Multinomial

LOSSES: tuple[Loss, ...] = (Logistic(), Huber(0.8), Multinomial(3))
N_RANDOM, N_GENERATIONS = 400, 12
_MULTIPLIERS, _SECOND_MOMENT = (1.5, 1.0), 2.0
_FOUND: dict[Any, Measured] = {}


def check(bench: Workbench) -> Measured:
    plan = bench.plan
    key = (plan.algorithm.channel, plan.adjacency, plan.unit, plan.facts.n_parties)
    if key not in _FOUND:
        _FOUND[key] = _examined(bench)
    return _FOUND[key]


def _examined(bench: Workbench) -> Measured:
    """The worst of all losses."""
    worst = bench.not_applicable("no loss with intervals fits the algorithm")
    for loss in LOSSES if bench.thorough else LOSSES[:1]:
        try:
            plan = plan_with_moments(bench.instance, loss)
        except InputError:
            continue
        found = examine(plan, seed=bench.seed)
        if found.verdict == "fail" or not worst.applicable:
            worst = found
    return worst


def plan_with_moments(instance: Instance, loss: Loss) -> Plan:
    """The instance's rounds on two features, and after them all that inference can release."""
    bound = 1.0 if isinstance(loss, Huber) else None
    setting = dataclasses.replace(instance.light, loss=loss, n_features=2, label_bound=bound)
    plan = instance.unchecked_plan(setting)
    moments = Moments(
        multipliers=_MULTIPLIERS,
        curvature_weight=free_curvature(plan.problem, None, plan.adjacency) or 0.5,
        second_moment_multiplier=_SECOND_MOMENT,
    )
    return dataclasses.replace(plan, moments=moments)


def examine(plan: Plan, *, seed: int = 0) -> Measured:
    grants = plan.moment_grants(0)
    stated = gaussian_epsilon([(granted.grant.event, 1) for granted in grants], DELTA)
    worst: tuple[Federation, Federation, np.ndarray] | None = None
    for granted in {granted.purpose: granted for granted in grants}.values():
        replay = OfMoments(plan, granted)
        report, case = worst_case(replay, n_random=N_RANDOM, n_generations=N_GENERATIONS, seed=seed)
        if not report.passed:
            detail = f"{granted.purpose}: moves by {report.measured:.6g}, declared {report.declared:.6g}"
            return Measured(stated=stated, sound=False, detail=detail)
        worst = worst or replay.federations(case)
    assert worst is not None
    *pair, at = worst
    if not all(_cancels(plan, pair[0], granted, at) for granted in grants):
        return Measured(stated=stated, sound=False, detail="noise of pairs does not cancel in the sum")
    views = [[_view(plan, data, granted, at) for granted in grants] for data in pair]
    seen_on = GaussianPair.of(*map(_side_by_side, views))
    curve = np.sum([granted.grant.event.rdp(ORDERS) for granted in grants], axis=0)
    detail = exceeded(seen_on.rdp(ORDERS), curve)
    if not detail and not all(_on_grid(plan, pair, granted, at) for granted in grants):
        detail = "released numbers could not have come from the neighbour"
    return Measured(stated=stated, lower=seen_on.epsilon(DELTA), sound=not detail, detail=detail)


class OfMoments(Replay):
    """One party's contribution to one release, as a function of data and the public model."""

    def __init__(self, plan: Plan, granted: MomentGrant) -> None:
        self.plan, self.party, self.t = plan, 0, 0
        p = plan.problem.n_coefficients(plan.facts)
        self.n_records = plan.facts.sizes[0]
        self.d = packed_size(p) if granted.purpose == "second_moment" else derivatives_size(p)
        self.inbox = jax.ShapeDtypeStruct((plan.facts.n_parties, p), jnp.float64)
        self.private, self.in_objective = (), False
        self.grant, self.purpose = granted.grant, granted.purpose
        self.problem = plan.problem.share(plan.facts.n_parties)
        self._ready = {}

    def _step(self, scales: Any, records: Any, inbox: Any, release_noise: Any, output_noise: Any) -> Any:
        grant = jax.tree.unflatten(jax.tree.structure(self.grant), scales)
        return getattr(grant, self.purpose)(self.problem, records, at=inbox).value

    def federations(self, case: Neighbours) -> tuple[Federation, Federation, np.ndarray]:
        """One case as the two data sets of all parties, and the model; the other parties hold what the first does."""
        # rows at the bound may be over it in their last digit
        X = case.X[0] * (1 - 2.0**-40)
        one, two = (Shard(X[k], case.y[0, k], case.weight[0, k]) for k in (0, 1))
        rest = (one,) * (self.plan.facts.n_parties - 1)
        facts = self.plan.facts
        return Federation(facts, (one, *rest)), Federation(facts, (two, *rest)), np.asarray(case.inbox)[0]


class _Handed:
    """A noise source that hands out given units, a row each."""

    reproducible = True

    def __init__(self, units: np.ndarray) -> None:
        self.units = units

    def draw(self, law: Law, d: int, *, repeat: int, party: int, t: int, purpose: Purpose = "release") -> np.ndarray:
        return self.units[party]

    def coins(self, *, repeat: int) -> Any:
        raise NotImplementedError


def _view(plan: Plan, data: Federation, granted: MomentGrant, at: np.ndarray) -> Affine:
    """What everybody sees of a release, or those who collude of its messages."""
    size, rows = OfMoments(plan, granted).d, plan.noise_rows
    if isinstance(plan.algorithm.channel, PairwiseSum):
        honest = plan.facts.n_parties - plan.algorithm.channel.colluders
        n_unknown = sum(map(len, _unknown(plan)))
        return view_of(lambda units: _messages(plan, data, granted, at, units)[:honest].ravel(), n_unknown * size)

    def function(units: np.ndarray) -> np.ndarray:
        source: Any = _Handed(units.reshape(rows, size))
        return seen(plan, data, granted.stage, at, source).ravel()

    return view_of(function, rows * size)


def _unknown(plan: Plan) -> tuple[list[int], list[tuple[int, int]]]:
    """Parties, and pairs of them, whose noise no coalition of the last ones knows."""
    channel, n = plan.algorithm.channel, plan.facts.n_parties
    assert isinstance(channel, PairwiseSum)
    honest = n - channel.colluders
    return list(range(honest)), [(i, j) for i, j in channel.partners(n).edges if max(i, j) < honest]


def _messages(plan: Plan, data: Federation, granted: MomentGrant, at: np.ndarray, units: np.ndarray) -> np.ndarray:
    """(party, size): what everybody sends, with unit noise of those that are not known, one after the other."""
    channel, n, size = plan.algorithm.channel, plan.facts.n_parties, OfMoments(plan, granted).d
    assert isinstance(channel, PairwiseSum)
    parties, pairs = _unknown(plan)
    own, shared = np.split(units.reshape(-1, size), [len(parties)])
    rows: Any = _Handed(np.concatenate([own, np.zeros((n - len(own), size))]))
    sent = []
    for party, shard in enumerate(data.shards):
        streams = {sum(pair) - party: _OfPair(one) for pair, one in zip(pairs, shared, strict=True) if party in pair}
        masks = PairStreams(party, streams, channel.pairs(n))
        sent.append(sent_by(plan, party, shard, granted.stage, at, rows, masks))
    return np.array(sent, dtype=float) * float(np.asarray(granted.grant.grid))


class _OfPair:
    """A pair's noise, in standard deviations."""

    def __init__(self, units: np.ndarray) -> None:
        self.units = units

    def whole_steps(self, d: int, keys: Keys, steps: float) -> np.ndarray:
        return np.rint(self.units * steps)[None]


def _cancels(plan: Plan, data: Federation, granted: MomentGrant, at: np.ndarray) -> bool:
    """Noise of pairs leaves no trace in the sum of all messages: they are whole steps of one grid."""
    if not isinstance(plan.algorithm.channel, PairwiseSum):
        return True
    size, (parties, pairs) = OfMoments(plan, granted).d, _unknown(plan)
    shared = np.random.default_rng(0).standard_normal(len(pairs) * size)
    with_pairs, without = (
        _messages(plan, data, granted, at, np.append(np.zeros(len(parties) * size), noise)).sum(axis=0)
        for noise in (shared, np.zeros_like(shared))
    )
    return bool(np.abs(with_pairs - without).max() < 0.5 * float(np.asarray(granted.grant.grid)))


def _on_grid(plan: Plan, pair: list[Federation], granted: MomentGrant, at: np.ndarray) -> bool:
    quiet: Any = _Handed(np.zeros((plan.noise_rows, OfMoments(plan, granted).d)))
    released = seen(plan, pair[0], granted.stage, at, SystemEntropy())
    theirs = seen(plan, pair[1], granted.stage, at, quiet)
    return bool(reached(released, theirs, np.asarray(granted.grant.grid)).all())


def _side_by_side(views: list[Affine]) -> Affine:
    """Noises of different releases are independent."""
    return Affine(
        mean=np.concatenate([view.mean for view in views]),
        response=np.asarray(block_diag(*(view.response for view in views))),
        error=max(view.error for view in views),
    )
