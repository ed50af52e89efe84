"""What a block of rounds needs from outside: which grants, who works, and the noise, drawn on the host."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from coterie.engines.numbers import numbers_of
from coterie.network.impairments import Impairments
from coterie.network.selection import Walk, participants
from coterie.plan import Plan
from coterie.privacy.noise import NoiseSource, Purpose

Drawn = dict[Any, Any]  # noise of one block, for those who would draw the same

MOST_SHARE = 0.5  # of the parties at work, up to which it pays to pick them out


class RoundInputs(NamedTuple):
    """Arrays with a leading round axis; None where a plan has no use for them."""

    grant: Any  # (rounds or 1, n_parties) which row of the plan's table of grants; of several, (.., plans, n_parties)
    delivery: Any  # impairments
    who: Any  # (rounds, repeats, width) those who work, where only they are computed; n_parties is nobody
    works: Any  # (rounds, repeats, n_parties) those who work and enter a sum, where everybody is computed
    with_data: Any  # (rounds, repeats, width) 0 where one of those works without its records, else 1
    noise: Any  # pair of (rounds, repeats, rows, d)
    numbers: Any  # the algorithm's own, with a round axis of length 1; of several plans, by repeat


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
        if aggregates and (plan.algorithm.absent_stays or most > MOST_SHARE * plan.facts.n_parties):
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
            who = None  # the noise is the sum's
        everybody = who is None
        n_rows = plan.noise_rows if who is None else who.shape[2]
        who = np.broadcast_to(np.arange(n_rows), (count, self.repeats, n_rows)) if who is None else who[:count]
        somebody = np.nonzero(who < plan.facts.n_parties)
        k, repeat, _ = somebody
        keys = np.column_stack([repeat, who[somebody], start + k])

        def draw(purpose: Purpose) -> np.ndarray:
            units = plan.draw(self.source, keys, purpose)
            if units is None:
                return np.zeros((self.length, self.repeats, n_rows, 1))  # broadcasts against anything
            noise = np.zeros((self.length, self.repeats, n_rows, self.d))
            noise[somebody] = units
            return noise

        def draw_once(purpose: Purpose) -> np.ndarray:
            if not (everybody and self.source.reproducible):  # only from a seed do others draw the same
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
