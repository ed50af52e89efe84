"""How good a classifier is on the parties' own held-out records, told privately.

Two tables of counts are all that is released, each under Gaussian noise that its grant adds (`privacy.tables`):

    answers   (true class, predicted class): accuracy and the error of each class
    scores    (class, is it the true one, score bin) on a public grid: AUC and calibration

One record sits in one cell of `answers`, and in one cell per class of `scores` (one in all for two classes), so
replacing it moves `answers` by sqrt(2) and `scores` by sqrt(2 K) in the 2-norm; zeroing it out by 1 and sqrt(K). A unit
of privacy with k records moves them k times as far; where the unit is a party, k is its number of records. Somebody
with records at all N parties moves their sum N times as far, and N tables that are noised one by one sqrt(N) times
(`Channel.all_together`).
Everything else is computed from the noised tables. The numbers of held-out records of the parties are public, as the
sizes of shards are. With `public=True` nothing is noised and nothing is charged: for records that everybody may know.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal

import jax
import numpy as np

from coterie.certificate import shown_loss
from coterie.data.checks import plain_array, same_length, whole_number
from coterie.errors import InputError
from coterie.evaluation.tables import (
    TABLE_OF,
    Cells,
    Metric,
    calibration_error,
    checked_metrics,
    count,
    majority_error,
    metric,
)
from coterie.network.channels import SumChannel, sum_channel
from coterie.privacy.accountants import check_delta, check_epsilon, gaussian_epsilon, least_noise
from coterie.privacy.events import check_adjacency
from coterie.privacy.grants import ONE_NOISE, SumNoises
from coterie.privacy.noise import NoiseSource, SystemEntropy, draw_many, law_for
from coterie.privacy.release import unit_noise
from coterie.privacy.tables import TableGrant
from coterie.promise import check_trust
from coterie.spending import Spending, Terms

BINS = 20
Trust = Literal["none", "pairs", "curator", "secure-sum"]


@dataclasses.dataclass(frozen=True, repr=False)
class Evaluation:
    """Metrics by name, and what all of them together cost. `verdict` must be read before any number.

    majority_error: of always answering the most frequent class; calibration_error: mean distance between what was
    predicted and what was true, over the records. Both are of the same tables, and cost nothing more.
    """

    metrics: dict[str, Metric]
    epsilon: float
    delta: float
    adjacency: str | None
    total_epsilon: float
    total_delta: float
    public: bool
    reproducible: bool
    majority_error: float | None = None
    calibration_error: float | None = None
    classes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return evaluation_text(self)

    def __getitem__(self, name: str) -> Metric:
        return self.metrics[name]

    @property
    def verdict(self) -> tuple[str, ...]:
        if self.reproducible:
            return ("NOT PRIVATE: the noise came from a seed, and whoever knows the seed can remove it",)
        return ("NOT PRIVATE: exact metrics of records that were declared public",) if self.public else ()


def evaluate(
    model: Any,
    X: Any,
    y: Any,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    adjacency: str | None = None,
    parties: Any = None,
    metrics: Sequence[str] = tuple(TABLE_OF),
    trust: Trust = "none",
    colluders: int | None = None,
    unit: Literal["record", "party"] = "record",
    records_per_person: int = 1,
    people_span_parties: bool = False,
    bins: int = BINS,
    public: bool = False,
    ledger: Spending | None = None,
    noise: NoiseSource | None = None,
) -> Evaluation:
    """Metrics of a fitted classifier on held-out rows X with labels y.

    epsilon, delta, adjacency: the loss of everything released here together, each needed unless `public`.
    parties: the party of each row. With trust "none" every party noises its own tables; else one noise covers the sum,
        or with "pairs" nearly one, if at most `colluders` parties put together what they know.
    """
    names = checked_metrics(metrics, model)
    bins = whole_number("bins", bins, at_least=2)
    check_trust(trust, colluders)
    channel = sum_channel(trust, colluders)
    cells = count(model, X, y, {TABLE_OF[name] for name in names}, bins)
    if public:
        if (epsilon, delta, adjacency, ledger) != (None, None, None, None):
            raise InputError("public: got True with epsilon, delta, adjacency or ledger; public records cost nothing")
        found = {name: metric(name, cells[TABLE_OF[name]].table(), 0.0, (0.0, 0.0)) for name in names}
        baselines = _baselines(model, {table: cells[table].table() for table in cells}, names)
        return Evaluation(found, 0.0, 0.0, None, 0.0, 0.0, public=True, reproducible=False, **baselines)
    if epsilon is None or delta is None or adjacency is None:
        raise InputError(
            f"epsilon, delta, adjacency: got {epsilon}, {delta}, {adjacency}; all three are needed, or public=True"
        )
    check_epsilon(epsilon)
    check_delta(delta)
    check_adjacency(adjacency)
    _check_unit(unit, records_per_person, people_span_parties)
    if people_span_parties and parties is None:
        raise InputError("parties: got None with people_span_parties; the noise depends on how many parties there are")
    names_of_parties, party_of, sizes = _parties(parties, len(np.asarray(y)))
    # sizes are of these rows, which other releases of the same parties need not have been of
    terms = Terms.of(
        adjacency,
        unit,
        names_of_parties,
        records_per_person=records_per_person,
        people_span_parties=bool(people_span_parties),
    )
    if channel is not None:
        channel.check(len(sizes))
    of_sum = ONE_NOISE if channel is None else channel.noise(len(sizes))
    grants = calibrated(cells, epsilon, delta, adjacency, records_moved(terms, sizes, channel), of_sum)
    spent = _loss(grants, delta)
    source = SystemEntropy() if noise is None else noise
    past: tuple[tuple[str, float, float], ...] = ()
    # whoever knows the seed can take the noise off
    charged = math.inf if source.reproducible else spent
    if ledger is not None:
        past = ledger.charge(f"evaluation: {', '.join(names)}", charged, delta, terms=terms)
    found, released = {}, {}
    for t, (table, grant) in enumerate(grants.items()):
        by_party = cells[table].tables(party_of, len(sizes))
        noised = _released(grant, by_party.reshape(len(sizes), -1), channel, source, t).reshape(by_party.shape[1:])
        released[table] = noised
        price = gaussian_epsilon([(grant.event, 1)], delta), delta
        noise_std = grant.scales.noise_std * (math.sqrt(len(sizes)) if channel is None else of_sum.total)
        for name in names:
            if TABLE_OF[name] == table:
                found[name] = metric(name, noised, noise_std, price)
    return Evaluation(
        {name: found[name] for name in names},
        spent,
        delta,
        adjacency,
        charged + sum(eps for _, eps, _ in past),
        delta + sum(d for _, _, d in past),
        public=False,
        reproducible=source.reproducible,
        **_baselines(model, released, names),
    )


def _baselines(model: Any, tables: dict[str, np.ndarray], names: Sequence[str]) -> dict[str, Any]:
    told: dict[str, Any] = {"classes": tuple(map(str, getattr(model, "labels", None) or model.classes_))}
    told |= {"majority_error": majority_error(tables["answers"])} if "answers" in tables else {}
    return {**told, **({"calibration_error": calibration_error(tables["scores"])} if "calibration" in names else {})}


def evaluation_text(found: Evaluation) -> str:
    """For people: one line a metric, against answering the most frequent class."""
    lines = [("", "model", "noise", "majority class")]

    def percent(value: float) -> str:
        return f"{100 * value:.2f} %"

    for name, told in found.metrics.items():
        if name == "accuracy":
            other = "" if found.majority_error is None else percent(found.majority_error)
            lines.append(("error", percent(1 - told.value), f"± {percent(told.standard_error)}", other))
        elif name == "auc":
            lines.append(("AUC", f"{told.value:.3f}", f"± {told.standard_error:.3f}", "0.500"))
        elif name == "class-error":
            errors = zip(told.value, told.standard_error, strict=True)
            by_class = zip(found.classes, errors, strict=True)
            lines += [(f"error where {name}", percent(e), f"± {percent(s)}", "") for name, (e, s) in by_class]
        elif found.calibration_error is not None:
            lines.append(("calibration error", percent(found.calibration_error), "", ""))
    widths = [max(len(line[place]) for line in lines) for place in range(4)]
    shown = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    spent = "" if found.public else f"ε = {shown_loss(found.epsilon)} at δ = {found.delta:g}, {found.adjacency}"
    return "\n".join([*found.verdict, *shown, *([spent] if spent else [])])


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivateScorer:
    """A `scoring=` for scikit-learn's searches: one noised, charged metric each time it is called. The exact `score` of
    a model on private records is a release nobody has paid for. Searches hand `parties` on where metadata routing is
    enabled, as they do for `fit`.
    """

    epsilon: float
    delta: float
    adjacency: str
    ledger: Spending
    metric: Literal["accuracy", "auc"] = "accuracy"
    trust: Trust = "none"
    colluders: int | None = None
    unit: Literal["record", "party"] = "record"
    records_per_person: int = 1
    people_span_parties: bool = False

    def __post_init__(self) -> None:
        if self.metric not in ("accuracy", "auc"):
            raise InputError(f"metric: got {self.metric!r}; accuracy or auc is needed")
        if not isinstance(self.ledger, Spending):
            raise InputError(f"ledger: got a {type(self.ledger).__name__}; a coterie.Spending is needed")

    def __call__(self, model: Any, X: Any, y: Any, *, parties: Any = None) -> float:
        found = evaluate(
            model,
            X,
            y,
            epsilon=self.epsilon,
            delta=self.delta,
            adjacency=self.adjacency,
            parties=parties,
            metrics=(self.metric,),
            trust=self.trust,
            colluders=self.colluders,
            unit=self.unit,
            records_per_person=self.records_per_person,
            people_span_parties=self.people_span_parties,
            ledger=self.ledger,
        )
        return found[self.metric].value

    def get_metadata_routing(self) -> Any:
        """Searches that route metadata ask for this."""
        from sklearn.utils.metadata_routing import MetadataRequest

        request = MetadataRequest(owner=type(self).__name__)
        request.score.add_request(param="parties", alias=True)
        return request


def _check_unit(unit: str, records_per_person: int, people_span_parties: bool) -> None:
    if unit not in ("record", "party"):
        raise InputError(f"unit: got {unit!r}; record or party is needed")
    whole_number("records_per_person", records_per_person, at_least=1)
    if unit == "party" and (records_per_person > 1 or people_span_parties):
        raise InputError("unit: got 'party' with people; a party is protected whole, whoever is in it")


def _parties(parties: Any, n_records: int) -> tuple[list[str], np.ndarray, list[int]]:
    """Names of the parties, the party of each record, and how many records each has; one party called "all" where none
    are given, as in a Federation."""
    if parties is None:
        return ["all"], np.zeros(n_records, int), [n_records]
    array = plain_array("parties", parties, ndim=1)
    same_length("parties", array, n_records)
    names, party_of, sizes = np.unique([str(name) for name in array.tolist()], return_inverse=True, return_counts=True)
    return names.tolist(), party_of, sizes.tolist()


def records_moved(terms: Terms, sizes: Sequence[int], channel: SumChannel | None) -> float:
    """In how many records one unit of privacy can count, in terms of one noised table."""
    if terms.unit == "party":
        return max(sizes)
    if not terms.people_span_parties:
        return terms.records_per_person
    spread = math.sqrt(len(sizes)) if channel is None else channel.all_together(np.ones(len(sizes)))
    return terms.records_per_person * spread


def calibrated(
    cells: dict[str, Cells], epsilon: float, delta: float, adjacency: str, records: float, noise: SumNoises
) -> dict[str, TableGrant]:
    """The least noise with which all tables together keep (epsilon, delta); each table takes an equal share."""
    changes = 2 if adjacency == "replace-one" else 1
    sensitivities = {name: records * math.sqrt(changes * cells[name].per_record) for name in sorted(cells)}

    def grants(multiplier: float) -> dict[str, TableGrant]:
        return {
            name: TableGrant.of(sensitivity, multiplier, math.prod(cells[name].shape), noise)
            for name, sensitivity in sensitivities.items()
        }

    multiplier = least_noise(lambda factor: _loss(grants(factor), delta), epsilon)
    if not 0 < multiplier < math.inf:
        raise InputError(f"epsilon: got {epsilon}; no amount of noise on these tables gives that loss")
    return grants(multiplier)


def _loss(grants: dict[str, TableGrant], delta: float) -> float:
    return gaussian_epsilon([(grant.event, 1) for grant in grants.values()], delta)


def _released(
    grant: TableGrant, tables: np.ndarray, channel: SumChannel | None, source: NoiseSource, t: int
) -> np.ndarray:
    """The sum of all parties' tables, (party, cell), each noised by its party or all as one."""
    n_parties, size = tables.shape
    n_noises = n_parties if channel is None else channel.noise(n_parties).rows
    keys = [(0, place, t) for place in range(n_noises)]
    with jax.enable_x64(True):
        units = draw_many(source, law_for("gaussian", grant.uses["release"]), size, keys, "release", n_noises)
        noise = unit_noise(units, None)
        if channel is None:
            return np.asarray(grant.noised(tables, noise).value).sum(axis=0)
        return np.asarray(channel.aggregate(grant.counted(tables), grant, noise).value)
