"""What goes wrong at a site is refused before anything leaves, and nothing is charged twice once it is right again."""

import resource
import threading
import time

import numpy as np
import pytest
from made import NAMES, approved, direct, make_sites, plan_of

from coterie.errors import InputError
from coterie.site import coordinator as coordinator_module
from coterie.site.coordinator import Coordinator, PartyError
from coterie.site.messages import pack, unpack
from coterie.site.site import Site
from coterie.site.sockets import UnreachableError
from coterie.site.store import write_whole


@pytest.fixture
def opened(tmp_path):
    sites = make_sites(tmp_path)
    proposal, keys = approved(plan_of("gradient", 3), sites)
    exchange, site = direct(sites), sites[0]
    opening = pack("open", proposal.digest, "coordinator", keys)
    asked = pack("round", proposal.digest, "coordinator", keys, round=0, first=0, heard=[])
    return site, proposal, lambda: unpack(exchange(NAMES[0], opening)), lambda: unpack(exchange(NAMES[0], asked))


class read_only:  # noqa: N801 - used as a with-statement
    def __init__(self, site):
        self.path = site.store.ledger_file

    def __enter__(self):
        self.path.chmod(0o400)

    def __exit__(self, *_):
        self.path.chmod(0o600)


class full_disk:  # noqa: N801
    """No file may become larger than nothing."""

    def __init__(self, site):
        self.before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def __enter__(self):
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, self.before[1]))

    def __exit__(self, *_):
        resource.setrlimit(resource.RLIMIT_FSIZE, self.before)


class clock_set_back:  # noqa: N801
    def __init__(self, site):
        self.patch = pytest.MonkeyPatch()

    def __enter__(self):
        now = time.time
        self.patch.setattr(time, "time", lambda: now() - 3600)

    def __exit__(self, *_):
        self.patch.undo()


@pytest.mark.parametrize("trouble", [read_only, full_disk, clock_set_back])
def test_nothing_leaves_while_the_ledger_cannot_be_written(opened, trouble):
    site, proposal, opening, asking = opened
    with trouble(site):
        assert opening().kind == "refused"
    assert site.ledger.reservation(proposal.digest) is None
    assert opening().kind == "ready"
    with trouble(site):
        assert asking().kind == "refused"
    assert not site.ledger.reservation(proposal.digest).committed
    first = asking()
    assert first.kind == "contribution"
    # what was committed can be sent again: nothing has to be written for it
    with trouble(site):
        assert asking().packet == first.packet
    kinds = [entry.kind for entry in site.ledger.entries()]
    assert (kinds.count("reserved"), kinds.count("committed")) == (1, 1)
    site.ledger.verify()


def test_records_that_changed_since_the_approval_are_refused(opened):
    site, proposal, opening, _ = opened
    records = site.data_file
    records.rename(records.with_suffix(".away"))
    assert opening().kind == "refused"
    assert site.ledger.reservation(proposal.digest) is None
    records.with_suffix(".away").rename(records)
    assert opening().kind == "ready"


@pytest.mark.parametrize("kind", ["graph", "pairs", "walk", "gradient"])
def test_a_coordinator_whose_last_rounds_never_reached_its_disk_goes_on(kind, tmp_path):
    """What sites have committed they tell again, byte for byte, though they have heard it already."""
    sites = make_sites(tmp_path / "sites")
    proposal, keys = approved(plan_of(kind, 5), sites)
    answers, place, carry = {}, tmp_path / "run", direct(sites)

    def exchange(party, packet):
        asked, answer = unpack(packet), carry(party, packet)
        if asked.kind == "round":
            assert answers.setdefault((party, asked["round"]), answer) == answer
        return answer

    whole = Coordinator(proposal, keys, exchange, place).run()
    assert len(list(place.glob("round-*"))) == 5
    # a sum that a curator has noised is on disk before anybody is told: only the last one can be missing
    for t in (4,) if kind == "gradient" else (4, 3):
        (place / f"round-{t:06d}").unlink()
    again = Coordinator(proposal, keys, exchange, place)
    if kind == "gradient":
        # nobody was told of it, so a new sum is as good
        assert again.run().releases.shape == whole.releases.shape
    else:
        assert np.array_equal(again.run().releases, whole.releases)
    assert len(again.signatures()["signed"]) == len(NAMES)
    for site in sites:
        committed = site.ledger.reservation(proposal.digest).committed
        kinds = [entry.kind for entry in site.ledger.entries()]
        assert (kinds.count("reserved"), kinds.count("committed")) == (1, len(committed))


@pytest.mark.parametrize("restarted", [True, False])
def test_a_sum_that_sites_were_told_is_never_noised_anew(restarted, tmp_path):
    """Its file is gone, and the sites would hand the same contributions out once more."""
    sites = make_sites(tmp_path / "sites")
    proposal, keys = approved(plan_of("gradient", 4), sites, wait_s=0.2)
    told, place, last = {}, tmp_path / "run", 3

    def exchange(party, packet):
        asked = unpack(packet)
        if asked.kind == "round" and asked["round"] == last:
            raise UnreachableError("away")
        for t, packets in enumerate(asked.fields.get("heard", ()), start=asked.fields.get("first", 0)):
            told.setdefault(t, set()).update(packets)
        return direct(sites)(party, packet)

    with pytest.raises(PartyError, match="has not answered"):
        Coordinator(proposal, keys, exchange, place).run()
    (place / "round-000001").write_bytes(b"damaged")
    with pytest.raises(InputError, match=r"round-000001' cannot be read .*; bring it back"):
        Coordinator(proposal, keys, exchange, place).run()
    if restarted:
        for number, site in enumerate(sites):
            site.close()
            sites[number] = Site(site.store.folder)
    last = None
    for folder, first in ((place, 1), (tmp_path / "another", 0)):
        (folder / "round-000001").unlink(missing_ok=True)
        with pytest.raises(InputError, match=f"has no round {first}, of which .* was told"):
            Coordinator(proposal, keys, exchange, folder).run()
    assert {t: len(sums) for t, sums in told.items()} == {0: 1, 1: 1}


@pytest.mark.parametrize(("kind", "waits"), [("gradient", True), ("graph", False)])
def test_a_sum_that_was_noised_is_on_disk_before_anybody_is_told(kind, waits, monkeypatch, tmp_path):
    sites = make_sites(tmp_path / "sites")
    proposal, keys = approved(plan_of(kind, 3), sites)
    place, passed_on, carry = tmp_path / "run", threading.Event(), direct(sites)

    def slowly(path, content):
        if path.name == "round-000000" and not waits:
            # by then a coordinator that does not wait has asked for the next round
            assert passed_on.wait(20.0)
        write_whole(path, content)

    def exchange(party, packet):
        asked = unpack(packet)
        if asked.kind == "round" and asked["round"] == 1:
            assert not waits or (place / "round-000000").exists()
            passed_on.set()
        return carry(party, packet)

    monkeypatch.setattr(coordinator_module, "write_whole", slowly)
    Coordinator(proposal, keys, exchange, place).run()
    assert passed_on.is_set()
    assert sorted(path.name for path in place.glob("round-*")) == [f"round-{t:06d}" for t in range(3)]


def test_a_coordinator_that_cannot_write_says_so(monkeypatch, tmp_path):
    sites = make_sites(tmp_path / "sites")
    proposal, keys = approved(plan_of("graph", 3), sites)

    def full(path, content):
        if path.name == "round-000001":
            raise OSError(28, "No space left on device")
        write_whole(path, content)

    monkeypatch.setattr(coordinator_module, "write_whole", full)
    with pytest.raises(OSError, match="No space left"):
        Coordinator(proposal, keys, direct(sites), tmp_path / "run").run()
    # and nothing stands after the gap
    assert [path.name for path in (tmp_path / "run").glob("round-*")] == ["round-000000"]
