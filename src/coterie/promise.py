"""What is promised to the people in the data: the words in which estimators, specs and rules speak of privacy."""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any, get_args

from coterie.charts import table_html
from coterie.errors import InputError
from coterie.privacy.accountants import check_delta, check_epsilon
from coterie.privacy.events import Adjacency, Unit, check_adjacency
from coterie.spending import Spending, Terms
from coterie.values import whole_number

TRUST = ("none", "pairs", "curator", "secure-sum")
UNITS = get_args(Unit)


def check_trust(trust: str, colluders: int | None) -> None:
    if trust not in TRUST:
        raise InputError(f"trust: got {trust!r}; one of {', '.join(TRUST)} is needed")
    if (colluders is not None) != (trust == "pairs"):
        got = "missing" if colluders is None else f"got {colluders!r}"
        raise InputError(
            f"colluders: {got} with trust {trust!r}; trust 'pairs' needs to know how many parties may put "
            "together what they know, and nothing else does"
        )
    if colluders is not None:
        whole_number("colluders", colluders, at_least=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Privacy:
    """A privacy loss of at most (epsilon, delta), and what that is a loss of.

    epsilon: the noise is the least that keeps it. Infinity: no noise. None, in specs: the noise is what the algorithm
        says, and the loss is what it comes to.
    delta: strictly between 0 and 1.
    adjacency: "replace-one" or "zero-out": what may happen to the protected unit.
    unit: what is protected: a "record", or all records of a "party".
    records_per_person: how many records one person may have at a party; all of them are protected.
    people_span_parties: whether one person may have records at several parties.
    trust: "none": every party noises what it sends, and all of it is seen. "pairs": so it is, with noise that pairs of
        parties share and that cancels in the sum. "curator", "secure-sum": one noise on the sum, and only the noised
        sum is seen.
    colluders: with "pairs", how many parties may put together what they know; must be said.
    observer: whom the loss is meant against, where the algorithm offers a choice; the strongest when left open.
    tuning: what choosing the settings cost, in words, for the certificate.
    ledger: a `Spending` in which everything that is released from these data adds up.

    `get_params` and `set_params` are scikit-learn's, so that searches reach `privacy__epsilon`.
    """

    epsilon: float | None
    delta: float
    adjacency: Adjacency
    unit: Unit = "record"
    records_per_person: int = 1
    people_span_parties: bool = False
    trust: str = "none"
    colluders: int | None = None
    observer: str | None = None
    tuning: str | None = None
    ledger: Spending | None = None

    def __post_init__(self) -> None:
        if self.epsilon is not None and not self.exact:
            check_epsilon(self.epsilon)
        check_delta(self.delta)
        check_adjacency(self.adjacency)
        if self.unit not in UNITS:
            raise InputError(f"unit: got {self.unit!r}; one of {', '.join(UNITS)} is needed")
        check_trust(self.trust, self.colluders)
        whole_number("records_per_person", self.records_per_person, at_least=1)
        if not isinstance(self.people_span_parties, bool):
            raise InputError(f"people_span_parties: got {self.people_span_parties!r}; True or False is needed")
        if self.unit == "party" and (self.records_per_person > 1 or self.people_span_parties):
            raise InputError("unit: got 'party'; records_per_person and people_span_parties are for unit 'record'")
        if self.tuning is not None and not (isinstance(self.tuning, str) and self.tuning.strip()):
            raise InputError(f"tuning: got {self.tuning!r}; a text that says what choosing the settings cost is needed")
        if self.ledger is not None and not isinstance(self.ledger, Spending):
            raise InputError(f"ledger: got a {type(self.ledger).__name__}; a coterie.Spending or None is needed")

    @property
    def exact(self) -> bool:
        """Nothing is promised, so nothing is noised."""
        return isinstance(self.epsilon, float) and self.epsilon == math.inf

    @property
    def sums(self) -> bool:
        """What the parties send is added up, and noise is sized for the sum."""
        return self.trust != "none"

    def terms(self, parties: Iterable[str], sizes: Iterable[int] | None = None) -> Terms:
        """What a ledger adds up; `sizes` are left out where other rows of the same parties are looked at."""
        return Terms.of(
            self.adjacency,
            self.unit,
            parties,
            sizes,
            records_per_person=self.records_per_person,
            people_span_parties=self.people_span_parties,
        )

    def _repr_html_(self) -> str:
        said = [(field.name, getattr(self, field.name), field.default) for field in dataclasses.fields(self)]
        rows = [(name, str(value)) for name, value, default in said if value != default]
        return table_html(("", ""), rows, "Privacy, as promised; all else as usual")

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def set_params(self, **params: Any) -> "Privacy":
        """In place, as scikit-learn has it; all of them, or none where one is refused."""
        unknown = sorted(set(params) - set(self.get_params()))
        if unknown:
            raise InputError(f"privacy: unknown parameter {unknown[0]!r}; one of {', '.join(self.get_params())}")
        changed = dataclasses.replace(self, **params)
        for name in params:
            object.__setattr__(self, name, getattr(changed, name))
        return self
