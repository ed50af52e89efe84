"""Hardened noise: a discrete Gaussian on a grid, for a value whose sensitivity is known (extra `opendp`).

Runs use it where a mechanism has `hardened=True`; `GridNoise` noises a single value outside of one.

Noise that is drawn and added in floating point leaves traces in the last bits of a double. Here the value is first put
on a grid of spacing g = noise_std / 2^30, and what is added is an integer number of steps from an exact sampler:

    k = round(value / g), cut to +-2^52
    release g (k + z), z ~ N_Z(0, (2^30)^2) in every coordinate

k + z is exact, integers below 2^53 being doubles, and the release is a function of it. Two values within `sensitivity`
of each other, each off by `rounding_error` at most, lie within sensitivity + 2 rounding_error + 2 g sqrt(d) of each
other on the grid: the division rounds by at most half a step, and so does `round`; cutting brings them no further
apart. A discrete Gaussian on integers costs at most what a Gaussian of the same ratio costs in Renyi divergence
(Canonne, Kamath and Steinke, 2020), but it is not one, so the exact Gaussian accountant does not apply.
"""

# OpenDP is untyped:
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateImportUsage=false

import dataclasses
import functools
import math
from typing import Any

import numpy as np

from coterie.errors import InputError, MissingExtraError
from coterie.privacy.events import Event
from coterie.serialise import serialisable

STEPS_PER_STD = 2.0**30  # so fine a grid costs next to nothing
LARGEST_STEP = 2.0**52


@serialisable
@dataclasses.dataclass(frozen=True)
class DiscreteGaussian(Event):
    """Discrete Gaussian noise on a grid: `ratio` = sensitivity on the grid / noise_std."""

    ratio: float

    def rdp(self, orders: np.ndarray) -> np.ndarray:
        return np.tile(orders * self.ratio**2 / 2, (2, 1))


@dataclasses.dataclass(frozen=True, kw_only=True)
class GridNoise:
    """Noise for values of `d` numbers that move by at most `sensitivity` in the 2-norm when what is protected changes.

    `rounding_error` bounds how far the computed value is from the one that the sensitivity was proved for.
    """

    sensitivity: float
    noise_multiplier: float
    d: int
    rounding_error: float = 0.0

    def __post_init__(self) -> None:
        for name in ("sensitivity", "noise_multiplier"):
            if not 1e-100 <= getattr(self, name) <= 1e100:
                raise InputError(f"{name}: got {getattr(self, name)}; a number from 1e-100 to 1e100 is needed")
        if not 0 <= self.rounding_error <= 1e100:
            raise InputError(f"rounding_error: got {self.rounding_error}; a number from 0 to 1e100 is needed")
        if isinstance(self.d, bool) or not isinstance(self.d, int) or self.d < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError(f"d: got {self.d!r}; an integer >= 1 is needed")

    @property
    def noise_std(self) -> float:
        return self.noise_multiplier * self.sensitivity

    @property
    def grid(self) -> float:
        return grid_spacing(self.noise_std)

    @property
    def event(self) -> DiscreteGaussian:
        return grid_event(self.sensitivity + 2 * self.rounding_error, self.noise_std, self.d)

    def release(self, value: Any) -> np.ndarray:
        """The value with noise, on the grid: never reproducible, the entropy is the operating system's."""
        array = np.asarray(value, dtype=np.float64)
        if array.shape != (self.d,) or not np.isfinite(array).all():
            raise InputError(f"value: got shape {array.shape}; {self.d} finite numbers are needed")
        with np.errstate(over="ignore"):
            steps = np.rint(np.clip(array / self.grid, -LARGEST_STEP, LARGEST_STEP))
        return (steps + unit_steps(self.d)) * self.grid


def grid_spacing(noise_std: float) -> float:
    """g; within these limits it is exact, and far from underflowing to no grid at all."""
    if not 1e-200 <= noise_std <= 1e200:
        raise InputError(f"noise_std: got {noise_std}; hardened noise needs a number from 1e-200 to 1e200")
    return noise_std / STEPS_PER_STD


def grid_event(sensitivity: float, noise_std: float, d: int) -> DiscreteGaussian:
    """The price of a value of `d` numbers that moves by `sensitivity` before it is put on the grid."""
    on_grid = sensitivity + 2 * grid_spacing(noise_std) * math.sqrt(d)
    return DiscreteGaussian(ratio=on_grid / noise_std * (1 + 2.0**-50))  # the quotient itself may round down


def unit_steps(d: int) -> np.ndarray:
    """`d` independent whole numbers from N_Z(0, STEPS_PER_STD^2), drawn exactly from the system's entropy."""
    return np.array(_sampler()([0] * d), dtype=np.float64)


@functools.cache
def _sampler() -> Any:
    try:
        import opendp.prelude as dp
    except ImportError:
        raise MissingExtraError("hardened noise needs OpenDP: pip install 'coterie[opendp]'") from None
    dp.enable_features("contrib")
    integers = dp.vector_domain(dp.atom_domain(T=dp.i64))
    return dp.m.make_gaussian(integers, dp.l2_distance(T=dp.f64), scale=STEPS_PER_STD)
