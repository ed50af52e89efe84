"""diffprivlib's logistic regression on the data sets of benchmarks/planner_peers.py, in an environment of its own.

    pip install diffprivlib==0.6.6 scikit-learn==1.5.2
    python benchmarks/planner_diffprivlib.py PACKS [--epsilon 1] [--only adult heart]

All records in one place, pure epsilon, 10 seeds, everything at its defaults but for the norm of rows, which is known.
"""

import argparse
import warnings
from pathlib import Path

import numpy as np
from diffprivlib.models import LogisticRegression  # type: ignore[import-not-found]
from sklearn.metrics import roc_auc_score


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packs", type=Path)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0])
    parser.add_argument("--only", nargs="+")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for path in sorted(options.packs.glob("*.npz")):
        packed = np.load(path)
        if int(packed["n_classes"]) != 2 or (options.only and path.stem not in options.only):
            continue
        X, y, X_test, y_test = (packed[name].astype(float) for name in ("X", "y", "X_test", "y_test"))
        for epsilon in options.epsilon:
            errors, areas = [], []
            for seed in range(10):
                # the constant column is in the design
                model = LogisticRegression(epsilon=epsilon, data_norm=1.0, fit_intercept=False, random_state=seed)
                scores = model.fit(X, y.astype(int)).decision_function(X_test)
                errors.append(np.mean((scores > 0) != y_test))
                areas.append(roc_auc_score(y_test, scores))
            mean = f"{100 * np.mean(errors):.2f} | {np.mean(areas):.3f}"
            print(f"| {path.stem} | {epsilon:g} | diffprivlib, N = 1 | {mean} |", flush=True)


if __name__ == "__main__":
    main()
