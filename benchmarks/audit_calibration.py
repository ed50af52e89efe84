"""Does the audit cry wolf, and does it see anything? 200 seeded repetitions of its statistical checks on three correct
mechanisms in one dimension.

At the confidence of `coterie audit --all` nothing may fail. At a loose level, 5 %, alarms may come, but no more often
than the level says (with chance 0.999). And the game must reach half of the stated loss in the middle repetition.

    make audit-calibration
"""

import dataclasses
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

import jax
from scipy.stats import binom

from coterie.audit import game, noise_law
from coterie.audit.instances import DELTA, LIGHT, Instance, enumerate_instances
from coterie.audit.recording import Workbench, record
from coterie.audit.suite import FALSE_ALARM, STATISTICAL

REPETITIONS, CHUNK, RUNS, WORKERS = 200, 10, 16_000, 2
LOOSE = 0.05
RESULTS = Path(__file__).parent / "results" / "audit_calibration.json"
MECHANISMS = {
    "noise in the objective": ("penalty-perturbed-admm", "gaussian"),
    "gamma noise on the minimiser": ("primal-perturbed-admm", "gamma-sphere"),
    "noise in a secure sum": ("noisy-gradient-descent", "gaussian"),
}


def instance_of(mechanism: str) -> Instance:
    name, law = MECHANISMS[mechanism]
    found = (i for i in enumerate_instances([name]) if isinstance(i, Instance))
    chosen = next(
        i for i in found if i.labels["noise"] == law and i.algorithm.channel.name in ("broadcast", "secure-sum")
    )
    return dataclasses.replace(chosen, light=dataclasses.replace(LIGHT, rounds=1))


def strict_level() -> float:
    """Of each statistical check in `coterie audit --all`."""
    return FALSE_ALARM / (len(list(enumerate_instances())) * len(STATISTICAL))


def prepare(directory: str) -> None:
    jax.config.update("jax_compilation_cache_dir", directory)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def repetitions(task: tuple[str, int, float]) -> list[dict[str, object]]:
    """A chunk of them: one long recording, cut into pieces."""
    mechanism, start, strict = task
    bench = Workbench(instance_of(mechanism))
    recording = record(bench.plan, bench.pair, n_runs=CHUNK * RUNS, seed=start)
    one, two = recording.random_runs
    found = []
    for k in range(CHUNK):
        piece = slice(k * RUNS, (k + 1) * RUNS)
        lower, loose = (
            game.epsilon_lower_bound(one[piece], two[piece], delta=DELTA, false_alarm=level)
            for level in (strict, LOOSE)
        )
        noise_loose = noise_law.check(dataclasses.replace(bench, seed=start + k, false_alarm=LOOSE)).verdict
        noise_strict = "pass"
        # a stricter level cannot fail where a loose one passes
        if noise_loose != "pass":
            noise_strict = noise_law.check(dataclasses.replace(bench, seed=start + k, false_alarm=strict)).verdict
        found.append(
            {
                "mechanism": mechanism,
                "stated": bench.stated,
                "lower": lower,
                "alarm": lower > bench.stated or noise_strict != "pass",
                "loose_game_alarm": loose > bench.stated,
                "loose_noise_alarm": noise_loose != "pass",
            }
        )
    return found


def main() -> None:
    began, strict = time.perf_counter(), strict_level()
    tasks = [(mechanism, start, strict) for start in range(0, REPETITIONS, CHUNK) for mechanism in MECHANISMS]
    rows: list[dict[str, object]] = []
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as directory, spawn.Pool(WORKERS, prepare, (directory,)) as pool:
        for done, part in enumerate(pool.imap(repetitions, tasks), start=1):
            rows.extend(part)
            print(f"\r{done} of {len(tasks)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    summary = [summarise(mechanism, [r for r in rows if r["mechanism"] == mechanism]) for mechanism in MECHANISMS]
    report = {"strict_level": strict, "seconds": round(time.perf_counter() - began, 1), "mechanisms": summary}
    RESULTS.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))
    if not all(entry["passed"] for entry in summary):
        sys.exit("audit calibration: failed")


def summarise(mechanism: str, rows: list[dict[str, object]]) -> dict[str, object]:
    most = int(binom.ppf(0.999, len(rows), LOOSE))
    stated = float(rows[0]["stated"])  # type: ignore[arg-type]
    tightness = statistics.median(float(r["lower"]) for r in rows) / stated  # type: ignore[arg-type]
    alarms, loose_game, loose_noise = (
        sum(bool(r[name]) for r in rows) for name in ("alarm", "loose_game_alarm", "loose_noise_alarm")
    )
    return {
        "mechanism": mechanism,
        "repetitions": len(rows),
        "stated": round(stated, 4),
        "median_tightness": round(tightness, 3),
        "alarms": alarms,
        "loose_game_alarms": loose_game,
        "loose_noise_alarms": loose_noise,
        "most_loose_alarms_allowed": most,
        "passed": alarms == 0 and max(loose_game, loose_noise) <= most and tightness >= 0.5,
    }


if __name__ == "__main__":
    main()
