"""Runs over a real SuperLink and four SuperNodes with certificates: the same numbers as in one process, and strangers
are refused."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import flower_kills
import numpy as np
import pytest
from interrupted import check_ctrl_c
from made import DATA, NAMES, approved, make_sites, plan_of

pytest.importorskip("flwr", reason="this environment has no Flower; `make test-slow` makes one that has")

from coterie.engines.in_process import run
from coterie.privacy.noise import Seeded
from coterie.relay import flower
from coterie.relay.certificates import Authority, write_node_key
from coterie.relay.processes import Processes, free_ports, marked
from coterie.site.coordinator import Coordinator
from coterie.site.envelope import Sealing
from coterie.site.messages import pack, unpack
from coterie.site.serve import serve
from coterie.site.sockets import UnreachableError

pytestmark = pytest.mark.slow
# each takes some seconds here
ROUNDS = 2
KINDS = ("graph", "pairs", "walk")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """Sites that are served, the engine's folder, and a way to them through Flower."""
    home = tmp_path_factory.mktemp("flower")
    sites = make_sites(home / "sites")
    for site in sites:
        threading.Thread(target=serve, args=(site,), daemon=True).start()
    sockets = {site.policy.name: site.store.socket_file for site in sites}
    with flower.on_this_machine(home / "engine", sockets) as carry:
        yield sites, home / "engine", carry
    assert marked(home / "engine") == []


def asked(carry, party, envelope):
    """As a coordinator asks: again, when there was no answer."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        try:
            return carry(party, envelope)
        except UnreachableError:
            time.sleep(0.2)
    raise AssertionError(f"{party} was not reached")


class OverFlower:
    """A run of a kind of plan over Flower, and all that Flower sees of it."""

    def __init__(self, kind, sites, carry, folder):
        self.plan, self.carried = plan_of(kind, rounds=ROUNDS), []
        self.proposal, keys = approved(self.plan, sites, seed=3)

        def seen(party, envelope):
            self.carried.append(envelope)
            self.carried.append(answer := carry(party, envelope))
            return answer

        self.coordinator = Coordinator(self.proposal, keys, Sealing(self.proposal, keys, seen), folder)

    def run(self):
        self.found, self.signed = self.coordinator.run(), self.coordinator.signatures()


@pytest.fixture(scope="module")
def runs(fleet, tmp_path_factory):
    """One of each kind, all at once: a message takes seconds, whatever is in it."""
    sites, _, carry = fleet
    found = {kind: OverFlower(kind, sites, carry, tmp_path_factory.mktemp(kind)) for kind in KINDS}
    with ThreadPoolExecutor(len(found)) as pool:
        for done in [pool.submit(one.run) for one in found.values()]:
            done.result()
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_the_transcript_is_that_of_one_process(fleet, runs, kind):
    one, works = runs[kind], runs[kind].plan.participation
    expected = run(one.plan, DATA, noise=Seeded(3))
    np.testing.assert_allclose(one.found.releases, expected.releases, rtol=0, atol=1e-9)
    np.testing.assert_allclose(one.found.models, expected.models, rtol=0, atol=1e-9)
    assert [entry["statement"]["party"] for entry in one.signed["signed"]] == list(NAMES)
    for party, site in enumerate(fleet[0]):
        booked = site.ledger.reservation(one.proposal.digest)
        rounds = range(ROUNDS) if works is None else np.flatnonzero(works[:, party])
        assert sorted(booked.committed) == list(rounds)
    # envelopes say neither which run they belong to nor what was released in it
    told = [one.proposal.digest.encode(), *(packet for packets in one.coordinator.packets for packet in packets)]
    assert not any(words in envelope for envelope in one.carried for words in told)


def test_what_is_not_sealed_is_refused_and_costs_nothing(fleet):
    [site, *_], _, carry = fleet
    proposal, keys = approved(plan_of("pairs", rounds=ROUNDS), fleet[0])
    plain = pack("open", proposal.digest, "coordinator", keys)
    sealed_to_another = proposal.parties[1].seal(plain, b"coterie request 1")
    # both at once: a message takes seconds
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda envelope: asked(carry, NAMES[0], envelope), (plain, sealed_to_another)))
    assert [unpack(answer).kind for answer in answers] == ["refused"] * 2
    assert site.ledger.reservation(proposal.digest) is None
    log = [json.loads(line) for line in (site.store.folder / "log.jsonl").read_text().splitlines()]
    assert [line["reason"] for line in log[-2:]] == ["something that is not sealed to this site's key"] * 2


@pytest.fixture
def stranger(fleet, tmp_path):
    """Starts a SuperNode with a key and an authority of one's own choice; what it said until it ended."""
    _, engine, _ = fleet
    address = json.loads((engine / "kit.json").read_text())["address"]
    processes = Processes(tmp_path)

    def said(key, authority):
        [port] = free_ports(1)
        command = [*flower.supernode(address, authority, key, port), "--max-retries", "1"]
        processes.start("stranger", command, flower.environment(tmp_path / "home"))
        end = time.monotonic() + 120
        while processes.alive("stranger") and time.monotonic() < end:
            time.sleep(0.05)
        assert not processes.alive("stranger")
        return (tmp_path / "stranger.log").read_text()

    yield said
    processes.stop()


def test_a_key_that_nobody_registered_does_not_log_in(fleet, stranger, tmp_path):
    write_node_key(tmp_path / "unknown")
    assert "2004" in stranger(tmp_path / "unknown", fleet[1] / "ca.crt")


def test_a_superlink_that_shows_another_certificate_is_not_spoken_to(fleet, stranger, tmp_path):
    Authority("somebody else").write_certificate(tmp_path / "other.crt")
    assert "CERTIFICATE_VERIFY_FAILED" in stranger(fleet[1] / "node-0", tmp_path / "other.crt")


def test_a_run_goes_on_whatever_is_killed(tmp_path):
    # one of each in one run; `python tests/engines/flower_kills.py` has three runs of each
    assert flower_kills.main([("everything", "superlink", "supernode")], tmp_path) == []


@pytest.mark.parametrize("moment", [b"flower-supernode", b"flwr\0run"])
def test_ctrl_c_ends_the_demo_and_all_that_it_has_started(moment, tmp_path):
    check_ctrl_c("flower", moment, tmp_path)
