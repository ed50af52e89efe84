"""The carried data sets: their shapes, the split, and the non-private reference error."""

import time

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from coterie.data import DATASETS, Federation, NumberColumn, load, load_adult, load_heart, partition
from coterie.errors import InputError


@pytest.fixture(scope="module")
def papers():
    return load_adult(preprocessing="papers")


def test_adult_with_the_papers_preprocessing(papers):
    assert papers.X.shape == (45_222, 104)
    assert len(set(papers.feature_names)) == 104
    assert papers.data_derived == ("column_maxima", "categories")
    numbers = [papers.feature_names.index(c.name) for c in papers.schema.columns if isinstance(c, NumberColumn)]
    np.testing.assert_array_equal(papers.X[:, numbers].max(axis=0), np.ones(6))
    assert (papers.X.sum(axis=0) > 0).all()
    # The first record of adult.data.
    age, bachelors = papers.feature_names.index("age"), papers.feature_names.index("education=Bachelors")
    assert (papers.X[0, age] * 90, papers.X[0, bachelors], papers.y[0]) == (39, 1, "<=50K")


def test_adult_split_and_majority_error(papers):
    np.testing.assert_array_equal(np.concatenate([papers.train, papers.test]), np.arange(45_222))
    assert len(papers.train) == 40_000
    assert np.mean(papers.y[papers.test] == ">50K") == pytest.approx(0.2444, abs=5e-5)


def test_constant_column_is_the_105th(papers):
    more = load_adult(preprocessing="papers", constant_column=True)
    assert more.X.shape == (45_222, 105)
    assert more.feature_names == (*papers.feature_names, "constant")
    assert (more.X[:, -1] == 1).all()


def test_public_adult_reads_nothing_off_the_data(papers):
    public = load_adult()
    assert public.data_derived == ()
    assert public.X.shape == (45_222, 111)
    never = public.feature_names.index("workclass=Never-worked")
    # documented, but in no complete row
    assert len(set(public.X[:, never])) == 1
    norms = np.linalg.norm(public.X, axis=1)
    assert np.mean(norms > 1) < 0.5
    assert norms.mean() > 0.8
    np.testing.assert_array_equal(public.y, papers.y)


def test_non_private_logistic_regression_error(papers):
    """15.6 % at the papers' ρ = 0.22, C = 1750, five equal parties."""
    train = Federation.from_arrays(
        papers.X[papers.train],
        papers.y[papers.train],
        parties=partition.evenly(len(papers.train), 5, seed=0),
        labels=papers.labels,
        data_derived=papers.data_derived,
    )
    assert train.facts.sizes == (8000,) * 5
    assert train.facts.data_derived == ("column_maxima", "categories")
    X, y, weight = train.pooled
    model = LogisticRegression(C=1750 / 8000 / 0.22, fit_intercept=False, tol=1e-6, max_iter=1000).fit(X, y, weight)
    X_test, y_test, _ = Federation.from_arrays(
        papers.X[papers.test], papers.y[papers.test], parties=None, labels=papers.labels
    ).pooled
    assert np.mean(model.predict(X_test) != y_test) == pytest.approx(0.156, abs=0.001)


def test_heart_hospitals_and_split():
    heart = load_heart()
    made = Federation.from_arrays(heart.X, heart.y, parties=heart.parties, labels=heart.labels)
    assert made.facts.parties == ("Cleveland", "Hungary", "Switzerland", "VA Long Beach")
    assert made.facts.sizes == (303, 261, 46, 130)
    assert (made.facts.labels, made.facts.data_derived) == (("absent", "present"), ())
    assert heart.X.shape == (740, len(heart.feature_names)) == (740, 15)
    assert heart.schema.party_column == "hospital"
    # The first patient of Cleveland: 63 years old, typical angina, num = 0.
    first = heart.X[0] / heart.X[0].max()
    angina = heart.feature_names.index("cp=typical angina")
    assert first[0] / (first[angina] / 0.75) == pytest.approx((63 - 55) / 10)
    assert heart.y[:2].tolist() == ["absent", "present"]
    assert sorted([*heart.train, *heart.test]) == list(range(740))
    _, test_sizes = np.unique(heart.parties[heart.test], return_counts=True)
    np.testing.assert_array_equal(test_sizes, [60, 52, 9, 26])
    np.testing.assert_array_equal(heart.test[:2], [4, 9])


@pytest.mark.parametrize("name", DATASETS)
def test_loads_in_under_a_second_with_attribution(name):
    start = time.perf_counter()
    dataset = load(name)
    assert time.perf_counter() - start < 1
    assert dataset.name == name
    assert "CC BY 4.0" in dataset.attribution
    assert not dataset.X.flags.writeable


def test_options_reach_the_loader():
    assert load("adult", constant_column=True).feature_names[-1] == "constant"


def test_unknown_names_are_refused():
    with pytest.raises(InputError, match=r"name: got 'adlut'; known data sets are adult, heart \(did you mean 'adult'"):
        load("adlut")
    with pytest.raises(InputError, match=r"preprocessing: got 'paper'; .* \(did you mean 'papers'"):
        load_adult(preprocessing="paper")
