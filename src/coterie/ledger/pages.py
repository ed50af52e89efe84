"""Nothing may hide where SQLite does not look: bytes of a ledger's file that hold no entry are as it leaves them.

Entries are protected by their hashes, and SQLite's own integrity check covers what leads to them. What is left is the
header of the file and the space between and behind entries: zeros in a file to which was only ever added. Not looked at
is unused space of pages that hold no entries but lead to them, in ledgers of more than some 400 pages of entries.
The layout is that of https://www.sqlite.org/fileformat2.html.
"""

import itertools
from collections.abc import Iterable

# of the schema, and of the one table
ROOTS = (1, 2)
LEAF, INTERIOR = 13, 5


def check_unused(image: bytes, *, user_version: int, schema_version: int, writers: Iterable[str]) -> None:
    """Raise ValueError where an unused byte holds something.

    writers: the versions of SQLite that have written to the file, of which the header names one.
    """
    _check_header(image[:100], user_version, schema_version, writers)
    size = _number(image[16:18])
    size, usable = (65536 if size == 1 else size), (65536 if size == 1 else size) - image[20]
    deep = _depth(image, size) > 2
    todo: list[int] = [*ROOTS]
    while todo:
        number = todo.pop()
        page = image[(number - 1) * size : number * size]
        start = 100 if number == 1 else 0
        kind, n_cells = page[start], _number(page[start + 3 : start + 5])
        if kind not in (LEAF, INTERIOR):
            raise ValueError(f"page {number} is of kind {kind}")
        cells = start + (8 if kind == LEAF else 12)
        end = cells + 2 * n_cells
        content = _number(page[start + 5 : start + 7]) or 65536
        unused = page[start + 1 : start + 3] + page[start + 7 : start + 8] + page[end:content] + page[usable:]
        # where such a page has become full, SQLite leaves in it what it has moved to another
        if any(unused) and not (kind == INTERIOR and deep):
            raise ValueError(f"unused space of page {number} holds something")
        for at in range(cells, end, 2):
            cell = page[_number(page[at : at + 2]) :]
            if kind == LEAF:
                _check_overflow(image, size, usable, cell)
            else:
                todo.append(_number(cell[:4]))
        if kind == INTERIOR:
            todo.append(_number(page[start + 8 : start + 12]))


def _depth(image: bytes, size: int) -> int:
    """How many pages lie between the root of the table and its entries, both counted."""
    number, depth = ROOTS[1], 1
    while image[(number - 1) * size] == INTERIOR and depth < 10:
        number, depth = _number(image[(number - 1) * size + 8 : (number - 1) * size + 12]), depth + 1
    return depth


def _check_header(header: bytes, user_version: int, schema_version: int, writers: Iterable[str]) -> None:
    expected = {
        # write-ahead log
        (18, 20): b"\2\2",
        # changes counted twice
        (24, 28): header[92:96],
        (40, 44): schema_version.to_bytes(4, "big"),
        (44, 48): (4).to_bytes(4, "big"),
        (48, 56): bytes(8),
        # UTF-8
        (56, 60): (1).to_bytes(4, "big"),
        (60, 64): user_version.to_bytes(4, "big"),
        (64, 68): bytes(4),
        (72, 92): bytes(20),
    }
    for (start, stop), content in expected.items():
        if header[start:stop] != content:
            raise ValueError(f"bytes {start} to {stop - 1} of its header were changed")
    if _number(header[96:100]) not in {_as_number(version) for version in writers}:
        raise ValueError("its header names a version of SQLite that no entry names")


def _as_number(version: str) -> int:
    major, minor, patch = (*map(int, version.split(".")[:3]), 0, 0)[:3]
    return major * 1_000_000 + minor * 1000 + patch


def _check_overflow(image: bytes, size: int, usable: int, cell: bytes) -> None:
    """What does not fit into a cell goes on in pages of its own, the last of which may be partly unused."""
    payload, used = _varint(cell)
    used += _varint(cell[used:])[1]
    most, least = usable - 35, (usable - 12) * 32 // 255 - 23
    if payload <= most:
        return
    local = least + (payload - least) % (usable - 4)
    local = local if local <= most else least
    left, following = payload - local, _number(cell[used + local : used + local + 4])
    while left > 0:
        page = image[(following - 1) * size : following * size]
        number, following = following, _number(page[:4])
        if left < usable - 4 and any(page[4 + left :]):
            raise ValueError(f"unused space of page {number} holds something")
        left -= usable - 4


def _varint(content: bytes) -> tuple[int, int]:
    """A number of variable length, and its length."""
    value = 0
    for place, byte in enumerate(itertools.islice(content, 8)):
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            return value, place + 1
    return value << 8 | content[8], 9


def _number(content: bytes) -> int:
    return int.from_bytes(content, "big")
