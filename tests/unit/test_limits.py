"""Plans and certificates from files are bounded before anything of their size is made."""

import copy
import dataclasses
import json
import math
import tracemalloc

import pytest
from test_certificate import DELTA, facts, plan, resigned

from coterie.algorithms import PenaltyPerturbedADMM
from coterie.certificate import Certificate, make_certificate
from coterie.errors import InputError
from coterie.network.topology import make_topology
from coterie.plan import Plan
from coterie.privacy.accountants import rdp_epsilon
from coterie.privacy.events import GaussianObjective
from coterie.privacy.objective import PenaltyPerturbation
from coterie.problems import L2, Logistic, Problem

MUCH = {
    "rounds": lambda p: p.update(n_rounds=10**9),
    "rounds as a large number": lambda p: p.update(n_rounds=10**400),
    "grants that change": lambda p: (
        p.update(n_rounds=10**5),
        p["algorithm"]["mechanism"]["noise_multiplier"].update(ratio=1.0000001),
        p["facts"].update(parties=[str(i) for i in range(100)], sizes=list(range(2, 102))),
        p["topology"].update(n_parties=100, edges=[[i, i + 1] for i in range(99)]),
        p["algorithm"]["mechanism"]["penalty"].update(start=2.0),
    ),
    "nodes": lambda p: p["topology"].update(n_parties=10**10),
    "a complete graph": lambda p: (
        p["facts"].update(parties=[str(i) for i in range(20_000)], sizes=[2] * 20_000),
        p["topology"].update(n_parties=20_000, edges={"type": "AllPairs", "n_parties": 20_000}),
        p["algorithm"]["mechanism"]["penalty"].update(start=2.0),
    ),
    "a complete graph of other parties": lambda p: p["topology"].update(edges={"type": "AllPairs", "n_parties": 10**9}),
    "features": lambda p: p["facts"].update(n_features=10**12),
    "an endless number": lambda p: p.update(n_rounds="1" * 10**6),
}


@pytest.mark.parametrize("change", MUCH.values(), ids=MUCH.keys())
def test_a_small_certificate_takes_no_large_memory(change):
    document = copy.deepcopy(make_certificate(plan(), DELTA, reproducible=False).document)
    change(document["plan"])
    tracemalloc.start()
    try:
        with pytest.raises(InputError) as refused:
            Certificate.from_json(resigned(document)).verify()
        assert tracemalloc.get_traced_memory()[1] < 10**8
    finally:
        tracemalloc.stop()
    assert len(str(refused.value)) < 2000


@pytest.mark.parametrize("text", ["[" * 10**5 + "]" * 10**5, '{"n_rounds": ' + "1" * 10**5 + "}", '{"type": "Plan"'])
def test_texts_that_are_no_plans_are_refused(text):
    with pytest.raises(InputError, match="plan"):
        Plan.from_json(text)


def test_the_loss_among_thousands_in_touch_with_everybody_needs_no_list_of_messages():
    public = facts(parties=tuple(map(str, range(10**4))), sizes=(30,) * 10**4)
    one = Plan(
        algorithm=PenaltyPerturbedADMM(
            mechanism=PenaltyPerturbation(penalty=2.0, noise_multiplier=10.0), dual_step=1.0
        ),
        problem=Problem(loss=Logistic(), regulariser=L2(1.0), record_weight=1.0),
        topology=make_topology("complete", 10**4),
        facts=public,
        n_rounds=10,
        adjacency="replace-one",
    )
    assert one.epsilon(DELTA) > 0
    assert len(json.dumps(json.loads(one.to_json())["topology"])) < 200
    assert "arcs" not in vars(one.topology)


def test_numbers_that_leave_floating_point_are_refused():
    content = json.loads(plan().to_json())
    content["algorithm"]["mechanism"]["noise_multiplier"].update(start=1e308, ratio=1e300)
    with pytest.raises(InputError, match="plan: Plan cannot be read"):
        Plan.from_json(json.dumps(content))


def test_a_curve_beyond_floating_point_costs_everything_without_a_warning():
    """Warnings are errors here."""
    event = GaussianObjective(ratio=1.0, jacobian=1e308, rank=1, effective_rank=1, adjacency="replace-one", margin=True)
    assert rdp_epsilon([(event, 1)], DELTA) == math.inf


def test_what_is_quoted_does_not_make_a_sentence_endless():
    with pytest.raises(InputError) as refused:
        Plan.from_json(json.dumps({"type": "x" * 10**6}))
    assert len(str(refused.value)) <= 1000
    assert str(refused.value).startswith("plan: unknown type 'xxx")


def test_a_plan_on_a_graph_of_others_is_refused():
    with pytest.raises(InputError, match="topology: 4 nodes given for 2 parties"):
        dataclasses.replace(plan(), topology=make_topology("ring", 4))
