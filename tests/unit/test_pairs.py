"""Noise that cancels between pairs: its price against coalitions, exactly, and that it does cancel."""

import itertools
import math

import networkx as nx
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from scipy.stats import norm

import coterie
from coterie.algorithms import NoisyGradientDescent
from coterie.audit.coalition import messages
from coterie.data.federation import Federation
from coterie.engines.in_process import run
from coterie.errors import InputError
from coterie.network.channels import Broadcast, Curator, PairwiseSum, SecureSum, channel_of
from coterie.network.topology import AllPairs, Topology, make_topology
from coterie.plan import Plan
from coterie.privacy.accountants import gaussian_delta, gaussian_epsilon
from coterie.privacy.events import Gaussian
from coterie.privacy.mechanisms import GaussianGradient
from coterie.privacy.noise import STEPS, KeyedEntropy, Seeded
from coterie.privacy.pairs import PairNoise, PairStreams, pair_secret, solve
from coterie.problems import L2, Logistic, Problem

RNG = np.random.default_rng(0)
PROBLEM = Problem(loss=Logistic(), regulariser=L2(1.0), record_weight=1.0)
ROUNDS = 4


def complete(n):
    return Topology(n, AllPairs(n))


def regular(n, degree, seed=0):
    return make_topology(nx.random_regular_graph(degree, n, seed=seed), n)


def exposure(noise: PairNoise, graph: nx.Graph, honest) -> float:
    """max [Sigma^-1]_ii among these parties."""
    laplacian = nx.laplacian_matrix(graph.subgraph(honest)).toarray()
    sigma = noise.own**2 * np.eye(len(laplacian)) + noise.pair**2 * laplacian
    return float(np.linalg.inv(sigma).diagonal().max())


def federation(n_parties, per_party=6):
    n = n_parties * per_party
    X = RNG.normal(size=(n, 3))
    y = RNG.choice(["no", "yes"], size=n)
    parties = np.repeat([f"p{i:02}" for i in range(n_parties)], per_party)
    return Federation.from_arrays(X, y, parties=parties, row_norm=1.0, labels=("no", "yes"))


def plan(facts, channel, **promise):
    algorithm = NoisyGradientDescent(
        mechanism=GaussianGradient(noise_multiplier=5.0), regulariser=PROBLEM.regulariser, channel=channel, step=0.1
    )
    promise = {"adjacency": "replace-one", **promise}
    return Plan.make(algorithm, PROBLEM, "complete", facts, rounds=ROUNDS, **promise)


# --- the price --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "colluders", "left"),
    [
        (5, 1, (1.5385, 1.3115, 1.2537, 1.25)),
        (20, 5, (1.8878, 1.4396, 1.3395, 4 / 3)),
        (100, 0, (1.3246, 1.0653, 1.0038, 1.0)),
        (100, 33, (2.3426, 1.6418, 1.5011, 100 / 67)),
    ],
)
def test_what_is_left_in_the_sum_tends_to_a_curators_noise(n, colluders, left):
    found = [n * solve(complete(n), colluders, spread).own ** 2 for spread in (4.0, 16.0, 256.0, 1e9)]
    assert found == pytest.approx(left, rel=1e-4)


@pytest.mark.parametrize("n", [3, 4, 7, 20, 50])
def test_on_a_complete_graph_the_price_is_exact(n):
    graph = complete(n)
    for colluders in range(n - 1):
        for spread in (2.0, 256.0):
            noise = solve(graph, colluders, spread)
            assert exposure(noise, graph.graph, range(n - colluders)) == pytest.approx(1.0, abs=1e-9)
            assert noise.own**2 + (n - 1) * noise.pair**2 == pytest.approx(spread, rel=1e-12)


@pytest.mark.parametrize(("n", "degree", "colluders"), [(8, 3, 2), (10, 4, 1), (10, 4, 3), (12, 5, 4), (9, 4, 4)])
def test_on_a_sparse_graph_the_worst_coalition_is_found(n, degree, colluders):
    """All honest sets, one by one, by inverting matrices; some fall apart."""
    graph = regular(n, degree)
    noise = solve(graph, colluders, 256.0)
    worst = max(exposure(noise, graph.graph, honest) for honest in itertools.combinations(range(n), n - colluders))
    assert worst == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize(("n", "degree", "colluders"), [(50, 20, 6), (40, 24, 9), (50, 30, 12)])
def test_where_coalitions_are_too_many_the_price_is_never_too_low(n, degree, colluders):
    """A search: coalitions around one party, among its partners or its partners' partners, and at random."""
    graph, rng = regular(n, degree), np.random.default_rng(1)
    noise = solve(graph, colluders, 256.0)
    for party in range(0, n, 5):
        near = np.array(graph.neighbours[party])
        for trial in range(20):
            pool = near if trial % 2 else np.setdiff1d(np.arange(n), [party])
            absent = set(rng.choice(pool, colluders, replace=False).tolist())
            assert exposure(noise, graph.graph, [i for i in range(n) if i not in absent]) <= 1 + 1e-12


def test_a_coalition_that_cuts_parties_off_makes_their_own_noise_count():
    """On a ring of six, two colluders leave a party alone with its neighbour, or with nobody."""
    graph = make_topology("ring", 6)
    assert solve(graph, 0, 256.0).own ** 2 == pytest.approx(1 / 6, rel=0.02)
    assert solve(graph, 2, 256.0).own == pytest.approx(1.0)


def test_the_stated_loss_is_that_of_the_gaussian_release():
    data = federation(7)
    for colluders in range(6):
        made = plan(data.facts, PairwiseSum(colluders=colluders))
        [(event, _)] = made.ledger(0)
        # one over the multiplier, and the grid
        assert event.ratio == pytest.approx(0.2, rel=1e-6)
        exact = gaussian_epsilon([(Gaussian(ratio=event.ratio), ROUNDS)], 1e-6)
        assert made.epsilon(1e-6) == pytest.approx(exact, rel=1e-9)
        assert made.observer().name == "coalition"


def test_people_at_several_parties_move_every_message():
    """The worst of all changes within the bounds, one a party: all alike, and own noise alone hides them."""
    n, channel = 5, PairwiseSum(colluders=1)
    noise = channel.pairs(n)
    laplacian = nx.laplacian_matrix(nx.complete_graph(n)).toarray()
    precision = np.linalg.inv(noise.own**2 * np.eye(n) + noise.pair**2 * laplacian)
    worst = max(np.array(signs) @ precision @ np.array(signs) for signs in itertools.product((-1, 1), repeat=n))
    assert channel.all_together(np.ones(n)) == pytest.approx(math.sqrt(worst), rel=1e-9)
    data = federation(n)
    spanning = plan(data.facts, channel, people_span_parties=True)
    curator = plan(data.facts, Curator(), people_span_parties=True)
    # whose sum carries less noise
    assert plan(data.facts, channel).epsilon(1e-6) < spanning.epsilon(1e-6) < curator.epsilon(1e-6)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"colluders": 4}, "colluders: got 4 of 5 parties"),
        ({"colluders": -1}, "colluders: got -1"),
        ({"colluders": 1.5}, "colluders: got 1.5"),
        ({"colluders": 1, "spread": 1.0}, "spread: got 1.0"),
        ({"colluders": 1, "graph": make_topology("ring", 6)}, "graph: got 6 parties"),
        ({"colluders": 1, "graph": make_topology("unrestricted", 5)}, "graph: got 'unrestricted'"),
    ],
)
def test_what_has_no_price_is_refused(settings, match):
    facts = federation(5).facts
    with pytest.raises(InputError, match=match):
        plan(facts, PairwiseSum(**settings))


def test_two_parties_have_nobody_to_hide_among():
    with pytest.raises(InputError, match="parties: got 2"):
        plan(federation(2).facts, PairwiseSum(colluders=0))


def test_too_few_partners_for_so_many_colluders():
    with pytest.raises(InputError, match="give parties more partners"):
        solve(regular(50, 10), 12, 256.0)


@pytest.mark.parametrize(("trust", "colluders"), [("pairs", None), ("none", 1), ("curator", 0), ("secure-sum", 2)])
def test_colluders_are_said_with_pairs_and_only_with_them(trust, colluders):
    given = "missing" if colluders is None else f"got {colluders}"
    with pytest.raises(InputError, match=f"^colluders: {given} with trust '{trust}';"):
        coterie.Privacy(epsilon=1.0, delta=1e-6, adjacency="replace-one", trust=trust, colluders=colluders)


def test_who_is_trusted_decides_what_carries_a_sum():
    assert channel_of("none", None) == Broadcast()
    assert channel_of("curator", None) == Curator()
    assert channel_of("secure-sum", None) == SecureSum()
    assert channel_of("pairs", 2) == PairwiseSum(colluders=2, spread=256.0)


# --- last bits: the law of messages on a grid so coarse that all outcomes can be listed -------------------------------


@pytest.mark.parametrize("steps", [1.0, 1.5])
def test_rounded_noise_costs_what_continuous_noise_costs(steps):
    """Two parties, everything they send seen: y = k + n + (m, -m), exact probabilities of all (y_1, y_2)."""
    pair_steps, shift = 1.4 * steps, 1
    reach = np.arange(-30, 31)

    def law(s):
        return norm.cdf((reach + 0.5) / s) - norm.cdf((reach - 0.5) / s)

    own, pair = law(steps), law(pair_steps)
    seen = np.arange(-60, 61)

    def own_at(n):
        return np.where(np.abs(n) <= 30, own[np.clip(n + 30, 0, 60)], 0.0)

    def joint(k):
        return sum(p * np.outer(own_at(seen - k - m), own_at(seen + m)) for m, p in zip(reach, pair, strict=True))

    sigma = steps**2 * np.eye(2) + pair_steps**2 * np.array([[1, -1], [-1, 1]])
    ratio = shift * math.sqrt(np.linalg.inv(sigma)[0, 0])
    one, two = joint(0), joint(shift)
    aliasing = 4 * math.exp(-2 * math.pi**2 / (1 / pair_steps**2 + 2 / steps**2))
    for eps in (0.0, 0.2, 1.0, 2.0):
        for p, q in ((one, two), (two, one)):
            assert np.maximum(p - math.exp(eps) * q, 0.0).sum() <= gaussian_delta(eps, ratio) + aliasing + 1e-9
    # power: it is not far below
    assert np.maximum(one - two, 0.0).sum() > 0.9 * gaussian_delta(0.0, ratio)


def test_two_parties_are_too_few():
    """Each of them would see the other's message with nothing but its own noise."""
    with pytest.raises(InputError, match="parties: got 2; noise that cancels between pairs needs at least 3"):
        PairwiseSum(colluders=0).check(2)
    PairwiseSum(colluders=0).check(3)


# --- streams and messages ---------------------------------------------------------------------------------------------


def test_both_ends_of_a_pair_draw_the_same_and_nobody_else_does():
    one, two, third = (X25519PrivateKey.generate() for _ in range(3))

    def secret(own, other, run="run 1"):
        return pair_secret(own.private_bytes_raw(), other.public_key().public_bytes_raw(), run)

    assert secret(one, two) == secret(two, one)
    assert len({secret(one, two), secret(one, third), secret(two, third), secret(one, two, "run 2")}) == 4


def test_streams_cancel_and_never_repeat():
    """5 parties: sums over parties vanish in every round. Two rounds' noise is independent: the correlation of 2,000
    pairs of normals exceeds 0.12 with a chance below 1e-7; a stream that repeats has 1."""
    n, d, noise = 5, 2000, solve(complete(5), 1, 256.0)
    secrets = {frozenset(pair): KeyedEntropy(bytes([*pair]) * 16) for pair in itertools.combinations(range(n), 2)}
    streams = [PairStreams(i, {j: secrets[frozenset((i, j))] for j in range(n) if j != i}, noise) for i in range(n)]
    drawn = np.array([[stream.steps(t, d) for stream in streams] for t in range(2)])
    np.testing.assert_array_equal(drawn.sum(axis=1), 0)
    size = STEPS * math.sqrt(n - 1) * noise.pair / noise.own
    assert drawn[0, 0].std() == pytest.approx(size, rel=0.1)
    assert abs(np.corrcoef(drawn[0, 0], drawn[1, 0])[0, 1]) < 0.12


def test_messages_add_up_to_what_an_engine_in_one_process_releases():
    data, n = federation(4), 4
    made = plan(data.facts, PairwiseSum(colluders=1))
    source = Seeded(3)
    own = np.stack([[source.draw("rounded-gaussian", 3, repeat=0, party=i, t=t, rows=n) for i in range(n)]
                    for t in range(ROUNDS)])  # fmt: skip
    pairs = np.random.default_rng(2).standard_normal((1, ROUNDS, 6, 3))
    sent = messages(made, data, own[None], pairs)[0]
    released = run(made, data, noise=source).releases[0, :, 0]
    np.testing.assert_allclose(sent.sum(axis=1), released, rtol=1e-9)
    assert np.abs(sent).max() > 3 * np.abs(released).max()
