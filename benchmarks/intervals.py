"""How often 95 % intervals hold the truth: the method of `coterie.inference`, repeated in batches.

    python benchmarks/intervals.py --cells 2000,6,4,1.0,0.5 --repeats 1000
    python benchmarks/intervals.py --all --out coverage.jsonl
    python benchmarks/intervals.py --held-out --out held-out.jsonl
    python benchmarks/intervals.py --summary coverage.jsonl

A cell is n records, d columns of the design (the constant one among them), N parties that noise their own releases,
epsilon, and the share of positives. Rows are uniform in a box, scores have standard deviation 1.2, and every second
column has no effect. Scales of noise are those of the plan that the rules make; estimate, intervals and what counts as
identified are the package's own functions. Only the model at which gradient and Hessian are taken is made in a shorter
way: the minimiser of one noised objective with the share of the budget and the regulariser that the rules give the
rounds. Data sets are drawn again whenever they are looked at, a process a core, and passed over in blocks of rows in
single precision, whose rounding is a ten-thousandth of the least noise. No constant of the package was picked on the
cells of `--held-out`. `--end-to-end` goes through the estimator instead, noise drawn from seeds: a cell or two.
"""

import argparse
import itertools
import json
import math
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit
from scipy.stats import beta, binom, chi2, kstest, norm

from coterie import rules
from coterie.engines.moments import derivative_stds, noise_std
from coterie.inference.estimate import Equations, Stage, identified
from coterie.plan import Plan
from coterie.privacy.accountants import gaussian_multiplier
from coterie.problems import L2, Huber, Logistic, Problem
from coterie.promise import Privacy
from coterie.values import Facts

DELTA = 1e-6
# rows that stay in a core's cache, and data sets that a worker takes at a time
BLOCK, BATCH = 4096, 25
# of Newton's method
MOST_STEPS = 12
SIZES, WIDTHS, PARTIES, EPSILONS, POSITIVES = (
    (600, 2000, 5000, 20000, 100000), (3, 6, 11, 21), (1, 4, 20), (0.5, 1.0, 4.0), (0.5, 0.05),
)  # fmt: skip
# by n, d and the share of positives, with settings (N, epsilon)
HELD_OUT = {
    (1200, 4, 0.3): ((1, 2.0), (3, 3.0)),
    (1200, 4, 0.1): ((1, 2.0), (3, 3.0)),
    (3500, 5, 0.08): ((1, 0.7), (2, 2.0), (8, 3.0)),
    (3500, 8, 0.4): ((1, 0.7), (2, 2.0), (8, 3.0)),
    (12000, 4, 0.04): ((1, 0.7), (2, 2.0), (8, 0.7)),
    (12000, 15, 0.15): ((1, 2.0), (8, 3.0)),
}
# the constant column, for rows within norm 1
INTERCEPT = 0.5 / math.sqrt(1.25)


def truth(d: int, positives: float) -> np.ndarray:
    """Coefficients of the design: of rows in a box that fits into the unit ball beside the constant column."""
    raw = np.linspace(-1, 1, d - 1)
    raw[1::2] = 0.0
    raw *= 1.2 / math.sqrt((raw**2).sum() / 3)
    scores = np.random.default_rng(0).uniform(-1, 1, (200_000, d - 1)) @ raw
    intercept = brentq(lambda b: float(expit(scores + b).mean()) - positives, -10, 10)
    return np.append(raw * math.sqrt((d - 1) * 1.25), intercept / INTERCEPT)


def plan_of(n: int, d: int, parties: int, epsilon: float) -> Plan:
    sizes = tuple(n // parties + (i < n % parties) for i in range(parties))
    facts = Facts(
        parties=tuple(map(str, range(parties))), sizes=sizes, n_features=d, row_norm=1.0, labels=("no", "yes")
    )
    privacy = Privacy(epsilon=epsilon, delta=DELTA, adjacency="replace-one")
    problem = Problem(loss=Logistic(), regulariser=L2(1.0), record_weight=1.0)
    return rules.make_plan(problem, facts, privacy, rules.Settled(), rules.Wanted())


class DataSet:
    """Rows and labels of one repetition."""

    def __init__(self, key: tuple[int, ...], n: int, theta: np.ndarray) -> None:
        d, rng = len(theta), np.random.default_rng(key)
        self.rows = rng.random((n, d), dtype=np.float32)
        self.rows *= np.float32(2 / math.sqrt((d - 1) * 1.25))
        self.rows -= np.float32(1 / math.sqrt((d - 1) * 1.25))
        self.rows[:, -1] = INTERCEPT
        chances = expit(self.rows @ theta.astype(np.float32))
        self.labels = (rng.random(n, dtype=np.float32) < chances).astype(np.float32)

    def moments(self, f: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Gradient and Hessian at f."""
        gradient, hessian, f = np.zeros(len(f)), np.zeros((len(f), len(f))), f.astype(np.float32)
        for start in range(0, len(self.rows), BLOCK):
            rows = self.rows[start : start + BLOCK]
            p = expit(rows @ f)
            gradient += rows.T @ (p - self.labels[start : start + BLOCK])
            hessian += rows.T @ ((p * (1 - p))[:, None] * rows)
        return gradient, hessian

    def minimiser(self, ridge: float, linear: np.ndarray, start: np.ndarray) -> np.ndarray:
        """Of the loss with ridge and linear term, to a hundredth of a score: far less than its noise moves it."""
        f = start
        for _ in range(MOST_STEPS):
            g, H = self.moments(f)
            move = np.linalg.solve(H + ridge * np.eye(len(f)), g + ridge * f + linear)
            # rows have norm 1 at the most
            f = f - move / max(1.0, np.linalg.norm(move) / 3)
            if np.linalg.norm(move) < 0.01:
                break
        return f


def _started(keys, n, theta, ridges, stds):
    """Models of each setting, (repeat, setting, d), and exact Hessians at the truth."""
    models, exact = [], []
    for key in keys:
        data, noise = DataSet((*key, 0), n, theta), np.random.default_rng((*key, 1))
        plain = data.minimiser(1.0, np.zeros(len(theta)), np.zeros(len(theta)))
        models.append(
            [data.minimiser(r, noise.normal(0, std, len(theta)), plain) for r, std in zip(ridges, stds, strict=True)]
        )
        exact.append(data.moments(theta)[1])
    return np.array(models), np.array(exact)


def _at(keys, n, theta, models):
    """Exact gradients and Hessians at the models of each setting; the data are drawn again."""
    found = []
    for key, of_settings in zip(keys, models, strict=True):
        data = DataSet((*key, 0), n, theta)
        found.append([data.moments(f) for f in of_settings])
    return tuple(np.array([[one[k] for one in settings] for settings in found]) for k in (0, 1))


def symmetric(rng, shape, p, std):
    E = np.triu(rng.normal(0, std / math.sqrt(2), (*shape, p, p)), 1)
    return E + np.swapaxes(E, -1, -2) + np.eye(p) * rng.normal(0, std, (*shape, p))[..., None, :]


def cells_of(n, d, positives, settings, repeats, seed, workers):
    """All settings (N, epsilon) on the same `repeats` data sets."""
    theta = truth(d, positives)
    plans = [plan_of(n, d, parties, epsilon) for parties, epsilon in settings]
    many = [math.sqrt(parties) for parties, _ in settings]
    multipliers = [gaussian_multiplier(epsilon, DELTA) for _, epsilon in settings]
    fit_stds = np.array(
        [2 * m / math.sqrt(1 - rules.INFERENCE_SHARE) * r for m, r in zip(multipliers, many, strict=True)]
    )
    ridges = 1.0 + fit_stds / rules.SCORE
    rng = np.random.default_rng([seed, n, d, int(1000 * positives)])
    constant = np.append(np.zeros(d - 1), 1 / INTERCEPT)
    keys = [(seed, n, d, int(1000 * positives), repeat) for repeat in range(repeats)]
    parts = [slice(start, start + BATCH) for start in range(0, repeats, BATCH)]

    def in_parts(function, *arrays, **settings):
        asked = [
            workers.submit(function, keys[part], n, theta, *(a[part] for a in arrays), **settings) for part in parts
        ]
        return [np.concatenate(column) for column in zip(*(one.result() for one in asked), strict=True)]

    models, exact = in_parts(_started, ridges=ridges, stds=fit_stds)
    stages = [[] for _ in settings]
    for k in range(len(plans[0].moments.multipliers)):
        gradients, hessians = in_parts(_at, models)
        after = []
        for place, plan in enumerate(plans):
            g_std, h_std = derivative_stds(plan, k)
            g = gradients[:, place] + rng.normal(0, g_std, (repeats, d))
            H = hessians[:, place] + symmetric(rng, (repeats,), d, h_std)
            stages[place].append(Stage(models[:, place], g, H, g_std, h_std))
            after.append(Equations(stages[place], constant=constant).next_model(1.0))
        models = np.stack(after, axis=1)
    told = []
    for place, (parties, epsilon) in enumerate(settings):
        oracle_std = 2 * multipliers[place] * many[place]
        cell = {"n": n, "d": d, "parties": parties, "epsilon": epsilon, "positives": positives}
        told.append((cell, stages[place], theta, exact, oracle_std))
    yield from workers.map(_cell, told)


def _cell(told):
    cell, *found = told
    return {**cell, **measured(*found)}


def measured(stages, theta, exact, oracle_std):
    d, (model, *_) = len(theta), stages[-1]
    constant = np.append(np.zeros(d - 1), 1 / INTERCEPT)
    found = Equations(stages, constant=constant)
    estimate, each = found.solve(), np.eye(d)
    seen = identified(found, each, estimate)
    hits = np.abs(found.deviations(estimate, each, np.broadcast_to(theta, model.shape))) < norm.ppf(0.975)
    sampling = np.sqrt(np.diagonal(found.covariances(found(estimate))[0], axis1=1, axis2=2))
    without = np.abs(estimate - theta) < norm.ppf(0.975) * sampling
    told = {"repeats": len(seen), "identified": float(seen.mean())}
    if not seen.any():
        return told
    # coefficients of one repetition are dependent: the bounds are of as many trials as repetitions have any
    trials, covered = int(seen.any(axis=1).sum()), float(hits[seen].mean())
    missed = (1 - covered) * trials
    low, high = beta.ppf([0.025, 0.975], [trials - missed, trials - missed + 1], [missed + 1, max(missed, 1e-9)])
    nulls = np.flatnonzero(theta == 0)
    p_values = 2 * norm.sf(np.abs(found.deviations(estimate, each[nulls[:1]], np.zeros((len(seen), 1)))))
    p_values = p_values[seen[:, nulls[0]], 0]
    misfit, spread = found.misfits(estimate, each[None, nulls], np.zeros((len(seen), 1, len(nulls))))
    wald = (misfit * np.linalg.solve(spread, misfit[..., None])[..., 0]).sum(-1)[:, 0]
    whole = seen[:, nulls].all(axis=1)
    by_column = [float(hits[seen[:, j], j].mean()) for j in range(d) if seen[:, j].sum() >= 100]
    return {
        **told,
        "coverage": covered,
        "bounds": [float(low), float(high)],
        "worst_column": min(by_column, default=None),
        "all_columns": float(hits.mean()),
        "noise_ignored": float(without[seen].mean()),
        **widths(stages, seen, exact, oracle_std, constant),
        "null_ks_p": float(kstest(p_values, "uniform").pvalue) if len(p_values) >= 100 else None,
        "joint_rejected": float((wald[whole] > chi2.ppf(0.95, len(nulls))).mean()) if whole.sum() >= 100 else None,
        "joint_trials": int(whole.sum()),
    }


def widths(stages, seen, exact, oracle_std, constant, most=20):
    """Half-widths over those without privacy and with an oracle's Hessian and one gradient, of a few repetitions."""
    some = np.flatnonzero(seen.any(axis=1))[:most]
    stages = [
        stage._replace(**{k: getattr(stage, k)[some] for k in ("model", "gradient", "hessian")}) for stage in stages
    ]
    found = Equations(stages, constant=constant)
    low, high = found.interval(found.solve(), np.eye(seen.shape[1]), norm.ppf(0.975))
    half = (high - low) / 2 / norm.ppf(0.975)
    inverse = np.linalg.inv(exact[some])
    plain = np.sqrt(np.diagonal(inverse, axis1=1, axis2=2))
    best = np.sqrt(np.diagonal(inverse + oracle_std**2 * inverse @ inverse, axis1=1, axis2=2))
    told = {"width_over_non_private": half / plain, "width_over_oracle": half / best}
    found = {name: float(np.median(ratio[seen[some]])) for name, ratio in told.items()}
    return {name: value if math.isfinite(value) else "infinite" for name, value in found.items()}


def misspecified(n, d, parties, epsilon, repeats, seed, batch=25):
    """Huber regression whose errors are the larger the farther a row is out: a sandwich, and what takes their variance
    as one number."""
    sizes = tuple(n // parties + (i < n % parties) for i in range(parties))
    facts = Facts(parties=tuple(map(str, range(parties))), sizes=sizes, n_features=d, row_norm=1.0, label_bound=2.0)
    problem = Problem(loss=Huber(2.0), regulariser=L2(1.0), record_weight=1.0)
    privacy = Privacy(epsilon=epsilon, delta=DELTA, adjacency="replace-one")
    plan = rules.make_plan(problem, facts, privacy, rules.Settled(), rules.Wanted())
    fit_std = 4 * gaussian_multiplier(epsilon, DELTA) / math.sqrt(1 - rules.INFERENCE_SHARE) * math.sqrt(parties)
    theta, rng, told = np.linspace(-0.4, 0.4, d), np.random.default_rng(seed), []
    for _ in range(repeats // batch):
        X = rng.uniform(-1, 1, (batch, n, d)) / math.sqrt(d)
        # symmetric errors, and labels within the threshold of every score: the truth is theta
        y = X @ theta + rng.uniform(-1, 1, (batch, n)) * np.abs(X[..., 0]) * math.sqrt(d)
        gram = np.swapaxes(X, 1, 2) @ X
        ridge = 1.0 + fit_std / 2
        right = np.einsum("rni,rn->ri", X, y) + rng.normal(0, fit_std, (batch, d))
        model, stages = np.linalg.solve(gram + ridge * np.eye(d), right[..., None])[..., 0], []
        for k in range(2):
            slopes = np.clip(np.einsum("rni,ri->rn", X, model) - y, -2.0, 2.0)
            curved = np.abs(slopes) < 2.0
            g_std, h_std = derivative_stds(plan, k)
            g = np.einsum("rni,rn->ri", X, slopes) + rng.normal(0, g_std, (batch, d))
            H = np.einsum("rni,rn,rnj->rij", X, curved, X) + symmetric(rng, (batch,), d, h_std)
            stages.append(Stage(model, g, H, g_std, h_std))
            model = Equations(stages).next_model(1.0)
        slopes = np.clip(np.einsum("rni,ri->rn", X, model) - y, -2.0, 2.0)
        J = np.einsum("rni,rn,rnj->rij", X, slopes**2, X) + symmetric(rng, (batch,), d, noise_std(plan, 2))
        hits, robust = [], Equations(stages, second_moment=J)
        seen = identified(robust, np.eye(d), robust.solve())
        for found in (robust, Equations(stages, record_weight=float((slopes**2).mean()))):
            off = found.deviations(found.solve(), np.eye(d), np.broadcast_to(theta, (batch, d)))
            hits.append(np.abs(off) < norm.ppf(0.975))
        told.append((seen, *hits))
    seen, robust, one_number = (np.concatenate(part) for part in zip(*told, strict=True))
    cell = {"loss": "huber", "n": n, "d": d, "parties": parties, "epsilon": epsilon, "repeats": len(seen)}
    return {
        **cell,
        "identified": float(seen.mean()),
        "coverage": float(robust[seen].mean()),
        "first_column": float(robust[seen[:, 0], 0].mean()),
        "first_column_one_variance": float(one_number[seen[:, 0], 0].mean()),
    }


def end_to_end(n, d, parties, epsilon, positives, repeats, seed):
    """The same through `fit`, of one cell."""
    from coterie import PrivateLogisticRegression

    theta, rng, hits, seen = truth(d, positives), np.random.default_rng(seed), [], []
    bounds = math.sqrt(d - 1)
    for repeat in range(repeats):
        X = rng.uniform(-1, 1, (n, d - 1))
        raw = np.append(theta[:-1] / math.sqrt((d - 1) * 1.25), theta[-1] * INTERCEPT)
        y = rng.random(n) < expit(X @ raw[:-1] + raw[-1])
        model = PrivateLogisticRegression(
            epsilon=epsilon, delta=DELTA, adjacency="replace-one", bounds=bounds, classes=[False, True],
            inference=True, random_state=seed * 100_000 + repeat,
        ).fit(X, y, parties=np.arange(n) % parties)  # fmt: skip
        low, high = model.inference_.intervals(0.95).T
        hits.append((low < raw) & (raw < high))
        seen.append(model.inference_.identified)
    hits, seen = np.array(hits), np.array(seen)
    cell = {"n": n, "d": d, "parties": parties, "epsilon": epsilon, "positives": positives, "end_to_end": True}
    covered = float(hits[seen].mean()) if seen.any() else None
    return {**cell, "repeats": repeats, "identified": float(seen.mean()), "coverage": covered}


def plot(results, path):
    """Width over that without privacy, against n and epsilon: six columns, balanced, of the cells that are there."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(8, 3.4), sharex=True, sharey=True, layout="constrained")
    for ax, parties in zip(axes, (1, 4), strict=True):
        for epsilon in EPSILONS:
            wanted = {"d": 6, "parties": parties, "epsilon": epsilon, "positives": 0.5}
            found = [r for r in results if wanted.items() <= r.items() and r["identified"] >= 0.5]
            found = sorted((r["n"], r["width_over_non_private"]) for r in found)
            found = [(n, width) for n, width in found if width != "infinite"]
            ax.plot(*zip(*found, strict=True), "o-", label=f"ε = {epsilon:g}")
        ax.set(xscale="log", yscale="log", xlabel="records", title=f"{parties} noise{'s' * (parties > 1)}")
        ax.set_xticks(SIZES, [f"{n:,}" for n in SIZES])
        ax.set_yticks([1, 2, 3, 5], ["1", "2", "3", "5"])
        ax.minorticks_off()
        ax.grid(alpha=0.3)
    axes[0].set_ylabel("width / width without privacy")
    axes[0].legend()
    figure.savefig(path, dpi=150)


def summary(results):
    """What a file of cells shows, by size and share of positives; `half`: at least half of coefficients identified."""

    def between(rows, key, scale=100.0, digits=1):
        found = [scale * r[key] for r in rows if isinstance(r.get(key), float)]
        return f"{min(found):.{digits}f} to {max(found):.{digits}f}" if found else "-"

    half = [r for r in results if r["identified"] >= 0.5]
    print("positives  records  half  of  coverage, %     noise ignored, %  width / not private")
    for positives, n in sorted({(r["positives"], r["n"]) for r in results}, key=lambda cell: (-cell[0], cell[1])):
        cells = [r for r in results if (r["positives"], r["n"]) == (positives, n)]
        rows = [r for r in cells if r in half]
        print(
            f"{positives:9g}  {n:7,}  {len(rows):4}  {len(cells):2}  {between(rows, 'coverage'):14}  "
            f"{between(rows, 'noise_ignored'):16}  {between(rows, 'width_over_non_private', 1.0, 2)}"
        )
    inside = sum(0.93 <= r["coverage"] <= 0.97 for r in half)
    print(f"coverage within 93 to 97 % in {inside} of {len(half)} cells: {between(half, 'coverage')} %")
    few = [r for r in results if 0 < r["identified"] < 0.5]
    counts = [r["identified"] * r["d"] * r["repeats"] for r in few]
    covered = sum(r["coverage"] * count for r, count in zip(few, counts, strict=True)) / max(sum(counts), 1)
    many = [r for r, count in zip(few, counts, strict=True) if count >= 200]
    print(
        f"fewer than half identified, but some: {len(few)} cells, {100 * covered:.1f} % of what is reported is "
        f"covered; {between(many, 'coverage')} % in each of the {len(many)} with 200 coefficients or more"
    )
    print(f"nothing ever identified: {sum(r['identified'] == 0 for r in results)} cells")
    joint = [r for r in half if r["joint_rejected"] is not None]
    usual = sum(0.04 <= r["joint_rejected"] <= 0.06 for r in joint)
    # of as many trials as each has, were every rate just 5 %
    chance = sum(
        binom.cdf(0.06 * r["joint_trials"], r["joint_trials"], 0.05)
        - binom.cdf(0.04 * r["joint_trials"] - 1e-9, r["joint_trials"], 0.05)
        for r in joint
    )
    print(
        f"joint test of null columns at 5 %: 4 to 6 % in {usual} of {len(joint)} cells ({chance:.0f} if all were at "
        f"5 %), {between(joint, 'joint_rejected')} % in all"
    )
    tests = [r for r in half if r["null_ks_p"] is not None]
    print(f"Kolmogorov-Smirnov refuses {sum(r['null_ks_p'] < 0.01 for r in tests)} of {len(tests)} cells at 1 %")
    large = [r for r in half if r["n"] >= 20_000]
    oracle = [math.inf if r["width_over_oracle"] == "infinite" else r["width_over_oracle"] for r in large]
    if oracle:
        print(
            f"width over the oracle's, {len(oracle)} cells with n >= 20,000: median {np.median(oracle):.3f}, "
            f"largest {max(oracle):.3f}, within 1.25 in {sum(ratio <= 1.25 for ratio in oracle)}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", nargs="*", default=[], help="n,d,N,epsilon,positives")
    parser.add_argument("--all", action="store_true", help="the whole grid")
    parser.add_argument("--held-out", action="store_true", help="cells on which nothing was picked")
    parser.add_argument("--sizes", nargs="*", type=int, default=SIZES, help="with --all: these n only")
    parser.add_argument("--widths", nargs="*", type=int, default=WIDTHS, help="with --all: these d only")
    parser.add_argument("--repeats", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="a file for one line of JSON a cell, besides the screen")
    parser.add_argument("--end-to-end", action="store_true", help="through fit instead of the batch simulation")
    parser.add_argument("--plot", nargs=2, metavar=("RESULTS", "PNG"), help="draw the widths of a file of results")
    parser.add_argument("--summary", metavar="RESULTS", help="what a file of results shows")
    parser.add_argument("--misspecified", action="store_true", help="regression with errors of unequal variance")
    options = parser.parse_args()
    if options.summary:
        with open(options.summary) as file:
            summary([json.loads(line) for line in file])
        return
    if options.plot:
        with open(options.plot[0]) as file:
            plot([json.loads(line) for line in file], options.plot[1])
        return
    wanted = [tuple(float(x) for x in cell.split(",")) for cell in options.cells]
    if options.all:
        wanted = list(itertools.product(options.sizes, options.widths, PARTIES, EPSILONS, POSITIVES))
    if options.held_out:
        wanted = [(n, d, *setting, pos) for (n, d, pos), settings in HELD_OUT.items() for setting in settings]
    wanted = [(int(n), int(d), int(N), eps, pos) for n, d, N, eps, pos in wanted]
    out = open(options.out, "a") if options.out else None  # noqa: SIM115

    def tell(found):
        print(json.dumps(found), flush=True)
        if out is not None:
            out.write(json.dumps(found) + "\n")
            out.flush()

    if options.misspecified:
        for n, d, N, eps in ((2000, 4, 1, 1.0), (5000, 6, 4, 4.0), (20000, 4, 1, 4.0)):
            tell(misspecified(n, d, N, eps, options.repeats, options.seed))
        return
    if options.end_to_end:
        for cell in wanted:
            tell(end_to_end(*cell, options.repeats, options.seed))
        return
    # a core each, and no threads of BLAS beside them
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    workers = ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn"))
    for n, d, pos in dict.fromkeys((n, d, pos) for n, d, _, _, pos in wanted):
        started = time.perf_counter()
        settings = [(N, eps) for a, b, N, eps, c in wanted if (a, b, c) == (n, d, pos)]
        for found in cells_of(n, d, pos, settings, options.repeats, options.seed, workers):
            tell(found)
        print(f"# n={n} d={d} positives={pos}: {time.perf_counter() - started:.1f} s", flush=True)


if __name__ == "__main__":
    main()
