"""The stated loss of one objective-perturbed step against its exact loss.

Statements come from the grants that plans use; exact losses from output densities, which know nothing of the proofs.
"""

import dataclasses
import math

import numpy as np
import pytest

from coterie.audit.density_ratio import LARGEST_ERROR, QuadratureError, Step, log_density, pure_loss, renyi_divergence
from coterie.errors import InputError
from coterie.privacy.mechanisms import PartyFacts
from coterie.privacy.objective import ArgminBounds
from coterie.problems import L2, Huber, HuberisedHinge, Logistic, Multinomial, Problem, Records, Squared

ORDERS = np.array([1.5, 2.0, 4.0, 8.0, 16.0])
# for grids in two and three dimensions
LOW_ORDERS = np.array([1.5, 2.0, 4.0])
ADJACENCIES = ("replace-one", "zero-out")
ROW_NORMS = (1.0, 3.0, 12.0)
ROUNDING = 1e-9
N_PARTIES = 3


@dataclasses.dataclass(frozen=True)
class Statement:
    """What the package says about a step, and the noise it prescribes for it."""

    grant: object
    law: str

    @property
    def noise_scale(self):
        return self.grant.scales.noise_scale

    @property
    def pure(self):
        # [1] is the price of the output noise, which is not in the density
        return self.grant.event.events[0].pure

    def rdp(self, orders):
        return self.grant.event.events[0].rdp(orders)


def state(loss, law, adjacency, *, weight, row_norm, convexity, noise, d=1):
    """`noise` is the multiplier of Gaussian noise or the rate of gamma noise."""
    # the strong convexity comes from all sources: a share of the regulariser, the proximal term and the extra l2
    problem = Problem(loss=loss, regulariser=L2(0.25 * convexity * N_PARTIES), record_weight=weight)
    facts = PartyFacts(
        n_records=5,
        degree=2,
        record_weight=weight,
        extremes=((1, weight),),
        n_parties=N_PARTIES,
        row_norm=row_norm,
        label_bound=None,
        n_coefficients=d * loss.n_outputs,
        adjacency=adjacency,
        unit="record",
    )
    bounds = ArgminBounds(problem, facts, curvature=0.5 * convexity, extra_l2=0.25 * convexity)
    if law == "gaussian":
        return Statement(bounds.with_gaussian_noise(noise), law)
    return Statement(bounds.with_gamma_noise(noise), law)


def step_of(loss, statement, *, weight, convexity, offset):
    return Step(
        loss=loss,
        weight=weight,
        strong_convexity=convexity,
        offset=tuple(np.atleast_1d(offset).tolist()),
        law=statement.law,
        noise_scale=statement.noise_scale,
    )


def records(rows):
    """Records from (x, y, weight) triples."""
    X, y, weight = zip(*rows, strict=True)
    return Records(np.array([np.atleast_1d(x) for x in X], dtype=float), np.array(y, float), np.array(weight, float))


def without(row):
    x, y, _ = row
    return (x, y, 0.0)


def assert_never_exceeded(step, statement, data, neighbour, orders=ORDERS, largest_error=LARGEST_ERROR):
    """Pure loss for gamma noise, Renyi curves in both directions for Gaussian noise."""
    if statement.law == "gamma-sphere":
        assert pure_loss(step, data, neighbour) <= statement.pure * (1 + ROUNDING)
        return
    exact = renyi_divergence(step, data, neighbour, orders, largest_error=largest_error)
    assert np.all(exact <= statement.rdp(orders) + 2 * largest_error / (orders - 1)), (step, data, neighbour)


# --- seeded search ----------------------------------------------------------------------------------------------------

LOSSES = {
    "logistic": Logistic(),
    "hinge-narrow": HuberisedHinge(width=0.05),
    "hinge": HuberisedHinge(width=0.5),
    "hinge-wide": HuberisedHinge(width=3.0),
    "huber": Huber(threshold=1.0),
    "huber-steep": Huber(threshold=0.05),
}


def random_row(rng, loss, row_norm, d, *, longest):
    direction = rng.normal(size=d)
    x = direction / np.linalg.norm(direction) * row_norm * (1.0 if longest else rng.uniform())
    weight = 1.0 if longest else rng.uniform()
    if isinstance(loss, Huber):
        return x, rng.normal(), weight
    return x, rng.integers(max(2, loss.n_outputs)), weight


def random_instance(rng, loss, law, adjacency, d=1, jacobian=(0.005, 5.0), noise=(0.4, 4.0)):
    """A step, its statement and two neighbouring data sets whose changed record is bent where the output falls."""
    row_norm = rng.choice(ROW_NORMS)
    # a steep Huber's records weigh 1/threshold, so that a slope times a weight stays within 1
    weight = math.exp(rng.uniform(-2, 0)) / (loss.threshold if isinstance(loss, Huber) else 1.0)
    k = math.exp(rng.uniform(*np.log(jacobian)))
    convexity = weight * loss.smoothness * row_norm**2 / k
    relative_noise = math.exp(rng.uniform(*np.log(noise)))
    sensitivity = (2 if adjacency == "replace-one" else 1) * weight * loss.lipschitz * row_norm
    statement = state(
        loss,
        law,
        adjacency,
        weight=weight,
        row_norm=row_norm,
        convexity=convexity,
        noise=relative_noise if law == "gaussian" else 1 / (relative_noise * sensitivity),
        d=d,
    )
    changed = random_row(rng, loss, row_norm, d, longest=rng.uniform() < 0.8)
    shared = [random_row(rng, loss, row_norm, d, longest=False) for _ in range(rng.integers(3))]
    replacement = without(changed)
    if adjacency == "replace-one":
        replacement = random_row(rng, loss, row_norm, d, longest=rng.uniform() < 0.8)
    x, y, _ = changed
    bent_score = {Logistic: 0.0, HuberisedHinge: 2 * y - 1, Huber: y, Multinomial: 0.0}[type(loss)]
    bent_at = np.kron(bent_score * x / (x @ x), np.ones(loss.n_outputs))
    pull = rng.normal(size=d * loss.n_outputs) * (3 * statement.noise_scale + sensitivity)
    step = step_of(loss, statement, weight=weight, convexity=convexity, offset=pull - convexity * bent_at)
    return step, statement, records([changed, *shared]), records([replacement, *shared])


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("law", ["gaussian", "gamma-sphere"])
@pytest.mark.parametrize("name", LOSSES)
def test_stated_loss_is_never_exceeded_in_one_dimension(name, law, adjacency):
    rng = np.random.default_rng([1, sorted(LOSSES).index(name)])
    for _ in range(7):
        assert_never_exceeded(*random_instance(rng, LOSSES[name], law, adjacency))


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("name", ["logistic", "hinge-wide", "huber"])
def test_stated_loss_is_never_exceeded_with_records_in_different_directions(name, adjacency):
    rng = np.random.default_rng([2, sorted(LOSSES).index(name)])
    # a kink is a line across a uniform grid: integrals are good to a thousandth, ratios at points are exact
    settings = {"d": 2, "jacobian": (0.01, 1.0), "noise": (0.7, 3.0)}
    step, statement, data, neighbour = random_instance(rng, LOSSES[name], "gaussian", adjacency, **settings)
    assert_never_exceeded(step, statement, data, neighbour, LOW_ORDERS, largest_error=2e-3)
    assert_never_exceeded(*random_instance(rng, LOSSES[name], "gamma-sphere", adjacency, **settings))


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("n_classes", [2, 3])
def test_stated_loss_is_never_exceeded_by_several_outputs(n_classes, adjacency):
    rng = np.random.default_rng([3, n_classes])
    settings = {"jacobian": (0.05, 0.5), "noise": (1.5, 3.0)}
    step, statement, data, neighbour = random_instance(rng, Multinomial(n_classes), "gaussian", adjacency, **settings)
    assert_never_exceeded(step, statement, data, neighbour, LOW_ORDERS, largest_error=1e-3)
    assert_never_exceeded(*random_instance(rng, Multinomial(n_classes), "gamma-sphere", adjacency, **settings))


# --- constructed worst cases ------------------------------------------------------------------------------------------


def hinge_worst_case(adjacency, row_norm, width, weight=0.7, convexity=1.3, rate=0.4):
    """At the inner end of the parabola slope and curvature are both largest, and the noise is pulled along."""
    loss = HuberisedHinge(width=width)
    statement = state(
        loss, "gamma-sphere", adjacency, weight=weight, row_norm=row_norm, convexity=convexity, noise=rate
    )
    inner_end = (1 - width) / row_norm
    offset = 2 * weight * row_norm - convexity * inner_end
    bent = (row_norm, 1, 1.0)
    other = without(bent) if adjacency == "zero-out" else (row_norm, 0, 1.0)
    step = step_of(loss, statement, weight=weight, convexity=convexity, offset=offset)
    return step, statement, records([bent]), records([other])


def steep_huber_worst_case(row_norm, multiplier=0.5, threshold=0.01, convexity=1.0):
    """The tilted noise of a high order lands where the steep stretch begins: slope and curvature largest at once."""
    loss, weight, order = Huber(threshold=threshold), 1 / threshold, 16.0
    statement = state(
        loss, "gaussian", "zero-out", weight=weight, row_norm=row_norm, convexity=convexity, noise=multiplier
    )
    bent = (row_norm, 0.0, 1.0)
    step = step_of(loss, statement, weight=weight, convexity=convexity, offset=order * row_norm)
    return step, statement, records([bent]), records([without(bent)]), order


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("width", [0.5, 0.05])
@pytest.mark.parametrize("row_norm", ROW_NORMS)
def test_huberised_hinge_reaches_the_stated_pure_loss(row_norm, width, adjacency):
    step, statement, data, neighbour = hinge_worst_case(adjacency, row_norm, width)
    assert 0.99 * statement.pure <= pure_loss(step, data, neighbour) <= statement.pure * (1 + ROUNDING)


@pytest.mark.parametrize("row_norm", ROW_NORMS)
def test_steep_huber_reaches_the_stated_gaussian_loss(row_norm):
    step, statement, data, neighbour, order = steep_huber_worst_case(row_norm)
    orders = np.array([order])
    exact = renyi_divergence(step, data, neighbour, orders, largest_error=1e-5)[0, 0]
    stated = statement.rdp(orders)[0, 0]
    assert 0.99 * stated <= exact <= stated
    # much of what is reached is the Jacobian's: the noise alone would fall short of it
    assert exact > 1.1 * order / (2 * 0.5**2)


@pytest.mark.parametrize("loss", [HuberisedHinge(width=0.5), Huber(threshold=1.0)], ids=["hinge", "huber"])
def test_replace_one_is_reached_in_both_directions_where_slopes_are_opposite(loss):
    """Flat curvature: only the noise counts, and it must be priced in full, factor 2 of replace-one included."""
    convexity = loss.smoothness / 0.01
    statement = state(loss, "gaussian", "replace-one", weight=1.0, row_norm=1.0, convexity=convexity, noise=4.0)
    labels = (1e6, -1e6) if isinstance(loss, Huber) else (1, 0)
    step = step_of(loss, statement, weight=1.0, convexity=convexity, offset=0.0)
    data, neighbour = (records([(1.0, label, 1.0)]) for label in labels)
    exact = renyi_divergence(step, data, neighbour, ORDERS)
    assert np.all(exact <= statement.rdp(ORDERS) + 2 * LARGEST_ERROR / (ORDERS - 1))
    assert np.all(exact >= 0.99 * statement.rdp(ORDERS))


# --- the logistic refinement ------------------------------------------------------------------------------------------


def logistic_exact_and_stated(adjacency, row_norm, *, rate, convexity, weight):
    loss = Logistic()
    statement = state(
        loss, "gamma-sphere", adjacency, weight=weight, row_norm=row_norm, convexity=convexity, noise=rate
    )
    row = (row_norm, 1, 1.0)
    other = without(row) if adjacency == "zero-out" else (row_norm, 0, 1.0)
    exact = max(
        pure_loss(
            step_of(loss, statement, weight=weight, convexity=convexity, offset=offset),
            records([row]),
            records([other]),
        )
        for offset in 2 * weight * row_norm + np.array([0.0, 5.0, 40.0]) * convexity / row_norm
    )
    return exact, statement.pure


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("row_norm", ROW_NORMS)
@pytest.mark.parametrize("above", [1.0, 1.5, 5.0])
def test_logistic_jacobian_is_free_when_rate_times_convexity_reaches_the_row_norm(above, row_norm, adjacency):
    rate, weight = 0.3, 0.8
    exact, stated = logistic_exact_and_stated(
        adjacency, row_norm, rate=rate, convexity=above * row_norm / rate * (1 + 1e-12), weight=weight
    )
    noise_only = rate * weight * row_norm * (2 if adjacency == "replace-one" else 1)
    assert stated == pytest.approx(noise_only, rel=1e-12)
    assert exact <= stated * (1 + ROUNDING)
    if adjacency == "zero-out":
        assert exact >= 0.99 * stated


@pytest.mark.parametrize("row_norm", ROW_NORMS)
def test_logistic_jacobian_is_not_free_just_below(row_norm):
    rate, weight = 0.3, 0.1
    exact, stated = logistic_exact_and_stated(
        "zero-out", row_norm, rate=rate, convexity=0.8 * row_norm / rate, weight=weight
    )
    assert rate * weight * row_norm * 1.001 < exact <= stated


def test_a_row_norm_of_twelve_costs_three_and_a_half_times_the_noise_alone():
    """The norm enters the Hessian squared: p + X p (1 - p) has its largest value 3.52 at X = 12."""
    exact, stated = logistic_exact_and_stated("zero-out", 12.0, rate=1.0, convexity=1.0, weight=1e-5)
    assert exact / (1.0 * 1e-5 * 12.0) == pytest.approx(3.52, abs=0.01)
    assert exact <= stated


# --- wrong statements must be found out -------------------------------------------------------------------------------


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_a_jacobian_with_the_norm_not_squared_would_be_caught(adjacency):
    step, statement, data, neighbour = hinge_worst_case(adjacency, 12.0, width=0.5)
    right = step.weight * step.loss.smoothness * 12.0**2 / step.strong_convexity
    wrong = statement.pure - math.log1p(right) + math.log1p(right / 12.0)
    assert pure_loss(step, data, neighbour) > 1.1 * wrong

    step, statement, data, neighbour, order = steep_huber_worst_case(12.0)
    right = statement.grant.event.events[0]
    wrong = dataclasses.replace(right, jacobian=right.jacobian / 12.0).rdp(np.array([order]))[0, 0]
    assert renyi_divergence(step, data, neighbour, np.array([order]), largest_error=1e-5)[0, 0] > 1.02 * wrong


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_noise_of_twice_the_stated_rate_would_be_caught(adjacency):
    step, statement, data, neighbour = hinge_worst_case(adjacency, 1.0, width=0.5, rate=2.0)
    halved = dataclasses.replace(step, noise_scale=step.noise_scale / 2)
    assert pure_loss(halved, data, neighbour) > 1.3 * statement.pure

    step, statement, data, neighbour, order = steep_huber_worst_case(1.0)
    halved = dataclasses.replace(step, noise_scale=step.noise_scale / 2)
    exact = renyi_divergence(halved, data, neighbour, np.array([order]), largest_error=1e-3)[0, 0]
    assert exact > 2 * statement.rdp(np.array([order]))[0, 0]


# --- the measuring instrument itself ----------------------------------------------------------------------------------


def test_exact_loss_of_a_quadratic_is_that_of_two_gaussians():
    """Inside its threshold Huber is squared: both outputs are Gaussian, and their divergence has a closed form."""
    x, y, convexity, std = 0.8, 1.5, 2.0, 1.2
    step = Step(
        loss=Huber(threshold=40.0),
        weight=1.0,
        strong_convexity=convexity,
        offset=(0.7,),
        law="gaussian",
        noise_scale=std,
    )
    data, neighbour = records([(x, y, 1.0)]), records([(x, y, 0.0)])
    bent = convexity + x**2
    mean, other_mean = (x * y - 0.7) / bent, -0.7 / convexity
    var, other_var = (std / bent) ** 2, (std / convexity) ** 2
    orders = np.array([1.5, 2.0, 3.0])
    mixed = orders * other_var + (1 - orders) * var
    closed_form = (
        orders * (mean - other_mean) ** 2 / (2 * mixed)
        + np.log(other_var / var) / 2
        - np.log(mixed / other_var) / (2 * (orders - 1))
    )
    exact = renyi_divergence(step, data, neighbour, orders)
    np.testing.assert_allclose(exact[0], closed_form, rtol=1e-7)
    # the other direction is the first one of the exchanged data sets
    np.testing.assert_allclose(exact[1], renyi_divergence(step, neighbour, data, orders)[0], rtol=1e-9)


@pytest.mark.parametrize("law", ["gaussian", "gamma-sphere"])
def test_densities_in_two_dimensions_integrate_to_one(law):
    step = Step(loss=Logistic(), weight=0.5, strong_convexity=1.0, offset=(0.3, -0.2), law=law, noise_scale=0.8)
    data = records([((0.6, 0.8), 1, 1.0), ((1.0, 0.0), 0, 0.5)])
    axis = np.linspace(-30, 30, 601)
    points = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    total = np.exp(log_density(step, data, points)).sum() * (axis[1] - axis[0]) ** 2
    # the gamma law has a cusp
    assert total == pytest.approx(1.0, abs=1e-8 if law == "gaussian" else 2e-3)


def test_a_grid_too_coarse_for_a_kink_is_refused():
    step = Step(
        loss=HuberisedHinge(width=1e-4),
        weight=1.0,
        strong_convexity=0.1,
        offset=(0.0, 0.0),
        law="gaussian",
        noise_scale=1.0,
    )
    data, neighbour = records([((0.6, 0.8), 1, 1.0)]), records([((0.6, 0.8), 1, 0.0)])
    with pytest.raises(QuadratureError, match="is allowed"):
        renyi_divergence(step, data, neighbour, LOW_ORDERS, largest_error=1e-3)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"noise_scale": 0.0}, "noise_scale"),
        ({"strong_convexity": math.inf}, "strong_convexity"),
        ({"law": "uniform"}, "law"),
        ({"offset": (0.0,) * 4}, "offset"),
        ({"loss": Squared()}, "loss"),
    ],
)
def test_impossible_steps_are_refused(changes, name):
    good = {"loss": Logistic(), "weight": 1.0, "strong_convexity": 1.0, "offset": (0.0,), "law": "gaussian"}
    with pytest.raises(InputError, match=name):
        Step(**good | {"noise_scale": 1.0} | changes)


def test_data_sets_of_different_length_are_refused():
    step = Step(loss=Logistic(), weight=1.0, strong_convexity=1.0, offset=(0.0,), law="gaussian", noise_scale=1.0)
    row = (1.0, 1, 1.0)
    with pytest.raises(InputError, match="weight 0"):
        renyi_divergence(step, records([row, row]), records([row]), ORDERS)
