"""The cluster engine: the same transcript as in process, and a run that goes on after a process was killed."""

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from coterie.algorithms import NoisyGradientDescent, fixed_point_admm
from coterie.data import Federation
from coterie.engines import mpi
from coterie.engines.checkpoint import Checkpoint, records_mark
from coterie.engines.mpi import Layout, split
from coterie.errors import InputError, LocalSolveError
from coterie.network.channels import Broadcast, Curator
from coterie.network.topology import make_topology
from coterie.plan import Plan
from coterie.privacy.mechanisms import GaussianGradient
from coterie.privacy.noise import KeyedEntropy, Seeded
from coterie.problems import L2, Logistic, Problem

HERE = Path(__file__).parent
# processes that wait give way to those that work: there may be fewer cores than processes
ENVIRONMENT = {
    **os.environ,
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "JAX_ENABLE_COMPILATION_CACHE": "false",
}


def mpiexec(n_ranks: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [shutil.which("mpiexec", path=str(Path(sys.executable).parent)), "--oversubscribe", "-n", str(n_ranks)]
    return subprocess.run(
        [*command, sys.executable, *map(str, arguments)], capture_output=True, text=True, env=ENVIRONMENT, timeout=600
    )


@pytest.mark.parametrize("n_ranks", [1, 2, 3, 7])
def test_every_party_has_one_rank_and_ranks_share_the_records(n_ranks):
    sizes = [10, 500, 20, 30, 40, 50, 60]
    parts = split(sizes, n_ranks)
    assert [len(part) > 0 for part in parts] == [True] * n_ranks
    assert np.concatenate(parts).tolist() == list(range(7))
    even = [sum(part) for part in (np.ones(1000)[p] for p in split([1] * 1000, n_ranks))]
    assert max(even) - min(even) <= 1


def test_what_one_rank_sends_is_what_the_other_waits_for():
    graph = make_topology("watts-strogatz", 40, seed=2)
    parts = tuple(split([5] * 40, 3))
    layouts = [Layout(graph, parts, rank) for rank in range(3)]
    for here in layouts:
        ghosts = np.concatenate([there.own[there.wanted_by(here.rank)] for there in layouts if there is not here])
        assert ghosts.tolist() == here.ghosts.tolist()
        part = here.neighbourhood(lambda own: own)
        assert part.degrees[: len(here.own)].tolist() == graph.degrees[here.own].tolist()


def test_the_same_key_draws_the_same_noise_and_every_use_another():
    key = KeyedEntropy()
    draws = [
        key.draw("gaussian", 50, repeat=r, party=p, t=t, purpose=purpose)
        for r in range(2)
        for p in range(2)
        for t in range(2)
        for purpose in ("release", "output")
    ]
    again = KeyedEntropy(key.key).draw("gaussian", 50, repeat=0, party=1, t=0, purpose="release")
    assert np.array_equal(again, draws[4])
    assert len({draw.tobytes() for draw in draws}) == len(draws)
    assert not np.array_equal(again, KeyedEntropy().draw("gaussian", 50, repeat=0, party=1, t=0))
    # 800 unit draws: outside 5 standard errors about once in a million
    assert abs(np.mean(draws)) < 5 / np.sqrt(800)
    assert abs(np.var(draws) - 1) < 5 * np.sqrt(2 / 800)
    # exact noise can be drawn again, too
    for law in ("rounded-gaussian", "rounded-gamma-sphere"):
        first, second = (KeyedEntropy(key.key).draw(law, 50, repeat=0, party=1, t=0) for _ in range(2))
        assert np.array_equal(first, second)


IDENTITY = {"plan": "one", "ranks": 2, "seed": None}


@pytest.fixture
def saved(tmp_path):
    begun = Checkpoint(tmp_path / "c", rank=0)
    begun.begin(IDENTITY, [("before", 1.0, 1e-6)])
    return begun


def test_a_checkpoint_of_another_run_is_refused(saved):
    assert saved.past == [("before", 1.0, 1e-6)]
    other = Checkpoint(saved.directory, rank=1)
    assert saved.key(IDENTITY).key == other.key(IDENTITY).key
    for name, value in (("plan", "two"), ("ranks", 3), ("seed", 4), ("ledger", "file")):
        with pytest.raises(InputError, match=f"was made with {name}"):
            saved.key({**IDENTITY, name: value})


def test_other_records_under_the_same_noise_are_refused(saved):
    key, X = saved.key(IDENTITY), np.arange(6.0).reshape(3, 2)
    assert saved.same_records(records_mark([X], key))
    assert saved.same_records(records_mark([X], key))
    assert not saved.same_records(records_mark([X + 1e-9], key))
    assert not saved.same_records(records_mark([X.reshape(2, 3)], key))


def test_files_are_for_the_owner_alone_and_nothing_else_is_removed(saved):
    saved.save(0, np.zeros((2, 1, 1)), [np.zeros(3)])
    saved.all_saved(2)
    assert all(path.stat().st_mode & 0o077 == 0 for path in saved.directory.iterdir())
    (saved.directory / "precious.txt").write_text("mine")
    saved.remove()
    assert [path.name for path in saved.directory.iterdir()] == ["precious.txt"]
    with pytest.raises(InputError, match="is no checkpoint and not empty"):
        saved.begin(IDENTITY)


def test_blocks_that_a_crash_left_over_are_not_read_twice(saved):
    """Ten rounds were saved by all; of the next ten only by this rank; then it went on by fives."""
    rounds = np.arange(20.0).reshape(20, 1, 1)
    for start, end in ((0, 10), (10, 20), (10, 15), (15, 20)):
        saved.save(start, rounds[start:end], [])
    saved.all_saved(15)
    assert np.array_equal(saved.load(15, 0)[0], rounds[:15])
    saved.all_saved(20)
    assert np.array_equal(saved.load(20, 0)[0], rounds)
    with pytest.raises(InputError, match="is not complete"):
        saved.load(21, 0)


class Alone:
    """The only process there is."""

    rank, size = 0, 1

    def __getattr__(self, name):
        return {"gather": lambda a: [a], "allgather": lambda a: [a], "Barrier": lambda: None}.get(
            name, lambda a, **_: a
        )

    def Reduce(self, part, total, root):  # noqa: N802 - MPI's name
        total[...] = part


def test_the_engine_removes_the_key_with_the_last_round_and_keeps_what_was_released(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 3))
    data = Federation.from_arrays(X, (X[:, 0] > 0).astype(int), parties=np.arange(30) % 3, labels=(0, 1))
    algorithm = fixed_point_admm(channel=Curator(), regulariser=L2(1.0), prox_step=0.3, noise_multiplier=1.0)
    problem = Problem(loss=Logistic(), regulariser=L2(1.0), record_weight=1.0)
    plan = Plan.make(algorithm, problem, "unrestricted", data.facts, rounds=4, adjacency="replace-one")
    directory, asked = tmp_path / "c", []

    def run(shard_of):
        return mpi.run(plan, shard_of, checkpoint=directory, every=2, comm=Alone())

    released = run(lambda party: asked.append(party) or data.shards[party]).releases
    assert asked
    assert Checkpoint(directory, rank=0).finished
    assert b'"key"' not in b"".join(path.read_bytes() for path in directory.glob("*.json"))
    assert not [*directory.glob("private-*"), *directory.glob("records-*")]
    again = run(lambda party: pytest.fail("nothing is left to compute")).releases
    assert np.array_equal(again, released)
    with pytest.raises(InputError, match="was made with seed"):
        mpi.run(plan, lambda party: None, checkpoint=directory, noise=Seeded(1), comm=Alone())


def test_nothing_of_a_round_is_released_that_one_party_cannot_compute():
    X, parties = np.random.default_rng(0).normal(size=(30, 3)), np.arange(30) % 3
    data = Federation.from_arrays(X, (X[:, 0] > 0).astype(int), parties=parties, labels=(0, 1))
    algorithm = fixed_point_admm(channel=Broadcast(), regulariser=L2(1.0), prox_step=0.3, noise_multiplier=1.0)
    problem = Problem(loss=Logistic(), regulariser=L2(1.0), record_weight=1.0)
    plan = Plan.make(algorithm, problem, "unrestricted", data.facts, rounds=2, adjacency="replace-one")
    begun = []

    def run(spoiled):
        def shard_of(party):
            shard = data.shards[party]
            return dataclasses.replace(shard, X=np.full_like(shard.X, np.nan)) if party == spoiled else shard

        return mpi.run(plan, shard_of, noise=Seeded(1), comm=Alone(), progress=lambda t, _: begun.append(t))

    assert np.isfinite(run(None).releases).all()
    begun.clear()
    with pytest.raises(LocalSolveError, match=r"its step of round 0 .* nothing of that round was released"):
        run(1)
    assert begun == [0]


def test_a_checkpoint_that_is_put_back_does_not_release_other_records_under_the_same_noise(tmp_path):
    """A copy from before records were known takes any: the first sums of gradients would differ by exactly what one
    changed record changes."""
    X, y = np.random.default_rng(0).normal(size=(30, 3)) / 4, np.arange(30) % 2
    one, other = (
        Federation.from_arrays(rows, y, parties=np.arange(30) % 3, labels=(0, 1)) for rows in (X, [-X[0], *X[1:]])
    )
    algorithm = NoisyGradientDescent(
        mechanism=GaussianGradient(noise_multiplier=5.0), regulariser=L2(1.0), step=0.1, channel=Curator()
    )
    problem = Problem(loss=Logistic(), regulariser=L2(1.0), record_weight=1.0)
    plan = Plan.make(algorithm, problem, "unrestricted", one.facts, rounds=1, adjacency="replace-one")

    def first(data, directory):
        return mpi.run(plan, lambda party: data.shards[party], checkpoint=directory, comm=Alone()).releases[0]

    Checkpoint(tmp_path / "c", rank=0).begin(mpi.whole_identity(plan, 1, None, None))
    for name in ("again", "others"):
        shutil.copytree(tmp_path / "c", tmp_path / name)
    released = first(one, tmp_path / "c")
    assert np.array_equal(first(one, tmp_path / "again"), released)
    # at zero a record's gradient is half of its row, with the sign of its label
    assert not np.allclose(np.abs(first(other, tmp_path / "others") - released), np.abs(X[0]), rtol=1e-3)


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_a_damaged_checkpoint_is_refused_in_one_sentence(saved, text):
    (saved.directory / "run.json").write_text(text)
    with pytest.raises(InputError, match="cannot be read"):
        saved.key(IDENTITY)


@pytest.mark.parametrize(
    "names",
    [
        ("recycled", "states", "penalty-native"),
        pytest.param(
            (
                "penalty",
                "dual",
                "edgewise",
                "one-release",
                "moves",
                "gradient",
                "gradient-alone",
                "standardised",
                "pairs",
            ),
            marks=pytest.mark.slow,
            id="others",
        ),
    ],
)
def test_two_processes_release_what_one_does(names):
    done = mpiexec(2, HERE / "mpi_runs.py", "compare", *names)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("agrees") == len(names)


def test_two_processes_release_the_moments_of_one(tmp_path):
    names = ("gradient", "gradient-alone", "pairs")
    done = mpiexec(2, HERE / "mpi_runs.py", "moments", tmp_path, *names)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("agrees") == len(names)


@pytest.mark.slow
def test_a_killed_process_costs_the_rounds_since_the_last_checkpoint(tmp_path):
    """Rounds 0 to 5 are kept, 6 and 7 are repeated, and all nine are what a run with the same key gives undisturbed."""
    saved, whole = tmp_path / "saved", tmp_path / "whole"
    died = mpiexec(2, HERE / "mpi_runs.py", "checkpoint", saved, tmp_path / "none.npz", 8)
    assert died.returncode != 0
    assert not (tmp_path / "none.npz").exists()
    assert Checkpoint(saved, rank=0).rounds_done == 6
    whole.mkdir()
    # the key, whose records they are, and nothing done yet
    for name in ("run.json", "records-0000", "records-0001"):
        shutil.copy(saved / name, whole / name)
    for directory, out in ((saved, "on.npz"), (whole, "through.npz")):
        done = mpiexec(2, HERE / "mpi_runs.py", "checkpoint", directory, tmp_path / out)
        assert done.returncode == 0, done.stderr
    on, through = np.load(tmp_path / "on.npz"), np.load(tmp_path / "through.npz")
    assert on["begun"].tolist() == [6, 7, 8, 9]
    assert through["begun"].tolist() == list(range(10))
    # byte for byte: nothing new was released
    assert np.array_equal(on["releases"], through["releases"])
