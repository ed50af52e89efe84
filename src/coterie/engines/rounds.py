"""Rounds of any plan: one compiled function in which repeats are vectorised, parties mapped in batches, rounds looped.

It calls `inbox`, `local`, `Channel.aggregate` and `combine`, as engines between organisations do, and nothing else.

An algorithm's own numbers are arguments of its compiled program: another dual step is not another program. A number, a
float or a `Schedule`, that neither `init` nor `inbox` nor `local` reads can matter to `combine` alone, or only to
grants. Which ones these are is found by watching: all four are traced once without data, with an algorithm that notes
which of its fields are asked for.
"""

import contextlib
import copy
import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.compilation_cache import compilation_cache
from threadpoolctl import ThreadpoolController

from coterie.algorithms.algorithm import Algorithm, Heard
from coterie.machine import cache_folder
from coterie.minimisers import unless_missed
from coterie.minimisers.one_party import solved_together, together
from coterie.network.channels import ImpairedTopology, Impairments
from coterie.network.topology import All, Topology, Walk, participants
from coterie.plan import Plan
from coterie.privacy.noise import NoiseSource, Purpose
from coterie.privacy.release import unit_noise
from coterie.problems import Problem, group_by_size
from coterie.values import Schedule

WORTH_KEEPING_S = 0.3


@contextlib.contextmanager
def set_up() -> Iterator[None]:
    """What rounds run in: double precision, programs that are kept, and LAPACK on one thread."""
    with jax.enable_x64(True), kept_compilations(), one_lapack_thread():
        yield


def simple_code() -> dict[str, Any] | None:
    """For most programs; None where whoever runs this has settings of their own, or XLA is another.

    For code of fused operations on a processor XLA has two ways. The older one compiles in about half the time, and
    rounds with many small operations run up to 1.6 times as fast; where rows are picked the newer one is a third
    faster, so long runs in which only some parties work keep it.
    """
    return _settings("cpu", "0.10.", xla_backend_optimization_level=1, xla_cpu_use_fusion_emitters=False)


def loops_on_device() -> dict[str, Any] | None:
    """For programs with many small steps on a GPU, which else asks the processor beside it after each turn of a loop
    whether to go on; None as above."""
    return _settings("gpu", "0.11.", xla_gpu_enable_command_buffer="FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,WHILE")


def _settings(backend: str, release: str, **settings: Any) -> dict[str, Any] | None:
    """Where they were tried: a setting that a release of jaxlib does not know is an error."""
    chosen = os.environ.get("XLA_FLAGS", "")
    tried = jax.default_backend() == backend and version("jaxlib").startswith(release)
    return settings if tried and not any(name in chosen for name in settings) else None


@contextlib.contextmanager
def kept_compilations() -> Iterator[None]:
    """What is compiled inside is kept in `$XDG_CACHE_HOME/coterie/xla`, and looked up first: compiling often outlasts a
    run. A program holds what a plan says and no data: records, noise and grants are its arguments.

    Without a writable folder nothing changes; whoever has set up JAX's own cache, or turned it off, keeps that.
    """
    folder = cache_folder("xla")
    config: Any = jax.config
    if folder is None or config.jax_compilation_cache_dir is not None or not config.jax_enable_compilation_cache:
        yield
        return
    before = config.jax_persistent_cache_min_compile_time_secs
    _point_to(str(folder), WORTH_KEEPING_S)
    try:
        yield
    finally:
        _point_to(None, before)


def _point_to(folder: str | None, worth_keeping_s: float) -> None:
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", worth_keeping_s)
    # JAX looks at its settings once
    compilation_cache.reset_cache()


def one_lapack_thread() -> contextlib.AbstractContextManager[Any]:
    """Small factorisations gain nothing from more, and threads that wait spin: on two busy cores a second LAPACK thread
    made rounds with many small parties five times slower. XLA has threads of its own for products."""
    return _controller().limit(limits=1, user_api="blas")


@functools.cache
def _controller() -> ThreadpoolController:
    import scipy.linalg  # noqa: F401 - whose LAPACK it is that XLA calls

    return ThreadpoolController()


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


# records x features x repeats worked on at once: bounds memory
BATCH_ELEMENTS = 2**25
# on a GPU; arrays of scores, slopes, ... of repeats that share records
GPU_BATCH_ELEMENTS, SCORES = 2**28, 8


@dataclasses.dataclass(frozen=True)
class Program:
    """All of a plan that is compiled in. Grants are not, nor is a number that only they or `combine` depend on."""

    algorithm: Algorithm
    problem: Problem
    topology: Topology
    sizes: tuple[int, ...]
    d: int
    release_width: int
    # its pytree structure
    grant: Any
    repeats: int
    block: int
    remembers: bool
    # all parties have the same grant in a round
    alike: bool = False
    # compiled with `simple_code`
    simple: bool = False
    # that run side by side, each with repeats / plans of the repeats
    plans: int = 1
    # records x features of a party, see `solved_together`
    together_from: float | None = None

    @classmethod
    def of(
        cls,
        plan: Plan,
        repeats: int,
        block: int,
        *,
        remembers: bool = False,
        plans: int = 1,
        together_from: float | None = None,
        simple_below: float = 0.0,
    ) -> "Program":
        """`simple_below`: rounds x repeats x records x features up to which a plan in which only some parties work is
        compiled with `simple_code`; one in which all do always is."""
        mechanism: Any = plan.algorithm.mechanism.beyond_grants()
        index = plan.issued[1]
        work = plan.n_rounds * repeats * sum(plan.facts.sizes) * plan.facts.n_features
        algorithm: Any = dataclasses.replace(plan.algorithm, mechanism=mechanism)
        return cls(
            algorithm=without_numbers(algorithm, numbers_in(plan)),
            problem=plan.problem,
            topology=plan.topology,
            sizes=plan.facts.sizes,
            d=plan.problem.n_coefficients(plan.facts),
            release_width=plan.release_width,
            grant=jax.tree.structure(plan.issued[0][0]),
            repeats=repeats,
            block=block,
            remembers=remembers,
            alike=bool(np.all(index == index[:, :1])),
            simple=isinstance(plan.algorithm.selection, All) or work < simple_below,
            plans=plans,
            together_from=together_from,
        )


@functools.lru_cache(maxsize=32)
def compiled(program: Program) -> Callable[..., Any]:
    """Kept, because a plan is often run more than once and compiling takes longer than running."""
    # a state from which rounds may have to be computed again stays
    donated = 0 if program.together_from is None else ()
    options = simple_code() if program.simple else None
    return jax.jit(Rounds(program).advance, donate_argnums=donated, compiler_options=options)


def advance(program: Program, *arguments: Any) -> tuple[Any, Any]:
    """`Rounds.advance`, with fast minimisers where the program says so; with plain ones else, and where these miss."""
    if program.together_from is None:
        return compiled(program)(*arguments)
    with solved_together(program.together_from):
        found = compiled(program)(*arguments)
    return unless_missed(found, lambda: advance(dataclasses.replace(program, together_from=None), *arguments))


class Rounds:
    """Holds no data: only what a plan says."""

    def __init__(self, program: Program) -> None:
        self.program, self.algorithm, self.topology = program, program.algorithm, program.topology
        self.repeats, self.remembers, self.d = program.repeats, program.remembers, program.d
        self.n_parties, self.joined = len(program.sizes), program.plans > 1
        self.problem = program.problem.share(self.n_parties)
        self.groups = group_by_size(program.sizes)

    def advance(self, state, records, table, start, count, inputs: RoundInputs):
        """`count` rounds from `start` on: the state after them and what was released."""
        out = jnp.zeros((self.repeats, self.program.block, self.program.release_width, self.d))

        def one_round(k, carry):
            state, out = carry
            now = at_round(inputs, k)
            state, released = self._round(state, records, self.scales(table, now), start + k, now)
            return state, out.at[:, k].set(released)

        return jax.lax.fori_loop(0, count, one_round, (state, out))

    def scales(self, table, now: RoundInputs):
        """Of everybody's grants in this round; of several plans, by repeat."""
        scales = jax.tree.map(lambda column: column[now.grant], table)
        if self.joined:
            scales = jax.tree.map(lambda a: jnp.repeat(a, self.repeats // len(a), axis=0), scales)
        return scales

    def combined(self, t, public, received, now: RoundInputs, topology):
        def one(numbers, public, received):
            return with_numbers(self.algorithm, numbers).combine(t, public, received, topology)

        return jax.vmap(one, (0 if self.joined else None, 0, 0))(now.numbers, public, received)

    def _round(self, state, records, scales, t, now: RoundInputs):
        algorithm = self.algorithm
        topology: Any = self.topology if now.delivery is None else ImpairedTopology(self.topology, now.delivery)
        public, private, last = state
        noise = unit_noise(*now.noise)
        inbox = jax.vmap(lambda pub: algorithm.inbox(t, pub, topology))(public)
        if algorithm.channel.aggregates:
            if now.who is not None:
                private, parts = self._some(now, records, scales, private, inbox, None)
            else:
                after, parts = self._everybody(records, scales, private, inbox, None)
                if now.works is not None:
                    works = jnp.broadcast_to(now.works, (self.repeats, self.n_parties))
                    after = _where(works, after, private)
                    absent = last if self.remembers else jax.tree.map(jnp.zeros_like, parts.value)
                    parts = jax.tree.map(lambda new: jnp.where(works[..., None], new, absent), parts)
                    last = parts.value if self.remembers else last
                private = after
            # a sum has one grant
            one = jax.tree.map(lambda s: s[..., 0], scales)
            noised = jax.vmap(self._aggregate, (0, 0, 0 if self.joined else None))
            total = noised(parts, noise, one)
            received, released = total.value, total.value[:, None]
        elif now.who is not None:
            private, outs = self._some(now, records, scales, private, inbox, noise)
            received, released = jax.vmap(Heard)(now.who, outs.value), outs.value
        else:
            private, outs = self._everybody(records, scales, private, inbox, noise)
            received = outs.value
            if now.delivery is not None:
                received = last = jnp.where(now.delivery.speaks[:, None], received, last)
            released = received

        public = self.combined(t, public, received, now, topology)
        return (public, private, last), released

    def _everybody(self, records, scales, private, inbox, noise, with_data=None):
        """All repeats of all parties; results have axes (repeat, party, ...)."""
        parts = []
        for parties, data in zip(self.groups, records, strict=True):
            parts.append(self._bucket(parties, data, scales, private, inbox, noise, with_data))
        # in order already
        if len(parts) == 1:
            return parts[0]
        back = np.argsort(np.concatenate(self.groups))
        return jax.tree.map(lambda *a: jnp.concatenate(a, axis=1)[:, back], *parts)

    def _some(self, now: RoundInputs, records, scales, private, inbox, noise):
        """The parties `now.who`, (repeat, place); values of nobody are zero."""
        who = now.who

        def of_those(tree):
            return jax.tree.map(lambda a: jax.vmap(lambda row, places: row[places])(a, who), tree)

        somebody = who < self.n_parties
        if len(self.groups) == 1:
            data = jax.tree.map(lambda a: a[who], records[0])
            alike = self.program.alike
            theirs = jax.tree.map(lambda a: a[0] if alike else a[who], scales)
            args = (data, of_those(private), of_those(inbox), noise, now.with_data)
            axes = (None if alike else 0, *[0] * len(args))
            after, outs = jax.vmap(jax.vmap(self._local, axes), axes)(theirs, *args)
            private = jax.vmap(lambda old, new, places: jax.tree.map(lambda o, n: o.at[places].set(n), old, new))(
                private, after, who
            )
        else:
            # parties of different sizes lie in different arrays: everybody works and only `who` counts
            spread = jax.vmap(lambda row, places: jnp.zeros((self.n_parties, row.shape[-1])).at[places].set(row))
            everyone = jax.tree.map(lambda n: spread(n, who), noise)
            with_data = None if now.with_data is None else spread(now.with_data[..., None], who)[..., 0]
            after, everything = self._everybody(records, scales, private, inbox, everyone, with_data)
            works = jax.vmap(lambda places: jnp.zeros(self.n_parties, bool).at[places].set(True))(who)
            private, outs = _where(works, after, private), of_those(everything)
        return private, jax.tree.map(lambda a: jnp.where(somebody[..., None], a, 0.0), outs)

    def _local(self, scales, records, private, inbox, noise, with_data=None):
        # records without weight say nothing
        if with_data is not None:
            records = records._replace(weight=records.weight * with_data)
        return self.algorithm.local(self.grant(scales), self.problem, records, private, inbox, noise)

    def _aggregate(self, parts, noise, scales):
        channel: Any = self.algorithm.channel
        return channel.aggregate(parts, self.grant(scales), noise)

    def grant(self, scales):
        return jax.tree.unflatten(self.program.grant, jax.tree.leaves(scales))

    def _bucket(self, parties: np.ndarray, records, scales, private, inbox, noise, with_data):
        """All repeats of the parties of one bucket."""

        # repeats share their records, and those of one plan their grants
        axes = (0 if self.joined else None, None, 0, 0, 0, 0)

        def one_party(args):
            return jax.vmap(self._local, axes)(*args)

        whole = len(parties) == self.n_parties

        def party_first(tree):
            return jax.tree.map(lambda a: jnp.moveaxis(a if whole else a[:, parties], 1, 0), tree)

        args = (
            party_first(scales) if self.joined else jax.tree.map(lambda a: a if whole else a[parties], scales),
            records,
            *(party_first(tree) for tree in (private, inbox, noise, with_data)),
        )
        batch = self._batch_of(records.X[0])
        if batch <= 1:
            mapped = jax.lax.map(one_party, args)
        elif batch >= len(parties):
            mapped = jax.vmap(one_party)(args)
        else:
            mapped = jax.lax.map(one_party, args, batch_size=batch)
        return jax.tree.map(lambda a: jnp.moveaxis(a, 0, 1), mapped)

    def _batch_of(self, X) -> int:
        """How many parties with as many records are worked on at once."""
        smallest, problem = self.program.together_from, self.problem
        if smallest is None or not together(problem.loss, problem.regulariser, X.size, smallest):
            return BATCH_ELEMENTS // (X.size * self.repeats)
        # which idles while it works for one party
        if jax.default_backend() == "gpu":
            return GPU_BATCH_ELEMENTS // (X.size + SCORES * len(X) * self.repeats)
        # matrix products of several parties at once are slower than one after another
        return 1


def at_round(inputs: RoundInputs, k: Any) -> RoundInputs:
    return jax.tree.map(lambda a: a[k % a.shape[0]], inputs)


def _where(works, new, old):
    """Leaves (repeat, party, ...) of those who work from `new`, of the others from `old`."""
    return jax.tree.map(lambda n, o: jnp.where(works.reshape(works.shape + (1,) * (n.ndim - 2)), n, o), new, old)


def at_a_time(repeats: int, n_parties: int, d: int, most_bytes: int) -> int:
    """How many repeats are best run at a time where only some parties work: a divisor of all, or all where there is
    nothing to gain.

    A round moves much then and computes little. Picked rows and states of all repeats together outgrow the caches, and
    XLA picks rows on one core; those of a few repeats stay in the cache of the core that works on them.
    """
    if jax.default_backend() != "cpu":
        return repeats
    fitting = max(1, most_bytes // (8 * n_parties * d))
    return max(k for k in range(1, min(repeats, fitting) + 1) if repeats % k == 0)


def advance_some_at_a_time(program: Program, repeats: int, state: Any, *arguments: Any) -> tuple[list[Any], np.ndarray]:
    """`advance` of all repeats from that of `program.repeats` of them; states stay apart from one call to the next."""
    some, (*fixed, inputs) = program.repeats, arguments
    starts = range(0, repeats, some)
    if not isinstance(state, list):
        state = [jax.tree.map(lambda a, start=start: a[start : start + some], state) for start in starts]

    def part(start: int) -> Any:
        mine = _of_repeats(inputs, slice(start, start + some))
        # each thread has a setting of its own
        with jax.enable_x64(True):
            return jax.block_until_ready(advance(program, state[start // some], *fixed, mine))

    # compiles, where that has not been done yet
    first = part(0)
    with ThreadPoolExecutor(os.cpu_count()) as cores:
        states, released = zip(*[first, *cores.map(part, starts[1:])], strict=True)
    return list(states), np.concatenate(released)


def _of_repeats(inputs: RoundInputs, here: slice) -> RoundInputs:
    """Of a single plan, whose grants, numbers and deliveries are those of all repeats."""
    by_repeat = inputs.who, inputs.works, inputs.with_data, inputs.noise
    who, works, with_data, noise = jax.tree.map(lambda a: a[:, here], by_repeat)
    return inputs._replace(who=who, works=works, with_data=with_data, noise=noise)
