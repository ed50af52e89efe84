"""What to expect before anything is spent: the plan that the rules make, what it is likely to achieve, and what else
could be done.

Everything follows from public facts and the promise, by `coterie.forecast`; a public data set that is like the private
ones (`surrogate`) takes the place of the shapes that forecasts rest on otherwise, and makes them sharper. Nothing here
is random, and no private record is ever looked at.

    planned            what `rules.make_plan` makes of the same facts
    other trust        the same algorithm with as much noise as that trust leaves
    ADMM on a graph    the same with noise that costs more, by a factor that grows with the number of parties
                       (`GRAPH_PREMIUM`)
    one release        of one party: its minimiser with noise in the objective, which costs a little more, too
    alone              the best fit of one party to its own records, without any privacy: what it would miss
    pooled             the best fit to all records in one place, without any privacy
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import coterie.forecast as forecast
import coterie.rules as rules
from coterie.errors import InputError
from coterie.network.topology import UNRESTRICTED, make_topology
from coterie.privacy.accountants import gaussian_multiplier
from coterie.privacy.standardising import COLUMN_ROUNDS
from coterie.problems import L2, Huber, Logistic, Multinomial, Problem
from coterie.promise import Privacy
from coterie.values import Facts, whole_number

ALGORITHM = rules.GRADIENT_DESCENT[0]
ON_A_GRAPH = "ADMM on a graph, nobody trusted"
AT_ONCE = "one-release-average"
# measured: noise in minimisers costs 9 % more than Gaussian noise on gradients with 5 parties, 30 % with 100
GRAPH_PREMIUM = (0.09, 5, 0.4)
LARGEST_EPSILON = 64.0
MOST_TIMES_RECORDS = 1024


@dataclasses.dataclass(frozen=True)
class Row:
    """One way of learning. `error` (of a number: 1 - R^2) and `auc` are (least, middle, largest) over shapes; `kept` is
    the share that is kept of what the best pooled fit gains over the trivial model, None where nothing is noised."""

    name: str
    error: tuple[float, float, float]
    auc: tuple[float, float, float] | None
    kept: float | None
    private: bool


@dataclasses.dataclass(frozen=True)
class Outline:
    """What was chosen and why, and everything it was compared with, the best first."""

    algorithm: str
    rounds: int
    settings: dict[str, float]
    l2: float
    reasons: tuple[str, ...]
    planned: Row
    rows: tuple[Row, ...]
    useful: bool
    better_than_alone: bool
    advice: tuple[str, ...]
    # the least and the largest share of the rarer of two classes for which errors are forecast
    rarer: tuple[float, float] | None

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Planner:
    """From public facts to a plan and to what can be expected of it.

    problem: loss and regulariser, whose l2 is chosen where `open_l2`.
    facts: public ones: parties, sizes, columns and bounds.
    privacy: what is promised, with a finite epsilon.
    settled: what the user settled; everything else is chosen.
    open_l2: whether l2 is chosen too.
    surrogate: (X, y) of a public data set that is like the private one, rows of the design and labels as positions or
        numbers.
    """

    problem: Problem
    facts: Facts
    privacy: Privacy
    settled: rules.Settled = dataclasses.field(default_factory=rules.Settled)
    open_l2: bool = True
    surrogate: tuple[np.ndarray, np.ndarray] | None = None

    def __post_init__(self) -> None:
        if self.privacy.epsilon is None or self.privacy.exact:
            raise InputError(f"epsilon: got {self.privacy.epsilon}; a plan needs a finite loss that it may cause")
        self.problem.check(self.facts)

    @classmethod
    def of_sizes(
        cls,
        sizes: Any,
        n_features: int,
        privacy: Privacy,
        *,
        n_classes: int = 2,
        label_bound: float | None = None,
        surrogate: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> "Planner":
        """`sizes`: records of each party; `n_features`: with the constant column; `label_bound`: of a regression."""
        labels = None if label_bound is not None else tuple(str(number) for number in range(n_classes))
        numbers = tuple(whole_number("sizes", size, at_least=0) for size in sizes)
        if not numbers:
            raise InputError("sizes: got none; the number of records of at least one party is needed")
        facts = Facts(
            parties=tuple(f"party {number + 1}" for number in range(len(numbers))),
            sizes=numbers,
            n_features=n_features,
            row_norm=1.0,
            labels=labels,
            label_bound=label_bound,
        )
        if label_bound is not None:
            loss: Any = Huber(label_bound)
        else:
            loss = Logistic() if n_classes == 2 else Multinomial(n_classes)
        problem = Problem(loss=loss, regulariser=L2(0.0), record_weight=1.0)
        settled = rules.Settled(intercept=True)
        return cls(problem=problem, facts=facts, privacy=privacy, settled=settled, surrogate=surrogate)

    # --- the parts ----------------------------------------------------------------------------------------------------

    @functools.cached_property
    def shapes(self) -> tuple[forecast.Shape, ...]:
        if self.surrogate is None:
            return tuple(forecast.SHAPES.values())
        X, y = (np.asarray(part, float) for part in self.surrogate)
        if X.ndim != 2 or X.shape[1] != self.facts.n_features or y.shape != X.shape[:1]:
            raise InputError(
                f"surrogate: got rows of shape {X.shape} and labels of shape {y.shape}; {self.facts.n_features} "
                "columns and one label a row are needed"
            )
        n_classes = self._task(self.privacy).n_classes
        return (forecast.shape_of(X / self.facts.row_norm, y / (self.facts.label_bound or 1.0), n_classes),)

    @property
    def _graph_is_given(self) -> bool:
        chosen = rules.choose_algorithm(self.facts, self.privacy, None, self.settled.topology)
        return chosen not in rules.GRADIENT_DESCENT

    def _situation(self, privacy: Privacy) -> rules.Situation:
        return rules.Situation(
            problem=self.problem,
            facts=self.facts,
            privacy=privacy,
            topology=make_topology(UNRESTRICTED, self.facts.n_parties),
            name=ALGORITHM,
            settled=self.settled,
        )

    def _task(self, privacy: Privacy) -> forecast.Task:
        return self._situation(privacy).task

    def _chosen(self, task: forecast.Task, **settled: Any) -> forecast.Setting:
        if self.surrogate is None:
            return forecast.best_setting(task, **settled)
        settings = forecast.candidates(task, **settled)
        return settings[forecast.choose(task, settings, self.shapes)[0]]

    def _settled(self, situation: rules.Situation) -> dict[str, Any]:
        l2 = None if self.open_l2 else self.problem.regulariser.l2 / situation.all_curvature
        return {
            "l2": l2,
            "rounds": self.settled.rounds,
            "momentum": situation.settled_momentum,
            "standardise": self.settled.standardise,
        }

    def _row(self, name: str, task: forecast.Task, setting: forecast.Setting) -> Row:
        outlook = forecast.outlooks(task, [setting], self.shapes, sure=self.surrogate is not None)[0]
        return Row(name, outlook.error, outlook.auc, outlook.kept, private=True)

    def _exact_row(self, name: str, n_records: float) -> Row:
        task = dataclasses.replace(self._task(self.privacy), n_records=n_records)
        error, auc = forecast.without_noise(task, self.shapes, sure=self.surrogate is not None)
        return Row(name, error, auc, None, private=False)

    # --- all of it ----------------------------------------------------------------------------------------------------

    def outline(self) -> Outline:
        situation = self._situation(self.privacy)
        task = situation.task
        setting = self._chosen(task, **self._settled(situation))
        planned = self._row(f"planned: {_trust_words(self.privacy)}", task, setting)
        trusting = self._other_trust()
        others = [*trusting, *self._on_a_graph(task), *self._at_once(task)]
        sizes = sorted(self.facts.sizes)
        exact = [self._exact_row("all records in one place, no privacy", task.n_records)]
        if self.facts.n_parties > 1:
            exact.append(self._exact_row("a party alone, no privacy", sizes[len(sizes) // 2]))
        rows = sorted([planned, *others, *exact], key=lambda row: row.error[1])
        useful = planned.kept is not None and planned.kept >= forecast.USEFUL
        beats = self.facts.n_parties == 1 or planned.error[1] <= exact[-1].error[1]
        unit = situation.all_curvature
        return Outline(
            algorithm=rules.STANDARDISED if setting.standardise else ALGORITHM,
            rounds=setting.rounds + (COLUMN_ROUNDS if setting.standardise else 0),
            settings={"step": setting.step / unit, "momentum": setting.momentum},
            l2=setting.l2 * unit,
            reasons=self._reasons(task, setting),
            planned=planned,
            rows=tuple(rows),
            useful=useful,
            better_than_alone=beats,
            advice=tuple(self._advice(task, useful, beats, trusting)),
            rarer=self._rarer(task),
        )

    def _rarer(self, task: forecast.Task) -> tuple[float, float] | None:
        """Forecasts do not know how frequent classes are; a table like the private one does."""
        if task.n_classes != 2:
            return None
        shares = [min(shape.share, 1 - shape.share) for shape in self.shapes]
        return min(shares), max(shares) if self.surrogate is not None else 0.5

    def _other_trust(self) -> list[Row]:
        n, found = self.facts.n_parties, []
        if n == 1:
            return []
        choices: list[tuple[str, int | None]] = [("none", None), ("curator", None)]
        if n >= 3:
            choices.append(("pairs", (n - 1) // 3))
        for trust, colluders in choices:
            if trust == self.privacy.trust or (trust == "curator" and self.privacy.trust == "secure-sum"):
                continue
            privacy = dataclasses.replace(self.privacy, trust=trust, colluders=colluders)
            situation = self._situation(privacy)
            setting = self._chosen(situation.task, **self._settled(situation))
            found.append(self._row(_trust_words(privacy), situation.task, setting))
        return found

    def _on_a_graph(self, task: forecast.Task) -> list[Row]:
        n = self.facts.n_parties
        if n == 1 or self.privacy.sums or math.isinf(self.problem.loss.lipschitz):
            return []
        noisier = self._noise_in_minimisers(task)
        setting = self._chosen(noisier, standardise=False)
        return [self._row(ON_A_GRAPH, noisier, setting)]

    def _at_once(self, task: forecast.Task) -> list[Row]:
        """What a single party has of one release, its settings being those of the rules."""
        if self.facts.n_parties > 1 or self.privacy.sums or math.isinf(self.problem.loss.lipschitz):
            return []
        if self.privacy.unit == "party":
            return []
        privacy, settled = self.privacy, dataclasses.replace(self.settled, algorithm=AT_ONCE)
        situation = dataclasses.replace(self._situation(privacy), name=AT_ONCE, settled=settled)
        l2 = rules.regulariser(self.problem, self.facts, privacy, settled)
        curvature = (l2 + rules.RECIPES[AT_ONCE](situation)[1]["extra_l2"]) / situation.all_curvature
        noisier = self._noise_in_minimisers(task)
        return [
            self._row(f"{AT_ONCE}: one noised minimiser", noisier, forecast.Setting(math.inf, curvature, 1, 0.0, False))
        ]

    def _noise_in_minimisers(self, task: forecast.Task) -> forecast.Task:
        share, at, power = GRAPH_PREMIUM
        return dataclasses.replace(task, noise=task.noise * (1 + share * (self.facts.n_parties / at) ** power))

    def _reasons(self, task: forecast.Task, setting: forecast.Setting) -> tuple[str, ...]:
        n_noises = self._situation(self.privacy).noises_of_sum
        return (
            f"noise: {task.noise:.3g} of the largest sum of gradients; noises in the sum: {n_noises:.3g}",
            f"length: steps add up to {setting.step * setting.rounds / (1 - setting.momentum):.3g} over the largest "
            "curvature; more would carry more noise than signal",
            f"rounds: {setting.rounds} with momentum {setting.momentum:g}; noise adds up to the same over any number",
            f"l2: {setting.l2:.3g} of the largest curvature, against noise in directions with little variance",
            "columns: "
            + (
                "standardised by noised sums, for a fifth of the budget: what varies little counts as much as the rest"
                if setting.standardise
                else "as they are"
            ),
        )

    def _advice(self, task: forecast.Task, useful: bool, beats: bool, trusting: Sequence[Row]) -> list[str]:
        told = []
        named = self.settled.algorithm
        if named not in (None, ALGORITHM):
            # on a graph that is given ADMM runs, whether it is named or not
            open_too = "the algorithm and the graph" if self._graph_is_given else "the algorithm"
            told.append(f"{named} is named; this is what would be done if {open_too} were left open")
        elif self._graph_is_given:
            told.append("a graph is given, on which ADMM runs; this is what would be done if it were left open")
        if not useful:
            told.append(
                "the result is not expected to be better than "
                + ("the mean" if task.n_classes == 0 else "the majority class")
                + "; "
                + self._what_would_help(task, trusting)
            )
        if not beats:
            told.append(
                "a party alone, without any privacy, is expected to do better where parties' records are alike; "
                + self._what_would_help(task, trusting, than_alone=True)
            )
        return told

    def _what_would_help(self, task: forecast.Task, trusting: Sequence[Row], *, than_alone: bool = False) -> str:
        """The least factor by which noise must fall, as records and as epsilon; and trust, where it would do."""
        alone = self._exact_row("", sorted(self.facts.sizes)[self.facts.n_parties // 2]).error[1]

        def enough(row: Row) -> bool:
            assert row.kept is not None
            return row.error[1] <= alone if than_alone else row.kept >= forecast.USEFUL

        factor = 2.0
        while factor <= MOST_TIMES_RECORDS:
            quieter = dataclasses.replace(task, noise=task.noise / factor, column_noise=task.column_noise / factor)
            if enough(self._row("", quieter, self._chosen(quieter))):
                break
            factor *= 2
        else:
            return "no number of records that is worth naming would change that"
        epsilon = self._epsilon_for(factor)
        more = "" if epsilon is None else f", epsilon = {epsilon:.2g}"
        trust = "".join(f", {row.name}" for row in trusting if enough(row))
        return f"any of these would change that: about {factor:.0f} times the records{more}{trust}"

    def _epsilon_for(self, factor: float) -> float | None:
        """At which the noise is smaller by that factor."""
        assert self.privacy.epsilon is not None
        wanted = gaussian_multiplier(self.privacy.epsilon, self.privacy.delta) / factor
        epsilon = self.privacy.epsilon
        while epsilon <= LARGEST_EPSILON:
            if gaussian_multiplier(epsilon, self.privacy.delta) <= wanted:
                return epsilon
            epsilon *= 1.1
        return None


def _trust_words(privacy: Privacy) -> str:
    if privacy.trust == "pairs":
        return f"pairs share noise, {privacy.colluders} may collude"
    return {"none": "nobody trusted", "curator": "a curator", "secure-sum": "a secure sum"}[privacy.trust]
