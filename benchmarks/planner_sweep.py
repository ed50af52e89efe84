"""Many settings of noised gradient descent on one data set at once: what the planner is compared with in hindsight.

With Gaussian gradient sums everything that is promised (parties, trust, epsilon, delta) comes to one number, the noise
of the summed gradient over the whole budget, `noise` here. This file repeats `coterie.algorithms.gradient` (momentum,
linear averaging) and `standardise="private"` in single precision for whole batches, with nothing but NumPy and JAX, so
that it runs on a machine with a GPU and no Coterie.
"""

import functools
import itertools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# share of the constant column, as in coterie.data.federation
INTERCEPT = 0.5
STANDARDISING_SHARE = 0.2
# of the longest step that does not diverge
STEP_SHARE = 0.75
BATCH = 2048

# the hindsight grid: noise * length / n, l2 * length / n, (momentum, most rounds), standardise
LENGTHS = tuple(2.0**k for k in range(-4, 5))
RIDGES = (0.0, 0.3, 1.0, 3.0)
ROUNDS = ((0.0, 400), (0.9, 200), (0.96, 200))
GRID = tuple(itertools.product(LENGTHS, RIDGES, ROUNDS, (False, True)))


class Data(NamedTuple):
    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    n_classes: int

    @property
    def smoothness(self) -> float:
        return {0: 1.0, 2: 0.25}.get(self.n_classes, 0.5)

    @property
    def change(self) -> float:
        """G: how far one record that is replaced moves the summed gradient."""
        return 2 * {0: 1.0, 2: 1.0}.get(self.n_classes, math.sqrt(2))

    @property
    def n_outputs(self) -> int:
        return self.n_classes if self.n_classes > 2 else 1


class Setting(NamedTuple):
    """In the algorithm's own units: the sum over records, rows in the unit ball."""

    step: float
    l2: float
    rounds: int
    momentum: float
    standardise: bool
    averaged: bool = True


def of_grid(point, data: Data, noise: float) -> Setting:
    """`noise`: of the summed gradient over the whole budget."""
    reach, ridge, (momentum, most), standardise = point
    length = reach / noise
    l2 = ridge / length
    curvature = len(data.y) * data.smoothness + l2
    longest = STEP_SHARE * (2 + 2 * momentum) / (1 + 2 * momentum) / curvature
    rounds = math.ceil(min(max(length * (1 - momentum) / longest, 20, 3 / (1 - momentum)), most))
    return Setting(min(length * (1 - momentum) / rounds, longest), l2, rounds, momentum, standardise)


def slopes(scores, y, n_classes):
    """Derivative in the scores, (records, runs, outputs)."""
    if n_classes == 0:
        return jnp.clip(scores - y[:, None, None], -1, 1)
    if n_classes == 2:
        return jax.nn.sigmoid(scores) - y[:, None, None]
    return jax.nn.softmax(scores, axis=-1) - jax.nn.one_hot(y.astype(int), n_classes)[:, None]


@functools.partial(jax.jit, static_argnames=("n_classes", "n_outputs"))
def descend(X, y, key, step, l2, rounds, momentum, averaged, noise, most, *, n_classes, n_outputs):
    """Models (d, runs, outputs); all but X, y and key have one value a run; `noise` is that of one round."""
    d, n_runs = X.shape[1], len(step)

    def column(values):
        return values[None, :, None]

    def one(t, state):
        x, ahead, average = state
        scores = (X @ ahead.reshape(d, -1)).reshape(-1, n_runs, n_outputs)
        gradient = (X.T @ slopes(scores, y, n_classes).reshape(len(y), -1)).reshape(d, n_runs, n_outputs)
        drawn = jax.random.normal(jax.random.fold_in(key, t), gradient.shape)
        after = ahead - column(step) * (gradient + column(noise) * drawn + column(l2) * ahead)
        share = jnp.where(averaged, 2.0 / (t + 2.0), 1.0)
        at_work = column(t < rounds)
        moved = (after, after + column(momentum) * (after - x), average + column(share) * (after - average))
        return tuple(jnp.where(at_work, new, old) for new, old in zip(moved, state, strict=True))

    zero = jnp.zeros((d, n_runs, n_outputs))
    return jax.lax.fori_loop(0, most, one, (zero, zero, zero))[2]


@functools.partial(jax.jit, static_argnames="n_classes")
def measures(models, X, y, *, n_classes):
    """(runs, 3): error, AUC, mean loss; of regressions 1 - R^2, nothing, mean square."""
    scores = jnp.einsum("nd,dro->nro", X, models)
    if n_classes == 0:
        square = jnp.mean((scores[..., 0] - y[:, None]) ** 2, axis=0)
        return jnp.stack([square / jnp.var(y), jnp.full_like(square, jnp.nan), square], axis=-1)
    if n_classes > 2:
        wrong = jnp.mean(scores.argmax(-1) != y[:, None], axis=0)
        chosen = jnp.take_along_axis(scores, y.astype(int)[:, None, None], axis=-1)[..., 0]
        loss = jnp.mean(jax.nn.logsumexp(scores, axis=-1) - chosen, axis=0)
        return jnp.stack([wrong, jnp.full_like(wrong, jnp.nan), loss], axis=-1)
    scores = scores[..., 0]
    wrong = jnp.mean((scores > 0) != y[:, None], axis=0)
    loss = jnp.mean(jax.nn.softplus(scores) - y[:, None] * scores, axis=0)
    n_true = y.sum()

    def area(score):
        ordered = jnp.sort(score)
        below = jnp.searchsorted(ordered, score, side="left")
        up_to = jnp.searchsorted(ordered, score, side="right")
        ranks = (below + up_to + 1) / 2
        return ((ranks * y).sum() - n_true * (n_true + 1) / 2) / (n_true * (len(y) - n_true))

    return jnp.stack([wrong, jax.lax.map(area, scores.T, batch_size=64), loss], axis=-1)


def standardised(data: Data, noise: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Rows of training and test by noised sums and sums of squares, which take their share of the budget.

    Replacing a row of norm 1 moves sums by 2 and sums of squares by sqrt(2) at most, sqrt(6) together; `noise` is for a
    change of G.
    """
    rows = data.X[:, :-1] * math.sqrt(1 + INTERCEPT**2)
    n, d = rows.shape
    std = math.sqrt(6) * noise / data.change / math.sqrt(STANDARDISING_SHARE)
    mean = (rows.sum(axis=0) + std * rng.standard_normal(d)) / n
    square = ((rows**2).sum(axis=0) + std * rng.standard_normal(d)) / n
    least = std / n
    variance = np.maximum(square - mean**2, least)
    shown = square - mean**2 > 2 * least
    if not shown.any():
        shown[:] = True
    length = math.sqrt(float(np.sum(shown)))

    def encoded(X):
        centred = (X[:, :-1] * math.sqrt(1 + INTERCEPT**2) - mean) / np.sqrt(variance) / length
        norm = np.linalg.norm(centred, axis=1, keepdims=True)
        centred = centred / np.maximum(norm, 1)
        return np.column_stack([centred, np.full(len(X), INTERCEPT)]) / math.sqrt(1 + INTERCEPT**2)

    return encoded(data.X).astype(np.float32), encoded(data.X_test).astype(np.float32)


def run(data: Data, settings: list[Setting], noise: float, seeds: int, first_seed: int = 0) -> np.ndarray:
    """(settings, seeds, 3). `first_seed` must differ between calls whose noise is to differ."""
    found = np.full((len(settings), seeds, 3), np.nan)
    plain = [i for i, setting in enumerate(settings) if not setting.standardise]
    scaled = [i for i, setting in enumerate(settings) if setting.standardise]
    if plain:
        rows, test = data.X.astype(np.float32), data.X_test.astype(np.float32)
        found[plain] = _run(data, rows, test, [settings[i] for i in plain], noise, range(seeds), first_seed)
    for seed in range(seeds) if scaled else ():
        rows, test = standardised(data, noise, np.random.default_rng([first_seed, seed]))
        left = noise / math.sqrt(1 - STANDARDISING_SHARE)
        found[scaled, seed] = _run(data, rows, test, [settings[i] for i in scaled], left, [seed], first_seed)[:, 0]
    return found


def _run(data, X, X_test, settings, noise, seeds, first_seed) -> np.ndarray:
    pairs = [(setting, seed) for setting in settings for seed in seeds]
    order = sorted(range(len(pairs)), key=lambda i: pairs[i][0].rounds)
    X, y = jax.device_put(X), jax.device_put(data.y.astype(np.float32))
    X_test, y_test = jax.device_put(X_test), jax.device_put(data.y_test.astype(np.float32))
    found = np.empty((len(pairs), 3))
    batch = max(1, min(BATCH, int(2e9 / (4 * len(y) * data.n_outputs))))
    for start in range(0, len(order), batch):
        places = order[start : start + batch]
        chosen = [pairs[i][0] for i in places]
        # padded to one shape, so that there is one program
        chosen += [chosen[-1]] * (batch - len(chosen)) if len(order) > batch else []
        rounds = np.array([setting.rounds for setting in chosen])
        columns = {
            "step": [setting.step for setting in chosen],
            "l2": [setting.l2 for setting in chosen],
            "momentum": [setting.momentum for setting in chosen],
            "noise": noise * np.sqrt(rounds),
        }
        values = {name: jnp.asarray(column, jnp.float32) for name, column in columns.items()}
        models = descend(
            X,
            y,
            jax.random.key(int(np.random.SeedSequence([first_seed, *seeds, start]).generate_state(1)[0])),
            rounds=jnp.asarray(rounds),
            averaged=jnp.asarray([setting.averaged for setting in chosen]),
            most=int(rounds.max()),
            n_classes=data.n_classes,
            n_outputs=data.n_outputs,
            **values,
        )
        found[places] = np.asarray(measures(models, X_test, y_test, n_classes=data.n_classes))[: len(places)]
    return found.reshape(len(settings), len(seeds), 3)
