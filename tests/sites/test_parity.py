"""Sites release what one process releases, from the same seeded noise; nothing else passes between them."""

import dataclasses
import json

import numpy as np
import pytest
from made import ALGORITHMS, DATA, NAMES, approved, direct, make_sites, plan_of

from coterie.engines.in_process import Paths, run
from coterie.engines.own_steps import OneParty
from coterie.engines.rounds import set_up
from coterie.errors import InputError
from coterie.inference import Columns, Releasing, release_moments
from coterie.minimisers.native.minimiser import Native
from coterie.privacy.moments import Moments
from coterie.privacy.noise import Seeded
from coterie.site.coordinator import Coordinator, PartyError
from coterie.site.messages import MessageError, numbers, pack, unpack
from coterie.site.proposal import most_told
from coterie.site.site import Site

# they compile a minimiser
SLOW = ("graph", "states", "walk")


@pytest.mark.parametrize("kind", [pytest.param(k, marks=[pytest.mark.slow] * (k in SLOW)) for k in ALGORITHMS])
def test_the_transcript_is_that_of_one_process(kind, tmp_path):
    plan = plan_of(kind, rounds=6)
    sites = make_sites(tmp_path / "sites")
    proposal, keys = approved(plan, sites, seed=3)
    exchange, lengths = direct(sites), []
    coordinator = Coordinator(
        proposal, keys, lambda party, packet: lengths.append(len(packet)) or exchange(party, packet), tmp_path / "run"
    )
    found = coordinator.run()
    expected = run(plan, DATA, noise=Seeded(3))
    np.testing.assert_allclose(found.releases, expected.releases, rtol=0, atol=1e-9)
    np.testing.assert_allclose(found.models, expected.models, rtol=0, atol=1e-9)
    signed = coordinator.signatures()
    assert [entry["statement"]["party"] for entry in signed["signed"]] == list(plan.facts.parties)
    # what is refused as too long before anybody is asked is what would be
    assert max(lengths) <= most_told(plan) <= 1.5 * max(lengths)


def test_what_a_fast_minimiser_misses_is_computed_by_the_plain_one(monkeypatch):
    pytest.importorskip("numba")
    plan = plan_of("graph")

    def party(**settings):
        return OneParty(plan, 0, DATA.shards[0], Seeded(3), paths=Paths(**settings))

    with set_up():
        _, right = party().work()
        fast = party(native_work=0)
        assert fast.steps.path == "argmin in machine code"
        np.testing.assert_allclose(fast.work()[1], right, rtol=0, atol=1e-9)
        # bounds on gradients, beyond any tolerance
        minimise = Native.minimise
        monkeypatch.setattr(Native, "minimise", lambda *given: (minimise(*given)[0], np.array([[np.inf]])))
        _, found = fast.work()
    np.testing.assert_allclose(found, right, rtol=0, atol=1e-9)


# --- what is released after the rounds, for intervals -----------------------------------------------------------------

MOMENTS = Moments(multipliers=(30.0, 20.0), curvature_weight=1.5, second_moment_multiplier=40.0)
COLUMNS = Columns.of_features(["a", "b", "c", "d"], np.ones(4))


def with_moments(kind):
    return dataclasses.replace(plan_of(kind, rounds=3), moments=MOMENTS)


def coordinator_of(proposal, keys, exchange, folder):
    return Coordinator(proposal, keys, exchange, folder, course_of=lambda transcript: Releasing(transcript, COLUMNS))


def same(found, expected):
    for name, values in expected._asdict().items():
        np.testing.assert_allclose(getattr(found, name), values, rtol=0, atol=1e-9, err_msg=name)


WITH_MOMENTS = ("gradient", "gradient, nobody trusted", "pairs", pytest.param("walk", marks=pytest.mark.slow))


@pytest.mark.parametrize("kind", WITH_MOMENTS)
def test_moments_are_those_of_one_process(kind, tmp_path):
    """Also by a coordinator and sites that are started again between two of them."""
    plan = with_moments(kind)
    sites = make_sites(tmp_path / "sites")
    proposal, keys = approved(plan, sites, seed=3)
    answers, lengths = direct(sites), []

    def until_the_second(party, packet):
        lengths.append(len(packet))
        message = unpack(packet)
        if message.kind == "moments" and message["round"] == plan.n_rounds + 1 and party == NAMES[2]:
            return pack("refused", proposal.digest, party, sites[2].keys)
        return answers(party, packet)

    with pytest.raises(PartyError, match="refused"):
        coordinator_of(proposal, keys, until_the_second, tmp_path / "run").run()
    for site in sites:
        site.close()
    sites = [Site(site.store.folder) for site in sites]
    # a site that was started again is told everything anew; what counts is what one that was not is told
    assert max(lengths) <= most_told(plan) <= 3 * max(lengths)
    coordinator = coordinator_of(proposal, keys, direct(sites), tmp_path / "run")
    transcript = coordinator.run()
    expected = run(plan, DATA, noise=Seeded(3))
    np.testing.assert_allclose(transcript.releases, expected.releases, rtol=0, atol=1e-9)
    same(coordinator.course.released, release_moments(expected, DATA, COLUMNS, Seeded(3)))
    signed = coordinator.signatures()
    assert [entry["statement"]["party"] for entry in signed["signed"]] == list(plan.facts.parties)
    committed = sites[0].ledger.reservation(proposal.digest).committed
    assert {*range(plan.n_rounds, plan.n_rounds + 3)} <= {*committed}


def test_who_takes_moments_says_where(tmp_path):
    proposal, keys = approved(with_moments("gradient"), sites := make_sites(tmp_path / "sites"))
    with pytest.raises(InputError, match="course_of: got none for a plan with moments"):
        Coordinator(proposal, keys, direct(sites), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.fixture
def asked_for_moments(tmp_path):
    """Sites after a run with moments, its proposal and the coordinator's keys, and what the first site was asked."""
    sites = make_sites(tmp_path / "sites")
    proposal, keys = approved(with_moments("gradient, nobody trusted"), sites)
    exchange, asked = direct(sites), []

    def kept(party, packet):
        if party == NAMES[0] and (message := unpack(packet)).kind == "moments":
            asked.append(message)
        return exchange(party, packet)

    coordinator_of(proposal, keys, kept, tmp_path / "run").run()
    return sites, proposal, keys, asked


def test_moments_leave_a_site_once_whatever_model_is_asked_for(asked_for_moments):
    sites, proposal, keys, (asked, *_) = asked_for_moments
    exchange = direct(sites)
    fields = {name: asked[name] for name in ("round", "first", "heard")}
    first = exchange(NAMES[0], asked.packet)
    elsewhere = numbers(asked["model"], (4,)) + 1.0
    again = exchange(NAMES[0], pack("moments", proposal.digest, "coordinator", keys, **fields, model=elsewhere))
    assert unpack(first).kind == "release"
    assert again == first


def test_a_site_keeps_no_result_with_moments_at_another_model_than_it_was_asked_for(asked_for_moments, tmp_path):
    sites, proposal, _, asked = asked_for_moments
    models, here = [numbers(message["model"], (4,)) for message in asked], sites[0]._runs[proposal.digest]
    assert len(models) == 3

    def check(told):
        (tmp_path / "moments.json").write_text(json.dumps({"models": [model.tolist() for model in told]}))
        here._check_moments(tmp_path)

    check(models)
    for place in range(3):
        elsewhere = [np.nextafter(model, 1) if i == place else model for i, model in enumerate(models)]
        with pytest.raises(MessageError, match="at another model than this site was asked for"):
            check(elsewhere)
    (tmp_path / "moments.json").write_text("{}")
    with pytest.raises(MessageError, match="cannot be read"):
        here._check_moments(tmp_path)


@pytest.mark.parametrize("model", [np.full(4, np.nan), np.zeros(5)])
def test_moments_at_no_model_are_refused(model, tmp_path):
    plan = with_moments("gradient, nobody trusted")
    sites = make_sites(tmp_path / "sites")
    proposal, keys = approved(plan, sites)
    exchange = direct(sites)
    exchange(NAMES[0], pack("open", proposal.digest, "coordinator", keys))
    asked = {"round": plan.n_rounds, "first": 0, "heard": [[]] * plan.n_rounds, "model": model}
    answer = unpack(exchange(NAMES[0], pack("moments", proposal.digest, "coordinator", keys, **asked)))
    assert answer.kind == "refused"
    assert not sites[0].ledger.reservation(proposal.digest).committed
