"""What a fit sees of the program around it, and what it warns of: mistakes that gave a clean certificate before."""

import warnings

import joblib
import numpy as np
import pytest
from sklearn.base import BaseEstimator, clone
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.feature_selection import RFECV
from sklearn.impute import SimpleImputer
from sklearn.model_selection import (
    GridSearchCV,
    KFold,
    RepeatedStratifiedKFold,
    StratifiedKFold,
    StratifiedShuffleSplit,
    TunedThresholdClassifierCV,
    cross_val_score,
    permutation_test_score,
)
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler, Normalizer, OneHotEncoder, StandardScaler
from sklearn.semi_supervised import SelfTrainingClassifier

import coterie
from coterie import Privacy, PrivateLogisticRegression, PrivateRidge, PrivateScorer, Schema, SchemaEncoder, Spending
from coterie.data import CategoryColumn, Label, NumberColumn
from coterie.errors import InputError, PrivacyWarning
from coterie.estimators.surroundings import fitted_preprocessing, standardised

RNG = np.random.default_rng(3)
X = RNG.uniform(0.1, 1.0, size=(120, 2)) / 2
Y = np.where(X[:, 0] + RNG.normal(0, 0.1, 120) > 0.27, "yes", "no")
WORDS = {"epsilon": 2.0, "delta": 1e-5, "adjacency": "replace-one"}
# gradient steps compile fastest
BUDGET = {**WORDS, "trust": "curator"}
SCHEMA = Schema(
    (NumberColumn("age", 0, 100, missing=True), CategoryColumn("smoker", ("never", "ever"), other=True)),
    Label("ill", ("no", "yes")),
)
TABLE = {"age": ["39", "", "70", "25"] * 30, "smoker": ["never", "ever", "vapes", "never"] * 30}


def model(**more):
    return PrivateLogisticRegression(**{**BUDGET, "classes": ("no", "yes"), "rounds": 2, **more})


def certificate(estimator, rows=X):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        fitted = estimator.fit(rows, Y)
    last = fitted[-1] if isinstance(fitted, Pipeline) else fitted
    return last.certificate_, [str(warning.message) for warning in told if warning.category is PrivacyWarning]


@pytest.mark.parametrize(
    ("step", "names"),
    [
        (StandardScaler(), {"StandardScaler"}),
        (MinMaxScaler(), {"MinMaxScaler"}),
        (SimpleImputer(), {"SimpleImputer"}),
        (make_pipeline(SimpleImputer(), MinMaxScaler()), {"SimpleImputer", "MinMaxScaler"}),
        (FeatureUnion([("a", MinMaxScaler()), ("b", "passthrough")]), {"MinMaxScaler"}),
        (ColumnTransformer([("a", MinMaxScaler(), [0])], remainder="passthrough"), {"MinMaxScaler"}),
        (ColumnTransformer([("a", OneHotEncoder(sparse_output=False), [0])]), {"OneHotEncoder"}),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, set) else "",
)
def test_steps_that_were_fitted_on_the_records_are_seen(step, names):
    assert set(Pipeline([("before", step), ("last", Last())]).fit(X, Y)[-1].found_) == names


class Last(BaseEstimator):
    """Looks around when it is fitted, as a private model does."""

    def fit(self, X, y):
        self.found_ = fitted_preprocessing()
        return self


def test_a_fitted_step_voids_the_certificate():
    found, told = certificate(make_pipeline(MinMaxScaler(), model()))
    assert found.void == ("MinMaxScaler read off the data",)
    assert "VOID as a guarantee: MinMaxScaler read off the data" in told


@pytest.mark.parametrize("step", [FunctionTransformer(np.sqrt), Normalizer(), "passthrough"], ids=str)
def test_steps_that_look_at_one_row_at_a_time_are_not(step):
    assert Pipeline([("before", step), ("last", Last())]).fit(X, Y)[-1].found_ == ()


def test_what_cannot_be_seen_is_declared():
    found, _ = certificate(make_pipeline(FunctionTransformer(np.sqrt), model()))
    assert found.void == ()
    assert found.document["design"]["by"] == "declared"
    assert "declared public by the user" in found.to_markdown()


def test_a_ledger_is_charged_everything_for_a_fitted_step():
    ledger = Spending(limit=(5.0, 1e-3))
    pipeline = make_pipeline(StandardScaler(), model(**dict.fromkeys(BUDGET), privacy=Privacy(**BUDGET, ledger=ledger)))
    with pytest.raises(coterie.spending.BudgetError):
        pipeline.fit(X, Y)
    assert not ledger.charges


def test_a_schema_in_a_pipeline_looks_at_nothing():
    pipeline = make_pipeline(SchemaEncoder(SCHEMA), model())
    found, told = certificate(pipeline, TABLE_FRAME)
    assert (found.void, found.document["design"]["by"]) == ((), "schema")
    assert not [sentence for sentence in told if sentence.startswith("VOID")]
    assert pipeline[:-1].get_feature_names_out().tolist() == list(SCHEMA.feature_names)
    np.testing.assert_array_equal(SchemaEncoder(SCHEMA).transform(TABLE), SCHEMA.encode(TABLE))
    np.testing.assert_array_equal(clone(SchemaEncoder(SCHEMA)).fit(None).transform(TABLE), SCHEMA.encode(TABLE))
    array = np.array(list(zip(*TABLE.values(), strict=True)), dtype=object)
    np.testing.assert_array_equal(SchemaEncoder(SCHEMA).fit_transform(array), SCHEMA.encode(TABLE))
    assert pipeline.predict(TABLE_FRAME).shape == (120,)


class Frame(dict):
    """As much of a data frame as is needed."""

    columns = property(lambda self: list(self))
    shape = (120, 2)

    def __len__(self):
        return 120


TABLE_FRAME = Frame(TABLE)


def test_a_schema_file_will_do_and_anything_else_is_refused(tmp_path):
    SCHEMA.write(tmp_path / "schema.toml")
    np.testing.assert_array_equal(SchemaEncoder(tmp_path / "schema.toml").transform(TABLE), SCHEMA.encode(TABLE))
    with pytest.raises(InputError, match=r"schema: got a int; a coterie\.Schema or its path"):
        SchemaEncoder(3).fit(TABLE)
    with pytest.raises(InputError, match="the 2 columns of the schema"):
        SchemaEncoder(SCHEMA).transform(np.zeros((3, 5)))


def test_standardised_arrays_are_recognised():
    scaled = StandardScaler().fit_transform(X)
    assert certificate(model(), scaled)[0].void == ("standardisation read off the data",)
    assert standardised(np.column_stack([X[:, 0], scaled[:, 1]]))
    # rows that others scaled
    assert not standardised(scaled[:60])
    assert not standardised(X)
    # even halves are public designs
    assert not standardised(np.array([[-1.0], [1.0]] * 20))
    assert not standardised(scaled[:5])
    assert not standardised(np.full((20, 1), 1e300))


def test_labels_read_off_the_data_are_told_in_python_too():
    _, told = certificate(model(classes=None))
    assert "VOID as a guarantee: labels read off the data" in told


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"delta": 0.01}, "delta = 0.01 is at least 1/n for the 120 records"),
        ({"epsilon": 12.0}, "is more than 10"),
        ({"epsilon": 0.02}, "no better than the majority class"),
        ({"bounds": 0.2}, "most rows are longer than bounds = 0.2"),
    ],
)
def test_what_people_should_know_is_said(change, words):
    assert certificate(model())[1] == []
    told = certificate(model(**change))[1]
    assert len(told) == 1
    assert words in told[0]


def test_labels_are_never_cut_in_silence():
    with pytest.raises(InputError, match="label_bound: missing; the largest size that a label can have"):
        PrivateRidge(**BUDGET).fit(X, X[:, 0])
    with pytest.warns(PrivacyWarning, match=r"labels are larger than label_bound = 0\.2 and were clipped"):
        PrivateRidge(**BUDGET, label_bound=0.2, rounds=2).fit(X, X[:, 0])


@pytest.mark.parametrize("scoring", [None, "accuracy", ["accuracy", "roc_auc"]])
def test_exact_scores_beside_a_ledger_are_refused_before_the_first_charge(scoring):
    ledger = Spending()
    estimator = model(**dict.fromkeys(BUDGET), privacy=Privacy(**BUDGET, ledger=ledger))
    search = GridSearchCV(estimator, {"l2": [1.0, 2.0]}, scoring=scoring, refit=False, cv=2, error_score="raise")
    with pytest.raises(InputError, match="scoring: an exact score of private records"):
        search.fit(X, Y)
    if not isinstance(scoring, list):
        with pytest.raises(InputError, match="refused before anything is charged"):
            cross_val_score(estimator, X, Y, scoring=scoring, cv=2, error_score="raise")
    assert not ledger.charges


def test_noised_scores_beside_a_ledger_and_exact_ones_without_are_not():
    ledger = Spending()
    estimator = model(**dict.fromkeys(BUDGET), privacy=Privacy(**BUDGET, ledger=ledger))
    scorer = PrivateScorer(**WORDS, ledger=ledger)
    cross_val_score(estimator, X, Y, scoring=scorer, cv=KFold(2), error_score="raise")
    assert len(ledger.charges) == 4
    assert len(cross_val_score(model(), X, Y, cv=2, error_score="raise")) == 2


@pytest.mark.parametrize(
    "look",
    [
        lambda fit: permutation_test_score(fit, X, Y, scoring="accuracy", cv=KFold(2), n_permutations=1),
        lambda fit: RFECV(fit, cv=KFold(2), scoring="accuracy").fit(X, Y),
        lambda fit: TunedThresholdClassifierCV(fit, cv=KFold(2)).fit(X, Y),
    ],
    ids=["permutations", "features", "thresholds"],
)
def test_so_are_those_of_whatever_else_scores_models(look):
    ledger = Spending()
    with pytest.raises(InputError, match="scoring: an exact score of private records"):
        look(model(**dict.fromkeys(BUDGET), privacy=Privacy(**BUDGET, ledger=ledger)))
    assert not ledger.charges


def test_one_label_decides_where_others_go_when_folds_are_stratified():
    """Why they are refused: a fit to such a fold loses more of a record than it is charged for, one to another not."""

    def most_changed(splitter):
        found = 0
        for row in range(len(Y)):
            other = Y.copy()
            other[row] = "no" if Y[row] == "yes" else "yes"
            for (before, _), (after, _) in zip(splitter.split(X, Y), splitter.split(X, other), strict=True):
                found = max(
                    found, len({*zip(before, Y[before], strict=True)} - {*zip(after, other[after], strict=True)})
                )
        return found

    assert most_changed(StratifiedKFold(5)) > 1
    assert most_changed(StratifiedKFold(5, shuffle=True, random_state=0)) > 10
    assert most_changed(KFold(5)) == most_changed(KFold(5, shuffle=True, random_state=0)) == 1


@pytest.mark.parametrize(
    "cv",
    [
        None,
        2,
        StratifiedKFold(2, shuffle=True),
        RepeatedStratifiedKFold(n_splits=2),
        StratifiedShuffleSplit(n_splits=2),
    ],
    ids=str,
)
def test_stratified_folds_beside_a_ledger_are_refused_before_the_first_charge(cv):
    ledger = Spending()
    estimator = model(**dict.fromkeys(BUDGET), privacy=Privacy(**BUDGET, ledger=ledger))
    scorer = PrivateScorer(**WORDS, ledger=ledger)
    search = GridSearchCV(estimator, {"l2": [1.0]}, scoring=scorer, cv=cv, error_score="raise")
    with pytest.raises(InputError, match=r"cv: stratified folds are made by looking at labels.*use cv=KFold"):
        search.fit(X, Y)
    with pytest.raises(InputError, match="cv: stratified folds"):
        cross_val_score(make_pipeline("passthrough", estimator), X, Y, scoring=scorer, cv=cv, error_score="raise")
    assert not ledger.charges


def test_stratified_folds_are_known_where_nobody_sees_how_they_were_made():
    """In another thread, as in another process, a fit sees its fold alone."""
    ledger = Spending()
    estimator = model(**dict.fromkeys(BUDGET), privacy=Privacy(**BUDGET, ledger=ledger))

    def fitted(cv):
        scorer = PrivateScorer(**WORDS, ledger=ledger)
        with joblib.parallel_backend("threading"):
            return cross_val_score(estimator, X, Y, scoring=scorer, cv=cv, n_jobs=2, error_score="raise")

    for folds in (2, 7):
        with pytest.raises(InputError, match="cv: stratified folds"):
            fitted(folds)
    assert not ledger.charges
    assert len(fitted(KFold(2))) == 2


def test_records_that_were_chosen_by_their_labels_void_the_certificate():
    """A certificate that calls their number public would tell how frequent every class is."""
    three = np.array(["a", "b", "c"])[np.arange(len(X)) % 3]
    pairs = OneVsOneClassifier(model(classes=None)).fit(X, three)
    assert all("OneVsOneClassifier read off the data" in fitted.certificate_.void for fitted in pairs.estimators_)
    some = np.where(np.arange(len(X)) % 4 > 0, np.arange(len(X)) % 2, -1)
    with pytest.warns(PrivacyWarning, match="VOID as a guarantee: SelfTrainingClassifier read off the data"):
        SelfTrainingClassifier(model(classes=(0, 1)), max_iter=1).fit(X, some)
    whole = OneVsRestClassifier(model(classes=(0, 1))).fit(X, three)
    assert not any(fitted.certificate_.void for fitted in whole.estimators_)


def test_labels_that_were_scaled_by_themselves_void_the_certificate():
    ridge = PrivateRidge(**BUDGET, label_bound=3.0, rounds=2)
    scaled = TransformedTargetRegressor(ridge, transformer=StandardScaler())
    with pytest.warns(PrivacyWarning, match="VOID as a guarantee: StandardScaler read off the data"):
        scaled.fit(X, 50 + X[:, 0])
    assert scaled.regressor_.certificate_.void == ("StandardScaler read off the data",)
    plain = TransformedTargetRegressor(ridge, func=np.log, inverse_func=np.exp).fit(X, 50 + X[:, 0])
    assert plain.regressor_.certificate_.void == ()


def test_an_evaluation_prints_as_a_table():
    fitted = model().fit(X, Y)
    found = coterie.evaluate(fitted, X, Y, public=True)
    assert repr(found).splitlines()[1].split() == ["model", "majority", "class"]
    assert f"{100 * found.majority_error:.2f} %" in str(found)
    assert "error where yes" in str(found)
    paid = coterie.evaluate(fitted, X, Y, **WORDS)
    assert "ε = 2 at δ = 1e-05, replace-one" in str(paid)
    assert ["model", "noise", "majority", "class"] in [line.split() for line in str(paid).splitlines()]
    assert 0 <= paid.majority_error <= 1
