"""The synthetic Lasso of Cyffers, Bellet & Basu (2023), Appendix E: data, problem, methods and the price of each.

1000 people with one record each, rows on the unit sphere in 64 dimensions, 8 coefficients uniform on [0, 1], labels
with noise of variance 0.01. Losses are for zero-out of a person; Poisson sampling is priced by its loss distribution.
"""

import dataclasses
import functools
import math

import numpy as np

from coterie.algorithms import (
    Algorithm,
    BroadcastNoisedADMM,
    LocallyNoisedADMM,
    NoisyGradientDescent,
    SumNoisedADMM,
)
from coterie.data import Federation
from coterie.engines.in_process import run
from coterie.network.channels import Curator
from coterie.network.selection import EVERYBODY_WORKS, Poisson, Sample
from coterie.papers.fixed_point.published import PublishedLoss, published_epsilon, theorem_3_central
from coterie.plan import Plan
from coterie.privacy import accountants
from coterie.privacy.events import Gaussian, PoissonGaussian
from coterie.privacy.mechanisms import GaussianGradient
from coterie.privacy.noise import Seeded
from coterie.privacy.proximal import BroadcastNoise, LocalNoise, SumNoise
from coterie.problems import L1, Problem, Squared

N, P, SUPPORT, LABEL_STD, DELTA, RATE = 1000, 64, 8, 0.1, 1e-6, 0.1
# the universal threshold for columns of norm sqrt(N/P)
KAPPA = LABEL_STD * math.sqrt(2 * math.log(P) / N) / math.sqrt(P)
PROBLEM = Problem(loss=Squared(), penalty=L1(KAPPA), record_weight=1 / N)
SAMPLED = ("M2", "DP-SGD")  # by secret Poisson coins
TEST_DATA, PUBLIC_DATA = 3, (1, 2)  # draws: the private one, and those for settings
TUNING_RUNS = 2
ADMM, SGD = "private ADMM", "DP-SGD"  # of the paper's protocol
PICKED = "settings: step, clip, relaxation, rounds"  # the panel of settings that were picked


@dataclasses.dataclass(frozen=True)
class Setting:
    """`step` is that of gradient descent on the mean loss; what is clipped at `clip` is a gradient, or step * gradient
    where the step is proximal."""

    rounds: int
    step: float
    clip: float
    averaging: str = "last"
    relaxation: float = 0.5


@functools.cache
def draw(seed: int) -> tuple[Federation, np.ndarray, np.ndarray]:
    """(people, test rows, test labels)."""
    rng = np.random.default_rng(seed)
    truth = np.zeros(P)
    truth[rng.choice(P, SUPPORT, replace=False)] = rng.random(SUPPORT)
    A = rng.normal(size=(2 * N, P))
    A /= np.linalg.norm(A, axis=1, keepdims=True)
    b = A @ truth + LABEL_STD * rng.normal(size=2 * N)
    people = Federation.from_arrays(A[:N], b[:N], parties=np.arange(N), label_bound=2.0, min_records=1)
    return people, A[N:], b[N:]


def objective(models: np.ndarray, seed: int) -> np.ndarray:
    """On the test half of that draw."""
    _, A, b = draw(seed)
    return 0.5 * np.mean((models @ A.T - b) ** 2, axis=-1) + KAPPA * np.abs(models).sum(axis=-1)


def algorithm(method: str, setting: Setting, multiplier: float) -> Algorithm:
    penalty = PROBLEM.penalty
    secret = Poisson(probability=RATE, seed=None)
    if not method.startswith("M"):
        return NoisyGradientDescent(
            mechanism=GaussianGradient(noise_multiplier=multiplier, clip=setting.clip),  # type: ignore[arg-type]
            penalty=penalty,
            step=setting.step,  # type: ignore[arg-type]
            channel=Curator(),
            selection=secret if method == "DP-SGD" else EVERYBODY_WORKS,
        )
    proximal = {"step": setting.step * N, "relaxation": setting.relaxation, "noise_multiplier": multiplier}
    if method == "M1":
        selection = Sample(count=int(RATE * N), seed=0)
        mechanism = LocalNoise(**proximal, clip=setting.clip)  # type: ignore[arg-type]
        return LocallyNoisedADMM(mechanism=mechanism, penalty=penalty, selection=selection)
    if method == "M2":
        mechanism = SumNoise(**proximal, clip=setting.clip)  # type: ignore[arg-type]
        return SumNoisedADMM(mechanism=mechanism, penalty=penalty, channel=Curator(), selection=secret)
    mechanism = BroadcastNoise(**proximal, clip=setting.clip / setting.step)  # type: ignore[arg-type]
    return BroadcastNoisedADMM(mechanism=mechanism, penalty=penalty, channel=Curator())


def plan_of(method: str, setting: Setting, multiplier: float) -> Plan:
    facts = draw(0)[0].facts  # equal for all draws
    built = algorithm(method, setting, multiplier)
    return Plan.make(built, PROBLEM, "unrestricted", facts, rounds=setting.rounds, adjacency="zero-out", unit="party")


def models(
    method: str, setting: Setting, multiplier: float, *, data: int, noise: int, repeats: int
) -> dict[str, np.ndarray]:
    """Ways to read a model off one run: {averaging: (repeat, coefficient)}, and "by round"."""
    plan = plan_of(method, setting, multiplier)
    by_round = run(plan, draw(data)[0], noise=Seeded(noise), repeats=repeats).models_by_round
    weights = np.arange(1, setting.rounds + 1)
    averaged = np.tensordot(by_round, weights / weights.sum(), axes=(1, 0))
    return {"last": by_round[:, -1], "linear": averaged, "by round": by_round}


# --- noise for a given loss -------------------------------------------------------------------------------------------


def certified_multiplier(method: str, rounds: int, epsilon: float) -> float:
    """The least noise multiplier, to 0.1 %, or to 1 % where people are sampled."""
    if method in SAMPLED:
        return _sampled_multiplier(rounds, epsilon)
    count = plan_of("M1", Setting(rounds, 1.0, 0.1), 1.0).most_charged if method == "M1" else rounds
    return _least(lambda m: accountants.epsilon([(Gaussian(1 / m), count)], DELTA, "best"), epsilon, 1e-2, 1e7)


@functools.cache
def _sampled_multiplier(rounds: int, epsilon: float) -> float:
    def loss(multiplier: float, accountant) -> float:
        return accountants.epsilon([(PoissonGaussian(1 / multiplier, RATE), rounds)], DELTA, accountant)

    high = _least(lambda m: loss(m, "best"), epsilon, 1e-2, 1e7)
    # distributions are tighter than moments, by less than a half
    return _least(lambda m: loss(m, "pld"), epsilon, 0.5 * high, high, within=1.01)


def published_multiplier(rounds: int, epsilon: float) -> float:
    """Of M1, by the paper's Theorem 3 for who sees the last model alone, its conditions on sigma not asked.

    Clipping at C stands for L gamma. sigma is the noise of eta: half of it is added to a clipped move.
    """

    def loss(sigma_over_clip: float) -> float:
        def stated(order: float) -> PublishedLoss:
            bound = theorem_3_central(
                lipschitz=1.0, prox_step=1.0, noise_std=sigma_over_clip, n_parties=N, n_sampled=int(RATE * N),
                n_rounds=rounds, order=order,
            )  # fmt: skip
            return dataclasses.replace(bound, hypotheses=())

        return published_epsilon(stated, DELTA)

    return _least(loss, epsilon, 1e-4, 1e4) / 2


def _least(loss, epsilon: float, low: float, high: float, *, within: float = 1.001) -> float:
    """The least argument of a falling function that keeps it at or under `epsilon`."""
    while high / low > within:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if loss(middle) <= epsilon else (middle, high)
    return high
