"""All surfaces say of a cluster in an odd state what the local cluster's scheduler does."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from gpushare.wire.annotations import ALIYUN
from gpushare.wire.scheduler.config import ExtenderManagedResource
from gpushare_localcluster.scheduler.profiles import SchedulerOptions
from gpushare_localcluster.scheduler.scheduler import Scheduler
from tests.contract.apiserver.client import Api
from tests.e2e.objects import Objects
from tests.integration.cluster import Cluster
from tests.integration.conftest import StartExtender
from tests.integration.process import free_port
from tests.integration.verbs import scheduler_entry
from tests.support.odd_clusters import (
    Sayings,
    check,
    check_dead_card,
    check_large_cards,
    check_reservation,
)


@pytest.fixture
def told(
    cluster: Cluster,
    start_extender: StartExtender,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Iterator[tuple[Objects, Sayings]]:
    """A cluster with a scheduler and an extender, and all that is said of it."""
    page = f"127.0.0.1:{free_port()}"
    extender = start_extender("--ui-listen", page, *getattr(request, "param", ()))
    extender.wait_ready()
    entry = scheduler_entry(f"http://127.0.0.1:{extender.port}/gpushare-scheduler", timeout=60.0)
    share = ExtenderManagedResource(ALIYUN.share, ignored_by_scheduler=True)
    entry = replace(entry, managed_resources=(*entry.managed_resources, share))
    options = SchedulerOptions((entry,), initial_backoff=0.05, max_backoff=0.2, seed=1)
    scheduler = Scheduler(cluster.server.url, options)
    scheduler.start()
    objects = Objects(Api(cluster.server.url))
    yield (
        objects,
        Sayings(
            objects,
            cluster.kubeconfig(tmp_path),
            page=f"http://{page}",
            health=f"http://127.0.0.1:{extender.health_port}",
            folder=tmp_path,
        ),
    )
    scheduler.stop()


@pytest.mark.parametrize("seed", range(3))
def test_what_is_said_is_what_the_scheduler_does(told: tuple[Objects, Sayings], seed: int) -> None:
    check(*told, Random(seed), nodes=4, pods=6)


def test_a_pod_for_large_cards_that_are_away_is_told_what_helps(
    told: tuple[Objects, Sayings],
) -> None:
    for state in ("plain", "cordoned", "tainted", "nothing"):
        check_large_cards(*told, Random(0), state)
        told[0].clear()


def test_a_pod_on_a_dead_card_is_named_where_its_end_is_needed(
    told: tuple[Objects, Sayings],
) -> None:
    check_dead_card(*told, Random(0))


@pytest.mark.parametrize("told", [("--reserve-after", "1")], indirect=True)
def test_nobody_calls_room_free_that_is_kept_for_another(told: tuple[Objects, Sayings]) -> None:
    check_reservation(*told)
