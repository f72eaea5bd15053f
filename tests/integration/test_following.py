"""Objects of the API server reach a running extender process: nodes, pods, closed devices."""

import pytest

from tests.integration.cluster import MARK, NODES, inventory
from tests.integration.conftest import World
from tests.support.waiting import poll


def test_a_terminating_pod_holds_its_memory_until_it_is_gone(world: World) -> None:
    node = world.cluster.node(devices=1, total=16)
    world.extender.knows(node)
    pod, next_one = world.cluster.pod(10), world.cluster.pod(10)
    assert world.extender.bind(pod, node) == ""
    world.cluster.mark_deleted(pod)
    world.extender.agrees(world.cluster)
    assert world.extender.filter(next_one, [node])["FailedNodes"] == {
        node: "Insufficient GPU Memory in one device"
    }
    world.cluster.release(pod)
    poll(lambda: world.extender.fit(next_one, [node]) == [node], "the memory is free")


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_holds_nothing(world: World, phase: str) -> None:
    node = world.cluster.node(devices=1, total=16)
    world.extender.knows(node)
    pod = world.cluster.pod(10)
    assert world.extender.bind(pod, node) == ""
    world.cluster.set_phase(pod, phase)
    poll(lambda: world.extender.used(node) == [0], "the memory is free")


def test_cards_of_several_sizes_are_told_apart_by_the_inventory(world: World) -> None:
    node = world.cluster.node(annotations=inventory(80, 24, 24))
    world.extender.knows(node)
    assert world.extender.bind(world.cluster.pod(60), node) == ""
    assert world.extender.used(node) == [60, 0, 0]
    assert world.extender.refusal(world.cluster.pod(81), node) != ""
    assert world.extender.filter(world.cluster.pod(30), [node])["FailedNodes"] != {}


@pytest.mark.parametrize(
    ("annotations", "reason"),
    [
        (inventory(16, 16, unit="MiB"), "counted in another unit"),
        ({"gpushare.io/devices": "{"}, "the GPU inventory of the node cannot be read"),
    ],
)
def test_an_inventory_that_cannot_be_used_closes_the_node(
    world: World, annotations: dict[str, str], reason: str
) -> None:
    node = world.cluster.node()
    world.extender.knows(node)
    pod = world.cluster.pod(4)
    assert world.extender.fit(pod, [node]) == [node]
    world.cluster.annotate_node(node, *next(iter(annotations.items())))
    poll(lambda: reason in world.extender.refusal(pod, node), "the node is closed")
    assert reason in world.extender.bind(pod, node)


def test_the_unhealthy_config_map_closes_and_opens_devices(world: World) -> None:
    node = world.cluster.node()
    world.extender.knows(node)
    pod = world.cluster.pod(4)
    world.cluster.unhealthy(node, "0, 1")
    poll(lambda: world.extender.refusal(pod, node) == "no shared GPU", "both are closed")
    world.cluster.unhealthy(node, "0,x")  # nonsense: the last good word holds
    world.cluster.unhealthy(node, "0")
    poll(lambda: world.extender.fit(pod, [node]) == [node], "one is open")
    assert world.extender.bind(pod, node) == ""
    assert world.extender.used(node) == [0, 4]
    world.cluster.unhealthy(node, "")
    poll(lambda: world.extender.fit(world.cluster.pod(16), [node]) == [node], "all are open")


def test_nodes_come_change_and_go_while_it_runs(world: World) -> None:
    node = world.cluster.node(devices=1, total=16)
    world.extender.knows(node)
    pod = world.cluster.pod(10)
    assert world.extender.bind(pod, node) == ""
    big = world.cluster.pod(20)
    assert world.extender.refusal(big, node) != ""
    world.cluster.resize(node, mem="64", count="2")
    poll(lambda: world.extender.fit(big, [node]) == [node], "the node has grown")
    world.cluster.resize(node, mem="0", count="0")
    poll(lambda: world.extender.refusal(big, node) == "no shared GPU", "its plug-in is away")
    world.cluster.resize(node, mem="33", count="2")
    poll(lambda: "whole multiple" in world.extender.refusal(big, node), "it is uneven")
    world.cluster.resize(node, mem="32", count="2")

    def unplaced() -> list[int]:
        result = world.extender.inspect(node)["nodes"][0].get("unplaced", ())
        return [item["usedGPU"] for item in result]

    # Which of two devices the one of before is nobody says: the pod is charged to both.
    poll(lambda: world.extender.fit(world.cluster.pod(6), [node]) == [node], "it is even")
    assert unplaced() == [10]
    assert world.extender.fit(world.cluster.pod(7), [node]) == []
    world.cluster.delete(NODES, "", node)
    poll(lambda: world.extender.inspect_reply(node).status == 404, "the node is gone")
    assert "is not known" in world.extender.bind(world.cluster.pod(1), node)


def test_pods_bound_past_it_are_charged(world: World) -> None:
    node = world.cluster.node()
    world.extender.knows(node)
    world.cluster.pod(4, spec={"nodeName": node})
    world.cluster.pod(3, spec={"nodeName": node}, annotations={f"{MARK}IDX": "1"})
    world.cluster.pod(2, spec={"nodeName": node}, annotations={f"{MARK}IDX": "9"})
    world.extender.agrees(world.cluster)
    unplaced = world.extender.inspect(node)["nodes"][0]["unplaced"]
    assert sum(pod["usedGPU"] for pod in unplaced) == 6
    assert world.extender.fit(world.cluster.pod(10), [node]) == [node]
    # Where the two unplaced pods run is not known, so no device has more than 16 - 6.
    assert world.extender.fit(world.cluster.pod(11), [node]) == []
