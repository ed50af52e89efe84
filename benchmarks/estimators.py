"""Test errors of `PrivateLogisticRegression` with every setting left open, by whom the parties trust.

    python benchmarks/estimators.py [--census-seeds 3] [--heart-seeds 10]

Census data at one party and at five, heart disease at four hospitals, replace-one, rows encoded by the public schemas.
Prints the table of docs/estimators.md: means over seeds of the noise and, of more than one, their standard deviation.
"""

import argparse
import warnings

import numpy as np

from coterie import Privacy, PrivateLogisticRegression
from coterie.data import load_adult, load_heart, partition
from coterie.errors import PrivacyWarning

TRUSTS = ("none", "curator", "secure-sum")


def errors(data, parties, *, epsilon: float, delta: float, trust: str, seeds: int) -> np.ndarray:
    """In percent, one a seed; without privacy there is one."""
    found = []
    for seed in range(1 if np.isinf(epsilon) else seeds):
        model = PrivateLogisticRegression(
            privacy=Privacy(epsilon=epsilon, delta=delta, adjacency="replace-one", trust=trust),
            classes=data.labels,
            random_state=None if np.isinf(epsilon) else seed,
        ).fit(data.X[data.train], data.y[data.train], parties=parties)
        found.append(100 * np.mean(model.predict(data.X[data.test]) != data.y[data.test]))
    return np.array(found)


def row(name: str, data, parties, *, epsilon: float, delta: float, seeds: int) -> str:
    exact = errors(data, parties, epsilon=np.inf, delta=delta, trust="none", seeds=1)
    cells = [f"{exact.mean():.1f}"]
    for trust in TRUSTS:
        found = errors(data, parties, epsilon=epsilon, delta=delta, trust=trust, seeds=seeds)
        cells.append(f"{found.mean():.1f} ± {found.std():.1f}")
    return f"| {name}, ε = {epsilon:g} | {' | '.join(cells)} |"


def majority(data) -> float:
    """Error in percent of always answering the class that most training records have."""
    most = max(data.labels, key=lambda label: np.sum(data.y[data.train] == label))
    return 100 * np.mean(data.y[data.test] != most)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--census-seeds", type=int, default=3)
    parser.add_argument("--heart-seeds", type=int, default=10)
    arguments = parser.parse_args()
    # seeds make every fit NOT PRIVATE, and say so each time
    warnings.simplefilter("ignore", PrivacyWarning)
    census, heart = load_adult(preprocessing="public"), load_heart()
    print(f"majority class: census {majority(census):.1f} %, heart {majority(heart):.1f} %")
    print('| | no privacy | `trust="none"` | `"curator"` | `"secure-sum"` |\n|---|---|---|---|---|')
    for n_parties, name in ((1, "census, 1 party"), (5, "census, 5 parties")):
        parties = partition.evenly(len(census.train), n_parties, seed=0)
        print(row(name, census, parties, epsilon=1.0, delta=1e-6, seeds=arguments.census_seeds), flush=True)
    assert heart.parties is not None
    hospitals = heart.parties[heart.train]
    for epsilon in (1.0, 4.0):
        line = row("heart, 4 parties", heart, hospitals, epsilon=epsilon, delta=1e-5, seeds=arguments.heart_seeds)
        print(line, flush=True)


if __name__ == "__main__":
    main()
