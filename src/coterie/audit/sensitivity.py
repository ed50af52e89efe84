"""Record and replay: no neighbour changes a step by more than its grant declares, and none changes what can be seen
besides the noised value.

One step is replayed with the same randomness on thousands of neighbouring data sets, with a search for the worst. Whole
runs on the worst known neighbours must have the same releases, in number and shape, and none may be refused.
"""

import numpy as np

from coterie.audit.finding import Measured
from coterie.audit.recording import Workbench
from coterie.audit.replay import Replay, search
from coterie.audit.state_replay import StateReplay, keeps_state
from coterie.errors import LocalSolveError


def check(bench: Workbench) -> Measured:
    plan, _ = bench.heavy(2) or bench.heavy(1) or (bench.plan, None)
    n_random, n_generations = (600, 8) if bench.thorough else (300, 5)
    replay = StateReplay(plan, 0, 0) if keeps_state(plan) else Replay(plan, 0, 0)
    report = search(replay, n_random=n_random, n_generations=n_generations, seed=bench.seed)
    problems = []
    if report.ratio > 1 + 1e-9:
        problems.append(f"a neighbour changes {report.measured:.4g}, and {report.declared:.4g} is declared")
    if report.replay_error > 1 + 1e-9:
        problems.append("the step uses its records in another way than its grant was priced for")
    if report.determinants > 1 + 1e-9:
        problems.append(f"determinants change {report.determinants:.4g} times what is declared")
    if report.n_aborted:
        problems.append(f"{report.n_aborted} of {report.n_tried} steps were refused, which a neighbour could see")
    detail = "; ".join(problems) or f"{report.ratio:.3f} of the declared change is reached"
    return Measured(stated=bench.stated, sound=report.passed, detail=detail)


def check_control_flow(bench: Workbench) -> Measured:
    """Same shapes, same number of releases, no refusal that depends on the data."""
    try:
        recording = bench.recording
    except LocalSolveError as error:
        return Measured(stated=bench.stated, sound=False, detail=f"a run was refused: {error}")
    one, two = recording.releases
    plan = bench.plan
    expected = (plan.n_rounds, plan.release_width, plan.problem.n_coefficients(plan.facts))
    sound = one.shape == two.shape and recording.shape == expected and bool(np.isfinite([one, two]).all())
    detail = "" if sound else f"releases of shape {one.shape}, {two.shape}; {expected} a run is declared"
    return Measured(stated=bench.stated, sound=sound, detail=detail)
