"""Record and replay: what a party's step changes between neighbouring data sets, against what its grant declares.

What is compared depends on where the noise enters, and needs no proof of the algorithm, only its step:

    noise in the objective     the noise b' that makes the neighbour release the same f: |b' - b| <= G. The step is
                               replayed with b' and must give f again, so a step that uses its records in any other way
                               than the grant was priced for is found out. With gamma noise the pure loss pays for the
                               change of log det H too, and both together are measured.
    noise on the minimiser     the same noise on both: |f' - f| <= (G + 2 tolerance) / Lambda
    noise on a sum             |contribution' - contribution| <= G

The search is over data sets, public inputs and noise, all that a theorem quantifies over: random ones first, then
mutations of the worst. It can only refute: what it has not found may exist. A step is traced once for both data sets,
so it cannot release more, less or another shape on one of them; what a neighbour could still see is a step that was
aborted, and those are counted.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coterie.audit.finding import Measured
from coterie.audit.recording import Workbench
from coterie.errors import InputError, LocalSolveError
from coterie.plan import Plan
from coterie.privacy.events import Both, Gaussian, GaussianObjective, PoissonGaussian, Pure, determinant_loss
from coterie.privacy.mechanisms import ArgminGrant, Grant
from coterie.privacy.noise import Seeded
from coterie.privacy.release import unit_noise
from coterie.problems import Records

# public inputs up to this size over the row norm: slopes saturate, rounding stays harmless
LARGEST_MARGIN = 30.0
# records x features tried at once: bounds memory
BATCH_ELEMENTS = 2**22
# relative
_ROUNDING = 1e-9
# of what is allowed
_SHARES = ("replay_error", "determinants")
_COMPILED: dict[str, Any] = {}


class Neighbours(NamedTuple):
    """Cases, one per row of every array: two data sets that differ in row `place`, public inputs, unit noise."""

    # (n_cases, 2, n_records, n_features); axis 1: the data set and its neighbour
    X: np.ndarray
    # (n_cases, 2, n_records)
    y: np.ndarray
    # (n_cases, 2, n_records) sample weights
    weight: np.ndarray
    # (n_cases,)
    place: np.ndarray
    # the party's slice of the algorithm's inbox
    inbox: Any
    # (n_cases, n_coefficients)
    release_noise: np.ndarray
    output_noise: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """The worst change that was found, in the unit of the grant's noise."""

    declared: float
    measured: float
    n_tried: int
    # cases in which a step gave no finite release: a neighbour could see that
    n_aborted: int
    # of releases replayed with the neighbour's noise, over what the solver's tolerance allows
    replay_error: float
    # with Gaussian noise in the objective: worst change of log det H over the declared r ln(1 + k)
    determinants: float

    @property
    def ratio(self) -> float:
        return self.measured / self.declared

    @property
    def passed(self) -> bool:
        worst = max(self.ratio, *(getattr(self, name) for name in _SHARES))
        return worst <= 1 + _ROUNDING and self.n_aborted == 0


def declared_sensitivity(grant: Grant) -> float:
    """What the grant's event says one record can change, in the unit of its noise; infinite without noise."""
    scales, event = grant.scales, grant.event
    if isinstance(grant, ArgminGrant):
        scale = scales.noise_scale or scales.output_scale
    elif hasattr(scales, "noise_std"):
        # noise on a move or a sum
        scale = scales.noise_std
    else:
        raise InputError(f"grant: got a {type(grant).__name__}; what it declares is not known here")
    if isinstance(event, Both):
        # the others price the solver's error
        event = event.events[0]
    if isinstance(event, (Gaussian, GaussianObjective, PoissonGaussian)):
        return event.ratio * scale
    return event.epsilon * scale if isinstance(event, Pure) else math.inf


def check_sensitivity(
    plan: Plan, *, party: int = 0, t: int = 0, n_random: int = 1000, n_generations: int = 10, seed: int = 0
) -> Report:
    """Try `n_random` neighbours and then as many mutations of the worst ones in each generation.

    All of them are in memory at once, each with twice the party's number of records: try fewer for a large party.
    """
    return search(Replay(plan, party, t), n_random=n_random, n_generations=n_generations, seed=seed)


def search(replay: "Replay", *, n_random: int, n_generations: int, seed: int) -> Report:
    return worst_case(replay, n_random=n_random, n_generations=n_generations, seed=seed)[0]


def worst_case(replay: "Replay", *, n_random: int, n_generations: int, seed: int) -> tuple[Report, Neighbours]:
    """The report on all that was tried, and the one case that changed most."""
    rng = np.random.default_rng(seed)
    cases = replay.draw(rng, n_random)
    changes, worst = replay.measure(cases)
    case = _one_of(cases, changes)
    for generation in range(n_generations):
        cases = replay.mutate(rng, cases, changes, radius=0.5 ** (generation / 2))
        changes, found = replay.measure(cases)
        if found.measured > worst.measured:
            case = _one_of(cases, changes)
        worst = dataclasses.replace(
            worst,
            **{name: max(getattr(worst, name), getattr(found, name)) for name in ("measured", *_SHARES)},
            **{name: getattr(worst, name) + getattr(found, name) for name in ("n_tried", "n_aborted")},
        )
    return worst, case


def _one_of(cases: Neighbours, changes: np.ndarray) -> Neighbours:
    most = int(np.argmax(changes))
    return jax.tree.map(lambda a: a[most : most + 1].copy(), cases)


class Replay:
    """One party's step of one round, as a function of data, public inputs and noise."""

    follows_state = False

    def __init__(self, plan: Plan, party: int, t: int) -> None:
        if not 0 <= party < plan.facts.n_parties or not 0 <= t < plan.n_rounds:
            raise InputError(f"party, t: got {party}, {t}; the plan has {plan.facts.n_parties}, {plan.n_rounds}")
        self.plan, self.party, self.t = plan, party, t
        self.n_records, self.d = plan.facts.sizes[party], plan.problem.n_coefficients(plan.facts)
        algorithm = plan.algorithm
        with jax.enable_x64(True):
            public, self.private = jax.eval_shape(lambda: algorithm.init(plan.topology, self.d))
            self.inbox = jax.eval_shape(lambda pub: algorithm.inbox(float(t), pub, plan.topology), public)
        if jax.tree.leaves(self.private) and not self.follows_state:
            raise InputError(
                f"plan: {type(algorithm).__name__} keeps private state between rounds, which one step cannot show"
            )
        grants, index = plan.issued
        self.grant = grants[index[t % len(index), party]]
        self.problem = plan.problem.share(plan.facts.n_parties)
        self.in_objective = isinstance(self.grant, ArgminGrant) and self.grant.scales.noise_scale > 0
        self._ready: dict[tuple[str, int], Any] = {}

    # --- cases ------------------------------------------------------------------------------------------------------

    def draw(self, rng: np.random.Generator, n: int) -> Neighbours:
        """Random data sets and neighbours within the public bounds, half of everything at its bound."""
        shape = (n, 2, self.n_records)
        X, y, weight = self._records(rng, shape)
        place, rows = rng.integers(self.n_records, size=n), np.arange(n)
        # else all records differ
        for column in (X, y, weight) if self.plan.unit == "record" else ():
            kept = column[rows, 1, place].copy()
            column[:, 1] = column[:, 0]
            column[rows, 1, place] = kept
        law = self.plan.algorithm.mechanism.law
        source, noise = Seeded(int(rng.integers(2**31))), np.zeros((2, n, self.d))
        if law is not None:
            for kind, purpose in enumerate(("release", "output")):
                for k in range(n):
                    noise[kind, k] = source.draw(law, self.d, repeat=k, party=self.party, t=self.t, purpose=purpose)
        inbox = jax.tree.map(lambda leaf: np.zeros((n, *leaf.shape[1:])), self.inbox)
        cases = Neighbours(X, y, weight, place, inbox, noise[0], noise[1])
        return self._adjacent(self._moved_inbox(rng, cases, 10 ** rng.uniform(-3, 0, n)))

    def mutate(self, rng: np.random.Generator, cases: Neighbours, changes: np.ndarray, radius: float) -> Neighbours:
        """As many cases again, each a small change of one of the worst."""
        n, facts = len(cases.y), self.plan.facts
        parents = rng.choice(np.argsort(-changes)[: max(1, n // 20)], n)
        cases = jax.tree.map(lambda a: a[parents], cases)
        rows, place, fresh = np.arange(n), cases.place, self._records(rng, (n, 2, 1))
        for side in (0, 1):
            x = cases.X[rows, side, place]
            x = x + radius * facts.row_norm * rng.random((n, 1)) * rng.normal(size=x.shape)
            norm = np.linalg.norm(x, axis=1, keepdims=True)
            at_bound = (rng.random((n, 1)) < 0.5) | (norm > facts.row_norm)
            cases.X[rows, side, place] = np.where(at_bound, x * (facts.row_norm / norm), x)
            for column, new in ((cases.y, fresh[1]), (cases.weight, fresh[2])):
                some = rng.random(n) < 0.1
                column[rows[some], side, place[some]] = new[some, side, 0]
        return self._adjacent(self._moved_inbox(rng, cases, radius * rng.random(n)))

    def _moved_inbox(self, rng: np.random.Generator, cases: Neighbours, share: np.ndarray) -> Neighbours:
        """Every public input moved by a share of the largest size, and kept within it."""
        size = LARGEST_MARGIN / self.plan.facts.row_norm

        def move(leaf: np.ndarray) -> np.ndarray:
            step = rng.normal(size=(len(leaf), math.prod(leaf.shape[1:])))
            step *= size * share[:, None] / np.linalg.norm(step, axis=1, keepdims=True)
            moved = leaf.reshape(step.shape) + step
            return (moved * np.minimum(1.0, size / np.linalg.norm(moved, axis=1, keepdims=True))).reshape(leaf.shape)

        return cases._replace(inbox=jax.tree.map(move, cases.inbox))

    def _records(self, rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        facts = self.plan.facts

        # of a bound
        def share(*extra: int) -> np.ndarray:
            return np.where(rng.random((*shape, *extra)) < 0.5, 1.0, rng.random((*shape, *extra)))

        direction = rng.normal(size=(*shape, facts.n_features))
        X = facts.row_norm * share(1) * direction / np.linalg.norm(direction, axis=-1, keepdims=True)
        if facts.labels is not None:
            y = rng.integers(len(facts.labels), size=shape).astype(float)
        else:
            y = (facts.label_bound or 1.0) * share() * rng.choice([-1.0, 1.0], size=shape)
        return X, y, facts.weight_bound * share()

    def _adjacent(self, cases: Neighbours) -> Neighbours:
        """Zero-out: the neighbour is the same data set with one weight 0, or all of them."""
        if self.plan.adjacency == "zero-out":
            for column in (cases.X, cases.y, cases.weight):
                column[:, 1] = column[:, 0]
            rows = np.arange(len(cases.y))
            cases.weight[(rows, 1, cases.place) if self.plan.unit == "record" else (rows, 1)] = 0.0
        return cases

    # --- measurement ------------------------------------------------------------------------------------------------

    def measure(self, cases: Neighbours) -> tuple[np.ndarray, Report]:
        """What changed in each case (-1 where a step was aborted), and the report on all of them."""
        n = len(cases.y)
        batch = max(1, min(n, BATCH_ELEMENTS // (self.n_records * self.plan.facts.n_features)))
        columns: list[list[np.ndarray]] = [[], [], [], []]
        with jax.enable_x64(True):
            for start in range(0, n, batch):
                # one shape for all: compiled once
                places = np.minimum(np.arange(start, start + batch), n - 1)
                changes = self._changes(jax.tree.map(lambda a, places=places: a[places], cases))
                for column, values in zip(columns, changes, strict=True):
                    column.append(values[: n - start])
        finite, change, error, determinants = (np.concatenate(column) for column in columns)
        measured = np.where(finite, change, -1.0)
        return measured, Report(
            declared=declared_sensitivity(self.grant),
            measured=float(measured.max()),
            n_tried=n,
            n_aborted=int((~finite).sum()),
            replay_error=float(np.where(finite, error, 0.0).max()),
            determinants=float(np.where(finite, determinants, 0.0).max()),
        )

    def _changes(self, cases: Neighbours) -> tuple[Any, Any, Any, Any]:
        """(both steps finite, change, error of the replay, share of the declared determinants), per case."""
        one, two = (self._weighted(cases, side) for side in (0, 1))
        noise, inbox, scales = (cases.release_noise, cases.output_noise), cases.inbox, self.grant.scales
        f, other = (self._apply(self._step, records, inbox, *noise) for records in (one, two))
        if f.shape != (len(cases.y), self.d):
            raise InputError(f"plan: a step gives {f.shape[1:]}; one release of {self.d} coefficients is declared")
        finite = np.isfinite(f).all(axis=1) & np.isfinite(other).all(axis=1)
        zeros = np.zeros(len(f))
        if not self.in_objective:
            return finite, np.linalg.norm(f - other, axis=1), zeros, zeros
        point = f - scales.output_scale * noise[1]
        moved = self._apply(self._gradient, one, point) - self._apply(self._gradient, two, point)
        again = self._apply(self._step, two, inbox, noise[0] + moved / scales.noise_scale, noise[1])
        allowed = 2 * scales.tolerance / self._convexity(scales) + 1e-12 * (1 + np.linalg.norm(f, axis=1))
        finite &= np.isfinite(again).all(axis=1)
        error = np.linalg.norm(again - f, axis=1) / allowed
        bends = np.abs(self._apply(self._log_det, one, point) - self._apply(self._log_det, two, point))
        change, event = np.linalg.norm(moved, axis=1), self.grant.event
        objective = event.events[0] if isinstance(event, Both) else event
        if isinstance(objective, Pure):
            return finite, change + scales.noise_scale * bends, error, zeros
        assert isinstance(objective, GaussianObjective)
        allowed = determinant_loss(objective.jacobian, objective.rank, objective.effective_rank)
        return finite, change, error, bends / allowed

    def _weighted(self, cases: Neighbours, side: int) -> Records:
        """Records as the engines hand them to the step; the problem takes the record axis first."""
        X, y, weight = (np.moveaxis(column[:, side], 1, 0) for column in (cases.X, cases.y, cases.weight))
        return Records(*(np.moveaxis(a, 0, 1) for a in self.problem.records(SimpleNamespace(X=X, y=y, weight=weight))))

    def _apply(self, function: Callable[..., Any], *args: Any) -> np.ndarray:
        """One of the functions below, on all cases."""
        key, scales = (function.__name__, len(args[0].y)), [np.asarray(scale) for scale in self.grant.scales]
        if key not in self._ready:
            self._ready[key] = _compiled(
                lambda scales, *rest: jax.vmap(partial(function, scales))(*rest), scales, *args
            )
        return np.asarray(self._ready[key](scales, *args))

    def _step(self, scales: Any, records: Records, inbox: Any, release_noise: Any, output_noise: Any) -> Any:
        grant, noise = self.plan.as_grant(scales), unit_noise(release_noise, output_noise)
        return self.plan.algorithm.local(grant, self.problem, records, self.private, inbox, noise)[1].value

    def _data_value(self, f: jax.Array, records: Records) -> jax.Array:
        matrix = f if self.problem.loss.n_outputs == 1 else f.reshape(-1, self.problem.loss.n_outputs)
        return jnp.dot(records.weight, self.problem.loss.value(records.X @ matrix, records.y))

    def _gradient(self, _scales: Any, records: Records, f: jax.Array) -> jax.Array:
        return jax.grad(self._data_value)(f, records)

    def _log_det(self, scales: Any, records: Records, f: jax.Array) -> jax.Array:
        hessian = jax.hessian(self._data_value)(f, records)
        return jnp.linalg.slogdet(hessian + self._convexity(type(self.grant).Scales(*scales)) * jnp.eye(f.size))[1]

    def _convexity(self, scales: Any) -> Any:
        """Lambda, which all data sets share."""
        return self.problem.regulariser.l2 + scales.curvature + scales.extra_l2


def _compiled(function: Callable[..., Any], *args: Any) -> Any:
    """Most plans differ in numbers only, and compiling is all that takes time: equal programs are compiled once."""
    lowered = jax.jit(function).lower(*args)
    program = lowered.as_text()
    if program not in _COMPILED:
        _COMPILED[program] = lowered.compile()
    return _COMPILED[program]


# --- a party that keeps private state: several rounds on two neighbouring data sets that hear the same ----------------

# What is released is public and the same for both, so both parties hear the same messages, whatever these are; only
# their states may differ. In every round, what the two contribute may differ by what the grant declares and no more.

# differences between states settle within a few rounds, or grow without end
N_ROUNDS = 6


def keeps_state(plan: Plan) -> bool:
    d = plan.problem.n_coefficients(plan.facts)
    with jax.enable_x64(True):
        return bool(jax.tree.leaves(jax.eval_shape(lambda: plan.algorithm.init(plan.topology, d)[1])))


class StateReplay(Replay):
    """Public inputs have a round axis here; the change is the largest over rounds."""

    follows_state = True

    def __init__(self, plan: Plan, party: int, t: int) -> None:
        super().__init__(plan, party, t)
        self.inbox = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((leaf.shape[0], N_ROUNDS, *leaf.shape[1:]), leaf.dtype), self.inbox
        )
        with jax.enable_x64(True):
            start = plan.algorithm.init(plan.topology, self.d)[1]
            self.private = jax.tree.map(lambda leaf: np.asarray(leaf)[party], start)

    def _changes(self, cases: Any) -> tuple[Any, Any, Any, Any]:
        noise = cases.release_noise, cases.output_noise
        one, two = (self._apply(self._step, self._weighted(cases, side), cases.inbox, *noise) for side in (0, 1))
        finite = np.isfinite(one).all(axis=(1, 2)) & np.isfinite(two).all(axis=(1, 2))
        zeros = np.zeros(len(one))
        return finite, np.linalg.norm(one - two, axis=2).max(axis=1), zeros, zeros

    def _step(self, scales: Any, records: Records, inbox: Any, release_noise: Any, output_noise: Any) -> Any:
        grant, noise = self.plan.as_grant(scales), unit_noise(release_noise, output_noise)
        private = jax.tree.map(jnp.asarray, self.private)

        def one_round(private: Any, heard: Any) -> Any:
            private, out = self.plan.algorithm.local(grant, self.problem, records, private, heard, noise)
            return private, out.value

        return jax.lax.scan(one_round, private, inbox)[1]


# --- the checks -------------------------------------------------------------------------------------------------------


def check(bench: Workbench) -> Measured:
    """One step is replayed with the same randomness on thousands of neighbouring data sets, with a search for the
    worst."""
    plan, _ = bench.heavy(2) or bench.heavy(1) or (bench.plan, None)
    n_random, n_generations = (600, 8) if bench.thorough else (300, 5)
    kind = StateReplay if keeps_state(plan) else Replay
    reports = [
        search(kind(plan, 0, t), n_random=n_random, n_generations=n_generations, seed=bench.seed)
        # a round of each kind
        for t in range(len(plan.algorithm.first_rounds) + 1)
    ]
    report = max(reports, key=lambda one: (not one.passed, one.ratio))
    problems = []
    if report.ratio > 1 + 1e-9:
        problems.append(f"a neighbour changes {report.measured:.4g}, and {report.declared:.4g} is declared")
    if report.replay_error > 1 + 1e-9:
        problems.append("the step uses its records in another way than its grant was priced for")
    if report.determinants > 1 + 1e-9:
        problems.append(f"determinants change {report.determinants:.4g} times what is declared")
    if report.n_aborted:
        problems.append(f"{report.n_aborted} of {report.n_tried} steps were refused, which a neighbour could see")
    detail = "; ".join(problems) or f"{report.ratio:.3f} of the declared change is reached"
    return Measured(stated=bench.stated, sound=report.passed, detail=detail)


def check_control_flow(bench: Workbench) -> Measured:
    """Whole runs on the worst known neighbours have the same releases, in number and shape, and none is refused."""
    try:
        recording = bench.recording
    except LocalSolveError as error:
        return Measured(stated=bench.stated, sound=False, detail=f"a run was refused: {error}")
    one, two = recording.releases
    plan = bench.plan
    expected = (plan.n_rounds, plan.release_width, plan.problem.n_coefficients(plan.facts))
    sound = one.shape == two.shape and recording.shape == expected and bool(np.isfinite([one, two]).all())
    detail = "" if sound else f"releases of shape {one.shape}, {two.shape}; {expected} a run is declared"
    return Measured(stated=bench.stated, sound=sound, detail=detail)
