"""The noise that reaches a release is the one that is priced: its law, its size, and a fresh draw for every use.

Releases of the light instances are affine in the noise, so the draws can be read back from them, in units of what the
grants declare. Norms are compared with the declared law by Kolmogorov-Smirnov tests, which must also refuse the same
draws scaled by 0.9 and by 1.1: a test that could not see that is reported as a failure.
"""

import itertools
import math
from typing import Any

import numpy as np
from scipy import stats

from coterie.audit.finding import Measured
from coterie.audit.recording import Workbench
from coterie.engines.in_process import run
from coterie.plan import Plan
from coterie.privacy.mechanisms import ArgminGrant
from coterie.privacy.noise import Law, NoiseSource, SystemEntropy, law_for

# in one dimension a norm drawn from the wrong law can pass
SOURCE_DIMENSION = 3
# enough to see a factor of 0.9 at the smallest false-alarm rates in use
_DRAWS = 12_000


def check(bench: Workbench) -> Measured:
    law = bench.plan.algorithm.mechanism.law
    if law is None:
        return Measured(stated=bench.stated, detail="no noise is drawn")
    tests = _Tests(bench.false_alarm)
    # as it is drawn: inside an objective, or on a grid
    drawn: list[Law] = [law_for(law, use) for use in type(bench.plan.issued[0][0]).uses.values()]
    for one in drawn:
        for source in (bench.source, SystemEntropy()):
            _examine_source(tests, source, one)
    found = _read_back(bench)
    if found is None:
        return Measured(
            stated=bench.stated,
            sound=tests.passed,
            detail=tests.detail or "sources only: noise cannot be read back from these releases",
        )
    _examine(tests, found[..., None], law, "noise of releases")
    _independent(tests, found, "noise of releases")
    return Measured(stated=bench.stated, sound=tests.passed, detail=tests.detail)


class _Tests:
    """Collects what fails. `n_expected` tests share the chance of a false alarm."""

    n_expected = 40

    def __init__(self, false_alarm: float) -> None:
        self.level, self.failures = false_alarm / self.n_expected, list[str]()

    def accept(self, p_value: Any, what: str) -> None:
        if not p_value > self.level:
            self.failures.append(f"{what} (p = {p_value:.1e})")

    def refuse(self, p_value: Any, what: str) -> None:
        if not p_value <= self.level:
            self.failures.append(f"no power: {what}")

    @property
    def passed(self) -> bool:
        return not self.failures

    @property
    def detail(self) -> str:
        return "; ".join(self.failures)


def _norm_law(law: Law, d: int) -> Any:
    return stats.chi(d) if "gaussian" in law else stats.gamma(d)


def _examine(tests: _Tests, draws: np.ndarray, law: Law, what: str) -> None:
    """Draws along the last axis: norms, directions and signs."""
    d = draws.shape[-1]
    norms, expected = np.linalg.norm(draws, axis=-1).ravel(), _norm_law(law, d).cdf
    tests.accept(stats.kstest(norms, expected).pvalue, f"{what}: not of the declared law or size")
    for factor in (0.9, 1.1):
        tests.refuse(stats.kstest(factor * norms, expected).pvalue, f"{what} times {factor} would pass")
    first = draws[..., 0].ravel()
    tests.accept(stats.binomtest(int((first > 0).sum()), len(first)).pvalue, f"{what}: signs are not balanced")
    if d > 1:
        share = (first / norms) ** 2
        tests.accept(stats.kstest(share, stats.beta(0.5, (d - 1) / 2).cdf).pvalue, f"{what}: directions not uniform")


def _independent(tests: _Tests, draws: np.ndarray, what: str) -> None:
    """Draws (repeat, use): no two uses of a repeat, and no two repeats of a use, may go together."""
    n_repeats, n_uses = draws.shape
    if np.ptp(draws, axis=0).min() == 0:
        tests.failures.append(f"{what}: the same in all repeats")
        return
    for kind, values in (("", draws), ("sizes of ", np.abs(draws))):
        # normal scores: sums of their products are close to normal far into the tails, whatever the law
        z = stats.norm.ppf(stats.rankdata(values, axis=0) / (n_repeats + 1))
        z = z / z.std(axis=0)
        pairs = [float(z[:, i] @ z[:, j]) for i, j in itertools.combinations(range(n_uses), 2)]
        worst = max(map(abs, pairs), default=0.0) / math.sqrt(n_repeats)
        tests.accept(
            min(1.0, 2 * max(len(pairs), 1) * stats.norm.sf(worst)), f"{kind}{what}: rounds or parties go together"
        )
        lagged = float((z[1:] * z[:-1]).sum()) / math.sqrt(z[1:].size)
        tests.accept(2 * stats.norm.sf(abs(lagged)), f"{kind}{what}: repeats go together")


def _examine_source(tests: _Tests, source: NoiseSource, law: Law) -> None:
    """Draws in a few dimensions, over repeats, rounds and parties."""
    d, n_uses = SOURCE_DIMENSION, 6
    uses = list(itertools.product(range(2), range(3)))
    draws = np.array(
        [
            [source.draw(law, d, repeat=repeat, party=party, t=t, purpose="release") for t, party in uses]
            for repeat in range(_DRAWS // n_uses // 2)
        ]
    )
    name = type(source).__name__
    _examine(tests, draws, law, name)
    _independent(tests, draws[..., 0], name)


def _read_back(bench: Workbench) -> np.ndarray | None:
    """Unit noise of releases, (repeat, use), as the grants declare its size; None where it cannot be read back."""
    plan = bench.plan
    declared, affine = declared_sizes(plan), bench.recording.affine(0)
    if declared is None or not affine.holds:
        return None
    n_repeats = -(-_DRAWS // len(affine.mean))
    done = run(plan, bench.pair[0], noise=bench.source, repeats=n_repeats, paths=bench.instance.paths)
    releases = done.releases.reshape(n_repeats, -1)
    factor = _triangular(affine.response, plan)
    innovations = np.linalg.solve(factor, (releases - affine.mean).T).T
    return innovations * (np.abs(np.diag(factor)) / np.repeat(declared.ravel(), len(affine.mean) // declared.size))


def _triangular(response: np.ndarray, plan: Plan) -> np.ndarray:
    """How releases answer, in the order of time, to the noise that is new in each of them."""
    if plan.algorithm.mechanism.law == "gaussian":
        return np.linalg.cholesky(response @ response.T)
    # no two draws are added up: each release has its own
    by_purpose = np.split(response, 2, axis=1)
    return max(by_purpose, key=lambda part: float(np.abs(np.diag(part)).max()))


def declared_sizes(plan: Plan) -> np.ndarray | None:
    """Deviation (Gaussian) or 1/rate (gamma) of the noise of each release, (round, party), in its own unit."""
    scales = plan.grant_scales()
    if isinstance(plan.issued[0][0], ArgminGrant):
        convexity = plan.problem.regulariser.l2 / plan.facts.n_parties + scales.curvature + scales.extra_l2
        inside = scales.noise_scale / convexity
        return np.where(inside > 0, inside, scales.output_scale)
    if "noise_std" not in scales._fields:
        return None
    # parties are all alike
    return scales.noise_std[:, : plan.release_width]
