"""Exact losses of one step in one and two dimensions, from the density of what it releases, against its event.

Noise in the objective: the density of the minimiser, with the changed record where its curvature counts most. Noise on
a minimiser or a sum: the density of the noise around what is released without it, and a mixture of two such densities
where a secret coin decides who takes part.
"""

import dataclasses
import math
from collections.abc import Iterator

import jax
import numpy as np

from coterie.audit.density_ratio import Step, convexity, exact_epsilon, first_grant, pure_loss, renyi_divergence
from coterie.audit.finding import Measured, largest
from coterie.audit.instances import DELTA, Setting
from coterie.audit.recording import Workbench, record
from coterie.network.topology import All, Poisson, Walk
from coterie.plan import Plan
from coterie.privacy import accountants
from coterie.privacy.events import Both, Event, Gaussian
from coterie.privacy.mechanisms import ArgminGrant
from coterie.problems import Logistic, Loss, Records

ORDERS = np.array([1.25, 1.5, 2.0, 3.0, 4.0])
SAMPLED_ORDERS = np.array([2.0, 3.0, 4.0, 8.0])
# where the output falls, in units of the noise
_OUTPUTS = {1: (-2.0, -1.0, 0.0, 1.0, 2.0), 2: (0.0,)}
# relative, of integrals
_ERROR = {1: 1e-6, 2: 1e-4}


def check(bench: Workbench) -> Measured:
    """In each dimension; what is reported is the one that comes closest to what is stated."""
    found = []
    for n_features in (1, 2) if bench.thorough else (1,):
        # a plane grid needs a smooth density
        changes = {} if n_features == 1 else {"loss": Logistic()}
        step = bench.heavy(n_features, **changes)
        if step is None:
            continue
        plan, setting = step
        if isinstance(plan.algorithm.selection, Walk):
            return bench.not_applicable("where a token goes next depends on more than one step")
        plan = dataclasses.replace(plan, n_rounds=1)
        stated = plan.party_epsilons(DELTA)[0]
        if not math.isfinite(stated):
            return Measured(stated=stated)
        if n_features > 1 and not _in_objective(plan):
            # noise on a value does not know how many coefficients it has
            continue
        losses, hold = zip(*_steps(bench, plan, setting), strict=True)
        detail = "" if all(hold) else f"the stated curve is exceeded (features: {n_features})"
        found.append(Measured(stated=stated, lower=max(losses), sound=all(hold), detail=detail))
    if not found:
        return bench.not_applicable("no step with so few features can be planned")
    return max(found, key=lambda m: (m.verdict == "fail", m.lower / m.stated))


def _steps(bench: Workbench, plan: Plan, setting: Setting) -> Iterator[tuple[float, bool]]:
    """(exact loss at delta, whether the event's curve holds) for each place of the output."""
    grant = first_grant(plan)
    if isinstance(plan.algorithm.selection, Poisson):
        yield _sampled_step(bench, plan, setting, plan.algorithm.selection.probability)
    elif _in_objective(plan):
        event = grant.event.events[0] if isinstance(grant.event, Both) else grant.event
        yield from _objective_steps(plan, event, *_changed_record(bench, setting))
    else:
        yield _output_step(bench, plan, setting)


def _in_objective(plan: Plan) -> bool:
    grant = plan.issued[0][0]
    return isinstance(grant, ArgminGrant) and grant.scales.noise_scale > 0


def _changed_record(bench: Workbench, setting: Setting) -> tuple[Records, Records]:
    """The changed record alone: what all data sets share only adds curvature."""
    shards = [federation.shards[0] for federation in bench.instance.pair(setting)]
    one, two = (Records(shard.X[:1], shard.y[:1], shard.weight[:1]) for shard in shards)
    return one, two


def _objective_steps(plan: Plan, event: Event, one: Records, two: Records) -> Iterator[tuple[float, bool]]:
    d = plan.facts.n_features
    noise_scale, to_bend = first_grant(plan).scales.noise_scale, convexity(plan) * _most_bent(plan.problem.loss)
    for place in _OUTPUTS[d]:
        offset = np.zeros(d)
        offset[0] = place * noise_scale - to_bend
        step = Step.of(plan, 0, offset=tuple(offset.tolist()))
        reached = exact_epsilon(step, one, two, DELTA)
        if step.law == "gamma-sphere":
            yield reached, pure_loss(step, one, two) <= event.pure * (1 + 1e-9)
        else:
            exact = renyi_divergence(step, one, two, ORDERS, largest_error=_ERROR[d])
            yield reached, bool(np.all(exact <= event.rdp(ORDERS) + 2 * _ERROR[d] / (ORDERS - 1)))


def _most_bent(loss: Loss) -> float:
    """The score at which a record with label 1 has the most curvature; the middle of them where there are many."""
    scores = np.linspace(-3.0, 3.0, 601)
    with jax.enable_x64(True):
        bends = np.asarray(loss.curvature(jax.numpy.asarray(scores), jax.numpy.ones(len(scores))))
    return float(scores[bends >= 0.999 * bends.max()].mean())


def _output_step(bench: Workbench, plan: Plan, setting: Setting) -> tuple[float, bool]:
    event, ratio = first_grant(plan).event, _shift(bench, plan, setting)
    if plan.algorithm.mechanism.law == "gamma-sphere":
        # the log ratio is at most the shift over the scale, and on one side of both centres it is that
        reached = max(0.0, ratio + 2 * math.log1p(-DELTA)) if plan.facts.n_features == 1 else 0.0
        return reached, ratio <= event.pure * (1 + 1e-9)
    reached = accountants.gaussian_epsilon([(Gaussian(ratio), 1)], DELTA)
    exact = Gaussian(ratio).rdp(ORDERS)
    return reached, bool(np.all(exact <= event.rdp(ORDERS) * (1 + 1e-9)))


def _sampled_step(bench: Workbench, plan: Plan, setting: Setting, rate: float) -> tuple[float, bool]:
    """A party that is there by a secret coin, against one that is not there: a mixture of two Gaussians and one."""
    event = first_grant(plan).event
    everybody = dataclasses.replace(plan.algorithm, selection=All())
    ratio = _shift(bench, dataclasses.replace(plan, algorithm=everybody), setting)
    x = np.linspace(-14.0, 14.0 + SAMPLED_ORDERS.max() * ratio, 40_001)
    out, there = -(x**2) / 2, -((x - ratio) ** 2) / 2
    mixture = np.logaddexp(math.log1p(-rate) + out, math.log(rate) + there)
    log_width = math.log(x[1] - x[0]) - math.log(2 * math.pi) / 2
    exact = [
        [(np.logaddexp.reduce(a * p + (1 - a) * q) + log_width) / (a - 1) for a in SAMPLED_ORDERS]
        for p, q in ((mixture, out), (out, mixture))
    ]
    p, q = (np.exp(log + log_width) for log in (mixture, out))

    def reached(epsilon: float) -> bool:
        return bool(np.maximum(p - math.exp(epsilon) * q, 0).sum() > DELTA)

    lost = largest(reached, 0.0, float(np.max(mixture - out)))
    return lost, bool(np.all(np.asarray(exact) <= event.rdp(SAMPLED_ORDERS) * (1 + 1e-6)))


def _shift(bench: Workbench, plan: Plan, setting: Setting) -> float:
    """How far neighbours move what is released, over the size of its noise."""
    scales = first_grant(plan).scales
    size = scales.output_scale if hasattr(scales, "output_scale") else scales.noise_std
    silent = record(plan, bench.instance.pair(setting), n_runs=0, seed=0)
    return float(np.linalg.norm(silent.releases[0][0] - silent.releases[1][0])) / size
