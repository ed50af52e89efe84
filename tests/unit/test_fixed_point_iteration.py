"""The general noisy block iteration: what moves, what is drawn, what it costs, and what is refused."""

import dataclasses
import math
import re

import numpy as np
import pytest

from coterie.errors import InputError
from coterie.fixed_point import BlockIteration, OwnBlock, OwnRounds, PerBlock, largest_stretch, looks_nonexpansive
from coterie.network.selection import All, Cyclic, Poisson, Sample, Shuffled, Walk
from coterie.privacy import accountants
from coterie.privacy.events import Gaussian, Unprotected
from coterie.privacy.noise import Seeded
from coterie.schedules import Schedule

SELECTIONS = {
    "all": All(),
    "cyclic": Cyclic(),
    "shuffled": Shuffled(seed=3),
    "one": Sample(count=1, seed=3),
    "two": Sample(count=2, seed=3),
    "poisson": Poisson(probability=0.4, seed=3),
    "walk": Walk(seed=3),
}
BLOCKS = (slice(0, 2), [4, 2], np.array([3]))
TURN = np.linalg.qr(np.random.default_rng(0).normal(size=(5, 5)))[0]  # an isometry
SHIFT = np.arange(5.0)


def iteration(**changes):
    settings = {
        "operator": lambda u: 0.5 * TURN @ u + SHIFT,
        "blocks": BLOCKS,
        "relaxation": 0.7,
        "selection": All(),
        "noise_std": 2.0,
        "sensitivity": 0.5,
    }
    return BlockIteration(**{**settings, **changes})


@pytest.mark.parametrize("selection", SELECTIONS.values(), ids=SELECTIONS)
def test_every_selection_moves_exactly_the_working_blocks_as_algorithm_1_says(selection):
    it = iteration(
        selection=selection, relaxation=Schedule(0.9, 0.95), errors=lambda k, u: np.cos(k + u), noise_std=0.3
    )
    start, noise = np.ones(5), Seeded(8)
    trajectory = it.run(start, 12, noise, repeat=4)
    rho = trajectory.table
    u = start
    for k in range(12):
        image, after = 0.5 * TURN @ u + SHIFT + np.cos(k + u), u.copy()
        for b, block in enumerate([[0, 1], [4, 2], [3]]):
            eta = 0.3 * noise.draw("gaussian", len(block), repeat=4, party=b, t=k)
            for j, coordinate in enumerate(block):
                moved = image[coordinate] + eta[j] - u[coordinate]
                after[coordinate] = u[coordinate] + rho[k, b] * 0.9 * 0.95**k * moved
        u = after
        np.testing.assert_allclose(trajectory.points[k + 1], u, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(trajectory.points[0], start)
    np.testing.assert_array_equal(rho, it.table(12))


@pytest.mark.parametrize("selection", SELECTIONS.values(), ids=SELECTIONS)
def test_without_noise_every_selection_reaches_the_fixed_point_of_a_contraction(selection):
    points = iteration(selection=selection, noise_std=0).run(np.zeros(5), 400).points
    np.testing.assert_allclose(points[-1], np.linalg.solve(np.eye(5) - 0.5 * TURN, SHIFT), atol=1e-9)


class Counting:
    reproducible = True

    def __init__(self):
        self.drawn = []

    def draw(self, law, d, *, repeat, party, t, purpose="release"):
        self.drawn.append((law, d, party, t))
        return np.zeros(d)


def test_only_working_blocks_draw_noise_and_each_once():
    noise = Counting()
    iteration(selection=Cyclic()).run(np.zeros(5), 4, noise)
    assert noise.drawn == [("gaussian", 2, 0, 0), ("gaussian", 2, 1, 1), ("gaussian", 1, 2, 2), ("gaussian", 2, 0, 3)]
    silent = Counting()
    iteration(noise_std=0).run(np.zeros(5), 4, silent)
    assert silent.drawn == []


def test_system_noise_is_the_default_and_differs_from_run_to_run():
    it = iteration()
    assert not np.array_equal(it.run(np.zeros(5), 1).points, it.run(np.zeros(5), 1).points)


def test_a_round_in_which_nobody_works_does_not_touch_the_data():
    def never(u):
        raise AssertionError

    rare = iteration(operator=never, selection=Poisson(probability=1e-9, seed=0))
    assert rare.run(np.ones(5), 3, Seeded(0)).points.tolist() == [[1.0] * 5] * 4
    assert rare.ledger(3) == []
    assert rare.epsilon(3, 1e-5) == 0


def test_one_number_bounds_the_whole_update_of_a_round():
    assert iteration().ledger(7) == [(Gaussian(0.25), 7)]
    assert iteration(selection=Cyclic()).ledger(7) == [(Gaussian(0.25), 7)]


def test_one_number_per_block_combines_as_a_norm():
    bounds = (0.6, 0.8, 2.4)
    assert iteration(sensitivity=bounds).ledger(5) == [(Gaussian(1.3), 5)]  # sqrt(.36 + .64 + 5.76) = 2.6, over 2
    turns = iteration(sensitivity=bounds, selection=Cyclic()).ledger(5)
    assert turns == [(Gaussian(0.3), 2), (Gaussian(0.4), 2), (Gaussian(1.2), 1)]
    assert iteration(sensitivity=PerBlock(bounds, whole=1.0)).ledger(5) == [(Gaussian(0.5), 5)]


def test_data_in_one_block_pay_only_when_it_works_and_the_dearest_block_counts():
    it = iteration(sensitivity=OwnBlock((1.0, 1.5, 1.1)), selection=Cyclic())
    assert it.ledger(4) == [(Gaussian(0.75), 1)]  # once 1.5 squared is more than twice 1
    assert it.ledger(3 * 5 + 1) == [(Gaussian(0.75), 5)]
    assert iteration(sensitivity=OwnBlock((1.0, 1.2, 1.1)), selection=Cyclic()).ledger(4) == [(Gaussian(0.5), 2)]


def test_a_record_pays_only_for_its_rounds_and_the_most_used_counts():
    it = iteration(sensitivity=OwnRounds(1.0, lambda k: [0, 2, 1, 2, 2, 0][k]))
    assert [it.ledger(rounds) for rounds in (1, 4, 6)] == [[(Gaussian(0.5), n)] for n in (1, 2, 3)]


def test_the_relaxation_cancels_and_epsilon_is_the_accountant_s():
    fast, slow = iteration(relaxation=1.0), iteration(relaxation=Schedule(0.1, 0.9))
    assert fast.ledger(9) == slow.ledger(9)
    exact = accountants.gaussian_epsilon([(Gaussian(0.75), 1)], 1e-5)  # 9 rounds of 0.25 are one of 0.75
    np.testing.assert_allclose(fast.epsilon(9, 1e-5), exact, rtol=1e-12)
    assert fast.epsilon(9, 1e-5, "rdp") > exact


@pytest.mark.parametrize("changes", [{"sensitivity": None}, {"noise_std": 0}])
def test_without_noise_or_declaration_nothing_is_claimed(changes):
    it = iteration(**changes)
    assert it.ledger(3) == [(Unprotected(), 3)]
    assert math.isinf(it.epsilon(3, 1e-5))


def test_the_loss_is_that_of_the_shift_which_the_noise_must_hide():
    """Neighbouring data whose images differ by the declared bound give points whose distance is the ratio's."""
    here, there = iteration(), iteration(operator=lambda u: 0.5 * TURN @ u + SHIFT + 0.5 * TURN[0])
    gap = [it.run(np.zeros(5), 1, Seeded(1)).points[1] for it in (here, there)]
    ((event, _),) = here.ledger(1)
    np.testing.assert_allclose(np.linalg.norm(gap[0] - gap[1]) / (0.7 * 2.0), event.gaussian_ratio, rtol=1e-12)


def test_an_isometry_passes_and_expansion_is_detected():
    assert looks_nonexpansive(lambda u: TURN @ u + SHIFT, 5, seed=0)
    np.testing.assert_allclose(largest_stretch(lambda u: TURN @ u, 5, seed=0), 1, atol=1e-9)
    assert not looks_nonexpansive(lambda u: 1.001 * TURN @ u, 5, seed=0)
    one_direction = np.diag([1.02] + [1.0] * 19)  # a random direction hardly feels it
    assert largest_stretch(lambda u: one_direction @ u, 20, seed=0) > 1.001
    assert largest_stretch(lambda u: np.zeros(5), 5, seed=0) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"blocks": ()}, "blocks: coordinate 0 is in none of them;"),
        ({"blocks": (slice(0, 2), [3])}, "blocks: coordinate 2 is in none of them;"),
        ({"blocks": (slice(0, 2), [1, 2])}, "blocks: coordinate 1 is in two of them;"),
        ({"blocks": (slice(None),)}, "blocks: got slice(None, None, None); a slice needs an end"),
        ({"blocks": (slice(0, -1),)}, "blocks: got slice(0, -1, None); a slice needs an end"),
        ({"blocks": ([0, 1], [])}, "blocks: got [];"),
        ({"blocks": ([0.0, 1.0],)}, "blocks: got [0.0, 1.0];"),
        ({"blocks": ([-1, 0],)}, "blocks: got [-1, 0];"),
        ({"relaxation": 0}, "relaxation: got 0;"),
        ({"relaxation": 1.5}, "relaxation: got Schedule(start=1.5, ratio=1.0); numbers in (0, 1]"),
        ({"relaxation": Schedule(0.5, 1.1)}, "relaxation: got Schedule(start=0.5, ratio=1.1); numbers in (0, 1]"),
        ({"relaxation": (0.5, 0.5, 0.5)}, "relaxation: got Schedule(start=(0.5, 0.5, 0.5), ratio=1.0); one number"),
        ({"noise_std": -1.0}, "noise_std: got -1.0; a finite number >= 0 is needed"),
        ({"noise_std": "1"}, "noise_std: got '1'; a finite number >= 0 is needed"),
        ({"sensitivity": math.inf}, "sensitivity: got inf; a finite number >= 0 is needed"),
        ({"sensitivity": (1.0, -1.0, 1.0)}, "sensitivity: got -1.0; a finite number >= 0 is needed"),
        ({"sensitivity": (1.0, 1.0)}, "sensitivity: 2 bounds given for 3 blocks; one per block is needed"),
        ({"sensitivity": OwnBlock((1.0,))}, "sensitivity: 1 bounds given for 3 blocks; one per block is needed"),
        ({"selection": Sample(count=4, seed=0)}, "count: got 4;"),
        ({"selection": Poisson(probability=0.5, seed=None)}, "selection: got Poisson(probability=0.5, seed=None);"),
    ],
    ids=str,
)
def test_bad_settings_are_refused(changes, message):
    with pytest.raises(InputError, match="^" + re.escape(message)):
        iteration(**changes)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda it: it.run(np.zeros(4), 1), "start: got 4 numbers; the blocks have 5 coordinates"),
        (lambda it: it.run(np.zeros((5, 1)), 1), "start: got shape (5, 1);"),
        (lambda it: it.run(np.full(5, np.nan), 1), "start: row 0 is nan;"),
        (lambda it: it.run(np.zeros(5), 0), "rounds: got 0; a whole number of at least 1 is needed"),
        (lambda it: it.ledger(2.5), "rounds: got 2.5; a whole number of at least 1 is needed"),
        (lambda it: it.epsilon(3, 0.0), "delta: got 0.0;"),
        (
            lambda it: dataclasses.replace(it, operator=lambda u: u[:2]).run(np.zeros(5), 1),
            "operator: returned shape (2,); the shape of its argument, (5,), is needed",
        ),
        (
            lambda it: dataclasses.replace(it, errors=lambda k, u: 0.0).run(np.zeros(5), 1),
            "errors: returned shape (); the shape of its argument, (5,), is needed",
        ),
        (lambda it: largest_stretch(it.operator, 5, seed=0, tries=0), "tries: got 0;"),
        (lambda it: PerBlock((1.0,), whole=-1.0), "whole: got -1.0; a number >= 0 is needed"),
    ],
)
def test_bad_calls_are_refused(call, message):
    with pytest.raises(InputError, match="^" + re.escape(message)):
        call(iteration())
