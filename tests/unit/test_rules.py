"""One rule book: whoever leaves the same things open gets the same plan, from a spec, an estimator or the demo."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from coterie import Privacy, PrivateLogisticRegression, PrivateRidge, load_heart, rules
from coterie.algorithms import ALGORITHMS
from coterie.cli.demo import make_plan as demo_plan
from coterie.cli.spec import prepare, read_spec
from coterie.data import Label, NumberColumn, NumberLabel, Schema
from coterie.errors import InputError
from coterie.network.topology import Topology
from coterie.problems import L2, Huber, Logistic, Problem
from coterie.values import Facts, Schedule

EXAMPLES = Path(__file__).parents[2] / "examples"
BUDGET = {"epsilon": 4.0, "delta": 1e-5, "adjacency": "replace-one"}
FACTS = Facts(parties=("a", "b", "c"), sizes=(50, 70, 90), n_features=4, row_norm=1.0, labels=("no", "yes"))
PROBLEM = Problem(loss=Logistic(), regulariser=L2(1.0), record_weight=1.0)

# what decides the choice of an algorithm, and the algorithm that is chosen
CHOICES = {
    "noisy-gradient-descent": {},
    "noisy-gradient-descent, one party": {},
    "noisy-gradient-descent, whole parties": {"unit": "party", "epsilon": 40.0},
    "noisy-gradient-descent, curator": {"trust": "curator"},
    "noisy-gradient-descent, secure sum": {"trust": "secure-sum"},
}


@pytest.fixture
def study(tmp_path):
    """What a spec makes of the four hospitals, or of synthetic parties, whose records lie there as a file."""
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(90, 3))
    lines = [
        f"{a},{b},{c},{party},{'yes' if a > b else 'no'},{a - b}"
        for (a, b, c), party in zip(x, np.repeat(["n", "o", "p"], [20, 30, 40]), strict=True)
    ]
    (tmp_path / "data.csv").write_text("\n".join(["a,b,c,site,outcome,dose", *lines]))
    columns = tuple(NumberColumn(name, 0, 1) for name in "abc")
    Schema(columns, Label("outcome", ("no", "yes")), "site").write(tmp_path / "classes.toml")
    Schema(columns, NumberLabel("dose", -2, 2), "site").write(tmp_path / "numbers.toml")

    def prepared(data, algorithm, privacy, *, parties="", problem=""):
        words = {**BUDGET, **privacy}
        promised = "\n".join(f"{k} = {str(v).lower() if isinstance(v, bool) else repr(v)}" for k, v in words.items())
        name = f'name = "{algorithm}"' if algorithm else ""
        text = f"[data]\n{data}\n{parties}\n{problem}\n[privacy]\n{promised}\n[algorithm]\n{name}\n"
        (tmp_path / "spec.toml").write_text(text)
        return prepare(read_spec(tmp_path / "spec.toml"))

    return prepared


HEART = 'dataset = "heart"\nstandardise = "none"'
SYNTHETIC = 'file = "data.csv"\nstandardise = "none"\n[schema]\nfile = "classes.toml"'


def fitted_plan(model, federation, labels=None):
    """The plan of an estimator that is given the rows of a federation."""
    X, y, _ = federation.pooled
    facts = federation.facts
    y = y if labels is None else np.asarray(labels)[y.astype(int)]
    parties = None if facts.n_parties == 1 else np.repeat(facts.parties, facts.sizes)
    return model.fit(X, y, parties=parties).transcript_.plan


@pytest.mark.parametrize("data", [HEART, SYNTHETIC], ids=["four hospitals", "synthetic"])
@pytest.mark.parametrize("choice", CHOICES)
def test_naming_what_would_be_chosen_changes_nothing(study, data, choice):
    privacy, name = CHOICES[choice], choice.split(",")[0]
    parties = "[parties]\ncount = 1\n" if "one party" in choice else ""
    left_open = study(data, None, privacy, parties=parties)
    named = study(data, name, privacy, parties=parties)
    assert isinstance(left_open.plan.algorithm, ALGORITHMS[name])
    assert left_open.plan.digest == named.plan.digest
    federation = left_open.records.federation
    labels = federation.facts.labels
    for algorithm in (None, name):
        model = PrivateLogisticRegression(
            privacy=Privacy(**{**BUDGET, **privacy}), classes=labels, fit_intercept=False, algorithm=algorithm
        )
        plan = fitted_plan(model, federation, labels)
        # names of parties are facts, and a party alone has another name there
        if federation.n_parties == 1:
            plan = dataclasses.replace(plan, facts=federation.facts)
        assert plan.digest == left_open.plan.digest


@pytest.mark.parametrize(("loss", "trust"), [("huber", "none"), ("huber", "curator"), ("squared", "curator")])
def test_regression_is_settled_alike(study, loss, trust):
    data = 'file = "data.csv"\nstandardise = "none"\n[schema]\nfile = "numbers.toml"'
    made = study(data, None, {"trust": trust}, problem=f'[problem]\nloss = "{loss}"\n')
    federation = made.records.federation
    model = PrivateRidge(
        privacy=Privacy(**BUDGET, trust=trust), loss=loss, label_bound=federation.facts.label_bound, fit_intercept=False
    )
    assert fitted_plan(model, federation).digest == made.plan.digest
    if loss == "huber":
        assert made.plan.problem.loss == Huber(2.0)
    else:
        assert made.plan.algorithm.mechanism.clip == 2.0


def test_the_demo_is_its_example_as_a_spec():
    made = prepare(read_spec(EXAMPLES / "census.toml"))
    assert demo_plan(made.records.federation).digest == made.plan.digest


def test_the_hospitals_example_is_what_the_rules_choose():
    made = prepare(read_spec(EXAMPLES / "heart.toml"))
    heart = load_heart()
    model = PrivateLogisticRegression(**BUDGET, classes=heart.labels, topology="complete")
    model.fit(heart.X[heart.train], heart.y[heart.train], parties=heart.parties[heart.train])
    assert model.transcript_.plan.digest == made.plan.digest


def test_every_algorithm_has_a_rule():
    assert set(rules.RECIPES) == set(ALGORITHMS)


def chosen(name=None, *, privacy=None, rounds=None, **settings):
    promise = Privacy(**{**BUDGET, **(privacy or {})})
    settled = rules.Settled(algorithm=name, rounds=rounds, settings=settings)
    return rules.choose(PROBLEM, FACTS, promise, settled)


def test_what_is_settled_stays_and_the_rest_follows_it():
    algorithm, _, n_rounds = chosen("penalty-perturbed-admm", rounds=7, penalty=3.0)
    assert n_rounds == 7
    assert algorithm.mechanism.penalty == Schedule(3.0)
    assert algorithm.dual_step == Schedule(3.0)
    slower, _, _ = chosen("locally-noised-admm", rounds=8)
    faster, _, _ = chosen("locally-noised-admm", rounds=4)
    assert faster.mechanism.prox_step == pytest.approx(2 * slower.mechanism.prox_step)
    assert chosen("locally-noised-admm", step=0.7)[0].mechanism.prox_step == 0.7
    assert chosen("noisy-gradient-descent", privacy={"trust": "curator"}, step=0.7)[0].step == Schedule(0.7)
    assert chosen("recycled-admm", mechanism="output-perturbation")[0].mechanism.noise_multiplier == Schedule(1.0)


def test_more_noise_means_shorter_steps():
    steps = [
        chosen("locally-noised-admm", rounds=4, privacy={"epsilon": epsilon})[0].mechanism.prox_step
        for epsilon in (0.5, 2)
    ]
    assert steps[0] < steps[1]


def test_columns_are_standardised_where_that_is_left_open_and_pays():
    many = dataclasses.replace(FACTS, sizes=(20_000, 20_000, 20_000), n_features=30)

    def name(facts=many, inference=None, **settled):
        plan = rules.make_plan(PROBLEM, facts, Privacy(**BUDGET), rules.Settled(**settled), inference)
        return next(name for name, cls in ALGORITHMS.items() if type(plan.algorithm) is cls)

    assert name(intercept=True) == "standardised-gradient-descent"
    assert name(intercept=True, standardise=False) == "noisy-gradient-descent"
    assert name(intercept=False) == "noisy-gradient-descent"
    assert name(intercept=True, algorithm="noisy-gradient-descent") == "noisy-gradient-descent"
    assert name(intercept=True, inference=rules.Wanted()) == "noisy-gradient-descent"
    assert name(intercept=True, topology="ring") == "penalty-perturbed-admm"
    tiny = dataclasses.replace(FACTS, sizes=(3, 3, 3))
    assert name(tiny, intercept=True) == "noisy-gradient-descent"


def test_on_a_graph_that_is_given_admm_runs():
    for topology in ("ring", Topology(3, ((0, 1), (1, 2)))):
        settled = rules.Settled(topology=topology)
        algorithm, _, _ = rules.choose(PROBLEM, FACTS, Privacy(**BUDGET), settled)
        assert isinstance(algorithm, ALGORITHMS["penalty-perturbed-admm"])
    by_party = Privacy(**{**BUDGET, "unit": "party"})
    assert rules.choose_algorithm(FACTS, by_party, None, "ring") == "locally-noised-admm"
    for topology in (None, "unrestricted"):
        assert rules.choose_algorithm(FACTS, by_party, None, topology) == "noisy-gradient-descent"


def test_trust_changes_nothing_but_how_much_noise_there_is():
    """One noise is one noise, whoever adds it; a party alone has it too."""
    alone = dataclasses.replace(FACTS, parties=("a",), sizes=(210,))
    plans = [
        rules.choose(PROBLEM, facts, Privacy(**BUDGET, trust=trust), rules.Settled())
        for facts, trust in ((FACTS, "curator"), (FACTS, "secure-sum"), (alone, "none"))
    ]
    steps = {(algorithm.step, algorithm.momentum, n_rounds) for algorithm, _, n_rounds in plans}
    assert len(steps) == 1
    nobody, _, n_rounds = rules.choose(PROBLEM, FACTS, Privacy(**BUDGET), rules.Settled())
    length = [
        a.step.start * n / (1 - (a.momentum.start if a.momentum else 0))
        for a, _, n in (plans[0], (nobody, 0, n_rounds))
    ]
    assert length[0] >= length[1]


def test_units_of_rows_weights_and_labels_change_units_of_steps_only():
    def planned(row_norm, weight, label_bound):
        facts = Facts(parties=("a", "b"), sizes=(4000, 2000), n_features=7, row_norm=row_norm, label_bound=label_bound)
        problem = Problem(loss=Huber(label_bound), regulariser=L2(0.0), record_weight=weight)
        l2 = rules.regulariser(problem, facts, Privacy(**BUDGET), rules.Settled())
        problem = dataclasses.replace(problem, regulariser=L2(l2))
        algorithm, _, n_rounds = rules.choose(problem, facts, Privacy(**BUDGET), rules.Settled())
        unit = weight * row_norm**2
        momentum = 0.0 if algorithm.momentum is None else algorithm.momentum.start
        return n_rounds, momentum, algorithm.step.start * unit, l2 / unit

    assert planned(1.0, 1.0, 1.0) == pytest.approx(planned(3.0, 0.2, 50.0))


def test_a_walk_visits_everybody_as_often_as_rounds_would():
    everybody = chosen("locally-noised-admm")
    walk = chosen("walk-admm")
    assert walk[2] == everybody[2] * FACTS.n_parties
    assert walk[0].selection.most_visits == everybody[2]
    assert walk[0].mechanism == everybody[0].mechanism


def test_people_at_all_parties_need_a_stiffer_coupling():
    apart, _, _ = chosen("penalty-perturbed-admm", rounds=20, privacy={"epsilon": 0.1})
    spanning, _, _ = chosen("penalty-perturbed-admm", rounds=20, privacy={"epsilon": 0.1, "people_span_parties": True})
    assert min(spanning.mechanism.penalty.start) >= min(apart.mechanism.penalty.start)


def test_without_epsilon_steps_follow_the_records():
    exact, _, _ = chosen("admm", privacy={"epsilon": None})
    assert min(exact.mechanism.penalty.start) >= 2 * 90 * 0.25 / 4 / 4
    stated, _, _ = chosen("locally-noised-admm", privacy={"epsilon": None}, noise_multiplier=3.0)
    assert stated.mechanism.noise_multiplier == Schedule(3.0)
    assert stated.mechanism.prox_step == pytest.approx(4 / (2 * 90 * 0.25))


@pytest.mark.parametrize(
    ("settled", "words"),
    [
        ({"name": "penalty-perturbed"}, "did you mean 'penalty-perturbed-admm'"),
        ({"name": "sum-noised-admm"}, "trust: got 'none' for sum-noised-admm"),
        ({"name": "recycled-admm", "privacy": {"trust": "curator"}}, "trust: got 'curator' for recycled-admm"),
        ({"penalty": 1.0}, "settings: noisy-gradient-descent has no 'penalty'"),
        ({"hardened": True}, "has no 'hardened'"),
        ({"name": "recycled-admm", "mechanism": "linear"}, "mechanism: got 'linear'"),
        ({"name": "edgewise-admm", "penalty": 1.0}, "takes edge_penalty"),
        ({"rounds": 0}, "rounds: got 0"),
        ({"privacy": {"epsilon": None}}, "algorithm: left open while epsilon is missing"),
        ({"name": "recycled-admm", "privacy": {"epsilon": None}}, "epsilon or one of noise_multiplier, noise_rate"),
        ({"name": "penalty-perturbed-admm", "penalty": -1.0}, "penalty: got -1.0"),
        ({"momentum": -1.0}, "momentum: got -1.0"),
    ],
)
def test_what_cannot_be_settled_is_refused_in_one_sentence(settled, words):
    with pytest.raises(InputError, match=words):
        chosen(**settled)


# --- the promise ------------------------------------------------------------------------------------------------------


def test_a_promise_is_checked_when_it_is_made_and_when_it_is_changed():
    promise = Privacy(**BUDGET)
    assert not promise.exact
    assert Privacy(**{**BUDGET, "epsilon": math.inf}).exact
    with pytest.raises(InputError, match="delta: got 2"):
        promise.set_params(epsilon=1.0, delta=2)
    # nothing of it was changed
    assert promise == Privacy(**BUDGET)
    assert promise.set_params(epsilon=1.0) is promise
    assert promise == Privacy(**{**BUDGET, "epsilon": 1.0})
    with pytest.raises(InputError, match="unknown parameter 'eps'"):
        promise.set_params(eps=1.0)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"epsilon": 0.0}, "epsilon: got 0"),
        ({"epsilon": -math.inf}, "epsilon: got -inf"),
        ({"epsilon": "1"}, "epsilon: got '1'"),
        ({"delta": 1.0}, "delta: got 1"),
        ({"adjacency": "add-one"}, "adjacency: got 'add-one'"),
        ({"unit": "person"}, "unit: got 'person'"),
        ({"trust": "everybody"}, "trust: got 'everybody'"),
        ({"records_per_person": 0}, "records_per_person: got 0"),
        ({"people_span_parties": 1}, "people_span_parties: got 1"),
        ({"tuning": " "}, "tuning: got ' '"),
        ({"ledger": {}}, "ledger: got a dict"),
    ],
)
def test_a_wrong_promise_is_refused(wrong, words):
    with pytest.raises(InputError, match=words):
        Privacy(**{**BUDGET, **wrong})
