"""What a run or a fit costs a ledger: everything, where no number bounds its loss."""

import dataclasses
import math

import numpy as np
import pytest

from coterie.certificate import make_certificate, price
from coterie.cli.spec import cluster, prepare, read_spec
from coterie.engines.checkpoint import Checkpoint
from coterie.errors import InputError
from coterie.estimators import PrivateLogisticRegression
from coterie.evaluation import evaluate
from coterie.privacy.noise import Seeded
from coterie.promise import Privacy
from coterie.spending import BudgetError, Spending, Terms

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 3))
Y = (X[:, 0] > 0).astype(int)
HOSPITALS = np.repeat(["north", "south", "west"], 40)


def logistic(**options):
    words = {field.name for field in dataclasses.fields(Privacy)}
    usual = {"epsilon": 1.0, "delta": 1e-5, "adjacency": "replace-one", "trust": "curator"}
    privacy = Privacy(**{**usual, **{name: value for name, value in options.items() if name in words}})
    others = {name: value for name, value in options.items() if name not in words}
    return PrivateLogisticRegression(privacy=privacy, **{"classes": (0, 1), "rounds": 2, **others})


VOID = [{"classes": None}, {"data_derived": ["scaler"]}]


@pytest.mark.parametrize("options", VOID, ids=["labels read off", "a fitted scaler"])
def test_a_void_fit_spends_everything_and_later_certificates_say_so(options):
    ledger = Spending()
    void = logistic(ledger=ledger, **options).fit(X, Y, parties=HOSPITALS)
    assert ledger.total[0] == math.inf
    assert "read off the data" in ledger.charges[0][0]
    assert void.privacy_.total_epsilon == math.inf
    clean = logistic(ledger=ledger).fit(X, Y, parties=HOSPITALS)
    assert any("NOT PRIVATE" in warning for warning in clean.certificate_.verdict)
    assert clean.privacy_.total_epsilon == math.inf
    assert "read off the data" in clean.certificate_.to_markdown()


def test_a_void_fit_does_not_fit_into_any_limit():
    ledger = Spending(limit=(100.0, 1e-3))
    with pytest.raises(BudgetError):
        logistic(ledger=ledger, data_derived=["scaler"]).fit(X, Y, parties=HOSPITALS)
    assert ledger.charges == ()


def test_the_total_of_a_seeded_fit_is_what_its_ledger_says():
    ledger = Spending()
    model = logistic(ledger=ledger, random_state=0).fit(X, Y, parties=HOSPITALS)
    assert model.privacy_.total_epsilon == ledger.total[0] == math.inf
    alone = logistic(random_state=0).fit(X, Y, parties=HOSPITALS)
    assert alone.privacy_.total_epsilon == math.inf


def test_the_total_of_a_seeded_evaluation_is_infinite():
    model = logistic().fit(X, Y, parties=HOSPITALS)
    options = {"epsilon": 1.0, "delta": 1e-6, "adjacency": "replace-one"}
    assert evaluate(model, X, Y, noise=Seeded(0), **options).total_epsilon == math.inf
    assert math.isfinite(evaluate(model, X, Y, **options).total_epsilon)


def test_hospitals_and_pairs_of_records_are_no_common_unit():
    ledger = Spending()
    whole = {"unit": "party", "ledger": ledger, "adjacency": "zero-out"}
    model = logistic(**whole).fit(X, Y, parties=HOSPITALS)
    with pytest.raises(InputError, match="do not add up"):
        logistic(**whole).fit(X, Y, parties=np.arange(120) // 2)
    assert len(ledger.charges) == 1
    logistic(**whole).fit(X, Y, parties=HOSPITALS)
    held_out = {"epsilon": 1.0, "delta": 1e-6, "adjacency": "zero-out", "unit": "party", "ledger": ledger}
    evaluate(model, X[::4], Y[::4], parties=HOSPITALS[::4], **held_out)
    with pytest.raises(InputError, match="do not add up"):
        evaluate(model, X[::4], Y[::4], parties=np.arange(30), **held_out)
    assert len(ledger.charges) == 3


def test_a_price_names_every_reason():
    plan = logistic().fit(X, Y, parties=HOSPITALS).certificate_.plan
    assert price(plan, 1e-5, reproducible=False) == (plan.epsilon(1e-5), "")
    assert price(plan, 1e-5, reproducible=True) == (math.inf, "seeded")
    assert make_certificate(plan, 1e-5, reproducible=False).total_epsilon == plan.epsilon(1e-5)


def test_terms_of_records_know_no_parties():
    assert Terms.of("replace-one", "record", ["a"], [3]) == Terms("replace-one", "record")


# --- a run that is killed around its charge, and started again --------------------------------------------------------

CHECKPOINTED = """\
[data]
dataset = "heart"
[privacy]
epsilon = 2.0
delta = 1e-5
adjacency = "replace-one"
ledger = "spent.json"
[algorithm]
rounds = 2
[engine]
name = "mpi"
checkpoint = "state"
"""


class Killed(BaseException):
    pass


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    class Alone:
        rank, size = 0, 1

    monkeypatch.setattr(cluster.mpi, "world", Alone)
    (tmp_path / "spec.toml").write_text(CHECKPOINTED)
    return prepare(read_spec(tmp_path / "spec.toml"))


@pytest.mark.parametrize("step", ["begin", "_write_run", "charge", "settle"])
@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
def test_whenever_a_run_with_a_checkpoint_is_killed_it_is_charged_once(prepared, tmp_path, monkeypatch, step, done):
    ledger = Spending.create(tmp_path / "spent.json")
    ledger.charge("before", 1.0, 1e-6, terms=prepared.spec.privacy.terms(("a", "b"), (1, 2)))
    place, real = (cluster, cluster.charge) if step == "charge" else (Checkpoint, getattr(Checkpoint, step))

    def killed(*args, **options):
        if done:
            real(*args, **options)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(place, step, killed)
        with pytest.raises(Killed):
            cluster.charge_once(prepared, ledger)
    again = Spending(path=tmp_path / "spent.json")
    assert cluster.charge_once(prepared, again) == (("before", 1.0, 1e-6),)
    assert cluster.charge_once(prepared, again) == (("before", 1.0, 1e-6),)
    assert len(again.charges) == 2


def test_a_run_beyond_the_limit_leaves_no_checkpoint(prepared, tmp_path):
    ledger = Spending.create(tmp_path / "spent.json", limit=(1.0, 1e-3))
    with pytest.raises(BudgetError):
        cluster.charge_once(prepared, ledger)
    assert not (tmp_path / "state").exists()
