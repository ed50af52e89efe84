"""Is an operator non-expansive? Random trials can only refute it, so a proof is still needed."""

import numpy as np

from coterie.data.checks import whole_number
from coterie.fixed_point.iteration import Operator

FOLLOW_UPS = 5
ROUNDING = 1e-9


def largest_stretch(operator: Operator, n_coordinates: int, *, seed: int, tries: int = 100) -> float:
    """The largest |R(u) - R(v)| / |u - v| found, from pairs near and far.

    Each pair is followed up in the direction in which the operator has just moved it, a power iteration that turns
    towards the directions it stretches most.
    """
    whole_number("n_coordinates", n_coordinates, at_least=1)
    whole_number("tries", tries, at_least=1)
    rng = np.random.default_rng(whole_number("seed", seed, at_least=0))
    largest = 0.0
    for _ in range(tries):
        u = rng.normal(size=n_coordinates) * 10 ** rng.uniform(-2, 2)
        distance = 10 ** rng.uniform(-3, 3)
        direction = rng.normal(size=n_coordinates)
        image = operator(u)
        for _ in range(FOLLOW_UPS):
            step = direction * (distance / np.linalg.norm(direction))
            direction = operator(u + step) - image
            stretched = np.linalg.norm(direction)
            largest = max(largest, float(stretched / distance))
            if stretched == 0:
                break
    return largest


def looks_nonexpansive(operator: Operator, n_coordinates: int, *, seed: int, tries: int = 100) -> bool:
    """False when a pair of points was found that the operator drives apart."""
    return largest_stretch(operator, n_coordinates, seed=seed, tries=tries) <= 1 + ROUNDING
