"""What can be expected, from public facts alone: the plan of the rules, beside what else could be done."""

import dataclasses
import json

import numpy as np
import pytest

from coterie import Planner, Privacy, rules
from coterie.algorithms import ALGORITHMS
from coterie.errors import InputError

PROMISE = {"epsilon": 1.0, "delta": 1e-6, "adjacency": "replace-one"}


def outline(sizes=(8000,) * 5, n_features=30, *, surrogate=None, n_classes=2, label_bound=None, **privacy):
    promise = Privacy(**{**PROMISE, **privacy})
    planner = Planner.of_sizes(
        sizes, n_features, promise, n_classes=n_classes, label_bound=label_bound, surrogate=surrogate
    )
    return planner.outline()


def middle(found, name):
    (row,) = (row for row in found.rows if name in row.name)
    return row.error[1]


def test_it_is_the_plan_that_the_rules_make():
    planner = Planner.of_sizes((8000,) * 5, 30, Privacy(**PROMISE))
    found = planner.outline()
    l2 = rules.regulariser(planner.problem, planner.facts, planner.privacy, planner.settled)
    assert found.l2 == pytest.approx(l2)
    problem = planner.problem.__class__(
        loss=planner.problem.loss, regulariser=type(planner.problem.regulariser)(l2), record_weight=1.0
    )
    algorithm, _, n_rounds = rules.choose(problem, planner.facts, planner.privacy, planner.settled)
    assert isinstance(algorithm, ALGORITHMS[found.algorithm])
    momentum = 0.0 if algorithm.momentum is None else algorithm.momentum.start
    assert (found.rounds, found.settings["momentum"]) == (n_rounds, momentum)
    assert found.settings["step"] == pytest.approx(algorithm.step.start)


def test_it_is_the_same_every_time():
    first = outline()
    assert outline() == first
    assert json.loads(json.dumps(first.to_dict()))["useful"] is True


@pytest.mark.parametrize("more", [{}, {"n_classes": 10}, {"label_bound": 2.0}], ids=["two", "ten", "number"])
def test_who_trusts_more_expects_no_less(more):
    found = outline((2000,) * 6, **more)
    # settings are chosen for all shapes together, so the middle one may lose a little
    assert middle(found, "a curator") <= middle(found, "pairs") + 0.01 <= middle(found, "planned") + 0.02
    assert middle(found, "one place") <= middle(found, "a curator") + 0.01
    assert middle(found, "one place") <= middle(found, "a party alone")
    assert [row.error[1] for row in found.rows] == sorted(row.error[1] for row in found.rows)


def test_it_says_when_nothing_is_to_be_expected_and_what_would_change_that():
    hopeless = outline((10,) * 10, epsilon=0.1)
    assert not hopeless.useful
    (sentence,) = (sentence for sentence in hopeless.advice if "majority class" in sentence)
    assert "times the records" in sentence
    # a hundred records teach nobody at this loss
    assert "a curator" not in sentence
    assert outline().useful
    one = outline((40_000,))
    assert one.better_than_alone
    # what a single party could do at once, with as much noise, is not far off
    assert middle(one, "one noised minimiser") == pytest.approx(middle(one, "planned"), abs=0.03)
    assert not any("noised minimiser" in row.name for row in outline((40_000,), unit="party").rows)
    assert not any("alone" in row.name for row in one.rows)


@pytest.mark.parametrize(
    ("settled", "left_open"),
    [
        ({"algorithm": "dual-perturbed-admm"}, "if the algorithm were left open"),
        ({"topology": "ring"}, "if it were left open"),
        ({"algorithm": "dual-perturbed-admm", "topology": "ring"}, "if the algorithm and the graph were left open"),
    ],
)
def test_what_it_describes_is_what_would_be_done_with_all_of_this_left_open(settled, left_open):
    planner = Planner.of_sizes((8000,) * 5, 30, Privacy(**PROMISE))
    planner = dataclasses.replace(planner, settled=dataclasses.replace(planner.settled, **settled))
    assert left_open in " ".join(planner.outline().advice)


def test_a_surrogate_makes_it_sharper():
    rng = np.random.default_rng(0)
    X = 0.25 * rng.standard_normal((3000, 4)).clip(-2, 2) / np.sqrt(1.25)
    X = np.column_stack([X, np.full(3000, 0.5 / np.sqrt(1.25))])
    y = (rng.uniform(size=3000) < 1 / (1 + np.exp(-8 * X[:, 0]))).astype(float)
    told = outline(n_features=5, surrogate=(X, y)).planned
    blind = outline(n_features=5).planned
    assert told.error[2] - told.error[0] < 0.5 * (blind.error[2] - blind.error[0])
    best = np.mean(np.minimum(1 / (1 + np.exp(-8 * X[:, 0])), 1 / (1 + np.exp(8 * X[:, 0]))))
    assert told.error[1] == pytest.approx(best, abs=0.03)
    with pytest.raises(InputError, match="surrogate: got rows of shape"):
        outline(n_features=6, surrogate=(X, y))
    with pytest.raises(InputError, match="surrogate: got columns that are all constant"):
        outline(n_features=5, surrogate=(np.ones_like(X), y))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"epsilon": np.inf}, "epsilon: got inf"),
        ({"sizes": (0, 5)}, "has 0 records"),
        ({"n_features": 0}, "n_features: got 0"),
        ({"n_classes": 1}, "at least two different labels"),
        ({"label_bound": -1.0}, "label_bound: got -1"),
    ],
)
def test_nonsense_is_refused_in_one_sentence(wrong, words):
    with pytest.raises(InputError, match=words):
        outline(**wrong)
