"""Convergence tools: spectra from books, the rate checked along runs, the recycle weight at its very edge."""

import math

import networkx as nx
import numpy as np
import pytest

from coterie.algorithms import RecycledADMM
from coterie.data import Federation
from coterie.engines.in_process import run
from coterie.errors import InputError
from coterie.network.topology import Topology, make_topology
from coterie.papers.penalty.convergence import (
    Spectrum,
    party_constants,
    rate_bound,
    theorem_3_1,
)
from coterie.papers.recycled.convergence import recycled_conditions, smallest_recycle_weight
from coterie.plan import Plan
from coterie.privacy.objective import NoNoise
from coterie.problems import L1, L2, Box, HuberisedHinge, Logistic, Problem
from coterie.values import Facts, Schedule


def matrices(topology):
    """D and A by networkx, which the module under test does not use for them."""
    adjacency = nx.to_numpy_array(topology.graph, nodelist=range(topology.n_parties))
    return np.diag(adjacency.sum(axis=1)), adjacency


def random_topology(rng, low=2, high=7, *, bipartite=None):
    while True:
        n = int(rng.integers(low, high))
        graph = nx.gnp_random_graph(n, rng.uniform(0.3, 1.0), seed=int(rng.integers(2**31)))
        if nx.is_connected(graph) and (bipartite is None or nx.is_bipartite(graph) == bipartite):
            return Topology(n, tuple(graph.edges))


# --- spectra --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 5, 8, 9])
def test_spectra_of_known_graphs(n):
    def close(name, laplacian_min_nonzero, laplacian_max, signless_min, signless_max):
        found = Spectrum.of(make_topology(name, n))
        expected = (laplacian_min_nonzero, laplacian_max, signless_min, signless_max)
        values = (found.laplacian_min_nonzero, found.laplacian_max, found.signless_min, found.signless_max)
        np.testing.assert_allclose(values, expected, atol=1e-12)
        assert found.bipartite == (signless_min == 0)

    close("complete", n, n, n - 2, 2 * n - 2)
    # bipartite graphs: D + A has the eigenvalues of D - A
    path = [2 - 2 * math.cos(math.pi * k / n) for k in range(n)]
    close("path", path[1], path[-1], 0, path[-1])
    close("star", 1 if n > 2 else 2, n, 0, n)
    if n > 2:
        ring = sorted(2 - 2 * math.cos(2 * math.pi * k / n) for k in range(n))
        close("ring", ring[1], ring[-1], 0 if n % 2 == 0 else 2 + 2 * math.cos(math.pi * (n - 1) / n), 4)


def test_a_single_party_has_no_spectrum():
    with pytest.raises(InputError, match="single party"):
        Spectrum.of(make_topology("ring", 1))


# --- constants of a problem -----------------------------------------------------------------------------------------


def federation(seed=0, sizes=(20, 30, 25, 15, 10)):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(sum(sizes), 3))
    y = np.where(X @ rng.normal(size=3) + rng.normal(size=len(X)) > 0, "yes", "no")
    return Federation.from_arrays(X, y, parties=np.repeat(np.arange(len(sizes)), sizes), labels=("no", "yes"))


@pytest.mark.parametrize("weighting", [{"record_weight": 0.3}, {"party_weight": 4.0, "class_weight": (1.0, 2.0)}])
@pytest.mark.parametrize("loss", [Logistic(), HuberisedHinge(0.25)], ids=str)
def test_constants_bound_every_hessian_and_are_attained_by_the_worst_data(weighting, loss):
    data = federation()
    problem = Problem(loss=loss, regulariser=L2(2.0), **weighting)
    strong, smooth = party_constants(problem, data.facts)
    for shard, m, M in zip(data.shards, strong, smooth, strict=True):
        weight = problem.records(shard).weight
        steepest = (shard.X * (weight * loss.smoothness)[:, None]).T @ shard.X + 2.0 / 5 * np.eye(3)
        assert m == pytest.approx(0.4)
        assert np.linalg.eigvalsh(steepest)[-1] <= M
        # equal unit rows of the heaviest class
        worst = len(shard.y) * weight.max() * loss.smoothness + 0.4
        assert pytest.approx(worst) == M


@pytest.mark.parametrize("regulariser", [L1(1.0), Box(-1.0, 1.0, 1.0)], ids=str)
def test_a_regulariser_with_kinks_or_walls_has_no_smoothness(regulariser):
    with pytest.raises(InputError, match="not Lipschitz"):
        party_constants(Problem(loss=Logistic(), regulariser=regulariser, record_weight=1.0), federation().facts)


# --- PP Theorem 3.1 -------------------------------------------------------------------------------------------------

RING = make_topology("ring", 3)


@pytest.mark.parametrize(
    ("penalty", "dual_step", "case", "unmet", "reason"),
    [
        (1.0, 1.0, "proved", [], "one bounded"),
        ((2.0, 2.0, 2.0), 1.0, "proved", [], "one bounded"),
        ((1.0, 2.0, 3.0), 1.0, "unproved", [], "no counter-example"),
        (Schedule(1.0, 1.01), 1.0, "fails", ["bounded"], "stalls"),
        (Schedule(1.0, (1.0, 1.0, 1.01)), 1.0, "fails", ["bounded"], "stalls"),
        (Schedule(9.0, 0.99), 1.0, "fails", ["never decreases"], "diverge"),
        ((1.0, 2.0, 0.9), 1.0, "fails", ["at least dual_step"], "diverge"),
        (4.0, (1.0, 1.0, 2.0), "fails", ["one dual_step"], "argmin"),
        (4.0, Schedule(1.0, 0.9), "fails", ["fixed over rounds"], "vanishes"),
        (Schedule(0.5, 1.1), 1.0, "fails", ["at least dual_step", "bounded"], "stalls"),
    ],
)
def test_theorem_3_1_says_which_case_holds(penalty, dual_step, case, unmet, reason):
    report = theorem_3_1(RING, penalty, dual_step, n_rounds=10)
    assert report.case == case
    assert reason in report.reason
    failed = [name for name, met in report.hypotheses if not met]
    assert len(failed) == len(unmet)
    assert all(part in name for part, name in zip(unmet, failed, strict=True))


def test_growth_tells_how_far_a_run_is_from_its_start():
    assert theorem_3_1(RING, Schedule(1.0, (1.0, 1.1, 1.05)), 1.0, n_rounds=4).growth == pytest.approx(1.1**3)
    assert theorem_3_1(RING, 1.0, 1.0, n_rounds=50).growth == 1.0
    with pytest.raises(InputError, match="n_rounds"):
        theorem_3_1(RING, 1.0, 1.0, n_rounds=0)
    with pytest.raises(InputError, match="one for each party"):
        theorem_3_1(RING, (1.0, 2.0), 1.0, n_rounds=1)


class Quadratics:
    """O_i(f) = (f - c_i).H_i(f - c_i)/2 on a graph, and M-ADMM on them in the variables of PP Theorem 3.2."""

    def __init__(self, rng, topology, d):
        self.n, self.d = topology.n_parties, d
        D, A = matrices(topology)
        self.degree, self.signless = np.kron(D, np.eye(d)), np.kron(D + A, np.eye(d))
        values, vectors = np.linalg.eigh(D - A)
        self.laplacian = np.kron(D - A, np.eye(d))
        self.root = np.kron((vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T, np.eye(d))
        curvatures = 10 ** rng.uniform(-2, 1, size=(self.n, 1)) * rng.uniform(0.2, 1, size=(self.n, d))
        rotations = np.linalg.qr(rng.normal(size=(self.n, d, d)))[0]
        self.H = np.zeros((self.n * d, self.n * d))
        for i, (rotation, curvature) in enumerate(zip(rotations, curvatures, strict=True)):
            self.H[i * d : (i + 1) * d, i * d : (i + 1) * d] = (rotation * curvature) @ rotation.T
        self.m, self.M = curvatures.min(axis=1), curvatures.max(axis=1)
        self.pull = self.H @ rng.normal(size=self.n * d) * 3
        ones = np.kron(np.ones((self.n, 1)), np.eye(d))
        self.optimum = ones @ np.linalg.solve(ones.T @ self.H @ ones, ones.T @ self.pull)
        self.dual_optimum = -np.linalg.pinv(self.root, rcond=1e-8) @ (self.H @ self.optimum - self.pull)

    def step(self, f, Y, eta, theta):
        linear = self.pull - self.root @ Y + eta * self.signless @ f
        # (13)
        f = np.linalg.solve(self.H + 2 * eta * self.degree, linear)
        # (16)
        return f, Y + theta * self.root @ f

    def distance(self, f, Y, eta, theta):
        e, E = f - self.optimum, Y - self.dual_optimum
        return E @ E / theta + eta * e @ self.signless @ e


def test_penalties_that_grow_without_bound_stall_and_bounded_ones_do_not():
    rng = np.random.default_rng(3)
    problem = Quadratics(rng, RING, 2)

    def error(eta):
        f, Y = np.zeros(6), np.zeros(6)
        for t in range(3000):
            f, Y = problem.step(f, Y, eta(t), 0.5)
        return np.abs(f - problem.optimum).max()

    assert error(lambda t: 0.5) < 1e-10
    assert error(lambda t: min(0.5 * 1.2**t, 5.0)) < 1e-10
    assert error(lambda t: 0.5 * 1.2 ** min(t, 150)) > 1e-2


# --- PP Theorem 3.2 -------------------------------------------------------------------------------------------------


def contraction_violations(problem, steps, start, theta, delta_of):
    """Rounds in which (1 + delta) |Z(t) - Z*|^2 > |Z(t-1) - Z*|^2, both in the norm J(t)."""
    f, Y = start, np.zeros_like(start)
    count = 0
    for eta in steps:
        before = problem.distance(f, Y, eta, theta)
        f, Y = problem.step(f, Y, eta, theta)
        after = problem.distance(f, Y, eta, theta)
        if before > 1e-12:
            count += (1 + delta_of(eta)) * after > before * (1 + 1e-10)
    return count


def test_the_corrected_rate_holds_on_every_run_and_the_published_one_does_not():
    rng = np.random.default_rng(11)
    violations = {"delta": 0, "corrected": 0, "published": 0}
    for instance in range(400):
        topology = random_topology(rng)
        problem = Quadratics(rng, topology, int(rng.integers(1, 4)))
        theta = 10 ** rng.uniform(-1, 1)
        growth = 1.0 if instance % 3 else 1.1
        steps = theta * (1 + rng.exponential(2.0) * (instance % 5 > 0)) * growth ** np.arange(12)
        # apart from the optimum, and, every second time, in agreement about it
        away = np.tile(rng.normal(size=problem.d), problem.n) if instance % 2 else rng.normal(size=len(problem.optimum))
        bounds = {
            eta: rate_bound(
                topology, penalty=eta, dual_step=theta, strong_convexity=problem.m, smoothness=problem.M,
                mu=2.0 if instance % 4 else None,
            )
            for eta in set(steps)
        }  # fmt: skip
        for name in violations:
            violations[name] += contraction_violations(
                problem, steps, problem.optimum + 3 * away, theta, lambda eta, n=name, b=bounds: getattr(b[eta], n)
            )
        for bound in bounds.values():
            assert 0 < bound.corrected <= bound.delta * (1 + 1e-9)
            assert bound.corrected <= bound.published
    assert violations["delta"] == violations["corrected"] == 0
    assert violations["published"] >= 100


def test_the_published_rate_fails_on_three_equal_parties():
    """All O_i = 0.005 |f|^2 on a triangle: consensus is far from the optimum and hardly moves."""
    numbers = dict(penalty=5.0, dual_step=0.5, strong_convexity=0.01, smoothness=0.01)
    bound = rate_bound(make_topology("complete", 3), **numbers)
    # f(1) = 2 eta V f(0) / (m + 2 eta V), and nothing else changes
    shrinks = 20 / 20.01
    assert (1 + bound.published) * shrinks**2 > 1.01
    assert (1 + bound.corrected) * shrinks**2 <= (1 + bound.delta) * shrinks**2 <= 1


def test_delta_is_the_largest_that_satisfies_21_and_22():
    rng = np.random.default_rng(5)
    binding = set()
    for _ in range(60):
        topology = random_topology(rng)
        D, A = matrices(topology)
        theta, mu = 10 ** rng.uniform(-1, 1), 1 + 10 ** rng.uniform(-1, 1)
        eta = theta * (1 + rng.exponential())
        M = 10 ** rng.uniform(-1.5, 1.5, topology.n_parties)
        m = M * rng.uniform(0.05, 1, topology.n_parties)
        bound = rate_bound(topology, penalty=eta, dual_step=theta, strong_convexity=m, smoothness=M, mu=mu)
        assert bound.mu == mu
        sigma = np.linalg.svd(D - A, compute_uv=False)[-2]
        excess = np.linalg.norm((eta - theta) * (D - A), 2)

        def slack(delta, D=D, A=A, M=M, m=m, eta=eta, theta=theta, mu=mu, sigma=sigma, excess=excess):
            first = 1 - delta * mu**2 * np.linalg.norm(eta * (D + A), 2) / (theta * sigma)
            spread = (mu * excess**2 * np.eye(len(M)) + mu**2 * np.diag(M**2)) / (theta * sigma * (mu - 1))
            second = 2 * (eta - theta) * (D - A) + 2 * np.diag(m) - delta * (spread + eta * (D + A))
            return first, np.linalg.eigvalsh(second)[0]

        assert min(slack(bound.delta * (1 - 1e-9))) > 0
        above = slack(bound.delta * (1 + 1e-6))
        assert min(above) < 0
        binding.add(int(np.argmin(above)))
    # each of the two was the tight one somewhere
    assert binding == {0, 1}


def test_the_best_mu_is_at_least_as_good_as_any_on_a_grid():
    rng = np.random.default_rng(6)
    for _ in range(10):
        topology = random_topology(rng)
        numbers = dict(
            penalty=1 + rng.exponential(), dual_step=1.0, strong_convexity=0.1, smoothness=rng.uniform(0.1, 9)
        )
        best = rate_bound(topology, **numbers, mu=None)
        grid = max(rate_bound(topology, **numbers, mu=mu).delta for mu in 1 + np.geomspace(1e-3, 1e3, 300))
        assert best.delta >= grid * (1 - 1e-9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"penalty": (1.0, 2.0, 3.0)}, "penalty: .* one number for all parties"),
        ({"dual_step": (0.5, 0.5, 0.6)}, "dual_step: .* one number for all parties"),
        ({"penalty": 0.4}, "at least dual_step"),
        ({"strong_convexity": 0.0}, "strong_convexity"),
        ({"smoothness": 0.05}, "below strong_convexity"),
        ({"smoothness": (1.0, 2.0)}, "one for each party"),
        ({"smoothness": math.inf}, "smoothness"),
        ({"mu": 1.0}, "mu"),
    ],
)
def test_the_rate_refuses_what_it_does_not_cover(change, message):
    numbers = dict(penalty=1.0, dual_step=0.5, strong_convexity=0.1, smoothness=1.0) | change
    with pytest.raises(InputError, match=message):
        rate_bound(RING, **numbers)


# --- MR Theorem IV.1 ------------------------------------------------------------------------------------------------


def least(matrix):
    return np.linalg.eigvalsh((matrix + matrix.T) / 2)[0]


def test_conditions_iii_and_iv_are_the_conditions_for_one_constant_penalty():
    """Written out from the paper's (iii) and (iv), which never mention W."""
    rng = np.random.default_rng(7)
    for _ in range(30):
        topology = random_topology(rng, 3, bipartite=False)
        D, A = matrices(topology)
        eta, gamma = 10 ** rng.uniform(-1, 1), 10 ** rng.uniform(-1, 2)
        M = 10 ** rng.uniform(-1, 1, topology.n_parties)
        inverse = np.linalg.inv(2 * eta * D + gamma * np.eye(len(M)))
        sigma = 2 * eta * D.diagonal().min() + gamma
        third = np.eye(len(M)) + eta * (D + A) @ inverse - 2 / (eta * sigma) * np.linalg.pinv(D - A) @ np.diag(M**2)
        fourth = eta * (D + A) - 2 * eta * (D + A) @ inverse @ (eta * D) - 2 / sigma * np.diag(M**2)
        found = recycled_conditions(topology, penalty=eta, recycle_weight=gamma, smoothness=M)
        assert found.first == pytest.approx(least(third), abs=1e-9 * np.abs(third).max())
        assert found.second == pytest.approx(least(fourth), abs=1e-9 * np.abs(fourth).max())


def test_conditions_i_and_ii_term_by_term():
    """The paper's sums, spelt out; a margin is the least value of a quadratic form, so no vector falls below it."""
    rng = np.random.default_rng(10)
    for _ in range(30):
        topology = random_topology(rng, 3)
        n, (D, A) = topology.n_parties, matrices(topology)
        now = 10 ** rng.uniform(-1, 1, n)
        then, M = now * rng.uniform(1, 2, n), 10 ** rng.uniform(-1, 1, n)
        gamma, L, mu = 10 ** rng.uniform(-1, 2), rng.uniform(0.5, 5), rng.uniform(1.2, 5)
        tilde = 2 * now * D.diagonal() + gamma
        W, W_next, D_M = np.diag(now), np.diag(then), np.diag(M**2)
        pull = W_next @ (D + A) @ np.diag(1 / tilde)
        weight = L * mu / (2 * tilde.min())
        first = np.eye(n) + pull - weight * np.linalg.pinv(W_next @ (D - A)) @ D_M
        second = W_next @ (D + A) - pull @ (W @ (D - A) + 2 / L * W_next @ (D + A)) - weight / (mu - 1) * D_M
        found = recycled_conditions(
            topology, penalty=now, next_penalty=then, recycle_weight=gamma, smoothness=M, L=L, mu=mu
        )
        for margin, matrix in ((found.first, first), (found.second, second)):
            assert margin == pytest.approx(least(matrix), abs=1e-9 * np.abs(matrix).max())
            vectors = rng.normal(size=(200, n))
            assert (np.einsum("kn,nm,km->k", vectors, matrix, vectors) >= margin * (vectors**2).sum(1) - 1e-9).all()


def test_the_smallest_weight_satisfies_the_conditions_and_99_percent_of_it_does_not():
    rng = np.random.default_rng(8)
    positive = 0
    for k in range(40):
        topology = random_topology(rng, 3, bipartite=False)
        eta = 10 ** rng.uniform(-1, 1)
        numbers = dict(
            penalty=eta,
            next_penalty=eta * 1.1 if k % 2 else None,
            smoothness=10 ** rng.uniform(-1, 1, topology.n_parties),
            L=2.0 if k % 3 else 1.0,
            mu=2.0 if k % 3 else 3.0,
        )
        gamma = smallest_recycle_weight(topology, **numbers)
        assert recycled_conditions(topology, recycle_weight=gamma, **numbers).met
        assert recycled_conditions(topology, recycle_weight=100 * gamma + 100, **numbers).met
        if gamma > 0:
            positive += 1
            assert not recycled_conditions(topology, recycle_weight=0.99 * gamma, **numbers).met
    assert positive >= 30


def test_no_weight_at_all_is_needed_where_the_penalty_dominates():
    assert smallest_recycle_weight(RING, penalty=100.0, smoothness=0.1, L=4.0) == 0.0
    # (iv) leaves nothing on the left then
    assert smallest_recycle_weight(RING, penalty=100.0, smoothness=0.1) > 0


def test_bipartite_graphs_never_satisfy_the_second_condition():
    rng = np.random.default_rng(9)
    for _ in range(30):
        topology = random_topology(rng, bipartite=True)
        penalty = 10 ** rng.uniform(-1, 1, topology.n_parties)
        with pytest.raises(InputError, match="bipartite"):
            smallest_recycle_weight(topology, penalty=penalty, smoothness=0.1)
        for gamma in (0.0, 1.0, 1e3, 1e6):
            found = recycled_conditions(topology, penalty=penalty, recycle_weight=gamma, smoothness=0.1)
            assert found.second < 0
            assert found.case == "fails"


def test_penalties_that_differ_too_much_are_refused():
    with pytest.raises(InputError, match="differ so much"):
        smallest_recycle_weight(RING, penalty=(1.0, 100.0, 1.0), smoothness=1.0)


def test_met_conditions_prove_nothing_where_penalties_differ():
    numbers = dict(penalty=(1.0, 1.03, 1.02), smoothness=1.0)
    gamma = smallest_recycle_weight(RING, **numbers)
    found = recycled_conditions(RING, recycle_weight=gamma, **numbers)
    assert found.met
    assert found.case == "fails"
    common = recycled_conditions(RING, penalty=1.0, recycle_weight=2 * gamma, smoothness=1.0)
    assert (common.met, common.case) == (True, "unproved")


def test_the_gap_in_the_proof_is_real():
    """(37) drops <x, (D + A) D-tilde^-1 H x>, which may be negative although each O_i is convex."""
    signless = np.ones((3, 3)) + np.eye(3)
    x, hessian = np.array([1.0, -3.0, 0.0]), np.diag([1.0, 0.0, 0.0])
    assert x @ signless @ hessian @ x < 0


@pytest.mark.parametrize("change", [{"L": 0.0}, {"mu": 1.0}, {"recycle_weight": -1.0}, {"next_penalty": 0.5}])
def test_impossible_constants_are_refused(change):
    numbers = dict(penalty=1.0, smoothness=1.0, recycle_weight=1.0) | change
    with pytest.raises(InputError, match=next(iter(change))):
        recycled_conditions(RING, **numbers)


def test_recycled_admm_reaches_the_optimum_with_the_smallest_weight():
    data = federation(sizes=(20, 20, 20, 20, 30))
    problem = Problem(loss=Logistic(), regulariser=L2(2.0), party_weight=4.0)
    topology = make_topology("complete", 5)
    _, smoothness = party_constants(problem, data.facts)
    gamma = smallest_recycle_weight(topology, penalty=0.2, smoothness=smoothness)
    assert gamma > 1
    algorithm = RecycledADMM(mechanism=NoNoise(penalty=0.2), dual_step=0.2, recycle_weight=gamma)
    plan = Plan.make(algorithm, problem, topology, data.facts, rounds=400, adjacency="replace-one")
    models = run(plan, data).party_models[0]

    X, y, _ = data.pooled
    weight, f = np.repeat(4.0 / np.array(data.facts.sizes), data.facts.sizes), np.zeros(3)
    # Newton on the pooled problem
    for _ in range(20):
        p = 1 / (1 + np.exp(-X @ f))
        gradient = X.T @ (weight * (p - y)) + 2 * f
        f -= np.linalg.solve((X * (weight * p * (1 - p))[:, None]).T @ X + 2 * np.eye(3), gradient)
    np.testing.assert_allclose(models, np.tile(f, (5, 1)), atol=1e-8)


def test_facts_without_data_are_enough():
    facts = Facts(parties=("a", "b"), sizes=(10, 40), n_features=2, row_norm=2.0, labels=("n", "y"))
    strong, smooth = party_constants(Problem(loss=Logistic(), regulariser=L2(1.0), record_weight=0.5), facts)
    assert strong == (0.5, 0.5)
    assert smooth == pytest.approx((10 * 0.5 * 0.25 * 4 + 0.5, 40 * 0.5 * 0.25 * 4 + 0.5))
