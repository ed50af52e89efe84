"""Loops in machine code: lanes, passes over records, and minimisers that are within their tolerances."""

import numpy as np
import pytest

from coterie.minimisers import Subproblem
from coterie.minimisers.native import newton, passes
from coterie.minimisers.native.newton import dense_rows, minimise_each, minimise_sixteen, single_rows, sparse_party
from coterie.minimisers.native.passes import exponential, slope_and_bend
from coterie.native import kernels
from coterie.native.kernels import jit, kernel
from coterie.native.vectors import LANES, aligned, largest, load, store, total, where_positive

RNG_SEED = 0


def one_row(values, dtype=np.float64):
    row = aligned(1, LANES, dtype=dtype)
    row[0] = values
    return row


# --- lanes ---


@jit
def lane_exponential(given, out):
    for row in range(given.shape[0]):
        store(out, row, exponential(load(given, row)))


@pytest.mark.parametrize(("dtype", "most", "limit"), [(np.float32, 59.0, 60.0), (np.float64, 699.0, 700.0)])
def test_exponentials_are_right_to_two_units_in_the_last_place(dtype, most, limit):
    given = aligned(4000, LANES, dtype=dtype)
    given[:] = np.random.default_rng(RNG_SEED).uniform(-most, most, size=given.shape)
    given[0] = np.linspace(-1, 1, LANES)
    out = aligned(*given.shape, dtype=dtype)
    lane_exponential(given, out)
    right = np.exp(given.astype(np.longdouble))
    assert np.max(np.abs(out - right) / np.spacing(right.astype(dtype))) <= 2.0
    given[0] = [-np.inf, np.inf, -1e30, 1e30, *[0.0] * (LANES - 4)]
    lane_exponential(given, out)
    assert np.allclose(out[0, :4], np.exp([-limit, limit, -limit, limit]), rtol=1e-5)
    assert np.all(out[0, 4:] == 1)


@jit
def lane_summary(row):
    return largest(load(row, 0)), total(load(row, 0))


@pytest.mark.parametrize("place", range(LANES))
def test_the_largest_lane_and_the_sum_of_all(place):
    values = np.arange(1.0, LANES + 1)
    values[place] = 99.0
    assert lane_summary(one_row(values)) == (99.0, values.sum())
    # must not look small, whatever it is compared with
    values[place] = np.nan
    assert np.isnan(lane_summary(one_row(values))[0])


@jit
def lane_choice(test, yes, no, out):
    store(out, 0, where_positive(load(test, 0), load(yes, 0), load(no, 0)))


def test_what_is_not_a_number_is_not_positive():
    out = aligned(1, LANES)
    lane_choice(one_row([1.0, 0.0, -1.0, np.nan] * 4), one_row(7.0), one_row(8.0), out)
    assert out[0].tolist() == [7.0, 8.0, 8.0, 8.0] * 4


@jit
def lane_slopes(score, y, weight, slope, bend):
    s, b = slope_and_bend(load(score, 0), load(y, 0), load(weight, 0))
    store(slope, 0, s)
    store(bend, 0, b)


def test_slope_and_bend_are_those_of_the_logistic_loss():
    rng = np.random.default_rng(RNG_SEED)
    score, y, weight = rng.normal(size=LANES) * 5, np.arange(LANES) % 2.0, rng.uniform(0.5, 2, size=LANES)
    slope, bend = aligned(1, LANES), aligned(1, LANES)
    lane_slopes(one_row(score), one_row(y), one_row(weight), slope, bend)
    p = 1 / (1 + np.exp(-score))
    assert np.allclose(slope[0], weight * (p - y), rtol=1e-14)
    assert np.allclose(bend[0], weight * p * (1 - p), rtol=1e-13)


# --- passes ---


def mostly_zero(n, d, seed=RNG_SEED):
    """One-hot groups and two columns that everybody has."""
    rng = np.random.default_rng(seed)
    X = np.zeros((n, d))
    X[:, :2] = rng.normal(size=(n, 2))
    for group in np.array_split(np.arange(2, d), 3):
        X[np.arange(n), rng.choice(group, size=n)] = 1.0
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    return X, (rng.random(n) < 0.4).astype(float), rng.uniform(0.5, 1.5, size=n)


def full(n, d, seed=RNG_SEED):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) / np.sqrt(d)
    return X, (X.sum(axis=1) + 0.3 * rng.normal(size=n) > 0).astype(float), rng.uniform(0.5, 1.5, size=n)


@jit
def all_passes(rows, stride, f, p, room, gradient, ahead, matrix, part):
    passes.add_gradient(rows, stride, f, room.bends, part, gradient)
    passes.add_curvature(rows, stride, room.bends, p, room.part_single, ahead)
    passes.add_curvature_matrix(rows, stride, room.bends, room.pairs, matrix)
    return passes.curvature_trace(rows, stride, room.bends)


def by_definition(X, y, weight, f):
    p = 1 / (1 + np.exp(-X @ f))
    return X.T @ (weight * (p - y)), (X * (weight * p * (1 - p))[:, None]).T @ X


@pytest.mark.parametrize("stride", [1, 2])
def test_passes_over_sparse_rows_are_the_sums_they_say(stride):
    n, d = 1200, 40
    X, y, weight = mostly_zero(n, d)
    own, room = sparse_party(X, y, weight), newton.room(n, d, sparse=True)
    assert own.rows.columns.shape[1] < 6
    rng = np.random.default_rng(1)
    f, p, gradient, ahead = aligned(d, LANES), aligned(d, LANES, dtype=np.float32), aligned(d, LANES), None
    f[:], p[:] = rng.normal(size=f.shape), rng.normal(size=p.shape)
    ahead, matrix = aligned(d, LANES, dtype=np.float32), np.zeros((d, d))
    trace = all_passes(own.rows, stride, f.astype(np.float32), p, room, gradient, ahead, matrix, room.part_single)
    taken = slice(None, None, stride)
    expected = [by_definition(X[taken][:, own.order], y[taken], weight[taken], f[:, lane]) for lane in range(LANES)]
    curvature = stride * np.mean([matrix for _, matrix in expected], axis=0)
    assert np.allclose(gradient.T, stride * np.array([g for g, _ in expected]), atol=2e-4)
    assert np.allclose(ahead.T, [stride * H @ p[:, lane] for lane, (_, H) in enumerate(expected)], atol=1e-3)
    assert np.allclose(np.triu(matrix), np.triu(curvature), atol=1e-4)
    assert trace == pytest.approx(np.trace(curvature), rel=1e-5)


@pytest.mark.parametrize("stride", [1, 2])
def test_passes_over_dense_rows_are_the_sums_they_say(stride):
    n, d = 16 * 70, 9
    X, y, weight = full(n, d)
    rows, starts = dense_rows([(X, y, weight)])
    assert starts.tolist() == [0, 70]
    room = newton.room(n, d, sparse=False)
    f, p = np.random.default_rng(1).normal(size=(2, d))
    gradient, ahead, matrix = np.zeros(d), np.zeros(d, np.float32), np.zeros((d, d))
    near = passes.DenseRows(*(place_single(column) for column in rows))
    trace = all_passes(
        near, stride, f.astype(np.float32), p.astype(np.float32), room, gradient, ahead, matrix, room.part_single
    )
    taken = (np.arange(n) // LANES) % stride == 0
    right, curvature = (stride * a for a in by_definition(X[taken], y[taken], weight[taken], f))
    assert np.allclose(gradient, right, atol=2e-4)
    assert np.allclose(ahead, curvature @ p, atol=1e-3)
    assert np.allclose(np.triu(matrix), np.triu(curvature), atol=1e-3)
    assert trace == pytest.approx(np.trace(curvature), rel=1e-5)


def place_single(column):
    out = aligned(*column.shape, dtype=np.float32)
    out[:] = column
    return out


# --- minimisers ---

L2 = 0.3


def problems_of(n_problems, n_parties, d, size=30.0, tolerance=1e-9, seed=1):
    rng = np.random.default_rng(seed)
    shape = (n_problems, n_parties)
    return Subproblem(
        size * rng.normal(size=(*shape, d)),
        rng.normal(size=(*shape, d)),
        rng.uniform(2, 20, size=shape),
        np.full(shape, tolerance),
    )


def gradient_at(record, problems, problem, party, f):
    own = Subproblem(*(a[problem, party] for a in problems))
    return by_definition(*record, f)[0] + L2 * f + own.linear + own.curvature * (f - own.target)


def solve_dense(records, problems):
    d, most = records[0][0].shape[1], max(len(y) for _, y, _ in records)
    rows, starts = dense_rows(records)
    f, norms = np.empty_like(problems.linear), np.empty_like(problems.curvature)
    rooms = single_rows(most, d), newton.room(most, d, sparse=False)
    minimise_each(rows, starts, L2, np.arange(len(records)), problems, *rooms, f, norms)
    return f, norms


def solve_sparse(record, problems, chosen):
    n, d = record[0].shape
    f, norms = np.full_like(problems.linear, np.nan), np.full_like(problems.curvature, np.nan)
    room = newton.room(n, d, sparse=True)
    minimise_sixteen(sparse_party(*record), L2, 0, np.resize(chosen, LANES), problems, room, f, norms)
    return f, norms


def check(records, problems, f, norms):
    assert np.all(norms <= problems.tolerance)
    for problem, party in np.ndindex(norms.shape):
        right = np.linalg.norm(gradient_at(records[party], problems, problem, party, f[problem, party]))
        assert right <= problems.tolerance[problem, party]
        assert norms[problem, party] == pytest.approx(right, rel=1e-2, abs=1e-12)


def test_parties_of_different_sizes_are_solved_one_by_one():
    records = [full(n, 7, seed=n) for n in (5, 16, 100, 1003)]
    problems = problems_of(2, 4, 7)
    check(records, problems, *solve_dense(records, problems))


def test_one_problem_of_a_large_party_starts_with_a_part_of_its_records():
    records = [full(4000, 7)]
    assert len(records[0][1]) >= newton.MANY_ROWS * 7
    problems = problems_of(1, 1, 7, tolerance=1e-8)
    check(records, problems, *solve_dense(records, problems))


@pytest.mark.parametrize("n", [60, 3000])
def test_problems_of_one_party_are_solved_together(n):
    record = mostly_zero(n, 40)
    assert (n >= newton.MANY_ROWS * 40) == (n == 3000)
    problems = problems_of(11, 1, 40)
    check([record], problems, *solve_sparse(record, problems, np.arange(11)))


def test_only_those_that_were_chosen_are_solved():
    record, problems = mostly_zero(60, 40), problems_of(11, 1, 40)
    f, norms = solve_sparse(record, problems, np.array([2, 7]))
    solved = np.isin(np.arange(11), [2, 7])
    assert np.array_equal(np.isfinite(norms[:, 0]), solved)
    assert np.array_equal(np.isfinite(f[:, 0]).all(axis=1), solved)


def far_problems(size):
    """Where all slopes are flat, Newton's own steps are far too long."""
    problems = problems_of(3, 1, 5, size=0.0)
    problems.target[:] = size * np.random.default_rng(3).normal(size=problems.target.shape)
    problems.curvature[:] = 1e-3
    problems.linear[:] = problems.curvature[..., None] * problems.target
    return problems


def test_far_starts_are_found_back_from():
    records, problems = [full(400, 5)], far_problems(1e4)
    check(records, problems, *solve_dense(records, problems))


def test_who_does_not_find_back_says_so():
    records, problems = [full(400, 5)], far_problems(1e6)
    f, norms = solve_dense(records, problems)
    right = [np.linalg.norm(gradient_at(records[0], problems, problem, 0, f[problem, 0])) for problem in range(3)]
    assert np.all(norms[:, 0] >= np.array(right) * (1 - 1e-6))
    assert np.any(norms > problems.tolerance)


def test_a_problem_that_is_solved_already_does_not_spoil_the_others():
    n, d = 200, 40
    X, y, weight = mostly_zero(n, d)
    weight[:] = 0.0
    problems = problems_of(4, 1, d)
    problems.linear[2], problems.target[2] = 0.0, 0.0
    f, norms = solve_sparse((X, y, weight), problems, np.arange(4))
    check([(X, y, weight)], problems, f, norms)
    assert np.all(f[2] == 0)


@pytest.mark.parametrize("rows", ["dense", "sparse"])
def test_a_tolerance_below_rounding_is_missed_and_said_so(rows):
    record = mostly_zero(300, 40)
    problems = problems_of(1, 1, 40, tolerance=1e-30)
    f, norms = solve_dense([record], problems) if rows == "dense" else solve_sparse(record, problems, np.arange(1))
    right = np.linalg.norm(gradient_at(record, problems, 0, 0, f[0, 0]))
    assert 1e-30 < right < 1e-10
    assert norms[0, 0] > 1e-30


@pytest.mark.parametrize("rows", ["dense", "sparse"])
def test_a_problem_without_a_number_has_no_small_gradient(rows):
    record, problems = mostly_zero(300, 40), problems_of(2, 1, 40)
    problems.linear[1, 0, 3] = np.nan
    _, norms = solve_dense([record], problems) if rows == "dense" else solve_sparse(record, problems, np.arange(2))
    assert not norms[1, 0] <= problems.tolerance[1, 0]


def test_rows_are_kept_by_how_common_their_features_are():
    X = np.zeros((6, 9))
    X[:, 7], X[:3, 2], X[0, 5] = 3.0, 2.0, 1.0
    own = sparse_party(X, np.zeros(6), np.ones(6))
    assert own.order[:3].tolist() == [7, 2, 5]
    assert own.exact.columns.shape == (6, 0)
    assert own.exact.common[0].tolist()[:3] == [3.0, 2.0, 1.0]
    assert own.exact.common.shape[1] == passes.COMMON


# --- kernels ---


def doubled(x):
    return 2 * x


def test_a_kernel_is_kept_until_any_source_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def hits():
        compiled = kernel(doubled)
        assert compiled(3) == 6
        return sum(compiled.stats.cache_hits.values())

    assert hits() == 0
    assert list((tmp_path / "coterie" / "numba").rglob("*.nbc"))
    assert hits() == 1
    # as if another file of the package had changed
    monkeypatch.setattr(kernels, "_source", lambda _: "0" * 64)
    assert hits() == 0


def test_without_a_folder_kernels_work_all_the_same(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert kernel(doubled)(4) == 8
