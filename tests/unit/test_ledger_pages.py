"""Unused space of a ledger's file, in files that SQLite wrote and this package did not."""

import sqlite3

import pytest

from coterie.ledger.pages import check_unused

VERSION = 7


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """One entry that fills pages of its own, the last of them in part: the schema, the table, and four more.

    SQLite keeps the rest of a long entry beside its beginning if that leaves no page in part; this one is too long.
    """
    path = tmp_path_factory.mktemp("pages") / "file"
    connection = sqlite3.connect(path, isolation_level=None)
    for pragma in ("page_size = 512", "journal_mode = wal", f"user_version = {VERSION}"):
        connection.execute(f"PRAGMA {pragma}")
    connection.execute("CREATE TABLE entry (content TEXT)")
    connection.execute("INSERT INTO entry VALUES (?)", ("x" * 2030,))
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    content = path.read_bytes()
    assert len(content) == 6 * 512
    return content


def look(image, writers=(sqlite3.sqlite_version,)):
    check_unused(image, user_version=VERSION, schema_version=1, writers=writers)


def changed(image, place):
    return image[:place] + b"!" + image[place + 1 :]


def test_a_file_as_sqlite_leaves_it_is_accepted(image):
    look(image)
    look(image, writers=("3.6.0", sqlite3.sqlite_version))


def test_behind_what_goes_on_in_other_pages_nothing_may_hide(image):
    last = image[-512:]
    used = len(last.rstrip(b"\0"))
    assert 4 < used < 500
    for place in (used, 511):
        with pytest.raises(ValueError, match="unused space of page 6 holds something"):
            look(changed(image, len(image) - 512 + place))
    # of what is used SQLite's check and an entry's hash know
    look(changed(image, len(image) - 512 + used - 1))


def test_a_writer_that_no_entry_names_is_found(image):
    with pytest.raises(ValueError, match="a version of SQLite that no entry names"):
        look(image, writers=("3.6.0",))


@pytest.mark.parametrize("place", [18, 24, 40, 47, 50, 59, 63, 66, 80])
def test_other_headers_are_found(image, place):
    with pytest.raises(ValueError, match="of its header were changed"):
        look(changed(image, place))
