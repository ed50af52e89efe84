"""Could every release have come from the neighbouring data as well? If not, its last bits tell the two apart, whatever
the noise: somebody who knows both candidates asks which of them can produce exactly these bits.

In the first round the neighbour's own value is known, and the release must be that value plus whole steps of noise. In
later rounds values depend on what was released before; there every release must lie on its grid.
"""

import numpy as np

from coterie.audit.finding import Measured
from coterie.audit.recording import PURPOSES, Prepared, Workbench
from coterie.engines.in_process import run
from coterie.plan import Plan
from coterie.privacy.noise import SystemEntropy


def check(bench: Workbench) -> Measured:
    plan, (data, neighbour) = bench.plan, bench.pair
    noise = _drawn(plan)
    released = run(plan, data, noise=Prepared(noise, seed=bench.seed), paths=bench.instance.paths).releases[0]
    quiet = noise.copy()
    uses = type(plan.issued[0][0]).uses
    for place, purpose in enumerate(PURPOSES):
        if uses.get(purpose) == "value":
            quiet[place] = 0.0
    theirs = run(plan, neighbour, noise=Prepared(quiet, seed=bench.seed), paths=bench.instance.paths).releases[0]
    grid = _grids(plan)
    fraction = float(
        np.mean(np.concatenate([reached(released[0], theirs[0], grid[0]), *_whole(released[1:], grid[1:])]))
    )
    detail = "" if fraction == 1 else f"{1 - fraction:.1%} of released numbers could not have come from the neighbour"
    return Measured(stated=bench.stated, sound=fraction == 1, detail=detail)


def reached(released: np.ndarray, value: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Where `released` is what the door makes of `value`, which went through it without noise, and some whole number of
    steps of noise: where both are whole numbers of steps."""
    return _whole(released, grid) & _whole(value, grid)


def _whole(released: np.ndarray, grid: np.ndarray) -> np.ndarray:
    steps = np.rint(released / grid)
    # of large numbers of steps product and quotient are rounded, so the right one may be next to what is found
    apart = np.maximum(1.0, np.spacing(np.abs(steps)))
    return np.any([(steps + k * apart) * grid == released for k in range(-3, 4)], axis=0)


def _drawn(plan: Plan) -> np.ndarray:
    """Unit noise as runs draw it, (purpose, repeat, round, party, coefficient)."""
    n_parties, d = plan.facts.n_parties, plan.problem.n_coefficients(plan.facts)
    keys = [(0, party, t) for t in range(plan.n_rounds) for party in range(n_parties)]
    drawn = [plan.draw(SystemEntropy(), keys, purpose) for purpose in PURPOSES]
    drawn = [np.zeros((len(keys), d)) if units is None else units for units in drawn]
    return np.stack(drawn).reshape(2, 1, plan.n_rounds, n_parties, d)


def _grids(plan: Plan) -> np.ndarray:
    """Of each release, (round, party, 1); parties are all alike."""
    scales, grant = plan.grant_scales(), plan.issued[0][0]
    grid = np.asarray(getattr(scales, grant.size_of_noise) / scales.steps)
    return grid[:, : plan.release_width, None]
