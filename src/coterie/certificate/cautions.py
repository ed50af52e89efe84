"""What people should know before they rely on a promise or on the model that comes with it; from public facts alone."""

import math

from coterie.plan import Plan
from coterie.privacy.accountants import gaussian_multiplier
from coterie.privacy.standardising import standardising_pays

LARGE_EPSILON = 10.0
# of the noise on a sum of gradients against the largest that the records of all parties can make together
# from here on, of models on invented tables 78 % and more err more than the majority class (docs/benchmarks.md)
USELESS = 0.5


def cautions(plan: Plan, delta: float) -> tuple[str, ...]:
    """One sentence for each; empty where there is nothing to say."""
    n_records, epsilon = sum(plan.facts.sizes), plan.epsilon(delta)
    told = []
    if delta * n_records >= 1:
        told.append(
            f"delta = {delta:g} is at least 1/n for the {n_records:,} records: showing one of them in the clear would "
            "keep it; less than a tenth of 1/n is usual"
        )
    if LARGE_EPSILON < epsilon < math.inf:
        told.append(f"epsilon = {epsilon:.3g} is more than {LARGE_EPSILON:g}: as a promise it says next to nothing")
    if 0 < epsilon < math.inf and noise_share(plan, epsilon, delta) >= USELESS:
        told.append(
            "the result is expected to be no better than the majority class: the noise is as large as what all records "
            "together can say; more records, a larger epsilon, fewer features or a trusted sum would help"
        )
    if plan.algorithm.first_rounds and 0 < epsilon < math.inf:
        # of a sum of gradients of rows of norm 1 and weight 1
        noise_std = _unit_moved(plan) * gaussian_multiplier(epsilon, delta) * math.sqrt(_n_noises(plan))
        if not standardising_pays(noise_std, plan.facts.n_features, n_records):
            told.append(
                "standardising is expected to hurt: the noise on sums of columns is as large as what columns can say; "
                "leave standardise out"
            )
    return tuple(told)


def _unit_moved(plan: Plan) -> int:
    """How many records' parts of a sum a unit of privacy can move, one put in the place of another counting twice."""
    unit = max(plan.facts.sizes) if plan.unit == "party" else plan.records_per_person
    return (2 if plan.adjacency == "replace-one" else 1) * unit


def _n_noises(plan: Plan) -> int:
    return plan.facts.n_parties if plan.algorithm.channel.name in ("broadcast", "token") else 1


def noise_share(plan: Plan, epsilon: float, delta: float) -> float:
    """Norm of Gaussian noise that spends all of (epsilon, delta) on one sum of gradients, over the largest norm of that
    sum. A record weighs at most w, so replacing a unit of k of them moves the sum by 2 k w L X, and n of them make at
    most n w L X; each of N noises has d coordinates."""
    facts, problem = plan.facts, plan.problem
    weights = [problem.largest_record_weight(size, facts) for size in facts.sizes]
    largest_sum = sum(size * weight for size, weight in zip(facts.sizes, weights, strict=True))
    moved, n_noises = _unit_moved(plan) * max(weights), _n_noises(plan)
    coordinates = problem.n_coefficients(facts)
    return moved * gaussian_multiplier(epsilon, delta) * math.sqrt(n_noises * coordinates) / largest_sum
