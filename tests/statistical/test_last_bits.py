"""The attack of the last bits: somebody who knows two neighbouring data sets, and the exact value each would give, asks
which of them can have produced the bits of a release. Two hundred trials of every kind of default release.

A guesser is right in Binomial(200, 1/2) trials; beyond 72 to 128 of them lies a chance of 1e-4. The stated loss of the
runs is so small (epsilon = 0.2 at most) that telling by the noise alone stays within it too. Power: the same attack on
the same values, noised as doubles, is right every time.
"""

import functools

import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from sklearn.linear_model import LogisticRegression

from coterie import Federation, SystemEntropy, evaluate, run
from coterie.algorithms import (
    BroadcastNoisedADMM,
    LocallyNoisedADMM,
    NoisyGradientDescent,
    PenaltyPerturbedADMM,
    PrimalPerturbedADMM,
    StandardisedGradientDescent,
    SumNoisedADMM,
)
from coterie.audit.reachability import reached
from coterie.network.channels import Broadcast, Curator, SecureSum
from coterie.plan import Plan
from coterie.privacy.mechanisms import GaussianGradient
from coterie.privacy.objective import OutputPerturbation, PenaltyPerturbation
from coterie.privacy.proximal import BroadcastNoise, LocalNoise, SumNoise
from coterie.privacy.standardising import StandardisedGradient
from coterie.problems import L2, Logistic, Problem

TRIALS, ALLOWED = 200, (72, 128)
RNG = np.random.default_rng(1)
X = RNG.normal(size=(100, 6)) / 3
Y = (X[:, 0] > 0).astype(int)
NEIGHBOUR = X.copy()
NEIGHBOUR[0] = -X[0]
PARTY = np.repeat(list("abcde"), 20)
REGULARISER = L2(1.0)
PROBLEM = Problem(loss=Logistic(), regulariser=REGULARISER, record_weight=1.0)
PROX = {"prox_step": 0.5, "relaxation": 0.5, "noise_multiplier": 100.0}
SUM = {"regulariser": REGULARISER}

ALGORITHMS = {
    "gradients, curator": NoisyGradientDescent(
        mechanism=GaussianGradient(noise_multiplier=100.0), step=0.1, channel=Curator(), **SUM
    ),
    "gradients, secure sum": NoisyGradientDescent(
        mechanism=GaussianGradient(noise_multiplier=100.0), step=0.1, channel=SecureSum(), **SUM
    ),
    "gradients, nobody": NoisyGradientDescent(
        mechanism=GaussianGradient(noise_multiplier=100.0), step=0.1, channel=Broadcast(), **SUM
    ),
    "sums of columns, nobody": StandardisedGradientDescent(
        mechanism=StandardisedGradient(noise_multiplier=100.0, column_std=200.0), step=0.1, channel=Broadcast(), **SUM
    ),
    "M1": LocallyNoisedADMM(mechanism=LocalNoise(**PROX), **SUM),
    "M2, curator": SumNoisedADMM(mechanism=SumNoise(**PROX), channel=Curator(), **SUM),
    "M3, curator": BroadcastNoisedADMM(mechanism=BroadcastNoise(**PROX), channel=Curator(), **SUM),
    "M3, secure sum": BroadcastNoisedADMM(mechanism=BroadcastNoise(**PROX), channel=SecureSum(), **SUM),
    "noise on minimisers": PrimalPerturbedADMM(
        mechanism=OutputPerturbation(penalty=1.0, noise_multiplier=100.0), dual_step=1.0
    ),
    "gamma noise on minimisers": PrimalPerturbedADMM(
        mechanism=OutputPerturbation(penalty=1.0, noise_rate=0.05), dual_step=1.0
    ),
    "noise in objectives": PenaltyPerturbedADMM(
        mechanism=PenaltyPerturbation(penalty=1.0, noise_multiplier=100.0), dual_step=1.0
    ),
}


class Silence:
    """Shows the exact values: what somebody who knows both candidates can compute."""

    reproducible = True

    def draw(self, law, d, **key):
        return np.zeros(d)


def federation(rows):
    return Federation.from_arrays(rows, Y, parties=PARTY, labels=[0, 1], row_norm=1.0)


@functools.cache
def games(name):
    """Releases of one round with the side each came from, both exact values, and the release's grid and deviation."""
    plan = Plan.make(ALGORITHMS[name], PROBLEM, "complete", federation(X).facts, rounds=1, adjacency="replace-one")
    exact = [run(plan, federation(rows), noise=Silence()).releases[0, 0, 0] for rows in (X, NEIGHBOUR)]
    sides = np.random.default_rng(2).integers(2, size=TRIALS)
    by_side = [run(plan, federation(rows), noise=SystemEntropy(), repeats=TRIALS).releases for rows in (X, NEIGHBOUR)]
    grant = plan.issued[0][0]
    released = np.array([by_side[side][trial, 0, 0] for trial, side in enumerate(sides)])
    return released, sides, exact, grant.grid, getattr(grant.scales, grant.size_of_noise)


def right_guesses(scores, sides):
    """Of somebody who names the side that explains more, and tosses a coin where both explain the same."""
    coin = np.random.default_rng(3).random(len(sides)) < 0.5
    guesses = np.where(scores[1] == scores[0], coin, scores[1] > scores[0])
    return int((guesses == sides).sum())


@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_release_tells_by_its_bits(name):
    released, sides, exact, grid, _ = games(name)
    explained = [reached(released, np.broadcast_to(value, released.shape), np.asarray(grid)) for value in exact]
    # from either side, all of it
    assert np.all(explained)
    right = right_guesses([side.sum(axis=1) for side in explained], sides)
    assert ALLOWED[0] <= right <= ALLOWED[1]


@pytest.mark.parametrize("name", ["gradients, curator", "M1", "M3, curator", "noise on minimisers"])
def test_the_same_values_noised_as_doubles_tell_every_time(name):
    _, sides, exact, _, std = games(name)
    words = np.random.default_rng(4).integers(2**53, size=(TRIALS, len(exact[0])))
    released = np.array([exact[side] for side in sides]) + std * _double_normal(words)

    def explained(value):
        middle = np.floor(ndtr((released - value) / std) * 2**53).astype(np.int64)
        near = middle[..., None] + np.arange(-400, 400)
        return ((value[:, None] + std * _double_normal(near)) == released[..., None]).any(axis=-1).sum(axis=1)

    assert right_guesses([explained(value) for value in exact], sides) == TRIALS


def _double_normal(words):
    """As noise is usually drawn: one of 2^53 doubles."""
    return ndtri(np.clip(words, 0, 2**53 - 1) * 2.0**-53 + 2.0**-54)


@pytest.mark.parametrize("trust", ["none", "curator", "secure-sum"])
def test_evaluations_release_whole_steps(trust, monkeypatch):
    """Counts are whole, and so is their noise: all bits of a noised table are those of a whole number of steps."""
    from coterie import evaluation

    seen = []
    original = evaluation._released

    def watched(grant, tables, *more):
        out = original(grant, tables, *more)
        seen.append((grant, out))
        return out

    monkeypatch.setattr(evaluation, "_released", watched)
    model = LogisticRegression().fit(X, Y)
    evaluate(model, X, Y, epsilon=0.5, delta=1e-6, adjacency="replace-one", parties=PARTY, trust=trust)
    assert len(seen) == 2
    for grant, out in seen:
        # a sum of five releases is no release
        if trust == "none":
            assert np.allclose(np.rint(out / grant.grid) * grant.grid, out, rtol=1e-12)
        else:
            assert reached(out, np.zeros_like(out), np.asarray(grant.grid)).all()
