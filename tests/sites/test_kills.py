"""A site or the coordinator is killed: the run goes on, sent rounds stay as they were, and nothing is paid twice."""

import kills
import pytest

pytestmark = pytest.mark.slow


def test_runs_complete_wherever_a_process_is_killed(tmp_path):
    n_points = len(kills.SITE_POINTS) + len(kills.COORDINATOR_POINTS)
    assert kills.main(3 * len(kills.SITE_POINTS) + 2 * len(kills.COORDINATOR_POINTS), tmp_path) == []
    assert n_points == 14
