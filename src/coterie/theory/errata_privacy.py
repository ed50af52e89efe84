"""Privacy statements of the graph papers on small instances: A1, A2, B1, C3, C4.

Exact losses come from output densities and linear responses, which know nothing of the proofs; certified ones from the
plan that would run.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from coterie.algorithms import ConsensusADMM, DualPerturbedADMM, PenaltyPerturbedADMM, RecycledADMM
from coterie.audit.density_ratio import Step, log_density, pure_loss
from coterie.data import Federation
from coterie.engines.in_process import run
from coterie.facts import Facts
from coterie.network.topology import make_topology
from coterie.plan import Plan
from coterie.privacy.mechanisms import PartyFacts
from coterie.privacy.objective import DualPerturbation, LinearPerturbation, NoNoise, PenaltyPerturbation
from coterie.problems import L2, HuberisedHinge, Logistic, Problem
from coterie.problems.losses import Loss
from coterie.problems.problem import Records
from coterie.schedules import Schedule
from coterie.theory.errata_entry import DVP, MR, PP, Erratum, bound
from coterie.theory.published import (
    PublishedBound,
    dual_perturbation_theorem_1,
    penalty_perturbation_theorem_4_1,
    recycled_theorem_v_1,
)

LABELS = ("-", "+")
ADJACENCY = "replace-one"

# the papers' experiment: five parties with 8000 records each, C = 1750, rho = 0.22
ADULT = Facts(parties=tuple("abcde"), sizes=(8000,) * 5, n_features=2, row_norm=1.0, labels=LABELS)
ADULT_PROBLEM = Problem(loss=Logistic(), penalty=L2(0.22), party_weight=1750.0)


# --- dual variable perturbation ---------------------------------------------------------------------------------------


def dual_noise_at_twice_the_rate() -> Erratum:
    """A1. The paper's proof needs noise of rate alpha_hat/2; its Algorithm 2 draws noise of rate alpha_hat."""
    plan = dual_perturbed_step(HuberisedHinge(width=0.5), n_features=1, as_published=True)
    return bound(
        "A1",
        DVP,
        "Algorithm 2: the pure loss of the first step at alpha = 1 (one coefficient, one record that is not zero).",
        claimed=_total(dual_perturbation_theorem_1(plan)),
        exact=first_step_loss(plan),
        certified=plan.pure_epsilon(),
    )


def dual_perturbed_step(loss: Loss, *, n_features: int, as_published: bool) -> Plan:
    """One step at alpha = 1 on a ring of three, B = 1000, C = 10, eta = 1, rho = 0.1 for each party."""
    facts = Facts(parties=tuple("abc"), sizes=(1000,) * 3, n_features=n_features, row_norm=1.0, labels=LABELS)
    problem = Problem(loss=loss, penalty=L2(0.1 * facts.n_parties), party_weight=10.0)
    mechanism = DualPerturbation(penalty=Schedule(1.0), step_epsilon=Schedule(1.0), as_published=as_published)
    algorithm = DualPerturbedADMM(mechanism=mechanism, dual_step=Schedule(1.0))
    return Plan.make(algorithm, problem, "ring", facts, rounds=1, adjacency=ADJACENCY)


def first_step_loss(plan: Plan) -> float:
    """Of the step from f = 0, one coefficient, when a party's only record that is not zero changes its label."""
    record, opposite = (Records(np.ones((1, 1)), np.array([label]), np.ones(1)) for label in (1.0, 0.0))
    return pure_loss(_step(plan, 0, offset=(0.0,)), record, opposite)


def loss_grows_with_iterations() -> Erratum:
    """A2. What f_p(t) tells about the data it also tells through the iterates it was computed from.

    Noise is drawn at the rate that the proof of one step needs, so that this is not A1 again.
    """
    plan, shift, factors = last_iterate(12)
    return bound(
        "A2",
        DVP,
        "Section 3.1, loss does not grow with iterations: the pure loss of f_p(12) alone at alpha = 1 in each of "
        "them (two parties, linear losses).",
        claimed=_total(dual_perturbation_theorem_1(plan)) / plan.n_rounds,
        exact=shift / np.abs(factors).max() / noise_scale(plan),
        certified=plan.pure_epsilon(),
    )


def last_iterate(n_rounds: int) -> tuple[Plan, float, np.ndarray]:
    """The plan, how far the last iterate of party 0 moves when its record is replaced, and the factors of all noises.

    Party 0 has one record, party 1 a zero, and the hinge is linear wherever the iterates come. So f_p(t) is a shift,
    which depends on the data, plus a sum of independent Laplace noises. The log density of that sum is concave with
    slopes up to rate / (largest factor), reached in the tails: the loss is rate * shift / (largest factor).
    """
    problem = Problem(loss=HuberisedHinge(width=0.5), penalty=L2(0.1), record_weight=1e-3)
    pair = Federation.from_arrays([[1.0], [0.0]], ["+", "+"], parties=[0, 1], labels=LABELS, min_records=1)
    mechanism = DualPerturbation(penalty=Schedule(1.0), step_epsilon=Schedule(1.0))
    plan = _plan(DualPerturbedADMM(mechanism=mechanism, dual_step=Schedule(1.0)), problem, pair.facts, n_rounds)
    silent = _plan(ConsensusADMM.with_penalty(1.0), problem, pair.facts, n_rounds)
    # the opposite record mirrors all iterates
    shifts = 2 * run(silent, pair).releases[0, :, :, 0]
    # a noise is a gradient that differs in one round; what party 1 gets of it, party 0 gets of party 1's
    factors = np.diff(shifts, axis=0, prepend=0.0) / _sensitivity(plan)
    return plan, float(shifts[-1, 0]), factors


# --- penalty perturbation and recycled ADMM: true, with room ----------------------------------------------------------


def penalty_perturbation_has_slack() -> Erratum:
    """B1. The theorem pays 1.4 c1 C/(eta V B) a step for a Jacobian that costs ln(1 + k), or nothing at all."""
    mechanism = PenaltyPerturbation(penalty=Schedule(1.0), noise_rate=Schedule(3.0))
    algorithm = PenaltyPerturbedADMM(mechanism=mechanism, dual_step=Schedule(1.0))
    plan = _plan(algorithm, ADULT_PROBLEM, ADULT, 100)
    return bound(
        "B1",
        PP,
        "Theorem 4.1: the pure loss of 100 iterations at alpha = 3, eta = 1 (all hear all, the paper's constants, "
        "logistic loss, worst start and broadcasts).",
        claimed=_total(penalty_perturbation_theorem_4_1(plan)),
        exact=reached_loss(plan),
        certified=plan.pure_epsilon(),
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
        claimed=_total(recycled_theorem_v_1(plan)),
        exact=reached_loss(plan),
        certified=plan.pure_epsilon(),
    )


def even_iterations_are_free() -> Erratum:
    """C3. The even iterates of Algorithm 3, computed as printed from stored gradients, against those that `combine`
    computes from released values: equal, hence nothing that the odd iterates did not tell."""
    penalty = Schedule((1.0, 1.5, 0.7), (1.01, 1.005, 1.02))  # eta_i(2k-1), by party and growing
    algorithm = RecycledADMM(
        mechanism=NoNoise(penalty=penalty), dual_step=penalty, recycle_weight=0.5, as_published=True
    )
    ring, d = make_topology("ring", 3), 2
    degrees, adjacency = ring.degrees[:, None], np.ones((3, 3)) - np.eye(3)
    rng = np.random.default_rng(0)
    bends, centres = rng.uniform(0.5, 2.0, (3, 1)), rng.normal(size=(3, d))  # O_i = bend_i/2 |f - centre_i|^2
    f, dual, largest = np.zeros((3, d)), np.zeros((3, d)), 0.0
    with jax.enable_x64(True):
        public = algorithm.init(ring, d)[0]
        for k in range(10):
            eta, noise = np.asarray(penalty(k))[:, None], rng.normal(size=(3, d))
            pull = bends * centres - noise - 2 * dual + eta * (degrees * f + adjacency @ f)
            odd = pull / (bends + 2 * eta * degrees)  # eq. (18)
            gaps = degrees * odd - adjacency @ odd
            dual = dual + eta / 2 * gaps  # eq. (15)
            stored = bends * (odd - centres) + noise
            f = odd - (stored + 2 * dual + eta * gaps) / (2 * eta * degrees + algorithm.recycle_weight)  # eq. (19)
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


def reached_loss(plan: Plan) -> float:
    """A pure loss that logistic regression in two dimensions reaches at the first party.

    Neighbours may broadcast anything, so in every round the linear term can be any vector. Both records have score -20
    at f, hence slopes near 1, and lie almost opposite to each other; the linear term puts the noise on the line between
    them. Then the noises differ by all of the sensitivity, and the Jacobians not at all.
    """
    far, score = 4e4, -20.0
    along = score / far
    across = np.sqrt(1 - along**2)
    record, opposite = (Records(np.array([[along, side * across]]), np.ones(1), np.ones(1)) for side in (1.0, -1.0))
    point = np.array([[far, 0.0]])
    total = 0.0
    for t in range(plan.n_rounds):
        convexity, weight = _convexity(plan, t), _party(plan).record_weight
        step = _step(plan, t, offset=(-convexity * far + weight * along / (1 + np.exp(score)), 2 * weight))
        total += abs(float((log_density(step, record, point) - log_density(step, opposite, point))[0]))
    return total


# --- the numbers a plan fixes for its first party ---------------------------------------------------------------------


def _plan(algorithm: Any, problem: Problem, facts: Facts, rounds: int) -> Plan:
    return Plan.make(algorithm, problem, "complete", facts, rounds=rounds, adjacency=ADJACENCY)


def _party(plan: Plan) -> PartyFacts:
    return PartyFacts.of(0, plan.problem, plan.facts, int(plan.topology.degrees[0]), plan.adjacency, plan.unit)


def _sensitivity(plan: Plan) -> float:
    return _party(plan).gradient_sensitivity(plan.problem)


def _scales(plan: Plan, t: int) -> Any:
    grants, index = plan.issued
    return grants[index[t % len(index), 0]].scales


def noise_scale(plan: Plan) -> float:
    """Of the first round: 1/rate in gradient units."""
    return float(_scales(plan, 0).noise_scale)


def _convexity(plan: Plan, t: int) -> float:
    scales = _scales(plan, t)
    return plan.problem.penalty.l2 / plan.facts.n_parties + scales.curvature + scales.extra_l2


def _step(plan: Plan, t: int, offset: tuple[float, ...]) -> Step:
    return Step(
        loss=plan.problem.loss,
        weight=_party(plan).record_weight,
        strong_convexity=_convexity(plan, t),
        offset=offset,
        law="gamma-sphere",
        noise_scale=_scales(plan, t).noise_scale,
    )


def _total(published: PublishedBound | None) -> float:
    assert published is not None
    return published.total
