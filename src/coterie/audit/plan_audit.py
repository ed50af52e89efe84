"""The audit of what one plan relies on, short enough to stand on its certificate."""

from typing import Any

from coterie.algorithms import ALGORITHMS
from coterie.audit.instances import Instance, enumerate_instances
from coterie.audit.suite import CHECKS, FALSE_ALARM, RUNS, STATISTICAL, Settings, examine
from coterie.errors import InputError
from coterie.plan import Plan

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
