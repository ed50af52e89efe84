"""The noise that reaches a release is the noise the plan prices.

Given the records, a released minimiser determines the linear noise that led to it: the gradient of everything else,
with its sign changed. It is recovered here with gradients written out in NumPy, and tested against the plan's grants.
"""

import numpy as np
import pytest
from scipy import stats

from coterie.algorithms import PenaltyPerturbedADMM
from coterie.data import Federation
from coterie.engines import in_process
from coterie.plan import Plan
from coterie.privacy.noise import Seeded
from coterie.privacy.objective import PenaltyPerturbation
from coterie.problems import L2, Logistic, Problem

# chance that the right law was refused when the seed was chosen
FALSE_ALARM = 1e-4
REPEATS = 2000
N_FEATURES, ROW_NORM, WEIGHT_BOUND = 6, 3.0, 2.0
L2_WEIGHT, PARTY_WEIGHT, PENALTY = 0.9, 4.0, 0.8
MULTIPLIER, RATE = 1.5, 2.5
N_PARTIES, DEGREE = 2, 1


@pytest.fixture(scope="module")
def federation():
    rng = np.random.default_rng(11)
    return Federation.from_arrays(
        rng.normal(size=(14, N_FEATURES)) * 2,
        rng.integers(2, size=14),
        parties=np.repeat([0, 1], [5, 9]),
        labels=(0, 1),
        row_norm=ROW_NORM,
        sample_weight=rng.uniform(0, 3, size=14),
        weight_bound=WEIGHT_BOUND,
    )


@pytest.fixture(scope="module")
def gaussian(federation):
    return recovered_noise(federation, {"noise_multiplier": MULTIPLIER})


@pytest.fixture(scope="module")
def gamma(federation):
    return recovered_noise(federation, {"noise_rate": RATE})


def recovered_noise(federation, noise):
    """Plan, and the linear noise of each release in gradient units, (repeat, party, coefficient)."""
    algorithm = PenaltyPerturbedADMM(mechanism=PenaltyPerturbation(penalty=PENALTY, **noise), dual_step=1.0)
    problem = Problem(loss=Logistic(), regulariser=L2(L2_WEIGHT), party_weight=PARTY_WEIGHT)
    plan = Plan.make(algorithm, problem, "complete", federation.facts, rounds=1, adjacency="replace-one")
    releases = in_process.run(plan, federation, noise=Seeded(0), repeats=REPEATS).releases[:, 0]
    recovered = []
    for f, shard in zip(np.moveaxis(releases, 1, 0), federation.shards, strict=True):
        sign = 2 * shard.y - 1
        slopes = -sign / (1 + np.exp(sign * (f @ shard.X.T)))
        data = slopes * shard.weight * PARTY_WEIGHT / len(shard.y) @ shard.X
        # everybody starts from zero: no dual yet, and midpoints at zero
        recovered.append(-(data + L2_WEIGHT / N_PARTIES * f + 2 * PENALTY * DEGREE * f))
    return plan, np.stack(recovered, axis=1)


def assert_follows(sample, law):
    """Accepted as it is, refused when scaled by 0.9 or 1.1."""
    assert stats.kstest(sample, law.cdf).pvalue > FALSE_ALARM
    assert stats.kstest(0.9 * sample, law.cdf).pvalue < FALSE_ALARM
    assert stats.kstest(1.1 * sample, law.cdf).pvalue < FALSE_ALARM


def test_gaussian_noise_of_a_release_is_the_one_that_is_priced(gaussian):
    plan, noise = gaussian
    scales = plan.grant_scales().noise_scale[0]
    largest_weight = WEIGHT_BOUND * PARTY_WEIGHT / np.array(plan.facts.sizes)
    np.testing.assert_allclose(scales, MULTIPLIER * 2 * largest_weight * ROW_NORM, rtol=1e-12)
    assert_follows((noise / scales[:, None]).ravel(), stats.norm)
    for party in range(N_PARTIES):
        assert stats.kstest(noise[:, party].ravel() / scales[party], stats.norm.cdf).pvalue > FALSE_ALARM


def test_gamma_noise_of_a_release_is_the_one_that_is_priced(gamma):
    plan, noise = gamma
    scales = plan.grant_scales().noise_scale[0]
    # the papers' noise enters the objective multiplied by 2 eta V
    np.testing.assert_allclose(scales, 2 * PENALTY * DEGREE / RATE, rtol=1e-12)
    norms = np.linalg.norm(noise, axis=2) / scales
    assert_follows(norms.ravel(), stats.gamma(N_FEATURES))
    first = (noise[:, :, 0] / np.linalg.norm(noise, axis=2)) ** 2
    assert stats.kstest(first.ravel(), stats.beta(1 / 2, (N_FEATURES - 1) / 2).cdf).pvalue > FALSE_ALARM


@pytest.mark.parametrize("law", ["gaussian", "gamma"])
def test_output_noise_hides_the_solver_and_nothing_else(law, request):
    """It must exceed what the solver may miss, and be lost in the noise of the release."""
    plan, recovered = request.getfixturevalue(law)
    scales = plan.grant_scales()
    convexity = L2_WEIGHT / N_PARTIES + scales.curvature[0]
    assert np.all(scales.output_scale[0] > 100 * scales.tolerance[0] / convexity)
    assert np.all(scales.output_scale[0] * convexity < 1e-5 * scales.noise_scale[0])
    drawn = np.array(
        [
            [
                Seeded(0).draw(
                    plan.algorithm.mechanism.law, N_FEATURES, repeat=repeat, party=party, t=0, rows=N_PARTIES
                )
                for party in range(N_PARTIES)
            ]
            for repeat in range(20)
        ]
    )
    difference = recovered[:20] / scales.noise_scale[0][:, None] - drawn
    # there is output noise, and it is small
    assert 0 < np.abs(difference).max() < 1e-3
