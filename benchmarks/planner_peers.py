"""Planned fits beside what else could be done with the same records and the same promise.

    python benchmarks/planner_peers.py PACKS [--epsilon 1] [--only adult heart]
    python benchmarks/planner_diffprivlib.py PACKS     the same of diffprivlib, which needs scikit-learn 1.5 or older

PACKS is the folder that `benchmarks/planner_packs.py` writes. Two classes; 10 seeds; replace-one; delta is 1e-6, or
1e-5 for at most 20,000 records; of several parties nobody is trusted. Who is compared:

    best fit           all records in one place without privacy, the best l2 of five by its test error
    alone              a party's own records without privacy, the same five; mean over parties
    planned            `PrivateLogisticRegression` with everything left open
    averaged once      every party releases one noised minimiser of its own, and these are averaged
    descent, tuned     the best of 216 settings of noised descent in hindsight (benchmarks/results/planner_grid.npz)
    minima perturbed   approximate minima perturbation (Iyengar et al., 2019): noise in the objective, priced by their
                       theorem; the best of its shares of epsilon in hindsight
    output perturbed   Gaussian noise on the minimiser (Chaudhuri et al., 2011), the best l2 of seven in hindsight

Whatever has a setting that is not by rule is given the best one in hindsight, which nobody has in earnest.
"""

import argparse
import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from planner import stored
from scipy.special import expit
from sklearn.metrics import roc_auc_score

from coterie import PrivateLogisticRegression
from coterie.data.federation import INTERCEPT_SHARE
from coterie.privacy.accountants import gaussian_multiplier

SEEDS = range(10)
PARTIES = 20
# what is left for the noise on an approximate minimiser is nothing here, for Newton's method is exact
SHARES = (0.5, 0.8, 0.9, 0.95, 0.99)
EXACT_L2 = (1e-3, 0.1, 1.0, 10.0, 100.0)
OUTPUT_L2 = tuple(10.0 ** np.arange(-1, 3.1, 2 / 3))


class Data(NamedTuple):
    """Rows of the design, the constant column last, norm 1 at most."""

    name: str
    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    delta: float


class Measured(NamedTuple):
    error: float
    auc: float


def measured(data: Data, models: np.ndarray) -> Measured:
    """Means over models, (models, columns)."""
    scores = data.X_test @ models.T
    errors = np.mean((scores > 0) != data.y_test[:, None], axis=0)
    areas = [roc_auc_score(data.y_test, score) for score in scores.T]
    return Measured(float(np.mean(errors)), float(np.mean(areas)))


def minimiser(X: np.ndarray, y: np.ndarray, l2: float, linear: np.ndarray | None = None) -> np.ndarray:
    """Of the summed logistic loss + (l2/2) |f|^2 + linear . f, by Newton's method with halved steps."""
    b = np.zeros(X.shape[1]) if linear is None else linear

    def value(f: np.ndarray) -> float:
        scores = X @ f
        return float(np.logaddexp(0, scores).sum() - y @ scores + l2 / 2 * f @ f + b @ f)

    f = np.zeros(X.shape[1])
    for _ in range(60):
        p = expit(X @ f)
        gradient = X.T @ (p - y) + l2 * f + b
        if np.linalg.norm(gradient) < 1e-6:
            break
        step = np.linalg.solve((X * (p * (1 - p))[:, None]).T @ X + l2 * np.eye(len(f)), gradient)
        length, before = 1.0, value(f)
        while value(f - length * step) > before - 1e-4 * length * gradient @ step and length > 1e-6:
            length /= 2
        f = f - length * step
    return f


def best(found: Iterator[Measured]) -> Measured:
    """Error and AUC, each at its best."""
    errors, areas = zip(*found, strict=True)
    return Measured(min(errors), max(areas))


# --- without privacy --------------------------------------------------------------------------------------------------


def best_fit(data: Data) -> Measured:
    return best(measured(data, minimiser(data.X, data.y, l2)[None]) for l2 in EXACT_L2)


def alone(data: Data, n_parties: int) -> Measured:
    places = np.arange(len(data.y)) % n_parties
    own = [(data.X[places == party], data.y[places == party]) for party in range(n_parties)]
    return best(measured(data, np.array([minimiser(X, y, l2) for X, y in own])) for l2 in EXACT_L2)


# --- with privacy -----------------------------------------------------------------------------------------------------


def by_estimator(data: Data, epsilon: float, n_parties: int, **settled: Any) -> Measured:
    rows, test = (X[:, :-1] * math.hypot(1, INTERCEPT_SHARE) for X in (data.X, data.X_test))
    parties = None if n_parties == 1 else [f"party {place % n_parties}" for place in range(len(data.y))]
    errors, areas = [], []
    for seed in SEEDS:
        model = PrivateLogisticRegression(
            epsilon=epsilon,
            delta=data.delta,
            adjacency="replace-one",
            classes=(0, 1),
            bounds=1.0,
            random_state=seed,
            **settled,
        )
        model.fit(rows, data.y.astype(int), parties=parties)
        scores = model.decision_function(test)
        errors.append(np.mean((scores > 0) != data.y_test))
        areas.append(roc_auc_score(data.y_test, scores))
    return Measured(float(np.mean(errors)), float(np.mean(areas)))


def tuned_descent(data: Data, epsilon: float, n_parties: int) -> Measured:
    """At the noise in the stored grid that is nearest to that of the promise."""
    own = stored()[data.name]
    noise = 2 * gaussian_multiplier(epsilon, data.delta) * math.sqrt(n_parties)
    level = int(np.argmin(np.abs(np.log(own.noises / noise))))
    error, auc = own.hindsight
    return Measured(float(error[level]), float(auc[level]))


def minima_perturbed(data: Data, epsilon: float) -> Measured:
    """Their algorithm 1 for L = 1, beta = 1/4 and Hessians of records of rank 1, minima being exact: noise of standard
    deviation 2 (1 + sqrt(2 ln 1/delta)) / (share epsilon) on the sum, l2 = 2 beta / ((1 - share) epsilon)."""

    def one(share: float) -> Measured:
        std = 2 * (1 + math.sqrt(2 * math.log(1 / data.delta))) / (share * epsilon)
        l2 = 0.5 / ((1 - share) * epsilon)
        return measured(data, np.array([minimiser(data.X, data.y, l2, std * noise) for noise in _noises(data)]))

    return best(one(share) for share in SHARES)


def output_perturbed(data: Data, epsilon: float) -> Measured:
    """The minimiser of a sum moves by 2/l2 at most where a record is replaced."""

    def one(l2: float) -> Measured:
        std = gaussian_multiplier(epsilon, data.delta) * 2 / l2
        exact = minimiser(data.X, data.y, l2)
        return measured(data, np.array([exact + std * noise for noise in _noises(data)]))

    return best(one(l2) for l2 in OUTPUT_L2)


def _noises(data: Data) -> list[np.ndarray]:
    return [np.random.default_rng(seed).standard_normal(data.X.shape[1]) for seed in SEEDS]


# --- the table --------------------------------------------------------------------------------------------------------


def rows(data: Data, epsilon: float) -> Iterator[tuple[str, Callable[[], Measured]]]:
    yield "best fit, no privacy", lambda: best_fit(data)
    yield f"alone, 1 of {PARTIES}, no privacy", lambda: alone(data, PARTIES)
    yield "planned, N = 1", lambda: by_estimator(data, epsilon, 1)
    yield "descent, tuned, N = 1", lambda: tuned_descent(data, epsilon, 1)
    yield "minima perturbed, N = 1", lambda: minima_perturbed(data, epsilon)
    yield "output perturbed, N = 1", lambda: output_perturbed(data, epsilon)
    yield f"planned, N = {PARTIES}", lambda: by_estimator(data, epsilon, PARTIES)
    yield f"descent, tuned, N = {PARTIES}", lambda: tuned_descent(data, epsilon, PARTIES)
    yield f"averaged once, N = {PARTIES}", lambda: by_estimator(data, epsilon, PARTIES, algorithm="one-release-average")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packs", type=Path)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0])
    parser.add_argument("--only", nargs="+")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for path in sorted(options.packs.glob("*.npz")):
        with np.load(path) as packed:
            if int(packed["n_classes"]) != 2 or (options.only and path.stem not in options.only):
                continue
            arrays = (packed[name].astype(float) for name in ("X", "y", "X_test", "y_test"))
            data = Data(path.stem, *arrays, float(packed["delta"]))
        for epsilon in options.epsilon:
            for name, fit in rows(data, epsilon):
                error, auc = fit()
                print(f"| {data.name} | {epsilon:g} | {name} | {100 * error:.2f} | {auc:.3f} |", flush=True)


if __name__ == "__main__":
    main()
