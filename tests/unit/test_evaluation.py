"""Noised metrics: right on average, as far off as they say, and paid for; exact ones for public records only."""

import math

import numpy as np
import pytest
from sklearn import config_context
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, roc_auc_score
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.svm import LinearSVC

from coterie import Privacy, PrivateLogisticRegression, PrivateScorer, Spending, evaluate
from coterie.data import NumberColumn, NumberLabel, Schema
from coterie.errors import InputError
from coterie.evaluation import TABLE_OF, calibrated, calibration_error, count, exact_result, records_moved, tables_moved
from coterie.network.channels import sum_channel
from coterie.privacy.mechanisms import ONE_NOISE
from coterie.privacy.noise import Seeded
from coterie.rundir import FittedModel
from coterie.spending import BudgetError, Terms

RNG = np.random.default_rng(5)
X = RNG.normal(size=(4000, 3))
SCORE = X @ [2.0, -1.0, 0.5] + RNG.normal(size=4000)
Y = np.where(SCORE > 0.7, "ill", "well")
MANY = np.digitize(SCORE, [-1.0, 1.0])
PARTIES = RNG.integers(0, 4, size=4000)
BUDGET = {"epsilon": 1.0, "delta": 1e-6, "adjacency": "replace-one"}


@pytest.fixture(scope="module")
def model():
    return LogisticRegression().fit(X[:500], Y[:500])


@pytest.fixture(scope="module")
def many():
    return LogisticRegression().fit(X[:500], MANY[:500])


def test_public_records_give_exact_metrics_for_nothing(model):
    found = evaluate(model, X, Y, public=True)
    assert found["accuracy"].value == accuracy_score(Y, model.predict(X))
    truth, predicted = np.array(Y), model.predict(X)
    errors = [np.mean(predicted[truth == label] != label) for label in model.classes_]
    np.testing.assert_allclose(found["class-error"].value, errors)
    # only ties within a bin of the grid are lost
    exact = roc_auc_score(Y == "well", model.predict_proba(X)[:, 1])
    assert found["auc"].value == pytest.approx(exact, abs=2e-3)
    assert np.abs(found["calibration"].value).max() < 0.12
    assert (found.epsilon, found.delta, found.public) == (0.0, 0.0, True)
    assert (found.total_epsilon, found.total_delta) == (0.0, 0.0)
    assert found["accuracy"].standard_error == 0


@pytest.mark.parametrize(
    "trust", [{"trust": "none"}, {"trust": "curator"}, {"trust": "secure-sum"}, {"trust": "pairs", "colluders": 1}]
)
def test_errors_are_as_large_as_stated(model, trust):
    """100 seeded repeats: the standardised errors have mean square 1. Under a normal law the mean of 100 squares is
    within 1 +- 0.6 with probability over 1 - 1e-4, and errors stated half or double would give 4 or 1/4."""
    exact = evaluate(model, X, Y, public=True)
    noised = [evaluate(model, X, Y, **BUDGET, parties=PARTIES, **trust, noise=Seeded(s)) for s in range(100)]
    for name in ("accuracy", "auc"):
        gaps = [(found[name].value - exact[name].value) / found[name].standard_error for found in noised]
        assert np.mean(np.square(gaps)) == pytest.approx(1.0, abs=0.6)
    for k in range(2):
        gaps = [
            (found["class-error"].value[k] - exact["class-error"].value[k]) / found["class-error"].standard_error[k]
            for found in noised
        ]
        assert np.mean(np.square(gaps)) == pytest.approx(1.0, abs=0.6)


def test_more_parties_that_noise_for_themselves_make_larger_errors(model):
    alone = evaluate(model, X, Y, **BUDGET, parties=PARTIES, trust="curator")["accuracy"].standard_error
    apart = evaluate(model, X, Y, **BUDGET, parties=PARTIES, trust="none")["accuracy"].standard_error
    # four noises
    assert apart == pytest.approx(2 * alone, rel=0.1)


@pytest.mark.parametrize(("adjacency", "moved"), [("replace-one", math.sqrt(2)), ("zero-out", 1.0)])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_one_record_moves_tables_as_far_as_is_paid_for(model, many, adjacency, moved, n_classes):
    classifier, labels = (model, Y) if n_classes == 2 else (many, MANY)
    cells = 1 if n_classes == 2 else 3
    one = count(classifier, X, labels, {"answers", "scores"}, 20)
    if adjacency == "replace-one":
        neighbour = X.copy()
        neighbour[0] = -X[0] * 3
        other = count(classifier, neighbour, labels, {"answers", "scores"}, 20)
    else:
        other = count(classifier, X[1:], labels[1:], {"answers", "scores"}, 20)
    releases = calibrated(one, 1.0, 1e-6, adjacency, 1, ONE_NOISE)
    for name, largest in (("answers", moved), ("scores", moved * math.sqrt(cells))):
        assert np.linalg.norm(one[name].table() - other[name].table()) <= largest + 1e-12
        assert releases[name].event.ratio * releases[name].scales.noise_std == pytest.approx(largest, rel=1e-5)
        assert releases[name].event.ratio * releases[name].scales.noise_std > largest
    # an equal share each
    assert releases["answers"].event.ratio == pytest.approx(releases["scores"].event.ratio, rel=1e-5)


@pytest.mark.parametrize("trust", ["none", "curator", "secure-sum"])
def test_no_draw_of_noise_is_used_twice(model, trust):
    """Two tables of the same records under one noise would tell their exact difference."""

    class Noted:
        reproducible = True

        def draw(self, law, d, *, repeat, party, t, purpose="release"):
            asked.append((repeat, party, t, purpose))
            return Seeded(0).draw(law, d, repeat=repeat, party=party, t=t, purpose=purpose)

    asked = []
    evaluate(model, X, Y, **BUDGET, parties=PARTIES, trust=trust, noise=Noted())
    assert len(asked) == 2 * (1 if trust == "curator" else 4)
    assert len(set(asked)) == len(asked)


def test_tables_of_any_width_share_no_word_of_a_seed(monkeypatch):
    """With many classes and few bins `answers` is the wider table: streams that are numbered by the width of a draw
    would meet."""

    class Guesses:
        classes_ = np.arange(9)

        def predict(self, rows):
            return rows[:, 0].astype(int)

        def predict_proba(self, rows):
            return np.full((len(rows), 9), 1 / 9)

    taken, words_of = [], Seeded._words

    def noted(self, *asked):
        words = words_of(self, *asked)
        taken.extend(words.ravel().tolist())
        return words

    monkeypatch.setattr(Seeded, "_words", noted)
    labels = np.arange(45) % 9
    parties = np.arange(45) % 3
    evaluate(Guesses(), labels[:, None], labels, **BUDGET, parties=parties, bins=2, noise=Seeded(0))
    assert len(taken) == 3 * (81 + 36)
    assert len(set(taken)) == len(taken)


def test_all_tables_together_keep_the_budget(model):
    found = evaluate(model, X, Y, **BUDGET)
    assert 0.999 < found.epsilon <= 1.0
    assert found["accuracy"].epsilon == found["class-error"].epsilon < found.epsilon
    one = evaluate(model, X, Y, **BUDGET, metrics="accuracy")
    assert one["accuracy"].epsilon == one.epsilon
    assert set(one.metrics) == {"accuracy"}


def test_several_records_of_one_person_need_more_noise(model):
    few, more = (
        evaluate(model, X, Y, **BUDGET, records_per_person=m, metrics="accuracy")["accuracy"].standard_error
        for m in (1, 3)
    )
    assert more == pytest.approx(3 * few, rel=0.1)


def test_three_classes(many):
    exact, noised = evaluate(many, X, MANY, public=True), evaluate(many, X, MANY, **BUDGET, noise=Seeded(0))
    for name in TABLE_OF:
        gap = np.abs(np.asarray(noised[name].value) - exact[name].value)
        assert (gap <= 5 * np.asarray(noised[name].standard_error) + 1e-12).all()
    assert noised["class-error"].value.shape == (3,)
    exact_auc = roc_auc_score(MANY, many.predict_proba(X), multi_class="ovr")
    assert exact["auc"].value == pytest.approx(exact_auc, abs=3e-3)


def test_a_model_without_probabilities_has_an_auc_but_no_calibration():
    machine = LinearSVC().fit(X[:500], Y[:500])
    found = evaluate(machine, X, Y, public=True, metrics=("auc",))
    assert found["auc"].value == pytest.approx(roc_auc_score(Y == "well", machine.decision_function(X)), abs=3e-3)
    with pytest.raises(InputError, match="no predict_proba"):
        evaluate(machine, X, Y, public=True)


def test_a_class_without_records_has_no_error_and_does_not_lower_the_auc(model, many):
    """As numbers they were 100 % and 0."""
    of_one = np.flatnonzero(model.classes_[1] == Y)
    alone = evaluate(model, X[of_one], Y[of_one], public=True)
    assert math.isnan(alone["auc"].value)
    assert np.isnan(alone["class-error"].value).tolist() == [True, False]
    text = str(alone)
    assert "all of one class" in text
    assert f"error where {model.classes_[0]} no records" in " ".join(text.split())

    two = MANY < 2
    found = evaluate(many, X[two], MANY[two], public=True)
    assert np.isnan(found["class-error"].value).tolist() == [False, False, True]
    by_class = many.predict_proba(X[two])
    of_those = [roc_auc_score(MANY[two] == k, by_class[:, k]) for k in range(2)]
    assert found["auc"].value == pytest.approx(np.mean(of_those), abs=3e-3)


def test_numbers_that_are_all_alike_have_no_r2():
    """It was a number of three hundred digits."""
    schema = Schema((NumberColumn("x", 0, 1),), NumberLabel("y", 0, 10))
    flat = FittedModel(schema, None, 1.0, np.ones((1, 1)), np.zeros(1))
    rows = np.linspace(0, 1, 5)[:, None]
    assert exact_result(flat, rows, np.full(5, 0.1)).keys() == {"records", "rmse", "mean_rmse"}
    assert exact_result(flat, rows, rows[:, 0])["r2"] == pytest.approx(1)


def test_bins_without_records_are_not_drawn(model):
    plt = pytest.importorskip("matplotlib.pyplot")
    found = evaluate(model, X[:3], Y[:3], public=True)
    ax = found.plot()
    try:
        drawn = ax.get_lines()[0].get_xdata()
        assert 1 <= len(drawn) <= 3
        assert np.isfinite(ax.get_lines()[0].get_ydata()).all()
    finally:
        plt.close(ax.figure)


def test_two_evaluations_differ_and_both_are_charged(model):
    ledger = Spending(limit=(2.0, 1e-3))
    first, second = (evaluate(model, X, Y, **BUDGET, ledger=ledger) for _ in range(2))
    assert first["accuracy"].value != second["accuracy"].value
    assert not first.reproducible
    assert second.total_epsilon == pytest.approx(2.0, rel=1e-3)
    with pytest.raises(BudgetError, match="nothing was run"):
        evaluate(model, X, Y, **BUDGET, ledger=ledger)


def test_what_a_ledger_held_before_stands_below_the_table(model):
    ledger = Spending(limit=(2.5, 1e-3))
    first, second = (str(evaluate(model, X, Y, **BUDGET, ledger=ledger)) for _ in range(2))
    assert "ledger" not in first
    assert second.splitlines()[-1].endswith("replace-one; ε = 2 at δ = 2e-06 with everything in the ledger")


def test_a_number_that_drowned_in_noise_is_not_shown(model):
    """Forty records at a small epsilon: an AUC of 0 or 1 would stand there, by chance."""
    noised = evaluate(model, X[:40], Y[:40], epsilon=0.01, delta=1e-6, adjacency="replace-one", noise=Seeded(0))
    rows = {line.split("  ")[0]: line for line in str(noised).splitlines()}
    assert noised["auc"].standard_error > 0.5
    assert "lost in noise  ± over 1.000" in rows["AUC"]
    assert "0.000" not in rows["AUC"]
    assert f"{noised['auc'].value:.3f}  ±" not in rows["AUC"]
    exact = str(evaluate(model, X[:40], Y[:40], public=True))
    assert "lost" not in exact


def test_seeded_noise_spends_everything(model):
    ledger = Spending()
    found = evaluate(model, X, Y, **BUDGET, ledger=ledger, noise=Seeded(0))
    assert found.reproducible
    assert ledger.total[0] == math.inf


def test_a_search_pays_for_its_fits_and_its_scores():
    ledger = Spending()
    budget = {**BUDGET, "epsilon": 0.5}
    fit = PrivateLogisticRegression(privacy=Privacy(**budget, ledger=ledger), classes=["ill", "well"])
    search = GridSearchCV(fit, {"l2": [1.0]}, cv=KFold(2), scoring=PrivateScorer(**budget, ledger=ledger))
    search.fit(X[:400], Y[:400])
    assert [what.split(":")[0].split(" ")[0] for what, _, _ in ledger.charges].count("evaluation") == 2
    assert search.best_estimator_.certificate_.total_epsilon == pytest.approx(5 * 0.5, rel=1e-3)


@pytest.mark.parametrize(
    ("terms", "trust", "moved"),
    [
        (Terms("replace-one", "record"), "none", 1),
        (Terms("replace-one", "record", 3), "curator", 3),
        (Terms("replace-one", "record", 2, True), "none", 4),
        (Terms("replace-one", "record", 2, True), "secure-sum", 8),
        (Terms("replace-one", "party"), "none", 70),
    ],
)
def test_a_unit_of_privacy_counts_as_often_as_it_can(terms, trust, moved):
    """Two records at each of four parties: eight in a sum; in four tables of their own, 2 sqrt(4) in one of them."""
    assert records_moved(terms, [10, 70, 30, 40], sum_channel(trust, None)) == pytest.approx(moved)


@pytest.mark.parametrize(("trust", "norm"), [("none", math.sqrt), ("curator", float)])
def test_tables_of_parties_that_move_together_are_each_put_on_the_grid_for_its_price(model, trust, norm):
    """Somebody has a record at each of ten parties, and counts are such that every table is rounded up."""
    n, channel = 10, sum_channel(trust, None)
    terms = Terms("replace-one", "record", 1, True)
    cells = {"answers": count(model, X, Y, {"answers"}, 20)["answers"]}
    moved = records_moved(terms, [9] * n, channel), ONE_NOISE, tables_moved(terms, n, channel)
    grants = [calibrated(cells, epsilon, 1e-6, "replace-one", *moved)["answers"] for epsilon in np.linspace(1, 2, 20)]
    ratios = []
    for grant in grants:
        counts = np.arange(2000.0)
        steps = (np.rint((counts + 1) / grant.grid) - np.rint(counts / grant.grid)).max()
        ratios.append(norm(n) * math.sqrt(2) * steps * grant.grid / grant.scales.noise_std / grant.event.ratio)
    assert 1 - 1e-5 < max(ratios) <= 1


def test_a_ledger_of_whole_parties_takes_no_losses_of_records(model):
    ledger = Spending()
    evaluate(model, X, Y, **BUDGET, parties=PARTIES, unit="party", ledger=ledger)
    with pytest.raises(InputError, match="do not add up"):
        evaluate(model, X, Y, **BUDGET, parties=PARTIES, ledger=ledger)


def test_numbers_that_are_not_private_say_so(model):
    assert "NOT PRIVATE" in evaluate(model, X, Y, **BUDGET, noise=Seeded(0)).verdict[0]
    assert "public" in evaluate(model, X, Y, public=True).verdict[0]


def test_a_search_hands_parties_to_the_fit_and_to_the_score():
    ledger = Spending()
    fit = PrivateLogisticRegression(privacy=Privacy(**BUDGET, ledger=ledger), classes=["ill", "well"])
    scorer = PrivateScorer(**BUDGET, ledger=ledger, trust="curator")
    with config_context(enable_metadata_routing=True):
        fit.set_fit_request(parties=True, sample_weight=False)
        GridSearchCV(fit, {"l2": [1.0]}, cv=KFold(2), scoring=scorer).fit(X[:400], Y[:400], parties=PARTIES[:400])
    told = [what for what, _, _ in ledger.charges]
    assert sum(f"{len(set(PARTIES[:400]))} parties" in what for what in told) == 3


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "all three are needed, or public=True"),
        ({"epsilon": 1.0, "delta": 1e-6}, "all three are needed"),
        ({"epsilon": 1.0, "adjacency": "replace-one"}, "all three are needed"),
        ({"delta": 1e-6, "adjacency": "replace-one"}, "all three are needed"),
        ({**BUDGET, "public": True}, "public records cost nothing"),
        ({**BUDGET, "metrics": ("accuracy", "f1")}, "metrics: got 'f1'"),
        ({**BUDGET, "metrics": ()}, "metrics: got none"),
        ({**BUDGET, "trust": "all"}, "trust: got 'all'"),
        ({**BUDGET, "bins": 1}, "bins: got 1"),
        ({**BUDGET, "unit": "hospital"}, "unit: got 'hospital'"),
        ({**BUDGET, "unit": "party", "records_per_person": 2}, "unit: got 'party'; records_per_person"),
        ({**BUDGET, "people_span_parties": True}, "parties: got None with people_span_parties"),
        ({**BUDGET, "epsilon": -1.0}, "epsilon: got -1"),
        ({**BUDGET, "parties": PARTIES[:10]}, "parties: got 10 values"),
    ],
)
def test_bad_settings_are_refused_in_one_sentence(model, settings, words):
    with pytest.raises(InputError, match=words):
        evaluate(model, X, Y, **settings)


def test_an_unknown_label_is_refused_by_its_row(model):
    with pytest.raises(InputError, match="y: row 3 has a label"):
        evaluate(model, X[:5], np.array(["ill", "ill", "well", "dead", "ill"]), public=True)


def test_a_bin_is_compared_with_its_middle():
    """Five bins of ten records; as often true as the middle of the bin says, but for the last, where none is."""
    true = np.array([1.0, 3.0, 5.0, 7.0, 0.0])
    assert calibration_error(np.array([[10 - true, true]])) == pytest.approx(0.9 / 5)
