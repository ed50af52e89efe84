"""Four hospitals, scikit-learn's interface: fit, evaluate and search under one budget that is kept in a ledger.

Run: python examples/scikit_learn.py
"""

import coterie

heart = coterie.load_heart()
X, y, hospital = heart.X[heart.train], heart.y[heart.train], heart.parties[heart.train]
# no record of these hospitals may lose more than this
ledger = coterie.Spending(limit=(10.0, 1e-4))

promise = coterie.Privacy(
    epsilon=4.0,
    delta=1e-5,
    adjacency="replace-one",
    # only the noised sum of all hospitals is ever seen
    trust="secure-sum",
    ledger=ledger,
)
model = coterie.PrivateLogisticRegression(
    privacy=promise,
    # the public label set; reading it off the data would void the certificate
    classes=heart.labels,
).fit(X, y, parties=hospital)
for name, loss in model.privacy_.party_epsilons.items():
    print(f"{name:15} ε = {loss:.3f} at δ = 1e-05")

# the held-out patients are private as well: what is said about them is noised and charged
held_out = coterie.evaluate(
    model,
    heart.X[heart.test],
    heart.y[heart.test],
    epsilon=4.0,
    delta=1e-5,
    adjacency="replace-one",
    parties=heart.parties[heart.test],
    trust="secure-sum",
    metrics=("accuracy", "auc"),
    ledger=ledger,
)
for name, metric in held_out.metrics.items():
    print(f"{name:15} {metric.value:.3f} ± {metric.standard_error:.3f}")
print(f"spent so far    ε = {ledger.total[0]:.3f}, δ = {ledger.total[1]:.0e}")

try:
    model.fit(X, y, parties=hospital)
except coterie.spending.BudgetError as refusal:
    print(refusal)
