"""On a GPU the engine releases what it releases on the processor beside it."""

import jax
import numpy as np
import pytest

from coterie.algorithms import DualPerturbedADMM, RecycledADMM, fixed_point_admm
from coterie.data import Federation
from coterie.engines import people
from coterie.engines.in_process import Paths, run, run_many
from coterie.minimisers.one_party import together
from coterie.network.channels import Curator
from coterie.plan import Plan
from coterie.privacy.noise import Seeded
from coterie.privacy.objective import DualPerturbation, LinearPerturbation
from coterie.problems import L2, ElasticNet, Huber, HuberisedHinge, Logistic, Problem, Squared

pytestmark = pytest.mark.skipif(
    jax.default_backend() != "gpu", reason=f"needs a GPU, and JAX finds only the {jax.default_backend()}"
)


def labelled(n, d, two_labels, *, parties, row_scale=0.2, **more):
    rng = np.random.default_rng(7)
    X = np.asarray(row_scale * rng.normal(size=(n, d)), np.float32).astype(float)
    score = X @ rng.normal(size=d)
    labels = {"labels": (0, 1)} if two_labels else {"label_bound": 5.0}
    y = (score > 0).astype(int) if two_labels else score
    return Federation.from_arrays(X, y, parties=parties, row_norm=4.0, **labels, **more)


def assert_same_on_both(plan, data, repeats):
    there = run(plan, data, noise=Seeded(1), repeats=repeats).releases
    with jax.default_device(jax.devices("cpu")[0]):
        here = run(plan, data, noise=Seeded(1), repeats=repeats).releases
    np.testing.assert_allclose(there, here, rtol=0, atol=1e-8 * np.abs(here).max())


@pytest.mark.parametrize(
    ("loss", "clip"),
    [(Logistic(), None), (Squared(), 0.5), (Huber(0.7), None), (HuberisedHinge(0.3), None)],
    ids=lambda case: type(case).__name__,
)
# narrower than a tile, as wide, and wider than a tile may be
@pytest.mark.parametrize("d", [5, 64, 200])
def test_people(loss, clip, d):
    # no whole number of tiles
    n = 1003
    two_labels = isinstance(loss, (Logistic, HuberisedHinge))
    data = labelled(n, d, two_labels, parties=np.arange(n), min_records=1)
    regulariser = L2(1.0)
    algorithm = fixed_point_admm(
        channel=Curator(), regulariser=regulariser, prox_step=1.3, noise_multiplier=2.0, clip=clip
    )
    problem = Problem(loss=loss, regulariser=regulariser, record_weight=1.0)
    plan = Plan.make(algorithm, problem, "unrestricted", data.facts, rounds=7, adjacency="replace-one")
    assert people.states_fit(plan, None)
    assert_same_on_both(plan, data, repeats=3)


def test_graph_family_with_shared_solves():
    parties, n_records, d = 4, 500, 40
    data = labelled(parties * n_records, d, True, parties=np.arange(parties * n_records) % parties)
    loss, regulariser = Logistic(), L2(1.0)
    assert together(loss, regulariser, n_records * d, Paths().together_from)
    algorithm = DualPerturbedADMM(mechanism=DualPerturbation(penalty=2.0, step_epsilon=4.0), dual_step=1.0)
    problem = Problem(loss=loss, regulariser=regulariser, record_weight=1.0)
    plan = Plan.make(algorithm, problem, "ring", data.facts, rounds=6, adjacency="replace-one")
    assert_same_on_both(plan, data, repeats=3)


def test_plans_in_one_program():
    """Several algorithms and levels of noise; against the general program on the same device."""
    sizes = [700, 720, 1500]
    data = labelled(sum(sizes), 40, True, parties=np.repeat(np.arange(len(sizes)), sizes))
    problem = Problem(loss=Logistic(), regulariser=L2(1.0), record_weight=1.0)
    algorithms = [
        DualPerturbedADMM(mechanism=DualPerturbation(penalty=2.0, step_epsilon=epsilon), dual_step=1.0)
        for epsilon in (4.0, 0.5)
    ]
    mechanism = LinearPerturbation(penalty=2.0, noise_rate=0.5)
    algorithms.append(RecycledADMM(mechanism=mechanism, dual_step=1.0, recycle_weight=0.5))
    plans = [
        Plan.make(algorithm, problem, "complete", data.facts, rounds=rounds, adjacency="replace-one")
        for algorithm, rounds in zip(algorithms, (12, 12, 5), strict=True)
    ]
    taken, general = [], Paths(only=("general",))
    found = run_many(plans, data, noise=Seeded(1), repeats=4, explain=lambda choice: taken.append(choice.path.name))
    assert taken == ["argmin by matrices"]
    for transcript, right in zip(found, run_many(plans, data, noise=Seeded(1), repeats=4, paths=general), strict=True):
        scale = np.abs(right.releases).max()
        np.testing.assert_allclose(transcript.releases, right.releases, rtol=0, atol=1e-8 * scale)


@pytest.mark.parametrize("sizes", [[20] * 6, [8, 9, 30, 31, 70, 200]], ids=["equal", "unequal"])
def test_fixed_point_family(sizes):
    data = labelled(sum(sizes), 6, True, parties=np.repeat(np.arange(len(sizes)), sizes))
    regulariser = ElasticNet(0.5, 0.2)
    algorithm = fixed_point_admm(
        channel=Curator(), regulariser=regulariser, prox_step=1.3, noise_multiplier=2.0, clip=0.5
    )
    problem = Problem(loss=Logistic(), regulariser=regulariser, record_weight=1.0)
    plan = Plan.make(algorithm, problem, "unrestricted", data.facts, rounds=6, adjacency="replace-one")
    assert_same_on_both(plan, data, repeats=3)
