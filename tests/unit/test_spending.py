"""A ledger adds up, refuses in time, and cannot be copied apart."""

import copy
import math
import multiprocessing
import pickle

import pytest
from sklearn.base import clone

from coterie import spending
from coterie.errors import InputError
from coterie.spending import BudgetError, Spending, Terms

RECORD = Terms("replace-one", "record")


def charge(ledger, epsilon=1.0, delta=1e-6, *, what="fit", terms=RECORD):
    return ledger.charge(what, epsilon, delta, terms=terms)


def test_everything_in_one_ledger_adds_up():
    ledger = Spending()
    assert charge(ledger) == ()
    assert charge(ledger, 0.5) == (("fit", 1.0, 1e-6),)
    assert ledger.total == (1.5, 2e-6)


def test_a_charge_beyond_the_limit_is_refused_and_not_recorded():
    ledger = Spending(limit=(0.3, 1e-5))
    # 0.1 + 0.1 + 0.1 is more than 0.3 in floating point
    for _ in range(3):
        charge(ledger, epsilon=0.1)
    with pytest.raises(BudgetError, match=r"limit of epsilon=0\.3.*nothing was run"):
        charge(ledger, epsilon=0.1)
    with pytest.raises(BudgetError, match="delta"):
        charge(ledger, epsilon=1e-12, delta=1e-4)
    assert len(ledger.charges) == 3


def test_an_infinite_charge_never_goes_away():
    ledger = Spending()
    charge(ledger, math.inf)
    charge(ledger, 1.0)
    assert ledger.total[0] == math.inf


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
    with pytest.raises(InputError, match="cannot go to another process"):
        pickle.dumps(Spending())


def test_a_file_keeps_everything_and_its_limit(tmp_path):
    path = tmp_path / "ledger.json"
    first = Spending.create(path, limit=(math.inf, 1e-3))
    charge(first, what="first")
    charge(first, epsilon=math.inf, what="seeded")
    second = pickle.loads(pickle.dumps(first))
    assert second.charges == (("first", 1.0, 1e-6), ("seeded", math.inf, 1e-6))
    assert len(charge(second, what="third")) == 2
    assert first.charges == second.charges
    assert path.stat().st_mode & 0o077 == 0
    # whoever opens it later is held to it
    assert Spending(path=path).limit == (math.inf, 1e-3)
    with pytest.raises(InputError, match="its limit is"):
        Spending(path=path, limit=(math.inf, 1e-2))


def _charge_often(path):
    ledger = Spending(path=path)
    for _ in range(20):
        charge(ledger)


def test_processes_that_share_a_file_lose_no_charge(tmp_path):
    path = tmp_path / "ledger.json"
    Spending.create(path)
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


@pytest.mark.parametrize("limit", [1.0, (0.0, 0.1), (1.0, 1.0), (1.0, -0.1), (math.nan, 0.1), ("a", 1), (1.0, 0.1, 2)])
def test_bad_limits_are_refused(limit):
    with pytest.raises(InputError, match=r"limit: got .* a pair \(epsilon > 0, 0 <= delta < 1\) is needed$"):
        Spending(limit=limit)


@pytest.mark.parametrize(("epsilon", "delta"), [(-1.0, 0.1), (math.nan, 0.1), (1.0, 2.0), (10**400, 0.1)])
def test_bad_charges_are_refused(epsilon, delta):
    ledger = Spending()
    with pytest.raises(InputError, match="epsilon, delta: got"):
        charge(ledger, epsilon=epsilon, delta=delta)
    assert ledger.charges == ()


@pytest.mark.parametrize("earlier", [-1, 0, 1, 3])
def test_a_table_of_many_charges_says_how_many_it_leaves_out(earlier):
    ledger = Spending()
    for k in range(spending.MOST_SHOWN + earlier):
        charge(ledger, what=f"charge {k}")
    table = ledger._repr_html_()
    assert (f"{earlier} earlier charges" in table) == ("earlier" in table) == (earlier > 0)
    assert table.count("charge ") == min(spending.MOST_SHOWN, spending.MOST_SHOWN + earlier)


def test_a_chart_adds_up_what_was_charged():
    mpl = pytest.importorskip("matplotlib")
    mpl.use("agg")
    ledger = Spending(limit=(math.inf, 0.5))
    for epsilon in (1.0, math.inf, 0.5, 0.25):
        charge(ledger, epsilon)
    axes = ledger.plot()
    assert axes.lines[0].get_xydata().tolist() == [[1, 1.0], [2, 1.5], [3, 1.75]]
    mpl.pyplot.close(axes.figure)
