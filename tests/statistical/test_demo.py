"""The demo over many seeds: how accurate it is, and whether its spread is the noise that the plan states."""

import dataclasses
import math

import jax
import numpy as np
import pytest

from coterie.algorithms import ConsensusADMM
from coterie.cli.demo import DELTA, N_PARTIES, make_plan, optimum
from coterie.data import Federation, load_adult, partition
from coterie.engines.in_process import run
from coterie.plan import Plan
from coterie.privacy.noise import Seeded
from coterie.privacy.objective import NoNoise

SEEDS = 16


@pytest.fixture(scope="module")
def adult():
    data = load_adult(preprocessing="public")
    parties = partition.evenly(len(data.train), N_PARTIES, seed=0)
    train = Federation.from_arrays(
        data.X[data.train], data.y[data.train], parties=parties, labels=data.labels, intercept=True
    )
    test = Federation.from_arrays(
        data.X[data.test], data.y[data.test], parties=None, labels=data.labels, intercept=True
    )
    return train, test.pooled


@pytest.fixture(scope="module")
def runs(adult):
    train, _ = adult
    return run(make_plan(train), train, noise=Seeded(0), repeats=SEEDS)


def test_excess_error_over_ten_seeds(adult, runs):
    """At most 1.8 points over the best fit to all records without noise."""
    train, (X, y, _) = adult
    assert runs.plan.epsilon(DELTA) <= 1.0
    private = np.mean((runs.models[:10] @ X.T > 0) != y)
    exact = np.mean((optimum(*train.pooled[:2], train.facts.labels) @ X.T > 0) != y)
    assert private - exact <= 0.018


def predicted_covariance(plan: Plan, train: Federation) -> np.ndarray:
    """Covariance of the final model, by pushing the stated noise through the ADMM linearised at the noiseless run."""
    private = plan.algorithm
    exact = ConsensusADMM(mechanism=NoNoise(penalty=private.mechanism.penalty), dual_step=private.dual_step)
    path = run(dataclasses.replace(plan, algorithm=exact), train).releases[0]
    n, d = plan.facts.n_parties, train.facts.n_features
    scales = jax.tree.map(lambda a: a[0, 0], plan.grant_scales())
    adjacency = np.zeros((n, n))
    for i, j in plan.topology.edges:
        adjacency[i, j] = adjacency[j, i] = 1
    degrees = adjacency.sum(axis=1)
    midpoints = np.kron((np.eye(n) + adjacency / degrees[:, None]) / 2, np.eye(d))
    gaps = np.kron(np.diag(degrees) - adjacency, np.eye(d))
    convexity = plan.problem.regulariser.l2 / n + scales.curvature
    none, one = np.zeros((n * d, n * d)), np.eye(n * d)
    # of (f, dual, average of f over rounds with weights 1, 2, 3, ...)
    covariance = np.zeros((3 * n * d, 3 * n * d))
    assert private.averaging == "linear"
    for t, f in enumerate(path):
        inverse = np.zeros((n * d, n * d))
        for i, shard in enumerate(train.shards):
            p = 1 / (1 + np.exp(-shard.X @ f[i]))
            hessian = (shard.X * (p * (1 - p))[:, None]).T @ shard.X + convexity * np.eye(d)
            inverse[i * d : (i + 1) * d, i * d : (i + 1) * d] = np.linalg.inv(hessian)
        f_from = np.hstack([scales.curvature * inverse @ midpoints, -2 * inverse, none])
        half_step, share = plan.algorithm.dual_step.start / 2, 2 / (t + 2)
        dual_from = np.hstack([none, one, none]) + half_step * gaps @ f_from
        average_from = (1 - share) * np.hstack([none, none, one]) + share * f_from
        noise = np.vstack([inverse, half_step * gaps @ inverse, share * inverse])
        step = np.vstack([f_from, dual_from, average_from])
        covariance = step @ covariance @ step.T + scales.noise_scale**2 * noise @ noise.T
    model = np.hstack([np.zeros((d, 2 * n * d)), np.kron(np.ones((1, n)) / n, np.eye(d))])
    return model @ covariance @ model.T


def test_the_spread_over_seeds_is_the_stated_noise(adult, runs):
    """Total variance over seeds against the prediction; false-alarm rate below 1e-4 (four standard deviations of the
    estimate), and 10 % less or more noise would be rejected."""
    train, _ = adult
    covariance = predicted_covariance(runs.plan, train)
    expected = np.trace(covariance)
    measured = runs.models.var(axis=0, ddof=1).sum()
    relative_error = math.sqrt(2 * np.sum(covariance**2) / (SEEDS - 1)) / expected
    allowed = 4 * relative_error
    assert abs(measured / expected - 1) < allowed, (measured / expected, allowed)
    assert allowed < 1.1**2 - 1
    assert allowed < 1 - 0.9**2
