"""Private gradient methods: step for step the textbook loops, with the loss that their public bounds give."""

import re

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit

from coterie.errors import InputError
from coterie.fixed_point import (
    EmpiricalRisk,
    coordinate_descent,
    gradient_descent,
    looks_nonexpansive,
    stochastic_gradient_descent,
)
from coterie.network.selection import All, Cyclic, Poisson, Sample, Shuffled
from coterie.privacy.events import Gaussian
from coterie.privacy.noise import Seeded
from coterie.problems import Huber, HuberisedHinge, Logistic, Multinomial, Squared
from coterie.schedules import Schedule

N, P, L2 = 12, 4, 0.3
RNG = np.random.default_rng(5)
X = RNG.normal(size=(N, P))
X *= 0.9 / np.linalg.norm(X, axis=1, keepdims=True)
Y = (np.arange(N) % 3 == 0).astype(float)
NOISE = Seeded(11)
START = np.linspace(-1, 1, P)
SELECTIONS = {
    "all": All(),
    "cyclic": Cyclic(),
    "shuffled": Shuffled(seed=1),
    "one": Sample(count=1, seed=1),
    "three": Sample(count=3, seed=1),
    "poisson": Poisson(probability=0.5, seed=1),
}


def risk(**changes):
    settings = {"X": X, "y": Y, "loss": Logistic(), "row_norm": 1.0, "adjacency": "replace-one", "l2": L2}
    return EmpiricalRisk(**{**settings, **changes})


def logistic_gradient(u, records):
    signs = 2 * Y[records] - 1
    return -(X[records].T @ (signs * expit(-signs * (X[records] @ u)))) / len(records) + L2 * u


def descent_noise(d, block, k):
    """The textbook subtracts the noise that Algorithm 1 adds: the same law, the other sign."""
    return -NOISE.draw("gaussian", d, repeat=0, party=block, t=k)


def logistic_optimum():
    def value(u):
        signs = 2 * Y - 1
        return np.mean(np.logaddexp(0, -signs * (X @ u))) + L2 / 2 * u @ u

    found = minimize(value, np.zeros(P), jac=lambda u: logistic_gradient(u, range(N)), tol=1e-14)
    for _ in range(100):  # scipy stops near 1e-8; a contraction polishes what it found
        found.x = found.x - logistic_gradient(found.x, range(N))
    return found.x


def test_gradient_descent_is_the_textbook_loop():
    points = gradient_descent(risk(), step=Schedule(1.5, 0.9), noise_std=0.2).run(START, 10, NOISE).points
    u = START
    for k in range(10):
        noise = descent_noise(P, 0, k)
        u = u - 1.5 * 0.9**k * (logistic_gradient(u, range(N)) + 0.2 * noise)
        np.testing.assert_allclose(points[k + 1], u, rtol=0, atol=1e-12)


@pytest.mark.parametrize("sampling", ["passes", "uniform"])
def test_stochastic_gradient_descent_is_the_textbook_loop(sampling):
    it = stochastic_gradient_descent(risk(), step=0.8, noise_std=0.2, sampling=sampling, seed=2)
    points, u, used = it.run(START, 30, NOISE).points, START, []
    for k in range(30):
        noise = descent_noise(P, 0, k)
        # the record is recognised by the step itself, so the test does not repeat how it is drawn
        steps = [u - 0.8 * (logistic_gradient(u, [i]) + 0.2 * noise) for i in range(N)]
        used.append(int(np.argmin([np.linalg.norm(points[k + 1] - step) for step in steps])))
        u = steps[used[-1]]
        np.testing.assert_allclose(points[k + 1], u, rtol=0, atol=1e-12)
    if sampling == "passes":
        assert used == [k % N for k in range(30)]
    # the ledger: replace-one, 2 * lipschitz * row_norm over the noise, as often as the most-used record
    ((event, count),) = it.ledger(30)
    np.testing.assert_allclose(event.ratio, 2 / 0.2, rtol=1e-14)
    assert count == max(used.count(i) for i in range(N))


def test_uniform_records_are_uniform():
    """Chi-squared on 4800 draws over 12 records: 41.5 is exceeded with probability 2e-5."""

    def records(seed, rounds=4800):
        it = stochastic_gradient_descent(risk(), step=0.8, noise_std=0.2, sampling="uniform", seed=seed)
        return np.array([it.sensitivity.record_of(k) for k in range(rounds)])

    def chi_squared(drawn):
        return np.sum((np.bincount(drawn, minlength=N) - 400) ** 2 / 400)

    assert chi_squared(records(2)) < 41.5
    one_in_ten_first = np.where(np.arange(4800) % 10 == 0, 0, records(2))
    assert chi_squared(one_in_ten_first) > 41.5  # power
    assert (records(2, 50) != records(3, 50)).any()


@pytest.mark.parametrize("selection", SELECTIONS.values(), ids=SELECTIONS)
def test_coordinate_descent_is_the_textbook_loop(selection):
    it = coordinate_descent(risk(), step=1.2, noise_std=0.2, selection=selection)
    points, table = it.run(START, 20, NOISE)
    u = START.copy()
    for k in range(20):
        gradient = logistic_gradient(u, range(N))
        for j in np.flatnonzero(table[k]):
            u[j] -= 1.2 * (gradient[j] + 0.2 * descent_noise(1, j, k)[0])
        np.testing.assert_allclose(points[k + 1], u, rtol=0, atol=1e-12)


@pytest.mark.parametrize("selection", SELECTIONS.values(), ids=SELECTIONS)
@pytest.mark.parametrize("blocks", [None, [[0, 2], slice(1, 2), [3]]], ids=["coordinates", "blocks"])
def test_coordinate_descent_without_noise_reaches_the_optimum(selection, blocks):
    it = coordinate_descent(risk(), step=1.5, noise_std=0, selection=selection, blocks=blocks)
    points = it.run(START, 600).points
    np.testing.assert_allclose(it.solution(points[-1]), logistic_optimum(), rtol=0, atol=1e-9)


def test_gradient_descent_without_noise_reaches_the_optimum():
    points = gradient_descent(risk(), step=1.5, noise_std=0).run(START, 200).points
    np.testing.assert_allclose(points[-1], logistic_optimum(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("sampling", ["passes", "uniform"])
def test_stochastic_gradient_descent_reaches_an_optimum_that_all_records_share(sampling):
    """With a constant step it can stop nowhere else."""
    truth = np.array([0.5, -0.2, 0.1, 0.3])
    shared = risk(loss=Huber(1.0), y=X @ truth, l2=0.0)
    points = stochastic_gradient_descent(shared, step=1.0, noise_std=0, sampling=sampling).run(START, 2000).points
    np.testing.assert_allclose(points[-1], truth, rtol=0, atol=1e-9)


ALL_RISKS = {
    "logistic": risk(),
    "hinge": risk(loss=HuberisedHinge(0.3), l2=0.0),
    "huber": risk(loss=Huber(0.5), y=10 * X[:, 0]),
    "clipped squared": risk(loss=Squared(), y=10 * X[:, 0], clip_norm=0.4),
    "clipped logistic": risk(clip_norm=0.1, l2=0.0),
}


@pytest.mark.parametrize("name", ALL_RISKS)
def test_every_operator_is_non_expansive(name):
    it = gradient_descent(ALL_RISKS[name], step=0.5, noise_std=1.0)
    assert looks_nonexpansive(it.operator, P, seed=0, tries=60)
    sampled = stochastic_gradient_descent(ALL_RISKS[name], step=0.5, noise_std=1.0, sampling="passes")
    for k in range(3):
        assert looks_nonexpansive(lambda u, k=k: sampled.operator(u) + sampled.errors(k, u), P, seed=0, tries=20)


def test_an_operator_of_a_step_too_long_is_expansive():
    few = risk(loss=Squared(), clip_norm=1e9, X=X[:1] / 0.9, y=Y[:1], l2=0.0)
    assert not looks_nonexpansive(lambda u: u - 2.1 / few.smoothness * few.gradient(u), P, seed=0)


def test_clipping_bounds_every_record_s_gradient_and_leaves_short_ones_alone():
    clipped = risk(loss=Squared(), y=10 * X[:, 0], clip_norm=0.4, l2=0.0)
    plain = [(X[i] @ START - 10 * X[i, 0]) * X[i] for i in range(N)]
    short = [min(1, 0.4 / np.linalg.norm(g)) * g for g in plain]
    assert any(np.array_equal(a, b) for a, b in zip(plain, short, strict=True))
    for i in range(N):
        np.testing.assert_allclose(clipped.gradient(START, [i]), short[i], rtol=0, atol=1e-14)
    np.testing.assert_allclose(clipped.gradient(START), np.mean(short, axis=0), rtol=0, atol=1e-14)


def test_a_row_of_zeros_has_no_gradient():
    zero = risk(loss=Squared(), clip_norm=1.0, X=np.zeros((2, P)), y=np.ones(2), l2=0.0)
    assert not zero.gradient(START).any()


def test_bounds_are_enforced_on_the_data():
    bounded = risk(X=100 * X, column_bounds=(0.2, 9, 9, 0.1))
    assert np.linalg.norm(bounded.X, axis=1).max() <= 1
    assert np.abs(bounded.X[:, 0]).max() <= 0.2
    assert np.abs(bounded.X[:, 3]).max() <= 0.1
    np.testing.assert_array_equal(risk().X, X)


@pytest.mark.parametrize(("adjacency", "changes"), [("replace-one", 2), ("zero-out", 1)])
def test_ledgers_by_hand(adjacency, changes):
    """Lipschitz 1, row norm 1, N records, noise 0.2 on the gradient."""
    whole = changes / N / 0.2

    def ratios(it, rounds):
        return [(event.ratio, count) for event, count in it.ledger(rounds)]

    r = risk(adjacency=adjacency)
    np.testing.assert_allclose(ratios(gradient_descent(r, step=1.0, noise_std=0.2), 6), [(whole, 6)])
    passes = stochastic_gradient_descent(r, step=1.0, noise_std=0.2, sampling="passes")
    np.testing.assert_allclose(ratios(passes, 2 * N + 1), [(N * whole, 3)])
    one = coordinate_descent(r, step=1.0, noise_std=0.2, selection=Cyclic())
    np.testing.assert_allclose(ratios(one, 6), [(whole, 6)])  # row_norm bounds every coordinate
    every = coordinate_descent(r, step=1.0, noise_std=0.2, selection=All())
    np.testing.assert_allclose(ratios(every, 6), [(whole, 6)])  # and all of them together

    columns = risk(adjacency=adjacency, column_bounds=(0.3, 0.4, 0.0, 3.0))
    one = coordinate_descent(columns, step=1.0, noise_std=0.2, selection=Cyclic())
    np.testing.assert_allclose(ratios(one, 5), [(0.3 * whole, 2), (0.4 * whole, 1), (whole, 1)])
    pairs = coordinate_descent(columns, step=1.0, noise_std=0.2, selection=Cyclic(), blocks=[[0, 1], [2, 3]])
    np.testing.assert_allclose(ratios(pairs, 3), [(0.5 * whole, 2), (whole, 1)])
    clipped = risk(adjacency=adjacency, loss=Squared(), clip_norm=0.25)
    np.testing.assert_allclose(ratios(gradient_descent(clipped, step=1.0, noise_std=0.2), 1), [(whole / 4, 1)])


def test_the_declared_sensitivity_is_attained():
    """Two records far on the wrong side, nearly opposite: their gradients differ by almost twice the bound."""
    u, lean = 1e5 * np.eye(P)[0], 0.01
    rows = [np.array([-lean, sign * np.sqrt(1 - lean**2), 0, 0]) for sign in (1, -1)]
    both = [risk(X=np.vstack([row, X[1:]]), y=np.r_[1.0, Y[1:]]) for row in rows]
    here, there = (gradient_descent(r, step=1.0, noise_std=1.0) for r in both)
    move, declared = np.linalg.norm(here.operator(u) - there.operator(u)), here.sensitivity.bound
    assert 0.9999 * declared < move <= declared
    assert here.ledger(1) == [(Gaussian(declared / here.noise_std), 1)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": Squared()}, "clip_norm: got None; Squared() has unbounded slopes, so a positive number is needed"),
        ({"loss": Multinomial(3)}, "loss: got Multinomial(n_classes=3); a loss of one score is needed"),
        ({"y": 2 * Y - 1}, "y: Logistic() takes the labels 0 and 1;"),
        ({"y": Y[1:]}, "y: got 11 values for the 12 rows of X;"),
        ({"row_norm": 0}, "row_norm: got 0; a positive finite number is needed"),
        ({"l2": -1}, "l2: got -1; a finite number >= 0 is needed"),
        ({"clip_norm": 0.0}, "clip_norm: got 0.0; a positive finite number is needed"),
        ({"adjacency": "add"}, "adjacency: got 'add'; one of replace-one, zero-out is needed"),
        ({"column_bounds": (1.0,)}, "column_bounds: 1 given for 4 columns; one each is needed"),
        ({"column_bounds": (1.0, -1.0, 1.0, 1.0)}, "column_bounds: got -1.0; a finite number >= 0 is needed"),
    ],
    ids=str,
)
def test_bad_risks_are_refused(changes, message):
    with pytest.raises(InputError, match="^" + re.escape(message)):
        risk(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"step": 4.0}, "step: got Schedule(start=4.0, ratio=1.0); one number of at most 2 / smoothness = 3.63636"),
        ({"step": Schedule(1.0, 1.1)}, "step: got Schedule(start=1.0, ratio=1.1); one number"),
        ({"step": [1.0] * 4}, "step: got Schedule(start=(1.0, 1.0, 1.0, 1.0), ratio=1.0); one number"),
        ({"step": -1}, "step: got -1;"),
        ({"noise_std": -0.1}, "noise_std: got -0.1;"),
    ],
    ids=str,
)
def test_bad_descents_are_refused(changes, message):
    with pytest.raises(InputError, match="^" + re.escape(message)):
        gradient_descent(risk(), **{"step": 1.0, "noise_std": 1.0, **changes})


def test_bad_sampling_and_blocks_are_refused():
    with pytest.raises(InputError, match=r"^sampling: got 'poisson'; one of passes, uniform is needed"):
        stochastic_gradient_descent(risk(), step=1.0, noise_std=1.0, sampling="poisson")
    with pytest.raises(InputError, match=r"^seed: got -1;"):
        stochastic_gradient_descent(risk(), step=1.0, noise_std=1.0, sampling="uniform", seed=-1)
    with pytest.raises(InputError, match=r"^blocks: 2 coordinates given; all 4 are needed"):
        coordinate_descent(risk(), step=1.0, noise_std=1.0, selection=All(), blocks=[[0], [1]])
