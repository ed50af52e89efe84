"""Noise and price of every mechanism against formulas that are written out here once more.

Nothing is 1 that could hide a quotient for a product: rows have norm 3, slopes are at most 0.6, a record weighs 0.7;
parties are unequal, and so large that rounding counts.
"""

import dataclasses
import itertools
import math

import mpmath
import networkx as nx
import numpy as np
import pytest

from coterie.errors import InputError, PrivacyPreconditionError
from coterie.network.topology import make_topology
from coterie.privacy import accountants, pairs
from coterie.privacy.composition import Price, fits
from coterie.privacy.events import (
    EVERYBODY,
    PEER,
    Both,
    Event,
    Gaussian,
    PoissonGaussian,
    TokenWalk,
    Unprotected,
    check_adjacency,
    check_observer,
)
from coterie.privacy.image import ImageNoise
from coterie.privacy.mechanisms import GaussianGradient, PartyFacts, SumNoises
from coterie.privacy.objective import (
    DualPerturbation,
    LinearPerturbation,
    NoNoise,
    OutputPerturbation,
    PenaltyPerturbation,
    SoloPerturbation,
)
from coterie.privacy.proximal import BroadcastNoise, LocalNoise, SumNoise, WalkNoise
from coterie.problems import L2, Huber, HuberisedHinge, Multinomial, Problem, Squared
from coterie.values import Facts, Schedule

SIZES = (400_000, 900_000, 600_000)
PARTY, DEGREE, D = 2, 2, 5
N, W, X, SLOPE, ALL_L2 = SIZES[PARTY], 0.7, 3.0, 0.6, 0.9
L2_SHARE = ALL_L2 / 3
LABELS = {"label_bound": 5.0}
PROBLEM = Problem(loss=Huber(threshold=SLOPE), regulariser=L2(ALL_L2), record_weight=W)
STEPS, GAMMA_STEPS, ROUNDED = 2.0**26, 2.0**22, 1 + 2.0**-32
SPREAD = math.sqrt(D) / STEPS
MULTIPLIER, RATE, PENALTY = 2.5, 0.8, 0.09
ETA, RELAXATION = 0.4, 0.45
CHANGES = {"replace-one": 2, "zero-out": 1}
BOTH_ADJACENCIES = pytest.mark.parametrize("adjacency", list(CHANGES))


def about(value):
    return pytest.approx(value, rel=1e-11)


def facts(adjacency="replace-one", unit="record", *, problem=PROBLEM, sizes=SIZES, n_features=D, labels=None, **more):
    public = Facts(
        parties=tuple("abc"), sizes=sizes, n_features=n_features, row_norm=X, **(LABELS if labels is None else labels)
    )
    return PartyFacts.of(PARTY, problem, public, DEGREE, adjacency, unit, **more)


def granted(mechanism, *arguments, problem=PROBLEM, **more):
    return mechanism.grant(0, PARTY, problem, facts(*arguments, problem=problem, **more))


# --- minimisers -------------------------------------------------------------------------------------------------------


def stops_at(convexity, noise_norm, share=5e-13, slope=SLOPE, bend=1.0):
    """Where the solver stops; `bend` is the loss's largest second derivative."""
    condition = 1 + N * W * bend * X**2 / convexity
    return (share + 1e-14 * condition) * (N * W * slope * X + noise_norm)


# of coefficients that make a score of 1000
POINT_ROUNDED = 2.0**-49 * 1e3


def misses(convexity, size=N, slope=X * SLOPE, row_norm=X, bend=1.0):
    """What a solver's own gradient is off by: of a sum of so many, of scores of up to 1000, and of coefficients."""
    summed = size * W * 2.0**-53 * ((size + D) * slope + D * 1e3 * bend * row_norm)
    return summed + convexity * POINT_ROUNDED / row_norm


CONVEXITY = L2_SHARE + 2 * PENALTY * DEGREE
OBJECTIVES = [
    (PenaltyPerturbation, {"penalty": PENALTY}, CONVEXITY),
    (LinearPerturbation, {"penalty": PENALTY}, CONVEXITY),
    (SoloPerturbation, {"extra_l2": 0.21}, L2_SHARE + 0.21),
    (DualPerturbation, {"penalty": PENALTY}, CONVEXITY),
]


@BOTH_ADJACENCIES
@pytest.mark.parametrize(("kind", "settings", "convexity"), OBJECTIVES)
def test_gaussian_noise_in_an_objective(kind, settings, convexity, adjacency):
    grant = granted(kind(**settings, noise_multiplier=MULTIPLIER), adjacency)
    assert convexity < 1
    noise_std = MULTIPLIER * CHANGES[adjacency] * W * SLOPE * X
    tolerance = stops_at(convexity, noise_std * math.sqrt(D))
    off = 2.0**-43 * noise_std * math.sqrt(D)
    hidden, missed = 0.01 / MULTIPLIER, misses(convexity)
    objective, output = grant.event.events
    assert (objective.ratio, objective.jacobian) == (about(1 / MULTIPLIER), about(W * X**2 / convexity))
    assert (objective.rank, objective.adjacency, objective.margin) == (1, adjacency, False)
    assert output.ratio == about(hidden + SPREAD)
    assert grant.scales.noise_scale == about(noise_std)
    assert grant.scales.tolerance == about(tolerance)
    assert grant.scales.output_scale == about(2 * (tolerance + missed + off) * (1 + 1 / 64) / convexity / hidden)
    assert grant.scales.steps == STEPS
    assert grant.scales.curvature + grant.scales.extra_l2 == about(convexity - L2_SHARE)


BENT = Problem(loss=HuberisedHinge(width=0.2), regulariser=L2(ALL_L2), record_weight=W)
BEND = 2.5
TWO_LABELS = {"problem": BENT, "labels": {"labels": ("no", "yes")}}


def test_a_loss_that_bends_more_is_harder_to_solve_and_costs_more():
    grant = granted(LinearPerturbation(penalty=PENALTY, noise_multiplier=MULTIPLIER), **TWO_LABELS)
    objective = grant.event.events[0]
    assert (objective.jacobian, objective.margin) == (about(W * BEND * X**2 / CONVEXITY), True)
    noise_norm = MULTIPLIER * 2 * W * X * math.sqrt(D)
    assert grant.scales.tolerance == about(stops_at(CONVEXITY, noise_norm, slope=1.0, bend=BEND))


def check_gamma(grant, rate, convexity, adjacency):
    """Of noise with density exp(-rate |b|) in an objective."""
    loss = rate * CHANGES[adjacency] * W * SLOPE * X
    tolerance = stops_at(convexity, D / rate)
    # a gamma norm is larger than that with a chance of 2^-80 at most
    t = 80 * math.log(2)
    off = 2.0**-44 * (D + math.sqrt(2 * D * t) + t + D) / rate
    noised, output = grant.event.events
    assert noised.epsilon == about(loss + math.log(1 + W * X**2 / convexity))
    assert output.epsilon == about(1e-3 * loss + math.sqrt(D) / GAMMA_STEPS)
    assert grant.scales.noise_scale == about(1 / rate)
    assert grant.scales.tolerance == about(tolerance)
    apart = 2 * (tolerance + misses(convexity) + off) * (1 + 1 / 64) / convexity
    assert grant.scales.output_scale == about(apart / (1e-3 * loss))
    assert grant.scales.steps == GAMMA_STEPS
    assert grant.scales.curvature + grant.scales.extra_l2 == about(convexity - L2_SHARE)


@BOTH_ADJACENCIES
@pytest.mark.parametrize(("kind", "settings", "convexity"), OBJECTIVES[:3])
def test_gamma_noise_in_an_objective(kind, settings, convexity, adjacency):
    grant = granted(kind(**settings, noise_rate=RATE), adjacency)
    # of a penalty the noise is in the coefficients' units: curvature times it is in the gradient's
    check_gamma(grant, RATE / (2 * PENALTY * DEGREE if kind is PenaltyPerturbation else 1), convexity, adjacency)


def test_gamma_noise_in_a_penalty_needs_neighbours():
    alone = dataclasses.replace(facts(), degree=0)
    with pytest.raises(PrivacyPreconditionError, match="a party without neighbours has none"):
        PenaltyPerturbation(penalty=PENALTY, noise_rate=RATE).grant(0, PARTY, PROBLEM, alone)


@BOTH_ADJACENCIES
@pytest.mark.parametrize("alpha", [5.0, 9.0])
def test_a_step_in_the_dual_variable_costs_what_it_may(alpha, adjacency):
    grant = granted(DualPerturbation(penalty=PENALTY, step_epsilon=alpha), adjacency)
    left = alpha / 1.001 - math.log(1 + W * X**2 / CONVEXITY)
    assert left > 0
    check_gamma(grant, left / (CHANGES[adjacency] * W * SLOPE * X), CONVEXITY, adjacency)
    # what is left for the solver is not lost either: 1 in 1000 of what the Jacobian costs is
    assert alpha * (1 - 1e-3) < grant.event.pure < alpha + math.sqrt(D) / GAMMA_STEPS


@BOTH_ADJACENCIES
@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_where_the_jacobian_would_take_it_all_the_objective_is_made_more_convex(alpha, adjacency):
    grant = granted(DualPerturbation(penalty=PENALTY, step_epsilon=alpha), adjacency)
    half = alpha / 1.001 / 2
    convexity = W * X**2 / (math.exp(half) - 1)
    assert convexity > CONVEXITY
    assert grant.scales.extra_l2 == about(convexity - CONVEXITY)
    check_gamma(grant, half / (CHANGES[adjacency] * W * SLOPE * X), convexity, adjacency)


@pytest.mark.parametrize("alpha", [0.3, 12.0])
@pytest.mark.parametrize("published", [False, True])
def test_of_several_classes_each_direction_pays_for_its_jacobian(alpha, published):
    """Two directions of three classes, whose curvatures add up to 4/3 of the largest; as published twice the largest is
    taken off for either, and the noise is for a weight alone."""
    problem = Problem(loss=Multinomial(3), regulariser=L2(ALL_L2), record_weight=W)
    mechanism = DualPerturbation(penalty=PENALTY, step_epsilon=alpha, as_published=published)
    grant = granted(mechanism, problem=problem, labels={"labels": tuple("rgb")})
    factors, share = (4, 1) if published else (2, 2 / 3)
    alpha = alpha if published else alpha / 1.001
    jacobian, sensitivity = W * 0.5 * X**2 / CONVEXITY, 2 * W * math.sqrt(2) * X
    left = alpha - factors * math.log(1 + share * jacobian)
    if left <= 0:
        left, jacobian = alpha / 2, (math.exp(alpha / 2 / factors) - 1) / share
    rate = left / (W if published else sensitivity)
    assert grant.scales.noise_scale == about(1 / rate)
    assert grant.event.events[0].epsilon == about(rate * sensitivity + 2 * math.log(1 + 2 / 3 * jacobian))


@pytest.mark.parametrize(
    ("mechanism", "value"),
    [
        (DualPerturbation(penalty=PENALTY, step_epsilon=3.0), lambda m: m.step_epsilon.at(0, 0) * 4 / 3),
        (DualPerturbation(penalty=PENALTY, noise_multiplier=0.25), lambda m: m.noise_multiplier.at(0, 0) * 4),
    ],
)
def test_four_times_the_noise_is_a_quarter_of_the_loss_that_is_allowed(mechanism, value):
    noisier = mechanism.with_noise(4.0)
    assert value(noisier) == (1.0 if mechanism.step_epsilon is not None else 4.0)


@BOTH_ADJACENCIES
@pytest.mark.parametrize("noise", [{"noise_multiplier": MULTIPLIER}, {"noise_rate": RATE}])
def test_noise_on_a_minimiser(noise, adjacency):
    grant = granted(OutputPerturbation(penalty=PENALTY, **noise), adjacency)
    tolerance = stops_at(CONVEXITY, 0)
    moves = (CHANGES[adjacency] * W * SLOPE * X + 2 * (tolerance + misses(CONVEXITY))) / CONVEXITY
    assert grant.scales.noise_scale == 0
    assert grant.scales.tolerance == about(tolerance)
    if "noise_rate" in noise:
        assert grant.scales.output_scale == about(1 / RATE)
        assert grant.event.epsilon == about((RATE * moves + math.sqrt(D) / GAMMA_STEPS) * ROUNDED)
    else:
        assert grant.scales.output_scale == about(MULTIPLIER * moves)
        assert grant.event.ratio == about((1 / MULTIPLIER + SPREAD) * ROUNDED)


def test_without_noise_there_is_no_price():
    for loss, slope in ((Huber(threshold=SLOPE), SLOPE), (Squared(), LABELS["label_bound"])):
        problem = Problem(loss=loss, regulariser=L2(ALL_L2), record_weight=W)
        grant = granted(NoNoise(penalty=PENALTY), problem=problem)
        assert grant.event == Unprotected()
        assert grant.scales[2:4] == (0, 0)
        assert grant.scales.tolerance == about(stops_at(CONVEXITY, CONVEXITY, share=1e-13, slope=slope))


def test_a_noise_of_an_objective_is_given_once():
    for given in ({}, {"noise_multiplier": 1.0, "noise_rate": 1.0}):
        with pytest.raises(InputError, match="exactly one is needed"):
            LinearPerturbation(penalty=1.0, **given)


def test_a_slope_that_has_no_bound_has_no_price():
    problem = Problem(loss=Squared(), regulariser=L2(ALL_L2), record_weight=W)
    with pytest.raises(PrivacyPreconditionError, match="unbounded slopes"):
        granted(LinearPerturbation(penalty=PENALTY, noise_multiplier=1.0), problem=problem)


def test_grants_are_shared_between_rounds_only_where_nothing_changes():
    growing = Schedule(1.0, ratio=1.1)
    assert LinearPerturbation(penalty=1.0, noise_multiplier=1.0).changing_rounds == 1
    assert LinearPerturbation(penalty=growing, noise_multiplier=1.0).changing_rounds is None
    assert LinearPerturbation(penalty=1.0, noise_multiplier=growing).changing_rounds is None


# --- sums of gradients ------------------------------------------------------------------------------------------------


@BOTH_ADJACENCIES
@pytest.mark.parametrize("unit", ["record", "party"])
@pytest.mark.parametrize("clip", [None, 1.3])
def test_noise_on_a_sum_of_gradients(clip, unit, adjacency):
    noise = SumNoises(rows=4, size=1.5)
    grant = granted(GaussianGradient(noise_multiplier=MULTIPLIER, clip=clip), adjacency, unit, noise=noise)
    slope = X * SLOPE if clip is None else clip
    of_record = CHANGES[adjacency] * slope * W
    own, largest = (of_record, of_record) if unit == "record" else (N * of_record, max(SIZES) * of_record)
    off = (N + D) * 2.0**-53 * N * W * slope
    assert grant.scales.noise_std == about(MULTIPLIER * largest)
    assert grant.scales.steps == about(STEPS / 1.5)
    assert grant.scales.clip == (math.inf if clip is None else clip)
    moved = (own + 2 * off) / (MULTIPLIER * largest)
    assert grant.event.ratio == about((moved + SPREAD * 1.5) * ROUNDED)
    assert noise.total == 3.0


def test_a_secret_coin_is_for_all_that_a_party_holds_and_for_taking_it_away():
    mechanism = GaussianGradient(noise_multiplier=MULTIPLIER)
    plain = granted(mechanism, "zero-out", "party").event
    event = granted(mechanism, "zero-out", "party", secret_rate=0.3).event
    assert event == PoissonGaussian(ratio=plain.ratio, rate=0.3)
    for adjacency, unit in (("replace-one", "party"), ("zero-out", "record"), ("replace-one", "record")):
        with pytest.raises(PrivacyPreconditionError, match="amplification is proved for zero-out of all"):
            granted(mechanism, adjacency, unit, secret_rate=0.3)
    alone = granted(mechanism, "zero-out", "record", sizes=(1, 1, 1), secret_rate=0.3).event
    assert isinstance(alone, PoissonGaussian)
    with pytest.raises(PrivacyPreconditionError, match="amplification is proved for zero-out of all"):
        granted(mechanism, "zero-out", "record", sizes=(2, 2, 2), secret_rate=0.3)


@pytest.mark.parametrize("clip", [0.0, -1.0, math.inf, math.nan])
def test_a_clip_is_a_positive_number(clip):
    for make in (
        lambda: GaussianGradient(noise_multiplier=1.0, clip=clip),
        lambda: LocalNoise(prox_step=1.0, relaxation=0.5, noise_multiplier=1.0, clip=clip),
    ):
        with pytest.raises(InputError, match="clip: got"):
            make()


def test_one_noise_for_all_is_given_once():
    step = {"prox_step": 1.0, "relaxation": 0.5, "noise_multiplier": (1.0, 2.0, 3.0)}
    for make in (
        lambda: GaussianGradient(noise_multiplier=(1.0, 2.0, 3.0)),
        lambda: SumNoise(**step),
        lambda: BroadcastNoise(**step),
        lambda: WalkNoise(**step),
    ):
        with pytest.raises(InputError, match="noise_multiplier: got one per party"):
            make()


# --- proximal steps ---------------------------------------------------------------------------------------------------


class Step:
    """Of one party, with `size` records whose gradients are at most `slope` long."""

    def __init__(self, size, slope=X * SLOPE, l2=0.0, row_norm=X, bend=1.0):
        self.stretch, self.largest = 1 + ETA * l2, size * W * slope
        self.curvature, self.row_norm = 1 / ETA + l2, row_norm
        self.smoothness = size * W * bend * row_norm**2
        self.of_record = W * slope
        self.misses = misses(self.curvature, size, slope, row_norm, bend)

    def stops_at(self, noise_std):
        condition = 1 + self.smoothness / self.curvature
        point = 1e3 * (1 / self.row_norm + noise_std * math.sqrt(D))
        return 5e-13 * self.largest + 1e-14 * condition * (self.largest + self.curvature * point)

    def moves(self, changes, unit):
        return ETA / self.stretch * changes * (self.largest if unit == "party" else self.of_record)

    def off(self, tolerance):
        """A minimiser of a solver that stops there."""
        return (tolerance + self.misses) * ETA / self.stretch


def local(size, changes, unit, l2=0.0):
    """(tolerance, how far a move changes)."""
    step = Step(size, l2=l2)
    tolerance = step.stops_at(MULTIPLIER * step.moves(changes, unit))
    return tolerance, step.moves(changes, unit) + 2 * step.off(tolerance)


STEP = {"prox_step": ETA, "relaxation": RELAXATION, "noise_multiplier": MULTIPLIER}


@BOTH_ADJACENCIES
@pytest.mark.parametrize("unit", ["record", "party"])
@pytest.mark.parametrize("spread_l2", [False, True])
def test_noise_on_a_move(spread_l2, unit, adjacency):
    grant = granted(LocalNoise(**STEP, spread_l2=spread_l2), adjacency, unit)
    l2 = L2_SHARE if spread_l2 else 0.0
    tolerance, moved = local(N, CHANGES[adjacency], unit, l2)
    assert grant.scales.tolerance == about(tolerance)
    assert grant.scales.noise_std == about(MULTIPLIER * moved)
    assert grant.event.ratio == about((1 / MULTIPLIER + SPREAD) * ROUNDED)
    assert (grant.scales.curvature, grant.scales.l2) == (about(1 / ETA), about(l2))
    assert (grant.scales.radius, grant.scales.strict, grant.scales.relaxation) == (math.inf, 1, RELAXATION)


def clipped_change(clip, adjacency, unit):
    return clip * (CHANGES[adjacency] if unit == "party" else 2)


@BOTH_ADJACENCIES
@pytest.mark.parametrize("unit", ["record", "party"])
def test_noise_on_clipped_moves_and_on_their_sum(unit, adjacency):
    clip, noise = 1.3, SumNoises(rows=4, size=1.5)
    # a whole gradient that moves by the clip
    step = Step(N, slope=clip / ETA / (N * W))
    change = clipped_change(clip, adjacency, unit)
    own = granted(LocalNoise(**STEP, clip=clip), adjacency, unit)
    assert own.scales.noise_std == about(MULTIPLIER * change)
    assert own.event.ratio == about((1 / MULTIPLIER + SPREAD) * ROUNDED)
    assert own.scales.tolerance == about(step.stops_at(MULTIPLIER * change))
    summed = granted(SumNoise(**STEP, clip=clip), adjacency, unit, noise=noise)
    assert summed.scales.noise_std == about(MULTIPLIER * 2 * RELAXATION * change)
    assert summed.event.ratio == about((1 / MULTIPLIER + SPREAD * 1.5) * ROUNDED)
    assert summed.scales.tolerance == about(step.stops_at(MULTIPLIER * 3.0 * 2 * clip / 3))
    for grant in (own, summed):
        assert (grant.scales.radius, grant.scales.strict) == (clip, 0)
    assert summed.scales.steps == about(STEPS / 1.5)


def in_a_sum(step):
    """Where a solver stops among three parties, with a noise of one unit."""
    return step.stops_at(MULTIPLIER * 2 * ETA * step.largest / 3)


def apart(step, changes, unit, tolerance, relaxation):
    """How far two states can be, round after round."""
    pull = 2 * relaxation / step.stretch
    pulled = (changes if unit == "party" else 2) * ETA * step.largest * pull
    whole = (pulled + 2 * POINT_ROUNDED / step.row_norm) / min(pull, 2 - pull)
    if unit == "party":
        return whole
    shrink = max(abs(1 - 2 * relaxation / (step.stretch + ETA * step.smoothness)), abs(1 - pull))
    return min(whole, 2 * relaxation * (step.moves(changes, unit) + 4 * step.off(tolerance)) / (1 - shrink))


@BOTH_ADJACENCIES
@pytest.mark.parametrize("unit", ["record", "party"])
@pytest.mark.parametrize("spread_l2", [False, True])
def test_noise_on_a_sum_of_moves(spread_l2, unit, adjacency):
    grant = granted(SumNoise(**STEP, spread_l2=spread_l2), adjacency, unit)
    l2, changes = L2_SHARE if spread_l2 else 0.0, CHANGES[adjacency]

    def moved(size):
        step = Step(size, l2=l2)
        tolerance = in_a_sum(step)
        distance = apart(step, changes, unit, tolerance, RELAXATION)
        return 2 * RELAXATION * (distance / step.stretch + step.moves(changes, unit) + 4 * step.off(tolerance))

    noise_std = MULTIPLIER * max(map(moved, SIZES))
    assert grant.scales.noise_std == about(noise_std)
    assert grant.scales.tolerance == about(in_a_sum(Step(N, l2=l2)))
    assert grant.event.ratio == about((moved(N) / noise_std + SPREAD) * ROUNDED)


@BOTH_ADJACENCIES
@pytest.mark.parametrize("unit", ["record", "party"])
@pytest.mark.parametrize("clip", [None, 1.3])
@pytest.mark.parametrize("relaxation", [0.2, 0.85])
@pytest.mark.parametrize("sizes", [SIZES, (3, 12, 5)])
def test_noise_on_a_sum_of_states(sizes, relaxation, clip, unit, adjacency):
    mechanism = BroadcastNoise(**STEP | {"relaxation": relaxation}, clip=clip, spread_l2=True)
    grant = granted(mechanism, adjacency, unit, sizes=sizes)

    def distance(size):
        step = Step(size, slope=X * SLOPE if clip is None else clip, l2=L2_SHARE)
        changes = CHANGES[adjacency] if unit == "party" or clip is None else 2
        # one record of many turns a gradient round that is clipped as a whole
        as_whole = unit if clip is None else "party"
        return apart(step, changes, as_whole, in_a_sum(step), relaxation)

    noise_std = MULTIPLIER * max(map(distance, sizes))
    assert grant.scales.noise_std == about(noise_std)
    assert grant.event.ratio == about((distance(sizes[PARTY]) / noise_std + SPREAD) * ROUNDED)
    assert grant.scales.radius == about(ETA * sizes[PARTY] * W * (X * SLOPE if clip is None else clip))
    assert not (unit == "party" and grant.scales.strict)


@pytest.mark.parametrize("sizes", [SIZES, (3, 12, 5)])
def test_steps_of_a_loss_that_bends_more_shrink_distances_less(sizes):
    grant = granted(BroadcastNoise(**STEP), sizes=sizes, **TWO_LABELS)
    steps = [Step(size, slope=X, bend=BEND) for size in sizes]
    largest = max(apart(step, 2, "record", in_a_sum(step), RELAXATION) for step in steps)
    assert grant.scales.noise_std == about(MULTIPLIER * largest)
    assert grant.scales.tolerance == about(in_a_sum(steps[PARTY]))


@BOTH_ADJACENCIES
def test_noise_on_a_token_and_what_a_peer_sees_of_it(adjacency):
    mechanism, changes = WalkNoise(**STEP), CHANGES[adjacency]
    grant = granted(mechanism, adjacency)
    noise_std = MULTIPLIER * max(local(size, changes, "record")[1] for size in SIZES)
    assert grant.scales.noise_std == about(noise_std)
    assert grant.event.ratio == about((local(N, changes, "record")[1] / noise_std + SPREAD) * ROUNDED)
    seen = mechanism.seen_by(PEER, grant.event, PROBLEM, facts(adjacency))
    off = max(2 * Step(size).off(local(size, changes, "record")[0]) for size in SIZES)
    assert (seen.ratio, seen.n_parties) == (grant.event.ratio, 3)
    assert seen.slack == about((off / noise_std + SPREAD) * ROUNDED)
    assert mechanism.seen_by(EVERYBODY, grant.event, PROBLEM, facts(adjacency)) is grant.event


@BOTH_ADJACENCIES
def test_noise_on_the_image_of_a_minimiser(adjacency):
    """Rows are as long as they are in the basis of the matrix, whose smallest singular value is a half."""
    mechanism = ImageNoise(A=np.diag([0.5, 1.0, 2.0, 3.0, 4.0]), prox_step=ETA, noise_multiplier=MULTIPLIER)
    grant = granted(mechanism, adjacency)
    step = Step(N, slope=2 * X * SLOPE, row_norm=2 * X)
    change = step.moves(CHANGES[adjacency], "record")
    tolerance = step.stops_at(MULTIPLIER * change)
    # the singular value that is stated is a little smaller, to be safe
    nearly = {"rel": 1e-9}
    assert grant.scales.tolerance == pytest.approx(tolerance, **nearly)
    assert grant.scales.noise_std == pytest.approx(MULTIPLIER * (change + 2 * step.off(tolerance)), **nearly)
    assert grant.event.ratio == about((1 / MULTIPLIER + SPREAD) * ROUNDED)
    assert (grant.scales.curvature, grant.scales.row_norm) == (about(1 / ETA), pytest.approx(2 * X, **nearly))


def test_a_matrix_whose_columns_depend_on_each_other_hides_nothing():
    """Along what it maps to zero a minimiser would be as far away as it likes."""
    for dependent in (np.ones((3, 2)), np.zeros((2, 2)), np.eye(2, 3)):
        with pytest.raises(PrivacyPreconditionError, match="full column rank is needed"):
            ImageNoise(A=dependent, prox_step=ETA, noise_multiplier=MULTIPLIER)


def test_what_a_proximal_step_cannot_be():
    for relaxation in (0.0, -0.5, 1.5):
        with pytest.raises(InputError, match=r"a number in \(0, 1\] is needed"):
            LocalNoise(prox_step=1.0, relaxation=relaxation, noise_multiplier=1.0)
    for kind, arguments in ((LocalNoise, {}), (SumNoise, {}), (BroadcastNoise, {}), (LocalNoise, {"clip": 1.0})):
        with pytest.raises(PrivacyPreconditionError, match="selection: secret"):
            granted(kind(**STEP, **arguments), "zero-out", "party", secret_rate=0.5)
    assert granted(SumNoise(**STEP, clip=1.0), "zero-out", "party", secret_rate=0.5).event.rate == 0.5


# --- curves of events -------------------------------------------------------------------------------------------------

ORDERS = np.array([1.01, 1.5, 2.0, 4.0, 30.0, 600.0])


@pytest.mark.parametrize("n", [3, 4, 7, 50, 1000])
@pytest.mark.parametrize(("ratio", "slack"), [(0.05, 0.0), (0.6, 0.0), (3.0, 0.0), (0.6, 1e-3), (1e-4, 0.0)])
def test_a_visit_of_a_walk_is_hidden_by_those_that_follow(n, ratio, slack):
    """At most half a percent above the mean over m, geometric with a chance of 2/n, and never below it."""
    curve = TokenWalk(ratio, n, slack).rdp(ORDERS)
    everybody = ORDERS * ratio**2 / 2
    m = np.arange(1, 40 * n)
    with mpmath.workdps(40):
        for place, a in enumerate(ORDERS):
            c, stay = mpmath.mpf(a) * (mpmath.mpf(a) - 1) / 2, 1 - mpmath.mpf(2) / n
            if (1 - 2 / n) * math.exp(min(float(c) * slack**2, 1.0)) >= 1:
                truth = everybody[place]
            else:
                terms = (stay ** (int(k) - 1) * mpmath.exp(c * (ratio + int(k) * slack) ** 2 / int(k)) for k in m)
                truth = min(float(mpmath.log(2 * mpmath.fsum(terms) / n) / (a - 1)), everybody[place])
            assert truth * (1 - 1e-12) <= curve[0, place] <= truth * 1.005
    np.testing.assert_array_equal(curve[0], curve[1])


def test_of_two_parties_either_sees_every_visit():
    np.testing.assert_array_equal(TokenWalk(0.6, 2, 0.1).rdp(ORDERS), np.tile(ORDERS * 0.6**2 / 2, (2, 1)))


def test_a_coin_that_always_falls_on_its_head_is_none():
    for ratio in (0.3, 2.0):
        plain = Gaussian(ratio=ratio).rdp(ORDERS)
        assert plain.shape == (2, len(ORDERS))
        # between whole orders chords are not below
        curve = PoissonGaussian(ratio=ratio, rate=1.0).rdp(ORDERS)
        np.testing.assert_allclose(curve, plain, rtol=1e-12)
        whole = np.arange(2.0, 513.0)
        np.testing.assert_allclose(
            PoissonGaussian(ratio=ratio, rate=1.0)._log_moments(whole), whole * (whole - 1) * ratio**2 / 2
        )


@pytest.mark.parametrize(
    "kind", [Gaussian, lambda ratio: PoissonGaussian(ratio, 0.5), lambda ratio: TokenWalk(ratio, 5)]
)
def test_nothing_that_moves_costs_nothing_and_any_move_has_no_pure_bound(kind):
    assert kind(0.0).pure == 0.0
    assert kind(1.0).pure == math.inf
    assert kind(0.5).pure == math.inf


def test_curves_without_a_bound_have_two_rows():
    for event in (Unprotected(), Both((Unprotected(), Gaussian(1.0)))):
        assert (event.rdp(ORDERS) == np.full((2, len(ORDERS)), np.inf)).all()


def test_words_that_are_none_are_refused():
    with pytest.raises(InputError, match="adjacency: got 'add-one'"):
        check_adjacency("add-one")
    assert check_observer("peer", (EVERYBODY, PEER), "token") is PEER
    with pytest.raises(InputError, match="observer: got 'peer'"):
        check_observer("peer", (EVERYBODY,), "broadcast")
    with pytest.raises(PrivacyPreconditionError, match="a privacy event takes public numbers only"):
        Gaussian(ratio=[1.0])


# --- from curves to epsilon -------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class TwoRows(Event):
    """Gaussian, but for the ratio, which differs between the directions."""

    with_it: float
    without: float

    def rdp(self, orders):
        return np.stack([orders * self.with_it**2 / 2, orders * self.without**2 / 2])


@pytest.mark.parametrize("delta", [1e-3, 1e-9])
def test_of_two_directions_the_worse_one_is_stated(delta):
    alone = {ratio: accountants.rdp_epsilon([(Gaussian(ratio), 7)], delta) for ratio in (0.3, 0.9)}
    for event in (TwoRows(0.3, 0.9), TwoRows(0.9, 0.3)):
        assert accountants.rdp_epsilon([(event, 7)], delta) == alone[0.9]
        after = [(Gaussian(0.5), 2)]
        worse = accountants.mixed_epsilon([(Gaussian(0.9), 7)], delta, after)
        assert accountants.mixed_epsilon([(event, 7)], delta, after) == worse
    assert alone[0.3] < alone[0.9]


@pytest.mark.parametrize("wrong", [0, 1, -0.1, 1.5, math.nan, True, "0.1", None])
def test_a_delta_is_strictly_between_0_and_1(wrong):
    with pytest.raises(InputError, match="delta: got"):
        accountants.epsilon([(Gaussian(1.0), 1)], wrong)


@pytest.mark.parametrize("wrong", [0, -1.0, math.inf, math.nan, True, "1", None])
def test_an_epsilon_is_positive_and_finite(wrong):
    with pytest.raises(InputError, match="epsilon: got"):
        accountants.check_epsilon(wrong)


def test_an_accountant_has_a_name():
    with pytest.raises(InputError, match="accountant: got 'zcdp'"):
        accountants.epsilon([(Gaussian(1.0), 1)], 1e-5, "zcdp")


@pytest.mark.parametrize("needed", [2.0**-50, 1e-9, 0.3, 0.75, 1.0, 5.0, 1e6, 2.0**50])
def test_the_least_noise_is_found_from_either_side(needed):
    found = accountants.least_noise(lambda factor: needed / factor, 1.0)
    assert needed <= found <= needed * (1 + 1e-9)


def test_no_noise_and_no_end_of_it():
    assert accountants.least_noise(lambda factor: 0.0, 1.0) == 0.0
    assert accountants.least_noise(lambda factor: 2.0, 1.0) == math.inf


# --- together with what was paid before -------------------------------------------------------------------------------


def test_of_a_person_with_several_records_somewhere_all_releases_count_so_often():
    one, three = (Price(epsilon=7.0, delta=0.0, pure=1.0, records=records) for records in (1, 3))
    for prices in ((one, three), (three, one)):
        assert fits(prices, (6.0, 0.0))
        assert not fits(prices, (5.9, 0.0))


def test_deltas_that_are_added_stay_within_the_limit():
    """Of several prices that were not fixed in advance a third of delta is for adding them."""
    prices = [Price(epsilon=1.0, delta=1e-6)] * 2
    assert fits(prices, (2.0, 6e-6))
    assert not fits(prices, (2.0, 5.9e-6))
    assert fits(prices, (2.0, 2e-6), in_advance=True)
    assert not fits(prices, (2.0, 1.9e-6), in_advance=True)
    assert not fits(prices, (1.99, 1e-3))


def test_where_nothing_may_be_lost_a_person_shares_delta_among_records():
    """At epsilon 0 the delta of one Gaussian release is 2 Phi(ratio/2) - 1, and three records have three times that."""
    delta = math.erf(0.01 / 2 / math.sqrt(2))
    price = Price(epsilon=math.inf, delta=delta, gaussian=0.01, records=3)
    assert fits([price], (0.0, 3 * delta * (1 + 1e-6)))
    assert not fits([price], (0.0, 3 * delta * (1 - 1e-3)))


# --- pairs ------------------------------------------------------------------------------------------------------------


def exposed(graph, noise, colluders):
    """The largest [Sigma^-1]_ii of honest parties, by inverting what they add."""
    laplacian = np.diag(graph.degrees.astype(float))
    for one, two in np.asarray(graph.edges):
        laplacian[one, two] = laplacian[two, one] = -1
    worst = 0.0
    for absent in itertools.combinations(range(graph.n_parties), colluders):
        kept = [i for i in range(graph.n_parties) if i not in absent]
        part = laplacian[np.ix_(kept, kept)]
        np.fill_diagonal(part, part.diagonal() - part.sum(axis=1))
        worst = max(worst, np.linalg.inv(noise.own**2 * np.eye(len(kept)) + noise.pair**2 * part).diagonal().max())
    return worst


@pytest.mark.parametrize("most_numbers", [1, 10**7])
def test_on_a_wheel_whose_hub_has_more_partners_nobody_is_exposed(most_numbers, monkeypatch):
    monkeypatch.setattr(pairs, "MOST_NUMBERS", most_numbers)
    edges = [(0, i) for i in range(1, 7)] + [(i, i % 6 + 1) for i in range(1, 7)]
    graph = make_topology([tuple(sorted(edge)) for edge in edges], 7)
    noise = pairs.solve.__wrapped__(graph, 1, 16.0)
    # of the hub, which has most
    assert noise.own**2 + 6 * noise.pair**2 == about(16.0)
    found = exposed(graph, noise, 1)
    assert found <= 1 + 1e-9
    if most_numbers > 1:
        assert found == pytest.approx(1.0, rel=1e-9)


def test_where_a_graph_nearly_falls_apart_its_weakest_cut_counts(monkeypatch):
    """Four who all know each other, four others, and one pair between them: only the second eigenvalue is small."""
    monkeypatch.setattr(pairs, "MOST_NUMBERS", 1)
    edges = [(j + k, i + k) for k in (0, 4) for i in range(4) for j in range(i)] + [(3, 4)]
    graph = make_topology(edges, 8)
    noise = pairs.solve.__wrapped__(graph, 0, 256.0)
    assert exposed(graph, noise, 0) <= 1 + 1e-9
    eigenvalues = np.linalg.eigvalsh(np.diag(graph.degrees) - nx.to_numpy_array(graph.graph))
    assert eigenvalues[1] < eigenvalues[2] / 5
    assert pairs._algebraic_connectivity(graph) == pytest.approx(eigenvalues[1])
