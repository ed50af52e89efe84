"""How often 95 % intervals hold the truth: the method of `coterie.inference`, repeated in batches.

    python benchmarks/intervals.py --cells 2000,6,4,1.0,0.5 --repeats 1000
    python benchmarks/intervals.py --all --out coverage.jsonl
    python benchmarks/intervals.py --held-out --out held-out.jsonl

A cell is n records, d columns of the design (the constant one among them), N parties that noise their own releases,
epsilon, and the share of positives. Rows are uniform in a box, scores have standard deviation 1.2, and every second
column has no effect. Scales of noise are those of the plan that the rules make; estimate, intervals and what counts as
identified are the package's own functions. Only the model at which gradient and Hessian are taken is made in a shorter
way: the minimiser of one noised objective with the share of the budget and the regulariser that the rules give the
rounds. Data sets are drawn in batches by JAX, on a GPU where there is one; all else is NumPy's. No constant of the
package was picked on the cells of `--held-out`. `--end-to-end` goes through the estimator instead, noise drawn from
seeds: a cell or two.
"""

import argparse
import functools
import itertools
import json
import math
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import brentq
from scipy.special import expit
from scipy.stats import beta, chi2, kstest, norm

from coterie import rules
from coterie.engines.moments import derivative_stds, noise_std
from coterie.facts import Facts
from coterie.inference.estimate import Equations, Stage, identified
from coterie.plan import Plan
from coterie.privacy.accountants import gaussian_multiplier
from coterie.problems import L2, Huber, Logistic, Problem
from coterie.promise import Privacy

DELTA = 1e-6
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


def _drawn(key, n, theta):
    d = len(theta)
    kx, ky = jax.random.split(key)
    X = jax.random.uniform(kx, (n, d), minval=-1.0, maxval=1.0) / math.sqrt((d - 1) * 1.25)
    X = X.at[:, -1].set(INTERCEPT)
    return X, (jax.random.uniform(ky, (n,)) < jax.nn.sigmoid(X @ theta)).astype(X.dtype)


def _moments(X, y, f):
    p = jax.nn.sigmoid(X @ f)
    return X.T @ (p - y), X.T @ ((p * (1 - p))[:, None] * X)


def _minimiser(X, y, ridge, linear):
    def step(f, _):
        g, H = _moments(X, y, f)
        move = jnp.linalg.solve(H + ridge * jnp.eye(len(f)), g + ridge * f + linear)
        return f - move / jnp.maximum(1.0, jnp.abs(X @ move).max() / 3), None

    return jax.lax.scan(step, jnp.zeros(X.shape[1]), None, length=7)[0]


@functools.partial(jax.jit, static_argnums=(1,))
def _started(keys, n, theta, ridges, stds):
    """Models of each setting, (repeat, setting, d), and exact Hessians at the truth."""

    def one(key):
        X, y = _drawn(key, n, theta)

        def setting(place, ridge, std):
            b = jax.random.normal(jax.random.fold_in(key, place + 1), theta.shape) * std
            return _minimiser(X, y, ridge, b)

        models = jax.lax.map(lambda s: setting(*s), (jnp.arange(len(ridges)), ridges, stds))
        return models, _moments(X, y, theta)[1]

    return jax.vmap(one)(keys)


@functools.partial(jax.jit, static_argnums=(1,))
def _at(keys, n, theta, models):
    """Exact gradients and Hessians at the models of each setting; the data are drawn again."""

    def one(key, models):
        X, y = _drawn(key, n, theta)
        return jax.lax.map(lambda f: _moments(X, y, f), models)

    return jax.vmap(one)(keys, models)


def symmetric(rng, shape, p, std):
    E = np.triu(rng.normal(0, std / math.sqrt(2), (*shape, p, p)), 1)
    return E + np.swapaxes(E, -1, -2) + np.eye(p) * rng.normal(0, std, (*shape, p))[..., None, :]


def cells_of(n, d, positives, settings, repeats, seed, budget_bytes):
    """All settings (N, epsilon) on the same `repeats` data sets."""
    theta = truth(d, positives)
    plans = [plan_of(n, d, parties, epsilon) for parties, epsilon in settings]
    many = [math.sqrt(parties) for parties, _ in settings]
    multipliers = [gaussian_multiplier(epsilon, DELTA) for _, epsilon in settings]
    fit_stds = np.array(
        [2 * m / math.sqrt(1 - rules.INFERENCE_SHARE) * r for m, r in zip(multipliers, many, strict=True)]
    )
    ridges = 1.0 + fit_stds / rules.SCORE
    batch = max(1, min(repeats, int(budget_bytes / (n * d * 8 * 6))))
    rng = np.random.default_rng([seed, n, d, int(1000 * positives)])
    constant = np.append(np.zeros(d - 1), 1 / INTERCEPT)
    keys = jax.random.split(jax.random.key(seed), repeats)
    parts = [keys[start : start + batch] for start in range(0, repeats, batch)]

    def in_parts(function, *arrays):
        found = [
            jax.tree.map(np.asarray, function(part, n, theta, *(a[i * batch : (i + 1) * batch] for a in arrays)))
            for i, part in enumerate(parts)
        ]
        return [np.concatenate(column) for column in zip(*found, strict=True)]

    models, exact = in_parts(lambda part, n, theta: _started(part, n, theta, ridges, fit_stds))
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
    with ThreadPoolExecutor() as threads:
        yield from threads.map(lambda one: {**one[0], **measured(*one[1:])}, told)


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

    figure, axes = plt.subplots(1, 2, figsize=(8, 3.4), sharey=True, layout="constrained")
    for ax, parties in zip(axes, (1, 4), strict=True):
        for epsilon in EPSILONS:
            wanted = {"d": 6, "parties": parties, "epsilon": epsilon, "positives": 0.5}
            found = [r for r in results if wanted.items() <= r.items() and r["identified"] >= 0.5]
            found = sorted((r["n"], r["width_over_non_private"]) for r in found)
            found = [(n, width) for n, width in found if width != "infinite"]
            ax.plot(*zip(*found, strict=True), "o-", label=f"ε = {epsilon:g}")
        ax.set(xscale="log", yscale="log", xlabel="records", title=f"{parties} noise{'s' * (parties > 1)}")
        ax.set_yticks([1, 2, 3, 5], ["1", "2", "3", "5"])
        ax.minorticks_off()
        ax.grid(alpha=0.3)
    axes[0].set_ylabel("width / width without privacy")
    axes[0].legend()
    figure.savefig(path, dpi=150)


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
    parser.add_argument("--misspecified", action="store_true", help="regression with errors of unequal variance")
    parser.add_argument("--memory", type=float, default=1.0, help="gigabytes for a batch of data sets")
    options = parser.parse_args()
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
    jax.config.update("jax_enable_x64", True)
    for n, d, pos in dict.fromkeys((n, d, pos) for n, d, _, _, pos in wanted):
        started = time.perf_counter()
        settings = [(N, eps) for a, b, N, eps, c in wanted if (a, b, c) == (n, d, pos)]
        for found in cells_of(n, d, pos, settings, options.repeats, options.seed, options.memory * 1e9):
            tell(found)
        print(f"# n={n} d={d} positives={pos}: {time.perf_counter() - started:.1f} s", flush=True)


if __name__ == "__main__":
    main()
