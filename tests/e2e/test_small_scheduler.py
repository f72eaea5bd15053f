"""The small scheduler decides as kube-scheduler does, pod by pod, on clusters made by chance.

tests/e2e/compare_schedulers.py has the comparison, and is the command for more clusters;
tests/e2e/scheduler_releases.py has the releases.
"""

from pathlib import Path

import pytest

from tests.e2e.binaries import needed
from tests.e2e.compare_schedulers import compare
from tests.e2e.scheduler_releases import RELEASES

CLUSTERS = 15


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", RELEASES)
def test_every_pod_of_random_clusters_goes_where_kube_scheduler_puts_it(
    name: str, tmp_path: Path
) -> None:
    release = RELEASES[name]
    program = needed("kube-scheduler", release.version)
    tally = compare(release, program, tmp_path, range(CLUSTERS))
    print(tally)
    assert not tally.differences, "\n".join(tally.differences)
    # The clusters are hard enough to find something.
    assert tally.scored > CLUSTERS * 3
    assert tally.waiting > CLUSTERS
    assert tally.preempting > 0
    assert tally.spread > CLUSTERS // 2 or not release.of_today
