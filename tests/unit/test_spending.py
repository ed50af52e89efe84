"""A ledger adds up, refuses in time, and cannot be copied apart."""

import copy
import json
import math
import multiprocessing
import pickle

import numpy as np
import pytest
from sklearn.base import clone

from coterie.errors import InputError
from coterie.spending import BudgetError, Spending, Terms

RECORD = Terms("replace-one", "record")
ROWS = np.random.default_rng(0).normal(size=(10, 3))


def charge(ledger, rows=ROWS, epsilon=1.0, delta=1e-6, *, what="fit", terms=RECORD, parties=("a",)):
    return ledger.charge(what, epsilon, delta, terms=terms, parties=parties, rows=rows)


def test_everything_in_one_ledger_adds_up_whatever_the_rows_look_like():
    ledger = Spending()
    assert charge(ledger) == ()
    assert charge(ledger, ROWS * 2, 0.5) == (("fit", 1.0, 1e-6),)
    assert ledger.total == (1.5, 2e-6)


def test_records_told_apart_add_up_only_with_themselves():
    ledger = Spending(tell_apart=True)
    charge(ledger, ROWS[:5])
    assert charge(ledger, ROWS[5:]) == ()
    assert ledger.total == (1.0, 1e-6)
    assert charge(ledger, ROWS[4:6]) == (("fit", 1.0, 1e-6),)
    assert ledger.total == (2.0, 2e-6)
    assert charge(ledger, ROWS[:1]) == (("fit", 1.0, 1e-6),)


def test_minus_zero_is_the_same_record_as_zero():
    ledger = Spending(tell_apart=True)
    charge(ledger, np.zeros((1, 3)))
    assert len(charge(ledger, -np.zeros((1, 3)))) == 1


def test_where_epsilon_and_delta_name_different_worst_owners_all_charges_count():
    ledger = Spending(tell_apart=True)
    charge(ledger, ROWS[:1], 2.0, 1e-9)
    charge(ledger, ROWS[1:2], 1.0, 1e-3)
    assert len(charge(ledger, ROWS[:2])) == 2


@pytest.mark.parametrize("terms", [Terms("replace-one", "record", 3), Terms("replace-one", "record", 1, True)])
def test_people_with_several_records_cannot_be_told_apart(terms):
    ledger = Spending(tell_apart=True)
    charge(ledger, ROWS[:5], terms=terms)
    assert len(charge(ledger, ROWS[5:], terms=terms)) == 1


def test_parties_are_told_apart_by_name():
    ledger, party = Spending(tell_apart=True), Terms("replace-one", "party")
    charge(ledger, terms=party, parties=("a", "b"))
    assert charge(ledger, terms=party, parties=("c",)) == ()
    assert len(charge(ledger, ROWS + 1, terms=party, parties=("b",))) == 1


def test_a_charge_beyond_the_limit_is_refused_and_not_recorded():
    ledger = Spending(limit=(0.3, 1e-5))
    for _ in range(3):  # 0.1 + 0.1 + 0.1 is more than 0.3 in floating point
        charge(ledger, epsilon=0.1)
    with pytest.raises(BudgetError, match=r"limit of epsilon=0\.3.*nothing was run"):
        charge(ledger, epsilon=0.1)
    with pytest.raises(BudgetError, match="delta"):
        charge(ledger, epsilon=1e-12, delta=1e-4)
    assert len(ledger.charges) == 3


def test_an_infinite_charge_never_goes_away():
    ledger = Spending(tell_apart=True)
    charge(ledger, ROWS[:5], math.inf)
    charge(ledger, ROWS[5:], 1.0)
    assert ledger.total[0] == math.inf
    assert charge(ledger, ROWS[5:]) == (("fit", 1.0, 1e-6),)


@pytest.mark.parametrize("terms", [Terms("zero-out", "record"), Terms("replace-one", "party")])
def test_losses_of_different_things_do_not_add_up(terms):
    ledger = Spending()
    charge(ledger)
    with pytest.raises(InputError, match="do not add up"):
        charge(ledger, terms=terms)


def test_copies_and_clones_are_the_same_ledger():
    ledger = Spending()
    assert copy.copy(ledger) is copy.deepcopy(ledger) is clone(ledger, safe=False) is ledger


def test_a_ledger_in_memory_cannot_leave_its_process():
    with pytest.raises(InputError, match="give it a path"):
        pickle.dumps(Spending())


def test_a_file_keeps_everything_and_shows_no_numbers_of_a_record(tmp_path):
    path = tmp_path / "ledger.json"
    first = Spending(path=path, limit=(math.inf, 1e-3), tell_apart=True)
    charge(first, what="first")
    charge(first, epsilon=math.inf, what="seeded", rows=ROWS[:1])
    second = pickle.loads(pickle.dumps(first))
    assert second.limit == (math.inf, 1e-3)
    assert second.charges == (("first", 1.0, 1e-6), ("seeded", math.inf, 1e-6))
    assert charge(second, ROWS[1:], what="third") == (("first", 1.0, 1e-6),)
    assert first.charges == second.charges
    assert path.stat().st_mode & 0o077 == 0
    assert not any(repr(float(value)) in path.read_text() for value in ROWS.ravel())


def test_digests_of_two_ledgers_have_nothing_in_common(tmp_path):
    stored = []
    for name in ("a", "b"):
        charge(Spending(path=tmp_path / name, tell_apart=True))
        stored.append(json.loads((tmp_path / name).read_text())["owners"])
    assert stored[0] != stored[1]


def _charge_often(path):
    ledger = Spending(path=path)
    for _ in range(20):
        charge(ledger)


def test_processes_that_share_a_file_lose_no_charge(tmp_path):
    path = tmp_path / "ledger.json"
    workers = [multiprocessing.get_context("spawn").Process(target=_charge_often, args=(path,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(Spending(path=path).charges) == 40


def test_a_broken_file_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "ledger.json"
    path.write_text("{not a ledger")
    with pytest.raises(InputError, match="left as it is"):
        Spending(path=path)
    assert path.read_text() == "{not a ledger"


@pytest.mark.parametrize("limit", [1.0, (0.0, 0.1), (1.0, 1.0), ("a", 1), (1.0, 0.1, 2)])
def test_bad_limits_are_refused(limit):
    with pytest.raises(InputError, match="limit: got"):
        Spending(limit=limit)


@pytest.mark.parametrize(("epsilon", "delta"), [(-1.0, 0.1), (math.nan, 0.1), (1.0, 2.0)])
def test_bad_charges_are_refused(epsilon, delta):
    ledger = Spending()
    with pytest.raises(InputError, match="epsilon, delta: got"):
        charge(ledger, epsilon=epsilon, delta=delta)
    assert ledger.charges == ()
