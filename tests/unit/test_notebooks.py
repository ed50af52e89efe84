"""What a notebook shows: names that can be completed, tables, and plots on axes."""

import dataclasses
import inspect
import math
import re

import matplotlib as mpl
import numpy as np
import pytest

import coterie
from coterie import data
from coterie.errors import InputError

mpl.use("agg")
import matplotlib.pyplot as plt


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(400, 3))
    y = (X[:, 0] + 0.1 * rng.normal(size=400) > 0).astype(int)
    spending = coterie.Spending(limit=(5.0, 1e-2))
    privacy = coterie.Privacy(epsilon=2.0, delta=1e-4, adjacency="replace-one", ledger=spending)
    return coterie.PrivateLogisticRegression(privacy=privacy, classes=[0, 1]).fit(X, y), X, y, spending


def test_every_name_is_listed():
    assert set(coterie.__all__) == set(coterie._HOME)
    assert set(coterie.__all__) <= set(dir(coterie))
    assert "__version__" in dir(coterie)
    for name in coterie.__all__:
        assert getattr(coterie, name) is not None


def public_callables():
    """Classes and functions of the package, with what else makes a public class."""
    named = {name: getattr(coterie, name) for name in coterie.__all__}
    columns = (data.NumberColumn, data.CategoryColumn, data.Label, data.NumberLabel)
    return {**named, **{cls.__name__: cls for cls in columns}, "from_arrays": coterie.Federation.from_arrays}


def undescribed(thing):
    """Parameters for which the docstring has no entry, `name: ...` or `one, other: ...`."""
    described = re.findall(r"^([a-zA-Z_]\w*(?:, \w+)*):", inspect.getdoc(thing) or "", re.MULTILINE)
    names = {name for entry in described for name in entry.split(", ")}
    return [name for name in inspect.signature(thing).parameters if name not in names]


@pytest.mark.parametrize("name", public_callables())
def test_every_parameter_is_described(name):
    assert undescribed(public_callables()[name]) == []


def test_a_parameter_that_is_only_mentioned_would_be_found():
    def described(one, other, third):
        """Adds `third`.

        one, other: numbers.
        """

    assert undescribed(described) == ["third"]


def test_a_certificate_prints_and_shows_itself(fitted):
    model, *_ = fitted
    assert str(model.certificate_).startswith("# Privacy certificate")
    assert "ε = 2" in model.certificate_._repr_html_()
    assert "<table" in model.transcript_.plan._repr_html_()


def test_what_a_fit_has_lost_shows_itself(fitted):
    model, *_ = fitted
    shown = model.privacy_._repr_html_()
    assert "0.0001" in shown
    assert "against everybody" in shown
    for party in model.privacy_.party_epsilons:
        assert f"a record of {party}" in shown
    many = dataclasses.replace(
        model.privacy_,
        verdict=("VOID <b>",),
        party_epsilons={f"p{i}": 1.0 for i in range(1000)},
        views={"everybody": math.inf},
    )
    assert "VOID &lt;b&gt;" in many._repr_html_()
    assert "∞" in many._repr_html_()
    assert "980 more" in many._repr_html_()


def test_names_in_tables_are_escaped():
    privacy = coterie.Privacy(epsilon=1.0, delta=1e-5, adjacency="replace-one", tuning="<script>")
    assert "&lt;script&gt;" in privacy._repr_html_()
    assert "zero-out" not in privacy._repr_html_()


def test_spending_and_evaluation(fitted):
    model, X, y, spending = fitted
    shown = spending._repr_html_()
    assert "limit" in shown
    assert "everything together" in shown
    assert len(spending.plot().lines) == 2
    found = coterie.evaluate(model, X, y, public=True)
    assert "NOT PRIVATE" in found._repr_html_()
    assert "AUC" in found._repr_html_()
    axes = found.plot()
    assert axes.get_title() == "Calibration"
    # over the middle of a bin, how often what was predicted there was true
    predicted = model.predict_proba(X)[:, 1]
    bins = np.minimum((predicted * 20).astype(int), 19)
    fullest = np.bincount(bins).argmax()
    true = np.mean(y[bins == fullest] == model.classes_[1])
    np.testing.assert_allclose(axes.lines[0].get_xydata()[fullest], [(fullest + 0.5) / 20, true])
    with pytest.raises(InputError, match="calibration is not among"):
        coterie.evaluate(model, X, y, public=True, metrics=("accuracy",)).plot()


def test_plots_of_a_fit(fitted):
    model, X, y, _ = fitted
    plan = model.transcript_.plan
    axes = plt.subplots()[1]
    assert plan.plot(1e-4, ax=axes) is axes
    assert plan.plot_network().get_title()
    assert len(model.plot_coefficients().patches) == 3
    public = coterie.Federation.from_arrays(X, y, parties=None, labels=(0, 1), intercept=True)
    drawn = model.transcript_.plot_loss(public).lines[0].get_ydata()
    assert len(drawn) == plan.n_rounds
    score = model.decision_function(X)
    expected = np.mean(np.logaddexp(0, -np.where(y == 1, 1, -1) * score))
    assert drawn[-1] == pytest.approx(expected, rel=1e-6)
    with pytest.raises(InputError, match="features"):
        model.transcript_.plot_loss(coterie.Federation.from_arrays(X, y, parties=None, labels=(0, 1)))
    with pytest.raises(InputError, match="ax: got a str"):
        plan.plot(1e-4, ax="here")
