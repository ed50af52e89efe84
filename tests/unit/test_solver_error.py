"""What grants cost, without running anything. Solvers that stop short are paid for: two of them may each be off by all
that their tolerance allows, either way.

Losses are straight lines with slopes +1 and -1, so minimisers are known, and parties have so many records that the
tolerance counts: beside it, the grid's and the last digits' share of a price would not hide a forgotten error.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coterie.errors import InputError, PrivacyPreconditionError
from coterie.network.topology import make_topology
from coterie.privacy.events import EVERYBODY, PEER, Both, Pure, TokenWalk, coalition
from coterie.privacy.mechanisms import GaussianGradient, PartyFacts
from coterie.privacy.noise import GAMMA_ERROR, NORMAL_ERROR, largest_gamma
from coterie.privacy.objective import (
    DualPerturbation,
    LinearPerturbation,
    OutputPerturbation,
    PenaltyPerturbation,
    SoloPerturbation,
)
from coterie.privacy.proximal import BroadcastNoise, LocalNoise, SumNoise, WalkNoise
from coterie.privacy.release import unit_noise
from coterie.privacy.standardising import StandardisedGradient
from coterie.problems import L2, HuberisedHinge, Problem, Records
from coterie.values import Facts

N_RECORDS, N_PARTIES, WEIGHT, ROW_NORM, PROX_STEP, RELAXATION = 10**8, 4, 1e-8, 3.0, 0.5, 0.5
# of one record
SLOPE = WEIGHT * ROW_NORM
# of coefficients that make a score of 1000
POINT_ROUNDED = 2.0**-49 * 1000 / ROW_NORM
PROBLEM = Problem(loss=HuberisedHinge(width=0.5), regulariser=L2(0.1), record_weight=WEIGHT)
GRAPH = make_topology("complete", N_PARTIES)
STEP = {"prox_step": PROX_STEP, "relaxation": RELAXATION}


def facts(unit, adjacency="replace-one", n_records=N_RECORDS):
    public = Facts(
        parties=tuple("abcd"), sizes=(n_records,) * N_PARTIES, n_features=1, row_norm=ROW_NORM, labels=("-", "+")
    )
    return PartyFacts.of(0, PROBLEM, public, int(GRAPH.degrees[0]), adjacency, unit)


def granted(mechanism, unit="record", n_records=N_RECORDS):
    return mechanism.grant(0, 0, PROBLEM, facts(unit, n_records=n_records))


def convexity(grant):
    return 0.1 / N_PARTIES + grant.scales.curvature + grant.scales.extra_l2


def rounded(convexity, n_records=N_RECORDS):
    """Of a solver's own gradient: of a sum of so many, of scores of up to 1000 where the loss bends by 1, and of the
    coefficients."""
    return n_records * SLOPE * 2.0**-53 * (n_records + 1 + 1000) + convexity * POINT_ROUNDED


def test_a_sum_of_gradients_covers_two_sums_that_are_both_rounded():
    grant = granted(GaussianGradient(noise_multiplier=2.0))
    # n additions, each of which rounds a sum of up to n gradients
    off = N_RECORDS * 2.0**-53 * N_RECORDS * SLOPE
    assert off > 0.1 * SLOPE
    assert grant.event.ratio * grant.scales.noise_std >= 2 * SLOPE + 2 * off + grant.grid


@pytest.mark.parametrize(("stage", "change"), [(0, 2.0), (1, math.sqrt(2))])
def test_sums_of_columns_cover_two_sums_that_are_both_rounded(stage, change):
    mechanism = StandardisedGradient(noise_multiplier=2.0, column_std=5.0)
    event = mechanism.grant(stage, 0, PROBLEM, facts("record")).event
    # every record counts once, whatever its weight
    off = N_RECORDS * 2.0**-53 * N_RECORDS
    assert off > 0.1
    assert event.ratio * 5.0 == pytest.approx(change + 2 * off, rel=1e-6)


@pytest.mark.parametrize("noise", [{"noise_multiplier": 2.0}, {"noise_rate": 1e6}])
def test_output_perturbation_covers_two_minimisers_that_are_both_off(noise):
    grant = granted(OutputPerturbation(penalty=1.0, **noise))
    exact = 2 * SLOPE / convexity(grant)
    off = (grant.scales.tolerance + rounded(convexity(grant))) / convexity(grant)
    apart = exact + 2 * off + grant.grid
    assert off > 1e-5 * exact
    if isinstance(grant.event, Pure):
        assert grant.event.epsilon >= apart / grant.scales.output_scale
        # the noise that is priced is the noise that was asked for
        assert grant.scales.output_scale == pytest.approx(1 / noise["noise_rate"])
    else:
        assert grant.event.ratio >= apart / grant.scales.output_scale


def test_records_that_a_solver_adds_up_one_way_move_a_minimiser_no_further_than_is_paid_for():
    """Half of the records weigh 1, and the others about half of what a double as large as the first ones' sum can
    tell: one record of weight 1 more and each of them is rounded up, one less and none is. So the gradient that a
    solver finds to be nothing is off by more than its tolerance, and by another amount on neighbouring data."""
    n, d = 2**20, 2
    problem = Problem(loss=HuberisedHinge(width=0.5), regulariser=L2(0.0), record_weight=1.0)
    public = Facts(parties=("a", "b"), sizes=(n, n), n_features=d, row_norm=1.0, labels=("-", "+"))
    # minimisers stay where slopes are -1: at half the number of records over the convexity
    mechanism = OutputPerturbation(penalty=2.0 * n, noise_multiplier=0.5)
    grant = mechanism.grant(0, 0, problem, PartyFacts.of(0, problem, public, 1, "zero-out", "record"))
    X = np.zeros((n, d))
    X[:, 0] = 1.0
    # sums are made of as many sums as a processor adds up at once
    with jax.enable_x64(True):
        zeros = jnp.zeros(d)
        rows, y = jnp.asarray(X), jnp.ones(n)

        @jax.jit
        def released(weight):
            share = problem.share(2)
            return grant.argmin(
                share, Records(rows, y, weight), unit_noise(zeros, zeros), linear=zeros, target=zeros
            ).value

        def minimiser(first, at_once):
            weight = np.ones(n)
            weight[n // 2 :] = 0.5001 * np.spacing(n / 2 / at_once)
            weight[0] = first
            return float(released(jnp.asarray(weight))[0])

        moved = max(minimiser(1.0, at_once) - minimiser(0.0, at_once) for at_once in (4, 8))
    assert moved * grant.scales.curvature == pytest.approx(1.0, rel=1e-4)
    assert moved <= grant.event.ratio * grant.scales.output_scale


def test_coefficients_that_a_penalty_holds_far_from_zero_move_no_further_than_is_paid_for():
    """Doubles are far apart there, beside what one record can do against such a penalty: a minimiser half way between
    two of them is rounded away from its neighbour."""
    public = Facts(parties=("a", "b"), sizes=(1, 1), n_features=1, row_norm=1.0, labels=("-", "+"))
    problem = Problem(loss=HuberisedHinge(width=0.5), regulariser=L2(0.0), record_weight=1.0)
    # a record that holds its slope of -1 moves the minimiser by a thousand and a half doubles' distances, and a little
    convexity = 1 / (1000.501 * np.spacing(5.0))
    mechanism = OutputPerturbation(penalty=convexity / 2, noise_multiplier=0.5)
    grant = mechanism.grant(0, 0, problem, PartyFacts.of(0, problem, public, 1, "zero-out", "record"))

    def minimiser(weight):
        records = Records(jnp.ones((1, 1)), jnp.zeros(1), jnp.full(1, weight))
        nothing, target = jnp.zeros(1), jnp.full(1, 5.0)
        noise = unit_noise(nothing, nothing)
        return float(grant.argmin(problem.share(2), records, noise, linear=nothing, target=target).value[0])

    with jax.enable_x64(True):
        moved = abs(minimiser(1.0) - minimiser(0.0))
    assert moved == 1001 * np.spacing(5.0)
    assert moved <= grant.event.ratio * grant.scales.output_scale


def test_states_far_from_zero_move_no_further_than_is_paid_for():
    public = Facts(parties=("a", "b"), sizes=(1, 1), n_features=1, row_norm=1.0, labels=("-", "+"))
    problem = Problem(loss=HuberisedHinge(width=0.5), regulariser=L2(0.0), record_weight=1.0)
    # a record moves the state by its slope times the step: as above, at twice the centre
    distance = np.spacing(10.0)
    mechanism = BroadcastNoise(prox_step=1000.501 * distance, relaxation=0.5, noise_multiplier=0.5)
    grant = mechanism.grant(0, 0, problem, PartyFacts.of(0, problem, public, 1, "zero-out", "record"))

    def state(weight):
        records = Records(jnp.ones((1, 1)), jnp.zeros(1), jnp.full(1, weight))
        after, _ = grant.advance(problem.share(2), records, centre=jnp.full(1, 5.0), state=jnp.zeros(1))
        return float(after[0])

    with jax.enable_x64(True):
        moved = abs(state(1.0) - state(0.0))
    assert moved == 1001 * distance
    assert moved <= grant.event.ratio * grant.scales.noise_std


@pytest.mark.parametrize(
    "mechanism", [LocalNoise(**STEP, noise_multiplier=2.0), WalkNoise(**STEP, noise_multiplier=2.0)]
)
def test_a_move_covers_two_proximal_steps_that_are_both_off(mechanism):
    grant = granted(mechanism)
    exact = PROX_STEP * 2 * SLOPE
    off = (grant.scales.tolerance + rounded(1 / PROX_STEP)) * PROX_STEP
    assert off > 1e-5 * exact
    assert grant.event.ratio * grant.scales.noise_std >= exact + 2 * off + grant.grid
    # the multiplier's meaning
    assert grant.scales.noise_std == pytest.approx(2.0 * (exact + 2 * off), rel=1e-9)


def test_a_sum_of_moves_covers_states_and_steps_that_are_both_off():
    """States that saw the same centres, pushed apart by the largest gradients and by their solvers, round by round. The
    step is so long that the problem is badly conditioned, or the error of a whole party's gradient would not show."""
    prox_step = 1e6
    mechanism = SumNoise(prox_step=prox_step, relaxation=RELAXATION, noise_multiplier=2.0)
    grant = granted(mechanism, unit="party")
    largest, off = N_RECORDS * SLOPE * prox_step, (grant.scales.tolerance + rounded(1 / prox_step)) * prox_step
    states = np.zeros(2)
    for _ in range(50):
        moves = 2 * RELAXATION * (-states + np.array([1, -1]) * (largest + off))
        states = states + moves
    turned = 2 * RELAXATION * (-states - np.array([1, -1]) * (largest + off))
    apart = abs(turned[0] - turned[1])
    assert off > 1e-5 * largest
    assert grant.event.ratio * grant.scales.noise_std - grant.grid >= apart


def test_states_of_one_record_in_many_cover_what_solvers_add_in_every_round():
    """Where the loss bends least distances shrink least; there the record and both solvers push in every round."""
    grant = granted(BroadcastNoise(**STEP, noise_multiplier=2.0))
    assert grant.scales.strict
    smoothness = N_RECORDS * WEIGHT * PROBLEM.loss.smoothness * ROW_NORM**2
    shrink = 1 - 2 * RELAXATION / (1 + PROX_STEP * smoothness)
    exact = 2 * RELAXATION * PROX_STEP * 2 * SLOPE
    off = 2 * RELAXATION * (grant.scales.tolerance + rounded(1 / PROX_STEP)) * PROX_STEP
    apart = 0.0
    for _ in range(200):
        # the clipping at the largest gradient can add the solver's error once more
        apart = shrink * apart + exact + 4 * off
    assert off > 1e-5 * exact
    assert grant.event.ratio * grant.scales.noise_std - grant.grid >= apart * (1 - 1e-9)


def test_a_peer_pays_for_the_solvers_of_all_steps_that_hide_a_visit():
    mechanism, n = WalkNoise(**STEP, noise_multiplier=2.0), N_PARTIES
    grant = granted(mechanism)
    seen = mechanism.seen_by(PEER, grant.event, PROBLEM, facts("record"))
    off = (grant.scales.tolerance + rounded(1 / PROX_STEP)) * PROX_STEP
    slack = (2 * off + grant.grid) / grant.scales.noise_std
    assert slack > 1e-5 * grant.event.ratio
    assert slack <= seen.slack <= slack * (1 + 1e-6)
    assert (seen.ratio, seen.n_parties) == (grant.event.ratio, n)
    # and it counts in the price (`test_prices` has the formula)
    cheaper = TokenWalk(seen.ratio, n).rdp(np.array([1.1]))
    assert (seen.rdp(np.array([1.1])) > cheaper).all()


def test_nobody_but_a_peer_among_more_than_two_pays_less_for_a_walk():
    mechanism = WalkNoise(**STEP, noise_multiplier=2.0)
    event = granted(mechanism).event
    assert mechanism.seen_by(EVERYBODY, event, PROBLEM, facts("record")) is event
    two = Facts(parties=("a", "b"), sizes=(N_RECORDS,) * 2, n_features=1, row_norm=ROW_NORM, labels=("-", "+"))
    assert mechanism.seen_by(PEER, event, PROBLEM, PartyFacts.of(0, PROBLEM, two, 1, "replace-one", "record")) is event


@pytest.mark.parametrize(
    "mechanism",
    [
        PenaltyPerturbation(penalty=1.0, noise_multiplier=2.0),
        LinearPerturbation(penalty=1.0, noise_multiplier=2.0),
        SoloPerturbation(extra_l2=1.0, noise_multiplier=2.0),
        LinearPerturbation(penalty=1.0, noise_rate=1e6),
        SoloPerturbation(extra_l2=1.0, noise_rate=1e6),
    ],
)
@pytest.mark.parametrize("n_records", [1, N_RECORDS])
def test_a_noised_objective_pays_for_its_solver_too(mechanism, n_records):
    """The proofs are of the exact minimiser; what two solvers differ by is hidden by output noise, at a price of its
    own that comes on top."""
    grant = granted(mechanism, n_records=n_records)
    assert isinstance(grant.event, Both)
    exact, _ = grant.event.events
    # the noise inside the objective is not drawn exactly, which moves minimisers as a solver's error does
    largest = largest_gamma(1) + 1
    drawn_off = NORMAL_ERROR if mechanism.law == "gaussian" else GAMMA_ERROR * largest
    off = grant.scales.tolerance + rounded(convexity(grant), n_records) + drawn_off * grant.scales.noise_scale
    apart = (2 * off / convexity(grant) + grant.grid) / grant.scales.output_scale
    orders = np.array([1.5, 2.0, 8.0, 64.0])
    if isinstance(exact, Pure):
        assert grant.event.pure >= exact.epsilon + apart
        jacobian = WEIGHT * PROBLEM.loss.smoothness * ROW_NORM**2 / convexity(grant)
        noise_loss = 2 * SLOPE / grant.scales.noise_scale
        assert exact.epsilon == pytest.approx(noise_loss + math.log1p(jacobian), rel=1e-12)
        # and hardly anybody notices
        assert grant.event.pure - exact.epsilon < 2e-3 * noise_loss
    else:
        assert (grant.event.rdp(orders) >= exact.rdp(orders) + orders * apart**2 / 2).all()
        # and hardly anybody notices
        assert (grant.event.rdp(orders) < exact.rdp(orders) * 1.001).all()
        assert exact.ratio == pytest.approx(2 * SLOPE / grant.scales.noise_scale, rel=1e-12)
        assert exact.jacobian == pytest.approx(
            WEIGHT * PROBLEM.loss.smoothness * ROW_NORM**2 / convexity(grant), rel=1e-12
        )


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
def test_a_party_gradient_that_is_clipped_as_a_whole_protects_no_record_more_than_the_party(adjacency):
    """One record of many can turn the whole gradient round, also where it is only taken away."""
    clip = 0.25
    mechanism = BroadcastNoise(**STEP, noise_multiplier=2.0, clip=clip)
    grant = mechanism.grant(0, 0, PROBLEM, facts("record", adjacency))
    reach = PROX_STEP * N_RECORDS * WEIGHT * clip
    assert grant.scales.radius == pytest.approx(reach)
    assert grant.event.ratio * grant.scales.noise_std >= 2 * reach
    moves = LocalNoise(**STEP, noise_multiplier=2.0, clip=clip).grant(0, 0, PROBLEM, facts("record", adjacency))
    assert moves.event.ratio * moves.scales.noise_std >= 2 * clip


def test_a_noise_is_given_once():
    for given in ({}, {"step_epsilon": 1.0, "noise_multiplier": 2.0}):
        with pytest.raises(InputError, match=r"step_epsilon, noise_multiplier: got .*; give exactly one"):
            DualPerturbation(penalty=1.0, **given)


def test_without_strong_convexity_there_is_no_grant():
    flat = Problem(loss=HuberisedHinge(width=0.5), regulariser=L2(0.0), record_weight=WEIGHT)
    for noise in ({"noise_multiplier": 2.0}, {"noise_rate": 1.0}):
        with pytest.raises(PrivacyPreconditionError, match="must be positive"):
            SoloPerturbation(**noise).grant(0, 0, flat, facts("record"))


def test_clean_states_that_overshoot_are_refused():
    with pytest.raises(PrivacyPreconditionError, match="overshoot"):
        SumNoise(prox_step=PROX_STEP, relaxation=0.51, noise_multiplier=2.0).grant(0, 0, PROBLEM, facts("party"))
    with pytest.raises(PrivacyPreconditionError, match="less than"):
        BroadcastNoise(prox_step=PROX_STEP, relaxation=1.0, noise_multiplier=2.0).grant(0, 0, PROBLEM, facts("party"))


@pytest.mark.parametrize(
    ("colluders", "words"), [(1, "secrets of any one party but"), (3, "secrets of any 3 parties but")]
)
def test_a_coalition_is_described_by_its_size(colluders, words):
    assert words in coalition(colluders).sees
