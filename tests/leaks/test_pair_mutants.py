"""Defects of noise that cancels between pairs: each is found by the coalition's view, and without it there is none."""

import jax.numpy as jnp
import pytest

from coterie.algorithms import NoisyGradientDescent
from coterie.audit import coalition
from coterie.audit.instances import REGULARISER, Instance
from coterie.audit.recording import Workbench
from coterie.network import channels
from coterie.network.channels import PairwiseSum
from coterie.privacy import pairs
from coterie.privacy.mechanisms import GaussianGradient, SumGrant
from coterie.privacy.pairs import PairNoise, PairStreams
from coterie.privacy.release import seal_masked


def bench(spread: float = 4.0) -> Workbench:
    algorithm = NoisyGradientDescent(
        mechanism=GaussianGradient(noise_multiplier=4.0),
        regulariser=REGULARISER,
        channel=PairwiseSum(colluders=2, spread=spread),
        step=0.5,
    )
    return Workbench(Instance(name="pairs", algorithm=algorithm, adjacency="replace-one", n_parties=5))


def test_without_a_defect_the_stated_loss_is_reached_and_not_exceeded():
    found = coalition.check(bench())
    assert found.applicable
    assert found.sound
    assert found.lower == pytest.approx(found.stated, rel=1e-4)


def wrong_sign(monkeypatch):
    right = PairStreams.steps
    monkeypatch.setattr(PairStreams, "steps", lambda self, t, d: right(self, t, d) * (-1 if self._party == 1 else 1))


def same_stream_in_two_rounds(monkeypatch):
    right = PairStreams.steps
    monkeypatch.setattr(PairStreams, "steps", lambda self, t, d: right(self, 0, d))


def own_noise_left_out(monkeypatch):
    def masked(self, contribution, units, pairs):
        return seal_masked(self.subtotal(contribution), jnp.zeros_like(units), pairs)

    monkeypatch.setattr(SumGrant, "masked", masked)


def colluders_ignored(monkeypatch):
    monkeypatch.setattr(channels, "solve", lambda graph, colluders, spread: pairs.solve(graph, 0, spread))


def spread_not_in_the_price(monkeypatch):
    """Own noise as if the pairs' were without bound."""

    def solve(graph, colluders, spread):
        right = pairs.solve(graph, colluders, spread)
        return PairNoise(pairs.solve(graph, colluders, 1e12).own, right.pair)

    monkeypatch.setattr(channels, "solve", solve)


@pytest.mark.parametrize(
    "defect",
    [wrong_sign, same_stream_in_two_rounds, own_noise_left_out, colluders_ignored, spread_not_in_the_price],
)
def test_a_defect_is_found(monkeypatch, defect):
    examined = bench()
    defect(monkeypatch)
    found = coalition.check(examined)
    assert found.applicable
    assert not found.sound or (found.lower is not None and found.lower > found.stated * 1.01), found
