"""What goes wrong at a site is refused before anything leaves, and nothing is charged twice once it is right again."""

import resource
import time

import pytest
from made import NAMES, approved, direct, make_sites, plan_of

from coterie.site.messages import pack, unpack


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
