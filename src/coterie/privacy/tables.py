"""Noise on tables of counts: one for each party's table, or one for the sum of all."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from coterie.privacy.grants import ONE_NOISE, SumGrant, SumNoises, issue, steps_of
from coterie.privacy.mechanisms import grid_event
from coterie.privacy.release import Contribution, Release, UnitNoise, contribute, seal


class TableScales(NamedTuple):
    noise_std: Any
    steps: Any


class TableGrant(SumGrant):
    Scales = TableScales

    @classmethod
    def of(cls, sensitivity: float, multiplier: float, size: int, noise: SumNoises = ONE_NOISE) -> "TableGrant":
        """For tables of `size` cells that move by at most `sensitivity`, in the 2-norm, between neighbours."""
        noise_std = multiplier * sensitivity
        event = grid_event(sensitivity, noise_std, size, noise)
        return issue(cls, event, priced_for=None, noise_std=noise_std, steps=noise.steps)

    def counted(self, tables: np.ndarray) -> Contribution:
        """Tables of several parties, (party, cell), for a sum."""
        return contribute(jnp.asarray(tables))  # pyright: ignore[reportUnknownMemberType]

    def noised(self, tables: np.ndarray, noise: UnitNoise) -> Release:
        """Each party's own, (party, cell)."""
        return seal(jnp.asarray(tables), steps_of(noise.value[0]), self._issued_grid())  # pyright: ignore[reportUnknownMemberType]
