"""What a block of rounds needs from outside: which grants, who works, the noise, drawn on the host, and numbers.

An algorithm's own numbers are arguments of its compiled program: another dual step is not another program. A number, a
float or a `Schedule`, that neither `init` nor `inbox` nor `local` reads can matter to `combine` alone, or only to
grants. Which ones these are is found by watching: all four are traced once without data, with an algorithm that notes
which of its fields are asked for.
"""

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coterie.network.impairments import Impairments
from coterie.network.selection import All, Walk, participants
from coterie.plan import Plan
from coterie.privacy.noise import NoiseSource, Purpose
from coterie.schedules import Schedule

# noise of one block, for those who would draw the same
Drawn = dict[Any, Any]

# of the parties at work, up to which it pays to pick them out
MOST_AT_WORK = 0.5


class RoundInputs(NamedTuple):
    """Arrays with a leading round axis; None where a plan has no use for them."""

    # (rounds or 1, n_parties) which row of the plan's table of grants; of several, (.., plans, n_parties)
    grant: Any
    # impairments
    delivery: Any
    # (rounds, repeats, width) those who work, where only they are computed; n_parties is nobody
    who: Any
    # (rounds, repeats, n_parties) those who work and enter a sum, where everybody is computed
    works: Any
    # (rounds, repeats, width) 0 where one of those works without its records, else 1
    with_data: Any
    # pair of (rounds, repeats, rows, d)
    noise: Any
    # the algorithm's own, with a round axis of length 1; of several plans, by repeat
    numbers: Any


class Inputs:
    """Of one plan, or of several that differ in grants and numbers alone: each has its own repeats, plan after plan."""

    def __init__(
        self, plans: Sequence[Plan], source: NoiseSource, repeats: int, impairments: Impairments | None, length: int
    ) -> None:
        plan = plans[0]
        self.plan, self.source, self.length = plan, source, length
        self.d = plan.problem.n_coefficients(plan.facts)
        # from a seed each plan draws what it would draw alone; else nobody shares a draw
        self.copies = len(plans) if source.reproducible else 1
        self.repeats = repeats * len(plans) // self.copies
        self.table, self.index = _joined_grants(plans)
        self.numbers = numbers_of(plans, repeats)
        self.deliveries = None if impairments is None else impairments.deliveries(plan.topology, plan.n_rounds)
        self.who, self.works, self.with_data = self._participation()

    def _participation(self) -> tuple[np.ndarray | None, np.ndarray | None, np.ndarray | None]:
        plan, repeats = self.plan, self.repeats
        selection, topology, n_rounds = plan.algorithm.selection, plan.topology, plan.n_rounds
        if isinstance(selection, Walk) and plan.algorithm.idle_adds_noise:
            coins = [self.source.coins(repeat=r) for r in range(repeats)]
            paths = [selection.path(n_rounds, topology, uniform) for uniform in coins]
            busy = [selection.works(path, topology).any(axis=1) for path in paths]
            return np.stack(paths, axis=1)[..., None], None, np.stack(busy, axis=1)[..., None].astype(float)
        if selection.secret:
            tables = [selection.table(n_rounds, topology, self.source.coins(repeat=r)) for r in range(repeats)]
        elif plan.participation is not None:
            tables = [plan.participation]
        else:
            return None, None, None
        aggregates = plan.algorithm.channel.aggregates
        most = max(int(table.sum(axis=1).max()) for table in tables)
        if aggregates and (plan.algorithm.absent_stays or most > MOST_AT_WORK * plan.facts.n_parties):
            return None, np.stack(tables, axis=1), None
        found = [participants(table) for table in tables]
        # in steps, or every draw of a secret selection would be compiled anew
        width = min(plan.facts.n_parties, 16 * (most // 16 + 1)) if aggregates else plan.release_width
        nobody = np.full((n_rounds, width), plan.facts.n_parties)
        found = np.stack([np.concatenate([who, nobody], axis=1)[:, :width] for who in found], axis=1)
        return np.broadcast_to(found, (n_rounds, repeats, width)), None, None

    def block(self, start: int, count: int, drawn: Drawn) -> RoundInputs:
        """Of `count` rounds, in arrays of one fixed length so that nothing is compiled twice."""

        def piece(array: np.ndarray | None) -> np.ndarray | None:
            return None if array is None else _lengthen(array[start : start + count], self.length)

        delivery = None if self.deliveries is None else type(self.deliveries)(*map(piece, self.deliveries))
        who = piece(self.who)
        return RoundInputs(
            grant=self.index if len(self.index) == 1 else piece(self.index),
            delivery=delivery,
            who=who,
            works=piece(self.works),
            with_data=piece(self.with_data),
            noise=self._noise(start, count, who, drawn),
            numbers=self.numbers,
        )

    def _noise(self, start: int, count: int, who: np.ndarray | None, drawn: Drawn) -> tuple[np.ndarray, np.ndarray]:
        plan = self.plan
        if plan.algorithm.channel.aggregates:
            # the noise is the sum's
            who = None
        everybody = who is None
        n_rows = plan.noise_rows if who is None else who.shape[2]
        who = np.broadcast_to(np.arange(n_rows), (count, self.repeats, n_rows)) if who is None else who[:count]
        somebody = np.nonzero(who < plan.facts.n_parties)
        k, repeat, _ = somebody
        keys = np.column_stack([repeat, who[somebody], start + k])

        def draw(purpose: Purpose) -> np.ndarray:
            units = plan.draw(self.source, keys, purpose)
            if units is None:
                # broadcasts against anything
                return np.zeros((self.length, self.repeats, n_rows, 1))
            noise = np.zeros((self.length, self.repeats, n_rows, self.d))
            noise[somebody] = units
            return noise

        def draw_once(purpose: Purpose) -> np.ndarray:
            # only from a seed do others draw the same
            if not (everybody and self.source.reproducible):
                return draw(purpose)
            uses, law = type(plan.issued[0][0]).uses, plan.algorithm.mechanism.law
            alike = (law, uses.get(purpose), purpose, start, count, n_rows, self.length, self.repeats, self.d)
            if alike not in drawn:
                drawn[alike] = draw(purpose)
            return drawn[alike]

        release, output = draw_once("release"), draw_once("output")
        if self.copies > 1:
            release, output = (np.tile(noise, (1, self.copies, 1, 1)) for noise in (release, output))
        return release, output


def _joined_grants(plans: Sequence[Plan]) -> tuple[Any, np.ndarray]:
    """One table of grants for all plans, and who has which row when."""
    if len(plans) == 1:
        return plans[0].grant_table(), plans[0].issued[1]
    tables, indices, offset = [plan.grant_table() for plan in plans], [], 0
    for plan in plans:
        grants, index = plan.issued
        indices.append(index + offset)
        offset += len(grants)
    table = jax.tree.map(lambda *columns: np.concatenate(columns), *tables)
    return table, np.stack(np.broadcast_arrays(*indices), axis=1)


def _lengthen(array: np.ndarray, length: int) -> np.ndarray:
    return np.concatenate([array, np.zeros((length - len(array), *array.shape[1:]), array.dtype)])


# --- an algorithm's own numbers ---------------------------------------------------------------------------------------

_MOST_FOUND = 256
_found: dict[Any, "Numbers"] = {}


class Numbers(NamedTuple):
    """Names of fields of an algorithm, those of its mechanism with `mechanism.` before them."""

    # that `combine` alone reads, as numbers
    arguments: tuple[str, ...]
    # that nothing reads but the mechanism, when it issues grants
    in_grants: tuple[str, ...]


class _Argument(NamedTuple):
    """In the place of a number that is an argument. It is not a number, so that nobody takes it for one."""

    shape: tuple[int, ...] | None


class _Traced(NamedTuple):
    """A `Schedule` whose numbers are not known when it is compiled."""

    start: Any
    ratio: Any

    def __call__(self, t: Any) -> Any:
        return self.start * self.ratio**t

    @property
    def per_party(self) -> bool:
        return self.start.ndim > 0


def numbers_in(plan: Plan) -> Numbers:
    """The plan's algorithm has these."""
    if not isinstance(plan.algorithm.selection, All):
        return Numbers((), ())
    key = plan.algorithm, plan.problem, plan.topology
    if key not in _found:
        if len(_found) == _MOST_FOUND:
            _found.clear()
        _found[key] = _find_numbers(plan)
    return _found[key]


def without_numbers(algorithm: Any, numbers: Numbers) -> Any:
    """The algorithm without any number that its program does not depend on."""
    shapes: dict[str, Any] = dict.fromkeys(numbers.in_grants)
    shapes |= {name: np.shape(jax.tree.leaves(_arrays(_get(algorithm, name)))[0]) for name in numbers.arguments}
    return _with(algorithm, {name: _Argument(shape) for name, shape in shapes.items()})


def numbers_of(plans: Sequence[Plan], repeats: int) -> Any:
    """Of one plan, or of several that differ in numbers and grants alone and have `repeats` each. The first axis is
    that of rounds and has length 1."""
    names = numbers_in(plans[0]).arguments
    each = [{name: _arrays(_get(plan.algorithm, name)) for name in names} for plan in plans]
    if len(each) == 1:
        return jax.tree.map(lambda a: a[None], each[0])
    return jax.tree.map(lambda *a: np.repeat(np.stack(a), repeats, axis=0)[None], *each)


def with_numbers(algorithm: Any, numbers: dict[str, Any]) -> Any:
    """The algorithm with these, which may be traced, in their places: no check looks at them again."""
    return _with(algorithm, numbers)


def _find_numbers(plan: Plan) -> Numbers:
    algorithm: Any = plan.algorithm
    fields = [*_numbers(algorithm, ""), *_numbers(algorithm.mechanism, "mechanism.")]
    earlier = _watched(algorithm, lambda watched: _trace_steps(plan, watched))
    free = [name for name in fields if name not in earlier]
    in_combine = _watched(algorithm, lambda watched: _trace_combine(plan, lambda _: watched, {}))
    arguments = tuple(name for name in free if name in in_combine)
    try:
        traced = {name: _arrays(_get(algorithm, name)) for name in arguments}
        _trace_combine(plan, lambda numbers: with_numbers(algorithm, numbers), traced)
    except (TypeError, ValueError, AttributeError):
        # it compares, converts or asks them for what a traced number has not, so it needs them as they are
        arguments = ()
    return Numbers(arguments, tuple(name for name in free if name not in in_combine))


def _numbers(owner: Any, prefix: str) -> list[str]:
    values = {prefix + field.name: getattr(owner, field.name) for field in dataclasses.fields(owner)}
    return [name for name, value in values.items() if isinstance(value, (Schedule, float))]


def _watched(algorithm: Any, trace: Callable[[Any], Any]) -> set[str]:
    """Names of the fields that are read while this is traced."""
    seen: set[str] = set()

    def watching(owner: Any, prefix: str) -> Any:
        class Watched(type(owner)):
            def __getattribute__(self, name: str) -> Any:
                seen.add(prefix + name)
                return super().__getattribute__(name)

        twin = copy.copy(owner)
        object.__setattr__(twin, "__class__", Watched)
        return twin

    trace(watching(_with(algorithm, {"mechanism": watching(algorithm.mechanism, "mechanism.")}), ""))
    return seen


def _trace_steps(plan: Plan, algorithm: Any) -> None:
    """`init`, `inbox` and `local`, as the check of the information flow traces them."""
    twin = object.__new__(type(plan))
    values = {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan)}
    twin.__dict__.update(values, algorithm=algorithm, issued=plan.issued)
    twin.check_flow()


def _trace_combine(plan: Plan, algorithm_of: Callable[[Any], Any], numbers: Any) -> None:
    n, d, topology = plan.facts.n_parties, plan.problem.n_coefficients(plan.facts), plan.topology
    with jax.enable_x64(True):
        public, _ = jax.eval_shape(lambda: plan.algorithm.init(topology, d))
        received = jax.ShapeDtypeStruct((d,) if plan.algorithm.channel.aggregates else (n, d), jnp.float64)
        t = jax.ShapeDtypeStruct((), jnp.float64)
        jax.eval_shape(
            lambda numbers, t, public, received: algorithm_of(numbers).combine(t, public, received, topology),
            numbers,
            t,
            public,
            received,
        )


def _get(algorithm: Any, name: str) -> Any:
    return getattr(*_place(algorithm, name))


def _with(algorithm: Any, values: dict[str, Any]) -> Any:
    """A copy with other values, which nothing checks."""
    twin = copy.copy(algorithm)
    if any(name.startswith("mechanism.") for name in values):
        object.__setattr__(twin, "mechanism", copy.copy(twin.mechanism))
    for name, value in values.items():
        object.__setattr__(*_place(twin, name), value)
    return twin


def _place(algorithm: Any, name: str) -> tuple[Any, str]:
    """The algorithm or its mechanism, and the field."""
    return (algorithm.mechanism if name.startswith("mechanism.") else algorithm), name.rpartition(".")[2]


def _arrays(value: Any) -> Any:
    if isinstance(value, Schedule):
        return _Traced(*np.broadcast_arrays(np.asarray(value.start), np.asarray(value.ratio)))
    return np.asarray(value, dtype=float)
