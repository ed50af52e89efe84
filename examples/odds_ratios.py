"""Odds ratios of heart disease from four real hospitals, with and without privacy.

Run: python examples/odds_ratios.py; with --seed 0 it prints the table of docs/intervals.md, which is NOT PRIVATE.
"""

import argparse

import numpy as np
from scipy.special import expit
from scipy.stats import norm

import coterie

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int)
parser.add_argument("--plot", help="write a forest plot to this file")
options = parser.parse_args()

heart = coterie.load_heart()
steps = {"age": 10.0, "sex": 1.0, "exang": 1.0, "oldpeak": 1.0}
STEP = {"age": "a decade", "sex": "men to women", "exang": "yes to no", "oldpeak": "a millimetre"}

# features of the schema are centred and scaled; what a step of each column changes in them
usual = {c.name: [c.categories[0]] if hasattr(c, "categories") else [c.minimum] for c in heart.schema.columns}
places = [heart.feature_names.index(name) for name in steps]
step_sizes = [
    (heart.schema.encode({**usual, name: [usual[name][0] + 1]}) - heart.schema.encode(usual))[0, place] * step
    for (name, step), place in zip(steps.items(), places, strict=True)
]
X, BOUNDS = heart.X[:, places], 0.6

model = coterie.PrivateLogisticRegression(
    epsilon=4.0,
    delta=1e-5,
    adjacency="replace-one",
    # nobody is trusted: noise that pairs of hospitals share cancels in the sum
    trust="pairs",
    colluders=1,
    bounds=BOUNDS,
    classes=["absent", "present"],
    inference=True,
    random_state=options.seed,
).fit(X, heart.y, parties=heart.parties)
found = model.inference_
print(found.summary())

# the same without privacy: maximum likelihood on the same rows
clipped = X * np.minimum(1, BOUNDS / np.linalg.norm(X, axis=1))[:, None]
rows, disease, theta = np.column_stack([clipped, np.ones(len(X))]), heart.y == "present", np.zeros(5)
hessian = np.eye(5)
for _ in range(30):
    p = expit(rows @ theta)
    hessian = rows.T @ ((p * (1 - p))[:, None] * rows)
    theta = theta - np.linalg.solve(hessian, rows.T @ (p - disease))
errors, z = np.sqrt(np.diag(np.linalg.inv(hessian))), norm.ppf(0.975)

print("\nodds ratio, 95 % interval             with privacy               without")
for i, (name, step) in enumerate(zip(steps, step_sizes, strict=True)):
    private = np.exp(step * np.array([found.estimate[i], *found.intervals(0.95)[i]]))
    plain = np.exp(step * (theta[i] + np.array([0, -z, z]) * errors[i]))
    print(f"{name + ', ' + STEP[name]:28}", *("{:8.2f} ({:.2f} to {:.2f})".format(*one) for one in (private, plain)))
if options.plot:
    found.plot().figure.savefig(options.plot, dpi=150)
