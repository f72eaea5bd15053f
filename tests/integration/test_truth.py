"""All surfaces say of a cluster in an odd state what the local cluster's scheduler does."""

from pathlib import Path
from random import Random

import pytest

from gpushare_localcluster.scheduler.config import SchedulerOptions
from gpushare_localcluster.scheduler.scheduler import Scheduler
from tests.contract.apiserver.client import Api
from tests.e2e.objects import Objects
from tests.integration.cluster import Cluster
from tests.integration.conftest import StartExtender
from tests.integration.process import free_port
from tests.integration.verbs import scheduler_entry
from tests.support.odd_clusters import Sayings, check


@pytest.mark.parametrize("seed", range(3))
def test_what_is_said_is_what_the_scheduler_does(
    cluster: Cluster, start_extender: StartExtender, tmp_path: Path, seed: int
) -> None:
    page = f"127.0.0.1:{free_port()}"
    extender = start_extender("--ui-listen", page)
    extender.wait_ready()
    entry = scheduler_entry(f"http://127.0.0.1:{extender.port}/gpushare-scheduler", timeout=60.0)
    options = SchedulerOptions((entry,), initial_backoff=0.05, max_backoff=0.2, seed=seed)
    scheduler = Scheduler(cluster.server.url, options)
    scheduler.start()
    try:
        objects = Objects(Api(cluster.server.url))
        sayings = Sayings(
            objects,
            cluster.kubeconfig(tmp_path),
            page=f"http://{page}",
            health=f"http://127.0.0.1:{extender.health_port}",
            folder=tmp_path,
        )
        check(objects, sayings, Random(seed), nodes=4, pods=6)
    finally:
        scheduler.stop()
