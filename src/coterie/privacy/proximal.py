"""Mechanisms of the fixed-point family: private ADMM as noisy fixed-point iterations (Cyffers, Bellet & Basu, 2023).

With gamma = `prox_step`, x = prox_{gamma f}(2z - u) and u+ = u + 2 relaxation (x - z), they differ in what is noised,
and so in what pays (`proximal_bounds` has the lengths):

    LocalNoise      M1  every move x - z, by its own party          one step
    SumNoise        M2  the sum of 2 relaxation (x - z)             2 relaxation (one step + state)
    BroadcastNoise  M3  the sum of the states, before it is used    state
"""

import dataclasses
import math

from coterie.errors import InputError, PrivacyPreconditionError
from coterie.privacy.events import PEER, Event, Gaussian, Observer, TokenWalk
from coterie.privacy.grants import Grant, issue
from coterie.privacy.mechanisms import Mechanism, PartyFacts, check_clip, output_event, sampled
from coterie.privacy.proximal_bounds import ProximalBounds
from coterie.privacy.proximal_grants import MoveGrant, StateGrant, SumMoveGrant
from coterie.problems.problem import Problem
from coterie.schedules import ScheduleField, as_schedule
from coterie.serialise import serialisable


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
            object.__setattr__(self, name, float(getattr(self, name)))  # whatever NumPy handed in
        check_clip(self.clip)
        if not (self.prox_step > 0 and math.isfinite(self.prox_step)):
            raise InputError(f"prox_step: got {self.prox_step}; a positive finite number is needed")
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
        return prox, tolerance, prox.change + 2 * tolerance * self.prox_step / prox.stretch

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
        each. Over m steps sensitivity + m slack is hidden, at the price of (sensitivity + m slack)^2 / m, whose mean is
        sensitivity^2 E[1/m] + 2 sensitivity slack + slack^2 E[m] for m geometric with mean n/2."""
        if observer != PEER or facts.n_parties <= 2:
            return event
        assert isinstance(event, Gaussian)
        multiplier = self.noise_multiplier.at(0, 0)
        changes = [self._change(problem, other, multiplier) for other in facts.extreme_parties]
        noise_std = multiplier * max(change for _, _, change in changes)
        error = max(2 * tolerance * self.prox_step / prox.stretch for prox, tolerance, _ in changes)
        slack, n = output_event(error, noise_std, facts).ratio, facts.n_parties
        mean_inverse = 2 * math.log(n / 2) / (n - 2)
        more = (2 * event.ratio * slack + slack**2 * n / 2) / mean_inverse
        return TokenWalk(ratio=math.sqrt(event.ratio**2 + more), n_parties=n)


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
        error = 2 * tolerance * self.prox_step / prox.stretch
        distance, _ = prox.state_distance(tolerance)
        # the state is off by the solver's error too: this time nothing clips it
        return 2 * self.relaxation * (distance / prox.stretch + prox.change + 2 * error)


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
