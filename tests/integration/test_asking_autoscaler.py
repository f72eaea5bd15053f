"""An autoscaler that asks extenders about whole nodes, as some would have it, by filter-dryrun."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpushare.wire.scheduler.config import ExtenderConfig, ExtenderManagedResource
from gpushare_localcluster.autoscaler.rules import Autoscaler, Group, ScaleUp
from gpushare_localcluster.scheduler.extender import HttpExtender
from tests.integration.cluster import COUNT, MARK, MEM, NODES, PODS
from tests.integration.conftest import World
from tests.support.waiting import poll

REFUSED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
Look = Callable[..., ScaleUp]


@pytest.fixture
def asked(world: World) -> Iterator[HttpExtender]:
    config = ExtenderConfig(
        url_prefix=f"http://127.0.0.1:{world.extender.port}/gpushare-scheduler",
        filter_verb="filter-dryrun",
        managed_resources=(ExtenderManagedResource(MEM),),
    )
    extender = HttpExtender(config)
    yield extender
    extender.close()


@pytest.fixture
def look(world: World, asked: HttpExtender) -> Look:
    """What the autoscaler would do now, whether it asks or not."""

    def found(devices: int, *, asks: bool) -> ScaleUp:
        amounts = {"cpu": "96", "memory": "768Gi", "pods": "110", MEM: "32", COUNT: str(devices)}
        template = {"metadata": {"name": "t"}, "status": {"allocatable": amounts}}
        autoscaler = Autoscaler([Group("gpu", template)], extender=asked if asks else None)
        return autoscaler.scale_up(world.cluster.all(NODES), world.cluster.all(PODS))

    return found


def waits(world: World, units: int) -> str:
    """A pod that kube-scheduler has refused; its key."""
    name = str(world.cluster.pod(units)["metadata"]["name"])
    status = {"phase": "Pending", "conditions": [REFUSED]}

    def refused(body: dict[str, Any]) -> dict[str, Any]:
        return {**body, "status": status}

    world.cluster.change(PODS, "default", name, refused)
    return f"default/{name}"


def test_one_that_asks_brings_the_node_that_a_sum_hides(world: World, look: Look) -> None:
    full = world.cluster.node()
    for device in ("0", "1"):
        world.cluster.pod(10, spec={"nodeName": full}, annotations={f"{MARK}IDX": device})
    pod = waits(world, 8)
    assert look(2, asks=False) == ScaleUp({}, {pod: f"fits {full}"})
    poll(lambda: look(2, asks=True) == ScaleUp({"gpu": 1}, {pod: "gpu grows"}), "a node comes")
    new = world.cluster.node()
    poll(lambda: look(2, asks=True) == ScaleUp({}, {pod: f"fits {new}"}), "it is the last one")


def test_one_that_asks_brings_no_node_whose_devices_are_too_small(world: World, look: Look) -> None:
    pod = waits(world, 10)
    assert look(4, asks=False).new == {"gpu": 1}
    found = look(4, asks=True)
    assert found.new == {}
    assert found.why[pod].startswith("gpu: ")
    assert "device" in found.why[pod]
    assert look(2, asks=True).new == {"gpu": 1}
