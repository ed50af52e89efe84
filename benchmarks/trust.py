"""What parties who trust nobody pay for it: error against the number of parties, by whom they trust.

    python benchmarks/trust.py [--quick] [--json] [--figure docs/images/trust.png]

Census data at epsilon = 1, delta = 1e-6, replace-one, all settings by the rules, 10 seeds: every party noises its own
messages; noise that cancels between pairs, with nobody and with a third of the parties colluding; a curator. And four
hospitals at epsilon = 1, delta = 1e-5, 100 seeds. Quick: 3 seeds and 20 parties at most. The time in which one of 100
parties draws its pairs' noise of a round is told beside it.
"""

import argparse
import json
import time

import numpy as np

from coterie import rules
from coterie.data import Federation, load_adult, load_heart, partition
from coterie.engines.in_process import run
from coterie.network.channels import PairwiseSum
from coterie.privacy.noise import KeyedEntropy, Seeded
from coterie.privacy.pairs import PairStreams
from coterie.problems import L2, Logistic, Problem
from coterie.promise import Privacy

N_PARTIES = (5, 10, 20, 50, 100)
PROBLEM = Problem(loss=Logistic(), regulariser=L2(1.0), record_weight=1.0)
KINDS = {
    "independent noise": lambda n: {"trust": "none"},
    "pairs, a third collude": lambda n: {"trust": "pairs", "colluders": n // 3},
    "pairs, nobody colludes": lambda n: {"trust": "pairs", "colluders": 0},
    "curator": lambda n: {"trust": "curator"},
}


def errors(train: Federation, test: Federation, privacy: Privacy, seeds: int) -> np.ndarray:
    """Test errors in percent, one a seed."""
    X, y, _ = test.pooled
    plan = rules.make_plan(PROBLEM, train.facts, privacy, rules.Settled())
    models = run(plan, train, noise=Seeded(0), repeats=seeds).models
    return 100 * np.mean((models @ X.T > 0) != y, axis=1)


def federations(data, parties):
    def one(rows, names):
        return Federation.from_arrays(data.X[rows], data.y[rows], parties=names, labels=data.labels, intercept=True)

    return one(data.train, parties), one(data.test, None)


def census(seeds: int, most_parties: int) -> list[dict]:
    data, rows = load_adult(preprocessing="public"), []
    for n in (n for n in N_PARTIES if n <= most_parties):
        train, test = federations(data, partition.evenly(len(data.train), n, seed=0))
        for kind, trust in KINDS.items():
            found = errors(train, test, Privacy(epsilon=1.0, delta=1e-6, adjacency="replace-one", **trust(n)), seeds)
            rows.append({"parties": n, "kind": kind, "error": float(found.mean()), "spread": float(found.std())})
            print(f"census, {n:3} parties, {kind:24} {found.mean():6.2f} % ± {found.std():.2f}", flush=True)
    return rows


def hospitals(seeds: int) -> list[dict]:
    data, rows = load_heart(), []
    train, test = federations(data, data.parties[data.train])
    trusts = {**KINDS, "pairs, one colludes": lambda n: {"trust": "pairs", "colluders": 1}}
    del trusts["pairs, a third collude"]
    for kind, trust in trusts.items():
        found = errors(train, test, Privacy(epsilon=1.0, delta=1e-5, adjacency="replace-one", **trust(4)), seeds)
        rows.append({"kind": kind, "error": float(found.mean()), "spread": float(found.std())})
        print(f"four hospitals, {kind:24} {found.mean():6.2f} % ± {found.std():.2f}", flush=True)
    return rows


def drawing_ms(n: int = 100, d: int = 105) -> float:
    """Of one party's pairs in one round."""
    noise = PairwiseSum(colluders=n // 3).pairs(n)
    streams = PairStreams(0, {j: KeyedEntropy(bytes([j]) * 32) for j in range(1, n)}, noise)
    streams.steps(0, d)
    started = time.perf_counter()
    for t in range(1, 21):
        streams.steps(t, d)
    return 1e3 * (time.perf_counter() - started) / 20


def draw(rows: list[dict], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    styles = (("tab:red", "o", "-"), ("tab:blue", "s", "-"), ("tab:blue", "^", "--"), ("black", "", ":"))
    for kind, (colour, marker, line) in zip(KINDS, styles, strict=True):
        of_kind = [row for row in rows if row["kind"] == kind]
        n, error, spread = (np.array([row[name] for row in of_kind]) for name in ("parties", "error", "spread"))
        axes.plot(n, error, color=colour, marker=marker, linestyle=line, markersize=5, label=kind)
        axes.fill_between(n, error - spread, error + spread, color=colour, alpha=0.12, linewidth=0)
    axes.set_xscale("log")
    axes.set_xticks(N_PARTIES, [str(n) for n in N_PARTIES])
    axes.minorticks_off()
    axes.set_xlabel("parties among whom the same records are divided")
    axes.set_ylabel("test error, %")
    axes.set_title("Census data, ε = 1, δ = 10⁻⁶: what trusting nobody costs", fontsize=10)
    axes.legend(frameon=False, fontsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--figure")
    arguments = parser.parse_args()
    rows = census(3 if arguments.quick else 10, 20 if arguments.quick else 100)
    heart = hospitals(10 if arguments.quick else 100)
    milliseconds = drawing_ms()
    print(f"one of 100 parties draws its pairs' noise in {milliseconds:.2f} ms a round")
    if arguments.json:
        print(json.dumps({"census": rows, "hospitals": heart, "drawing_ms": milliseconds}))
    if arguments.figure:
        draw(rows, arguments.figure)


if __name__ == "__main__":
    main()
