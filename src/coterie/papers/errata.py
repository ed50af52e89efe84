"""Published statements that are false, loose or unproved, each recomputed on the smallest instance that shows it.

A statement that is true is here where people would otherwise compare its number with a certified one and wonder.
"""

import difflib
from collections.abc import Callable, Iterable

from coterie.errors import InputError
from coterie.papers import errata_limits, errata_privacy
from coterie.papers.errata_entry import Erratum, Verdict
from coterie.papers.fixed_point import errata as fixed_point
from coterie.papers.fixed_point import errata_limits as fixed_point_limits
from coterie.papers.fixed_point import errata_walk

__all__ = ["ERRATA", "Erratum", "Verdict", "compute"]

# by letter and number
ERRATA: dict[str, Callable[[], Erratum]] = {
    "A1": errata_privacy.dual_noise_at_twice_the_rate,
    "A2": errata_privacy.loss_grows_with_iterations,
    "B1": errata_privacy.penalty_perturbation_has_slack,
    "B2": errata_limits.descent_inequality_by_party,
    "B3": errata_limits.convergence_by_party,
    "B5": errata_limits.rate_with_null_space,
    "B6": errata_limits.dual_steps_by_party,
    "C1": errata_limits.recycled_penalties_by_party,
    "C3": errata_privacy.even_iterations_are_free,
    "C4": errata_privacy.recycled_has_slack,
    "D1": fixed_point_limits.utility_of_noisy_iterations,
    "D4": fixed_point.general_admm_with_small_matrix,
    "D5": fixed_point.centralised_prox_without_n,
    "D7": fixed_point.central_loss_of_sampled_parties,
    "D8": fixed_point.secure_sum_of_all,
    "D9": fixed_point.stored_noise_comes_back,
    "D10": fixed_point.update_from_hidden_state,
    "D11": errata_walk.network_loss_of_the_walk,
    "D12": fixed_point_limits.model_in_place_of_accumulator,
    "D13": fixed_point_limits.lasso_with_two_step_sizes,
    "D15": fixed_point.the_papers_experiment,
}


def compute(ids: Iterable[str] = ()) -> list[Erratum]:
    """The named errata in the order given, or all of them; names are checked before anything runs."""
    wanted = list(dict.fromkeys(ids)) or list(ERRATA)
    for name in wanted:
        if name not in ERRATA:
            nearest = difflib.get_close_matches(name.upper(), ERRATA, n=1, cutoff=0.0)[0]
            raise InputError(f"ids: unknown {name!r}; did you mean {nearest!r}? (known: {', '.join(ERRATA)})")
    return [ERRATA[name]() for name in wanted]
