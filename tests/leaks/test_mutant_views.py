"""Published and popular mistakes, re-stated as functions from noise to everything an observer sees: the exact view or
the game refutes what is claimed about them, and the same statement with the right noise or price passes.

Each view is affine in standard normal noise unless it says otherwise. Parties have linear losses with slope +1 or -1,
the worst that a Lipschitz constant of 1 allows; the first party's slope is what changes.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest

from coterie.audit.density_ratio import Step, pure_loss
from coterie.audit.game import epsilon_lower_bound
from coterie.audit.gaussian_view import ORDERS, exact_pair
from coterie.privacy.accountants import gaussian_epsilon
from coterie.privacy.events import Gaussian, PoissonGaussian
from coterie.problems import HuberisedHinge, Records

STEP, RELAXATION, CLIP, N_PARTIES, N_ROUNDS, NOISE_STD = 0.5, 0.5, 0.1, 4, 5, 3.0
EVERYBODY = np.ones((N_ROUNDS, N_PARTIES), dtype=bool)
TWO_AT_A_TIME = np.array([[i in pair for i in range(4)] for pair in ((0, 1), (1, 2), (1, 3), (2, 3), (1, 2))])


def noisy_admm(
    slope, noise, *, seen, stored=False, step=STEP, relaxation=RELAXATION, clip_of_moves=None, work=EVERYBODY
):
    """Consensus ADMM without a regulariser on linear losses, `noise` for each round and party.

    It is stored in the states, or added to the broadcast centre; `seen` picks from (states, centre, moves) what the
    observer gets. `clip_of_moves`: losses so steep that every move is as long as the clip allows. `work`: by round, who
    moves.
    """
    slopes = np.array([slope] + [1.0] * (N_PARTIES - 1))
    u, view = np.zeros(N_PARTIES), []
    for draws, works in zip(noise.reshape(N_ROUNDS, N_PARTIES), work, strict=True):
        z = u.mean() + (0.0 if stored else NOISE_STD * draws[0] / N_PARTIES)
        x = 2 * z - u - step * slopes
        moves = x - z if clip_of_moves is None else -clip_of_moves * slopes
        if stored:
            moves = moves + NOISE_STD * draws
        moves = np.where(works, moves, 0.0)
        u = u + 2 * relaxation * moves
        view += seen(u, z, moves)
    return np.array(view)


def pair_of(view, n_noises=N_ROUNDS * N_PARTIES):
    return exact_pair(lambda noise: view(1.0, noise), lambda noise: view(-1.0, noise), n_noises)


def exceeds(view, curve) -> bool:
    return bool(np.any(pair_of(view).rdp(ORDERS) > curve * (1 + 1e-9)))


def sums(slope, noise):
    """Noise stored in the states, everybody works, only the sum of the messages is seen."""
    return noisy_admm(slope, noise, stored=True, seen=lambda u, z, moves: [moves.sum()])


def sums_of_two(slope, noise):
    """The same with two at work in each round, the first party in the first round only."""
    return noisy_admm(slope, noise, stored=True, seen=lambda u, z, moves: [moves.sum()], work=TWO_AT_A_TIME)


def broadcasts(slope, noise):
    """Clean states, noise in the broadcast mean."""
    return noisy_admm(slope, noise, seen=lambda u, z, moves: [z])


def two_kinds_of_rounds(slope, noise):
    """As `broadcasts`, and in the last round one party's clean state is seen by itself."""
    view = noisy_admm(slope, noise, seen=lambda u, z, moves: [z, float(u[0])])
    return np.concatenate([view[::2], view[-1:]])


def fast_broadcasts(slope, noise):
    return noisy_admm(slope, noise, seen=lambda u, z, moves: [z], relaxation=0.9)


def clipped_moves(slope, noise):
    """Clip(x - z) with clean states: two of them part by as much again in every round."""
    return noisy_admm(slope, noise, seen=lambda u, z, moves: [z], clip_of_moves=CLIP)


def clipped_gradients(slope, noise):
    """The gradient part is clipped instead: states stay within twice the radius of each other."""
    return noisy_admm(slope, noise, seen=lambda u, z, moves: [z], step=CLIP)


# one message of one party, replace-one
LOCAL_RATIO = 2 * STEP / NOISE_STD
# the sum of the states: 2 L gamma over the noise on the sum
STATE_RATIO = 2 * STEP / NOISE_STD
ONE_MESSAGE = Gaussian(LOCAL_RATIO).rdp(ORDERS)
LOCAL_CURVE = N_ROUNDS * ONE_MESSAGE
STATE_CURVE = N_ROUNDS * Gaussian(STATE_RATIO).rdp(ORDERS)


@dataclasses.dataclass(frozen=True)
class Claim:
    right: tuple[Callable, np.ndarray]
    wrong: tuple[Callable, np.ndarray]


CLAIMS = {
    # Cyffers, Bellet & Basu (2023), Theorem 3 and Remark 4: m noises in a sum give 1/m of one's loss, not 1/m^2
    "eps_loc/m^2": Claim((sums, LOCAL_CURVE / N_PARTIES), (sums, LOCAL_CURVE / N_PARTIES**2)),
    # the noise of a partner is in its state, comes out again with its next message, and is then taken off
    "stored-noise central accounting": Claim((sums_of_two, ONE_MESSAGE), (sums_of_two, ONE_MESSAGE / 2)),
    "clean states priced for slow ones": Claim((broadcasts, STATE_CURVE), (fast_broadcasts, STATE_CURVE)),
    "Clip(x - z) with clean states": Claim(
        (clipped_gradients, N_ROUNDS * Gaussian(2 * CLIP / NOISE_STD).rdp(ORDERS)),
        (clipped_moves, N_ROUNDS * Gaussian(2 * CLIP / NOISE_STD).rdp(ORDERS)),
    ),
    "a clean state leaves by itself": Claim((broadcasts, STATE_CURVE), (two_kinds_of_rounds, STATE_CURVE)),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_the_exact_view_refutes_the_wrong_claim_and_not_the_right_one(name):
    claim = CLAIMS[name]
    assert not exceeds(*claim.right)
    assert exceeds(*claim.wrong)


# --- what bounds are taken from, and when clipping happens -----------------------------------------------------------


def mean_of_rows(rows, noise, *, bound):
    return rows.sum(keepdims=True) / bound + NOISE_STD * noise


@pytest.mark.parametrize(("read_off", "caught"), [(False, False), (True, True)])
def test_a_bound_that_is_read_off_the_data_is_caught(read_off, caught):
    """Rows divided by the largest row: whoever brings the largest one moves everybody's."""
    rows, replaced = np.array([1.0, 1.0, 1.0, 1.0, 8.0]), np.array([1.0, 1.0, 1.0, 1.0, 1.0])
    sides = [lambda noise, r=r: mean_of_rows(r, noise, bound=r.max() if read_off else 8.0) for r in (rows, replaced)]
    exact = exact_pair(*sides, 1).rdp(ORDERS)
    assert np.any(exact > Gaussian(2.0 / NOISE_STD).rdp(ORDERS)) == caught


@pytest.mark.parametrize(("clip_first", "caught"), [(True, False), (False, True)])
def test_clipping_after_the_noise_is_caught(clip_first, caught):
    """The sensitivity is that of what the noise is added to."""
    rng, radius, noise_std = np.random.default_rng(0), 1.0, 1.5

    def runs(value):
        noise = noise_std * rng.standard_normal((8000, 1))
        return np.clip(value, -radius, radius) + noise if clip_first else np.clip(value + noise, -radius, radius)

    stated = gaussian_epsilon([(Gaussian(2 * radius / noise_std), 1)], 0.01)
    lower = epsilon_lower_bound(runs(9.0), runs(-9.0), delta=0.01, false_alarm=1e-4)
    assert (lower > stated) == caught


@pytest.mark.parametrize(("replacement", "caught"), [(False, False), (True, True)])
def test_sampling_with_replacement_is_no_poisson_sampling(replacement, caught):
    """m draws out of n: a party may be drawn twice, and then it moves the sum twice as far. Exact, by quadrature."""
    n, m, ratio, order = 10, 5, 1.0, 16.0
    times = np.arange(m + 1)
    share = np.array([math.comb(m, k) for k in times]) * (1 / n) ** times * (1 - 1 / n) ** (m - times)
    if not replacement:
        share, times = np.array([1 - m / n, m / n]), np.array([0, 1])
    x = np.linspace(-15, 15 + order * m * ratio, 200_001)
    mixture = np.logaddexp.reduce([np.log(s) - (x - k * ratio) ** 2 / 2 for s, k in zip(share, times, strict=True)])
    integrand = order * mixture + (order - 1) * x**2 / 2
    largest = integrand.max()
    log_moment = largest + math.log(np.exp(integrand - largest).sum() * (x[1] - x[0]) / math.sqrt(2 * math.pi))
    stated = PoissonGaussian(ratio=ratio, rate=m / n).rdp(np.array([order]))[0, 0]
    assert (log_moment / (order - 1) > stated * (1 + 1e-6)) == caught


# --- peers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("power", "caught"), [(2, False), (1, True)])
def test_objective_perturbation_with_the_norm_bound_not_squared(power, caught):
    """A record's Hessian is at most c q^2 for rows of norm q; a peer's price has c q, far too little at q = 12."""
    q, weight, convexity, rate = 12.0, 1.0, 4.0, 0.02
    loss = HuberisedHinge(width=0.5)
    step = Step(
        loss=loss,
        weight=weight,
        strong_convexity=convexity,
        # the hinge bends where the score is 1
        offset=(-convexity / q,),
        law="gamma-sphere",
        noise_scale=1 / rate,
    )
    one, two = (Records(np.array([[q]]), np.array([label]), np.ones(1)) for label in (1.0, 0.0))
    stated = rate * 2 * weight * q + math.log1p(weight * loss.smoothness * q**power / convexity)
    assert (pure_loss(step, one, two) > stated) == caught


# --- a mistake that costs no privacy but the result ------------------------------------------------------------------


@pytest.mark.parametrize(("recursive", "caught"), [(False, False), (True, True)])
def test_a_recursive_proximal_map_misses_the_optimum(recursive, caught):
    """The accumulator restarted from z, as printed: caught by the promise that without noise the optimum is reached."""
    targets, l1 = np.array([1.0, 2.0, 6.0]), 3.0

    def prox(v):
        return math.copysign(max(abs(v) - STEP * l1 / 3, 0.0), v)

    u, z_hat = np.zeros(3), 0.0
    for _ in range(3000):
        z = prox(z_hat)
        # f_i(x) = (x - target_i)^2 / 2
        x = (2 * z - u + STEP * targets) / (1 + STEP)
        moves = 2 * RELAXATION * (x - z)
        u = u + moves
        z_hat = (z if recursive else z_hat) + moves.mean()
    optimum = targets.mean() - l1 / 3
    assert (abs(prox(z_hat) - optimum) > 1e-6) == caught
