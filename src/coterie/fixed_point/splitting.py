"""Private splitting methods as noisy fixed-point iterations of the operator of Lions and Mercier.

    R = (2 prox_{gamma f} - I) (2 prox_{gamma g} - I)

Its fixed points u give the minimisers prox_{gamma g}(u) of f + g (Giselsson, Falt & Boyd, 2016; Cyffers, Bellet & Basu,
2023, Section 3.2 and Appendix B). f holds the data and g is public. Where f and its neighbour f' differ by a function
with Lipschitz constant `change_lipschitz`, their proximal points differ by at most gamma * change_lipschitz, because
the sum that each minimises is 1/gamma-strongly convex; hence R differs by at most twice that.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from coterie.data.checks import positive_number, whole_number
from coterie.errors import InputError
from coterie.fixed_point.iteration import BlockIteration, Operator
from coterie.fixed_point.sensitivity import OwnBlock, WholeUpdate, not_negative
from coterie.network.selection import Selection
from coterie.problems.penalties import Penalty
from coterie.schedules import Schedule

Prox = Callable[[np.ndarray, float], np.ndarray]  # (v, step) -> argmin_x f(x) + |x - v|^2 / (2 step)


def douglas_rachford(
    prox_f: Prox,
    prox_g: Prox,
    *,
    prox_step: float,
    blocks: Sequence[Any],
    selection: Selection,
    relaxation: Schedule | float,
    noise_std: float,
    change_lipschitz: float | None = None,
) -> BlockIteration:
    """Minimise f + g by their proximal maps; `prox_g` must not see data, for `solution` applies it to public points."""
    positive_number("prox_step", prox_step)
    if change_lipschitz is not None:
        not_negative("change_lipschitz", change_lipschitz)
    return BlockIteration(
        operator=_lions_mercier(prox_f, prox_g, prox_step),
        blocks=tuple(blocks),
        selection=selection,
        relaxation=relaxation,  # type: ignore[arg-type] - numbers become schedules
        noise_std=noise_std,
        sensitivity=None if change_lipschitz is None else WholeUpdate(2 * prox_step * change_lipschitz),
        solution=lambda u: prox_g(u, prox_step),
    )


def consensus_admm(
    prox_f: Sequence[Prox],
    penalty: Penalty,
    *,
    n_coefficients: int,
    prox_step: float,
    selection: Selection,
    relaxation: Schedule | float,
    noise_std: float,
    change_lipschitz: float | Sequence[float] | None = None,
) -> BlockIteration:
    """Minimise sum_i f_i(x_i) + penalty(z) with all x_i = z; user i holds f_i and block i of u.

        z = prox_{gamma r / n}(mean_i u_i),   x_i = prox_{gamma f_i}(2 z - u_i),   u_i += 2 lambda (x_i - z + eta_i / 2)

    Equations (8)-(10) of the paper, whose (8) has prox_{gamma r}: it minimises the mean of the f_i plus r, so its r is
    penalty / n. `change_lipschitz` is one number or one per user: 2 L to protect everything that a user with an
    L-Lipschitz f_i holds, 2 L / m to protect one of the m records whose mean loss is f_i.
    """
    n, p = len(prox_f), whole_number("n_coefficients", n_coefficients, at_least=1)
    positive_number("prox_step", prox_step)
    if n == 0:
        raise InputError("prox_f: got no proximal map; one per user is needed")

    def consensus(u: np.ndarray) -> np.ndarray:
        return prox_of_penalty(penalty, u.reshape(n, p).mean(axis=0), prox_step / n)

    def prox_all_f(v: np.ndarray, step: float) -> np.ndarray:
        return np.concatenate([prox(part, step) for prox, part in zip(prox_f, v.reshape(n, p), strict=True)])

    return BlockIteration(
        operator=_lions_mercier(prox_all_f, lambda u, _step: np.tile(consensus(u), n), prox_step),
        blocks=tuple(np.split(np.arange(n * p), n)),
        selection=selection,
        relaxation=relaxation,  # type: ignore[arg-type] - numbers become schedules
        noise_std=noise_std,
        sensitivity=None if change_lipschitz is None else _users_own_block(change_lipschitz, n, prox_step),
        solution=consensus,
    )


def prox_of_penalty(penalty: Penalty, v: np.ndarray, step: float) -> np.ndarray:
    """argmin_z penalty(z) + |z - v|^2 / (2 step); the l2 term only shrinks v and the step."""
    shrink = 1 / (1 + step * penalty.l2)
    with jax.enable_x64(True):
        return np.asarray(penalty.prox(v * shrink, step * shrink))  # type: ignore[arg-type]


def _lions_mercier(prox_f: Prox, prox_g: Prox, prox_step: float) -> Operator:
    def operator(u: np.ndarray) -> np.ndarray:
        v = 2 * prox_g(u, prox_step) - u
        return 2 * prox_f(v, prox_step) - v

    return operator


def _users_own_block(change_lipschitz: float | Sequence[float], n: int, prox_step: float) -> OwnBlock:
    per_user = isinstance(change_lipschitz, (Sequence, np.ndarray))
    values = list(change_lipschitz) if per_user else [change_lipschitz] * n
    if len(values) != n:
        raise InputError(f"change_lipschitz: {len(values)} given for {n} users; one number or one per user is needed")
    return OwnBlock(tuple(2 * prox_step * not_negative("change_lipschitz", value) for value in values))
