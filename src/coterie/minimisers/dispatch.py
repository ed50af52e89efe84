"""One party's minimisation, by the minimiser that suits its records: what grants call.

A single record is a search on a line, everything else is Newton's method. Minimisations that are mapped (`jax.vmap`)
over one party's records are solved together (`shared`) for engines that ask for it (`solved_together`) and compute
again what misses its tolerance that way.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from coterie.minimisers import shared
from coterie.minimisers.base import Subproblem
from coterie.minimisers.newton import Newton
from coterie.minimisers.one_record import OneRecord, lies_on_a_line
from coterie.problems.losses import Loss
from coterie.problems.problem import Records
from coterie.problems.regularisers import Regulariser

_together_from: contextvars.ContextVar[float | None] = contextvars.ContextVar("together_from", default=None)


@contextlib.contextmanager
def solved_together(smallest: float | None) -> Iterator[None]:
    """Programs that are traced inside solve mapped minimisations of parties with `smallest` records x features or more
    together, and do not try again what missed its tolerance: a second solver takes long to compile. None: each alone.
    """
    token = _together_from.set(smallest)
    try:
        yield
    finally:
        _together_from.reset(token)


def minimise(
    loss: Loss,
    regulariser: Regulariser,
    records: Records,
    *,
    linear: jax.Array,
    target: jax.Array,
    curvature: jax.Array,
    tolerance: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """The minimiser and the norm of a subgradient there, which is <= tolerance unless rounding forbids it."""
    if lies_on_a_line(loss, records) and regulariser.smooth:
        return OneRecord(loss, regulariser).minimise(records, Subproblem(linear, target, curvature, tolerance))
    smallest = _together_from.get()
    if smallest is None or not shared.applies(loss, regulariser, records.X.size, smallest):
        return Newton(loss, regulariser).minimise(records, Subproblem(linear, target, curvature, tolerance))
    own = Subproblem(*map(jnp.asarray, (linear, target, curvature, tolerance)))
    return _batchable(loss, regulariser)(Records(*map(jnp.asarray, records)), own)


def _batchable(loss: Loss, regulariser: Regulariser) -> Callable[..., Any]:
    """Newton's method, with a rule of its own for many minimisations over the same records."""
    alone = Newton(loss, regulariser).minimise
    one = custom_vmap(alone)

    @one.def_vmap
    def _mapped(n, batched, records: Records, own: Subproblem):
        if any(batched[0]):
            axes = jax.tree.map(lambda has_axis: 0 if has_axis else None, tuple(batched))
            return jax.vmap(alone, in_axes=axes, axis_size=n)(records, own), (True, True)
        batch = jax.tree.map(lambda a, has_axis: a if has_axis else jnp.broadcast_to(a, (n, *a.shape)), own, batched[1])
        return shared.SharedCurvature(loss, regulariser).minimise(records, batch), (True, True)

    return one
