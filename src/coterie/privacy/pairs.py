"""Noise that pairs of parties share and that cancels in the sum of their messages.

Party i sends v_i + n_i + sum_j +-m_ij: n_i ~ N(0, own^2) is its own, and m_ij ~ N(0, pair^2) is drawn by both ends of a
pair from what only they know, added by the one and taken off by the other (after GOPA, Sabater, Bellet & Ramon, 2022,
and DECOR, Allouah et al., 2024). *Observer:* somebody who sees every message and holds what t colluding parties know.
Given that, the messages of the others have the covariance

    Sigma = own^2 I + pair^2 L        in every coordinate, L the Laplacian of the graph of pairs among them,

so a change of v_i alone by at most G is one Gaussian release with sensitivity G and variance s^2 = 1/[Sigma^-1]_ii.
Here everything is in units of the worst s, over parties and over who colludes; messages have at most variance `spread`:

    own^2 + D pair^2 = spread,     max over honest sets and i of [Sigma^-1]_ii = 1,     D the most partners of a party.

*Who colludes.* On a complete graph all honest sets of H = N - t are alike and

    [Sigma^-1]_ii = 1/(H own^2) + (1 - 1/H)/(own^2 + H pair^2).

On other graphs all honest sets are gone through where they are few. Where they are many, eigenvalues other than that of
the vector of ones are at least a - t, with a the algebraic connectivity of the whole graph (taking away t vertices
lowers it by at most t: Fiedler, 1973), so the same formula with a - t in the place of H is an upper bound; a graph with
a <= t is refused. Fewer colluders know less, so t of them are the worst case.

*People at several parties* move all messages: d' Sigma^-1 d <= |d|^2 / own^2, reached where all move alike.

*Doubles.* Own and pair noise are rounded Gaussians, whole numbers of steps of one grid, added modulo 2^64;
docs/guarantees.md has the proof that this costs what the continuous noise costs.
"""

import functools
import itertools
import math
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np

from coterie.errors import InputError
from coterie.network.topology import AllPairs, Topology
from coterie.privacy.noise import STEPS, Keys

# of eigenvectors of honest sets that are gone through one by one
MOST_NUMBERS = 10**7


class PairNoise(NamedTuple):
    """Standard deviations, in units of the one that hides what a single party puts in."""

    own: float
    pair: float

    @property
    def pair_steps(self) -> float:
        """Steps of the grid in one standard deviation of a pair's noise; own noise has STEPS."""
        return STEPS * self.pair / self.own


@functools.lru_cache(maxsize=256)
def solve(graph: Topology, colluders: int, spread: float) -> PairNoise:
    """The least own noise, and the pairs', with which what one party puts in is hidden as by one unit."""
    n, most_partners = graph.n_parties, int(graph.degrees.max())
    if not 0 <= colluders < n - 1:
        raise InputError(
            f"colluders: got {colluders} of {n} parties; at most {n - 2} leave a party somebody honest to share noise "
            "with"
        )
    if not (spread >= 2 and math.isfinite(spread)):
        raise InputError(f"spread: got {spread}; a finite number of at least 2 is needed")
    weights, eigenvalues = _spectra(graph, colluders)

    def noise(own: float) -> PairNoise:
        return PairNoise(math.sqrt(own), math.sqrt((spread - own) / most_partners))

    def exposure(own: float) -> float:
        """max [Sigma^-1]_ii."""
        pair = (spread - own) / most_partners
        return float((weights / (own + pair * eigenvalues)).sum(axis=-1).max())

    # with an own variance of 1 the pairs' noise comes on top; with that of an equal share of 1 it is too little
    low, high = 1 / (n - colluders), 1.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if exposure(middle) > 1 else (low, middle)
    return noise(high)


def _spectra(graph: Topology, colluders: int) -> tuple[np.ndarray, np.ndarray]:
    """Squared entries of eigenvectors of honest parts of the graph, and their eigenvalues, whatever leading axes."""
    honest, connectivity = graph.n_parties - colluders, _algebraic_connectivity(graph)
    n_sets = math.comb(graph.n_parties, colluders)
    if isinstance(graph.edges, AllPairs) or n_sets * honest**2 > MOST_NUMBERS:
        rest = connectivity - colluders
        if rest <= 1e-9 * graph.n_parties:
            raise InputError(
                f"colluders: got {colluders}; {n_sets:,} sets of them are too many to go through, and else the "
                f"algebraic connectivity of the graph of pairs, {connectivity:.3g}, must be larger: give parties more "
                "partners"
            )
        return np.array([1 / honest, 1 - 1 / honest]), np.array([0.0, rest])
    laplacian = _laplacian(graph)
    weights, eigenvalues = list[np.ndarray](), list[np.ndarray]()
    for absent in itertools.combinations(range(graph.n_parties), colluders):
        kept = np.setdiff1d(np.arange(graph.n_parties), absent)
        part = laplacian[np.ix_(kept, kept)]
        part[np.diag_indices(honest)] -= part.sum(axis=1)
        values, vectors = np.linalg.eigh(part)
        weights.append(vectors**2)
        eigenvalues.append(np.maximum(values, 0.0)[None])
    return np.array(weights), np.array(eigenvalues)


def _laplacian(graph: Topology) -> np.ndarray:
    laplacian = np.diag(graph.degrees.astype(float))
    one, two = np.asarray(graph.edges).T
    laplacian[one, two] = laplacian[two, one] = -1.0
    return laplacian


def _algebraic_connectivity(graph: Topology) -> float:
    if isinstance(graph.edges, AllPairs):
        return float(graph.n_parties)
    return float(np.linalg.eigvalsh(_laplacian(graph))[1])


class Steps(Protocol):
    def whole_steps(self, d: int, keys: Keys, steps: float) -> np.ndarray: ...


class PairStreams:
    """The pairs' noise of one party: a stream for each partner, that nobody else knows.

    Nothing may be drawn twice with other content: who asks again for a round must send again what was sent.
    """

    def __init__(self, party: int, streams: Mapping[int, Steps], noise: PairNoise) -> None:
        """`streams` by partner: of a secret between sites, `KeyedEntropy`."""
        self._party, self._streams, self._noise = party, streams, noise

    def steps(self, t: int, d: int) -> np.ndarray:
        """All of them together in round t, in whole steps: added by the first of a pair, taken off by the second."""
        total = np.zeros(d, np.int64)
        for partner, stream in self._streams.items():
            drawn = stream.whole_steps(d, [(0, 0, t)], self._noise.pair_steps)[0].astype(np.int64)
            total += drawn if self._party < partner else -drawn
        return total


def pair_secret(own: bytes, partner: bytes, run: str) -> bytes:
    """Of one pair and one run: X25519 between keys that everybody has approved, then HKDF.

    `own` is the private key of the one, `partner` the public key of the other, both raw; `run` names plan and run.
    """
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    shared = X25519PrivateKey.from_private_bytes(own).exchange(X25519PublicKey.from_public_bytes(partner))
    return HKDF(SHA256(), length=32, salt=None, info=b"coterie pair noise 1 " + run.encode()).derive(shared)
