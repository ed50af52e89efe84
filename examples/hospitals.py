"""Four real hospitals learn one model of heart disease; nobody sees a patient's record.

Run: python examples/hospitals.py
"""

import numpy as np

import coterie
from coterie.algorithms import PenaltyPerturbedADMM
from coterie.privacy.objective import PenaltyPerturbation
from coterie.problems import L2, Logistic, Problem

heart = coterie.load_heart()
hospitals = coterie.Federation.from_arrays(
    heart.X[heart.train],
    heart.y[heart.train],
    parties=heart.parties[heart.train],
    labels=heart.labels,
    intercept=True,
)
plan = coterie.Plan.make(
    PenaltyPerturbedADMM(mechanism=PenaltyPerturbation(penalty=2.0, noise_multiplier=10.0), dual_step=2.0),
    Problem(loss=Logistic(), regulariser=L2(1.0), record_weight=1.0),
    "complete",
    hospitals.facts,
    rounds=10,
    adjacency="replace-one",
).calibrate(epsilon=4.0, delta=1e-5)

for name, size, loss in zip(hospitals.facts.parties, hospitals.facts.sizes, plan.party_epsilons(1e-5), strict=True):
    print(f"{name:15} {size:4} records   ε = {loss:.3f} at δ = 1e-05")

# noise from the operating system's entropy
transcript = coterie.run(plan, hospitals)
held_out = coterie.Federation.from_arrays(
    heart.X[heart.test], heart.y[heart.test], parties=None, labels=heart.labels, intercept=True
)
X, y, _ = held_out.pooled
print(
    f"test error {np.mean((X @ transcript.models[0] > 0) != y):.1%}, majority class {min(y.mean(), 1 - y.mean()):.1%}"
)
