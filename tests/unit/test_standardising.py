"""Sums of columns for standardising: what a record can move, what it costs, and what comes out."""

import dataclasses
import itertools
import json
import math
import pickle
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import coterie
from coterie import rules
from coterie.algorithms import StandardisedGradientDescent
from coterie.audit.replay import check_sensitivity
from coterie.certificate import make_certificate
from coterie.data.federation import Federation, make_design
from coterie.engines.in_process import run, run_many
from coterie.engines.rounds import numbers_in
from coterie.errors import InputError
from coterie.estimators import exact
from coterie.network.channels import Broadcast, Curator, PairwiseSum, SecureSum
from coterie.plan import Plan
from coterie.privacy import standardising
from coterie.privacy.events import Gaussian
from coterie.privacy.noise import Seeded
from coterie.privacy.standardising import COLUMN_SHARE, StandardisedGradient, joint_change, standardising_pays
from coterie.problems import L2, Huber, Logistic, Multinomial, Problem, Records
from coterie.promise import Privacy

CHANNELS = {
    "nobody": Broadcast(),
    "curator": Curator(),
    "secure-sum": SecureSum(),
    "pairs": PairwiseSum(colluders=1),
}
ALL_CHANNELS = pytest.mark.parametrize("channel", CHANNELS.values(), ids=CHANNELS)
ADJACENCIES = pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
# value of the constant column over the norm of the rest
SHARE = 0.5
DELTA = 1e-5


def federation(loss=None, *, parties=3, n=120, intercept=True, seed=0):
    """Columns of very different size and centre."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)) * [0.3, 0.02, 0.1] + [0.2, 0.1, 0.0]
    names, target = np.arange(n) % parties, X @ [1.0, 20.0, -3.0] + rng.normal(size=n) * 0.3
    if isinstance(loss, Huber):
        y = np.clip(target / 4, -1, 1)
        return Federation.from_arrays(X, y, parties=names, label_bound=1.0, intercept=intercept)
    k = 2 if loss is None else max(2, loss.n_outputs)
    y = np.searchsorted(np.quantile(target, np.linspace(0, 1, k + 1)[1:-1]), target)
    return Federation.from_arrays(X, y, parties=names, labels=tuple(range(k)), intercept=intercept)


def descent(channel, *, multiplier=1.0, column_std=5.0, share=SHARE, **more):
    mechanism = StandardisedGradient(noise_multiplier=multiplier, column_std=column_std, constant_share=share)
    more = {"step": 0.02, "regulariser": L2(1.0)} | more
    return StandardisedGradientDescent(mechanism=mechanism, channel=channel, **more)


def plan_of(algorithm, fed, *, loss=None, rounds=4, **more):
    problem = Problem(loss=loss or Logistic(), regulariser=algorithm.regulariser, record_weight=1.0)
    return Plan.make(
        algorithm, problem, "unrestricted", fed.facts, rounds=rounds, **{"adjacency": "replace-one"} | more
    )


def standardised_rows(fed, *, intercept=True):
    """The same in NumPy, from exact sums."""
    design = fed.pooled[0]
    if not intercept:
        spread = np.sqrt((design**2).mean(axis=0))
        rows = design / spread / math.sqrt(design.shape[1])
        return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1), np.zeros(3), spread
    features = design[:, :-1] * math.hypot(1, SHARE)
    centre, spread = features.mean(axis=0), features.std(axis=0)
    rows = (features - centre) / spread / math.sqrt(3)
    return make_design(rows, 1.0, intercept=True), centre, spread


# --- what a record can move -------------------------------------------------------------------------------------------


def contributions(plan, stage, rows):
    """Of single records, (record, ...)."""
    grant = plan.issued[0][plan.issued[1][stage, 0]]
    with jax.enable_x64(True):
        n, d = rows.shape
        records = Records(jnp.asarray(rows[:, None]), jnp.zeros((n, 1)), jnp.ones((n, 1)))
        zeros = jnp.zeros(d)

        def one(record):
            return grant.contribution(grant.problem, record, at=zeros, centre=zeros, scale=zeros).value

        return np.asarray(jax.vmap(one)(records))


@pytest.mark.parametrize("share", [0.0, SHARE], ids=["without constant", "with constant"])
def test_no_two_rows_are_farther_apart_than_what_is_declared_and_some_are_as_far(share):
    """2 and sqrt(2) under replace-one, 1 and 1 under zero-out, in units of the bound on a row without its constant."""
    rng = np.random.default_rng(1)
    rows = np.concatenate([np.eye(4), -np.eye(4), rng.normal(size=(40, 4)), 5 * rng.normal(size=(10, 4))])
    fed = federation(intercept=share > 0)
    fed = (
        fed
        if share
        else Federation.from_arrays(np.zeros((6, 4)) + 0.1, np.arange(6) % 2, parties=np.arange(6) % 3, labels=(0, 1))
    )
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1)
    rows[:, -1] *= share == 0
    plan = plan_of(descent(Curator(), share=share), fed)
    for stage, far in enumerate((2.0, math.sqrt(2))):
        parts = contributions(plan, stage, rows)
        apart = max(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(parts, 2))
        alone = max(map(np.linalg.norm, parts))
        assert apart == pytest.approx(far)
        assert alone == pytest.approx(1.0)
        for adjacency, reached in (("replace-one", apart), ("zero-out", alone)):
            other = dataclasses.replace(plan, adjacency=adjacency)
            event = other.issued[0][other.issued[1][stage, 0]].event
            assert event.ratio * 5.0 == pytest.approx(reached, rel=1e-5)
    assert joint_change(True) == pytest.approx(math.sqrt(6))
    assert joint_change(False) == pytest.approx(math.sqrt(2))


@pytest.mark.parametrize("share", [0.1, 3.0])
def test_gradients_of_long_rows_are_as_long_as_they_are_clipped_to_whatever_the_constant(share):
    """Nothing longer, which would cost more than is stated, and nothing shorter, which would only cost accuracy."""
    algorithm = descent(Curator(), share=share)
    algorithm = dataclasses.replace(algorithm, mechanism=dataclasses.replace(algorithm.mechanism, clip=0.05))
    plan = plan_of(algorithm, federation())
    design = make_design(np.random.default_rng(2).normal(size=(20, 3)), 1.0, intercept=True)
    design[:, -1] = share / math.hypot(1, share)
    with jax.enable_x64(True):
        grant = plan.issued[0][plan.issued[1][2, 0]]
        for row in design:
            record = Records(jnp.asarray(row[None]), jnp.zeros(1), jnp.ones(1))
            one = grant.contribution(
                grant.problem, record, at=jnp.zeros(4), centre=jnp.zeros(4), scale=jnp.full(4, 100.0)
            ).value
            assert float(jnp.linalg.norm(one)) == pytest.approx(0.05)


@ADJACENCIES
@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize("unit", ["record", "party"])
def test_no_neighbour_exceeds_what_is_declared_in_any_round(stage, unit, adjacency):
    fed = federation(n=12)
    plan = plan_of(descent(Curator(), share=0.0), fed, adjacency=adjacency, unit=unit)
    report = check_sensitivity(plan, t=stage, n_random=300, n_generations=6)
    assert report.passed, report
    assert report.ratio > (0.85 if unit == "record" else 0.3), report


@ADJACENCIES
@pytest.mark.parametrize("stage", [0, 1])
def test_a_smaller_sensitivity_of_sums_or_squares_is_caught(stage, adjacency, monkeypatch):
    """As it would be if both together were priced by 2 alone, or by the sums."""
    honest = standardising._changes

    def smaller(replaced):
        return tuple(change * (0.8 if place == stage else 1) for place, change in enumerate(honest(replaced)))

    monkeypatch.setattr(standardising, "_changes", smaller)
    plan = plan_of(descent(Curator(), share=0.0), federation(n=12), adjacency=adjacency)
    report = check_sensitivity(plan, t=stage, n_random=300, n_generations=6)
    assert not report.passed
    assert report.ratio > 1.05


def test_records_without_weight_count_for_nothing():
    """So that a record that is zeroed out is gone from the sums of columns as well."""
    fed = federation()
    plan = plan_of(descent(Curator(), multiplier=1e-9, column_std=1e-9), fed, rounds=2)
    weights = [np.where(np.arange(40) < 7, 0.0, 0.3) for _ in range(3)]
    shards = tuple(dataclasses.replace(shard, weight=w) for shard, w in zip(fed.shards, weights, strict=True))
    sums, squares = run(plan, Federation(fed.facts, shards), noise=Seeded(0)).releases[0, :, 0]
    features = np.concatenate([shard.X[7:, :3] for shard in fed.shards]) * math.hypot(1, SHARE)
    np.testing.assert_allclose(sums[:3], features.sum(axis=0), atol=1e-6)
    np.testing.assert_allclose(squares[:3], (features**2).sum(axis=0), atol=1e-6)
    assert abs(sums[3]) < 1e-6


# --- what comes out ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("intercept", [True, False], ids=["centred", "scaled"])
@pytest.mark.parametrize("loss", [Logistic(), Multinomial(3), Huber(0.5)], ids=lambda loss: type(loss).__name__)
@ALL_CHANNELS
def test_without_noise_the_optimum_on_standardised_rows_is_reached(channel, loss, intercept):
    fed = federation(loss, intercept=intercept)
    algorithm = descent(
        channel, multiplier=1e-9, column_std=1e-9, share=SHARE * intercept, momentum=0.8, averaging="last"
    )
    plan = plan_of(algorithm, fed, loss=loss, rounds=402)
    transcript = run(plan, fed, noise=Seeded(0))
    rows, centre, spread = standardised_rows(fed, intercept=intercept)
    _, y, _ = fed.pooled
    about = {"labels": fed.facts.labels} if fed.facts.labels else {"label_bound": 1.0}
    again = Federation.from_arrays(rows, np.asarray(fed.facts.labels)[y.astype(int)] if fed.facts.labels else y,
                                   parties=None, **about)  # fmt: skip
    best = exact.minimiser(plan.problem, again).reshape(rows.shape[1], -1)
    # scores of all records: by coefficients of standardised rows, and by the model on rows that were clipped
    scores = fed.pooled[0][:, :3] * (math.hypot(1, SHARE) if intercept else 1)
    clipping = transcript.clipping
    np.testing.assert_allclose(clipping.centre, centre, atol=1e-6)
    np.testing.assert_allclose(clipping.scale, 1 / spread / math.sqrt(3), rtol=1e-5)
    clipped = make_design(clipping(scores, 1.0), 1.0, intercept=intercept)
    model = transcript.models[0].reshape(rows.shape[1], -1)
    np.testing.assert_allclose(clipped @ model, rows @ best, atol=2e-4)


@ALL_CHANNELS
def test_sums_of_columns_carry_the_noise_that_is_planned(channel):
    """400 repeats of 4 numbers in 2 rounds: right with a chance of 1 - 1e-6; a tenth more or less is refused."""
    fed = federation()
    plan = plan_of(descent(channel, column_std=3.0), fed, rounds=2)
    released = run(plan, fed, noise=Seeded(3), repeats=400).releases.sum(axis=2)
    features = fed.pooled[0][:, :3] * math.hypot(1, SHARE)
    truth = np.zeros((2, 4))
    truth[:, :3] = features.sum(axis=0), (features**2).sum(axis=0)
    total = channel.noise(3).total if channel.aggregates else math.sqrt(3)
    noise = (released - truth).ravel() / (3.0 * total)
    assert stats.kstest(noise, "norm").pvalue > 1e-6
    assert abs(noise.std() - 1) < 4.9 / math.sqrt(2 * len(noise)) < 0.1


def test_columns_that_noise_hides_are_not_blown_up():
    """A column's variance counts as at least the noise of its mean square, so no scale exceeds what that allows."""
    fed = federation()
    plan = plan_of(descent(Curator(), column_std=30.0), fed, rounds=3)
    clipping = run(plan, fed, noise=Seeded(5)).clipping
    assert np.isfinite(clipping.scale).all()
    assert clipping.scale.max() <= 1 / math.sqrt(30.0 / 120) + 1e-9


def test_plans_run_side_by_side_as_they_run_alone():
    fed = federation()
    plans = [plan_of(descent(Broadcast(), column_std=std, momentum=m), fed) for std, m in ((3.0, 0.5), (6.0, 0.9))]
    for plan, together in zip(plans, run_many(plans, fed, noise=Seeded(6)), strict=True):
        np.testing.assert_allclose(together.models, run(plan, fed, noise=Seeded(6)).models, rtol=1e-9)


def test_other_noise_and_other_steps_are_no_other_program():
    plan = plan_of(descent(Curator(), momentum=0.5), federation())
    assert set(numbers_in(plan).arguments) == {"step", "momentum", "mechanism.column_std"}


def test_a_saved_transcript_leads_to_the_same_model(tmp_path):
    fed = federation()
    transcript = run(plan_of(descent(Curator()), fed), fed, noise=Seeded(1))
    again = coterie.Transcript.load(transcript.save(tmp_path / "t.npz"))
    np.testing.assert_array_equal(again.models, transcript.models)
    np.testing.assert_array_equal(again.clipping.scale, transcript.clipping.scale)


# --- what it costs ----------------------------------------------------------------------------------------------------


def planned(fed, trust="curator", adjacency="replace-one", unit="record", **more):
    privacy = Privacy(
        epsilon=1.0, delta=DELTA, adjacency=adjacency, trust=trust, unit=unit, colluders=1 if trust == "pairs" else None
    )
    problem = Problem(loss=Logistic(), regulariser=L2(1.0), record_weight=1.0)
    settled = rules.Settled(standardise=True, intercept=True, **more)
    return rules.make_plan(problem, fed.facts, privacy, settled)


@pytest.mark.parametrize("unit", ["record", "party"])
@ADJACENCIES
@pytest.mark.parametrize("trust", ["none", "pairs", "curator", "secure-sum"])
def test_sums_of_columns_take_their_share_of_the_budget_and_no_more(trust, adjacency, unit):
    plan = planned(federation(), trust, adjacency, unit)
    assert plan.epsilon(DELTA) == pytest.approx(1.0, rel=1e-6)
    assert plan.epsilon(DELTA) <= 1.0
    ledger = plan.ledger(0)
    assert [count for _, count in ledger] == [1, 1, plan.n_rounds - 2]
    assert all(isinstance(event, Gaussian) for event, _ in ledger)
    squares = [count * event.ratio**2 for event, count in ledger]
    assert sum(squares[:2]) / sum(squares) == pytest.approx(COLUMN_SHARE, rel=1e-3)
    # a run that stops before the gradients has paid for sums of columns
    assert plan.ledger(0, n_rounds=2) == ledger[:2]


def test_forgetting_the_share_of_columns_would_be_seen():
    plan = planned(federation())
    gradients = dataclasses.replace(plan, n_rounds=2)
    assert gradients.epsilon(DELTA) > 0.3
    louder = plan.algorithm.mechanism.changed(column_std=plan.algorithm.mechanism.column_std / 2)
    cheaper = dataclasses.replace(plan, algorithm=dataclasses.replace(plan.algorithm, mechanism=louder))
    assert cheaper.epsilon(DELTA) > plan.epsilon(DELTA) * 1.2


def test_a_person_at_every_party_pays_for_all_sums():
    plan = planned(federation())
    assert dataclasses.replace(plan, people_span_parties=True).epsilon(DELTA) > 2 * plan.epsilon(DELTA)


def test_the_certificate_recomputes_and_the_plan_survives_json():
    plan = planned(federation())
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert again.digest == plan.digest
    make_certificate(plan, DELTA, reproducible=False).verify()


def test_facts_are_filled_in_and_others_are_refused():
    fed = federation()
    plan = plan_of(descent(Curator()), fed)
    assert (plan.algorithm.n_records, plan.algorithm.n_columns, plan.algorithm.n_scaled) == (120, 4, 3)
    forged = json.loads(plan.to_json())
    forged["algorithm"]["n_records"] = 12
    with pytest.raises(InputError, match="n_records: got 12; the data have 120"):
        Plan.from_json(json.dumps(forged))


@pytest.mark.parametrize(
    ("noise_std", "n_columns", "n_records", "pays"),
    [(2.0, 100, 30_000, True), (2.0, 15, 200, True), (30.0, 15, 200, False), (100.0, 1000, 1000, False)],
)
def test_standardising_is_worth_it_where_noise_is_small_against_what_columns_say(noise_std, n_columns, n_records, pays):
    assert standardising_pays(noise_std, n_columns, n_records) is pays


# --- as people use it -------------------------------------------------------------------------------------------------


def table(n=4000, seed=0):
    """The column that tells is small beside the others."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([0.5 + 0.1 * rng.normal(size=n), 0.3 * rng.normal(size=n), 0.004 * rng.normal(size=n)])
    return X, (X[:, 2] + 0.001 * rng.normal(size=n) > 0).astype(int)


def model(**changes):
    settings = {"epsilon": 2.0, "delta": DELTA, "adjacency": "replace-one", "classes": [0, 1], "random_state": 0}
    return coterie.PrivateLogisticRegression(**{**settings, "standardise": "private"} | changes)


@pytest.mark.parametrize("trust", ["none", "curator"])
def test_a_small_column_that_tells_everything_is_found(trust):
    X, y = table()
    parties = np.arange(len(y)) % 3
    fitted = model(trust=trust).fit(X, y, parties=parties)
    plain = model(trust=trust, standardise="none").fit(X, y, parties=parties)
    test, labels = table(seed=1)
    assert fitted.score(test, labels) > 0.8
    assert plain.score(test, labels) < 0.75
    assert fitted.privacy_.epsilon == pytest.approx(2.0, rel=1e-6)
    assert "standardised-gradient-descent" in str(fitted.certificate_)


def test_predictions_are_those_of_the_plain_pipeline_and_of_a_copy():
    X, y = table(400)
    fitted = model().fit(X, y)
    test = 3 * table(50, seed=2)[0]
    scores = fitted.decision_function(test)
    np.testing.assert_allclose(fitted.to_sklearn().decision_function(test), scores)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).decision_function(test), scores)
    np.testing.assert_allclose(fitted.design(test) @ fitted.coefficients_, scores)
    assert model(standardise="none").fit(X, y).clipping_ is None


def test_rows_of_a_design_are_clipped_as_the_rows_they_come_from():
    X, y = table(300)
    fitted = model().fit(X, y)
    rows = make_design(5 * X, 1.0, intercept=True)
    np.testing.assert_allclose(fitted.clipping_.of_design(rows, 1.0), fitted.design(5 * X), atol=1e-12)


@pytest.mark.parametrize(("epsilon", "warned"), [(0.01, True), (2.0, False)])
def test_whoever_standardises_under_too_much_noise_is_told(epsilon, warned):
    X, y = table(1000)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model(epsilon=epsilon).fit(X, y)
    assert any("standardising is expected to hurt" in str(one.message) for one in told) is warned


def test_regression_and_several_classes():
    X, y = table(600)
    numbers = coterie.PrivateRidge(
        epsilon=2.0, delta=DELTA, adjacency="replace-one", label_bound=1.0, standardise="private", random_state=0
    )
    assert numbers.fit(X, y - 0.5).clipping_ is not None
    many = coterie.PrivateLogisticRegression(
        epsilon=2.0, delta=DELTA, adjacency="replace-one", classes=[0, 1, 2], standardise="private", random_state=0
    )
    assert many.fit(X, y + (X[:, 0] > 0.5)).coef_.shape == (3, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"standardise": "public"}, "standardise: got 'public'; 'private', 'none' or None is needed"),
        ({"standardise": True}, "standardise: got True; 'private', 'none' or None is needed"),
        ({"epsilon": math.inf}, "standardise: got 'private' with an infinite epsilon"),
        ({"algorithm": "recycled-admm"}, "standardise: got it with algorithm 'recycled-admm'"),
        ({"rounds": 2}, "rounds: got 2; 2 release sums of columns"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(changes, message):
    X, y = table(40)
    with pytest.raises(InputError, match=message):
        model(**changes).fit(X, y)


def test_inference_goes_on_from_the_standardised_model():
    X, y = table(2000)
    fitted = model(inference=True).fit(X, y)
    assert fitted.inference_ is not None
    assert fitted.privacy_.epsilon == pytest.approx(2.0, rel=1e-6)


@pytest.mark.parametrize("wrong", [{"column_std": 0.0}, {"column_std": math.inf}, {"constant_share": -1.0}])
def test_bad_numbers_are_refused(wrong):
    with pytest.raises(InputError, match=f"^{next(iter(wrong))}: got "):
        StandardisedGradient(**{"noise_multiplier": 1.0, "column_std": 1.0} | wrong)


def test_a_plan_of_very_many_rounds_looks_at_the_few_that_differ(monkeypatch):
    data, calls = federation(), []
    mechanism = StandardisedGradient(noise_multiplier=400.0, column_std=30.0, constant_share=SHARE)
    granted = StandardisedGradient.grant
    monkeypatch.setattr(
        StandardisedGradient, "grant", lambda self, t, *rest: calls.append(t) or granted(self, t, *rest)
    )
    algorithm = StandardisedGradientDescent(
        mechanism=mechanism, regulariser=L2(1.0), step=1e-3, channel=Curator(), averaging="linear"
    )
    problem = Problem(loss=Logistic(), regulariser=L2(1.0), record_weight=1.0)
    plan = Plan.make(algorithm, problem, "unrestricted", data.facts, rounds=100_000, adjacency="replace-one")
    assert calls == [0, 1, 2]
    ledger = dict(plan.ledger(0))
    assert sorted(ledger.values()) == [1, 1, 99_998]
    few = Plan.make(algorithm, problem, "unrestricted", data.facts, rounds=2, adjacency="replace-one")
    assert [event for event, _ in few.ledger(0)] == [event for event, count in plan.ledger(0) if count == 1]
