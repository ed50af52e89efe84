"""The fixed-point family: private ADMM as noisy fixed-point iterations (Cyffers, Bellet & Basu, 2023).

With centre z, state u and gamma = `prox_step`, every step computes x = prox_{gamma f}(2z - u) for the party's own f and
moves u+ = u + 2 relaxation (x - z). Mechanisms and their grants differ in what is noised, and so in what pays:

    LocalNoise      M1  MoveGrant     every move x - z, by its own party: the state is a function of releases
                                                                                      one step
    SumNoise        M2  SumMoveGrant  the sum of 2 relaxation (x - z); states stay clean and private
                                                                                      2 relaxation (one step + state)
    BroadcastNoise  M3  StateGrant    the sum of the states, before it is used; states stay clean and private
                                                                                      state

A party's f has gradients of at most L = (its weight) * (slope of a record), and G is how far the gradient can move at
one point when what is protected changes. With l2 carried inside f, stretch = 1 + gamma l2 and pull is
2 relaxation/stretch (derivations in docs/guarantees.md):

    one step    x moves by at most gamma G/stretch at a fixed (z, u)
    whole party u+ = (1 - pull) u + (public) - pull gamma g with |g| <= L, so two states that saw the same centres stay
                within changes gamma L pull/(1 - |1 - pull|), which is changes gamma L for pull <= 1
    one record  of many: u -> u+ shrinks distances by c = max |1 - 2 relaxation/(1 + gamma h)| over the curvatures h
                between l2 and l2 + smoothness, so the states stay within 2 relaxation (gamma G/stretch)/(1 - c)
"""

import dataclasses
import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from coterie.errors import InputError, PrivacyPreconditionError
from coterie.minimisers.one_party import lies_on_a_line, minimise, slope_at_minimum
from coterie.privacy.events import PEER, Event, Gaussian, Observer, TokenWalk
from coterie.privacy.mechanisms import (
    LARGEST_POINT,
    Grant,
    Mechanism,
    PartyFacts,
    SumGrant,
    check_clip,
    issue,
    output_event,
    sampled,
    steps_of,
    untouched,
)
from coterie.privacy.objective import ROUNDING, TOLERANCE_SHARE
from coterie.privacy.release import (
    Contribution,
    Release,
    UnitNoise,
    as_issued,
    contribute,
    keep,
    needs_public,
    private_call,
    seal,
)
from coterie.problems import L2, Loss, Problem, Records
from coterie.values import ScheduleField, as_schedule, positive_number, serialisable

# --- how far neighbouring data can move one step ----------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class ProximalBounds:
    """The public numbers of one party's proximal step."""

    problem: Problem
    facts: PartyFacts
    prox_step: float
    relaxation: float
    l2: float
    # of one record of weight 1
    slope: float
    # the slope holds for the party's gradient as a whole only
    clipped: bool

    @property
    def stretch(self) -> float:
        return 1 + self.prox_step * self.l2

    @property
    def change(self) -> float:
        """How far neighbouring data move x: prox_step G/stretch."""
        return self.prox_step / self.stretch * self.facts.changes * self.facts.unit_weight * self.slope

    @property
    def reach(self) -> float:
        """prox_step * L: the largest |prox_step * gradient| of the whole party."""
        return self.prox_step * self.facts.n_records * self.facts.record_weight * self.slope

    def tolerance(self, noise_std: float) -> float:
        """What the solver can reach: a share of the largest gradient, and rounding at points as large as the noise."""
        facts, curvature = self.facts, 1 / self.prox_step + self.l2
        condition = 1 + facts.n_records * facts.record_weight * self.problem.loss.smoothness * facts.row_norm**2 / (
            curvature
        )
        largest = self.reach / self.prox_step
        point = LARGEST_POINT * (1 / facts.row_norm + noise_std * math.sqrt(facts.n_coefficients))
        return TOLERANCE_SHARE * largest + ROUNDING * condition * (largest + curvature * point)

    def error(self, tolerance: float) -> float:
        """How far apart the solver's tolerance and its rounding alone can leave two solutions."""
        convexity = 1 / self.prox_step + self.l2
        off = tolerance + self.facts.gradient_rounding(self.problem, self.slope, convexity)
        return 2 * off * self.prox_step / self.stretch

    def state_distance(self, tolerance: float) -> tuple[float, bool]:
        """How far two neighbouring states can be apart, and whether that relies on the solver's tolerance."""
        pull = 2 * self.relaxation / self.stretch
        if pull >= 2:
            raise PrivacyPreconditionError(
                f"relaxation: got {self.relaxation}; less than {self.stretch} = 1 + prox_step * l2 is needed"
            )
        # one record of many can turn the party's whole gradient round, also where it is only taken away
        swing = self.facts.changes if self.facts.unit_is_whole_party else 2
        # either state is rounded in every round
        whole = (swing * self.reach * pull + 2 * self.facts.point_rounding) / (1 - abs(1 - pull))
        if self.facts.unit_is_whole_party or self.clipped:
            return whole, False
        facts = self.facts
        smoothness = facts.n_records * facts.record_weight * self.problem.loss.smoothness * facts.row_norm**2
        stiffest = 2 * self.relaxation / (self.stretch + self.prox_step * smoothness)
        shrink = max(abs(1 - stiffest), abs(1 - pull))
        # either state is off by 2 relaxation times the solver's error, and as much again through the clipping
        error = 2 * self.error(tolerance)
        one_of_many = 2 * self.relaxation * (self.change + error) / (1 - shrink) if shrink < 1 else math.inf
        return (one_of_many, True) if one_of_many < whole else (whole, False)


# --- grants: one proximal step around a public centre, and where its noise goes ---------------------------------------


class ProxScales(NamedTuple):
    # 1/step
    curvature: Any
    # weight of |x|^2 / 2 that the party carries inside its f
    l2: Any
    relaxation: Any
    # to which the move, or the gradient part, is clipped; infinite: not at all
    radius: Any
    # of the noise on the release, or on the sum over all parties
    noise_std: Any
    # of the grid on which value and noise meet in one standard deviation
    steps: Any
    # absolute bound on the gradient at which the solver stops
    tolerance: Any
    # 1 where the price relies on the tolerance, 0 where clipping makes it moot
    strict: Any


class _ProxGrant(SumGrant):
    Scales = ProxScales


class MoveGrant(_ProxGrant):
    """Release the party's own noised move; the noise stays in its state."""

    def noised_move(
        self, problem: Problem, records: Records, noise: UnitNoise, *, centre: jax.Array, state: jax.Array
    ) -> Release:
        """clip(prox(2 centre - state) - centre) + noise; NaN, which engines must not send, if the solver failed."""
        scales, centre = self._issued(), needs_public(centre)
        unit, _ = noise.value
        move = private_call(
            partial(_clipped_move, self.priced(problem).loss), untouched(records), needs_public(state), centre, scales
        )
        return seal(move, steps_of(unit), self._issued_grid())


class SumMoveGrant(_ProxGrant):
    """Contribute the party's move to a noised sum; its state moves without noise."""

    def move(
        self, problem: Problem, records: Records, *, centre: jax.Array, state: jax.Array
    ) -> tuple[jax.Array, Contribution]:
        """The next state, and 2 relaxation clip(prox(2 centre - state) - centre)."""
        scales, centre, state = self._issued(), needs_public(centre), as_issued(state, "state")
        move = private_call(
            partial(_clipped_move, self.priced(problem).loss), untouched(records), state, centre, scales
        )
        move = 2 * scales.relaxation * move
        return keep(state + move), contribute(move)


class StateGrant(_ProxGrant):
    """Contribute the party's state to a noised sum."""

    def advance(
        self, problem: Problem, records: Records, *, centre: jax.Array, state: jax.Array
    ) -> tuple[jax.Array, Contribution]:
        """The next state, twice: kept, and contributed. What is clipped is step * gradient(x), so that two
        neighbouring states cannot drift apart (clipping x - centre would let them)."""
        scales, centre, state = self._issued(), needs_public(centre), as_issued(state, "state")
        after = private_call(partial(_advanced, self.priced(problem).loss), untouched(records), state, centre, scales)
        return keep(after), contribute(after)


def _gradient_part(loss: Loss, records: Records, point: Any, scales: ProxScales, radius: Any) -> Any:
    """step * gradient of f at x = argmin f(x) + (l2/2) |x|^2 + (curvature/2) |x - point|^2, clipped to the radius, so
    that x = (point - that) / (1 + l2/curvature). NaN where the solver missed a tolerance that the price relies on."""
    total = scales.curvature + scales.l2
    # nothing but numbers to find, and a length to clip
    if lies_on_a_line(loss, records):
        a, y, weight = records.X[0], records.y[0], records.weight[0]
        centre = point * (scales.curvature / total)
        slope, bound = slope_at_minimum(loss, a, y, weight, centre=centre, convexity=total)
        part = (weight / scales.curvature) * slope
        length = jnp.abs(part) * jnp.sqrt(jnp.sum(a * a))
        part = part * jnp.where(length > radius, radius / length, 1.0) * a
    else:
        x, bound = minimise(
            loss,
            L2(0.0),
            records,
            linear=jnp.zeros_like(point),  # pyright: ignore[reportUnknownMemberType]
            target=point * (scales.curvature / total),
            curvature=total,
            tolerance=scales.tolerance,
        )
        part = _clip(point - (total / scales.curvature) * x, radius)
    return jnp.where((bound <= scales.tolerance) | (scales.strict == 0), part, jnp.nan)


def _clip(v: Any, radius: Any) -> Any:
    norm = jnp.sqrt(jnp.sum(v * v))
    return v * jnp.where(norm > radius, radius / norm, 1.0)


def _clipped_move(loss: Loss, records: Records, state: Any, centre: Any, scales: ProxScales) -> Any:
    point = 2 * centre - state
    part = _gradient_part(loss, records, point, scales, jnp.inf)
    move = (point - part) / (1 + scales.l2 / scales.curvature) - centre
    # a party whose records say nothing stays out where moves are clipped: its price counts one move, not two
    silent = jnp.sum(records.weight[:, None] * jnp.abs(records.X)) == 0
    absent = jnp.isfinite(scales.radius) & silent
    return jnp.where(absent, 0.0, _clip(move, scales.radius))


def _advanced(loss: Loss, records: Records, state: Any, centre: Any, scales: ProxScales) -> Any:
    point = 2 * centre - state
    part = _gradient_part(loss, records, point, scales, scales.radius)
    return state + 2 * scales.relaxation * ((point - part) / (1 + scales.l2 / scales.curvature) - centre)


# --- mechanisms -------------------------------------------------------------------------------------------------------


class ProximalMechanism(Mechanism):
    """`prox_step` is the paper's gamma, `relaxation` its lambda. With `spread_l2` every party carries its share of the
    regulariser's l2 inside its own f, which is strongly convex then; else the coordinator's proximal map holds all."""

    prox_step: float
    relaxation: float
    noise_multiplier: ScheduleField
    clip: float | None
    spread_l2: bool
    law = "gaussian"

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise_multiplier", as_schedule("noise_multiplier", self.noise_multiplier))
        for name in ("prox_step", "relaxation"):
            # whatever NumPy handed in
            object.__setattr__(self, name, float(getattr(self, name)))
        check_clip(self.clip)
        positive_number("prox_step", self.prox_step)
        if not 0 < self.relaxation <= 1:
            raise InputError(f"relaxation: got {self.relaxation}; a number in (0, 1] is needed")

    def with_noise(self, factor: float) -> Mechanism:
        return self.changed(noise_multiplier=self.noise_multiplier.times(factor))

    def _prox(self, problem: Problem, facts: PartyFacts, slope: float, *, clipped: bool = False) -> ProximalBounds:
        l2 = problem.regulariser.l2 / facts.n_parties if self.spread_l2 else 0.0
        return ProximalBounds(problem, facts, self.prox_step, self.relaxation, l2, slope, clipped)

    def _issue(
        self,
        cls: type,
        prox: ProximalBounds,
        event: Event,
        *,
        radius: float,
        noise_std: float,
        tolerance: float,
        strict: bool,
    ) -> Grant:
        return issue(
            cls,
            event,
            priced_for=prox.facts.share(prox.problem),
            curvature=1 / self.prox_step,
            l2=prox.l2,
            relaxation=self.relaxation,
            radius=radius,
            noise_std=noise_std,
            steps=prox.facts.noise.steps,
            tolerance=tolerance,
            strict=strict,
        )

    def _clipped_prox(self, problem: Problem, facts: PartyFacts) -> ProximalBounds:
        """Where the move is clipped the slope only sets the solver's tolerance: one that would move by the radius."""
        assert self.clip is not None
        slope = self.clip / (self.prox_step * facts.n_records * facts.record_weight)
        return self._prox(problem, facts, slope, clipped=True)

    def _clipped_change(self, facts: PartyFacts) -> float:
        """How far a clipped move can change: to and fro across the ball, or to its centre when a party drops out."""
        assert self.clip is not None
        return self.clip * (facts.changes if facts.unit_is_whole_party else 2)


class _MoveMechanism(ProximalMechanism):
    """Every move is noised by its own party."""

    def _change(self, problem: Problem, facts: PartyFacts, multiplier: float) -> tuple[ProximalBounds, float, float]:
        """(bounds, tolerance, how far a move can change)."""
        if self.clip is not None:
            prox = self._clipped_prox(problem, facts)
            change = self._clipped_change(facts)
            return prox, prox.tolerance(multiplier * change), change
        prox = self._prox(problem, facts, facts.record_slope(problem))
        tolerance = prox.tolerance(multiplier * prox.change)
        return prox, tolerance, prox.change + prox.error(tolerance)

    def _noised(self, prox: ProximalBounds, tolerance: float, change: float, noise_std: float) -> Grant:
        return self._issue(
            MoveGrant,
            prox,
            output_event(change, noise_std, prox.facts),
            radius=math.inf if self.clip is None else self.clip,
            noise_std=noise_std,
            tolerance=tolerance,
            strict=self.clip is None,
        )


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalNoise(_MoveMechanism):
    """M1: every move is noised by its own party, and the noise stays in the state.

    Its standard deviation is multiplier * sensitivity; the paper's eta has twice that. `clip` bounds x - z.
    """

    prox_step: float
    relaxation: float
    noise_multiplier: ScheduleField
    clip: float | None = None
    spread_l2: bool = False

    def grant(self, t: int, party: int, problem: Problem, facts: PartyFacts) -> Grant:
        if facts.secret_rate < 1.0:
            raise PrivacyPreconditionError("selection: secret, but every message is seen, and so is who sends it")
        multiplier = self.noise_multiplier.at(t, party)
        prox, tolerance, change = self._change(problem, facts, multiplier)
        return self._noised(prox, tolerance, change, multiplier * change)


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class WalkNoise(_MoveMechanism):
    """M1 on a token that another party sees only at its own visits: cheaper against such a party.

    The proof hides a visit under the noise of those that follow, so all visits get the same noise, sized by the party
    that can change most; and it needs every step to shrink distances, which a clipped one need not do.
    """

    prox_step: float
    relaxation: float
    noise_multiplier: ScheduleField
    clip = None
    spread_l2 = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise_multiplier.per_party:
            raise InputError("noise_multiplier: got one per party; every visit of the token needs the same noise")

    def grant(self, t: int, party: int, problem: Problem, facts: PartyFacts) -> Grant:
        multiplier = self.noise_multiplier.at(t, party)
        prox, tolerance, change = self._change(problem, facts, multiplier)
        largest = max(self._change(problem, other, multiplier)[2] for other in facts.extreme_parties)
        return self._noised(prox, tolerance, change, multiplier * largest)

    def seen_by(self, observer: Observer, event: Event, problem: Problem, facts: PartyFacts) -> Event:
        """Steps that follow a visit shrink distances but for what rounding to the grid and their solvers add, `slack`
        each."""
        if observer != PEER or facts.n_parties <= 2:
            return event
        assert isinstance(event, Gaussian)
        multiplier = self.noise_multiplier.at(0, 0)
        changes = [self._change(problem, other, multiplier) for other in facts.extreme_parties]
        noise_std = multiplier * max(change for _, _, change in changes)
        error = max(prox.error(tolerance) for prox, tolerance, _ in changes)
        return TokenWalk(event.ratio, facts.n_parties, output_event(error, noise_std, facts).ratio)


class _SumMechanism(ProximalMechanism):
    """One noise covers the sum over all parties, so it is sized by the party whose part can change most."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise_multiplier.per_party:
            raise InputError("noise_multiplier: got one per party; one noise is added to the sum of all")

    def _tolerance(self, t: int, prox: ProximalBounds) -> float:
        """Allows for rounding at centres as noisy as the mean of the states can become."""
        facts = prox.facts
        return prox.tolerance(self.noise_multiplier.at(t, 0) * facts.noise.total * 2 * prox.reach / facts.n_parties)


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class SumNoise(_SumMechanism):
    """M2: the sum of the moves is noised, the states stay clean. `clip` bounds x - z.

    Without `clip` the relaxation must be at most (1 + prox_step l2)/2: a larger one lets hidden states overshoot.
    """

    prox_step: float
    relaxation: float
    noise_multiplier: ScheduleField
    clip: float | None = None
    spread_l2: bool = False

    def grant(self, t: int, party: int, problem: Problem, facts: PartyFacts) -> Grant:
        if self.clip is not None:
            prox, strict = self._clipped_prox(problem, facts), False
            own, *others = (
                2 * self.relaxation * self._clipped_change(each) for each in (facts, *facts.extreme_parties)
            )
        else:
            prox, strict = self._prox(problem, facts, facts.record_slope(problem)), True
            own, *others = (self._unclipped(t, problem, each) for each in (facts, *facts.extreme_parties))
        tolerance = self._tolerance(t, prox)
        noise_std = self.noise_multiplier.at(t, party) * max(others)
        return self._issue(
            SumMoveGrant,
            prox,
            sampled(output_event(own, noise_std, facts), facts),
            radius=math.inf if self.clip is None else self.clip,
            noise_std=noise_std,
            tolerance=tolerance,
            strict=strict,
        )

    def _unclipped(self, t: int, problem: Problem, facts: PartyFacts) -> float:
        """Sensitivity of a party's part of the sum."""
        prox = self._prox(problem, facts, facts.record_slope(problem))
        if 2 * self.relaxation > prox.stretch:
            raise PrivacyPreconditionError(
                f"relaxation: got {self.relaxation}; at most {prox.stretch / 2} is needed without clip: hidden states "
                "overshoot beyond it"
            )
        if facts.secret_rate < 1.0:
            raise PrivacyPreconditionError("selection: secret; amplification is proved for a clipped sum only")
        tolerance = self._tolerance(t, prox)
        distance, _ = prox.state_distance(tolerance)
        # the state is off by the solver's error too: this time nothing clips it
        return 2 * self.relaxation * (distance / prox.stretch + prox.change + 2 * prox.error(tolerance))


@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class BroadcastNoise(_SumMechanism):
    """M3: the sum of the states is noised before it becomes the next centre, the states stay clean.

    `clip` is the largest gradient that counts per record (of weight 1), for losses with unbounded slopes. The party's
    gradient is clipped as a whole: with many records in a party, each is protected as the whole party is.
    """

    prox_step: float
    relaxation: float
    noise_multiplier: ScheduleField
    clip: float | None = None
    spread_l2: bool = False

    def grant(self, t: int, party: int, problem: Problem, facts: PartyFacts) -> Grant:
        if facts.secret_rate < 1.0:
            raise PrivacyPreconditionError(
                "selection: secret, but states that are broadcast gain nothing from it: give it a public seed"
            )
        slope, clipped = facts.record_slope(problem, self.clip), self.clip is not None
        own, *others = (self._prox(problem, each, slope, clipped=clipped) for each in (facts, *facts.extreme_parties))
        tolerance = self._tolerance(t, own)
        distance, strict = own.state_distance(tolerance)
        largest = max(each.state_distance(self._tolerance(t, each))[0] for each in others)
        noise_std = self.noise_multiplier.at(t, party) * largest
        return self._issue(
            StateGrant,
            own,
            output_event(distance, noise_std, facts),
            radius=own.reach,
            noise_std=noise_std,
            tolerance=tolerance,
            strict=strict,
        )
