"""What a peer learns from one visit of a walk without memory, where steps are translations: exactly, by quadrature.

The peer has just seen the token, the protected party holds it next, and the peer sees it again after m steps, each with
unit noise; it does not know m. On a linear piece its view is a mixture over m of Gaussians of variance m.
"""

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import norm

from coterie.privacy.accountants import gaussian_delta, rdp_epsilon
from coterie.privacy.events import Gaussian, TokenWalk


def exact_divergence(order, shift, chance):
    """Of the two mixtures, m geometric; what lies beyond the longest m kept has weight below 1e-12."""
    m = np.arange(1, int(28 / chance) + 1)
    log_weight = np.log(chance) + (m - 1) * np.log1p(-chance)
    std = np.sqrt(m)
    reach = 12 * std[-1]
    x = np.unique(np.concatenate([np.linspace(-30, 30, 3001), np.linspace(-reach, reach, 3001)]))

    def log_density(mean):
        return logsumexp(log_weight[:, None] + norm.logpdf(x, mean, std[:, None]), axis=0)

    p, q = log_density(shift), log_density(0.0)
    return np.log(np.trapezoid(np.exp(order * p - (order - 1) * q), x)) / (order - 1)


@pytest.mark.parametrize("n", [5, 20, 200])
@pytest.mark.parametrize("order", [1.5, 2.0, 4.0])
def test_one_visit_costs_a_peer_no_more_than_stated(n, order):
    for ratio in np.array([0.1, 1.0, 2.0]) * np.sqrt(2 / (order * (order - 1))):
        stated = TokenWalk(ratio=float(ratio), n_parties=n).rdp(np.array([order]))[0, 0]
        everybody = Gaussian(ratio=float(ratio)).rdp(np.array([order]))[0, 0]
        # until the walk is at the peer or back
        exact = exact_divergence(order, ratio, 2 / n)
        assert 0 < exact <= stated <= everybody
        # hiding under the others' noise is worth something, and not more than it should be
        assert stated < everybody * (1 if n == 5 else 0.8 if n == 20 else 0.5)
        assert exact > everybody / n


def test_the_mean_of_losses_is_no_bound():
    """Where the walk goes from the protected party to the peer at once, nothing hides the visit. At high orders that is
    all that counts, so twice the mean loss must not be stated there: it would be 2.25 for a loss of 3.55."""
    n, ratio, delta = 50, 1.0, 1e-5
    m = np.arange(1, 1500)
    chance = 2 / n * (1 - 2 / n) ** (m - 1)

    def reached(eps):
        return sum(c * gaussian_delta(eps, ratio / np.sqrt(k)) for c, k in zip(chance, m, strict=True))

    assert reached(3.54) > delta > reached(3.56)
    assert 3.55 < rdp_epsilon([(TokenWalk(ratio=ratio, n_parties=n), 1)], delta) < 3.95
    mean = ratio**2 * np.log(n / 2) / (n - 2)
    unproved = rdp_epsilon([(Gaussian(ratio=float(2 * np.sqrt(mean))), 1)], delta)
    assert 2.2 < unproved < 2.3
