"""A site decides: what is not approved, signed, in order and in its policy is refused, and nothing is spent."""

import dataclasses
import hashlib
import json
import re
import tomllib

import numpy as np
import pytest
from made import ALGORITHMS, DATA, DELTA, NAMES, approved, direct, make_sites, plan_of, policy_of, propose

from coterie.algorithms import NoisyGradientDescent
from coterie.certificate import Certificate, make_certificate
from coterie.cli.spec.execution import fill_run, model_of
from coterie.cli.spec.verification import verify_path
from coterie.data import CategoryColumn, Label, NumberColumn, Schema
from coterie.engines.own_steps import OneParty
from coterie.errors import InputError
from coterie.keys import SEAL_BYTES, Identity, PrivateKeys, Sealer, SignatureError
from coterie.network.channels import Curator, SecureSum
from coterie.network.topology import Poisson
from coterie.plan import Plan
from coterie.privacy.mechanisms import GaussianGradient
from coterie.problems import L2, Logistic, Problem
from coterie.rundir import sums
from coterie.site.coordinator import Coordinator, PartyError
from coterie.site.messages import SIGNATURE_BYTES, MessageError, decoded, encoded, numbers, pack, unpack
from coterie.site.policy import Policy
from coterie.site.proposal import _AROUND_NUMBERS, LONGEST_TITLE, Proposal, _allowed, most_told
from coterie.site.site import Site
from coterie.site.sockets import UnreachableError
from coterie.site.store import Store, write_whole

ROUNDS = 4


class Recorded:
    """An exchange that remembers what was asked and answered."""

    def __init__(self, sites, *, stop_before=None):
        self.exchange, self.stop_before, self.said = direct(sites), stop_before, []

    def __call__(self, party, packet):
        message = unpack(packet)
        if message.kind == "round" and message["round"] == self.stop_before:
            raise UnreachableError(f"{party} is away")
        answer = self.exchange(party, packet)
        self.said.append((party, packet, answer))
        return answer

    def of(self, party, kind, t):
        return next(
            (asked, answer)
            for name, asked, answer in self.said
            if name == party and unpack(asked).kind == kind and unpack(asked).fields.get("round") == t
        )


@pytest.fixture(scope="module")
def halfway(tmp_path_factory):
    """Sites in the middle of a run: rounds 0 and 1 are released."""
    folder = tmp_path_factory.mktemp("halfway")
    sites = make_sites(folder / "sites")
    proposal, keys = approved(plan_of("gradient", ROUNDS), sites, wait_s=0.2)
    recorded = Recorded(sites, stop_before=2)
    with pytest.raises(PartyError, match="has not answered for"):
        Coordinator(proposal, keys, recorded, folder / "run").run()
    return sites, proposal, keys, recorded


def kind_of(answer):
    return unpack(answer).kind


def last_reason(site):
    return json.loads((site.store.folder / "log.jsonl").read_text().splitlines()[-1])["reason"]


def test_a_round_that_is_asked_for_again_gets_the_stored_bytes(halfway):
    sites, _, _, recorded = halfway
    head = sites[0].ledger.head()
    for t in (1, 0, 1):
        asked, answered = recorded.of(NAMES[0], "round", t)
        assert direct(sites)(NAMES[0], asked) == answered
    assert sites[0].ledger.head() == head


def test_a_coordinators_folder_is_its_own(halfway):
    sites, *_ = halfway
    folder = sites[0].store.folder.parents[1] / "run"
    assert folder.stat().st_mode & 0o7777 == 0o700


def test_also_after_a_restart_when_the_history_is_told_anew(halfway):
    sites, proposal, keys, recorded = halfway
    again = Site(sites[0].store.folder)
    heard = unpack(recorded.of(NAMES[0], "round", 1)[0])["heard"]
    asked = pack("round", proposal.digest, "coordinator", keys, round=1, first=1, heard=[])
    assert kind_of(direct([again])(NAMES[0], asked)) == "behind"
    asked = pack("round", proposal.digest, "coordinator", keys, round=1, first=0, heard=heard)
    assert direct([again])(NAMES[0], asked) == recorded.of(NAMES[0], "round", 1)[1]
    again.close()


def test_rounds_with_other_content_are_refused(halfway):
    sites, proposal, keys, _ = halfway
    head = sites[0].ledger.head()
    forged = pack("sum", proposal.digest, "coordinator", keys, round=0, value=np.ones(4))
    asked = pack("round", proposal.digest, "coordinator", keys, round=1, first=0, heard=[[forged]])
    assert kind_of(direct(sites)(NAMES[0], asked)) == "refused"
    assert "told again with other content" in last_reason(sites[0])
    assert sites[0].ledger.head() == head


@pytest.mark.parametrize("t", [3, 4, 10**5])
def test_rounds_out_of_order_are_refused(halfway, t):
    sites, proposal, keys, recorded = halfway
    heard = unpack(recorded.of(NAMES[0], "round", 1)[0])["heard"] * t
    asked = pack("round", proposal.digest, "coordinator", keys, round=t, first=0, heard=heard)
    assert kind_of(direct(sites)(NAMES[0], asked)) == "refused"


@pytest.mark.parametrize("t", [0, 2, ROUNDS, 10**5])
def test_moments_that_a_plan_does_not_have_are_refused_by_their_number(halfway, t):
    sites, proposal, keys, recorded = halfway
    heard = unpack(recorded.of(NAMES[0], "round", 1)[0])["heard"] * min(t, 2)
    fields = {"round": t, "first": 0, "heard": heard, "model": np.zeros(4)}
    assert (
        kind_of(direct(sites)(NAMES[0], pack("moments", proposal.digest, "coordinator", keys, **fields))) == "refused"
    )
    assert f"moments numbered {t - ROUNDS}; the plan has 0" in last_reason(sites[0])
    # reasons are the owner's alone
    assert (sites[0].store.folder / "log.jsonl").stat().st_mode & 0o7777 == 0o600


def test_nobody_but_the_coordinator_of_the_proposal_can_ask(halfway):
    sites, proposal, _, _ = halfway
    for keys in (PrivateKeys.generate(), sites[1].keys):
        asked = pack("open", proposal.digest, "coordinator", keys)
        assert kind_of(direct(sites)(NAMES[0], asked)) == "refused"
        assert "is not signed by its key" in last_reason(sites[0])


@pytest.mark.parametrize(("kind", "sender"), [("open", NAMES[1]), ("refused", "coordinator")])
def test_nor_can_it_ask_in_another_name_or_for_something_else(halfway, kind, sender):
    sites, proposal, keys, _ = halfway
    assert kind_of(direct(sites)(NAMES[0], pack(kind, proposal.digest, sender, keys))) == "refused"
    assert "requests come from the coordinator" in last_reason(sites[0])


def test_nor_can_anybody_wake_a_run_that_the_site_has_not_begun(tmp_path):
    sites = make_sites(tmp_path)
    proposal, _ = approved(plan_of("gradient"), sites)
    asked = pack("open", proposal.digest, "coordinator", PrivateKeys.generate())
    assert kind_of(direct(sites)(NAMES[0], asked)) == "refused"
    assert sites[0].ledger.reservation(proposal.digest) is None


def test_what_others_are_said_to_have_released_must_be_signed_by_them(halfway):
    sites, proposal, keys, recorded = halfway
    head = sites[0].ledger.head()
    [first] = unpack(recorded.of(NAMES[0], "round", 1)[0])["heard"]
    for forger in (sites[1].keys, PrivateKeys.generate()):
        forged = pack("sum", proposal.digest, "coordinator", forger, round=1, value=np.zeros(4))
        asked = pack("round", proposal.digest, "coordinator", keys, round=2, first=0, heard=[first, [forged]])
        assert kind_of(direct(sites)(NAMES[0], asked)) == "refused"
        assert "is not signed by its key" in last_reason(sites[0])
    assert sites[0].ledger.head() == head


def test_a_site_that_was_passed_over_neither_signs_nor_works_afterwards(tmp_path):
    """A coordinator that is a curator can tell any sums; what they skip is not made up for."""
    sites = make_sites(tmp_path)
    proposal, keys = approved(plan_of("gradient", ROUNDS), sites)
    exchange = direct(sites)
    exchange(NAMES[0], pack("open", proposal.digest, "coordinator", keys))
    told = [[pack("sum", proposal.digest, "coordinator", keys, round=t, value=np.full(4, 0.1))] for t in range(ROUNDS)]
    asked = pack("finish", proposal.digest, "coordinator", keys, first=0, heard=told)
    assert kind_of(exchange(NAMES[0], asked)) == "refused"
    assert "was not asked whenever the plan says so" in last_reason(sites[0])
    asked = pack("round", proposal.digest, "coordinator", keys, round=1, first=0, heard=told[:1])
    assert kind_of(exchange(NAMES[0], asked)) == "refused"
    assert "was not asked for in time" in last_reason(sites[0])
    assert not sites[0].ledger.reservation(proposal.digest).committed


def test_a_site_works_only_in_the_rounds_that_the_plan_gives_it(tmp_path):
    sites = make_sites(tmp_path)
    proposal, keys = approved(plan_of("walk", ROUNDS), sites)
    idle = int(np.flatnonzero(~proposal.plan.participation[0])[0])
    direct(sites)(NAMES[idle], pack("open", proposal.digest, "coordinator", keys))
    asked = pack("round", proposal.digest, "coordinator", keys, round=0, first=0, heard=[])
    assert kind_of(direct(sites)(NAMES[idle], asked)) == "refused"
    assert "in which this site does not work" in last_reason(sites[idle])


def test_a_release_in_the_sites_own_name_must_be_its_own(tmp_path):
    sites = make_sites(tmp_path / "sites")
    proposal, keys = approved(plan_of("walk", ROUNDS), sites)
    works = proposal.plan.participation
    first = int(np.flatnonzero(works[0])[0])
    site = sites[first]
    direct(sites)(NAMES[first], pack("open", proposal.digest, "coordinator", keys))
    forged = pack("release", proposal.digest, NAMES[first], site.keys, round=0, value=np.zeros(4))
    asked = pack("finish", proposal.digest, "coordinator", keys, first=0, heard=[[forged]] * ROUNDS)
    assert kind_of(direct(sites)(NAMES[first], asked)) == "refused"
    assert "that it has not made" in last_reason(site)


def test_a_run_that_was_not_approved_is_refused_and_costs_nothing(tmp_path):
    sites = make_sites(tmp_path)
    proposal, keys = propose(plan_of("gradient"), sites)
    head = sites[0].ledger.head()
    for kind, fields in (("open", {}), ("round", {"round": 0, "first": 0, "heard": []})):
        assert kind_of(direct(sites)(NAMES[0], pack(kind, proposal.digest, "coordinator", keys, **fields))) == "refused"
    assert sites[0].ledger.head() == head


def test_a_round_needs_a_reservation(tmp_path):
    sites = make_sites(tmp_path)
    proposal, keys = approved(plan_of("gradient"), sites)
    asked = pack("round", proposal.digest, "coordinator", keys, round=0, first=0, heard=[])
    assert kind_of(direct(sites)(NAMES[0], asked)) == "refused"
    assert "not reserved" in last_reason(sites[0])


def test_withdrawing_before_anything_was_released_gives_the_price_back(tmp_path):
    sites = make_sites(tmp_path, epsilon="100.0")
    proposal, keys = approved(plan_of("gradient"), sites)
    site, opening = sites[0], pack("open", proposal.digest, "coordinator", keys)
    assert kind_of(direct(sites)(NAMES[0], opening)) == "ready"
    assert site.ledger.total(NAMES[0]).epsilon > 0
    assert site.withdraw(proposal.digest)
    assert site.ledger.total(NAMES[0]).epsilon == 0
    assert kind_of(direct(sites)(NAMES[0], opening)) == "refused"
    assert "a new proposal is needed" in " ".join(site.review(proposal).refusals)


def test_withdrawing_in_the_middle_ends_the_run_and_keeps_the_charge(tmp_path):
    sites = make_sites(tmp_path / "sites", epsilon="100.0")
    proposal, keys = approved(plan_of("gradient", ROUNDS), sites)
    exchange = direct(sites)

    def leaving(party, packet):
        if party == NAMES[2] and unpack(packet).fields.get("round") == 2:
            # as another process would
            Site(sites[2].store.folder).withdraw(proposal.digest)
        return exchange(party, packet)

    with pytest.raises(PartyError, match="south refused, for a reason that stands in its own log"):
        Coordinator(proposal, keys, leaving, tmp_path / "run").run()
    booked = sites[2].ledger.reservation(proposal.digest)
    assert sorted(booked.committed) == [0, 1]
    assert sites[2].ledger.total(NAMES[2]).epsilon == pytest.approx(proposal.losses[2])


def test_a_budget_that_would_be_exceeded_is_refused_at_approval_and_at_the_run(tmp_path):
    sites = make_sites(tmp_path / "sites", epsilon="1.0")
    plan = plan_of("gradient", ROUNDS)
    plan = plan.calibrate(0.7, DELTA)
    first, keys = approved(plan, sites)
    # nothing is spent yet, so each fits by itself
    second, other_keys = approved(plan, sites)
    Coordinator(first, keys, direct(sites), tmp_path / "run").run()
    assert "would be spent of 1" in " ".join(sites[0].review(second).refusals)
    with pytest.raises(PartyError, match="refused"):
        Coordinator(second, other_keys, direct(sites), tmp_path / "other").run()
    assert sites[0].ledger.reservation(second.digest) is None


def test_what_was_spent_counts_also_under_another_name(tmp_path):
    """A site that another study calls otherwise has the records that it had."""
    sites = make_sites(tmp_path / "sites", epsilon="1.0")
    plan = plan_of("gradient", ROUNDS).calibrate(0.7, DELTA)
    proposal, keys = approved(plan, sites)
    Coordinator(proposal, keys, direct(sites), tmp_path / "run").run()
    sites[0].close()
    (sites[0].store.folder / "site.toml").write_text(policy_of("eastern", epsilon="1.0"))
    sites[0] = Site(sites[0].store.folder)
    facts = dataclasses.replace(plan.facts, parties=("eastern", *NAMES[1:]))
    review = sites[0].review(propose(dataclasses.replace(plan, facts=facts), sites)[0])
    assert review.spent == pytest.approx(0.7, rel=1e-3)
    assert "would be spent of 1" in " ".join(review.refusals)
    assert sites[0].ledger.bodies() == (NAMES[0],)


@pytest.mark.parametrize(
    ("kind", "more", "settings", "reason"),
    [
        ("gradient", "curator = false", {}, "curator: the coordinator would see contributions without noise"),
        ("gradient", "curator = true", {"seed": 1}, "seeded: the noise would come from a seed"),
        ("gradient", "curator = true\nsmallest_parties = 9", {}, "smallest_parties: 4 take part, 9 are needed"),
        ("gradient", 'curator = true\n# algorithms = ["walk-admm"]', {}, "algorithms: noisy-gradient-descent"),
        ("pairs", "colluders = 2", {}, "colluders: the plan is priced for 1, 2 are needed"),
        ("gradient", 'curator = true\n# losses = ["squared"]', {}, "losses: logistic is not allowed"),
    ],
)
def test_policy(tmp_path, kind, more, settings, reason):
    text = (
        policy_of(NAMES[0], more=more)
        .replace('# algorithms = ["w', 'algorithms = ["w')
        .replace('# losses = ["s', 'losses = ["s')
    )
    sites = make_sites(tmp_path)
    (sites[0].store.folder / "site.toml").write_text(text)
    site = Site(sites[0].store.folder)
    proposal, _ = propose(plan_of(kind), sites, **settings)
    assert reason in " ".join(site.review(proposal).refusals)
    assert not site.approve(proposal).fits
    assert not site.store.is_approved(proposal.digest)


@pytest.mark.parametrize(("kind", "bound"), [("gradient", {"smallest_parties": 4}), ("pairs", {"colluders": 1})])
def test_what_just_meets_a_bound_is_not_refused(tmp_path, kind, bound):
    proposal, _ = propose(plan_of(kind), make_sites(tmp_path))
    policy = Policy(name=NAMES[0], data="x", epsilon=1.0, delta=0.1, curator=True, **bound)
    assert policy.refusals(proposal, 0) == []


def test_a_proposal_tells_in_which_rounds_something_else_leaves(tmp_path):
    proposal, _ = propose(plan_of("standardised"), make_sites(tmp_path))
    told = [line for line in proposal.to_markdown().splitlines() if "in their place" in line]
    assert [line.split(",")[0] for line in told] == ["- In round 1", "- In round 2"]


def test_who_may_ask_and_what_the_site_is_called(tmp_path):
    sites = make_sites(tmp_path)
    proposal, keys = propose(plan_of("gradient"), sites)
    policy = sites[0].policy
    assert (
        Policy(name="east", data="x", epsilon=1.0, delta=0.1, curator=True, coordinators=(keys.identity,)).refusals(
            proposal, 0
        )
        == []
    )
    stranger = (PrivateKeys.generate().identity,)
    refused = Policy(name="west", data="x", curator=True, coordinators=stranger).refusals(proposal, 0)
    assert [sentence.split(":")[0] for sentence in refused] == ["name", "budget", "coordinators"]
    assert policy.refusals(proposal, 0) == []


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("name = 'a'", "key 'data' is missing"),
        ("name = 7\ndata = 'x.csv'", "name got 7; a text is needed"),
        ("name = ''\ndata = 'x.csv'", "name got ''; a text is needed"),
        ("name = 'a'\ndata = 'x.csv'\nepsilom = 1", "unknown key 'epsilom'"),
        ("name = 'a'\ndata = 'x.csv'\n[budget]\nepsilon = 1", "both or neither"),
        ("name = 'a'\ndata = 'x.csv'\n[budget]\nepsilon = -1\ndelta = 0.1", "a positive number is needed"),
        ("name = 'a'\ndata = 'x.csv'\n[policy]\ncurator = 1", "true or false is needed"),
        ("name = 'a'\ndata = 'x.csv'\n[policy]\nsmallest_parties = true", "an integer >= 0 is needed"),
        ("name = 'a'\ndata = 'x.csv'\n[policy]\nsmallest_parties = -1", "an integer >= 0 is needed"),
        ("name = 'a'\ndata = 'x.csv'\n[policy]\ncolluders = 1.5", "an integer >= 0 is needed"),
        ("name = 'a'\ndata = 'x.csv'\n[policy]\nalgorithms = ['walk']", "did you mean"),
        ("name = 'a'\ndata = 'x.csv'\n[policy]\ncoordinators = ['coterie1:abc']", "cut off or misspelt"),
        ("name = 'a'\ndata = 'x.csv'\nbudget = 1", "budget got 1; a table is needed"),
        ("name = 'a'\ndata = 'x.csv'\npolicy = ['curator']", r"policy got \['curator'\]; a table is needed"),
        ("name = \x00", "is not TOML"),
    ],
)
def test_a_policy_that_cannot_be_read_is_refused_in_a_sentence(tmp_path, text, sentence):
    (tmp_path / "site.toml").write_text(text)
    with pytest.raises(InputError, match=sentence):
        Policy.read(tmp_path)


def test_the_first_policy_has_every_setting_and_allows_little():
    content = tomllib.loads(policy_of("east", more=""))
    assert not content["policy"]["curator"]
    assert not content["policy"]["seeded"]


# --- proposals --------------------------------------------------------------------------------------------------------


def test_a_proposal_is_read_back_and_any_change_is_found(tmp_path):
    sites = make_sites(tmp_path)
    proposal, _ = propose(plan_of("graph"), sites, title="T", wait_s=5.0)
    again = Proposal.from_json(proposal.to_json())
    assert again.digest == proposal.digest
    assert again.plan == proposal.plan
    content = json.loads(proposal.to_json())
    for key, value in (("delta", 1e-3), ("seed", 1), ("wait_s", None), ("title", "U"), ("nonce", "0"), ("more", 1)):
        with pytest.raises(InputError, match="proposal: "):
            Proposal.from_json(json.dumps({**content, key: value}))
    swapped = dict(zip(NAMES, list(content["parties"].values())[::-1], strict=True))
    with pytest.raises(InputError, match="changed after it was made"):
        Proposal.from_json(json.dumps({**content, "parties": swapped}))
    page = proposal.to_markdown()
    assert all(f"| {name} |" in page for name in NAMES)
    assert "the run waits 5 seconds, then ends" in page


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"title": "x" * (LONGEST_TITLE + 1)}, "title: got"),
        *(({"wait_s": value}, "wait_s: got") for value in (0, -1.0, np.inf, np.nan, True, "soon")),
        *(({"largest_norm": value}, "largest_norm: got") for value in (0.0, np.inf, "large")),
    ],
)
def test_a_proposal_with_settings_that_are_none_is_refused(tmp_path, settings, sentence):
    sites, plan = make_sites(tmp_path), plan_of("gradient")
    propose(plan, sites, title="x" * LONGEST_TITLE, wait_s=1, largest_norm=1e3)
    with pytest.raises(InputError, match=sentence):
        propose(plan, sites, **settings)


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (Label("y", ("no", "yes")), "no, yes"),
        (CategoryColumn("x", ("a", "b"), other=True), "a, b, or anything else"),
        (NumberColumn("x", 0, 2.5, missing=True), "a number from 0 to 2.5, or nothing"),
        (NumberColumn("x", 0, 1e6), "a number from 0 to 1,000,000"),
    ],
)
def test_a_proposal_tells_what_a_column_may_hold(column, words):
    assert _allowed(column) == words


def test_how_long_the_longest_message_to_a_site_is():
    """Whatever was released since its last one: everybody's, of a walk all visits of others."""
    number = 8 * 4 + len("coordinator") + _AROUND_NUMBERS
    assert most_told(plan_of("gradient, nobody trusted")) == 4 * number + _AROUND_NUMBERS
    assert most_told(plan_of("gradient")) == number + _AROUND_NUMBERS
    walk = plan_of("walk", 40)
    holders = [int(np.flatnonzero(row)[0]) for row in walk.participation]
    longest = 0
    for party in range(4):
        visits = [-1, *(t for t, holder in enumerate(holders) if holder == party), len(holders)]
        longest = max(longest, visits[1], *np.diff(visits[1:]))
    assert longest > 5
    assert most_told(walk) == longest * number + _AROUND_NUMBERS


def test_what_cannot_be_carried_out_between_sites_is_not_proposed(tmp_path):
    sites = make_sites(tmp_path)
    problem = Problem(loss=Logistic(), regulariser=L2(1.0), record_weight=1.0)

    def plan(channel, **settings):
        algorithm = NoisyGradientDescent(
            mechanism=GaussianGradient(noise_multiplier=5.0),
            regulariser=L2(1.0),
            step=0.01,
            channel=channel,
            **settings,
        )
        return Plan.make(algorithm, problem, "ring", DATA.facts, rounds=2, adjacency="zero-out", unit="party")

    with pytest.raises(InputError, match="channel: got 'secure-sum'; between sites nothing stands behind that word"):
        propose(plan(SecureSum()), sites)
    with pytest.raises(InputError, match="the coordinator would know a secret selection"):
        propose(plan(Curator(), selection=Poisson(probability=0.5, seed=None)), sites)
    wide = dataclasses.replace(DATA.facts, n_features=2_200_000)
    told = Plan.make(ALGORITHMS["gradient, nobody trusted"], problem, "ring", wide, rounds=2, adjacency="replace-one")
    with pytest.raises(InputError, match=r"plan: a site would be told 70,4\d\d,\d+ bytes in one message"):
        propose(told, sites)
    # a sum has one party's length
    propose(Plan.make(ALGORITHMS["gradient"], problem, "ring", wide, rounds=2, adjacency="replace-one"), sites)


# --- keys and messages ------------------------------------------------------------------------------------------------


def test_keys_stay_private_and_identities_are_checked(tmp_path):
    keys = PrivateKeys.generate()
    keys.save(tmp_path / "key")
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert PrivateKeys.load(tmp_path / "key").identity == keys.identity
    with pytest.raises(InputError, match="never overwritten"):
        keys.save(tmp_path / "key")
    (tmp_path / "key").chmod(0o644)
    with pytest.raises(InputError, match="can be read by others"):
        PrivateKeys.load(tmp_path / "key")
    text = str(keys.identity)
    assert Identity.parse(text) == keys.identity
    assert re.fullmatch(r"([0-9a-f]{4} ){4}[0-9a-f]{4}", keys.identity.fingerprint)
    for wrong in (text[:-1], text + "A", text.replace("coterie1:", ""), "", None, 7):
        with pytest.raises(InputError, match="is needed"):
            Identity.parse(wrong)


def test_only_whom_it_is_sealed_to_can_open_it():
    one, other = PrivateKeys.generate(), PrivateKeys.generate()
    sealed = one.identity.seal(b"content", b"context")
    assert one.open_sealed(sealed, b"context") == b"content"
    for keys, content, context in (
        (other, sealed, b"context"),
        (one, sealed, b"other context"),
        (one, sealed[:-1] + bytes([sealed[-1] ^ 1]), b"context"),
        (one, b"", b"context"),
    ):
        with pytest.raises(SignatureError):
            keys.open_sealed(content, context)


def test_no_two_things_are_sealed_with_one_key_and_one_nonce():
    keys = PrivateKeys.generate()
    sealer = Sealer(keys.identity)
    sealed = [sealer.seal(b"the same", b"context") for _ in range(300)]
    # the key that it was agreed on with, and the nonce
    assert len({one[:32] for one in sealed}) == 1
    assert len({one[:44] for one in sealed}) == len({one[44:] for one in sealed}) == 300
    others = [Sealer(keys.identity).seal(b"the same", b"context") for _ in range(100)]
    assert len({one[:32] for one in others}) == 100
    # in whatever order they come, and from more senders than are remembered
    for one in [*reversed(sealed), *others, *sealed]:
        assert keys.open_sealed(one, b"context") == b"the same"


@pytest.mark.parametrize("place", range(76))
def test_every_byte_of_something_sealed_counts(place):
    keys = PrivateKeys.generate()
    sealed = bytearray(keys.identity.seal(b"0123456789abcdef", b"context"))
    assert len(sealed) == 76 == SEAL_BYTES + 16
    sealed[place] ^= 1
    with pytest.raises(SignatureError):
        keys.open_sealed(bytes(sealed), b"context")


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (np.zeros(3), "shape"),
        (np.zeros((2, 2)), "shape"),
        (np.array([0, 0, 0, np.nan]), "not finite"),
        (np.array([0, 0, 0, np.inf]), "not finite"),
        (np.array([0, 0, 0, 1e300]), "beyond 10"),
        (np.full(4, 9.0), "norm of|of norm 18"),
    ],
)
def test_numbers_in_a_message_are_checked(value, sentence):
    message = unpack(pack("release", "0" * 64, "east", PrivateKeys.generate(), round=0, value=value))
    with pytest.raises(MessageError, match=sentence):
        numbers(message["value"], (4,), largest_norm=10.0)


@pytest.mark.parametrize(
    "spoiled",
    [
        *({"body": value} for value in (None, 5, "text", [b""], {})),
        *({"signature": value} for value in (None, SIGNATURE_BYTES, "x" * SIGNATURE_BYTES, [b""] * SIGNATURE_BYTES)),
        *({"signature": bytes(length)} for length in (0, SIGNATURE_BYTES - 1, SIGNATURE_BYTES + 1)),
    ],
)
def test_a_body_and_a_signature_are_bytes(spoiled):
    packet = pack("refused", "0" * 64, "east", PrivateKeys.generate())
    parts = dict(zip(("version", "kind", "body", "signature"), decoded(packet), strict=True))
    assert encoded(list(parts.values())) == packet == unpack(packet).packet
    with pytest.raises(MessageError, match="a 'refused' without a body or without a signature"):
        unpack(encoded(list((parts | spoiled).values())))


@pytest.mark.parametrize("number", [-1, 10**6 + 1, 2**40, 1.0, True, "1", None])
def test_a_round_is_a_number_of_one(number):
    keys = PrivateKeys.generate()
    assert unpack(pack("finish", "0" * 64, "coordinator", keys, first=10**6, heard=[]))["first"] == 10**6
    with pytest.raises(MessageError, match="'first' is of another type or size"):
        unpack(pack("finish", "0" * 64, "coordinator", keys, first=number, heard=[]))


ARRAY = {"shape": [1], "dtype": "<f8", "data": bytes(8)}


@pytest.mark.parametrize(
    "value",
    [
        5,
        [ARRAY],
        {"shape": [1], "dtype": "<f8"},
        {**ARRAY, "order": "C"},
        {**ARRAY, "dtype": "<i8"},
        {**ARRAY, "shape": 1},
        {**ARRAY, "shape": [1] * 5},
        {**ARRAY, "shape": [2]},
        {**ARRAY, "data": "x" * 8},
    ],
)
def test_what_stands_for_numbers_is_an_array(value):
    keys = PrivateKeys.generate()
    told = {"round": 0, "value": ARRAY}
    assert numbers(unpack(pack("release", "0" * 64, "east", keys, **told))["value"], (1,)) == 0
    with pytest.raises(MessageError, match="'value' is of another type or size"):
        unpack(pack("release", "0" * 64, "east", keys, **told | {"value": value}))


@pytest.mark.parametrize("heard", [5, "", {}, [5], [[5]], [[b""]]])
def test_what_was_heard_is_packets_by_round(heard):
    keys = PrivateKeys.generate()
    assert unpack(pack("finish", "0" * 64, "coordinator", keys, first=0, heard=[[b"x"]]))["heard"] == [[b"x"]]
    with pytest.raises(MessageError, match="'heard' is of another type or size"):
        unpack(pack("finish", "0" * 64, "coordinator", keys, first=0, heard=heard))


@pytest.mark.parametrize("name", ["", "x" * 201, b"x", 1])
def test_files_of_a_result_have_names(name):
    keys = PrivateKeys.generate()
    files = {"x": b"", "y" * 200: b"content"}
    assert unpack(pack("result", "0" * 64, "coordinator", keys, files=files))["files"] == files
    # a key that is a number is found when it is decoded
    with pytest.raises(MessageError, match=r"'files' is of another type or size|cannot be decoded"):
        unpack(pack("result", "0" * 64, "coordinator", keys, files={name: b""}))


def test_what_is_kept_only_its_owner_can_read_and_write(tmp_path):
    write_whole(tmp_path / "file", b"content")
    assert (tmp_path / "file").stat().st_mode & 0o7777 == 0o600


def test_states_of_a_run_are_kept_until_the_round_after_the_next_one(tmp_path):
    store, run, shapes = Store(tmp_path), "0" * 64, [(2, 3), (1,), (4,)]
    leaves = [np.random.default_rng(t).normal(size=shape) for t in range(3) for shape in shapes]
    of_round = [leaves[3 * t : 3 * t + 3] for t in range(3)]
    for t in range(3):
        store.save_state(run, t, of_round[t])
        # a round that was not committed is worked out again from the state before it
        for kept in range(max(0, t - 1), t + 1):
            for found, saved in zip(store.load_state(run, kept, shapes), of_round[kept], strict=True):
                np.testing.assert_array_equal(found, saved)
    states = sorted((tmp_path / "runs" / run).iterdir())
    assert [path.name for path in states] == ["state-000001", "state-000002"]
    assert all(path.stat().st_mode & 0o077 == 0 for path in (*states, tmp_path / "runs" / run))
    for t, wrong in ((0, shapes), (3, shapes), (2, shapes[:2]), (2, [(3, 2), (1,), (4,)])):
        with pytest.raises(InputError, match=rf"state: .*state-00000{t}.* cannot be read .*this run cannot go on"):
            store.load_state(run, t, wrong)
    states[1].write_bytes(states[1].read_bytes()[:-1])
    with pytest.raises(InputError, match="cannot be read"):
        store.load_state(run, 2, shapes)
    store.forget_states(run)
    assert not list((tmp_path / "runs" / run).iterdir())


def test_a_release_that_nobody_would_take_does_not_leave(tmp_path):
    sites = make_sites(tmp_path / "sites")
    proposal, keys = approved(plan_of("graph", ROUNDS), sites, largest_norm=1e-9)
    with pytest.raises(PartyError):
        Coordinator(proposal, keys, recorded := Recorded(sites), tmp_path / "run").run()
    assert {unpack(answer).kind for _, asked, answer in recorded.said if unpack(asked).kind == "round"} == {"refused"}
    assert "has a norm above 1e-09; nothing of it left" in last_reason(sites[0])


def test_what_does_not_leave_is_drawn_once_and_stays_charged(tmp_path, monkeypatch):
    """Fresh noise until something may leave would tell more than the one release that is paid for."""
    sites = make_sites(tmp_path / "sites")
    proposal, keys = approved(plan_of("graph", ROUNDS), sites, largest_norm=1e-9)
    steps, work = [], OneParty.work
    monkeypatch.setattr(OneParty, "work", lambda self, **more: steps.append(self) or work(self, **more))
    asked = pack("round", proposal.digest, "coordinator", keys, round=0, first=0, heard=[])
    direct(sites)(NAMES[0], pack("open", proposal.digest, "coordinator", keys))
    answers = [direct(sites)(NAMES[0], asked) for _ in range(3)]
    sites[0].close()
    sites[0] = Site(sites[0].store.folder)
    answers.append(direct(sites)(NAMES[0], asked))
    assert [kind_of(answer) for answer in answers] == ["refused"] * 4
    assert len(steps) == 1
    assert sites[0].ledger.reservation(proposal.digest).ended
    assert not sites[0].withdraw(proposal.digest)
    assert sites[0].ledger.total(NAMES[0], delta=DELTA).epsilon > 0
    sites[0].ledger.verify()


def test_a_party_that_sends_what_cannot_be_used_is_named(tmp_path):
    sites = make_sites(tmp_path / "sites")
    proposal, keys = approved(plan_of("walk", ROUNDS), sites)
    exchange = direct(sites)
    holder = NAMES[int(np.flatnonzero(proposal.plan.participation[0])[0])]
    own = next(site.keys for site in sites if site.policy.name == holder)
    answers = [(proposal.digest, holder, value) for value in (np.full(4, np.nan), np.full(4, 1e12), np.zeros(5))]
    # what would do, but for another run or in another's name
    answers += [("0" * 64, holder, np.zeros(4)), (proposal.digest, "nobody", np.zeros(4))]
    for number, (run, sender, value) in enumerate(answers):

        def lying(party, packet, run=run, sender=sender, value=value):
            if unpack(packet).kind == "round":
                return pack("release", run, sender, own, round=0, value=value)
            return exchange(party, packet)

        with pytest.raises(PartyError, match=f"{holder} sent something that cannot be used"):
            Coordinator(proposal, keys, lying, tmp_path / f"run{number}").run()


def test_a_party_that_refuses_ends_the_run_though_others_are_away(tmp_path):
    sites = make_sites(tmp_path / "sites")
    proposal, keys = propose(plan_of("gradient"), sites)
    sites[-1].store.approve(proposal)
    exchange = direct(sites)

    def some_are_away(party, packet):
        if party == NAMES[0]:
            raise UnreachableError("away")
        return exchange(party, packet)

    with pytest.raises(PartyError, match=r"(north|south) refused"):
        Coordinator(proposal, keys, some_are_away, tmp_path / "run").run()


def test_whom_a_run_waits_for_is_told_again(tmp_path, monkeypatch):
    monkeypatch.setattr("coterie.site.coordinator.TELL_AGAIN_S", 0.01)
    sites = make_sites(tmp_path / "sites")
    proposal, keys = approved(plan_of("gradient"), sites, wait_s=None)
    exchange, told = direct(sites), []

    def one_is_away(party, packet):
        if party == NAMES[0] and len(told) < 20:
            raise UnreachableError("away")
        return exchange(party, packet)

    Coordinator(proposal, keys, one_is_away, tmp_path / "run", watch=told.append).run()
    late = [now for now in told if now.phase == "opening" and now.waiting == (NAMES[0],)]
    assert len(late) > 5
    assert all(set(now.answered) == set(NAMES[1:]) for now in late)


def test_a_policy_that_has_changed_holds_from_the_next_opening_on(tmp_path):
    sites = make_sites(tmp_path)
    proposal, keys = approved(plan_of("gradient"), sites)
    opening = pack("open", proposal.digest, "coordinator", keys)
    assert kind_of(direct(sites)(NAMES[0], opening)) == "ready"
    (sites[0].store.folder / "site.toml").write_text(policy_of(NAMES[0], more="curator = false"))
    assert kind_of(direct(sites)(NAMES[0], opening)) == "refused"
    assert "the policy does not allow this run: curator" in last_reason(sites[0])


# --- certificates -----------------------------------------------------------------------------------------------------


def test_every_site_signs_and_a_certificate_says_who(tmp_path):
    sites = make_sites(tmp_path / "sites")
    proposal, keys = approved(plan_of("gradient", ROUNDS), sites)
    coordinator = Coordinator(proposal, keys, direct(sites), tmp_path / "run")
    coordinator.run()
    signed = coordinator.signatures()
    certificate = make_certificate(proposal.plan, DELTA, reproducible=False, engine="sites", sites=signed)
    certificate.verify()
    assert [(name, key) for name, key in certificate.signers] == list(zip(NAMES, proposal.parties, strict=True))
    assert "## Signed by every site" in certificate.to_markdown()
    entries = {entry.hash for entry in sites[0].ledger.entries() if entry.kind == "reserved"}
    assert signed["signed"][0]["statement"]["ledger_entry"] in entries
    for change in (
        {"transcript": "0" * 64},
        {"signed": signed["signed"][:-1]},
        {"signed": [*signed["signed"][:-1], signed["signed"][0]]},
        {"signed": [{**signed["signed"][0], "signature": signed["signed"][1]["signature"]}, *signed["signed"][1:]]},
        {"proposal": "1" * 64},
    ):
        forged = make_certificate(proposal.plan, DELTA, reproducible=False, engine="sites", sites={**signed, **change})
        with pytest.raises(InputError, match="certificate: "):
            Certificate(forged.document).verify()


@pytest.mark.parametrize("seed", [None, 7])
def test_a_certificate_states_the_loss_that_the_sites_have_signed(tmp_path, seed):
    sites = make_sites(tmp_path / "sites")
    proposal, keys = approved(plan_of("graph", 2), sites, seed=seed)
    coordinator = Coordinator(proposal, keys, direct(sites), tmp_path / "run")
    coordinator.run()
    about = {"engine": "sites", "sites": coordinator.signatures()}
    make_certificate(proposal.plan, DELTA, reproducible=seed is not None, **about).verify()
    for delta, reproducible, what in ((0.01, seed is not None, "delta"), (DELTA, seed is None, "epsilon")):
        forged = make_certificate(proposal.plan, delta, reproducible=reproducible, **about)
        with pytest.raises(InputError, match=f"'east' has signed another {what}"):
            Certificate.from_json(forged.to_json()).verify()
    # nobody has signed a part of it, which could be any numbers
    stopped = make_certificate(proposal.plan, DELTA, reproducible=seed is not None, rounds_done=1, **about)
    with pytest.raises(InputError, match="signed at its end, and 1 of 2 rounds"):
        Certificate.from_json(stopped.to_json()).verify()


# --- results ----------------------------------------------------------------------------------------------------------

WRONG_RESULTS = {
    "a page": (lambda files: {**files, "report.html": b"<script>"}, "with a file called 'report.html'"),
    "a hidden file": (lambda files: {**files, ".profile": b"x"}, "with a file called '.profile'"),
    "another folder": (lambda files: {**files, "../site.toml": b"x"}, "with a file called '../site.toml'"),
    "no model": (lambda files: {k: v for k, v in files.items() if k != "model.json"}, "without a file called 'model"),
    "no file": (lambda files: {}, "without a file called"),
    "a byte": (lambda files: {**files, "run.log": b"approved"}, "SHA256SUMS does not fit"),
    "a model": (lambda files: changed(files, "model.json", b'"intercept"', b'"Intercept"'), "model.json"),
    "a coefficient": (lambda files: changed(files, "model.json", b'"x0": ', b'"x0": 1'), "model.json"),
    "a sentence": (lambda files: changed(files, "certificate.md", b"delta", b"gamma"), "certificate.md"),
    "a loss": (lambda files: changed(files, "summary.json", b'"epsilon": ', b'"epsilon": 0'), "summary.json"),
}


def changed(files, name, old, new):
    """With the sum made right again."""
    assert old in files[name], name
    files = {**files, name: files[name].replace(old, new)}
    listed = {other: hashlib.sha256(content).hexdigest() for other, content in files.items() if other != "SHA256SUMS"}
    lines = [f"{stated}  {other}\n" for other, stated in sorted(listed.items())]
    return {**files, "SHA256SUMS": "".join(lines).encode()}


def test_a_site_keeps_the_result_that_it_has_signed_and_nothing_else(tmp_path):
    sites = make_sites(tmp_path / "sites")
    proposal, keys = approved(plan_of("gradient", ROUNDS), sites)
    coordinator = Coordinator(proposal, keys, direct(sites), tmp_path / "run")
    transcript = coordinator.run()
    signed = coordinator.signatures()
    certificate = make_certificate(proposal.plan, DELTA, reproducible=False, engine="sites", sites=signed)
    names = [f"x{i}" for i in range(DATA.facts.n_features)]
    schema = Schema(tuple(NumberColumn(name, -9, 9) for name in names), Label("y", ("0", "1")))
    (tmp_path / "result").mkdir()
    model = model_of(transcript, schema, names, intercept=False)
    fill_run(tmp_path / "result", transcript, certificate, {"proposal.json": proposal.to_json()}, "", model)
    files = {path.name: path.read_bytes() for path in (tmp_path / "result").iterdir()}
    site = sites[0]
    site.check_result = verify_path
    for what, (change, reason) in WRONG_RESULTS.items():
        answer = site.handle(pack("result", proposal.digest, "coordinator", keys, files=change(files)))
        assert kind_of(answer) == "refused", what
        assert reason in last_reason(site), what
        assert not site.store.result(proposal.digest).exists(), what
    coordinator.hand_out(files)
    for site in sites:
        kept = site.store.result(proposal.digest)
        assert {path.name: path.read_bytes() for path in kept.iterdir()} == files
        assert sums(kept).encode() == files["SHA256SUMS"]
