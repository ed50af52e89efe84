"""diffprivlib's logistic regression on our split, in an environment of its own (tools/make_diffprivlib_environment.sh).

Its noise is gamma noise in the objective: pure epsilon, one curator.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

ENVIRONMENT = Path(".venv-diffprivlib")
INTERPRETER_VARIABLE = "COTERIE_DIFFPRIVLIB_PYTHON"
NOTE = "diffprivlib: not installed, left out (tools/make_diffprivlib_environment.sh)"
# the interpreter there knows nothing of this package
_PROGRAM = """
import json, sys, warnings
import numpy as np
from diffprivlib.models import LogisticRegression
warnings.simplefilter("ignore")
stored, asked = np.load(sys.argv[1]), json.loads(sys.argv[2])
errors = []
for epsilon in asked["epsilons"]:
    row = []
    for run in range(asked["runs"]):
        model = LogisticRegression(epsilon=epsilon, data_norm=1.0, C=1.0, fit_intercept=False, max_iter=1000,
                                   random_state=asked["seed"] + run)
        model.fit(stored["X"], stored["y"])
        row.append(float(np.mean(model.predict(stored["X_test"]) != stored["y_test"])))
    errors.append(row)
print(json.dumps(errors))
"""


def interpreter() -> Path | None:
    named = os.environ.get(INTERPRETER_VARIABLE)
    path = Path(named) if named else ENVIRONMENT / "bin" / "python"
    return path if path.exists() else None


def test_errors(
    X: np.ndarray, y: np.ndarray, X_test: np.ndarray, y_test: np.ndarray, *, epsilons: Sequence[float], runs: int,
    seed: int,
) -> np.ndarray | None:  # fmt: skip
    """(epsilon, run), or None where there is no such environment."""
    python = interpreter()
    if python is None:
        return None
    with tempfile.TemporaryDirectory() as directory:
        stored = Path(directory) / "adult.npz"
        np.savez(stored, X=X, y=y, X_test=X_test, y_test=y_test)
        asked = json.dumps({"epsilons": list(epsilons), "runs": runs, "seed": seed})
        done = subprocess.run(
            [str(python), "-c", _PROGRAM, str(stored), asked], capture_output=True, text=True, check=True
        )
    return np.array(json.loads(done.stdout.splitlines()[-1]))
