"""The managed resources are those of kube-scheduler's file, and so is their counting."""

import pytest

from gpushare.core.amounts import compute, percents_of
from gpushare.core.model import Request
from gpushare.extender.factory import make_managed_resources
from gpushare.extender.follow.group_sizes import GroupSizes
from gpushare.settings import Settings
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.scheduler.config import ExtenderConfig, ExtenderManagedResource
from tests.unit.core.clusters import node, state_of


def test_the_limit_of_neighbours_is_that_of_each_ranking() -> None:
    entry = ExtenderConfig("http://127.0.0.1:1")
    (memory,) = make_managed_resources(Settings(neighbours=2), entry, [], GroupSizes())
    assert {memory.neighbours, *(one.neighbours for one in memory.rankings.values())} == {2}


@pytest.mark.parametrize("ignored", [True, False])
def test_compute_that_kube_scheduler_does_not_count_keeps_no_pod_out(*, ignored: bool) -> None:
    """No node advertises compute then, and the devices have it all the same."""
    resources = (
        ExtenderManagedResource(ALIYUN.resource),
        ExtenderManagedResource(ALIYUN.cores, ignored_by_scheduler=ignored),
    )
    entry = ExtenderConfig("http://127.0.0.1:1", managed_resources=resources)
    managed_resources = make_managed_resources(
        Settings(), entry, ["default-scheduler"], GroupSizes()
    )
    (memory,) = managed_resources
    managed_resources.node_states.put(
        state_of(node("a", 16), allocatable={ALIYUN.resource: 16, "pods": 110})
    )
    request = Request(
        4, 1, resources=((ALIYUN.cores, 30), (ALIYUN.resource, 4)), percents=compute(30)
    )
    result = [obstacle.text for obstacle in memory.filters.obstacles("a", request)]
    assert result == ([] if ignored else [f"too little {ALIYUN.cores} even if empty"])


def test_without_a_file_percents_of_memory_count_as_ignored_by_kube_scheduler() -> None:
    entry = ExtenderConfig(
        "http://127.0.0.1:1", managed_resources=(ExtenderManagedResource(ALIYUN.resource),)
    )
    request = Request(
        1, 1, resources=((ALIYUN.share, 30), (ALIYUN.resource, 1)), percents=percents_of((0, 30))
    )
    for file, is_left_out in (("", False), ("kube-scheduler.yaml", True)):
        settings = Settings(scheduler_config=file)
        resources = make_managed_resources(settings, entry, [], GroupSizes())
        resources.node_states.put(
            state_of(node("a", 16), allocatable={ALIYUN.resource: 16, "pods": 110})
        )
        (memory,) = resources
        assert bool(memory.filters.obstacles("a", request)) == is_left_out
