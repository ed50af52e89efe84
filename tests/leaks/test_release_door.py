"""Every way we could think of to get data past the release door by mistake is tried here and refused."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coterie.algorithms import NoisyCoordinateDescent, NoisyGradientDescent, PenaltyPerturbedADMM
from coterie.data import Federation
from coterie.errors import InputError, LeakError, PrivacyPreconditionError
from coterie.network.channels import Broadcast, Curator, SecureSum
from coterie.plan import Plan
from coterie.privacy.events import Gaussian
from coterie.privacy.mechanisms import ArgminGrant, ArgminScales, GaussianGradient
from coterie.privacy.objective import PenaltyPerturbation
from coterie.privacy.release import Contribution, Release, Subtotal, UnitNoise, private_call
from coterie.problems import L2, Logistic, Problem, Squared
from coterie.values import Facts, serialisable

FACTS = Facts(parties=("a", "b", "c"), sizes=(10, 10, 10), n_features=4, row_norm=1.0, labels=("no", "yes"))
PROBLEM = Problem(loss=Logistic(), regulariser=L2(1.0), record_weight=1.0)
MECHANISM = PenaltyPerturbation(penalty=1.0, noise_multiplier=5.0)
HIDDEN = np.arange(4.0)


def make(algorithm, problem=PROBLEM, facts=FACTS, **changes):
    settings = {"rounds": 3, "adjacency": "replace-one", **changes}
    return Plan.make(algorithm, problem, "ring", facts, **settings)


def admm(local=None, mechanism=MECHANISM):
    """M-ADMM whose party step is replaced by `local`."""
    if local is None:
        return PenaltyPerturbedADMM(mechanism=mechanism, dual_step=1.0)

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Changed(PenaltyPerturbedADMM):
        pass

    Changed.local = local
    return Changed(mechanism=mechanism, dual_step=1.0)


def honest(self, grant, problem, records, private, inbox, noise):
    return private, grant.argmin(problem, records, noise, linear=inbox[0], target=inbox[1])


def test_the_honest_step_passes():
    """Without this, a check that refuses everything would pass all other tests of this file."""
    assert make(admm(honest)).epsilon(1e-6) > 0


def test_an_honest_step_inside_nested_control_flow_passes():
    def nested(self, grant, problem, records, private, inbox, noise):
        @jax.jit
        def inner(linear, target):
            smaller, _ = jax.lax.scan(lambda carry, _: (carry / 2, None), linear, None, length=3)
            chosen = jax.lax.cond(jnp.sum(target) > 0, lambda: smaller, lambda: -smaller)
            return jax.jit(lambda: grant.argmin(problem, records, noise, linear=chosen, target=target))()

        return private, inner(*inbox)

    make(admm(nested))


def un_noised_value(self, grant, problem, records, private, inbox, noise):
    return private, records.X.sum(axis=0)


def un_noised_value_in_a_release(self, grant, problem, records, private, inbox, noise):
    release = grant.argmin(problem, records, noise, linear=inbox[0], target=inbox[1])
    return private, jax.tree.map(lambda v: v + records.X.sum(axis=0), release)


def the_noise_itself(self, grant, problem, records, private, inbox, noise):
    release = grant.argmin(problem, records, noise, linear=inbox[0], target=inbox[1])
    return private, jax.tree.map(lambda v: v - noise.value[0], release)


def data_in_the_linear_term(self, grant, problem, records, private, inbox, noise):
    return private, grant.argmin(problem, records, noise, linear=records.X.mean(axis=0), target=inbox[1])


def data_in_the_target(self, grant, problem, records, private, inbox, noise):
    return private, grant.argmin(problem, records, noise, linear=inbox[0], target=records.y[:4])


def closure_over_an_array(self, grant, problem, records, private, inbox, noise):
    return private, grant.argmin(problem, records, noise, linear=inbox[0] + jnp.asarray(HIDDEN), target=inbox[1])


def closure_over_two_numbers(self, grant, problem, records, private, inbox, noise):
    linear = inbox[0] + jnp.asarray(HIDDEN[:2]).sum()
    return private, grant.argmin(problem, records, noise, linear=linear, target=inbox[1])


def printing(self, grant, problem, records, private, inbox, noise):
    jax.debug.print("{}", records.X.sum())
    return honest(self, grant, problem, records, private, inbox, noise)


def calling_python(self, grant, problem, records, private, inbox, noise):
    jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct((), records.X.dtype), records.X.sum())
    return honest(self, grant, problem, records, private, inbox, noise)


def branch_on_data(self, grant, problem, records, private, inbox, noise):
    linear = jax.lax.cond(records.X.sum() > 0, lambda: inbox[0], lambda: -inbox[0])
    return private, grant.argmin(problem, records, noise, linear=linear, target=inbox[1])


def loop_until_data_says_so(self, grant, problem, records, private, inbox, noise):
    linear = jax.lax.while_loop(lambda v: jnp.sum(v) < records.X.sum(), lambda v: v + 1, inbox[0])
    return private, grant.argmin(problem, records, noise, linear=linear, target=inbox[1])


def data_through_a_scan(self, grant, problem, records, private, inbox, noise):
    linear, _ = jax.lax.scan(lambda c, x: (c + x, None), inbox[0], records.X)
    return private, grant.argmin(problem, records, noise, linear=linear, target=inbox[1])


def data_through_a_nested_jit(self, grant, problem, records, private, inbox, noise):
    linear = jax.jit(lambda x: jax.jit(lambda z: z.mean(axis=0))(x))(records.X)
    return private, grant.argmin(problem, records, noise, linear=linear, target=inbox[1])


def two_releases_for_one_price(self, grant, problem, records, private, inbox, noise):
    first = grant.argmin(problem, records, noise, linear=inbox[0], target=inbox[1])
    return private, grant.argmin(problem, records, noise, linear=inbox[0], target=first.value)


def a_release_in_a_loop(self, grant, problem, records, private, inbox, noise):
    def again(target, _):
        return grant.argmin(problem, records, noise, linear=inbox[0], target=target).value, None

    value, _ = jax.lax.scan(again, inbox[1], None, length=3)
    return private, grant.argmin(problem, records, noise, linear=inbox[0], target=value)


def a_release_that_was_altered(self, grant, problem, records, private, inbox, noise):
    release = grant.argmin(problem, records, noise, linear=inbox[0], target=inbox[1])
    return private, jax.tree.map(lambda v: v - inbox[1], release)


def heavier_records(self, grant, problem, records, private, inbox, noise):
    heavier = records._replace(weight=100 * records.weight)
    return private, grant.argmin(problem, heavier, noise, linear=inbox[0], target=inbox[1])


def another_problem(self, grant, problem, records, private, inbox, noise):
    steeper = dataclasses.replace(problem, regulariser=L2(1e-9))
    return private, grant.argmin(steeper, records, noise, linear=inbox[0], target=inbox[1])


def exchanged_columns(self, grant, problem, records, private, inbox, noise):
    exchanged = records._replace(y=records.weight, weight=records.y)
    return private, grant.argmin(problem, exchanged, noise, linear=inbox[0], target=inbox[1])


def what_a_private_call_returns(self, grant, problem, records, private, inbox, noise):
    hidden = private_call(lambda x: x, inbox[0])
    return private, grant.argmin(problem, records, noise, linear=hidden, target=inbox[1])


def steering_python(self, grant, problem, records, private, inbox, noise):
    target = inbox[1] if records.X.sum() > 0 else 2 * inbox[1]
    return private, grant.argmin(problem, records, noise, linear=inbox[0], target=target)


def a_number_for_python(self, grant, problem, records, private, inbox, noise):
    return private, grant.argmin(problem, records, noise, linear=inbox[0], target=inbox[1] * float(records.y[0]))


def an_array_for_numpy(self, grant, problem, records, private, inbox, noise):
    return private, grant.argmin(
        problem, records, noise, linear=inbox[0], target=inbox[1] * np.asarray(records.y).sum()
    )


@pytest.mark.parametrize(
    "leak",
    [
        un_noised_value,
        un_noised_value_in_a_release,
        the_noise_itself,
        data_in_the_linear_term,
        data_in_the_target,
        closure_over_an_array,
        closure_over_two_numbers,
        printing,
        calling_python,
        branch_on_data,
        loop_until_data_says_so,
        data_through_a_scan,
        data_through_a_nested_jit,
        two_releases_for_one_price,
        a_release_in_a_loop,
        a_release_that_was_altered,
        heavier_records,
        another_problem,
        exchanged_columns,
        what_a_private_call_returns,
        steering_python,
        a_number_for_python,
        an_array_for_numpy,
    ],
    ids=lambda f: f.__name__,
)
def test_a_leaking_step_gets_no_plan(leak):
    with pytest.raises(LeakError):
        make(admm(leak))


def test_private_state_in_the_inbox_of_the_theorem_is_refused():
    """State that a party keeps un-noised between rounds must not steer a public argument."""

    def uses_state(self, grant, problem, records, private, inbox, noise):
        release = grant.argmin(problem, records, noise, linear=private, target=inbox[1])
        return records.X.sum(axis=0), release

    algorithm = admm(uses_state)
    type(algorithm).init = lambda self, topology, d: (
        PenaltyPerturbedADMM.init(self, topology, d)[0],
        jnp.zeros((topology.n_parties, d)),
    )
    with pytest.raises(LeakError, match="takes as public"):
        make(algorithm)


def test_releases_and_grants_are_not_made_by_hand():
    for sealed in (Release, Contribution, Subtotal):
        with pytest.raises(TypeError, match="made by a Grant"):
            sealed(jnp.ones(3))
    with pytest.raises(TypeError, match="made by an engine"):
        UnitNoise((jnp.zeros(3), jnp.zeros(3)))
    with pytest.raises(TypeError, match="made by a Mechanism"):
        ArgminGrant(ArgminScales(1.0, 0.0, 0.0, 0.0, 1.0, 1e-9), Gaussian(0.1))


def test_noise_and_price_cannot_be_pulled_apart():
    def halved(self, grant, problem, records, private, inbox, noise):
        grant.scales = grant.scales._replace(noise_scale=grant.scales.noise_scale / 2)
        return honest(self, grant, problem, records, private, inbox, noise)

    def rebuilt(self, grant, problem, records, private, inbox, noise):
        quiet = ArgminGrant(grant.scales._replace(noise_scale=0.0), None)
        return honest(self, quiet, problem, records, private, inbox, noise)

    def quieter_noise(self, grant, problem, records, private, inbox, noise):
        return honest(self, grant, problem, records, private, inbox, UnitNoise((noise.value[0] / 2, noise.value[1])))

    for local in (halved, rebuilt, quieter_noise):
        with pytest.raises(TypeError):
            make(admm(local))


def test_a_data_dependent_noise_scale_is_refused():
    def scaled_by_data(self, grant, problem, records, private, inbox, noise):
        altered = jax.tree.map(lambda s: s * records.X.std(), grant)
        return private, altered.argmin(problem, records, noise, linear=inbox[0], target=inbox[1])

    with pytest.raises(LeakError, match="scale altered"):
        make(admm(scaled_by_data))


def scaled_grant(self, grant, problem, records, private, inbox, noise):
    return honest(self, jax.tree.map(lambda s: s / 2, grant), problem, records, private, inbox, noise)


def scaled_noise(self, grant, problem, records, private, inbox, noise):
    return honest(self, grant, problem, records, private, inbox, jax.tree.map(lambda n: n / 2, noise))


def zeroed_noise(self, grant, problem, records, private, inbox, noise):
    zeroed = jax.tree.map(jnp.zeros_like, noise)
    return honest(self, grant, problem, records, private, inbox, zeroed)


@pytest.mark.parametrize("local", [scaled_grant, scaled_noise, zeroed_noise], ids=lambda f: f.__name__)
def test_scales_and_noise_must_arrive_as_issued(local):
    """Pytree operations could rebuild a sealed object with other numbers; the check follows the numbers."""
    with pytest.raises(LeakError, match="altered on its way"):
        make(admm(local))


def test_an_event_refuses_traced_numbers():
    with pytest.raises(PrivacyPreconditionError, match="public numbers only"):
        jax.eval_shape(lambda x: Gaussian(x).ratio, jax.ShapeDtypeStruct((), jnp.float32))


def gradient_descent(channel):
    mechanism = GaussianGradient(noise_multiplier=5.0)
    return NoisyGradientDescent(mechanism=mechanism, regulariser=L2(1.0), step=0.1, channel=channel)


def test_a_contribution_needs_a_channel_that_aggregates():
    settings = {"mechanism": GaussianGradient(noise_multiplier=5.0), "regulariser": L2(1.0), "step": 0.1}
    make(NoisyCoordinateDescent(**settings, channel=Curator()))
    with pytest.raises(LeakError, match="got Contribution"):
        make(NoisyCoordinateDescent(**settings, channel=Broadcast()))


def test_an_altered_contribution_is_refused():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Louder(NoisyGradientDescent):
        def local(self, grant, problem, records, private, inbox, noise):
            return private, jax.tree.map(lambda v: 100 * v, grant.gradient(problem, records, at=inbox))

    mechanism = GaussianGradient(noise_multiplier=5.0)
    with pytest.raises(LeakError, match="contribution altered"):
        make(Louder(mechanism=mechanism, regulariser=L2(1.0), step=0.1, channel=Curator()))


def test_an_aggregate_that_forgets_the_noise_is_refused():
    @serialisable
    @dataclasses.dataclass(frozen=True)
    class Forgetful(SecureSum):
        def aggregate(self, contributions, grant, noise):
            return jax.tree.map(lambda v: v.sum(axis=0), contributions)

    with pytest.raises(LeakError):
        make(gradient_descent(Forgetful()))


@pytest.mark.parametrize(
    ("algorithm", "observer", "provided"),
    [(admm(), "aggregates", "everybody"), (gradient_descent(Curator()), "everybody", "aggregates")],
)
def test_an_observer_the_channel_does_not_provide_is_refused(algorithm, observer, provided):
    plan = make(algorithm)
    assert plan.epsilon(1e-6, observer=provided) == plan.epsilon(1e-6)
    with pytest.raises(InputError, match=f"observer: got '{observer}'.*provides {provided}"):
        plan.epsilon(1e-6, observer=observer)


def test_a_plan_whose_hypotheses_fail_is_refused():
    regression = dataclasses.replace(FACTS, labels=None, label_bound=1.0)
    with pytest.raises(PrivacyPreconditionError, match="unbounded slopes"):
        make(admm(), problem=dataclasses.replace(PROBLEM, loss=Squared()), facts=regression)
    with pytest.raises(PrivacyPreconditionError, match="unit: got 'party'"):
        make(admm(), unit="party")
    alone = dataclasses.replace(FACTS, parties=("a",), sizes=(10,))
    with pytest.raises(PrivacyPreconditionError, match="without neighbours"):
        make(admm(mechanism=PenaltyPerturbation(penalty=1.0, noise_rate=1.0)), facts=alone)
    with pytest.raises(PrivacyPreconditionError, match="must be positive"):
        make(admm(), problem=dataclasses.replace(PROBLEM, regulariser=L2(0.0)), facts=alone)


def test_delta_and_adjacency_are_never_assumed():
    with pytest.raises(TypeError, match="adjacency"):
        Plan.make(admm(), PROBLEM, "ring", FACTS, rounds=3)  # pyright: ignore[reportCallIssue]
    with pytest.raises(InputError, match="adjacency: got 'add-remove'"):
        make(admm(), adjacency="add-remove")
    with pytest.raises(TypeError, match="delta"):
        make(admm()).epsilon()
    with pytest.raises(TypeError, match="delta"):
        make(admm()).calibrate(1.0)


def test_bounds_come_from_the_caller_and_a_bound_read_off_the_data_is_recorded():
    rng = np.random.default_rng(0)
    X, y = 9 * rng.normal(size=(20, 3)), np.tile(["no", "yes"], 10)
    declared = Federation.from_arrays(X, y, parties=None, labels=("no", "yes"))
    assert declared.facts.data_derived == ()
    assert max(np.linalg.norm(declared.shards[0].X, axis=1)) <= 1.0
    read = Federation.from_arrays(X, y, parties=None, labels=("no", "yes"), row_norm="from-data")
    assert read.facts.data_derived == ("row_norm",)
