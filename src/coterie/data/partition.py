"""Deal records to simulated parties: each function returns one party number per row.

A partition is for experiments, so its randomness is public: a seed or a NumPy generator.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from coterie.errors import InputError
from coterie.values import distinct, plain_array, positive_number, refuse_missing, whole_number


def evenly(n_records: int, n_parties: int, *, seed: int | np.random.Generator) -> np.ndarray:
    """A random permutation cut into `n_parties` pieces whose sizes differ by at most one."""
    n_records, n_parties = _counts(n_records, n_parties)
    pieces = np.array_split(_generator(seed).permutation(n_records), n_parties)
    return _numbered(pieces, n_records)


def unevenly(n_records: int, shares: Sequence[float], *, seed: int | np.random.Generator) -> np.ndarray:
    """A random permutation cut in proportion to `shares`; every party gets at least one record."""
    if np.ndim(shares) != 1 or len(shares) == 0:
        raise InputError(f"shares: got {shares!r}; one positive number per party is needed")
    weights = np.array([positive_number(f"shares[{i}]", share) for i, share in enumerate(shares)])
    n_records, n_parties = _counts(n_records, len(weights))
    # the plain sum could overflow
    weights = weights / weights.max()
    wanted = n_records * (weights / weights.sum())
    sizes = np.floor(wanted).astype(np.int64)
    left_over = n_records - int(sizes.sum())
    # to the largest remainders
    sizes[np.argsort(sizes - wanted, kind="stable")[:left_over]] += 1
    for party in range(n_parties):
        if sizes[party] == 0:
            sizes[np.argmax(sizes)] -= 1
            sizes[party] = 1
    order = _generator(seed).permutation(n_records)
    return _numbered(np.split(order, np.cumsum(sizes)[:-1]), n_records)


def dirichlet(
    y: Any, n_parties: int, *, concentration: float, seed: int | np.random.Generator, min_records: int = 2
) -> np.ndarray:
    """Label skew: each class is dealt in proportions drawn from a symmetric Dirichlet law.

    A small `concentration` gives parties that see few classes, a large one nearly equal mixtures.
    Parties left with fewer than `min_records` then take records from the party that is largest at that moment.
    """
    labels = plain_array("y", y, ndim=1)
    refuse_missing("y", labels)
    concentration = positive_number("concentration", concentration)
    # outside, drawing the proportions loses all precision
    if not 1e-6 <= concentration <= 1e6:
        raise InputError(f"concentration: got {concentration}; a number from 1e-6 to 1e6 is needed")
    min_records = whole_number("min_records", min_records, at_least=1)
    n_records, n_parties = _counts(len(labels), n_parties)
    if n_records < n_parties * min_records:
        raise InputError(
            f"n_parties: got {n_parties}; {n_records} records cannot give each party min_records={min_records}"
        )
    generator = _generator(seed)
    party_of_row = np.empty(n_records, dtype=np.int64)
    for label in distinct(labels):
        rows = generator.permutation(np.flatnonzero(labels == label))
        proportions = generator.dirichlet(np.full(n_parties, concentration))
        cuts = np.rint(np.cumsum(proportions)[:-1] * len(rows)).astype(np.int64)
        for party, piece in enumerate(np.split(rows, cuts)):
            party_of_row[piece] = party
    sizes = np.bincount(party_of_row, minlength=n_parties)
    for party in range(n_parties):
        while sizes[party] < min_records:
            largest = int(np.argmax(sizes))
            moved = generator.choice(np.flatnonzero(party_of_row == largest))
            party_of_row[moved] = party
            sizes[largest] -= 1
            sizes[party] += 1
    return party_of_row


def _counts(n_records: int, n_parties: int) -> tuple[int, int]:
    n_records = whole_number("n_records", n_records, at_least=1)
    n_parties = whole_number("n_parties", n_parties, at_least=1)
    if n_parties > n_records:
        raise InputError(f"n_parties: got {n_parties} for {n_records} records; no party may be empty")
    return n_records, n_parties


def _generator(seed: int | np.random.Generator) -> np.random.Generator:
    if isinstance(seed, np.random.Generator):
        return seed
    return np.random.default_rng(whole_number("seed", seed, at_least=0))


def _numbered(pieces: list[np.ndarray], n_records: int) -> np.ndarray:
    party_of_row = np.empty(n_records, dtype=np.int64)
    for party, rows in enumerate(pieces):
        party_of_row[rows] = party
    return party_of_row
