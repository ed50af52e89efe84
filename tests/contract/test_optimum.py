"""With noise off, every party reaches the pooled optimum to 1e-8, on any graph, with equal and unequal parties.

The references know nothing of parties: scikit-learn for logistic regression (`sample_weight` carries all weights, the
intercept is a regularised constant column as in the federation), cvxpy with clarabel for the other losses.
"""

import cvxpy as cp
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from coterie.algorithms import ConsensusADMM
from coterie.data import Federation
from coterie.engines.in_process import run
from coterie.plan import Plan
from coterie.privacy.objective import NoNoise
from coterie.problems import (
    L1,
    L2,
    Ball,
    Box,
    ElasticNet,
    Huber,
    HuberisedHinge,
    Logistic,
    Multinomial,
    Problem,
    Squared,
)
from coterie.values import Schedule

# three size classes among six parties: enough to be unequal, few enough to compile quickly
SIZES = {"equal": (40,) * 6, "unequal": (4, 4, 50, 50, 50, 82)}
GRAPHS = ["ring", "star", "complete", "random-connected"]


def make_federation(sizes, *, labels=("no", "yes"), weights=False, seed=0):
    """Rows leave the unit ball on purpose: the references must work on the projected design."""
    rng = np.random.default_rng(seed)
    n, d = sum(sizes), 5
    X = np.concatenate([rng.normal(size=(n, d - 1)) * 0.6, np.ones((n, 1))], axis=1)
    score = X @ rng.normal(size=d) * 2 + 0.7 * rng.normal(size=n)
    if labels is None:
        kind = {"label_bound": 2.0}
        y = score
    else:
        kind = {"labels": labels}
        cuts = np.quantile(score, np.arange(1, len(labels)) / len(labels))
        y = np.array(labels)[np.digitize(score, cuts)]
    if weights:
        kind |= {"sample_weight": rng.uniform(0.2, 2.0, size=n), "weight_bound": 1.5}
    return Federation.from_arrays(X, y, parties=np.repeat(np.arange(len(sizes)), sizes), **kind)


def pooled(federation, problem):
    """All records of all parties, and what each weighs by the definition of the problem."""
    X, y, weight = federation.pooled
    sizes = np.array(federation.facts.sizes)
    per_record = problem.record_weight if problem.record_weight else problem.party_weight / np.repeat(sizes, sizes)
    by_class = np.ones(len(y)) if problem.class_weight is None else np.array(problem.class_weight)[y.astype(int)]
    return X, y, weight * per_record * by_class


def party_models(federation, problem, algorithm, graph, rounds):
    plan = Plan.make(algorithm, problem, graph, federation.facts, rounds=rounds, adjacency="replace-one")
    return run(plan, federation).party_models[0]


# --- logistic regression --------------------------------------------------------------------------------------------


def logistic_optimum(federation, problem):
    """scikit-learn's answer, polished by Newton steps in NumPy because its own stopping rule is coarser than 1e-8."""
    X, y, weight = pooled(federation, problem)
    l2 = problem.regulariser.l2
    model = LogisticRegression(C=1 / l2, fit_intercept=False, solver="newton-cholesky", tol=1e-12, max_iter=1000)
    found = model.fit(X, y, sample_weight=weight).coef_[0]
    f = found.copy()
    for _ in range(5):
        p = 1 / (1 + np.exp(-X @ f))
        gradient = X.T @ (weight * (p - y)) + l2 * f
        f -= np.linalg.solve((X * (weight * p * (1 - p))[:, None]).T @ X + l2 * np.eye(len(f)), gradient)
    assert np.linalg.norm(gradient) < 1e-11
    # the polish is a polish
    np.testing.assert_allclose(found, f, atol=1e-6)
    return f


LOGISTIC = Problem(loss=Logistic(), regulariser=L2(2.0), record_weight=1.0)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("graph", GRAPHS)
def test_every_party_reaches_the_pooled_optimum_on_every_graph(graph, sizes):
    federation = make_federation(sizes)
    models = party_models(federation, LOGISTIC, ConsensusADMM.with_penalty(1.0), graph, 400)
    assert models.shape == (6, 5)
    np.testing.assert_allclose(models, np.tile(logistic_optimum(federation, LOGISTIC), (6, 1)), atol=1e-8)


@pytest.mark.parametrize(
    "weighting",
    [
        {"record_weight": 0.3},
        {"party_weight": 25.0},
        {"party_weight": 40.0, "class_weight": (0.5, 2.0)},
    ],
    ids=str,
)
@pytest.mark.parametrize("weights", [False, True], ids=["", "sample_weight"])
def test_every_weighting_means_the_same_here_and_in_scikit_learn(weighting, weights):
    federation = make_federation(SIZES["unequal"], weights=weights)
    problem = Problem(loss=Logistic(), regulariser=L2(2.0), **weighting)
    models = party_models(federation, problem, ConsensusADMM.with_penalty(1.0), "complete", 300)
    np.testing.assert_allclose(models, np.tile(logistic_optimum(federation, problem), (6, 1)), atol=1e-8)


@pytest.mark.parametrize(
    "algorithm",
    [
        ConsensusADMM(mechanism=NoNoise(penalty=(0.5, 0.7, 1.0, 2.0, 1.2, 0.6)), dual_step=0.5),
        ConsensusADMM(mechanism=NoNoise(penalty=Schedule(0.5, 1.005)), dual_step=0.5),
        ConsensusADMM(mechanism=NoNoise(penalty=Schedule((0.5, 0.6, 0.7, 0.8, 0.9, 1.0), 1.003)), dual_step=0.5),
    ],
    ids=["per party", "growing", "per party and growing"],
)
def test_penalties_that_differ_by_party_and_round_do_not_move_the_optimum(algorithm):
    federation = make_federation(SIZES["unequal"])
    models = party_models(federation, LOGISTIC, algorithm, "random-connected", 400)
    np.testing.assert_allclose(models, np.tile(logistic_optimum(federation, LOGISTIC), (6, 1)), atol=1e-8)


def test_one_party_alone_is_the_pooled_problem():
    federation = make_federation((60,))
    models = party_models(federation, LOGISTIC, ConsensusADMM.with_penalty(1.0), "ring", 1)
    np.testing.assert_allclose(models[0], logistic_optimum(federation, LOGISTIC), atol=1e-8)


def test_a_wrong_weighting_would_be_seen():
    """The optima under test differ by far more than the tolerance, so agreement means something."""
    federation = make_federation(SIZES["unequal"], weights=True)
    problems = [LOGISTIC, Problem(loss=Logistic(), regulariser=L2(2.0), party_weight=40.0)]
    problems.append(Problem(loss=Logistic(), regulariser=L2(2.0), record_weight=1.0, class_weight=(1.0, 3.0)))
    optima = [logistic_optimum(federation, problem) for problem in problems]
    assert min(np.abs(optima[i] - optima[j]).max() for i in range(3) for j in range(i)) > 1e-2


# --- other losses and regularisers ----------------------------------------------------------------------------------


def data_term(loss, X, y, weight, f):
    match loss:
        case Squared():
            return weight @ cp.square(X @ f - y) / 2
        case Huber(threshold=c):
            return weight @ cp.huber(X @ f - y, c) / 2
        case HuberisedHinge(width=h):
            return weight @ cp.huber(cp.pos(1 + h - cp.multiply(2 * y - 1, X @ f)), 2 * h) / (4 * h)
        case Logistic():
            return weight @ cp.logistic(-cp.multiply(2 * y - 1, X @ f))


def clarabel_value(problem, X, y, weight):
    f = cp.Variable(X.shape[1])
    objective = data_term(problem.loss, X, y, weight, f) + problem.regulariser.l2 / 2 * cp.sum_squares(f)
    constraints = []
    match problem.regulariser:
        case ElasticNet(l1=l1):
            objective += l1 * cp.norm1(f)
        case Box(low=low, high=high):
            constraints = [f >= low, f <= high]
        case Ball(radius=radius):
            constraints = [cp.norm2(f) <= radius]
    solved = cp.Problem(cp.Minimize(objective), constraints)
    solved.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
    return f.value, solved.value


def value_and_gradient(problem, X, y, weight, f):
    """Objective and gradient of its smooth part, from the definitions."""
    score = X @ f
    match problem.loss:
        case Squared():
            values, slopes = (score - y) ** 2 / 2, score - y
        case Huber(threshold=c):
            r = np.abs(score - y)
            values, slopes = np.where(r <= c, r**2 / 2, c * r - c**2 / 2), np.clip(score - y, -c, c)
        case HuberisedHinge(width=h):
            sign = 2 * y - 1
            gap = np.clip(1 + h - sign * score, 0, 2 * h)
            values, slopes = gap**2 / (4 * h) + np.maximum(1 - h - sign * score, 0), -sign * gap / (2 * h)
        case Logistic():
            sign = 2 * y - 1
            values, slopes = np.logaddexp(0, -sign * score), -sign / (1 + np.exp(sign * score))
    l2 = problem.regulariser.l2
    return weight @ values + l2 / 2 * f @ f, X.T @ (weight * slopes) + l2 * f


def kkt_residual(regulariser, f, g):
    """Norm of the least subgradient; coefficients within 1e-9 of a kink or a bound count as on it."""
    match regulariser:
        case ElasticNet(l1=l1):
            g = np.where(np.abs(f) > 1e-9, g + l1 * np.sign(f), np.maximum(np.abs(g) - l1, 0.0))
        case Box(low=low, high=high):
            g = np.where(f < low + 1e-9, np.minimum(g, 0), np.where(f > high - 1e-9, np.maximum(g, 0), g))
        case Ball(radius=radius):
            if np.linalg.norm(f) > radius - 1e-9:
                g = g - min(0.0, g @ f) * f / (f @ f)
    return np.linalg.norm(g)


PROBLEMS = [
    Problem(loss=Squared(), regulariser=L2(2.0), record_weight=1.0),
    Problem(loss=Huber(0.5), regulariser=L2(2.0), party_weight=30.0),
    Problem(loss=HuberisedHinge(), regulariser=L2(2.0), record_weight=1.0),
    Problem(loss=Squared(), regulariser=L1(6.0), record_weight=1.0),
    Problem(loss=Huber(0.5), regulariser=L1(6.0), record_weight=1.0),
    Problem(loss=HuberisedHinge(), regulariser=ElasticNet(2.0, 6.0), record_weight=1.0),
    Problem(loss=Logistic(), regulariser=ElasticNet(2.0, 6.0), record_weight=1.0),
    Problem(loss=Squared(), regulariser=Box(-0.4, 0.5), record_weight=1.0),
    Problem(loss=Logistic(), regulariser=Ball(1.0, 1.0), record_weight=1.0),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: f"{p.loss}-{p.regulariser}")
def test_other_losses_and_regularisers_reach_clarabels_optimum(problem):
    """Coefficients, objective and optimality conditions, each against a source of its own."""
    regression = isinstance(problem.loss, (Squared, Huber))
    # a proximal step takes longer to compile
    sizes = SIZES["unequal" if problem.regulariser.smooth else "equal"]
    federation = make_federation(sizes, labels=None if regression else ("no", "yes"))
    models = party_models(federation, problem, ConsensusADMM.with_penalty(0.4), "complete", 600)
    X, y, weight = pooled(federation, problem)
    reference, reference_value = clarabel_value(problem, X, y, weight)
    for f in models:
        value, gradient = value_and_gradient(problem, X, y, weight, f)
        value += problem.regulariser.l1 * np.abs(f).sum() if isinstance(problem.regulariser, ElasticNet) else 0.0
        assert abs(value - reference_value) <= 1e-8 * abs(reference_value)
        assert kkt_residual(problem.regulariser, f, gradient) <= 1e-7
        np.testing.assert_allclose(f, reference, atol=1e-8)


def test_three_classes_reach_scikit_learns_optimum():
    """Without an intercept the regularised softmax optimum is unique, so coefficients can be compared."""
    federation = make_federation(SIZES["unequal"], labels=("a", "b", "c"))
    problem = Problem(loss=Multinomial(3), regulariser=L2(2.0), record_weight=1.0)
    models = party_models(federation, problem, ConsensusADMM.with_penalty(1.0), "complete", 400)
    X, y, weight = pooled(federation, problem)
    model = LogisticRegression(C=0.5, fit_intercept=False, solver="newton-cg", tol=1e-12, max_iter=1000)
    reference = model.fit(X, y, sample_weight=weight).coef_.T
    p = np.exp(X @ reference)
    gradient = X.T @ (p / p.sum(axis=1, keepdims=True) - np.eye(3)[y.astype(int)]) + 2 * reference
    # strong convexity 2: the reference is within |gradient| / 2 of the optimum
    assert np.linalg.norm(gradient) / 2 < 5e-9
    np.testing.assert_allclose(models, np.tile(reference.ravel(), (6, 1)), atol=1e-8)
