"""A ledger books before anything is computed, keeps every reply, and says what is left."""

import contextlib
import dataclasses
import json
import math
import os
import sqlite3
import threading
import time

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coterie.algorithms import PenaltyPerturbedADMM
from coterie.certificate import party_price
from coterie.errors import InputError
from coterie.ledger import BudgetError, Ledger, LedgerError, Price, Receipt, Terms, entries
from coterie.plan import Plan
from coterie.privacy.accountants import gaussian_epsilon
from coterie.privacy.events import Gaussian
from coterie.privacy.objective import PenaltyPerturbation
from coterie.problems import L2, Logistic, Problem
from coterie.values import Facts

RECORD = Terms("replace-one", "record")
PRICE = Price.of([(Gaussian(0.2), 1)], 1e-6)
KEY = Ed25519PrivateKey.generate()


def reserve(ledger, run="run", *, data="patients", plan="a plan", price=PRICE, terms=RECORD, rounds=3, **more):
    return ledger.reserve(run, data=data, plan=plan, price=price, terms=terms, rounds=rounds, **more)


@pytest.fixture
def ledger():
    with Ledger.create(None, epsilon=1.3, delta=1e-5) as made:
        yield made


# --- reserving --------------------------------------------------------------------------------------------------------


def test_a_run_is_booked_whole_and_once(ledger):
    first = reserve(ledger, what="a study", by="researcher")
    assert reserve(ledger).number == first.number == 2
    assert ledger.total("patients").releases == 1
    assert ledger.total("patients").epsilon == pytest.approx(gaussian_epsilon([(Gaussian(0.2), 1)], 1e-5), rel=1e-8)
    assert ledger.stated("patients") == (("a study", PRICE.epsilon, 1e-6),)


OTHERS = [
    {"plan": "another"},
    {"data": "others"},
    {"rounds": 4},
    {"price": Price(0.1, 1e-6)},
    {"terms": Terms("zero-out", "record")},
]


@pytest.mark.parametrize("change", OTHERS, ids=lambda change: next(iter(change)))
def test_the_same_run_with_something_else_is_refused(ledger, change):
    reserve(ledger)
    with pytest.raises(InputError, match="was reserved with another"):
        reserve(ledger, **change)
    assert len(list(ledger.entries())) == 2


@pytest.mark.parametrize("name", ["run", "data", "plan", "what", "by"])
def test_texts_are_at_most_so_long_and_can_be_printed(ledger, name):
    texts = {"run": "a run", name: "x" * entries.LONGEST_TEXT}
    reserve(ledger, texts.pop("run"), **texts)
    refused = ["x" * (entries.LONGEST_TEXT + 1), "a\nb", 3, None, *([] if name in ("what", "by") else [""])]
    for wrong in refused:
        texts = {"run": "another run", name: wrong}
        with pytest.raises(InputError, match=f"{name}: got"):
            reserve(ledger, texts.pop("run"), **texts)
    assert len(list(ledger.entries())) == 2


def test_reservations_count_before_anything_was_released(ledger):
    reserve(ledger, "first")
    reserve(ledger, "second")
    with pytest.raises(BudgetError, match=r"limit of epsilon=1\.3.*nothing was run"):
        reserve(ledger, "third")
    reserve(ledger, "elsewhere", data="other patients")
    assert [entry.content.get("run") for entry in ledger.entries()] == [None, "first", "second", "elsewhere"]


def test_what_was_never_committed_can_be_given_back(ledger):
    reserve(ledger, "first")
    reserve(ledger, "second")
    ledger.give_back("second")
    ledger.give_back("second")
    reserve(ledger, "third")
    assert ledger.total("patients").releases == 2
    with pytest.raises(InputError, match="given back"):
        reserve(ledger, "second")
    with pytest.raises(InputError, match="given back"):
        ledger.commit("second", 0, b"", "request")
    ledger.commit("first", 0, b"", "request")
    with pytest.raises(InputError, match="committed round 0"):
        ledger.give_back("first")


@pytest.mark.parametrize("price", [Price(0.5, 1e-7), Price(0.1, 5e-6)], ids=["epsilon", "delta"])
def test_sums_may_reach_a_limit_and_not_pass_it(price):
    with Ledger.create(None, epsilon=1.0, delta=1e-5, composition="sum") as ledger:
        reserve(ledger, "first", price=price)
        reserve(ledger, "second", price=price)
        with pytest.raises(BudgetError, match="nothing was run"):
            reserve(ledger, "third", price=price)


@pytest.mark.parametrize(("beyond", "fits"), [(0.5e-9, True), (1.5e-9, False)])
def test_sums_may_be_rounded_at_a_limit_in_the_ninth_digit_and_no_more(beyond, fits):
    with Ledger.create(None, epsilon=1.0, delta=1e-5, composition="sum") as ledger:
        with contextlib.nullcontext() if fits else pytest.raises(BudgetError, match="nothing was run"):
            reserve(ledger, price=Price(1.0 + beyond, 1e-7))
        assert ledger.total("patients").releases == fits


def test_what_would_be_left_is_known_before(ledger):
    reserve(ledger)
    now, then = ledger.total("patients"), ledger.total("patients", plus=PRICE)
    assert now.left == 1.3 - now.epsilon > then.left
    reserve(ledger, "second")
    assert ledger.total("patients") == then
    assert ledger.bodies() == ("patients",)


def test_a_release_without_a_bound_fits_no_limit(ledger):
    with pytest.raises(BudgetError, match="epsilon=inf"):
        reserve(ledger, price=Price.unbounded(1e-6))
    with Ledger.create(None) as free:
        reserve(free, price=Price.unbounded(1e-6))
        assert free.total("patients", delta=1e-5, plus=PRICE).epsilon == math.inf
        with pytest.raises(InputError, match="delta: got None"):
            free.total("patients")


def test_losses_of_different_things_do_not_add_up(ledger):
    reserve(ledger)
    with pytest.raises(InputError, match="do not add up"):
        reserve(ledger, "second", terms=Terms("zero-out", "record"))
    reserve(ledger, "third", data="other patients", terms=Terms("zero-out", "record"))


def test_people_with_several_records_lose_more():
    people = dataclasses.replace(RECORD, records_per_person=3)
    price = dataclasses.replace(PRICE, epsilon=9.0, records=3)
    with Ledger.create(None, epsilon=1.0, delta=1e-5) as ledger:
        assert ledger.total("patients", plus=price).epsilon > 2.0 > ledger.total("patients", plus=PRICE).epsilon
        with pytest.raises(BudgetError):
            reserve(ledger, terms=people, price=price)
        for wrong in ({"terms": people}, {"price": price}):
            with pytest.raises(InputError, match=r"price: of people with \d record"):
                reserve(ledger, **wrong)
        reserve(ledger)


def test_bodies_and_periods_have_limits_of_their_own(ledger, monkeypatch):
    now = [time.time()]
    monkeypatch.setattr(entries.time, "time", lambda: now[0])
    ledger.set_limit(10.0, 1e-5)
    ledger.set_limit(1.0, 1e-5, days=30)
    ledger.set_limit(0.1, 1e-5, data="children")
    ledger.set_limit(0.1, 1e-5, data="children")
    assert len(list(ledger.entries())) == 4
    assert [str(limit) for limit in ledger.limits("children")] == [
        "epsilon=0.1, delta=1e-05",
        "epsilon=1, delta=1e-05 within 30 days",
    ]
    reserve(ledger, "first")
    with pytest.raises(BudgetError, match="within 30 days"):
        reserve(ledger, "second")
    with pytest.raises(BudgetError, match=r"epsilon=0\.1"):
        reserve(ledger, "third", data="children")
    now[0] += 31 * 86400
    # the first may still go on
    with pytest.raises(BudgetError, match="within 30 days"):
        reserve(ledger, "second")
    ledger.commit("first", 0, b"", "request")
    ledger.end("first")
    with pytest.raises(BudgetError, match="within 30 days"):
        reserve(ledger, "second")
    now[0] += 31 * 86400
    reserve(ledger, "second")
    for t in range(3):
        ledger.commit("second", t, b"", "request")
    now[0] += 31 * 86400
    reserve(ledger, "fourth")
    assert ledger.total("patients").limit.epsilon == 10.0
    assert ledger.total("patients").releases == 3


def test_a_charge_counts_for_as_long_as_the_period_lasts(ledger, monkeypatch):
    now = [time.time()]
    monkeypatch.setattr(entries.time, "time", lambda: now[0])
    ledger.set_limit(1.0, 1e-5, days=30)
    ledger.charge("by hand", PRICE, data="patients", terms=RECORD)
    with pytest.raises(BudgetError, match="within 30 days"):
        reserve(ledger)
    now[0] += 31 * 86400
    reserve(ledger)


def test_a_run_that_was_ended_sends_nothing_more_and_stays_charged(ledger):
    reserve(ledger)
    ledger.commit("run", 0, b"first", "request")
    ledger.end("run")
    ledger.end("run")
    with pytest.raises(InputError, match="was ended"):
        ledger.commit("run", 1, b"second", "request")
    assert ledger.commit("run", 0, b"", "request") == b"first"
    assert ledger.total("patients").releases == 1
    with pytest.raises(InputError, match="committed round 0"):
        ledger.give_back("run")
    reserve(ledger, "second")
    ledger.give_back("second")
    with pytest.raises(InputError, match="was given back"):
        ledger.end("second")


BAD = [
    {"run": ""},
    {"run": "a\nb"},
    {"run": 3},
    {"data": "x" * 1001},
    {"rounds": 0},
    {"rounds": True},
    {"what": "\x1b[2J"},
]


@pytest.mark.parametrize("change", BAD, ids=map(str, BAD))
def test_bad_arguments_are_refused(ledger, change):
    with pytest.raises(InputError, match=f"{next(iter(change))}: got"):
        reserve(ledger, **change)
    assert len(list(ledger.entries())) == 1


@pytest.mark.parametrize(
    "limit", [(1.0, None), (None, 1e-5), (0.0, 1e-5), (math.nan, 1e-5), (1.0, 1.0), ("1", 0.1), (True, 0.1)]
)
def test_bad_limits_are_refused(limit):
    with pytest.raises(InputError):
        Ledger.create(None, epsilon=limit[0], delta=limit[1])


# --- committing -------------------------------------------------------------------------------------------------------


def test_a_round_is_sent_again_byte_for_byte(ledger):
    reserve(ledger)
    assert ledger.reply("run", 0) is None
    assert ledger.commit("run", 0, b"noised", "request") == b"noised"
    assert ledger.commit("run", 0, b"noised anew", "request") == b"noised"
    assert ledger.reply("run", 0) == b"noised"
    with pytest.raises(InputError, match="other content"):
        ledger.commit("run", 0, b"noised", "another request")
    assert ledger.total("patients").releases == 1
    assert ledger.reservation("run").committed == {0: ("request", 3)}


@pytest.mark.parametrize("round", [-1, 0, 3, 10**9, True, 1.0, "1", None])
def test_rounds_that_are_not_due_are_refused(ledger, round):
    reserve(ledger)
    ledger.commit("run", 1, b"", "request")
    with pytest.raises(InputError, match="round"):
        ledger.commit("run", round, b"", "request")
    ledger.commit("run", 2, b"", "request")


def test_nothing_is_sent_that_was_not_reserved(ledger):
    with pytest.raises(InputError, match="never reserved"):
        ledger.commit("run", 0, b"", "request")
    reserve(ledger)
    with pytest.raises(InputError, match="reply: got a str"):
        ledger.commit("run", 0, "text", "request")


def test_threads_share_a_ledger(tmp_path):
    with Ledger.create(tmp_path / "ledger", epsilon=10.0, delta=1e-5) as ledger:
        for place in range(4):
            reserve(ledger, f"run {place}", rounds=10)

        def work(place):
            for t in range(10):
                ledger.commit(f"run {place}", t, bytes([place, t]), "request")

        threads = [threading.Thread(target=work, args=(place,)) for place in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(ledger.reply(f"run {place}", t) == bytes([place, t]) for place in range(4) for t in range(10))
        assert ledger.verify() == 45


# --- a plan's price ---------------------------------------------------------------------------------------------------


def test_the_price_of_a_party_is_what_its_plan_says():
    small_plan = Plan.make(
        PenaltyPerturbedADMM(mechanism=PenaltyPerturbation(penalty=2.0, noise_multiplier=10.0), dual_step=2.0),
        Problem(loss=Logistic(), regulariser=L2(1.0), record_weight=1.0),
        "complete",
        Facts(parties=("a", "b", "c"), sizes=(30, 40, 50), n_features=2, row_norm=1.0, labels=("no", "yes")),
        rounds=4,
        adjacency="replace-one",
    )
    for party in range(small_plan.facts.n_parties):
        price, reason = party_price(small_plan, party, 1e-5, reproducible=False)
        assert (price.epsilon, reason) == (small_plan.party_epsilons(1e-5)[party], "")
        with Ledger.create(None, epsilon=price.epsilon, delta=1e-5) as ledger:
            reserve(ledger, price=price, plan=small_plan.digest)
            assert ledger.total("patients").epsilon <= price.epsilon
    assert party_price(small_plan, 0, 1e-5, reproducible=True) == (Price.unbounded(1e-5), "seeded")
    spanning = dataclasses.replace(small_plan, people_span_parties=True)
    price, _ = party_price(spanning, 0, 1e-5, reproducible=False)
    assert price.epsilon == spanning.epsilon(1e-5) > small_plan.epsilon(1e-5)
    void = dataclasses.replace(small_plan, facts=dataclasses.replace(small_plan.facts, data_derived=("scaler",)))
    assert party_price(void, 0, 1e-5, reproducible=False) == (Price.unbounded(1e-5), "void: scaler read off the data")


# --- owners -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def owned(tmp_path):
    """A signed ledger with a reservation and two rounds."""
    path = tmp_path / "ledger"
    with Ledger.create(path, epsilon=3.0, delta=1e-5, key=KEY) as ledger:
        reserve(ledger)
        ledger.commit("run", 0, b"first", "request 0")
        ledger.commit("run", 1, b"second", "request 1")
    return path


def test_only_the_owner_can_add(owned):
    with Ledger.open(owned) as anybody:
        assert anybody.verify() == 4
        assert anybody.owner == KEY.public_key().public_bytes_raw().hex()
        with pytest.raises(InputError, match="only its owner"):
            anybody.commit("run", 2, b"third", "request 2")
        assert anybody.verify() == 4
    with pytest.raises(InputError, match="this ledger belongs to"):
        Ledger.open(owned, Ed25519PrivateKey.generate())
    with Ledger.open(owned, KEY) as owner:
        owner.commit("run", 2, b"third", "request 2")
        assert owner.verify() == 5


def test_a_ledger_without_an_owner_takes_no_key(tmp_path):
    Ledger.create(tmp_path / "ledger").close()
    with pytest.raises(InputError, match="belongs to nobody"):
        Ledger.open(tmp_path / "ledger", KEY)


def test_a_restarted_run_reserves_again(owned):
    with Ledger.open(owned, KEY) as ledger:
        again = reserve(ledger)
        assert (again.number, again.last_round) == (2, 1)
        assert ledger.commit("run", 1, b"noised anew", "request 1") == b"second"
        assert ledger.verify() == 4


def test_receipts_are_signed_and_read_back(owned):
    with Ledger.open(owned) as ledger:
        receipt = ledger.head()
        assert Receipt.from_json(receipt.to_json()) == receipt
        assert ledger.verify(receipt) == receipt.number == 4
    content = json.loads(receipt.to_json())
    assert (
        Receipt.from_json(json.dumps({"number": 1, "hash": content["hash"], "signature": None, "key": None})).number
        == 1
    )
    other = Ed25519PrivateKey.generate().public_key().public_bytes_raw().hex()
    for change in ({"number": 0}, {"number": "4"}, {"hash": "00" * 32}, {"key": other}, {"key": None}, {"more": 1}):
        with pytest.raises(InputError, match="receipt: cannot be used"):
            Receipt.from_json(json.dumps({**content, **change}))
    with pytest.raises(InputError, match="receipt"):
        Receipt.from_json("[]")


def test_another_ledgers_receipt_is_noticed(owned, tmp_path):
    with Ledger.create(tmp_path / "another", key=KEY) as another:
        foreign = another.head()
    with Ledger.open(owned) as ledger, pytest.raises(InputError, match="went back"):
        ledger.verify(foreign)


def test_sqlite_itself_refuses_to_change_entries(owned):
    database = sqlite3.connect(owned)
    statements = [
        "UPDATE entries SET body = ''",
        "DELETE FROM entries WHERE number = 4",
        "REPLACE INTO entries (number, body, hash) VALUES (4, '', x'')",
        "INSERT INTO entries (number, body, hash) VALUES (9, '', x'')",
    ]
    for statement in statements:
        with pytest.raises(sqlite3.IntegrityError):
            database.execute(statement)
    database.close()


def test_entries_say_what_happened(owned):
    with Ledger.open(owned) as ledger:
        found = list(ledger.entries())
    assert [entry.kind for entry in found] == ["created", "reserved", "committed", "committed"]
    assert found[1].content["price"] == PRICE.to_dict()
    assert all(entry.signature is not None for entry in found)
    assert "time" not in found[1].content
    assert found[1].time <= found[3].time


def test_a_backup_is_whole_and_made_once(owned, tmp_path):
    with Ledger.open(owned, KEY) as ledger:
        place = ledger.backup(tmp_path / "copy")
        ledger.commit("run", 2, b"third", "request 2")
        receipt = ledger.head()
        with pytest.raises(InputError, match="exists already"):
            ledger.backup(tmp_path / "copy")
        with pytest.raises(InputError, match="No such file"):
            ledger.backup(tmp_path / "nowhere" / "copy")
    assert os.stat(place).st_mode & 0o077 == 0
    with Ledger.open(place) as copy:
        assert copy.verify() == 4
        assert copy.reply("run", 1) == b"second"
        with pytest.raises(InputError, match="went back"):
            copy.verify(receipt)
    # restored
    os.replace(place, owned)
    with pytest.raises(InputError, match="charged last is missing"):
        Ledger.open(owned)


def test_a_ledger_in_memory_can_be_kept(ledger, tmp_path):
    reserve(ledger)
    with Ledger.open(ledger.backup(tmp_path / "kept")) as kept:
        assert kept.verify() == 2
        assert kept.head() == ledger.head()


def test_a_clock_that_was_set_back_is_refused(owned, monkeypatch):
    with Ledger.open(owned, KEY) as ledger:
        monkeypatch.setattr(entries.time, "time", lambda: 1e9)
        with pytest.raises(LedgerError, match=r"clock.*Nothing was charged"):
            ledger.commit("run", 2, b"third", "request 2")
        monkeypatch.undo()
        assert ledger.verify() == 4
