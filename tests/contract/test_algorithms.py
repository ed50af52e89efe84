"""Every algorithm in the package keeps the same promises; a new one is tested by being in the table of names."""

import dataclasses
import inspect
import json
import re

import networkx as nx
import pytest

from coterie.algorithms import ALGORITHMS, Algorithm, EdgewiseADMM, MemorylessWalk
from coterie.errors import InputError
from coterie.network.channels import Broadcast, Curator, SecureSum
from coterie.network.topology import Sample, Walk, make_topology
from coterie.plan import Plan
from coterie.privacy.image import ImageNoise
from coterie.privacy.mechanisms import GaussianGradient
from coterie.privacy.objective import (
    DualPerturbation,
    LinearPerturbation,
    NoNoise,
    OutputPerturbation,
    PenaltyPerturbation,
    SoloPerturbation,
)
from coterie.privacy.proximal import BroadcastNoise, LocalNoise, SumNoise, WalkNoise
from coterie.privacy.standardising import StandardisedGradient
from coterie.problems import L2, Logistic, Problem
from coterie.values import Facts

FACTS = Facts(parties=("a", "b", "c", "d"), sizes=(20, 30, 40, 50), n_features=3, row_norm=1.0, labels=("n", "y"))
PROBLEM = Problem(loss=Logistic(), regulariser=L2(1.0), record_weight=1.0)
RING = make_topology("ring", 4)
GAUSSIAN = {"noise_multiplier": 4.0}
PROXIMAL = {"prox_step": 0.1, "relaxation": 0.5, **GAUSSIAN}

# a sensible setting of each algorithm
EXAMPLES = {
    "admm": lambda cls: cls.with_penalty(1.0),
    "dual-perturbed-admm": lambda cls: cls(mechanism=DualPerturbation(penalty=1.0, **GAUSSIAN), dual_step=1.0),
    "primal-perturbed-admm": lambda cls: cls(mechanism=OutputPerturbation(penalty=1.0, **GAUSSIAN), dual_step=1.0),
    "penalty-perturbed-admm": lambda cls: cls(mechanism=PenaltyPerturbation(penalty=1.0, **GAUSSIAN), dual_step=1.0),
    "edgewise-admm": lambda cls: cls.with_edges(RING, (1.0, 2.0, 3.0, 4.0), dual_step=1.0, **GAUSSIAN),
    "recycled-admm": lambda cls: cls(
        mechanism=LinearPerturbation(penalty=1.0, **GAUSSIAN), dual_step=1.0, recycle_weight=1.0
    ),
    "one-release-average": lambda cls: cls(mechanism=SoloPerturbation(extra_l2=10.0, **GAUSSIAN)),
    "noisy-gradient-descent": lambda cls: cls(
        mechanism=GaussianGradient(**GAUSSIAN), regulariser=L2(1.0), step=0.1, channel=Broadcast(), momentum=0.9
    ),
    "standardised-gradient-descent": lambda cls: cls(
        mechanism=StandardisedGradient(**GAUSSIAN, column_std=8.0), regulariser=L2(1.0), step=0.1, channel=SecureSum()
    ),
    "noisy-coordinate-descent": lambda cls: cls(
        mechanism=GaussianGradient(**GAUSSIAN), regulariser=L2(1.0), step=0.1, channel=Curator()
    ),
    "locally-noised-admm": lambda cls: cls(
        mechanism=LocalNoise(**PROXIMAL), regulariser=L2(1.0), selection=Sample(count=3, seed=0)
    ),
    "sum-noised-admm": lambda cls: cls(mechanism=SumNoise(**PROXIMAL), regulariser=L2(1.0), channel=Curator()),
    "broadcast-noised-admm": lambda cls: cls(
        mechanism=BroadcastNoise(**PROXIMAL), regulariser=L2(1.0), channel=SecureSum()
    ),
    "walk-admm": lambda cls: cls(mechanism=LocalNoise(**PROXIMAL), regulariser=L2(1.0), selection=Walk(seed=0)),
    "memoryless-walk": lambda cls: cls(
        mechanism=WalkNoise(**PROXIMAL), regulariser=L2(0.0), selection=Walk(seed=None, most_visits=4)
    ),
}


# one party holds everything: no graph, no other parties, so it has tests of its own below
ALONE = {"general-admm"}


def test_every_algorithm_has_an_example_here():
    assert set(ALGORITHMS) == set(EXAMPLES) | ALONE, "add a sensible setting of the new algorithm to EXAMPLES"


@pytest.fixture(params=sorted(EXAMPLES))
def algorithm(request):
    return EXAMPLES[request.param](ALGORITHMS[request.param])


def those_with(attribute):
    """The algorithms that have such a setting at all."""
    found = {name: example(ALGORITHMS[name]) for name, example in EXAMPLES.items()}
    return pytest.mark.parametrize(
        "algorithm", [a for a in found.values() if attribute(a)], ids=lambda a: type(a).__name__
    )


WITH_PENALTY = those_with(lambda a: "penalty" in a.mechanism.schedules())
WITH_DUAL_STEP = those_with(lambda a: hasattr(a, "dual_step"))


def problem_for(algorithm, **changes):
    """The algorithms that apply the regulariser themselves must be told the same one."""
    return dataclasses.replace(
        PROBLEM, **({"regulariser": getattr(algorithm, "regulariser", PROBLEM.regulariser)} | changes)
    )


def make_plan(algorithm, **changes):
    graph = "unrestricted" if isinstance(algorithm, MemorylessWalk) else RING
    arguments = {"topology": graph, "facts": FACTS, "rounds": 3, "adjacency": "replace-one"}
    arguments |= {"problem": problem_for(algorithm)} | changes
    problem, topology, facts = (arguments.pop(name) for name in ("problem", "topology", "facts"))
    return Plan.make(algorithm, problem, topology, facts, **arguments)


def noised(plan):
    return not isinstance(plan.algorithm.mechanism, NoNoise)


# --- identity -------------------------------------------------------------------------------------------------------


def test_a_citation_is_named(algorithm):
    """The last part is the year, so that a reader can find the paper."""
    assert re.fullmatch(r"[a-z-]+-(19|20)\d\d", algorithm.citation.key)


def test_digest_survives_a_round_trip_through_json(algorithm):
    plan = make_plan(algorithm)
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert again.digest == plan.digest
    assert re.fullmatch("[0-9a-f]{64}", plan.digest)
    # the order of keys and the white space are nobody's business
    shuffled = json.dumps(dict(reversed(json.loads(plan.to_json()).items())), indent=7)
    assert Plan.from_json(shuffled).digest == plan.digest


def test_every_setting_is_in_the_digest(algorithm):
    plan = make_plan(algorithm)
    others = [
        make_plan(algorithm, rounds=4),
        make_plan(algorithm, adjacency="zero-out"),
        make_plan(algorithm, records_per_person=2),
        make_plan(algorithm, people_span_parties=True),
        make_plan(algorithm, problem=problem_for(algorithm, class_weight=(1.0, 1.0))),
        make_plan(algorithm, facts=dataclasses.replace(FACTS, row_norm=0.5)),
        make_plan(algorithm, facts=dataclasses.replace(FACTS, sizes=(20, 30, 40, 51))),
    ]
    if not hasattr(algorithm, "regulariser"):
        others.append(make_plan(algorithm, problem=dataclasses.replace(PROBLEM, regulariser=L2(1.0000000000000002))))
    # its penalties belong to one graph
    if not isinstance(algorithm, EdgewiseADMM):
        others.append(make_plan(algorithm, topology="complete"))
    if noised(plan):
        mechanism = algorithm.mechanism.with_noise(1.5)
        others.append(make_plan(dataclasses.replace(algorithm, mechanism=mechanism)))
    digests = [plan.digest, *(other.digest for other in others)]
    assert len(set(digests)) == len(digests)


def test_an_algorithm_for_one_party_keeps_the_same_promises():
    facts = dataclasses.replace(FACTS, parties=("a",), sizes=(140,))

    def plan(multiplier=4.0, **changes):
        mechanism = ImageNoise(
            A=[[1.0, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 2.0]], prox_step=0.1, noise_multiplier=multiplier
        )
        algorithm = ALGORITHMS["general-admm"](mechanism=mechanism, regulariser=L2(1.0), relaxation=0.5)
        return make_plan(algorithm, facts=facts, topology="unrestricted", **changes)

    assert re.fullmatch(r"[a-z-]+-(19|20)\d\d", plan().algorithm.citation.key)
    assert Plan.from_json(plan().to_json()) == plan()
    digests = {p.digest for p in (plan(), plan(5.0), plan(rounds=4), plan(adjacency="zero-out"))}
    assert len(digests) == 4
    assert 0 < plan(8.0).epsilon(1e-6) < plan().epsilon(1e-6) < plan(rounds=6).epsilon(1e-6)
    assert 1.999 <= plan().calibrate(2.0, 1e-6).epsilon(1e-6) <= 2.0


def test_the_same_settings_made_twice_are_one_plan(algorithm):
    assert make_plan(algorithm).digest == make_plan(algorithm).digest


def test_more_noise_and_fewer_rounds_cost_less(algorithm):
    plan = make_plan(algorithm)
    if not noised(plan):
        assert plan.epsilon(1e-6) == float("inf")
        return
    noisier = make_plan(dataclasses.replace(algorithm, mechanism=algorithm.mechanism.with_noise(2.0)))
    assert 0 < noisier.epsilon(1e-6) < plan.epsilon(1e-6) < make_plan(algorithm, rounds=6).epsilon(1e-6)


def test_calibration_meets_its_target_from_below(algorithm):
    plan = make_plan(algorithm)
    if noised(plan):
        assert 1.999 <= plan.calibrate(2.0, 1e-6).epsilon(1e-6) <= 2.0


# --- refusals -------------------------------------------------------------------------------------------------------


def test_adjacency_and_delta_cannot_be_forgotten(algorithm):
    with pytest.raises(TypeError, match="adjacency"):
        Plan.make(algorithm, problem_for(algorithm), RING, FACTS, rounds=3)
    with pytest.raises(TypeError, match="delta"):
        make_plan(algorithm).epsilon()
    with pytest.raises(TypeError, match="delta"):
        make_plan(algorithm).calibrate(1.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rounds": 0}, "rounds: got 0;"),
        ({"rounds": -2}, "rounds: got -2;"),
        ({"rounds": 2.0}, "rounds: got 2.0;"),
        ({"rounds": True}, "rounds: got True;"),
        ({"adjacency": "add-remove"}, "adjacency: got 'add-remove';"),
        ({"adjacency": None}, "adjacency: got None;"),
        ({"unit": "person"}, "unit: got 'person';"),
        ({"records_per_person": 0}, "records_per_person: got 0;"),
        ({"topology": "rign"}, "topology: got 'rign'; one of "),
        ({"topology": [(0, 1), (2, 3)]}, "topology: the graph falls into 2 components ({0, 1}; {2, 3});"),
        ({"topology": nx.path_graph(5)}, "topology: the graph has 5 nodes for 4 parties"),
        ({"topology": 3}, "topology: got a int;"),
        ({"facts": dataclasses.replace(FACTS, labels=None, label_bound=1.0)}, "labels: got None;"),
        ({"class_weight": (1.0,)}, "class_weight: 1 given for 2 labels;"),
    ],
    ids=lambda value: value.partition(";")[0] if isinstance(value, str) else next(iter(value)),
)
@pytest.mark.parametrize("algorithm", ["penalty-perturbed-admm", "sum-noised-admm"], indirect=True)
def test_bad_plans_are_refused_by_name_and_value(algorithm, changes, message):
    if "class_weight" in changes:
        changes = {"problem": problem_for(algorithm, **changes)}
    with pytest.raises(InputError, match="^" + re.escape(message)):
        make_plan(algorithm, **changes)


@pytest.mark.parametrize("algorithm", ["penalty-perturbed-admm", "sum-noised-admm"], indirect=True)
@pytest.mark.parametrize("delta", [0, 0.0, 1, 1.0, 2, -0.1, float("nan"), True, "1e-6", None])
def test_bad_deltas_are_refused(algorithm, delta):
    plan = make_plan(algorithm)
    for ask in (plan.epsilon, plan.party_epsilons, lambda delta: plan.calibrate(1.0, delta)):
        with pytest.raises(InputError, match=rf"^delta: got {re.escape(repr(delta))};"):
            ask(delta)


@pytest.mark.parametrize("algorithm", ["penalty-perturbed-admm", "sum-noised-admm"], indirect=True)
@pytest.mark.parametrize("epsilon", [0, -1.0, float("inf"), float("nan"), True, "1"])
def test_bad_epsilons_are_refused(algorithm, epsilon):
    with pytest.raises(InputError, match=rf"^epsilon: got {re.escape(repr(epsilon))};"):
        make_plan(algorithm).calibrate(epsilon, 1e-6)


def test_without_noise_there_is_nothing_to_calibrate():
    with pytest.raises(InputError, match=r"noise"):
        make_plan(EXAMPLES["admm"](ALGORITHMS["admm"])).calibrate(1.0, 1e-6)


def test_an_observer_the_channel_does_not_provide_is_refused(algorithm):
    with pytest.raises(InputError, match=r"^observer: got 'nobody';"):
        make_plan(algorithm).epsilon(1e-6, observer="nobody")


@WITH_PENALTY
def test_a_wrong_number_of_penalties_is_refused(algorithm):
    mechanism = dataclasses.replace(algorithm.mechanism, penalty=(1.0, 2.0))
    with pytest.raises(InputError, match=r"^penalty: 2 values given for 4 parties;"):
        make_plan(dataclasses.replace(algorithm, mechanism=mechanism))


@WITH_PENALTY
@pytest.mark.parametrize("penalty", [0.0, -1.0, float("nan"), float("inf"), "big", (1.0, -1.0, 1.0, 1.0)])
def test_bad_penalties_are_refused(algorithm, penalty):
    """The sentence must name the argument the caller wrote, and the value."""
    with pytest.raises(InputError, match=rf"^penalty: got .*{re.escape(str(penalty))}"):
        dataclasses.replace(algorithm.mechanism, penalty=penalty)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_a_graph_of_neighbours_is_asked_for_where_it_is_needed(name):
    algorithm = EXAMPLES[name](ALGORITHMS[name])
    if algorithm.needs_graph:
        with pytest.raises(InputError, match=r"^(topology: got 'unrestricted'|edge_penalty: )"):
            make_plan(algorithm, topology="unrestricted")
    else:
        assert make_plan(algorithm, topology="unrestricted").epsilon(1e-6) > 0


@those_with(lambda a: hasattr(a, "regulariser"))
def test_a_regulariser_that_is_not_the_problems_is_refused(algorithm):
    with pytest.raises(InputError, match=r"^regulariser: the algorithm has "):
        make_plan(algorithm, problem=dataclasses.replace(PROBLEM, regulariser=L2(7.0)))


@WITH_DUAL_STEP
def test_dual_steps_per_party_are_refused_because_they_move_the_limit(algorithm):
    with pytest.raises(InputError, match=r"^dual_step: got \(1\.0, 2\.0, 3\.0, 4\.0\);"):
        dataclasses.replace(algorithm, dual_step=(1.0, 2.0, 3.0, 4.0))


@pytest.mark.parametrize("edge_penalty", [(1.0, 2.0, 3.0), (1.0,) * 5])
def test_one_penalty_per_edge_is_needed(edge_penalty):
    with pytest.raises(InputError, match=rf"^edge_penalty: {len(edge_penalty)} given for 4 edges;"):
        EdgewiseADMM.with_edges(RING, edge_penalty, dual_step=1.0, **GAUSSIAN)
    by_hand = dataclasses.replace(EXAMPLES["edgewise-admm"](EdgewiseADMM), edge_penalty=edge_penalty)
    with pytest.raises(InputError, match=r"^edge_penalty: "):
        make_plan(by_hand)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", '"plan"', '{"type": "Nonsense"}', '{"type": "L2", "l2": 1.0}', '{"type": "Plan"}']
)
def test_text_that_is_no_plan_is_refused(text):
    with pytest.raises(InputError, match=r"^plan: "):
        Plan.from_json(text)


@pytest.mark.parametrize("method", ["init", "inbox", "local", "combine", "models"])
def test_an_algorithm_without_a_method_is_told_which(method):
    class Unfinished(Algorithm):
        pass

    arguments = [None] * (len(inspect.signature(getattr(Algorithm, method)).parameters) - 1)
    with pytest.raises(NotImplementedError, match=f"^Unfinished has no method '{method}'$"):
        getattr(Unfinished(), method)(*arguments)
