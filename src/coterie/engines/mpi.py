"""Run a plan on a cluster: many parties to a process, processes connected by MPI (extra `mpi`).

    mpiexec -n 8 coterie run spec.toml --engine mpi

Each process (rank) holds the records, noise and private states of its own parties. On a graph, messages go to the
ranks of neighbours by a neighbourhood collective; where everybody hears everything they are gathered; sums are reduced
to rank 0, which noises them. What is computed is what the in-process engine computes.

With a checkpoint directory a run that died goes on after the last checkpoint. The rounds since then are repeated with
the same noise, so they release the same values byte for byte and cost nothing more (`privacy.noise.KeyedEntropy`).
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from coterie.algorithms.algorithm import Algorithm
from coterie.engines.checkpoint import Checkpoint, noise_of_records, records_mark
from coterie.engines.in_process import Paths
from coterie.engines.moments import Course, n_moments, noised_on_ranks, release_on_ranks
from coterie.engines.own_steps import OwnSteps
from coterie.engines.rounds import set_up
from coterie.errors import CoterieError, InputError, LocalSolveError, MissingExtraError
from coterie.network.topology import All, Topology
from coterie.plan import Plan
from coterie.privacy.noise import KeyedEntropy, NoiseSource, Seeded, drawn_once
from coterie.privacy.release import Contribution, unit_noise
from coterie.terminal import Stop, stoppable
from coterie.transcript import Interrupted, Transcript
from coterie.values import Schedule, whole_number

# --- who is where, and the part of a graph that one rank needs --------------------------------------------------------


def split(sizes: Sequence[int], n_ranks: int) -> list[np.ndarray]:
    """Consecutive parties for each rank, about as many records each; nobody is left out as long as there are enough."""
    middles, total = np.cumsum(sizes) - np.asarray(sizes) / 2, sum(sizes)
    cuts = [int(np.searchsorted(middles, total * k / n_ranks)) for k in range(1, n_ranks)]
    for k in range(len(cuts)):
        least = cuts[k - 1] + 1 if k else min(1, len(sizes))
        cuts[k] = min(max(cuts[k], least), max(len(sizes) - (n_ranks - 1 - k), 0))
    return np.split(np.arange(len(sizes)), cuts)


@dataclasses.dataclass(frozen=True)
class Neighbourhood(Topology):
    """The parties of one rank, numbered first, then their neighbours elsewhere; only edges that touch the rank's own.

    What own parties hear, and so their rows of the public state, is right; the rows of the others mean nothing.
    """

    n_own: int = 0
    exchange: Callable[[np.ndarray], np.ndarray] = dataclasses.field(default=lambda own: own, compare=False)

    def __post_init__(self) -> None:
        # the whole graph was checked; this part of it need not be connected
        pass

    def hear(self, heard: Any, last: Any, values: Any) -> Any:
        """Along each arc, what the source's rank has sent."""
        own = np.asarray(values)[: self.n_own]
        return np.concatenate([own, self.exchange(own)])[self.arcs[0]]


@dataclasses.dataclass(frozen=True)
class Layout:
    """How one rank sees a topology."""

    topology: Topology
    # the parties of each rank
    parts: tuple[np.ndarray, ...]
    rank: int

    @functools.cached_property
    def own(self) -> np.ndarray:
        return self.parts[self.rank]

    @functools.cached_property
    def rank_of(self) -> np.ndarray:
        rank_of = np.empty(self.topology.n_parties, int)
        for rank, parties in enumerate(self.parts):
            rank_of[parties] = rank
        return rank_of

    @functools.cached_property
    def edges(self) -> np.ndarray:
        """Positions of the edges that touch the rank's own parties, in the order in which they are numbered here."""
        ends = self.rank_of[np.asarray(self.topology.edges, int).reshape(-1, 2)]
        return np.flatnonzero((ends == self.rank).any(axis=1))

    @functools.cached_property
    def ghosts(self) -> np.ndarray:
        """Neighbours of own parties that are elsewhere, by rank and number."""
        ends = np.asarray(self.topology.edges, int).reshape(-1, 2)[self.edges]
        others = np.setdiff1d(ends, self.own)
        return others[np.lexsort((others, self.rank_of[others]))]

    def wanted_by(self, rank: int) -> np.ndarray:
        """Which of the own parties, by position among them, have neighbours at another rank."""
        there = Layout(self.topology, self.parts, rank).ghosts
        return np.searchsorted(self.own, there[self.rank_of[there] == self.rank])

    def neighbourhood(self, exchange: Callable[[np.ndarray], np.ndarray]) -> Neighbourhood:
        nodes = np.concatenate([self.own, self.ghosts])
        place = np.empty(self.topology.n_parties, int)
        place[nodes] = np.arange(len(nodes))
        pairs = place[np.asarray(self.topology.edges, int).reshape(-1, 2)[self.edges]]
        edges = tuple(map(tuple, np.sort(pairs, axis=1).tolist()))
        return Neighbourhood(len(nodes), edges, False, len(self.own), exchange)

    def algorithm(self, algorithm: Any) -> Algorithm:
        """The same algorithm with the numbers of these parties and edges only."""
        nodes = np.concatenate([self.own, self.ghosts])

        def pick(schedule: Schedule) -> Schedule:
            values = (schedule.start, schedule.ratio)
            return Schedule(*(tuple(np.asarray(v)[nodes]) if isinstance(v, tuple) else v for v in values))

        schedules = {name: pick(schedule) for name, schedule in algorithm.mechanism.schedules().items()}
        changed: dict[str, Any] = {"mechanism": dataclasses.replace(algorithm.mechanism, **schedules)}
        if isinstance(getattr(algorithm, "dual_step", None), Schedule):
            changed["dual_step"] = pick(algorithm.dual_step)
        if hasattr(algorithm, "edge_penalty"):
            changed["edge_penalty"] = tuple(np.asarray(algorithm.edge_penalty)[self.edges].tolist())
        return dataclasses.replace(algorithm, **changed)


# --- the engine -------------------------------------------------------------------------------------------------------

Progress = Callable[[int, int], None]


def world() -> Any:
    """All processes that were started together."""
    try:
        from mpi4py import MPI
    except ImportError:
        raise MissingExtraError("the engine 'mpi' needs mpi4py: pip install 'coterie[mpi]'") from None
    return MPI.COMM_WORLD


def run(
    plan: Plan,
    shard_of: Callable[[int], Any],
    *,
    noise: NoiseSource | None = None,
    checkpoint: Path | None = None,
    every: int = 10,
    identity: dict[str, Any] | None = None,
    comm: Any = None,
    progress: Progress | None = None,
    paths: Paths | None = None,
    course_of: Callable[[Transcript], Course] | None = None,
) -> Transcript | None:
    """Execute the plan; rank 0 gets the transcript, the others None.

    shard_of: the records of a party; asked for own parties only. every: rounds from one checkpoint to the next.
    identity: what, besides plan, seed and ranks, a run that goes on must have in common with the one that began.
    paths: as for the in-process engine.
    course_of: at rank 0, where the moments of a plan that has them are taken once all rounds are done; without it they
        are not released.
    """
    comm = world() if comm is None else comm
    check(plan, comm.size)
    if checkpoint is None:
        noise = drawn_once(noise)
    elif noise is not None and not isinstance(noise, Seeded):
        raise InputError("noise: a run with a checkpoint draws its own, which it can repeat; leave it out")
    whole_number("every", every, at_least=1)
    plan.check_flow()
    saved = None if checkpoint is None else Checkpoint(checkpoint, rank=comm.rank)
    common = whole_identity(plan, comm.size, noise, identity)
    which = paths or Paths()

    def ready() -> _Rank:
        if saved is None:
            return _Rank(plan, shard_of, drawn_once(noise), comm, which)
        key = saved.key(common)
        rank = _Rank(plan, shard_of, key if noise is None else noise, comm, which)
        rank.mark = records_mark(rank.arrays, key)
        if not saved.same_records(rank.mark):
            raise InputError(
                f"checkpoint: {str(checkpoint)!r} was made with other records; remove it, and count it as spent"
            )
        return rank

    with set_up():
        _together(comm, lambda: saved.begin(common) if saved is not None and comm.rank == 0 else None)
        if saved is not None and comm.bcast(_together(comm, lambda: saved.finished)):
            _together(comm, lambda: saved.check(common))
            releases, _ = _together(comm, lambda: saved.load(plan.n_rounds, 0))
            transcript = _gathered(plan, comm, releases, reproducible=isinstance(noise, Seeded))
            if transcript is not None and course_of is not None:
                course = course_of(transcript)
                for number in range(n_moments(plan)):
                    course.hear(*saved.load_moments(number, plan.problem.n_coefficients(plan.facts)))
            return transcript
        rank = _together(comm, ready)
        _together(comm, lambda: saved.records_known() if saved is not None and comm.rank == 0 else None)
        if isinstance(rank.source, KeyedEntropy):
            rank.source = noise_of_records(comm.allgather(rank.mark), rank.source)
        transcript = rank.go(saved, every, progress)
        # rank 0 says so by raising, and takes no further part
        if rank.stopped:
            return None
        course = None if transcript is None or course_of is None else course_of(transcript)
        rank.release_moments(course, saved)
        if saved is not None and comm.rank == 0:
            saved.finish()
        return transcript


def check(plan: Plan, n_ranks: int) -> None:
    """Refuse, before anything is charged, what this engine cannot carry out."""
    if not isinstance(plan.algorithm.selection, All):
        raise InputError(f"selection: got {plan.algorithm.selection}; the engine 'mpi' needs everybody in every round")
    if n_ranks > plan.facts.n_parties:
        raise InputError(f"engine: {n_ranks} processes for {plan.facts.n_parties} parties; a party each is needed")


def whole_identity(plan: Plan, n_ranks: int, noise: Any, more: dict[str, Any] | None) -> dict[str, Any]:
    """What two runs must share so that one can go on where the other stopped, releasing the same."""
    seed = int(noise.seed) if isinstance(noise, Seeded) else None
    return {"plan": plan.digest, "ranks": n_ranks, "seed": seed, **(more or {})}


def _together(comm: Any, own_part: Callable[[], Any]) -> Any:
    """What each rank's own part comes to, or an error at every rank if one failed: nobody is left waiting."""
    error, result = None, None
    try:
        result = own_part()
    except Exception as caught:
        error = caught
    if comm.allreduce(int(error is not None)):
        raise error or CoterieError("engine: another process failed, so this one stops")
    return result


class _Rank:
    def __init__(
        self, plan: Plan, shard_of: Callable[[int], Any], source: NoiseSource, comm: Any, paths: Paths
    ) -> None:
        self.plan, self.source, self.comm = plan, source, comm
        # whether the rounds ended before the last one
        self.stopped = False
        # of own records, where a checkpoint knows them
        self.mark = b""
        self.d = plan.problem.n_coefficients(plan.facts)
        self.layout = Layout(plan.topology, tuple(split(plan.facts.sizes, comm.size)), comm.rank)
        self.own = self.layout.own
        self.on_graph = plan.algorithm.needs_graph and not plan.topology.unrestricted
        self.topology, self.algorithm = plan.topology, plan.algorithm
        # of own parties, in arrays by party
        self.rows = self.own
        if self.on_graph:
            self.topology = self.layout.neighbourhood(_Exchange(self.layout, comm, self.d))
            self.algorithm = self.layout.algorithm(plan.algorithm)
            self.rows = np.arange(len(self.own))
        self.shards = [shard_of(int(party)) for party in self.own]
        self.arrays = [array for shard in self.shards for array in (shard.X, shard.y, shard.weight)]
        self.steps = OwnSteps(
            plan, self.own, self.shards, paths=paths, algorithm=self.algorithm, topology=self.topology
        )

    def go(self, saved: Checkpoint | None, every: int, progress: Progress | None) -> Transcript | None:
        """Whoever is asked to stop, all of them do, after the same round."""
        with stoppable() as stop:
            return self._go(saved, every, progress, stop)

    def _go(self, saved: Checkpoint | None, every: int, progress: Progress | None, stop: Stop) -> Transcript | None:
        n_rounds = self.plan.n_rounds
        self.public, private = self.algorithm.init(self.topology, self.d)
        self.private = jax.tree.map(lambda a: a[self.rows], private)
        done = self._again(saved) if saved is not None else []
        unsaved = len(done)
        for t in range(len(done), n_rounds):
            if self.comm.allreduce(int(stop.asked)):
                break
            if progress is not None and self.comm.rank == 0:
                progress(t, n_rounds)
            done.append(self._round(t))
            if saved is not None and (t + 1 - unsaved == every or t + 1 == n_rounds):
                saved.save(unsaved, np.stack(done[unsaved:]), [np.asarray(a) for a in jax.tree.leaves(self.private)])
                self.comm.Barrier()
                unsaved = t + 1
                if self.comm.rank == 0:
                    saved.all_saved(unsaved)
        self.stopped = len(done) < n_rounds
        width = 1 if self.plan.algorithm.channel.aggregates else len(self.own)
        releases = np.stack(done) if done else np.zeros((0, width, self.d))
        transcript = _gathered(self.plan, self.comm, releases, reproducible=self.source.reproducible)
        if transcript is not None and not transcript.complete:
            raise Interrupted(transcript)
        if progress is not None and self.comm.rank == 0:
            progress(n_rounds, n_rounds)
        return transcript

    def release_moments(self, course: Course | None, saved: Checkpoint | None) -> None:
        """What follows the rounds, told to rank 0's course; what was saved before is released again, under the same
        noise."""
        for number in range(n_moments(self.plan)) if self.comm.bcast(course is not None) else ():
            at = self.comm.bcast(_together(self.comm, lambda: None if course is None else course.at))
            total = release_on_ranks(self.plan, self.own.tolist(), self.shards, number, at, self.source, self.comm)
            if course is not None:
                course.hear(at, total)
                if saved is not None:
                    saved.save_moments(number, at, total)

    def _again(self, saved: Checkpoint) -> list[np.ndarray]:
        """What was released before, and the public state that follows from it."""
        rounds = self.comm.bcast(saved.rounds_done)
        if rounds == 0:
            return []
        leaves, shape = jax.tree.flatten(self.private)
        releases, private = _together(self.comm, lambda: saved.load(rounds, len(leaves)))
        for t, released in enumerate(releases):
            self._combine(t, released)
        self.private = jax.tree.unflatten(shape, [jnp.asarray(a) for a in private])
        return list(releases)

    def _round(self, t: int) -> np.ndarray:
        """What own parties release, or what everybody hears of a sum."""
        scales = self.steps.scales(t)
        inbox = self.algorithm.inbox(float(t), self.public, self.topology)
        inbox = jax.tree.map(lambda a: a[self.rows][None], inbox)
        private = jax.tree.map(lambda a: a[None], self.private)
        if self.plan.algorithm.channel.aggregates:
            after, parts = self.steps(scales, private, inbox, None)
            released = self._noised_sum(t, jax.tree.map(lambda a: a[0], parts), scales)
        else:
            noise = self.steps.noise(self.source, t, self.own.tolist())
            after, outs = self.steps(scales, private, inbox, unit_noise(*noise))
            released = np.asarray(outs)[0]
        if self.comm.allreduce(int(not np.isfinite(released).all())):
            raise LocalSolveError(
                f"a party could not compute its step of round {t} to the plan's tolerance; nothing of that round was "
                "released, and the whole budget of the plan counts as spent"
            )
        self.private = jax.tree.map(lambda a: a[0], after)
        self._combine(t, released)
        return released

    def _noised_sum(self, t: int, parts: Contribution, scales: Any) -> np.ndarray:
        grant = self.plan.as_grant(jax.tree.map(lambda s: s[0], scales))

        def noise() -> Any:
            return unit_noise(*(n[0] for n in self.steps.noise(self.source, t, range(self.plan.noise_rows))))

        return noised_on_ranks(self.plan.algorithm.channel, grant, parts, noise, self.comm, self.d)[None]

    def _combine(self, t: int, released: np.ndarray) -> None:
        if self.plan.algorithm.channel.aggregates:
            received = released[0]
        elif self.on_graph:
            # what others release arrives where it is heard
            received = np.concatenate([released, np.zeros((len(self.layout.ghosts), self.d))])
        else:
            received = np.concatenate(self.comm.allgather(released))
        self.public = self.algorithm.combine(float(t), self.public, jnp.asarray(received), self.topology)


def _gathered(plan: Plan, comm: Any, releases: np.ndarray, *, reproducible: bool) -> Transcript | None:
    """At rank 0, from what each rank has of it, (rounds, parties, d)."""
    if not plan.algorithm.channel.aggregates:
        parts = comm.gather(releases)
        releases = np.concatenate(parts, axis=1) if parts is not None else releases
    return Transcript(plan, releases[None], reproducible) if comm.rank == 0 else None


class _Exchange:
    """Rows of own parties to the ranks of their neighbours, and theirs here: one neighbourhood collective."""

    def __init__(self, layout: Layout, comm: Any, d: int) -> None:
        ranks = layout.rank_of[layout.ghosts]
        # neighbours both ways: edges have no direction
        self.near = np.unique(ranks).tolist()
        self.comm = comm.Create_dist_graph_adjacent(self.near, self.near)
        self.rows = np.concatenate([np.empty(0, int), *(layout.wanted_by(rank) for rank in self.near)]).astype(int)
        self.sent = [len(layout.wanted_by(rank)) * d for rank in self.near]
        self.heard = [int((ranks == rank).sum()) * d for rank in self.near]
        self.shape = (len(layout.ghosts), d)

    def __call__(self, own: np.ndarray) -> np.ndarray:
        from mpi4py import MPI

        sent, heard = np.ascontiguousarray(own[self.rows]), np.empty(self.shape)
        self.comm.Neighbor_alltoallv([sent, self.sent, MPI.DOUBLE], [heard, self.heard, MPI.DOUBLE])
        return heard
