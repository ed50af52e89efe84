#!/bin/sh
# Make .venv-diffprivlib, the environment in which `coterie reproduce frontier` runs diffprivlib.
# It is kept apart because diffprivlib pins versions of its own.
set -eu
cd "$(dirname "$0")/.."
"${PYTHON:-python3}" -m venv .venv-diffprivlib
.venv-diffprivlib/bin/python -m pip install --quiet "diffprivlib==0.6.6" "scikit-learn<1.6" "numpy<2.1"
.venv-diffprivlib/bin/python -c "import diffprivlib; print('diffprivlib', diffprivlib.__version__)"
