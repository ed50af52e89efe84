"""Writes clinics.csv, a table as it comes out of a hospital's system: semicolons, decimal commas, blanks, and a
category that nobody listed. The patients are invented.

Run: python examples/clinics.py
"""

import csv
from pathlib import Path

import numpy as np

rng = np.random.default_rng(19)
n = 6000
clinic = rng.choice(["north", "south", "west"], size=n, p=[0.5, 0.3, 0.2])
age = rng.integers(18, 100, size=n)
bmi = np.clip(rng.normal(27, 5, size=n), 12, 60)
income = np.round(rng.lognormal(10.2, 0.8, size=n))
smoker = rng.choice(["never", "former", "current"], size=n, p=[0.5, 0.3, 0.2])
insurance = rng.choice(["public", "private", "none", "travel"], size=n, p=[0.7, 0.2, 0.09, 0.01])
score = 0.05 * (age - 60) + 0.08 * (bmi - 27) + 1.2 * (smoker == "current") - 0.9 * (np.log(income) - 10.2) - 1.2
readmitted = np.where(rng.random(n) < 1 / (1 + np.exp(-score)), "yes", "no")
no_bmi, no_smoker = rng.random(n) < 0.08, rng.random(n) < 0.05

names = ("clinic", "age", "bmi", "income", "smoker", "insurance", "readmitted")
for name, rows in (("clinics.csv", range(5000)), ("new-patients.csv", range(5000, n))):
    with Path(name).open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, delimiter=";")
        table.writerow(names)
        for i in rows:
            weight = "" if no_bmi[i] else f"{bmi[i]:.1f}".replace(".", ",")
            smokes = "NA" if no_smoker[i] else smoker[i]
            table.writerow((clinic[i], age[i], weight, f"{income[i]:.0f}", smokes, insurance[i], readmitted[i]))
    print(f"{name}: {len(rows)} patients")
