"""Rounds in which every party minimises a noised objective, taken apart: what is asked of a minimiser, its answer, and
what that leads to.

Any minimiser of several parties will do (`minimisers`): in machine code, one round after the other between two compiled
halves, or as matrices on a GPU, a block of rounds of all plans in one program. Grants are asked what to minimise, and
noise the minimisers, by the functions that the algorithm's own step calls. A block of rounds in which a minimisation
missed its tolerance is computed again as `rounds` computes it.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from coterie.engines import rounds
from coterie.engines.rounds import Program, RoundInputs, Rounds, at_round, loops_on_device
from coterie.minimisers import Minimiser, Subproblem, unless_missed
from coterie.minimisers.matrices import Matrices
from coterie.privacy.for_engines import answered, asked
from coterie.privacy.release import unit_noise
from coterie.problems import make_buckets


class ArgminRounds(Rounds):
    def __init__(self, program: Program) -> None:
        super().__init__(program)
        # repeats of several plans have several grants
        self.by_repeat = 0 if self.joined else None

    def ask(self, scales: Any, inbox: Any, noise: Any) -> Subproblem:
        """What everybody is to minimise, with axes (repeat, party, ...)."""

        def one(scales, inbox, noise):
            linear, target = inbox
            return asked(self.grant(scales), self.problem, noise, linear=linear, target=target)

        return jax.vmap(jax.vmap(one), (self.by_repeat, 0, 0))(scales, inbox, noise)

    def answer(self, scales: Any, noise: Any, f: Any, norms: Any) -> jax.Array:
        """What everybody releases, (repeat, party, d), for minimisers with gradients of these norms."""

        def one(scales, noise, f, norm):
            return answered(self.grant(scales), noise, f, norm)

        return jax.vmap(jax.vmap(one), (self.by_repeat, 0, 0, 0))(scales, noise, f, norms).value

    def before(self, public: Any, table: Any, t: Any, inputs: RoundInputs, k: Any) -> Subproblem:
        """What is asked in round t, the k-th of these inputs."""
        now = at_round(inputs, k)
        inbox = jax.vmap(lambda public: self.algorithm.inbox(t, public, self.topology))(public)
        return self.ask(self.scales(table, now), inbox, unit_noise(*now.noise))

    def after(self, public: Any, table: Any, t: Any, inputs: RoundInputs, k: Any, f: Any, norms: Any) -> Any:
        """What everybody knows afterwards, and what was released."""
        now = at_round(inputs, k)
        released = self.answer(self.scales(table, now), unit_noise(*now.noise), f, norms)
        return self.combined(t, public, released, now, self.topology), released


class Argmins:
    """Several programs over the same records, one state each, advanced with one minimiser."""

    def __init__(self, minimiser: Minimiser, problem: Any, shards: Sequence[Any]) -> None:
        self.minimiser, self.problem, self.shards = minimiser, problem, shards
        self.prepared = minimiser.prepare([problem.records(shard) for shard in shards])

    def advance(
        self, programs: tuple[Program, ...], states: list[Any], tables: list[Any], start: float, count: int, inputs: Any
    ) -> tuple[list[Any], list[np.ndarray]]:
        """As `rounds.advance` of each program."""
        if isinstance(self.minimiser, Matrices):
            found = _in_one_program(programs, self.minimiser)(states, self.prepared, tables, start, count, inputs)
        else:
            one_by_one = zip(programs, states, tables, inputs, strict=True)
            found = zip(*(self._between_halves(*own, start, count) for own in one_by_one), strict=True)
        done = []
        for program, after, released, *own in zip(programs, *found, states, tables, inputs, strict=True):
            again = functools.partial(self._again, program, *own, start, count)
            done.append(unless_missed((after, released), again))
        after, released = zip(*done, strict=True)
        return list(after), list(released)

    def _between_halves(self, program: Program, state: Any, table: Any, inputs: Any, start: float, count: int) -> Any:
        before, after = _halves(program)
        public, *rest = state
        out = np.zeros((program.repeats, program.block, program.release_width, program.d))
        for k in range(count):
            found = self.minimiser.minimise(self.prepared, before(public, table, start + k, inputs, k))
            public, out[:, k] = after(public, table, start + k, inputs, k, *found)
        return (public, *rest), out

    def _again(self, program: Program, state: Any, table: Any, inputs: Any, start: float, count: int) -> Any:
        return rounds.advance(program, state, self._buckets, table, start, count, inputs)

    @functools.cached_property
    def _buckets(self) -> Any:
        return jax.device_put(make_buckets(self.problem, self.shards))


@functools.lru_cache(maxsize=32)
def _halves(program: Program) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """What happens in a round before a minimisation, and after it."""
    own = ArgminRounds(program)
    return jax.jit(own.before), jax.jit(own.after)


@functools.lru_cache(maxsize=32)
def _in_one_program(programs: tuple[Program, ...], minimiser: Matrices) -> Callable[..., Any]:
    """Lists of states after rounds of all programs, and of what was released."""
    each = [ArgminRounds(program) for program in programs]
    ends = np.cumsum([own.repeats for own in each])[:-1]

    def advance(states, prepared, tables, start, count, inputs):
        outs = [jnp.zeros((own.repeats, own.program.block, own.program.release_width, own.d)) for own in each]

        def one_round(k, carry):
            publics, outs = carry
            t = start + k
            parts = list(zip(each, publics, tables, inputs, strict=True))
            all_asked = [own.before(public, table, t, now, k) for own, public, table, now in parts]
            batch = jax.tree.map(lambda *a: jnp.concatenate(a), *all_asked)
            found = zip(*(jnp.split(a, ends) for a in minimiser.minimise(prepared, batch)), strict=True)
            done = [
                own.after(public, table, t, now, k, *mine)
                for (own, public, table, now), mine in zip(parts, found, strict=True)
            ]
            publics, released = zip(*done, strict=True)
            return list(publics), [out.at[:, k].set(new) for out, new in zip(outs, released, strict=True)]

        publics, outs = jax.lax.fori_loop(0, count, one_round, ([public for public, *_ in states], outs))
        return [(public, *rest) for public, (_, *rest) in zip(publics, states, strict=True)], outs

    return jax.jit(advance, compiler_options=loops_on_device())
