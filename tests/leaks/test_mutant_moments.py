"""Releases for inference that are wrong: the audit finds each of them out, and passes the right ones."""

import math

import pytest

from coterie.algorithms import NoisyGradientDescent, PenaltyPerturbedADMM
from coterie.audit import moments
from coterie.audit.instances import Instance
from coterie.audit.recording import Workbench
from coterie.network.channels import Curator, PairwiseSum
from coterie.privacy import moments as releases
from coterie.privacy.mechanisms import GaussianGradient, issue
from coterie.privacy.objective import PenaltyPerturbation
from coterie.problems import L2, Huber, Logistic

CHANNELS = {"curator": Curator(), "pairs": PairwiseSum(colluders=1), "broadcast": None}


def instance_of(channel="curator", adjacency="replace-one"):
    if channel == "broadcast":
        mechanism = PenaltyPerturbation(penalty=1.0, noise_multiplier=4.0)
        algorithm = PenaltyPerturbedADMM(mechanism=mechanism, dual_step=1.0)
    else:
        mechanism = GaussianGradient(noise_multiplier=4.0)
        algorithm = NoisyGradientDescent(mechanism=mechanism, regulariser=L2(0.03), step=0.5, channel=CHANNELS[channel])
    return Instance(name="examined", algorithm=algorithm, adjacency=adjacency)


def examined(loss=None, **choice):
    return moments.examine(moments.plan_with_moments(instance_of(**choice), Logistic() if loss is None else loss))


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
@pytest.mark.parametrize("channel", CHANNELS)
def test_what_is_released_passes_and_comes_near_its_stated_loss(channel, adjacency):
    found = examined(channel=channel, adjacency=adjacency)
    assert found.verdict == "pass", found.detail
    assert found.lower > 0.85 * found.stated


def test_the_check_of_the_suite_is_made_of_this():
    found = moments.check(Workbench(instance_of(), thorough=False))
    assert found.verdict == "pass"
    assert found.lower > 2


@pytest.mark.parametrize("channel", CHANNELS)
def test_halved_noise_is_found(monkeypatch, channel):
    honest = releases.GaussianDerivatives.grant

    def halved(self, *args):
        right = honest(self, *args)
        scales = right.scales._asdict()
        return issue(
            releases.DerivativesGrant,
            right.event,
            priced_for=right.problem,
            **scales | {"noise_std": scales["noise_std"] / 2},
        )

    monkeypatch.setattr(releases.GaussianDerivatives, "grant", halved)
    found = examined(channel=channel)
    assert found.verdict == "fail"


@pytest.mark.parametrize("loss", [Logistic(), Huber(0.8)])
def test_a_hessian_that_weighs_more_than_was_priced_is_found(monkeypatch, loss):
    honest = releases.GaussianDerivatives.curvature_factor
    monkeypatch.setattr(releases.GaussianDerivatives, "curvature_factor", lambda *args: 2 * honest(*args))
    found = examined(loss)
    assert found.verdict == "fail"
    assert "derivatives: moves by" in found.detail


def test_a_curvature_taken_as_free_where_it_is_not_is_found(monkeypatch):
    monkeypatch.setattr(releases, "free_curvature", lambda *args: 9.0)
    assert examined(Huber(0.8), adjacency="zero-out").verdict == "fail"


def test_a_second_moment_priced_as_if_nothing_were_put_in_is_found(monkeypatch):
    honest = releases.GaussianSecondMoment.grant

    def cheap(self, *args):
        right = honest(self, *args)
        less = type(right.event)(ratio=right.event.ratio / math.sqrt(2))
        return issue(releases.SecondMomentGrant, less, priced_for=right.problem, **right.scales._asdict())

    monkeypatch.setattr(releases.GaussianSecondMoment, "grant", cheap)
    found = examined()
    assert found.verdict == "fail"
    assert "second_moment: moves by" in found.detail


def test_numbers_that_left_the_grid_are_found(monkeypatch):
    honest = moments.seen
    monkeypatch.setattr(moments, "seen", lambda *args: honest(*args) * (1 + 2.0**-45))
    found = examined()
    assert found.verdict == "fail"
    assert "could not have come from the neighbour" in found.detail


def test_messages_with_weaker_noise_of_pairs_are_found(monkeypatch):
    """The sum is the same, but a coalition sees the messages."""
    honest = moments.PairStreams
    weaker = lambda party, streams, noise: honest(party, streams, noise._replace(pair=noise.pair / 100))  # noqa: E731
    monkeypatch.setattr(moments, "PairStreams", weaker)
    found = examined(channel="pairs")
    assert found.verdict == "fail"


def test_noise_of_pairs_that_does_not_cancel_is_found(monkeypatch):
    class Added(moments.PairStreams):
        def steps(self, t, d):
            return abs(super().steps(t, d))

    monkeypatch.setattr(moments, "PairStreams", Added)
    found = examined(channel="pairs")
    assert found.verdict == "fail"
    assert "cancel" in found.detail
