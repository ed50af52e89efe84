"""What there is to wait for before rounds begin: imports, `coterie --help`, compiling and accounting.

    python benchmarks/start_up.py [--quick] [--json]

Imports and commands run in new processes that take turns, and the fastest of each counts; of imports it is processor
time, which others on the machine disturb less. `import coterie` loads names when they are first used, so what a run
needs is timed as well. Compiling is the first run of a plan less the second, in a process with an empty
`XDG_CACHE_HOME`, and then in another one that finds what the first has kept there. Accounting is `Plan.epsilon` of a
new plan with 10,000 rounds for 1,000 parties: with constant noise, and with a noise that grows, where every round has
another grant.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

import figures
from figures import RATIO, Figure, in_new_process

TIMED_IMPORT = "import time; start = time.process_time(); {}; print(time.process_time() - start)"
NEEDED = "from coterie import Federation, Plan, Problem, run; import coterie.algorithms"


def import_seconds(turns: int, *statements: str) -> list[float]:
    programs = [[sys.executable, "-c", TIMED_IMPORT.format(statement)] for statement in statements]
    seconds = [[float(in_new_process(program).output) for program in programs] for _ in range(turns)]
    return [min(times) for times in zip(*seconds, strict=True)]


def help_seconds(turns: int) -> float:
    command = [str(Path(sys.executable).with_name("coterie")), "--help"]
    return min(in_new_process(command).seconds for _ in range(turns))


def plans() -> dict:
    """Name -> (plan, data): messages on a graph, and a noised sum."""
    import numpy as np

    from coterie.algorithms import PenaltyPerturbedADMM, fixed_point_admm
    from coterie.data import Federation
    from coterie.network.channels import Curator
    from coterie.plan import Plan
    from coterie.privacy.objective import PenaltyPerturbation
    from coterie.problems import L2, Logistic, Problem

    rng = np.random.default_rng(0)
    X = rng.normal(size=(20_000, 50)) / 8
    data = Federation.from_arrays(X, (X[:, 0] > 0).astype(int), parties=np.arange(20_000) % 20, labels=(0, 1))
    regulariser = L2(1.0)
    graph = PenaltyPerturbedADMM(mechanism=PenaltyPerturbation(penalty=10.0, noise_multiplier=5.0), dual_step=5.0)
    total = fixed_point_admm(channel=Curator(), regulariser=regulariser, prox_step=0.3, noise_multiplier=5.0)
    problem = Problem(loss=Logistic(), regulariser=regulariser, record_weight=1.0)
    return {
        name: (Plan.make(algorithm, problem, topology, data.facts, rounds=20, adjacency="replace-one"), data)
        for name, algorithm, topology in (("graph", graph, "watts-strogatz"), ("sum", total, "unrestricted"))
    }


def compile_seconds(name: str) -> float:
    from coterie.engines.in_process import run
    from coterie.privacy.noise import Seeded

    plan, data = plans()[name]
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        run(plan, data, noise=Seeded(0))
        seconds.append(time.perf_counter() - start)
    return seconds[0] - seconds[1]


def compiling(name: str) -> tuple[float, float]:
    """Seconds without and with what an earlier process has kept."""
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, __file__, "--compile", name]
        cold, warm = (float(in_new_process(command, {"XDG_CACHE_HOME": cache}).output) for _ in range(2))
    return cold, warm


def accounting(growth: float) -> tuple[float, float]:
    """Seconds to make a plan, and to say its epsilon."""
    from coterie.algorithms import PenaltyPerturbedADMM
    from coterie.plan import Plan
    from coterie.privacy.objective import PenaltyPerturbation
    from coterie.problems import L2, Logistic, Problem
    from coterie.values import Facts, Schedule

    names, labels = tuple(map(str, range(1000))), ("0", "1")
    facts = Facts(parties=names, sizes=(1000,) * 1000, n_features=50, row_norm=1.0, labels=labels)
    mechanism = PenaltyPerturbation(penalty=10.0, noise_multiplier=Schedule(5.0, growth))
    algorithm = PenaltyPerturbedADMM(mechanism=mechanism, dual_step=5.0)
    problem = Problem(loss=Logistic(), regulariser=L2(1.0), record_weight=1.0)
    started = time.perf_counter()
    plan = Plan.make(algorithm, problem, "watts-strogatz", facts, rounds=10_000, adjacency="replace-one")
    made = time.perf_counter()
    plan.epsilon(1e-6)
    return made - started, time.perf_counter() - made


def measure(quick: bool = False) -> dict:
    turns = 12
    numpy, coterie = import_seconds(turns, "import numpy", "import coterie")
    [needed] = import_seconds(1 if quick else 3, NEEDED)
    shown = [
        Figure("start: import coterie over import numpy", coterie / numpy, RATIO, at_most=3.0),
        Figure("start: import of what a run needs, processor time", needed, "s"),
        Figure("start: coterie --help", help_seconds(turns), "s", at_most=0.6),
    ]
    for name in () if quick else ("graph", "sum"):
        cold, warm = compiling(name)
        shown.append(Figure(f"start: compiling, {name}, empty cache", cold, "s", at_most=2.0))
        shown.append(Figure(f"start: compiling, {name}, kept by another process", warm, "s"))
    for name, growth in (("constant noise", 1.0), ("growing noise", 1.0001))[: 1 if quick else 2]:
        making, epsilon = accounting(growth)
        # rounds that are all different cannot be counted together
        limit = 0.2 if growth == 1.0 else None
        shown.append(
            Figure(f"accounting: epsilon of 10,000 rounds, 1,000 parties, {name}", epsilon, "s", at_most=limit)
        )
        shown.append(Figure(f"accounting: making that plan, {name}", making, "s"))
    seconds = {"numpy": numpy, "coterie": coterie}
    return {"figures": [figure.row() for figure in shown], "import_s": seconds}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--compile"]:
        print(compile_seconds(sys.argv[2]))
    else:
        figures.main(measure, __doc__, lambda result: json.dumps(result["import_s"]))
