"""Noise sources draw the laws they name: Kolmogorov-Smirnov tests with stated false-alarm rates and proven power.

Seeded sources give the same verdict on every run; their rate, 1e-4 a test, is the chance that a right law was refused
when the seed was chosen. Draws from the operating system's entropy cannot be repeated, so each of their tests would
fail by chance once in a million runs (1e-6). Every test also refuses the same draws scaled by 0.9 and by 1.1.
"""

import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from coterie.errors import InputError
from coterie.privacy.noise import Seeded, SystemEntropy

D = 5
N_DRAWS = 8000
SOURCES = {"seeded": (lambda: Seeded(7), 1e-4), "system": (SystemEntropy, 1e-6)}


def draws(source, law, d=D, n=N_DRAWS):
    return np.stack([source.draw(law, d, repeat=repeat, party=1, t=2) for repeat in range(n)])


def p_value(sample, law):
    return stats.kstest(sample, law.cdf).pvalue


def assert_follows(sample, law, false_alarm):
    """The law is accepted, and a scale that is off by a tenth in either direction is refused."""
    assert p_value(sample, law) > false_alarm
    assert p_value(0.9 * sample, law) < false_alarm
    assert p_value(1.1 * sample, law) < false_alarm


@pytest.mark.parametrize("name", SOURCES)
def test_gaussian_coordinates_are_standard_normal(name):
    make, false_alarm = SOURCES[name]
    sample = draws(make(), "gaussian")
    assert_follows(sample.ravel(), stats.norm, false_alarm)


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("d", [1, 2, D])
def test_gamma_sphere_norms_are_gamma_distributed(d, name):
    make, false_alarm = SOURCES[name]
    # a tenth of scale shows less in few dimensions
    n = {1: 4 * N_DRAWS, 2: 2 * N_DRAWS, D: N_DRAWS}[d]
    assert_follows(np.linalg.norm(draws(make(), "gamma-sphere", d, n), axis=1), stats.gamma(d), false_alarm)


@pytest.mark.parametrize("name", SOURCES)
def test_gamma_sphere_directions_are_uniform(name):
    make, false_alarm = SOURCES[name]
    # the square of a coordinate of a uniform direction
    law = stats.beta(1 / 2, (D - 1) / 2)
    sample = draws(make(), "gamma-sphere")
    direction = sample / np.linalg.norm(sample, axis=1, keepdims=True)
    # two questions to each, which share the false alarms
    for coordinate in direction.T:
        assert p_value(coordinate**2, law) > false_alarm / (2 * D)
        assert stats.binomtest(int((coordinate > 0).sum()), N_DRAWS).pvalue > false_alarm / (2 * D)
    # power: directions of points in a cube are a classic mistake
    cube = np.random.default_rng(0).uniform(-1, 1, size=(N_DRAWS, D))
    assert p_value(cube[:, 0] ** 2 / (cube**2).sum(axis=1), law) < false_alarm


@pytest.mark.parametrize("name", SOURCES)
def test_gamma_sphere_norm_and_direction_are_independent(name):
    make, false_alarm = SOURCES[name]
    sample = draws(make(), "gamma-sphere")
    norm = np.linalg.norm(sample, axis=1)
    assert stats.spearmanr(norm, (sample[:, 0] / norm) ** 2).pvalue > false_alarm
    # power: a product law, such as independent Laplace coordinates, ties the two together
    laplace = np.random.default_rng(0).laplace(size=(N_DRAWS, D))
    norm = np.linalg.norm(laplace, axis=1)
    assert stats.spearmanr(norm, (laplace[:, 0] / norm) ** 2).pvalue < false_alarm


def test_an_exponential_norm_would_be_refused():
    """Norm ~ Exp(1) is right for one coefficient and wrong for all others."""
    generator = np.random.default_rng(0)
    assert p_value(generator.exponential(size=N_DRAWS), stats.gamma(D)) < 1e-100
    assert p_value(np.linalg.norm(draws(Seeded(7), "gamma-sphere"), axis=1), stats.expon) < 1e-100


# --- independence -----------------------------------------------------------------------------------------------------

BASE = {"repeat": 3, "party": 4, "t": 5, "purpose": "release"}
OTHER_KEYS = [{"repeat": 4}, {"party": 3}, {"t": 6}, {"purpose": "output"}, {"repeat": 4, "party": 3}]


@pytest.mark.parametrize("source", [Seeded(7), SystemEntropy()], ids=["seeded", "system"])
@pytest.mark.parametrize("change", OTHER_KEYS, ids=str)
def test_draws_under_different_keys_are_unrelated(change, source):
    n = 20_000
    first = source.draw("gaussian", n, **BASE)
    second = source.draw("gaussian", n, **BASE | change)
    assert not np.isin(first, second).any()
    # a sample correlation of independent draws is about N(0, 1/n): 5 deviations happen once in 1.7 million
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(n)
    assert abs(np.corrcoef(first[1:], second[:-1])[0, 1]) < 5 / np.sqrt(n)


def test_coordinates_of_one_draw_are_uncorrelated():
    correlation = np.corrcoef(draws(Seeded(7), "gaussian").T)[np.triu_indices(D, 1)]
    assert np.abs(correlation).max() < 5 / np.sqrt(N_DRAWS)


def test_keys_of_small_numbers_do_not_collide():
    source = Seeded(7)
    keys = [(r, p, t, u) for r in range(4) for p in range(4) for t in range(4) for u in ("release", "output")]
    first = {float(source.draw("gaussian", 1, repeat=r, party=p, t=t, purpose=u)[0]) for r, p, t, u in keys}
    assert len(first) == len(keys)


# --- who can repeat what ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", ["gaussian", "gamma-sphere"])
def test_seeded_sources_repeat_themselves_and_nobody_else(law):
    np.testing.assert_array_equal(Seeded(7).draw(law, D, **BASE), Seeded(7).draw(law, D, **BASE))
    assert not np.isin(Seeded(8).draw(law, D, **BASE), Seeded(7).draw(law, D, **BASE)).any()
    assert Seeded(7).reproducible
    assert not SystemEntropy().reproducible


def test_system_entropy_never_repeats_itself():
    source = SystemEntropy()
    same_key_twice = [source.draw("gaussian", D, **BASE) for _ in range(2)]
    other_instance = SystemEntropy().draw("gaussian", D, **BASE)
    assert len(np.unique([*same_key_twice, other_instance])) == 3 * D


def test_system_entropy_differs_between_processes():
    program = (
        "from coterie.privacy.noise import SystemEntropy\n"
        "print(SystemEntropy().draw('gaussian', 3, repeat=0, party=0, t=0).tolist())"
    )
    outputs = {
        subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout for _ in range(2)
    }
    assert len(outputs) == 2


@pytest.mark.parametrize("seed", [-1, 1.5, True, "7"])
def test_seeds_that_are_no_seeds_are_refused(seed):
    with pytest.raises(InputError, match="seed"):
        Seeded(seed)


def test_unknown_laws_are_refused():
    with pytest.raises(InputError, match="law: got 'exponential'"):
        Seeded(7).draw("exponential", D, **BASE)


def test_a_forked_child_does_not_repeat_its_parent():
    """Two processes that share a stream would release values whose difference has no noise in it."""
    script = """
import os
from coterie.privacy.noise import SystemEntropy
source = SystemEntropy()
source.draw("gaussian", 3, repeat=0, party=0, t=0)
os.fork()
os.write(1, (repr(source.draw("gaussian", 3, repeat=0, party=0, t=0).tolist()) + chr(10)).encode())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert lines[0] != lines[1]
