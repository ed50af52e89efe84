#!/bin/sh
# Run the estimators' contract on other versions of scikit-learn, each in a virtual environment of its own:
#     tools/check_sklearn_versions.sh [1.6] [1.7] ...          the oldest supported version when none is given
set -eu
cd "$(dirname "$0")/.."
pins=$(mktemp)
trap 'rm -f "$pins"' EXIT
grep -v -i '^scikit-learn==' constraints.txt > "$pins"
for version in "${@:-1.6}"; do
    environment="build/sklearn-$version"
    test -x "$environment/bin/python" || "${PYTHON:-python3}" -m venv "$environment"
    "$environment/bin/python" -m pip install --quiet --constraint "$pins" --editable '.[dev]' "scikit-learn==$version.*"
    "$environment/bin/python" -m pytest -m "not slow" tests/contract/test_estimators_sklearn.py
done
