"""How close noisy fixed-point iterations come to their limit (Cyffers, Bellet & Basu, 2023: "FP").

    u_{k+1,b} = u_{k,b} + rho_{k,b} lambda (R_b(u_k) + eta_{k,b} - u_{k,b}),   eta ~ N(0, sigma^2 I)

    symbol          name                          symbol   name
    R               operator with fixed point u*  lambda   `relaxation`, in (0, 1]
    tau             `contraction` of R            q        `block_probability`, P[rho_{k,b} = 1]
    gamma           `prox_step`                   sigma    `noise_std`
    mu, beta        `strong_convexity`, `smoothness` of each f_i

Without strong convexity tau = 1: then no rate is known, and no function here returns a number for it. Nothing on this
page has to do with privacy.
"""

import dataclasses
import math

from coterie.errors import InputError
from coterie.values import positive_number

# --- contraction of the operators -------------------------------------------------------------------------------------


def admm_contraction(prox_step: float, strong_convexity: float, smoothness: float) -> float:
    """tau of ADMM's operator R = R_f R_g, where R_f = 2 prox_{gamma f} - I.

    R_g never expands. R_f has slopes (1 - gamma h)/(1 + gamma h) with mu <= h <= beta, so the ends decide. 1 without
    strong convexity: then ADMM may be arbitrarily slow. A smoothness of infinity gives 1 too.
    """
    _check_curvature(strong_convexity, smoothness)
    positive_number("prox_step", prox_step)
    flat, steep = prox_step * strong_convexity, prox_step * smoothness
    return max((1 - flat) / (1 + flat), 1.0 if math.isinf(steep) else (steep - 1) / (steep + 1))


def gradient_contraction(strong_convexity: float, smoothness: float) -> float:
    """tau of gradient descent's R = I - 2/(beta + mu) grad f, whose slopes are 1 - 2h/(beta + mu) (FP Remark 2)."""
    _check_curvature(strong_convexity, smoothness)
    if math.isinf(smoothness):
        raise InputError("smoothness: got inf; gradient descent has no step size without a finite one")
    return (smoothness - strong_convexity) / (smoothness + strong_convexity)


# --- error bounds -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class ErrorBound:
    """(E|u_k - u*|^2)^(power/2) <= rate^k |u_0 - u*|^power + floor, unless `rate` is None: then nothing is known.

    `power` is 2 where the noises of different iterations enter through their variances, and 1 where only the triangle
    inequality is left.
    """

    rate: float | None
    floor: float | None
    power: int

    def mean_square(self, n_steps: int, start_distance: float) -> float:
        """At most this is E|u_k - u*|^2 after k = `n_steps` from |u_0 - u*| = `start_distance`."""
        if self.rate is None or self.floor is None:
            raise InputError(f"contraction: {self}")
        return (self.rate**n_steps * start_distance**self.power + self.floor) ** (2 / self.power)

    def __str__(self) -> str:
        if self.rate is None or self.floor is None:
            return "no rate: the operator is not contractive (losses that are not strongly convex and smooth)"
        left, start = ("E|u_k - u*|^2", "|u_0 - u*|^2") if self.power == 2 else ("sqrt(E|u_k - u*|^2)", "|u_0 - u*|")
        return f"{left} <= {self.rate:.6g}^k {start} + {self.floor:.6g}"


def fixed_point_bound(
    *, contraction: float, relaxation: float, noise_std: float, dimension: int, block_probability: float = 1.0
) -> ErrorBound:
    """E|u_k - u*|^2 <= (1 - q (1 - c^2))^k |u_0 - u*|^2 + lambda^2 dim(u) sigma^2 / (1 - c^2).

    What FP Theorem 1 is after, with c = 1 - lambda + lambda tau. T = (1 - lambda) I + lambda R is c-Lipschitz with the
    same fixed point. A block is left alone with probability 1 - q, and else moves to T_b(u) plus noise that is
    independent of everything before: E|u+ - u*|^2 = (1 - q) |u - u*|^2 + q |T u - u*|^2 + q lambda^2 dim(u) sigma^2.
    Now sum the geometric series. Blocks may be chosen together, but not by looking at u. R = tau I attains it for
    large k.

    `dimension` is that of all of u: n_parties * n_features in consensus ADMM.
    """
    gap = _gap(contraction, relaxation)
    _check_noise(noise_std, dimension=dimension)
    _check_probability(block_probability)
    if gap is None:
        return ErrorBound(None, None, power=2)
    # 1 - c^2
    square_gap = gap * (2 - gap)
    floor = relaxation**2 * dimension * noise_std**2 / square_gap
    return ErrorBound(1 - block_probability * square_gap, floor, power=2)


def broadcast_noise_bound(
    *, contraction: float, relaxation: float, noise_std: float, n_parties: int, n_features: int
) -> ErrorBound:
    """sqrt(E|u_k - u*|^2) <= c^k |u_0 - u*| + 2 lambda s sqrt(n p) / (1 - c), c = 1 - lambda + lambda tau.

    For clean states and noise s in the broadcast only. z = prox(mean(u) + xi) is off by at most |xi|, and 2z enters the
    operator once for each of n parties: R moves by at most 2 sqrt(n) |xi|, T by lambda times that. This noise goes
    through the prox, which need not keep its mean at zero, so root mean squares are added (Minkowski) instead of
    variances. All parties take part in every round.
    """
    gap = _gap(contraction, relaxation)
    _check_noise(noise_std, n_parties=n_parties, n_features=n_features)
    if gap is None:
        return ErrorBound(None, None, power=1)
    return ErrorBound(1 - gap, 2 * relaxation * noise_std * math.sqrt(n_parties * n_features) / gap, power=1)


# --- as published -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class PublishedError:
    """A paper's bound on E|u_k - u*|^2."""

    theorem: str
    mean_square: float
    hypotheses: tuple[tuple[str, bool], ...]

    @property
    def holds(self) -> bool:
        return all(met for _, met in self.hypotheses)


def published_theorem_1(
    *, n_steps: int, start_distance: float, contraction: float, noise_std: float, dimension: int,
    block_probability: float = 1.0, error_std: float = 0.0,
) -> PublishedError:  # fmt: skip
    """FP Theorem 1, for "a" relaxation in (0, 1].

    The relaxation that its proof picks is mostly above 1 (14.6 at tau = 0.9, q = 1, c = 1). The statement is true all
    the same with lambda = 1 and no further errors: `fixed_point_bound` is then smaller in both terms.
    """
    _check_noise(noise_std, dimension=dimension)
    q, gap = _check_probability(block_probability), 1 - _contractive(contraction)
    if n_steps < 1:
        raise InputError(f"n_steps: got {n_steps}; at least 1 is needed")
    first = (math.sqrt(dimension) * noise_std + error_std) / (math.sqrt(q) * gap)
    second = (dimension * noise_std**2 + error_std**2) / (q * gap) ** 3
    return PublishedError(
        "FP Theorem 1",
        (1 - q**2 * gap / 8) ** (n_steps - 1) * start_distance**2 + 8 * (first + second),
        (("noise_std^2 > 1 - contraction", noise_std**2 > gap),),
    )


def published_corollary_5_1(
    *, lipschitz: float, prox_step: float, order: float, epsilon: float, n_parties: int, n_features: int,
    contraction: float, constant: float,
) -> float:  # fmt: skip
    """FP Corollary 5.1 (centralised): E|u_K - u*|^2 at an RDP loss `epsilon` of `order`, up to the unknown `constant`.

    It inherits the loss of Theorem 2, which is too small, and takes n_features for the dimension of u.
    """
    move = _move(lipschitz, prox_step, order, epsilon, n_features)
    return _trade_off(move / n_parties, move / n_parties, contraction, constant)


def published_corollary_5_2(
    *, lipschitz: float, prox_step: float, order: float, epsilon: float, n_parties: int, n_features: int,
    sampling_fraction: float, contraction: float, constant: float,
) -> float:  # fmt: skip
    """FP Corollary 5.2 (federated, central loss), with the r^2 it prints; Theorem 1 at q = r would give r^3."""
    if not 0 < sampling_fraction < 0.2:
        raise InputError(f"sampling_fraction: got {sampling_fraction}; the corollary is for 0 < r < 1/5")
    move = _move(lipschitz, prox_step, order, epsilon, n_features) / n_parties
    return _trade_off(move / math.sqrt(sampling_fraction), move / sampling_fraction, contraction, constant)


def published_corollary_5_3(
    *, lipschitz: float, prox_step: float, order: float, epsilon: float, n_parties: int, n_features: int,
    contraction: float, constant: float,
) -> float:  # fmt: skip
    """FP Corollary 5.3 (random walk). In its proof (1/n^2) n^3 becomes 1/n; Theorem 1 gives n in the second term."""
    move = _move(lipschitz, prox_step, order, epsilon, n_features)
    return _trade_off(move / math.sqrt(n_parties), move / math.sqrt(n_parties), contraction, constant)


def _move(lipschitz: float, prox_step: float, order: float, epsilon: float, n_features: int) -> float:
    """sqrt(p alpha / epsilon) L gamma, of which all three corollaries consist."""
    if not (order > 1 and epsilon > 0):
        raise InputError(f"order, epsilon: got {order}, {epsilon}; an order > 1 and a loss > 0 are needed")
    return math.sqrt(n_features * order / epsilon) * lipschitz * prox_step


def _trade_off(first: float, second: float, contraction: float, constant: float) -> float:
    if not constant > 0:
        raise InputError(f"constant: got {constant}; the paper leaves it open, a positive guess is needed")
    gap = 1 - _contractive(contraction)
    return constant * (first / gap + second**2 / gap**3)


# --- what may be asked ------------------------------------------------------------------------------------------------


def _gap(contraction: float, relaxation: float) -> float | None:
    """1 - c = lambda (1 - tau); None where it is 0."""
    if not 0 <= contraction <= 1:
        raise InputError(f"contraction: got {contraction}; a number between 0 and 1 is needed")
    if not 0 < relaxation <= 1:
        raise InputError(f"relaxation: got {relaxation}; a number in (0, 1] is needed")
    return None if contraction == 1 else relaxation * (1 - contraction)


def _contractive(contraction: float) -> float:
    if not 0 <= contraction < 1:
        raise InputError(f"contraction: got {contraction}; a number in [0, 1) is needed, at 1 there is no rate")
    return contraction


def _check_curvature(strong_convexity: float, smoothness: float) -> None:
    if not (0 <= strong_convexity <= smoothness and smoothness > 0 and strong_convexity < math.inf):
        raise InputError(
            f"strong_convexity, smoothness: got {strong_convexity}, {smoothness}; 0 <= mu <= beta, 0 < beta is needed"
        )


def _check_noise(noise_std: float, **counts: int) -> None:
    if not 0 <= noise_std < math.inf:
        raise InputError(f"noise_std: got {noise_std}; a finite number >= 0 is needed")
    for name, count in counts.items():
        if count < 1:
            raise InputError(f"{name}: got {count}; at least 1 is needed")


def _check_probability(block_probability: float) -> float:
    if not 0 < block_probability <= 1:
        raise InputError(f"block_probability: got {block_probability}; a number in (0, 1] is needed")
    return block_probability
