"""Estimators in the hands of a user: privacy on the model object, routing, storage, and refusals in one sentence."""

import dataclasses
import inspect
import math
import pickle
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from coterie import (
    Privacy,
    PrivateLasso,
    PrivateLinearSVC,
    PrivateLogisticRegression,
    PrivateRidge,
    PrivateScorer,
    Spending,
)
from coterie.errors import InputError, PrivacyPreconditionError
from coterie.spending import BudgetError

BUDGET = {"epsilon": 4.0, "delta": 1e-5, "adjacency": "replace-one"}
RNG = np.random.default_rng(1)
X = RNG.normal(size=(120, 3))
SCORE = X @ [2.0, -1.0, 0.0] + 0.3 * RNG.normal(size=120)
Y = np.where(SCORE > 0, "yes", "no")
PARTIES = np.repeat(["north", "south", "west"], [30, 40, 50])


WORDS = {field.name for field in dataclasses.fields(Privacy)}


def made(cls, **settings):
    """The promise in three words where they say it all, as a Privacy where not."""
    settings = {**BUDGET, **settings}
    promised = {name: settings.pop(name) for name in list(settings) if name in WORDS}
    return cls(**settings, **(promised if set(promised) == set(BUDGET) else {"privacy": Privacy(**promised)}))


def logistic(**settings):
    return made(PrivateLogisticRegression, **{"classes": ["no", "yes"], **settings})


@pytest.fixture(scope="module")
def fitted():
    return logistic().fit(X, Y, parties=PARTIES)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            pd.DataFrame(X, columns=["a", "b", "c"]).assign(ward=["secret-ward"] * 120),
            "X: column 'ward' has texts; numbers are needed",
        ),
        (
            pd.DataFrame(X, columns=["a", "b", "c"]).assign(b=[np.nan] * 2 + [1.0] * 118),
            "column 'b' has blanks .NaN., 2 of them",
        ),
        (np.where(np.arange(360).reshape(120, 3) == 4, np.nan, X), "column 1 has blanks .NaN., 1 of them"),
    ],
)
def test_texts_and_blanks_are_refused_by_column_with_what_would_help(table, message):
    with pytest.raises(InputError, match=message) as refused:
        logistic().fit(table, Y, parties=PARTIES)
    assert "SchemaEncoder" in str(refused.value)
    assert "secret" not in str(refused.value)


def test_complex_numbers_are_refused_as_scikit_learn_does():
    # and nothing warns of a cast
    for rows, labels in ((X + 77.125j, Y), (X, np.ones(120) + 77.125j)):
        with pytest.raises(ValueError, match="Complex data not supported") as refused:
            made(PrivateRidge, label_bound=1.0).fit(rows, labels, parties=PARTIES)
        assert "77.125" not in str(refused.value)


@pytest.mark.parametrize("text", ["secret", "77,125", b"secret"])
def test_labels_and_weights_that_are_no_numbers_are_not_quoted(text):
    cells = np.array([1.0] * 119 + [text], dtype=object)
    with pytest.raises(InputError, match=r"^y: got values that are no numbers; numbers are needed$"):
        made(PrivateRidge, label_bound=1.0).fit(X, cells, parties=PARTIES)
    with pytest.raises(InputError, match=r"^sample_weight: got values that are no numbers; numbers are needed$"):
        logistic().fit(X, Y, parties=PARTIES, sample_weight=cells)
    with pytest.raises(InputError, match=r"^sample_weight: Complex data not supported; real numbers are needed$"):
        logistic().fit(X, Y, parties=PARTIES, sample_weight=np.ones(120) + 1j)


def test_importing_the_package_loads_neither_jax_nor_scikit_learn():
    code = "import sys, coterie; sys.exit(any(name in sys.modules for name in ('jax', 'sklearn')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_privacy_is_on_the_model_object(fitted):
    privacy, certificate = fitted.privacy_, fitted.certificate_
    assert 3.9 < privacy.epsilon <= 4.0
    assert (privacy.delta, privacy.adjacency, privacy.unit) == (1e-5, "replace-one", "record")
    assert set(privacy.party_epsilons) == {"north", "south", "west"}
    assert privacy.views == {"everybody": privacy.epsilon}
    assert privacy.public_facts["sizes"] == [30, 40, 50]
    assert privacy.public_facts["labels"] == ["no", "yes"]
    assert (privacy.public_facts["n_columns"], privacy.public_facts["constant_column"]) == (4, True)
    assert {bound["bound"]: bound["source"] for bound in privacy.public_facts["bounds"]}[
        "row_norm"
    ] == "public constant"
    assert certificate.verdict == privacy.verdict == ()
    assert certificate.epsilon == privacy.epsilon == privacy.total_epsilon
    certificate.verify()
    assert fitted.transcript_.models.shape == (1, 4)
    assert fitted.n_iter_ == fitted.transcript_.n_rounds


def test_two_fits_without_a_seed_differ_and_two_with_one_agree_but_are_not_private(fitted):
    assert not np.array_equal(fitted.coef_, logistic().fit(X, Y, parties=PARTIES).coef_)
    seeded = [logistic(random_state=7).fit(X, Y) for _ in range(2)]
    np.testing.assert_array_equal(seeded[0].coef_, seeded[1].coef_)
    assert "NOT PRIVATE" in seeded[0].certificate_.verdict[0]
    assert seeded[0].certificate_.not_private
    assert seeded[0].privacy_.reproducible


def test_a_random_state_object_is_a_seed_too():
    models = [logistic(random_state=np.random.RandomState(3)).fit(X, Y) for _ in range(2)]
    np.testing.assert_array_equal(models[0].coef_, models[1].coef_)
    assert models[0].certificate_.not_private


def test_labels_read_off_the_data_void_the_certificate():
    model = logistic(classes=None).fit(X, Y)
    assert model.certificate_.verdict == ("VOID as a guarantee: labels read off the data",)
    assert model.classes_.tolist() == ["no", "yes"]


def test_preprocessing_fitted_on_the_data_voids_the_certificate_and_tuning_is_told():
    model = logistic(data_derived=["scaler"], tuning="nothing: settings of another study").fit(X, Y)
    assert model.certificate_.void == ("scaler read off the data",)
    assert model.certificate_.document["tuning"] == "nothing: settings of another study"
    model.certificate_.verify()


def test_people_at_several_parties_need_parties():
    with pytest.raises(InputError, match="parties: got None with people_span_parties"):
        logistic(people_span_parties=True).fit(X, Y)


def test_an_exact_score_beside_a_ledger_is_for_public_records_only():
    model = logistic(ledger=Spending()).fit(X, Y)
    with pytest.raises(InputError, match="score: an exact score of private records"):
        model.score(X, Y)
    assert 0 <= model.score(X, Y, public=True) <= 1


def test_public_classes_may_be_more_than_occur():
    model = logistic(classes=["yes", "no", "unknown"]).fit(X, Y)
    assert model.classes_.tolist() == ["no", "unknown", "yes"]
    assert model.predict_proba(X).shape == (120, 3)
    assert model.coef_.shape == (3, 3)
    assert model.certificate_.verdict == ()


@pytest.mark.parametrize("trust", ["curator", "secure-sum"])
def test_with_trust_only_aggregates_are_seen(trust):
    model = logistic(trust=trust, rounds=3).fit(X, Y, parties=PARTIES)
    assert set(model.privacy_.views) == {"aggregates"}
    assert model.certificate_.document["trust_model"]["channel"] == trust
    assert model.n_iter_ == 3


@pytest.mark.parametrize(
    ("trust", "name"),
    [
        ("none", "penalty-perturbed-admm"),
        ("none", "one-release-average"),
        ("none", "recycled-admm"),
        ("none", "walk-admm"),
        ("none", "noisy-gradient-descent"),
        ("curator", "noisy-gradient-descent"),
        ("curator", "broadcast-noised-admm"),
    ],
)
def test_algorithms_by_name_run_and_keep_the_budget(trust, name):
    model = logistic(trust=trust, algorithm=name, rounds=2).fit(X, Y, parties=PARTIES)
    assert model.certificate_.document["mechanism"]["algorithm"] == name
    assert model.privacy_.epsilon <= 4.0
    assert np.isfinite(model.coef_).all()


def test_whole_parties_can_be_protected():
    model = logistic(unit="party", rounds=2).fit(X, Y, parties=PARTIES)
    assert model.privacy_.unit == "party"
    assert model.certificate_.document["mechanism"]["algorithm"] == "noisy-gradient-descent"


def test_people_with_several_records_are_paid_for():
    model = logistic(records_per_person=3, trust="curator", rounds=2).fit(X, Y, parties=PARTIES)
    assert model.privacy_.epsilon <= 4.0
    assert "up to 3 records" in model.certificate_.document["guarantee"]["unit_of_privacy"]


@pytest.mark.parametrize("model", [PrivateRidge, PrivateLasso])
def test_squares_are_clipped_where_gradients_are_sent(model):
    settings = {"label_bound": 3.0, "loss": "squared"}
    with pytest.raises(InputError, match="use 'huber'"):
        made(model, **settings, topology="complete").fit(X, SCORE, parties=PARTIES)
    fitted = made(model, **settings, epsilon=100.0, bounds=4.0, trust="curator")
    assert fitted.fit(X, SCORE).score(X, SCORE) > 0.5
    clipped = made(model, **settings, threshold=0.5, bounds=4.0, rounds=2, trust="curator").fit(X, SCORE)
    assert clipped.transcript_.plan.algorithm.mechanism.clip == 2.0


def test_pandas_feature_names_and_categories():
    frame = pd.DataFrame(X, columns=["age", "dose", "noise"])
    model = logistic().fit(frame, pd.Series(Y, dtype="category"), parties=pd.Series(PARTIES))
    assert model.feature_names_in_.tolist() == ["age", "dose", "noise"]
    assert model.predict(frame).shape == (120,)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame.rename(columns={"age": "years"}))


def test_clone_keeps_parameters_and_nothing_else(fitted):
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params()
    assert not hasattr(copy, "coef_")


def test_pickle_keeps_model_transcript_and_certificate(fitted):
    copy = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(copy.predict_proba(X), fitted.predict_proba(X))
    np.testing.assert_array_equal(copy.transcript_.models, fitted.transcript_.models)
    assert copy.certificate_ == fitted.certificate_
    exact = pickle.loads(pickle.dumps(logistic(epsilon=math.inf).fit(X, Y)))
    assert exact.transcript_ is exact.certificate_ is None


@pytest.mark.parametrize(
    ("model", "y"),
    [
        (logistic(epsilon=math.inf), Y),
        (logistic(epsilon=math.inf, classes=None), np.digitize(SCORE, [-1.0, 1.0])),
        (PrivateLinearSVC(**{**BUDGET, "epsilon": math.inf}, fit_intercept=False), Y),
        (PrivateRidge(**{**BUDGET, "epsilon": math.inf}, label_bound=1.0), SCORE),
        (PrivateLasso(**{**BUDGET, "epsilon": math.inf}, label_bound=1.0), SCORE),
    ],
)
def test_the_plain_model_predicts_the_same(model, y):
    plain = pickle.loads(pickle.dumps(model.fit(X, y).to_sklearn()))
    long_rows = np.vstack([X, 100 * X])
    for method in ("predict", "decision_function", "predict_proba"):
        if hasattr(model, method):
            ours, theirs = getattr(model, method)(long_rows), getattr(plain, method)(long_rows)
            if ours.dtype.kind == "f":
                np.testing.assert_allclose(ours, theirs, atol=1e-12)
            else:
                np.testing.assert_array_equal(ours, theirs)


def test_without_weights_noise_is_sized_for_records_that_weigh_one():
    def noise(weights=None, **bound):
        model = logistic(**bound).fit(X, Y, parties=PARTIES, sample_weight=weights)
        plan = model.transcript_.plan
        return plan.facts.weight_bound, plan.issued[0][-1].scales.noise_std

    assert noise(weight_bound=5.0) == noise()
    assert noise(weight_bound=0.5)[0] == 0.5
    bound, noise_std = noise(np.ones(len(Y)), weight_bound=5.0)
    assert (bound, noise_std) == (5.0, pytest.approx(5 * noise()[1], rel=0.5))


def test_parties_and_weights_are_routed_through_a_pipeline():
    halve = FunctionTransformer(lambda rows: rows / 2)
    with sklearn.config_context(enable_metadata_routing=True):
        model = make_pipeline(halve, logistic().set_fit_request(parties=True, sample_weight=True))
        model.fit(X, Y, parties=PARTIES, sample_weight=np.full(120, 0.5))
    assert set(model[-1].privacy_.party_epsilons) == {"north", "south", "west"}


def test_every_fit_of_a_grid_search_is_charged_and_the_total_certified():
    ledger = Spending()
    scorer = PrivateScorer(**{**BUDGET, "epsilon": 0.25}, ledger=ledger)
    search = GridSearchCV(logistic(epsilon=0.5, ledger=ledger), {"l2": [1.0, 5.0]}, cv=KFold(3), scoring=scorer)
    search.fit(X, Y)
    assert len(ledger.charges) == 2 * 2 * 3 + 1
    certificate = search.best_estimator_.certificate_
    assert certificate.total_epsilon == pytest.approx(7 * 0.5 + 6 * 0.25, rel=1e-6)
    assert certificate.total_delta == pytest.approx(13e-5)
    assert certificate.total_epsilon == pytest.approx(ledger.total[0])
    assert certificate.document["total"]["releases"] == 13


def test_a_grid_search_does_not_choose_by_exact_scores_behind_the_ledgers_back():
    search = GridSearchCV(logistic(ledger=Spending()), {"l2": [1.0]}, cv=2, error_score="raise")
    with pytest.raises(InputError, match=r"scoring=PrivateScorer"):
        search.fit(X, Y)


def test_what_was_released_before_without_a_bound_is_in_the_verdict():
    ledger = Spending()
    logistic(ledger=ledger, random_state=0).fit(X, Y)
    model = logistic(ledger=ledger).fit(X, Y)
    assert model.certificate_.total_epsilon == float("inf")
    assert any("before has no bound" in line for line in model.certificate_.verdict)
    model.certificate_.verify()


def test_a_failed_fit_leaves_no_certificate_of_the_one_before():
    ledger = Spending(limit=(6.0, 1e-3))
    model = logistic(ledger=ledger).fit(X, Y)
    with pytest.raises(BudgetError):
        model.fit(X, Y)
    assert not hasattr(model, "certificate_")
    assert not hasattr(model, "privacy_")


def test_a_fit_beyond_the_limit_is_refused_before_anything_runs():
    ledger = Spending(limit=(5.0, 1e-3))
    logistic(ledger=ledger).fit(X, Y)
    with pytest.raises(BudgetError, match="nothing was run"):
        logistic(ledger=ledger).fit(X, Y)
    with pytest.raises(BudgetError, match="epsilon=inf"):
        logistic(ledger=ledger, random_state=0, epsilon=0.1).fit(X, Y)
    assert len(ledger.charges) == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"epsilon": 0.0}, "epsilon: got 0"),
        ({"epsilon": "1"}, "epsilon: got '1'"),
        ({"delta": 0.0}, "delta: got 0"),
        ({"delta": 1.0}, "delta: got 1"),
        ({"adjacency": "add-one"}, "adjacency: got 'add-one'"),
        ({"bounds": -1.0}, "bounds: got -1"),
        ({"bounds": "from-data"}, "bounds: got 'from-data'"),
        ({"trust": "everybody"}, "trust: got 'everybody'"),
        ({"unit": "person"}, "unit: got 'person'"),
        ({"algorithm": "sgd"}, "algorithm: got 'sgd'"),
        ({"algorithm": "sum-noised-admm"}, "trust: got 'none'"),
        ({"settings": {"penalty": 1.0}}, "gradient-descent has no 'penalty'"),
        ({"settings": {"hardened": True}}, "has no 'hardened'"),
        ({"settings": "averaging"}, "settings: got a str"),
        ({"rounds": 0}, "rounds: got 0"),
        ({"trust": "curator", "topology": "ring"}, "topology: got 'ring' with trust='curator'"),
        ({"data_derived": "scaler"}, "data_derived: got 'scaler'"),
        ({"tuning": " "}, "tuning: got ' '"),
        ({"l2": 0.0}, "l2: got 0"),
        ({"classes": ["yes"]}, "at least two classes"),
        ({"classes": ["yes", "yes"]}, "different labels"),
        ({"classes": ["yes", "maybe"]}, "that is not in labels"),
        ({"class_weight": "balanced"}, "class_weight: got 'balanced'"),
        ({"class_weight": {"perhaps": 1.0}}, "'perhaps' is not one of the classes"),
        ({"ledger": {}}, "ledger: got a dict"),
        ({"random_state": -1}, "seed: got -1"),
    ],
)
def test_bad_settings_are_refused_in_one_sentence(settings, words):
    with pytest.raises(InputError, match=words):
        logistic(**settings).fit(X, Y, parties=PARTIES)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({}, "epsilon, delta, adjacency: missing"),
        ({"epsilon": 1.0, "adjacency": "zero-out"}, "delta: missing"),
        ({**BUDGET, "privacy": Privacy(**BUDGET)}, "privacy: got one beside epsilon, delta, adjacency"),
        ({"delta": 1e-6, "privacy": Privacy(**BUDGET)}, "privacy: got one beside delta"),
        ({"privacy": BUDGET}, "privacy: got a dict"),
        ({"privacy": Privacy(**{**BUDGET, "epsilon": None})}, "epsilon: got None"),
    ],
)
def test_the_promise_is_said_once(said, words):
    with pytest.raises(InputError, match=words):
        PrivateLogisticRegression(**said, classes=["no", "yes"]).fit(X, Y)


def test_both_ways_of_saying_it_give_the_same_plan(fitted):
    model = PrivateLogisticRegression(privacy=Privacy(**BUDGET), classes=["no", "yes"]).fit(X, Y, parties=PARTIES)
    assert model.transcript_.plan.digest == fitted.transcript_.plan.digest


def test_parameters_of_a_promise_can_be_set_and_searched():
    ledger = Spending()
    model = logistic(ledger=ledger, trust="curator")
    assert model.get_params()["privacy__trust"] == "curator"
    copy = clone(model).set_params(privacy__epsilon=1.0, rounds=2)
    assert (copy.privacy.epsilon, model.privacy.epsilon) == (1.0, 4.0)
    assert copy.privacy.ledger is ledger
    with pytest.raises(InputError, match="epsilon: got -1"):
        copy.set_params(privacy__epsilon=-1.0)
    scorer = PrivateScorer(**BUDGET, ledger=Spending())
    fit = logistic(trust="curator", rounds=2)
    search = GridSearchCV(fit, {"privacy__epsilon": [1.0, 2.0]}, cv=KFold(2), scoring=scorer)
    assert search.fit(X, Y).best_params_["privacy__epsilon"] in (1.0, 2.0)
    assert "trust='curator'" in repr(model)
    assert "privacy" in model._repr_html_()


@pytest.mark.parametrize("cls", [PrivateLogisticRegression, PrivateLinearSVC, PrivateRidge, PrivateLasso])
def test_every_parameter_is_described_once(cls):
    for name in inspect.signature(cls).parameters:
        described = [line for line in cls.__doc__.splitlines() if name in line.split(":")[0].split(", ")]
        assert len(described) == 1, name


def test_one_party_has_no_neighbours_to_hold_on_to():
    with pytest.raises(InputError, match="no neighbours"):
        logistic(algorithm="penalty-perturbed-admm").fit(X, Y)


def test_a_theorem_that_does_not_cover_a_unit_is_refused():
    with pytest.raises(PrivacyPreconditionError, match="unit"):
        logistic(algorithm="penalty-perturbed-admm", unit="party").fit(X, Y, parties=PARTIES)


def test_three_classes_are_too_many_for_the_support_vector_machine():
    with pytest.raises(InputError, match="Only binary classification"):
        PrivateLinearSVC(**BUDGET).fit(X, np.digitize(SCORE, [-1.0, 1.0]))
