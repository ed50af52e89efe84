"""A Spending in a file: one ledger behind every name, also behind those that were begun as lines of JSON."""

import hashlib
import json
import math
import subprocess
import sys
import time

import pytest
from filelock import FileLock

from coterie.errors import InputError
from coterie.ledger import Ledger
from coterie.spending import BudgetError, LedgerError, Spending, Terms

RECORD = Terms("replace-one", "record")


def charge(ledger, epsilon=1.0, delta=1e-6, *, what="fit", terms=RECORD):
    return ledger.charge(what, epsilon, delta, terms=terms)


@pytest.fixture
def path(tmp_path):
    """A ledger with a limit of (3, 1e-3) and two charges of 1."""
    ledger = Spending.create(tmp_path / "ledger.json", limit=(3.0, 1e-3))
    charge(ledger, what="first")
    charge(ledger, what="second")
    return tmp_path / "ledger.json"


def test_a_symbolic_link_leads_to_the_one_ledger(path, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "link.json"
    link.symlink_to(path)
    charge(Spending(path=link))
    assert link.is_symlink()
    assert len(Spending(path=path).charges) == 3
    with pytest.raises(BudgetError):
        charge(Spending(path=path))


def test_a_mistyped_path_is_refused(path, tmp_path):
    with pytest.raises(InputError, match=r"Spending\.create"):
        Spending(path=tmp_path / "legder.json")
    with pytest.raises(InputError, match="No such file"):
        Spending.create(tmp_path / "no folder" / "ledger.json")
    assert {p.name for p in tmp_path.iterdir()} == {"ledger.json", "ledger.json.head"}


def test_a_ledger_is_created_once(path):
    with pytest.raises(InputError, match="exists already"):
        Spending.create(path)
    assert len(Spending(path=path).charges) == 2


def test_a_deleted_ledger_is_not_begun_anew(path):
    opened = Spending(path=path)
    path.unlink()
    for use in (lambda: charge(opened), lambda: Spending(path=path), lambda: Spending.create(path)):
        with pytest.raises(InputError, match=r"ledger\.json"):
            use()
    assert not path.exists()


def test_a_ledger_that_went_back_is_refused(path):
    before = path.read_bytes()
    opened = Spending(path=path)
    charge(opened, what="third")
    path.write_bytes(before)
    for use in (lambda: charge(opened), lambda: charge(Spending(path=path))):
        with pytest.raises(InputError, match="charged last is missing"):
            use()
    # who opened it still knows
    path.with_name("ledger.json.head").unlink()
    with pytest.raises(InputError, match="charged last is missing"):
        charge(opened)


@pytest.mark.parametrize("place", ["/proc/ledger.json", "/proc/self/status", "/dev/null", "/dev/zero", "."])
def test_places_that_hold_no_ledger_end_in_a_sentence(place):
    started = time.monotonic()
    for use in (lambda: Spending(path=place), lambda: Spending.create(place)):
        with pytest.raises(InputError):
            use()
    # a hang, not a speed
    assert time.monotonic() - started < 60


def test_a_site_s_ledger_is_no_spending(tmp_path):
    Ledger.create(tmp_path / "ledger").close()
    with pytest.raises(InputError, match="a site's ledger"):
        Spending(path=tmp_path / "ledger")


# --- files that came before -------------------------------------------------------------------------------------------


def line(content):
    """As it was written then."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return json.dumps({**content, "hash": hashlib.sha256(text.encode()).hexdigest()}) + "\n"


def lines(*charges, limit=(3.0, 1e-3)):
    made = [line({"format": "coterie-spending-2", "limit": limit, "made": "0" * 32})]
    for what, epsilon, *more in charges:
        terms = {"adjacency": "replace-one", "unit": "record", "records_per_person": 1, "people_span_parties": False}
        entry = {"what": what, "epsilon": epsilon, "delta": 1e-6, "terms": {**terms, "parties": None, "sizes": None}}
        made.append(line({**entry, **(more[0] if more else {}), "previous": json.loads(made[-1])["hash"]}))
    return made


@pytest.fixture
def old(tmp_path):
    """A file of lines with a limit of (3, 1e-3) and two charges of 1, and its head."""
    made = lines(("first", 1.0), ("second", 1.0))
    (tmp_path / "old.json").write_text("".join(made))
    (tmp_path / "old.json.head").write_text(json.loads(made[-1])["hash"] + "\n")
    return tmp_path / "old.json"


def test_a_file_of_lines_goes_on_as_a_ledger(old):
    before = old.read_bytes()
    ledger = Spending(path=old)
    assert (ledger.limit, ledger.total) == ((3.0, 1e-3), (2.0, 2e-6))
    assert ledger.charges == (("first", 1.0, 1e-6), ("second", 1.0, 1e-6))
    assert old.with_name("old.json.old").read_bytes() == before
    charge(ledger)
    with pytest.raises(BudgetError):
        charge(Spending(path=old))
    assert old.stat().st_mode & 0o077 == 0
    with Ledger.open(old) as whole:
        assert whole.verify() == 5
    assert not [p for p in old.parent.iterdir() if p.name.startswith(".")]


def test_infinite_and_overdrawn_losses_are_carried_over(old):
    old.write_text("".join(lines(("seeded", "infinite"), ("more", 5.0))))
    old.with_name("old.json.head").unlink()
    ledger = Spending(path=old, limit=(3.0, 1e-3))
    assert ledger.total[0] == math.inf
    with pytest.raises(BudgetError):
        charge(ledger)


def test_a_charge_that_was_cut_off_counts_as_none(old):
    """A process that died while it wrote had released nothing."""
    old.write_bytes(old.read_bytes() + b'{"what": "thi')
    assert len(Spending(path=old).charges) == 2


FORGERIES = {
    "a charge less": lambda lines: lines.pop(1),
    "the last charge less": lambda lines: lines.pop(),
    "no charge at all": lambda lines: lines.__delitem__(slice(1, None)),
    "another order": lambda lines: lines.reverse(),
    "charges swapped": lambda lines: lines.insert(1, lines.pop(2)),
    "a higher limit": lambda lines: lines.__setitem__(0, lines[0].replace("3.0", "300.0")),
    "no limit": lambda lines: lines.__setitem__(0, lines[0].replace("[3.0, 0.001]", "null")),
    "a smaller charge": lambda lines: lines.__setitem__(1, lines[1].replace('"epsilon": 1.0', '"epsilon": 0.1')),
    "another description": lambda lines: lines.__setitem__(1, lines[1].replace("first", "fisrt")),
    "other terms": lambda lines: lines.__setitem__(1, lines[1].replace("replace-one", "zero-out")),
    "one charge twice": lambda lines: lines.append(lines[-1]),
}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES.keys())
def test_a_forged_file_of_lines_is_refused_and_left_alone(old, forge):
    stored = old.read_text().splitlines(keepends=True)
    before = list(stored)
    forge(stored)
    assert stored != before
    old.write_text("".join(stored))
    with pytest.raises(InputError, match="left as it is"):
        Spending(path=old)
    assert old.read_text() == "".join(stored)


BAD_ENTRIES = [
    {"epsilon": "nan"},
    {"epsilon": math.nan},
    {"epsilon": math.inf},
    {"epsilon": -100},
    {"epsilon": True},
    {"epsilon": None},
    {"delta": -1e-3},
    {"delta": 2},
    {"delta": "nan"},
    {"delta": "infinite"},
    {"what": 3},
    {"what": "a\x1b[2Jb"},
    {"terms": None},
    {"terms": {"adjacency": "replace-one"}},
    {"note": "approved"},
]


@pytest.mark.parametrize("change", BAD_ENTRIES, ids=map(str, BAD_ENTRIES))
def test_lines_that_are_no_losses_are_refused_even_when_chained(tmp_path, change):
    """By somebody who knows how the chain is made."""
    path = tmp_path / "old.json"
    path.write_text("".join(lines(("first", 1.0, change))))
    before = path.read_bytes()
    with pytest.raises(InputError, match="left as it is"):
        Spending(path=path)
    assert path.read_bytes() == before


OLD = {
    "format": "coterie-spending-1",
    "limit": ["3.0", "0.001"],
    "terms": {"adjacency": "replace-one", "unit": "record", "records_per_person": 1, "people_span_parties": False},
    "charges": [{"what": "first", "epsilon": "2.0", "delta": 1e-6}],
}


def test_a_file_of_one_document_goes_on_as_a_ledger(tmp_path):
    path = tmp_path / "old.json"
    path.write_text(json.dumps(OLD))
    ledger = Spending(path=path)
    assert (ledger.limit, ledger.total) == ((3.0, 1e-3), (2.0, 1e-6))
    charge(ledger)
    with pytest.raises(BudgetError):
        charge(Spending(path=path))


@pytest.mark.parametrize("epsilon", ["nan", "-100", "small"])
def test_bad_entries_of_one_document_are_refused(tmp_path, epsilon):
    path = tmp_path / "old.json"
    path.write_text(json.dumps({**OLD, "charges": [{"what": "first", "epsilon": epsilon, "delta": 1e-6}]}))
    with pytest.raises(InputError, match="left as it is"):
        Spending(path=path)


def test_an_old_file_that_cannot_be_written_or_is_held_is_left_alone(old, monkeypatch):
    before = old.read_bytes()
    old.chmod(0o444)
    with pytest.raises(LedgerError, match="write-protected"):
        Spending(path=old)
    old.chmod(0o644)
    monkeypatch.setattr("coterie.spending.LOCK_TIMEOUT_S", 0.2)
    with FileLock(str(old) + ".lock"), pytest.raises(LedgerError, match=r"another process.*nothing was charged"):
        Spending(path=old)
    assert old.read_bytes() == before


# --- forks ------------------------------------------------------------------------------------------------------------

FORK_IN_MEMORY = """
import os
from coterie.errors import InputError
from coterie.spending import Spending, Terms
ledger = Spending()
ledger.charge("fit", 1.0, 0.0, terms=Terms("replace-one", "record"))
child = os.fork()
if child == 0:
    try:
        ledger.charge("fit", 1.0, 0.0, terms=Terms("replace-one", "record"))
    except InputError:
        os._exit(7)
    finally:
        os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert len(ledger.charges) == 1
"""

FORK_OF_A_FILE = """
import os, sys
from coterie.spending import Spending, Terms
ledger = Spending(path=sys.argv[1])
child = os.fork()
if child == 0:
    ledger.charge("fit", 1.0, 0.0, terms=Terms("replace-one", "record"))
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert len(ledger.charges) == 3
"""


@pytest.mark.parametrize("program", [FORK_IN_MEMORY, FORK_OF_A_FILE], ids=["in memory", "in a file"])
def test_forks(path, program):
    """In a process of its own: JAX, which other tests load, warns of forks."""
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


# --- terms ------------------------------------------------------------------------------------------------------------


def test_parties_that_are_protected_whole_must_stay_the_same():
    ledger = Spending()
    hospitals = Terms.of("replace-one", "party", ("north", "south"), (200, 103))
    charge(ledger, terms=hospitals)
    charge(ledger, terms=hospitals)
    with pytest.raises(InputError, match="do not add up"):
        charge(ledger, terms=Terms.of("replace-one", "party", map(str, range(151)), [2] * 151))
    with pytest.raises(InputError, match="do not add up"):
        charge(ledger, terms=Terms.of("replace-one", "party", ("north", "south"), (2, 2)))
    # other rows of the same parties
    charge(ledger, terms=Terms.of("replace-one", "party", ("north", "south")))
    with pytest.raises(InputError, match="do not add up"):
        charge(ledger, terms=Terms.of("replace-one", "party", ("north", "south"), (200, 102)))


def test_records_are_protected_wherever_they_are():
    ledger = Spending()
    charge(ledger, terms=Terms.of("replace-one", "record", ("north",), (303,)))
    charge(ledger, terms=Terms.of("replace-one", "record", ("a", "b"), (100, 203)))
    assert ledger.total[0] == 2.0
