"""What broadcasts without noise give away: one record, from its party's other records and everything that was sent.

Zhang, Khalili & Liu (2018), Section 6.2. A party's step satisfies, at its broadcast f_t,

    gradient of the missing record = - (gradient of the known ones + l2/N f_t + linear_t + curvature (f_t - target_t))

and everything on the right is known: linear term and target are functions of earlier broadcasts. For a loss of one
score the left side is g_t = w slope(x . f_t, y) x, so all g_t lie on one line, the direction of x, and how long they
are in different rounds tells |x| and y. A record and its mirror image (-x, the other label; -x, -y in regression) have
the same gradients and cannot be told apart unless class weights differ.

With noise in the steps, g_t is the missing gradient plus noise that the grants made larger than it.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import least_squares

from coterie.algorithms.consensus import GraphADMM
from coterie.data.federation import Shard
from coterie.errors import InputError
from coterie.network.channels import ImpairedTopology
from coterie.plan import Plan
from coterie.privacy.events import Unprotected
from coterie.problems import Loss
from coterie.transcript import Transcript

# one gradient has too few numbers for the direction, the length and the label
FEWEST_ROUNDS = 2
# grid from which the least-squares fits start
_NORMS, _LABELS = 64, 65
# of one fit: a dozen without noise; with noise the best fit may lie at infinity
_STEPS = 60
# relative: fits go on to rounding
_TINY = 1e-15
# without noise the right records leave a relative residual near rounding
_UNEXPLAINED = 1e-6
# singular values below this share of the largest are zero
_RANK = 1e-9


class NotIdentifiableError(InputError):
    """Several records explain the broadcasts equally well."""


@dataclasses.dataclass(frozen=True, eq=False)
class Recovered:
    """The record that explains the broadcasts best; `y` is a position in the label set, or the number in regression."""

    x: np.ndarray
    y: float
    # length of the unexplained part of the gradients over the length of the gradients
    residual: float
    two_labels: bool
    # the mirror image explains the broadcasts just as well
    has_mirror: bool

    @property
    def mirror(self) -> tuple[np.ndarray, float]:
        return -self.x, 1 - self.y if self.two_labels else -self.y

    def distance(self, x: Any, y: float) -> float:
        """How far the true record (x, y) is from the estimate, or from its mirror image where that fits as well."""
        candidates = [(self.x, self.y), self.mirror][: 1 + self.has_mirror]
        return min(float(np.hypot(np.linalg.norm(x - guess), y - label)) for guess, label in candidates)

    def cosine(self, x: Any) -> float:
        """|cos| of the angle between the true and the estimated features: how well the direction was found."""
        return float(abs(self.x @ np.asarray(x)) / (np.linalg.norm(self.x) * np.linalg.norm(x)))


def recover_record(
    transcript: Transcript, party: int, known: Shard, *, repeat: int = 0, sample_weight: float = 1.0
) -> Recovered:
    """Find the one record of `party` that is not in `known` from one repeat's broadcasts.

    `sample_weight` is the missing record's. InputError where the attack does not apply, and, for runs without noise,
    where the known records contradict the broadcasts; NotIdentifiableError where they do not determine the record.
    """
    plan = transcript.plan
    _check(transcript, party, known, repeat)
    weights = plan.problem.weight_of_one_record(plan.facts.sizes[party]) * sample_weight * _class_weights(plan)
    with jax.enable_x64(True):
        f, gradients, noise = _missing_gradients(transcript, party, known, repeat)
        if len(f) < FEWEST_ROUNDS:
            raise InputError(
                f"transcript: party {party} spoke in {len(f)} rounds; at least {FEWEST_ROUNDS} are needed "
                "to find a record"
            )
        exact = not noise.any()
        # what the solver left over in every round is no trace
        left_over = 2 * math.sqrt(len(f)) * float(plan.grant_scales().tolerance[:, party].max())
        if exact and np.linalg.norm(gradients) <= left_over:
            raise NotIdentifiableError("transcript: the missing record had no slope in any round, so it left no trace")
        trust = np.ones(len(f)) if exact else noise.min() / noise
        x, y, residual = _fit(plan, weights, f, gradients, trust, exact)
    if exact and residual > _UNEXPLAINED:
        raise InputError(
            f"known: no record explains the broadcasts of party {party} together with these (relative residual "
            f"{residual:.1e}); they are not its other records"
        )
    return Recovered(x, y, residual, plan.facts.labels is not None, bool(np.all(weights == weights[0])))


def _check(transcript: Transcript, party: int, known: Shard, repeat: int) -> None:
    plan = transcript.plan
    facts, problem = plan.facts, plan.problem
    if not isinstance(plan.algorithm, GraphADMM):
        raise InputError(f"transcript: {type(plan.algorithm).__name__} given; the attack needs a graph algorithm")
    if problem.loss.n_outputs != 1:
        raise InputError(f"transcript: {type(problem.loss).__name__} given; the attack needs a loss of one score")
    if not problem.regulariser.smooth:
        raise InputError(
            f"transcript: {type(problem.regulariser).__name__} given; the attack needs a smooth regulariser, whose "
            "gradient everybody can compute"
        )
    if not 0 <= party < facts.n_parties:
        raise InputError(f"party: got {party}; 0 to {facts.n_parties - 1} are in the transcript")
    if not 0 <= repeat < len(transcript.releases):
        raise InputError(f"repeat: got {repeat}; 0 to {len(transcript.releases) - 1} are in the transcript")
    needed = (facts.sizes[party] - 1, facts.n_features)
    if known.X.shape != needed:
        raise InputError(f"known: X has shape {known.X.shape}; all records of party {party} but one are {needed}")


def _class_weights(plan: Plan) -> np.ndarray:
    """One number per label, or just one in regression."""
    labels = plan.facts.labels
    return np.asarray(plan.problem.class_weight or np.ones(1 if labels is None else len(labels)))


def _missing_gradients(
    transcript: Transcript, party: int, known: Shard, repeat: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Broadcasts, what is left of the optimality condition there, and its noise, for each round the party spoke in."""
    plan = transcript.plan
    grants, index = plan.issued
    problem = plan.problem.share(plan.facts.n_parties)
    # a row of weight zero in place of the missing one keeps the number of records, which the weights depend on
    stand_in = Shard(
        np.concatenate([known.X, np.zeros((1, known.X.shape[1]))]), np.append(known.y, 0.0), np.append(known.weight, 0)
    )
    X, y, weight = problem.records(stand_in)
    kept: list[tuple[np.ndarray, np.ndarray, float]] = []
    for t, (f, linear, target) in _public_inputs(transcript, party, repeat):
        grant = grants[index[t % len(index), party]]
        scales, slopes = grant.scales, _slopes(problem.loss, X @ f, y)
        rest = X.T @ (weight * slopes) + (problem.regulariser.l2 + scales.extra_l2) * f + linear
        convexity = problem.regulariser.l2 + scales.extra_l2 + scales.curvature
        noise = 0.0 if isinstance(grant.event, Unprotected) else scales.noise_scale + convexity * scales.output_scale
        kept.append((f, -rest - scales.curvature * (f - target), noise))
    if not kept:
        return np.empty((0, X.shape[1])), np.empty((0, X.shape[1])), np.empty(0)
    f, gradients, noise = (np.asarray(column) for column in zip(*kept, strict=True))
    return f, gradients, noise


def _public_inputs(transcript: Transcript, party: int, repeat: int) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Replay the half of the run that everybody can compute: (t, (broadcast, linear term, target)) of the party."""
    plan = transcript.plan
    algorithm, impairments = plan.algorithm, transcript.impairments
    deliveries = None if impairments is None else impairments.deliveries(plan.topology, plan.n_rounds)
    public = algorithm.init(plan.topology, transcript.releases.shape[-1])[0]
    for t, received in enumerate(transcript.releases[repeat]):
        delivery: Any = jax.tree.map(lambda a, t=t: a[t], deliveries)
        network: Any = plan.topology if delivery is None else ImpairedTopology(plan.topology, delivery)
        linear, target = algorithm.inbox(float(t), public, network)
        if delivery is None or delivery.speaks[party]:
            yield t, (received[party], np.asarray(linear[party]), np.asarray(target[party]))
        public = algorithm.combine(float(t), public, jnp.asarray(received), network)


def _fit(
    plan: Plan, weights: np.ndarray, f: np.ndarray, gradients: np.ndarray, trust: np.ndarray, exact: bool
) -> tuple[np.ndarray, float, float]:
    """The record (x, y) within the public bounds whose gradients come closest, and the relative residual."""
    loss, facts, d = plan.problem.loss, plan.facts, f.shape[1]
    two_labels = facts.labels is not None
    weighted = trust[:, None] * gradients
    label_grid = np.arange(len(weights)) if two_labels else np.linspace(-1, 1, _LABELS) * (facts.label_bound or 1.0)

    def record(z: np.ndarray, label: float) -> tuple[np.ndarray, float, float]:
        y = label if two_labels else float(z[d])
        return z[:d], y, weights[int(y) if two_labels else 0]

    def misfit(z: np.ndarray, label: float) -> np.ndarray:
        x, y, w = record(z, label)
        slopes = _slopes(loss, f @ x, np.full(len(f), y))
        return (trust[:, None] * (w * np.outer(slopes, x)) - weighted).ravel()

    def derivative(z: np.ndarray, label: float) -> np.ndarray:
        x, y, w = record(z, label)
        labels = np.full(len(f), y)
        slopes, bends = _slopes(loss, f @ x, labels), _bends(loss, f @ x, labels)
        by_x = slopes[:, None, None] * np.eye(d) + bends[:, None, None] * x[:, None] * f[:, None, :]
        # regression losses are functions of score - y
        columns = by_x if two_labels else np.concatenate([by_x, -(bends[:, None] * x)[:, :, None]], axis=2)
        return (w * trust[:, None, None] * columns).reshape(-1, columns.shape[2])

    fits = []
    for x, y in _starts(loss, weights, f, gradients, trust, label_grid, facts.row_norm):
        z = x if two_labels else np.append(x, y)
        # its stub knows names only
        jacobian: Any = derivative
        found = least_squares(
            misfit, z, jacobian, method="lm", xtol=_TINY, ftol=_TINY, gtol=_TINY, max_nfev=_STEPS, args=(y,)
        )
        fits.append((found.cost, y, found.x))
    _, label, z = min(fits, key=lambda fit: fit[0])
    singular = np.linalg.svd(derivative(z, label), compute_uv=False)
    if exact and singular[-1] <= _RANK * singular[0]:
        raise NotIdentifiableError(
            "transcript: the missing record's slope stays on a flat part of the loss, or its score hardly moves, which "
            "hides its label"
        )
    residual = float(np.linalg.norm(misfit(z, label)) / np.linalg.norm(weighted))
    x, y, _ = record(z, label)
    x = x * min(1.0, facts.row_norm / max(float(np.linalg.norm(x)), np.finfo(float).tiny))
    largest = math.inf if facts.label_bound is None else facts.label_bound
    return x, min(max(y, -largest), largest), residual


def _starts(
    loss: Loss,
    weights: np.ndarray,
    f: np.ndarray,
    gradients: np.ndarray,
    trust: np.ndarray,
    label_grid: np.ndarray,
    row_norm: float,
) -> Iterator[tuple[np.ndarray, float]]:
    """Points to fit from: two estimates of the direction, and for each the best norm with every (two) or any label."""
    weighted = trust[:, None] * gradients
    # best with noise when slopes keep their sign
    mean = trust @ weighted
    # whatever the signs
    axis = np.linalg.svd(weighted, full_matrices=False)[2][0]
    two_labels = len(weights) > 1
    for direction in (mean / max(float(np.linalg.norm(mean)), np.finfo(float).tiny), axis):
        lengths, scores = weighted @ direction, f @ direction
        norms = np.delete(np.linspace(-row_norm, row_norm, 2 * _NORMS + 1), _NORMS)
        norm, label, score = np.meshgrid(norms, label_grid, scores, indexing="ij")
        slopes = _slopes(loss, norm * score, label.astype(float))
        w = weights[label.astype(int)] if two_labels else weights[0]
        misfit = ((trust * w * slopes * norm - lengths) ** 2).sum(axis=2)
        for column in range(len(label_grid)) if two_labels else (np.argmin(misfit.min(axis=0)),):
            yield norms[np.argmin(misfit[:, column])] * direction, float(label_grid[column])


@functools.cache
def _derivatives(loss: Loss) -> tuple[Any, Any]:
    return jax.jit(loss.slope), jax.jit(loss.curvature)


def _slopes(loss: Loss, score: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.asarray(_derivatives(loss)[0](score, y))


def _bends(loss: Loss, score: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.asarray(_derivatives(loss)[1](score, y))
