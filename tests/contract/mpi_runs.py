"""Started by mpiexec: runs plans on all processes; the first one compares with the in-process engine, or saves.

mpi_runs.py compare NAME ...       mpi_runs.py checkpoint DIRECTORY OUT [DIE_IN_ROUND]
mpi_runs.py moments DIRECTORY NAME ...

A name that ends in -native is of minimisations in machine code.
"""

import dataclasses
import os
import signal
import sys
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

import numpy as np

from coterie.algorithms import (
    DualPerturbedADMM,
    EdgewiseADMM,
    NoisyGradientDescent,
    OneReleaseAverage,
    PenaltyPerturbedADMM,
    RecycledADMM,
    StandardisedGradientDescent,
    fixed_point_admm,
)
from coterie.data import Federation
from coterie.engines import mpi
from coterie.engines.in_process import Paths, run
from coterie.inference import Columns, Releasing, release_moments
from coterie.network.channels import Broadcast, Curator, PairwiseSum, SecureSum
from coterie.network.topology import make_topology
from coterie.plan import Plan
from coterie.privacy.mechanisms import GaussianGradient
from coterie.privacy.moments import Moments
from coterie.privacy.noise import Seeded
from coterie.privacy.objective import DualPerturbation, LinearPerturbation, PenaltyPerturbation, SoloPerturbation
from coterie.privacy.standardising import StandardisedGradient
from coterie.problems import L2, Logistic, Problem

SIZES = [20, 31, 12, 25, 40, 22, 33]
RNG = np.random.default_rng(0)
X = RNG.normal(size=(sum(SIZES), 4))
PARTIES = np.repeat(np.arange(len(SIZES)), SIZES)
DATA = Federation.from_arrays(X, (X @ [1, 2, -1, 0] > 0).astype(int), parties=PARTIES, labels=(0, 1))
GRAPH = make_topology("watts-strogatz", len(SIZES), seed=1)
PENALTIES = tuple(RNG.uniform(5, 9, size=len(SIZES)).tolist())
EDGES = tuple(RNG.uniform(4, 8, size=len(GRAPH.edges)).tolist())
GAUSS = {"noise_multiplier": 1.0}
ALGORITHMS = {
    "penalty": PenaltyPerturbedADMM(
        mechanism=PenaltyPerturbation(penalty=PENALTIES, **GAUSS), dual_step=min(PENALTIES), averaging="linear"
    ),
    "recycled": RecycledADMM(
        mechanism=LinearPerturbation(penalty=PENALTIES, **GAUSS), dual_step=min(PENALTIES), recycle_weight=0.5
    ),
    "dual": DualPerturbedADMM(mechanism=DualPerturbation(penalty=6.0, step_epsilon=1.0), dual_step=6.0),
    "edgewise": EdgewiseADMM.with_edges(GRAPH, EDGES, dual_step=4.0, **GAUSS),
    "one-release": OneReleaseAverage(mechanism=SoloPerturbation(**GAUSS, extra_l2=20.0)),
    "moves": fixed_point_admm(channel=Broadcast(), regulariser=L2(1.0), prox_step=0.3, **GAUSS),
    "states": fixed_point_admm(channel=Curator(), regulariser=L2(1.0), prox_step=0.3, **GAUSS),
    "gradient": NoisyGradientDescent(
        mechanism=GaussianGradient(**GAUSS), regulariser=L2(1.0), step=0.01, channel=SecureSum()
    ),
    "gradient-alone": NoisyGradientDescent(
        mechanism=GaussianGradient(**GAUSS), regulariser=L2(1.0), step=0.01, channel=Broadcast(), momentum=0.9
    ),
    "standardised": StandardisedGradientDescent(
        mechanism=StandardisedGradient(**GAUSS, column_std=3.0),
        regulariser=L2(1.0),
        step=0.01,
        channel=Broadcast(),
        momentum=0.9,
    ),
    "pairs": NoisyGradientDescent(
        mechanism=GaussianGradient(**GAUSS), regulariser=L2(1.0), step=0.01, channel=PairwiseSum(colluders=2)
    ),
}


def plan_of(name: str, rounds: int) -> Plan:
    problem = Problem(loss=Logistic(), regulariser=L2(1.0), record_weight=1.0)
    return Plan.make(ALGORITHMS[name], problem, GRAPH, DATA.facts, rounds=rounds, adjacency="replace-one")


def compare(names: list[str]) -> None:
    for name in names:
        paths = Paths(native_work=0) if name.endswith("-native") else Paths()
        name = name.removesuffix("-native")
        plan = plan_of(name, 1 if name == "one-release" else 5)
        asked = []
        shard_of = lambda party: asked.append(party) or DATA.shards[party]  # noqa: B023, E731
        transcript = mpi.run(plan, shard_of, noise=Seeded(3), paths=paths)
        assert len(asked) < len(SIZES) or mpi.world().size == 1, "only own parties' records may be asked for"
        if transcript is not None:
            reference = run(plan, DATA, noise=Seeded(3))
            np.testing.assert_allclose(transcript.releases, reference.releases, rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(transcript.models, reference.models, rtol=1e-9, atol=1e-12)
            print(name, "agrees", flush=True)


def checkpoint(directory: Path, out: Path, die_in_round: int | None) -> None:
    begun = []

    def progress(t: int, _: int) -> None:
        begun.append(t)
        if t == die_in_round:
            os.kill(os.getpid(), signal.SIGKILL)

    transcript = mpi.run(
        plan_of("states", 9), lambda p: DATA.shards[p], checkpoint=directory, every=3, progress=progress
    )
    if transcript is not None:
        np.savez(out, releases=transcript.releases, begun=begun)


def moments(directory: Path, names: list[str]) -> None:
    """As in process, and from the checkpoint of a run that came to its end, the same again."""
    columns = Columns.of_features(["a", "b", "c", "d"], np.ones(4))
    what = Moments(multipliers=(30.0, 20.0), curvature_weight=1.5, second_moment_multiplier=40.0)
    for name in names:
        plan = dataclasses.replace(plan_of(name, 3), moments=what)
        courses = []

        def course_of(transcript, courses=courses):
            courses.append(Releasing(transcript, columns))
            return courses[-1]

        for more in ({"noise": Seeded(3)}, {"checkpoint": directory / name}, {"checkpoint": directory / name}):
            mpi.run(plan, lambda party: DATA.shards[party], course_of=course_of, **more)
        if courses:
            expected = release_moments(run(plan, DATA, noise=Seeded(3)), DATA, columns, Seeded(3))
            found, drawn, kept = (course.released._asdict() for course in courses)
            for field, values in expected._asdict().items():
                np.testing.assert_allclose(found[field], values, rtol=1e-9, atol=1e-9)
                np.testing.assert_array_equal(drawn[field], kept[field])
                assert not np.array_equal(drawn[field], found[field])
            print(name, "agrees", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "compare":
        compare(sys.argv[2:])
    elif sys.argv[1] == "moments":
        moments(Path(sys.argv[2]), sys.argv[3:])
    else:
        checkpoint(Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else None)
