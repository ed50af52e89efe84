"""Sites release what one process releases, from the same seeded noise; nothing else passes between them."""

import numpy as np
import pytest
from made import ALGORITHMS, DATA, approved, direct, make_sites, plan_of

from coterie.engines.in_process import run
from coterie.privacy.noise import Seeded
from coterie.site.coordinator import Coordinator
from coterie.site.proposal import most_told

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
