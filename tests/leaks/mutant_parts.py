"""Ways to go wrong, from which `test_mutants` makes its mutants: prices, noises, sources, channels and steps."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from coterie.algorithms import PenaltyPerturbedADMM, RecycledADMM
from coterie.network.channels import SecureSum
from coterie.privacy.events import Both, Gaussian, PoissonGaussian, Pure, TokenWalk
from coterie.privacy.mechanisms import issue
from coterie.privacy.noise import Seeded
from coterie.privacy.proximal import WalkNoise
from coterie.privacy.standardising import SQUARES
from coterie.values import serialisable

# --- prices and noises --------------------------------------------------------------------------------------------


def mutated(mechanism, change):
    """The same mechanism, whose grants are changed on their way out."""

    class Mutated(type(mechanism)):
        def grant(self, t, party, problem, facts):
            return change(super().grant(t, party, problem, facts), problem, facts)

    return Mutated(**{field.name: getattr(mechanism, field.name) for field in dataclasses.fields(mechanism)})


def scaled(**factors):
    """Noise that is not the one that is priced."""

    def change(grant, problem, facts):
        scales = grant.scales._asdict()
        return issue(
            type(grant),
            grant.event,
            priced_for=grant.problem,
            **scales | {name: scales[name] * f for name, f in factors.items()},
        )

    return change


def priced(price):
    """A price that is not the one of the noise that is drawn."""

    def change(grant, problem, facts):
        return issue(type(grant), price(grant, problem, facts), priced_for=grant.problem, **grant.scales._asdict())

    return change


def squared(name):
    def change(grant, problem, facts):
        scales = grant.scales._asdict()
        return issue(type(grant), grant.event, priced_for=grant.problem, **scales | {name: scales[name] ** 2})

    return change


def ratio_times(factor):
    return priced(lambda grant, problem, facts: dataclasses.replace(grant.event, ratio=grant.event.ratio * factor))


def _convexity(grant, problem, facts):
    return problem.regulariser.l2 / facts.n_parties + grant.scales.curvature + grant.scales.extra_l2


def norm_not_squared(grant, problem, facts):
    """c1 X where the Hessian of a record is bounded by c1 X^2."""
    k = facts.record_weight * problem.loss.smoothness * facts.row_norm / _convexity(grant, problem, facts)
    return Pure(facts.gradient_sensitivity(problem) / grant.scales.noise_scale + math.log1p(k))


def jacobian_forgotten(grant, problem, facts):
    return Pure(facts.gradient_sensitivity(problem) / grant.scales.noise_scale)


def jacobian_forgotten_gaussian(grant, problem, facts):
    return Gaussian(ratio=facts.gradient_sensitivity(problem) / grant.scales.noise_scale)


def curvature_halved(grant, problem, facts):
    objective, output = grant.event.events
    return Both((dataclasses.replace(objective, jacobian=objective.jacobian / 2), output))


def without(grant, problem, facts):
    """Replace-one for the price of zero-out."""
    objective, output = grant.event.events
    return Both((dataclasses.replace(objective, ratio=objective.ratio / 2), output))


def price_of_slow_states(grant, problem, facts):
    """The price of relaxation <= 1/2 for states that overshoot."""
    return Gaussian(ratio=grant.event.ratio * (1 - abs(1 - 2 * 0.9)) / (2 * 0.9))


def party_for_the_price_of_its_records(grant, problem, facts):
    """A party's clipped gradient turns round when one record leaves; priced as if it only went to zero."""
    return Gaussian(ratio=grant.scales.radius / grant.scales.noise_std)


def squares_for_half(grant, problem, facts):
    """Of the rounds of sums of columns, the second."""
    return Gaussian(ratio=grant.event.ratio * (0.5 if grant.scales.stage == SQUARES else 1.0))


def coin_counted_twice(grant, problem, facts):
    return PoissonGaussian(ratio=grant.event.ratio, rate=grant.event.rate**2)


class _OnAverage(TokenWalk):
    """Twice the mean of what is lost over all walks, for whatever order."""

    def rdp(self, orders):
        amplified = 2 * orders * self.ratio**2 * math.log(self.n_parties / 2) / (self.n_parties - 2)
        return np.tile(np.minimum(amplified, orders * self.ratio**2 / 2), (2, 1))


class HiddenOnAverage(WalkNoise):
    def seen_by(self, observer, event, problem, facts):
        seen = super().seen_by(observer, event, problem, facts)
        return _OnAverage(seen.ratio, seen.n_parties) if isinstance(seen, TokenWalk) else seen


# --- sources and channels ---------------------------------------------------------------------------------------------


class ExponentialNorm(Seeded):
    """The norm of gamma noise drawn from Exp(1) in any dimension."""

    def draw(self, law, d, **key):
        draw = super().draw(law, d, **key)
        if law == "gaussian":
            return draw
        size = abs(super().draw(law, 1, **key)[0])
        return draw * (size / np.linalg.norm(draw))


class SameEveryRound(Seeded):
    def draw(self, law, d, *, repeat, party, t, purpose="release"):
        return super().draw(law, d, repeat=repeat, party=party, t=0, purpose=purpose)


class SameForAllParties(Seeded):
    def draw(self, law, d, *, repeat, party, t, purpose="release"):
        return super().draw(law, d, repeat=repeat, party=0, t=t, purpose=purpose)


class SameEveryRun(Seeded):
    def draw(self, law, d, *, repeat, party, t, purpose="release"):
        return super().draw(law, d, repeat=0, party=party, t=t, purpose=purpose)


@serialisable
@dataclasses.dataclass(frozen=True)
class ShareDropped(SecureSum):
    def aggregate(self, contributions, grant, noise):
        return grant.noised_total(grant.subtotal(contributions), noise.value[0][:-1])


@serialisable
@dataclasses.dataclass(frozen=True)
class SharesTooSmall(SecureSum):
    def aggregate(self, contributions, grant, noise):
        shares = noise.value[0]
        return grant.noised_total(grant.subtotal(contributions), shares / jnp.sqrt(float(shares.shape[0])))


# --- steps that reach around their grant ------------------------------------------------------------------------------


class StateCarriedUnNoised(PenaltyPerturbedADMM):
    """Keeps its exact gradient and starts the next step from it."""

    def init(self, topology, d):
        return super().init(topology, d)[0], jnp.zeros((topology.n_parties, d))

    def local(self, grant, problem, records, private, inbox, noise):
        release = grant.argmin(problem, records, noise, linear=inbox[0] + private, target=inbox[1])
        return records.X.T @ records.weight, release


class StopsEarlyOnPrivateResidual(PenaltyPerturbedADMM):
    """Goes on until the data say that it is near enough."""

    def local(self, grant, problem, records, private, inbox, noise):
        def far(f):
            return jnp.sum((records.X @ f - records.y) ** 2) > 1.0

        start = jax.lax.while_loop(far, lambda f: f / 2, inbox[1])
        return private, grant.argmin(problem, records, noise, linear=inbox[0], target=start)


class EvenStepFromStoredGradient(RecycledADMM):
    """Releases the even iterate, computed with the party's own exact gradient."""

    def local(self, grant, problem, records, private, inbox, noise):
        odd = grant.argmin(problem, records, noise, linear=inbox[0], target=inbox[1])
        slopes = problem.loss.slope(records.X @ odd.value, records.y)
        return private, jax.tree.map(lambda f: f - 0.1 * records.X.T @ (records.weight * slopes), odd)


class NoisesTwiceAndKeepsOne(PenaltyPerturbedADMM):
    """Two releases for the price of one."""

    def local(self, grant, problem, records, private, inbox, noise):
        first = grant.argmin(problem, records, noise, linear=inbox[0], target=inbox[1])
        return private, grant.argmin(problem, records, noise, linear=inbox[0], target=first.value)


class HalvesItsNoise(PenaltyPerturbedADMM):
    def local(self, grant, problem, records, private, inbox, noise):
        return super().local(grant, problem, records, private, inbox, jax.tree.map(lambda n: n / 2, noise))
