"""The one rule book: everything that users of estimators, specs and the demo leave open, from public facts.

    m   Gaussian multiplier that would spend the whole (epsilon, delta) in one release, times records per person
    G   how far one unit of privacy can move the summed gradient        X   row-norm bound
    S   largest curvature all records together can have                 N   number of noises: of parties, or of a sum

*Algorithm.* Noised gradient descent for everybody, with one noise on the sum where somebody or something adds up and
with N where nobody is trusted; parties on a graph that is given run penalty-perturbed ADMM. All that is promised then
comes to one number, the noise G m sqrt(N) of a summed gradient that spends everything, and whoever trusts more has
less of it and nothing else changes.

*Gradients.* Step, rounds, momentum and l2 are those with the least mean regret in `coterie.forecast`, over shapes of
public data sets.

*Length.* Every other algorithm moves about as far as gradient descent of total length `length` does. Noise of standard
deviation G m sqrt(N) a coordinate then moves each coefficient by length * G m sqrt(N), however many rounds share it.
That should be as much as a coefficient is expected to need: a score of `SCORE` (of the label bound in regression)
across a row of norm X. Hence length = SCORE / (X G m sqrt(N)).

*Rounds.* Few large parties that noise their own minimisers: sqrt(length * S), from 5 to 20. Steps of single coordinates
must not exceed 2/S, so they come in length * S / 1.5 rounds, from 20 to 1000.

*Regulariser.* Of the others, l2 = X^2 times the mean weight of a record: little against many records, enough for a
unique optimum.

*Alone.* A single party that releases one noised minimiser: noise in its objective needs curvature, 1/length against the
noise, and 1.2 times a record's curvature times the highest Renyi order that counts, m sqrt(2 ln 1/delta), against the
Jacobian.

*Relatives.* Algorithms that were not tuned by themselves take the settings of the one they are closest to: all of the
graph family those of penalty perturbation, sum noise those of broadcast noise, and a walk visits every party as often
as parties that all work in every round do.

*Standardising.* Sums of columns and of their squares take `COLUMN_SHARE` of the budget, in squares of sensitivity over
noise, and gradients the rest.

*Inference.* Of the budget, in squares of sensitivity over noise, `INFERENCE_SHARE` goes to what is released after the
rounds, for a corrected estimate needs no good model to start from, and makes one. Of that, `FIRST_STAGE` goes to the
first gradient and Hessian; to the second moment, where it is released, `SECOND_MOMENT_SHARE`; to the second gradient
and Hessian the rest. The Hessian weighs as much as costs nothing beside the gradient, or `CURVATURE_WEIGHT`.

Without epsilon nothing says how much noise there is: m = 1 then, and steps follow the curvature of the records alone.

The other constants were found good on census and heart data (docs/estimators.md). `make_plan` and `regulariser` are all
that others call; with the same facts and the same things settled they give the same plan to everybody.
"""

import dataclasses
import functools
import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import scipy.sparse

import coterie.forecast as forecast
from coterie.algorithms import ALGORITHMS, Algorithm, EdgewiseADMM
from coterie.algorithms.coordinate import IN_TURN, check_coordinates
from coterie.algorithms.gradient import as_momentum
from coterie.data.federation import INTERCEPT_SHARE
from coterie.errors import InputError
from coterie.matrices import Matrix
from coterie.network.channels import Broadcast, channel_of, sum_channel
from coterie.network.topology import UNRESTRICTED, Topology, Walk, make_topology
from coterie.plan import Plan
from coterie.privacy.accountants import gaussian_epsilon, gaussian_multiplier
from coterie.privacy.events import Gaussian
from coterie.privacy.moments import Moments, free_curvature, known_variance
from coterie.privacy.standardising import COLUMN_ROUNDS, COLUMN_SHARE, joint_change
from coterie.problems import L2, Problem, Regulariser
from coterie.promise import Privacy
from coterie.values import Facts, as_schedule, nearest, whole_number

SCORE = 2.0
ROUNDS = (5, 20)
GRADIENT_ROUNDS = (20, 1000)
STEP_TIMES_CURVATURE = 1.5
JACOBIAN_MARGIN = 1.2
RECYCLE_WEIGHT = 0.5
LASSO_SHARE = 0.2
RELAXATION = 0.5
INFERENCE_SHARE = 0.94
FIRST_STAGE = 0.2
CURVATURE_WEIGHT = {"replace-one": 0.5, "zero-out": 0.25}
SECOND_MOMENT_SHARE = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settled:
    """What the user settled; None is open.

    topology: a name, edges, a networkx graph or a `Topology`. settings: fields of the algorithm or of its mechanism, by
    name; "mechanism" chooses one where the algorithm has several. standardise: columns are standardised by noised sums,
    inside the budget, or stay as they are. intercept: the last column of the design is the constant one of
    `coterie.data.federation`.
    """

    algorithm: str | None = None
    topology: Any = None
    rounds: int | None = None
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    standardise: bool | None = None
    intercept: bool = False

    def __post_init__(self) -> None:
        if self.rounds is not None:
            whole_number("rounds", self.rounds, at_least=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is to be released for inference: `share` of the budget, by the rules where it is None, and `robust`: with
    the second moment of gradients, which a regression needs in any case."""

    share: float | None = None
    robust: bool = False

    def __post_init__(self) -> None:
        if self.share is not None and not (isinstance(self.share, float) and 0 < self.share < 1):
            raise InputError(
                f"inference: got {self.share!r}; True, or a share of the budget between 0 and 1, is needed"
            )
        if not isinstance(self.robust, bool):
            raise InputError(f"robust: got {self.robust!r}; True or False is needed")


def make_plan(
    problem: Problem, facts: Facts, privacy: Privacy, settled: Settled, inference: Wanted | None = None
) -> Plan:
    """The plan, its noise calibrated to the promise, with everything that is not settled by the rules."""
    if inference is None:
        return _make_plan(problem, facts, privacy, settled)
    if privacy.epsilon is None:
        raise InputError("inference: got one while epsilon is missing; its noise is calibrated to epsilon")
    share = INFERENCE_SHARE if inference.share is None else inference.share
    # moments are taken at rows as they are, so the model should be one of them
    settled = _columns_stay(settled)
    plan = _make_plan(problem, facts, _of_rounds(privacy, inference), settled)
    plan = dataclasses.replace(plan, moments=_moments(problem, facts, privacy, settled, share, inference.robust))
    plan.check_flow()
    return plan.calibrate(privacy.epsilon, privacy.delta, observer=privacy.observer)


def _of_rounds(privacy: Privacy, inference: Wanted | None) -> Privacy:
    """What inference leaves to the rounds, which are calibrated by themselves first, so that rounds and moments get
    their shares whatever the events of rounds are."""
    if inference is None or privacy.epsilon is None:
        return privacy
    share = INFERENCE_SHARE if inference.share is None else inference.share
    left = Gaussian(math.sqrt(1 - share) / gaussian_multiplier(privacy.epsilon, privacy.delta))
    return dataclasses.replace(privacy, epsilon=gaussian_epsilon([(left, 1)], privacy.delta))


def _moments(problem: Problem, facts: Facts, privacy: Privacy, settled: Settled, share: float, robust: bool) -> Moments:
    situation = _situation(problem, facts, privacy, settled)
    second = SECOND_MOMENT_SHARE if robust or not known_variance(problem, facts) else 0.0

    def multiplier(part: float) -> float:
        return situation.multiplier / math.sqrt(share * part)

    free = free_curvature(problem, situation.gradient_clip, privacy.adjacency)
    return Moments(
        multipliers=(multiplier(FIRST_STAGE), multiplier(1 - FIRST_STAGE - second)),
        curvature_weight=free or CURVATURE_WEIGHT[privacy.adjacency],
        second_moment_multiplier=multiplier(second) if second else None,
        clip=situation.gradient_clip,
    )


def _make_plan(problem: Problem, facts: Facts, privacy: Privacy, settled: Settled) -> Plan:
    algorithm, topology, n_rounds = choose(problem, facts, privacy, settled)
    plan = Plan.make(
        algorithm,
        problem,
        topology,
        facts,
        rounds=n_rounds,
        adjacency=privacy.adjacency,
        unit=privacy.unit,
        records_per_person=privacy.records_per_person,
        people_span_parties=privacy.people_span_parties,
    )
    if privacy.observer is not None:
        plan.observer(privacy.observer)
    if privacy.epsilon is None:
        return plan
    return plan.calibrate(privacy.epsilon, privacy.delta, observer=privacy.observer)


def choose(problem: Problem, facts: Facts, privacy: Privacy, settled: Settled) -> tuple[Algorithm, Topology, int]:
    """The algorithm, with noise that is still to be calibrated, who hears whom, and the number of rounds."""
    settled = with_columns_settled(problem, facts, privacy, settled)
    name = _name(facts, privacy, settled)
    cls = ALGORITHMS[name]
    if settled.algorithm is None and name not in CLIPS_GRADIENTS and math.isinf(problem.loss.lipschitz):
        raise InputError(
            f"loss: 'squared' has unbounded slopes, which {name} on a given graph cannot clip; use 'huber', or leave "
            "the topology open"
        )
    usual = "complete" if cls.needs_graph else UNRESTRICTED
    topology = make_topology(usual if settled.topology is None else settled.topology, facts.n_parties)
    parts = Parts.of(name, settled.settings.get("mechanism"))
    parts.check(settled.settings)
    situation = Situation(problem=problem, facts=facts, privacy=privacy, topology=topology, name=name, settled=settled)
    n_rounds, chosen = RECIPES[name](situation)
    return parts.build({**situation.noise(parts), **chosen, **settled.settings}, problem, privacy), topology, n_rounds


def _name(facts: Facts, privacy: Privacy, settled: Settled) -> str:
    return choose_algorithm(
        facts, privacy, settled.algorithm, settled.topology, standardise=settled.standardise is True
    )


def choose_algorithm(
    facts: Facts, privacy: Privacy, name: str | None, topology: Any = None, *, standardise: bool = False
) -> str:
    """The name of the algorithm: gradients for everybody but parties on a graph that is given, or `name`."""
    if standardise:
        if name not in (None, *GRADIENT_DESCENT):
            raise InputError(f"standardise: got it with algorithm {name!r}; one of {', '.join(GRADIENT_DESCENT)} can")
        name = STANDARDISED
    if name is None:
        if privacy.epsilon is None:
            raise InputError("algorithm: left open while epsilon is missing; an algorithm is chosen by it")
        named = isinstance(topology, str) and topology == UNRESTRICTED
        unrestricted = topology is None or named or getattr(topology, "unrestricted", False)
        if privacy.sums or unrestricted or facts.n_parties == 1:
            return GRADIENT_DESCENT[0]
        return "locally-noised-admm" if privacy.unit == "party" else "penalty-perturbed-admm"
    if name not in ALGORITHMS:
        raise InputError(
            f"algorithm: got {name!r}; one of {', '.join(ALGORITHMS)} is needed{nearest(name, ALGORITHMS)}"
        )
    channels = alternatives(_field_types(ALGORITHMS[name]).get("channel", Broadcast))
    adds_up = channels != (Broadcast,)
    if not privacy.sums and Broadcast not in channels:
        raise InputError(
            f"trust: got 'none' for {name}, which adds up messages; 'pairs', 'curator' or 'secure-sum' is needed"
        )
    if privacy.sums and not adds_up:
        raise InputError(f"trust: got {privacy.trust!r} for {name}, which adds nothing up; 'none' is needed")
    return name


# --- the problem ------------------------------------------------------------------------------------------------------


def regulariser(
    problem: Problem, facts: Facts, privacy: Privacy, settled: Settled, inference: Wanted | None = None
) -> float:
    """l2, where it was left open; `problem` is without it."""
    if privacy.epsilon is not None and not privacy.exact and _name(facts, privacy, settled) in GRADIENT_DESCENT:
        settled = _columns_stay(settled) if inference is not None else settled
        situation = _situation(problem, facts, _of_rounds(privacy, inference), settled)
        return situation.gradient_setting(l2=None).l2 * situation.all_curvature
    mean_weight = sum(size * problem.weight_of_one_record(size) for size in facts.sizes) / sum(facts.sizes)
    return facts.row_norm**2 * mean_weight


def with_columns_settled(problem: Problem, facts: Facts, privacy: Privacy, settled: Settled) -> Settled:
    """Whether columns are standardised, where that is open: where forecasts are better with it."""
    if settled.standardise is not None:
        return settled
    situation = _situation(problem, facts, privacy, settled)
    if not situation.may_standardise:
        return _columns_stay(settled)
    setting = situation.gradient_setting(problem.regulariser.l2 / situation.all_curvature)
    return dataclasses.replace(settled, standardise=setting.standardise)


def _columns_stay(settled: Settled) -> Settled:
    return settled if settled.standardise else dataclasses.replace(settled, standardise=False)


def _situation(problem: Problem, facts: Facts, privacy: Privacy, settled: Settled) -> "Situation":
    return Situation(
        problem=problem,
        facts=facts,
        privacy=privacy,
        topology=make_topology(UNRESTRICTED, facts.n_parties),
        name=_name(facts, privacy, settled),
        settled=settled,
    )


def lasso_regulariser(facts: Facts, slope: float, weight_of_record: Callable[[int], float]) -> float:
    """l1, where it was left open: a share of what the gradient of pure chance reaches in d even columns."""
    squares = sum(size * weight_of_record(size) ** 2 for size in facts.sizes)
    d = facts.n_features
    return LASSO_SHARE * slope * facts.row_norm * math.sqrt(squares * math.log(2 * d) / d)


def residual_threshold(facts: Facts) -> float:
    """The residual from which a record pulls no harder, where it was left open: the label bound."""
    return 1.0 if facts.label_bound is None else facts.label_bound


# --- one function per family: (rounds, values of fields) --------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Situation:
    """Everything a rule may look at: public facts, the promise, and what is settled."""

    problem: Problem
    facts: Facts
    privacy: Privacy
    topology: Topology
    name: str
    settled: Settled

    @functools.cached_property
    def multiplier(self) -> float:
        """m."""
        if self.privacy.epsilon is None:
            return float(self.privacy.records_per_person)
        return self.privacy.records_per_person * gaussian_multiplier(self.privacy.epsilon, self.privacy.delta)

    @functools.cached_property
    def gradient_clip(self) -> float | None:
        """Bound on the gradient of one record, which a loss with unbounded slopes needs."""
        settled = self.settled.settings.get("clip") if self.name in CLIPS_GRADIENTS else None
        if settled is not None or math.isfinite(self.problem.loss.lipschitz):
            return settled
        return residual_threshold(self.facts) * self.facts.row_norm

    @functools.cached_property
    def sensitivity(self) -> float:
        """G."""
        facts, clip = self.facts, self.gradient_clip
        slope = self.problem.loss.lipschitz * facts.row_norm if clip is None else clip
        weights = [
            self.problem.largest_record_weight(size, facts) * (size if self.privacy.unit == "party" else 1)
            for size in (facts.smallest, facts.largest)
        ]
        return (2 if self.privacy.adjacency == "replace-one" else 1) * slope * max(weights)

    def record_curvature(self, size: int) -> float:
        """Largest curvature of one record at a party of `size` records."""
        weight = self.problem.largest_record_weight(size, self.facts)
        return weight * self.problem.loss.smoothness * self.facts.row_norm**2

    @functools.cached_property
    def curvature(self) -> float:
        """S."""
        return sum(size * self.record_curvature(size) for size in self.facts.sizes)

    @functools.cached_property
    def coupling_without_noise(self) -> float:
        """Twice the average curvature that the largest party's records can have in a direction."""
        largest = self.facts.largest
        return 2 * largest * self.record_curvature(largest) / self.facts.n_features

    @functools.cached_property
    def noises_of_sum(self) -> float:
        """How much noise a sum carries: one, what is left of pairs', or one of every party."""
        channel = sum_channel(self.privacy.trust, self.privacy.colluders)
        if channel is None:
            return float(self.facts.n_parties)
        channel.check(self.facts.n_parties)
        return channel.noise(self.facts.n_parties).total ** 2

    @functools.cached_property
    def all_curvature(self) -> float:
        """Sum of weights times squared row norms, as large as they can be: the unit of steps and of l2 in forecasts."""
        weights = [self.problem.largest_record_weight(size, self.facts) for size in self.facts.sizes]
        total = sum(size * weight for size, weight in zip(self.facts.sizes, weights, strict=True))
        return total * self.facts.row_norm**2

    @functools.cached_property
    def task(self) -> forecast.Task:
        """The noise of a summed gradient that spends everything, and what else a forecast rests on."""
        facts, clip = self.facts, self.gradient_clip
        n_classes = 0 if facts.labels is None else len(facts.labels)
        largest = max(self.problem.largest_record_weight(size, facts) for size in (facts.smallest, facts.largest))
        # slopes of classifiers have size 1 at most, those of regressions what they are clipped to
        slope = 1.0 if n_classes else (self.problem.loss.lipschitz if clip is None else clip / facts.row_norm)
        noise = self.sensitivity * self.multiplier * math.sqrt(self.noises_of_sum)
        return forecast.Task(
            n_records=self.all_curvature / (largest * facts.row_norm**2),
            n_columns=facts.n_features,
            n_classes=n_classes,
            noise=noise * facts.row_norm / (self.all_curvature * slope),
            column_noise=self._column_noise,
            smoothness=self.problem.loss.smoothness,
            label_bound=residual_threshold(facts) / slope,
        )

    @functools.cached_property
    def settled_momentum(self) -> float | None:
        momentum = self.settled.settings.get("momentum")
        if momentum is None:
            return None
        checked = as_momentum(momentum)
        return 0.0 if checked is None else checked.at(0, 0)

    @property
    def may_standardise(self) -> bool:
        """Whether it can be left open: gradients that nobody named, a constant column, a square as regulariser."""
        named = self.settled.algorithm is not None
        few = self.settled.rounds is not None and self.settled.rounds <= COLUMN_ROUNDS
        gradients = self.privacy.epsilon is not None and self.name in GRADIENT_DESCENT
        return gradients and not named and not few and self.settled.intercept and type(self.problem.regulariser) is L2

    @property
    def _column_noise(self) -> float:
        """Of sums of columns and of squares that spend everything, over the number of records; infinite where columns
        stay as they are."""
        if self.settled.standardise is False or not (self.settled.standardise or self.may_standardise):
            return math.inf
        return self.columns_moved * self.multiplier * math.sqrt(self.noises_of_sum) / sum(self.facts.sizes)

    @property
    def columns_moved(self) -> float:
        """How far one unit of privacy moves sums of columns and of squares."""
        of_record = joint_change(self.privacy.adjacency == "replace-one")
        return of_record * (self.facts.largest if self.privacy.unit == "party" else 1)

    def gradient_setting(self, l2: float | None) -> forecast.Setting:
        rounds = self.settled.rounds
        if self.settled.standardise and rounds is not None:
            check_gradients_are_left(rounds)
            rounds -= COLUMN_ROUNDS
        return forecast.best_setting(
            self.task, l2=l2, rounds=rounds, momentum=self.settled_momentum, standardise=self.settled.standardise
        )

    def length(self, n_noises: float) -> float:
        if self.privacy.epsilon is None:
            return math.inf
        score = SCORE if self.facts.label_bound is None else self.facts.label_bound
        return score / (self.facts.row_norm * self.sensitivity * self.multiplier * math.sqrt(n_noises))

    def rounds(self, wanted: float, limits: tuple[int, int]) -> int:
        return self.settled.rounds or math.ceil(min(max(wanted, limits[0]), limits[1]))

    def noise(self, parts: "Parts") -> dict[str, float]:
        """Any noise, which calibration scales; what is settled as noise has to do where nothing is promised."""
        if "noise_multiplier" not in parts.fields or any(name in self.settled.settings for name in NOISE):
            return {}
        if self.privacy.epsilon is None:
            raise InputError(
                f"epsilon: missing, and so is the noise of {self.name}; epsilon or one of "
                f"{', '.join(name for name in NOISE if name in parts.fields)} is needed"
            )
        return {"noise_multiplier": 1.0}


STANDARDISED = "standardised-gradient-descent"
GRADIENT_DESCENT = ("noisy-gradient-descent", STANDARDISED)
NOISE = ("noise_multiplier", "noise_rate", "step_epsilon")
# where `clip` bounds the gradient of a record; elsewhere it bounds a move
CLIPS_GRADIENTS = (*GRADIENT_DESCENT, "noisy-coordinate-descent", "broadcast-noised-admm")
Chosen = tuple[int, dict[str, Any]]


def _alone(situation: Situation) -> Chosen:
    facts = situation.facts
    highest_order = situation.multiplier * math.sqrt(2 * math.log(1 / situation.privacy.delta))
    against_noise = 1 / (facts.n_parties * situation.length(facts.n_parties))
    against_jacobian = JACOBIAN_MARGIN * situation.record_curvature(facts.smallest) * highest_order
    return situation.settled.rounds or 1, {"extra_l2": max(against_noise, against_jacobian)}


def _coupling(situation: Situation, n_rounds: int) -> float:
    """2 eta V: K rounds move the sum as far as steps of length K / (2 eta V N), and the Jacobian stays cheap."""
    facts, privacy = situation.facts, situation.privacy
    releases = n_rounds * (facts.n_parties if privacy.people_span_parties else 1)
    one_record = situation.record_curvature(facts.smallest)
    against_jacobian = math.sqrt(8 * releases) * one_record * situation.multiplier
    if privacy.epsilon is None:
        return max(situation.coupling_without_noise, against_jacobian)
    return max(n_rounds / (facts.n_parties * situation.length(facts.n_parties)), against_jacobian)


def _graph_rounds(situation: Situation) -> int:
    if situation.facts.n_parties == 1:
        raise InputError(f"algorithm: got {situation.name!r} for one party, which has no neighbours; leave it open")
    length = situation.length(situation.facts.n_parties)
    return situation.rounds(math.sqrt(length * situation.curvature), ROUNDS)


def _graph(situation: Situation) -> Chosen:
    """Parties with few neighbours hold on to them harder, so that all pay the same."""
    n_rounds = _graph_rounds(situation)
    degrees = np.maximum(situation.topology.degrees, 1)
    usual = tuple((_coupling(situation, n_rounds) / (2 * degrees)).tolist())
    penalty = as_schedule("penalty", situation.settled.settings.get("penalty", usual))
    dual_step = min(penalty.start) if isinstance(penalty.start, tuple) else penalty.start
    return n_rounds, {
        "penalty": penalty,
        "dual_step": dual_step,
        "recycle_weight": RECYCLE_WEIGHT,
        "averaging": "linear",
    }


def _edgewise(situation: Situation) -> Chosen:
    if "penalty" in situation.settled.settings:
        raise InputError("penalty: an edgewise algorithm takes edge_penalty, one number per edge")
    n_rounds, n_edges = _graph_rounds(situation), len(situation.topology.edges)
    if n_edges == 0:
        raise InputError("topology: got a graph without edges; an edgewise algorithm needs at least one")
    usual = (_coupling(situation, n_rounds) * situation.facts.n_parties / (4 * max(n_edges, 1)),) * n_edges
    edges = situation.settled.settings.get("edge_penalty", usual)
    made = EdgewiseADMM.with_edges(situation.topology, edges, dual_step=min(edges), noise_multiplier=1.0)
    return n_rounds, {
        "edge_penalty": made.edge_penalty,
        "penalty": made.mechanism.penalty,
        "dual_step": made.dual_step,
        "averaging": "linear",
    }


def _moves(situation: Situation) -> Chosen:
    n_parties = situation.facts.n_parties
    length = situation.length(n_parties)
    n_rounds = situation.rounds(math.sqrt(length * situation.curvature), ROUNDS)
    return n_rounds, _move_settings(situation, n_rounds)


def _move_settings(situation: Situation, n_visits: int) -> dict[str, Any]:
    relaxation = situation.settled.settings.get("relaxation", RELAXATION)
    n_parties = situation.facts.n_parties
    if situation.privacy.epsilon is None:
        step = 1 / situation.coupling_without_noise
    else:
        step = n_parties * situation.length(n_parties) / n_visits / (2 * relaxation)
    return {"step": step, "relaxation": relaxation, "spread_l2": True, "averaging": "linear"}


def _walk(situation: Situation) -> Chosen:
    """A public walk on which everybody works as often as in every round of parties that all work, at most."""
    n_parties, settled = situation.facts.n_parties, situation.settled.rounds
    n_visits = _moves(situation)[0] if settled is None else -(-settled // n_parties)
    chosen = {**_move_settings(situation, n_visits), "selection": Walk(seed=0, most_visits=n_visits)}
    return settled or n_visits * n_parties, chosen


def _memoryless_walk(situation: Situation) -> Chosen:
    """A secret one, on which nobody works more than twice as often as on average."""
    n_rounds, chosen = _walk(situation)
    most_visits = 2 * -(-n_rounds // situation.facts.n_parties)
    return n_rounds, {**chosen, "selection": Walk(seed=None, most_visits=most_visits)}


def _general(situation: Situation) -> Chosen:
    n_rounds, chosen = _moves(situation)
    n_coefficients = situation.problem.n_coefficients(situation.facts)
    return n_rounds, {**chosen, "A": Matrix.of("A", scipy.sparse.eye_array(n_coefficients))}


def _gradient(situation: Situation) -> Chosen:
    l2, all_curvature = situation.problem.regulariser.l2, situation.all_curvature
    chosen = {"clip": situation.gradient_clip, "averaging": "linear"}
    if situation.privacy.epsilon is None:
        n_rounds = situation.rounds(math.inf, GRADIENT_ROUNDS)
        return n_rounds, {**chosen, "step": 2 / (situation.curvature + l2)}
    setting = situation.gradient_setting(l2 / all_curvature)
    return setting.rounds, {**chosen, "step": setting.step / all_curvature, "momentum": setting.momentum}


def check_gradients_are_left(n_rounds: int) -> None:
    if n_rounds <= COLUMN_ROUNDS:
        raise InputError(f"rounds: got {n_rounds}; {COLUMN_ROUNDS} release sums of columns, so more are needed")


def _standardised(situation: Situation) -> Chosen:
    """Gradient steps with what sums of columns leave of the budget, after the rounds that release these."""
    if situation.settled.rounds is not None:
        check_gradients_are_left(situation.settled.rounds)
    standardised = dataclasses.replace(situation.settled, standardise=True)
    n_rounds, chosen = _gradient(dataclasses.replace(situation, settled=standardised))
    noise: dict[str, Any] = {"column_std": situation.multiplier * situation.columns_moved / math.sqrt(COLUMN_SHARE)}
    # shares of the budget, which calibration keeps
    if situation.privacy.epsilon is not None:
        noise["noise_multiplier"] = situation.multiplier * math.sqrt(n_rounds / (1 - COLUMN_SHARE))
    constant = INTERCEPT_SHARE if situation.settled.intercept else 0.0
    return n_rounds + COLUMN_ROUNDS, {**chosen, **noise, "constant_share": constant}


def _coordinates(situation: Situation) -> Chosen:
    """Gradient steps of which a coordinate takes a share q: its steps add up to sqrt(q) of the length, because the
    noise of each is that of all rounds."""
    coordinates = situation.settled.settings.get("coordinates", IN_TURN)
    check_coordinates(coordinates)
    share = coordinates.rate(situation.problem.n_coefficients(situation.facts))
    length = situation.length(situation.noises_of_sum) * math.sqrt(share)
    curvature = situation.curvature + situation.problem.regulariser.l2
    n_rounds = situation.rounds(length * curvature / STEP_TIMES_CURVATURE / share, GRADIENT_ROUNDS)
    step = min(length / (n_rounds * share), 2 / curvature)
    return n_rounds, {"step": step, "clip": situation.gradient_clip, "averaging": "linear"}


def _hidden_states(situation: Situation) -> Chosen:
    """A hidden state costs about (1 + step * curvature) times a gradient step, so steps stay at 1/curvature."""
    length, curvature = situation.length(situation.noises_of_sum), situation.curvature
    n_rounds = situation.rounds(length * curvature, GRADIENT_ROUNDS)
    step = situation.facts.n_parties * min(length / n_rounds, 1 / curvature)
    chosen = {"step": step, "relaxation": RELAXATION, "averaging": "linear"}
    if situation.name in CLIPS_GRADIENTS:
        chosen["clip"] = situation.gradient_clip
    return n_rounds, chosen


RECIPES: dict[str, Callable[[Situation], Chosen]] = {
    "admm": _graph,
    "dual-perturbed-admm": _graph,
    "primal-perturbed-admm": _graph,
    "penalty-perturbed-admm": _graph,
    "edgewise-admm": _edgewise,
    "recycled-admm": _graph,
    "one-release-average": _alone,
    "noisy-gradient-descent": _gradient,
    STANDARDISED: _standardised,
    "noisy-coordinate-descent": _coordinates,
    "locally-noised-admm": _moves,
    "sum-noised-admm": _hidden_states,
    "broadcast-noised-admm": _hidden_states,
    "walk-admm": _walk,
    "memoryless-walk": _memoryless_walk,
    "general-admm": _general,
}


# --- from names of fields to an algorithm -----------------------------------------------------------------------------

# papers' slips stay within Python, and plans fill in facts
_HIDDEN = ("mechanism", "as_published", "n_records", "n_columns", "n_scaled")
# whoever settles it need not know whether the algorithm's steps are proximal
_SHORT = {"prox_step": "step"}


@dataclasses.dataclass(frozen=True)
class Parts:
    """An algorithm and its mechanism, whose fields can be settled by their names."""

    name: str
    mechanism: type
    # names to choose from; empty where there is one only
    mechanisms: tuple[str, ...]

    @classmethod
    def of(cls, name: str, mechanism: str | None) -> "Parts":
        """`mechanism` in small letters and hyphens; the first where nothing is said."""
        kinds = alternatives(_field_types(ALGORITHMS[name])["mechanism"])
        named = {re.sub(r"(?<!^)(?=[A-Z])", "-", kind.__name__).lower(): kind for kind in kinds}
        if mechanism is None:
            return cls(name, kinds[0], tuple(named) if len(named) > 1 else ())
        if mechanism not in named:
            hint = nearest(mechanism, named)
            raise InputError(f"mechanism: got {mechanism!r}; one of {', '.join(named)} is needed{hint}")
        return cls(name, named[mechanism], tuple(named) if len(named) > 1 else ())

    @functools.cached_property
    def own(self) -> dict[str, Any]:
        """Fields of the algorithm itself, with their types; regulariser and channel belong to others."""
        fields = _field_types(ALGORITHMS[self.name])
        return {n: t for n, t in fields.items() if n not in (*_HIDDEN, "channel") and not _is_regulariser(t)}

    @functools.cached_property
    def fields(self) -> dict[str, Any]:
        """All that can be settled, with types."""
        types_of = _field_types(self.mechanism)
        return {**{setting: types_of[field] for setting, field in self._of_mechanism.items()}, **self.own}

    @functools.cached_property
    def _of_mechanism(self) -> dict[str, str]:
        """Settings that are fields of the mechanism, with the names of these fields."""
        fields = (field for field in _field_types(self.mechanism) if field not in _HIDDEN)
        return {_SHORT.get(field, field): field for field in fields}

    def check(self, settings: Mapping[str, Any]) -> None:
        known = (*(("mechanism",) if self.mechanisms else ()), *self.fields)
        for name in settings:
            if name not in known:
                raise InputError(
                    f"settings: {self.name} has no {name!r}{nearest(name, known)}; it has {', '.join(known)}"
                )

    def build(self, values: Mapping[str, Any], problem: Problem, privacy: Privacy) -> Algorithm:
        fields = _field_types(ALGORITHMS[self.name])
        own = {name: value for name, value in values.items() if name in self.own}
        own |= {name: problem.regulariser for name, kind in fields.items() if _is_regulariser(kind)}
        own |= {"channel": channel_of(privacy.trust, privacy.colluders)} if "channel" in fields else {}
        inner = {field: values[name] for name, field in self._of_mechanism.items() if name in values}
        return ALGORITHMS[self.name](mechanism=self.mechanism(**inner), **own)  # type: ignore[call-arg]


@functools.cache
def _field_types(cls: type) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}


def alternatives(hint: Any) -> tuple[Any, ...]:
    """The members of a union, or the one type."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def _is_regulariser(hint: Any) -> bool:
    return Regulariser in alternatives(hint)
