"""Privacy statements of Zhang & Zhu (2016) on small instances: A1, A2."""

import numpy as np

from coterie.algorithms import ConsensusADMM, DualPerturbedADMM
from coterie.audit.density_ratio import Step, first_grant, pure_loss
from coterie.data import Federation
from coterie.engines.in_process import run
from coterie.papers.bounds import dual_perturbation_theorem_1
from coterie.papers.errata import DVP, Erratum, bound
from coterie.papers.exact_loss import ADJACENCY, LABELS, plan_of, stated
from coterie.plan import Plan
from coterie.privacy.objective import DualPerturbation
from coterie.problems import L2, HuberisedHinge, Loss, Problem, Records
from coterie.values import Facts, Schedule


def dual_noise_at_twice_the_rate() -> Erratum:
    """A1. The paper's proof needs noise of rate alpha_hat/2; its Algorithm 2 draws noise of rate alpha_hat."""
    plan = dual_perturbed_step(HuberisedHinge(width=0.5), n_features=1, as_published=True)
    return bound(
        "A1",
        DVP,
        "Algorithm 2: the pure loss of the first step at alpha = 1 (one coefficient, one record that is not zero).",
        claimed=stated(dual_perturbation_theorem_1(plan)),
        exact=first_step_loss(plan),
        certified=plan.pure_epsilon(),
    )


def dual_perturbed_step(loss: Loss, *, n_features: int, as_published: bool) -> Plan:
    """One step at alpha = 1 on a ring of three, B = 1000, C = 10, eta = 1, rho = 0.1 for each party."""
    facts = Facts(parties=tuple("abc"), sizes=(1000,) * 3, n_features=n_features, row_norm=1.0, labels=LABELS)
    problem = Problem(loss=loss, regulariser=L2(0.1 * facts.n_parties), party_weight=10.0)
    mechanism = DualPerturbation(penalty=Schedule(1.0), step_epsilon=Schedule(1.0), as_published=as_published)
    algorithm = DualPerturbedADMM(mechanism=mechanism, dual_step=Schedule(1.0))
    return Plan.make(algorithm, problem, "ring", facts, rounds=1, adjacency=ADJACENCY)


def first_step_loss(plan: Plan) -> float:
    """Of the step from f = 0, one coefficient, when a party's only record that is not zero changes its label."""
    record, opposite = (Records(np.ones((1, 1)), np.array([label]), np.ones(1)) for label in (1.0, 0.0))
    return pure_loss(Step.of(plan, 0, offset=(0.0,)), record, opposite)


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
        claimed=stated(dual_perturbation_theorem_1(plan)) / plan.n_rounds,
        exact=shift / np.abs(factors).max() / first_grant(plan).scales.noise_scale,
        certified=plan.pure_epsilon(),
    )


def last_iterate(n_rounds: int) -> tuple[Plan, float, np.ndarray]:
    """The plan, how far the last iterate of party 0 moves when its record is replaced, and the factors of all noises.

    Party 0 has one record, party 1 a zero, and the hinge is linear wherever the iterates come. So f_p(t) is a shift,
    which depends on the data, plus a sum of independent Laplace noises. The log density of that sum is concave with
    slopes up to rate / (largest factor), reached in the tails: the loss is rate * shift / (largest factor).
    """
    problem = Problem(loss=HuberisedHinge(width=0.5), regulariser=L2(0.1), record_weight=1e-3)
    pair = Federation.from_arrays([[1.0], [0.0]], ["+", "+"], parties=[0, 1], labels=LABELS, min_records=1)
    mechanism = DualPerturbation(penalty=Schedule(1.0), step_epsilon=Schedule(1.0))
    plan = plan_of(DualPerturbedADMM(mechanism=mechanism, dual_step=Schedule(1.0)), problem, pair.facts, n_rounds)
    silent = plan_of(ConsensusADMM.with_penalty(1.0), problem, pair.facts, n_rounds)
    # the opposite record mirrors all iterates
    shifts = 2 * run(silent, pair).releases[0, :, :, 0]
    # a noise is a gradient that differs in one round; what party 1 gets of it, party 0 gets of party 1's
    factors = np.diff(shifts, axis=0, prepend=0.0) / plan.party_facts(0).gradient_sensitivity(plan.problem)
    return plan, float(shifts[-1, 0]), factors


ERRATA = {"A1": dual_noise_at_twice_the_rate, "A2": loss_grows_with_iterations}
