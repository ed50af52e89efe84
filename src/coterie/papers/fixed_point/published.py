"""Privacy losses as Cyffers, Bellet & Basu (2023, "FP") state them, to be printed beside certified ones.

    symbol   name                             symbol   name
    L        `lipschitz`, of every f_i        n        `n_parties`
    gamma    `prox_step`                      m        `n_sampled`, parties per round
    sigma    `noise_std`                      K        `n_rounds`
    alpha    `order` of the Rényi divergence  K_i      `n_visits`, rounds in which party i takes part

None of them is used to calibrate anything, and several are false (`coterie errata`). `holds` tells whether the paper's
own conditions are met, not whether the theorem is true. Neighbours differ in all data of one party.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy.optimize import isotonic_regression

from coterie.errors import InputError
from coterie.privacy.accountants import ORDERS, check_delta

Hypothesis = tuple[str, bool]


@dataclasses.dataclass(frozen=True)
class PublishedLoss:
    """A paper's Rényi divergence of one order."""

    theorem: str
    order: float
    rdp: float
    hypotheses: tuple[Hypothesis, ...] = ()

    @property
    def holds(self) -> bool:
        return all(met for _, met in self.hypotheses)


def published_epsilon(loss: Callable[[float], PublishedLoss], delta: float) -> float:
    """min over orders of rdp + ln(1/delta)/(order - 1), FP Section 3.3, where the hypotheses hold; inf if nowhere."""
    check_delta(delta)
    losses = [stated for stated in map(loss, ORDERS.tolist()) if stated.holds]
    return min((stated.rdp + math.log(1 / delta) / (stated.order - 1) for stated in losses), default=math.inf)


# --- ADMM with one curator --------------------------------------------------------------------------------------------


def theorem_2(
    *, lipschitz: float, prox_step: float, noise_std: float, n_parties: int, n_rounds: int, order: float
) -> PublishedLoss:
    """Algorithm 2, only z_K is shown: 8 alpha K L^2 gamma^2 / (sigma^2 n^2). False by a factor n as printed."""
    _check(order, n_parties=n_parties, n_rounds=n_rounds)
    rdp = n_rounds * _one_visit(lipschitz, prox_step, noise_std, order) / n_parties**2
    return PublishedLoss("FP Theorem 2", order, rdp, (_lipschitz(lipschitz),))


def theorem_7(
    *, lipschitz: float, prox_step: float, noise_std: float, n_parties: int, n_rounds: int, matrix_norm: float,
    smallest_singular_value: float, order: float,
) -> PublishedLoss:  # fmt: skip
    """Algorithm 5 for A x + B z = c: 8 alpha K |A|^2 L^2 gamma^2 / (sigma^2 n^2 omega_A^2). False where |A| < 1."""
    _check(order, n_parties=n_parties, n_rounds=n_rounds, matrix_norm=matrix_norm)
    if not 0 <= smallest_singular_value <= matrix_norm:
        raise InputError(
            f"smallest_singular_value: got {smallest_singular_value}; 0 to matrix_norm={matrix_norm} is allowed"
        )
    full_rank = smallest_singular_value > 0
    stretch = (matrix_norm / smallest_singular_value) ** 2 if full_rank else math.inf
    rdp = n_rounds * _one_visit(lipschitz, prox_step, noise_std, order) * stretch / n_parties**2
    return PublishedLoss("FP Theorem 7", order, rdp, (_lipschitz(lipschitz), ("A has full rank", full_rank)))


# --- federated ADMM ---------------------------------------------------------------------------------------------------


def theorem_3_local(
    *, lipschitz: float, prox_step: float, noise_std: float, n_visits: int, order: float
) -> PublishedLoss:
    """Algorithm 3, every message is seen: 8 alpha K_i L^2 gamma^2 / sigma^2. True."""
    _check(order, n_visits=n_visits)
    rdp = n_visits * _one_visit(lipschitz, prox_step, noise_std, order)
    return PublishedLoss("FP Theorem 3 (local)", order, rdp, (_lipschitz(lipschitz),))


def theorem_9(*, lipschitz: float, prox_step: float, noise_std: float, n_visits: int, order: float) -> PublishedLoss:
    """The same as Theorem 3 (local) inside an O(.), whose constant is 1 by its proof."""
    local = theorem_3_local(
        lipschitz=lipschitz, prox_step=prox_step, noise_std=noise_std, n_visits=n_visits, order=order
    )
    return dataclasses.replace(local, theorem="FP Theorem 9")


def theorem_3_central(
    *, lipschitz: float, prox_step: float, noise_std: float, n_parties: int, n_sampled: int, n_rounds: int, order: float
) -> PublishedLoss:
    """Algorithm 3, only z_K is shown: 16 alpha K L^2 gamma^2 / (sigma^2 n^2). False by a factor of about m/2."""
    _check(order, n_parties=n_parties, n_sampled=n_sampled, n_rounds=n_rounds)
    rdp = 2 * n_rounds * _one_visit(lipschitz, prox_step, noise_std, order) / n_parties**2
    sampling = n_sampled / n_parties
    return PublishedLoss(
        "FP Theorem 3 (central)",
        order,
        rdp,
        (_lipschitz(lipschitz), ("m < n/5", sampling < 0.2), _moderate_order(order, noise_std, sampling)),
    )


def theorem_10(
    *, lipschitz: float, prox_step: float, noise_std: float, n_parties: int, n_sampled: int, n_rounds: int, order: float
) -> PublishedLoss:
    """Theorem 3 (central) with one more condition."""
    central = theorem_3_central(
        lipschitz=lipschitz, prox_step=prox_step, noise_std=noise_std, n_parties=n_parties, n_sampled=n_sampled,
        n_rounds=n_rounds, order=order,
    )  # fmt: skip
    return dataclasses.replace(
        central, theorem="FP Theorem 10", hypotheses=(*central.hypotheses, _much_noise(noise_std))
    )


def remark_4(
    *, lipschitz: float, prox_step: float, noise_std: float, n_sampled: int, n_visits: int, order: float
) -> PublishedLoss:
    """Secure aggregation of m messages: Theorem 3 (local) divided by m^2. False: m noises are summed, not averaged."""
    _check(order, n_sampled=n_sampled, n_visits=n_visits)
    rdp = n_visits * _one_visit(lipschitz, prox_step, noise_std, order) / n_sampled**2
    return PublishedLoss("FP Remark 4", order, rdp, (_lipschitz(lipschitz),))


# --- random walk ------------------------------------------------------------------------------------------------------


def theorem_4(
    *, lipschitz: float, prox_step: float, noise_std: float, n_parties: int, n_visits: int, order: float
) -> PublishedLoss:
    """Algorithm 4, seen by one other party: 8 alpha K_i L^2 gamma^2 ln(n) / (sigma^2 n).

    Unproved, and false if clipping makes the updates bounded instead of the losses Lipschitz.
    """
    _check(order, n_parties=n_parties, n_visits=n_visits)
    rdp = n_visits * _one_visit(lipschitz, prox_step, noise_std, order) * math.log(n_parties) / n_parties
    enough = noise_std > 2 * lipschitz * prox_step * math.sqrt(order * (order - 1))
    noise = ("sigma > 2 L gamma sqrt(alpha (alpha - 1))", enough)
    return PublishedLoss("FP Theorem 4", order, rdp, (_lipschitz(lipschitz), noise))


# --- amplification ----------------------------------------------------------------------------------------------------


def theorem_6(*, shifts: Sequence[float], noise_std: float, order: float) -> PublishedLoss:
    """By iteration (Feldman et al., 2018), at the best split: alpha/(2 sigma^2) sum_k a_k^2. True.

    Iteration k differs by at most `shifts[k]`, N(0, sigma^2) is added after each, and only the last iterate is shown.
    The sums of a may lag behind those of the shifts, but have to end where they end. The least sum of squares under
    that is the non-decreasing sequence nearest to the shifts: one shift s and K - 1 zeros give s/K each.
    """
    _check(order, noise_std=noise_std)
    moved = np.asarray(shifts, dtype=float)
    if moved.ndim != 1 or len(moved) == 0 or not np.all(moved >= 0):
        raise InputError(f"shifts: got {shifts}; one number >= 0 for each iteration is needed")
    split = isotonic_regression(moved).x
    return PublishedLoss("FP Theorem 6", order, float(order * (split @ split) / (2 * noise_std**2)))


def lemma_c_1(*, sampling_probability: float, sensitivity: float, noise_std: float, order: float) -> PublishedLoss:
    """By subsampling, as stated: 2 alpha q^2 Delta^2 / sigma^2, which is 4 q^2 times the loss without sampling.

    The conditions are the printed ones; they are for Delta = 1, so sigma/Delta has to stand for sigma (Mironov et al.,
    2019, Theorem 11).
    """
    return _subsampled("FP Lemma C.1", 4, sampling_probability, sensitivity, noise_std, order)


def lemma_c_1_as_applied(
    *, sampling_probability: float, sensitivity: float, noise_std: float, order: float
) -> PublishedLoss:
    """By subsampling, as the proof of Theorem 10 applies the lemma: 2 q^2 times the loss without sampling."""
    theorem = "FP Lemma C.1, as applied in Theorem 10"
    return _subsampled(theorem, 2, sampling_probability, sensitivity, noise_std, order)


# --- what they have in common -----------------------------------------------------------------------------------------


def _one_visit(lipschitz: float, prox_step: float, noise_std: float, order: float) -> float:
    """eq. (30): u_i moves by at most 4 lambda L gamma and gets noise of standard deviation lambda sigma."""
    _check(order, lipschitz=lipschitz, prox_step=prox_step, noise_std=noise_std)
    return 8 * order * (lipschitz * prox_step / noise_std) ** 2


def _lipschitz(lipschitz: float) -> Hypothesis:
    return ("the losses are Lipschitz", math.isfinite(lipschitz))


def _much_noise(noise_std: float) -> Hypothesis:
    return ("sigma >= 4", noise_std >= 4)


def _subsampled(
    theorem: str, factor: float, q: float, sensitivity: float, noise_std: float, order: float
) -> PublishedLoss:
    _check(order, sampling_probability=q, sensitivity=sensitivity, noise_std=noise_std)
    rdp = factor * q**2 * order * (sensitivity / noise_std) ** 2 / 2
    hypotheses = (("q < 1/5", q < 0.2), _much_noise(noise_std), _moderate_order(order, noise_std, q))
    return PublishedLoss(theorem, order, rdp, hypotheses)


def _moderate_order(order: float, noise_std: float, q: float) -> Hypothesis:
    m = math.log(1 + 1 / (q * (order - 1)))
    largest = (m**2 * noise_std**2 / 2 - math.log(5 * noise_std**2)) / (
        m + math.log(q * order) + 1 / (2 * noise_std**2)
    )
    return ("alpha <= (M^2 sigma^2/2 - ln(5 sigma^2)) / (M + ln(q alpha) + 1/(2 sigma^2))", order <= largest)


def _check(order: float, **positive: float) -> None:
    if not order > 1:
        raise InputError(f"order: got {order}; a number > 1 is needed")
    for name, value in positive.items():
        if not value > 0:
            raise InputError(f"{name}: got {value}; a positive number is needed")
