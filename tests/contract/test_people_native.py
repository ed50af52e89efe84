"""People with one record each, whoever of them works: the engine in machine code gives what the general one gives."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from coterie import machine
from coterie.algorithms import SumNoisedADMM
from coterie.data import Federation
from coterie.engines import in_process, people
from coterie.engines.in_process import Paths, Work, choose
from coterie.errors import LeakError, LocalSolveError
from coterie.network.channels import Curator, SecureSum
from coterie.network.topology import EVERYBODY_WORKS, Cyclic, Poisson, Sample
from coterie.plan import Plan
from coterie.privacy import for_engines
from coterie.privacy.events import Unprotected
from coterie.privacy.mechanisms import issue
from coterie.privacy.noise import STEPS, Seeded, SystemEntropy
from coterie.privacy.proximal import ProxScales, SumMoveGrant, SumNoise, _clipped_move
from coterie.problems import L1, L2, Ball, ElasticNet, Huber, Problem, Records, Squared
from coterie.transcript import Interrupted
from coterie.values import Schedule

pytest.importorskip("numba")

# two rows of lanes, the second one not full
N, D, REPEATS = 41, 18, 3
RNG = np.random.default_rng(5)
X, Y, WEIGHTS = 0.4 * RNG.normal(size=(N, D)), RNG.normal(size=N), RNG.uniform(0.2, 1.0, size=N)
# two who say nothing
X[7], X[0] = 0.0, 0.0


HOWEVER_SMALL, GENERAL = Paths(people_work=0), Paths(only=("general",))
run, run_many = (functools.partial(engine, paths=HOWEVER_SMALL) for engine in (in_process.run, in_process.run_many))


@pytest.fixture(scope="module")
def crowd():
    return Federation.from_arrays(
        X, Y, parties=np.arange(N), min_records=1, row_norm=4.0, label_bound=3.0, sample_weight=WEIGHTS
    )


def make_plan(
    crowd, *, loss=None, regulariser=None, selection=None, rounds=9, channel=None, averaging="last", **settings
):
    regulariser = L1(0.4) if regulariser is None else regulariser
    problem = Problem(loss=loss or Squared(), regulariser=regulariser, record_weight=0.7)
    mechanism = SumNoise(**{"prox_step": 1.3, "relaxation": 0.5, "noise_multiplier": 0.5, "clip": 0.3, **settings})
    algorithm = SumNoisedADMM(
        mechanism=mechanism,
        regulariser=regulariser,
        channel=channel or Curator(),
        selection=selection or Poisson(probability=0.3, seed=None),
        averaging=averaging,
    )
    return Plan.make(algorithm, problem, "unrestricted", crowd.facts, rounds=rounds, adjacency="zero-out", unit="party")


def both(plan, crowd):
    """Releases of this engine and of the general one."""
    taken = []
    short = run(plan, crowd, noise=Seeded(2), repeats=REPEATS, explain=lambda choice: taken.append(choice.path.name))
    assert taken == ["people in machine code"]
    return short.releases, run(plan, crowd, noise=Seeded(2), repeats=REPEATS, paths=GENERAL).releases


CASES = {
    "poisson": {},
    "public poisson": {"selection": Poisson(probability=0.2, seed=4)},
    "nearly nobody": {"selection": Poisson(probability=0.01, seed=None), "rounds": 30},
    "everybody": {"selection": EVERYBODY_WORKS},
    "a sample": {"selection": Sample(count=6, seed=1)},
    "one after another": {"selection": Cyclic(), "rounds": 50},
    "relaxed": {"relaxation": 0.85},
    "clipped hardly ever": {"clip": 40.0},
    "clipped always": {"clip": 0.01},
    "no regulariser": {"regulariser": L2(0.0)},
    "l2": {"regulariser": L2(3.0)},
    "both regularisers": {"regulariser": ElasticNet(2.0, 0.3)},
    "spread l2": {"regulariser": ElasticNet(5.0, 0.3), "spread_l2": True},
    "noise that grows": {"noise_multiplier": Schedule(0.5, 1.2), "selection": Sample(count=6, seed=1)},
    "averaged": {"averaging": "linear"},
}


@pytest.mark.parametrize("case", CASES)
def test_it_releases_what_the_general_way_releases(case, crowd):
    short, general = both(make_plan(crowd, **CASES[case]), crowd)
    np.testing.assert_allclose(short, general, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("case", ["poisson", "noise that grows", "everybody"])
def test_blocks_go_on_where_the_last_one_ended(case, crowd, monkeypatch):
    plan = make_plan(crowd, **{**CASES[case], "rounds": 23})
    whole = run(plan, crowd, noise=Seeded(2), repeats=REPEATS).releases
    monkeypatch.setattr(people, "BLOCK_WORK", 1)
    assert people.block_length(plan, REPEATS, 20) == 2
    assert np.array_equal(run(plan, crowd, noise=Seeded(2), repeats=REPEATS).releases, whole)


def test_repeats_do_not_depend_on_how_many_there_are(crowd):
    plan = make_plan(crowd)
    few, many = (run(plan, crowd, noise=Seeded(2), repeats=r).releases for r in (2, 11))
    assert np.array_equal(few, many[:2])
    assert len(np.unique(many[:, 0, 0, 0])) == 11


class Asked:
    """A source like any other: neither a seed's nor the system's."""

    reproducible = True

    def draw(self, law, d, **key):
        return Seeded(2).draw(law, d, **key)

    def coins(self, *, repeat):
        return Seeded(2).coins(repeat=repeat)


def test_any_source_of_noise_will_do(crowd, monkeypatch):
    plan = make_plan(crowd)
    seeded = run(plan, crowd, noise=Seeded(2), repeats=REPEATS).releases
    assert np.array_equal(run(plan, crowd, noise=Asked(), repeats=REPEATS).releases, seeded)
    fresh = [run(plan, crowd, noise=SystemEntropy(), repeats=REPEATS) for _ in range(2)]
    assert not fresh[0].reproducible
    # of 53 bits: by chance less than once in 1e9 runs
    assert not (fresh[0].releases == fresh[1].releases).any()


def test_noise_has_the_standard_deviation_of_the_grant(crowd):
    plan = make_plan(crowd, clip=1e-9, noise_multiplier=3.0, rounds=300)
    released = run(plan, crowd, noise=Seeded(7), repeats=REPEATS).releases
    assert np.std(released) == pytest.approx(float(plan.grant_table().noise_std[0]), rel=0.05)


def test_plans_side_by_side_release_what_each_releases_alone(crowd):
    plans = [make_plan(crowd, selection=EVERYBODY_WORKS, noise_multiplier=m) for m in (0.5, 2.0)]
    for plan, transcript in zip(plans, run_many(plans, crowd, noise=Seeded(2), repeats=2), strict=True):
        assert np.array_equal(transcript.releases, run(plan, crowd, noise=Seeded(2), repeats=2).releases)


def test_an_interrupted_run_keeps_whole_blocks(crowd, monkeypatch):
    plan = make_plan(crowd, rounds=30)
    whole = run(plan, crowd, noise=Seeded(2), repeats=REPEATS).releases
    monkeypatch.setattr(people, "BLOCK_WORK", 1)

    def stop(done, of):
        if done == 6:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted) as stopped:
        run(plan, crowd, noise=Seeded(2), repeats=REPEATS, progress=stop)
    assert np.array_equal(stopped.value.transcript.releases, whole[:, :6])


def test_a_step_that_misses_the_tolerance_is_not_released(crowd, monkeypatch):
    made = for_engines.PeopleMoves.__init__

    def strict(self, *given):
        made(self, *given)
        self.scales = self.scales._replace(strict=np.ones(1), tolerance=np.full(1, -1.0))

    monkeypatch.setattr(for_engines.PeopleMoves, "__init__", strict)
    # which has the same settings
    monkeypatch.setattr(people, "check_kernel", lambda: None)
    with pytest.raises(LocalSolveError, match="round 0"):
        run(make_plan(crowd), crowd, noise=Seeded(2))


@pytest.mark.parametrize(("name", "factor"), [("curvature", 1.25), ("l2", 3.0), ("relaxation", 1.25), ("radius", 1.25)])
def test_a_kernel_that_moves_people_otherwise_is_refused(name, factor, monkeypatch):
    """Also where it is not far off."""
    made = for_engines.PeopleMoves.__init__

    def otherwise(self, *given):
        made(self, *given)
        self.scales = self.scales._replace(**{name: factor * getattr(self.scales, name)})

    for_engines.check_kernel.__wrapped__()
    monkeypatch.setattr(for_engines.PeopleMoves, "__init__", otherwise)
    with pytest.raises(LeakError, match="not those that their grant prices"):
        for_engines.check_kernel.__wrapped__()


@pytest.mark.parametrize("radius", [0.2, np.inf])
@pytest.mark.parametrize(("strict", "tolerance"), [(0.0, -1.0), (1.0, 1e-9), (1.0, -1.0)])
@pytest.mark.parametrize("l2", [0.0, 0.6])
def test_moves_are_those_of_the_grant(radius, strict, tolerance, l2):
    """Also under scales that no plan with squared loss has: moves that are not clipped, and a price that relies on the
    tolerance."""
    from coterie.native import moves

    records = Records(X[:, None], Y[:, None], WEIGHTS[:, None])
    scales = ProxScales(0.8, l2, 0.7, radius, noise_std=0.4, steps=STEPS, tolerance=tolerance, strict=strict)
    problem = Problem(loss=Squared(), regulariser=L2(0.0), record_weight=1.0)
    grant = issue(SumMoveGrant, Unprotected(), priced_for=problem, **scales._asdict())
    u, z_hat, unit = RNG.normal(size=(N, D)), RNG.normal(size=D), np.rint(RNG.normal(size=(1, D)) * STEPS) / STEPS
    who = np.array([0, 2, 3, 7, 40], np.uint32)

    z = np.sign(z_hat) * np.maximum(0.9 * np.abs(z_hat) - 0.1, 0.0)
    with jax.enable_x64(True):
        each = jax.vmap(lambda *r: _clipped_move(Squared(), Records(*r[:3]), r[3], z, scales))
        made = 1.4 * np.asarray(each(*(np.asarray(column)[who] for column in records), u[who]))
    after, total = u.copy(), (np.rint(made / grant.grid).sum(axis=0) + unit[0] * STEPS) * grant.grid
    after[who] += made

    states, ahead = moves.in_lanes(u, extra_rows=1), z_hat.copy()
    steps = for_engines.PeopleMoves([grant], np.zeros(1, int), problem, records)
    at_work = who, np.array([0]), np.array([5])
    out = steps.advance(0, unit, centre=(0.9, 0.1, float(N)), at_work=at_work, states=states, z_hat=ahead).value
    assert np.isnan(total).all() == (strict == 1 and tolerance < 0)
    # a move that lies between two steps may be rounded to either
    np.testing.assert_allclose(out[0], total, rtol=0, atol=1.01 * grant.grid)
    np.testing.assert_allclose(ahead, z_hat + total / N, rtol=0, atol=grant.grid)
    np.testing.assert_allclose(states.reshape(N + 1, -1)[:N, :D], after, rtol=1e-12, atol=1e-12)
    if np.isfinite(radius):
        assert np.array_equal(states.reshape(N + 1, -1)[[0, 7], :D], u[[0, 7]])


def path_of(plan, data):
    return choose(Work(plan, 1, 1, None, data.shards, HOWEVER_SMALL)).path.name


def test_what_it_cannot_do_goes_another_way(crowd, monkeypatch):
    assert path_of(make_plan(crowd), crowd) == "people in machine code"
    others = [
        make_plan(crowd, loss=Huber(0.5)),
        make_plan(crowd, regulariser=Ball(2.0)),
        # sums of so fine steps are not exact there
        make_plan(crowd, noise_multiplier=1e-9),
        make_plan(crowd, channel=SecureSum()),
    ]
    pairs = Federation.from_arrays(X[:40], Y[:40], parties=np.arange(40) // 2, row_norm=4.0, label_bound=3.0)
    for plan in others:
        assert path_of(plan, crowd) != "people in machine code"
    assert path_of(make_plan(pairs), pairs) != "people in machine code"
    monkeypatch.setattr(machine, "has_numba", lambda: False)
    assert path_of(make_plan(crowd), crowd) != "people in machine code"


def test_little_work_does_not_load_numba(crowd):
    plan = make_plan(crowd)
    assert not people.moves_fit(plan, None, 1)
    longer = dataclasses.replace(plan, n_rounds=10**6)
    assert people.moves_fit(longer, None, 1)
    assert people.block_length(longer, 1, 20) == 10**6
    assert people.block_length(longer, 100, 20) == 10**6 // 20
