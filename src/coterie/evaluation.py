"""How good a classifier is on the parties' own held-out records, told privately.

Two tables of counts are all that is released, each under Gaussian noise that its `TableGrant` adds:

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
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import numpy as np

from coterie.certificate import shown_loss
from coterie.charts import Lines, Series, percent, table_html
from coterie.errors import InputError
from coterie.network.channels import SumChannel, sum_channel
from coterie.privacy.accountants import check_epsilon, gaussian_epsilon, least_noise
from coterie.privacy.events import Unit, check_adjacency
from coterie.privacy.mechanisms import ONE_NOISE, SumNoises, TableGrant
from coterie.privacy.noise import NoiseSource, draw_many, drawn_once, law_for
from coterie.privacy.release import unit_noise
from coterie.promise import Privacy, check_trust
from coterie.rundir import FittedModel, ProbableModel
from coterie.spending import Spending, Terms
from coterie.values import plain_array, same_length, whole_number

BINS = 20
# a standard error from which on a number between 0 and 1 says nothing
_NOTHING_SAID = 0.5

# --- counting what a classifier answers, and metrics of the counts, be they exact or noised ---------------------------

Table = Literal["answers", "scores"]
TABLES: tuple[Table, ...] = ("answers", "scores")
TABLE_OF: dict[str, Table] = {"accuracy": "answers", "class-error": "answers", "auc": "scores", "calibration": "scores"}


@dataclasses.dataclass(frozen=True)
class Metric:
    """A number, or one per class or bin. `standard_error` is that of the noise: how far the value may be from the exact
    one on the same records and grid. (epsilon, delta) is what the table behind it cost; metrics of one table share it.
    """

    value: Any
    standard_error: Any
    epsilon: float
    delta: float


def checked_metrics(metrics: Sequence[str], model: Any) -> list[str]:
    names = [metrics] if isinstance(metrics, str) else list(dict.fromkeys(metrics))
    for name in names:
        if name not in TABLE_OF:
            raise InputError(f"metrics: got {name!r}; some of {', '.join(TABLE_OF)} are needed")
    if "calibration" in names and not hasattr(model, "predict_proba"):
        raise InputError(f"metrics: got 'calibration'; {type(model).__name__} has no predict_proba")
    if not names:
        raise InputError(f"metrics: got none; some of {', '.join(TABLE_OF)} are needed")
    return names


def positions(model: Any, y: Any) -> np.ndarray:
    classes = np.asarray(model.classes_)
    y = plain_array("y", y, ndim=1)
    places = np.minimum(np.searchsorted(classes, y), len(classes) - 1)
    if (wrong := classes[places] != y).any():
        raise InputError(f"y: row {int(np.argmax(wrong))} has a label that is not one of {classes.tolist()}")
    return places


@dataclasses.dataclass(frozen=True)
class Cells:
    """The cells of a table in which each record counts, `per_record` of them."""

    shape: tuple[int, ...]
    # (n_records, per_record) positions in the flat table
    places: np.ndarray

    @property
    def per_record(self) -> int:
        return self.places.shape[1]

    def table(self) -> np.ndarray:
        return self.tables(np.zeros(len(self.places), int), 1)[0]

    def tables(self, party_of: np.ndarray, n_parties: int) -> np.ndarray:
        """Counts of each party, (party, *shape)."""
        size = math.prod(self.shape)
        counts = np.bincount((party_of[:, None] * size + self.places).ravel(), minlength=n_parties * size)
        return counts.reshape(n_parties, *self.shape).astype(float)


def count(model: Any, X: Any, y: Any, wanted: set[Table], bins: int) -> dict[Table, Cells]:
    truth = positions(model, y)
    n_classes = len(model.classes_)
    cells: dict[Table, Cells] = {}
    if "answers" in wanted:
        predicted = positions(model, model.predict(X))
        same_length("y", truth, len(predicted))
        cells["answers"] = Cells((n_classes, n_classes), (truth * n_classes + predicted)[:, None])
    if "scores" in wanted:
        scores = _probabilities(model, X)
        same_length("y", truth, len(scores))
        concerned = np.array([1]) if n_classes == 2 else np.arange(n_classes)
        bin_of = np.clip((scores[:, concerned] * bins).astype(int), 0, bins - 1)
        is_it = truth[:, None] == concerned
        shape = (len(concerned), 2, bins)
        cells["scores"] = Cells(shape, (np.arange(len(concerned)) * 2 + is_it) * bins + bin_of)
    return cells


def _probabilities(model: Any, X: Any) -> np.ndarray:
    """Scores in [0, 1]; without probabilities, a public increasing function of the decision function."""
    if hasattr(model, "predict_proba"):
        return np.asarray(model.predict_proba(X))
    scores = 1 / (1 + np.exp(-np.clip(np.asarray(model.decision_function(X)), -500, 500)))
    return np.column_stack([1 - scores, scores]) if scores.ndim == 1 else scores


def metric(name: str, table: np.ndarray, noise_std: float, price: tuple[float, float]) -> Metric:
    compute, low = _COMPUTED[name], 0.0
    value = compute(table)
    if noise_std == 0:
        error = np.zeros_like(value)
    else:
        # to first order in the noise, by differences as large as the noise
        moves = []
        for cell in np.ndindex(table.shape):
            up, down = table.copy(), table.copy()
            up[cell] += noise_std
            down[cell] -= noise_std
            moves.append((compute(up) - compute(down)) / 2)
        error = np.sqrt(np.sum(np.square(moves), axis=0))
    if name == "calibration":
        low = -_middles(table)
    return Metric(_plain(np.clip(value, low, low + 1.0)), _plain(error), *price)


def _plain(value: np.ndarray) -> Any:
    return float(value) if np.ndim(value) == 0 else value


def _accuracy(table: np.ndarray) -> np.ndarray:
    return np.trace(table) / max(table.sum(), 1.0)


def _class_error(table: np.ndarray) -> np.ndarray:
    """Of classes without a record there is none."""
    records = table.sum(axis=1)
    return np.where(records == 0, math.nan, 1 - np.diag(table) / np.maximum(records, 1.0))


def _auc(table: np.ndarray) -> np.ndarray:
    """Mean over classes of the chance that a record of the class scores higher than another, ties counted half. Classes
    without a record, or without others to compare with, say nothing."""
    values = []
    for others, members in table:
        if members.sum() == 0 or others.sum() == 0:
            continue
        below = np.cumsum(others) - others / 2
        values.append(np.dot(members, below) / (max(members.sum(), 1.0) * max(others.sum(), 1.0)))
    return np.asarray(np.mean(values) if values else math.nan)


def _calibration(table: np.ndarray) -> np.ndarray:
    """For each bin that has records: how often the class was true, minus what the middle of the bin says."""
    others, members = table.sum(axis=0)
    records = members + others
    return np.where(records == 0, math.nan, members / np.maximum(records, 1.0) - _middles(table))


def majority_error(answers: np.ndarray) -> float:
    by_class = np.maximum(answers.sum(axis=1), 0.0)
    return float(np.clip(1 - by_class.max() / max(by_class.sum(), 1.0), 0.0, 1.0))


def calibration_error(scores: np.ndarray) -> float:
    """Mean over records of the distance between bin and truth; noised counts below zero count as none."""
    records = np.maximum(scores.sum(axis=(0, 1)), 0.0)
    gaps = np.nan_to_num(np.abs(np.clip(_calibration(scores), -1.0, 1.0)))
    return float(np.dot(records, gaps) / max(records.sum(), 1.0))


def _middles(table: np.ndarray) -> np.ndarray:
    n_bins = table.shape[-1]
    return (np.arange(n_bins) + 0.5) / n_bins


_COMPUTED: dict[str, Callable[[np.ndarray], Any]] = {
    "accuracy": _accuracy,
    "class-error": _class_error,
    "auc": _auc,
    "calibration": _calibration,
}


# --- releasing them ---------------------------------------------------------------------------------------------------


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

    def _repr_html_(self) -> str:
        heading, *lines = _lines(self)
        alone = ("",) * (len(heading) - 1)
        spent = [(text, *alone) for text in (_spent(self),) if text]
        return table_html(heading, [*((text, *alone) for text in self.verdict), *lines, *spent], "Evaluation")

    def plot(self, ax: Any = None) -> Any:
        """Calibration on matplotlib axes: what was predicted against how often it was true, bin by bin."""
        if "calibration" not in self.metrics:
            raise InputError("plot: calibration is not among the metrics of this evaluation")
        gaps = np.asarray(self.metrics["calibration"].value)
        middles, there = (np.arange(len(gaps)) + 0.5) / len(gaps), ~np.isnan(gaps)
        return Lines(
            title="Calibration",
            x_label="predicted probability",
            y_label="how often it was true",
            series=(
                Series("model", tuple(middles[there].tolist()), tuple((middles + gaps)[there].tolist())),
                Series("perfect", (0.0, 1.0), (0.0, 1.0)),
            ),
        ).plot(ax)

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
    trust: str = "none",
    colluders: int | None = None,
    unit: Unit = "record",
    records_per_person: int = 1,
    people_span_parties: bool = False,
    bins: int = BINS,
    public: bool = False,
    ledger: Spending | None = None,
    noise: NoiseSource | None = None,
) -> Evaluation:
    """Metrics of a classifier on held-out records.

    model: a fitted classifier of scikit-learn's kind; AUC needs its scores or probabilities, calibration the latter.
    X, y: rows and labels that the model was not fitted to.
    epsilon, delta, adjacency: the loss of everything released here together, each needed unless `public`.
    parties: the party of each row; all belong to one where it is left out.
    metrics: which ones; fewer tables of counts are released where they need fewer.
    trust, colluders: with "none" every party noises its own tables; else one noise covers the sum, or with "pairs"
        nearly one, if at most `colluders` parties put together what they know.
    unit, records_per_person, people_span_parties: what is protected, as of `Privacy`.
    bins: of the public grid on which scores are counted.
    public: the records may be known to everybody: exact metrics, which cost nothing.
    ledger: a `Spending` to charge.
    noise: where noise comes from; the operating system's entropy where it is left out.
    """
    source = drawn_once(noise)
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
    privacy = Privacy(
        epsilon=check_epsilon(epsilon),
        delta=delta,
        adjacency=check_adjacency(adjacency),
        unit=unit,
        records_per_person=records_per_person,
        people_span_parties=people_span_parties,
        trust=trust,
        colluders=colluders,
        ledger=ledger,
    )
    if people_span_parties and parties is None:
        raise InputError("parties: got None with people_span_parties; the noise depends on how many parties there are")
    names_of_parties, party_of, sizes = _parties(parties, len(np.asarray(y)))
    # sizes are of these rows, which other releases of the same parties need not have been of
    terms = privacy.terms(names_of_parties)
    if channel is not None:
        channel.check(len(sizes))
    of_sum = ONE_NOISE if channel is None else channel.noise(len(sizes))
    moved = records_moved(terms, sizes, channel), of_sum, tables_moved(terms, len(sizes), channel)
    grants = calibrated(cells, epsilon, delta, adjacency, *moved)
    spent = _loss(grants, delta)
    past: tuple[tuple[str, float, float], ...] = ()
    # whoever knows the seed can take the noise off
    charged = math.inf if source.reproducible else spent
    if ledger is not None:
        past = ledger.charge(f"evaluation: {', '.join(names)}", charged, delta, terms=terms)
    found, released = {}, {}
    for table, grant in grants.items():
        by_party = cells[table].tables(party_of, len(sizes))
        noised = _released(grant, by_party.reshape(len(sizes), -1), channel, source, table).reshape(by_party.shape[1:])
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
    lines = _lines(found)
    widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
    shown = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    spent = _spent(found)
    return "\n".join([*found.verdict, *shown, *([spent] if spent else [])])


def _spent(found: Evaluation) -> str:
    if found.public:
        return ""
    spent = f"ε = {shown_loss(found.epsilon)} at δ = {found.delta:g}, {found.adjacency}"
    # of a ledger that held something before
    if found.total_delta == found.delta:
        return spent
    total = f"ε = {shown_loss(found.total_epsilon)} at δ = {found.total_delta:g}"
    return f"{spent}; {total} with everything in the ledger"


def _lines(found: Evaluation) -> list[tuple[str, ...]]:
    """Exact numbers have no column for their noise."""
    lines = _lines_with_noise(found)
    return [(name, model, other) for name, model, _, other in lines] if found.public else [*lines]


def _lines_with_noise(found: Evaluation) -> list[tuple[str, str, str, str]]:
    lines = [("", "model", "noise", "majority class")]

    def shown(number: float, noise: float, form: Callable[[float], str]) -> tuple[str, str]:
        if math.isnan(number):
            return "no records", ""
        around = f"± {form(noise)}" if noise <= 1 else f"± over {form(1.0)}"
        return (form(number) if noise < _NOTHING_SAID else "lost in noise"), around

    for name, told in found.metrics.items():
        if name == "accuracy":
            other = "" if found.majority_error is None else percent(found.majority_error)
            lines.append(("error", *shown(1 - told.value, told.standard_error, percent), other))
        elif name == "auc":
            one_class = ("all of one class", "", "")
            seen = ("AUC", *shown(told.value, told.standard_error, "{:.3f}".format), "0.500")
            lines.append(("AUC", *one_class) if math.isnan(told.value) else seen)
        elif name == "class-error":
            errors = zip(told.value, told.standard_error, strict=True)
            by_class = zip(found.classes, errors, strict=True)
            lines += [(f"error where {name}", *shown(e, s, percent), "") for name, (e, s) in by_class]
        elif found.calibration_error is not None:
            lines.append(("calibration error", percent(found.calibration_error), "", ""))
    return lines


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivateScorer:
    """A `scoring=` for scikit-learn's searches: one noised, charged metric each time it is called. The exact `score` of
    a model on private records is a release nobody has paid for. Searches hand `parties` on where metadata routing is
    enabled, as they do for `fit`.

    epsilon, delta, adjacency: the loss of one call.
    ledger: the `Spending` that every call is charged to.
    metric: "accuracy" or "auc".
    trust, colluders: who adds the noise, as of `Privacy`.
    unit, records_per_person, people_span_parties: what is protected, as of `Privacy`.
    """

    epsilon: float
    delta: float
    adjacency: str
    ledger: Spending
    metric: Literal["accuracy", "auc"] = "accuracy"
    trust: str = "none"
    colluders: int | None = None
    unit: Unit = "record"
    records_per_person: int = 1
    people_span_parties: bool = False

    def __post_init__(self) -> None:
        if self.metric not in ("accuracy", "auc"):
            raise InputError(f"metric: got {self.metric!r}; accuracy or auc is needed")
        if not isinstance(self.ledger, Spending):
            raise InputError(f"ledger: got a {type(self.ledger).__name__}; a coterie.Spending is needed")

    def __call__(self, model: Any, X: Any, y: Any, *, parties: Any = None) -> float:
        promise = {
            field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "metric"
        }
        return evaluate(model, X, y, parties=parties, metrics=(self.metric,), **promise)[self.metric].value

    def get_metadata_routing(self) -> Any:
        """Searches that route metadata ask for this."""
        from sklearn.utils.metadata_routing import MetadataRequest

        request = MetadataRequest(owner=type(self).__name__)
        request.score.add_request(param="parties", alias=True)
        return request


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
    in_one_table = max(sizes) if terms.unit == "party" else terms.records_per_person
    return in_one_table * tables_moved(terms, len(sizes), channel)


def tables_moved(terms: Terms, n_parties: int, channel: SumChannel | None) -> float:
    """In how many parties' tables one unit of privacy can count, in terms of one noised table."""
    if not terms.people_span_parties:
        return 1.0
    return math.sqrt(n_parties) if channel is None else channel.all_together(np.ones(n_parties))


def calibrated(
    cells: dict[Table, Cells],
    epsilon: float,
    delta: float,
    adjacency: str,
    records: float,
    noise: SumNoises,
    parties: float = 1.0,
) -> dict[Table, TableGrant]:
    """The least noise with which all tables together keep (epsilon, delta); each table takes an equal share.

    records, parties: what `records_moved` and `tables_moved` say.
    """
    changes = 2 if adjacency == "replace-one" else 1
    sensitivities: dict[Table, float] = {
        name: records * math.sqrt(changes * cells[name].per_record) for name in TABLES if name in cells
    }

    def grants(multiplier: float) -> dict[Table, TableGrant]:
        return {
            name: TableGrant.of(sensitivity, multiplier, math.prod(cells[name].shape), noise, parties)
            for name, sensitivity in sensitivities.items()
        }

    multiplier = least_noise(lambda factor: _loss(grants(factor), delta), epsilon)
    if not 0 < multiplier < math.inf:
        raise InputError(f"epsilon: got {epsilon}; no amount of noise on these tables gives that loss")
    return grants(multiplier)


def _loss(grants: dict[Table, TableGrant], delta: float) -> float:
    return gaussian_epsilon([(grant.event, 1) for grant in grants.values()], delta)


def _released(
    grant: TableGrant, tables: np.ndarray, channel: SumChannel | None, source: NoiseSource, table: Table
) -> np.ndarray:
    """The sum of all parties' tables, (party, cell), each noised by its party or all as one; `table` says which of the
    two they are, whose noises have nothing in common."""
    n_parties, size = tables.shape
    n_noises = n_parties if channel is None else channel.noise(n_parties).rows
    keys = [(0, place, 0) for place in range(n_noises)]
    with jax.enable_x64(True):
        units = draw_many(source, law_for("gaussian", grant.uses["release"]), size, keys, table, n_noises)
        noise = unit_noise(units, None)
        if channel is None:
            return np.asarray(grant.noised(tables, noise).value).sum(axis=0)
        return np.asarray(channel.aggregate(grant.counted(tables), grant, noise).value)


def exact_result(model: FittedModel, X: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """How good a model is on records that are declared public; y as positions in its labels, or numbers."""
    if model.labels is None:
        gap, spread = model.predict(X) - y, y - y.mean()
        told = {"records": len(y), "rmse": float(np.sqrt(np.mean(gap**2))), "mean_rmse": float(y.std())}
        # of labels that are all alike there is nothing to explain
        explained = {} if np.ptp(y) == 0 else {"r2": 1 - float(gap @ gap) / float(spread @ spread)}
        return {**told, **explained}
    probable = isinstance(model, ProbableModel)
    metrics = ("accuracy", "auc", *(("calibration",) if probable else ()))
    found = evaluate(model, X, y.astype(int), metrics=metrics, public=True)
    told = {"records": len(y), "error": 1 - found["accuracy"].value, "majority_error": found.majority_error}
    # where all records are of one class there is no AUC
    told |= {} if math.isnan(found["auc"].value) else {"auc": found["auc"].value}
    return {**told, **({"calibration_error": found.calibration_error} if probable else {})}
