"""An algorithm of your own in five steps: noisy gradient descent with momentum (Polyak 1964), planned, run and audited.

Run: python examples/heavy_ball.py
"""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import coterie
import coterie.audit
from coterie.algorithms import Algorithm, Citation
from coterie.network.channels import Curator, SumChannel
from coterie.privacy.mechanisms import GaussianGradient, GradientSumGrant
from coterie.problems import L2, Logistic, Problem
from coterie.values import serialisable


# 1. what everybody knows between rounds: a point and how fast it moves
class Moving(NamedTuple):
    x: jax.Array
    velocity: jax.Array


# 2. the settings, as a frozen dataclass; the mechanism's type says which noise it is proved with
@serialisable
@dataclasses.dataclass(frozen=True, kw_only=True)
class HeavyBall(Algorithm[GradientSumGrant]):
    mechanism: GaussianGradient
    regulariser: L2
    step: float
    momentum: float
    channel: SumChannel
    needs_graph: ClassVar[bool] = False
    bears_impairments: ClassVar[bool] = False
    citation: ClassVar[Citation] = Citation(
        key="polyak-1964",
        kind="article",
        authors=("Polyak, Boris T.",),
        title="Some Methods of Speeding up the Convergence of Iteration Methods",
        venue="USSR Computational Mathematics and Mathematical Physics",
        year=1964,
    )

    def init(self, topology, d):
        # public, and nothing private
        return Moving(jnp.zeros(d), jnp.zeros(d)), ()

    def inbox(self, t, public, topology):
        return jnp.broadcast_to(public.x, (topology.n_parties, *public.x.shape))

    # 3. the only function that sees records; what it returns is made by the grant, which knows noise and price
    def local(self, grant, problem, records, private, inbox, noise):
        return private, grant.gradient(problem, records, at=inbox)

    # 4. everything else sees released values: momentum costs nothing
    def combine(self, t, public, received, topology):
        velocity = self.momentum * public.velocity - self.step * (received + self.regulariser.l2 * public.x)
        return Moving(public.x + velocity, velocity)

    def models(self, public):
        return public.x[None]


# 5. plan it, run it, and try to refute what it promises
def main() -> None:
    heart = coterie.load_heart()
    rows = {"train": heart.train, "test": heart.test}
    train, test = (
        coterie.Federation.from_arrays(
            heart.X[rows[name]],
            heart.y[rows[name]],
            parties=heart.parties[rows[name]],
            labels=heart.labels,
            intercept=True,
        )
        for name in ("train", "test")
    )
    regulariser = L2(1.0)
    heavy_ball = HeavyBall(
        mechanism=GaussianGradient(noise_multiplier=1.0),
        regulariser=regulariser,
        step=0.005,
        momentum=0.5,
        channel=Curator(),
    )
    plan = coterie.Plan.make(
        heavy_ball,
        Problem(loss=Logistic(), regulariser=regulariser, record_weight=1.0),
        "unrestricted",
        train.facts,
        rounds=30,
        adjacency="replace-one",
    ).calibrate(epsilon=2.0, delta=1e-5)
    print(f"ε = {plan.epsilon(1e-5):.3f} at δ = 1e-05, before anything was released")
    X, y, _ = test.pooled
    model = coterie.run(plan, train).models[0]
    print(f"test error {np.mean((X @ model > 0) != y):.1%}, majority class {min(y.mean(), 1 - y.mean()):.1%}")
    for finding in coterie.audit.check(
        heavy_ball, adjacency="replace-one", unit="record", checks=["control-flow", "gaussian-view", "sensitivity"]
    ):
        print(f"audit: {finding.check:14} {finding.verdict}")


if __name__ == "__main__":
    main()
