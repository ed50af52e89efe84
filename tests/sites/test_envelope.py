"""Whoever carries envelopes can neither read them, nor answer them, nor use one of them twice."""

import pytest
from made import NAMES, approved, direct, make_sites, plan_of, propose

from coterie.keys import PrivateKeys
from coterie.site.coordinator import Coordinator, PartyError
from coterie.site.envelope import Sealing, opened_request
from coterie.site.messages import COORDINATOR, MessageError, pack, unpack


@pytest.fixture
def sites(tmp_path):
    return make_sites(tmp_path / "sites")


def opening(proposal, keys):
    return pack("open", proposal.digest, COORDINATOR, keys)


def reasons(site):
    return site.store.folder.joinpath("log.jsonl").read_text()


def test_a_carrier_sees_neither_run_nor_kind_nor_numbers(sites):
    proposal, keys = approved(plan_of("pairs"), sites)
    seen = []
    carry = direct(sites, sealed=True)

    def looking(party, envelope):
        answer = carry(party, envelope)
        seen.extend((envelope, answer))
        return answer

    exchange = Sealing(proposal, keys, looking)
    assert unpack(exchange(NAMES[0], opening(proposal, keys))).kind == "ready"
    asked = pack("round", proposal.digest, COORDINATOR, keys, round=0, first=0, heard=[])
    reply = exchange(NAMES[0], asked)
    assert unpack(reply).kind == "masked"
    assert len(seen) == 4
    for envelope in seen:
        for secret in (proposal.digest.encode(), b"round", b"masked", NAMES[0].encode(), reply[-40:]):
            assert secret not in envelope
        with pytest.raises(MessageError):
            unpack(envelope)


def test_what_is_not_sealed_to_the_site_is_refused_and_charges_nothing(sites):
    proposal, keys = approved(plan_of("pairs"), sites)
    site, other = sites[:2]
    plain = opening(proposal, keys)
    to_another = []
    with pytest.raises(MessageError, match="not sealed to the coordinator's key"):
        Sealing(proposal, keys, lambda party, envelope: to_another.append(envelope) or b"")(NAMES[1], plain)
    unknown = PrivateKeys.generate().identity.seal(plain, b"coterie request 1")
    other_purpose = site.keys.identity.seal(plain, b"something else")
    for packet in (plain, to_another[0], unknown, other_purpose, b"", b"nonsense", bytes(48)):
        answer = unpack(site.handle_sealed(packet))
        assert (answer.kind, answer.run) == ("refused", "0" * 64)
    assert "not sealed to this site's key" in reasons(site)
    assert site.ledger.reservation(proposal.digest) is None
    # the same envelope is good where it belongs
    assert opened_request(to_another[0], other.keys) == plain


def test_a_stranger_who_knows_a_sites_key_gets_a_plain_refusal(sites, tmp_path):
    # nobody has approved it
    proposal, keys = propose(plan_of("pairs"), sites)
    exchange = Sealing(proposal, keys, direct(sites, sealed=True))
    with pytest.raises(PartyError, match="refused, for a reason that stands in its own log"):
        Coordinator(proposal, keys, exchange, tmp_path / "run").run()
    stranger = PrivateKeys.generate()
    approved(plan_of("pairs"), sites)
    packet = pack("open", proposal.digest, COORDINATOR, stranger)
    envelope = sites[0].keys.identity.seal(packet, b"coterie request 1")
    assert unpack(sites[0].handle_sealed(envelope)).kind == "refused"


@pytest.mark.parametrize("trick", ["plain", "replayed", "another's", "cut off", "sealed by the carrier"])
def test_an_answer_that_a_carrier_made_or_used_again_ends_the_run(trick, sites, tmp_path):
    proposal, keys = approved(plan_of("pairs"), sites)
    carry, plain, first = direct(sites, sealed=True), direct(sites), {}
    lies = {
        "plain": lambda party, envelope: plain(party, opening(proposal, keys)),
        "replayed": lambda party, envelope: first.setdefault(party, carry(party, envelope)),
        "another's": lambda party, envelope: first.setdefault("anybody", carry(party, envelope)),
        "cut off": lambda party, envelope: carry(party, envelope)[:-1],
        "sealed by the carrier": lambda party, envelope: keys.identity.seal(b"x", b"coterie answer 1"),
    }
    coordinator = Coordinator(proposal, keys, Sealing(proposal, keys, lies[trick]), tmp_path / "run")
    with pytest.raises(PartyError, match=r"cannot be used \(an answer that is not sealed"):
        coordinator.run()
