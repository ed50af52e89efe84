"""The one door from private to public, visible in the jaxpr so that it can be checked.

`check_flow` guards against honest mistakes, not against hostile code: Python can always reach around it.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend import core as jex_core
from jax.interpreters import batching, mlir

from coterie.errors import LeakError

# JAX is only partly typed, and its inner parts hardly
_jax: Any = jax
# what Python code does that has to know the numbers it computes with
_STEERED = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
_mlir: Any = mlir


def _marker(name: str) -> Any:
    """A primitive that changes nothing and can be seen in a jaxpr."""
    primitive: Any = jex_core.Primitive(name)

    def unchanged(x: Any, **_: Any) -> Any:
        return x

    def lowered(_: Any, x: Any, **__: Any) -> list[Any]:
        return [x]

    def batched(args: Any, dims: Any, **params: Any) -> Any:
        return primitive.bind(*args, **params), dims[0]

    primitive.def_impl(unchanged)
    primitive.def_abstract_eval(unchanged)
    _mlir.register_lowering(primitive, lowered)
    batching.primitive_batchers[primitive] = batched
    return primitive


# what comes out is public
_release_p = _marker("coterie_release")
# what goes in must already be public
_needs_public_p = _marker("coterie_needs_public")
# what goes in must be what the plan or engine issued, untouched
_as_issued_p = _marker("coterie_as_issued")
# what comes out is a contribution, bounded by its grant
_contribute_p = _marker("coterie_contribute")
# what comes out is the state that a theorem lets a party carry on
_keep_p = _marker("coterie_keep")

Shapes = tuple[ShapedArray, ...]


def _called(*args: Any, fn: Callable[..., Any], out: Shapes) -> Any:
    return fn(*args)


def _shapes_of_call(*args: Any, fn: Callable[..., Any], out: Shapes) -> list[ShapedArray]:
    return list(out)


def _batched_call(args: Any, dims: Any, *, fn: Callable[..., Any], out: Shapes) -> Any:
    [size] = {arg.shape[dim] for arg, dim in zip(args, dims, strict=True) if dim is not None}
    out = tuple(ShapedArray((size, *one.shape), one.dtype) for one in out)
    return _private_call_p.bind(*args, fn=jax.vmap(fn, in_axes=dims), out=out), [0] * len(out)


_private_call_p: Any = jex_core.Primitive("coterie_private_call")
_private_call_p.multiple_results = True
_private_call_p.def_impl(_called)
_private_call_p.def_abstract_eval(_shapes_of_call)
_mlir.register_lowering(_private_call_p, _mlir.lower_fun(_called, multiple_results=True))
batching.primitive_batchers[_private_call_p] = _batched_call


def private_call(fn: Callable[..., Any], *args: Any, like: Any = None) -> Any:
    """Run `fn(*args)` behind a closed door: its control flow may follow the data, and all it returns is private. Arrays
    that are `like` what it returns save tracing it once more."""
    flat, tree = _jax.tree.flatten(args)
    like = _jax.eval_shape(fn, *args) if like is None else like
    out = tuple(ShapedArray(one.shape, one.dtype) for one in jax.tree.leaves(like))

    def of_leaves(*leaves: Any) -> list[Any]:
        return jax.tree.leaves(fn(*tree.unflatten(leaves)))

    found = _private_call_p.bind(*flat, fn=of_leaves, out=out)
    return _jax.tree.unflatten(_jax.tree.structure(like), found)


_SEAL = object()
_LOW = 2.0**26


class _Sealed:
    """Holds a value that only this package's own doors may wrap."""

    __slots__ = ("value",)
    value: Any
    maker: str = "a Grant"

    def __init__(self, value: Any, seal: object = None) -> None:
        if seal is not _SEAL:
            raise TypeError(f"a {type(self).__name__} is made by {self.maker}, never by hand")
        object.__setattr__(self, "value", value)

    def __setattr__(self, name: str, value: Any) -> None:
        raise TypeError(f"a {type(self).__name__} cannot be changed")


class Release(_Sealed):
    """A noised array that anybody may see."""


class Contribution(_Sealed):
    """A bounded, un-noised array that can only enter `Channel.aggregate`."""


class Subtotal(_Sealed):
    """Contributions of some parties on their grid, added up: whole numbers of 2^26 steps and of one, (2, d), which can
    be added to others' and enter nothing but a noised sum."""


class UnitNoise(_Sealed):
    """The draws for one step, (release, output); only a grant or a channel can use them, and only whole."""

    maker = "an engine"


def _passes_through_transformations(cls: type[_Sealed]) -> None:
    def flatten(sealed: _Sealed) -> Any:
        return (sealed.value,), None

    def unflatten(_: Any, children: Any) -> _Sealed:
        return cls(children[0], _SEAL)

    _jax.tree_util.register_pytree_node(cls, flatten, unflatten)


for _cls in (Release, Contribution, Subtotal, UnitNoise):
    _passes_through_transformations(_cls)


def unit_noise(release: Any, output: Any) -> UnitNoise:
    """For engines only: wrap fresh draws."""
    return UnitNoise((release, output), _SEAL)


def seal(value: jax.Array, noise_steps: jax.Array, grid: jax.Array) -> Release:
    """For grants only, who vouch for value and noise: the value on its grid, plus whole steps of noise.

    Value and noise are whole numbers of steps before they meet. A double holds the correctly rounded sum of two whole
    numbers, which is a function of the exact one, and so is its product with the grid: the bits that leave depend on
    nothing but a noised whole number. A grid of 0 is for releases that promise nothing.
    """
    step = jnp.where(grid > 0, grid, 1.0)
    steps = _steps(value, step) + noise_steps
    return Release(_release_p.bind(jnp.where(grid > 0, steps * step, value)), _SEAL)


def seal_total(subtotal: "Subtotal", noise_steps: jax.Array, grid: jax.Array) -> Release:
    """As `seal`, for the sum of values that were put on the grid one by one."""
    high, low = subtotal.value
    low = low + noise_steps
    carried = jnp.floor(low / _LOW)
    steps = (high + carried) * _LOW + (low - carried * _LOW)
    return Release(_release_p.bind(steps * grid), _SEAL)


def seal_masked(subtotal: "Subtotal", noise_steps: jax.Array, pair_steps: jax.Array) -> Release:
    """As `seal_total`, in whole steps and modulo 2^64, so that what pairs share cancels in the sum of messages."""
    high, low = (part.astype(jnp.int64) for part in subtotal.value)
    return Release(_release_p.bind(high * int(_LOW) + low + noise_steps.astype(jnp.int64) + pair_steps), _SEAL)


def add_up(values: jax.Array, grid: jax.Array) -> "Subtotal":
    """For grants only: the sum over the leading axis of values, each put on the grid first.

    Sums of whole numbers are exact in whatever order they are taken; high and low parts are added up apart, so that
    both stay below 2^53 for up to 2^26 values.
    """
    high, low = _parts(_steps(values, grid))
    return Subtotal(jnp.stack([high.sum(axis=0), low.sum(axis=0)]), _SEAL)


def add_up_along(near: jax.Array, multiples: jax.Array, rows: jax.Array, grid: jax.Array) -> "Subtotal":
    """The same for values near + multiple * row that all lie near a public one: of so many that they are gone through
    once. Their distances from it must add up to less than 2^53 steps."""
    common, per_unit = _steps(near, grid), 1 / grid
    high, low = _parts(common)
    rest = jnp.rint((near * per_unit - common)[None] + rows * (multiples * per_unit)[:, None]).sum(axis=0)
    return Subtotal(jnp.stack([len(rows) * high, len(rows) * low + rest]), _SEAL)


def _steps(value: jax.Array, grid: jax.Array) -> jax.Array:
    """The nearest whole number of steps, up to roundings of 2^-52: a product takes a GPU a fraction of a quotient."""
    return jnp.rint(value * (1 / grid))


def _parts(steps: jax.Array) -> tuple[jax.Array, jax.Array]:
    high = jnp.floor(steps / _LOW)
    return high, steps - high * _LOW


def seal_kernel(released: np.ndarray) -> Release:
    """For grants only: what a kernel of theirs has put on a grid and noised, in machine code."""
    return Release(released, _SEAL)


def contribute(value: jax.Array) -> Contribution:
    """For grants only, who vouch for its sensitivity: what a party hands to a sum."""
    return Contribution(_contribute_p.bind(value), _SEAL)


def keep(value: jax.Array) -> jax.Array:
    """For grants only: mark the private state that the grant's theorem lets the party carry into the next round."""
    return _keep_p.bind(value)


def needs_public(value: jax.Array) -> jax.Array:
    """Mark an argument that a theorem takes as public; `check_flow` refuses data there."""
    return _needs_public_p.bind(value)


Origin = Literal["scale", "noise", "X", "y", "weight", "state", "contribution", "release"]


def as_issued(value: Any, origin: Origin) -> jax.Array:
    """Mark a use of something that must arrive as it was issued; `check_flow` refuses anything altered on its way."""
    return _as_issued_p.bind(_jax.numpy.asarray(value), origin=origin)


class Label(NamedTuple):
    """What the check knows about one array."""

    secret: bool
    # what it is, as long as nobody has altered it
    origin: Origin | None = None


_DERIVED_SECRET, _DERIVED_PUBLIC = Label(True), Label(False)


def check_flow(step: Callable[..., Any], *, records: Any, private: Any, noise: Any, scales: Any, inbox: Any) -> None:
    """Refuse a `step(records, private, noise, scales, inbox)` whose result could carry data past the release door.

    The result must be (private state, Release). Records, private state and noise are secret; the scales of the grant
    and the noise must reach the mechanism exactly as they were handed in, and so must the state, which only a grant
    may change: its theorem bounds how far two neighbouring states can drift apart.
    """
    inputs = (records, private, noise, scales, inbox)
    try:
        kept, out = _jax.eval_shape(step, *inputs)
    except _STEERED as error:
        place = " ".join(str(error).split())[:300]
        raise LeakError(
            "a party's step must not steer Python's control flow, or make a number of Python's or an array of NumPy's, "
            f"by what it computes with: {place}"
        ) from error
    if not isinstance(out, Release):
        found = "an array" if hasattr(out, "shape") else type(out).__name__
        raise LeakError(f"a party's step must end in the Release or the Contribution that its grant made, got {found}")
    if _jax.tree.structure(kept) != _jax.tree.structure(private):
        raise LeakError("a party's step must hand back private state of the kind it was given")

    def flat(*args: Any) -> list[Any]:
        after, released = step(*args)
        return [*jax.tree.leaves(after), released.value]

    closed = _jax.make_jaxpr(flat)(*inputs)
    if any(getattr(const, "size", 1) > 1 for const in closed.consts):
        raise LeakError("a party's step must not close over arrays: pass them as arguments")
    if closed.effects:
        raise LeakError("a party's step must have no side effects (print, callback, ...)")
    columns: list[Label] = [Label(True, "X"), Label(True, "y"), Label(True, "weight")]
    labels = [
        *columns,
        *[Label(True, "state") for _ in jax.tree.leaves(private)],
        *[Label(True, "noise") for _ in jax.tree.leaves(noise)],
        *[Label(False, "scale") for _ in jax.tree.leaves(scales)],
        *[Label(False) for _ in jax.tree.leaves(inbox)],
    ]
    *state_labels, released = _flow(closed.jaxpr, labels)
    if released.secret:
        raise LeakError("the released value does not pass the release door: data could reach it without noise")
    if any(label.origin != "state" for label in state_labels):
        raise LeakError("private state was changed by something else than its grant: nothing bounds what it carries on")
    if _count_releases(closed.jaxpr) != 1 or released.origin != "release":
        raise LeakError("a step releases once and returns that release as it is: its grant pays for one")


def _count_releases(jaxpr: Any) -> int:
    total = 0
    for eqn in jaxpr.eqns:
        count = (eqn.primitive is _release_p) + sum(map(_count_releases, _bodies(eqn)))
        if count and eqn.primitive.name in ("while", "scan", "cond"):
            raise LeakError("a release inside a loop or a branch: its grant pays for exactly one")
        total += count
    return total


def _bodies(eqn: Any) -> Iterator[Any]:
    """Of loops, branches and calls."""
    for value in eqn.params.values():
        for part in value if type(value) in (tuple, list) else (value,):
            body = getattr(part, "jaxpr", part)
            if hasattr(body, "eqns"):
                yield body


def _flow(jaxpr: Any, labels_in: list[Label]) -> list[Label]:
    """Labels of the outputs, given those of the inputs."""
    labels: dict[Any, Label] = dict(zip(jaxpr.invars, labels_in, strict=True))

    def label(var: Any) -> Label:
        # literals and constants are public
        return _DERIVED_PUBLIC if isinstance(var, jex_core.Literal) else labels.get(var, _DERIVED_PUBLIC)

    for eqn in jaxpr.eqns:
        outputs = _equation_flow(eqn, [label(v) for v in eqn.invars])
        labels.update(zip(eqn.outvars, outputs, strict=True))
    return [label(v) for v in jaxpr.outvars]


def _equation_flow(eqn: Any, inputs: list[Label]) -> list[Label]:
    name, params = eqn.primitive.name, eqn.params
    if eqn.primitive is _release_p:
        return [Label(False, "release")]
    if eqn.primitive is _contribute_p:
        return [Label(True, "contribution")]
    if eqn.primitive is _keep_p:
        return [Label(True, "state")]
    if eqn.primitive is _private_call_p:
        return [_DERIVED_SECRET] * len(eqn.outvars)
    if eqn.primitive is _needs_public_p and inputs[0].secret:
        raise LeakError("an argument that the theorem takes as public depends on data")
    if eqn.primitive is _as_issued_p and inputs[0].origin != params["origin"]:
        raise LeakError(f"{params['origin']} altered on its way to the mechanism: it must be used as it was issued")
    if "callback" in name:
        raise LeakError("a party's step must not call back into Python")
    if name == "while":
        return _while_flow(params, inputs)
    if name == "scan":
        return _scan_flow(params, inputs)
    if name == "cond":
        if inputs[0].secret:
            raise LeakError("a branch is chosen by data outside a private call: control flow would tell about the data")
        outputs = [_flow(branch.jaxpr, inputs[1:]) for branch in params["branches"]]
        return [_merge(column) for column in zip(*outputs, strict=True)]
    inner = params.get("jaxpr", params.get("call_jaxpr"))
    if inner is not None:
        jaxpr = getattr(inner, "jaxpr", inner)
        if len(jaxpr.invars) == len(inputs) and len(jaxpr.outvars) == len(eqn.outvars):
            return _flow(jaxpr, inputs)
    # any other primitive: whatever goes in comes out everywhere
    return [_merge(inputs)] * len(eqn.outvars)


def _merge(labels: Iterable[Label]) -> Label:
    return _DERIVED_SECRET if any(label.secret for label in labels) else _DERIVED_PUBLIC


def _while_flow(params: Any, inputs: list[Label]) -> list[Label]:
    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
    cond_consts, body_consts, carry = inputs[:n_cond], inputs[n_cond : n_cond + n_body], inputs[n_cond + n_body :]
    carry = _fixed_point(carry, lambda c: _flow(params["body_jaxpr"].jaxpr, body_consts + c))
    if _flow(params["cond_jaxpr"].jaxpr, cond_consts + carry)[0].secret:
        raise LeakError("a loop ends when data says so, outside a private call: control flow would tell about the data")
    return carry


def _scan_flow(params: Any, inputs: list[Label]) -> list[Label]:
    n_consts, n_carry = params["num_consts"], params["num_carry"]
    consts, carry, xs = inputs[:n_consts], inputs[n_consts : n_consts + n_carry], inputs[n_consts + n_carry :]
    # a slice is no longer what was handed in
    xs = [_merge([x]) for x in xs]
    body = params["jaxpr"].jaxpr
    carry = _fixed_point(carry, lambda c: _flow(body, consts + c + xs)[:n_carry])
    return carry + _flow(body, consts + carry + xs)[n_carry:]


def _fixed_point(carry: list[Label], step: Callable[[list[Label]], list[Label]]) -> list[Label]:
    carry = [_merge([label]) for label in carry]
    while True:
        after = [_merge(pair) for pair in zip(carry, step(carry), strict=True)]
        if after == carry:
            return carry
        carry = after
