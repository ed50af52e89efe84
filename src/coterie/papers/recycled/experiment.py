"""What the figures of Zhang, Khalili & Liu (2019) share: the networks, the algorithms as printed, and what is measured.

gamma   `recycle_weight`       q_1    `growth`: eta(2k-1) = eta q_1^k       alpha   `noise_rate`
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from coterie.algorithms import ConsensusADMM, RecycledADMM
from coterie.papers.bounds import published_bound
from coterie.papers.census import Network, network
from coterie.papers.figure import Claim, Claims, Curve, Curves, Scale, chosen, printed
from coterie.papers.measures import ACCOUNTINGS, over_runs, privacy
from coterie.plan import Plan
from coterie.privacy.objective import LinearPerturbation, NoNoise
from coterie.values import Schedule

T = TypeVar("T")

CITATION = "zhang-khalili-liu-2019"
GRAPH = "random-connected"
L2 = 0.22
GAMMA = 0.5
WITHOUT_NOISE = "ADMM without noise"

NETWORK_CHOICES = (
    printed("data", "Adult", "45,222 complete rows and 104 columns (45,223 and 105 are printed), 40,000 for training"),
    chosen("split", "file order", "printed as random, with no seed; the split all reference numbers are for"),
    chosen("graph", GRAPH, "'randomly generated', not further said"),
    chosen("f(0)", 0, "the paper starts at random"),
)
WEIGHT_CHOICE = chosen("C", 1750, "printed for Fig. 2 alone")
NODES_CHOICE = chosen("nodes", 5, "printed for Fig. 1 alone")
NOISE_CHOICES = (
    *NETWORK_CHOICES,
    WEIGHT_CHOICE,
    NODES_CHOICE,
    printed("ρ", L2),
    printed("runs", 10),
    chosen("iterations", 50, "not printed; 50 is the paper's number in Fig. 2"),
    printed("model", "mean of the nodes"),
    chosen("model after", "the last odd iteration", "not printed; even iterations overshoot"),
    chosen("η of ADMM without noise", 1, "not printed; the fixed penalty of the paper's Fig. 5"),
    chosen("not run", "α_i and η_i that differ between nodes", "the text alone: 'similar results', no values"),
)


def five_nodes() -> Network:
    return network(5, GRAPH)


def growing(start: float | Sequence[float], growth: float | Sequence[float]) -> Schedule:
    """eta_i(2k-1) = start_i growth_i^k with k = 1, 2, ..."""
    first = np.asarray(start) * np.asarray(growth)
    return Schedule(first.tolist(), tuple(growth) if isinstance(growth, Sequence) else growth)


def recycled(penalty: Schedule, *, gamma: float = GAMMA, noise_rate: float | None = None) -> RecycledADMM:
    """As printed: the penalty is the dual step as well, also where it differs between nodes."""
    if noise_rate is None:
        mechanism: Any = NoNoise(penalty=penalty)
    else:
        mechanism = LinearPerturbation(penalty=penalty, noise_rate=noise_rate)
    return RecycledADMM(mechanism=mechanism, dual_step=penalty, recycle_weight=gamma, as_published=penalty.per_party)


def pairs(scale: Scale) -> int:
    """Rounds of R-ADMM: each is one odd and one even iteration."""
    return scale.iterations // 2


def shown(values: Sequence[T], scale: Scale) -> Sequence[T]:
    """A quick look takes the first two of a sweep; figures share what is compiled for them."""
    return values[:2] if scale.quick else values


def iterates(plan: Plan, releases: np.ndarray) -> np.ndarray:
    """f_i(1), f_i(2), ...: the releases, and between them what even iterations make of them, (run, iteration, node,
    coefficient)."""
    algorithm, topology = plan.algorithm, plan.topology

    def one_run(released: jax.Array) -> jax.Array:
        def body(public: Any, xs: Any) -> Any:
            t, value = xs
            public = algorithm.combine(t, public, value, topology)
            return public, jnp.stack([public.odd, public.f])

        start = algorithm.init(topology, released.shape[-1])[0]
        rounds = jnp.arange(released.shape[0], dtype=released.dtype)
        return jax.lax.scan(body, start, (rounds, released))[1]

    with jax.enable_x64(True):
        both = np.asarray(jax.jit(jax.vmap(one_run))(releases))
    return both.reshape(len(releases), -1, *both.shape[-2:])


# figures share runs
@functools.cache
def _measured(plan: Plan, scale: Scale, runs: int) -> tuple[np.ndarray, np.ndarray]:
    """Of five nodes: average loss, (run, iteration), and test error at the end, (run,)."""
    nodes = five_nodes()
    releases = nodes.releases(plan, scale, runs=runs)
    models = iterates(plan, releases) if isinstance(plan.algorithm, RecycledADMM) else releases
    return nodes.average_loss(models), nodes.test_error(releases[:, -1].mean(axis=1))


def loss_without_noise(scale: Scale, panels: Sequence[str]) -> list[Curve]:
    """The conventional algorithm with eta = 1, the green curve of the figures."""
    plan = five_nodes().plan(ConsensusADMM.with_penalty(1.0), l2=L2, rounds=scale.iterations)
    loss = _measured(plan, scale, 1)[0][0]
    return [Curve(panel, WITHOUT_NOISE, np.arange(1, scale.iterations + 1), loss) for panel in panels]


def measured(plan: Plan, scale: Scale, *, panel: str, name: str) -> tuple[Curve, np.ndarray]:
    """Loss by iteration, with its range over runs, and every run's test error at the end."""
    losses, wrong = _measured(plan, scale, scale.runs)
    return over_runs(panel, name, losses), wrong


def privacy_by_iteration(panel: str, name: str, plan: Plan) -> list[Curve]:
    """As `privacy`, with odd iterations where only they look at data."""
    curves = privacy(panel, name, plan)
    if not isinstance(plan.algorithm, RecycledADMM):
        return curves
    return [dataclasses.replace(curve, x=2 * curve.x - 1) for curve in curves]


def with_published_total(make: Callable[[float], Plan], total: float) -> Plan | None:
    """The plan whose own paper's bound is `total`: bounds are linear in alpha. None where no noise does it."""
    bounds = [published_bound(make(level)) for level in (1.0, 2.0)]
    low, high = (bound.total for bound in bounds if bound is not None)
    level = 1.0 + (total - low) / (high - low)
    return make(level) if level > 0 else None


def errors(panel: str, name: str, x: Sequence[float], by_setting: Sequence[np.ndarray]) -> Curve:
    """Mean and range of the test error over a sweep."""
    values = np.array(by_setting)
    return Curve(panel, name, np.asarray(x, dtype=float), values.mean(axis=1), values.min(axis=1), values.max(axis=1))


def spread(curve: Curve) -> np.ndarray:
    """The range over runs at each place: the paper's measure of stability."""
    assert curve.low is not None
    assert curve.high is not None
    return curve.high - curve.low


def late(curve: Curve) -> float:
    """Mean over the odd iterations of the last fifth: one iteration alone is noise."""
    odd = curve.y[::2]
    return float(odd[-max(1, len(odd) // 5) :].mean())


def same_loss(curves: Curves, panel: str, text: str, where: str, runs: int) -> list[Claim]:
    """Claims, one for each accounting, that all settings of a panel lose the same in the end."""
    found = Claims(runs, where=where)
    for accounting in ACCOUNTINGS:
        ends = [curve.last for curve in curves.of(f"{panel} {accounting}")]
        found.add(
            text,
            1e-6 - (max(ends) - min(ends)) / max(ends),
            "1e-6 minus the largest relative difference of the losses at the end",
            accounting=accounting,
        )
    return found
