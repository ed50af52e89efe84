"""Steps of `proximal_grants.SumMoveGrant` for many people with one record each and squared loss, in machine code.

For everybody at work, with centre z, state u, record (x, y) of weight w and k = curvature + l2,

    start = x . (2z - u) curvature / k          slope = (start - y) / (1 + w |x|^2 / k)
    move  = (2z - u - (w / curvature) slope x) / (1 + l2 / curvature) - z

which is `proximal_grants._clipped_move` with the minimiser in closed form (`problems.one_record`). The move is clipped
to the grant's radius, is nothing where moves are clipped and the record says nothing, and is not a number where it
misses a tolerance that the price relies on. State and sum grow by 2 relaxation times it, and the sum is released with
the grant's noise, noise_std times a unit draw; `native.moves` takes all of these numbers from the grant.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from collections.abc import Sequence
from typing import Any

import numpy as np

from coterie.privacy.proximal_grants import ProxScales, SumMoveGrant
from coterie.problems.local import Records
from coterie.problems.losses import Squared
from coterie.problems.problem import Problem


def can_take(grants: Sequence[Any], problem: Problem) -> bool:
    """Whether these steps are the grants' own: noise on a grid is added by whole steps, and not here."""
    return type(problem.loss) is Squared and all(type(g) is SumMoveGrant and g.scales.grid == 0 for g in grants)


def scales_by_round(grants: Sequence[Any], index: np.ndarray, share: Problem) -> Any:
    """For `native.moves`: the scales of the grants `index`, (rounds,), that were priced for this share of a problem."""
    from coterie.native import moves

    for grant in grants:
        grant.priced(share)
    issued = ProxScales(*(np.array(column)[index] for column in zip(*(g.scales for g in grants), strict=True)))
    return moves.Scales(*(getattr(issued, name) for name in moves.Scales._fields))


def people_of(records: Records, radius: np.ndarray) -> Any:
    """For `native.moves`: everybody's only record, and nobody's at the end; from arrays (n_people, 1, ...)."""
    from coterie.native import moves

    X, y, weight = (np.asarray(column[:, 0], float) for column in records)
    # as in `_clipped_move`: their price counts one move, not two
    absent = (weight * np.abs(X).sum(axis=1) == 0) & np.isfinite(radius).all()
    y, weight, square = (np.append(column, 0.0) for column in (y, weight, np.einsum("ij,ij->i", X, X)))
    return moves.People(moves.in_lanes(X, extra_rows=1), y, weight, square, np.append(absent, True))
