"""Noise on A x, for ADMM with a general constraint A x + B z = c.

    x = argmin f(x) + |A x - t|^2 / (2 gamma).  With A'A = R'R and y = R x this is the proximal step
    y = argmin f(R^-1 y) + |y - R'^-1 A't|^2 / (2 gamma), and A x = (A R^-1) y with orthonormal columns A R^-1.

A record's row becomes R'^-1 x_n, at most 1/w times as long as before, w being A's smallest singular value: y, and with
it A x, moves by at most gamma G/w. Noise on y is noise on A x inside the range of A; outside of it A x tells nothing.
"""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coterie.errors import PrivacyPreconditionError
from coterie.matrices import Matrix
from coterie.minimisers.one_party import minimise
from coterie.privacy.mechanisms import Grant, Mechanism, PartyFacts, issue, output_event, steps_of, untouched
from coterie.privacy.noise import STEPS
from coterie.privacy.proximal import ProximalBounds
from coterie.privacy.release import Release, UnitNoise, needs_public, private_call, seal
from coterie.problems import L2, Loss, Problem, Records
from coterie.values import ScheduleField, as_schedule, positive_number, serialisable


class ImageScales(NamedTuple):
    # 1/prox_step
    curvature: Any
    # of the mapped rows; longer ones are scaled down to it
    row_norm: Any
    noise_std: Any
    steps: Any
    tolerance: Any


class ImageGrant(Grant):
    """Release the noised solution in the coordinates y."""

    Scales = ImageScales

    def noised_solution(
        self, problem: Problem, records: Records, noise: UnitNoise, *, target: jax.Array, basis: jax.Array
    ) -> Release:
        """argmin_y f(basis y) + (curvature/2) |y - target|^2, plus noise; NaN if the solver failed."""
        scales = self._issued()
        unit, _ = noise.value
        solve = partial(_solve, self.priced(problem).loss)
        y = private_call(solve, untouched(records), needs_public(target), needs_public(basis), scales)
        return seal(y, steps_of(unit), self._issued_grid())


def _solve(loss: Loss, records: Records, target: Any, basis: Any, scales: ImageScales) -> Any:
    rows = records.X @ basis
    norms = jnp.sqrt(jnp.sum(rows * rows, axis=1, keepdims=True))
    # whatever basis is handed in, the price stands
    rows = rows * jnp.where(norms > scales.row_norm, scales.row_norm / norms, 1.0)
    y, bound = minimise(
        loss,
        L2(0.0),
        Records(rows, records.y, records.weight),
        linear=jnp.zeros_like(target),  # pyright: ignore[reportUnknownMemberType]
        target=target,
        curvature=scales.curvature,
        tolerance=scales.tolerance,
    )
    return jnp.where(bound <= scales.tolerance, y, jnp.nan)


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageNoise(Mechanism):
    """`A` is dense or sparse, of full column rank; the noise has standard deviation multiplier * sensitivity of A x."""

    A: Matrix
    prox_step: float
    noise_multiplier: ScheduleField
    law = "gaussian"

    def __post_init__(self) -> None:
        object.__setattr__(self, "A", Matrix.of("A", self.A))
        object.__setattr__(self, "noise_multiplier", as_schedule("noise_multiplier", self.noise_multiplier))
        positive_number("prox_step", self.prox_step)
        if not self.A.smallest_singular_value > 0:
            raise PrivacyPreconditionError("A: its columns are linearly dependent; full column rank is needed")

    @property
    def basis(self) -> np.ndarray:
        """R^-1."""
        return np.linalg.inv(np.linalg.cholesky(self.A.gram).T)

    def with_noise(self, factor: float) -> Mechanism:
        return self.changed(noise_multiplier=self.noise_multiplier.times(factor))

    def grant(self, t: int, party: int, problem: Problem, facts: PartyFacts) -> Grant:
        multiplier = self.noise_multiplier.at(t, party)
        mapped = dataclasses.replace(facts, row_norm=facts.row_norm / self.A.smallest_singular_value)
        prox = ProximalBounds(problem, mapped, self.prox_step, 1.0, 0.0, mapped.record_slope(problem), clipped=False)
        tolerance = prox.tolerance(multiplier * prox.change)
        change = prox.change + prox.error(tolerance)
        noise_std = multiplier * change
        return issue(
            ImageGrant,
            output_event(change, noise_std, facts),
            priced_for=facts.share(problem),
            curvature=1 / self.prox_step,
            row_norm=mapped.row_norm,
            noise_std=noise_std,
            steps=STEPS,
            tolerance=tolerance,
        )
