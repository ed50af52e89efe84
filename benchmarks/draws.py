"""Noise on a grid against noise as doubles: time of a draw, for every law and source, in blocks as runs draw them.

    python benchmarks/draws.py [--json] [--quick]

The doubles are what a plain program draws: uniform numbers of 53 bits from one NumPy generator through SciPy's normal
quantile, and for gamma vectors a direction and a sum of exponentials. Ours have exactly the law of the rounded
continuous draw, and are addressed by what they are for.
"""

import time

import figures
import numpy as np
from figures import RATIO, Figure
from scipy.special import ndtri

from coterie.privacy.noise import KeyedEntropy, Seeded, SystemEntropy

D, KEYS = 105, [(repeat, party, t) for t in range(10) for repeat in range(10) for party in range(20)]
SOURCES = {"system entropy": SystemEntropy(), "a seed": Seeded(0), "a key": KeyedEntropy()}


def fastest(work, turns: int) -> float:
    work()
    times = []
    for _ in range(turns):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def plain(law: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    normal = ndtri(rng.random((len(KEYS), D)) + 2.0**-54)
    if "gaussian" in law:
        return normal
    norm = -np.log1p(-rng.random((len(KEYS), D))).sum(axis=1, keepdims=True)
    return norm * normal / np.linalg.norm(normal, axis=1, keepdims=True)


def measure(quick: bool = False) -> dict:
    shown, result, turns = [], {}, 5 if quick else 20
    for law in ("rounded-gaussian", "rounded-gamma-sphere"):
        baseline = fastest(lambda law=law: plain(law), turns)
        for name, source in SOURCES.items():
            ours = fastest(lambda s=source, law=law: s.draw_block(law, D, KEYS, "output", 20), turns)
            result[f"{law}, {name}"] = {"ns_a_number": ours / (len(KEYS) * D) * 1e9, "ratio": ours / baseline}
            # a cipher of its own for each draw, for checkpoints
            limit = None if name == "a key" else 3.0
            shown.append(Figure(f"draws: {law} over doubles, {name}", ours / baseline, RATIO, at_most=limit))
    return {"figures": [figure.row() for figure in shown], **result}


def tell(result: dict) -> str:
    rows = ((name, values) for name, values in result.items() if name != "figures")
    return "\n".join(f"{name}: {v['ns_a_number']:.1f} ns a number, {v['ratio']:.2f} times doubles" for name, v in rows)


if __name__ == "__main__":
    figures.main(measure, __doc__, tell)
