"""What a fitted estimator says about its privacy, for programs; `certificate_` says it for people."""

import dataclasses
import math

from coterie.certificate import Certificate
from coterie.facts import Facts
from coterie.plan import Plan
from coterie.promise import Privacy


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitPrivacy:
    """`epsilon` is the loss of this fit against the strongest observer; `total_epsilon` adds what the ledger knows.

    views: loss by observer. public_facts: what was taken as known to everybody, with `n_columns` of the design and
    where each of the `bounds` came from. verdict: what must be read before any number.
    """

    epsilon: float
    delta: float
    adjacency: str
    unit: str
    party_epsilons: dict[str, float]
    views: dict[str, float]
    total_epsilon: float
    total_delta: float
    reproducible: bool
    public_facts: dict[str, object]
    verdict: tuple[str, ...]


def describe(plan: Plan, certificate: Certificate, *, constant_column: bool) -> FitPrivacy:
    facts = plan.facts
    public: dict[str, object] = {**certificate.document["public_facts"], "constant_column": constant_column}
    public["n_columns"] = public.pop("n_features")
    public["bounds"] = certificate.document["bounds"]
    return FitPrivacy(
        epsilon=certificate.epsilon,
        delta=certificate.delta,
        adjacency=plan.adjacency,
        unit=plan.unit,
        party_epsilons=dict(zip(facts.parties, certificate.party_epsilons, strict=True)),
        views={view.observer: view.epsilon for view in certificate.views},
        total_epsilon=certificate.total_epsilon,
        total_delta=certificate.total_delta,
        reproducible=certificate.not_private,
        public_facts=public,
        verdict=certificate.verdict,
    )


def no_privacy(privacy: Privacy, facts: Facts) -> FitPrivacy:
    """Of the exact optimum."""
    return FitPrivacy(
        epsilon=math.inf,
        delta=privacy.delta,
        adjacency=privacy.adjacency,
        unit=privacy.unit,
        party_epsilons=dict.fromkeys(facts.parties, math.inf),
        views={"everybody": math.inf},
        total_epsilon=math.inf,
        total_delta=privacy.delta,
        reproducible=True,
        public_facts={"parties": list(facts.parties), "sizes": list(facts.sizes), "n_columns": facts.n_features},
        verdict=("NOT PRIVATE: epsilon is infinite, the exact optimum was released",),
    )
