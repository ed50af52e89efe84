"""Repeats a few at a time, on several cores: where only some parties work, a round moves much and computes little.

Picked rows and states of all repeats together outgrow the caches, and XLA picks rows on one core; those of a few
repeats stay in the cache of the core that works on them.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from coterie.engines.inputs import RoundInputs

MOST_BYTES = 2**22  # of states of the repeats in one share


def share_of(repeats: int, n_parties: int, d: int) -> int:
    """How many repeats are best run at a time: a divisor of all, or all where there is nothing to gain."""
    if jax.default_backend() != "cpu":
        return repeats
    fitting = max(1, MOST_BYTES // (8 * n_parties * d))
    return max(k for k in range(1, min(repeats, fitting) + 1) if repeats % k == 0)


def in_shares(advance: Callable[..., Any], repeats: int, share: int) -> Callable[..., Any]:
    """`advance` of all repeats from that of a share of them; states stay apart from one call to the next."""
    starts = range(0, repeats, share)

    def whole(state: Any, *arguments: Any) -> Any:
        *fixed, inputs = arguments
        if not isinstance(state, list):
            state = [jax.tree.map(lambda a, start=start: a[start : start + share], state) for start in starts]

        def part(start: int) -> Any:
            mine = _of_repeats(inputs, slice(start, start + share))
            with jax.enable_x64(True):  # each thread has a setting of its own
                return jax.block_until_ready(advance(state[start // share], *fixed, mine))

        first = part(0)  # compiles, where that has not been done yet
        with ThreadPoolExecutor(os.cpu_count()) as cores:
            done = [first, *cores.map(part, starts[1:])]
        states, released = zip(*done, strict=True)
        return list(states), np.concatenate(released)

    return whole


def _of_repeats(inputs: RoundInputs, here: slice) -> RoundInputs:
    """Of a single plan, whose grants, numbers and deliveries are those of all repeats."""
    by_repeat = inputs.who, inputs.works, inputs.with_data, inputs.noise
    who, works, with_data, noise = jax.tree.map(lambda a: a[:, here], by_repeat)
    return inputs._replace(who=who, works=works, with_data=with_data, noise=noise)
