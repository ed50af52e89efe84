"""Statements of Zhang, Khalili & Liu (2019) on small instances: C1 on convergence, C3 and C4 on privacy."""

import jax
import jax.numpy as jnp
import numpy as np

from coterie.algorithms import RecycledADMM
from coterie.network.topology import make_topology
from coterie.papers.bounds import recycled_theorem_v_1
from coterie.papers.errata import MR, Erratum, bound, limit
from coterie.papers.exact_loss import ADJACENCY, ADULT, ADULT_PROBLEM, reached_loss, stated
from coterie.papers.penalty.errata import limit_of, weighted_optimum
from coterie.papers.recycled.convergence import recycled_conditions
from coterie.plan import Plan
from coterie.privacy.objective import LinearPerturbation, NoNoise
from coterie.values import Schedule


def recycled_penalties_by_party() -> Erratum:
    """C1. The paper's dual step is eta_i/2, so different penalties are different dual steps (B6)."""
    bends, centres, penalty, gamma, n_rounds = (1.0, 1.0, 1.0), (0.0, 0.0, 3.0), (1.0, 1.0, 1.25), 5.0, 1000
    complete = make_topology("complete", len(bends))
    conditions = recycled_conditions(complete, penalty=penalty, recycle_weight=gamma, smoothness=bends)
    # all that Theorem IV.1 asks for is given
    assert conditions.met
    mechanism = NoNoise(penalty=Schedule(penalty))
    coupled = RecycledADMM(mechanism=mechanism, dual_step=Schedule(penalty), recycle_weight=gamma, as_published=True)
    common = RecycledADMM(mechanism=mechanism, dual_step=Schedule(min(penalty)), recycle_weight=gamma)
    return limit(
        "C1",
        MR,
        "Theorem IV.1, penalties by party: the limit for three parties with eta = (1, 1, 1.25), which is argmin "
        "sum_i O_i/eta_i and not the optimum.",
        claimed=weighted_optimum(bends, centres, (1.0, 1.0, 1.0)),
        exact=limit_of(coupled, bends, centres, n_rounds),
        certified=limit_of(common, bends, centres, n_rounds),
    )


def even_iterations_are_free() -> Erratum:
    """C3. The even iterates of Algorithm 3, computed as printed from stored gradients, against those that `combine`
    computes from released values: equal, hence nothing that the odd iterates did not tell."""
    # eta_i(2k-1), by party and growing
    penalty = Schedule((1.0, 1.5, 0.7), (1.01, 1.005, 1.02))
    algorithm = RecycledADMM(
        mechanism=NoNoise(penalty=penalty), dual_step=penalty, recycle_weight=0.5, as_published=True
    )
    ring, d = make_topology("ring", 3), 2
    degrees, adjacency = ring.degrees[:, None], np.ones((3, 3)) - np.eye(3)
    rng = np.random.default_rng(0)
    # O_i = bend_i/2 |f - centre_i|^2
    bends, centres = rng.uniform(0.5, 2.0, (3, 1)), rng.normal(size=(3, d))
    f, dual, largest = np.zeros((3, d)), np.zeros((3, d)), 0.0
    with jax.enable_x64(True):
        public = algorithm.init(ring, d)[0]
        for k in range(10):
            eta, noise = np.asarray(penalty(k))[:, None], rng.normal(size=(3, d))
            right_side = bends * centres - noise - 2 * dual + eta * (degrees * f + adjacency @ f)
            # eq. (18)
            odd = right_side / (bends + 2 * eta * degrees)
            gaps = degrees * odd - adjacency @ odd
            # eq. (15)
            dual = dual + eta / 2 * gaps
            stored = bends * (odd - centres) + noise
            # eq. (19)
            f = odd - (stored + 2 * dual + eta * gaps) / (2 * eta * degrees + algorithm.recycle_weight)
            public = algorithm.combine(float(k), public, jnp.asarray(odd), ring)
            largest = max(largest, float(np.abs(np.asarray(public.f) - f).max()))
    return bound(
        "C3",
        MR,
        "Lemma V.1, even iterations are free: the largest distance between even iterates computed from stored "
        "gradients and from released values alone (10 pairs of iterations).",
        claimed=0.0,
        exact=largest,
        certified=0.0,
    )


def recycled_has_slack() -> Erratum:
    """C4. The same slack as B1, in the theorem for recycled iterations."""
    mechanism = LinearPerturbation(penalty=Schedule(1.04, 1.04), noise_rate=Schedule(1.0))
    algorithm = RecycledADMM(mechanism=mechanism, dual_step=Schedule(1.04, 1.04), recycle_weight=0.5)
    plan = Plan.make(algorithm, ADULT_PROBLEM, "ring", ADULT, rounds=25, adjacency=ADJACENCY)
    return bound(
        "C4",
        MR,
        "Theorem V.1: the pure loss of 25 pairs of iterations at alpha = 1, eta = 1.04^k (ring, the paper's "
        "constants, logistic loss, worst start and broadcasts).",
        claimed=stated(recycled_theorem_v_1(plan)),
        exact=reached_loss(plan),
        certified=plan.pure_epsilon(),
    )


ERRATA = {"C1": recycled_penalties_by_party, "C3": even_iterations_are_free, "C4": recycled_has_slack}
