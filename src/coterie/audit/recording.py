"""Runs of one plan on two neighbouring data sets with the same noise, recorded once and read by several checks.

The first runs get no noise, then one unit of each noise that is drawn, then noise of the plan's law. The runs go
through the engine that users run, so a mistake in the engine is a mistake the audit sees.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from coterie.audit.finding import Measured
from coterie.audit.instances import DELTA, Instance, Setting
from coterie.data.federation import Federation
from coterie.engines.in_process import Paths, run
from coterie.errors import InputError
from coterie.plan import Plan
from coterie.privacy.noise import Law, NoiseSource, Purpose, Seeded

PURPOSES: tuple[Purpose, ...] = ("release", "output")
# of a release's own deviation
_AFFINE = 1e-6


class Prepared:
    """A noise source that hands out prepared draws, (purpose, repeat, round, party, coefficient).

    Secret selections of the first `n_probes` repeats are all alike.
    """

    reproducible = True

    def __init__(self, draws: np.ndarray, *, seed: int = 0, n_probes: int = 0) -> None:
        self.draws = dict(zip(PURPOSES, draws, strict=True))
        self.seed, self.n_probes = seed, n_probes

    def draw(self, law: Law, d: int, *, repeat: int, party: int, t: int, purpose: Purpose = "release") -> np.ndarray:
        return self.draws[purpose][repeat, t, party]

    def coins(self, *, repeat: int) -> Callable[[int], np.ndarray]:
        return np.random.default_rng([self.seed, max(repeat - self.n_probes, 0)]).random


def unit_draws(rng: np.random.Generator, law: Law | None, shape: tuple[int, ...]) -> np.ndarray:
    """Noise of the declared law along the last axis, written apart from the package's own sources."""
    if law is None:
        return np.zeros(shape)
    if law not in ("gaussian", "gamma-sphere"):
        raise InputError(f"law: got {law!r}, which the audit does not know")
    normal = rng.standard_normal(shape)
    if law == "gaussian":
        return normal
    return normal / np.linalg.norm(normal, axis=-1, keepdims=True) * rng.gamma(shape[-1], size=(*shape[:-1], 1))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Affine:
    """Releases = mean + response @ unit noise."""

    # (n_releases,)
    mean: np.ndarray
    # (n_releases, n_noises)
    response: np.ndarray
    # largest distance of recorded runs from it, over their deviation
    error: float

    @classmethod
    def of(cls, noise: np.ndarray, seen: np.ndarray) -> "Affine":
        """Read off the probes among the runs, and tried on the others."""
        n_probes = 1 + noise.shape[1]
        mean, response = seen[0], (seen[1:n_probes] - seen[0]).T
        off = seen[n_probes:] - (mean + noise[n_probes:] @ response.T)
        deviation = np.linalg.norm(response, axis=1) + np.finfo(float).tiny
        return cls(mean=mean, response=response, error=float(np.max(np.abs(off) / deviation, initial=0.0)))

    @property
    def holds(self) -> bool:
        return self.error <= _AFFINE


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recording:
    """Noise, and what was released with it, as flat rows in the order of time."""

    # (n_runs, n_noises): unit draws
    noise: np.ndarray
    # (n_runs, n_releases) on the data set and on its neighbour
    releases: tuple[np.ndarray, np.ndarray]
    # of one run's releases: round, party, coefficient
    shape: tuple[int, ...]

    @property
    def n_probes(self) -> int:
        return 1 + self.noise.shape[1]

    @property
    def random_runs(self) -> tuple[np.ndarray, np.ndarray]:
        """The runs with noise of the plan's law: what an observer would see."""
        one, two = self.releases
        return one[self.n_probes :], two[self.n_probes :]

    def affine(self, side: int) -> Affine:
        """The map from noise to releases."""
        return Affine.of(self.noise, self.releases[side])


def with_probes(random: np.ndarray) -> np.ndarray:
    """Before these noises of runs, (n_runs, n_noises), those of the probes: none, and one unit of each."""
    n_noises = random.shape[1]
    return np.concatenate([np.zeros((1, n_noises)), np.eye(n_noises), random])


def record(
    plan: Plan, pair: tuple[Federation, Federation], *, n_runs: int, seed: int, paths: Paths | None = None
) -> Recording:
    """`n_runs` runs with noise, besides the probes, down one of these paths of the engine."""
    d = plan.problem.n_coefficients(plan.facts)
    one_run = (2, plan.n_rounds, plan.facts.n_parties, d)
    n_noises = 2 * plan.n_rounds * plan.facts.n_parties * d
    rng = np.random.default_rng(seed)
    random = unit_draws(rng, plan.algorithm.mechanism.law, (n_runs, *one_run)).reshape(n_runs, n_noises)
    noise = with_probes(random)
    draws = np.moveaxis(noise.reshape(-1, *one_run), 1, 0)

    def releases(data: Federation) -> np.ndarray:
        source = Prepared(draws, seed=seed, n_probes=1 + n_noises)
        return run(plan, data, noise=source, repeats=len(noise), paths=paths).releases

    one, two = (releases(data) for data in pair)
    return Recording(
        noise=noise,
        releases=(one.reshape(len(noise), -1), two.reshape(len(noise), -1)),
        shape=one.shape[1:],
    )


@dataclasses.dataclass(frozen=True)
class Workbench:
    """An instance with its plans and recorded runs, each made when it is first needed."""

    instance: Instance
    n_runs: int = 20_000
    seed: int = 0
    thorough: bool = True
    # of each statistical check
    false_alarm: float = 1e-3
    # the source whose law is examined; seeded unless one is given
    noise: NoiseSource | None = None

    @property
    def source(self) -> NoiseSource:
        return Seeded(self.seed) if self.noise is None else self.noise

    @functools.cached_property
    def plan(self) -> Plan:
        return self.instance.plan(self.instance.light)

    @functools.cached_property
    def pair(self) -> tuple[Federation, Federation]:
        return self.instance.pair(self.instance.light)

    @functools.cached_property
    def stated(self) -> float:
        """What the plan says the owner of the changed record loses."""
        return self.plan.party_epsilons(DELTA)[0]

    def not_applicable(self, detail: str) -> Measured:
        return Measured(stated=self.stated, applicable=False, detail=detail)

    @functools.cached_property
    def recording(self) -> Recording:
        return record(self.plan, self.pair, n_runs=self.n_runs, seed=self.seed, paths=self.instance.paths)

    def heavy(self, n_features: int, **changes: Any) -> tuple[Plan, Setting] | None:
        """One step in which the curvature of records matters; None where so many features do not fit the algorithm."""
        setting = dataclasses.replace(self.instance.heavy, n_features=n_features, **changes)
        try:
            return self.instance.plan(setting), setting
        except InputError:
            return None
