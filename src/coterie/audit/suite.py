"""All checks on all instances, one finding each, and the same for an algorithm or mechanism of one's own."""

import dataclasses
import math
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import jax

from coterie.algorithms import ALGORITHMS
from coterie.algorithms.algorithm import Algorithm
from coterie.audit import (
    canary,
    coalition,
    game,
    gaussian_view,
    moments,
    noise_law,
    output_density,
    peer_view,
    reachability,
    replay,
)
from coterie.audit.finding import Finding, Measured, timed
from coterie.audit.instances import Instance, enumerate_instances, instances_of, path_instances
from coterie.audit.recording import Workbench
from coterie.errors import CoterieError, InputError
from coterie.machine import end_with_parent
from coterie.plan import Plan
from coterie.privacy.events import Adjacency, Unit
from coterie.privacy.noise import NoiseSource
from coterie.values import nearest

# chance that anything correct fails in one call, over all statistical checks together
FALSE_ALARM = 1e-3
QUICK_RUNS, RUNS = 8_000, 20_000

CHECKS: dict[str, Callable[[Workbench], Measured]] = {
    "control-flow": replay.check_control_flow,
    "gaussian-view": gaussian_view.check,
    "peer-view": peer_view.check,
    "coalition": coalition.check,
    "game": game.check,
    "sensitivity": replay.check,
    "noise-law": noise_law.check,
    "density": output_density.check,
    "canary": canary.check,
    "reachability": reachability.check,
    "inference": moments.check,
}
STATISTICAL = ("game", "noise-law", "canary")
# for every path of the engine; the others look at single steps
THROUGH_ENGINE = ("control-flow", "gaussian-view", "game", "noise-law", "reachability")
QUICK = ("control-flow", "gaussian-view", "peer-view", "coalition", "game", "sensitivity", "reachability", "inference")

Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    checks: tuple[str, ...]
    n_runs: int
    thorough: bool
    seed: int
    false_alarm: float
    # seconds since the epoch
    deadline: float | None = None

    @property
    def late(self) -> bool:
        return self.deadline is not None and time.time() > self.deadline


def check(
    algorithm: Algorithm,
    *,
    adjacency: Adjacency | None = None,
    unit: Unit | None = None,
    checks: Iterable[str] | None = None,
    noise: NoiseSource | None = None,
    n_runs: int = RUNS,
    seed: int = 0,
    **settings: Any,
) -> list[Finding]:
    """Audit one algorithm, with whatever mechanism it has, under every adjacency and unit that it accepts.

    Noise is re-calibrated to a level at which a few thousand runs tell something (`calibrated=False` keeps it). `light`
    and `heavy` replace the small problems it is examined on; `noise` is the source whose law is examined.
    """
    wanted = tuple(CHECKS) if checks is None else tuple(checks)
    for name in wanted:
        if name not in CHECKS:
            raise InputError(f"checks: unknown {name!r}; {', '.join(CHECKS)} are known")
    name = type(algorithm).__name__
    found = instances_of(name, algorithm, adjacency=adjacency, unit=unit, **settings)
    # show the reason, which making the plan gives
    if not found:
        found = [Instance(name=name, algorithm=algorithm, adjacency=adjacency or "replace-one", unit=unit or "record")]
    options = Settings(
        checks=wanted,
        n_runs=n_runs,
        thorough=True,
        seed=seed,
        false_alarm=FALSE_ALARM / (len(found) * len(STATISTICAL)),
    )
    return [finding for k, instance in enumerate(found) for finding in examine(instance, k, options, noise)]


def audit(
    names: Iterable[str] = (),
    *,
    quick: bool = False,
    seconds: float | None = None,
    seed: int = 0,
    workers: int = 1,
    progress: Progress | None = None,
) -> list[Finding]:
    """Audit the named algorithms of the package, or all. What has not begun after `seconds` is reported as not run."""
    names = tuple(names)
    for name in names:
        if name not in ALGORITHMS:
            known = ", ".join(ALGORITHMS)
            raise InputError(f"name: got {name!r}; one of {known} is needed{nearest(name, ALGORITHMS)}")
    found = [*enumerate_instances(names), *(each for each in path_instances() if not names or each.name in names)]
    if quick:
        found = list(_one_of_each(found))
    options = Settings(
        checks=QUICK if quick else tuple(CHECKS),
        n_runs=QUICK_RUNS if quick else RUNS,
        thorough=not quick,
        seed=seed,
        false_alarm=FALSE_ALARM / max(1, len(found) * len(STATISTICAL)),
        deadline=None if seconds is None else time.time() + seconds,
    )
    findings: list[Finding] = []
    for done, part in enumerate(_spread(found, options, workers)):
        if progress is not None:
            progress(done + 1, len(found))
        findings.extend(part)
    return findings


def _one_of_each(found: list[Instance | tuple[str, str]]) -> Iterator[Instance | tuple[str, str]]:
    """One instance of every algorithm, mechanism and law, and of every path; adjacencies take turns."""
    groups: dict[Any, list[Instance]] = {}
    for instance in found:
        if isinstance(instance, tuple):
            yield instance
        else:
            mechanism = instance.algorithm.mechanism
            key = (instance.name, type(mechanism), mechanism.law, instance.paths)
            groups.setdefault(key, []).append(instance)
    for k, group in enumerate(groups.values()):
        adjacencies = list(dict.fromkeys(instance.adjacency for instance in group))
        wanted = adjacencies[k % len(adjacencies)]
        yield next(instance for instance in group if instance.adjacency == wanted)


def _spread(found: list[Instance | tuple[str, str]], options: Settings, workers: int) -> Iterator[list[Finding]]:
    """Findings of one instance after the other, in order, worked out by several processes."""
    if workers <= 1 or len(found) < 2:
        for k, instance in enumerate(found):
            yield examine(instance, k, options)
        return
    with tempfile.TemporaryDirectory() as directory:
        # JAX does not survive a fork
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, context, initializer=_share_compiled, initargs=(directory,)) as pool:
            try:
                yield from pool.map(examine, found, range(len(found)), [options] * len(found))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise


def _share_compiled(directory: str) -> None:
    """Neighbouring data sets and many instances run the same program: it is compiled once."""
    end_with_parent()
    jax.config.update("jax_enable_compilation_cache", True)
    jax.config.update("jax_compilation_cache_dir", directory)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def examine(
    instance: Instance | tuple[str, str], position: int, options: Settings, noise: NoiseSource | None = None
) -> list[Finding]:
    """Every check of one instance. What the package refuses to plan, and what cannot be built, is no pass."""
    if isinstance(instance, tuple):
        name, why = instance
        unknown = dict.fromkeys(("mechanism", "noise", "adjacency"), "unknown")
        return [_without_numbers("instance", "fail", why, algorithm=name, **unknown)]
    bench = Workbench(
        instance,
        n_runs=options.n_runs,
        seed=options.seed + position,
        thorough=options.thorough,
        false_alarm=options.false_alarm,
        noise=noise,
    )
    checks = [name for name in options.checks if not instance.paths.only or name in THROUGH_ENGINE]
    if options.late:
        return [_without_numbers(name, "not run", "out of time", **instance.labels) for name in checks]
    try:
        _ = bench.stated
    except CoterieError as error:
        return [_without_numbers("plan", "refused", f"{type(error).__name__}: {error}", **instance.labels)]
    if math.isinf(bench.stated):
        return [_without_numbers("plan", "no claim", "no noise, no promise", **instance.labels)]
    findings = []
    for name in checks:
        if options.late:
            findings.append(_without_numbers(name, "not run", "out of time", **instance.labels))
        else:
            findings.append(timed(lambda name=name: _guarded(CHECKS[name], bench), check=name, **instance.labels))
    return findings


def _guarded(check: Callable[[Workbench], Measured], bench: Workbench) -> Measured:
    """An audit that cannot look does not pass."""
    try:
        return check(bench)
    except Exception as error:
        return Measured(stated=bench.stated, sound=False, detail=f"{type(error).__name__}: {error}")


def _without_numbers(check: str, verdict: Any, detail: str, **labels: str) -> Finding:
    return Finding(
        **labels,
        check=check,
        epsilon_stated=None,
        epsilon_lower=None,
        seconds=0.0,
        verdict=verdict,
        detail=detail,
    )


# --- what one plan relies on, short enough to stand on its certificate ------------------------------------------------

EXAMINED = "the same algorithm, mechanism, noise and adjacency on small problems, with noise set for a telling audit"


def audit_plan(plan: Plan, *, seed: int = 0) -> dict[str, Any]:
    """Every check of the package on the plan's algorithm and mechanism, in numbers; `verdict` is "pass" or "fail"."""
    names = [name for name, cls in ALGORITHMS.items() if cls is type(plan.algorithm)]
    if not names:
        raise InputError(f"plan: {type(plan.algorithm).__name__} is not of this package; use coterie.audit.check on it")
    own = Instance(name=names[0], algorithm=plan.algorithm, adjacency=plan.adjacency, unit=plan.unit)
    found = [each for each in enumerate_instances(names) if isinstance(each, Instance) and each.labels == own.labels]
    options = Settings(
        checks=tuple(CHECKS),
        n_runs=RUNS,
        thorough=True,
        seed=seed,
        false_alarm=FALSE_ALARM / max(1, len(found) * len(STATISTICAL)),
    )
    findings = [finding for k, instance in enumerate(found) for finding in examine(instance, k, options)]
    done = [finding for finding in findings if finding.verdict != "not applicable"]
    if not done:
        raise InputError(f"plan: there is no audit of {', '.join(own.labels.values())}")
    failed = [finding.check for finding in done if not finding.passed]
    bounds = [(f.epsilon_lower, f.epsilon_stated) for f in done if f.epsilon_lower is not None and f.epsilon_stated]
    lower, stated = max(bounds, key=lambda pair: pair[0] / pair[1], default=(None, None))
    return {
        "verdict": "fail" if failed else "pass",
        "examined": EXAMINED,
        "checks": sorted({finding.check for finding in done}),
        "failed": sorted(set(failed)),
        "epsilon_stated": stated,
        "epsilon_lower": lower,
        "chance_of_a_false_alarm": FALSE_ALARM,
    }
