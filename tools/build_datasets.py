"""Build the compressed data sets that the package carries from the files that UCI publishes.

    python tools/build_datasets.py SOURCE

SOURCE holds adult/adult.{data,test,names} and heart/processed.{cleveland,hungarian,switzerland,va}.data.
Each column becomes one array: integers or floats, or uint8 codes into "<column>.categories" with 255 for missing.
The same input gives the same bytes.
"""

import argparse
from pathlib import Path

import numpy as np

MISSING = 255
FILES = Path(__file__).resolve().parents[1] / "src" / "coterie" / "data" / "files"

ADULT_ROWS = {"adult.data": 32_561, "adult.test": 16_281}
ADULT_LABELS = ["<=50K", ">50K"]

HEART_ROWS = {"cleveland": 303, "hungarian": 294, "switzerland": 123, "va": 200}
HOSPITALS = ["Cleveland", "Hungary", "Switzerland", "VA Long Beach"]
HEART_COLUMNS = ["age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak"]
HEART_COLUMNS += ["slope", "ca", "thal", "num"]
# heart-disease.names: cp counts from 1, restecg from 0
HEART_CATEGORIES = {
    "cp": (1, ["typical angina", "atypical angina", "non-anginal pain", "asymptomatic"]),
    "restecg": (0, ["normal", "ST-T wave abnormality", "left ventricular hypertrophy"]),
}
# missing for most patients outside Cleveland
HEART_LEFT_OUT = {"slope", "ca", "thal"}


def read_rows(path: Path, n_rows: int) -> list[list[str]]:
    lines = path.read_text(encoding="ascii").splitlines()
    rows = [[cell.strip() for cell in line.split(",")] for line in lines if line.strip() and not line.startswith("|")]
    if len(rows) != n_rows:
        raise SystemExit(f"{path.name}: {len(rows)} rows, {n_rows} expected")
    return rows


def codes(cells: list[str], categories: list[str]) -> np.ndarray:
    position = {category: code for code, category in enumerate(categories)} | {"?": MISSING}
    return np.array([position[cell] for cell in cells], dtype=np.uint8)


def adult_columns(names_file: Path) -> dict[str, list[str] | None]:
    """Column name -> documented categories (None for numbers), from the last lines of adult.names."""
    columns: dict[str, list[str] | None] = {}
    for line in names_file.read_text(encoding="ascii").splitlines():
        name, colon, documented = line.partition(":")
        if colon and not line.startswith("|"):
            values = [value.strip() for value in documented.strip().rstrip(".").split(",")]
            columns[name] = None if values == ["continuous"] else values
    if len(columns) != 14:
        raise SystemExit(f"{names_file.name}: {len(columns)} columns, 14 expected")
    return columns


def build_adult(source: Path) -> dict[str, np.ndarray]:
    rows = [row for name, n_rows in ADULT_ROWS.items() for row in read_rows(source / name, n_rows)]
    arrays: dict[str, np.ndarray] = {}
    for number, (name, categories) in enumerate(adult_columns(source / "adult.names").items()):
        cells = [row[number] for row in rows]
        if categories is None:
            arrays[name] = np.array(cells, dtype=np.int32)
        else:
            arrays[name] = codes(cells, categories)
            arrays[f"{name}.categories"] = np.array(categories)
    arrays["income"] = codes([row[14].rstrip(".") for row in rows], ADULT_LABELS)
    arrays["income.categories"] = np.array(ADULT_LABELS)
    return arrays


def build_heart(source: Path) -> dict[str, np.ndarray]:
    tables = [read_rows(source / f"processed.{name}.data", n_rows) for name, n_rows in HEART_ROWS.items()]
    rows = [row for table in tables for row in table]
    arrays: dict[str, np.ndarray] = {}
    for number, name in enumerate(HEART_COLUMNS):
        if name in HEART_LEFT_OUT:
            continue
        values = np.array([np.nan if row[number] == "?" else float(row[number]) for row in rows])
        if name in HEART_CATEGORIES:
            first, categories = HEART_CATEGORIES[name]
            arrays[name] = np.where(np.isnan(values), MISSING, np.nan_to_num(values) - first).astype(np.uint8)
            arrays[f"{name}.categories"] = np.array(categories)
        else:
            arrays[name] = values
    arrays["hospital"] = np.repeat(np.arange(4, dtype=np.uint8), [len(table) for table in tables])
    arrays["hospital.categories"] = np.array(HOSPITALS)
    return arrays


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="folder with the UCI files")
    parser.add_argument("--output", type=Path, default=FILES, help="folder to write adult.npz and heart.npz to")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    for name, build in (("adult", build_adult), ("heart", build_heart)):
        np.savez_compressed(arguments.output / f"{name}.npz", **build(arguments.source / name))


if __name__ == "__main__":
    main()
