"""Ledgers as files: links, forged content, mistyped paths, held locks, full disks, forks, kills."""

import contextlib
import dataclasses
import errno
import hashlib
import importlib
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coterie.errors import CoterieError, InputError
from coterie.ledger import Ledger, LedgerError, Price, Receipt, Terms, entries
from coterie.ledger import ledger as implementation
from coterie.ledger.ledger import SCHEMA
from coterie.privacy.events import Gaussian

RECORD = Terms("replace-one", "record")
PRICE = Price.of([(Gaussian(0.2), 1)], 1e-6)
KEY = Ed25519PrivateKey.generate()


def reserve(ledger, run="run", rounds=5, **more):
    return ledger.reserve(run, data="patients", plan="a plan", price=PRICE, terms=RECORD, rounds=rounds, **more)


def filled(path, key=None):
    with Ledger.create(path, epsilon=3.0, delta=1e-5, key=key) as ledger:
        reserve(ledger)
        ledger.commit("run", 0, b"first", "request 0")
        ledger.commit("run", 1, b"second", "request 1")
    return path


@pytest.fixture(scope="module")
def templates(tmp_path_factory):
    return {key: filled(tmp_path_factory.mktemp("template") / "ledger", key) for key in (None, KEY)}


def copied(template, folder):
    for name in ("ledger", "ledger.head"):
        shutil.copy(template.with_name(name), folder)
    return folder / "ledger"


@pytest.fixture(params=[None, KEY], ids=["unsigned", "signed"])
def path(tmp_path, templates, request):
    """A ledger with a reservation and two rounds."""
    return copied(templates[request.param], tmp_path)


@pytest.fixture
def plain(tmp_path, templates):
    return copied(templates[None], tmp_path)


# --- where it lies ----------------------------------------------------------------------------------------------------


def test_a_symbolic_link_leads_to_the_one_ledger(plain, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "link"
    link.symlink_to(plain)
    with Ledger.open(link) as ledger:
        ledger.commit("run", 2, b"third", "request 2")
    with Ledger.open(plain) as ledger:
        assert ledger.reply("run", 2) == b"third"
    assert [entry.name for entry in (tmp_path / "elsewhere").iterdir()] == ["link"]


def test_a_second_name_of_the_file_is_refused(plain, tmp_path):
    (tmp_path / "twin").hardlink_to(plain)
    for name in ("twin", "ledger"):
        with pytest.raises(InputError, match="2 names"):
            Ledger.open(tmp_path / name)


MOUNTED = """
import subprocess, sys
from pathlib import Path
from coterie.errors import CoterieError
from coterie.ledger import Ledger
ledger, elsewhere = map(Path, sys.argv[1:])
elsewhere.mkdir()
for name in ("file", "folder/ledger"):
    place = elsewhere / name
    mounted = place if name == "file" else place.parent
    mounted.touch() if mounted == place else mounted.mkdir()
    subprocess.run(["mount", "--bind", ledger if mounted == place else ledger.parent, mounted], check=True)
    try:
        Ledger.open(place).close()
        print(name, "opened")
    except CoterieError as error:
        print(error)
"""


def test_a_file_that_is_mounted_by_itself_is_refused(plain, tmp_path, monkeypatch):
    """As containers are given single files: SQLite would keep a second log beside it, and lose what is in the first."""
    twin = tmp_path / "a folder" / "ledger"
    twin.parent.mkdir()
    shutil.copy(plain, twin)
    Ledger.open(twin).close()
    mounts = tmp_path / "mountinfo"
    escaped = str(twin).replace(" ", r"\040")
    mounts.write_text(f"22 1 8:1 / / rw - ext4 /dev/sda rw\n23 22 8:1 /x {escaped} rw,relatime - ext4 /dev/sda rw\n")
    monkeypatch.setattr(implementation, "MOUNTS", mounts)
    with pytest.raises(InputError, match="mounted by itself"):
        Ledger.open(twin)
    Ledger.open(plain).close()
    monkeypatch.setattr(implementation, "MOUNTS", tmp_path / "no such file")
    Ledger.open(twin).close()


UNSHARE = ["unshare", "--user", "--map-root-user", "--mount"]


@pytest.mark.skipif(
    shutil.which("unshare") is None or subprocess.run([*UNSHARE, "true"], capture_output=True).returncode != 0,
    reason="nothing may be mounted here; the test above reads a list of mounts",
)
def test_a_mounted_file_is_refused_and_a_mounted_folder_is_not(plain, tmp_path_factory):
    command = [*UNSHARE, sys.executable, "-c", MOUNTED, plain, tmp_path_factory.mktemp("other") / "elsewhere"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    file, folder = done.stdout.splitlines()
    assert "mounted by itself" in file
    assert folder == "folder/ledger opened"


@pytest.mark.parametrize("place", ["/proc/ledger", "/proc/self/status", "/dev/null", "/dev/zero", "."])
def test_places_that_hold_no_ledger_end_in_a_sentence(place):
    started = time.monotonic()
    for use in (Ledger.open, Ledger.create):
        with pytest.raises(InputError):
            use(place)
    # a hang, not a speed
    assert time.monotonic() - started < 60


def test_what_is_no_ledger_is_left_alone(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with contextlib.closing(sqlite3.connect(tmp_path / "other")) as other:
        other.execute("CREATE TABLE entries (number INTEGER PRIMARY KEY)")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "short").write_bytes(b"x")
    (tmp_path / "text").write_text("not a ledger " * 100)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.name != "pipe"}
    for name in (*before, "pipe"):
        with pytest.raises(InputError):
            Ledger.open(tmp_path / name)
        with pytest.raises(InputError, match="exists already"):
            Ledger.create(tmp_path / name)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.name != "pipe"} == before


def test_a_ledger_is_made_once_and_only_when_asked_to(plain, tmp_path):
    with pytest.raises(InputError, match="exists already"):
        Ledger.create(plain)
    with pytest.raises(InputError, match="ledger: none is at"):
        Ledger.open(tmp_path / "legder")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["ledger", "ledger.head"]
    assert plain.stat().st_mode & 0o077 == 0


def test_a_file_that_is_gone_or_another_one_is_refused(plain, tmp_path):
    with Ledger.open(plain) as ledger:
        shutil.copy(plain, tmp_path / "copy")
        os.replace(tmp_path / "copy", plain)
        with pytest.raises(InputError, match="another file"):
            ledger.commit("run", 2, b"third", "request 2")
        plain.unlink()
        for use in (lambda: ledger.commit("run", 2, b"third", "request 2"), ledger.head, ledger.verify):
            with pytest.raises(InputError, match="ledger: none is at"):
                use()
    # the head is still there
    for use in (Ledger.open, Ledger.create):
        with pytest.raises(InputError):
            use(plain)
    assert not plain.exists()


def test_a_head_that_is_no_file_or_has_no_end_keeps_nobody_waiting(plain):
    head = plain.with_name("ledger.head")
    head.unlink()
    os.mkfifo(head)
    said = run(OPENED, plain)
    assert "its head cannot be read" in said
    assert "no plain file" in said
    head.unlink()
    with head.open("wb") as file:
        file.truncate(10**9)
    assert "at most 10,000 are read" in run(OPENED, plain)


def test_a_ledger_that_went_back_is_refused(plain):
    before = plain.read_bytes()
    with Ledger.open(plain) as ledger:
        ledger.commit("run", 2, b"third", "request 2")
        receipt = ledger.head()
    plain.write_bytes(before)
    with pytest.raises(InputError, match="charged last is missing"):
        Ledger.open(plain)
    # who holds a receipt still knows
    plain.with_name("ledger.head").unlink()
    with Ledger.open(plain) as ledger:
        assert ledger.verify() == 4
        for check in (ledger.verify, ledger.check_holds):
            with pytest.raises(InputError, match="charged last is missing"):
                check(receipt)


def test_a_ledger_that_went_back_and_on_is_refused(plain):
    """Other entries take the places of those that were lost."""
    before = plain.read_bytes()
    with Ledger.open(plain) as ledger:
        ledger.commit("run", 2, b"third", "request 2")
        receipt = ledger.head()
    plain.write_bytes(before)
    plain.with_name("ledger.head").unlink()
    with Ledger.open(plain) as ledger:
        ledger.commit("run", 2, b"another", "request 2")
        ledger.commit("run", 3, b"fourth", "request 3")
        with pytest.raises(InputError, match="charged last is missing"):
            ledger.verify(receipt)


def test_an_unwritten_head_does_not_lock_anybody_out(plain):
    """A process may be killed after its entry was written and before its head was."""
    head = plain.with_name("ledger.head")
    before = head.read_bytes()
    with Ledger.open(plain) as ledger:
        ledger.commit("run", 2, b"third", "request 2")
    head.write_bytes(before)
    with Ledger.open(plain) as ledger:
        assert ledger.reply("run", 2) == b"third"
    head.write_text("nonsense")
    with pytest.raises(InputError, match="head cannot be read"):
        Ledger.open(plain)


# --- what was changed -------------------------------------------------------------------------------------------------


def changed(path, *statements):
    """By somebody who knows SQLite: a file such as a ledger with these entries would have."""
    columns = "number, body, reply, hash, signature"
    with contextlib.closing(sqlite3.connect(":memory:")) as memory:
        memory.execute(SCHEMA[0])
        with contextlib.closing(sqlite3.connect(path)) as stored:
            memory.executemany(
                "INSERT INTO entries VALUES (?, ?, ?, ?, ?)", stored.execute(f"SELECT {columns} FROM entries")
            )
        for statement in statements:
            memory.execute(*statement) if isinstance(statement, tuple) else memory.execute(statement)
        rows = memory.execute(f"SELECT {columns} FROM entries ORDER BY number").fetchall()
    path.unlink()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as made:
        made.execute(f"PRAGMA application_id = {implementation.APPLICATION_ID}")
        made.execute(f"PRAGMA user_version = {implementation.USER_VERSION}")
        made.execute("PRAGMA journal_mode = WAL")
        made.execute(SCHEMA[0])
        made.executemany("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", rows)
        for sql in SCHEMA[1:]:
            made.execute(sql)


def chained(path, number, change):
    """By somebody who knows how hashes are made as well, and makes all that follow anew."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        rows = database.execute("SELECT number, body FROM entries ORDER BY number").fetchall()
    statements, previous = [], None
    for place, text in rows:
        body = {**json.loads(text), "previous": previous}
        body = {**body, **change} if place == number else body
        text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        digest = hashlib.sha256(text.encode()).digest()
        previous = digest.hex()
        statements.append(("UPDATE entries SET body = ?, hash = ? WHERE number = ?", (text, digest, place)))
    changed(path, *statements)
    path.with_name("ledger.head").unlink()


FORGERIES = {
    "an entry less": ["DELETE FROM entries WHERE number = 3"],
    "the last entry less": ["DELETE FROM entries WHERE number = 4"],
    "no entry at all": ["DELETE FROM entries"],
    "all but the first": ["DELETE FROM entries WHERE number > 1"],
    "entries swapped": [
        "UPDATE entries SET number = -3 WHERE number = 3",
        "UPDATE entries SET number = 3 WHERE number = 4",
        "UPDATE entries SET number = 4 WHERE number = -3",
    ],
    "a higher limit": ["UPDATE entries SET body = replace(body, '3.0', '9.0') WHERE number = 1"],
    "a smaller price": [f"UPDATE entries SET body = replace(body, '{PRICE.epsilon}', '0.1') WHERE number = 2"],
    "another plan": ["UPDATE entries SET body = replace(body, 'a plan', 'b plan') WHERE number = 2"],
    "another round": ["UPDATE entries SET body = replace(body, '\"round\":1', '\"round\":2') WHERE number = 4"],
    "another hash": ["UPDATE entries SET hash = zeroblob(32) WHERE number = 2"],
    "an entry twice": [
        "INSERT INTO entries SELECT number + 1, body, reply, hash, signature FROM entries WHERE number = 4"
    ],
    "a signature": ["UPDATE entries SET signature = zeroblob(64) WHERE number = 2"],
    "a later signature": ["UPDATE entries SET signature = zeroblob(64) WHERE number = 4"],
    "a text for a blob": ["UPDATE entries SET hash = hex(hash) WHERE number = 2"],
}
IN_REPLIES = {
    "another reply": ["UPDATE entries SET reply = 'forged' WHERE number = 4"],
    "no reply": ["UPDATE entries SET reply = NULL WHERE number = 4"],
    "a reply too many": ["UPDATE entries SET reply = x'00' WHERE number = 2"],
}
IN_TABLES = [
    "DROP TRIGGER entries_stay",
    "CREATE TABLE more (a)",
    "CREATE INDEX more ON entries (hash)",
    "CREATE TRIGGER more AFTER INSERT ON entries BEGIN SELECT 1; END",
    "PRAGMA user_version = 7",
    "PRAGMA application_id = 7",
    "VACUUM",
]


def test_the_forger_of_these_tests_can_make_a_ledger(path):
    changed(path)
    with Ledger.open(path) as ledger:
        assert ledger.verify() == 4


@pytest.mark.parametrize("statements", FORGERIES.values(), ids=FORGERIES.keys())
def test_a_forged_ledger_is_refused_and_left_alone(path, statements):
    changed(path, *statements)
    before = path.read_bytes()
    with pytest.raises(InputError, match="left as it is"), Ledger.open(path) as ledger:
        ledger.verify()
    assert path.read_bytes() == before


@pytest.mark.parametrize("statements", IN_REPLIES.values(), ids=IN_REPLIES.keys())
def test_forged_replies_are_found_and_never_sent(path, statements):
    changed(path, *statements)
    with Ledger.open(path) as ledger:
        with pytest.raises(InputError, match="repl"):
            ledger.verify()
        assert ledger.reply("run", 0) == b"first"
        if "2" not in statements[0]:
            with pytest.raises(InputError, match="the reply of entry 4 was changed"):
                ledger.reply("run", 1)


@pytest.mark.parametrize("statement", IN_TABLES)
def test_other_tables_are_found(path, statement):
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute(statement)
    with pytest.raises(InputError, match="left as it is"), Ledger.open(path) as ledger:
        ledger.verify()


BAD_ENTRIES = [
    (2, {"price": {**PRICE.to_dict(), "epsilon": "nan"}}),
    (2, {"price": {**PRICE.to_dict(), "epsilon": -100}}),
    (2, {"price": {**PRICE.to_dict(), "epsilon": True}}),
    (2, {"price": {**PRICE.to_dict(), "epsilon": 10**400}}),
    (2, {"time": 10**400}),
    (1, {"limit": {"epsilon": 10**400, "delta": 0.1, "days": None}}),
    (2, {"price": {**PRICE.to_dict(), "delta": 2}}),
    (2, {"price": {**PRICE.to_dict(), "delta": "infinite"}}),
    (2, {"price": {**PRICE.to_dict(), "gaussian": -1}}),
    (2, {"price": {**PRICE.to_dict(), "curve": [[0.0], [0.0]]}}),
    (2, {"price": None}),
    (2, {"terms": None}),
    (2, {"terms": {"adjacency": "replace-one"}}),
    (2, {"what": 3}),
    (2, {"what": "a\x1b[2Jb"}),
    (2, {"rounds": 0}),
    (2, {"note": "approved"}),
    (2, {"time": "yesterday"}),
    (2, {"time": True}),
    (2, {"sqlite": 3.45}),
    (2, {"kind": "created"}),
    (2, {"kind": "forgiven"}),
    (3, {"round": 7}),
    (3, {"round": True}),
    (3, {"run": "another"}),
    (3, {"reply": "not hexadecimal"}),
    (4, {"round": 0}),
    (1, {"format": "coterie-ledger-0"}),
    (1, {"composition": "optimism"}),
    (1, {"limit": {"epsilon": -1.0, "delta": 0.1, "days": None}}),
    (1, {"owner": "me"}),
]


@pytest.mark.parametrize(("number", "change"), BAD_ENTRIES, ids=str)
def test_entries_that_make_no_sense_are_refused_even_when_chained(plain, number, change):
    chained(plain, number, change)
    with pytest.raises(InputError, match="left as it is"):
        Ledger.open(plain)


@pytest.mark.parametrize("text", ["5", "null", '"entry"', "[]", "true"])
def test_an_entry_that_is_no_table_is_refused(plain, text):
    changed(
        plain,
        ("UPDATE entries SET body = ?, hash = ? WHERE number = 4", (text, hashlib.sha256(text.encode()).digest())),
    )
    plain.with_name("ledger.head").unlink()
    with pytest.raises(InputError, match=r"an entry is no table.*left as it is"):
        Ledger.open(plain)


@pytest.fixture(scope="module")
def booked():
    """What the entries of a ledger say that was made, and in which a run of five rounds was reserved."""
    with Ledger.create(None) as ledger:
        reserve(ledger)
        return [(entry.kind, entry.content) for entry in ledger.entries()]


def replayed(steps):
    """Entries that are chained as they have to be, whatever they say."""
    state = entries.State()
    for number, (kind, content) in enumerate(steps, 1):
        previous = None if state.hash is None else state.hash.hex()
        text = entries.canonical({**content, "kind": kind, "time": 1.0, "sqlite": "3.45.0", "previous": previous})
        state.add(number, text, hashlib.sha256(text.encode()).digest(), None)
    return state.runs["run"]


def committed(t):
    return "committed", {"run": "run", "round": t, "request": "request", "reply": "00"}


BACK, ENDED = (("given-back", {"run": "run"}), ("ended", {"run": "run"}))


@pytest.mark.parametrize("steps", [[], [committed(0)], [committed(0), committed(4)], [committed(2), ENDED], [BACK]])
def test_what_may_follow_a_reservation(booked, steps):
    run = replayed([*booked, *steps])
    assert (run.given_back, run.ended) == (BACK in steps, ENDED in steps)
    assert list(run.committed) == [content["round"] for kind, content in steps if kind == "committed"]


OUT_OF_ORDER = {
    "a price given back for rounds that were released": [committed(0), BACK],
    "a price given back twice": [BACK, BACK],
    "a price given back for a run that was charged and has ended": [committed(0), ENDED, BACK],
    "a round without a price": [BACK, committed(0)],
    "a round after the end": [ENDED, committed(0)],
    "an end of what was given back": [BACK, ENDED],
    "an end twice": [ENDED, ENDED],
    "a round twice": [committed(0), committed(0)],
    "a round before the last one": [committed(3), committed(2)],
    "a round beyond the last one": [committed(5)],
    "a round before the first one": [committed(-1)],
}


@pytest.mark.parametrize("steps", OUT_OF_ORDER.values(), ids=OUT_OF_ORDER.keys())
def test_entries_in_an_order_that_makes_no_sense_are_refused_even_when_chained(booked, steps):
    replayed([*booked, *steps[:-1]])
    with pytest.raises(ValueError, match="was not to be"):
        replayed([*booked, *steps])


def test_what_was_chained_anew_is_found_by_signature_and_by_receipt(tmp_path):
    cheap = {"price": {**PRICE.to_dict(), "epsilon": 0.1}}
    signed = filled(tmp_path / "ledger", KEY)
    chained(signed, 2, cheap)
    with pytest.raises(InputError, match="signature is not the owner's"):
        Ledger.open(signed)
    (tmp_path / "other").mkdir()
    unsigned = filled(tmp_path / "other" / "ledger")
    with Ledger.open(unsigned) as ledger:
        receipt = ledger.head()
    chained(unsigned, 2, cheap)
    with Ledger.open(unsigned) as ledger, pytest.raises(InputError, match="went back"):
        ledger.verify(receipt)


@pytest.mark.parametrize(("number", "change"), [(2, {"what": "something else"}), (4, {"round": 2})])
def test_whatever_was_chained_anew_is_found_when_a_signed_ledger_is_opened(number, change, tmp_path):
    """Only the last signature is looked at then, which covers all that came before."""
    signed = filled(tmp_path / "ledger", KEY)
    chained(signed, number, change)
    with pytest.raises(InputError, match="signature is not the owner's"):
        Ledger.open(signed)


def found_or_not(path, receipt):
    """Whether `verify` notices that something is wrong."""
    for ending in ("-wal", "-shm"):
        path.with_name(path.name + ending).unlink(missing_ok=True)
    try:
        with Ledger.open(path) as ledger:
            ledger.verify(receipt)
    except CoterieError:
        return True
    return False


def edits_missed(path, step, masks):
    whole = path.read_bytes()
    with Ledger.open(path) as ledger:
        receipt = ledger.head()
    assert not found_or_not(path, receipt)
    missed = []
    for mask in masks:
        for place in range(0, len(whole), step):
            edited = bytearray(whole)
            edited[place] ^= mask
            path.write_bytes(edited)
            if not found_or_not(path, receipt):
                missed.append(place)
    path.write_bytes(whole)
    assert not found_or_not(path, receipt)
    return missed


@pytest.mark.parametrize("mask", [1, 255])
def test_some_single_byte_edits_are_found(path, mask):
    assert edits_missed(path, 131, (mask,)) == []


@pytest.mark.slow
def test_every_single_byte_edit_is_found(templates, tmp_path):
    assert edits_missed(copied(templates[KEY], tmp_path), 1, (1, 255)) == []


@pytest.mark.slow
def test_edits_of_a_larger_ledger_are_found(templates, tmp_path):
    """Pages that lead to others, and a reply that goes on in others."""
    path = copied(templates[KEY], tmp_path)
    with Ledger.open(path, KEY) as ledger:
        ledger.commit("run", 2, bytes(9000), "request 2")
        for run in range(10):
            reserve(ledger, f"run {run}")
            ledger.give_back(f"run {run}")
    assert edits_missed(path, 13, (255,)) == []


def test_an_edit_of_unused_space_in_the_root_of_a_ledger_of_two_levels_is_found(tmp_path):
    place = tmp_path / "ledger"
    with Ledger.create(place) as ledger:
        reserve(ledger, rounds=40)
        for t in range(40):
            ledger.commit("run", t, bytes(500), f"request {t}")
        receipt = ledger.head()
    edited = bytearray(place.read_bytes())
    size = int.from_bytes(edited[16:18], "big")
    root = edited[size : 2 * size]
    kind, after_cells = root[0], 12 + 2 * int.from_bytes(root[3:5], "big")
    # an interior page, with room between its list of cells and the cells
    assert kind == 5
    assert after_cells < int.from_bytes(root[5:7], "big")
    edited[size + after_cells] = 1
    place.write_bytes(edited)
    assert found_or_not(place, receipt)


@pytest.mark.slow
def test_unused_space_stays_empty_however_a_ledger_grows(tmp_path):
    with Ledger.create(tmp_path / "ledger") as ledger:
        reserve(ledger, rounds=3000)
        for t in range(3000):
            ledger.commit("run", t, bytes([t % 255 + 1]) * (37 * t % 9001), f"request {t}")
            if t % 500 == 0:
                ledger.verify()
    with Ledger.open(tmp_path / "ledger") as ledger:
        assert ledger.verify() == 3002


def test_a_file_that_was_cut_off_or_added_to_is_found(path):
    whole = path.read_bytes()
    with Ledger.open(path) as ledger:
        receipt = ledger.head()
    for content in (whole + b"x", whole + bytes(4096), whole[:-1], whole[:4096], whole[:100], whole[:50]):
        path.write_bytes(content)
        assert found_or_not(path, receipt), len(content)


@pytest.mark.parametrize("log", [None, b"", b"a page"])
def test_a_file_is_shorter_than_its_pages_only_while_some_wait_in_its_log(log, tmp_path):
    file = tmp_path / "ledger"
    if log is not None:
        file.with_name("ledger-wal").write_bytes(log)
    accepted = set()
    for length in range(4):
        file.write_bytes(bytes(length))
        with contextlib.suppress(ValueError):
            Ledger._check_length(file, 2)
            accepted.add(length)
    assert accepted == ({1, 2} if log else {2})


@pytest.mark.parametrize("mask", [1, 255])
def test_edits_of_what_is_not_yet_in_the_file_itself_are_found(tmp_path, mask):
    """The newest entries lie in the write-ahead log until they are moved; a damaged log is taken for a shorter one."""
    place = tmp_path / "ledger"
    with Ledger.create(place, key=KEY) as ledger:
        reserve(ledger)
        ledger.commit("run", 0, b"first", "request 0")
        files = {ending: place.with_name(f"ledger{ending}").read_bytes() for ending in ("", "-wal", ".head")}
    copy = tmp_path / "copy"
    copy.mkdir()
    log = files["-wal"]
    for at in range(0, len(log), 397):
        edited = bytearray(log)
        edited[at] ^= mask
        for ending, content in {**files, "-wal": bytes(edited)}.items():
            (copy / f"ledger{ending}").write_bytes(content)
        (copy / "ledger-shm").unlink(missing_ok=True)
        try:
            with Ledger.open(copy / "ledger") as ledger:
                ledger.verify()
                # an old frame, which another one has replaced since
                assert ledger.reply("run", 0) == b"first"
        except InputError:
            pass


# --- what cannot be written -------------------------------------------------------------------------------------------


def test_a_write_protected_ledger_or_folder_is_refused(plain, tmp_path):
    with Ledger.open(plain) as ledger:
        for place in (plain, tmp_path):
            mode = place.stat().st_mode
            place.chmod(mode & ~0o222)
            try:
                with pytest.raises(LedgerError, match=r"write-protected; nothing was charged"):
                    ledger.commit("run", 2, b"third", "request 2")
            finally:
                place.chmod(mode)
        assert ledger.verify() == 4


NO_RIGHTS = """
import os, sys
import scipy.special, sqlite3.dbapi2  # which nobody may not be allowed to read
from coterie.errors import CoterieError
from coterie.ledger import Ledger
if os.getuid() == 0:
    os.setuid(65534)
try:
    Ledger.open(sys.argv[1])
except CoterieError as error:
    print(error)
"""


OPENED = """
import sys
from coterie.errors import CoterieError
from coterie.ledger import Ledger
try:
    Ledger.open(sys.argv[1])
except CoterieError as error:
    print(error)
"""


def test_a_ledger_of_somebody_else_ends_in_a_sentence(plain):
    plain.chmod(0)
    assert "nothing was charged" in run(NO_RIGHTS, plain)


def test_a_held_lock_ends_in_a_sentence(plain, monkeypatch):
    monkeypatch.setattr(implementation, "LOCK_TIMEOUT_S", 0.2)
    with contextlib.closing(sqlite3.connect(plain, isolation_level=None)) as holder, Ledger.open(plain) as ledger:
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerError, match=r"another process.*nothing was charged"):
            ledger.commit("run", 2, b"third", "request 2")
        # reading goes on
        assert ledger.reply("run", 1) == b"second"
        holder.execute("ROLLBACK")
        ledger.commit("run", 2, b"third", "request 2")


FULL_DISK = """
import resource, signal, sys
from coterie.errors import CoterieError
from coterie.ledger import Ledger
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with Ledger.open(sys.argv[1]) as ledger:
    before = ledger.head()
    # no file may grow beyond this, as where a disk or a quota is full
    resource.setrlimit(resource.RLIMIT_FSIZE, (20000, resource.RLIM_INFINITY))
    try:
        ledger.commit("run", 2, b"x" * 30000, "request 2")
    except CoterieError as error:
        print(error)
    assert ledger.reply("run", 2) is None
    assert ledger.head() == before
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    ledger.commit("run", 2, b"third", "request 2")
    assert ledger.verify() == 5
"""


def run(program, *arguments):
    """In a process of its own: JAX, which other tests load, warns of forks, and limits are for good."""
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_full_disk_charges_nothing(plain):
    said = run(FULL_DISK, plain)
    assert "cannot be written" in said
    assert "nothing was charged" in said
    with Ledger.open(plain) as ledger:
        assert ledger.verify() == 5


def test_a_head_that_cannot_be_kept_leaves_nothing_behind(plain, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = sorted(path.name for path in plain.parent.iterdir())
    monkeypatch.setattr(implementation.os, "pwrite", full)
    monkeypatch.setattr(implementation.os, "replace", full)
    with Ledger.open(plain) as ledger:
        ledger.commit("run", 2, b"third", "request 2")
    monkeypatch.undo()
    assert sorted(path.name for path in plain.parent.iterdir()) == before
    with Ledger.open(plain) as ledger:
        assert ledger.reply("run", 2) == b"third"


@pytest.mark.parametrize("found", ["as it was kept", "shorter", "a link", "with another name"])
def test_a_head_is_written_in_place_where_it_is_one_file_of_its_length(found, plain, tmp_path):
    head, other = plain.with_name("ledger.head"), tmp_path / "other"
    kept = head.read_bytes()
    if found == "shorter":
        head.write_bytes(kept.rstrip())
    elif found == "a link":
        head.rename(other)
        head.symlink_to(other)
    elif found == "with another name":
        other.hardlink_to(head)
    before = head.stat().st_ino
    with Ledger.open(plain) as ledger:
        ledger.commit("run", 2, b"third", "request 2")
        receipt = ledger.head()
    assert (head.stat().st_ino == before) == (found == "as it was kept")
    assert Receipt.from_json(head.read_text()) == receipt
    assert not head.is_symlink()
    # whoever kept a copy by another name has it still
    assert not other.exists() or other.read_bytes() == kept


FORK = """
import os, sys
from coterie.errors import CoterieError
from coterie.ledger import Ledger

def in_child(use):
    child = os.fork()
    if child == 0:
        try:
            use()
        except CoterieError:
            os._exit(7)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def anew():
    with Ledger.open(sys.argv[1]) as ledger:
        ledger.commit("run", 3, b"fourth", "request 3")

ledger = Ledger.open(sys.argv[1])
assert in_child(lambda: ledger.commit("run", 2, b"third", "request 2")) == 7
assert in_child(anew) == 7  # SQLite would take the parent's locks for its own

def elsewhere():
    with Ledger.create(sys.argv[1] + ".other") as other:
        other.set_limit(1.0, 1e-5)

assert in_child(elsewhere) == 0  # which are not those of another file
ledger.commit("run", 2, b"third", "request 2")
ledger.close()
assert in_child(anew) == 0
with Ledger.open(sys.argv[1]) as ledger:
    assert ledger.verify() == 6
memory = Ledger.create(None)
assert in_child(lambda: memory.set_limit(1.0, 1e-5)) == 7
"""


def test_forks(plain):
    run(FORK, plain)


# --- kills and races --------------------------------------------------------------------------------------------------


@pytest.fixture
def trials(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    return importlib.import_module("ledger_trials")


def test_of_two_runs_that_race_for_the_last_of_a_budget_one_gets_it(trials, tmp_path):
    assert trials.races(tmp_path, 5).keys() <= trials.ONE_GETS_IT


@pytest.mark.slow
def test_killed_processes_lose_nothing_and_double_nothing(trials, tmp_path):
    """What was sent is in the ledger, once, and is sent again byte for byte, whenever a process is killed."""
    Ledger.create(tmp_path / "ledger").close()
    sent, faults = trials.kills(tmp_path / "ledger", 10, random.Random(0))
    assert sent > 10
    assert faults == []


def test_entries_of_the_future_do_not_go_back(plain, monkeypatch):
    """A clock that is a little behind another process's does no harm, and entries stay in order."""
    with Ledger.open(plain) as ledger:
        last = list(ledger.entries())[-1].time
        monkeypatch.setattr(entries.time, "time", lambda: last - 1.0)
        ledger.commit("run", 2, b"third", "request 2")
        assert list(ledger.entries())[-1].time == last


def test_terms_say_what_is_protected():
    assert "2 records per person" in str(dataclasses.replace(RECORD, records_per_person=2))


def test_terms_of_parties_add_up_where_their_sizes_agree_or_are_not_known():
    one, same, other, unknown = (
        Terms.of("zero-out", "party", parties="ab", sizes=sizes) for sizes in ((1, 2), (1, 2), (1, 3), None)
    )
    assert one.add_up_with(same)
    assert one.add_up_with(unknown)
    assert not one.add_up_with(other)
