"""An algorithm's own numbers as arguments of its compiled program: another dual step is not another program.

A number, a float or a `Schedule`, that neither `init` nor `inbox` nor `local` reads can matter to `combine` alone, or
only to grants. Which ones these are is found by watching: all four are traced once without data, with an algorithm that
notes which of its fields are asked for.
"""

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coterie.network.selection import All
from coterie.plan import Plan
from coterie.schedules import Schedule

_MOST_FOUND = 256
_found: dict[Any, "Numbers"] = {}


class Numbers(NamedTuple):
    """Names of fields of an algorithm, those of its mechanism with `mechanism.` before them."""

    arguments: tuple[str, ...]  # that `combine` alone reads, as numbers
    in_grants: tuple[str, ...]  # that nothing reads but the mechanism, when it issues grants


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
